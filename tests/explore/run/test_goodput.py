"""Checkpoints and failures: closed forms, limits, and a simulated failure process as the oracle."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InfeasiblePlanError
from simulator.explore.run.goodput import RunTime, daly_interval_s, expected_run, young_interval_s


def play(rng, n_iterations, iteration_s, *, iterations_per_checkpoint, write_s, mtbf_s, restart_s):
    """Play one run failure by failure and return seconds lost, seconds restarting, and failures."""
    lost_s = restarting_s = 0.0
    n_failures = 0
    left_s = rng.exponential(mtbf_s)
    stretches = [iterations_per_checkpoint] * (n_iterations // iterations_per_checkpoint)
    stretches += [n_iterations % iterations_per_checkpoint] if n_iterations % iterations_per_checkpoint else []
    for stretch in stretches:
        need_s = stretch * iteration_s + write_s
        while left_s < need_s:
            lost_s += left_s
            n_failures += 1
            left_s = rng.exponential(mtbf_s)
            while left_s < restart_s:
                restarting_s += left_s
                n_failures += 1
                left_s = rng.exponential(mtbf_s)
            restarting_s += restart_s
            left_s -= restart_s
        left_s -= need_s
    return lost_s, restarting_s, n_failures


@pytest.mark.parametrize(
    ("n_iterations", "per_checkpoint", "write_s", "mtbf_s", "restart_s"),
    [(103, 10, 3.0, 50.0, 12.0), (40, 40, 1.0, 30.0, 5.0), (200, 7, 0.5, 400.0, 100.0), (60, 5, 4.0, 20.0, 0.0)],
)
def test_the_expectation_is_that_of_the_played_process(n_iterations, per_checkpoint, write_s, mtbf_s, restart_s):
    rng = np.random.default_rng(7)
    options = {
        "iterations_per_checkpoint": per_checkpoint,
        "write_s": write_s,
        "mtbf_s": mtbf_s,
        "restart_s": restart_s,
    }
    played = np.array([play(rng, n_iterations, 1.0, **options) for _ in range(4000)])
    expected = expected_run(n_iterations, 1.0, **options)
    margins = 4.0 * played.std(axis=0) / math.sqrt(len(played)) + 1e-9
    for mean, margin, value in zip(
        played.mean(axis=0), margins, (expected.lost_s, expected.restart_s, expected.n_failures), strict=True
    ):
        assert value == pytest.approx(mean, abs=margin)


@given(
    n=st.integers(1, 500), each=st.integers(1, 600), write_s=st.floats(0, 10), mtbf_s=st.floats(100, 1e6),
    restart_s=st.floats(0, 100),
)  # fmt: skip
def test_whole_stretches_take_what_daly_says(n, each, write_s, mtbf_s, restart_s):
    found = expected_run(
        n * each, 0.1, iterations_per_checkpoint=each, write_s=write_s, mtbf_s=mtbf_s, restart_s=restart_s
    )
    length_s = 0.1 * each + write_s
    assert found.total_s == pytest.approx(
        n * mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1(length_s / mtbf_s), rel=1e-9
    )
    assert found.n_failures == pytest.approx(found.total_s / mtbf_s, rel=1e-9)
    assert 0 < found.useful_s / found.total_s <= 1
    assert found.n_checkpoints == n


def test_without_failures_only_checkpoints_cost():
    found = expected_run(100, 2.0, iterations_per_checkpoint=30, write_s=5.0)
    assert found == RunTime(useful_s=200.0, checkpoint_s=20.0, n_checkpoints=4)
    assert found.total_s == 220.0


@given(write_s=st.floats(0.1, 100), mtbf_s=st.floats(300, 1e6))
@settings(max_examples=50)
def test_dalys_interval_is_the_best_one(write_s, mtbf_s):
    """Against the exact optimum of Daly's time, found on a fine grid: no more than 0.2 % from the least overhead."""
    grid_s = np.geomspace(young_interval_s(write_s, mtbf_s) / 8, young_interval_s(write_s, mtbf_s) * 8, 4001)
    per_second = mtbf_s * np.expm1((grid_s + write_s) / mtbf_s) / grid_s
    daly_s = daly_interval_s(write_s, mtbf_s)
    at_daly = mtbf_s * math.expm1((daly_s + write_s) / mtbf_s) / daly_s
    assert at_daly <= per_second.min() * 1.002


def test_young_and_daly_agree_where_checkpoints_are_quick():
    assert daly_interval_s(1.0, 1e8) == pytest.approx(young_interval_s(1.0, 1e8), rel=1e-3)
    assert daly_interval_s(500.0, 200.0) == 200.0


def test_a_run_that_never_ends_says_so():
    with pytest.raises(InfeasiblePlanError, match=r"never end.*between two checkpoints"):
        expected_run(1000, 1.0, iterations_per_checkpoint=1000, write_s=1.0, mtbf_s=10.0)
    with pytest.raises(InfeasiblePlanError, match=r"never end.*restart"):
        expected_run(10, 1.0, iterations_per_checkpoint=1, write_s=0.0, mtbf_s=10.0, restart_s=600.0)


def test_an_interval_beyond_the_run_is_one_checkpoint_at_its_end():
    once, never = (expected_run(10, 1.0, iterations_per_checkpoint=n, write_s=1.0, mtbf_s=1000.0) for n in (10, 10**12))
    assert once == never


def test_llama_3_kept_more_than_nine_tenths_of_its_time():
    """419 unexpected interruptions in 54 days: with a checkpoint of 5.7 TB at 2 TB/s, restarts of ten minutes cost most."""
    mtbf_s, write_s = 54 * 86_400 / 419, 405e9 * 14 / 2e12
    each = round(daly_interval_s(write_s, mtbf_s) / 6.0)
    run = expected_run(
        777_600, 6.0, iterations_per_checkpoint=each, write_s=write_s, mtbf_s=mtbf_s, restart_s=600 + write_s
    )
    assert (
        0.90 < run.useful_s / run.total_s < 0.95
    )  # "more than 90 % effective training time", arXiv:2407.21783, section 3.3.4
    assert run.n_failures == pytest.approx(419, rel=0.1)
    assert run.restart_s > run.lost_s > 0


def test_a_restart_of_many_failures_has_a_mean() -> None:
    """Of a restart that lasts 43 mean times between failures: e^43 tries, and no division by what rounds to nothing."""
    found = expected_run(1, 1.0, iterations_per_checkpoint=10, write_s=0.0, mtbf_s=1000.0, restart_s=43_000.0)
    assert found.restart_s == pytest.approx(1000.0 * math.expm1(1e-3) * math.expm1(43.0))
