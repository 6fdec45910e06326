"""Check the relations on random scenarios for as long as is asked; started again with the same file, it goes on.

    python -m tests.relations --minutes 30 --seed 1 [--out relations.jsonl] [--only NAME] [--number N]

One line of the file is one scenario: its number, the command that shows it, and what it violates.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from checking import check
from draws import draw_case


def main() -> int:
    """Parse the command line, check, and print what was found by relation."""
    parser = argparse.ArgumentParser(prog="python -m tests.relations", description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where to write and from where to go on")
    parser.add_argument("--only", default="", help="relations whose name holds this text")
    parser.add_argument("--number", type=int, help="this scenario alone, with every relation")
    given = parser.parse_args()
    if given.number is not None:
        case = draw_case(given.seed, given.number)
        if case is None:
            print("no scenario")
            return 0
        found = check(case, only=given.only, whole=True)
        print(case.command(), *found, sep="\n")
        return 1 if found else 0
    out = given.out or Path(f"relations-{given.seed}.jsonl")
    done = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    number, until = len(done), time.monotonic() + 60 * given.minutes
    with out.open("a", encoding="utf-8") as file:
        while time.monotonic() < until:
            case = draw_case(given.seed, number)
            found = [] if case is None else check(case, only=given.only)
            row = {"number": number, "command": "" if case is None else case.command(), "violations": found}
            file.write(json.dumps(row) + "\n")
            file.flush()
            done.append(row)
            number += 1
            for line in found:
                print(f"{number - 1}: {line}\n    {row['command']}", flush=True)
    by_relation = Counter(line.split(":")[0] for row in done for line in row["violations"])
    print(f"{number} scenarios of seed {given.seed}, {sum(bool(row['violations']) for row in done)} with violations")
    for name, count in by_relation.most_common():
        print(f"{count:6} {name}")
    return 1 if by_relation else 0


if __name__ == "__main__":
    sys.exit(main())
