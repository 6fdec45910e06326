"""``no_sync`` under full sharding: what is sent and held where the last micro-batch of a step reduces for all, in closed forms."""

from __future__ import annotations

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.explore.neighbourhood import Site, neighbours
from simulator.models.catalog import find_spec
from simulator.models.spec import ModelSpec
from simulator.parallel.idle import idle_settings
from simulator.parallel.states import accumulation_traffic
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate

LAYERS, HIDDEN, FFN, VOCAB = 8, 1024, 4096, 4096
DENSE = ModelSpec(name="dense", architecture="llama", layers=LAYERS, hidden=HIDDEN, heads=16, ffn_hidden=FFN, vocab=VOCAB,
                  max_positions=1024, gated_mlp=True, activation="silu", positions="rotary", norm="rms_norm", norm_bias=False,
                  mlp_bias=False, attention_bias=False, attention_output_bias=False, tied=False)  # fmt: skip
#: elements of a layer's projections, gated MLP and norms, and of embedding, head and last norm
BLOCK = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN
ROOT = 2 * VOCAB * HIDDEN + HIDDEN
PSI = LAYERS * BLOCK + ROOT


def run(framework, n_micro_batches, **changes):
    settings = {"gpus": 8, "micro_batch": 1, "sharding": "zero3", "framework": framework} | changes
    plan = ParallelPlan(global_batch=8 * n_micro_batches, **settings)
    return simulate(Scenario(topology="dgx-a100-80g", model=DENSE.name, plan=plan), spec=DENSE)


def sent(result, collective):
    return [(row["count"], row["bytes"]) for row in result.metrics.communication if row["collective"] == collective]


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("framework", "width"), [("kempnerforge", 4), ("hf-fsdp", 2)])
def test_gradients_are_reduced_once_a_step_and_parameters_gathered_in_every_micro_batch(framework, width, n):
    """``set_requires_gradient_sync(False)`` and ``no_sync`` stop reductions only; units are freed behind every pass."""
    result = run(framework, n)
    assert sent(result, "reduce_scatter") == [(LAYERS + 1, PSI * width)]
    ((count, n_bytes),) = sent(result, "all_gather")
    assert (count, n_bytes) == (2 * n * LAYERS + 1, (2 * n * LAYERS * BLOCK + ROOT) * 2)


@pytest.mark.parametrize("n", [1, 3])
def test_trainers_without_it_reduce_in_every_micro_batch(n):
    assert sent(run("torchtitan", n), "reduce_scatter") == [(n * (LAYERS + 1), n * PSI * 4)]


@pytest.mark.parametrize(
    ("framework", "n", "bytes_each"),
    [
        ("kempnerforge", 1, 2 / 8),  # shards in 16 bits, as its weights are
        ("kempnerforge", 4, 4),  # ``unsharded_accumulated_grad``, in the type that is reduced
        ("hf-fsdp", 1, 4 / 8),  # shards are fp32 weights, and so are their gradients
        ("hf-fsdp", 4, 2),  # what autograd leaves of 16-bit parameters
        ("torchtitan", 4, 4 / 8),
    ],
)
def test_whole_gradients_stay_until_they_are_reduced(framework, n, bytes_each):
    held = run(framework, n).memory.by_category["gradients"]
    assert held == pytest.approx(PSI * bytes_each, rel=1e-6)


@pytest.mark.parametrize(
    ("framework", "n", "traffic"),
    [
        ("kempnerforge", 4, (2 + 4, 4)),  # a 16-bit gradient is widened and added to the sum
        ("hf-fsdp", 4, (2 + 2, 2)),  # autograd adds 16-bit gradients in place
        ("kempnerforge", 1, (0, 0)),
        ("torchtitan", 4, (0, 0)),  # shards are added up as they are reduced
    ],
)
def test_every_rank_adds_up_whole_gradients(framework, n, traffic):
    plan = ParallelPlan(gpus=8, dp=8, micro_batch=1, global_batch=8 * n, sharding="zero3", framework=framework)
    assert accumulation_traffic(plan) == traffic


def test_the_plan_may_say_otherwise():
    """Accelerate's ``sync_each_batch`` reduces in every micro-batch, and any trainer may call ``no_sync``."""
    assert sent(run("hf-fsdp", 3, no_sync=False), "reduce_scatter") == [(3 * (LAYERS + 1), 3 * PSI * 2)]
    assert sent(run("torchtitan", 3, no_sync=True), "reduce_scatter") == [(LAYERS + 1, PSI * 4)]


@pytest.mark.parametrize(
    ("changes", "is_idle"),
    [
        ({}, False),
        ({"sharding": "none"}, True),
        ({"framework": "deepspeed"}, True),
        ({"pp": 2, "framework": "fsdp2"}, True),
    ],
)
def test_it_means_nothing_outside_fsdp_and_under_a_pipeline(changes, is_idle):
    settings = {
        "gpus": 8,
        "micro_batch": 1,
        "global_batch": 64,
        "sharding": "zero3",
        "framework": "fsdp",
        "no_sync": True,
    }
    plan = ParallelPlan(**(settings | changes)).resolve(8)
    assert ("no_sync" in dict(idle_settings(plan, has_experts=False))) is is_idle


def test_reducing_in_every_micro_batch_is_a_way_out_of_memory():
    """Llama-3-70B under Accelerate's FSDP on 64 A100s: 131 GiB of gradients, or a 64th of them in fp32."""
    plan = ParallelPlan(
        gpus=64, micro_batch=1, global_batch=256, framework="hf-fsdp", sharding="zero3", recompute="full", sequence_length=4096
    )  # fmt: skip
    result = simulate(Scenario(topology="selene", model="llama3-70b", plan=plan))
    assert not result.memory.fits
    site = Site(topology=result.topology, spec=find_spec("llama3-70b"))
    (other,) = (one.plan for one in neighbours(result.plan, site) if one.setting == "no_sync")
    assert other.no_sync is False
    assert simulate(Scenario(topology="selene", model="llama3-70b", plan=other)).memory.fits


def test_fsdps_wrapper_adds_up_nothing_on_the_host_without_it():
    """PyTorch, ``FullyShardedDataParallel``, ``cpu_offload``: no accumulation outside ``no_sync()``."""
    offloads = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
    with pytest.raises(InfeasiblePlanError, match="no_sync=false"):
        run("hf-fsdp", 3, no_sync=False, **offloads)
