"""Warnings on the terminal."""

from __future__ import annotations

import sys

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
