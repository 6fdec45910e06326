"""One call from a trace to what a replay finds: replay as measured, change, replay again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import hypot, log, sqrt
from typing import Any

import numpy as np

from simulator.analysis.confidence import Confidence
from simulator.changes import MachineChange
from simulator.errors import TraceError
from simulator.faults import Faults
from simulator.interop.machines.hardware import device_of_driver
from simulator.kernels.host import issue_s
from simulator.replay.changes_of_gradients import buckets, overlap, serialise
from simulator.replay.changes_of_kernels import capture, on_device, scale_host, scale_kernels
from simulator.replay.changes_of_links import change_unjoined, on_topology, scale_communication
from simulator.replay.changes_of_plan import PlanChange, PlannedJob, PlanPrediction, predict_plan, repeat
from simulator.replay.changes_of_ranks import (
    absorbed,
    as_peers,
    data_parallel,
    delay,
    hidden,
    ideal,
    infer_missing,
    largest_group,
    remove_straggler,
    slow_down,
)
from simulator.replay.operator_replay import OperatorReplay, replay_operators
from simulator.replay.recorded_job import as_run_here, recorded_job, tells_model, typical_cluster
from simulator.replay.replayed import Replay, replay
from simulator.replay.stage_replay import StageMessages, StageReplay, regrouped, replay_stages, stage_times_of
from simulator.timeline import Timeline
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.device import Device
from simulator.trace_io.reconstruct import Reconstruction, noted, reconstruct
from simulator.trace_io.trace_record import MAX_RANKS, Trace


def scale_waiting(whole: Reconstruction, factor: float) -> Reconstruction:
    """Multiply the waiting for ranks that are not in the replay; that for others follows from the replay itself.

    A communication kernel that was not joined waited as long as it lasted beyond the shortest of its kind. Where joined
    collectives stand for larger ones, a factor above 1 lets the last rank be later by as much more than the mean as it
    was in the trace. A factor of 0 takes the waiting away, 1 leaves it.
    """
    plans = change_unjoined(whole, lambda _, transfer, duration: transfer + round((duration - transfer) * factor))
    longer = list(whole.transfer_ns)
    for number, joined in enumerate(whole.joins.joined if factor > 1 else ()):
        late = max(joined.arrival_ns) - float(np.mean(joined.arrival_ns))
        longer[number] += round((factor - 1) * late)
    return replace(whole, plans=plans, transfer_ns=tuple(longer))


def replay_confidence(
    edited: Reconstruction,
    result: Replay,
    *,
    unchanged: Replay,
    groups: tuple[int, int],
    devices: tuple[Device | None, Device | None] = (None, None),
) -> Confidence | None:
    """Replay a changed trace twice more: as it would be at best, and at worst.

    Ranks that were not recorded make others wait. At best they never do. At worst they are late as the recorded ones
    are: the latest of n ranks whose delays are alike and independent is late in proportion to ``sqrt(log n)``.
    Kernels on another device are off by the errors of the two devices' kernel models, as one error of all; its host is that
    of the recording, or as much faster or slower as the hosts of such devices typically are.

    Parameters
    ----------
    groups : (int, int)
        Ranks of the largest group, recorded and asked for.
    devices : (Device, Device), optional
        The new one and the recorded one, where kernels were rescaled.

    Returns
    -------
    Confidence or None
        None where all ranks were recorded and no kernel was rescaled: then nothing is known of the error.

    References
    ----------
    David and Nagaraja, "Order Statistics", 3rd edition, 2003, section 4.5: expected maximum of n normal variables.
    """
    trace, (old, new) = edited.trace, groups
    bases = []
    waiting, error, host = (1.0, 1.0), 0.0, 1.0
    if len(trace.ranks) < trace.world_size or old != new:
        waiting = (0.0, max(1.0, sqrt(log(max(new, 2)) / log(max(old, 2)))))
        n = max(trace.world_size * new // old, trace.world_size)
        bases.append(
            f"{len(trace.ranks)} of {n} ranks were recorded: from no waiting for the others to {waiting[1]:.3g} times the "
            "recorded waiting"
        )
    device, recorded = devices
    if device is not None and recorded is not None and device.name != recorded.name:
        error = hypot(device.kernel_error, recorded.kernel_error)
        host = issue_s(device, "eager", "forward") / issue_s(recorded, "eager", "forward")
        bases.append(f"kernels rescaled to {device.name} are off by {error:.0%} together, its host takes 1 to {host:.3g} times "
                     "the recorded time")  # fmt: skip
    if not bases:
        return None
    times = [result.iteration_s(unchanged)]
    for wait, kernels, issues in zip(waiting, (1 - error, 1 + error), sorted((1.0, host)), strict=True):
        whole = scale_waiting(edited, wait)
        if issues != 1.0:
            whole = scale_host(whole, issues)
        if error:
            whole = scale_kernels(whole, lambda rank, name, factor=kernels: factor)  # type: ignore[misc]
        times.append(replay(whole).iteration_s(unchanged))
    return Confidence(low_s=min(times), high_s=max(times), basis="; ".join(bases))


#: largest factor on times, and longest delay in seconds: nanoseconds of hours times this still are int64
MOST_FACTOR = 1e6
#: how stage times are played where nothing else is asked for
STAGE_SCHEDULE = "1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What to change; everything left at its default stays as measured."""

    #: Links, GPU, kernels, host, slow ranks; factors are improvements. Of links, one factor on all of them needs no
    #: cluster, factors on some kinds need ``topology`` or ``measured_on``.
    machine: MachineChange = field(default_factory=MachineChange)
    #: New machine for the communication, and the one that was recorded.
    topology: Topology | None = None
    measured_on: Topology | None = None
    measured_device: Device | None = None  #: The recorded accelerator, where ``machine`` has another.
    latency_s: float = 0.0  #: Added to every transfer.
    remove_straggler: tuple[int, ...] = ()  #: Ranks made as fast as the median of the others.
    delays: tuple[tuple[int, float], ...] = ()  #: (rank, seconds by which its host is late at the start of every step).
    cuda_graphs: bool = False  #: Kernels between two waits of the host cost no host time but the first.
    overlap: bool | None = None  #: True: gradient reductions only block the optimizer; False: nothing overlaps.
    bucket_bytes: int | None = None  #: Gradient all-reduces are merged up to this size, larger ones split.
    dp: int | None = None  #: Ranks of the largest group.
    ideal: bool = False  #: Every operation takes the mean of its type, and nothing starts late: no host time.
    #: Every operation takes the mean or median of its peers; host time stays, as even as theirs.
    ideal_peers: bool = False
    missing_ranks: bool = False  #: Recorded ranks stand for those that were not.
    plan: PlanChange = field(default_factory=PlanChange)  #: Another plan or other sizes of the model.
    #: What is known of the plan and the model that were recorded, where the trace does not tell.
    recorded: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None

    def __post_init__(self) -> None:
        machine = self.machine
        for name, speed in (("kernels", machine.kernel_speed), ("host", machine.host_speed)):
            if not speed >= 1 / MOST_FACTOR:
                raise TraceError(f"{name}: {speed:g} is not a factor on their speed", hint="0.5 takes twice as long")
        for kind, factor in machine.bandwidth.items():
            if not 1 / MOST_FACTOR <= factor <= MOST_FACTOR:
                text = f"bandwidth {factor:g} of {kind}: not a factor from {1 / MOST_FACTOR:g} to {MOST_FACTOR:g}"
                raise TraceError(text, hint="2 doubles it")
        for rank, amount in (*machine.faults.slow_ranks, *self.delays):
            if not 0 <= amount <= MOST_FACTOR:
                raise TraceError(
                    f"a straggler on rank {rank} is late by a factor or a time in seconds, not by {amount:g}"
                )
        if not abs(self.latency_s) <= MOST_FACTOR:
            raise TraceError(f"latency {self.latency_s:g} s: not a time that a transfer can take")
        if self.bucket_bytes is not None and self.bucket_bytes <= 0:
            raise TraceError(f"buckets of {self.bucket_bytes} bytes: a bucket holds something", hint="like 25MB")
        if self.dp is not None and not 2 <= self.dp <= MAX_RANKS:
            raise TraceError(f"dp {self.dp}: a group of ranks that communicates has at least two, at most {MAX_RANKS}")
        if self.measured_on is not None and self.topology is None and not self._some_links and not self.plan:
            raise TraceError(
                "the cluster of the trace matters only where another takes its place", hint="add --topology"
            )
        if self.measured_device is not None and machine.device is None:
            raise TraceError("the device of the trace matters only where another takes its place", hint="add --gpu")
        known = MachineChange(
            bandwidth=machine.bandwidth, device=machine.device, kernel_speed=machine.kernel_speed,
            host_speed=machine.host_speed, faults=Faults(slow_ranks=machine.faults.slow_ranks),
        )  # fmt: skip
        if (self.recorded or self.model) and not self.plan:
            raise TraceError(
                "what ran matters only where another plan takes its place",
                hint="--tp, --pp, --layers, --set KEY=VALUE ...",
            )
        if machine != known:
            raise TraceError(
                "a recorded run can change its links' bandwidth, GPU, kernels, host and slow ranks, no other part of a machine"
            )

    @property
    def _some_links(self) -> bool:
        """Whether some kinds of links differ from the others."""
        kinds = self.machine.bandwidth
        return bool(kinds) and (len(set(kinds.values())) > 1 or set(kinds) != set(LINK_KINDS))

    @property
    def changes(self) -> bool:
        """Whether anything differs from the measured run."""
        return bool(self.without("measured_on", "measured_device"))

    def without(self, *names: str) -> list[str]:
        """Return the names of what differs, but for some."""
        nothing = WhatIf()
        return [
            f.name for f in fields(self) if f.name not in names and getattr(self, f.name) != getattr(nothing, f.name)
        ]

    @property
    def only_pricing(self) -> bool:
        """Whether nothing differs but the machine that an execution trace is priced on."""
        bare = replace(self.machine, device=None)
        return not replace(self, topology=None, measured_on=None, measured_device=None, machine=bare).changes


