"""``python -m validation emulate``: suites, or a grid of hosts, rates and sizes, one after the other."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import ClusterShape, parse_rate, parse_slow
from validation.emulation.job import JOBS, STEPS, Job, job_named, parse_bytes
from validation.emulation.judged import check_targets, groups_of, print_groups
from validation.emulation.measure import COLUMN_HELP, COLUMNS, Limits, expected_traffic_bytes, measure_on
from validation.emulation.measure import check as check_case
from validation.emulation.namespaces import UnavailableError
from validation.emulation.network import emulated_network
from validation.emulation.predict import with_prediction
from validation.emulation.ranks import ending_cleanly
from validation.emulation.suites import SUITES, Cases, suite
from validation.tables.writing import print_rows, write_rows

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
    "reason",
)
_MAX_TRAFFIC_BYTES = 64 << 30
_COLUMNS = "\n\n".join(f"{names}: {text}" for names, text in COLUMN_HELP.items())
_HELP = f"Run real multi-host jobs on an emulated cluster.\n\nJobs: {', '.join(JOBS)}.\n\nColumns:\n\n{_COLUMNS}"


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


def _traffic_bytes(cases: Cases) -> int:
    return sum(expected_traffic_bytes(shape, job) for shape, jobs in cases for job in jobs)


def run_cases(cases: Cases, limits: Limits) -> Iterator[dict[str, Any]]:
    """Measure jobs on clusters, one cluster at a time."""
    total = _traffic_bytes(cases)
    if total > limits.traffic_bytes:
        raise ConfigError(
            f"all measurements together would send about {total / 1e9:.1f} GB, more than the limit of "
            f"{limits.traffic_bytes / 1e9:.1f} GB",
            hint="fewer values or --repeats, or raise --max-traffic",
        )
    for shape, jobs in cases:
        for job in jobs:
            for warning in check_case(shape, job, limits):
                print(f"warning: {warning}", file=sys.stderr)
    for shape, jobs in cases:
        with emulated_network(shape) as network:
            for job in jobs:
                yield from measure_on(network, job, limits)


def _collect(cases: Cases, limits: Limits, predict: bool) -> Outcome:
    rows: list[dict[str, Any]] = []
    try:
        for row in run_cases(cases, limits):
            rows.append(with_prediction(row) if predict else row)
            text = f"{row['job']} {row['cfg']} on {row['nodes']} hosts at {row['rate']}: {row['median_s'] * 1e3:.2f} ms"
            error = f", predicted {rows[-1]['relative_error']:+.1%}" if "relative_error" in rows[-1] else ""
            print(text + error, file=sys.stderr)
    except UnavailableError as error:
        return Outcome(rows=rows, skipped=error.message)
    return Outcome(rows=rows)


def emulate(
    nodes: Annotated[str, typer.Option(help="Hosts; a list 2,4,8 measures each.")] = "2",
    rate: Annotated[str, typer.Option(help="Rate of hosts' links as tc writes it, or none; or a list.")] = "1gbit",
    job: Annotated[str, typer.Option(help="What to run; a list runs each.")] = "all_reduce",
    bytes_: Annotated[str, typer.Option("--bytes", help="Size of a collective (4194304 or 4MiB), or a list.")] = "4MiB",
    layers: Annotated[int, typer.Option(help="Timed layers of a step.")] = 8,
    layer_bytes: Annotated[str, typer.Option(help="Parameters of one layer.")] = "2MiB",
    forward_ms: Annotated[float, typer.Option(help="Forward of a layer, or of a stage and micro-batch.")] = 10.0,
    backward_ms: Annotated[float, typer.Option(help="Backward of the same.")] = 20.0,
    bucket_bytes: Annotated[str, typer.Option(help="DDP's buckets.")] = "4MiB",
    micro_batches: Annotated[int, typer.Option(help="Micro-batches of a pipeline.")] = 8,
    activation_bytes: Annotated[str, typer.Option(help="Message between pipeline stages.")] = "256KiB",
    groups: Annotated[int, typer.Option(help="zero3: 2 gathers and scatters on separate process groups.")] = 1,
    gap_ms: Annotated[
        float, typer.Option(help="all_gather, all_to_all: each rank begins so much later; 0: as it comes.")
    ] = 1.0,
    gloo_threads: Annotated[
        int,
        typer.Option(help="Collectives that a process group runs at once; 0: 2, or 1 for zero3 on one group, as NCCL."),
    ] = 0,
    jobs: Annotated[int, typer.Option(help="Equal jobs beside each other.")] = 1,
    beside: Annotated[str, typer.Option(help="Another job meanwhile: 'ddp L4x4MiB f20 b20 bucket4'.")] = "",
    straggler: Annotated[str, typer.Option(help="RANK:FACTOR on its compute time.")] = "",
    slow: Annotated[str, typer.Option(help="Slow links: HOST:RATE, several with commas.")] = "",
    racks: Annotated[int, typer.Option(help="Switches that the hosts are spread over.")] = 1,
    trunk: Annotated[str, typer.Option(help="Rate of the trunks between racks, or none.")] = "none",
    queue: Annotated[str, typer.Option(help="Length of shaped queues; 0 is the kernel's own.")] = "0",
    delay_us: Annotated[float, typer.Option(help="Added one-way delay.")] = 0.0,
    procs_per_node: Annotated[int, typer.Option(help="Ranks on every host.")] = 1,
    repeats: Annotated[int, typer.Option(help="Measured repetitions.")] = 10,
    warm_up: Annotated[int, typer.Option(help="Repetitions before.")] = 3,
    suite_: Annotated[str, typer.Option("--suite", help=f"Instead of all above: {', '.join(SUITES)}.")] = "",
    dilation: Annotated[float, typer.Option(help="Run time slower, links and layers alike, for more ranks.")] = 1.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which one measurement is killed.")] = 120.0,
    max_traffic: Annotated[
        str, typer.Option(help="Most that all hosts may send, all measurements together; 64GiB, or what a suite needs.")
    ] = "",
    predict: Annotated[bool, typer.Option("--predict", help="Simulate the same jobs and compare.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 5 if predictions miss their targets.")] = False,
    csv: Annotated[Optional[Path], typer.Option(help="Write the rows to a file.")] = None,  # noqa: UP045
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document: rows, groups, skipped.")] = False,
) -> None:
    """Run real multi-host jobs on an emulated cluster."""
    if suite_:
        cases = suite(suite_)
    else:
        base = Job(
            name="all_reduce", n_layers=layers, layer_bytes=parse_bytes(layer_bytes), forward_s=forward_ms / 1e3,
            backward_s=backward_ms / 1e3, bucket_bytes=parse_bytes(bucket_bytes), n_micro_batches=micro_batches,
            activation_bytes=parse_bytes(activation_bytes), n_groups=groups, gap_s=gap_ms / 1e3, gloo_threads=gloo_threads or 2,
            n_jobs=2 if beside else jobs, beside=replace(job_named(beside), n_repeats=8 * repeats) if beside else None,
            straggler=_straggler(straggler), procs_per_node=procs_per_node, n_repeats=repeats, n_warm_up=warm_up,
        )  # fmt: skip
        shapes = _shapes(nodes, rate, delay_us, racks, trunk, slow, queue)
        cases = [(shape, _jobs(base, job, bytes_, is_free=not gloo_threads)) for shape in shapes]
    needed = _traffic_bytes(cases) if suite_ else 0  # a suite may send what it needs
    most_bytes = parse_bytes(max_traffic) if max_traffic else max(_MAX_TRAFFIC_BYTES, needed)
    allowed = Limits(timeout_s=timeout, traffic_bytes=most_bytes)
    _run(_dilated(cases, dilation), allowed, predict, check, csv, json_, dilation)


def _dilated(cases: Cases, factor: float) -> Cases:
    """Let time run slower for all."""
    if factor < 1.0:
        raise ConfigError(f"--dilation {factor:g}: time can only run slower", hint="1 or more")
    return [(shape.dilated(factor), [job.dilated(factor) for job in jobs]) for shape, jobs in cases]


emulate.__doc__ = _HELP


def _run(
    cases: Cases, limits: Limits, predict: bool, check: bool, csv: Path | None, as_json: bool, dilation: float
) -> None:
    with ending_cleanly():
        outcome = _collect(cases, limits, predict or check)
    if dilation > 1.0:
        for row in outcome.rows:
            whole = f"{float(row['median_s']) / dilation:.6g} s"
            print(f"{row['job']} on {row['nodes']} hosts: {whole} in time that is not dilated", file=sys.stderr)
    if csv is not None:
        write_rows(csv, COLUMNS, outcome.rows)
    _report(outcome, check, as_json)


def _shapes(
    nodes: str, rate: str, delay_us: float, racks: int, trunk: str, slow: str, queue: str
) -> list[ClusterShape]:
    return [
        ClusterShape(
            n_nodes=n_nodes,
            rate_bits_per_s=parse_rate(one_rate),
            delay_s=delay_us * 1e-6,
            n_racks=racks,
            trunk_bits_per_s=parse_rate(trunk),
            slow=parse_slow(slow),
            queue_bytes=parse_bytes(queue),
        )
        for n_nodes, one_rate in itertools.product(_integers(nodes), _list(rate))
    ]


def _jobs(base: Job, names: str, sizes: str, *, is_free: bool) -> list[Job]:
    """Return a job of each name and size; ``is_free`` if it is not said how many collectives run at once."""
    jobs: list[Job] = []
    for name in _list(names):
        for size in _list(sizes)[:1] if name in STEPS else _list(sizes):
            one = replace(base, name=name, n_bytes=parse_bytes(size))
            jobs.append(replace(one, gloo_threads=1) if is_free and one.is_zero3_on_one_group else one)
    return jobs


def _report(outcome: Outcome, check: bool, as_json: bool) -> None:
    groups = groups_of(outcome.rows)
    if as_json:
        document = {
            "rows": outcome.rows,
            "groups": [group.to_dict() for group in groups],
            "skipped": outcome.skipped or None,
        }
        print(json.dumps(document))
    else:
        if outcome.skipped:
            print(f"skipped: {outcome.skipped}")
        if outcome.rows:
            print_rows(outcome.rows, _SHOWN)
        if groups:
            print()
            print_groups(groups)
    if check:
        check_targets(groups)


def _integers(text: str) -> list[int]:
    try:
        return [int(part) for part in _list(text)]
    except ValueError:
        raise ConfigError(f"{text!r} is not a number of hosts", hint="such as 4, or 2,4,8") from None
