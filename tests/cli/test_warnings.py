"""Warnings on the terminal."""

from __future__ import annotations

import sys

import pytest

from simulator.cli.inputs import write_warnings
from simulator.cli.shared import complain


def test_each_warning_is_said_once(capsys):
    said = set()
    write_warnings(["a", "a"], said=said)
    write_warnings(["a", "b"], said=said, kind="note")
    assert capsys.readouterr().err == "warning: a\nnote: b\n"


def test_a_terminal_breaks_complaints_between_words_and_a_log_keeps_them_whole(monkeypatch, capsys):
    text = "error: rank 0 needs 122.9 GiB of 39.39 GiB\nhint: --pp 8 --dp 1 fits with 27.96 GiB"
    complain(text)
    assert capsys.readouterr().err == text + "\n"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    complain(text)
    assert capsys.readouterr().err.splitlines() == [
        "error: rank 0 needs 122.9 GiB",
        "of 39.39 GiB",
        "hint: --pp 8 --dp 1 fits with",
        "27.96 GiB",
    ]


# -- what other commands are given and do not use -------------------------------------------------------------------

DENSE = ("-t", "bigred200", "-m", "gpt2", "--micro-batch", 2)
NO_EXPERTS = "--moe-imbalance has no effect: the model has no experts"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "gpus=1", "gpus=2", "--moe-imbalance", 1.2), [NO_EXPERTS]),
        # with two stages each holds two chunks of layers; without stages there is nothing to divide
        (
            ("compare", "gpus=4,pp=2,global_batch=16", "gpus=4", "--virtual-pp", 2),
            ["B: --virtual-pp has no effect: pp=1"],
        ),
        (("stragglers", "--gpus", 2, "--spread", 0.01, "--moe-imbalance", 1.2), [NO_EXPERTS]),
        (("stragglers", "--gpus", 2, "--spread", 0.01, "--unpacked"), ["--unpacked has no effect without --lengths"]),
        (("requirements", "--gpus", "8,16", "--moe-imbalance", 1.2), [NO_EXPERTS]),
        (("search", "--gpus", 2, "--global-batch", 8, "--moe-imbalance", 1.2), [NO_EXPERTS]),
        (
            ("search", "--gpus", 2, "--global-batch", 8, "--format", "csv"),
            ["--format has no effect without --out FOLDER"],
        ),
        (
            ("search", "--gpus", 2, "--global-batch", 8, "--tp", 2, "--axis", "tp=1"),
            ["tp=2 has no effect: an axis gives tp its values"],
        ),
    ],
)
def test_commands_name_what_they_are_given_and_do_not_use(simulate, words, said):
    code, _, err = simulate(*words, *DENSE)
    warnings = [line.removeprefix("warning: ") for line in err.splitlines() if line.startswith("warning: ")]
    assert (code, warnings) == (0, said)


def test_a_sweep_names_what_no_row_uses(simulate, tmp_path):
    """Chunks of stages are of use to the row with two stages, experts' settings to none."""
    words = (
        "sweep",
        *DENSE,
        "--gpus",
        4,
        "--global-batch",
        16,
        "--moe-imbalance",
        1.2,
        "--virtual-pp",
        2,
        "--out",
        tmp_path,
    )
    _, _, err = simulate(*words, "--axis", "pp=1,2")
    assert f"warning: {NO_EXPERTS}" in err and "virtual-pp" not in err
    _, _, err = simulate(*words, "--axis", "gpus=1,4")
    assert "warning: --virtual-pp has no effect: pp=1" in err and "warning: gpus=4 has no effect: an axis" in err


@pytest.mark.parametrize("words", [("compare", "gpus=4", "gpus=8"), ("stragglers", "--spread", 0.01)])
def test_commands_about_one_job_take_one_number_of_gpus(simulate, words):
    code, _, err = simulate(*words, *DENSE, "--gpus", "4,8")
    assert code == 3 and "--gpus 4,8: this command takes one number" in err


def test_flags_beside_two_saved_answers_have_no_effect(simulate, tmp_path):
    _, out, _ = simulate(*DENSE, "--gpus", 1, "--json")
    (tmp_path / "a.json").write_text(out)
    code, _, err = simulate("compare", tmp_path / "a.json", tmp_path / "a.json", "--tp", 2)
    assert (code, err) == (0, "warning: --tp has no effect: both sides are answers\n")


@pytest.mark.parametrize("flag", ["--trace", "--memory-trace"])
def test_no_output_is_written_over_a_file_that_is_read(simulate, tmp_path, flag):
    plan = tmp_path / "ds.json"
    plan.write_text('{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 1}}')
    before = plan.read_bytes()
    code, _, err = simulate("-t", "bigred200", "-m", "gpt2", "--gpus", 2, "--deepspeed", plan, flag, plan)
    assert code == 3 and f"{flag} {plan}: would be written over the file that is read" in err
    assert plan.read_bytes() == before
