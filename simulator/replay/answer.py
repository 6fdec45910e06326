"""One call from a trace to the documented answer: replay as measured, edit, replay again, say what changed."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from simulator.errors import TraceError
from simulator.replay.machine_whatif import on_device, on_topology
from simulator.replay.network_whatif import (
    buckets,
    data_parallel,
    infer_missing,
    overlap,
    scale_communication,
    serialise,
)
from simulator.replay.operators import OperatorReplay, replay_operators
from simulator.replay.run import Replay, replay
from simulator.replay.stages import StageReplay, replay_stages
from simulator.replay.whatif import add_straggler, ideal, remove_straggler, scale_host, scale_kernels
from simulator.topology import Topology
from simulator.topology.device import Device
from simulator.trace_io.analysis import Analysis, analyse
from simulator.trace_io.critical_path import critical_path
from simulator.trace_io.from_timeline import from_timeline
from simulator.trace_io.reconstruct import Reconstruction, reconstruct
from simulator.trace_io.record import Trace
from simulator.units import to_s


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What to change; everything left at its default stays as measured.

    Parameters
    ----------
    topology, measured_on : Topology, optional
        New machine for the communication, and the one that was recorded.
    device, measured_device : Device, optional
        New accelerator for the kernels, and the one that was recorded; both or neither.
    bandwidth : float
        Factor on the bandwidth of every transfer.
    latency_s : float
        Added to every transfer.
    kernels, host : float
        Factors on kernel durations and host time.
    remove_straggler : tuple of int
        Ranks made as fast as the median of the others.
    add_straggler : tuple of (int, float, float)
        (rank, factor on its kernels, seconds of delay per step).
    overlap : bool, optional
        True: gradient reductions only block the optimizer; False: nothing overlaps.
    bucket_bytes : int
        Gradient all-reduces are merged up to this size; 0 leaves them.
    dp : int
        Ranks of the largest group; 0 leaves it.
    ideal : bool
        Every operation takes the mean of its type.
    missing_ranks : bool
        Recorded ranks stand for those that were not.
    """

    topology: Topology | None = None
    measured_on: Topology | None = None
    device: Device | None = None
    measured_device: Device | None = None
    bandwidth: float = 1.0
    latency_s: float = 0.0
    kernels: float = 1.0
    host: float = 1.0
    remove_straggler: tuple[int, ...] = ()
    add_straggler: tuple[tuple[int, float, float], ...] = ()
    overlap: bool | None = None
    bucket_bytes: int = 0
    dp: int = 0
    ideal: bool = False
    missing_ranks: bool = False

    @property
    def changes(self) -> bool:
        """Whether anything differs from the measured run."""
        return any(getattr(self, f.name) != f.default for f in fields(self) if not f.name.startswith("measured"))


def edit(whole: Reconstruction, what: WhatIf) -> Reconstruction:
    """Apply every change, in a fixed order: ranks, kernels, host, transfers, groups, overlap.

    Raises
    ------
    TraceError
        If a change needs something that the trace does not hold.
    """
    if what.missing_ranks:
        whole = infer_missing(whole)
    if what.ideal:
        whole = ideal(whole)
    for rank in what.remove_straggler:
        whole = remove_straggler(whole, rank)
    for rank, factor, delay_s in what.add_straggler:
        whole = add_straggler(whole, rank, compute_factor=factor, delay_s=delay_s)
    if what.device is not None:
        if what.measured_device is None:
            raise TraceError("rescaling kernels needs the device of the trace", hint="name it with --measured-gpu")
        whole = on_device(whole, what.device, what.measured_device)
    if what.kernels != 1.0:
        whole = scale_kernels(whole, lambda rank, name: what.kernels, f"kernels take {what.kernels:g} times as long")
    if what.host != 1.0:
        whole = scale_host(whole, what.host)
    if what.topology is not None:
        whole = on_topology(whole, what.topology, measured_on=what.measured_on)
    if what.bandwidth != 1.0 or what.latency_s:
        whole = scale_communication(whole, bandwidth=what.bandwidth, latency_s=what.latency_s)
    if what.bucket_bytes:
        whole = buckets(whole, what.bucket_bytes)
    if what.dp:
        whole = data_parallel(whole, what.dp)
    if what.overlap is not None:
        whole = overlap(whole) if what.overlap else serialise(whole)
    return whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Answer:
    """What a replay found.

    Parameters
    ----------
    trace : Trace
        As read.
    identity : Replay, optional
        Without any change; None for stage times.
    changed : Replay, optional
        With the changes, if there are any.
    stages : StageReplay, optional
        For traces that hold stage times only.
    operators : OperatorReplay, optional
        For execution traces, which hold no times.
    """

    trace: Trace
    identity: Replay | None = None
    changed: Replay | None = None
    stages: StageReplay | None = None
    operators: OperatorReplay | None = None

    @property
    def result(self) -> Replay:
        """The replay that was asked for."""
        found = self.changed or self.identity
        assert found is not None, "stage times have no operations"
        return found


