"""Flapping links, hashed flows, failed spines and incast: shares of time and of bandwidth against simulated steps."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.collectives import plan_collective, plan_transfer
from simulator.errors import ConfigError
from simulator.explore.named_settings import scenario_of
from simulator.explore.run.network_trouble import (
    GIVEN_UP_S,
    Flapping,
    in_the_run,
    in_words,
    mean_step_s,
    network_trouble,
)
from simulator.faults import Faults
from simulator.simulation import simulate
from simulator.topology import load_topology
from simulator.topology.fabrics.fat_tree import hashed_share


@cache
def answer(faults=Faults(), **settings):  # noqa: B008 - frozen
    """Fully sharded over two nodes with one NIC per GPU, each on a leaf of its own: all that leaves a node waits for its network."""
    base = {
        "topology": "dgx-h100", "nodes": "2", "fabric.kind": "clos", "fabric.levels": "2", "fabric.nodes_per_leaf": "1",
        "model": "gpt2-large", "gpus": 16, "micro_batch": 1, "sharding": "zero3", "framework": "fsdp", "overlap": False,
    }  # fmt: skip
    return simulate(replace(scenario_of({**base, **settings}), faults=faults))


def test_a_link_that_nothing_goes_around_costs_the_time_that_it_is_down():
    """Down 10 s in every 100 s: nine tenths of the steps, whatever a step takes."""
    flapping = Flapping(link="node0.nic", down_s=10.0, every_s=100.0)
    assert mean_step_s(0.9, None, flapping, 1.0) == pytest.approx(1.0)
    [found] = network_trouble(answer(), [flapping])
    assert found["with_s"] == pytest.approx(answer().metrics.iteration_time_s / 0.9)


def test_seven_of_eight_nics_carry_on_once_traffic_has_found_its_way():
    """Of 100 s, 90 at full speed, 2 at none, and 8 in which the node's bytes take 8/7 as long."""
    [found] = network_trouble(answer(), [Flapping(link="node0.nic", down_s=10.0, every_s=100.0)], 2.0)
    slower = answer(Faults(slow_links=(("node0.nic", 8 / 7),))).metrics.iteration_time_s
    step_s = answer().metrics.iteration_time_s
    assert slower > step_s
    assert found["rerouted_s"] == pytest.approx(100.0 / (90.0 / step_s + 8.0 / slower))
    assert step_s < found["rerouted_s"] < found["with_s"]


def test_a_node_with_one_nic_has_no_other_way_and_a_slow_rank_stays_slow():
    flapping = Flapping(link="node0.nic", down_s=10.0, every_s=100.0)
    [found] = network_trouble(answer(**{"node.nics.count": "1"}), [flapping])
    assert found["rerouted_s"] is None and found["with_s"] == pytest.approx(found["without_s"] / 0.9)
    slow = answer(Faults(slow_ranks=((3, 4.0),)))
    [found] = network_trouble(slow, [flapping])
    assert found["rerouted_s"] >= slow.metrics.iteration_time_s / (0.9 + 0.09)


def test_rdma_gives_a_connection_up_after_half_a_minute():
    """4.096 us x 2^20 is 4.3 s, seven times: NVIDIA's defaults of NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT."""
    assert pytest.approx(30.06, abs=0.01) == GIVEN_UP_S
    [found] = network_trouble(answer(), [Flapping(link="node0.nic", down_s=40.0, every_s=4000.0)])
    assert found["with_s"] is None and found["rerouted_s"] is not None
    assert "the job ends" in in_words(found)
    [late] = network_trouble(answer(), [Flapping(link="node0.nic", down_s=40.0, every_s=4000.0)], 35.0)
    assert late["rerouted_s"] is None
    [short] = network_trouble(answer(), [Flapping(link="node0.nic", down_s=20.0, every_s=4000.0)], 35.0)
    assert short["rerouted_s"] == pytest.approx(short["with_s"])  # back before anything goes another way


@pytest.mark.parametrize("protocol", ["tcp", "ipoib", "gloo"])
def test_tcp_keeps_a_connection_for_fifteen_minutes(protocol):
    """Linux ip-sysctl: tcp_retries2 is 15, a timeout of 924.6 s at least."""
    sockets = answer(**{"transports.rdma.protocol": protocol})
    down_s, every_s = 924.0, 9240.0
    [found] = network_trouble(sockets, [Flapping(link="node0.nic", down_s=down_s, every_s=every_s)])
    assert found["with_s"] == pytest.approx(found["without_s"] / 0.9)
    [gone] = network_trouble(sockets, [Flapping(link="node0.nic", down_s=925.0, every_s=every_s)])
    assert gone["with_s"] is None and "assumed" not in in_words(gone)


