"""Presets and the gallery: what was measured is the table's, flags win, and pages show both beside each other."""

import json
import re

import pytest
from typer.testing import CliRunner

from simulator.cli.main import app, register_commands
from simulator.config import load_yaml
from simulator.errors import ConfigError
from simulator.explore.named_settings import Sweep, scenario_of
from simulator.explore.presets import presets, read_preset
from simulator.explore.sweeps import run_sweep
from simulator.report.gallery_pages import write_gallery
from simulator.simulation import topology_of
from validation.tables.cases import case_of
from validation.tables.preset_files import FOLDER, ROWS, chosen_rows, preset_of, written

ONE = "gpt-22b-selene-8"


def test_presets_are_what_the_measurement_tables_say():
    rows = chosen_rows()
    assert sorted(row.text("row_id") for row in rows) == sorted(ROWS)
    assert {one.measured.row for one in presets().values()} == set(ROWS)
    for row in rows:
        if not case_of(row)[0].alternatives:  # others are simulated to see what fits
            name, content = preset_of(row)
            assert (FOLDER / f"{name}.yaml").read_text(encoding="utf-8") == written(content)


@pytest.mark.parametrize("name", presets())
def test_every_preset_describes_a_run(name):
    scenario = scenario_of({"preset": name})
    assert topology_of(scenario).n_gpus == scenario.plan.gpus
    assert scenario.plan.resolve(scenario.plan.gpus).gpus == read_preset(name).settings["gpus"]


def test_published_settings():
    # Narayanan et al., SC 2021, table 1, last row: 1,008 billion parameters on 3,072 GPUs, tensor 8, pipeline 64, batch 3,072
    plan = scenario_of({"preset": "gpt-1t-selene-3072"}).plan
    assert (plan.gpus, plan.tp, plan.pp, plan.global_batch) == (3072, 8, 64, 3072)


def test_flags_win_over_a_preset_and_files_too(tmp_path):
    plan = tmp_path / "plan.yaml"
    plan.write_text("micro_batch: 4\ntp: 2\n", encoding="utf-8")
    scenario = scenario_of({"preset": ONE, "plan": str(plan), "tp": 4, "topology": "dgx-h100"})
    assert (scenario.plan.tp, scenario.plan.micro_batch, scenario.topology) == (4, 4, "dgx-h100")
    assert scenario.model == "gpt-22b"


def test_a_file_of_ones_own_and_a_name_that_is_none(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("title: mine\nsettings: {topology: bigred200, model: gpt2, zero: 1}\n", encoding="utf-8")
    assert scenario_of({"preset": str(path)}).plan.sharding == "zero1"
    with pytest.raises(ConfigError, match="Did you mean"):
        scenario_of({"preset": "gpt3-175b-selene"})


@pytest.mark.parametrize("factor", [0.95, 1.05])
def test_the_gallery_shows_measured_beside_simulated(tmp_path, factor):
    rows = run_sweep(Sweep(axes={"preset": (ONE,)})).rows
    measured, _ = load_yaml(FOLDER / f"{ONE}.yaml")
    rows[0]["iteration_time_s"] = measured["measured"]["iteration_time_s"] * factor
    index, page = write_gallery(presets(), rows, tmp_path)
    text = index.read_text(encoding="utf-8")
    assert f'href="{ONE}.html"' in text and page.name == f"{ONE}.html"
    (row,), measured_s = rows, measured["measured"]["iteration_time_s"]
    error = row["iteration_time_s"] / measured_s - 1
    assert f"{error:+.1%}" in text
    longer = "longer" if error > 0 else "shorter"
    inside = "inside" if row["low_s"] <= measured_s <= row["high_s"] else "outside"
    said = f"{abs(error):.1%} {longer} than the measured one, which is {inside} the 80 % interval"
    assert said in page.read_text(encoding="utf-8")
    assert re.search(r"simulate --preset gpt-22b-selene-8\n", page.read_text(encoding="utf-8"))


def test_the_command_line_lists_them():
    register_commands()
    shown = CliRunner().invoke(app, ["--preset", "list", "--json"])
    assert set(json.loads(shown.stdout)) == set(presets())
    nothing = CliRunner().invoke(app, ["gallery", "--only", "nobody"])
    assert "no published run" in str(nothing.exception)
