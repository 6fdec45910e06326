"""What the shell completes, flags of other tools, and what a first-time user gets wrong."""

import pytest
from typer.testing import CliRunner

from simulator.cli import completion
from simulator.cli.main import app, register_commands
from simulator.cli.options import our_flags


def test_names_are_completed():
    assert "polaris" in completion.topologies("pol")
    assert "gpt3-175b" in completion.models("gpt3-")
    assert all(word.startswith("gpt3-") for word in completion.models("gpt3-"))
    assert "zb-1p" in completion.schedules("zb")
    assert completion.networks("al") == ["alpha-beta"]


def test_files_are_completed_by_their_endings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("plan.yaml", "plan.txt", ".hidden.yaml"):
        (tmp_path / name).touch()
    (tmp_path / "plans").mkdir()
    (tmp_path / "plans" / "inner.yaml").touch()
    complete = completion.files(".yaml")
    assert complete("pl") == ["plan.yaml", "plans/"]
    assert complete("plans/") == ["plans/inner.yaml"]
    assert complete("nowhere/") == []


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        (["--tensor-parallel", "4"], ["--tp", "4"]),
        (["--pipeline-model-parallel-size=2"], ["--pp=2"]),
        (["--seq-length", "2048", "--zero", "2"], ["--sequence-length", "2048", "--sharding", "2"]),
        (["--tp", "2", "tensor_parallel", "--json"], ["--tp", "2", "tensor_parallel", "--json"]),
    ],
)
def test_flags_of_other_tools_are_understood(given, ours):
    assert our_flags(given) == ours


def test_a_missing_model_is_one_line(monkeypatch):
    register_commands()
    monkeypatch.setattr("sys.argv", ["simulate", "-t", "polaris"])
    done = CliRunner().invoke(app, ["-t", "polaris"])
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "--model" in done.stderr and "simulate models list" in done.stderr


@pytest.mark.parametrize("arguments", [["schedule", "zb-1p"], ["topology", "show", "polaris"]])
def test_what_stands_alone_is_drawn_into_a_page(arguments, tmp_path):
    page = tmp_path / "page.html"
    done = CliRunner().invoke(app, [*arguments, "--plot", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