def edit(whole: Reconstruction, what: WhatIf) -> Reconstruction:
    """Apply every change, in a fixed order: ranks, kernels, host, transfers, groups, overlap."""
    if what.missing_ranks:
        whole = infer_missing(whole)
    for name, wanted in (("layers", what.plan.layers), ("micro-batches", what.plan.micro_batches)):
        if wanted:
            whole = repeat(whole, name, what.recorded[name.replace("-", "_")], wanted)
    if what.ideal:
        whole = ideal(whole)
    if what.ideal_peers:
        whole = as_peers(whole)
    for rank in what.remove_straggler:
        whole = remove_straggler(whole, rank)
    for rank, factor in what.machine.faults.slow_ranks:
        whole = slow_down(whole, rank, factor)
    for rank, delay_s in what.delays:
        whole = delay(whole, rank, delay_s)
    whole = _on_machine(whole, what)
    if what.cuda_graphs:
        whole = capture(whole)
    if what.latency_s:
        whole = scale_communication(whole, latency_s=what.latency_s)
    if what.bucket_bytes is not None:
        whole = buckets(whole, what.bucket_bytes)
    if what.dp is not None:
        whole = data_parallel(whole, what.dp, what.topology)
    if what.overlap is not None:
        whole = overlap(whole) if what.overlap else serialise(whole)
    return _with_warnings(whole, what)


