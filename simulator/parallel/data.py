"""Data parallelism: what every strategy is asked, and what it may insert.

A strategy is asked at five moments (before and after a layer's pass, after backward, after the optimizer, at the start of
the step) and may insert collectives, copies to and from the host, and the kernels that pack what travels; it never changes
a layer's own compute.

References
----------
Li et al., PyTorch Distributed, arXiv:2006.15704 (DDP buckets); Rajbhandari et al., ZeRO, arXiv:1910.02054;
Zhao et al., PyTorch FSDP, arXiv:2304.11277. Which collective a framework really issues is read from its source and
written down in ``docs/frameworks.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from simulator.models.layer import Layer, PointwiseShape
from simulator.parallel.mesh import Communicators, Groups
from simulator.parallel.states import split_parameters
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, KernelRun, Phase
from simulator.program.program import COMPUTE, TaskList
from simulator.schedules import Kind

STREAM = "dp"


class Owners(NamedTuple):
    """Axes of the ranks that hold the same parameters: all of them, those that share a sharded state, and the copies of that."""

    replicas: str
    shard: str
    copies: str


DENSE = Owners("dp", "shard", "replicate")
#: of experts that are spread over the ranks in another way than the dense layers, and where all replicas share one state
EXPERTS = Owners("expert_dp", "expert_shard", "expert_replicate")
ALL_REPLICAS = Owners("expert_dp", "expert_dp", "expert_replicate")


class DataParallel:
    """One GPU, or a replica that shares nothing: no communication at all. The base of the strategies."""

    #: How copies of a sharded state add up what each has of its gradients.
    copies_collective: str = "all_reduce"

    def __init__(self, layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> None:
        self.layers = list(layers)
        self.plan = plan
        self.communicators = communicators
        self.experts = EXPERTS if communicators.size(EXPERTS.copies) > 1 else ALL_REPLICAS
        self.is_last = True  #: Whether gradients are those of a step's last micro-batch.
        self._sequence = 0
        self._issued: dict[str, int] = {}
        self._runs: dict[tuple[str, int], KernelRun] = {}

    @property
    def has_communicated(self) -> bool:
        """Whether a collective of this strategy has been written down."""
        return self._sequence > 0

    @property
    def n_optimizer_elements(self) -> int:
        """Parameters that this rank updates."""
        dense, experts = split_parameters(self.layers, self.plan)
        if self.plan.sharding == "none":
            return dense + experts
        n_shards = self.plan.state_ranks(self.communicators.size("shard"))
        return -(-dense // n_shards) + -(-experts // self.plan.expert_shards(n_shards))

    @property
    def n_reduced_elements(self) -> int:
        """Gradient elements that this rank holds once they are reduced: its shard where they are scattered."""
        return sum(layer.n_trained_parameters for layer in self.layers)

    def collective(
        self,
        tasks: TaskList,
        name: str,
        axis: str,
        n_bytes: int,
        after: tuple[int, ...],
        phase: Phase = "backward",
        groups: Groups = (),
        *,
        host_s: float = 0.0,
    ) -> int:
        """Append one collective on this strategy's stream, by default of the axis's groups as they are."""
        self._sequence += 1
        groups = groups or self.communicators.groups(axis)
        op = Collective(
            collective=name,
            axis=axis,
            n_bytes=max(n_bytes, 1),
            groups=groups,
            phase=phase,
            name=name,
            host_s=host_s,
        )
        key = None if self.communicators.folded else self.communicators.key(axis, (STREAM, self._sequence))
        stream = "replicate" if axis in (DENSE.copies, EXPERTS.copies) else STREAM
        if name == "reduce_scatter" and self.plan.framework_spec.scatters_apart:
            stream = f"{stream} scatter"
        at_once = self.communicators.mesh.collectives_at_once
        if at_once > 1:
            number = self._issued[stream] = self._issued.get(stream, -1) + 1
            stream = f"{stream} {number % at_once}"
        return tasks.add(op, stream, after, key)

    def scatter_over(
        self, tasks: TaskList, owners: Owners, n_bytes: int, after: tuple[int, ...], *, host_s: float = 0.0
    ) -> tuple[int, ...]:
        """Reduce a message to the ranks that share a state, and their parts of it across the copies of that state."""
        n_shards = self.communicators.size(owners.shard)
        if n_shards > 1:
            after = (self.collective(tasks, "reduce_scatter", owners.shard, n_bytes, after, host_s=host_s),)
        return self.sum_copies(tasks, owners, n_bytes // n_shards, after)

    def sum_copies(self, tasks: TaskList, owners: Owners, n_bytes: int, after: tuple[int, ...]) -> tuple[int, ...]:
        """Sum a rank's part of a message across the copies of the state, in every micro-batch or once all are in it."""
        waits = self.plan.framework_spec.data_parallel.sums_copies_once and not self.is_last
        if waits or self.communicators.size(owners.copies) == 1:
            return after
        return (self.collective(tasks, self.copies_collective, owners.copies, n_bytes, after),)

    @property
    def offloads(self) -> bool:
        """Whether states are in host memory, between which and the device they move with one replica, too."""
        return "cpu" in (self.plan.offload_optimizer, self.plan.offload_parameters)

    def host_bytes(self, device_bytes: int) -> int:
        """Bytes of a parameter or gradient element on its way between device and host; FSDP's is cast on the device.

        References
        ----------
        pytorch/pytorch, ``torch/distributed/fsdp``: ``_use_low_precision_shard`` copies the fp32 shard before it casts it, ``_reduce_grad``
        casts before ``_offload_grad``; ``fully_shard``, ``FSDPParam.all_gather_inputs`` and ``foreach_reduce``, and
        facebookresearch/fairscale, ``_cast_fp32_param_shards_to_fp16``, do alike.
        """
        return 4 if self.plan.framework_spec.data_parallel.shards_masters else device_bytes

    def copy(
        self, tasks: TaskList, direction: str, n_bytes: int, after: tuple[int, ...], phase: Phase = "backward"
    ) -> int:
        """Append a copy ``to_host`` or ``from_host`` over this rank's own link to the host."""
        members = self.communicators.mesh.stage_ranks(self.communicators.stage)
        ranks = members if self.communicators.folded else (self.communicators.rank,)
        op = Collective(
            collective=f"copy_{direction}",
            axis="host",
            n_bytes=max(n_bytes, 1),
            groups=tuple((rank,) for rank in ranks),
            phase=phase,
            name=f"copy {direction.replace('_', ' ')}",
        )
        return tasks.add(op, direction, after)

    def pointwise(
        self,
        tasks: TaskList,
        name: str,
        n_elements: int,
        read_bytes: float,
        written_bytes: float,
        after: tuple[int, ...],
    ) -> int:
        """Append one kernel over communicated elements; ``read_bytes`` and ``written_bytes`` are per element."""
        run = self._runs.get((name, n_elements))
        if run is None:
            shape = PointwiseShape(
                name="copy", n_elements=n_elements, read_bytes=n_elements * read_bytes, written_bytes=n_elements * written_bytes
            )  # fmt: skip
            phase: Phase = "forward" if name.endswith("forward") else "backward"
            kernel = Kernel(name=name, phase=phase, shape=shape)
            run = self._runs[name, n_elements] = KernelRun(name=name, phase=phase, kernels=(kernel,))
        return tasks.add(run, COMPUTE, after)

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


def last_of_each_stream(tasks: TaskList, indices: Iterable[int]) -> tuple[int, ...]:
    """Return the last of some tasks on every stream: streams work in order, so whoever waits for these waits for all."""
    return tuple({tasks.tasks[index].stream: index for index in sorted(indices)}.values())
