"""``simulate(scenario) -> Result``: the one place that wires descriptions, lowering, engine, memory and metrics together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TypedDict

import numpy as np

from simulator.analysis.metrics import measure
from simulator.answer import Result, chosen
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
from simulator.models.build import build_model
from simulator.models.layer import DTYPE_BYTES, Model
from simulator.models.recorded import RecordedModule
from simulator.models.setting import Setting
from simulator.models.spec import ModelSpec
from simulator.models.styles import STYLES
from simulator.network import NETWORKS, ChunkNetwork, FlowNetwork, NetworkModel
from simulator.network.base import Flow
from simulator.network.even import EvenChunkNetwork, Evenness, EvenNetwork, UnevenError
from simulator.parallel.classes import Classes, classes_of, fills_nodes, nic_sharers, routes_of, split
from simulator.parallel.expert import expert_load, expert_refusal, sorts_arrivals
from simulator.parallel.idle import without_stages
from simulator.parallel.loading import loading_of
from simulator.parallel.lower import Lowered, lower
from simulator.parallel.mesh import Mesh
from simulator.plan import ParallelPlan
from simulator.plan.stage_layout import parse_layout
from simulator.program.allowance import Allowance
from simulator.program.program import Program
from simulator.scenario import Scenario
from simulator.schedules import find_schedule, peak_in_flight
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.topology.device import Device
from simulator.topology.link import FABRIC_KINDS
from simulator.units import to_s

#: token ids of so many words or more do not fit into 16 bits
WIDE_VOCABULARY = 65_500
#: ranks up to which all are simulated where those of a class turn out to share links unequally
MAX_UNFOLDED = 256
#: tasks up to which ranks are written down one by one there, of all ranks
MOST_TASKS = 1_000_000
#: how often classes are split by what their parts would get before every rank is simulated
MOST_SPLITS = 3
#: share of a run for which other traffic may delay passes that are computed with their links to themselves
NEGLIGIBLE = 0.01
MICRO_BATCHES = (1, 2, 4, 8, 16, 32, 64)


@lru_cache(maxsize=64)  # a search asks for one machine thousands of times
def _topology(name: str, n_gpus: int, overrides: tuple[tuple[str, str], ...], faults: Faults) -> Topology:
    topology = faults.apply(open_topology(name, n_gpus or None, overrides=dict(overrides)))
    for rank in range(1, min(topology.gpus_per_node, topology.n_gpus)):
        topology.route(0, rank)  # collectives see a node as a whole: an island in it would go unnoticed
    return topology


def n_predictions(spec: ModelSpec | RecordedModule, plan: ParallelPlan) -> int:
    """Count the multi-token predictions trained: the model's, or, as catalogues and config files leave them out, the layout's."""
    known = 0 if isinstance(spec, RecordedModule) else spec.mtp_layers
    return known or (
        "".join(parse_layout(plan.pipeline_layout)).count("m") if plan.pp > 1 and plan.pipeline_layout else 0
    )


def _n_documents(plan: ParallelPlan, sequence_length: int) -> int:
    """Documents per sequence that the kernels know about; 1 where it is one, or where nothing tells them apart."""
    is_told = plan.attention == "flash" and 2 * plan.attended_length <= sequence_length
    return max(1, round(sequence_length / plan.document_length)) if is_told and plan.document_length else 1


def model_for(spec: ModelSpec | RecordedModule, plan: ParallelPlan, device: Device | None = None) -> Model:
    """Build a model's layers as one rank of a plan runs them, on a device of which kernels depend on what it can multiply."""
    if isinstance(spec, RecordedModule):
        return spec.model(plan)
    sequence_length = plan.sequence_length or spec.max_positions
    if n_predictions(spec, plan) != spec.mtp_layers:
        spec = replace(spec, mtp_layers=n_predictions(spec, plan))
    if plan.pp > 1 and (spec.image or spec.encoder_positions):
        raise InfeasiblePlanError(
            f"pp={plan.pp}: {spec.name} has two stacks over sequences of their own, whose tensors no stage boundary carries both",
            hint="use --pp 1",
        )
    framework, released = plan.framework_spec, plan.release_facts
    setting = Setting(
        micro_batch=plan.micro_batch, sequence_length=sequence_length, document_length=plan.attended_length,
        tp=plan.tp, cp=plan.cp, ep=plan.ep, etp=plan.etp,
        sequence_parallel=plan.sequence_parallel, precision=plan.precision, kernels=framework.kernels,
        attention=plan.softmax_kernel or plan.attention, recompute=plan.recompute, recompute_modules=plan.recomputed_modules,
        offload_modules=plan.offloaded_modules, captured_modules=plan.captured_modules, narrow_modules=plan.narrow_modules,
        lora_rank=plan.lora_rank or 0,
        wide_modules=plan.wide_modules, wide_first=plan.bf16_first_layers, wide_last=plan.bf16_last_layers,
        lora_targets=plan.adapted_projections, fuses_experts=plan.moe_fused_experts, stashes_experts=plan.stashes_experts,
        fuses_operations=plan.fused_operations and framework.has_fused_layers and plan.precision_spec.quantisation is not None,
        bias_summing=released.bias_summing,
        left_sms=framework.margin_sms if plan.moe_fused_experts and find_schedule(plan.schedule).takes_turns else 0,
        permutes_by_scan=plan.permutes_by_scan, sorts_arrivals=sorts_arrivals(plan), stops_early=framework.stops_recompute_early,
        routes_wide=framework.routes_wide,
        expert_load=expert_load(plan), gradient_bytes=plan.reduced_bytes,
        reduces_beside=framework.reduces_beside_products and not plan.launch_blocking,
        repacks_experts=released.repacks_experts,
        merges_norms=framework.calls_modules, norms_find_scales=released.norms_find_scales,
        waits_for_gathers=released.waits_for_gathers and not plan.asynchronous_tp,
        copies_sequence=framework.copies_sequence and not plan.asynchronous_tp, wide_adapters=released.has_wide_adapters,
        reduces_by_product=framework.parallel_by_product,
        gathers_by_product=framework.parallel_by_product and framework.host != "compiled", gathers_logits=framework.gathers_logits,
        any_layout=device is not None and device.multiplies_any_layout,
        has_loose_gates=released.has_loose_gates, has_loose_squares=released.has_loose_squares,
        has_loose_rotations=released.has_loose_gates or not plan.rope_fusion,
        n_documents=_n_documents(plan, sequence_length), rotates_by_document=released.rotates_by_document,
    )  # fmt: skip
    return build_model(spec, setting)


