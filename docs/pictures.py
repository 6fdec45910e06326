"""Draws the pictures of docs/questions.md and docs/trace_analyses.md, each from the command above it.

``images/question-NAME.svg`` is the chart named below, ``images/trace-NAME.svg`` what the command's ``--report NAME.svg`` writes.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
PAGE = FOLDER / "questions.md"
#: name of the picture -> chart of the page that the command writes
CHARTS = {
    "time": "breakdown", "compare": "waterfall", "memory": "memory", "links": "links", "scaling": "scaling", "network": "efficiency",
    "money": "pareto", "plans": "breakdown", "experts": "breakdown", "domain": "waterfall", "context": "heat",
}  # fmt: skip
_PICTURE = re.compile(r"^\$ (simulate [^\n]*)\n```\n\n!\[[^\]]*\]\(images/question-(\w+)\.svg\)", re.MULTILINE)


def commands() -> dict[str, list[str]]:
    """Return the words of the command above each picture."""
    return {name: shlex.split(line, comments=True) for line, name in _PICTURE.findall(PAGE.read_text(encoding="utf-8"))}


def draw(name: str, words: list[str]) -> None:
    """Run a command with its page as pictures, and keep the one that is shown."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.svg"
        more = ["--out", folder] if words[1] == "sweep" else []
        subprocess.run(
            [sys.executable, "-m", "simulator", *words[1:], "--report", str(out), *more],
            check=False,
            stdout=subprocess.DEVNULL,
        )
        chosen = out.with_name(f"out-{CHARTS[name]}.svg")
        (FOLDER / "images" / f"question-{name}.svg").write_bytes((chosen if chosen.exists() else out).read_bytes())


def draw_traces() -> None:
    """Run every command of the page on traces that writes a picture, from the root of the checkout."""
    text = (FOLDER / "trace_analyses.md").read_text(encoding="utf-8")
    for line, name in re.findall(r"^(simulate trace .* --report (\S+)\.svg)$", text, re.MULTILINE):
        with tempfile.TemporaryDirectory() as folder:
            words = [*shlex.split(line)[1:-1], str(Path(folder) / f"trace-{name}.svg")]
            subprocess.run(
                [sys.executable, "-m", "simulator", *words], check=True, stdout=subprocess.DEVNULL, cwd=FOLDER.parent
            )
            for picture in Path(folder).iterdir():
                (FOLDER / "images" / picture.name).write_bytes(picture.read_bytes())


if __name__ == "__main__":
    if sys.argv[1:] in ([], ["trace"]):
        draw_traces()
    for name, words in commands().items():
        if not sys.argv[1:] or name in sys.argv[1:]:
            draw(name, words)
