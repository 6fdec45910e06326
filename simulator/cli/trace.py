"""``simulate trace``: look into traces, convert and compare them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import PLAIN_JSON, Ranks, Text, option, report_option, with_signature
from simulator.cli.shared import print_json, say_written

if TYPE_CHECKING:
    from simulator.replay.recorded_tables import RecordedTable

trace_app = typer.Typer(no_args_is_help=True, help="Look into traces, convert and compare them.")

#: headings of ``--help``
_WHAT, _HOW = "What is looked at", "How it is shown"
Paths = Annotated[list[str], typer.Argument(metavar="TRACE...", help="Files, archives or folders.", show_default=False)]

_Rank = Annotated[Ranks, option("Look at this rank only; repeatable.", panel=_WHAT)]
_Step = Annotated[
    Ranks,
    option("Look at this step only; repeatable. Without it, warm-up and partial steps are left out.", panel=_WHAT),
]
_Csv = Annotated[Text, option("Write the rows as CSV into this file; - prints them.", "--csv", panel=_HOW)]
_Page = Annotated[
    Text, report_option("Write a page with a picture (.html), or the picture alone (.svg, .png).", panel=_HOW)
]


@contextmanager
def reading() -> Iterator[Callable[[str, int, int], None]]:
    """Give what shows on a terminal how far a large file has been read."""
    from simulator.report.progress import progress_line

    with progress_line() as say:
        yield lambda name, done, total: say(f"reading {name}: {100 * done // total} %") if total > 1 << 26 else None


@trace_app.command("convert")
def convert(
    traces: Annotated[list[str], typer.Argument(metavar="A... B", help="What to read, and last where to write.")],
    to: Annotated[
        Text, option("kineto, chakra, perfetto, chrome or execution_trace; by the suffix where left out.")
    ] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Convert traces; say what the target format cannot hold."""
    from simulator.errors import ConfigError
    from simulator.trace_io.formats import convert as run

    if len(traces) < 2:
        raise ConfigError("nothing to write to", hint="simulate trace convert SOURCE... TARGET")
    with reading() as progress:
        lost = run(traces[:-1], traces[-1], to, progress=progress)
    if json_output:
        print_json({"written": traces[-1], "lost": list(lost)})
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
    from simulator.report.recorded_view import print_facts
    from simulator.trace_io import read

    with reading() as progress:
        summary = facts_of(read(traces, as_format=as_format, progress=progress))
    if json_output:
        print_json(summary)
        return
    print_facts(summary)


def _look(
    analysis: str,
    traces: list[str],
    *,
    page: str | None = None,
    as_format: str | None = None,
    rank: list[int] | None = None,
    step: list[int] | None = None,
    csv: str | None = None,
    json_output: bool = False,
    overlay: str | None = None,
    **asked: Any,
) -> None:
    """Look into traces and show what was found in the ways that were asked for."""
    from simulator.replay.recorded_tables import Question, look_into, write_overlay
    from simulator.report.recorded_view import as_csv, print_recorded
    from simulator.trace_io import read

    with reading() as progress:
        recorded = read(traces, as_format=as_format, progress=progress)
        found = look_into(recorded, analysis, ranks=rank or (), steps=step or (), question=Question(**asked))
    if csv == "-":
        print(as_csv(found), end="")
    elif json_output:
        print_json(found)
    else:
        print_recorded(found)
    _save(found, csv, page, traces)
    if overlay:
        write_overlay(recorded, analysis, overlay)
        say_written(overlay)


def _save(found: RecordedTable, csv: str | None, page: str | None, traces: list[str]) -> None:
    """Write a table into the files that were asked for."""
    from simulator.config import write_file
    from simulator.report.recorded_view import as_csv, save_recorded

    if csv and csv != "-":
        write_file(csv, as_csv(found))
        say_written(csv)
    if page:
        say_written(*save_recorded(found, page, ", ".join(Path(trace).name for trace in traces)))