def boundary_bytes(spec: ModelSpec | RecordedModule, plan: ParallelPlan) -> int:
    """Bytes of the activation ``[micro_batch, sequence / cp, hidden]`` between two layers, of all copies of the residual stream."""
    if isinstance(spec, RecordedModule):
        return max((layer.output_bytes for layer in spec.model(plan).layers), default=0)
    sequence_length = plan.sequence_length or spec.max_positions
    element = DTYPE_BYTES[plan.precision_spec.activations]
    return plan.micro_batch * sequence_length // plan.cp * spec.stream_width * element


def sample_bytes_of(spec: ModelSpec | RecordedModule, plan: ParallelPlan) -> float:
    """Bytes of one sequence in storage: as the plan says, else its token ids in 16 bits where the vocabulary allows.

    Of a recorded module, they are those of one row of its arguments.

    References
    ----------
    Megatron-LM, ``IndexedDataset``: token ids are 16-bit for vocabularies below 65,500 and 32-bit beyond.
    """
    n_tokens = plan.sequence_length or spec.max_positions
    if isinstance(spec, RecordedModule):
        return float(plan.sample_bytes or spec.sample_bytes(n_tokens))
    return float(plan.sample_bytes or n_tokens * (2 if spec.vocab < WIDE_VOCABULARY else 4))


def _classes(scenario: Scenario, topology: Topology) -> Classes | None:
    """Return which ranks are alike where not all of a stage are: something is wrong, or groups lie on nodes unequally."""
    faults = scenario.faults
    mesh = Mesh(scenario.plan, topology.gpus_per_node)
    if not faults and fills_nodes(mesh):
        return None
    return classes_of(mesh, faults.slowdown, routes_of(topology, faults.links(topology)), nic_sharers(topology))


