"""Times of passes, one after the other or two in turns, remembered for all plans in whose stages they are the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from simulator.costs import ModelCosts
from simulator.engine import run
from simulator.explore.search.least_durations import LeastDurations
from simulator.explore.search.placed_plan import PlacedPlan
from simulator.identity import ByIdentity
from simulator.models.layer import Layer
from simulator.network import NETWORKS
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.stage import StageLayers, Templates
from simulator.parallel.states import accumulation_traffic
from simulator.plan import ParallelPlan
from simulator.program.op import Kernel, KernelRun
from simulator.program.program import Block, Program, RankProgram, Task
from simulator.schedules import Kind

Time = TypeVar("Time")
#: the passes of a chunk in a step, where nothing divides its backward
PASSES: tuple[Kind, ...] = ("F", "B")
#: what a device is busy with while its host runs ahead
AHEAD_S = 100.0
#: plans of which something is remembered at a time
_MOST_PLANS = 4096
#: tasks of layers, some 30 KB each, that are kept at a time
_MOST_TEMPLATES = 2048


@dataclass(frozen=True, slots=True)
class _Circumstances:
    """All that passes through equal layers have in common, with what is known of them; layers are told apart by identity and held."""

    #: Of the stage that was asked about first, which stands for all others.
    communicators: Communicators
    templates: Templates = field(default_factory=dict)
    held: dict[int, Layer] = field(default_factory=dict)
    passes_s: dict[Hashable, tuple[float, float]] = field(default_factory=dict)
    streams_s: dict[Hashable, Mapping[str, float]] = field(default_factory=dict)
    pairs_s: dict[Hashable, float] = field(default_factory=dict)
    runs_s: dict[Hashable, float] = field(default_factory=dict)


class PassTimes:
    """Least times of passes, and those that the engine gives them while nothing else is in the network.

    Parameters
    ----------
    costs : ModelCosts
        Of the search, whose plan only names the framework.
    durations : LeastDurations
        Of operations.
    mesh, communicators : callables
        The mesh of a plan, and the groups of a stage.
    """

    def __init__(
        self,
        costs: ModelCosts,
        durations: Callable[[], LeastDurations],
        mesh: Callable[[ParallelPlan], Mesh],
        communicators: Callable[[ParallelPlan, int], Communicators],
    ) -> None:
        self._costs, self._new_durations = costs, durations
        self._mesh, self._communicators = mesh, communicators
        self._durations = durations()
        self._settings: ByIdentity[ParallelPlan, tuple[object, ...]] = ByIdentity(_MOST_PLANS)
        self._circumstances: dict[tuple[object, ...], _Circumstances] = {}
        self._writers: tuple[PlacedPlan, dict[int, tuple[_Circumstances, StageLayers]]] | None = None
        self._costs_of: tuple[ParallelPlan, ModelCosts] | None = None

    def forget(self) -> None:
        """Forget everything: groups, by whose identity durations are known, are about to go."""
        self._settings.clear()
        self._circumstances.clear()
        self._writers = None
        self._durations = self._new_durations()

    def pass_s(self, layout: PlacedPlan, stage: int, chunk: int, kind: Kind) -> tuple[float, float]:
        """Return the least time of one pass through one chunk, and host time to issue it."""
        here, writer = self._here(layout, stage)
        key = _content(layout, stage, chunk), kind
        return _known(here.passes_s, key, lambda: self._durations.tasks_s(writer.block(chunk, kind).tasks))

    def streams_s(self, layout: PlacedPlan, stage: int, chunk: int, kind: Kind) -> Mapping[str, float]:
        """Return the least time that one pass through one chunk keeps each stream busy."""
        here, writer = self._here(layout, stage)
        key = _content(layout, stage, chunk), kind
        return _known(here.streams_s, key, lambda: self._durations.streams_s(writer.block(chunk, kind).tasks))

    def pair_s(self, layout: PlacedPlan, stage: int, chunks: tuple[int, int]) -> float:
        """Return the least time of a forward through one chunk and a backward through another that take turns."""
        here, writer = self._here(layout, stage)
        key = tuple(_content(layout, stage, chunk) for chunk in chunks)
        return _known(here.pairs_s, key, lambda: self._durations.tasks_s(tuple(map(Task, _pair(writer, chunks))))[0])

    def run_pass_s(self, layout: PlacedPlan, stage: int, chunk: int, kind: Kind) -> float:
        """Return the time that a pass takes in the engine, with nothing else in the network and a host that is far ahead."""
        here, writer = self._here(layout, stage)
        key = _content(layout, stage, chunk), kind
        return _known(here.runs_s, key, lambda: self._run_s(layout.plan, here, (writer.block(chunk, kind),)))

    def run_pair_s(self, layout: PlacedPlan, stage: int, chunks: tuple[int, int]) -> float:
        """Return the time in the engine of a forward and a backward that take turns."""
        here, writer = self._here(layout, stage)
        key = tuple(_content(layout, stage, chunk) for chunk in chunks)
        return _known(here.runs_s, key, lambda: self._run_s(layout.plan, here, _pair(writer, chunks)))

    def are_alike(self, plan: ParallelPlan) -> bool:
        """Whether groups inside a stage look the same on every stage, which has whole nodes: they stay within nodes.

        Where all nodes are sound, passes of equal layers take the same time then with any number of stages.
        """
        mesh, per_node = self._mesh(plan), self._costs.topology.gpus_per_node
        is_whole = plan.tp * mesh.n_replicas % per_node == 0 and mesh.has_outermost_stages
        return is_whole and plan.cp == 1 and not plan.has_expert_axes and per_node % plan.tp == 0

    def _here(self, layout: PlacedPlan, stage: int) -> tuple[_Circumstances, StageLayers]:
        """Return the circumstances of a stage, and what writes down its passes, kept as long as its layout is asked about."""
        if self._writers is None or self._writers[0] is not layout:
            if sum(len(one.templates) for one in self._circumstances.values()) > _MOST_TEMPLATES:
                self.forget()
            self._writers = layout, {}
        writers = self._writers[1]
        if stage not in writers:
            plan, chunks = layout.plan, layout.chunks[stage]
            key = self._place(plan, stage), *self._settings.of(plan, self._settings_of)
            here = self._circumstances.get(key)
            if here is None:
                here = self._circumstances[key] = _Circumstances(self._communicators(plan, stage))
            here.held.update((id(layer), layer) for chunk in chunks for layer in chunk)
            groups = here.communicators
            writers[stage] = here, StageLayers(chunks, plan, groups, groups, templates=here.templates)
        return writers[stage]

    def _place(self, plan: ParallelPlan, stage: int) -> tuple[object, ...]:
        """Return where the ranks of a stage lie, as far as times of its passes depend on it.

        Inside one NVLink domain all hosts are alike.
        """
        mesh, topology = self._mesh(plan), self._costs.topology
        if self._costs.scenario.faults or not mesh.has_outermost_stages:
            return id(mesh), stage
        if self.are_alike(plan):
            return (plan.tp,)
        n_ranks = plan.tp * mesh.n_replicas
        node, local = divmod(stage * n_ranks, topology.gpus_per_node)
        inside = local + n_ranks <= topology.gpus_per_node
        where = ("host", local % topology.gpus_per_host) if inside else (node, local)
        return plan.tp, plan.cp, plan.ep, plan.expert_tp, n_ranks, where

    def _settings_of(self, plan: ParallelPlan) -> tuple[object, ...]:
        """Return what else of a plan its passes depend on."""
        return (
            plan.rank_order, plan.sequence_parallel, plan.asynchronous_tp, plan.context_exchange, plan.cp_load_balance,
            plan.moe_dispatcher, plan.moe_fp8_dispatch, plan.moe_shared_expert_overlap, plan.dispatcher_sms,
            accumulation_traffic(plan), plan.pp > 1, plan.schedule, plan.virtual_pp > 1,
        )  # fmt: skip

    def _run_s(self, plan: ParallelPlan, here: _Circumstances, ops: Sequence[Block | KernelRun]) -> float:
        if self._costs_of is None or self._costs_of[0] is not plan:
            self._costs_of = plan, ModelCosts(self._costs.topology, replace(self._costs.scenario, plan=plan))
            self._costs_of[1].kernels = self._costs.kernels  # which remembers the times of shapes
        ahead = Kernel(name="before", phase="forward", duration_s=AHEAD_S)
        rank = here.communicators.rank
        program = Program(ranks=(RankProgram(rank=rank, members=(rank,), tasks=(Task(ahead), *map(Task, ops))),))
        network = NETWORKS[self._costs.scenario.network]
        line = run(program, self._costs_of[1], lambda: network(self._costs.topology))
        return sum(span.duration_ps for span in line.simulated[1:]) * 1e-12


def _content(layout: PlacedPlan, stage: int, chunk: int) -> tuple[int, ...]:
    return tuple(map(id, layout.chunks[stage][chunk]))


def _pair(writer: StageLayers, chunks: tuple[int, int]) -> tuple[Block | KernelRun, ...]:
    both, tail = writer.paired_blocks(*chunks)
    return both, *(run for run in tail if run)


def _known(memory: dict[Hashable, Time], key: Hashable, work_out: Callable[[], Time]) -> Time:
    """Return what is remembered, worked out once."""
    if key not in memory:
        memory[key] = work_out()
    return memory[key]
