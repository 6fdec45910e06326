"""Checkpoints behind training's back: bytes over rates, and what they leave to the steps."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.full_answer import to_json
from simulator.explore.named_settings import scenario_of
from simulator.explore.run.checkpoint_policy import check_policy, policy_of, storage_flow
from simulator.explore.run.goodput import checkpoint_of, writers_of
from simulator.explore.run.run_request import RunRequest, parse_domain, parse_mtbf
from simulator.interop import open_topology
from simulator.simulation import simulate


@cache
def answer(nodes=4, **settings):
    base = {
        "topology": "dgx-h100", "nodes": str(nodes), "model": "gpt-1.3b", "gpus": 8 * nodes, "micro_batch": 4, "tp": 2,
        "sharding": "zero1", "framework": "megatron-core",
    }  # fmt: skip
    return simulate(scenario_of({**base, **settings}))


def test_training_stands_still_only_while_states_are_copied_to_the_host():
    """14 bytes of each parameter over the ranks, at 85 % or so of PCI Express 5."""
    result = answer()
    asynchronous, synchronous = policy_of("async", result), policy_of("sync", result)
    each = 14 * result.spec.n_parameters / 32
    assert asynchronous.checkpoint.write_s >= each / result.topology.device(0).pcie_bandwidth_bytes_per_s
    assert asynchronous.checkpoint.write_s < 0.1 * synchronous.checkpoint.write_s
    assert asynchronous.checkpoint.n_bytes == synchronous.checkpoint.n_bytes == 14 * result.spec.n_parameters
    assert asynchronous.lag_s >= synchronous.checkpoint.write_s
    assert synchronous.lag_s == 0.0


def test_a_write_leaves_every_node_over_its_own_nics():
    """Four nodes with as many writers: a quarter of the bytes each, over eight NICs."""
    result = answer()
    stored = checkpoint_of(result.plan, result.topology, result.spec.n_parameters)
    writers = writers_of(result.plan, 8)
    flow = storage_flow(writers, stored, result.topology)
    out = {
        index: weight
        for index, weight in zip(flow.links, flow.weights, strict=True)
        if result.topology.links[index].kind == "nic"
    }
    assert sum(out.values()) == pytest.approx(1.0)
    for node in range(4):
        own = set(result.topology.links_of_node(node, "nic"))
        assert [weight for index, weight in out.items() if index in own] == [pytest.approx(1 / 32)] * 8
    assert flow.rate_cap_bytes_per_s == pytest.approx(stored.n_bytes / stored.write_s)


@pytest.mark.parametrize(("n_gpus", "own_nics"), [(16, 16), (20, 20), (12, 8)])
def test_a_last_node_of_fewer_gpus_takes_no_other_nodes_nic(n_gpus, own_nics):
    """Every GPU of a DGX H100 has a NIC; only beside a single other node, of four GPUs, are there rails without a peer."""
    topology = open_topology("dgx-h100", n_gpus)
    stored = replace(checkpoint_of(answer().plan, answer().topology, 10**9), n_bytes=100, write_s=1.0)
    flow = storage_flow(range(n_gpus), stored, topology)
    out = [
        weight for index, weight in zip(flow.links, flow.weights, strict=True) if topology.links[index].kind == "nic"
    ]
    assert sum(out) == pytest.approx(1.0)
    assert len(out) == own_nics
    if own_nics == n_gpus:
        assert out == [pytest.approx(1 / n_gpus)] * n_gpus


def test_peers_send_at_the_rate_of_their_nics():
    result = answer()
    held = policy_of("peers", result)
    node_bytes = 14 * result.spec.n_parameters / 4
    nics = result.topology.node.nics
    at_best_s = node_bytes / (nics.count * nics.bandwidth_bytes_per_s)
    assert at_best_s <= held.checkpoint.read_s <= 2 * at_best_s
    assert held.checkpoint.read_s < held.storage.read_s
    assert held.lag_s < policy_of("async", result).lag_s
    assert (
        held.lag_s > held.checkpoint.read_s
    )  # it arrives no sooner than it takes alone, after it was copied to the host


def test_peers_on_an_nvl72_are_trays_of_the_rack():
    """Each of 72 GPUs sends a 72nd of 14 bytes of each parameter to the next tray, at NVLink's 900 GB/s or somewhat less."""
    settings = {
        "topology": "gb200-nvl72",
        "gpus": 72,
        "sharding": "zero1",
        "framework": "megatron-core",
        "micro_batch": 1,
    }
    result = simulate(scenario_of({**settings, "model": "gpt-1.3b", "tp": 1}))
    held = policy_of("peers", result)
    at_best_s = 14 * result.spec.n_parameters / 72 / 900e9
    assert at_best_s <= held.checkpoint.read_s <= 3 * at_best_s


