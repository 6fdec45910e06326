"""Phases of a restart: they add up, those of hardware count as often as hardware fails, and files and flags say them alike."""

from __future__ import annotations

import pytest

from simulator.errors import ConfigError
from simulator.explore.run.restarts import Restart, in_words, mean_restart, parse_restart, restart_of, total_s
from simulator.explore.run.run_request import parse_time
from simulator.topology import load_topology


def test_another_node_is_waited_for_only_where_one_is_gone() -> None:
    """3 + 0.78 x 5 + 2 + 0.5 + 1 minutes, with the 78 % of Llama 3's failures that were hardware."""
    phases = parse_restart("detection=3 min, allocation=5 min, start=2 min, warm-up=1 min", parse_time)
    mean = mean_restart(phases, load_s=30.0, hardware_share=0.78)
    assert total_s(mean) == pytest.approx(60 * (3 + 0.78 * 5 + 2 + 0.5 + 1))
    assert in_words(mean) == "detection 3 min, allocation 3.9 min, start 2 min, load 30 s, warm-up 60 s"


def test_a_plain_time_is_a_restart_without_phases() -> None:
    assert parse_restart("10 min", parse_time) == Restart(start=600.0)


def test_a_file_says_the_same_as_the_flag() -> None:
    words = {"detection": "3 min", "allocation": "5 min", "restart": "2 min", "warm_up": "1 min"}
    topology = load_topology("bigred200", 8, overrides={f"failures.{key}": value for key, value in words.items()})
    given = parse_restart("detection=3 min,allocation=5 min,start=2 min,warm-up=1 min", parse_time)
    assert restart_of(None, topology)[0] == given
    assert restart_of(Restart(start=1.0), topology) == (Restart(start=1.0), "--restart-time")
    default, source = restart_of(None, load_topology("bigred200", 8))
    assert default == Restart(detection=600.0) and "MegaScale" in source


@pytest.mark.parametrize("wrong", ["noticing=3 min", "start=1 min, start=2 min", "detection=often"])
def test_what_is_no_phase_or_no_time_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigError, match="--restart-time"):
        parse_restart(wrong, parse_time)
