"""Every command and every Python block of README and docs runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_MAIN = "from simulator.cli.main import main; main()"


def blocks(page, language):
    """Return the contents of a page's fenced blocks of one language."""
    return [body for found, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def commands():
    """Return each distinct ``$ simulate ...`` line once, with the page that has it first."""
    found = {}
    for page in PAGES:
        for body in blocks(page, "console"):
            for line in body.replace("\\\n", " ").splitlines():
                if line.startswith("$ "):
                    found.setdefault(line.removeprefix("$ "), page.name)
    return [pytest.param(command, id=f"{page}: {command}") for command, page in found.items()]


def run_python(code, arguments, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


@pytest.mark.parametrize("command", commands())
def test_command_runs(command, tmp_path):
    program, *arguments = shlex.split(command)
    assert program == "simulate"
    done = run_python(RUN_MAIN, arguments, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()
    if "--json" in arguments:
        json.loads(done.stdout)


@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=f"{page.name}-{i}") for page in PAGES for i, code in enumerate(blocks(page, "python"))],
)
def test_python_block_runs(code, tmp_path):
    done = run_python(code, [], tmp_path)
    assert done.returncode == 0, done.stderr


def test_console_blocks_hold_only_commands_that_are_run():
    for page in PAGES:
        for body in blocks(page, "console"):
            for line in body.splitlines():
                assert not line.startswith("$ ") or line.startswith("$ simulate "), f"{page.name}: {line}"


def test_readme_has_two_commands_that_set_everything_up():
    install, test = (body.strip() for body in blocks(ROOT / "README.md", "sh"))
    assert install.endswith("simulate --topology bigred200.yaml --model gpt2-large")
    assert test.endswith("pytest -n 2")
    for command in (install, test):
        assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ")
        assert "\n" not in command


def test_ci_runs_the_readmes_test_command():
    assert '/bin/pytest" -n 2' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?://)([^)#]+)[^)]*\)", text):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
