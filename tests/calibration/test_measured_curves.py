"""Forced algorithms against measured curves: each is followed, and they cross where the machine's cross."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.collectives import measured_of, predicted_s
from simulator.collectives.constants import shipped

TABLE = Path(__file__).parents[3] / "shared" / "measurements" / "collectives.csv"


@pytest.fixture(scope="module")
def curves():
    """MareNostrum 5's all-reduces: (nodes, algorithm) to sizes, measured and predicted seconds."""
    if not TABLE.is_file():
        pytest.skip("the measured tables are not beside the checkout")
    with TABLE.open(encoding="utf-8", newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["topology"] == "marenostrum5" and row["algorithm"]]
    measured = sorted(measured_of(rows, str(TABLE)), key=lambda row: row.n_bytes)
    found = {}
    for row, predicted in zip(measured, predicted_s(measured, shipped()), strict=True):
        found.setdefault((row.shape.n_nodes, row.how.algorithm), {})[row.n_bytes] = (row.time_s, predicted)
    return found


@pytest.mark.parametrize("n_nodes", [4, 16, 32])
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_a_forced_algorithm_follows_its_curve(curves, n_nodes, algorithm):
    times = np.array(list(curves[n_nodes, algorithm].values()))
    errors = np.abs(times[:, 1] / times[:, 0] - 1.0)
    assert np.median(errors) < 0.2
    assert np.corrcoef(np.log(times.T))[0, 1] > 0.98


@pytest.mark.parametrize("n_nodes", [4, 16, 32])
def test_ring_and_tree_cross_where_they_cross(curves, n_nodes):
    """The faster of both is the same wherever measurements tell them apart by more than a tenth."""
    ring, tree = curves[n_nodes, "ring"], curves[n_nodes, "tree"]
    sizes = [n for n in ring if n in tree and abs(np.log(ring[n][0] / tree[n][0])) > 0.1]
    assert len(sizes) >= 5
    wrong = [n for n in sizes if (ring[n][0] > tree[n][0]) != (ring[n][1] > tree[n][1])]
    assert not wrong
