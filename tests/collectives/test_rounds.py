"""One flow for a whole table against the table expanded chunk by chunk, and against closed forms."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from simulator.collectives import closed_form, hierarchical
from simulator.collectives.algorithms import ALGORITHMS
from simulator.collectives.expand import makespan_s
from simulator.collectives.rounds import round_loads
from simulator.network import NETWORKS, Flow
from simulator.units import to_s

HOP_S = 5e-6
RATE = 1e9


class Star:
    """Every rank has a link out and a link in; a switch between them that is never full."""

    def __init__(self, n_ranks, gpus_per_node=1):
        self.gpus_per_node = gpus_per_node
        self.links = [SimpleNamespace(bandwidth_bytes_per_s=RATE) for _ in range(2 * n_ranks)]

    def route(self, a, b):
        return ((2 * a, 1.0), (2 * b + 1, 1.0))


def flow_time_s(table, n_bytes, topology):
    """Time of the table as one flow."""
    loads = round_loads(table, [range(table.n_ranks)], topology)
    used = [i for i, load in enumerate(loads.total) if load]
    level = max(loads.total) / RATE
    flow = Flow(
        latency_s=loads.n_rounds * HOP_S + n_bytes * (loads.busiest_s_per_byte - level),
        n_bytes=n_bytes,
        links=tuple(used),
        weights=tuple(loads.total[i] for i in used),
    )
    network = NETWORKS["flow"](topology)
    network.start(flow, 0)
    return to_s(network.next_completion_ps())


@pytest.mark.parametrize("n_ranks", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_ring_as_a_flow_equals_the_ring_in_chunks(collective, n_ranks):
    table, star = ALGORITHMS["ring"][collective](n_ranks), Star(n_ranks)
    chunked = makespan_s(table, 64e6, range(n_ranks), star, hop_s=HOP_S)
    assert flow_time_s(table, 64e6, star) == pytest.approx(chunked, rel=0.01)


@pytest.mark.parametrize("n_ranks", [2, 4, 8, 16, 32, 64])
def test_trees_and_hierarchies_in_chunks(n_ranks):
    star = Star(n_ranks)
    cases = [ALGORITHMS["binomial"]["broadcast"](n_ranks), ALGORITHMS["binomial"]["all_reduce"](n_ranks)]
    cases += [hierarchical.all_reduce(n_ranks, m) for m in (2, 4, 8) if n_ranks > m]
    for table in cases:
        for size in (2.0**10, 2.0**20, 2.0**30):
            chunked = makespan_s(table, size, range(n_ranks), star, hop_s=HOP_S)
            assert flow_time_s(table, size, star) == pytest.approx(chunked, rel=0.01)


@pytest.mark.parametrize("n_ranks", [4, 8, 16, 64])
def test_the_double_binary_tree_in_chunks_is_no_slower_than_its_rounds(n_ranks):
    table, star = ALGORITHMS["tree"]["all_reduce"](n_ranks), Star(n_ranks)
    chunked = makespan_s(table, 64e6, range(n_ranks), star, hop_s=HOP_S)
    in_rounds = flow_time_s(table, 64e6, star)
    assert 0.6 * in_rounds <= chunked <= in_rounds * 1.001


@pytest.mark.parametrize("n_ranks", [2, 3, 8, 32])
def test_closed_forms(n_ranks):
    star, size = Star(n_ranks), 32e6
    expected = {
        ("ring", "all_reduce"): closed_form.ring_all_reduce_s(n_ranks, size, HOP_S, RATE),
        ("ring", "all_gather"): closed_form.ring_gather_s(n_ranks, size, HOP_S, RATE),
        ("ring", "reduce_scatter"): closed_form.ring_gather_s(n_ranks, size, HOP_S, RATE),
        ("ring", "broadcast"): closed_form.chain_s(n_ranks, 8, size, HOP_S, RATE),
        ("binomial", "broadcast"): closed_form.binomial_broadcast_s(n_ranks, size, HOP_S, RATE),
        ("binomial", "all_gather"): closed_form.recursive_gather_s(n_ranks, size, HOP_S, RATE),
        ("pairwise", "all_to_all"): closed_form.pairwise_all_to_all_s(n_ranks, size, HOP_S, RATE),
    }
    for (algorithm, collective), time_s in expected.items():
        table = ALGORITHMS[algorithm][collective](n_ranks)
        assert makespan_s(table, size, range(n_ranks), star, hop_s=HOP_S) == pytest.approx(time_s, rel=1e-6)


def test_ring_algorithms_move_the_least_bytes():
    for n_ranks in (2, 5, 8):
        table = ALGORITHMS["ring"]["all_reduce"](n_ranks)
        sent = sum(table.bytes_of(send, 1.0) for sends in table.rounds for send in sends)
        assert sent == pytest.approx(2 * (n_ranks - 1))
