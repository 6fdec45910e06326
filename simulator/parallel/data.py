"""Data parallelism: which gradients and parameters travel when, as each framework does it.

A strategy is asked at five moments (before and after a layer's pass, after backward, after the optimizer, at the start of
the step) and may insert collectives; it never changes compute.

References
----------
Li et al., PyTorch Distributed, arXiv:2006.15704 (DDP buckets); Rajbhandari et al., ZeRO, arXiv:1910.02054;
Zhao et al., PyTorch FSDP, arXiv:2304.11277. Which collective a framework really issues is read from its source and
written down in ``docs/frameworks.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.models.layer import Layer
from simulator.parallel.gradients import gradient_bytes, parameter_bytes, split_parameters
from simulator.parallel.mesh import Communicators
from simulator.parallel.template import Kind
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Phase
from simulator.program.program import TaskList

MIB = 2**20
DDP_FIRST_BUCKET_BYTES = MIB
DDP_BUCKET_BYTES = 25 * MIB
DEEPSPEED_BUCKET_ELEMENTS = 500_000_000
STREAM = "dp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together.

    Parameters
    ----------
    n_elements : int
    trigger : int
        Position (in the stage, over all chunks) of the layer whose backward completes the bucket.
    """

    n_elements: int
    trigger: int


def fill_buckets(
    layers: Sequence[Layer], cap_bytes: float, first_bytes: float, element_bytes: int, *, experts: bool = True
) -> list[Bucket]:
    """Fill buckets with parameters in reverse order, as DDP and Megatron do.

    Parameters
    ----------
    layers : sequence of Layer
        In forward order.
    cap_bytes, first_bytes : float
        A bucket is closed once it holds at least this much; the first one may be smaller.
    element_bytes : int
        Bytes of one gradient element.
    experts : bool
        Whether experts are reduced with the rest; under expert parallelism they have fewer replicas.

    Returns
    -------
    list of Bucket
        In the order in which backward completes them; the sizes sum to all these parameters.
    """
    buckets: list[Bucket] = []
    filled = 0
    for index in reversed(range(len(layers))):
        for parameter in reversed(layers[index].parameters):
            filled += parameter.n_elements if experts or not parameter.is_expert else 0
            limit = first_bytes if not buckets else cap_bytes
            if filled and filled * element_bytes >= limit:
                buckets.append(Bucket(n_elements=filled, trigger=index))
                filled = 0
    if filled:
        buckets.append(Bucket(n_elements=filled, trigger=0))
    return buckets


