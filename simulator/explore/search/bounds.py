"""Lower bounds of a plan's iteration time: what no simulation of it can undercut.

A bound adds up what must happen one after the other, each part at its least duration (:class:`LeastDurations`: a host that is always
ahead, a network that carries nothing else):

- *A stage's own work.* Its compute stream runs all passes of all micro-batches in order. With blocking messages every
  pass also waits for the message of the one before.
- *Turns of forwards and backwards.* A pair hides what each half sends only as far as the order of its tasks lets it. Where
  every pass also gathers or reduces, the longest path through the whole step's tasks decides.
- *Filling and draining the pipeline.* Before its first pass, a micro-batch has run forward through all earlier stages;
  after its last backward the gradient still runs back through them.
- *Gradient reductions* that start only when their gradients exist, one after the other on one stream
  (:func:`~simulator.explore.search.data_bounds.data_bound`).
- *The end of the step*: norm, optimizer and parameter gathers, after all stages have finished.

The simulator's rules are monotone (in-order streams, fixed dependencies), so shorter parts never give a later end; what
is left out (contention, interference, late hosts) only adds time. The tests compare with the simulator on random plans.

References
----------
Narayanan et al., SC 2021, arXiv:2104.04473, section 2.2 (pipeline bubble).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any, NamedTuple, TypeVar, cast

from simulator.costs import ModelCosts
from simulator.errors import InfeasiblePlanError
from simulator.explore.search.data_bounds import DataBound, data_bound
from simulator.explore.search.least_durations import LeastDurations, Message
from simulator.explore.search.pass_times import PASSES, PassTimes
from simulator.explore.search.placed_plan import PlacedPlan
from simulator.identity import ByIdentity
from simulator.memory import MemoryReport, estimate
from simulator.models.layer import CommunicationPoint, Layer
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.parallel.classes import fills_nodes
from simulator.parallel.context import LayerCollective, exchange_context
from simulator.parallel.lower import data_parallel, split_layers
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.muon import MuonMessage, owned_matrices
from simulator.parallel.rank_model import boundary_bytes, model_for
from simulator.parallel.repetition import count_in_rows
from simulator.parallel.states import optimizer_step, split_parameters
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, Transfer
from simulator.program.program import COMPUTE
from simulator.scenario import Scenario
from simulator.schedules import (
    SATURATED_GROUPS,
    Kind,
    Row,
    build_table,
    peak_in_flight,
    placement_of,
    sends_block,
)
from simulator.simulation import lower_scenario
from simulator.topology import Topology

What = TypeVar("What", bound=Hashable)
#: durations are rounded to picoseconds in the simulator, each a little; a bound must stay below
SLACK = 1.0 - 1e-7
#: plans of which something is remembered at a time
MOST_PLANS = 4096
#: ranks in all stages whose groups are kept
MOST_RANKS = 1 << 20
#: layers that are kept with their times
MOST_LAYERS = 2048


class LayerTime(NamedTuple):
    """Kernels of one layer: device and host seconds of forward, and of backward with recomputation."""

    forward_s: float
    backward_s: float
    forward_host_s: float
    backward_host_s: float


class _Kernels(NamedTuple):
    """Kernels of one stage in a step."""

    device_s: float
    filled_s: float  #: With the passes before them that are known to fill the pipeline.
    host_s: float


class Bounds:
    """Bounds of plans for one model on one topology, cut to the GPUs in use; the scenario's plan only names the framework."""

    def __init__(self, scenario: Scenario, topology: Topology, spec: ModelSpec | RecordedModule) -> None:
        self.topology = topology
        self.spec = spec
        self.scenario = scenario
        # rank 0 stands for all, none of which is faster than a sound one
        self.costs = ModelCosts(topology, replace(scenario, faults=replace(scenario.faults, slow_ranks=())))
        # A search asks for the same parts of thousands of plans. Layers, groups and meshes are keyed by identity, because hashing
        # their contents takes longer than the answer; each value keeps its key alive, and all go with this object.
        self._layer_times: dict[tuple[object, ...], tuple[Layer, LayerTime]] = {}
        self._meshes: dict[tuple[object, ...], Mesh] = {}
        self._mesh_of: ByIdentity[ParallelPlan, Mesh] = ByIdentity(MOST_PLANS)
        self._communicators: dict[tuple[int, ...], Communicators] = {}
        self._counts_in: dict[tuple[object, ...], tuple[Counter[Any], ...]] = {}
        self._peaks: dict[tuple[str, int, int, int], tuple[tuple[int, ...], ...]] = {}
        self._alone: dict[tuple[int, int, Kind], tuple[PlacedPlan, int]] = {}
        self._messages: dict[tuple[object, ...], Message] = {}
        self._collective_s: dict[tuple[object, ...], tuple[object, float]] = {}
        self._evenness = LeastDurations(self.costs).evenness
        self._passes = PassTimes(self.costs, self.durations, self.mesh, self.communicators)

    # -- what a plan is made of -----------------------------------------------------------------------------------

    def layout(self, plan: ParallelPlan) -> PlacedPlan:
        """Give the stages of a plan their layers."""
        model = model_for(self.spec, plan, self.topology.device(0))
        placement = placement_of(plan.schedule, plan.pp, plan.virtual_pp)
        return PlacedPlan(plan=plan, model=model, placement=placement, chunks=split_layers(model, plan, placement))

    def mesh(self, plan: ParallelPlan) -> Mesh:
        """Return the mesh of a plan, shared by all plans with the same groups."""
        return self._mesh_of.of(plan, self._new_mesh)

    def _new_mesh(self, plan: ParallelPlan) -> Mesh:
        mesh = Mesh(plan, self.topology.gpus_per_node)
        key = (
            plan.dp, plan.tp, plan.pp, plan.cp, plan.ep, plan.expert_tp, mesh.sharding_group, plan.sharding,
            plan.secondary_group, plan.rank_order,
        )  # fmt: skip
        return self._meshes.setdefault(key, mesh)

    def communicators(self, plan: ParallelPlan, stage: int) -> Communicators:
        """Return the groups of a stage; where they do not all lie alike, those of its first rank."""
        mesh = self.mesh(plan)
        key = (id(mesh), stage)
        if key not in self._communicators:
            self._communicators[key] = Communicators(mesh, mesh.stage_ranks(stage)[0], folded=fills_nodes(mesh))
        return self._communicators[key]

    def durations(self) -> LeastDurations:
        """Return a fresh memory of durations that shares those of collectives."""
        durations = LeastDurations(self.costs)
        durations.collectives = self._collective_s
        durations.evenness = self._evenness
        return durations

    def layer_time(self, layer: Layer, plan: ParallelPlan) -> LayerTime:
        """Return the kernels of one layer, without communication."""
        key = (id(layer), *((plan.cp, plan.context_exchange, plan.cp_load_balance) if plan.cp > 1 else ()))
        known = self._layer_times.get(key)
        if known is None:
            forward = self._kernels_s(layer, plan, "forward")
            recompute, backward = (self._kernels_s(layer, plan, phase) for phase in ("recompute", "backward"))
            time = LayerTime(forward[0], recompute[0] + backward[0], forward[1], recompute[1] + backward[1])
            if len(self._layer_times) >= MOST_LAYERS:
                self._layer_times.clear()
            known = self._layer_times[key] = (layer, time)
        return known[1]

    def _kernels_s(self, layer: Layer, plan: ParallelPlan, phase: str) -> tuple[float, float]:
        all_items = exchange_context(getattr(layer, phase), plan)  # which replaces the attention between its exchanges
        items = [item for item in all_items if not isinstance(item, CommunicationPoint | LayerCollective)]
        kernels = [Kernel(name=item.name, phase=phase, shape=item) for item in items]  # type: ignore[arg-type]
        device_ps = sum(self.costs.kernel_ps(kernel, 0) for kernel in kernels)
        issue_ps = sum(self.costs.issue_ps(kernel, 0) for kernel in kernels)
        return device_ps * 1e-12, issue_ps * 1e-12

    # -- memory ---------------------------------------------------------------------------------------------------

    def memory(self, layout: PlacedPlan) -> MemoryReport:
        """Return the memory of the fullest rank, exactly as the simulator accounts for it.

        The schedule is looked at with at most :data:`SATURATED_GROUPS` x ``pp`` micro-batches: with more of them no
        stage holds more activations at once.
        """
        plan, mesh = layout.plan, self.mesh(layout.plan)
        in_flight = self._peak_in_flight(layout)
        stages = _fullest(layout, in_flight)
        report = estimate(
            [layout.chunks[stage] for stage in stages], [in_flight[stage] for stage in stages], plan,
            self.topology.device(0), shard_size=mesh.sharding_group,
            first_ranks=[mesh.rank(pp=stage) for stage in stages],
        )  # fmt: skip
        return replace(report, stage=stages[report.stage])

    def _peak_in_flight(self, layout: PlacedPlan) -> tuple[tuple[int, ...], ...]:
        plan, n_chunks = layout.plan, layout.placement.n_chunks
        saturated = SATURATED_GROUPS * plan.pp if layout.schedule.saturates else plan.n_micro_batches
        key = (plan.schedule, plan.pp, min(plan.drains_every or plan.n_micro_batches, saturated), n_chunks)
        if key not in self._peaks:
            self._peaks[key] = peak_in_flight(build_table(*key[:3], n_chunks=n_chunks), n_chunks)
        return self._peaks[key]

    # -- time -----------------------------------------------------------------------------------------------------

    def quick_s(self, layout: PlacedPlan) -> float:
        """Return a bound from kernels alone: stages, filling where the schedule is known to wait for it, and the host."""
        return SLACK * max(max(kernels.filled_s, kernels.host_s) for kernels in self._kernels(layout))

    def stage_s(self, layout: PlacedPlan, known_s: float = 0.0) -> float:
        """Return the bound of one stage, with what its passes exchange: of that whose kernels end last; or a known one that is tighter."""
        if layout.plan.pp == 1:
            return known_s  # all stages are one, which the full bound looks at
        kernels = self._kernels(layout)
        stage = max(range(len(kernels)), key=lambda one: kernels[one].filled_s)
        work_s, host_s = self._work_s(layout, stage)
        return max(known_s, SLACK * max(kernels[stage].filled_s - kernels[stage].device_s + work_s, host_s))

    def _kernels(self, layout: PlacedPlan) -> list[_Kernels]:
        """Return the kernels of all stages."""
        found: list[_Kernels] = []
        fill_s = 0.0
        for chunks in layout.chunks:
            times = [self.layer_time(layer, layout.plan) for chunk in chunks for layer in chunk]
            device_s = layout.n_times * sum(time.forward_s + time.backward_s for time in times)
            host_s = layout.n_times * sum(time.forward_host_s + time.backward_host_s for time in times)
            found.append(_Kernels(device_s, fill_s + device_s, host_s))
            if layout.schedule.ends_with_first_chunk:
                fill_s += sum(time.forward_s + time.backward_s for time in times[: len(chunks[0])])
        return found

    def compute_s(self, layout: PlacedPlan) -> float:
        """Return what ranks compute at least in a step, the optimizer left out: the mean over all stages."""
        pp = layout.plan.pp
        return SLACK * sum(self._computed_s(layout, stage) for stage in range(pp)) / pp

    def _computed_s(self, layout: PlacedPlan, stage: int) -> float:
        times = [self.layer_time(layer, layout.plan) for layer in layout.stage_layers(stage)]
        return layout.n_times * sum(time.forward_s + time.backward_s for time in times)

    def full_s(self, layout: PlacedPlan, known_s: float = 0.0) -> float:
        """Return the bound with communication and the end of the step, or a known one that is tighter."""
        return max(known_s, self._bound_s(layout, runs_passes=False))

    def run_s(self, layout: PlacedPlan, known_s: float | None = None) -> float:
        """Return the full bound, where it is known already, with the engine's own time of passes that nothing outside touches.

        It has what compute and the collectives of a pass take from each other. Such a pass takes no less where its host
        is late: of two that run side by side and slow each other down the later one ends no sooner if one of them is delayed, as
        long as the shares of their speeds that they keep add up to more than one.
        """
        known_s = self.full_s(layout) if known_s is None else known_s
        return max(known_s, self._bound_s(layout, runs_passes=True))

    def path_s(self, layout: PlacedPlan, known_s: float | None = None) -> float:
        """Return the run's bound, where it is known already, or the longest path through the program of rank 0.

        That is asked for where passes take turns that gathers or reductions interrupt, without other stages only; and of what
        cannot be lowered nothing more is known.
        """
        known_s = self.run_s(layout) if known_s is None else known_s
        plan = layout.plan
        if plan.pp > 1 or not layout.schedule.takes_turns or self._are_alone(layout, 0):
            return known_s
        try:
            program = lower_scenario(replace(self.scenario, plan=plan), self.topology, self.spec)[1].program
        except InfeasiblePlanError:
            return known_s
        durations = LeastDurations(self.costs)
        durations.evenness = self._evenness
        return max(known_s, SLACK * durations.program_s(program.ranks[0], program.n_omitted))

    def _forget(self) -> None:
        """Let groups and their flows go where they have become many; they are keyed by identity, and so go together."""
        self.costs.forget_flows()
        if len(self._communicators) * self.topology.n_gpus > MOST_RANKS:
            for known in (
                self._meshes,
                self._communicators,
                self._collective_s,
                self._messages,
            ):
                known.clear()
            self._mesh_of.clear()
            self._passes.forget()

    def _bound_s(self, layout: PlacedPlan, *, runs_passes: bool) -> float:
        self._forget()
        plan = layout.plan
        durations = self.durations()
        ends = {0, plan.pp - 1}
        data = {stage: self._data(layout, stage, durations) for stage in ends}
        embedding_s, norm_s = self._joint_s(layout, durations)
        first_backward_s = self._passes.pass_s(layout, 0, 0, "B")[0] if layout.schedule.ends_with_first_chunk else 0.0
        fill_s = drain_s = latest_s = work_s = host_s = forward_s = backward_s = 0.0
        for stage in range(plan.pp):
            is_new = not self._works_as_before(layout, stage)
            if is_new:
                work_s, host_s = self._work_s(layout, stage, runs_passes=runs_passes)
            own_s = fill_s + work_s
            through_s = own_s + drain_s
            exchanged_s = max(0.0, work_s - self._computed_s(layout, stage))
            through_data_s = data[0].after_backward_s(
                through_s, first_backward_s, is_own=stage == 0, exchanged_s=exchanged_s
            )
            candidates = [through_s, through_data_s + embedding_s, host_s]
            if stage in data:
                last_s = first_backward_s if stage == 0 else self._last_backward_s(layout, stage)
                candidates += [
                    data[stage].after_backward_s(own_s, last_s, exchanged_s=exchanged_s) + embedding_s,
                    data[stage].stream_s,
                ]
                candidates.append(host_s + data[stage].host_s)
            latest_s = max(latest_s, *candidates)
            if layout.placement.layout == "loop" and stage < plan.pp - 1:
                if is_new:
                    forward_s = self._passes.pass_s(layout, stage, 0, "F")[0]
                fill_s += forward_s + self._transfer_s(plan, stage, stage + 1)
                if (
                    layout.schedule.ends_with_first_chunk
                ):  # elsewhere weight gradients follow the last gradient that is sent
                    if is_new:
                        backward_s = self._passes.pass_s(layout, stage, 0, "B")[0]
                    drain_s += backward_s + self._transfer_s(plan, stage + 1, stage)
        step_s = max(self._step_s(layout, stage, durations) + data[stage].after_step_s for stage in ends)
        return SLACK * (latest_s + norm_s + step_s)

    def _works_as_before(self, layout: PlacedPlan, stage: int) -> bool:
        """Tell whether the passes of a stage, and the messages between them, take what those of the stage before it do."""
        plan, chunks = layout.plan, layout.chunks
        is_between = 1 < stage < plan.pp - 1 and layout.placement.layout == "loop"
        if not (is_between and layout.schedule.ends_with_first_chunk and self._passes.are_alike(plan)):
            return False
        to_next = self._transfer_s(plan, stage, stage + 1) == self._transfer_s(plan, stage - 1, stage)
        to_last = self._transfer_s(plan, stage, stage - 1) == self._transfer_s(plan, stage - 1, stage - 2)
        return to_next and to_last and chunks[stage] == chunks[stage - 1]

    def _last_backward_s(self, layout: PlacedPlan, stage: int) -> float:
        return self._passes.pass_s(layout, stage, 0, "B")[0] if layout.schedule.ends_with_first_chunk else 0.0

    def _data(self, layout: PlacedPlan, stage: int, durations: LeastDurations) -> DataBound:
        plan = layout.plan
        strategy = data_parallel(layout.stage_layers(stage), plan, self.communicators(plan, stage))
        first = [self.layer_time(layer, plan).backward_s for layer in layout.chunks[stage][0]]
        return data_bound(
            strategy, plan, durations, first if layout.schedule.ends_with_first_chunk else [], n_times=layout.n_times,
            is_first=stage == 0,
        )  # fmt: skip

    def _work_s(self, layout: PlacedPlan, stage: int, *, runs_passes: bool = False) -> tuple[float, float]:
        """Least time of all passes of a stage, one after the other, and host time to issue them."""
        plan = layout.plan
        if layout.schedule.takes_turns:
            return self._in_turns_s(layout, stage, runs_passes=runs_passes)
        work_s = host_s = 0.0
        counts = self._counts(layout, stage)
        for (kind, chunk), count in counts.items():
            pass_s, issue_s = self._passes.pass_s(layout, stage, chunk, kind)
            n_alone = self._n_alone(layout, stage, kind) if runs_passes else 0
            work_s += (count - n_alone) * pass_s
            work_s += n_alone * self._passes.run_pass_s(layout, stage, chunk, kind) if n_alone else 0.0
            host_s += count * issue_s
        return work_s + (self._waited_s(layout, stage, counts) if sends_block(plan) else 0.0), host_s

    def _in_turns_s(self, layout: PlacedPlan, stage: int, *, runs_passes: bool) -> tuple[float, float]:
        """Least time of a stage's passes where forwards and backwards take turns, and host time to issue them.

        A pair, and a pass between pairs, that nothing outside touches occupies the compute stream as a whole. All else may hide
        behind its neighbours, but streams are serial: the busiest one has to run all that is on it.
        """
        times = [self.layer_time(layer, layout.plan) for layer in layout.stage_layers(stage)]
        host_s = layout.n_times * sum(time.forward_host_s + time.backward_host_s for time in times)
        is_alone = self._are_alone(layout, stage)
        pairs = self._counted(layout.plan, _pairs_between)[stage] if is_alone else Counter[tuple[int, int]]()
        singles = self._counted(layout.plan, _singles_between)[stage] if is_alone else Counter[tuple[Kind, int]]()
        pair_s = self._passes.run_pair_s if runs_passes else self._passes.pair_s
        computed_s = sum(count * pair_s(layout, stage, chunks) for chunks, count in pairs.items())
        for (kind, chunk), count in singles.items():
            n_run = count - 1 if runs_passes else 0
            computed_s += (count - n_run) * self._passes.pass_s(layout, stage, chunk, kind)[0]
            computed_s += n_run * self._passes.run_pass_s(layout, stage, chunk, kind) if n_run else 0.0
        n_counted = Counter(singles)
        for chunks, count in pairs.items():
            n_counted.update(dict.fromkeys(zip(PASSES, chunks, strict=True), count))
        busy_s: Counter[str] = Counter()
        for kind, chunk in product(PASSES, range(layout.placement.n_chunks)):
            streams_s = self._passes.streams_s(layout, stage, chunk, kind)
            busy_s.update({stream: layout.n_times * time_s for stream, time_s in streams_s.items()})
            computed_s += (layout.n_times - n_counted[kind, chunk]) * streams_s.get(COMPUTE, 0.0)
        return max(computed_s, *busy_s.values()), host_s

    def _are_alone(self, layout: PlacedPlan, stage: int) -> bool:
        """Whether nothing outside touches the passes of a stage for certain, but the first forward and the last backward."""
        strategy = data_parallel(layout.stage_layers(stage), layout.plan, self.communicators(layout.plan, stage))
        is_quiet = all(strategy.is_quiet(kind, 1, is_last=False) for kind in PASSES)
        return is_quiet and not self.scenario.faults and fills_nodes(self.mesh(layout.plan))

    def _waited_s(self, layout: PlacedPlan, stage: int, counts: Mapping[tuple[Kind, int], int]) -> float:
        """Least time that the passes of a stage wait for messages: each sends its own, and the last one is not waited for.

        Interleaved passes exchange a forward's message and a backward's at the same time: as many exchanges as there are messages
        of one kind, each of which begins with a latency, and all bytes through the links that both take.
        """
        placement = layout.placement
        sends: list[tuple[Kind, int, Message]] = []
        for (kind, chunk), count in counts.items():
            virtual = placement.virtual_stage(stage, chunk)
            target = (
                None if kind == "W" else placement.following(virtual) if kind == "F" else placement.previous(virtual)
            )
            if target is not None and placement.stage(target) != stage:
                sends.append((kind, count, self._message(layout.plan, stage, placement.stage(target))))
        if not sends:
            return 0.0
        longest_s = max(message.alone_s for _, _, message in sends)
        if placement.n_chunks == 1:
            return sum(count * message.alone_s for _, count, message in sends) - longest_s
        n_sends, alone_s, busy_s = Counter[Kind](), defaultdict[Kind, float](float), defaultdict[int, float](float)
        for kind, count, message in sends:
            alone_s[kind] += count * message.alone_s
            n_sends[kind] += count
            for link, seconds in message.busy_s.items():
                busy_s[link] += count * seconds
        latency_s = max(n_sends.values()) * min(message.latency_s for _, _, message in sends)
        return max(*alone_s.values(), latency_s + max(busy_s.values(), default=0.0)) - longest_s

    def _counts(self, layout: PlacedPlan, stage: int) -> dict[tuple[Kind, int], int]:
        plan = layout.plan
        if layout.schedule.ends_with_first_chunk:
            return {(kind, c): plan.n_micro_batches for c in range(layout.placement.n_chunks) for kind in PASSES}
        return self._counted(plan, _passes_in)[stage]

    def _counted(self, plan: ParallelPlan, count: Callable[[Row], Counter[What]]) -> tuple[Counter[What], ...]:
        """Count in the rows of a plan's schedule."""
        n_chunks = placement_of(plan.schedule, plan.pp, plan.virtual_pp).n_chunks
        key = (count, plan.schedule, plan.pp, plan.n_micro_batches, n_chunks, plan.drains_every)
        if key not in self._counts_in:
            build = partial(build_table, plan.schedule, plan.pp, n_chunks=n_chunks, n_at_once=plan.drains_every)
            self._counts_in[key] = count_in_rows(build, plan.pp, plan.n_micro_batches, count)
        return cast("tuple[Counter[What], ...]", self._counts_in[key])

    def _n_alone(self, layout: PlacedPlan, stage: int, kind: Kind) -> int:
        """Return how many passes of a chunk nothing outside touches for certain: not the first forward and the last backward."""
        plan = layout.plan
        if self.scenario.faults or not fills_nodes(self.mesh(plan)) or not layout.schedule.ends_with_first_chunk:
            return 0
        key = (id(layout), stage, kind)
        if key not in self._alone:
            strategy = data_parallel(layout.stage_layers(stage), plan, self.communicators(plan, stage))
            is_quiet = strategy.is_quiet(kind, 1, is_last=False)
            if len(self._alone) >= MOST_PLANS:
                self._alone.clear()
            self._alone[key] = layout, plan.n_micro_batches - 1 if is_quiet else 0
        return self._alone[key][1]

    def _transfer_s(self, plan: ParallelPlan, source: int, target: int) -> float:
        return self._message(plan, source, target).alone_s

    def _message(self, plan: ParallelPlan, source: int, target: int) -> Message:
        """Return a message between stages: only the first node's pairs load the network, or the first pair."""
        shards = plan.message_shards
        n_bytes = boundary_bytes(self.spec, plan) // shards
        mesh = self.mesh(plan)
        key = (id(mesh), n_bytes, source, target)
        if key not in self._messages:
            per_stage = plan.tp * plan.dp * plan.cp
            is_whole = mesh.has_outermost_stages and per_stage % self.topology.gpus_per_node == 0
            n_pairs = self.topology.gpus_per_node if is_whole else per_stage if fills_nodes(mesh) else 1
            pairs = tuple(zip(mesh.stage_ranks(source)[:n_pairs], mesh.stage_ranks(target)[:n_pairs], strict=True))
            self._messages[key] = self.durations().message(Transfer(n_bytes=n_bytes, pairs=pairs))
        return self._messages[key]

    def _joint_s(self, layout: PlacedPlan, durations: LeastDurations) -> tuple[float, float]:
        """Least time of the tied embedding's reduction and of the gradient norm."""
        plan, communicators = layout.plan, self.communicators(layout.plan, 0)
        embedding_s = norm_s = 0.0
        placement = layout.placement
        has_copies = placement.stage(0) != placement.stage(placement.n_parts - 1) and not placement.shares_vocabulary
        if layout.model.tied_embedding and has_copies:
            largest = max((p.n_elements for p in layout.model.layers[0].parameters), default=1)
            embedding_s = self._in_step_s(
                "all_reduce", "embedding", largest * plan.reduced_bytes, communicators, durations
            )
        if plan.sums_norm:
            norm_s = self._in_step_s("all_reduce", "model", 4, communicators, durations)
        return embedding_s, norm_s

    def _in_step_s(
        self, collective: str, axis: str, n_bytes: int, communicators: Communicators, durations: LeastDurations
    ) -> float:
        groups = communicators.groups(axis)
        op = Collective(collective=collective, axis=axis, n_bytes=n_bytes, groups=groups, phase="optimizer")
        return durations.communication_s(op)

    def _step_s(self, layout: PlacedPlan, stage: int, durations: LeastDurations) -> float:
        plan = layout.plan
        layers = layout.stage_layers(stage)
        dense, experts = split_parameters(layers, plan)
        shards = plan.state_ranks(self.communicators(plan, stage).size("shard")) if plan.sharding != "none" else 1
        n_elements = -(-dense // shards) + -(-experts // plan.expert_shards(shards))
        steps = optimizer_step(n_elements, plan, owned_matrices(layers, plan, shards))
        communicators = self.communicators(plan, stage)
        return sum(
            self._in_step_s(one.collective, one.axis, one.n_bytes, communicators, durations)
            if isinstance(one, MuonMessage)
            else durations.op_s(one)[0]
            for one in steps
        )


def _passes_in(row: Row) -> Counter[tuple[Kind, int]]:
    """Count the passes of a row by kind and chunk; meetings over shared layers are none."""
    return Counter((action.kind, action.chunk) for action in row if action.kind != "V")


def _pairs_between(row: Row) -> Counter[tuple[int, int]]:
    """Count the pairs of a row by their chunks, but for the first forward and the last backward."""
    last = max(action.micro_batch for action in row)
    return Counter(
        (a.chunk, b.chunk) for a, b in pairwise(row) if a.is_paired and a.micro_batch and b.micro_batch < last
    )


def _singles_between(row: Row) -> Counter[tuple[Kind, int]]:
    """Count the whole passes of a row outside pairs by kind and chunk."""
    is_second = [False, *(action.is_paired for action in row[:-1])]
    singles = (a for a, is_within in zip(row, is_second, strict=True) if not (a.is_paired or is_within))
    return Counter((action.kind, action.chunk) for action in singles if action.kind in PASSES)


def _fullest(layout: PlacedPlan, in_flight: Sequence[Sequence[int]]) -> list[int]:
    """Return the stages of which one is the fullest: among equal layers, those that hold most micro-batches."""
    kept: dict[tuple[tuple[int, ...], ...], list[int]] = {}
    for stage, chunks in enumerate(layout.chunks):
        rivals = kept.setdefault(tuple(tuple(map(id, chunk)) for chunk in chunks), [])
        if not any(all(a >= b for a, b in zip(in_flight[r], in_flight[stage], strict=True)) for r in rivals):
            rivals.append(stage)
    return sorted(stage for rivals in kept.values() for stage in rivals)
