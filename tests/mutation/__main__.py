"""``python -m tests.mutation``: which small errors do the tests nearest to them notice?

Draws a random sample of mutants over the rooms that setup.cfg lists, plants one at a time in a copy of the project, runs the
tests that setup.cfg calls nearest, and prints which survive. The mutants are cosmic-ray's; places are drawn first and
operators second, so that an expression counts once however many operators fit it.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: what tests need beside the code
COPIED = (
    "simulator",
    "validation",
    "tests",
    "topologies",
    "traces",
    "docs",
    "setup.cfg",
    "pyproject.toml",
    "README.md",
)
SECTION = "mutation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One small error.

    Parameters
    ----------
    room, path : str
    operator : str
        Of cosmic-ray.
    occurrence : int
        Which of the places in the file that the operator fits.
    line : int
    """

    room: str
    path: str
    operator: str
    occurrence: int
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the nearest tests said to a mutant: ``killed``, ``survived`` or ``timeout``, and what changed."""

    mutant: Mutant
    outcome: str
    seconds: float
    before: str
    after: str


def settings() -> tuple[dict[str, str], list[str]]:
    """Read the rooms with their nearest tests, and the operators."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    rooms = {room.strip(): " ".join(tests.split()) for room, tests in parser[f"{SECTION}:rooms"].items()}
    return rooms, parser[SECTION]["operators"].split()


def mutants_of(room: str, operators: list[str]) -> Iterator[tuple[tuple[int, int], Mutant]]:
    """Yield every mutant of a room's files with its place in the file."""
    from cosmic_ray.ast import ast_nodes, get_ast_from_path
    from cosmic_ray.plugins import get_operator

    folder = ROOT / room
    for file in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
        tree = get_ast_from_path(file)
        for name in operators:
            operator = get_operator(f"core/{name}")()
            places = (place for node in ast_nodes(tree) for place in operator.mutation_positions(node))
            for occurrence, (start, _) in enumerate(places):
                path = file.relative_to(ROOT).as_posix()
                yield start, Mutant(room=room, path=path, operator=name, occurrence=occurrence, line=start[0])


def sample(rooms: dict[str, str], operators: list[str], n: int, seed: int) -> list[Mutant]:
    """Draw mutants, as many of every room: a file and a place, then what is done there."""
    generator = random.Random(seed)
    drawn: list[Mutant] = []
    for number, room in enumerate(rooms):
        places: dict[tuple[str, tuple[int, int]], list[Mutant]] = {}
        for start, mutant in mutants_of(room, operators):
            places.setdefault((mutant.path, start), []).append(mutant)
        count = n // len(rooms) + (number < n % len(rooms))
        shuffled = generator.sample(sorted(places), len(places))
        candidates = (generator.choice(places[place]) for place in shuffled)
        drawn += itertools.islice((mutant for mutant in candidates if is_error(mutant)), count)
    generator.shuffle(drawn)
    return drawn


def is_error(mutant: Mutant) -> bool:
    """Whether a mutant changes what runs: not a decorator's words, nor a ``*`` that multiplies nothing."""
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    if text.splitlines()[mutant.line - 1].lstrip().startswith("@"):
        return False
    try:
        changed = ast.parse(mutated(text, mutant))
    except SyntaxError:
        return False
    return not mutant.operator.startswith("ReplaceBinary") or _operations(changed) != _operations(ast.parse(text))


def _operations(tree: ast.AST) -> Counter[str]:
    return Counter(type(node.op).__name__ for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign))


def mutated(text: str, mutant: Mutant) -> str:
    """Return a file's text with a mutant in it."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    changed: str | None = mutate_code(text, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
    assert changed is not None, mutant
    return changed


def nearest(mutant: Mutant, tests: str, root: Path) -> list[str]:
    """Return the tests of a mutant, those of its own file first."""
    own = f"test_{Path(mutant.path).stem}.py"
    files = [file for name in tests.split() for file in _files(root / name)]
    return [str(file) for file in sorted(files, key=lambda file: file.name != own)]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def judge(mutant: Mutant, tests: list[str], root: Path, timeout_s: float) -> Found:
    """Plant a mutant in the copy, run tests, take it out again."""
    file = root / mutant.path
    text = file.read_text(encoding="utf-8")
    changed = mutated(text, mutant)
    lines = [(a, b) for a, b in zip(text.splitlines(), changed.splitlines(), strict=False) if a != b] or [("", "")]
    file.write_text(changed, encoding="utf-8")
    start_s = time.monotonic()
    try:
        code = _pytest(tests, root, timeout_s)
        outcome = "survived" if code == 0 else "killed"
    except subprocess.TimeoutExpired:
        outcome = "timeout"
    finally:
        file.write_text(text, encoding="utf-8")
    seconds = round(time.monotonic() - start_s, 1)
    return Found(mutant=mutant, outcome=outcome, seconds=seconds, before=lines[0][0].strip(), after=lines[0][1].strip())


def _pytest(tests: list[str], root: Path, timeout_s: float | None) -> int:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(
        command, cwd=root, capture_output=True, timeout=timeout_s, check=False, env=_environment(root)
    )
    return done.returncode


def _environment(root: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}


def table(found: list[Found]) -> str:
    """Return the figures by room as Markdown; what ran out of time is neither killed nor alive."""
    lines = ["| room | mutants | killed | survived | out of time |", "|---|---:|---:|---:|---:|"]
    rooms = sorted({one.mutant.room for one in found})
    for room in [*rooms, "all"]:
        mine = [one for one in found if room in ("all", one.mutant.room)]
        killed, alive = (sum(one.outcome == outcome for one in mine) for outcome in ("killed", "survived"))
        share = f"{killed / (killed + alive):.0%}" if killed + alive else "-"
        lines.append(f"| {room} | {len(mine)} | {share} | {alive} | {len(mine) - killed - alive} |")
    return "\n".join(lines)


def main() -> None:
    """Draw, judge, print survivors and the figures by room."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="mutants in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", default=[], help="only this room; repeatable")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop when they have passed")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for one mutant")
    parser.add_argument("--out", type=Path, help="write every outcome as a line of JSON")
    options = parser.parse_args()
    rooms, operators = settings()
    rooms = {room: tests for room, tests in rooms.items() if not options.room or room in options.room}
    drawn = sample(rooms, operators, options.sample, options.seed)
    deadline_s = time.monotonic() + 60 * options.minutes
    found: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = Path(folder)
        for name in COPIED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
        sound: dict[str, bool] = {}
        for mutant in drawn:
            if mutant.room not in sound:
                sound[mutant.room] = (
                    _pytest([str(f) for n in rooms[mutant.room].split() for f in _files(root / n)], root, None) == 0
                )
                if not sound[mutant.room]:
                    print(f"{mutant.room}: its tests fail without any mutant, so nothing is judged", file=sys.stderr)
            if not sound[mutant.room]:
                continue
            if time.monotonic() > deadline_s:
                print(f"stopped after {len(found)} of {len(drawn)} mutants", file=sys.stderr)
                break
            one = judge(mutant, nearest(mutant, rooms[mutant.room], root), root, options.timeout)
            found.append(one)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
            print(
                f"{one.outcome:<8} {mutant.path}:{mutant.line} {mutant.operator}: {one.before} -> {one.after}",
                flush=True,
            )
    if found:
        print(table(found))


if __name__ == "__main__":
    main()