def lower_scenario(
    scenario: Scenario,
    topology: Topology,
    spec: ModelSpec | RecordedModule,
    *,
    all_micro_batches: bool | None = None,
    jointly: bool = True,
    opened: bool = False,
    uneven: Mapping[int, Hashable] | None = None,
    allowance: Allowance | None = None,
) -> tuple[Model, Lowered, MemoryReport]:
    """Lower a scenario with a resolved plan and account for its memory.

    Parameters
    ----------
    all_micro_batches, jointly, allowance
        As for :func:`lower`.
    opened : bool
        Whether no pass is sure to have its links to itself, so that none is a block by itself.
    uneven : mapping of int to hashable, optional
        What tells ranks apart that share links unequally, by rank.
    """
    plan = scenario.plan
    model = model_for(spec, plan, topology.device(0))
    classes = _classes(scenario, topology)
    if opened or uneven:
        mesh = Mesh(plan, topology.gpus_per_node)
        classes = classes or Classes.whole(tuple(map(mesh.stage_ranks, range(plan.pp))))
        classes = split(classes, mesh, uneven.get, nic_sharers(topology)) if uneven else classes
        classes = classes.opened() if opened else classes
    lowered = lower(
        model,
        plan,
        gpus_per_node=topology.gpus_per_node,
        boundary_bytes=boundary_bytes(spec, plan),
        unfold=scenario.unfold,
        all_micro_batches=all_micro_batches,
        jointly=jointly,
        loading=loading_of(plan, topology, sample_bytes_of(spec, plan)),
        classes=classes,
        allowance=allowance,
    )
    check_host_memory(
        lowered.chunks, plan, lowered.mesh.sharding_group, n_ranks=min(plan.gpus, topology.gpus_per_node),
        host_bytes=topology.node.cpu.memory_bytes,
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
        raise InfeasiblePlanError(f"{device.name} does not compute in {plan.precision}", hint="use --precision bf16")
    if plan.cuda and device.first_cuda and release_order(plan.cuda) < release_order(device.first_cuda):
        hint = f"--set cuda={device.first_cuda}, or leave it out for a current one"
        raise InfeasiblePlanError(
            f"CUDA {plan.cuda} does not know {device.name}: {device.first_cuda} is the first", hint=hint
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
    for micro_batch in MICRO_BATCHES:
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
    """Return the scenario's topology, cut to its GPUs."""
    topology, n_gpus = scenario.topology, scenario.plan.gpus
    if isinstance(topology, str):
        return _topology(topology, n_gpus, scenario.overrides, scenario.faults)
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
    if scenario.network not in NETWORKS:
        raise ConfigError(f"network '{scenario.network}' is unknown", hint=f"one of {', '.join(NETWORKS)}")
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
    new = NETWORKS[scenario.network]
    is_foldable = is_watched and not scenario.unfold and scenario.plan.gpus <= MAX_UNFOLDED
    if is_foldable and isinstance(new, type) and issubclass(new, FlowNetwork):
        evenness = Evenness(topology, contends=new.contends)
        return lambda: EvenNetwork(topology, evenness)
    if is_foldable and new is ChunkNetwork:
        return lambda: EvenChunkNetwork(topology)
    return lambda: new(topology)


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


class _Writing(TypedDict):
    """How :func:`lower_scenario` writes a scenario down."""

    all_micro_batches: bool | None
    jointly: bool
    opened: bool
    uneven: Mapping[int, Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Way:
    """How a scenario is written down and run; what turns up in a run says how to go on."""

    unfold: bool
    among_others: bool = False  #: Whether passes that several ranks run go on step by step.
    is_watched: bool = True  #: Whether networks tell when a class is uneven.
    n_splits: int = 0
    all_micro_batches: bool | None = None
    jointly: bool = True
    opened: bool = False
    uneven: Mapping[int, Hashable] = field(default_factory=dict)

    @property
    def writing(self) -> _Writing:
        """What lowering is told, but for whether ranks are classes."""
        return {
            "all_micro_batches": self.all_micro_batches,
            "jointly": self.jointly,
            "opened": self.opened,
            "uneven": self.uneven,
        }

    def meeting(self) -> _Way:
        """Go on where others take links of passes that ran by themselves."""
        return replace(self, opened=True, among_others=True)

    def touched(self) -> tuple[_Way, str]:
        """Go on where something outside touches a pass of several ranks."""
        if self.jointly and not self.among_others:
            found = replace(self, among_others=True)
            return found, "simulating passes step by step, for other traffic takes their links"
        found = replace(self, among_others=False, jointly=False, all_micro_batches=False if self.unfold else None)
        return found, "lowering layer by layer, for passes do not take turns"

    def split(self, apart: Mapping[int, Hashable], n_tasks: int) -> _Way:
        """Go on where ranks of a class share links unequally: with its parts, or with every rank, unless that is too much."""
        n_splits = self.n_splits + 1
        if apart != self.uneven and n_splits <= MOST_SPLITS:
            return replace(self, uneven=apart, n_splits=n_splits)
        unfold = n_tasks <= MOST_TASKS
        return _Way(
            unfold=unfold,
            among_others=True,
            is_watched=False,
            n_splits=n_splits,
            all_micro_batches=False if unfold else None,
        )


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
        costs, way = costs_of(topology, scenario), _Way(unfold=scenario.unfold)
        while True:
            new_network = _networks(scenario, topology, is_watched=way.is_watched)
            play = partial(run, costs=costs, new_network=new_network, detail=detail, allowance=allowance)
            try:
                timeline = play(lowered.program, among_others=way.among_others)
                if way.opened or _are_alone(timeline, costs, topology, scenario):
                    break
                found, what = way.meeting(), "simulating passes among other traffic, for it takes their links"
            except TouchedError:
                found, what = way.touched()
            except UnevenError as error:
                apart = _told_apart(way.uneven, costs.groups_in(error.found))
                found = way.split(apart, scenario.plan.gpus * _most_tasks(lowered.program))
                what = "lowering parts of classes, for their ranks share links unequally"
            say(what)
            if found.writing != way.writing:
                scenario = replace(scenario, unfold=found.unfold)
                model, lowered, memory = lower_scenario(scenario, topology, spec, allowance=allowance, **found.writing)
                say("simulating")
            way = found
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


def _check_shares(scenario: Scenario) -> None:
    """Refuse a network model that plays nothing beside a job."""
    if scenario.network != "flow":
        raise ConfigError(
            f"jobs beside each other share links, which --network {scenario.network} does not play",
            hint="--network flow",
        )


def simulate_beside(
    scenario: Scenario, topology: Topology, spec: ModelSpec | RecordedModule, flow: Flow
) -> tuple[float, float]:
    """Return how long a step of a resolved scenario takes beside a flow that never ends, and the mean rate of the flow.

    The flow is one for all, at the pace of its slowest group: it loads the links of a class unequally anyway.
    """
    _check_shares(scenario)
    costs = ModelCosts(topology, scenario)
    with collector_paused():
        for by_layer in (False, True):
            lowered = lower_scenario(scenario, topology, spec, jointly=False, opened=by_layer)[1]
            try:
                timeline, rate = run_beside(lowered.program, costs, lambda: FlowNetwork(topology), flow)
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
        _check_shares(first.scenario)
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
        programs = [
            lower_scenario(
                job.scenario, job.topology, job.spec, all_micro_batches=True, jointly=False, opened=self._by_layer
            )[1].program
            for job in self._jobs
        ]
        own = [ModelCosts(job.topology, job.scenario) for job in self._jobs]
        self._programs: list[tuple[Program, Costs]] = list(zip(programs, own, strict=True))

    def play(
        self, starts_ps: Sequence[int], is_enough: Callable[[Sequence[Sequence[Iteration]]], bool]
    ) -> list[list[Iteration]]:
        """Run the jobs; see :func:`~simulator.engine.together.run_together`.

        Jobs whose blocks would touch shared links are written down layer by layer, and those whose classes would share links
        unequally rank by rank.
        """
        evenness = Evenness(self.network_topology) if self._is_foldable else None

        def network() -> NetworkModel:
            known = evenness
            return EvenNetwork(self.network_topology, known) if known else FlowNetwork(self.network_topology)

        with collector_paused():
            while True:
                try:
                    return run_together(
                        self._programs, network, starts_ps=starts_ps, shared=self._shared, is_enough=is_enough
                    )
                except TouchedError:
                    self._by_layer = True
                except UnevenError:
                    evenness, self._is_foldable = None, False
                    self._jobs = tuple(replace(job, scenario=replace(job.scenario, unfold=True)) for job in self._jobs)
                self._lower()
