"""Fits of collective constants: they recover what made the data, and the shipped ones predict well."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.collective_fit import all_blocks, starting_table
from simulator.calibration.collectives import (
    ROWS_PER_CLUSTER,
    ConstantBlock,
    Measured,
    errors_of,
    expected_spread,
    fit_block,
    get_path,
    predicted_s,
    read_measured,
    row_weights,
    summed_up,
    with_values,
    write_table,
)
from simulator.collectives.constants import layered, shipped
from simulator.collectives.shape import shape_of
from simulator.config import load_yaml
from simulator.errors import CalibrationError, ConfigError
from simulator.topology.cluster_file import load_topology
from validation.tables.residuals import spread_of

TABLE = Path(__file__).parents[3] / "shared" / "measurements" / "collectives.csv"
MIB = 2**20


def synthetic(table):
    shapes = [shape_of(range(n), load_topology("dgx-a100-80g", n)) for n in (2, 4, 8)]
    rows = [
        Measured(
            topology="dgx-a100-80g", collective=collective, n_bytes=2**power, shape=shape,
            time_s=1.0, split="fit", source="made up",
        )
        for shape in shapes
        for collective in ("all_reduce", "all_gather")
        for power in range(10, 31, 2)
    ]  # fmt: skip
    return [replace(row, time_s=float(t)) for row, t in zip(rows, predicted_s(rows, table), strict=True)]


def test_a_fit_recovers_the_constants_that_made_the_data():
    block = next(block for block in all_blocks() if block.name == "ampere")
    truth = shipped()
    rows = synthetic(truth)
    disturbed = with_values(truth, block.paths, [0.9 * get_path(truth, path) for path in block.paths])
    fitted = fit_block(disturbed, block, rows, rows_per_cluster=math.inf).table
    assert errors_of(rows, disturbed).median > 0.05
    assert errors_of(rows, fitted).p90 < 0.02


def test_blocks_name_places_that_exist_and_efficiencies_are_shares():
    table = shipped()
    for block in all_blocks():
        for path in block.paths:
            value = get_path(table, path)
            assert value > 0, path
            assert "efficiency" not in path or value <= 1.0, path


def test_tables_survive_writing(tmp_path):
    file = tmp_path / "nccl.yaml"
    spread = {"inside": {"hopper": {"ring": {"base_us": [0.04, None, 0.2]}}}, "between": {"tcp@2.21": {"tail": 0.5}}}
    write_table({**shipped(), "uncertainty": spread}, file, "header")
    assert load_yaml(tmp_path / "nccl-uncertainty.yaml")[0] == spread
    again, _ = load_yaml(file)
    assert set(again) == {"source", "inside", "between"}, "how sure they are is no matter of a run"
    for block in all_blocks():
        for path in block.paths:
            assert get_path(again, path) == pytest.approx(get_path(shipped(), path), rel=1e-3)


def test_refinements_lie_over_their_class():
    table = {"tcp": {"a": 1, "b": [1, 2]}, "tcp@2.21": {"b": [None, 3]}, "tcp.hopper": {"a": 5}}
    assert layered(table, "tcp", "", "") == {"a": 1, "b": [1, 2]}
    assert layered(table, "tcp", "", "2.22") == {"a": 1, "b": [1, 3]}
    refined = {**table, "tcp.hopper": {"a": 7}, "tcp.hopper@2.20": {"a": 8}}
    assert [layered(refined, "tcp", "hopper", nccl)["a"] for nccl in ("2.19", "2.20")] == [7, 8]
    assert layered(table, "ipoib", "blackwell", "2.18") == {"a": 5, "b": [1, 2]}
    own = {"tcp": {"a": 1, "b": 2}, "tcp.hopper": {"b": 3}, "ipoib": {"a": 5}, "ipoib.hopper": {"c": 4}}
    assert layered(own, "ipoib", "", "") == {"a": 5, "b": 2}
    assert layered(own, "ipoib", "hopper", "") == {"a": 5, "b": 3, "c": 4}
    with pytest.raises(ConfigError):
        layered(table, "smoke-signals", "", "")


def test_no_rows_is_an_error(tmp_path):
    file = tmp_path / "none.csv"
    file.write_text("split\n", encoding="utf-8")
    with pytest.raises(CalibrationError):
        read_measured(file)


@pytest.mark.skipif(not TABLE.is_file(), reason="the measurements are not beside the repository")
def test_shipped_constants_on_rows_kept_for_testing():
    rows = [row for row in read_measured(TABLE) if row.split == "test"]
    large = errors_of([row for row in rows if row.n_bytes >= MIB], shipped())
    small = errors_of([row for row in rows if row.n_bytes < MIB], shipped())
    assert large.median < 0.08 and small.median < 0.15
    assert np.isfinite(large.bias)


def test_one_cluster_moves_a_class_less_than_many():
    """The same data, said by one cluster or by four: a class follows four, and is less sure of what was not measured."""
    start = starting_table()
    place = ("inside", "ampere", "ring", "efficiency", 2)
    unmeasured = ("inside", "ampere", "p2p", "efficiency", 1)
    truth = with_values(start, [place], [0.6])
    rows = synthetic(truth)
    four = [replace(row, topology=f"cluster {i}") for i in range(4) for row in rows]
    block = ConstantBlock(name="one", paths=(place, unmeasured), rows=lambda _: True)
    found = [fit_block(start, block, measured) for measured in (rows, four)]
    values = [get_path(fitted.table, place) for fitted in found]
    assert 0.6 < values[1] < values[0] < 0.75
    assert found[1].spread[place] < found[0].spread[place]
    assert found[0].spread[unmeasured] == pytest.approx(0.2)  # the prior's


def test_latencies_between_nodes_are_known_better_than_inside():
    """Hops of NCCL's table and of five measured classes between nodes lie within a factor of 1.4 of each other, not of two."""
    assert math.exp(expected_spread(("between", "rdma", "tree", "hop_us", 1), 10.0)) == pytest.approx(1.4, abs=0.05)
    inside, base = ("inside", "hopper", "ring", "hop_us", 1), ("between", "rdma", "tree", "base_us", 1)
    assert all(math.exp(expected_spread(place, 10.0)) == pytest.approx(2.0, abs=0.05) for place in (inside, base))


def test_rows_of_a_cluster_count_as_so_many():
    rows = synthetic(shipped())
    few = [replace(row, topology="small") for row in rows[:5]]
    weights = row_weights(rows + few)
    assert sum(weights[: len(rows)]) == pytest.approx(ROWS_PER_CLUSTER)
    assert list(weights[len(rows) :]) == [1.0] * 5


def test_clusters_left_out_have_the_same_say():
    rows = [row for row in synthetic(shipped()) if row.n_bytes >= MIB]
    exact, slow = rows[:1], rows[1:]
    found = {"exact": (exact, np.zeros(1)), "slow": (slow, np.full(len(slow), -0.5))}
    (entry,) = spread_of(found)
    assert (entry["part"], entry["from_bytes"], entry["clusters"]) == ("inside", MIB, ["exact", "slow"])
    assert (entry["low"], entry["high"]) == (1.0, pytest.approx(2.0, abs=0.01))  # measured twice what was predicted
    errors = summed_up(found)
    assert errors["slow"].median == 0.5 and errors["all"].n == len(rows)
