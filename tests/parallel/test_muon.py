"""Muon: what orthogonalising matrices costs, who owns them, and what is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.costs import ModelCosts
from simulator.errors import InfeasiblePlanError
from simulator.explore.run.checkpoint_policy import policy_of
from simulator.interop import load_model
from simulator.models.layer import GemmShape, Layer
from simulator.models.spec import ModelSpec
from simulator.parallel.muon import muon_matrices
from simulator.parallel.rank_model import model_for
from simulator.parallel.states import optimizer_step
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.rules import check_combination
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import load_topology

DENSE = ModelSpec(
    name="dense", architecture="llama", layers=2, hidden=256, heads=4, ffn_hidden=1024, vocab=512, max_positions=256, gated_mlp=True,
    activation="silu", positions="rotary", norm="rms_norm", norm_bias=False, mlp_bias=False, attention_bias=False,
    attention_output_bias=False, tied=False,
)  # fmt: skip


MUON = ParallelPlan(framework="megatron-core", optimizer="muon")


def gradient(m, n, *, name="gemm", batch=1):
    return GemmShape(m=m, n=n, k=64, batch=batch, kernel_pass="wgrad", name=name)


def layer(*items, role="block"):
    return Layer(name=role, role=role, forward=(), backward=items)


def products_of(n_flops_of):
    plan = ParallelPlan(framework="megatron-core", optimizer="muon")
    (run,) = optimizer_step(10, plan, n_flops_of)
    return [kernel.shape for kernel in run.kernels if isinstance(kernel.shape, GemmShape)]


def test_a_matrix_takes_five_steps_of_three_products():
    """Jordan et al. (2024): A = X X^T, B = b A + c A A, X = a X + B X, of the matrix on its side: 2 (2 s s l + s s s) FLOPs a step."""
    for m, n in ((32, 128), (128, 32)):
        found = products_of((gradient(m, n),))
        assert len(found) == 15
        assert sum(shape.n_flops for shape in found) == 5 * 2 * (2 * 32 * 32 * 128 + 32**3)


def test_matrices_of_one_shape_are_launched_one_after_the_other():
    """Emerging-Optimizers, ``OrthogonalizedOptimizer.step``: ``for p in group["params"]``."""
    found = products_of((gradient(32, 128),) * 48)
    assert len(found) == 48 * 15
    assert {shape.batch for shape in found} == {1}


def test_the_step_reads_and_writes_one_moment_of_a_matrix():
    """fp32 master and moments: 8 bytes of a matrix's 32 x 128 elements, 12 of others, read and written.

    Besides, gradients of 4 bytes are read and weights of 2 are written.
    """
    plan = ParallelPlan(framework="megatron-core", optimizer="muon", sharding="zero1")
    n_matrix, n_others = 32 * 128, 1000
    (run,) = optimizer_step(n_matrix + n_others, plan, (gradient(32, 128),))
    step = run.kernels[-1].shape
    states = 8 * n_matrix + 12 * n_others
    assert step.written_bytes == pytest.approx(states + 2 * (n_matrix + n_others), rel=1e-9)
    assert step.read_bytes == pytest.approx(states + 4 * (n_matrix + n_others), rel=1e-9)


def test_a_checkpoint_holds_what_memory_holds():
    """Weights of 16 bits and the optimizer's states of one replica, in memory as in the file."""
    result = simulate(
        Scenario(
            topology="dgx-h100", model="gpt2",
            plan=ParallelPlan(framework="megatron-core", optimizer="muon", gpus=8, micro_batch=1, global_batch=8, sharding="none"),
        )
    )  # fmt: skip
    memory = result.memory.by_category
    stored = policy_of("sync", result).checkpoint
    n_matrices = 12 * 12 * 768**2  # Radford et al. (2019): 12 blocks of 12 d^2
    assert memory["optimizer"] == 8 * n_matrices + 12 * (result.spec.n_parameters - n_matrices)
    assert stored.n_bytes == memory["parameters"] + memory["optimizer"]


@pytest.mark.parametrize("model", ["gpt2", "mixtral-8x7b", "deepseek-v3"])
def test_the_matrices_that_keep_one_moment_are_those_that_are_orthogonalised(model):
    plan = ParallelPlan(
        framework="megatron-core", optimizer="muon", gpus=1, micro_batch=1, sequence_length=1024
    ).resolve(1)
    spec = load_model(model)
    owned = muon_matrices(model_for(spec, plan).layers, plan, 1, 1)
    assert sum(matrix.m * matrix.n for matrix in owned) == spec.n_matrix_parameters


