"""``simulate(scenario) -> Result``: the one place that wires descriptions, lowering, engine, memory and metrics together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

import numpy as np

from simulator.analysis.metrics import measure
from simulator.answer import Result, chosen
from simulator.collectives.shape import check_transport
from simulator.collector import collector_paused
from simulator.costs import ModelCosts
from simulator.engine import Costs, run, run_beside
from simulator.engine.durations import TouchedError
from simulator.engine.overlooked import overlooked_share
from simulator.engine.together import Iteration, run_together
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.faults import Faults
from simulator.interop import load_model, open_topology
from simulator.kernels.constants import release_order
from simulator.memory import MemoryReport, check_host_memory, estimate
from simulator.models.layer import Model
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.models.styles import STYLES
from simulator.network import NETWORKS, NetworkKind, NetworkModel
from simulator.network.base import Flow
from simulator.network.even import UnevenError
from simulator.parallel.classes import Classes, classes_of, fills_nodes, nic_sharers, routes_of, split
from simulator.parallel.expert import expert_refusal
from simulator.parallel.idle import without_stages
from simulator.parallel.loading import loading_of, sample_bytes_of
from simulator.parallel.lower import Lowered, lower
from simulator.parallel.mesh import Mesh
from simulator.parallel.rank_model import boundary_bytes, model_for
from simulator.plan.precision import next_wider
from simulator.program.allowance import Allowance
from simulator.program.program import Program
from simulator.scenario import Scenario
from simulator.schedules import peak_in_flight
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.topology.link import FABRIC_KINDS
from simulator.units import to_s

#: ranks up to which all are simulated where those of a class turn out to share links unequally
MAX_UNFOLDED = 256
#: tasks up to which ranks are written down one by one there, of all ranks
MOST_UNFOLDED_TASKS = 1_000_000
#: how often classes are split by what their parts would get before every rank is simulated
MOST_SPLITS = 3
#: share of a run for which other traffic may delay passes that are computed with their links to themselves
NEGLIGIBLE = 0.01
#: sequences beyond which nobody would look for a larger micro-batch
MOST_SEQUENCES = 2**16


@lru_cache(maxsize=64)  # a search asks for one machine thousands of times
def _topology(name: str, n_gpus: int, overrides: tuple[tuple[str, str], ...], faults: Faults) -> Topology:
    topology = faults.apply(open_topology(name, n_gpus or None, overrides=dict(overrides)))
    for rank in range(1, min(topology.gpus_per_node, topology.n_gpus)):
        topology.route(0, rank)  # collectives see a node as a whole: an island in it would go unnoticed
    return topology


def _classes(scenario: Scenario, topology: Topology) -> Classes | None:
    """Return which ranks are alike where not all of a stage are: something is wrong, or groups lie on nodes unequally."""
    faults = scenario.faults
    mesh = Mesh(scenario.plan, topology.gpus_per_node)
    if not faults and fills_nodes(mesh):
        return None
    return classes_of(mesh, faults.slowdown, routes_of(topology, faults.links(topology)), nic_sharers(topology))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringMode:
    """How much of a scenario is written down by itself; ``scenario.unfold`` says whether every rank is."""

    #: Whether every micro-batch is, instead of one period of a steady state; by default where every rank is.
    all_micro_batches: bool | None = None
    jointly: bool = (
        True  #: Whether classes whose ranks meet in layers run a pass as one block; layer by layer otherwise.
    )
    opened: bool = False  #: Whether no pass is sure to have its links to itself, so that none is a block by itself.
    uneven: Mapping[int, Hashable] = field(
        default_factory=dict
    )  #: By rank, what tells those apart that share links unequally.


FOLDED = LoweringMode()


def lower_scenario(
    scenario: Scenario,
    topology: Topology,
    spec: ModelSpec | RecordedModule,
    mode: LoweringMode = FOLDED,
    *,
    allowance: Allowance | None = None,
) -> tuple[Model, Lowered, MemoryReport]:
    """Lower a scenario with a resolved plan and account for its memory.

    Parameters
    ----------
    allowance : Allowance, optional
        As for :func:`lower`.
    """
    plan = scenario.plan
    model = model_for(spec, plan, topology.device(0))
    classes = _classes(scenario, topology)
    if mode.opened or mode.uneven:
        mesh = Mesh(plan, topology.gpus_per_node)
        classes = classes or Classes.whole(tuple(map(mesh.stage_ranks, range(plan.pp))))
        classes = split(classes, mesh, mode.uneven.get, nic_sharers(topology)) if mode.uneven else classes
        classes = classes.opened() if mode.opened else classes
    lowered = lower(
        model,
        plan,
        gpus_per_node=topology.gpus_per_node,
        boundary_bytes=boundary_bytes(spec, plan),
        unfold=scenario.unfold,
        all_micro_batches=mode.all_micro_batches,
        jointly=mode.jointly,
        loading=loading_of(plan, topology, sample_bytes_of(spec, plan)),
        classes=classes,
        allowance=allowance,
    )
    check_host_memory(
        lowered.chunks, plan, lowered.mesh.sharding_group, n_ranks=min(plan.gpus, topology.gpus_per_host),
        host_bytes=topology.host_memory_bytes,
    )  # fmt: skip
    memory = estimate(
        lowered.chunks, peak_in_flight(lowered.table, lowered.placement.n_chunks), plan, topology.device(0),
        shard_size=lowered.mesh.sharding_group,
        first_ranks=[lowered.mesh.stage_ranks(stage)[0] for stage in range(plan.pp)],
    )  # fmt: skip
    return model, lowered, memory


def resolve(scenario: Scenario, topology: Topology, spec: ModelSpec | RecordedModule) -> Scenario:
    """Fill in what the plan leaves open: degrees from the GPUs, and the largest micro-batch that fits.

    Raises
    ------
    InfeasiblePlanError
        If the degrees do not multiply up.
    """
    plan = without_stages(scenario.plan.resolve(topology.n_gpus))
    device = topology.device(0)
    if plan.precision_spec.quantisation is not None and not device.computes(plan.precision_spec.products):
        wider = next_wider(plan.precision_spec, device.computes)
        raise InfeasiblePlanError(
            f"{device.name} does not compute in {plan.precision}", hint=f"use --precision {wider}"
        )
    if plan.cuda and device.first_cuda and release_order(plan.cuda) < release_order(device.first_cuda):
        hint = f"--set cuda={device.first_cuda}, or leave it out for a current one"
        raise InfeasiblePlanError(
            f"CUDA {plan.cuda} does not know {device.name}: {device.first_cuda} is the first", hint=hint
        )
    if plan.ep > 1 and plan.dispatcher_sms > device.n_sms:
        raise InfeasiblePlanError(
            f"moe_dispatcher_sms={plan.dispatcher_sms}: {device.name} has {device.n_sms} SMs",
            hint=f"--set moe_dispatcher_sms={plan.dispatcher.n_sms}, or leave it out",
        )
    if refusal := expert_refusal(plan, spec):
        raise InfeasiblePlanError(refusal, hint="use --sequence-parallel")
    if not plan.sequence_length:
        plan = replace(plan, sequence_length=spec.max_positions)
    if isinstance(spec, ModelSpec) and not STYLES[plan.framework_spec.kernels].fuses_attention(spec):
        plan = replace(plan, attention="eager")
    if plan.micro_batch:
        return replace(scenario, plan=plan)
    best: Scenario | None = None
    most = plan.global_batch // plan.dp if plan.global_batch else MOST_SEQUENCES
    for micro_batch in (2**i for i in range(most.bit_length())):
        if plan.global_batch and plan.global_batch % (micro_batch * plan.dp):
            continue
        candidate = replace(scenario, plan=replace(plan, micro_batch=micro_batch).resolve(topology.n_gpus))
        if best is not None and not lower_scenario(candidate, topology, spec)[2].fits:
            break
        best = candidate
    if best is None:
        raise InfeasiblePlanError(
            f"global batch {plan.global_batch} is not a multiple of dp={plan.dp}",
            hint=f"--global-batch {plan.dp * max(1, plan.global_batch // plan.dp)}",
        )
    return best


def topology_of(scenario: Scenario) -> Topology:
    """Return the scenario's topology, cut to its GPUs; a transport that it does not have is an error, needed or not."""
    topology, n_gpus = scenario.topology, scenario.plan.gpus
    if isinstance(topology, str):
        found = _topology(topology, n_gpus, scenario.overrides, scenario.faults)
        check_transport(found, scenario.transport)
        return found
    check_transport(topology, scenario.transport)
    if scenario.overrides:
        raise ConfigError(
            f"{topology}: overrides replace values of a file, and this is a graph", hint="change the graph"
        )
    return scenario.faults.apply(topology.subset(n_gpus) if n_gpus else topology)


