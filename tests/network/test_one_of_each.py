"""One message for all that do the same: fewer of them, and the times of all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.network.base import ChunkMessage, Flow, Rounds
from simulator.network.chunk import ChunkNetwork
from simulator.network.one_of_each import one_of_each

GB_PER_S = 1e9


@dataclass(frozen=True)
class Link:
    bandwidth_bytes_per_s: float


@dataclass(frozen=True)
class Links:
    links: tuple[Link, ...]


def _ring(n_nodes: int, per_node: int, n_rings: int, n_rounds: int) -> Rounds:
    """Rings over nodes: a message on a link of its own to the next GPU, or over the node's one NIC to the next node."""
    n = n_nodes * per_node
    lanes, before = [], []
    for ring in range(n_rings):
        for place in range(n):
            node, gpu = divmod(place, per_node)
            leaves = gpu == (per_node - 1 + ring) % per_node
            links = (n + node,) if leaves else (place,)
            lanes.append(ChunkMessage(latency_s=1e-5, n_bytes=1e6, links=links, weights=(1.0,)))
            before.append(ring * n + (place - 1) % n)
    return Rounds(lanes=tuple(lanes), before=tuple(before), n_rounds=n_rounds)


def _time_ps(rounds: Rounds, capacity: np.ndarray) -> int:
    network = ChunkNetwork(Links(tuple(Link(float(each)) for each in capacity)))
    network.start(replace(Flow(latency_s=0.0, n_bytes=1.0), rounds=lambda: rounds), 0)
    end_ps = 0
    while (wake_ps := network.next_completion_ps()) is not None:
        end_ps = wake_ps
        network.advance(wake_ps)
    return end_ps


def test_equal_nodes_leave_one_message_of_each_place():
    """Two rings of four nodes of two GPUs: each GPU sends inside in one ring and over the NIC in the other, on every node."""
    rounds = _ring(n_nodes=4, per_node=2, n_rings=2, n_rounds=3)
    capacity = np.array([GB_PER_S] * 12)
    few = one_of_each(rounds, capacity)
    assert len(rounds.lanes) == 16
    assert sorted(lane.weights for lane in few.lanes) == [(1.0,), (2.0,)]  # both rings leave over one NIC
    assert _time_ps(few, capacity) == _time_ps(rounds, capacity)


def test_a_slow_link_tells_all_messages_of_its_ring_apart():
    """Behind one slow link each of eight ranks waits for it by a different number of hops: nothing can be left out."""
    rounds = _ring(n_nodes=8, per_node=1, n_rings=1, n_rounds=4)
    capacity = np.array([GB_PER_S] * 16)
    assert len(one_of_each(rounds, capacity).lanes) == 1
    capacity[8] = 0.5 * GB_PER_S
    assert one_of_each(rounds, capacity) is rounds


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6),
    st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=20, max_size=20), st.booleans(),
)  # fmt: skip
def test_one_of_each_takes_as_long_as_all(n_nodes, per_node, n_rings, n_rounds, factors, is_regular):
    """Whatever links are slow: the messages that are kept end when all of them would, simulated one by one."""
    rounds = _ring(n_nodes, per_node, n_rings, n_rounds)
    capacity = np.full(n_nodes * (per_node + 1), GB_PER_S)
    if not is_regular:
        capacity *= np.array(factors[: len(capacity)])
    few = one_of_each(rounds, capacity)
    assert len(few.lanes) <= len(rounds.lanes)
    if is_regular:
        assert len(few.lanes) <= per_node * n_rings
    assert _time_ps(few, capacity) == pytest.approx(_time_ps(rounds, capacity), abs=2)
