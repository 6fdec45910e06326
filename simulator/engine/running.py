"""What runs a program: one machine after the other, until all of it is known, and others for the insides of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm

from simulator.engine.circles import Circle, OutsideError, circles_of
from simulator.engine.costs import Costs
from simulator.engine.durations import BlockResult, Durations, JointResult, Part, TouchedError
from simulator.engine.lockstep import Turns
from simulator.engine.machine import Machine
from simulator.engine.state import RankState
from simulator.network.base import NetworkModel, SeparableNetwork
from simulator.program.program import COMPUTE, Block, Program, RankProgram
from simulator.program.startable import check
from simulator.program.stretch import insert_periods
from simulator.timeline import Timeline

#: Periods that are written down when the steady state was not reached, per period that stood there
GROWTH = 3


def _result_of(machine: Machine, state: RankState, part: Part) -> BlockResult:
    """Return one rank's part of a pass, relative to when that rank began."""
    spans = tuple(
        span._replace(start_ps=span.start_ps - part.offset_ps, end_ps=span.end_ps - part.offset_ps)
        for span in machine.spans
        if span.rank == part.rank
    )
    end_ps = max(span.end_ps for span in spans)
    computed_ps = max((span.end_ps for span in spans if span.stream == COMPUTE), default=0)
    issued_ps = state.host_ps - part.offset_ps
    return BlockResult(end_ps, state.needed_ps + part.lead_ps, spans, issued_ps, trails=computed_ps < end_ps)


def durations_of(
    costs: Costs,
    new_network: Callable[[], NetworkModel],
    *,
    detail: bool = False,
    shared: frozenset[int] = frozenset(),
) -> Durations:
    """Return a memory of durations that computes blocks on networks of their own.

    Parameters
    ----------
    shared : frozenset of int
        Links that others load, too: a block that takes one of them is none.
    """

    def run_block(rank: int, block: Block, lead_ps: int) -> BlockResult:
        inside = Program(ranks=(RankProgram(rank=rank, members=(rank,), tasks=block.tasks),))
        machine = Machine(inside, durations, new_network(), host_start_ps=-lead_ps)
        machine.touched = set() if shared else None
        machine.execute()
        if machine.touched and not shared.isdisjoint(machine.touched):
            raise TouchedError
        (state,) = machine.ranks
        return BlockResult(machine.latest_ps, state.needed_ps + lead_ps, tuple(machine.spans), state.host_ps)

    def run_jointly(parts: Sequence[Part]) -> JointResult:
        if turns.are_taken(parts):
            return turns.play(parts, durations)
        ranks = [RankProgram(rank=part.rank, members=(part.rank,), tasks=part.block.tasks) for part in parts]
        machine = Machine(Program(ranks=tuple(ranks)), durations, new_network())
        machine.touched = set()
        for state, part in zip(machine.ranks, parts, strict=True):
            state.host_ps = part.offset_ps - part.lead_ps
            machine.clock.call_at(part.offset_ps, machine.issue, state)
        machine.clock.run()
        assert machine.is_finished, "ranks of a pass post the same operations"
        found = [_result_of(machine, state, part) for state, part in zip(machine.ranks, parts, strict=True)]
        return JointResult(tuple(found), frozenset(machine.touched))

    turns = Turns(costs, new_network)
    durations = Durations(costs, run_block, run_jointly, detail=detail)
    return durations


def run(
    program: Program, costs: Costs, new_network: Callable[[], NetworkModel], *, detail: bool = False, among_others: bool = False
) -> Timeline:  # fmt: skip
    """Run a program and return what happened when.

    Parameters
    ----------
    program : Program
        If it leaves out periods, as many are written down as it takes to see it in a steady state.
    costs : Costs
        Durations of kernels and loads of communication.
    new_network : callable
        Makes an idle network; blocks that nothing outside can touch run on networks of their own.
    detail : bool
        Whether spans carry what happened inside runs of kernels.
    among_others : bool
        Whether other traffic may take links of passes that several ranks run.

    Returns
    -------
    Timeline
        Spans in order of completion, all starting at or after 0.

    Raises
    ------
    InfeasiblePlanError
        If ranks wait for each other in a circle.
    TouchedError
        If a pass that several ranks run is not alone on what it uses, or cannot go on among other traffic.
    """
    durations = durations_of(costs, new_network, detail=detail)
    network = new_network()
    circles: Sequence[Circle] = ()
    if program.n_omitted and isinstance(network, SeparableNetwork):
        circles = circles_of(program, costs, network)
    while True:
        turns = Turns(costs, new_network) if among_others else None
        machine = Machine(program, durations, network, circles=circles, turns=turns)
        network = new_network()
        try:
            machine.execute()
        except OutsideError:
            circles = ()
            continue
        if not machine.is_finished:
            check(program)  # says who waits for whom
            raise AssertionError("a program that passes the check always finishes")
        n_more = _missing_periods(program, machine)
        if not n_more:
            break
        program = insert_periods(program, n_more)
    cycle, cycles = machine.cycles(program.period_micro_batches)
    return Timeline(
        simulated=machine.recorded(), members={rank.rank: rank.members for rank in program.ranks},
        simulated_ps=machine.latest_ps, n_events=machine.clock.n_events, cycle=cycle, cycles=cycles,
    )  # fmt: skip


def _missing_periods(program: Program, machine: Machine) -> int:
    """Return how many periods are to be written down before what is left out is known; 0 where it is."""
    n_omitted = program.n_omitted
    n_periods = [watch.found.n_periods if watch.found else 0 for watch in machine.watches if not watch.grows]
    if all(n_periods):
        return n_omitted % lcm(*n_periods)
    n_more = GROWTH * program.n_periods
    return n_more if 3 * n_more < n_omitted else n_omitted
