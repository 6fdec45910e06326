"""``simulate trace``: look into traces, convert and compare them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from simulator.cli.options import PLAIN_JSON, Text, option

trace_app = typer.Typer(no_args_is_help=True, help="Look into traces, convert and compare them.")

Paths = Annotated[list[str], typer.Argument(metavar="TRACE...", help="Files, archives or folders.", show_default=False)]


def show_progress() -> Callable[[str, int, int], None] | None:
    """Return what shows how far a large file has been read, None where nobody looks."""
    return _progress if sys.stderr.isatty() else None


def _progress(name: str, done: int, total: int) -> None:
    if total > 1 << 26:
        print(f"\r{name}: {100 * done // total} %", end="" if done < total else "\n", file=sys.stderr)


@trace_app.command("convert")
def convert(
    traces: Annotated[list[str], typer.Argument(metavar="A... B", help="What to read, and last where to write.")],
    to: Annotated[Text, option("kineto, chakra, perfetto or chrome; by the suffix where left out.")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Convert traces; say what the target format cannot hold."""
    from simulator.errors import ConfigError
    from simulator.trace_io.formats import convert as run

    if len(traces) < 2:
        raise ConfigError("nothing to write to", hint="simulate trace convert SOURCE... TARGET")
    lost = run(traces[:-1], traces[-1], to, progress=show_progress())
    if json_output:
        print(json.dumps({"written": traces[-1], "lost": list(lost)}))
        return
    print(f"wrote {traces[-1]}")
    for loss in lost:
        print(f"not kept: {loss}")


@trace_app.command("info")
def info(
    traces: Paths,
    as_format: Annotated[Text, option("Read the files as this format.", "--as")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Show what a trace holds and where its time went."""
    from simulator.analysis.trace_facts import facts_of
    from simulator.trace_io import read

    summary = facts_of(read(traces, as_format=as_format, progress=show_progress()))
    if json_output:
        print(json.dumps(summary, allow_nan=False))
        return
    for key, value in summary.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            print(f"{key}:")
            for entry in value[:40]:
                print("  " + "  ".join(f"{name}={_short(item)}" for name, item in entry.items()))
        elif value not in (None, [], {}, ""):
            print(f"{key}: {value}")


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


@trace_app.command("diff")
def diff(
    measured: Annotated[str, typer.Argument(help="The measured trace.")],
    simulated: Annotated[str, typer.Argument(help="The simulated trace, or another one.")],
    top: Annotated[int, typer.Option(min=1, help="Operators to show.")] = 15,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Compare two traces: operators aligned, the residual split into compute, transfer, wait, copy and host."""
    from simulator.analysis.trace_difference import diff as run
    from simulator.trace_io import read

    progress = show_progress()
    found = run(read(measured, progress=progress), read(simulated, progress=progress))
    if json_output:
        print(json.dumps(_difference(found), allow_nan=False))
        return
    print(f"mean absolute error of a step: {found.mean_absolute_error:.2%}")
    for part, seconds in found.parts_s.items():
        print(f"{part:<9} {seconds * 1e3:+10.3f} ms per step")
    print(
        "largest differences of operators, summed over the steps (occurrences: both, measured alone, simulated alone)"
    )
    for entry in found.operators[:top]:
        counts = f"{entry.n_aligned:>6} {entry.n_only_measured:>6} {entry.n_only_simulated:>6}"
        print(f"{entry.difference_s * 1e3:+10.3f} ms  {counts}  {entry.name[:80]}")


def _difference(found: Any) -> dict[str, Any]:
    return {
        "mean_absolute_error": found.mean_absolute_error,
        "parts_s": dict(found.parts_s),
        "steps": [
            {
                "rank": s.rank, "step": s.step, "measured_s": s.measured_s, "simulated_s": s.simulated_s,
                "relative_error": s.relative, "parts_s": dict(s.parts_s),
            }
            for s in found.steps
        ],
        "operators": [
            {
                "name": o.name, "n_aligned": o.n_aligned, "n_only_measured": o.n_only_measured,
                "n_only_simulated": o.n_only_simulated, "measured_s": o.measured_s, "simulated_s": o.simulated_s,
                "difference_s": o.difference_s,
            }
            for o in found.operators
        ],
    }  # fmt: skip