def test_ranks_own_whole_matrices_and_the_fullest_one_counts():
    layers = [layer(gradient(64, 64), gradient(64, 64), gradient(64, 256)), layer(gradient(512, 64), role="head")]
    assert len(muon_matrices(layers, MUON, 1, 1)) == 3
    assert muon_matrices(layers, MUON, 2, 1) == (gradient(64, 256),)  # 4.5 times a square one, and so alone
    assert len(muon_matrices(layers, MUON, 100, 1)) == 1


def test_experts_are_shared_by_the_ranks_that_have_them():
    layers = [layer(gradient(64, 64), gradient(32, 64, name="grouped_gemm", batch=8))]
    for n_ranks, expected in ((1, 8), (2, 4), (8, 1)):
        owned = muon_matrices(layers, MUON, 1, n_ranks)
        assert sum(shape.name == "grouped_gemm" for shape in owned) == expected
        assert sum(shape.name == "gemm" for shape in owned) == 1


def ran(**settings):
    given = {"framework": "megatron-core", "gpus": 8, "micro_batch": 1, "global_batch": 8, "sharding": "none"}
    plan = ParallelPlan(**(given | settings))
    return simulate(Scenario(topology="dgx-a100-80g", model="dense", plan=plan), spec=DENSE)


def test_matrices_keep_one_moment_and_embedding_and_head_two():
    """16-bit weights: 12 bytes of Adam's states per parameter, 8 of Muon's; norms are Adam's, too (Megatron-Core's ``muon.py``)."""
    n_vocabulary = 2 * 512 * 256
    n_norms = 5 * 256
    n_matrices = 2 * (4 * 256 * 256 + 3 * 256 * 1024)
    adam, muon = (ran(optimizer=name).memory.by_category["optimizer"] for name in ("adam", "muon"))
    assert adam == 12 * (n_vocabulary + n_matrices + n_norms)
    assert muon == 8 * n_matrices + 12 * (n_vocabulary + n_norms)
    shared = ran(optimizer="muon", sharding="zero1").memory.by_category["optimizer"]
    assert shared == pytest.approx(muon / 8, rel=0.01)


def test_the_step_of_muon_takes_longer_and_sharding_divides_it():
    adam, alone, shared = (
        ran(**settings).metrics.breakdown["optimizer_s"]
        for settings in ({}, {"optimizer": "muon"}, {"optimizer": "muon", "sharding": "zero1"})
    )
    assert adam < shared < alone


def test_a_product_of_the_optimizer_is_a_plain_launch_and_no_module():
    """Emerging-Optimizers, ``newton_schulz_step``: ``torch.addmm``, as little for the host as Adam's kernel."""
    plan = ParallelPlan(framework="megatron-core", optimizer="muon", gpus=8, micro_batch=1, global_batch=8).resolve(8)
    scenario = Scenario(topology="dgx-a100-80g", model="gpt2", plan=plan)
    costs = ModelCosts(load_topology("dgx-a100-80g", 8), scenario)
    (run,) = optimizer_step(32 * 128, plan, (gradient(32, 128),))
    assert [kernel.name for kernel in run.kernels[-2:]] == ["newton_schulz", "adamw_fused"]
    assert len({costs.issue_ps(kernel, 0) for kernel in run.kernels}) == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"sharding": "zero3", "framework": "torchtitan"},
        {"sharding": "zero2"},
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


@pytest.mark.parametrize(
    ("framework", "has_muon"),
    [("megatron-core", True), ("nemo", True), ("megatron", False), ("automodel-te", False), ("torchtitan", False)],
)
def test_muon_is_megatron_cores_alone(framework, has_muon):
    name = SETTINGS["framework"].parse(framework)
    plan = ParallelPlan(framework=name, optimizer="muon", gpus=8, micro_batch=1, global_batch=8, dp=8)
    if has_muon:
        return check_combination(plan)
    with pytest.raises(InfeasiblePlanError, match="optimizer=muon is Megatron-Core's"):
        check_combination(plan)


@pytest.mark.parametrize("settings", [{"moment_bytes": 2}, {"master_bytes": 2}])
@pytest.mark.parametrize("framework", ["megatron-core", "megatron-bridge"])
def test_narrow_states_are_adams(framework, settings):
    """NVIDIA/Megatron-LM, ``optimizer_config.py``: "--use-precision-aware-optimizer only supported with adam"."""
    job = {"gpus": 8, "micro_batch": 1, "framework": framework, "sharding": "zero1"}
    (said,) = (f"{name}={width}" for name, width in settings.items())
    with pytest.raises(InfeasiblePlanError, match=f"^{said} with optimizer=muon"):
        ParallelPlan.of({**job, **settings, "optimizer": "muon"}).resolve(8)
    assert ParallelPlan.of({**job, **settings}).resolve(8).optimizer == "adam"
    assert ParallelPlan.of({**job, "optimizer": "muon"}).resolve(8).master_bytes == 4
