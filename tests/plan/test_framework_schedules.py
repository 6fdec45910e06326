"""Schedules that frameworks declare are the simulator's, those that installed sources list, and those that jobs were measured with."""

from __future__ import annotations

import pytest

from simulator.errors import SimulatorError
from simulator.plan import FRAMEWORKS, SETTINGS
from simulator.plan import framework_schedules as pipelines
from simulator.plan.vocabularies import SCHEDULE_NAMES
from simulator.schedules import SCHEDULES, find_schedule
from validation.tables.reader import MEASUREMENTS, read_table
from validation.tables.training_rows import case_of

#: classes of PyTorch that the simulator has no schedule for
UNNAMED = {"LoopedBFS", "InterleavedZeroBubble", "PipelineScheduleSingle", "PipelineScheduleMulti"}


def test_every_declared_schedule_is_one_of_the_simulators():
    assert set(SCHEDULES) >= pipelines.KNOWN
    of_frameworks = {name for one in FRAMEWORKS.values() for name in (*one.schedules, *one.expert_schedules)}
    assert of_frameworks | set(pipelines.OTHER_PROGRAMS) == pipelines.KNOWN
    assert set(SCHEDULE_NAMES) >= pipelines.KNOWN
    for one in FRAMEWORKS.values():
        assert {*one.schedules, *one.expert_schedules} <= pipelines.KNOWN
        if one.schedules:
            assert "1f1b" in one.schedules, f"{one.name}: plans have 1F1B where they say nothing"


def test_pytorchs_are_those_of_the_installed_release():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    with pytest.raises(ValueError, match="valid options") as told:
        schedules.get_schedule_class("none of them")
    listed = [word.strip(" '") for word in str(told.value).rpartition("[")[2].strip("]").split(",")]
    read = {SETTINGS["schedule"].parse(word.lower()) for word in listed if word not in UNNAMED}
    assert read == set(pipelines.TORCH.schedules)


def test_who_was_measured_with_a_schedule_has_it():
    """But for zero bubbles below Megatron-LM, which are measurements of sail-sg's fork of it."""
    n_pipelines = 0
    for name in ("training.csv", "public_training.csv", "frontier_training.csv"):
        for row in read_table(MEASUREMENTS / name):
            try:
                plan = case_of(row)[0].plan
            except SimulatorError:  # a model that cannot be
                continue
            if plan.pp > 1 and not (plan.framework == "megatron" and plan.schedule in ("zb-1p", "zb-2p")):
                n_pipelines += 1
                schedule = find_schedule(plan.schedule, plan.virtual_pp).name
                assert plan.framework_spec.has_schedule(schedule), (row.text("row_id"), plan.framework, schedule)
    assert n_pipelines > 500