def _on_machine(whole: Reconstruction, what: WhatIf) -> Reconstruction:
    """Apply what is different about the machine."""
    machine, cluster = what.machine, what.topology
    if machine.device is not None:
        if what.measured_device is None:
            raise TraceError("rescaling kernels needs the device of the trace", hint="name it with --measured-gpu")
        whole = on_device(whole, machine.device, what.measured_device)
    if machine.kernel_speed != 1.0:
        times = 1 / machine.kernel_speed
        whole = scale_kernels(whole, lambda rank, name: times, f"kernels take {times:g} times as long")
    if machine.host_speed != 1.0:
        whole = scale_host(whole, 1 / machine.host_speed)
    measured_on = what.measured_on
    if what._some_links:
        cluster = cluster or measured_on
        if cluster is None:
            raise TraceError(
                "only a cluster says which transfers use which links", hint="name it with --measured-on or --topology"
            )
        measured_on = measured_on or cluster
        cluster = MachineChange(bandwidth=machine.bandwidth).apply(cluster)
    if cluster is not None:
        whole = on_topology(whole, cluster, measured_on=measured_on)
    if machine.bandwidth and not what._some_links:
        whole = scale_communication(whole, bandwidth=next(iter(machine.bandwidth.values())))
    return whole


def _with_warnings(whole: Reconstruction, what: WhatIf) -> Reconstruction:
    """Note what a change left as it was though one might expect otherwise."""
    recorded = next((rank.device for rank in whole.trace.ranks if rank.device), "")
    if what.topology is not None and what.machine.device is None:
        new = what.topology.device(0).name
        if device_of_driver(recorded) != new:
            return noted(whole, f"kernels keep the times measured on {recorded or 'the recorded device'}: --gpu {new} "
                         "rescales them")  # fmt: skip
    return whole


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What a replay found."""

    trace: Trace  #: As read.
    identity: Replay | None = None  #: Without any change; None for stage times.
    changed: Replay | None = None  #: With the changes, if there are any.
    #: Interval of the changed replay, where something that was not recorded enters it.
    confidence: Confidence | None = None
    stages: StageReplay | None = None  #: For traces that hold stage times only.
    operators: OperatorReplay | None = None  #: For execution traces, which hold no times.
    planned: PlanPrediction | None = None  #: Where another plan was asked for.
    notes: tuple[str, ...] = ()  #: What became of the changes.

    @property
    def iteration_s(self) -> float:
        """Seconds per step of the replay that was asked for, in steady state."""
        assert self.identity is not None, "stage times have no operations"
        return self.result.iteration_s(self.identity)

    @property
    def timeline(self) -> Timeline:
        """What the replay that was asked for runs, from its start."""
        other = self.stages or self.operators or self.planned
        return self.result.timeline if other is None else other.timeline

    @property
    def result(self) -> Replay:
        """The replay that was asked for."""
        found = self.changed or self.identity
        assert found is not None, "stage times have no operations"
        return found


def what_if(
    trace: Trace, what: WhatIf | None = None, *, schedule: str | None = None, messages: StageMessages | None = None
) -> Outcome:
    """Replay a trace, with or without changes.

    ``schedule`` and ``messages`` are for stage times: the pipeline schedule, by default 1F1B, and what a message between
    stages costs.
    """
    what = what or WhatIf()
    if trace.stage_times is not None:
        return _stages(trace, what, schedule or STAGE_SCHEDULE, messages or StageMessages())
    if what.plan and trace.format == "pipeline_ops" and what.model is None:
        return _restaged(trace, what, schedule or STAGE_SCHEDULE)
    if what.plan and messages is not None:
        raise TraceError("messages of another plan are priced on its links", hint="--message is for stage times")
    if what.plan and schedule is not None:
        what = replace(what, plan=replace(what.plan, settings={"schedule": schedule, **what.plan.settings}))
        schedule = None
    if what.plan and not _only_repeats(trace, what):
        return Outcome(trace=trace, planned=_planned(trace, what))
    if messages is not None or schedule is not None:
        raise TraceError(
            f"a {trace.format} trace holds its own schedule and messages",
            hint="--schedule and --message are for stage times",
        )
    if any(rank.operators for rank in trace.ranks):
        return _priced(trace, what)
    return _edited(trace, what)


def _stages(trace: Trace, what: WhatIf, schedule: str, messages: StageMessages) -> Outcome:
    """Replay stage times through a schedule."""
    assert trace.stage_times is not None
    if what.without("topology", "plan", "recorded", "measured_on", "measured_device"):
        raise TraceError(
            "stage times can be replayed through other schedules, numbers of stages, layers and micro-batches, and over "
            "other links only",
            hint="--schedule, --pp, --layers, --micro-batches, --message, --topology",
        )
    sent = replace(messages, topology=what.topology)
    stages = regrouped(trace.stage_times, what.plan, what.recorded) if what.plan else None
    return Outcome(
        trace=trace, stages=replay_stages(trace.stage_times, schedule=schedule, messages=sent, changed=stages)
    )


def _priced(trace: Trace, what: WhatIf) -> Outcome:
    """Replay operators that have no times, at prices of a machine."""
    if what.machine.device is None:
        raise TraceError(
            "an execution trace holds no durations",
            hint="price it with --gpu DEVICE --topology CLUSTER, or give the Kineto files of the same step beside it",
        )
    if not what.only_pricing:
        raise TraceError(
            "an execution trace holds no times that could be changed", hint="only --gpu and --topology apply to it"
        )
    return Outcome(trace=trace, operators=replay_operators(trace, what.machine.device, what.topology))


def _edited(trace: Trace, what: WhatIf) -> Outcome:
    """Replay recorded operations as they are, and with the changes that are asked for."""
    whole = reconstruct(trace)
    identity = replay(whole)
    if not what.changes:
        return Outcome(trace=trace, identity=identity)
    edited = edit(whole, what)
    changed = replay(edited)
    notes = [absorbed(identity, changed, rank, delay_s) for rank, delay_s in what.delays]
    if len(what.remove_straggler) == 1:
        notes.append(hidden(identity, changed, what.remove_straggler[0]))
    groups = (largest_group(whole), what.dp or largest_group(whole))
    sure = replay_confidence(
        edited, changed, unchanged=identity, groups=groups, devices=(what.machine.device, what.measured_device)
    )
    return Outcome(trace=trace, identity=identity, changed=changed, confidence=sure, notes=tuple(filter(None, notes)))


def _only_repeats(trace: Trace, what: WhatIf) -> bool:
    """Whether a trace that does not tell its model is asked about no more than what repeats in it."""
    plan, known = what.plan, what.recorded
    if what.model is not None or plan.settings or plan.hidden or tells_model(trace):
        return False
    return (not plan.layers or "layers" in known) and (not plan.micro_batches or "micro_batches" in known)


def _restaged(trace: Trace, what: WhatIf, schedule: str) -> Outcome:
    """Replay what a pipelined job's operations say of its stages with other stages, layers or micro-batches."""
    if what.without("plan", "recorded"):
        raise TraceError("other stages of a pipelined job: not together with other changes", hint="one at a time")
    times = stage_times_of(trace)
    changed = regrouped(times, what.plan, what.recorded)
    return Outcome(
        trace=replace(trace, stage_times=times), stages=replay_stages(times, schedule=schedule, changed=changed)
    )