@trace_app.command("diff", hidden=True)
@trace_app.command("compare")
def compare(
    measured: Annotated[str, typer.Argument(metavar="A", help="A trace, recorded or simulated.")],
    simulated: Annotated[str, typer.Argument(metavar="B", help="The trace that is compared with it.")],
    top: Annotated[int, typer.Option(min=1, help="Operators to show.")] = 15,
    rank: _Rank = None,
    step: _Step = None,
    csv: _Csv = None,
    page: _Page = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Compare two traces: B less A by compute, transfer, wait, copy and host, by kind of work, and by operator."""
    from simulator.analysis.trace_difference import diff as run
    from simulator.replay.recorded_tables import table_of
    from simulator.report.recorded_view import as_csv
    from simulator.trace_io import read

    with reading() as progress:
        traces = [read(path, progress=progress) for path in (measured, simulated)]
        found = run(*traces, ranks=rank or (), steps=step or ())
    rows = table_of(found)
    names = [f"{letter}: {Path(path).name}" for letter, path in zip("AB", (measured, simulated), strict=True)]
    _save(rows, csv, page, names)
    if csv == "-":
        print(as_csv(rows), end="")
        return
    if json_output:
        print_json(found.to_dict())
        return
    if found.left_out:
        print(f"left out: {found.left_out}")
    from simulator.report.recorded_view import print_difference

    print("\n".join(names))
    print_difference(found, top)


#: options that every analysis takes, in the order of ``--help``
_COMMON: dict[str, Any] = {
    "rank": _Rank,
    "step": _Step,
    "as_format": Annotated[Text, option("Read the files as this format.", "--as", panel=_WHAT)],
    "csv": _Csv,
    "page": _Page,
    "json_output": Annotated[bool, PLAIN_JSON],
}
#: and those that draw into the trace
_OVERLAY = Annotated[
    Text, option("Write the trace with what was found drawn into it (.pftrace, .json).", "--trace", panel=_HOW)
]


def _analysis(name: str, *, draws: bool = False) -> Callable[[Callable[..., dict[str, Any]]], None]:
    """Make a command of what turns an analysis's own options into its question: with the options of all of them."""

    def add(question: Callable[..., dict[str, Any]]) -> None:
        own = inspect.signature(question, eval_str=True).parameters
        shared = {**_COMMON, **({"overlay": _OVERLAY} if draws else {})}

        def command(traces: list[str], **options: Any) -> None:
            asked = question(**{key: options.pop(key) for key in own})
            _look(name, traces, **options, **asked)

        keyword = inspect.Parameter.KEYWORD_ONLY
        command.__doc__, command.__name__ = question.__doc__, question.__name__
        asked_of_all = [
            inspect.Parameter(key, keyword, default=False if key == "json_output" else None, annotation=annotation)
            for key, annotation in shared.items()
        ]
        paths = inspect.Parameter("traces", keyword, annotation=Paths)
        trace_app.command(name)(with_signature(command, [paths, *own.values(), *asked_of_all]))

    return add


@_analysis("kernels")
def _kernels(by: Annotated[str, option("kernel, operator, annotation or phase.")] = "kernel") -> dict[str, Any]:
    """Add up kernels by name, operator, annotation or phase: count, total, percentiles."""
    return {"by": by}


@_analysis("communication")
def _communication(
    measured_on: Annotated[Text, option("Cluster of the run: what its network is expected to take.")] = None,
) -> dict[str, Any]:
    """Add up communication by group and size: transfer and waiting, algbw, busbw, against what is expected."""
    from simulator.interop import open_topology

    return {"cluster": None if measured_on is None else open_topology(measured_on, None)}


@_analysis("patterns")
def _patterns(
    operator: Annotated[str, option("Part of the name of the operators; all outermost ones without it.")] = "",
) -> dict[str, Any]:
    """Find sequences of kernels that operators launch again and again."""
    return {"operator": operator}


#: analyses that can be drawn into the trace
_DRAWN = ("critical-path", "counters")
#: analyses without options of their own -> their help text
_PLAIN = {
    "idle": "Divide idle time of each stream: waiting for the host, between kernels, for communication, other.",
    "launches": "Look at launches: delay, queue depth, time blocked on a full queue, kernels shorter than their launch.",
    "memory": "Add up copies and fills: bytes, time, bandwidth.",
    "stragglers": "Say how much each rank, stage and kind of operation slows the job down.",
    "critical-path": "Show the critical path, by what removing each part would save, and draw it into the trace.",
    "counters": "Sum up launch queues and bandwidth over time, and draw them into the trace.",
    "steps": "Show every step of every rank, partial ones and outliers marked.",
}
for _name, _text in _PLAIN.items():

    def _nothing() -> dict[str, Any]:
        return {}

    _nothing.__doc__ = _text
    _analysis(_name, draws=_name in _DRAWN)(_nothing)
