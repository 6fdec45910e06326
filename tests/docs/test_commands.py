"""Every command and every Python block of README and docs runs; generated pages say what the program says.

A page may have files: a fenced block below a line like ``cluster.yaml`:``. Its commands then run in order in one folder
that holds these files. A command that shall fail says so: ``# exits with 4``.
"""

import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`([\w.-]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STATUS = re.compile(r"# exits with (\d+)")
RUN_MAIN = "from simulator.cli.main import main; main()"


def blocks(page, language):
    """Return the contents of a page's fenced blocks of one language."""
    return [body for found, body in BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def files(page):
    """Return the files that a page asks to write."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def lines(page):
    """Return the ``$ simulate ...`` lines of a page."""
    text = "\n".join(blocks(page, "console")).replace("\\\n", " ")
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def commands():
    """Return each distinct command of pages without files once, with the page that has it first."""
    found = {}
    for page in PAGES:
        if not files(page):
            for line in lines(page):
                found.setdefault(line, page.name)
    return [pytest.param(command, id=f"{page}: {command}") for command, page in found.items()]


def run_python(code, arguments, folder):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def run_command(command, folder):
    program, *arguments = shlex.split(command, comments=True)
    assert program == "simulate"
    done = run_python(RUN_MAIN, arguments, folder)
    status = STATUS.search(command)
    assert done.returncode == (int(status[1]) if status else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.strip()
    if "--json" in arguments:
        json.loads(done.stdout)
    return done.stdout


@pytest.mark.parametrize("command", commands())
def test_command_runs(command, tmp_path):
    run_command(command, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if files(page)], ids=lambda page: page.name)
def test_a_page_with_files_runs_from_top_to_bottom(page, tmp_path):
    for name, text in files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in lines(page):
        run_command(command, tmp_path)


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


@pytest.fixture(scope="module")
def generator():
    return runpy.run_path(str(ROOT / "docs" / "generate.py"))


@pytest.mark.parametrize(
    "page",
    [
        "reference_commands.md",
        "reference_files.md",
        "reference_formats.md",
        "reference_answers.md",
        "answer.schema.json",
    ],
)
def test_generated_pages_are_up_to_date(generator, page):
    written = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert generator["PAGES"][page]() == written, "run: python docs/generate.py"


def test_every_flag_of_every_command_is_listed(generator):
    text = generator["commands_page"]()
    for words in ("", " sweep", " search", " requirements", " replay", " validate", " collective", " topology"):
        assert f"## `simulate{words}`" in text
    for flag in ("--topology", "--deepspeed", "--axis", "--scheduler", "--plot", "--emit", "--report", "--json"):
        assert f"`{flag}`" in text


def test_every_key_of_every_file_has_a_meaning(generator):
    """A key without one raises, so that writing the page is the test; here, that units and defaults are in it."""
    text = generator["files_page"]()
    for line in (
        "| `links_per_gpu` | whole number | **needed** |",
        "| `bandwidth_per_link` | bandwidth, `200 Gb/s` | **needed** |",
        "| `micro_batch` | whole number, at least 1 | the largest power of two that fits |",
        "| `walltime` | text | `01:00:00` |",
    ):
        assert line in text
    assert all(
        row.count("|") - row.count("\\|") == 5 and not row.endswith("|  |")
        for row in text.splitlines()
        if row.startswith("| `")
    )
