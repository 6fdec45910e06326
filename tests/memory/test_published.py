"""Runs that are known to have fitted, or to have run out of memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.setting import RankSetting
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from validation.tables.cases import case_of
from validation.tables.reader import read_table
from validation.tables.training_rows import answer

PEAKS = Path(__file__).parents[2] / "validation" / "measurements" / "public_memory.csv"
SEEDS = Path(__file__).parents[3] / "shared" / "measurements" / "seeds.csv"
GIB = 2**30


def gpt2_large_on_a_v100(micro_batch):
    """Megatron-LM #525: gpt2-large, fp16, no flash attention, one V100 with 31.74 GiB."""
    plan = ParallelPlan(
        gpus=1, micro_batch=micro_batch, global_batch=micro_batch, sequence_length=1024, precision="fp16",
        attention="eager", framework="megatron", gradient_bytes=4,
    )  # fmt: skip
    return simulate(Scenario(topology="dgx1-v100-32g", model="gpt2-large", plan=plan)).memory


def test_the_public_surprise_on_a_v100():
    """The formula said 23.3 GB, and the run stopped at 786 MiB more: the fp32 logits of four sequences."""
    assert 4 * 1024 * 50304 * 4 == 786 * 2**20
    memory = gpt2_large_on_a_v100(4)
    assert not memory.fits and memory.capacity_bytes == pytest.approx(31.74 * GIB, rel=1e-3)
    # in the first forward there were weights, gradients, masters and activations, and no Adam moments yet
    held = memory.by_category
    masters = held["optimizer"] / 3
    allocated = held["parameters"] + held["gradients"] + masters + held["activations"]
    assert allocated == pytest.approx(28.82 * GIB, rel=0.03)
    assert gpt2_large_on_a_v100(2).fits


def cells():
    """Return one row of every cell of the table, and whether it ran."""
    found = {}
    for row in read_table(SEEDS):
        if row.text("topology") == "pinnacles" and row.text("metric") in ("fits", "communication_fraction"):
            ran = row.text("metric") != "fits" or row.number("value") == 1
            found.setdefault((row.text("model"), row.text("gpus"), row.text("micro_batch"), ran), row)
    return found


@pytest.mark.skipif(not SEEDS.exists(), reason="the measured tables are not beside the repository")
def test_cells_of_a_table_that_states_no_implementation():
    """Every cell that ran out of memory and none that ran, under one assumption for all.

    Megatron-LM with the core attention recomputed (its ``--recompute-activations``), at the lengths of the models:
    1,024 tokens for GPT-2, 512 for BERT and for both sides of T5.
    """
    wrong = []
    for (*what, ran), row in cells().items():
        case = case_of(row)[0]
        case = replace(case, plan=replace(case.plan, recompute="selective"), alternatives=())
        found = answer(case, memory_only=True)
        if found.metrics.get("fits") != float(ran):
            wrong.append((what, ran, found.metrics, found.reason))
    assert len(cells()) > 20
    assert not wrong


def test_the_verdict_names_rank_operator_and_what_is_missing():
    memory = gpt2_large_on_a_v100(4)
    said = memory.explain()
    assert said.startswith("rank 0 (stage 0) needs 3") and "in layer head (operator " in said
    assert "GiB too much; the largest part is activations" in said


LLAMA_8B = {"micro_batch": 2, "sequence_length": 8192, "recompute": "selective", "sharding": "zero3"}
#: bytes of logits in 16 bits of two sequences of 8,192 tokens, 128,256 words
LOGITS = 2 * 8192 * 128256 * 2


def peak(topology="grand-teton-h100-96g", model="llama3-8b", **settings):
    """Memory of a plan on one node."""
    return simulate(Scenario(topology=topology, model=model, plan=ParallelPlan(**({"gpus": 8} | settings)))).memory


def test_losses_that_are_not_compiled_hold_three_tensors_of_wide_logits():
    """``cross_entropy(pred.float())``: log-softmax, the gradient of the loss and that of the log-softmax, all in fp32.

    Compiled there are the 16-bit logits and their gradient. torchtitan's log of January 2025 against its runs since April
    (pytorch/torchtitan, commits e8977b00 and bbb1b616).
    """
    eager, compiled = (
        peak(framework="torchtitan-compile", release=release, **LLAMA_8B).allocated_bytes for release in ("25.01", None)
    )
    assert eager - compiled == pytest.approx(3 * 2 * LOGITS - 2 * LOGITS, rel=0.01)


def test_ligers_loss_never_holds_more_than_a_piece_of_the_logits():
    """``fused_linear_cross_entropy``: as many pieces as the vocabulary is wider than the hidden states, 32 of Llama-3-8B's."""
    setting = RankSetting(micro_batch=2, sequence_length=8192, kernels="compiled", precision="bf16")
    heads = [
        build_model(find_spec("llama3-8b"), replace(setting, loss=loss)).layers[-1] for loss in ("vocabulary", "linear")
    ]
    saved, most = ([getattr(one, name) for one in heads] for name in ("saved_bytes", "transient_bytes"))
    assert saved[0] - saved[1] == LOGITS * 31 // 32
    assert most[0] - most[1] == pytest.approx(LOGITS * 31 / 32, rel=0.01)  # their gradient


