"""``python -m tests.fuzz --inputs 100000 --seed 1``: broken files and command lines, and nothing but errors of ours.

Every reader and the command line run in this process, each input within its time and memory. What fails is printed once for
each place, with how often, and an input of each is kept in ``--out``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.fuzz.running import Findings, fuzz


def main() -> int:
    """Run, print, and return 1 where anything was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="folder for one input of each kind of failure")
    arguments = parser.parse_args()
    start = time.monotonic()
    said: list[str] = []

    def say(found: Findings) -> None:
        took = time.monotonic() - start
        for name in list(found.places)[len(said) :]:
            said.append(name)
            kind, text, trace = found.examples[name]
            print(f"\n{name} ({kind})\n{trace}", flush=True)
            if arguments.out:
                arguments.out.mkdir(parents=True, exist_ok=True)
                (arguments.out / name.replace(" ", "_").replace(":", "_")).write_text(text, errors="replace")
        print(
            f"{found.n_inputs} inputs, {sum(found.places.values())} failures, {took:.0f} s", file=sys.stderr, flush=True
        )

    found = fuzz(arguments.inputs, arguments.seed, say)
    say(found)
    for name, count in found.places.most_common():
        print(f"{count} x {name}")
    print(
        f"{found.n_inputs} inputs ({', '.join(f'{n} {kind}' for kind, n in sorted(found.kinds.items()))}): {len(found.places)} places"
    )
    return 1 if found.places else 0


if __name__ == "__main__":
    sys.exit(main())
