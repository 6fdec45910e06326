"""NCCL's user buffers: what collectives over registered buffers leave to the compute beside them."""

from __future__ import annotations

import pytest

from simulator.costs import ModelCosts
from simulator.plan import ParallelPlan
from simulator.program.op import Collective
from simulator.scenario import Scenario
from simulator.topology import load_topology

#: domain -> ranks, expected SMs of all-gather and of reduce-scatter without SHARP
#: (NVIDIA/Megatron-LM, ``core/distributed/distributed_data_parallel_config.py``, ``nccl_ub``)
TABLE = {"NVL": (tuple(range(8)), 4, 5), "NVL+IB": (tuple(range(16)), 16, 16), "IB": ((0, 8), 1, 4)}
#: of an H100, and what its file says compute keeps beside any collective within a node, and over the network
N_SMS, INSIDE, ACROSS = 132, 0.83, 0.95


def kept(
    group: tuple[int, ...], collective: str, *, is_registered: bool = True, axis: str = "dp", nics: float = 1.0
) -> float:
    degrees = {"dp": 16} if len(group) > 2 else {"dp": 2, "tp": 8}
    plan = ParallelPlan(gpus=16, **degrees, micro_batch=1, global_batch=16, framework="megatron-core", sharding="zero1",
                        nccl_user_buffers=is_registered)  # fmt: skip
    scenario = Scenario(topology="dgx-h100", model="gpt2", plan=plan)
    costs = ModelCosts(load_topology("dgx-h100", 16).scaled({"nic": nics}), scenario)
    return costs.interference(Collective(collective=collective, axis=axis, n_bytes=2**28, groups=(group,))).compute


@pytest.mark.parametrize(
    ("domain", "place", "collective"), [(d, i, c) for d in TABLE for i, c in ((1, "all_gather"), (2, "reduce_scatter"))]
)
def test_registered_buffers_leave_all_but_the_sms_of_the_table(domain: str, place: int, collective: str) -> None:
    group, left = TABLE[domain][0], 1 - TABLE[domain][place] / N_SMS
    found = kept(group, collective)
    if domain == "NVL+IB":  # between what its traffic in the node takes and what its traffic in the network does
        assert max(INSIDE, left) <= found <= max(ACROSS, left)
    else:
        assert found == pytest.approx(max(left, ACROSS if domain == "IB" else INSIDE))
    assert found >= kept(group, collective, is_registered=False)


@pytest.mark.parametrize("axis", ["dp", "expert_dp", "shard", "replicate"])
def test_buffers_of_all_data_parallel_groups_are_registered(axis: str) -> None:
    """Megatron-Core registers the pools of dense and of expert parameters alike, and with HSDP those of both groups."""
    assert kept(TABLE["NVL"][0], "all_gather", axis=axis) == 1 - 4 / N_SMS


def test_other_axes_and_other_plans_take_what_was_measured() -> None:
    group = TABLE["NVL"][0]
    assert kept(group, "all_gather", is_registered=False) == INSIDE
    assert kept(group, "all_gather", axis="tp") == INSIDE


def test_sixteen_sms_are_not_taken_where_nvlink_waits_for_the_network() -> None:
    """Network cards at a thousandth of their rate leave NVLink idle, and compute what it keeps beside the network alone."""
    group = TABLE["NVL+IB"][0]
    assert kept(group, "all_gather", nics=1e-3) == pytest.approx(ACROSS, abs=1e-3)
    assert (
        kept(group, "all_gather", nics=1e-3)
        >= kept(group, "all_gather", nics=1e-3, is_registered=False)
        > 1 - 16 / N_SMS
    )
