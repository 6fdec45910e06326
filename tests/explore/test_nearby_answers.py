"""Answers around an answer: each is what the simulator says of that very plan."""

from __future__ import annotations

import shlex
from dataclasses import replace

import networkx as nx
import pytest
from typer.testing import CliRunner

from simulator import ParallelPlan, Scenario, simulate
from simulator.changes import MachineChange
from simulator.cli.main import app
from simulator.explore.nearby_answers import _Around, nearby_answers
from simulator.explore.run.energy import list_prices, parse_price
from simulator.faults import Faults
from simulator.topology import Topology


@pytest.fixture(scope="module")
def result():
    plan = ParallelPlan.of(
        {"gpus": 8, "micro_batch": 2, "global_batch": 32, "sharding": "zero1", "framework": "megatron"}
    )
    return simulate(Scenario(topology="bigred200", model="gpt-125m", plan=plan))


@pytest.fixture(scope="module")
def answers(result):
    return {tuple(sorted(one["choices"].items())): one for one in nearby_answers(result, 60)}


def test_the_first_is_the_answer_itself(result, answers):
    assert next(iter(answers)) == ()
    assert answers[()]["iteration_time_s"] == result.answer["iteration_time_s"]
    assert len(answers) <= 61 and max(len(key) for key in answers) == 2


def test_a_choice_is_the_plan_simulated_on_its_own(result, answers):
    plan = replace(result.plan, micro_batch=4)
    alone = simulate(replace(result.scenario, plan=plan))
    assert answers[(("micro_batch", "4"),)]["iteration_time_s"] == alone.answer["iteration_time_s"]
    assert answers[(("micro_batch", "4"),)]["memory"] == alone.answer["memory"]


def test_the_margin_of_memory_is_that_of_the_answer(result):
    around = nearby_answers(replace(result, memory_margin=0.99), 2)
    assert len(around) == 3 and all(one["memory"]["is_tight"] is one["memory"]["fits"] for one in around)


def test_machines_are_what_they_are_called(answers):
    slow, fast = (answers[(("NIC bandwidth", word),)]["iteration_time_s"] for word in ("x 0.5", "x 2"))
    assert fast < answers[()]["iteration_time_s"] < slow
    assert answers[(("GPU", "h100-sxm5-80g"),)]["memory"]["capacity_bytes"] > 79 * 2**30


def test_two_choices_are_one_answer_whichever_comes_first(answers):
    pairs = [key for key in answers if len(key) == 2]
    assert pairs and all(key[0][0] != key[1][0] for key in pairs)


def printed_by(command):
    return CliRunner().invoke(app, [*shlex.split(command, comments=True)[1:], "--json"]).stdout


@pytest.mark.parametrize(
    "choices", [{"recompute": "full"}, {"NIC bandwidth": "x 2"}, {"GPU": "h100-sxm5-80g"}, {"gpus": "16"}]
)
def test_the_command_says_it_again(answers, choices):
    answer = answers[tuple(choices.items())]
    assert "#" not in answer["command"]
    assert f'"iteration_time_s": {answer["iteration_time_s"]}' in printed_by(answer["command"])


def test_the_command_says_it_again_for_what_is_no_plan():
    """A transport, changed cluster files whose values have spaces, slow GPUs and links are part of every answer."""
    scenario = Scenario(
        topology="pinnacles", model="gpt2", plan=ParallelPlan.of({"gpus": 4, "micro_batch": 2}), transport="tcp-10g",
        overrides=(("node.nics.bandwidth", "25 Gb/s"),),
        faults=Faults(slow_ranks=((1, 1.5),), slow_links=(("node1.nic", 2.0),)),
        network="alpha-beta", algorithm="ring", protocol="simple", seed=7, unfold=True,
    )  # fmt: skip
    for answer in nearby_answers(simulate(scenario), 3):
        for words in ("--network alpha-beta", "--nccl-algo ring", "--nccl-proto simple", "--seed 7", "--unfold"):
            assert words in answer["command"]
        assert f'"iteration_time_s": {answer["iteration_time_s"]}' in printed_by(answer["command"])


def test_sizes_are_of_whole_replicas():
    """Twice and four times three replicas; one and a half are none."""
    plan = ParallelPlan.of({"gpus": 3, "micro_batch": 1, "global_batch": 12})
    found = nearby_answers(simulate(Scenario(topology="bigred200", model="gpt2", plan=plan)), 40)
    assert [one["choices"]["gpus"] for one in found if list(one["choices"]) == ["gpus"]] == ["6", "12"]


def test_two_changes_of_the_machine_are_both_made():
    """With another GPU and another network, memory and compute are those of that GPU."""
    plan = ParallelPlan.of({"gpus": 8, "micro_batch": 2, "framework": "megatron"})
    result = simulate(Scenario(topology="bigred200", model="gpt-125m", plan=plan))
    found = {tuple(sorted(one["choices"].items())): one for one in nearby_answers(result, 120)}
    for (first, second), both in ((key, one) for key, one in found.items() if len(key) == 2):
        if first[0] == "GPU" and second[0] == "NIC bandwidth":
            alone = found[(first,)]
            assert both["memory"]["capacity_bytes"] == alone["memory"]["capacity_bytes"]
            assert both["breakdown"]["compute_s"] == pytest.approx(alone["breakdown"]["compute_s"])
            break
    else:
        pytest.fail("no pair of a GPU and a network")


