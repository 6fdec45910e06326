"""One thing changed and simulated again: another machine or another plan, ranked for ``--explain`` and for unasked advice.

The machine changes are those of :mod:`simulator.changes`, the plans those of :mod:`simulator.explore.neighbourhood`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from simulator.analysis.critical_path import HOST_KIND, PathRow, path_rows
from simulator.analysis.explain import NEARLY, Explanation, Knob, Option, TrialOutcome, saving
from simulator.analysis.explain import explain as rank_changes
from simulator.answer import Result
from simulator.changes import Improvement, MachineChange, improvements
from simulator.collectives import ALGORITHMS
from simulator.collectives.shape import shape_of
from simulator.collectives.tuner import is_tunable
from simulator.costs import ModelCosts
from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.explore.neighbourhood import Neighbour, Site, nearest
from simulator.explore.search.bounds import Bounds
from simulator.identity import ByIdentity
from simulator.network.base import Flow
from simulator.parallel.lower import Lowered
from simulator.program.allowance import Allowance, TooMuchWorkError
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.scenario import Scenario
from simulator.simulation import lower_scenario, run_scenario
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.link import FABRIC_KINDS
from simulator.units import format_bytes

#: events of a run above which nothing is simulated without being asked for
MOST_EVENTS = 8_000
#: tasks of a plan beyond which it is looked at whether it fits before they are written down
LARGE_PLAN = 50_000

_COMPUTES = ("compute", "optimizer", "matrix products", "attention", "elementwise, norms and copies", "other kernels")


class ChangedCosts(ModelCosts):
    """The costs of a scenario on a changed machine: the topology has the change of its links, latencies and speeds count here."""

    def __init__(self, topology: Topology, scenario: Scenario, change: MachineChange) -> None:
        super().__init__(topology, scenario)
        self._change = change
        # by identity: the cost models keep one flow per operation, and both sides live as long as these costs
        self._changed: ByIdentity[Flow, Flow] = ByIdentity()

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time to issue one operation on the changed host."""
        return round(super().issue_ps(op, rank) / self._change.host_speed)

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Device time of a kernel at the changed speed."""
        return round(super().kernel_ps(kernel, rank) / self._change.kernel_speed)

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a communication on the links, with the latency that the change gives it."""
        plain = super().flow(op)
        if not (self._change.latency or self._change.hop_latency_s):
            return plain

        def later(flow: Flow) -> Flow:
            crosses = any(LINK_KINDS[self.topology.arrays.kind[link]] in ("nic", *FABRIC_KINDS) for link in flow.links)
            factor = self._change.latency.get("between" if crosses else "inside", 1.0)
            return _later(flow, factor, self._change.hop_latency_s * n_hops(op, flow.label, self.topology))

        return self._changed.of(plain, later)


def _later(flow: Flow, factor: float, extra_s: float) -> Flow:
    """Return a flow, and the parts that it may be taken into, with another latency."""

    def apart(at_most: int | None) -> list[Flow]:
        return [_later(part, factor, extra_s) for part in flow.parts(at_most)]

    latency_s = flow.latency_s / factor + extra_s
    return replace(flow, latency_s=latency_s, apart=apart if flow.apart is not None else None)


