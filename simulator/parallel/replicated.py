"""Whole parameters on every rank: DDP, and ZeRO-1 and -2, which shard the optimizer (and the gradients).

References
----------
Li et al., PyTorch Distributed, arXiv:2006.15704; Rajbhandari et al., ZeRO, arXiv:1910.02054; Ren et al., ZeRO-Offload,
arXiv:2101.06840; Tang et al., 1-bit Adam, arXiv:2102.02888. DeepSpeed: ``runtime/zero/stage_1_and_2.py``, ``runtime/comm/nccl.py``
(``compressed_allreduce``); Megatron-LM: ``core/distributed/param_and_grad_buffer.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from simulator.models.layer import Layer
from simulator.parallel.data import DENSE, DataParallel, Owners, last_of_each_stream
from simulator.parallel.mesh import Communicators
from simulator.parallel.states import split_parameters
from simulator.plan import ParallelPlan
from simulator.program.op import Phase
from simulator.program.program import TaskList
from simulator.schedules import Kind

#: bytes that the kernels of a compressed all-reduce read and write of one fp32 element: what makes signs of a buffer and keeps
#: the rest of it, and what makes values of signs (counted in ``compressed_allreduce``, one kernel an operator)
_COMPRESS, _UNPACK = (58.0, 42.0), (17.0, 17.0)
_SIGN_BYTES, _SCALE_BYTES = 1 / 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together."""

    n_elements: int
    trigger: int  #: Position (in the stage, over all chunks) of the layer whose backward completes the bucket.
    is_expert: bool = False  #: Of experts that have replicas of their own.


def fill_buckets(
    layers: Sequence[Layer], cap_bytes: float, first_bytes: float, element_bytes: int, *, experts: bool | None = None
) -> list[Bucket]:
    """Fill buckets with parameters in reverse order, as DDP and Megatron do.

    Parameters
    ----------
    cap_bytes, first_bytes : float
        A bucket is closed once it holds at least this much; the first one may be smaller.
    experts : bool, optional
        Whether only experts are meant, or only the others: where they have replicas of their own they have buckets of their own.
    """
    buckets: list[Bucket] = []
    filled = 0
    for index in reversed(range(len(layers))):
        for parameter in reversed(layers[index].trained):
            filled += parameter.n_elements if experts in (None, parameter.is_expert) else 0
            limit = first_bytes if not buckets else cap_bytes
            if filled and filled * element_bytes >= limit:
                buckets.append(Bucket(n_elements=filled, trigger=index, is_expert=bool(experts)))
                filled = 0
    if filled:
        buckets.append(Bucket(n_elements=filled, trigger=0, is_expert=bool(experts)))
    return buckets


