"""Megatron-FSDP's outer sharding: what copies of a full shard send, hold and step, in closed forms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.models.spec import ModelSpec
from simulator.parallel.idle import idle_settings
from simulator.plan import ParallelPlan
from simulator.plan.names import parse_settings
from simulator.scenario import Scenario
from simulator.simulation import simulate

LAYERS, HIDDEN, FFN, VOCAB = 8, 1024, 4096, 4096
DENSE = ModelSpec(name="dense", architecture="llama", layers=LAYERS, hidden=HIDDEN, heads=16, ffn_hidden=FFN, vocab=VOCAB,
                  max_positions=1024, gated_mlp=True, activation="silu", positions="rotary", norm="rms_norm", norm_bias=False,
                  mlp_bias=False, attention_bias=False, attention_output_bias=False, tied=False)  # fmt: skip
EXPERTS = replace(DENSE, name="experts", n_experts=16, top_k=4, expert_hidden=FFN)
#: elements of a layer's projections, gated MLP and norms, and of embedding, head and last norm
BLOCK = 4 * HIDDEN**2 + 3 * HIDDEN * FFN + 2 * HIDDEN
ROOT = 2 * VOCAB * HIDDEN + HIDDEN
PSI = LAYERS * BLOCK + ROOT
BASE = {
    "gpus": 16,
    "micro_batch": 1,
    "framework": "megatron-core",
    "sharding": "zero3",
    "sharding_group": 8,
    "outer_sharding": "optim",
}


def run(spec=DENSE, n_micro_batches=1, **changes):
    settings = BASE | {"global_batch": 16 * n_micro_batches} | changes
    return simulate(Scenario(topology="dgx-a100-80g", model=spec.name, plan=ParallelPlan(**settings)), spec=spec)


def sent(result):
    """Number and bytes of a step's collectives, as nccl-tests counts them."""
    return {(row["collective"], row["axis"]): (row["count"], row["bytes"]) for row in result.metrics.communication}


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("n", [1, 2, 9])
def test_copies_gather_in_the_first_micro_batch_and_scatter_in_the_last(n, width):
    """Megatron-FSDP: units before forward and backward, the root once, of parts of shards; sums of gradients once."""
    assert sent(run(n_micro_batches=n, gradient_bytes=width)) == {
        ("all_gather", "shard"): (2 * n * LAYERS + 1, (2 * n * LAYERS * BLOCK + ROOT) * 2),
        ("reduce_scatter", "shard"): (n * (LAYERS + 1), n * PSI * width),
        ("all_gather", "replicate"): (2 * LAYERS + 1, (2 * LAYERS * BLOCK + ROOT) * 2 // 8),
        ("reduce_scatter", "replicate"): (LAYERS + 1, PSI * width // 8),
    }


@pytest.mark.parametrize(
    ("framework", "sharding", "each_time"), [("megatron-core", "zero3", False), ("fsdp2", "hsdp", True)]
)
@pytest.mark.parametrize("n", [1, 3])
def test_who_adds_up_copies_in_every_micro_batch(framework, sharding, each_time, n):
    """Megatron-FSDP: "(is_last_microbatch or self.model_auto_sync)"; ``FSDPState`` of PyTorch: ``all_reduce_grads`` unless told."""
    result = run(n_micro_batches=n, framework=framework, sharding=sharding, outer_sharding="none", gradient_bytes=4)
    times = n if each_time else 1
    assert sent(result)["all_reduce", "replicate"] == (times * (LAYERS + 1), times * PSI * 4 // 8)


@pytest.mark.parametrize(("ep", "shards"), [(4, 2), (8, 1)])
def test_experts_are_exchanged_over_copies_of_their_own_shards(ep, shards):
    """16 ranks hold each expert 16 / ep times: two copies of it, over the rest it is sharded; states over all of them."""
    result = run(EXPERTS, 2, ep=ep)
    n_experts = LAYERS * (16 // ep) * 3 * HIDDEN * FFN
    found = sent(result)
    assert found["all_gather", "expert_replicate"][1] == 2 * n_experts * 2 // shards
    assert found["reduce_scatter", "expert_replicate"][1] == n_experts * 4 // shards
    assert ("all_gather", "expert_shard") in found or shards == 1
    n_dense = PSI + LAYERS * (16 * HIDDEN - 3 * HIDDEN * FFN)  # of an MLP the router remains
    expected = 12 * (n_dense / 16 + n_experts / (16 // ep))
    assert result.memory.by_category["optimizer"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("group", [2, 4, 8])
def test_states_are_shared_by_all_replicas_and_the_rest_by_a_group(group):
    """Megatron-LM's user guide on HFSDP: optimizer states over inner x outer ranks, gradients and weights over the inner ones."""
    found = run(sharding_group=group).memory.by_category
    held = tuple(found[key] / PSI for key in ("optimizer", "gradients", "parameters"))
    assert held == pytest.approx((12 / 16, 4 / group, 2 / group), rel=1e-6)


@pytest.mark.parametrize("group", [2, 8])
def test_a_copy_steps_its_part_of_a_shard(group):
    whole, part = (run(sharding_group=group, outer_sharding=word).metrics.breakdown for word in ("none", "optim"))
    assert whole["optimizer_s"] / part["optimizer_s"] == pytest.approx(16 / group, rel=0.1)


def test_a_unit_is_gathered_from_the_group_behind_the_copies():
    spans = run(n_micro_batches=2).timeline.spans
    gathers = {
        axis: [one for one in spans if getattr(one.op, "collective", "") == "all_gather" and one.op.axis == axis]
        for axis in ("replicate", "shard")
    }
    assert len(gathers["replicate"]) == 2 * LAYERS + 1
    for copies, group in zip(gathers["replicate"], gathers["shard"], strict=False):
        assert copies.end_ps <= group.start_ps


def test_one_group_has_no_copies():
    alone = {
        key: run(sharding_group=None, outer_sharding=word) for key, word in (("as it is", "none"), ("outer", "optim"))
    }
    assert alone["outer"].timeline.makespan_ps == alone["as it is"].timeline.makespan_ps
    assert alone["outer"].memory.by_category == alone["as it is"].memory.by_category
    assert "no copies" in dict(idle_settings(alone["outer"].plan))["outer_sharding"]
    assert not idle_settings(run().plan, has_experts=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"framework": "fsdp"}, "outer_sharding=optim is Megatron-FSDP's, not one of fsdp"),
        ({"sharding": "zero1"}, "needs full shards, of which there are copies; sharding=zero1"),
        ({"offload_optimizer": "cpu"}, "not modelled with states in host memory: offload_optimizer=cpu"),
    ],
)
def test_what_megatron_fsdp_does_not_run_is_refused(changes, message):
    with pytest.raises(InfeasiblePlanError, match=message):
        ParallelPlan(**(BASE | {"global_batch": 16} | changes)).resolve(16)


def test_megatrons_own_words_are_understood():
    assert parse_settings("outer-dp-sharding-strategy", "no_shard", {}) == {"outer_sharding": "none"}
    assert parse_settings("outer_dp_sharding_strategy", "optim", {}) == {"outer_sharding": "optim"}
