"""Fully sharded data parallelism: ZeRO-3 and FSDP gather parameters before each pass and scatter gradients after it.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054, section 5.3; Zhao et al., PyTorch FSDP, arXiv:2304.11277, section 4; Wang et al.,
ZeRO++, arXiv:2306.10209; Ren et al., ZeRO-Offload, arXiv:2101.06840. What each framework issues when is read from
``torch/distributed/fsdp``; deepspeedai/DeepSpeed, ``runtime/zero/stage3.py``, ``partitioned_param_coordinator.py``,
``partition_parameters.py`` and ``comm/coalesced_collectives.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from simulator.models.layer import Layer
from simulator.parallel.data import DENSE, DataParallel, Owners, last_of_each_stream
from simulator.parallel.mesh import Communicators
from simulator.plan import ParallelPlan
from simulator.plan.rules import gathers_to_recompute
from simulator.program.op import HostWork, Phase
from simulator.program.program import COMPUTE, HOST, TaskList
from simulator.schedules import Kind


class FullySharded(DataParallel):
    """Units that are gathered before they compute and whose gradients are reduced behind backward; FSDP's way.

    FSDP moves one transformer block at a time; what is outside the blocks (embedding, head) is the root unit, gathered
    once and kept until its gradients are reduced. The host issues the next unit's gather behind the current one's kernels
    (before them with explicit prefetching). No more units are alive than ``ParallelPlan.gathered_units`` says: the wrapper's host
    waits for a unit that was freed, the streams of `fully_shard` for a buffer that was copied out. Under ``zero2`` (FSDP's
    SHARD_GRAD_OP, ``reshard_after_forward=False``) what forward gathered stays for backward.
    """

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        super().__init__(layers, plan, communicators)
        self.element_bytes = plan.reduced_bytes
        self._gathered: dict[tuple[int, Kind, int], tuple[int, ...]] = {}
        self._freed: deque[int] = deque()
        self._copied: list[int] = []
        self._reduced: list[int] = []
        self._roots = {i for i, layer in enumerate(self.layers) if not layer.is_block}
        self._units = [i for i in range(len(self.layers)) if i not in self._roots]
        self._has_root = False

    @property
    def n_reduced_elements(self) -> int:
        """Its shards."""
        return self.n_optimizer_elements

    def n_ahead(self, position: int, kind: Kind) -> int:
        """Units whose gathers are issued before this unit's kernels."""
        return self.plan.prefetched_units(forward=kind == "F")

    def n_behind(self, kind: Kind) -> int:
        """Units whose gathers are issued right behind this unit's kernels, before its gradients are reduced."""
        if not self.plan.overlaps:
            return 0
        return int(not self.plan.forward_prefetch if kind == "F" else self.plan.backward_prefetch == "post")

    def messages(self, elements: Sequence[int], *, scatters: bool = False) -> list[int]:
        """Elements of each collective that moves these tensors."""
        return [sum(elements)]

    def is_quiet(self, kind: Kind, micro_batch: int, *, is_last: bool) -> bool:
        """Every pass gathers."""
        return False

    def before_layer(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Gather this unit, and those that are prefetched behind it."""
        if kind == "W":  # weight gradients need activations only
            return ()
        if position in self._roots:
            if self._has_root:
                return ()  # what computes with it later stands behind what has waited for it
            self._has_root = True
            elements = {owners: self._elements(sorted(self._roots), owners) for owners in (DENSE, self.experts)}
            return self.all_gather(tasks, elements, (), "forward", micro_batch)
        self._gather(tasks, position, kind, micro_batch)
        ready = self._gathered[position, kind, micro_batch]
        if ready and self.plan.framework_spec.data_parallel.copies_gathered:
            name = f"gather copy-out {'forward' if kind == 'F' else 'backward'}"
            n_elements = self.layers[position].n_parameters
            ready = (
                self.pointwise(
                    tasks, name, n_elements, self.plan.sent_parameter_bytes, self.plan.gathered_bytes, ready
                ),
            )
            self._copied += ready
        self._gather_following(tasks, position, kind, micro_batch, self.n_ahead(position, kind))
        return ready

    def after_layer(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, last: tuple[int, ...], *, is_last: bool
    ) -> None:
        """Reduce-scatter the unit's gradients, in every micro-batch unless the last one reduces the sum."""
        self.is_last = is_last
        if position in self._units and kind != "W":
            if last and not (kind == "F" and self._keeps(position)):
                self._freed.append(last[-1])
            self._gather_following(tasks, position, kind, micro_batch, self.n_behind(kind))
        if kind not in ("F", "I") and (is_last or not self.plan.defers_reduction):
            self._reduce_unit(tasks, position, last)

    def _reduce_unit(self, tasks: TaskList, position: int, last: tuple[int, ...]) -> None:
        """Reduce-scatter the gradients of a unit; those of the root go together, when its first layer is through."""
        if position in self._roots and position != min(self._roots):
            return
        members = sorted(self._roots) if position in self._roots else [position]
        dense, experts = (self._elements(members, owners, is_trained=True) for owners in (DENSE, self.experts))
        if not dense and not experts:
            return
        # gradients into the flat buffer that is reduced, in its precision
        n_elements = self.layers[position].n_trained_parameters
        copied = self.pointwise(tasks, "reduce copy-in", n_elements, 2, self.element_bytes, last)
        if dense:
            self.reduce(tasks, position, dense, (copied,))
        if experts:
            self._reduced += self.reduce_scatter(tasks, self.experts, sum(experts), (copied,))
        if not self.plan.overlaps and self._reduced:
            tasks.add(HostWork(name="wait for reduction", duration_s=0.0), HOST, (self._reduced[-1],))

    def reduce(self, tasks: TaskList, position: int, elements: Sequence[int], after: tuple[int, ...]) -> None:
        """Reduce the gradients of a unit's tensors."""
        for n_elements in self.messages(elements, scatters=True):
            self._reduced += self.reduce_scatter(tasks, DENSE, n_elements, after)

    def finish_backward(self, tasks: TaskList, last: tuple[int, ...]) -> tuple[int, ...]:
        """Wait for all reductions."""
        return last + last_of_each_stream(tasks, self._reduced)

    def _elements(self, positions: Iterable[int], owners: Owners, *, is_trained: bool = False) -> list[int]:
        """Elements of the tensors of some layers that these owners share, or of those that are trained."""
        if self.communicators.size(owners.replicas) == 1 and not self.offloads:
            return []
        layers = [self.layers[position] for position in positions]
        tensors = [p for layer in layers for p in (layer.trained if is_trained else layer.parameters)]
        has_axes, of_experts = self.plan.has_expert_axes, owners is not DENSE
        return [p.n_elements for p in tensors if (has_axes and p.is_expert) == of_experts]

    def backward_elements(self, elements: list[int]) -> list[int]:
        """Elements of the tensors that backward gathers of a unit's."""
        return elements

    def _gather_following(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, n_units: int) -> None:
        place, step = self._units.index(position), 1 if kind == "F" else -1
        for distance in range(1, n_units + 1):
            following = place + step * distance
            if 0 <= following < len(self._units):
                self._gather(
                    tasks, self._units[following], kind, micro_batch, self._gathered[position, kind, micro_batch]
                )

    def _gather(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, behind: tuple[int, ...] = ()
    ) -> None:
        if (position, kind, micro_batch) in self._gathered:
            return
        kept = self._gathered.get((position, "F", micro_batch))
        if kind != "F" and self._keeps(position) and kept is not None:
            self._gathered[position, kind, micro_batch] = kept
            return
        elements = {owners: self._elements([position], owners) for owners in (DENSE, self.experts)}
        if kind != "F":
            elements[DENSE] = self.backward_elements(elements[DENSE])
        after = self._limit(tasks, position, kind, micro_batch) + behind if any(elements.values()) else ()
        phase: Phase = "forward" if kind == "F" else "backward"
        for _ in range(2 if kind != "F" and gathers_to_recompute(self.plan) else 1):
            self._gathered[position, kind, micro_batch] = self.all_gather(tasks, elements, after, phase, micro_batch)

    def _keeps(self, position: int) -> bool:
        """Whether what forward gathered of a unit stays for backward."""
        is_last = self.plan.framework_spec.data_parallel.keeps_last_unit and position == self._units[-1]
        return is_last or self.plan.keeps_gathered

    def _limit(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Return what a gather waits for, so that there is room for it.

        The wrapper's host waits for a unit that was freed when a number of them are in its queue (``_FreeEventQueue`` of
        torch/distributed/fsdp). The streams of `fully_shard` wait for the copy-out of the unit before the last one, whose buffer
        is then free; in backward for that of the last one (``FSDPParamGroup.wait_for_unshard``).
        """
        in_flight = self.plan.framework_spec.data_parallel.gathers_in_flight
        if not in_flight:
            return tuple(self._copied[-2:-1] if kind == "F" else self._copied[-1:])
        if not self.plan.limit_all_gathers or len(self._freed) < in_flight:
            return ()
        after = (self._freed.popleft(),)
        tasks.add(HostWork(name="rate limiter", duration_s=0.0), HOST, after)
        return after

    def all_gather(
        self,
        tasks: TaskList,
        elements: Mapping[Owners, Sequence[int]],
        after: tuple[int, ...],
        phase: Phase,
        micro_batch: int,
    ) -> tuple[int, ...]:
        """Gather tensors from the ranks that share them, and return the last message, which the stream ends with."""
        has_second = phase == "backward" and self.communicators.mesh.secondary_group
        last: tuple[int, ...] = ()
        for owners, tensors in elements.items():
            axis = "secondary" if has_second and owners is DENSE else owners.shard
            n_ranks = self.communicators.size(axis)
            is_away = self.plan.offload_parameters == "cpu"
            for n_elements in self.messages(tensors) if tensors and (n_ranks > 1 or is_away) else ():
                width = self.plan.sent_parameter_bytes
                n_bytes, needs = n_elements * width, after
                if is_away:
                    shard_bytes = n_elements * self.host_bytes(width) // n_ranks
                    last = needs = (self.copy(tasks, "from_host", shard_bytes, after, phase),)
                if n_ranks == 1:
                    continue
                host_s = self.issue(tasks, "all_gather", phase, n_ranks)
                last = (self.collective(tasks, "all_gather", axis, n_bytes, needs, phase, host_s=host_s),)
        return last

    def issue(self, tasks: TaskList, collective: str, phase: Phase, n_ranks: int) -> float:
        """Return the host's work for one message beside its launch, in seconds; insert what waits for the device."""
        return 0.0

    def reduce_scatter(
        self, tasks: TaskList, owners: Owners, n_elements: int, after: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Reduce one message to its owners, across copies too, and send the shard to the host if it is stepped there."""
        n_ranks = self.communicators.size(owners.shard)
        host_s = self.issue(tasks, "reduce_scatter", "backward", n_ranks)
        scattered = self.scatter(tasks, owners, n_elements, after, host_s)
        if self.plan.offload_optimizer == "cpu":
            width = self.host_bytes(self.element_bytes)
            scattered = (self.copy(tasks, "to_host", n_elements * width // n_ranks, scattered),)
        return scattered

    def scatter(
        self, tasks: TaskList, owners: Owners, n_elements: int, after: tuple[int, ...], host_s: float
    ) -> tuple[int, ...]:
        """Reduce one message to its owners."""
        return self.scatter_over(tasks, owners, n_elements * self.element_bytes, after, host_s=host_s)

    def after_step(self, tasks: TaskList, optimizer: int) -> None:
        """Send updated parameters to where they live, unless they were stepped there."""
        places = (self.plan.offload_optimizer, self.plan.offload_parameters)
        if places[0] != places[1]:
            n_bytes = self.n_optimizer_elements * self.host_bytes(self.plan.gathered_bytes)
            self.copy(tasks, "from_host" if places[0] == "cpu" else "to_host", n_bytes, (optimizer,), "optimizer")


class ShardedOnce(FullySharded):
    """`fully_shard` under a pipeline: the first forward gathers for the whole step, the last backward reduces the sum."""

    def is_quiet(self, kind: Kind, micro_batch: int, *, is_last: bool) -> bool:
        """Whatever is neither the first forward nor the last backward."""
        return micro_batch != 0 if kind == "F" else kind == "I" or not is_last

    def before_layer(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Gather this unit in the first forward."""
        return super().before_layer(tasks, position, kind, micro_batch) if kind == "F" and micro_batch == 0 else ()

    def after_layer(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, last: tuple[int, ...], *, is_last: bool
    ) -> None:
        """Reduce-scatter the unit's gradients in the last backward."""
        if kind == "F" and micro_batch == 0:
            super().after_layer(tasks, position, kind, micro_batch, last, is_last=is_last)
        elif kind in ("B", "W") and is_last:
            self._reduce_unit(tasks, position, last)


#: host time of one operation on a view in eager PyTorch, 3 to 8 us
VIEW_S = 5e-6
#: how many of them DeepSpeed does in Python for every rank of the group and message: gradients are sliced and chunked
#: (coalesced_collectives.py); a list is of views, each of which PyTorch copies (``ProcessGroupNCCL::allgather``). A matrix that
#: is gathered by itself arrives in place (partition_parameters.py, ``all_gather_coalesced``)
N_VIEWS = 2
#: bytes of a gradient element as ZeRO++ sends it
INT4_BYTES = 0.5


def released_before_reuse(elements: Sequence[int], max_distance: int) -> list[int]:
    """Return the tensors of a recomputed layer that DeepSpeed releases between recomputation and backward.

    A tensor is kept if it is used again within ``stage3_max_reuse_distance`` elements: backward visits the tensors of the
    layer in reverse, so the first ones are the furthest apart.
    """
    released = []
    behind = 0
    for n_elements in reversed(elements):
        if 2 * behind > max_distance:
            released.append(n_elements)
        behind += n_elements
    return released


class Zero3(FullySharded):
    """Every weight matrix is gathered by itself; gradients are reduced in buckets, in every micro-batch.

    The coordinator prefetches what it recorded to come next: at least one tensor where the bucket is not zero, as long as
    no more than ``stage3_max_live_parameters`` elements are alive.
    """

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        super().__init__(layers, plan, communicators)
        limits = plan.zero3_limits
        assert limits is not None, plan.framework
        self._limits = limits
        self._bucket_elements = max(1, plan.bucket_sizes(communicators.size("dp"))[1] // self.element_bytes)
        self._pending: list[tuple[int, tuple[int, ...]]] = []

    def n_ahead(self, position: int, kind: Kind) -> int:
        """Units that the prefetch bucket reaches."""
        prefetched = self._limits.prefetch_elements
        elements = self.messages(self._elements([position], DENSE))
        has_room = 2 * max(elements, default=0) <= self._limits.max_live_elements
        if not self.plan.overlaps or not prefetched or not has_room:
            return 0
        return min(len(self._units), max(1, prefetched // max(1, sum(elements))))

    def n_behind(self, kind: Kind) -> int:
        """Nothing: hooks before a module fetch it and what follows."""
        return 0

    def messages(self, elements: Sequence[int], *, scatters: bool = False) -> list[int]:
        """One message per tensor that is partitioned."""
        return [n for n in elements if n > self._limits.persistence_elements]

    def backward_elements(self, elements: list[int]) -> list[int]:
        """Under recomputation a tensor may be gathered again between its recomputed forward and its backward."""
        if self.plan.recompute != "full" or not elements:
            return elements
        return elements + released_before_reuse(self.messages(elements), self._limits.max_reuse_elements)

    def reduce(self, tasks: TaskList, position: int, elements: Sequence[int], after: tuple[int, ...]) -> None:
        """Fill the bucket and reduce it when the next tensor would overflow it, and at the end of every backward."""
        for n_elements in reversed(elements):
            if self._pending and sum(n for n, _ in self._pending) + n_elements > self._bucket_elements:
                self._flush(tasks)
            self._pending.append((n_elements, after))
        if position == 0 or not self.plan.overlaps:
            self._flush(tasks)

    def finish_backward(self, tasks: TaskList, last: tuple[int, ...]) -> tuple[int, ...]:
        """Reduce what is left in the bucket."""
        self._flush(tasks)
        return super().finish_backward(tasks, last)

    def _flush(self, tasks: TaskList) -> None:
        if self._pending:
            n_elements = sum(n for n, _ in self._pending)
            self._reduced += self.reduce_scatter(tasks, DENSE, n_elements, self._pending[-1][1])
            self._pending.clear()

    def issue(self, tasks: TaskList, collective: str, phase: Phase, n_ranks: int) -> float:
        """Slice the buffer rank by rank; where it is a list of tensors, once the device has nothing left to do."""
        moves_lists = self.plan.framework_spec.data_parallel.moves_lists
        if collective == "all_gather" and not moves_lists:
            return 0.0
        last = next((i for i in reversed(range(len(tasks.tasks))) if tasks.tasks[i].stream == COMPUTE), None)
        duration_s = n_ranks * N_VIEWS * VIEW_S
        if last is None or not moves_lists:
            return duration_s
        tasks.add(HostWork(name="slice partitions", duration_s=duration_s, phase=phase), HOST, (last,))
        return 0.0

    def scatter(
        self, tasks: TaskList, owners: Owners, n_elements: int, after: tuple[int, ...], host_s: float
    ) -> tuple[int, ...]:
        """Reduce-scatter, or with ZeRO++ two all-to-alls of int4: inside the nodes, then across them."""
        if not self.plan.quantized_gradients or owners is not DENSE:
            return super().scatter(tasks, owners, n_elements, after, host_s)
        n_local, n_rail = self.communicators.size("shard:local"), self.communicators.size("shard:rail")
        n_bytes = round(n_elements * INT4_BYTES)
        index = self.pointwise(tasks, "quantise gradients", n_elements, self.element_bytes, INT4_BYTES, after)
        if n_local > 1:
            index = self.collective(tasks, "all_to_all", "shard:local", n_bytes, (index,), host_s=host_s)
        if n_rail > 1:
            index = self.pointwise(tasks, "reduce and quantise", n_elements, INT4_BYTES, INT4_BYTES / n_local, (index,))
            host_s = 0.0 if n_local > 1 else host_s
            index = self.collective(tasks, "all_to_all", "shard:rail", n_bytes // n_local, (index,), host_s=host_s)
        n_bytes = n_elements * self.element_bytes // self.communicators.size(owners.shard)
        sizes = (INT4_BYTES, self.element_bytes / max(1, n_rail))
        index = self.pointwise(tasks, "reduce gradients", n_elements // n_local, *sizes, (index,))
        return self.sum_copies(tasks, owners, n_bytes, (index,))

    def after_step(self, tasks: TaskList, optimizer: int) -> None:
        """Gather what stays whole."""
        super().after_step(tasks, optimizer)
        for owners in (DENSE, self.experts):
            elements = self._elements(range(len(self.layers)), owners)
            small = sum(n for n in elements if n <= self._limits.persistence_elements)
            if small and self.communicators.size(owners.shard) > 1:
                n_bytes = small * self.plan.gathered_bytes
                self.collective(tasks, "all_gather", owners.shard, n_bytes, (optimizer,), "optimizer")