class Trials:
    """Runs changes of one result."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self._parts = lower_scenario(result.asked, result.topology, result.spec)
        # trials share many shapes, whose times the kernel model remembers
        self._kernels = ModelCosts(result.topology, result.scenario).kernels

    @property
    def baseline(self) -> TrialOutcome:
        """The result itself."""
        return TrialOutcome(
            iteration_time_s=self.result.metrics.iteration_time_s, n_samples=self.result.plan.global_batch
        )

    def machine(self, change: MachineChange) -> TrialOutcome:
        """Run the same plan on a changed machine."""
        result = self.result
        topology, scenario = change.apply(result.topology), result.asked
        if change.faults:
            scenario = replace(scenario, faults=change.faults)
        is_same_program = not (change.faults or change.changes_reading)
        return self._run(scenario, topology, change, self._parts if is_same_program else None)

    def plan(self, neighbour: Neighbour, allowance: Allowance | None = None) -> TrialOutcome:
        """Run another plan on the same machine, if it can run and fits.

        Raises
        ------
        TooMuchWorkError
            If that takes more than an allowance has.
        """
        if neighbour.reason:
            return TrialOutcome(reason=neighbour.reason)
        scenario = replace(self.result.asked, plan=neighbour.plan)
        lowered = partial(lower_scenario, scenario, self.result.topology, self.result.spec)
        try:
            parts = lowered(allowance=allowance or Allowance(LARGE_PLAN))
        except InfeasiblePlanError as error:  # the layers or the schedule do not allow it
            return TrialOutcome(reason=error.message)
        except TooMuchWorkError:
            if allowance is not None:
                raise
            bounds = Bounds(scenario, self.result.topology, self.result.spec)
            memory = bounds.memory(bounds.layout(scenario.plan))  # as it is once all is written down
            if memory.fits:
                parts = lowered()
        else:
            memory = parts[2]
        if not memory.fits:
            need = f"needs {format_bytes(memory.peak_bytes)} of {format_bytes(memory.capacity_bytes)} memory"
            return TrialOutcome(reason=need)
        try:
            return self._run(scenario, self.result.topology, MachineChange(), parts, allowance)
        except SimulatorError as error:  # a forced algorithm does not run what the plan communicates
            return TrialOutcome(reason=error.message)

    def scenario(self, scenario: Scenario) -> TrialOutcome:
        """Run the same plan with other cost models or choices of the collectives."""
        try:
            return self._run(scenario, self.result.topology, MachineChange(), self._parts)
        except SimulatorError as error:  # an algorithm that does not run here
            return TrialOutcome(reason=error.message)

    def _run(
        self,
        scenario: Scenario,
        topology: Topology,
        change: MachineChange,
        parts: tuple[Any, Lowered, Any] | None,
        allowance: Allowance | None = None,
    ) -> TrialOutcome:
        def costs_of(topology: Topology, scenario: Scenario) -> ModelCosts:
            costs = ChangedCosts(topology, scenario, change)
            costs.kernels = self._kernels
            return costs

        ran = run_scenario(scenario, topology, self.result.spec, parts=parts, costs_of=costs_of, allowance=allowance)
        return TrialOutcome(iteration_time_s=ran.timeline.makespan_ps / 1e12, n_samples=scenario.plan.global_batch)


def n_hops(op: Collective | Transfer, label: str, topology: Topology) -> int:
    """Count the hops between nodes that a communication makes one after the other.

    A ring passes every node once per phase, and an all-reduce has two phases; a tree goes up and down its levels; a
    message goes once.

    References
    ----------
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005.
    """
    groups = op.pairs[:1] if isinstance(op, Transfer) else op.groups[:1]
    if isinstance(op, Transfer):
        groups = tuple(pair for pair in op.pairs if topology.node_of(pair[0]) != topology.node_of(pair[1]))[:1]
    if not groups:
        return 0
    n_nodes = len({topology.node_of(rank) for rank in groups[0]})
    if n_nodes == 1:
        return 0
    if isinstance(op, Transfer) or op.collective in ("all_to_all", "gather", "scatter"):
        return 1
    n_phases = 2 if op.collective == "all_reduce" else 1
    levels = math.ceil(math.log2(n_nodes)) if label.startswith(("tree", "nvls_tree")) else n_nodes - 1
    return n_phases * levels


# -- what can be tried ----------------------------------------------------------------------------------------------


def knobs_of(trials: Trials) -> Iterator[Knob]:
    """Yield everything of the machine that can be better by a factor."""
    for one in improvements(trials.result.topology):
        yield Knob(
            name=one.name, large=one.doubled, simulate=_improved(trials, one), parts=one.parts, shortens=one.shortens
        )
    if trials.result.plan.sample_time_s:
        plan = trials.result.plan

        def simulate(factor: float) -> TrialOutcome:
            faster = replace(plan, sample_time_s=plan.sample_time_s / factor)
            return trials.plan(Neighbour(name="", setting="sample_time_s", plan=faster))

        yield Knob(
            name="processor speed of the loader's workers",
            large="workers that process a sequence twice as fast",
            simulate=simulate,
            shortens="data",
        )


def _improved(trials: Trials, one: Improvement) -> Callable[[float], TrialOutcome]:
    return lambda factor: trials.machine(one.by(factor))


def options_of(trials: Trials) -> Iterator[Option]:
    """Yield the nearest other plans, with the reason where one is not legal."""
    result = trials.result
    for one in nearest(result.plan, Site(topology=result.topology, spec=result.spec), result.chosen):
        yield Option(
            name=one.name,
            simulate=lambda one=one: trials.plan(one),  # type: ignore[misc]
            same_training=one.same_training,
            ratio=one.ratio,
        )


def collectives_of(trials: Trials) -> Iterator[Option]:
    """Yield forced algorithms and protocols of the collectives: the library's own choice is an estimate, and may be poor."""
    result, scenario = trials.result, trials.result.asked
    used = {row["collective"] for row in result.metrics.communication if is_tunable(row["collective"])}
    if not used or scenario.algorithm or scenario.protocol:
        return
    sizes = {result.plan.gpus, min(result.plan.gpus, result.topology.gpus_per_node)} - {1}
    shapes = [shape_of(range(size), result.topology, scenario.transport or None) for size in sorted(sizes)]
    for algorithm in ALGORITHMS.values():
        is_known = algorithm.is_tunable and algorithm.is_automatic and used <= set(algorithm.tables)
        if not is_known or not any(algorithm.is_enabled(name, shape) for name in used for shape in shapes):
            continue
        for protocol in algorithm.protocols:
            forced = replace(scenario, algorithm=algorithm.name, protocol=protocol)
            yield Option(
                name=f"--nccl-algo {algorithm.name} --nccl-proto {protocol}",
                simulate=lambda forced=forced: trials.scenario(forced),  # type: ignore[misc]
            )


