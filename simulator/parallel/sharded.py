"""Fully sharded data parallelism: ZeRO-3 and FSDP gather parameters before each pass and scatter gradients after it.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5.3; Zhao et al., PyTorch FSDP, arXiv:2304.11277, section 4.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.models.layer import Layer, PointwiseShape
from simulator.parallel.data import DataParallel
from simulator.parallel.gradients import gradient_bytes, parameter_bytes
from simulator.parallel.mesh import Communicators
from simulator.parallel.template import Kind
from simulator.plan import ParallelPlan
from simulator.program.op import HostWork, Kernel, KernelRun, Phase
from simulator.program.program import COMPUTE, HOST, TaskList

#: FSDP's rate limiter: all-gathers whose parameters may be alive at once
INFLIGHT_GATHERS = 2
#: DeepSpeed keeps smaller tensors whole (stage3_param_persistence_threshold)
PERSISTENT_ELEMENTS = 100_000
#: DeepSpeed releases a gathered tensor that is not used again within so many elements (stage3_max_reuse_distance)
MAX_REUSE_DISTANCE = 1_000_000_000
#: Host time per rank of the group and message in DeepSpeed, which slices every gathered or scattered buffer rank by rank in
#: Python (partition_parameters.py, coalesced_collectives.py); a view takes eager PyTorch 3 to 8 us
SLICE_S = 5e-6


def _released_before_reuse(elements: Sequence[int]) -> list[int]:
    """Return the tensors of a recomputed layer that DeepSpeed releases between recomputation and backward.

    A tensor is kept if it is used again within ``stage3_max_reuse_distance`` elements: backward visits the tensors of the
    layer in reverse, so the first ones are the furthest apart.
    """
    released = []
    behind = 0
    for n_elements in reversed(elements):
        if 2 * behind > MAX_REUSE_DISTANCE:
            released.append(n_elements)
        behind += n_elements
    return released


class FullySharded(DataParallel):
    """ZeRO-3 and FSDP.

    FSDP moves one transformer block at a time; what is outside the blocks (embedding, head) is the root unit, gathered
    once and kept until its gradients are reduced. DeepSpeed moves every weight matrix by itself. With overlap, the next
    unit is gathered beside the current one, and the host never runs further ahead than two gathers.
    """

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        super().__init__(layers, plan, communicators)
        self.framework = plan.framework_spec.data_parallel
        self.element_bytes = gradient_bytes(plan)
        self._gathered: dict[tuple[int, Kind, int], int] = {}
        self._ends: dict[tuple[Kind, int], dict[int, int]] = {}
        self._reduced: list[int] = []
        self._roots = {i for i, layer in enumerate(self.layers) if not layer.name.endswith("block")}
        self._units = [i for i in range(len(self.layers)) if i not in self._roots]
        self._root_gather: int | None = None
        self._copies: dict[tuple[str, int], KernelRun] = {}

    @property
    def n_reduced_elements(self) -> int:
        """Its shards."""
        return self.n_optimizer_elements

    def is_quiet(self, kind: Kind, micro_batch: int, *, is_last: bool) -> bool:
        """Every pass gathers."""
        return False

    def before_layer(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Gather this unit, and with overlap the next one behind it."""
        if kind == "W":  # weight gradients need activations only
            return ()
        if position in self._roots:
            if self._root_gather is None:
                elements = [p.n_elements for i in sorted(self._roots) for p in self.layers[i].parameters]
                self._root_gather = self._all_gather(tasks, elements, (), "forward")
            return (self._root_gather,)
        self._gather(tasks, position, kind, micro_batch)
        following = self._following(position, kind)
        if self.plan.overlaps and following is not None:
            self._gather(tasks, following, kind, micro_batch)
        gathered = (self._gathered[position, kind, micro_batch],)
        if self.framework in ("fsdp2", "deepspeed"):  # out of the flat buffer into the parameters
            return (
                self._copy(
                    tasks, "gather copy-out", position, 2, 2, "forward" if kind == "F" else "backward", gathered
                ),
            )
        return gathered

    def after_layer(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, last: tuple[int, ...], *, is_last: bool
    ) -> None:
        """Reduce-scatter the unit's gradients, in every micro-batch."""
        if last:
            self._ends.setdefault((kind, micro_batch), {})[position] = last[-1]
        if kind in ("F", "I") or (position in self._roots and position != min(self._roots)):
            return
        members = sorted(self._roots) if position in self._roots else [position]
        # gradients into the flat buffer that is reduced, in its precision
        copied = self._copy(tasks, "reduce copy-in", position, 2, self.element_bytes, "backward", last)
        for elements in self._messages([n for i in members for n in self._dense(i)]):
            self._reduced.append(self._reduce_scatter(tasks, elements, (copied,)))
        if self._experts(position):
            n_bytes = self._experts(position) * self.element_bytes
            self._reduced.append(self.collective(tasks, "reduce_scatter", "expert_dp", n_bytes, (copied,)))
        if not self.plan.overlaps:
            tasks.add(HostWork(name="wait for reduction", duration_s=0.0), HOST, (self._reduced[-1],))

    def finish_backward(self, tasks: TaskList, last: tuple[int, ...]) -> tuple[int, ...]:
        """Wait for all reductions."""
        return last + tuple(self._reduced)

    def _dense(self, position: int) -> list[int]:
        """Elements of a layer's tensors that all data-parallel ranks share."""
        return [p.n_elements for p in self.layers[position].parameters if self.plan.ep == 1 or not p.is_expert]

    def _experts(self, position: int) -> int:
        """Elements of a layer's experts that have replicas of their own to be sharded over."""
        has_replicas = self.plan.ep > 1 and self.communicators.size("expert_dp") > 1
        return self.layers[position].n_expert_parameters if has_replicas else 0

    def _following(self, position: int, kind: Kind) -> int | None:
        place = self._units.index(position) + (1 if kind == "F" else -1)
        return self._units[place] if 0 <= place < len(self._units) else None

    def _messages(self, elements: Sequence[int]) -> list[int]:
        """Elements of each collective that moves these tensors."""
        if self.framework != "deepspeed":
            return [sum(elements)]
        return [n for n in elements if n > PERSISTENT_ELEMENTS]

    def _gather(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> None:
        if (position, kind, micro_batch) in self._gathered:
            return
        ends = self._ends.setdefault((kind, micro_batch), {})
        step = -INFLIGHT_GATHERS if kind == "F" else INFLIGHT_GATHERS
        place = self._units.index(position) + step
        after: tuple[int, ...] = ()
        if 0 <= place < len(self._units) and self._units[place] in ends:
            after = (ends[self._units[place]],)
            tasks.add(HostWork(name="rate limiter", duration_s=0.0), HOST, after)
        elements = self._dense(position)
        if kind != "F" and self.framework == "deepspeed" and self.plan.recompute == "full":
            elements += _released_before_reuse(elements)
        phase: Phase = "forward" if kind == "F" else "backward"
        gathered = self._all_gather(tasks, elements, after, phase)
        if self._experts(position):
            n_bytes = self._experts(position) * parameter_bytes(self.plan)
            gathered = self.collective(tasks, "all_gather", "expert_dp", n_bytes, after, phase)
        self._gathered[position, kind, micro_batch] = gathered

    def _all_gather(self, tasks: TaskList, elements: Sequence[int], after: tuple[int, ...], phase: Phase) -> int:
        index = -1
        for n_elements in self._messages(elements):
            self._slice(tasks, phase)
            index = self.collective(tasks, "all_gather", "shard", n_elements * parameter_bytes(self.plan), after, phase)
        assert index >= 0, "a unit has parameters"
        return index

    def _slice(self, tasks: TaskList, phase: Phase) -> None:
        if self.framework == "deepspeed":
            n_ranks = self.communicators.size("shard")
            tasks.add(HostWork(name="slice partitions", duration_s=n_ranks * SLICE_S, phase=phase), HOST)

    def _reduce_scatter(self, tasks: TaskList, n_elements: int, after: tuple[int, ...]) -> int:
        self._slice(tasks, "backward")
        n_bytes = n_elements * self.element_bytes
        scattered = self.collective(tasks, "reduce_scatter", "shard", n_bytes, after)
        if self.communicators.size("replicate") > 1:
            shard_bytes = n_bytes // self.communicators.size("shard")
            scattered = self.collective(tasks, "all_reduce", "replicate", shard_bytes, (scattered,))
        return scattered

    def _copy(
        self,
        tasks: TaskList,
        name: str,
        position: int,
        read_bytes: int,
        written_bytes: int,
        phase: Phase,
        after: tuple[int, ...],
    ) -> int:
        """Append the copy of a unit's parameters or gradients between tensors and the flat buffer."""
        n_elements = self.layers[position].n_parameters
        run = self._copies.get((name, n_elements))
        if run is None:
            shape = PointwiseShape(
                name="copy",
                n_elements=n_elements,
                read_bytes=float(n_elements * read_bytes),
                written_bytes=float(n_elements * written_bytes),
            )
            kernel = Kernel(name=name, phase=phase, shape=shape, layer=self.layers[position].name)
            run = self._copies[name, n_elements] = KernelRun(name=name, phase=phase, kernels=(kernel,))
        return tasks.add(run, COMPUTE, after)