class Replicated(DataParallel):
    """Gradients are reduced in buckets; with a sharded optimizer the parameters are gathered after the step.

    Which collective reduces a bucket is the framework's: DDP and DeepSpeed all-reduce it whole, Megatron's distributed
    optimizer reduce-scatters it, DeepSpeed without ``use_multi_rank_bucket_allreduce`` reduces every owner's part to it.
    """

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        super().__init__(layers, plan, communicators)
        self.facts = plan.framework_spec.data_parallel
        self.element_bytes = plan.reduced_bytes
        # who keeps a shard of the gradients cannot sum them whole (Rajbhandari et al., ZeRO, SC 2020, section 5.2)
        self.every_micro_batch = plan.sharding == "zero2"
        self.overlaps = plan.overlaps
        self._reduced: list[int] = []
        self._packed: list[tuple[int, int]] = []
        self._buckets = self._make_buckets()
        self._parameter_gathers: dict[int, int] = {}

    def is_quiet(self, kind: Kind, micro_batch: int, *, is_last: bool) -> bool:
        """Only reductions that overlap backward, and gathers that overlap the first forward, are heard."""
        if not self._buckets or self.plan.gradient_compression == "onebit":
            return True
        if kind == "F":
            return not (self._parameter_gathers and micro_batch == 0)
        return kind == "I" or not self.overlaps or not (is_last or self.every_micro_batch)

    def _make_buckets(self) -> list[Bucket]:
        """Return the buckets of dense parameters, then those of experts, where there are replicas to reduce them with."""
        n_replicas = self.communicators.size("dp")
        first_bytes, cap_bytes = self.plan.bucket_sizes(n_replicas)
        fill = partial(fill_buckets, self.layers, cap_bytes, first_bytes, self.element_bytes)
        if not self.plan.has_expert_axes:
            return fill()
        has_copies = self.communicators.size("expert_dp") > 1
        return (fill(experts=False) if n_replicas > 1 else []) + (fill(experts=True) if has_copies else [])

    @property
    def collective_name(self) -> str:
        """The collective that reduces a bucket: ``all_reduce``, ``reduce_scatter`` or ``reduce``."""
        if self.plan.gradient_collective is not None:
            return self.plan.gradient_collective
        is_scattered = self.plan.sharding != "none" and self.facts.scatters_gradients
        return "reduce_scatter" if is_scattered else "all_reduce"

    @property
    def scatters(self) -> bool:
        """Whether a rank ends up with its shard of the gradients only."""
        return self.collective_name != "all_reduce"

    @property
    def n_optimizer_elements(self) -> int:
        """A shard, or where tensors have owners what the one with most owns."""
        if self.plan.sharding == "none" or not self.plan.framework_spec.owners_broadcast:
            return super().n_optimizer_elements
        _, experts = split_parameters(self.layers, self.plan)
        return max(sum(owned) for owned in self._owned()) + -(-experts // self.communicators.size(self.experts.shard))

    @property
    def n_reduced_elements(self) -> int:
        """A shard where gradients are scattered, all of them otherwise."""
        return self.n_optimizer_elements if self.scatters else super().n_reduced_elements

    def _owners(self, bucket: Bucket) -> Owners:
        return self.experts if bucket.is_expert else DENSE

    def _reduce(self, tasks: TaskList, bucket: Bucket, after: tuple[int, ...]) -> None:
        packed, n_bytes = self._pack(tasks, bucket, after)
        owners = self._owners(bucket)
        reduced: tuple[int, ...] = packed
        if self.communicators.size(owners.replicas) == 1:
            pass  # one replica, whose gradients go to the host
        elif self.collective_name == "all_reduce":
            reduced = (self.collective(tasks, "all_reduce", owners.replicas, n_bytes, packed),)
        elif self.collective_name == "reduce":
            reduced = self._reduce_to_owners(tasks, bucket, n_bytes, packed)
        else:
            reduced = self.scatter_over(tasks, owners, n_bytes, packed)
        self._reduced += reduced
        if self._packs:
            self._packed.append((bucket.n_elements, reduced[-1]))
        if self.plan.offload_optimizer == "cpu":
            self._reduced.append(self.copy(tasks, "to_host", n_bytes // self.communicators.size(owners.shard), reduced))

    def _reduce_to_owners(
        self, tasks: TaskList, bucket: Bucket, n_bytes: int, after: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Reduce a bucket to those who own a part of it, one after the other."""
        owners = self._owners(bucket)
        n_shards = self.communicators.size(owners.shard)
        n_elements = sum(b.n_elements for b in self._buckets if b.is_expert == bucket.is_expert)
        shard_bytes = max(1, n_elements * self.element_bytes // n_shards)
        n_owners = max(1, min(n_shards, -(-n_bytes // shard_bytes)))
        for _ in range(n_owners if n_shards > 1 else 0):
            reduced = self.collective(tasks, "reduce", owners.shard, n_bytes // n_owners, after)
        return self.sum_copies(tasks, owners, n_bytes // n_shards, (reduced,) if n_shards > 1 else after)

    @property
    def _packs(self) -> bool:
        """Whether gradients are copied into buckets, and back at the end of backward: DDP's do, unless they live there."""
        if self.facts.reduces_in_fp32:
            return True
        if not self.facts.copies_into_buckets:
            return False
        return self._sent_bytes < self.element_bytes or not self.plan.gradient_as_bucket_view

    @property
    def _sent_bytes(self) -> int:
        """Bytes of a gradient element as it travels: a communication hook may compress it, its reducer may widen it."""
        if self.facts.reduces_in_fp32:
            return 4
        return min(self.element_bytes, 2) if self.plan.gradient_compression != "none" else self.element_bytes

    def _pack(self, tasks: TaskList, bucket: Bucket, after: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """Return what the reduction of a bucket must wait for, and its bytes."""
        n_bytes = bucket.n_elements * self._sent_bytes
        if not self._packs:
            return after, n_bytes
        name = "compress gradients" if self._sent_bytes < self.element_bytes else "copy into bucket"
        flat = 2 * self.element_bytes if self.facts.reduces_in_fp32 else 0  # flattened, then divided, before the cast
        sizes = (self.element_bytes + flat, self._sent_bytes + flat)
        copied = self.pointwise(tasks, name, bucket.n_elements, *sizes, after)
        return (copied,), n_bytes

    def after_layer(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, last: tuple[int, ...], *, is_last: bool
    ) -> None:
        """Launch the buckets that this layer's gradients complete."""
        if kind == "F" or self.is_quiet(kind, micro_batch, is_last=is_last):
            return
        self.is_last = is_last
        for bucket in self._buckets:
            if bucket.trigger == position:
                self._reduce(tasks, bucket, last)
        if self._buckets and position == min(bucket.trigger for bucket in self._buckets) and not is_last:
            self._copy_out(tasks)

    def _copy_out(self, tasks: TaskList) -> None:
        """Copy what was reduced back from the buckets, which every backward that reduces ends with (``Reducer::finalize_backward``)."""
        for n_elements, reduced in self._packed:
            # cast into the flat bucket, then copied out of it
            flat = self.element_bytes if self.facts.reduces_in_fp32 else 0
            name, sizes = "copy out of bucket", (self._sent_bytes + flat, self.element_bytes + flat)
            self._reduced.append(self.pointwise(tasks, name, n_elements, *sizes, (reduced,)))
        self._packed.clear()

    def finish_backward(self, tasks: TaskList, last: tuple[int, ...]) -> tuple[int, ...]:
        """Reduce everything now where nothing overlapped, and wait for all reductions."""
        if self.plan.gradient_compression == "onebit":
            # experts that have replicas of their own are summed as they are
            for bucket in self._buckets:
                if bucket.is_expert:
                    self._reduce(tasks, bucket, last)
            exchanged = [self._exchange_signs(tasks, last)] if self.communicators.size("dp") > 1 else []
            return (*last, *exchanged, *self._reduced)
        repeats = self.plan.n_micro_batches if self.every_micro_batch else 1
        if not self.overlaps:
            for n_more in reversed(range(repeats)):
                self.is_last = n_more == 0
                for bucket in self._buckets:
                    self._reduce(tasks, bucket, last)
        self._copy_out(tasks)
        return last + last_of_each_stream(tasks, self._reduced)

    def _exchange_signs(self, tasks: TaskList, after: tuple[int, ...]) -> int:
        """All-reduce the momentum in one bit an element: every rank averages one part, and sends it to all others."""
        n_elements = sum(bucket.n_elements for bucket in self._buckets if not bucket.is_expert)
        n_ranks = self.communicators.size("dp")
        n_bytes = round(n_elements * _SIGN_BYTES)
        index = self.pointwise(tasks, "compress momentum", n_elements, *_COMPRESS, after)
        for collective in ("all_to_all", "all_gather"):
            index = self.collective(tasks, collective, "dp", n_bytes, (index,))
            index = self.collective(tasks, "all_gather", "dp", n_ranks * _SCALE_BYTES, (index,))
            index = self.pointwise(tasks, "unpack signs", n_elements, *_UNPACK, (index,))
            if collective == "all_to_all":
                index = self.pointwise(tasks, "compress part", -(-n_elements // n_ranks), *_COMPRESS, (index,))
        return index

    def _gather_buckets(self) -> list[Bucket]:
        """Return what is gathered at once, in the order of the layers: a bucket, or all of them that have the same owners."""
        by_bucket = self.plan.overlap_parameter_gather or self.plan.framework_spec.gathers_buckets
        sharded = [bucket for bucket in self._buckets if self.communicators.size(self._owners(bucket).shard) > 1]
        if self.facts.gathers_by_bucket and by_bucket:
            return sorted(sharded, key=lambda bucket: bucket.trigger)
        sums = {kind: sum(b.n_elements for b in sharded if b.is_expert == kind) for kind in (True, False)}
        return [Bucket(n_elements=n, trigger=0, is_expert=kind) for kind, n in sums.items() if n]

    def _gather_bucket(self, tasks: TaskList, bucket: Bucket, after: tuple[int, ...], phase: Phase) -> int:
        n_bytes = bucket.n_elements * self.plan.gathered_bytes
        return self.collective(tasks, "all_gather", self._owners(bucket).shard, n_bytes, after, phase)

    def start_step(self, tasks: TaskList) -> None:
        """With overlapped parameter gathering the gathers of the previous step run beside this forward."""
        if self.plan.sharding == "none" or not self.plan.overlap_parameter_gather:
            return
        for bucket in self._gather_buckets():
            self._parameter_gathers[bucket.trigger] = self._gather_bucket(tasks, bucket, (), "forward")

    def before_layer(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Wait for the layer's parameters in the first forward."""
        if kind != "F" or micro_batch != 0 or not self._parameter_gathers:
            return ()
        return tuple(index for trigger, index in self._parameter_gathers.items() if trigger <= position)[-1:]

    def after_step(self, tasks: TaskList, optimizer: int) -> None:
        """Gather the updated parameters, unless the next forward does so."""
        if self.plan.sharding == "none":
            return
        if self.plan.offload_optimizer == "cpu":
            n_bytes = self.n_optimizer_elements * self.plan.gathered_bytes
            optimizer = self.copy(tasks, "from_host", n_bytes, (optimizer,), "optimizer")
        if self.plan.overlap_parameter_gather:
            return
        has_owners = bool(self.plan.framework_spec.owners_broadcast)
        for bucket in self._gather_buckets():
            if bucket.is_expert or not has_owners:
                self._gather_bucket(tasks, bucket, (optimizer,), "optimizer")
        if has_owners and self.communicators.size("dp") > 1:
            self._broadcast_parameters(tasks, optimizer)

    def _owned(self) -> list[list[int]]:
        tensors = [p for layer in self.layers for p in layer.trained]
        dense = [p.n_elements for p in tensors if not (self.plan.has_expert_axes and p.is_expert)]
        return owned_tensors(dense, self.communicators.size("shard"))

    def _broadcast_parameters(self, tasks: TaskList, optimizer: int) -> None:
        groups = self.communicators.groups("shard")
        flat = self.plan.framework_spec.owners_broadcast == "ranks"
        for owner, tensors in enumerate(self._owned()):
            from_owner = tuple((group[owner], *group[:owner], *group[owner + 1 :]) for group in groups)
            for n_elements in [sum(tensors)] if flat and tensors else tensors:
                n_bytes = n_elements * self.plan.gathered_bytes
                self.collective(tasks, "broadcast", "shard", n_bytes, (optimizer,), "optimizer", from_owner)


def owned_tensors(n_elements: Sequence[int], n_ranks: int) -> list[list[int]]:
    """Give each tensor, largest first, to the rank that owns least; return the elements of every tensor by rank.

    References
    ----------
    PyTorch, ``torch/distributed/optim/zero_redundancy_optimizer.py``, ``_partition_parameters``, ``_sync_params``.

    Examples
    --------
    >>> owned_tensors([1, 4, 2, 2], 2)
    [[4, 1], [2, 2]]
    """
    owned: list[list[int]] = [[] for _ in range(n_ranks)]
    for count in sorted(n_elements, reverse=True):
        min(owned, key=sum).append(count)
    return owned
