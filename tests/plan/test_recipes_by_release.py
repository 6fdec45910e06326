"""What recipes turn on from a release on: Megatron Bridge 26.06's fused experts and whole iterations as graphs.

Expectations are its recipes' (``src/megatron/bridge/perf_recipes``) and Megatron-Core's token dispatcher.
"""

from __future__ import annotations

import pytest

from simulator.explore.named_settings import scenario_of
from simulator.plan import ParallelPlan

MIXTURE = {"framework": "megatron-bridge", "precision": "mxfp8"}
FUSED = ("moe_fused_experts", "cuda_graphs", "fp8_modules", "moe_dispatcher", "moe_dispatcher_sms")
NEW = (True, "full_iteration", "attention", "hybridep", 32)


def features(plan: ParallelPlan) -> tuple[object, ...]:
    return tuple(getattr(plan, key) for key in FUSED)


@pytest.mark.parametrize("release", [None, "26.06", "26.06.01", "26.08"])
@pytest.mark.parametrize("ep", [1, 8])
def test_mixtures_in_mxfp8_run_fused_from_26_06_on_and_without_a_release(release: str | None, ep: int) -> None:
    assert features(ParallelPlan.of({**MIXTURE, "ep": ep, "release": release}, is_mixture=True)) == NEW


@pytest.mark.parametrize(
    ("changes", "is_mixture"),
    [
        ({"release": "26.04.01"}, True),
        ({"release": "25.11", "ep": 8}, True),
        ({"precision": "bf16", "ep": 8}, True),
        ({"precision": "nvfp4", "ep": 8}, True),
        ({"framework": "megatron-core", "ep": 8}, True),
        ({}, False),
    ],
)
def test_other_plans_do_not(changes: dict[str, object], is_mixture: bool) -> None:
    assert not ParallelPlan.of({**MIXTURE, **changes}, is_mixture=is_mixture).moe_fused_experts


def test_a_dispatcher_that_is_said_wins_and_brings_its_own_settings() -> None:
    plan = ParallelPlan.of({**MIXTURE, "ep": 8, "moe_dispatcher": "alltoall"}, is_mixture=True)
    assert (plan.moe_dispatcher, plan.moe_dispatcher_sms, plan.moe_fused_experts) == ("alltoall", None, True)


@pytest.mark.parametrize(("model", "is_fused"), [("qwen3-30b-a3b", True), ("llama3-8b", False)])
def test_the_catalogue_tells_which_models_are_mixtures(model: str, is_fused: bool) -> None:
    scenario = scenario_of({**MIXTURE, "topology": "gb200-nvl72", "model": model, "gpus": 8})
    assert scenario.plan.moe_fused_experts is is_fused


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"ep": 8}, True),
        ({"ep": 8, "moe_fused_experts": True}, True),  # the exchange's size is known on the device only
        ({"ep": 8, "moe_fused_experts": True, "cuda_graphs": "full_iteration"}, False),  # buffers of static size
        ({"ep": 1, "moe_fused_experts": True}, False),  # nothing is exchanged
        ({"ep": 1}, True),  # products are launched expert by expert
        ({"ep": 8, "moe_capacity_factor": 1.0, "moe_pad_to_capacity": True}, False),
        ({"ep": 8, "moe_capacity_factor": 1.0}, True),
    ],
)
def test_the_host_waits_for_counts_unless_sizes_are_static(settings: dict[str, object], waits: bool) -> None:
    """NVIDIA/Megatron-LM, ``core/transformer/moe/token_dispatcher.py``, ``num_permuted_tokens``; ``experts.py``, ``m_splits``."""
    assert ParallelPlan(framework="megatron-core", precision="mxfp8", **settings).waits_for_counts is waits
