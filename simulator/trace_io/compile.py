"""Compiles a reconstruction into a Program, and reads the engine's timeline of it back into a Trace."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Phase, Transfer
from simulator.program.program import COMPUTE, HOST, Program, RankProgram, TaskList
from simulator.timeline import Timeline
from simulator.trace_io.causes import HostWait, RankPlan
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.steps import step_operations, step_windows
from simulator.trace_io.trace_record import COMMUNICATION, CollectiveCall, Int64, Step, Trace, no_host
from simulator.trace_io.trace_record import COMPUTE as COMPUTES
from simulator.units import PS_PER_S

#: layer of the zero-length kernels that mark when a rank arrives at a communication
ARRIVAL = "arrival"
#: name and stream of the kernels that mark the end of a lap
LAP = "lap"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CompiledTrace:
    """A program, and what is needed to find a trace's operations again in its timeline."""

    reconstruction: Reconstruction
    program: Program
    #: ``id`` of a kernel, an arrival or an unjoined communication -> (index of rank, operation).
    place: dict[int, tuple[int, int]]
    #: ``id`` of a joined communication -> its number.
    number: dict[int, int]


def compile_program(reconstruction: Reconstruction) -> CompiledTrace:
    """Write the tasks of every rank."""
    return _compiled(reconstruction, n_laps=0)


def compile_laps(reconstruction: Reconstruction, n_laps: int) -> Program:
    """Write the tasks of every rank with the steps behind the first one repeated, and a mark at the end of every lap.

    The first lap is the recording. What waited for an operation of
    before the repeated steps waits for its counterpart in the lap before: as many operations from the end of its stream
    as the operation was from the first repeated one. Marks are kernels of no length named
    ``lap``, one per rank and lap, in order.
    """
    return _compiled(reconstruction, n_laps=n_laps).program


def _compiled(reconstruction: Reconstruction, *, n_laps: int) -> CompiledTrace:
    shared = _Shared(reconstruction)
    ranks = []
    for index, plan in enumerate(reconstruction.plans):
        tasks = _Builder(shared, index).build(n_laps).tasks
        ranks.append(RankProgram(rank=plan.rank.rank, members=reconstruction.members[index], tasks=tuple(tasks)))
    program = Program(ranks=tuple(ranks))
    return CompiledTrace(reconstruction=reconstruction, program=program, place=shared.place, number=shared.number)


class _Shared:
    """What the builders of all ranks share."""

    def __init__(self, reconstruction: Reconstruction) -> None:
        self.reconstruction = reconstruction
        self.everybody = tuple(range(reconstruction.trace.world_size))
        self.place: dict[int, tuple[int, int]] = {}
        self.number: dict[int, int] = {}
        #: (lap, number) -> operation
        self.joined: dict[tuple[int, int], Collective | Transfer] = {}
        #: where the repeated steps begin in each rank's issue order
        self.begins = [_second_step(plan) for plan in reconstruction.plans]
        inside: set[int] = set()
        outside: set[int] = set()
        for plan, begin in zip(reconstruction.plans, self.begins, strict=True):
            repeated = set(plan.order[begin:].tolist())
            for op, number in plan.key.items():
                (inside if op in repeated else outside).add(number)
        #: joined communication that every member repeats
        self.repeated = inside - outside


def _second_step(plan: RankPlan) -> int:
    """Position in issue order at which the second step begins.

    Where the host marks steps, that is the first operation it launches in the step, copies included.
    """
    if len(plan.first) < 2:
        return 0
    number, op = plan.first[1]
    ops, host = plan.rank.ops, plan.rank.host
    step = next((step for step in plan.rank.steps if step.number == number and not step.on_device), None)
    launched = np.flatnonzero(ops.launch >= 0)
    if step is not None and len(launched):
        inside = launched[host.start_ns[ops.launch[launched]] >= step.start_ns]
        return int(np.flatnonzero(np.isin(plan.order, inside)).min()) if len(inside) else 0
    return int(np.flatnonzero(plan.order == op)[0])


