"""Collectives of gloo against measured ones on emulated hosts."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from simulator.collectives import ALGORITHMS, plan_collective, plan_transfer
from simulator.errors import ConfigError
from simulator.network import NETWORKS, lone_flow_s
from simulator.topology.cluster_file import load_topology
from simulator.units import to_s

TABLE = Path(__file__).parents[3] / "shared" / "measurements" / "emulated" / "collectives.csv"
RATES = {"100mbit": "emulated-100m", "500mbit": "emulated-500m", "1gbit": "emulated-1g"}
NAMES = {"allreduce": "all_reduce", "reducescatter": "reduce_scatter", "ringshift": "send_recv"}
MIB = 2**20


def test_reduce_scatter_moves_twice_the_bytes_of_an_all_gather():
    topology = load_topology("emulated-1g", 4)
    group = ((0, 1, 2, 3),)
    gather, scatter = (
        lone_flow_s(plan_collective(name, 64 * MIB, group, topology), topology)
        for name in ("all_gather", "reduce_scatter")
    )
    assert scatter == pytest.approx(2 * gather, rel=0.01)


def test_a_broadcast_sends_to_all_children_at_once():
    topology = load_topology("emulated-1g", 8)
    one = lone_flow_s(plan_transfer(16 * MIB, ((0, 1),), topology), topology)
    broadcast = lone_flow_s(plan_collective("broadcast", 16 * MIB, (tuple(range(8)),), topology), topology)
    assert broadcast == pytest.approx((3 + 2 + 1) * one, rel=0.01)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_who_comes_first_sends_half_of_its_messages_last(n):
    """By pair.cc the first of n ranks receives n - 1 messages and then sends floor(n / 2) more; the 1.5-fold of two ranks'
    all-gather and 5 messages' times of four were measured."""
    topology = load_topology("emulated-1g", n)
    group = (tuple(range(n)),)
    one = lone_flow_s(plan_transfer(16 * MIB, ((0, 1),), topology), topology)
    exchange = plan_collective("all_to_all", n * 16 * MIB, group, topology)
    assert lone_flow_s(exchange, topology) == pytest.approx((n - 1 + n // 2) * one, rel=0.01)
    gather = plan_collective("all_gather", n * 16 * MIB, group, topology)
    assert lone_flow_s(gather, topology) == pytest.approx((1.5 if n == 2 else n - 1) * one, rel=0.01)
    for flow in (exchange, gather):
        assert lone_flow_s(flow, topology, "chunk") == pytest.approx(lone_flow_s(flow, topology), rel=0.01)


def test_ranks_come_in_order():
    """Of four ranks 2 and 3 send to rank 0, and 3 to rank 1, before they say that they are ready for what those have for them."""
    first, second = ALGORITHMS["gloo"].tables["all_to_all"](4).rounds
    assert sorted((send.source, send.target) for send in second) == [(0, 2), (0, 3), (1, 3)]
    assert len(first) == 9 and not any(send.answers for send in first)
    assert all(send.answers for send in second)


def test_two_gathers_of_two_ranks_fill_the_links_that_one_leaves_idle():
    """With two threads eight gathers take their bytes' time (measured 0.6 % more), with one half as long again (0.7 % less)."""
    topology = load_topology("emulated-1g", 2)
    flow = plan_collective("all_gather", 64 * MIB, ((0, 1),), topology)
    network = NETWORKS["flow"](topology)
    network.start(flow, 0)
    network.start(flow, 0)
    wire_s = 32 * MIB / topology.node.nics.bandwidth_bytes_per_s
    assert lone_flow_s(flow, topology) == pytest.approx(1.5 * wire_s, rel=0.01)
    while (now_ps := network.next_completion_ps()) is not None:
        end_ps = now_ps
        network.advance(now_ps)
    assert to_s(end_ps) == pytest.approx(2 * wire_s, rel=0.01)


def test_gloo_knows_its_collectives():
    topology = load_topology("emulated-1g", 4)
    with pytest.raises(ConfigError, match="no barrier"):
        plan_collective("barrier", 8, ((0, 1, 2, 3),), topology)


@pytest.mark.skipif(not TABLE.is_file(), reason="the measurements are not beside the repository")
def test_measured_times_from_one_mebibyte():
    errors = []
    with TABLE.open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            size, n = int(row["bytes"]), int(row["world"])
            plain = not (float(row["delay_us"] or 0) or row["slow"]) and row["procs_per_node"] == "1"
            if row["job"] not in NAMES or row["rate"] not in RATES or size < MIB or not plain or row["trunk"]:
                continue
            topology = load_topology(RATES[row["rate"]], n)
            flow = plan_collective(NAMES[row["job"]], size, (tuple(range(n)),), topology)
            errors.append(abs(lone_flow_s(flow, topology) / float(row["median_s"]) - 1.0))
    assert len(errors) >= 30
    assert sorted(errors)[len(errors) // 2] < 0.01
    assert sorted(errors)[int(0.9 * len(errors))] < 0.03
