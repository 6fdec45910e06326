"""Muon beside tensor parallelism: what ranks that share a matrix compute of it, exchange and hold.

The numbers are those of NVIDIA/Megatron-LM, ``core/optimizer/emerging_optimizers.py`` (``TensorParallelMuon``), and
NVIDIA-NeMo/Emerging-Optimizers, ``muon_utils.py`` (``newton_schulz_tp``, ``newton_schulz_step``).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.explore.search.bounds import Bounds
from simulator.interop import load_model
from simulator.memory.estimate import OPTIMIZER_STEP
from simulator.models.layer import GemmShape, Layer, PointwiseShape
from simulator.models.matrices import matrices_of, whole
from simulator.models.spec import ModelSpec
from simulator.parallel.muon import MuonMessage, muon_matrices, orthogonalised
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import load_topology

DENSE = ModelSpec(
    name="dense", architecture="llama", layers=2, hidden=256, heads=8, ffn_hidden=1024, vocab=512, max_positions=256, gated_mlp=True,
    activation="silu", positions="rotary", norm="rms_norm", norm_bias=False, mlp_bias=False, attention_bias=False,
    attention_output_bias=False, tied=False,
)  # fmt: skip
EXPERTS = replace(DENSE, name="experts", n_experts=4, top_k=2, expert_hidden=512)
MUON = {"framework": "megatron-core", "optimizer": "muon"}
#: rows and columns of a block's matrices: query, key and value, output, gate and up, down
BLOCK = ((768, 256), (256, 256), (2048, 256), (256, 1024))
MODES = ("duplicated", "blockwise", "distributed")


def part(m, n, split, name="gemm"):
    return GemmShape(m=m, n=n, k=64, kernel_pass="wgrad", name=name, split=split)


def flops(squared, other):
    """Jordan et al. (2024): x x^T, its square and a product with x, five times."""
    return 5 * 2 * (2 * squared**2 * other + squared**3)


@pytest.mark.parametrize(
    ("mode", "split", "expected"),
    [
        # of a column-parallel [128, 64] four ranks have [32, 64]; of a row-parallel [256, 64] they have [256, 16]
        ("duplicated", "column", flops(64, 128)), ("blockwise", "column", flops(32, 64)), ("distributed", "column", flops(64, 32)),
        ("duplicated", "row", flops(64, 256)), ("blockwise", "row", flops(16, 256)), ("distributed", "row", flops(256, 16)),
    ],
)  # fmt: skip
def test_each_way_multiplies_what_a_rank_has_then(mode, split, expected):
    """The dimension that is not shared is squared by all together, be it the longer one ("wastes compute", says ``newton_schulz_tp``)."""
    plan = ParallelPlan(**MUON, tp=4, muon_tp_mode=mode)
    mine = part(32, 64, "column") if split == "column" else part(256, 16, "row")
    steps = orthogonalised(mine, plan)
    assert sum(step.n_flops for step in steps if isinstance(step, GemmShape)) == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("duplicated", [("all_gather", "tp", 4 * 128 * 64)]),
        ("blockwise", []),
        ("distributed", [("all_reduce", "tp", 4)] + 5 * [("all_reduce", "tp", 2 * 64 * 64)]),
    ],
)
def test_each_way_exchanges_the_matrix_nothing_or_small_products(mode, expected):
    """fp32 momentum is gathered; a norm in fp32, then the product of each step in bf16 are summed."""
    plan = ParallelPlan(**MUON, tp=4, etp=2, muon_tp_mode=mode)
    steps = orthogonalised(part(32, 64, "column"), plan)
    assert [step for step in steps if isinstance(step, MuonMessage)] == expected
    experts = orthogonalised(part(64, 64, "column", "grouped_gemm"), plan)
    assert [step for step in experts if isinstance(step, MuonMessage)] == [(c, "etp", n) for c, _, n in expected]


def test_what_was_gathered_is_copied_to_a_list_and_concatenated():
    steps = orthogonalised(part(32, 64, "column"), ParallelPlan(**MUON, tp=4))
    moves = [step for step in steps if isinstance(step, PointwiseShape)]
    assert [(step.name, step.n_pieces) for step in moves] == [("copy", 4), ("cat", 1)]
    assert {(step.read_bytes, step.written_bytes) for step in moves} == {(4 * 128 * 64, 4 * 128 * 64)}


@pytest.mark.parametrize("mode", MODES)
def test_a_matrix_that_every_rank_has_whole_is_its_own_business(mode):
    """Routers and latent projections are whole on every rank, experts where etp is 1: ``partition_dim`` is None."""
    alone = orthogonalised(part(64, 128, "none"), ParallelPlan(**MUON, tp=4, muon_tp_mode=mode))
    assert alone == orthogonalised(part(64, 128, "none"), ParallelPlan(**MUON))
    assert sum(step.n_flops for step in alone) == flops(64, 128)


@pytest.mark.parametrize(
    ("model", "degrees"),
    [
        ("gpt2", {"tp": 4}), ("llama2-7b", {"tp": 8, "sequence_parallel": True}), ("mixtral-8x7b", {"tp": 4}),
        ("mixtral-8x7b", {"tp": 4, "etp": 1, "sequence_parallel": True}),
        ("mixtral-8x7b", {"tp": 2, "etp": 4, "sequence_parallel": True}),
        ("deepseek-v3", {"tp": 4}), ("deepseek-v3", {"tp": 4, "precision": "fp8", "sequence_parallel": True}),
        ("nemotron-h-56b", {"tp": 4}), ("qwen3-next-80b-a3b", {"tp": 2}),
    ],
)  # fmt: skip
def test_the_parts_of_ranks_are_the_matrices_of_the_model(model, degrees):
    spec = load_model(model)
    found = []
    for settings in ({}, degrees):
        plan = ParallelPlan(**MUON, gpus=8, micro_batch=1, sequence_length=1024, **settings).resolve(8)
        shapes = matrices_of(model_for(spec, plan).layers)
        found.append(Counter((s.batch, full.m, full.n) for s in shapes for full in [whole(s, plan)]))
    assert found[0] == found[1]


def test_the_fullest_rank_is_the_one_that_computes_most():
    """Owners are found by the parts' own work, as ``layer_wise_optimizer.py`` does: 64 x 64 whole, or 32 x 64 of a gathered 256 x 64."""
    layers = [layer_of(part(64, 64, "none"), part(32, 64, "column"))]
    owned = {
        mode: muon_matrices(layers, ParallelPlan(**MUON, tp=8, muon_tp_mode=mode), 2, 1)
        for mode in ("blockwise", "duplicated")
    }
    assert [shape.split for shape in owned["blockwise"]] == ["none"]
    assert [shape.split for shape in owned["duplicated"]] == ["column"]


