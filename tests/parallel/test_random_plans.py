"""Any combination of settings either runs, the same folded as unfolded, or is refused with a plain reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.models.spec import ModelSpec
from simulator.parallel.idle import idle_settings
from simulator.plan import FRAMEWORKS, SETTINGS, ParallelPlan
from simulator.scenario import Scenario
from simulator.schedules import SCHEDULES
from simulator.simulation import simulate

DENSE = ModelSpec(
    name="dense", architecture="gpt", layers=8, hidden=256, heads=8, ffn_hidden=1024, vocab=1024, max_positions=128
)
EXPERTS = replace(
    DENSE, name="experts", n_experts=8, top_k=2, expert_hidden=512, shared_expert_hidden=256, dense_blocks=(1, 4)
)
NUMBERS = {
    "gpus": (1, 2, 4, 8, 16), "tp": (1, 1, 1, 2, 4), "pp": (1, 1, 2, 4), "cp": (1, 1, 1, 2, 4), "ep": (1, 1, 2, 4),
    "virtual_pp": (1, 1, 1, 2), "micro_batch": (1, 2), "global_batch": (None, 16, 32, 48), "sequence_length": (None, 64),
    "sharding_group": (None, None, 2, 3), "first_stage_layers": (None, None, 1), "last_stage_layers": (None, None, 1),
    "bucket_bytes": (None, None, 10_000, 10**9), "gradient_bytes": (None, 2, 4), "secondary_group": (None, None, 2, 4),
    "prefetch_elements": (None, 0, 10**6), "persistence_elements": (None, 0, 10**9), "max_live_elements": (None, 0, 10**6),
    "max_reuse_elements": (None, 0, 10**6), "moe_capacity_factor": (None, 0.5, 1.25), "moe_imbalance": (1.0, 1.7),
}  # fmt: skip
WORDS = {
    "framework": tuple(FRAMEWORKS), "schedule": tuple(SCHEDULES),
    "rank_order": ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-cp-ep-tp", "tp-cp-dp-ep-pp"),
}  # fmt: skip


def choices(name):
    """Values of a setting that may be drawn; none for those that are not a matter of the plan's shape."""
    if name in NUMBERS or name in WORDS:
        return NUMBERS.get(name) or WORDS[name]
    one = SETTINGS[name]
    unset = (None,) if one.takes_none else ()
    return (*unset, *((False, True) if one.kind is bool else one.words))


@st.composite
def scenarios(draw):
    names = [name for name in SETTINGS if choices(name)]
    shape = ("gpus", "tp", "pp", "cp", "ep", "sharding", "framework", "schedule", "micro_batch", "global_batch")
    some = draw(st.lists(st.sampled_from([n for n in names if n not in shape]), max_size=8, unique=True))
    chosen = {name: draw(st.sampled_from(choices(name))) for name in (*shape, *some)}
    chosen["gpus"] = min(16, max(chosen["gpus"], chosen["tp"] * chosen["pp"] * chosen["cp"]))
    n_replicas = chosen["gpus"] // (chosen["tp"] * chosen["pp"])
    spec = EXPERTS if n_replicas % chosen["ep"] == 0 and chosen["ep"] > 1 else draw(st.sampled_from((DENSE, EXPERTS)))
    topology = draw(st.sampled_from(("dgx-a100-80g", "bigred200")))
    return chosen, spec, {"topology": topology, "model": spec.name}


def outcome(chosen, spec, names, *, unfold=False):
    """Iteration in picoseconds, or the refusal."""
    try:
        result = simulate(Scenario(plan=ParallelPlan(**chosen), unfold=unfold, **names), spec=spec)
    except (ConfigError, InfeasiblePlanError) as error:
        assert error.exit_code in (3, 4)
        assert error.message
        return type(error), error.message
    assert result.timeline.makespan_ps > 0
    idle_settings(result.plan)
    return result.timeline.makespan_ps


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(scenarios())
def test_any_plan_runs_folded_as_unfolded_or_is_refused_in_words(drawn):
    assert outcome(*drawn) == outcome(*drawn, unfold=True)


@pytest.mark.parametrize("framework", ["torch-ddp", "hf-eager", "compiled-ddp"])
def test_what_every_backward_ends_with_is_part_of_the_period_that_is_left_out(framework):
    """DDP copies gradients back from its buckets at the end of each backward that reduces (``Reducer::finalize_backward``)."""
    plan = {"gpus": 2, "cp": 2, "sharding": "zero2", "framework": framework, "micro_batch": 1, "global_batch": 16}
    names = {"topology": "dgx-a100-80g", "model": "dense"}
    assert outcome(plan, DENSE, names) == outcome(plan, DENSE, names, unfold=True)


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ({"sharding": "zero1", "sharding_group": 3}, "sharding_group=3 does not divide"),
        ({"pp": 2, "micro_batch": 1, "pipeline_batch": 3}, "pipeline_batch=3 does not divide"),
        ({"sharding": "zero3", "secondary_group": 3, "framework": "deepspeed"}, "secondary_group=3 does not divide"),
        ({"quantized_weights": True, "framework": "fsdp", "sharding": "zero3"}, "ZeRO\\+\\+"),
        ({"offload_parameters": "cpu", "sharding": "zero1"}, "needed whole on the device"),
        ({"offload_optimizer": "cpu"}, "needs a sharded optimizer"),
        ({"gradient_compression": "fp16"}, "communication hook of DDP"),
        ({"gradient_collective": "reduce_scatter"}, "without sharding every rank needs all"),
        ({"gradient_collective": "all_reduce", "sharding": "zero3"}, "full sharding reduce-scatters"),
        ({"cp": 2, "cp_comm_type": "p2p", "attention": "eager"}, "needs fused attention"),
        ({"cp": 16, "cp_comm_type": "a2a"}, "does not divide the 8 heads"),
    ],
)
def test_what_cannot_be_had_together_is_refused(chosen, reason):
    plan = {"gpus": 16, "micro_batch": 1, "global_batch": 16, **chosen}
    with pytest.raises(SimulatorError, match=reason):
        simulate(Scenario(topology="dgx-a100-80g", model="dense", plan=ParallelPlan(**plan)), spec=DENSE)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("moe_imbalance", 0.5, "at least 1"), ("moe_capacity_factor", float("inf"), "moe_capacity_factor=inf"),
        ("prefetch_elements", -2, "DeepSpeed's default"), ("rank_order", "tp-pp", "every axis once"),
        ("cp_comm_type", "ring", "one of p2p, all_gather, a2a"), ("gradient_bytes", 3, "2 or 4 bytes"), ("cp", 0, "at least 1"),
        # Megatron-Core's --exp-avg-dtype is one of fp32, fp16, bf16, fp8, and --main-params-dtype one of fp32, fp16
        ("moment_bytes", 3, "1, 2 or 4 bytes"), ("master_bytes", 3, "2 or 4 bytes"),
    ],
)  # fmt: skip
def test_values_out_of_range_are_refused(name, value, reason):
    with pytest.raises(ConfigError, match=reason):
        ParallelPlan(**{name: value})
