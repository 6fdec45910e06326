"""The slowest of many GPUs, against sampling."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.faults import SPEED_SPREAD, slowest_of


@pytest.mark.parametrize("n_gpus", [2, 8, 64, 1024])
def test_the_expected_maximum_agrees_with_sampling(n_gpus):
    draws = np.random.default_rng(0).normal(1.0, SPEED_SPREAD, size=(4000, n_gpus)).max(axis=1)
    assert slowest_of(n_gpus) == pytest.approx(draws.mean(), abs=0.002)


def test_one_gpu_waits_for_nobody():
    assert slowest_of(1) == 1.0


def test_more_gpus_never_get_faster():
    factors = [slowest_of(n) for n in (1, 2, 3, 8, 100, 10_000)]
    assert factors == sorted(factors)
