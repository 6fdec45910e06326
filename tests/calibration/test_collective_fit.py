"""The command that refits collective constants."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simulator.calibration.collective_fit import all_blocks, starting_table
from simulator.calibration.collectives import get_path, measured_of
from simulator.collectives.constants import shipped
from simulator.config import load_yaml
from simulator.errors import CalibrationError

TABLE = Path(__file__).parents[3] / "shared" / "measurements" / "collectives.csv"
FRONTIER = TABLE.parent / "frontier" / "collectives.csv"
NEEDS_TABLE = pytest.mark.skipif(not TABLE.is_file(), reason="the measurements are not beside the repository")


def test_the_starting_table_has_every_constant():
    table = starting_table()
    for block in all_blocks():
        assert all(get_path(table, path) > 0 for path in block.paths)


@NEEDS_TABLE
def test_the_shipped_constants_are_what_the_command_writes(tmp_path, simulate):
    file = tmp_path / "nccl.yaml"
    status, out, err = simulate("calibrate", "collectives", TABLE, FRONTIER, "--out", file)
    assert status == 0, err
    assert "test, from 1 MiB" in out
    written, _ = load_yaml(file)
    for block in all_blocks():
        for path in block.paths:
            assert get_path(written, path) == pytest.approx(get_path(shipped(), path), rel=0.05)


@NEEDS_TABLE
def test_clusters_left_out_are_predicted_too(tmp_path, simulate):
    """Five clusters of three generations and three transports, a quarter of their rows each."""
    clusters = ("abci2-v100", "bigred200", "dgx-a100-80g", "marenostrum5", "polaris")
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["topology"] in clusters][::4]
    some = tmp_path / "some.csv"
    with some.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    status, out, err = simulate("calibrate", "collectives", some, "--leave-one-out")
    assert status == 0, err
    last = out.splitlines()[-1].split()
    assert last[0] == "all" and float(last[2].rstrip("%")) < 15.0


def test_an_imported_log_calibrates_as_the_log_itself(tmp_path, simulate):
    """What ``import`` writes says no split, so that every fourth size is held out, as it is of the log."""
    log, table = tmp_path / "a.log", tmp_path / "a.csv"
    status, printed, err = simulate("collective", "all_reduce", "--topology", "dgx-a100-80g", "--gpus", 16)
    assert status == 0, err
    log.write_text(printed, encoding="utf-8")
    status, _, err = simulate("import", log, "--topology", "dgx-a100-80g", "--nodes", 2, "--out", table)
    assert status == 0, err
    fits = []
    for file in (log, table):
        status, out, err = simulate("calibrate", "collectives", file, "--topology", "dgx-a100-80g", "--json")
        assert (status, err) == (0, "")
        fits.append(json.loads(out)["constants"])
    assert fits[0] == fits[1] != []


def test_a_protocol_has_the_same_meaning_in_a_column_of_its_own_and_beside_the_algorithm():
    """As ``simulate validate`` reads them, too: nccl-tests' floats of eight bits are told by their type."""
    row = {"topology": "dgx-a100-80g", "collective": "all_reduce", "gpus": "8", "nodes": "1", "size_bytes": "1048576",
           "time_us": "50", "transport": "", "split": "fit", "source": "x", "dtype": "fp8_e4m3"}  # fmt: skip
    (one,) = measured_of([row | {"algorithm": "ring/LL"}], "x.csv")
    (other,) = measured_of([row | {"algorithm": "Ring", "protocol": "LL"}], "x.csv")
    assert one == other
    assert (one.how.algorithm, one.how.protocol, one.how.eight_bit_float) == ("ring", "ll", True)
    with pytest.raises(CalibrationError, match="dtype 'fp7' is unknown"):
        measured_of([row | {"algorithm": "", "dtype": "fp7"}], "x.csv")
