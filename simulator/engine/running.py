"""What runs a program: one machine after the other, until all of it is known, and others for the insides of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, lcm
from typing import TypeVar

from simulator.engine.components import OutsideError, RankComponent, components_of
from simulator.engine.costs import Costs
from simulator.engine.durations import BlockResult, Durations, JointResult, PassPart, TouchedError
from simulator.engine.lockstep import Turns
from simulator.engine.machine import Machine
from simulator.engine.state import RankState
from simulator.network.base import EndlessNetwork, Flow, NetworkModel, SeparableNetwork
from simulator.program.allowance import Allowance
from simulator.program.program import COMPUTE, Block, Program, RankProgram
from simulator.program.startable import check
from simulator.program.stretch import insert_periods, stretch_of
from simulator.timeline import Cycle, Timeline
from simulator.units import to_s

#: Periods that are written down when the steady state was not reached, per period that stood there
GROWTH = 3

Network = TypeVar("Network", bound=NetworkModel)


def _result_of(machine: Machine, state: RankState, part: PassPart) -> BlockResult:
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
    allowance: Allowance | None = None,
) -> Durations:
    """Return a memory of durations that computes blocks on networks of their own.

    Parameters
    ----------
    shared : frozenset of int
        Links that others load, too: a block that takes one of them is none.
    allowance : Allowance, optional
        Tasks that may be run inside blocks.
    """
    allowed = allowance or Allowance()

    def run_block(durations: Durations, rank: int, block: Block, lead_ps: int) -> BlockResult:
        allowed.check(len(block.tasks))
        allowed.spend(len(block.tasks))
        inside = Program(ranks=(RankProgram(rank=rank, members=(rank,), tasks=block.tasks),))
        machine = Machine(inside, durations, new_network(), host_start_ps=-lead_ps)
        machine.touched = set() if shared else None
        machine.execute()
        if machine.touched and not shared.isdisjoint(machine.touched):
            raise TouchedError
        (state,) = machine.ranks
        return BlockResult(machine.latest_ps, state.needed_ps + lead_ps, tuple(machine.spans), state.host_ps)

    def run_jointly(durations: Durations, parts: Sequence[PassPart]) -> JointResult:
        n_tasks = sum(len(part.block.tasks) for part in parts)
        allowed.check(n_tasks)
        allowed.spend(n_tasks)
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
    return Durations(costs, run_block, run_jointly, detail=detail)


def run(
    program: Program,
    costs: Costs,
    new_network: Callable[[], NetworkModel],
    *,
    detail: bool = False,
    among_others: bool = False,
    allowance: Allowance | None = None,
) -> Timeline:
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
    allowance : Allowance, optional
        Tasks that may be run, those of periods that are left out where it takes them.

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
    TooMuchWorkError
        If more tasks would have to be run than the allowance has.
    """
    durations = durations_of(costs, new_network, detail=detail, allowance=allowance)
    components: Sequence[RankComponent] = ()
    if program.n_omitted and isinstance(network := new_network(), SeparableNetwork):
        components = components_of(program, costs, network)
    turns = (lambda: Turns(costs, new_network)) if among_others else (lambda: None)
    return _until_known(program, durations, new_network, components, turns, allowance or Allowance())[0]


def run_beside(
    program: Program, costs: Costs, new_network: Callable[[], NetworkModel], flow: Flow
) -> tuple[Timeline, float]:
    """Run a program beside a flow that never ends, and return what happened when and the mean rate of the flow.

    The flow knows no time, and so leaves a steady state what it is; all ranks share it, and so have one together.

    Raises
    ------
    InfeasiblePlanError
        If ranks wait for each other in a circle.
    TouchedError
        If a block takes links of the flow.
    """
    endless = replace(flow, latency_s=0.0, n_bytes=inf)

    def occupied() -> NetworkModel:
        network = new_network()
        network.start(endless, 0)
        return network

    durations = durations_of(costs, new_network, shared=frozenset(flow.links))
    timeline, network = _until_known(program, durations, occupied, (), lambda: None, Allowance())
    assert isinstance(network, EndlessNetwork)
    (rates,) = network.endless.values()
    moved = _moved_bytes(rates, 0, timeline.simulated_ps)
    if timeline.cycle is not None:
        moved += timeline.cycle.n_more * _moved_bytes(rates, timeline.cycle.start_ps, timeline.cycle.end_ps)
    return timeline, moved / to_s(timeline.makespan_ps)


def _moved_bytes(rates: Sequence[tuple[int, float]], from_ps: int, to_ps: int) -> float:
    """Return what a flow has moved between two times, given its rates and since when it has had each."""
    ends_ps = [*(since_ps for since_ps, _ in rates[1:]), to_ps]
    lengths_ps = [
        max(0, min(end_ps, to_ps) - max(since_ps, from_ps))
        for (since_ps, _), end_ps in zip(rates, ends_ps, strict=True)
    ]
    return sum(rate * to_s(length_ps) for (_, rate), length_ps in zip(rates, lengths_ps, strict=True) if length_ps)


def _until_known(
    program: Program,
    durations: Durations,
    new_network: Callable[[], Network],
    components: Sequence[RankComponent],
    new_turns: Callable[[], Turns | None],
    allowance: Allowance,
) -> tuple[Timeline, Network]:
    """Run a program, with as many periods written down as it takes, and return the network that it last ran on, too."""
    while True:
        allowance.check(program.n_tasks)
        network = new_network()
        machine = Machine(program, durations, network, components=components, turns=new_turns())
        try:
            machine.execute()
        except OutsideError:
            components = ()
            continue
        finally:
            allowance.spend(sum(rank.n_issued for rank in machine.ranks))
        if not machine.is_finished:
            check(program)  # says who waits for whom
            raise AssertionError("a program that passes the check always finishes")
        n_more = _missing_periods(program, machine)
        if not n_more:
            break
        allowance.check(n_more * sum(stretch_of(rank).length for rank in program.ranks))
        program = insert_periods(program, n_more)
    cycle, cycles = machine.cycles(program.period_micro_batches)
    beside = [span._replace(end_ps=_simulated_ps(span.end_ps, cycle)) for span in machine.beside]
    timeline = Timeline(
        simulated=(*machine.recorded(), *beside), members={rank.rank: rank.members for rank in program.ranks},
        simulated_ps=max([machine.latest_ps, *(span.end_ps for span in beside)]),
        n_events=machine.clock.n_events, cycle=cycle, cycles=cycles,
    )  # fmt: skip
    return timeline, network


def _simulated_ps(time_ps: int, cycle: Cycle | None) -> int:
    """Return a time on the clock of what is simulated, which stands still in the periods that are left out."""
    if cycle is None or time_ps <= cycle.end_ps:
        return time_ps
    return max(cycle.end_ps, time_ps - cycle.left_out_ps)


def _missing_periods(program: Program, machine: Machine) -> int:
    """Return how many periods are to be written down before what is left out is known; 0 where it is."""
    n_omitted = program.n_omitted
    n_periods = [watch.found.n_periods if watch.found else 0 for watch in machine.watches if not watch.grows]
    if all(n_periods):
        return n_omitted % lcm(*n_periods)
    n_more = GROWTH * program.n_periods
    return n_more if 3 * n_more < n_omitted else n_omitted
