"""One call from a trace to what a replay finds: replay as measured, change, replay again."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isfinite

from simulator.analysis.confidence import Confidence
from simulator.errors import TraceError
from simulator.replay.changes_of_gradients import buckets, overlap, serialise
from simulator.replay.changes_of_kernels import on_device, scale_host, scale_kernels, shipped_device
from simulator.replay.changes_of_links import on_topology, scale_communication
from simulator.replay.changes_of_ranks import (
    add_straggler,
    data_parallel,
    ideal,
    infer_missing,
    largest_group,
    remove_straggler,
)
from simulator.replay.operator_replay import OperatorReplay, replay_operators
from simulator.replay.replayed import Replay, replay
from simulator.replay.stage_replay import StageMessages, StageReplay, replay_stages
from simulator.replay.waiting import replay_confidence
from simulator.topology import Topology
from simulator.topology.device import Device
from simulator.trace_io.reconstruct import Reconstruction, noted, reconstruct
from simulator.trace_io.trace_record import MAX_RANKS, Trace

#: largest factor on times, and longest delay in seconds: nanoseconds of hours times this still are int64
_MOST = 1e6


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
    bucket_bytes : int, optional
        Gradient all-reduces are merged up to this size, larger ones split.
    dp : int, optional
        Ranks of the largest group.
    ideal : bool
        Every operation takes the mean of its type.
    missing_ranks : bool
        Recorded ranks stand for those that were not.

    Raises
    ------
    TraceError
        If a number cannot be meant, or a choice has no effect without another.
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
    bucket_bytes: int | None = None
    dp: int | None = None
    ideal: bool = False
    missing_ranks: bool = False

    def __post_init__(self) -> None:
        longer = {"kernels": self.kernels, "host": self.host}
        for name, factor in longer.items():
            if not 0 <= factor <= _MOST:
                raise TraceError(f"{name} {factor:g}: is no factor from 0 to {_MOST:g}", hint="2 takes twice as long")
        if not (self.bandwidth >= 1 / _MOST and isfinite(self.bandwidth)):
            raise TraceError(f"bandwidth {self.bandwidth:g}: is no factor from {1 / _MOST:g}", hint="2 doubles it")
        for rank, factor, delay_s in self.add_straggler:
            if not (0 <= factor <= _MOST and 0 <= delay_s <= _MOST):
                raise TraceError(
                    f"a straggler on rank {rank} is late by a factor or a time, not by {factor:g} and {delay_s:g} s"
                )
        if not abs(self.latency_s) <= _MOST:
            raise TraceError(f"latency {self.latency_s:g} s: is no time that a transfer takes")
        if self.bucket_bytes is not None and self.bucket_bytes <= 0:
            raise TraceError(f"buckets of {self.bucket_bytes} bytes: a bucket holds something", hint="like 25MB")
        if self.dp is not None and not 2 <= self.dp <= MAX_RANKS:
            raise TraceError(f"dp {self.dp}: a group of ranks that communicates has at least two, at most {MAX_RANKS}")
        if self.measured_on is not None and self.topology is None:
            raise TraceError(
                "the cluster of the trace matters only where another takes its place", hint="add --topology"
            )
        if self.measured_device is not None and self.device is None:
            raise TraceError("the device of the trace matters only where another takes its place", hint="add --gpu")

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
    if what.bucket_bytes is not None:
        whole = buckets(whole, what.bucket_bytes)
    if what.dp is not None:
        whole = data_parallel(whole, what.dp, what.topology)
    if what.overlap is not None:
        whole = overlap(whole) if what.overlap else serialise(whole)
    return _with_warnings(whole, what)


def _with_warnings(whole: Reconstruction, what: WhatIf) -> Reconstruction:
    """Note what a change left as it was though one might expect otherwise."""
    recorded = next((rank.device for rank in whole.trace.ranks if rank.device), "")
    if what.topology is not None and what.device is None:
        new, old = what.topology.device(0).name, shipped_device(recorded) if recorded else None
        if old is None or old.name != new:
            return noted(whole, f"kernels keep the times measured on {recorded or 'the recorded device'}: --gpu {new} "
                         "rescales them")  # fmt: skip
    return whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a replay found.

    Parameters
    ----------
    trace : Trace
        As read.
    identity : Replay, optional
        Without any change; None for stage times.
    changed : Replay, optional
        With the changes, if there are any.
    confidence : Confidence, optional
        Interval of the changed replay, where something that was not recorded enters it.
    stages : StageReplay, optional
        For traces that hold stage times only.
    operators : OperatorReplay, optional
        For execution traces, which hold no times.
    """

    trace: Trace
    identity: Replay | None = None
    changed: Replay | None = None
    confidence: Confidence | None = None
    stages: StageReplay | None = None
    operators: OperatorReplay | None = None

    @property
    def result(self) -> Replay:
        """The replay that was asked for."""
        found = self.changed or self.identity
        assert found is not None, "stage times have no operations"
        return found


def what_if(
    trace: Trace, what: WhatIf | None = None, *, schedule: str = "1f1b", messages: StageMessages | None = None
) -> Outcome:
    """Replay a trace, with or without changes.

    Parameters
    ----------
    trace : Trace
    what : WhatIf, optional
    schedule, messages : str, StageMessages
        For stage times: the pipeline schedule, and what a message between stages costs.

    Raises
    ------
    TraceError
        If the trace cannot be replayed, or a change does not apply to it.
    """
    what = what or WhatIf()
    if trace.stage_times is not None:
        if replace(what, topology=None).changes:
            raise TraceError(
                "stage times can be replayed through other schedules and over other links only",
                hint="--schedule, --message, --topology",
            )
        sent = replace(messages or StageMessages(), topology=what.topology)
        return Outcome(trace=trace, stages=replay_stages(trace.stage_times, schedule=schedule, messages=sent))
    if messages is not None or schedule != "1f1b":
        raise TraceError(
            f"a {trace.format} trace holds its own schedule and messages",
            hint="--schedule and --message are for stage times",
        )
    if any(rank.operators for rank in trace.ranks):
        if what.device is None:
            raise TraceError(
                "an execution trace holds no durations",
                hint="price it with --gpu DEVICE --topology CLUSTER, or give the Kineto files of the same step beside it",
            )
        if replace(what, topology=None, measured_on=None, device=None, measured_device=None).changes:
            raise TraceError(
                "an execution trace holds no times that could be changed", hint="only --gpu and --topology apply to it"
            )
        return Outcome(trace=trace, operators=replay_operators(trace, what.device, what.topology))
    whole = reconstruct(trace)
    identity = replay(whole)
    if not what.changes:
        return Outcome(trace=trace, identity=identity)
    edited = edit(whole, what)
    changed = replay(edited)
    groups = (largest_group(whole), what.dp or largest_group(whole))
    sure = replay_confidence(edited, changed, groups=groups, devices=(what.device, what.measured_device))
    return Outcome(trace=trace, identity=identity, changed=changed, confidence=sure)