def test_what_efa_does_is_assumed_and_said():
    flapping = [Flapping(link="node0.nic", down_s=40.0, every_s=4000.0)]
    [found] = network_trouble(answer(**{"transports.rdma.protocol": "efa"}), flapping)
    assert found["with_s"] is None and "efa is assumed to give up as RDMA does" in in_words(found)
    [sourced] = network_trouble(answer(), flapping)
    assert "assumed" not in in_words(sourced)


@pytest.mark.parametrize("link", ["node0.nic", "leaf0 -> spine0"])
def test_a_link_that_carries_nothing_costs_nothing(link):
    """A job on one node, whose collectives stay on NVLink."""
    alone = answer(gpus=8)
    [found] = network_trouble(alone, [Flapping(link=link, down_s=40.0, every_s=60.0)])
    assert found["with_s"] == found["without_s"] == alone.metrics.iteration_time_s and found["rerouted_s"] is None
    assert "nothing crosses it" in in_words(found) and "as without it" in in_words(found)


@pytest.mark.parametrize("link", ["leaf1 -> spine0{}", "spine0{} -> leaf1"])
def test_seven_of_eight_uplinks_carry_on_however_the_tree_is_written(link):
    """Bundled, eight lanes to one spine; unbundled, one to each of eight: a fluid that spreads evenly does not know which."""
    found = {}
    for bundled, spine in (("true", ""), ("false", ".5")):
        one = answer(**{"fabric.spines": "8", "fabric.bundled": bundled})
        [found[bundled]] = network_trouble(one, [Flapping(link=link.format(spine), down_s=10.0, every_s=100.0)], 2.0)
    assert found["false"]["without_s"] < found["true"]["rerouted_s"] < found["true"]["with_s"]
    assert found["false"]["rerouted_s"] == pytest.approx(found["true"]["rerouted_s"], rel=1e-6)
    slower = tuple((link.format(f".{spine}"), 8 / 7) for spine in range(8))
    around_s = answer(Faults(slow_links=slower), **{"fabric.spines": "8", "fabric.bundled": "false"})
    per_100_s = 90.0 / found["false"]["without_s"] + 8.0 / around_s.metrics.iteration_time_s
    assert found["false"]["rerouted_s"] == pytest.approx(100.0 / per_100_s)


def test_hashed_flows_give_back_what_balls_in_bins_take():
    """Eight flows on eight uplinks: what the fullest of them carries over the mean is how much longer gathering takes."""
    hashed = answer(**{"fabric.routing": "static"})
    [found] = network_trouble(hashed)
    assert found["rerouted_s"] == pytest.approx(answer().metrics.iteration_time_s)
    lost = hashed.metrics.iteration_time_s - answer().metrics.iteration_time_s
    talks_s = answer().answer["breakdown"]["exposed_communication_s"]
    assert 0.5 * talks_s < lost < (1.0 / hashed_share(8, 8) - 1.0) * talks_s


@pytest.mark.parametrize("bundled", ["true", "false"])
def test_few_large_flows_collide_on_many_uplinks(bundled):
    """Of 32 NICs on 32 uplinks, a ring sends over eight: laid on uplinks by a die, the fullest has 1.66 of them on average.

    The ring passes 63/64 of its bytes over each hop, messages of eight pairs one NIC's bytes each; flows of two queue pairs are half
    as large, and laid on uplinks 16 at a time.
    """
    tree = {"nodes": "8", "fabric.kind": "clos", "fabric.levels": "2", "fabric.nodes_per_leaf": "4"}
    fabric = {**tree, "fabric.routing": "static", "fabric.bundled": bundled}
    topology = load_topology("dgx-h100", 64, overrides=fabric)
    die = np.random.default_rng(0)

    def fullest(n_flows):
        return np.mean([np.bincount(die.integers(32, size=n_flows)).max() for _ in range(10_000)])

    ring = plan_collective("all_gather", 1 << 33, (tuple(range(64)),), topology)
    assert ring.alone_bytes_per_s == pytest.approx(8 * 50e9 / fullest(8) * 64 / 63, rel=0.01)
    pairs = tuple((gpu, 32 + gpu) for gpu in range(8))
    messages = plan_transfer(1 << 33, pairs, topology)
    assert messages.alone_bytes_per_s == pytest.approx(50e9 / fullest(8), rel=0.01)
    assert messages.steps()[0].rate_cap_bytes_per_s == pytest.approx(50e9 / fullest(8), rel=0.01)
    halves = plan_transfer(
        1 << 33, pairs, load_topology("dgx-h100", 64, overrides={**fabric, "fabric.flows_per_nic": "2"})
    )
    assert halves.alone_bytes_per_s == pytest.approx(min(42.5e9, 2 * 50e9 / fullest(16)), rel=0.01)
    inside = plan_transfer(1 << 33, tuple((gpu, 8 + gpu) for gpu in range(8)), topology)
    assert inside.alone_bytes_per_s == pytest.approx(42.5e9, rel=0.01)  # below one leaf nothing is hashed


