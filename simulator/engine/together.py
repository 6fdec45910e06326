"""Several programs on one clock over one network, each again and again: jobs beside each other.

Every job is a :class:`Machine` of its own; what they share is the clock and, through a :class:`Port` each, the network. An
iteration begins when the one before it has ended, as a job alone would go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from simulator.engine.clock import Clock
from simulator.engine.costs import Costs
from simulator.engine.durations import Durations
from simulator.engine.machine import Machine
from simulator.engine.running import durations_of
from simulator.engine.state import RankState, Stream
from simulator.network.base import Flow, NetworkModel
from simulator.program.program import HOST, Program
from simulator.program.startable import check


class Iteration(NamedTuple):
    """One run of a job's program."""

    start_ps: int
    end_ps: int
    phases_ps: tuple[int, ...]  #: How long the iterations that the other jobs were in at its start had lasted by then.


class Port:
    """What one of several jobs sees of their network: its own flows, and the times at which anything may change.

    Parameters
    ----------
    network : NetworkModel
        Shared by all ports.
    ports : list of Port
        All of them; this one is added.
    """

    def __init__(self, network: NetworkModel, ports: list[Port]) -> None:
        self.machine: Machine | None = None
        self._network = network
        self._ports = ports
        self._flying: set[int] = set()
        self._ended: list[int] = []
        self._now_ps = 0
        ports.append(self)

    def start(self, flow: Flow, now_ps: int) -> int:
        """Begin a flow at ``now_ps`` and return its handle."""
        handle = self._network.start(flow, now_ps)
        self._flying.add(handle)
        self._tell_others()
        return handle

    def next_completion_ps(self) -> int | None:
        """Time of the next event of the network while one of this job's flows is in flight."""
        if self._ended:
            return self._now_ps
        return self._network.next_completion_ps() if self._flying else None

    def advance(self, now_ps: int) -> tuple[int, ...]:
        """Move the network to ``now_ps``; return this job's flows that have finished by then, ascending."""
        done = self._network.advance(now_ps)
        for port in self._ports:
            own = port._flying.intersection(done)
            port._flying -= own
            port._ended += own
            port._now_ps = now_ps
        ended, self._ended = tuple(sorted(self._ended)), []
        self._tell_others()
        return ended

    def set_slowdown(self, handle: int, factor: float, now_ps: int) -> None:
        """Let a flow in flight use only ``factor`` of what its links grant it."""
        self._network.set_slowdown(handle, factor, now_ps)
        self._tell_others()

    def _tell_others(self) -> None:
        for port in self._ports:
            if port is not self and port.machine is not None:
                port.machine.set_alarm()


class _Run(Machine):
    """A machine that says when its program has ended."""

    def __init__(
        self, program: Program, durations: Durations, port: Port, clock: Clock, on_end: Callable[[], None]
    ) -> None:
        super().__init__(program, durations, port, host_start_ps=clock.now_ps, clock=clock)
        self._n_left = sum(task.stream != HOST for rank in program.ranks for task in rank.tasks)
        self._on_end = on_end
        port.machine = self

    def finish(self, rank: RankState, index: int, stream: Stream, now_ps: int) -> None:
        """Release what waited for a task; after the last one, say so."""
        super().finish(rank, index, stream, now_ps)
        self._n_left -= 1
        if not self._n_left:
            self.clock.call_at(max(now_ps, self.latest_ps), self._on_end)


def run_together(
    jobs: Sequence[tuple[Program, Costs]],
    new_network: Callable[[], NetworkModel],
    *,
    starts_ps: Sequence[int],
    shared: frozenset[int],
    is_enough: Callable[[Sequence[Sequence[Iteration]]], bool],
) -> list[list[Iteration]]:
    """Run jobs beside each other, each from its start on again and again.

    Parameters
    ----------
    jobs : sequence of (Program, Costs)
        Written down whole; their costs name links of one topology.
    new_network : callable
        Makes an idle network of that topology.
    starts_ps : sequence of int
        When each job begins.
    shared : frozenset of int
        Links that several of them may load.
    is_enough : callable
        Asked with all whole iterations so far at the end of each; no further ones begin once it agrees.

    Returns
    -------
    list of list of Iteration
        By job.

    Raises
    ------
    InfeasiblePlanError
        If ranks of a program wait for each other in a circle.
    TouchedError
        If a block of a program takes links that others load, too.
    """
    clock = Clock()
    playing = _Playing(jobs, new_network, clock, starts_ps, shared, is_enough)
    for number, start_ps in enumerate(starts_ps):
        clock.call_at(start_ps, playing.begin, number)
    clock.run()
    if not playing.is_over:
        for program, _ in jobs:
            check(program)  # says who waits for whom
        raise AssertionError("programs that pass the check always finish")
    return playing.found


class _Playing:
    """Jobs that begin again at the end of each of their iterations, until it is enough."""

    def __init__(
        self,
        jobs: Sequence[tuple[Program, Costs]],
        new_network: Callable[[], NetworkModel],
        clock: Clock,
        starts_ps: Sequence[int],
        shared: frozenset[int],
        is_enough: Callable[[Sequence[Sequence[Iteration]]], bool],
    ) -> None:
        self.found: list[list[Iteration]] = [[] for _ in jobs]
        self.is_over = False
        self._programs = [program for program, _ in jobs]
        self._memories = [durations_of(costs, new_network, shared=shared) for _, costs in jobs]
        self._clock, self._is_enough = clock, is_enough
        self._begun_ps = list(starts_ps)
        self._ports: list[Port] = []
        network = new_network()
        for _ in jobs:
            Port(network, self._ports)

    def begin(self, number: int) -> None:
        """Begin an iteration of a job now."""
        now_ps = self._begun_ps[number] = self._clock.now_ps
        phases_ps = tuple(now_ps - since_ps for other, since_ps in enumerate(self._begun_ps) if other != number)
        machine = _Run(
            self._programs[number], self._memories[number], self._ports[number], self._clock,
            partial(self._end, number, now_ps, phases_ps),
        )  # fmt: skip
        for rank in machine.ranks:
            machine.issue(rank)

    def _end(self, number: int, start_ps: int, phases_ps: tuple[int, ...]) -> None:
        if self.is_over:
            return
        self.found[number].append(Iteration(start_ps, self._clock.now_ps, phases_ps))
        self.is_over = self._is_enough(self.found)
        if not self.is_over:
            self.begin(number)