def _counterparts(plan: RankPlan, begin: int) -> dict[int, int]:
    """Map each operation before a position that a later one waits for to its counterpart in another lap."""
    lanes: dict[str, list[int]] = {}
    n_before: dict[str, int] = {}
    for position, op in enumerate(plan.order.tolist()):
        lanes.setdefault(plan.lane[op], []).append(op)
        n_before[plan.lane[op]] = n_before.get(plan.lane[op], 0) + (position < begin)
    place = {op: index for members in lanes.values() for index, op in enumerate(members)}
    result = {}
    waited_for = {dep for op in plan.order[begin:].tolist() for dep in plan.after[op]}
    for op in waited_for | {wait.op for wait in plan.waits if wait.before >= begin}:
        lane = plan.lane[op]
        from_begin = n_before[lane] - place[op]
        if from_begin > 0:
            result[op] = lanes[lane][max(-from_begin, n_before[lane] - len(lanes[lane]), -len(lanes[lane]))]
    return result


class _Builder:
    """Writes the tasks of one rank, kernels that nothing interrupts as one run."""

    def __init__(self, shared: _Shared, index: int) -> None:
        self.shared, self.index = shared, index
        self.plan = shared.reconstruction.plans[index]
        self.main = self.plan.main
        self.tasks = TaskList()
        self.lap = 0
        self.task_of: dict[int, int] = {}
        self.task_before: dict[int, int] = {}
        self.counterpart: dict[int, int] = {}
        self.last: dict[str, int] = {}
        #: operations of a lap, which later laps share: they may be a million
        self.kernels: dict[int, Kernel] = {}
        self.runs: dict[tuple[int, int], KernelRun] = {}
        self.run: list[Kernel] = []
        self.run_ops: list[int] = []
        self.run_after: tuple[int, ...] = ()

    def build(self, n_laps: int) -> TaskList:
        """Return the tasks in issue order: those of the recording, then as often as asked the repeated steps."""
        begin = self.shared.begins[self.index]
        self.counterpart = _counterparts(self.plan, begin) if n_laps else {}
        self._steps(0)
        for lap in range(n_laps + 1 if n_laps else 0):
            if lap:
                self.lap, self.task_before, self.task_of = lap, self.task_of, {}
                self._steps(begin)
            ended = tuple(sorted(set(self.last.values())))
            self.tasks.add(Kernel(name=LAP, phase="forward", duration_s=0.0, issue_s=0.0), LAP, ended)
        return self.tasks

    def _steps(self, begin: int) -> None:
        """Write everything from a position of the issue order on."""
        plan = self.plan
        waited_for = {dep for deps in plan.after for dep in deps} | {wait.op for wait in plan.waits}
        waited_for.update(self.counterpart.values())
        waits: dict[int, list[HostWait]] = {}
        for wait in plan.waits:
            waits.setdefault(wait.before, []).append(wait)
        issue, kinds = plan.issue_ns.tolist(), plan.rank.ops.kind.tolist()
        for position, op in enumerate(plan.order[begin:].tolist(), start=begin):
            for wait in waits.get(position, ()):
                self._flush()
                self._host_wait(wait)
            if kinds[op] == COMMUNICATION:
                self._flush()
                self._communication(op, issue[position])
            elif plan.lane[op] != self.main:
                self._flush()
                self._done(op, self.tasks.add(self._kernel(op, issue[position]), self._stream(op), self._after(op)))
            else:
                if plan.after[op]:
                    self._flush()
                    self.run_after = self._after(op)
                self.run.append(self._kernel(op, issue[position]))
                self.run_ops.append(op)
                if op in waited_for:
                    self._flush()
        self._flush()

    def _done(self, op: int, task: int) -> None:
        """Remember which task an operation is."""
        self.task_of[op] = self.last[self.plan.lane[op]] = task

    def _task(self, op: int) -> tuple[int, ...]:
        """The task of an operation, or of its counterpart in the lap before."""
        found = self.task_of.get(op)
        if found is None:
            found = self.task_before.get(self.counterpart.get(op, -1), self.last.get(self.plan.lane[op]))
        return () if found is None else (found,)

    def _after(self, op: int) -> tuple[int, ...]:
        return tuple(dict.fromkeys(task for dep in self.plan.after[op] for task in self._task(dep)))

    def _kernel(self, op: int, issue_ns: int) -> Kernel:
        plan = self.plan
        if op in self.kernels:
            return self.kernels[op]
        kernel = self.kernels[op] = Kernel(
            name=plan.rank.names[plan.rank.ops.name[op]],
            phase=plan.phase[op],
            duration_s=int(plan.duration_ns[op]) / 1e9,
            issue_s=issue_ns / 1e9,
            lead_s=int(plan.lead_ns[op]) / 1e9,
        )
        self.shared.place[id(kernel)] = (self.index, op)
        return kernel

    def _stream(self, op: int) -> str:
        lane = self.plan.lane[op]
        return COMPUTE if lane == self.main else f"stream {lane.split(':', 1)[-1]}"

    def _flush(self) -> None:
        """Write the kernels collected on the main stream as one task."""
        if not self.run:
            return
        op: Kernel | KernelRun = self.run[0]
        if len(self.run) > 1:
            key = self.run_ops[0], len(self.run)
            if key not in self.runs:
                name = f"{len(self.run)} kernels"
                self.runs[key] = KernelRun(name=name, phase=self.run[0].phase, kernels=tuple(self.run))
            op = self.runs[key]
        task = self.tasks.add(op, COMPUTE, self.run_after)
        for done in self.run_ops:
            self._done(done, task)
        self.run, self.run_ops, self.run_after = [], [], ()

    def _host_wait(self, wait: HostWait) -> None:
        if wait.work_ns:
            self.tasks.add(HostWork(name="host", duration_s=wait.work_ns / 1e9), HOST)
        self.tasks.add(HostWork(name="wait for device", duration_s=0.0), HOST, self._task(wait.op))

    def _communication(self, op: int, issue_ns: int) -> None:
        plan, stream = self.plan, self._stream(op)
        arrival = Kernel(
            name=ARRIVAL,
            phase=plan.phase[op],
            duration_s=0.0,
            issue_s=issue_ns / 1e9,
            lead_s=int(plan.lead_ns[op]) / 1e9,
            layer=ARRIVAL,
        )
        self.shared.place[id(arrival)] = (self.index, op)
        self.tasks.add(arrival, stream, self._after(op))
        number = plan.key.get(op)
        if self.lap and number not in self.shared.repeated:
            number = None
        message = self._message(op, number)
        key = None if number is None else (self.lap, number)
        self._done(op, self.tasks.add(message, stream, (), key))

    def _message(self, op: int, number: int | None) -> Collective | Transfer:
        """The operation of a communication: one for all ranks that it joins."""
        plan, shared = self.plan, self.shared
        known = None if number is None else shared.joined.get((self.lap, number))
        if known is not None:
            return known
        whole = shared.reconstruction
        message = communication(
            plan.call(op) if number is None else whole.calls[number],
            plan.rank.rank,
            everybody=shared.everybody,
            name=plan.rank.names[plan.rank.ops.name[op]],
            duration_s=(int(plan.duration_ns[op]) if number is None else whole.transfer_ns[number]) / 1e9,
            phase=plan.phase[op],
        )
        if number is None:
            shared.place[id(message)] = (self.index, op)
        else:
            shared.number[id(message)], shared.joined[self.lap, number] = number, message
        return message


