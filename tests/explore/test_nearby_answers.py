"""Answers around an answer: each is what the simulator says of that very plan."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from simulator import ParallelPlan, Scenario, simulate
from simulator.cli.main import app
from simulator.explore.nearby_answers import nearby_answers


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


def test_machines_are_what_they_are_called(answers):
    slow, fast = (answers[(("NIC bandwidth", word),)]["iteration_time_s"] for word in ("x 0.5", "x 2"))
    assert fast < answers[()]["iteration_time_s"] < slow
    assert answers[(("GPU", "h100-sxm5-80g"),)]["memory"]["capacity_bytes"] > 79 * 2**30


def test_two_choices_are_one_answer_whichever_comes_first(answers):
    pairs = [key for key in answers if len(key) == 2]
    assert pairs and all(key[0][0] != key[1][0] for key in pairs)


def test_the_command_says_it_again(answers):
    answer = answers[(("recompute", "full"),)]
    words = shlex.split(answer["command"].partition("#")[0])[1:]
    printed = CliRunner().invoke(app, [*words, "--json"])
    assert f'"iteration_time_s": {answer["iteration_time_s"]}' in printed.stdout


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