def test_a_graph_has_its_links_and_boards_changed_as_they_are():
    ring = nx.cycle_graph(4)
    nx.set_node_attributes(ring, "gpu", "kind")
    nx.set_edge_attributes(ring, {edge: {"bandwidth": "100 GB/s", "kind": "nvlink"} for edge in ring.edges})
    topology = Topology.from_graph(ring, device="a100-sxm4-40g")
    result = simulate(
        Scenario(topology=topology, model="gpt-125m", plan=ParallelPlan.of({"gpus": 4, "micro_batch": 2}))
    )
    found = {tuple(one["choices"].items()): one for one in nearby_answers(result, 60)}
    base, twice = found[()], found[(("NVLink bandwidth", "x 2"),)]
    assert twice["iteration_time_s"] < base["iteration_time_s"]
    assert twice["command"].endswith("# on a machine with NVLink bandwidth x 2")
    assert found[(("GPU", "h100-sxm5-80g"),)]["iteration_time_s"] < base["iteration_time_s"]


def test_files_are_those_of_frameworks(answers):
    assert "micro_batch: 2" in answers[()]["files"]["plan.yaml"]
    assert "--micro-batch-size 2" in answers[()]["files"]["train.sh"]


def test_pairs_are_made_of_the_fastest_choices_that_fit():
    """Twice the micro-batch does not fit 1.3B in 40 GB: with room for one pair, it is of the fastest choice that fits."""
    plan = {"gpus": 4, "micro_batch": 4, "global_batch": 32, "sharding": "zero1", "framework": "megatron"}
    result = simulate(Scenario(topology="bigred200", model="gpt-1.3b", plan=ParallelPlan.of(plan)))
    singles = [one for one in nearby_answers(result, 80) if len(one["choices"]) == 1]
    assert any(not one["memory"]["fits"] for one in singles)
    fastest = min((one for one in singles if one["memory"]["fits"]), key=lambda one: one["iteration_time_s"])
    (pair,) = [one for one in nearby_answers(result, len(singles) + 1) if len(one["choices"]) == 2]
    assert fastest["choices"].items() <= pair["choices"].items()


def test_a_graph_of_another_size_has_its_boards_changed_too():
    """Half of the GPUs of another kind are not half of the GPUs that were there, whichever was chosen first."""
    ring = nx.cycle_graph(4)
    nx.set_node_attributes(ring, "gpu", "kind")
    nx.set_edge_attributes(ring, {edge: {"bandwidth": "100 GB/s", "kind": "nvlink"} for edge in ring.edges})
    plan = ParallelPlan.of({"gpus": 4, "micro_batch": 2, "global_batch": 8})
    result, alone = (
        simulate(Scenario(topology=Topology.from_graph(ring, device=name), model="gpt-125m", plan=plan))
        for name in ("a100-sxm4-40g", "h100-sxm5-80g")
    )
    half = simulate(replace(alone.scenario, plan=replace(plan, gpus=2)))
    found = {tuple(sorted(one["choices"].items())): one for one in nearby_answers(result, 200)}
    pair = found[(("GPU", "h100-sxm5-80g"), ("gpus", "2"))]
    assert pair["iteration_time_s"] == half.answer["iteration_time_s"]


def test_another_board_has_its_own_price():
    """What a GPU hour of each costs by the shipped list, unless a price is given, or the cluster has one."""
    plan = ParallelPlan.of({"gpus": 4, "micro_batch": 2})
    result = simulate(Scenario(topology="bigred200", model="gpt-125m", plan=plan))
    for price in (None, parse_price("7 EUR")):
        for answer in nearby_answers(result, 80, price=price):
            device = answer["choices"].get("GPU", "a100-sxm4-40g")
            expected = price or list_prices().get(device)
            hours, cost = answer["gpu_hours_per_billion_tokens"], answer["cost_per_billion_tokens"]
            assert cost == (expected and pytest.approx(hours * expected.gpu_hour)), device


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("bigred200", ()),
        (
            "bigred200",
            (("fabric.global_bandwidth", "10 GB/s"), ("fabric.groups", "2"), ("fabric.switches_per_group", "4")),
        ),
        ("dgx-h100", ()),
        ("gb200-nvl72", ()),
    ],
)
def test_changed_keys_of_a_file_change_the_links_that_they_are_called_by(name, overrides):
    """The same links as where the links themselves are changed, none more and none less."""
    plan = ParallelPlan.of({"gpus": 160, "micro_batch": 1})
    result = simulate(Scenario(topology=name, model="gpt2", plan=plan, overrides=overrides))
    kinds = {"NIC bandwidth": ("nic", "fabric"), "NVLink bandwidth": ("nvlink", "nvswitch")}
    places = [place for place in _Around(result, None).singles() if place.choices[0][0] in kinds]
    assert len(places) >= 3
    for place in places:
        ((what, word),) = place.choices
        change = MachineChange(bandwidth=dict.fromkeys(kinds[what], float(word.removeprefix("x "))))
        expected = change.apply(result.topology).arrays.bandwidth_bytes_per_s
        assert place.topology.arrays.bandwidth_bytes_per_s == pytest.approx(expected)