def answer(
    trace: Trace, what: WhatIf | None = None, *, schedule: str = "1f1b", message_s: float | None = None
) -> Answer:
    """Replay a trace, with or without changes.

    Parameters
    ----------
    trace : Trace
    what : WhatIf, optional
    schedule, message_s : str, float
        For stage times: the pipeline schedule, and what a message between stages costs.

    Raises
    ------
    TraceError
        If the trace cannot be replayed, or a change does not apply to it.
    """
    what = what or WhatIf()
    if trace.stage_times is not None:
        if what.changes:
            raise TraceError("stage times can be replayed through other schedules only", hint="--schedule, --message")
        return Answer(trace=trace, stages=replay_stages(trace.stage_times, schedule=schedule, message_s=message_s))
    if any(rank.operators for rank in trace.ranks):
        if what.device is None:
            raise TraceError(
                "an execution trace holds no durations",
                hint="price it with --gpu DEVICE --topology CLUSTER, or give the Kineto files of the same step beside it",
            )
        return Answer(trace=trace, operators=replay_operators(trace, what.device, what.topology))
    whole = reconstruct(trace)
    identity = replay(whole)
    changed = replay(edit(whole, what)) if what.changes else None
    return Answer(trace=trace, identity=identity, changed=changed)


def to_json(found: Answer) -> dict[str, Any]:
    """Return the documented answer as plain data.

    The keys are ``format``, ``world_size``, ``recorded_ranks``, ``iteration_time_s`` (mean over steps, slowest rank of
    each), ``measured_iteration_time_s``, ``identity_error`` (largest relative error of any step and rank of the
    unchanged replay), ``speedup``, ``breakdown``, ``steps``, ``critical_path``, ``notes``.
    """
    if found.stages is not None:
        return _stages_json(found.trace, found.stages)
    if found.operators is not None:
        return _operators_json(found.trace, found.operators)
    assert found.identity is not None
    result = found.result
    simulated, measured = _iteration_s(result.simulated_usage), _iteration_s(found.identity.measured_usage)
    path = critical_path(result.compiled.reconstruction, result.times)
    notes = (*found.trace.notes, *(n for rank in found.trace.ranks for n in rank.notes))
    return {
        "format": found.trace.format,
        "world_size": found.trace.world_size,
        "recorded_ranks": [rank.rank for rank in found.trace.ranks],
        "iteration_time_s": simulated,
        "measured_iteration_time_s": measured,
        "identity_error": max((abs(error) for *_, error in found.identity.errors()), default=0.0),
        "speedup": measured / simulated if simulated else None,
        "breakdown": _breakdown(result.simulated_usage),
        "measured_breakdown": _breakdown(found.identity.measured_usage),
        "steps": _steps(found.identity, result),
        "critical_path": {
            "by_kind_s": dict(path.by_kind_s),
            "by_rank_s": {str(rank): seconds for rank, seconds in path.by_rank_s.items()},
            "longest_s": dict(list(path.by_name_s.items())[:10]),
        },
        "notes": [*dict.fromkeys((*notes, *result.compiled.reconstruction.notes))],
    }


def _iteration_s(analysis: Analysis) -> float:
    """Mean over the steps of the slowest rank's length."""
    steps: dict[int, int] = {}
    for usage in analysis.usages:
        steps[usage.step] = max(steps.get(usage.step, 0), usage.duration_ns)
    return float(np.mean(list(steps.values()))) / 1e9 if steps else 0.0


def _breakdown(analysis: Analysis) -> dict[str, float]:
    names = ("compute", "exposed", "overlapped", "copy", "idle", "waiting")
    return {
        f"{name}_s": float(np.mean([getattr(usage, f"{name}_ns") for usage in analysis.usages] or [0])) / 1e9
        for name in names
    }


def _steps(identity: Replay, result: Replay) -> list[dict[str, Any]]:
    measured = {(usage.rank, usage.step): usage for usage in identity.measured_usage.usages}
    rows = []
    for usage in result.simulated_usage.usages:
        before = measured.get((usage.rank, usage.step))
        rows.append(
            {
                "rank": usage.rank,
                "step": usage.step,
                "measured_s": None if before is None else before.duration_ns / 1e9,
                "simulated_s": usage.duration_ns / 1e9,
                "compute_s": usage.compute_ns / 1e9,
                "exposed_s": usage.exposed_ns / 1e9,
                "overlapped_s": usage.overlapped_ns / 1e9,
                "idle_s": usage.idle_ns / 1e9,
                "waiting_s": usage.waiting_ns / 1e9,
                "waited_for": {str(rank): ns / 1e9 for rank, ns in usage.waited_for.items()},
            }
        )
    return rows


def _operators_json(trace: Trace, operators: OperatorReplay) -> dict[str, Any]:
    usage = analyse(from_timeline(operators.timeline))
    return {
        "format": trace.format,
        "world_size": trace.world_size,
        "recorded_ranks": [rank.rank for rank in trace.ranks],
        "iteration_time_s": to_s(operators.timeline.makespan_ps),
        "measured_iteration_time_s": None,
        "breakdown": _breakdown(usage),
        "n_kernels": operators.n_kernels,
        "n_communications": operators.n_communications,
        "notes": [
            *trace.notes,
            f"an execution trace holds no times: kernels, host and links of {operators.device} are predicted",
        ],
    }


def _stages_json(trace: Trace, stages: StageReplay) -> dict[str, Any]:
    return {
        "format": trace.format,
        "world_size": trace.world_size,
        "layout": dict(trace.layout),
        "iteration_time_s": float(np.mean(stages.simulated_s)),
        "measured_iteration_time_s": float(np.mean(stages.measured_s)),
        "relative_error": stages.error,
        "compute_only_s": stages.compute_only_s,
        "message_s": stages.message_s,
        "steps": [
            {"step": i, "measured_s": m, "simulated_s": s}
            for i, m, s in zip(stages.iterations, stages.measured_s, stages.simulated_s, strict=True)
        ],
        "notes": [*trace.notes, f"time of a message between stages: {stages.basis}"],
    }
