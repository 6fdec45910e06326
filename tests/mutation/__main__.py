"""``python -m tests.mutation``: which small errors do the tests nearest to them notice?

Draws a random sample of mutants over the rooms that setup.cfg lists, plants one at a time in a copy of the project, runs the
tests that setup.cfg calls nearest, and prints which survive. The mutants are cosmic-ray's; places are drawn first and
operators second, so that an expression counts once however many operators fit it.

Left out is what no test of behaviour can see: decorators, annotations, the words of errors (``raise`` and ``assert``) and
``strict=`` of zip, which only guards our own invariants.
"""

from __future__ import annotations

import argparse
import ast
import configparser
import importlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
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
#: what tests import from elsewhere and from below all rooms: loaded once, before the processes that judge are forked
LOADED = ("pytest", "networkx", "numpy", "pydantic", "ruamel.yaml", "simpy")
BELOW = ("simulator.plan", "simulator.models.catalog", "simulator.topology")
#: a mutant may take this many times the processor time of its sound tests, and some seconds; then it is endless
PATIENCE, GRACE_S = 3, 5
#: a mutant that eats memory fails instead of stopping the machine
MOST_MEMORY_BYTES = 8 * 2**30


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
    """What the nearest tests said to a mutant: ``killed``, ``endless`` or ``survived``, and what changed."""

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
    """Whether a mutant changes what runs and what a test could see (the module's docstring names what is left out)."""
    text = (ROOT / mutant.path).read_text(encoding="utf-8")
    try:
        changed = ast.parse(mutated(text, mutant))
    except SyntaxError:
        return False
    return ast.dump(_Visible().visit(changed)) != ast.dump(_Visible().visit(ast.parse(text)))


class _Visible(ast.NodeTransformer):
    """Takes out what no test of behaviour can see."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list, node.returns = [], None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        node.decorator_list = []
        return self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        """All arguments alike: a ``*`` or ``/`` between them computes nothing."""
        defaults = [*node.defaults, *(default for default in node.kw_defaults if default is not None)]
        found = ast.arguments(
            posonlyargs=[], args=[*node.posonlyargs, *node.args, *node.kwonlyargs], vararg=node.vararg, kwonlyargs=[],
            kw_defaults=[], kwarg=node.kwarg, defaults=defaults,
        )  # fmt: skip
        return self.generic_visit(found)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(value=None)
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return ast.Raise()

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Pass()

    def visit_keyword(self, node: ast.keyword) -> ast.AST | None:
        return None if node.arg == "strict" else self.generic_visit(node)


def mutated(text: str, mutant: Mutant) -> str:
    """Return a file's text with a mutant in it."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    changed: str | None = mutate_code(text, get_operator(f"core/{mutant.operator}")(), mutant.occurrence)
    assert changed is not None, mutant
    return changed


def nearest(mutant: Mutant, tests: str, root: Path) -> list[str]:
    """Return the tests of a mutant: those of its own file first, the examples in the file itself last."""
    own = f"test_{Path(mutant.path).stem}.py"
    files = [file for name in tests.split() for file in _files(root / name)]
    return [*(str(file) for file in sorted(files, key=lambda file: file.name != own)), str(root / mutant.path)]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.rglob("test_*.py"))


def judge(mutant: Mutant, tests: list[str], root: Path, limit_s: float) -> Found:
    """Plant a mutant in the copy, run tests, take it out again."""
    file = root / mutant.path
    text, stat = file.read_text(encoding="utf-8"), file.stat()
    changed = mutated(text, mutant)
    lines = [(a, b) for a, b in zip(text.splitlines(), changed.splitlines(), strict=False) if a != b] or [("", "")]
    file.write_text(changed, encoding="utf-8")
    try:
        outcome, seconds = run_tests(tests, root, limit_s)
    finally:
        file.write_text(text, encoding="utf-8")
        os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    return Found(mutant=mutant, outcome=outcome, seconds=seconds, before=lines[0][0].strip(), after=lines[0][1].strip())


def run_tests(tests: list[str], root: Path, limit_s: float | None) -> tuple[str, float]:
    """Run tests in a process of their own; return what came of it and its processor time in seconds.

    Processor time, because other work on the machine makes no difference to it. Only the run without a mutant writes
    compiled files.
    """
    child = os.fork()
    if not child:
        _run_in_child(tests, root, limit_s)
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    outcome = "survived" if code == 0 else "endless" if code in (-signal.SIGXCPU, -signal.SIGALRM) else "killed"
    return outcome, round(used.ru_utime + used.ru_stime, 1)


