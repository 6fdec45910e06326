"""Every command of the traces guide runs from the root of the checkout, where its traces are."""

import re
import shlex
from pathlib import Path

import pytest

from simulator.cli.main import app, main, register_commands

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "traces.md").read_text()
COMMANDS = [line for body in re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.M | re.S) for line in body.splitlines()]
SNIPPETS = re.findall(r"^```py\n(.*?)^```$", GUIDE, re.M | re.S)


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)
    if not any(command.name == "replay" for command in app.registered_commands):
        register_commands()


@pytest.mark.parametrize("command", COMMANDS)
def test_command(command, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", shlex.split(command))
    with pytest.raises(SystemExit) as exit_:
        main()
    assert int(exit_.value.code or 0) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet, capsys):
    exec(compile(snippet, "guide", "exec"), {})
    assert float(capsys.readouterr().out) > 0
