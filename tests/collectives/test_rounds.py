"""Tables in messages against closed forms, and as the one flow that follows from them."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest

from simulator.collectives import ALGORITHMS, Algorithm, plan_collective
from simulator.network import lone_flow_s
from simulator.topology import load_topology
from tests.collectives import table_oracles as oracles
from tests.collectives.table_oracles import makespan_s

HOP_S = 5e-6
RATE = 1e9


class Star:
    """Every rank has a link out and a link in; a switch between them that is never full."""

    def __init__(self, n_ranks, gpus_per_node=1):
        self.gpus_per_node = gpus_per_node
        self.links = [SimpleNamespace(bandwidth_bytes_per_s=RATE) for _ in range(2 * n_ranks)]

    def route(self, a, b):
        return ((2 * a, 1.0), (2 * b + 1, 1.0))


def in_rounds_s(table, n_bytes):
    """Time of the table if each round waits for the busiest rank of the one before."""
    total_s = 0.0
    for sends in table.rounds:
        busy = Counter()
        for send in sends:
            busy["out", send.source] += table.bytes_of(send, n_bytes)
            busy["in", send.target] += table.bytes_of(send, n_bytes)
        total_s += HOP_S + max(busy.values()) / RATE
    return total_s


@pytest.mark.parametrize("n_ranks", [4, 8, 16, 64])
def test_the_double_binary_tree_in_chunks_is_no_slower_than_its_rounds(n_ranks):
    table, star = ALGORITHMS["tree"].tables["all_reduce"](n_ranks), Star(n_ranks)
    chunked = makespan_s(table, 64e6, range(n_ranks), star, hop_s=HOP_S)
    in_rounds = in_rounds_s(table, 64e6)
    assert 0.6 * in_rounds <= chunked <= in_rounds * 1.001


class Hierarchical(Algorithm):
    """Says nothing but its table."""

    name = "hierarchical"
    tables = {"all_reduce": lambda n_ranks: oracles.hierarchical_all_reduce(n_ranks, 4)}  # noqa: RUF012


@pytest.mark.parametrize("n_bytes", [2**12, 2**20, 2**30])
@pytest.mark.parametrize("n_gpus", [8, 16, 32])
@pytest.mark.parametrize(
    ("algorithm", "collective", "per_node"),
    [
        ("hierarchical", "all_reduce", 4),
        ("binomial", "broadcast", 4),
        ("binomial", "reduce", 4),
        ("binomial", "all_reduce", 1),
    ],
)
def test_rounds_as_a_flow_are_the_rounds_in_messages(monkeypatch, algorithm, collective, per_node, n_gpus, n_bytes):
    """What follows from a table alone: price, loads and messages agree where all GPUs have links of their own."""
    monkeypatch.setitem(ALGORITHMS, "hierarchical", Hierarchical())
    topology = load_topology("perlmutter-80g", n_gpus, gpus_per_node=per_node)
    flow = plan_collective(collective, n_bytes, (tuple(range(n_gpus)),), topology, algorithm=algorithm)
    assert flow.label.startswith(algorithm)
    whole, apart = (lone_flow_s(flow, topology, network) for network in ("flow", "chunk"))
    assert whole == pytest.approx(apart, rel=0.01)


@pytest.mark.parametrize("n_ranks", [2, 3, 8, 32])
def test_closed_forms(n_ranks):
    star, size = Star(n_ranks), 32e6
    expected = {
        ("ring", "all_reduce"): oracles.ring_all_reduce_s(n_ranks, size, HOP_S, RATE),
        ("ring", "all_gather"): oracles.ring_gather_s(n_ranks, size, HOP_S, RATE),
        ("ring", "reduce_scatter"): oracles.ring_gather_s(n_ranks, size, HOP_S, RATE),
        ("ring", "broadcast"): oracles.chain_s(n_ranks, 8, size, HOP_S, RATE),
        ("binomial", "broadcast"): oracles.binomial_broadcast_s(n_ranks, size, HOP_S, RATE),
        ("binomial", "all_gather"): oracles.recursive_gather_s(n_ranks, size, HOP_S, RATE),
        ("p2p", "all_to_all"): oracles.pairwise_all_to_all_s(n_ranks, size, HOP_S, RATE),
    }
    for (algorithm, collective), time_s in expected.items():
        table = ALGORITHMS[algorithm].tables[collective](n_ranks)
        assert makespan_s(table, size, range(n_ranks), star, hop_s=HOP_S) == pytest.approx(time_s, rel=1e-6)


def test_ring_algorithms_move_the_least_bytes():
    for n_ranks in (2, 5, 8):
        table = ALGORITHMS["ring"].tables["all_reduce"](n_ranks)
        sent = sum(table.bytes_of(send, 1.0) for sends in table.rounds for send in sends)
        assert sent == pytest.approx(2 * (n_ranks - 1))
