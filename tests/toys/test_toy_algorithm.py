"""A collective algorithm that exists in this file only, through everything that asks for algorithms."""

from __future__ import annotations

import json

import pytest

from simulator.collectives import ALGORITHMS, Algorithm
from simulator.collectives.algorithm import by_name
from simulator.collectives.shape import shape_of
from simulator.collectives.table import Send, Table
from simulator.collectives.tuner import constants_of
from simulator.topology import load_topology
from tests.collectives.table_oracles import check

#: one GPU per node, so that each has a NIC for itself
CLUSTER = """
version: 1
nodes: 8
node:
  device: a100-sxm4-80g
  gpus: 1
  pcie: {generation: 4}
  nics: {count: 1, bandwidth: 200 Gb/s}
fabric: {kind: one-switch}
transports: {rdma: {protocol: rdma}}
"""
NIC_BYTES_PER_S = 25e9
MIB = 2**20


def reduce_scatter(n_ranks: int) -> Table:
    """Everybody sends everybody's share to its owner."""
    pairs = [(r, s) for r in range(n_ranks) for s in range(n_ranks) if r != s]
    rounds = (tuple(Send(source=s, target=r, first=r, reduce=True) for r, s in pairs),)
    return Table(collective="reduce_scatter", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_gather(n_ranks: int) -> Table:
    """Everybody sends its share to everybody."""
    pairs = [(r, s) for r in range(n_ranks) for s in range(n_ranks) if r != s]
    rounds = (tuple(Send(source=r, target=s, first=r) for r, s in pairs),)
    return Table(collective="all_gather", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def all_reduce(n_ranks: int) -> Table:
    """Both."""
    rounds = (*reduce_scatter(n_ranks).rounds, *all_gather(n_ranks).rounds)
    return Table(collective="all_reduce", n_ranks=n_ranks, n_chunks=n_ranks, rounds=rounds)


def broadcast(n_ranks: int) -> Table:
    """The root sends all to everybody."""
    rounds = (tuple(Send(source=0, target=r, first=0) for r in range(1, n_ranks)),)
    return Table(collective="broadcast", n_ranks=n_ranks, n_chunks=1, rounds=rounds)


class Direct(Algorithm):
    """A table for each collective, and no more."""

    name = "direct"
    tables = by_name(reduce_scatter, all_gather, all_reduce, broadcast)


class Favourite(Direct):
    """One that the library takes for the fastest."""

    name = "favourite"

    def estimate_us(self, question, protocol):
        return 0.0 if protocol == "simple" else 1.0


class Outsider(Direct):
    """One that the library takes for the slowest."""

    name = "outsider"

    def estimate_us(self, question, protocol):
        return 1e9


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "direct", Direct())


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "toys.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


@pytest.mark.parametrize("collective", Direct.tables)
def test_its_tables_do_what_they_promise(collective):
    assert check(Direct.tables[collective](5)) == []


@pytest.mark.parametrize("network", ["flow", "alpha-beta", "chunk"])
@pytest.mark.parametrize(("collective", "n_rounds", "traffic"), [("all_gather", 1, 7 / 8), ("all_reduce", 2, 14 / 8)])
def test_its_price_follows_from_its_table(simulate, cluster, network, collective, n_rounds, traffic):
    """Each rank sends and receives ``traffic`` of the bytes, in rounds with a latency each."""
    code, out, _ = simulate(
        "collective", collective, "-t", cluster, "--gpus", 8, "--min", "256MiB", "--max", "256MiB",
        "--nccl-algo", "direct", "--nccl-proto", "simple", "--network", network, "--json",
    )  # fmt: skip
    assert code == 0, out
    (row,) = json.loads(out)["rows"]
    inside, between = constants_of(shape_of(range(8), load_topology(cluster, 8)))
    latency_s = inside.ring.base_s[2] + between.ring.base_s[2] + n_rounds * between.ring.hop_s[2]
    wire_s = traffic * 256 * MIB / (NIC_BYTES_PER_S * between.ring.efficiency[2])
    assert (row["algorithm"], row["protocol"]) == ("direct", "simple")
    assert row["time_s"] == pytest.approx(latency_s + wire_s, rel=1e-3)


def test_it_runs_only_where_it_is_asked_for_unless_the_library_has_an_estimate(simulate, cluster, monkeypatch):
    def chosen(*forced):
        arguments = ("-t", cluster, "--gpus", 8, "--min", "1MiB", "--max", "1MiB", *forced, "--json")
        _, out, _ = simulate("collective", "all_reduce", *arguments)
        return json.loads(out)["rows"][0]["algorithm"]

    assert chosen() not in ("direct", "favourite")
    monkeypatch.setitem(ALGORITHMS, "favourite", Favourite())
    assert chosen() == "favourite"
    assert chosen("--nccl-algo", "direct") == "direct"


def test_one_that_is_unknown_or_cannot_is_refused(simulate, cluster):
    arguments = ("-t", cluster, "--gpus", 8, "--max", "1KiB")
    code, _, err = simulate("collective", "reduce", *arguments, "--nccl-algo", "direct")
    assert code == 3 and "reduce over 8 ranks on 8 nodes cannot use algorithm direct" in err


@pytest.mark.parametrize("network", ["flow", "alpha-beta", "chunk"])
def test_an_iteration_runs_with_it(simulate, cluster, network):
    def answer(*forced):
        job = ("-t", cluster, "-m", "gpt2", "--gpus", 8, "--micro-batch", 1, "--network", network)
        code, out, _ = simulate(*job, *forced, "--json")
        assert code == 0
        return json.loads(out)

    direct, ring = answer("--nccl-algo", "direct"), answer("--nccl-algo", "ring")
    assert direct["communication"][0]["bytes"] == ring["communication"][0]["bytes"]
    assert direct["communication"][0]["total_s"] < ring["communication"][0]["total_s"]  # 2 hops rather than 14


def test_sweeps_searches_and_explanations_take_it(simulate, cluster, tmp_path):
    job = ("-t", cluster, "-m", "gpt2", "--gpus", 4, "--json")
    code, out, _ = simulate(
        "sweep", *job, "--micro-batch", 1, "--jobs", 1, "--out", tmp_path, "--axis", "nccl-algo=ring,direct"
    )
    ring, direct = json.loads(out)["rows"]
    assert code == 0 and direct["iteration_time_s"] < ring["iteration_time_s"]
    axes = ("--axis", "micro_batch=1", "--axis", "tp=1", "--axis", "pp=1")
    code, out, _ = simulate("search", *job, "--global-batch", 4, "--jobs", 1, "--nccl-algo", "direct", *axes)
    assert code == 0 and json.loads(out)["best"]["iteration_time_s"] <= direct["iteration_time_s"] * 1.001
    code, out, _ = simulate(*job, "--micro-batch", 1, "--nccl-algo", "direct", "--explain")
    assert code == 0 and json.loads(out)["iteration_time_s"] == pytest.approx(direct["iteration_time_s"])


def test_an_explanation_tries_what_the_library_knows(simulate, cluster, monkeypatch):
    monkeypatch.setitem(ALGORITHMS, "outsider", Outsider())
    code, out, _ = simulate("-t", cluster, "-m", "gpt2", "--gpus", 4, "--micro-batch", 1, "--explain", "--json")
    assert code == 0
    named = {change["change"]: change["saving"] for change in json.loads(out)["explanation"]["changes"]}
    assert named["--nccl-algo outsider --nccl-proto simple"] > named["--nccl-algo ring --nccl-proto ll"]
    assert not any("direct" in name for name in named)
