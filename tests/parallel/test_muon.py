"""Muon: what orthogonalising matrices costs, who owns them, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.models.layer import GemmShape, Layer
from simulator.models.spec import ModelSpec
from simulator.parallel.states import muon_matrices, optimizer_run
from simulator.plan import ParallelPlan
from simulator.plan.rules import check_combination
from simulator.scenario import Scenario
from simulator.simulation import simulate

DENSE = ModelSpec(
    name="dense", architecture="llama", layers=2, hidden=256, heads=4, ffn_hidden=1024, vocab=512, max_positions=256, gated_mlp=True,
    activation="silu", positions="rotary", norm="rms_norm", norm_bias=False, mlp_bias=False, attention_bias=False,
    attention_output_bias=False, tied=False,
)  # fmt: skip


def gradient(m, n, *, name="gemm", batch=1):
    return GemmShape(m=m, n=n, k=64, batch=batch, kernel_pass="wgrad", name=name)


def layer(*items, name="block"):
    return Layer(name=name, forward=(), backward=items)


def products_of(n_flops_of):
    plan = ParallelPlan(framework="megatron-core", optimizer="muon")
    run = optimizer_run(10, 1, plan, n_flops_of)
    return [kernel.shape for kernel in run.kernels if isinstance(kernel.shape, GemmShape)]


def test_a_matrix_takes_five_steps_of_three_products():
    """Jordan et al. (2024): A = X X^T, B = b A + c A A, X = a X + B X, of the matrix on its side: 2 (2 s s l + s s s) FLOPs a step."""
    for m, n in ((32, 128), (128, 32)):
        found = products_of((gradient(m, n),))
        assert len(found) == 15
        assert sum(shape.n_flops for shape in found) == 5 * 2 * (2 * 32 * 32 * 128 + 32**3)


def test_ranks_own_whole_matrices_and_the_fullest_one_counts():
    layers = [layer(gradient(64, 64), gradient(64, 64), gradient(64, 256)), layer(gradient(512, 64), name="head")]
    assert len(muon_matrices(layers, 1, 1)) == 3
    assert muon_matrices(layers, 2, 1) == (gradient(64, 256),)  # 4.5 times a square one, and so alone
    assert len(muon_matrices(layers, 100, 1)) == 1


def test_experts_are_shared_by_the_ranks_that_have_them():
    layers = [layer(gradient(64, 64), gradient(32, 64, name="grouped_gemm", batch=8))]
    for n_ranks, expected in ((1, 8), (2, 4), (8, 1)):
        owned = muon_matrices(layers, 1, n_ranks)
        assert sum(shape.name == "grouped_gemm" for shape in owned) == expected
        assert sum(shape.name == "gemm" for shape in owned) == 1


def ran(**settings):
    given = {"framework": "megatron-core", "gpus": 8, "micro_batch": 1, "global_batch": 8, "sharding": "none"}
    plan = ParallelPlan(**(given | settings))
    return simulate(Scenario(topology="dgx-a100-80g", model="dense", plan=plan), spec=DENSE)


def test_matrices_keep_one_moment_and_embedding_and_head_two():
    """16-bit weights: 12 bytes of Adam's states per parameter, 8 of Muon's; norms are counted as matrices."""
    n_vocabulary = 2 * 512 * 256
    n_norms = 5 * 256
    n_matrices = 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    adam, muon = (ran(optimizer=name).memory.by_category["optimizer"] for name in ("adam", "muon"))
    assert adam == 12 * (n_vocabulary + n_matrices + n_norms)
    last_norm = 256  # of the head
    assert muon == 8 * (n_matrices + n_norms - last_norm) + 12 * (n_vocabulary + last_norm)
    shared = ran(optimizer="muon", sharding="zero1").memory.by_category["optimizer"]
    assert shared == pytest.approx(muon / 8, rel=0.01)


def test_the_step_of_muon_takes_longer_and_sharding_divides_it():
    adam, alone, shared = (
        ran(**settings).metrics.breakdown["optimizer_s"]
        for settings in ({}, {"optimizer": "muon"}, {"optimizer": "muon", "sharding": "zero1"})
    )
    assert adam < shared < alone


@pytest.mark.parametrize(
    "settings",
    [
        {"tp": 2},
        {"sharding": "zero3", "framework": "torchtitan"},
        {"framework": "hf-eager", "precision": "amp_bf16"},
        {"offload_optimizer": "cpu", "sharding": "zero1"},
    ],
)
def test_what_would_split_a_matrix_is_refused(settings):
    plan = replace(
        ParallelPlan(framework="megatron-core", optimizer="muon", gpus=8, micro_batch=1, global_batch=8, dp=8),
        **settings,
    )
    with pytest.raises(InfeasiblePlanError, match="muon"):
        check_combination(plan)
