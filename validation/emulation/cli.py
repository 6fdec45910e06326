"""``python -m validation emulate``: a grid of hosts, rates and sizes, measured one after the other."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from simulator.errors import ConfigError, SimulatorError
from validation.emulation.job import JOBS, Job, parse_bytes
from validation.emulation.measure import (
    COLUMN_HELP,
    COLUMNS,
    Limits,
    check,
    expected_traffic_bytes,
    measure_on,
)
from validation.emulation.namespaces import Unavailable
from validation.emulation.network import emulated_network
from validation.emulation.ranks import ending_cleanly
from validation.emulation.shape import ClusterShape, parse_rate, parse_slow

_SHOWN = (
    "job",
    "nodes",
    "rate",
    "cfg",
    "bytes",
    "median_s",
    "iqr_s",
    "tx_max",
    "predicted_s",
    "relative_error",
)
_HELP = "Run real multi-host jobs on an emulated cluster.\n\nJobs: " + ", ".join(JOBS) + ".\n\nColumns:\n\n" + "\n\n".join(
    f"{names}: {text}" for names, text in COLUMN_HELP.items()
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Measured rows, or why there are none."""

    rows: list[dict[str, Any]]
    skipped: str = ""


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _straggler(text: str) -> tuple[int, float] | None:
    if not text:
        return None
    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError:
        raise ConfigError(f"{text!r} is not a straggler", hint="write RANK:FACTOR, such as 0:1.5") from None


def run_grid(shapes: Sequence[ClusterShape], jobs: Sequence[Job], limits: Limits) -> Iterator[dict[str, Any]]:
    """Measure every job on every shape, one cluster at a time.

    Raises
    ------
    SimulatorError
        Before anything runs if the whole grid would send more than ``limits`` allows.
    """
    total = sum(expected_traffic_bytes(shape, job) for shape, job in itertools.product(shapes, jobs))
    if total > limits.traffic_bytes:
        raise ConfigError(
            f"all measurements together would send about {total / 1e9:.1f} GB, more than the limit of {limits.traffic_bytes / 1e9:.1f} GB",
            hint="fewer values or --repeats, or raise --max-traffic",
        )
    for shape, job in itertools.product(shapes, jobs):
        for warning in check(shape, job, limits):
            print(f"warning: {warning}", file=sys.stderr)
    for shape in shapes:
        with emulated_network(shape) as network:
            for job in jobs:
                yield measure_on(network, job, limits)


def _collect(shapes: Sequence[ClusterShape], jobs: Sequence[Job], limits: Limits, predict: bool) -> Outcome:
    rows: list[dict[str, Any]] = []
    try:
        for row in run_grid(shapes, jobs, limits):
            if predict:
                from validation.emulation.predict import with_prediction

                row = with_prediction(row)  # noqa: PLW2901
            rows.append(row)
            print(
                f"{row['job']} on {row['nodes']} hosts at {row['rate']}: {row['median_s'] * 1e3:.2f} ms",
                file=sys.stderr,
            )
    except Unavailable as error:
        return Outcome(rows=rows, skipped=error.message)
    return Outcome(rows=rows)


