"""Full recomputation of some blocks, and of several from one input."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from simulator.errors import ConfigError
from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.setting import RankSetting
from simulator.parallel.lower import checkpointed, split_layers
from simulator.plan import ParallelPlan
from simulator.plan.rules import recompute_doubt
from simulator.scenario import Scenario
from simulator.schedules import placement_of
from simulator.simulation import simulate

PLAN = ParallelPlan(gpus=4, pp=4, micro_batch=1, global_batch=8, recompute="full")


@pytest.fixture(scope="module")
def model():
    return build_model(find_spec("gpt-1.3b"), RankSetting(micro_batch=1, sequence_length=2048, recompute="full"))


def changed(**settings):
    return ParallelPlan(gpus=4, pp=4, micro_batch=1, global_batch=8, recompute="full", **settings)


def chunks_of(model, plan):
    return split_layers(model, plan, placement_of(plan.schedule, plan.pp, plan.virtual_pp))


def blocks(chunk):
    return [layer for layer in chunk if layer.name == "block"]


def test_block_recomputes_the_first_of_every_stage(model):
    for (chunk,) in chunks_of(model, changed(recompute_method="block", recompute_layers=2)):
        assert [bool(layer.recompute) for layer in blocks(chunk)] == [True, True, False, False, False, False]
        assert len({id(layer) for layer in blocks(chunk)}) == 2


def test_uniform_keeps_one_input_for_several(model):
    whole, first = model.layers[1].plain, model.layers[1]
    for (chunk,) in chunks_of(model, changed(recompute_layers=3)):
        assert [layer.saved_bytes for layer in blocks(chunk)] == [first.saved_bytes, 0, 0] * 2
        assert {layer.transient_bytes for layer in blocks(chunk)} == {first.transient_bytes + 2 * whole.saved_bytes}
        assert all(layer.recompute == layer.forward for layer in blocks(chunk))


def test_one_input_serves_no_more_blocks_than_a_stage_has(model):
    """24 blocks over four stages are six a stage: a hundred are these six."""
    whole, first = model.layers[1].plain, model.layers[1]
    for (chunk,) in chunks_of(model, changed(recompute_layers=100)):
        assert [layer.saved_bytes for layer in blocks(chunk)] == [first.saved_bytes] + [0] * 5
        assert {layer.transient_bytes for layer in blocks(chunk)} == {first.transient_bytes + 5 * whole.saved_bytes}


@pytest.mark.parametrize(("settings", "words"), [
    ({"recompute_layers": 6}, ""), ({"recompute_layers": 0}, ""), ({"recompute_layers": None}, ""),
    ({"recompute_layers": 7}, "no stage has more than 6 blocks.*recompute_layers=6$"),
    ({"recompute_layers": 7, "recompute_method": "block"}, "recompute_layers=6 or without it$"),
    ({"recompute_layers": 0, "recompute_method": "block"}, "recomputes nothing; give --recompute none"),
    ({"recompute_layers": 7, "recompute": "none"}, ""),
])  # fmt: skip
def test_more_blocks_than_a_stage_has_or_none_are_said(settings, words):
    said = recompute_doubt(replace(PLAN, **settings), [6, 6, 6, 5])
    assert re.search(words, said) if words else not said


def test_no_number_is_every_block(model):
    assert checkpointed(model.layers, changed(), {}) == model.layers


def test_time_and_memory_lie_between_none_and_full():
    def answer(**settings):
        plan = ParallelPlan(gpus=4, pp=4, micro_batch=1, global_batch=8, **settings)
        result = simulate(Scenario(topology="polaris", model="gpt-1.3b", plan=plan))
        return result.metrics.iteration_time_s, result.memory.peak_bytes

    none, half, full = (
        answer(**settings)
        for settings in (
            {},
            {"recompute": "full", "recompute_method": "block", "recompute_layers": 3},
            {"recompute": "full"},
        )
    )
    assert none[0] < half[0] < full[0]
    assert none[1] > half[1] > full[1]


def test_words_and_numbers():
    with pytest.raises(ConfigError, match="recompute_method"):
        changed(recompute_method="blocks")
    with pytest.raises(ConfigError, match="recompute_layers"):
        changed(recompute_layers=-1)
