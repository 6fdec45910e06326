"""Runs jobs on an emulated cluster and turns what the ranks saw into measured rows."""

from __future__ import annotations

import itertools
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import MAX_TOTAL_BITS_PER_S, ClusterShape
from validation.emulation.job import COLLECTIVES, Job
from validation.emulation.namespaces import enter
from validation.emulation.network import EmulatedNetwork
from validation.emulation.ranks import FOLDER_PREFIX, run_ranks
from validation.processors import Watch
from validation.tables.statistics import summarize

#: columns of a measured row, and what they hold
COLUMN_HELP = {
    "job": "a job of this package; two-X are two jobs X on one network, pair-X is X beside the other job of cfg",
    "nodes, world": "hosts and ranks",
    "rate, slow, trunk": "link rates as tc writes them, headers included; slow: HOST:RATE",
    "delay_us": "added one-way delay",
    "gloo_threads": "collectives that one process group runs at once",
    "procs_per_node": "ranks on every host",
    "cc, rr": "TCP congestion control; 1 if ranks ran at real-time priority",
    "racks, queue_kb": "switches, and the length of shaped queues in KiB (0: the kernel's)",
    "cfg": "layers, compute times, buckets, groups of a step; alone or together for two jobs; gap: ms after which each "
    "rank of an all_gather or all_to_all begins, after the one before it",
    "bytes": "size of a collective, of a step's parameters, of a pipeline's message",
    "median_s, iqr_s, min_s, max_s, repeats": "from the last rank's start to the last rank's end; of pair-X the mean "
    "time from one step's start to the next while the other job runs",
    "tx_max, tx_min, rx_max": "bytes sent and received by a host per repetition",
    "cpu_all, cpu_own, load1": "busy share of all processors, share used by the ranks, load average before",
    "buckets": "DDP's gradient buckets in bytes",
    "fwd_s, bwd_s, bwd_compute_s, exposed_s": "median phases of a step on the slowest rank",
}
COLUMNS = tuple(name for names in COLUMN_HELP for name in names.split(", "))
#: what the delaying switch carries
_MAX_DELAYED_BITS_PER_S = 2e9
#: bytes that a host sends over the job's size, at most
_TRAFFIC_FACTORS = {"zero1": 3, "zero3": 4, "fsdp2": 4, "broadcast": 4} | dict.fromkeys(
    ("all_reduce", "reduce_scatter", "ddp", "reduce"), 2
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one measurement may cost."""

    timeout_s: float = 120.0  #: After this the ranks are killed.
    traffic_bytes: int = 8 << 30  #: Most bytes that all hosts together may send.


def expected_traffic_bytes(shape: ClusterShape, job: Job) -> int:
    """Bytes that all hosts will send, repetitions and warm-up included, to within a small factor."""
    world = shape.n_nodes * job.procs_per_node
    factor = 2 * job.n_micro_batches if job.is_pipeline else _TRAFFIC_FACTORS.get(job.name, 1)
    per_step = factor * job.size_bytes
    return per_step * world * (job.n_repeats + job.n_warm_up)


def expected_duration_s(shape: ClusterShape, job: Job) -> float:
    """Lower bound of the time that a measurement takes: its bytes at the slowest link, and its compute."""
    rates = [shape.rate_of(host) or 10e9 for host in range(shape.n_nodes)]
    slowest = min([*rates, shape.trunk_bits_per_s or 10e9])
    transfer_s = expected_traffic_bytes(shape, job) / shape.n_nodes * 8 / slowest * job.n_jobs
    passes = job.n_micro_batches if job.is_pipeline else job.n_layers
    compute_s = passes * (job.forward_s + job.backward_s) * (job.straggler[1] if job.straggler else 1.0)
    return transfer_s + (compute_s * (job.n_repeats + job.n_warm_up) if job.is_step else 0.0)


def check(shape: ClusterShape, job: Job, limits: Limits) -> list[str]:
    """Refuse what cannot run or would cost too much; return warnings about what distorts a measurement."""
    world = shape.n_nodes * job.procs_per_node
    if world < 2:
        raise ConfigError(f"job '{job.name}' needs at least 2 ranks, there are {world}", hint="--nodes 2")
    if job.straggler and not 0 <= job.straggler[0] < world:
        raise ConfigError(f"rank {job.straggler[0]} cannot be the straggler: ranks are 0 to {world - 1}")
    if len(job.ranks_of_job(0, world, shape.n_racks)) < 2:
        raise ConfigError(
            f"{job.n_jobs} jobs on {world} ranks in {shape.n_racks} racks leave fewer than 2 ranks to each"
        )
    traffic = expected_traffic_bytes(shape, job)
    if traffic > limits.traffic_bytes:
        raise ConfigError(
            f"{job.name} would send about {traffic / 1e9:.1f} GB, more than the limit of "
            f"{limits.traffic_bytes / 1e9:.1f} GB",
            hint="fewer --bytes or --repeats, or raise --max-traffic",
        )
    duration_s = expected_duration_s(shape, job)
    if duration_s > limits.timeout_s:
        raise ConfigError(f"{job.name} needs at least {duration_s:.0f} s, more than --timeout {limits.timeout_s:g}")
    warnings = []
    if shape.total_bits_per_s > MAX_TOTAL_BITS_PER_S:
        warnings.append(
            f"{shape.n_nodes} hosts at these rates exceed {MAX_TOTAL_BITS_PER_S / 1e9:g} Gbit/s in all: "
            "the processors may set the pace"
        )
    if shape.delay_s and shape.total_bits_per_s > _MAX_DELAYED_BITS_PER_S:
        warnings.append(
            f"frames are delayed one by one: {shape.n_nodes} hosts at these rates exceed "
            f"{_MAX_DELAYED_BITS_PER_S / 1e9:g} Gbit/s in all"
        )
    if job.name in COLLECTIVES and job.n_bytes < 256 * 1024:
        warnings.append("below 256 KiB the shapers' bursts distort times")
    return warnings


def measure_on(network: EmulatedNetwork, job: Job, limits: Limits) -> list[dict[str, Any]]:
    """Run a job on a cluster that is up; return its row, and that of the job beside it."""
    try:
        from validation.emulation import runtime
    except ImportError as error:
        raise ConfigError(f"real jobs need PyTorch: {error}", hint="pip install torch") from None
    shape = network.shape
    world = shape.n_nodes * job.procs_per_node
    load = os.getloadavg()[0]
    if load > 2 * (os.cpu_count() or 1):
        print(f"warning: the machine is busy (load {load:.1f}): times may be longer", file=sys.stderr)
    watch = Watch()
    with tempfile.TemporaryDirectory(prefix=f"{FOLDER_PREFIX}{os.getpid()}-") as folder:
        store = str(Path(folder, "store"))
        answers = run_ranks(
            world,
            lambda rank: runtime.run_rank(
                rank, world, job, n_racks=shape.n_racks, store_path=store, timeout_s=limits.timeout_s
            ),
            enter_host=lambda rank: enter(network.hosts[rank // job.procs_per_node]),
            timeout_s=limits.timeout_s,
            real_time=True,
        )
    cpu_all, cpu_own = (round(share, 3) for share in watch.shares())
    return [
        row | {"cpu_all": cpu_all, "cpu_own": cpu_own, "load1": round(load, 2)} for row in rows_of(shape, job, answers)
    ]


def rows_of(shape: ClusterShape, job: Job, answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Turn what all ranks answered into the row of a job, and of the job beside it with that job's own ranks."""
    if job.beside is None:
        return [_row(shape, job, answers, durations_s([answer["times"] for answer in answers if answer["times"]]))]
    other = replace(job.beside, n_jobs=2, beside=replace(job, n_jobs=1, beside=None))
    sides = [[answers[rank] for rank in job.ranks_of_job(index, len(answers), shape.n_racks)] for index in (0, 1)]
    times = [[answer["times"] for answer in side] for side in sides]
    return [_row(shape, job, sides[0], paces_s(*times)), _row(shape, other, sides[1], paces_s(*times[::-1]))]


def _row(
    shape: ClusterShape, job: Job, answers: Sequence[dict[str, Any]], durations: Sequence[float]
) -> dict[str, Any]:
    """Write down what these ranks answered, those of one job where it has its own pace."""
    found = summarize(durations)
    hosts = answers[:: job.procs_per_node]
    sent = [round(host["sent_bytes"] / job.n_repeats) for host in hosts]
    received = [round(host["received_bytes"] / job.n_repeats) for host in hosts]
    row: dict[str, Any] = dict.fromkeys(COLUMNS, "")
    row |= {
        "job": f"pair-{job.name}" if job.beside else f"two-{job.name}" if job.n_jobs == 2 else job.name,
        "nodes": shape.n_nodes,
        "world": shape.n_nodes * job.procs_per_node,
        "rate": rate_text(shape.rate_bits_per_s),
        "delay_us": shape.delay_s * 1e6,
        "gloo_threads": job.gloo_threads,
        "procs_per_node": job.procs_per_node,
        "cc": shape.congestion,
        "rr": int(all(answer["real_time"] for answer in answers)),
        "slow": ",".join(f"{host}:{rate_text(rate)}" for host, rate in shape.slow),
        "racks": shape.n_racks,
        "trunk": rate_text(shape.trunk_bits_per_s),
        "queue_kb": shape.queue_bytes / 1024,
        "cfg": job.configuration(),
        "bytes": job.size_bytes,
        "median_s": round(statistics.fmean(durations) if job.beside else found.median_s, 7),
        "iqr_s": round(found.upper_s - found.lower_s, 7),
        "min_s": round(min(durations), 7),
        "max_s": round(max(durations), 7),
        "repeats": job.n_repeats,
        "tx_max": max(sent),
        "tx_min": min(sent),
        "rx_max": max(received),
    }
    if job.name == "ddp":
        row["buckets"] = ", ".join(map(str, answers[0]["buckets"]))
    for name in ("fwd_s", "bwd_s", "bwd_compute_s", "exposed_s"):
        medians = [statistics.median(answer["phases"][name]) for answer in answers if name in answer["phases"]]
        if medians:
            row[name] = round(max(medians), 7)
    return row


def durations_s(times: Sequence[Sequence[tuple[float, float]]]) -> list[float]:
    """Duration of every repetition: from the last rank's start to the last rank's end.

    ``times[rank][repetition]`` is start and end on the clock that all share.
    """
    return [max(end for _, end in one) - max(start for start, _ in one) for one in zip(*times, strict=True)]


def paces_s(
    own: Sequence[Sequence[tuple[float, float]]], other: Sequence[Sequence[tuple[float, float]]]
) -> list[float]:
    """Time from the start of each step to that of the next, of those that lie wholly beside another job's.

    ``own`` and ``other`` have for each job start and end by rank and repetition, on the clock that all share.
    """
    over_s = min(times[-1][1] for times in other)
    starts = [max(start for start, _ in one) for one in zip(*own, strict=True)]
    beside = [one for one in starts if one <= over_s]
    if len(beside) < 3:
        raise ConfigError("the other job was over too soon", hint="let it repeat more often")
    return [later - earlier for earlier, later in itertools.pairwise(beside)]


def rate_text(bits_per_s: float | None) -> str:
    """Write a rate as tc does.

    Examples
    --------
    >>> rate_text(2.5e9), rate_text(1e8), rate_text(None)
    ('2.5gbit', '100mbit', 'none')
    """
    if bits_per_s is None:
        return "none"
    return f"{bits_per_s / 1e9:g}gbit" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:g}mbit"