def emulate(
    nodes: Annotated[str, typer.Option(help="Hosts; a list 2,4,8 measures each.")] = "2",
    rate: Annotated[
        str, typer.Option(help="Rate of every host's link as tc writes it, or none; a list measures each.")
    ] = "1gbit",
    job: Annotated[str, typer.Option(help="What to run; a list runs each.")] = "all_reduce",
    bytes_: Annotated[
        str, typer.Option("--bytes", help="Size of a collective (4194304 or 4MiB); a list measures each.")
    ] = "4MiB",
    layers: Annotated[int, typer.Option(help="Timed layers of a step.")] = 8,
    layer_bytes: Annotated[str, typer.Option(help="Parameters of one layer.")] = "2MiB",
    forward_ms: Annotated[
        float, typer.Option(help="Forward time of a layer, or of a stage and micro-batch.")
    ] = 10.0,
    backward_ms: Annotated[float, typer.Option(help="Backward time of the same.")] = 20.0,
    bucket_bytes: Annotated[str, typer.Option(help="DDP's buckets.")] = "4MiB",
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a pipeline.")] = 8,
    activation_bytes: Annotated[str, typer.Option(help="Message between pipeline stages.")] = "256KiB",
    groups: Annotated[
        int, typer.Option(help="zero3: 2 uses separate process groups for gather and scatter.")
    ] = 1,
    gloo_threads: Annotated[int, typer.Option(help="Collectives that a process group runs at once.")] = 2,
    jobs: Annotated[int, typer.Option(help="Equal jobs beside each other.")] = 1,
    straggler: Annotated[str, typer.Option(help="RANK:FACTOR on its compute time.")] = "",
    slow: Annotated[str, typer.Option(help="Slow links: HOST:RATE, several with commas.")] = "",
    racks: Annotated[int, typer.Option(help="Switches that the hosts are spread over.")] = 1,
    trunk: Annotated[str, typer.Option(help="Rate of the trunks between racks, or none.")] = "none",
    queue: Annotated[str, typer.Option(help="Length of shaped queues; 0 is the kernel's own.")] = "0",
    delay_us: Annotated[float, typer.Option(help="Added one-way delay.")] = 0.0,
    procs_per_node: Annotated[int, typer.Option(help="Ranks on every host.")] = 1,
    repeats: Annotated[int, typer.Option(help="Measured repetitions.")] = 10,
    warm_up: Annotated[int, typer.Option(help="Repetitions before.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds after which a measurement is killed.")] = 120.0,
    max_traffic: Annotated[
        str, typer.Option(help="Most that all hosts may send, over all measurements.")
    ] = "16GiB",
    predict: Annotated[bool, typer.Option("--predict", help="Simulate the same jobs and compare.")] = False,
    csv_: Annotated[Optional[Path], typer.Option("--csv", help="Write the rows to a file.")] = None,  # noqa: UP045
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document: rows, skipped.")] = False,
) -> None:
    """Run real multi-host jobs on an emulated cluster."""
    shapes = [
        ClusterShape(
            n_nodes=int(n), rate_bits_per_s=parse_rate(r), delay_s=delay_us * 1e-6, n_racks=racks, trunk_bits_per_s=parse_rate(trunk),
            slow=parse_slow(slow), queue_bytes=parse_bytes(queue),
        )
        for n, r in itertools.product(_integers(nodes), _list(rate))
    ]  # fmt: skip
    todo = [
        Job(
            name=name, n_bytes=parse_bytes(size), n_layers=layers, layer_bytes=parse_bytes(layer_bytes), forward_s=forward_ms / 1e3,
            backward_s=backward_ms / 1e3, bucket_bytes=parse_bytes(bucket_bytes), n_micro_batches=micro_batches,
            activation_bytes=parse_bytes(activation_bytes), n_groups=groups, gloo_threads=gloo_threads, n_jobs=jobs,
            straggler=_straggler(straggler), procs_per_node=procs_per_node, n_repeats=repeats, n_warm_up=warm_up,
        )
        for name in _list(job)
        for size in (_list(bytes_) if name not in ("ddp", "zero1", "zero3", "fsdp2", "gpipe", "1f1b") else _list(bytes_)[:1])
    ]  # fmt: skip
    limits = Limits(timeout_s=timeout, traffic_bytes=parse_bytes(max_traffic))
    with ending_cleanly():
        outcome = _collect(shapes, todo, limits, predict)
    if csv_ is not None:
        write_rows(csv_, outcome.rows)
    if json_:
        print(json.dumps({"rows": outcome.rows, "skipped": outcome.skipped or None}))
        return
    if outcome.skipped:
        print(f"skipped: {outcome.skipped}")
    if outcome.rows:
        print_rows(outcome.rows)


emulate.__doc__ = _HELP


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in _list(text)]
    except ValueError:
        raise ConfigError(f"{text!r} is not a number of hosts", hint="such as 4, or 2,4,8") from None


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as CSV: the documented columns, then any others."""
    names = list(COLUMNS) + sorted({name for row in rows for name in row} - set(COLUMNS))
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    except OSError as error:
        raise SimulatorError(f"{path} cannot be written: {error.strerror}") from None


def print_rows(rows: Sequence[dict[str, Any]], names: Sequence[str] = _SHOWN) -> None:
    """Print the columns that matter most, aligned; ``--csv`` and ``--json`` have them all."""
    names = [name for name in names if any(row.get(name, "") != "" for row in rows)]
    table = [names, *([_text(row.get(name, "")) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in table) for i in range(len(names))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
