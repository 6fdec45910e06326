"""The documented answer is what its types say, and prints in ten lines."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from simulator.answer import (
    MEMORY_MARGIN,
    Answer,
    abbreviate_plan,
    describe_fit,
    describe_plan,
    figures_of,
    is_tight,
    margin_of,
)
from simulator.errors import ConfigError
from simulator.explore.answer_form import Document, Scaling
from simulator.explore.full_answer import document
from simulator.explore.trials import explain
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate


def fits(data, schema):
    """Whether plain data is exactly what a type says: nothing missing, nothing unknown, nothing of another type."""
    return msgspec.to_builtins(msgspec.convert(data, schema, strict=False)) == data


@pytest.mark.parametrize("which", ["small", "piped", "large"])
def test_an_answer_has_exactly_the_documented_keys(request, which):
    result = request.getfixturevalue(which)
    data = json.loads(json.dumps(result.answer))
    assert fits(data, Answer)
    assert sum(value for key, value in data["memory"].items() if key in PEAK_PARTS) == data["memory"]["peak_bytes"]


#: categories of the memory verdict, as the page on memory lists them
PEAK_PARTS = (
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "transient_bytes", "buffers_bytes",
    "graphs_bytes", "context_bytes", "communicators_bytes", "fragmentation_bytes",
)  # fmt: skip


def test_a_check_of_the_documented_keys_notices_one_too_many_and_one_too_few(small):
    assert not fits({**small.answer, "unknown": 1}, Answer)
    with pytest.raises(msgspec.ValidationError, match="iteration_time_s"):
        fits({key: value for key, value in small.answer.items() if key != "iteration_time_s"}, Answer)


def test_explanations_and_scaling_have_exactly_the_documented_keys(small):
    found = explain(small)
    assert fits(json.loads(json.dumps(document([small], explanation=found))), Document)
    assert fits(json.loads(json.dumps(document([small, small], explanation=found))), Scaling)


def test_figures_are_those_of_the_answer(small):
    figures = figures_of(small.answer)
    assert figures["iteration_time_s"] == small.answer["iteration_time_s"] == small.timeline.makespan_ps / 1e12
    assert figures["peak_bytes"] == small.memory.peak_bytes


def test_a_result_prints_in_ten_lines(large):
    lines = repr(large).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 200
    assert large.scenario.model in lines[0]


def test_a_notebook_shows_the_same_lines(small):
    html = small._repr_html_()
    assert html.startswith("<table>")
    assert html.count("<tr>") == 9
    assert "&lt;" not in small.scenario.model


# -- utilization -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["eager", "flash"])
@pytest.mark.parametrize(("recompute", "passes"), [("none", 3), ("full", 4)])
def test_hfu_counts_the_flops_of_the_published_formula(simulated, recompute, passes, attention):
    """Narayanan et al. (arXiv 2104.04473, appendix): 24 B s l h^2 (1 + s / 6h) per pass of the blocks, 6 B s h V of the head.

    Backward is two passes, recomputation of all blocks one more; attention counts whole, whichever kernel computes it.
    """
    result = simulated("dgx-a100-40g", "gpt2", gpus=1, micro_batch=2, attention=attention, recompute=recompute)
    s, h, layers, vocab = 1024, 768, 12, 50257
    blocks = 24 * 2 * s * layers * h**2 * (1 + s / (6 * h))
    flops = passes * blocks + 6 * 2 * s * h * vocab
    seconds = result.answer["iteration_time_s"]
    assert result.answer["hfu"] == pytest.approx(flops / seconds / 312e12, rel=1e-3)
    model_flops = 3 * blocks + 6 * 2 * s * h * vocab
    assert result.answer["mfu"] == pytest.approx(model_flops / seconds / 312e12, rel=1e-3)


@pytest.mark.parametrize(
    "settings", [{}, {"cp_comm_type": "all_gather"}, {"cp_comm_type": "a2a"}, {"cp_load_balance": False}]
)
@pytest.mark.parametrize("cp", [2, 4])
def test_ranks_that_share_a_sequence_recompute_what_one_does(simulated, cp, settings):
    """Whole blocks are run again, whatever part of the keys each rank meets in which step: HFU over MFU is that of one rank."""

    def ratio(**plan):
        answer = simulated(
            "dgx-h100", "llama3-8b", gpus=4, micro_batch=1, global_batch=4, sequence_length=16384,
            framework="megatron-core", recompute="full", **plan,
        ).answer  # fmt: skip
        return answer["hfu"] / answer["mfu"]

    assert ratio(cp=cp, **settings) == pytest.approx(ratio(), rel=1e-9)


def test_hfu_of_packed_documents_is_no_more_than_the_hardware_can(simulated):
    """131,072 tokens in documents of 4,096, everything recomputed: a token meets 4,096 keys, of which causal kernels skip half.

    Llama 3 8B without its embedding has 7.5e9 weights in products: forward is 2 x 7.5e9 and 4 x 4096 x 4,096 x 32 layers per token.
    """
    result = simulated(
        "dgx-h100", "llama3-8b", gpus=8, micro_batch=1, sequence_length=131072, document_length=4096, recompute="full"
    )
    per_token = 2 * 7.505e9 + 4 * 4096 * 4096 * 32
    tokens_per_s = result.answer["tokens_per_s"] / 8
    assert result.answer["mfu"] == pytest.approx(3 * per_token * tokens_per_s / 989e12, rel=2e-3)
    assert result.answer["mfu"] < result.answer["hfu"] < 1


def test_the_least_time_leaves_out_what_causal_kernels_skip(simulated):
    """Flash attention: half of the scores, but five products in backward where the model counts four."""
    eager, flash = (
        simulated("dgx-a100-40g", "gpt2", gpus=1, micro_batch=2, attention=attention)
        for attention in ("eager", "flash")
    )
    scores = 4 * 2 * 1024**2 * 768 * 12  # both products of forward, whole
    skipped = 3 * scores - (0.5 * scores + 0.5 * 2.5 * scores)
    assert 312e12 * (eager.metrics.least_s - flash.metrics.least_s) == pytest.approx(skipped, rel=1e-9)


def test_what_ran_is_the_same_folded_and_unfolded(simulated):

    plan = simulated("dgx-a100-40g", "gpt2", gpus=8, tp=2, pp=2, micro_batch=1, global_batch=16, recompute="full").plan
    folded, unfolded = (
        simulate(Scenario(topology="dgx-a100-40g", model="gpt2", plan=plan, unfold=unfold)) for unfold in (False, True)
    )
    assert folded.metrics.least_s == pytest.approx(unfolded.metrics.least_s, rel=1e-12)
    assert folded.answer["hfu"] == pytest.approx(unfolded.answer["hfu"], rel=1e-12)


def test_the_least_time_holds_each_kernel_against_the_unit_it_ran_on(simulated):
    """A100 in fp32: products of layers at 19.5 TFLOP/s, attention as three products in TF32 each, at 156 / 3.

    FLOPs by the formula of Narayanan et al. (arXiv 2104.04473, appendix); causal flash attention computes (2 + 5) / 2 of the six
    products of scores that it counts.
    """
    result = simulated("dgx-a100-40g", "gpt2", gpus=1, micro_batch=1, attention="flash", precision="fp32")
    s, h, layers, vocab = 1024, 768, 12, 50257
    layers_s = 3 * (24 * s * h**2 * layers + 2 * s * h * vocab) / 19.5e12
    scores_s = 3.5 * 2 * s**2 * h * layers / (156e12 / 3)
    assert result.metrics.least_s == pytest.approx(layers_s + scores_s, rel=1e-3)


# -- what was chosen ---------------------------------------------------------------------------------------------


def test_the_answer_says_what_was_chosen_for_the_user(simulated):
    chosen = simulated("dgx-a100-40g", "gpt2").answer["provenance"]["chosen"]
    assert set(chosen) == {"gpus", "micro_batch", "global_batch", "sequence_length"}
    asked = {"gpus": 8, "micro_batch": 1, "global_batch": 8, "sequence_length": 512}
    assert simulated("dgx-a100-40g", "gpt2", **asked).answer["provenance"]["chosen"] == {}
    whole = simulated("dgx-a100-40g", "gpt2", gpus=4, global_batch=8)
    assert whole.plan.micro_batch == 2, "eight sequences over four replicas, and more would fit"
    assert whole.answer["provenance"]["chosen"]["micro_batch"] == "all of a replica's batch"


@pytest.mark.parametrize(
    ("model", "length", "is_said"), [("gpt2", 1024, False), ("gpt2", 1025, True), ("llama2-7b", 8192, False)]
)
def test_a_sequence_beyond_the_learned_positions_is_said(simulated, model, length, is_said):
    """GPT-2's table has 1,024 rows; rotary positions know no end."""
    asked = {"gpus": 8, "micro_batch": 1, "tp": 2, "sequence_length": length}
    warnings = simulated("dgx-a100-40g", model, **asked).warnings
    assert any("beyond the 1024 positions that gpt2 has learned" in what for what in warnings) == is_said