def simulate(
    scenario: Scenario,
    *,
    detail: bool = False,
    progress: Callable[[str], None] | None = None,
    spec: ModelSpec | RecordedModule | None = None,
) -> Result:
    """Simulate one training iteration.

    Parameters
    ----------
    scenario : Scenario
        Names or paths, and a plan whose open values are derived.
    detail : bool
        Whether the timeline holds every single kernel (for traces and reports).
    progress : callable, optional
        Told what is being done, in a few words.
    spec : ModelSpec or RecordedModule, optional
        The model itself, where it is in no file; ``scenario.model`` is then only its name.

    Returns
    -------
    Result
        Also where the plan does not fit: look at ``result.memory.fits``.

    Raises
    ------
    SimulatorError
        For anything wrong with the inputs.
    """
    say = progress or (lambda _: None)
    say("reading")
    topology = topology_of(scenario)
    spec = spec or load_model(scenario.model)
    resolved = resolve(scenario, topology, spec)
    result = simulate_on(resolved, topology, spec, detail=detail, say=say)
    return replace(result, chosen=chosen(scenario.plan, result.plan, result.memory))


def _told_apart(
    known: Mapping[int, Hashable], found: Iterable[tuple[Sequence[tuple[int, ...]], Sequence[float]]]
) -> dict[int, Hashable]:
    """Return what tells ranks apart once their groups would move at different rates; those of one rate stay alike."""
    apart = dict(known)
    for groups, rates in found:
        names = [f"{rate:.6e}" for rate in rates]
        if len(set(names)) > 1:
            apart |= {
                rank: (apart.get(rank), name) for group, name in zip(groups, names, strict=True) for rank in group
            }
    return apart


