"""Inputs without effect: a pure function of plan, nodes and choices."""

from __future__ import annotations

import pytest

from simulator.analysis.idle_inputs import idle_choices, idle_inputs
from simulator.models.catalog import CATALOG
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.topology import load_topology


def plan(**settings):
    return ParallelPlan(**({"gpus": 8, "dp": 8, "micro_batch": 1, "global_batch": 8} | settings))


def without_effect(settings, n_nodes, *, given=(), **chosen):
    scenario = Scenario(topology="bigred200", model="gpt2", plan=plan(**settings), **chosen)
    topology = load_topology("bigred200", 4 * n_nodes)
    return idle_inputs(scenario, topology, CATALOG["gpt2"], link_busy_s={}, given=given)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sequence_parallel": True}, "--sequence-parallel has no effect: tp=1"),
        ({"schedule": "gpipe"}, "--schedule has no effect: pp=1"),
        ({"virtual_pp": 2}, "--virtual-pp has no effect: pp=1"),
        ({"asynchronous_tp": True}, "--asynchronous-tp has no effect: tp=1"),
        ({"sharding_group": 4}, "--sharding-group has no effect: sharding=none"),
        ({"overlap_parameter_gather": True}, "--overlap-parameter-gather has no effect: sharding=none"),
        ({"sharding": "zero3", "dp": 1, "tp": 8}, "--sharding has no effect: there is one data-parallel rank"),
        ({"sharding": "hsdp"}, "--sharding hsdp is the same as zero3"),
    ],
)
def test_settings_whose_degree_leaves_them_nothing_to_do(settings, words):
    found = without_effect(settings, 1, given=settings)
    assert any(message.startswith(words) for message in found)
    assert without_effect(settings, 1) == []  # nobody asked for it


def test_settings_with_effect_are_not_named():
    settings = {
        "tp": 2,
        "pp": 2,
        "dp": 2,
        "sequence_parallel": True,
        "schedule": "gpipe",
        "sharding": "zero1",
        "global_batch": 8,
    }
    assert without_effect(settings, 2, given=settings, transport="tcp", algorithm="ring") == []


def test_choices_of_the_network():
    assert idle_choices(1, 8, transport="tcp") == ["--transport tcp has no effect: all GPUs are on one node"]
    assert idle_choices(1, 1, nccl_algo="ring", nccl_proto="ll") == [
        "--nccl-algo ring has no effect on one GPU", "--nccl-proto ll has no effect on one GPU",
    ]  # fmt: skip