def communication(
    call: CollectiveCall, rank: int, *, everybody: tuple[int, ...], name: str, duration_s: float, phase: Phase
) -> Collective | Transfer:
    """Return the operation that a call describes, with its measured transfer time."""
    n_bytes = max(call.n_bytes, 0)
    if call.collective in ("send", "recv") and call.peer >= 0:
        pair = call.ranks if len(call.ranks) == 2 else tuple(sorted((rank, call.peer)))
        return Transfer(
            n_bytes=n_bytes, pairs=((pair[0], pair[1]),), name=name, phase=phase, duration_s=duration_s, issue_s=0.0
        )
    return Collective(
        collective="all_to_all" if call.collective == "send_recv" else call.collective, axis=call.group or "world",
        n_bytes=n_bytes, groups=(call.ranks or everybody,), name=name, phase=phase, duration_s=duration_s, issue_s=0.0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Times:
    """When each operation of each rank ran in a replay: per rank arrays of int64 [n], in nanoseconds.

    ``end`` is the modelled end: what a rank lasted beyond it (``tail_ns`` of its plan) comes on top.
    """

    start: tuple[Int64, ...]
    end: tuple[Int64, ...]


def operation_times(compiled: CompiledTrace, timeline: Timeline) -> Times:
    """Find every operation of the trace in the timeline of its replay, which was run with ``detail=True``.

    A communication starts at the end of its rank's arrival.
    """
    plans = compiled.reconstruction.plans
    starts = [[0] * len(plan.rank.ops) for plan in plans]
    ends = [[0] * len(plan.rank.ops) for plan in plans]
    by_number = [{number: op for op, number in plan.key.items()} for plan in plans]
    index_of = {plan.rank.rank: index for index, plan in enumerate(plans)}
    for span in timeline.simulated:
        index, begin_ps = index_of[span.rank], span.start_ps
        start, end = starts[index], ends[index]
        inside = [(one.op, begin_ps + one.start_ps, begin_ps + one.end_ps) for one in span.inner]
        for op, start_ps, end_ps in inside or ((span.op, begin_ps, span.end_ps),):
            number, place = compiled.number.get(id(op)), compiled.place.get(id(op))
            if number is not None:
                end[by_number[index][number]] = end_ps // 1000
            elif place is not None and isinstance(op, Kernel) and op.layer == ARRIVAL:
                start[place[1]] = end_ps // 1000
            elif place is not None:
                if isinstance(op, Kernel):
                    start[place[1]] = min(start_ps + round(op.lead_s * PS_PER_S), end_ps) // 1000
                end[place[1]] = end_ps // 1000
    return Times(
        start=tuple(np.array(column, np.int64) for column in starts),
        end=tuple(np.array(column, np.int64) for column in ends),
    )


def simulated_trace(reconstruction: Reconstruction, times: Times) -> Trace:
    """Turn a replay back into the neutral record: the same operations at their new times."""
    ranks = []
    for plan, start, modelled in zip(reconstruction.plans, times.start, times.end, strict=True):
        end = modelled + plan.tail_ns
        order = np.lexsort((end, start))
        ops = replace(plan.rank.ops, start_ns=start, end_ns=end, launch=np.full(len(order), -1, np.int32))
        ranks.append(
            replace(
                plan.rank,
                ops=ops.take(order),
                host=no_host(),
                threads=(),
                steps=_replayed_steps(plan, start, end),
                syncs=(),
                dependencies=None,
                epoch_ns=0,
                notes=(),
            )
        )
    return replace(reconstruction.trace, ranks=tuple(ranks), notes=reconstruction.notes, common_clock=True)


def _replayed_steps(plan: RankPlan, start: Int64, end: Int64) -> tuple[Step, ...]:
    """Step windows of the replay: each as far from its first operation as the measured window was."""
    windows = step_windows(plan.rank)
    ops, measured, work = plan.rank.ops, plan.rank.ops.start_ns, step_operations(plan.rank)
    by_number = {window.number: window for window in windows}
    begins = {number: int(start[op]) + by_number[number].start_ns - int(measured[op]) for number, op in plan.first}
    last = windows[-1] if windows else None
    if last is None or not begins:
        return ()
    busy = ((ops.kind == COMPUTES) | (ops.kind == COMMUNICATION)) & (ops.start_ns < last.end_ns)
    until = int(end[busy].max()) + last.end_ns - int(ops.end_ns[busy].max())
    steps = []
    for window, following in zip(windows, [*windows[1:], None], strict=True):
        if window.number not in begins:
            continue
        bound = until
        if following is not None and following.number in begins:
            bound = begins[following.number] - (following.start_ns - window.end_ns)
        begin = begins[window.number]
        mine = work.get(window.number, ())
        steps.append(
            Step(
                number=window.number,
                start_ns=begin,
                end_ns=max(bound, begin),
                name=f"ProfilerStep#{window.number}",
                work_end_ns=int(end[mine].max()) if len(mine) else -1,
            )
        )
    return tuple(steps)