class DataParallel:
    """One GPU, or a replica that shares nothing: no communication at all. The base of the strategies."""

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        self.layers = list(layers)
        self.plan = plan
        self.communicators = communicators
        self._sequence = 0

    @property
    def n_optimizer_elements(self) -> int:
        """Parameters that this rank updates."""
        dense, experts = split_parameters(self.layers, self.plan)
        if self.plan.sharding == "none":
            return dense + experts
        n_expert_shards = max(1, self.communicators.size("shard") // self.plan.ep)
        return -(-dense // self.communicators.size("shard")) + -(-experts // n_expert_shards)

    @property
    def n_reduced_elements(self) -> int:
        """Gradient elements that this rank holds once they are reduced: its shard where they are scattered."""
        return sum(layer.n_parameters for layer in self.layers)

    def collective(
        self, tasks: TaskList, name: str, axis: str, n_bytes: int, after: tuple[int, ...], phase: Phase = "backward"
    ) -> int:
        """Append one collective on this strategy's stream."""
        self._sequence += 1
        op = Collective(
            collective=name,
            axis=axis,
            n_bytes=max(n_bytes, 1),
            groups=self.communicators.groups(axis),
            phase=phase,
            name=name,
        )
        key = None if self.communicators.folded else self.communicators.key(axis, (STREAM, self._sequence))
        stream = STREAM if axis != "replicate" else "replicate"
        return tasks.add(op, stream, after, key)

    def is_quiet(self, kind: Kind, micro_batch: int, *, is_last: bool) -> bool:
        """Whether a pass communicates nothing of this strategy's, so that it may be a block."""
        return True

    def start_step(self, tasks: TaskList) -> None:
        """Insert what happens before the first forward."""

    def before_layer(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Insert what a layer's pass needs and return what it must wait for."""
        return ()

    def after_layer(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, last: tuple[int, ...], *, is_last: bool
    ) -> None:
        """Insert what a layer's pass sets off; ``is_last`` on the last micro-batch of the step."""

    def finish_backward(self, tasks: TaskList, last: tuple[int, ...]) -> tuple[int, ...]:
        """Insert what remains after backward and return what the optimizer must wait for."""
        return last

    def after_step(self, tasks: TaskList, optimizer: int) -> None:
        """Insert what happens after the optimizer."""


class Replicated(DataParallel):
    """Whole parameters on every rank: DDP, and ZeRO-1 and -2, which shard the optimizer (and the gradients).

    Gradients are all-reduced in buckets (DDP, DeepSpeed), or reduce-scattered (Megatron's distributed optimizer); with a
    sharded optimizer the parameters are gathered after the step.
    """

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        super().__init__(layers, plan, communicators)
        self.framework = plan.framework_spec.data_parallel
        self.element_bytes = gradient_bytes(plan)
        self.every_micro_batch = plan.sharding == "zero2" and self.framework == "deepspeed"
        self.overlaps = plan.overlaps
        self._reduced: list[int] = []
        self._n_experts = split_parameters(self.layers, plan)[1]
        self._buckets = self._make_buckets()
        self._parameter_gathers: dict[int, int] = {}

    def is_quiet(self, kind: Kind, micro_batch: int, *, is_last: bool) -> bool:
        """Only reductions that overlap backward, and gathers that overlap the first forward, are heard."""
        if kind == "F":
            return not (self._parameter_gathers and micro_batch == 0)
        return kind == "I" or not self.overlaps or not (is_last or self.every_micro_batch)

    def _make_buckets(self) -> list[Bucket]:
        cap_bytes: float = self.plan.bucket_bytes
        first_bytes = cap_bytes
        if not cap_bytes:
            if self.framework == "deepspeed":
                cap_bytes = first_bytes = DEEPSPEED_BUCKET_ELEMENTS * self.element_bytes
            elif self.framework == "megatron":
                n_elements = max(40e6, 1e6 * self.communicators.size("dp")) if self.overlaps else float("inf")
                cap_bytes = first_bytes = n_elements * self.element_bytes
            else:
                cap_bytes, first_bytes = DDP_BUCKET_BYTES, DDP_FIRST_BUCKET_BYTES
        return fill_buckets(self.layers, cap_bytes, first_bytes, self.element_bytes, experts=self.plan.ep == 1)

    @property
    def scatters(self) -> bool:
        """Whether gradients are reduce-scattered rather than all-reduced (DeepSpeed all-reduces whole buckets)."""
        return self.plan.sharding in ("zero1", "zero2") and self.framework in ("megatron", "fsdp", "fsdp2")

    @property
    def n_reduced_elements(self) -> int:
        """A shard where gradients are scattered, all of them otherwise."""
        return self.n_optimizer_elements if self.scatters else super().n_reduced_elements

    def _reduce(self, tasks: TaskList, bucket: Bucket, after: tuple[int, ...]) -> None:
        n_bytes = bucket.n_elements * self.element_bytes
        if not self.scatters:
            self._reduced.append(self.collective(tasks, "all_reduce", "dp", n_bytes, after))
            return
        scattered = self.collective(tasks, "reduce_scatter", "shard", n_bytes, after)
        if self.communicators.size("replicate") > 1:
            shard_bytes = n_bytes // self.communicators.size("shard")
            scattered = self.collective(tasks, "all_reduce", "replicate", shard_bytes, (scattered,))
        self._reduced.append(scattered)

    def after_layer(
        self, tasks: TaskList, position: int, kind: Kind, micro_batch: int, last: tuple[int, ...], *, is_last: bool
    ) -> None:
        """Launch the buckets that this layer's gradients complete."""
        if kind == "F" or self.is_quiet(kind, micro_batch, is_last=is_last):
            return
        for bucket in self._buckets:
            if bucket.trigger == position:
                self._reduce(tasks, bucket, last)

    def finish_backward(self, tasks: TaskList, last: tuple[int, ...]) -> tuple[int, ...]:
        """Reduce everything now where nothing overlapped, and wait for all reductions."""
        if not self.overlaps:
            repeats = self.plan.n_micro_batches if self.every_micro_batch else 1
            for bucket in self._buckets * repeats:
                self._reduce(tasks, bucket, last)
        if self._n_experts and self.communicators.size("expert_dp") > 1:
            name = "reduce_scatter" if self.scatters else "all_reduce"
            n_bytes = self._n_experts * self.element_bytes
            for _ in range(self.plan.n_micro_batches if self.every_micro_batch else 1):
                self._reduced.append(self.collective(tasks, name, "expert_dp", n_bytes, last))
        return last + tuple(self._reduced)

    def _gather_buckets(self) -> list[Bucket]:
        if self.framework == "megatron" and self.plan.overlap_parameter_gather:
            return self._buckets
        return [Bucket(n_elements=sum(b.n_elements for b in self._buckets), trigger=0)]

    def start_step(self, tasks: TaskList) -> None:
        """With overlapped parameter gathering the gathers of the previous step run beside this forward."""
        if self.plan.sharding == "none" or not self.plan.overlap_parameter_gather:
            return
        for bucket in reversed(self._gather_buckets()):
            n_bytes = bucket.n_elements * parameter_bytes(self.plan)
            index = self.collective(tasks, "all_gather", "shard", n_bytes, (), "forward")
            self._parameter_gathers[bucket.trigger] = index

    def before_layer(self, tasks: TaskList, position: int, kind: Kind, micro_batch: int) -> tuple[int, ...]:
        """Wait for the layer's parameters in the first forward."""
        if kind != "F" or micro_batch != 0 or not self._parameter_gathers:
            return ()
        return tuple(index for trigger, index in self._parameter_gathers.items() if trigger <= position)[-1:]

    def after_step(self, tasks: TaskList, optimizer: int) -> None:
        """Gather the updated parameters, unless the next forward does so."""
        if self.plan.sharding == "none" or self.plan.overlap_parameter_gather:
            return
        if self._n_experts and self.communicators.size("expert_dp") > 1:
            n_bytes = self._n_experts * parameter_bytes(self.plan)
            self.collective(tasks, "all_gather", "expert_dp", n_bytes, (optimizer,), "optimizer")
        for bucket in self._gather_buckets():
            self.collective(
                tasks, "all_gather", "shard", bucket.n_elements * parameter_bytes(self.plan), (optimizer,), "optimizer"
            )