def _run_in_child(tests: list[str], root: Path, limit_s: float | None) -> None:
    import pytest

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    if limit_s is not None:
        sys.dont_write_bytecode = True
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s), int(limit_s) + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
        signal.alarm(10 * int(limit_s))  # waits for ever without using the processor
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    options = [
        "-x",
        "-q",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib --doctest-modules",
    ]
    os._exit(int(pytest.main([*options, *tests])))


def table(found: list[Found]) -> str:
    """Return the figures by room as Markdown; what never ends is noticed as well."""
    lines = ["| room | mutants | killed | of them endless | survived |", "|---|---:|---:|---:|---:|"]
    rooms = sorted({one.mutant.room for one in found})
    for room in [*rooms, "all"]:
        mine = [one for one in found if room in ("all", one.mutant.room)]
        count = Counter(one.outcome for one in mine)
        share = 1 - count["survived"] / len(mine)
        lines.append(f"| {room} | {len(mine)} | {share:.0%} | {count['endless']} | {count['survived']} |")
    return "\n".join(lines)


def main() -> None:
    """Draw, judge, print survivors and the figures by room."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--sample", type=int, default=200, help="mutants in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", default=[], help="only this room; repeatable")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop when they have passed")
    parser.add_argument("--out", type=Path, help="a line of JSON for every outcome; those in it are not judged again")
    options = parser.parse_args()
    rooms, operators = settings()
    rooms = {room: tests for room, tests in rooms.items() if not options.room or room in options.room}
    drawn = sample(rooms, operators, options.sample, options.seed)
    found = read(options.out) if options.out and options.out.exists() else []
    known = {one.mutant for one in found}
    deadline_s = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        root = copied(Path(folder))
        load(root, rooms)
        for one in judged([mutant for mutant in drawn if mutant not in known], rooms, root, deadline_s):
            found.append(one)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(one)) + "\n")
            mutant = one.mutant
            print(
                f"{one.outcome:<8} {mutant.path}:{mutant.line} {mutant.operator}: {one.before} -> {one.after}",
                flush=True,
            )
    print(f"{len(found)} of {len(drawn)} mutants judged", file=sys.stderr)
    if found:
        print(table(found))


def read(path: Path) -> list[Found]:
    """Return the outcomes that an earlier run wrote down."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [Found(**row | {"mutant": Mutant(**row["mutant"])}) for row in rows]


def copied(root: Path) -> Path:
    """Copy what tests need into an empty folder."""
    for name in COPIED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, root / name)
    return root


def load(root: Path, rooms: Iterable[str]) -> None:
    """Load what no mutant changes, the project's part of it from the copy, which becomes the place that all is imported from."""
    for name in [name for name in sys.modules if name.split(".")[0] in ("tests", "simulator", "validation")]:
        del sys.modules[name]
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    sys.path[:] = [str(root), *(path for path in sys.path if Path(path or ".").resolve() not in (ROOT, root.resolve()))]
    for name in (*LOADED, *BELOW):
        importlib.import_module(name)
    changed = tuple(room.removesuffix(".py").replace("/", ".") for room in rooms)
    assert not any(name.startswith(changed) for name in sys.modules), "a room lies below what is loaded"


def judged(mutants: list[Mutant], rooms: dict[str, str], root: Path, deadline_s: float) -> Iterator[Found]:
    """Judge mutants one after the other, where the tests of their room pass without them."""
    limits: dict[str, float | None] = {}
    for mutant in mutants:
        if time.monotonic() > deadline_s:
            return
        room = mutant.room
        if room not in limits:
            outcome, seconds = run_tests([str(f) for n in rooms[room].split() for f in _files(root / n)], root, None)
            limits[room] = GRACE_S + PATIENCE * seconds if outcome == "survived" else None
            said = (
                f"its tests take {seconds} s"
                if limits[room]
                else "its tests fail without any mutant: nothing is judged"
            )
            print(f"{room}: {said}", file=sys.stderr, flush=True)
        limit_s = limits[room]
        if limit_s is not None:
            yield judge(mutant, nearest(mutant, rooms[room], root), root, limit_s)


if __name__ == "__main__":
    main()