@pytest.mark.parametrize(
    ("gpus", "micro_batch", "accumulated", "measured_gib"),
    [(4, 4, 2, 61.1), (4, 8, 2, 81.0), (32, 4, 2, 51.3), (2, 2, 4, 62.4)],
)
def test_peaks_of_kempnerforge_with_whole_gradients(gpus, micro_batch, accumulated, measured_gib):
    """``max_memory_allocated`` as benchmarks/mfu_scaling/mfu_scaling.md of KempnerInstitute/KempnerForge at 5666d0d1 prints it."""
    found = peak(
        "hgx-h200", gpus=gpus, micro_batch=micro_batch, global_batch=gpus * micro_batch * accumulated, sequence_length=4096,
        framework="kempnerforge-compile", sharding="zero3", recompute="full",
    )  # fmt: skip
    assert found.allocated_bytes == pytest.approx(measured_gib * GIB, rel=0.07)


def rows_of(prefix):
    return [row for row in read_table(PEAKS) if row.row_id.startswith(prefix) and row.metric == "peak_memory_bytes"]


@pytest.mark.parametrize("row", rows_of("PB-SM-"), ids=lambda row: row.row_id)
def test_peaks_of_megatron_with_transformer_engine(row):
    """MooreThreads/SimuMax at 4dcaae5, docs/b200: ``max_memory_allocated`` of the fullest rank, Llama 3 and DeepSeek-V2 cut to some layers.

    Of 405B with four layers a tenth is what Transformer Engine keeps in place of gradients.
    """
    found = answer(case_of(row)[0], memory_only=True)
    assert found.metrics["peak_memory_bytes"] == pytest.approx(row.measured, rel=0.025)


@pytest.mark.parametrize("row", rows_of("ZB-"), ids=lambda row: row.row_id)
def test_peaks_of_zero_bubble_schedules(row):
    """arXiv:2401.10241, table 4, in whole GB, of a fork of Megatron-LM without Transformer Engine."""
    found = answer(case_of(row)[0], memory_only=True)
    assert found.metrics["peak_memory_bytes"] == pytest.approx(row.measured, rel=0.03)


@pytest.mark.parametrize(("framework", "n"), [("megatron-core", 1), ("nanotron", 0), ("automodel-te", 0)])
def test_placeholders_stand_for_gradients_that_products_add_up(framework, n):
    """One of each weight's shape: queries, keys and values, projection, gate and up, down, head. PyTorch's optimizer steps ``.grad``."""
    spec = find_spec("llama3-8b")
    widths = (
        spec.hidden + 2 * spec.kv_heads * spec.head_dim,
        spec.hidden,
        2 * spec.ffn_hidden,
        spec.ffn_hidden,
        spec.vocab,
    )
    with_them, without = (
        peak("dgx-h100", gpus=8, micro_batch=1, framework=framework, sharding="none", release=release).by_category[
            "gradients"
        ]
        for release in (None, "25.01")
    )
    assert with_them - without == n * 2 * spec.hidden * sum(widths)


@pytest.mark.parametrize(
    ("release", "is_compiled"), [("24.09", False), ("24.11", True), ("24.12", False), ("25.03", False), ("25.04", True)]
)
def test_torchtitan_compiles_its_loss_in_some_months(release, is_compiled):
    """pytorch/torchtitan: on 2024-10-22 (e10cb949), off 2024-12-18 (e8977b00), on 2025-04-02 (bbb1b616)."""
    assert ParallelPlan(framework="torchtitan-compile", release=release).release_facts.compiles_loss is is_compiled


@pytest.mark.parametrize("tp", [1, 2])
def test_ligers_pieces_are_those_of_all_ranks_logits(tp):
    setting = RankSetting(micro_batch=1, sequence_length=8192, kernels="compiled", precision="bf16", tp=tp)
    linear, whole = (
        build_model(find_spec("llama3-8b"), replace(setting, loss=loss)).layers[-1].transient_bytes
        for loss in ("linear", "gathered")
    )
    assert linear < whole - LOGITS // 4


def test_grouped_products_have_placeholders_since_a_later_release():
    """``GroupedLinear`` has them since Transformer Engine 2.10: one for gate and up of all experts, one for down."""
    spec = find_spec("mixtral-8x7b")
    settings = {"gpus": 8, "micro_batch": 1, "framework": "megatron-core", "sharding": "none", "ep": 8}
    with_them, without = (
        peak("dgx-h100", model=spec.name, release=release, **settings).by_category["gradients"]
        for release in (None, "25.11")
    )
    assert with_them - without == 2 * 3 * spec.hidden * spec.expert_hidden