def test_drives_that_no_file_names_are_four_of_4_gb_per_second():
    tiers, result = policy_of("tiers", answer()), answer()
    assert tiers.checkpoint.read_s == pytest.approx(14 * result.spec.n_parameters / 4 / 16e9)


def test_drives_hold_what_leaves_a_node_alive():
    """Four nodes write 14 bytes of each parameter to drives of 8 GB/s each, and copy it to the host only once."""
    result = answer(**{"storage.local_bandwidth": "8 GB/s", "storage.node_bandwidth": "1 GB/s"})
    tiers, peers, stored = (policy_of(name, result) for name in ("tiers", "peers", "async"))
    drives_s = 14 * result.spec.n_parameters / 4 / 8e9
    assert tiers.checkpoint.read_s == pytest.approx(drives_s)
    assert tiers.lag_s == pytest.approx(tiers.checkpoint.write_s + drives_s)
    assert tiers.shared.read_s == peers.checkpoint.read_s and tiers.storage.read_s == stored.checkpoint.read_s
    assert tiers.checkpoint.write_s + tiers.shared.write_s == pytest.approx(peers.checkpoint.write_s)
    assert tiers.checkpoint.write_s + tiers.storage.write_s == pytest.approx(stored.checkpoint.write_s)


@pytest.mark.parametrize(("policy", "figure"), [("sync", "write_s"), ("async", "lag_s")])
def test_what_goes_to_storage_waits_for_the_checkpoints_of_other_jobs(policy, figure):
    """Both write 1 GB/s alone and half of it together: twice as long for the share of the time that the other writes.

    Daly (2006): the other writes for d = 2 s after every sqrt(2 d M) (1 + sqrt(d / 2 M) / 3 + d / 18 M) - d.
    """
    result = answer(**{"storage.bandwidth": "1 GB/s"})
    mtbf_s, write_s = 3 * 3600.0, 2.0
    half = write_s / (2 * mtbf_s)
    work_s = math.sqrt(2 * write_s * mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - write_s
    other = {"slowdown": 1.0, "gpus": 8, "nodes": [0], "checkpoint_s": write_s, "checkpoint_bytes": 2 * 10**9}
    request = RunRequest(iterations=100_000, mtbf=parse_mtbf("3 h/job"), policy=policy)
    alone, beside = (
        to_json(result, request, jobs)["whole_run"]["checkpoint"][figure]
        for jobs in (None, {"jobs": [{"slowdown": 1.0}, other]})
    )
    seconds = 14 * result.spec.n_parameters / 1e9
    assert beside - alone == pytest.approx(seconds * write_s / (work_s + write_s), rel=0.01)


def test_peers_keep_behind_them_what_others_slow_down():
    result = answer()
    stored = checkpoint_of(result.plan, result.topology, result.spec.n_parameters)
    slower = replace(stored, write_s=3 * stored.write_s)
    held = policy_of("peers", result, slower)
    assert held.storage == policy_of("async", result, slower).checkpoint
    assert held.storage != policy_of("async", result).checkpoint
    assert held.lag_s == policy_of("peers", result).lag_s  # nothing of it goes to storage


def test_one_node_has_no_peer():
    with pytest.raises(InfeasiblePlanError, match="one node"):
        policy_of("peers", answer(1))


def test_words_of_the_command_line():
    assert parse_domain("18 nodes=0.084") == (18, 0.084) and parse_domain(" rack = .1") == ("rack", 0.1)
    for wrong in ("shelf=0.1", "0 nodes=0.1", "8 nodes=1.5", "rack=0"):
        with pytest.raises(ConfigError, match="--failure-domain"):
            parse_domain(wrong)
    with pytest.raises(ConfigError, match="one of sync, async, peers"):
        check_policy("lazy")