@pytest.mark.parametrize("bundled", ["true", "false"])
def test_every_nic_of_a_sender_has_a_flow_and_many_flows_have_what_capacities_say(bundled):
    """Four GPUs with two NICs each send eight flows; 64 in an all-to-all more than the 32 that capacities are for, and half crosses.

    Flows are laid on uplinks by a die.
    """
    tree = {
        "nodes": "8",
        "fabric.kind": "clos",
        "fabric.levels": "2",
        "fabric.nodes_per_leaf": "4",
        "fabric.bundled": bundled,
    }
    die = np.random.default_rng(0)

    def fullest(n_flows):
        return np.mean([np.bincount(die.integers(32, size=n_flows)).max() for _ in range(10_000)])

    halved = load_topology("dgx-h100", 32, overrides={**tree, "fabric.routing": "static", "node.gpus": "4"})
    messages = plan_transfer(1 << 33, tuple((gpu, 16 + gpu) for gpu in range(4)), halved)
    assert messages.alone_bytes_per_s == pytest.approx(2 * 50e9 / fullest(8), rel=0.01)
    hashed, spread = (
        load_topology("dgx-h100", 64, overrides={**tree, "fabric.routing": routing})
        for routing in ("static", "adaptive")
    )
    everything = plan_collective("all_to_all", 1 << 33, (tuple(range(64)),), hashed)
    assert everything.alone_bytes_per_s == pytest.approx(2 * 50e9 / fullest(32), rel=0.01)
    assert np.array_equal(hashed.arrays.n_lanes, spread.arrays.n_lanes)  # collisions take no cable away


def test_without_its_failed_spines_a_fabric_is_what_it_was():
    """Half of the spines: what crosses them takes up to twice as long."""
    [found] = network_trouble(answer(**{"fabric.failed_spines": "4"}))
    assert found["without_s"] == pytest.approx(answer().metrics.iteration_time_s)
    talks_s = answer().answer["breakdown"]["exposed_communication_s"]
    assert 0.2 * talks_s < found["with_s"] - found["without_s"] < talks_s and found["rerouted_s"] is None


def test_incast_takes_a_declared_share_of_an_exchange_and_nothing_of_a_ring():
    """Half the rate where many send to one at once: an all-to-all over 32 nodes moves half as fast, rings as fast as before."""
    rates = {}
    for share in ("1.0", "0.5"):
        topology = load_topology("dgx-h100", 256, overrides={"transports.rdma.incast": share})
        groups = tuple(tuple(range(gpu, 256, 8)) for gpu in range(8))
        for collective in ("all_to_all", "all_gather"):
            rates[collective, share] = plan_collective(collective, 1 << 30, groups, topology).alone_bytes_per_s
    assert rates["all_to_all", "0.5"] == pytest.approx(0.5 * rates["all_to_all", "1.0"])
    assert rates["all_gather", "0.5"] == rates["all_gather", "1.0"]


def test_an_exchange_without_incast_is_that_of_a_fabric_that_loses_nothing():
    base = {"topology": "dgx-h100", "nodes": "4", "model": "mixtral-8x7b", "gpus": 32, "ep": 4, "tp": 8, "micro_batch": 1,
            "framework": "megatron-core", "sharding": "zero1", "sequence_parallel": True}  # fmt: skip
    plain, lossy = (simulate(scenario_of({**base, **more})) for more in ({}, {"transports.rdma.incast": "0.5"}))
    [found] = network_trouble(lossy)
    assert found["without_s"] == pytest.approx(plain.metrics.iteration_time_s, rel=1e-6)
    assert found["with_s"] > 1.02 * found["without_s"] and network_trouble(plain) == []