@pytest.mark.parametrize(("settings", "is_said"), [
    ({"cuda_graphs": "full_iteration"}, True), ({"cuda_graphs": "attn+moe_router+moe_preprocess"}, False), ({}, False),
    ({"cuda_graphs": "full_iteration", "moe_dispatcher": "hybridep"}, True),
    ({"cuda_graphs": "full_iteration", "moe_dispatcher": "hybridep", "moe_fused_experts": True, "precision": "mxfp8"}, False),
    ({"cuda_graphs": "full_iteration", "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}, False),
])  # fmt: skip
def test_a_graph_of_the_iteration_says_that_dropless_experts_need_counts(simulated, settings, is_said):
    """NVIDIA, Megatron-Core user guide, MoE Paged Stash: "HybridEP + TE fused grouped experts are required"; else a capacity."""
    asked = {
        "gpus": 8,
        "ep": 8,
        "micro_batch": 1,
        "global_batch": 8,
        "sequence_length": 1024,
        "framework": "megatron-core",
    }
    origin = simulated("dgx-b200", "qwen3-30b-a3b-4layers", **asked, **settings).answer["provenance"]
    assert bool(origin["warnings"]) == is_said == any("moe_capacity_factor=1" in text for text in origin["warnings"])
    assert not any("expert" in what for what in origin["not_modelled"])
    dense = {"gpus": 1, "micro_batch": 1, "cuda_graphs": "full_iteration", "framework": "megatron-core"}
    assert not simulated("dgx-b200", "gpt2", **dense).answer["provenance"]["warnings"]


@pytest.mark.parametrize(("settings", "missing"), [
    ({"precision": "mxfp8"}, {"moe_dispatcher": "hybridep", "moe_fused_experts": True}),
    ({"precision": "mxfp8", "moe_fused_experts": True}, {"moe_dispatcher": "hybridep"}),
    ({"precision": "mxfp8", "moe_dispatcher": "hybridep"}, {"moe_fused_experts": True}),
    ({}, {"moe_dispatcher": "hybridep", "moe_fused_experts": True, "precision": "mxfp8"}),
])  # fmt: skip
def test_what_a_graph_of_the_iteration_lacks_is_what_to_set(settings, missing):
    """The guide's requirements, less those that are met: with what is named, nothing is left to say."""
    from simulator.plan.rules import capture_doubt

    asked = {"framework": "megatron-core", "ep": 8, "cuda_graphs": "full_iteration", **settings}
    said = capture_doubt(ParallelPlan(**asked), has_experts=True)
    assert all(
        (f"{name}=" in said or f"--{name} " in said) == (name in missing)
        for name in ("moe_dispatcher", "moe_fused_experts", "precision")
    )
    assert not capture_doubt(ParallelPlan(**{**asked, **missing}), has_experts=True)


@pytest.mark.parametrize(("settings", "is_said"), [
    ({}, True), ({"ep": 1}, True), ({"framework": "fused"}, False),
    ({"moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}, False), ({"host": None}, False),
])  # fmt: skip
def test_graphs_of_whole_layers_need_static_shapes_too(settings, is_said):
    """Megatron-Core user guide, "CUDA Graph": what is captured has static shapes; experts that drop nothing have none."""
    from simulator.plan.rules import capture_doubt

    plan = ParallelPlan(**{"framework": "megatron-core", "ep": 8, "host": "graphs", **settings})
    said = capture_doubt(plan, has_experts=True)
    assert ("host=graphs" in said and "moe_pad_to_capacity" in said) == is_said == bool(said)
    assert not capture_doubt(plan, has_experts=False)


def test_layers_of_stages_are_those_of_the_layout(simulated):
    """Megatron Bridge's words for 12 layers over 2 x 3: 3 + 2 + 2 and 2 + 2 + 1; without a pipeline there is nothing to say."""
    from simulator.answer import describe_stages

    layout = {"pipeline_layout": "Et*3|(t*2|)*4tL", "schedule": "1f1b-interleaved"}
    asked = {"gpus": 2, "micro_batch": 1, "global_batch": 4, "framework": "megatron-core", "sequence_length": 128}
    found = simulated("dgx-h100", "gpt2", **asked, pp=2, **layout)
    assert found.answer["stages"] == [[3, 2, 2], [2, 2, 1]]
    assert describe_stages(found.plan, found.answer["stages"]) == "stages: 7 + 5 layers, in chunks of 3 + 4 x 2 + 1"
    assert simulated("dgx-h100", "gpt2", **asked).answer["stages"] == []


def test_models_without_tokens_have_samples_only():
    torch = pytest.importorskip("torch")
    from simulator.answer import describe_throughput
    from simulator.models.recorded import InputTensor, RecordedModule

    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 30 * 30, 10)
    )
    module = RecordedModule(name="net", module=net, inputs=(InputTensor(name="", shape=("B", "3", "32", "32")),))
    plan = ParallelPlan(gpus=2, micro_batch=4, framework="hf-eager")
    answer = simulate(Scenario(topology="dgx-a100-40g", model="net", plan=plan), spec=module).answer
    assert answer["tokens_per_s"] is None
    assert describe_throughput(answer).endswith(" samples/s")
    assert "tokens" not in describe_throughput(answer)
    assert fits(json.loads(json.dumps(answer)), Answer)


@pytest.mark.parametrize(
    ("margin", "words"),
    [(0.0, "more than the margin of 0%"), (0.999, "tight: {free} stays free, less than the margin of 99.9%")],
)
def test_the_margin_of_memory_travels_with_the_answer_and_stands_beside_the_verdict(small, margin, words):
    """A plan is tight where it fits and less of the device stays free than the margin."""
    memory = replace(small, memory_margin=margin).answer["memory"]
    free = 1.0 - memory["peak_bytes"] / memory["capacity_bytes"]
    assert memory["fits"] and (memory["margin"], memory["is_tight"]) == (margin, free < margin)
    assert words.format(free=f"{free:.1%}") in describe_fit(memory)


def test_each_stage_of_a_pipeline_holds_one_micro_batch_less_than_the_one_before():
    """Narayanan et al., SC 2021, section 2.2.1: 1F1B keeps as many in flight as stages are left; embedding and head are at the ends."""
    plan = ParallelPlan(
        gpus=8, pp=8, micro_batch=1, global_batch=32, sequence_length=1024, framework="megatron-core", sharding="none"
    )
    memory = simulate(Scenario(topology="dgx-h100", model="llama3-8b", plan=plan)).answer["memory"]
    peaks = memory["stages_peak_bytes"]
    assert len(peaks) == 8
    assert max(peaks) == memory["peak_bytes"]
    steps = [earlier - later for earlier, later in pairwise(peaks[1:7])]
    assert min(steps) > 0
    assert max(steps) - min(steps) < 1024


def test_what_does_not_fit_is_not_tight():
    memory = {"peak_bytes": 81 << 30, "capacity_bytes": 80 << 30, "fits": False, "margin": 0.05, "is_tight": False}
    assert describe_fit(memory) == "does not fit in 80 GiB" and not is_tight(81 << 30, 80 << 30, 0.05)


@pytest.mark.parametrize("asked", [-0.01, 1.0, 5.0])
def test_a_margin_is_a_share(asked):
    assert (margin_of(None), margin_of(0.2)) == (MEMORY_MARGIN, 0.2)
    with pytest.raises(ConfigError, match="--memory-margin"):
        margin_of(asked)


def test_a_plan_in_words_and_in_short_has_the_experts_own_degree():
    plan = ParallelPlan(gpus=16, dp=8, tp=2, ep=4, etp=1, micro_batch=1, global_batch=8)
    assert "dp=8, tp=2, ep=4, etp=1, micro-batch 1" in describe_plan(plan)
    assert abbreviate_plan(plan) == "dp8 tp2 ep4 etp1 mb1"
    assert "etp" not in describe_plan(replace(plan, etp=2)) + abbreviate_plan(replace(plan, etp=2))


def test_a_plan_in_words_has_what_recipes_turn_on_beside_a_precision():
    """Megatron Bridge 26.06 fuses experts, exchanges by HybridEP and puts attention in eight bits for mixtures in MXFP8."""
    settings = {"framework": "megatron-bridge", "gpus": 8, "dp": 8, "ep": 8, "micro_batch": 1, "global_batch": 8}
    narrow, wide = (
        describe_plan(ParallelPlan.of({**settings, "precision": word}, is_mixture=True)) for word in ("mxfp8", "bf16")
    )
    for words in (
        "mxfp8, attention in 8 bits",
        "hybridep dispatcher",
        "fused experts",
        "CUDA graphs of full_iteration",
    ):
        assert words in narrow and words not in wide
    assert "dispatcher" not in describe_plan(ParallelPlan(gpus=8, dp=8, micro_batch=1, global_batch=8))


def test_the_page_on_memory_lists_every_category():
    page = (Path(__file__).resolve().parent.parent / "docs" / "memory.md").read_text(encoding="utf-8")
    listed = {
        word.strip() for row in page.splitlines() if row.startswith("| ") for word in row.split("|")[1].split(",")
    }
    assert {key.removesuffix("_bytes") for key in PEAK_PARTS} <= listed