def layer_of(*items):
    return Layer(name="block", forward=(), backward=items)


def ran(spec=DENSE, **settings):
    given = {**MUON, "gpus": 8, "tp": 4, "micro_batch": 1, "global_batch": 8, "sequence_length": 256}
    scenario = Scenario(topology="dgx-a100-80g", model=spec.name, plan=ParallelPlan(**(given | settings)))
    return simulate(scenario, spec=spec)


def exchanged(result, axis="tp"):
    """Count and bytes of each collective over an axis."""
    return {
        row["collective"]: (row["count"], row["bytes"]) for row in result.metrics.communication if row["axis"] == axis
    }


def test_a_step_exchanges_every_matrix_once_or_its_products():
    """Beside the passes, which ``blockwise`` has alone: one gather a matrix, or a norm and five sums of hidden x hidden."""
    passes, gathered, summed = (
        exchanged(ran(muon_tp_mode=mode)) for mode in ("blockwise", "duplicated", "distributed")
    )
    n_matrices, n_elements = 2 * len(BLOCK), 2 * sum(m * n for m, n in BLOCK)
    assert gathered["all_gather"] == (n_matrices, 4 * n_elements) and "all_gather" not in passes
    assert gathered["all_reduce"] == passes["all_reduce"]
    count, n_bytes = passes["all_reduce"]
    assert summed["all_reduce"] == (count + 6 * n_matrices, n_bytes + n_matrices * (4 + 5 * 2 * 256**2))


def test_experts_exchange_among_those_that_share_them():
    """Two ranks have a part each of a pair of experts, twice the matrices of each a block, gate and up in one."""
    settings = {"tp": 4, "etp": 2, "ep": 2, "sequence_parallel": True}
    passes, gathered = (exchanged(ran(EXPERTS, muon_tp_mode=mode, **settings), "etp") for mode in MODES[1::-1])
    count, n_bytes = (
        after - before for after, before in zip(gathered["all_gather"], passes["all_gather"], strict=True)
    )
    assert (count, n_bytes) == (2 * 2 * 2, 2 * 2 * 4 * 3 * 256 * 512)


def test_owners_divide_the_exchanges():
    alone, shared = (exchanged(ran(sharding=sharding))["all_gather"] for sharding in ("none", "zero1"))
    assert shared[0] < alone[0] and shared[1] <= alone[1]


def test_working_together_costs_less_than_everybody_alone():
    """Large matrices: an eighth of the products with x, the square on every rank, and no gather."""
    wide = replace(DENSE, name="wide", hidden=4096, heads=32, ffn_hidden=16384, layers=1)
    taken = {mode: ran(wide, tp=8, muon_tp_mode=mode).metrics.iteration_time_s for mode in MODES}
    assert taken["blockwise"] < taken["distributed"] < taken["duplicated"]


def test_a_gathered_matrix_is_held_twice():
    """As a list of parts and as one, in fp32, when the step is where the peak is: with few tokens."""
    held = {}
    for mode in MODES:
        memory = ran(muon_tp_mode=mode, sequence_length=4).memory
        held[mode] = memory.by_category["activations"] + memory.by_category["transient"], memory.peak_at
    assert held["duplicated"] == (2 * 4 * 2048 * 256, OPTIMIZER_STEP)
    assert held["blockwise"] == held["distributed"] < held["duplicated"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_no_bound_is_above_the_simulation(mode, sharding):
    result = ran(muon_tp_mode=mode, sharding=sharding, tp=2, pp=2)
    bounds = Bounds(result.scenario, load_topology("dgx-a100-80g", 8), DENSE)
    layout = bounds.layout(result.plan)
    adam = bounds.layout(replace(result.plan, optimizer="adam"))
    assert bounds.full_s(adam) < bounds.full_s(layout) <= bounds.path_s(layout) <= result.metrics.iteration_time_s
    assert bounds.memory(layout) == result.memory
