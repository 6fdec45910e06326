"""Warnings on the terminal."""

from __future__ import annotations

from simulator.cli.inputs import write_warnings


def test_each_warning_is_said_once(capsys):
    said = set()
    write_warnings(["a", "a"], said=said)
    write_warnings(["a", "b"], said=said, kind="note")
    assert capsys.readouterr().err == "warning: a\nnote: b\n"
