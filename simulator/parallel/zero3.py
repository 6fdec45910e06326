"""DeepSpeed's ZeRO-3: matrix by matrix, in buckets, with the host slicing every message.

References
----------
deepspeedai/DeepSpeed, ``runtime/zero/stage3.py``, ``partitioned_param_coordinator.py``, ``partition_parameters.py`` and
``comm/coalesced_collectives.py``; Wang et al., ZeRO++, arXiv:2306.10209.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.models.layer import Layer
from simulator.parallel.gradients import parameter_bytes
from simulator.parallel.mesh import Communicators
from simulator.parallel.sharded import FullySharded
from simulator.plan import ParallelPlan
from simulator.program.op import HostWork, Phase
from simulator.program.program import HOST, TaskList
from simulator.schedules import Kind

#: Host time per rank of the group and message in DeepSpeed, which slices every gathered or scattered buffer rank by rank in
#: Python (partition_parameters.py, coalesced_collectives.py); a view takes eager PyTorch 3 to 8 us
SLICE_S = 5e-6
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
        elements = self.messages(self._dense(position))
        has_room = 2 * max(elements, default=0) <= self._limits.max_live_elements
        if not self.plan.overlaps or not prefetched or not has_room:
            return 0
        return max(1, prefetched // max(1, sum(elements)))

    def n_behind(self, kind: Kind) -> int:
        """Nothing: hooks before a module fetch it and what follows."""
        return 0

    def messages(self, elements: Sequence[int], *, scatters: bool = False) -> list[int]:
        """One message per tensor that is partitioned."""
        found = [n for n in elements if n > self._limits.persistence_elements]
        return found or [sum(elements)]

    def backward_elements(self, position: int) -> list[int]:
        """Under recomputation a tensor may be gathered again between its recomputed forward and its backward."""
        elements = self._dense(position)
        if self.plan.recompute != "full":
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
            self._reduced.append(self.reduce_scatter(tasks, n_elements, self._pending[-1][1]))
            self._pending.clear()

    def issue(self, tasks: TaskList, phase: Phase) -> None:
        """Slice the buffer rank by rank."""
        n_ranks = self.communicators.size("shard")
        tasks.add(HostWork(name="slice partitions", duration_s=n_ranks * SLICE_S, phase=phase), HOST)

    def scatter(self, tasks: TaskList, n_elements: int, after: tuple[int, ...]) -> int:
        """Reduce-scatter, or with ZeRO++ two all-to-alls of int4: inside the nodes, then across them."""
        if not self.plan.quantized_gradients:
            return super().scatter(tasks, n_elements, after)
        n_local, n_rail = self.communicators.size("shard:local"), self.communicators.size("shard:rail")
        n_bytes = round(n_elements * INT4_BYTES)
        index = self.pointwise(tasks, "quantise gradients", n_elements, self.element_bytes, INT4_BYTES, after)
        if n_local > 1:
            index = self.collective(tasks, "all_to_all", "shard:local", n_bytes, (index,))
        if n_rail > 1:
            index = self.pointwise(tasks, "reduce and quantise", n_elements, INT4_BYTES, INT4_BYTES / n_local, (index,))
            index = self.collective(tasks, "all_to_all", "shard:rail", n_bytes // n_local, (index,))
        return self.pointwise(
            tasks, "reduce gradients", n_elements // n_local, INT4_BYTES, self.element_bytes / max(1, n_rail), (index,)
        )

    def after_step(self, tasks: TaskList, optimizer: int) -> None:
        """Gather what stays whole."""
        super().after_step(tasks, optimizer)
        small = sum(
            n for i in range(len(self.layers)) for n in self._dense(i) if n <= self._limits.persistence_elements
        )
        if small:
            n_bytes = small * parameter_bytes(self.plan)
            self.collective(tasks, "all_gather", "shard", n_bytes, (optimizer,), "optimizer")