def _networks(scenario: Scenario, topology: Topology, *, is_watched: bool) -> Callable[[], NetworkModel]:
    """Return what makes idle networks; where every rank could be simulated, and is not, those that tell when a class is uneven."""
    kind = NETWORKS[scenario.network]
    is_foldable = is_watched and not scenario.unfold and scenario.plan.gpus <= MAX_UNFOLDED
    return kind.watched(topology) if is_foldable else lambda: kind(topology)


def _most_tasks(program: Program) -> int:
    """Return how many tasks a rank has at most, those of the periods left out included."""
    return max(
        len(rank.tasks) + program.n_omitted * (rank.stretch.length if rank.stretch else 0) for rank in program.ranks
    )


def _are_alone(timeline: Timeline, costs: ModelCosts, topology: Topology, scenario: Scenario) -> bool:
    """Whether simulating passes in isolation was a valid approximation: others take too little of their links to matter."""
    network, capacity_bytes_per_s = NETWORKS[scenario.network](topology), topology.arrays.bandwidth_bytes_per_s
    return overlooked_share(timeline, costs, network, capacity_bytes_per_s) <= NEGLIGIBLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One pass of a scenario through the engine, with what went into it."""

    scenario: Scenario  #: As it ran: unfolded where the ranks of a class share links unequally.
    model: Model
    lowered: Lowered
    memory: MemoryReport
    costs: ModelCosts
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attempt:
    """How a scenario is written down and run; what turns up in the run says how the next attempt goes on.

    The first has one rank for each class, one period of a steady state, and passes as blocks.

    ==========================================  ====================================================================
    What turns up                               The next attempt
    ==========================================  ====================================================================
    others take links of passes that ran alone  no pass is a block by itself, and all go on among other traffic
    a pass of several ranks is touched          such passes go on step by step; where they did or cannot, by layers
    ranks of a class share links unequally      the class in parts, :data:`MOST_SPLITS` times; then every rank, or,
                                                beyond :data:`MOST_UNFOLDED_TASKS`, classes at the pace of the
                                                slowest group
    ==========================================  ====================================================================
    """

    unfold: bool
    mode: LoweringMode = FOLDED
    among_others: bool = False  #: Whether passes that several ranks run go on step by step.
    is_watched: bool = True  #: Whether networks tell when a class is uneven.
    n_splits: int = 0

    def after_overlooked_traffic(self) -> tuple[_Attempt, str]:
        """Go on where others take links of passes that ran by themselves."""
        found = replace(self, mode=replace(self.mode, opened=True), among_others=True)
        return found, "simulating passes among other traffic, for it takes their links"

    def after_touched_pass(self) -> tuple[_Attempt, str]:
        """Go on where something outside touches a pass of several ranks."""
        if self.mode.jointly and not self.among_others:
            found = replace(self, among_others=True)
            return found, "simulating passes step by step, for other traffic takes their links"
        mode = replace(self.mode, jointly=False, all_micro_batches=False if self.unfold else None)
        found = replace(self, mode=mode, among_others=False)
        return found, "lowering layer by layer, for passes do not take turns"

    def after_uneven_class(self, apart: Mapping[int, Hashable], n_tasks: int) -> tuple[_Attempt, str]:
        """Go on where ranks of a class share links unequally: with its parts, or with every rank, unless that is too much."""
        what, n_splits = "lowering parts of classes, for their ranks share links unequally", self.n_splits + 1
        if apart != self.mode.uneven and n_splits <= MOST_SPLITS:
            return replace(self, mode=replace(self.mode, uneven=apart), n_splits=n_splits), what
        unfold = n_tasks <= MOST_UNFOLDED_TASKS
        mode = LoweringMode(all_micro_batches=False if unfold else None)
        return _Attempt(unfold=unfold, mode=mode, among_others=True, is_watched=False, n_splits=n_splits), what


def run_scenario(
    scenario: Scenario,
    topology: Topology,
    spec: ModelSpec | RecordedModule,
    *,
    parts: tuple[Model, Lowered, MemoryReport] | None = None,
    costs_of: Callable[[Topology, Scenario], ModelCosts] = ModelCosts,
    detail: bool = False,
    say: Callable[[str], None] = lambda _: None,
    allowance: Allowance | None = None,
) -> Run:
    """Run a resolved scenario on a topology object.

    Parameters
    ----------
    parts : tuple, optional
        What :func:`lower_scenario` gave for this scenario, where it is known already.
    costs_of : callable
        Makes the cost models.
    detail, say
        As for :func:`simulate_on`.
    allowance : Allowance, optional
        Tasks that may be written down and run, however often that is done anew.

    Raises
    ------
    TooMuchWorkError
        If they do not suffice.
    """
    with collector_paused():
        if parts is None:
            say("lowering")
        model, lowered, memory = parts or lower_scenario(scenario, topology, spec, allowance=allowance)
        say("simulating")
        costs, attempt = costs_of(topology, scenario), _Attempt(unfold=scenario.unfold)
        while True:
            new_network = _networks(scenario, topology, is_watched=attempt.is_watched)
            play = partial(run, costs=costs, new_network=new_network, detail=detail, allowance=allowance)
            try:
                timeline = play(lowered.program, among_others=attempt.among_others)
                if attempt.mode.opened or _are_alone(timeline, costs, topology, scenario):
                    break
                found, what = attempt.after_overlooked_traffic()
            except TouchedError:
                found, what = attempt.after_touched_pass()
            except UnevenError as error:
                apart = _told_apart(attempt.mode.uneven, costs.groups_in(error.found))
                n_tasks = scenario.plan.gpus * _most_tasks(lowered.program)
                found, what = attempt.after_uneven_class(apart, n_tasks)
            say(what)
            if found.mode != attempt.mode:
                scenario = replace(scenario, unfold=found.unfold)
                model, lowered, memory = lower_scenario(scenario, topology, spec, found.mode, allowance=allowance)
                say("simulating")
            attempt = found
    return Run(scenario=scenario, model=model, lowered=lowered, memory=memory, costs=costs, timeline=timeline)


def simulate_on(
    scenario: Scenario,
    topology: Topology,
    spec: ModelSpec | RecordedModule,
    *,
    detail: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> Result:
    """Simulate a resolved scenario on a topology object, which need not be the one that the scenario names."""
    ran = run_scenario(scenario, topology, spec, detail=detail, say=say)
    with collector_paused():
        metrics = measure(ran.timeline, topology.device(0), pipelined=scenario.plan.pp > 1)
        link_busy_s, traffic = ran.costs.link_use(ran.timeline)
    return Result(
        scenario=ran.scenario, topology=topology, spec=spec, model=ran.model, timeline=ran.timeline, memory=ran.memory,
        metrics=metrics, link_busy_s=link_busy_s, traffic=traffic,
        is_unfolded_unasked=ran.scenario.unfold and not scenario.unfold,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedJob:
    """A resolved scenario on its part of a cluster."""

    scenario: Scenario
    topology: Topology  #: As :meth:`~simulator.topology.Topology.placed` gives it.
    spec: ModelSpec | RecordedModule
    nodes: tuple[int, ...]  #: Of the cluster, ascending.


def _shared_network(scenario: Scenario) -> NetworkKind:
    """Return the network model of a scenario, unless it plays nothing beside a job."""
    kind = NETWORKS[scenario.network]
    if not kind.plays_others:
        able = " or ".join(name for name, one in NETWORKS.items() if one.plays_others)
        raise ConfigError(
            f"jobs beside each other share links, which --network {scenario.network} does not play",
            hint=f"--network {able}",
        )
    return kind


def simulate_beside(
    scenario: Scenario, topology: Topology, spec: ModelSpec | RecordedModule, flow: Flow
) -> tuple[float, float]:
    """Return how long a step of a resolved scenario takes beside a flow that never ends, and the mean rate of the flow.

    The flow is one for all, at the pace of its slowest group: it loads the links of a class unequally anyway.
    """
    kind = _shared_network(scenario)
    costs = ModelCosts(topology, scenario)
    with collector_paused():
        for by_layer in (False, True):
            lowered = lower_scenario(scenario, topology, spec, LoweringMode(jointly=False, opened=by_layer))[1]
            try:
                timeline, rate = run_beside(lowered.program, costs, lambda: kind(topology), flow)
            except TouchedError:
                continue
            return to_s(timeline.makespan_ps), rate
    raise AssertionError("layers by themselves have no block that traffic could touch")


class Together:
    """Jobs beside each other on one cluster, to be run with different starts.

    Parameters
    ----------
    jobs : sequence of PlacedJob
        On nodes of their own; all on one cluster, with the same network model.
    """

    def __init__(self, jobs: Sequence[PlacedJob]) -> None:
        self._jobs = tuple(jobs)
        first = self._jobs[0]
        self._network = _shared_network(first.scenario)
        factors: dict[str | int, float] = {}
        for job in self._jobs:
            factors |= job.topology.scale
        #: the cluster with what is degraded for any of the jobs
        self.network_topology = replace(first.topology, scale=factors)
        between = first.topology.arrays.is_of(*FABRIC_KINDS)
        self._shared = frozenset(np.flatnonzero(between).tolist())
        self._is_foldable = sum(job.scenario.plan.gpus for job in self._jobs) <= MAX_UNFOLDED
        self._by_layer = False
        self._lower()

    def _lower(self) -> None:
        mode = LoweringMode(all_micro_batches=True, jointly=False, opened=self._by_layer)
        programs = [lower_scenario(job.scenario, job.topology, job.spec, mode)[1].program for job in self._jobs]
        own = [ModelCosts(job.topology, job.scenario) for job in self._jobs]
        self._programs: list[tuple[Program, Costs]] = list(zip(programs, own, strict=True))

    def play(
        self, starts_ps: Sequence[int], is_enough: Callable[[Sequence[Sequence[Iteration]]], bool]
    ) -> list[list[Iteration]]:
        """Run the jobs; see :func:`~simulator.engine.together.run_together`.

        Jobs whose blocks would touch shared links are written down layer by layer, and those whose classes would share links
        unequally rank by rank.
        """
        kind, topology = self._network, self.network_topology
        watched = kind.watched(topology)
        with collector_paused():
            while True:
                network = watched if self._is_foldable else lambda: kind(topology)
                try:
                    return run_together(
                        self._programs, network, starts_ps=starts_ps, shared=self._shared, is_enough=is_enough
                    )
                except TouchedError:
                    self._by_layer = True
                except UnevenError:
                    self._is_foldable = False
                    self._jobs = tuple(replace(job, scenario=replace(job.scenario, unfold=True)) for job in self._jobs)
                self._lower()