def explain(result: Result, *, say: Callable[[str], None] = lambda _: None) -> Explanation:
    """Say what decides the time and what would change it, every change simulated.

    Parameters
    ----------
    result : Result
        With detail, the kernels on the critical path are told apart.
    """
    trials = Trials(result)
    ranked = rank_changes(
        trials.baseline, list(knobs_of(trials)), [*options_of(trials), *collectives_of(trials)], say=say
    )
    return {"critical_path": path_rows(result.timeline), **ranked}


# -- unasked advice -------------------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    bound: float
    name: str
    simulate: Callable[[], TrialOutcome]
    parts: tuple[str, ...] = ()


def advise(result: Result) -> list[dict[str, Any]]:
    """Simulate the single changes that could save most and return them, the most useful first; none where a run is too large.

    A change that makes one kind of work twice as fast saves at most half of that kind's share of the critical path (Amdahl,
    AFIPS 1967), hiding it saves at most the share. Once no bound exceeds what was found, no other trial is made.
    """
    if result.timeline.n_events > MOST_EVENTS:
        return []
    trials = Trials(result)
    rows: list[dict[str, Any]] = []
    best = 0.0
    whole: _Candidate | None = None
    for candidate in sorted(_candidates(trials), key=lambda one: -one.bound):
        if candidate.bound <= best:
            break
        row = _row(trials, candidate.name, candidate.simulate())
        if row is not None:
            rows.append(row)
            if row["saving"] > best:
                best, whole = row["saving"], candidate
    rows.sort(key=lambda row: -row["saving"])
    if whole is None:
        return rows
    for knob in knobs_of(trials):
        part = _row(trials, knob.large, knob.simulate(2.0)) if knob.name in whole.parts else None
        if part is not None and part["saving"] >= NEARLY * best:  # the one that does it says more than the whole
            return [part, *(row for row in rows if row["change"] != whole.name)]
    return rows


def _row(trials: Trials, name: str, outcome: TrialOutcome) -> dict[str, Any] | None:
    if outcome.reason:
        return None
    saves = saving(trials.baseline, outcome)
    return {"change": name, "iteration_time_s": outcome.iteration_time_s, "saving": saves}


def _candidates(trials: Trials) -> Iterator[_Candidate]:
    """Yield what could help, with the most that it could save."""
    shares = dict.fromkeys(("communication", "compute", "host", "data"), 0.0)
    for row in path_rows(trials.result.timeline):
        shares[_part(row)] = shares.get(_part(row), 0.0) + row["share"]
    for knob in knobs_of(trials):
        share = shares.get(knob.shortens, 0.0)
        if share > 0:
            yield _Candidate(share / 2, knob.large, lambda knob=knob: knob.simulate(2.0), knob.parts)  # type: ignore[misc]
    for option in options_of(trials):
        bound = {"--overlap": shares["communication"], "--loader-workers": shares["data"]}.get(option.name.split()[0])
        if bound:
            yield _Candidate(bound, option.name, option.simulate)


def _part(row: PathRow) -> str:
    if row["communication"]:
        return "communication"
    if row["kind"] in _COMPUTES:
        return "compute"
    return {HOST_KIND: "host", "host work": "host", "data loading": "data"}.get(row["kind"], "waiting")