def _planned(trace: Trace, what: WhatIf) -> PlanPrediction:
    """Predict another plan of the recorded job, on its machine or on another."""
    rest = what.without("plan", "recorded", "model", "topology", "measured_on", "measured_device", "machine")
    machine = what.machine
    if rest or machine.faults.slow_ranks:
        raise TraceError(
            f"{', '.join(name.replace('_', '-') for name in rest) or 'slow ranks'}: not together with another plan",
            hint="the plan has settings for overlap, buckets and graphs: --set overlap=false, --set host=graphs",
        )
    before = recorded_job(trace, given=what.recorded, model=what.model, cluster=what.measured_on)
    plan = as_run_here(what.plan.plan(before.plan), trace, what.plan.settings)
    cluster = what.topology or what.measured_on
    if cluster is None:
        cluster = typical_cluster(trace, plan.gpus)
    if cluster.n_gpus < plan.gpus:
        raise TraceError(
            f"the new plan has {plan.gpus} ranks, {cluster.name} has {cluster.n_gpus} GPUs", hint="--topology CLUSTER"
        )
    change = MachineChange(bandwidth=machine.bandwidth, device=machine.device)
    after = PlannedJob(
        spec=what.plan.spec(before.spec, plan.sequence_length or 0),
        plan=plan,
        topology=change.apply(cluster.subset(plan.gpus)),
    )
    return predict_plan(
        reconstruct(trace), before, after, kernels=1 / machine.kernel_speed, host=1 / machine.host_speed
    )
