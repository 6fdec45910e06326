"""Runs a Program: hosts issue, streams execute in order, communication meets, flows share links.

Three rules say everything. (1) A host issues its tasks in order and takes time for each; it runs ahead of its device
unless a host task makes it wait. (2) A task starts when it has been issued, its stream is free, its dependencies have
ended and, for communication, all participants have arrived. (3) Compute and collectives of one rank that run at the
same time slow each other down by the factors of :class:`Interference`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from simulator.engine.clock import Clock
from simulator.engine.components import OutsideError, RankComponent, postpone
from simulator.engine.durations import FAR_AHEAD_PS, Durations, PassPart, TouchedError
from simulator.engine.interference import change_rate, slow_collectives
from simulator.engine.lockstep import RunningPass, Turns
from simulator.engine.state import Communication, Participants, RankState, Running, Stream
from simulator.engine.steady import View, Watch
from simulator.identity import ByIdentity
from simulator.network.base import NetworkModel, SeparableNetwork, StatefulNetwork
from simulator.program.op import COMMUNICATIONS, Collective, HostWork, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE, HOST, LOADER, Block, Program, Task
from simulator.program.stretch import stops_host, stretch_of
from simulator.timeline import Cycle, Span
from simulator.units import to_ps


class Machine:
    """One run of one program.

    Parameters
    ----------
    network : NetworkModel
        Idle.
    components : sequence of RankComponent
        Ranks that meet no others in their stretches; where there are several, each goes on behind the periods that are left
        out as soon as its steady state is known. By default all ranks are one.
    host_start_ps : int
        When the hosts begin to issue; the devices are ready at 0.
    clock : Clock, optional
        One that others run on, too; its own by default.
    turns : Turns, optional
        Says which passes of several ranks go on step by step among other traffic; by default none does, and each has its links
        to itself.
    """

    def __init__(
        self,
        program: Program,
        durations: Durations,
        network: NetworkModel,
        *,
        components: Sequence[RankComponent] = (),
        host_start_ps: int = 0,
        clock: Clock | None = None,
        turns: Turns | None = None,
    ) -> None:
        self.turns = turns
        self.costs = durations.costs
        self.durations = durations
        self.network = network
        self.clock = clock or Clock()
        self.components = components or (RankComponent(tuple(range(len(program.ranks))), frozenset()),)
        self.component_of = {
            number: index for index, component in enumerate(self.components) for number in component.numbers
        }
        grow = [
            program.n_omitted > 0 and all(stops_host(program.ranks[number]) for number in component.numbers)
            for component in self.components
        ]
        self.ranks = [
            RankState(number, rank, durations.kind(rank.rank), host_start_ps, grows=grow[self.component_of[number]])
            for number, rank in enumerate(program.ranks)
        ]
        self.spans: list[Span] = []
        self.arrived: dict[Hashable, tuple[Participants, int]] = {}
        self._n_own = Counter(task.key for rank in program.ranks for task in rank.tasks if task.key is not None)
        self.n_participants: dict[Hashable, int] = dict(self._n_own)
        self._n_micro_batches = program.period_micro_batches
        self._across = (
            frozenset(_keys_across(program, self.component_of)) if any(grow) and len(grow) > 1 else frozenset()
        )
        self.beginning: dict[int, tuple[Communication, int]] = {}
        self.in_flight: dict[int, Communication] = {}
        self.alarm: tuple[int, int] | None = None
        self.beside: list[Span] = []  # what goes on at its own pace until the end, on a clock that never stands still
        self.latest_ps = 0
        self.touched: set[int] | None = None
        self.joint: dict[int, list[tuple[int, frozenset[int]]]] = {}  # by component
        self.trailing: set[tuple[int, int]] = set()
        self.watches = [
            Watch(program, [self.ranks[number] for number in component.numbers], grows=grows)
            for component, grows in (zip(self.components, grow, strict=True) if program.n_omitted else ())
        ]
        #: Until when the links of a component are in use although no event of it is simulated.
        self.passing: list[tuple[int, int]] = []
        #: Per rank, how many spans stood there when it was postponed, and by how much.
        self.moved: dict[int, tuple[int, int]] = {}
        self._own: ByIdentity[Collective | Transfer, int] = ByIdentity()

    def execute(self) -> None:
        """Run until nothing is left to do."""
        for rank in self.ranks:
            self.issue(rank)
        self.clock.run()

    @property
    def is_finished(self) -> bool:
        """Whether every rank has issued everything and every communication has met."""
        return not self.arrived and all(rank.n_issued == len(rank.tasks) for rank in self.ranks)

    # -- the host ---------------------------------------------------------------------------------------------

    def issue(self, rank: RankState) -> None:
        """Let the host run ahead until it must wait or has nothing left."""
        tasks, n_waiting, known = rank.tasks, rank.n_waiting, self.durations.hosts(rank.kind)
        while rank.held < 0 and (rank.n_issued < len(tasks) or self._write_on(rank)):
            index = rank.n_issued
            task = tasks[index]
            if task.stream == HOST:
                if n_waiting[index]:
                    return
                self._host_work(rank, index, task)
                continue
            rank.n_issued += 1
            stream = rank.streams.get(task.stream)
            if stream is None:
                stream = rank.streams[task.stream] = Stream()
            rank.issued_ps[index] = rank.host_ps
            if isinstance(task.op, Block) and self.durations.waits(task.op):
                rank.held = index
            else:
                cost_ps = known.get(id(task.op))
                if cost_ps is None:
                    cost_ps = self.durations.host_ps(task.op, rank.program.rank, rank.kind)
                rank.host_ps += cost_ps
            stream.put(index)
            if not stream.busy and not n_waiting[index] and stream.head == index:
                self.start_next(rank, stream)

    def _write_on(self, rank: RankState) -> bool:
        """Write down what stands behind the last task: periods until the steady state is known, then what ends the program."""
        if rank.rest is None:
            return False
        if self.watches[self.component_of[rank.number]].goes_on(rank):
            written = rank.write_period(self._n_micro_batches)
        else:
            written = rank.write_rest(self._n_micro_batches, self._across)
        self.n_participants |= {task.key: self._n_own[own.key] for own, task in written if task.key is not None}
        return rank.n_issued < len(rank.tasks)

    def _host_work(self, rank: RankState, index: int, task: Task) -> None:
        assert isinstance(task.op, HostWork)
        start_ps = max(rank.host_ps, rank.ready_ps[index])
        if task.after:
            self._tighten(rank, rank.host_ps - rank.ready_ps[index])
            rank.has_waited = True
        rank.host_ps = start_ps + to_ps(task.op.duration_s)
        rank.n_issued += 1
        self.latest_ps = max(self.latest_ps, rank.host_ps)
        if rank.host_ps > start_ps:
            self.spans.append(Span(task.op, rank.program.rank, HOST, start_ps, rank.host_ps, task.micro_batch))
        assert index not in rank.dependents, "what follows a host task is ordered by the host itself"

    def _release_later(self, rank: RankState, at_ps: int) -> None:
        rank.release_ticket = self.clock.call_at(at_ps, self._release, rank, rank.generation)

    def _release(self, rank: RankState, generation: int) -> None:
        """Let the host go on behind a block whose inner waits are known now."""
        if generation != rank.generation:
            return
        rank.release_ticket = 0
        rank.held = -1
        self.issue(rank)

    def _tighten(self, rank: RankState, ps: int) -> None:
        """Note how much later the host was than the device; what follows a wait does not depend on the lead before it."""
        rank.tightest_ps = max(rank.tightest_ps, ps)
        if ps > rank.needed_ps and not rank.has_waited:
            rank.needed_ps = ps

    # -- streams ----------------------------------------------------------------------------------------------

    def start_next(self, rank: RankState, stream: Stream) -> None:
        """Start the head of an idle stream; its dependencies have ended."""
        index = stream.take()
        stream.busy = True
        task = rank.tasks[index]
        if isinstance(task.op, COMMUNICATIONS):
            now_ps = self.clock.now_ps
            issued_ps = rank.issued_ps[index] + self.durations.hosts(rank.kind)[id(task.op)]
            if issued_ps - now_ps > rank.tightest_ps:
                self._tighten(rank, issued_ps - now_ps)
            self._arrive(rank, index, task, max(issued_ps, now_ps))
        else:
            self._start_compute(rank, stream, index, task)

    def _start_compute(self, rank: RankState, stream: Stream, index: int, task: Task) -> None:
        if isinstance(task.op, Block) and task.op.is_joint:
            self._join(rank, stream, index, task)
            return
        running = self._load(rank, index, task)
        if task.stream == LOADER:  # for which nothing waits but the end of the run
            self.beside.append(running.span._replace(end_ps=running.since_ps + running.left_ps))
            self.finish(rank, index, stream, self.clock.now_ps)
            return
        stream.running = running
        if task.stream == COMPUTE:
            rank.running = running
            if rank.collectives:
                change_rate(rank, stream, self.clock.now_ps, self._schedule_end)
                self._slow_collectives(rank)
                self._look_again_when_computing(rank)
        self._schedule_end(rank, stream, running)

    def _load(self, rank: RankState, index: int, task: Task) -> Running:
        """Work out when a compute task starts, and how much work it is."""
        op, now_ps, number = task.op, self.clock.now_ps, rank.program.rank
        host_ps = rank.issued_ps[index]
        inner: Sequence[Span] = ()
        floor_ps = 0
        if isinstance(op, Block):
            start_ps = max(now_ps, host_ps)
            result = self.durations.block(op, number, rank.kind, start_ps - host_ps)
            work_ps, inner = result.duration_ps, result.spans
            if rank.held == index:
                rank.host_ps = start_ps + result.issued_ps
                self._release_later(rank, now_ps)
            self._tighten(rank, host_ps + result.needed_lead_ps - start_ps)
        elif isinstance(op, KernelRun):
            cost = self.durations.run(op, number, rank.kind)
            start_ps = max(now_ps, host_ps + cost.first_issue_ps)
            work_ps = cost.device_ps
            floor_ps = host_ps + cost.both_ps
            self._tighten(rank, floor_ps - work_ps - now_ps)
            inner = self.durations.kernel_spans(op, number, start_ps, host_ps)
        elif isinstance(op, HostWork):  # of other processes than the one that issues
            start_ps = max(now_ps, host_ps)
            work_ps = to_ps(op.duration_s)
            self._tighten(rank, host_ps - now_ps)
        else:
            assert isinstance(op, Kernel)
            issued_ps = host_ps + self.costs.issue_ps(op, number)
            start_ps = max(now_ps, issued_ps)
            work_ps = self.costs.kernel_ps(op, number)
            self._tighten(rank, issued_ps - now_ps)
        span = Span(op, number, task.stream, start_ps, 0, task.micro_batch, start_ps - now_ps, 0, inner)
        return Running(index, work_ps, start_ps, floor_ps, span)

    def _join(self, rank: RankState, stream: Stream, index: int, task: Task) -> None:
        """Begin a pass that ranks of other classes run, too; how long it takes is known when the last of them begins."""
        now_ps, issued_ps = self.clock.now_ps, rank.issued_ps[index]
        start_ps = max(now_ps, issued_ps)
        span = Span(task.op, rank.program.rank, task.stream, start_ps, 0, task.micro_batch, start_ps - now_ps)
        stream.running = Running(index, start_ps - issued_ps, start_ps, 0, span)
        stream.running.end_ps = start_ps
        participants, latest_ps = self.arrived.pop(task.key, ([], 0))
        participants.append((rank, index))
        if len(participants) < self.n_participants[task.key]:
            self.arrived[task.key] = (participants, max(latest_ps, start_ps))
        else:
            del self.n_participants[task.key]
            self._run_jointly(sorted(participants, key=lambda one: one[0].number))

    def _run_jointly(self, participants: Participants) -> None:
        """Let all ranks that have begun a pass go through it.

        Raises
        ------
        TouchedError
            If others take links of the pass, or a collective slows its compute down, or what follows need not wait for all.
        """
        states = [(rank, rank.streams[COMPUTE], rank.streams[COMPUTE].running) for rank, _ in participants]
        first_ps = min(running.since_ps for _, _, running in states if running)
        parts = []
        for rank, _, running in states:
            assert running is not None and isinstance(running.span.op, Block)
            parts.append(
                PassPart(running.span.op, rank.program.rank, rank.kind, running.since_ps - first_ps, running.left_ps)
            )
        if self.turns is not None:
            self._take_turns(participants, parts, first_ps)
            return
        found = self.durations.joint(parts)
        for (rank, stream, running), part, result in zip(states, parts, found.results, strict=True):
            assert running is not None
            if rank.held == running.index:
                rank.host_ps = running.since_ps + result.issued_ps
                self._release_later(rank, self.clock.now_ps)
            self._tighten(rank, result.needed_lead_ps - part.lead_ps)
            if result.trails:
                self.trailing.add((rank.number, running.index))
            running.left_ps = result.duration_ps
            running.span = running.span._replace(inner=result.spans)
            rank.running = running
            if running.since_ps + result.duration_ps < self.clock.now_ps or rank.collectives:
                raise TouchedError
            self._schedule_end(rank, stream, running)
        end_ps = max(running.end_ps for _, _, running in states if running)
        component = self.component_of[states[0][0].number]
        still = [one for one in self.joint.get(component, ()) if one[0] > self.clock.now_ps]
        if any(self.durations.touches(used, found.links) for _, used in still):
            raise TouchedError
        self.joint[component] = [*still, (end_ps, found.links)]
        for communication in self.in_flight.values():
            links = self.costs.flow(communication.op).links
            is_near = self._own_component(links, communication) in (component, -1)
            if is_near and end_ps > self.clock.now_ps and self.durations.touches(found.links, links):
                raise TouchedError

    def _take_turns(self, participants: Participants, parts: Sequence[PassPart], first_ps: int) -> None:
        """Begin a pass among other traffic.

        Raises
        ------
        TouchedError
            If its ranks are not in step, or a collective slows its compute down.
        """
        assert self.turns is not None
        if not self.turns.are_taken(parts) or any(rank.collectives for rank, _ in participants):
            raise TouchedError
        one = self.turns.begin(parts, self.durations.distinct(parts), first_ps, self.durations)
        for rank, _ in participants:
            running = rank.running = rank.streams[COMPUTE].running
            assert running is not None
            running.turns, running.left_ps = one, 0  # the lead, until it began
        self._go_on(one, participants)

    def _go_on(self, one: RunningPass, participants: Participants) -> None:
        """Let a pass compute up to its next collective, or to its end.

        Raises
        ------
        TouchedError
            If a part of it without communication has ended before the others began.
        """
        met = one.go_on()
        for (rank, _), needed_ps in zip(participants, one.needed_ps(), strict=True):
            self._tighten(rank, needed_ps)
        if met is not None:
            communication = Communication(met[0], participants, met[1])
            if communication.start_ps > self.clock.now_ps:
                self._begin_later(communication)
            else:
                self._begin(communication)
            return
        for (rank, _), result in zip(participants, one.results(), strict=True):
            stream = rank.streams[COMPUTE]
            running = stream.running
            assert running is not None
            if running.since_ps + result.duration_ps < self.clock.now_ps:
                raise TouchedError
            if result.trails:
                self.trailing.add((rank.number, running.index))
            running.turns, running.left_ps = None, result.duration_ps
            running.span = running.span._replace(inner=result.spans)
            self._schedule_end(rank, stream, running)

    def _check_links(self, links: tuple[int, ...], communication: Communication) -> None:
        own, now_ps = self._own_component(links, communication), self.clock.now_ps
        for passes in self.joint.values() if own < 0 else (self.joint.get(own, ()),):
            if any(until_ps > now_ps and self.durations.touches(used, links) for until_ps, used in passes):
                raise TouchedError

    def _own_component(self, links: tuple[int, ...], communication: Communication) -> int:
        """Return the component which alone loads the links of a communication, -1 if that is not known."""

        def own_component(_: Collective | Transfer) -> int:
            found = {self.component_of[rank.number] for rank, _ in communication.participants}
            own = found.pop() if len(found) == 1 else -1
            if len(self.components) > 1 and own >= 0:
                assert isinstance(self.network, SeparableNetwork)
                own = own if self.network.contended(links) <= self.components[own].links else -1
            return own

        return self._own.of(communication.op, own_component)

    def _schedule_end(self, rank: RankState, stream: Stream, running: Running) -> None:
        left_ps = running.left_ps if running.rate == 1.0 else round(running.left_ps / running.rate)
        progress_ps = max(running.since_ps + left_ps, self.clock.now_ps)
        running.end_ps = max(progress_ps, running.floor_ps)
        running.idle_ps = running.end_ps - progress_ps
        running.generation += 1
        running.ticket = self.clock.call_at(
            running.end_ps, self._end_compute, rank, stream, running, running.generation
        )

    def _end_compute(self, rank: RankState, stream: Stream, running: Running, generation: int) -> None:
        if generation != running.generation:
            return
        if running.index == rank.beat and self._beat(rank):
            return
        now_ps = self.clock.now_ps
        op, number, name, start_ps, _, micro_batch, wait_ps, _, inner = running.span
        self.spans.append(Span(op, number, name, start_ps, now_ps, micro_batch, wait_ps, running.idle_ps, inner))
        stream.running = None
        if rank.running is running:
            rank.running = None
        is_next_ready = stream.head >= 0 and not rank.n_waiting[stream.head]
        if is_next_ready and (rank.number, running.index) in self.trailing:
            raise TouchedError  # what comes next does not wait for the communication at the end of the pass
        self.finish(rank, running.index, stream, now_ps)
        if rank.running is None and rank.collectives:
            self._slow_collectives(rank)

    def finish(self, rank: RankState, index: int, stream: Stream, now_ps: int) -> None:
        """Release the stream and whatever waited for this task."""
        stream.busy = False
        self.latest_ps = max(self.latest_ps, now_ps)
        tasks, n_waiting = rank.tasks, rank.n_waiting
        for later in rank.end(index, now_ps):
            n_waiting[later] -= 1
            if n_waiting[later]:
                continue
            rank.ready_ps[later] = now_ps
            if later == rank.n_issued:
                if tasks[later].stream == HOST:
                    self.issue(rank)
            elif later < rank.n_issued:
                other = rank.streams[tasks[later].stream]
                if not other.busy and other.head == later:
                    self.start_next(rank, other)
        if stream.head >= 0 and not stream.busy and not n_waiting[stream.head]:
            self.start_next(rank, stream)

    # -- communication ----------------------------------------------------------------------------------------

    def _arrive(self, rank: RankState, index: int, task: Task, at_ps: int) -> None:
        """Take part in a communication from ``at_ps`` on; the last to take part sets its start."""
        participants, key = [(rank, index)], task.key
        if key is not None:
            if key in self.arrived:
                participants, latest_ps = self.arrived.pop(key)
                participants.append((rank, index))
                at_ps = max(at_ps, latest_ps)
            if len(participants) < self.n_participants[key]:
                self.arrived[key] = (participants, at_ps)
                return
            del self.n_participants[key]
        assert isinstance(task.op, COMMUNICATIONS)
        communication = Communication(task.op, participants, at_ps)
        if at_ps > self.clock.now_ps:
            self._begin_later(communication)
        else:
            self._begin(communication)

    def _begin_later(self, communication: Communication) -> None:
        ticket = self.clock.call_at(communication.start_ps, self._begin_now, communication)
        self.beginning[id(communication)] = (communication, ticket)

    def _begin_now(self, communication: Communication) -> None:
        if self.beginning.pop(id(communication), None) is not None:
            self._begin(communication)

    def _begin(self, communication: Communication) -> None:
        op, participants, now_ps = communication.op, communication.participants, self.clock.now_ps
        flow = self.costs.flow(op)
        if self.touched is not None:
            self.touched.update(flow.links)
        if self.joint:
            self._check_links(flow.links, communication)
        if self.passing and self._own_component(flow.links, communication) < 0:
            self._check_passing(flow.links, participants, self.passing)
        handle = self.network.start(flow, now_ps)
        self.in_flight[handle] = communication
        one = None if self.turns is None else self._pass_of(communication)
        if one is not None:
            self._begin_beside(one, handle, communication)
        elif isinstance(op, Collective):
            factors = self.costs.interference(op)
            if factors != (1.0, 1.0):
                for participant, _ in participants:
                    if (self.joint or self.turns) and _runs_jointly(participant):
                        raise TouchedError
                    participant.collectives[handle] = factors
                    self._change_rate(participant)
                    self._slow_collectives(participant)
                    self._look_again_when_computing(participant)
        self.set_alarm()

    def _begin_beside(self, one: RunningPass, handle: int, communication: Communication) -> None:
        """Let the ranks of a pass compute beside the collective that has begun, each slowing the other down."""
        assert isinstance(communication.op, Collective)
        factors = self.costs.interference(communication.op)
        one.begin(self.clock.now_ps, factors.compute)
        if factors.communication != 1.0:
            self._look_beside(one, handle, communication)

    def _pass_of(self, communication: Communication) -> RunningPass | None:
        """Return the pass that goes on when a collective has ended, if it is one within a pass."""
        if self.turns is None:
            return None
        rank, index = communication.participants[0]
        running = rank.running
        return running.turns if running is not None and running.index == index else None

    def _look_beside(self, one: RunningPass, handle: int, communication: Communication) -> None:
        """Slow a collective down as long as any rank of its pass computes."""
        now_ps = self.clock.now_ps
        if self.in_flight.get(handle) is communication:
            assert isinstance(communication.op, Collective)
            factor = self.costs.interference(communication.op).communication
            self.network.set_slowdown(handle, factor if one.computes(now_ps) else 1.0, now_ps)
            if one.change_ps is not None:
                self.clock.call_at(one.change_ps, self._look_beside, one, handle, communication)
            self.set_alarm()

    def set_alarm(self) -> None:
        """Ask the network again at its next completion."""
        wake_ps = self.network.next_completion_ps()
        if wake_ps is not None and (self.alarm is None or wake_ps != self.alarm[0]):
            ticket = self.clock.call_at(max(wake_ps, self.clock.now_ps), self._wake, wake_ps)
            self.alarm = (wake_ps, ticket)

    def _wake(self, wake_ps: int) -> None:
        if self.alarm is None or wake_ps != self.alarm[0]:
            return
        self.alarm = None
        now_ps = self.clock.now_ps
        done = self.network.advance(now_ps)
        communications = [self.in_flight.pop(handle) for handle in done]
        for handle, communication in zip(done, communications, strict=True):
            op, participants, start_ps = communication
            if self.turns is not None and self._pass_of(communication) is not None:
                continue
            for rank, index in participants:
                task = rank.tasks[index]
                self.spans.append(Span(op, rank.program.rank, task.stream, start_ps, now_ps, task.micro_batch))
                if rank.collectives and rank.collectives.pop(handle, None) is not None:
                    self._change_rate(rank)
        for communication in communications:
            one = None if self.turns is None else self._pass_of(communication)
            if one is not None:
                one.meet(now_ps)
                self._go_on(one, communication.participants)
                continue
            for rank, index in communication.participants:
                self.finish(rank, index, rank.streams[rank.tasks[index].stream], now_ps)
        self.set_alarm()

    # -- interference and steady state ------------------------------------------------------------------------

    def _change_rate(self, rank: RankState) -> None:
        if rank.running is not None:
            change_rate(rank, rank.streams[COMPUTE], self.clock.now_ps, self._schedule_end)

    def _look_again_when_computing(self, rank: RankState) -> None:
        """Slow collectives down once the host has issued what the compute stream is waiting for."""
        if rank.running is not None and rank.running.since_ps > self.clock.now_ps:
            self.clock.call_at(rank.running.since_ps, self._slow_collectives_later, rank, rank.generation)

    def _slow_collectives_later(self, rank: RankState, generation: int) -> None:
        if generation == rank.generation:
            self._slow_collectives(rank)

    def _slow_collectives(self, rank: RankState) -> None:
        slow_collectives(rank, self.network, self.in_flight, self.clock.now_ps)
        self.set_alarm()

    def _beat(self, rank: RankState) -> bool:
        """Look at a rank's component; return whether it has been postponed."""
        now_ps, network, component = self.clock.now_ps, self.network, self.component_of[rank.number]
        watch = self.watches[component]
        if len(self.components) == 1:
            state = network.state(now_ps) if isinstance(network, StatefulNetwork) else None
            flying = self.in_flight.values()
            watch.look(
                View(now_ps, state, self.arrived.values(), self.beginning.values(), flying, self.alarm)
            )  # fmt: skip
            return False
        assert isinstance(network, SeparableNetwork)
        own = {handle: one for handle, one in self.in_flight.items() if self._concerns(component, one.participants)}
        due_ps = network.due_ps(own)
        ticket = self.alarm[1] if self.alarm is not None and self.alarm[0] == due_ps else FAR_AHEAD_PS
        waiting = [one for one in self.arrived.values() if self._concerns(component, one[0])]
        beginning = [one for one in self.beginning.values() if self._concerns(component, one[0].participants)]
        alarm = None if due_ps is None else (due_ps, ticket)
        watch.look(View(now_ps, network.state(now_ps, own), waiting, beginning, own.values(), alarm))
        if watch.found is None:
            return False
        start_ps, end_ps, n_periods = watch.found
        self._postpone(component, watch.n_omitted // n_periods * (end_ps - start_ps))
        return True

    def _concerns(self, component: int, participants: Participants) -> bool:
        return component in [self.component_of[rank.number] for rank, _ in participants]

    def _postpone(self, component: int, by_ps: int) -> None:
        """Move what a component is about to do behind the periods that are left out, everything in the order that it has.

        Raises
        ------
        OutsideError
            If other traffic takes its links in the meantime.
        """
        assert isinstance(self.network, SeparableNetwork)
        now_ps = self.clock.now_ps
        calls: list[tuple[int, int, Callable[..., None], tuple[object, ...]]] = []
        passes: set[RunningPass] = set()
        for number in self.components[component].numbers:
            rank = self.ranks[number]
            self.moved[number] = (len(self.spans), by_ps)
            if rank.running is not None and rank.running.turns is not None:
                passes.add(rank.running.turns)
            ending = {id(running) for running in postpone(rank, by_ps)}
            for stream in rank.streams.values():
                running = stream.running
                if running is not None and id(running) in ending:
                    calls.append((running.end_ps, running.ticket, self._schedule_end, (rank, stream, running)))
            if rank.release_ticket:
                calls.append((now_ps + by_ps, rank.release_ticket, self._release_later, (rank, now_ps + by_ps)))
            if rank.collectives:
                self._look_again_when_computing(rank)
        for turns in passes:
            turns.postpone(by_ps)
        for communication, ticket in list(self.beginning.values()):
            if self._concerns(component, communication.participants):
                del self.beginning[id(communication)]
                later = communication._replace(start_ps=communication.start_ps + by_ps)
                calls.append((later.start_ps, ticket, self._begin_later, (later,)))
        for _, _, action, arguments in sorted(calls, key=lambda call: call[:2]):
            action(*arguments)
        for key, (participants, at_ps) in self.arrived.items():
            if self._concerns(component, participants):
                self.arrived[key] = (participants, at_ps + by_ps)
        own = {handle: one for handle, one in self.in_flight.items() if self._concerns(component, one.participants)}
        for handle, one in own.items():
            later = self.in_flight[handle] = one._replace(start_ps=one.start_ps + by_ps)
            inside = self._pass_of(later)
            if inside is not None and inside.change_ps is not None:
                self.clock.call_at(inside.change_ps, self._look_beside, inside, handle, later)
        self.network.postpone(own, by_ps)
        self.joint[component] = [(until_ps + by_ps, used) for until_ps, used in self.joint.get(component, ())]
        self.passing.append((now_ps + by_ps, component))
        for handle, one in self.in_flight.items():
            if handle not in own:
                self._check_passing(self.costs.flow(one.op).links, one.participants, self.passing[-1:])
        self.set_alarm()

    def recorded(self) -> tuple[Span, ...]:
        """Return all spans, those of a rank that was postponed on a clock that stood still in the meantime; the run is over then."""
        if not self.moved:
            return tuple(self.spans)
        by_rank = {self.ranks[number].program.rank: moved for number, moved in self.moved.items()}
        self.moved = {}
        self.ranks, self.watches = [], []  # over: what they hold makes room for the times that are new
        for place, span in enumerate(self.spans):
            n_before, by_ps = by_rank.get(span.rank, (0, 0))
            if by_ps and place >= n_before:  # in place: two of each would be the most that a run holds at any time
                self.spans[place] = span._replace(start_ps=span.start_ps - by_ps, end_ps=span.end_ps - by_ps)
        return tuple(self.spans)

    def cycles(self, period_micro_batches: int) -> tuple[Cycle | None, dict[int, Cycle]]:
        """Return the steady state that all ranks share, or those of ranks that have their own.

        Parameters
        ----------
        period_micro_batches : int
            Micro-batches of one period of the program.
        """
        own: dict[int, Cycle] = {}
        for component, watch in zip(self.components, self.watches, strict=bool(self.watches)):
            if watch.found is not None:
                start_ps, end_ps, n_periods = watch.found
                cycle = Cycle(start_ps, end_ps, watch.n_omitted // n_periods, n_periods * period_micro_batches)
                if len(self.components) == 1:
                    return cycle, {}
                own |= {self.ranks[number].program.rank: cycle for number in component.numbers}
        return None, own

    def _check_passing(
        self, links: tuple[int, ...], participants: Participants, passing: Sequence[tuple[int, int]]
    ) -> None:
        now_ps, touches = self.clock.now_ps, self.durations.touches
        for until_ps, component in passing:
            is_outside = until_ps > now_ps and not self._concerns(component, participants)
            if is_outside and touches(self.components[component].links, links):
                raise OutsideError


def _keys_across(program: Program, component_of: Mapping[int, int]) -> Iterator[Hashable]:
    """Yield the keys behind the stretches under which ranks of several components meet."""
    first: dict[Hashable, int] = {}
    for number, rank in enumerate(program.ranks):
        for key in {task.key for task in rank.tasks[stretch_of(rank).end :] if task.key is not None}:
            if first.setdefault(key, component_of[number]) != component_of[number]:
                yield key


def _runs_jointly(rank: RankState) -> bool:
    stream = rank.streams.get(COMPUTE)
    running = stream.running if stream is not None else None
    return running is not None and isinstance(running.span.op, Block) and running.span.op.is_joint