def test_a_slow_link_is_compared_with_a_sound_one():
    slow = answer(Faults(slow_links=(("node1.nic", 2.0),)))
    [found] = network_trouble(slow)
    assert found["without_s"] == pytest.approx(answer().metrics.iteration_time_s)
    assert found["with_s"] == slow.metrics.iteration_time_s > found["without_s"]


@pytest.mark.parametrize(("n_failed", "spine"), [("2", 5), ("7", 0)])
def test_without_failed_spines_a_slow_link_is_still_the_slow_one(n_failed, spine):
    """Links of an unbundled tree have other numbers with more spines; names tell which of them is slow."""
    slow = Faults(slow_links=((f"leaf3 -> spine0.{spine}", 8.0),))
    tree = {"nodes": "4", "gpus": 32, "fabric.spines": "8", "fabric.bundled": "false", "model": "gpt2", "sharding": "none",
            "framework": "megatron"}  # fmt: skip
    _, found = network_trouble(answer(slow, **tree, **{"fabric.failed_spines": n_failed}))
    assert found["trouble"] == f"{n_failed} failed spines"
    assert found["without_s"] == answer(slow, **tree).metrics.iteration_time_s


@pytest.mark.parametrize(
    "wrong", ["node0.nic", "node0.nic=5 s", "=5 s/10 min", "node0.nic=10 s/5 s", "node0.nic=0 s/5 s"]
)
def test_a_link_that_flaps_in_no_way_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--flapping"):
        Flapping.parse(wrong)


def test_only_what_has_ways_beside_it_flaps():
    with pytest.raises(ConfigError, match="not a NIC or a link between switches"):
        network_trouble(answer(), [Flapping(link="node0.pcie", down_s=1.0, every_s=2.0)])


def test_a_refusal_names_the_flag_that_it_is_about():
    with pytest.raises(ConfigError, match=r"^--flapping node9\.nic: the run has nodes 0 to 1"):
        network_trouble(answer(), [Flapping(link="node9.nic", down_s=1.0, every_s=2.0)])


def test_a_whole_run_meets_the_links_that_come_and_go():
    """Traffic goes around where it can, waits a tenth of the time where it cannot, and ends where RDMA gives up."""
    [around], [alone] = (
        network_trouble(one, [flapping])
        for one in (answer(), answer(**{"node.nics.count": "1"}))
        for flapping in (Flapping(link="node0.nic", down_s=10.0, every_s=100.0),)
    )
    flapping = Flapping(link="node0.nic", down_s=10.0, every_s=100.0)
    assert in_the_run([around], [flapping]).stalls == pytest.approx(around["rerouted_s"] / around["without_s"])
    both = in_the_run([alone, alone], [flapping, flapping])
    assert both.stalls == pytest.approx(1 / 0.9**2) and both.ended_every_s == ()
    long = Flapping(link="node0.nic", down_s=40.0, every_s=4000.0)
    found = network_trouble(answer(**{"node.nics.count": "1"}), [long])
    assert in_the_run(found, [long]).ended_every_s == (4000.0,) and in_the_run(found, [long]).stalls == 1.0


def test_the_command_line_plays_links_that_come_and_go():
    base = ["--topology", "dgx-h100", "--set", "nodes=2", "--set", "node.nics.count=1", "--model", "gpt2-large", "--gpus", "16",
            "--micro-batch", "1", "--sharding", "zero3", "--tokens", "1B", "--mtbf", "none"]  # fmt: skip
    shown = CliRunner().invoke(app, [*base, "--flapping", "node0.nic=10 s/100 s"])
    assert shown.exit_code == 0 and "links down 10.00%" in shown.stdout, shown.output


def test_a_time_until_rerouting_without_a_link_that_flaps_is_said_to_be_idle():
    base = ["--topology", "bigred200", "--model", "gpt2", "--gpus", "8", "--micro-batch", "1", "--reroute-time", "2 s"]
    words = "--reroute-time has no effect without --flapping"
    assert words in CliRunner().invoke(app, base).stderr
    flapping = CliRunner().invoke(app, [*base, "--flapping", "node0.nic=5 s/10 min"])
    assert flapping.exit_code == 0 and words not in flapping.stderr
