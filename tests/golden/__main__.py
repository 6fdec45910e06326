"""Records what the command line answers, and says what changed between two recordings.

A refactoring is safe when nothing changed that was not meant to:

    python -m tests.golden record before.jsonl            # on the old code (PYTHONPATH decides which is imported)
    python -m tests.golden record after.jsonl
    python -m tests.golden compare before.jsonl after.jsonl

``--quick`` records every sixteenth case. One line of a recording is one command: its arguments, its exit status, and the JSON
document that it printed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import signal
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent))
import cases

#: facts about the program rather than answers
VOLATILE = ("version", "digest", "n_events", "elapsed_s", "seconds", "host_seconds", "simulated", "cached", "pruned")

#: seconds after which a command is given up: no answer takes minutes
LIMIT_S = 300


def all_cases(shared: Path, out: Path) -> Iterator[list[str]]:
    """Yield every recorded command line."""
    yield from cases.iterations(620)
    yield from cases.collectives(60)
    yield from cases.explorations()
    yield from cases.schedules()
    yield from cases.traces(shared)
    yield from cases.imports(shared)
    yield from cases.emissions(out)


def _give_up(*_: object) -> None:
    raise TimeoutError(f"no answer within {LIMIT_S} s")


def run(argv: list[str]) -> dict[str, Any]:
    """Run one command in this process and return its status and what it printed; one that takes too long is a defect, too."""
    from simulator.cli.main import main

    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["simulate", *argv]
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LIMIT_S)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            main()
        except SystemExit as stopped:
            status = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        except Exception as error:  # a traceback is an answer to record, and a defect
            return {"status": "traceback", "error": repr(error)}
        finally:
            signal.alarm(0)
    text = out.getvalue()
    try:
        return {"status": status, "answer": json.loads(text)}
    except ValueError:
        return {"status": status, "answer": text}


def record(path: Path, shared: Path, stride: int, only: str) -> None:
    """Write one line per case."""
    with tempfile.TemporaryDirectory() as folder, path.open("w", encoding="utf-8") as file:
        out = Path(folder)
        os.chdir(out)  # commands that write without being asked where, write here
        for argv in itertools.islice(all_cases(shared, out), 0, None, stride):
            if only and only not in " ".join(argv):
                continue
            done = json.loads(json.dumps(run(argv)).replace(str(out), "OUT"))
            if "--emit" in argv:
                done["files"] = {p.name: p.read_text(encoding="utf-8") for p in sorted(Path(argv[argv.index("--emit") + 1]).rglob("*"))
                                 if p.is_file()}  # fmt: skip
            key = (
                " ".join(argv).replace(str(out), "OUT").replace(str(cases.ROOT), "ROOT").replace(str(shared), "SHARED")
            )
            file.write(json.dumps({"case": key, **done}) + "\n")
            file.flush()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value of a document with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in VOLATILE:
                yield from leaves(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, f"{path}[{index}]")
    else:
        yield path, value


def differences(before: Any, after: Any, tolerance: float) -> list[str]:
    """Return what differs between two documents, a line each."""
    old, new = dict(leaves(before)), dict(leaves(after))
    found = [f"{key}: gone (was {old[key]!r:.60})" for key in old if key not in new]
    found += [f"{key}: new ({new[key]!r:.60})" for key in new if key not in old]
    for key, a in old.items():
        b = new.get(key)
        if key not in new or a == b:
            continue
        if (
            isinstance(a, int | float)
            and isinstance(b, int | float)
            and math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-15)
        ):
            continue
        found.append(f"{key}: {a!r:.60} -> {b!r:.60}")
    return found


def compare(first: Path, second: Path, tolerance: float, most: int) -> int:
    """Print what differs; the status is 1 where anything does."""
    old = {row["case"]: row for row in map(json.loads, first.open(encoding="utf-8"))}
    new = {row["case"]: row for row in map(json.loads, second.open(encoding="utf-8"))}
    kinds: Counter[str] = Counter()
    for case in sorted(old.keys() & new.keys()):
        lines = differences({k: v for k, v in old[case].items() if k != "case"},
                            {k: v for k, v in new[case].items() if k != "case"}, tolerance)  # fmt: skip
        kinds["different" if lines else "equal"] += 1
        if lines:
            print(f"\n{case}")
            for line in lines[:most]:
                print(f"    {line}")
            if len(lines) > most:
                print(f"    ... and {len(lines) - most} more")
    n_lone = len(old.keys() ^ new.keys())
    print(f"\n{kinds['equal']} equal, {kinds['different']} different, {n_lone} in one recording only")
    return 1 if kinds["different"] else 0


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("path", type=Path)
    recording.add_argument("--shared", type=Path, default=cases.ROOT.parent / "shared")
    recording.add_argument("--quick", action="store_true", help="every sixteenth case")
    recording.add_argument("--only", default="", help="cases whose command line holds this text")
    comparing = commands.add_parser("compare")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.add_argument(
        "--tolerance", type=float, default=1e-12, help="relative difference of numbers that counts as none"
    )
    comparing.add_argument("--most", type=int, default=8, help="lines per case")
    given = parser.parse_args()
    if given.command == "record":
        record(given.path.resolve(), given.shared.resolve(), 16 if given.quick else 1, given.only)
        return 0
    return compare(given.first, given.second, given.tolerance, given.most)


if __name__ == "__main__":
    sys.exit(main())
