"""One pipeline stage's layers as tasks: what a layer launches and sends, one at a time, as a block, or two passes in turns.

References
----------
Shoeybi et al., arXiv:1909.08053, section 3 (f and g); Korthikanti et al., arXiv:2205.05198, section 4.2.2 (sequence
parallelism turns them into all-gather and reduce-scatter).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.models.layer import (
    AttentionShape,
    CommunicationPoint,
    GemmShape,
    KernelShape,
    Layer,
    LayerItem,
    PointwiseShape,
    ScanShape,
)
from simulator.parallel.context import LayerCollective, exchange_context
from simulator.parallel.expert import exchange_experts
from simulator.parallel.mesh import Communicators
from simulator.parallel.states import accumulation_traffic
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, HostWork, Kernel, KernelRun, Phase
from simulator.program.program import COMPUTE, HOST, Block, Occurrence, Task, TaskList
from simulator.schedules import PAIR_NAME, PASS_NAMES, Kind, find_schedule

#: (operator, pass, sequence parallel) -> collective over the tensor-parallel group
_CONJUGATES = {
    ("f", "forward", False): None,
    ("f", "forward", True): "all_gather",
    ("f", "backward", False): "all_reduce",
    ("f", "backward", True): "reduce_scatter",
    ("g", "forward", False): "all_reduce",
    ("g", "forward", True): "reduce_scatter",
    ("g", "backward", False): None,
    ("g", "backward", True): "all_gather",
    ("amax", "forward", True): "all_reduce",
    ("amax", "backward", True): "all_reduce",
    ("embedding", "forward", False): "all_reduce",
    ("embedding", "forward", True): "reduce_scatter",
    ("embedding", "backward", False): None,
    ("embedding", "backward", True): "all_gather",
    ("vocabulary", "forward", False): "all_reduce",
    ("vocabulary", "forward", True): "all_reduce",
    ("vocabulary", "backward", False): None,
    ("vocabulary", "backward", True): None,
    ("logits", "forward", False): "all_gather",
    ("logits", "forward", True): "all_gather",
    ("logits", "backward", False): None,
    ("logits", "backward", True): None,
}

#: the same over the group that shares an expert
_EXPERTS = {
    ("expert_f", "forward"): "all_gather",
    ("expert_f", "backward"): "reduce_scatter",
    ("expert_g", "forward"): "reduce_scatter",
    ("expert_g", "backward"): "all_gather",
}

#: the same where a module's own plan asks for it
_ASKED = {"gather": "all_gather", "scatter": "reduce_scatter", "exchange": "all_to_all"}


def at_point(point: CommunicationPoint, plan: ParallelPlan) -> LayerCollective | None:
    """Return the collective that a plan performs at a point, or None."""
    among_experts = _EXPERTS.get((point.operator, point.kernel_pass))
    if among_experts is not None:
        return LayerCollective(among_experts, "etp", point.n_bytes, "expert tokens", point.overlaps)
    if plan.tp == 1:
        return None
    name = _ASKED.get(point.operator) or _CONJUGATES[point.operator, point.kernel_pass, plan.sequence_parallel]
    return LayerCollective(name, "tp", point.n_bytes, point.operator, point.overlaps, point.is_bulk) if name else None


def items_of(layer: Layer, kind: Kind) -> list[tuple[Phase, tuple[LayerItem, ...]]]:
    """Return what a layer launches for one kind of pass, with the phase that each part is accounted to."""
    if kind == "F":
        return [("forward", layer.forward)]
    if kind == "B":
        return [("recompute", layer.recompute), ("backward", layer.backward)]
    if kind == "W":
        return [("backward", tuple(filter(_is_of_weights, layer.backward)))]
    return [("recompute", layer.recompute), ("backward", tuple(_without_weights(layer.backward)))]


def _is_of_weights(item: LayerItem) -> bool:
    return not isinstance(item, CommunicationPoint) and item.kernel_pass == "wgrad"


def _without_weights(items: Sequence[LayerItem]) -> Iterator[LayerItem]:
    """Leave the gradients of weights for a pass of their own, beside which nothing of this one runs any more."""
    for index, item in enumerate(items):
        if isinstance(item, CommunicationPoint) and item.overlaps:
            behind = [i for i in items[index + 1 :] if not isinstance(i, CommunicationPoint)][: item.overlaps]
            yield replace(item, overlaps=sum(not _is_of_weights(i) for i in behind))
        elif not _is_of_weights(item):
            yield item


class Entry(NamedTuple):
    """A task of a layer; ``after`` counts from the layer's first task."""

    op: KernelRun | Collective | HostWork
    stream: str
    after: tuple[int, ...]


class Template(NamedTuple):
    """A layer's tasks for one kind of pass, and those that must end before its output is complete."""

    entries: tuple[Entry, ...]
    tails: tuple[int, ...]


#: operators of points where the host reads what the device has computed, and what it reads there
_READ = {"counted": "tokens per expert", "lengths": "lengths of documents"}


def in_pieces(shape: KernelShape | None, n: int) -> KernelShape | None:
    """Return a product as the pieces that its collective brings or takes, one for each of ``n`` ranks, on streams beside each other.

    What is no product, or has tokens that the ranks do not divide, stays whole.

    References
    ----------
    Wang et al., "Overlap communication with dependent computation via decomposition", ASPLOS 2023; NVIDIA/TransformerEngine,
    ``common/comm_gemm_overlap``, ``split_overlap_ag`` and ``split_overlap_rs``.
    """
    if not isinstance(shape, GemmShape) or shape.m % n:
        return shape
    return replace(shape, m=shape.m // n, batch=shape.batch * n)


class _Builder:
    """Collects kernels into runs and cuts them where communication must be waited for."""

    def __init__(self, layer: Layer, plan: ParallelPlan, communicators: Communicators) -> None:
        self.layer = layer
        self.plan = plan
        self.communicators = communicators
        self.entries: list[Entry] = []
        self.run: list[Kernel] = []
        self.waits: tuple[int, ...] = ()
        self.last_compute: tuple[int, ...] = ()
        self.pending: list[list[int]] = []  # [entry, kernels that may still run beside it]
        self.is_gathering = False  # whether a product, if it comes next, runs piece by piece beside the last exchange

    def kernel(self, shape: KernelShape, phase: Phase) -> None:
        """Append a kernel, behind the communication that may not run beside it."""
        if self.is_gathering and isinstance(shape, GemmShape):
            self.pending[-1][1] = 1
        split = in_pieces(shape, self.plan.tp) if self.is_gathering else shape
        self.is_gathering = False
        due = tuple(entry for entry, left in self.pending if left == 0)
        if due:
            self.flush(phase)
            self.waits += due
            self.pending = [p for p in self.pending if p[1] > 0]
        self.run.append(Kernel(name=shape.name, phase=phase, shape=split, layer=self.layer.name))
        for p in self.pending:
            p[1] -= 1

    def exchange(self, found: LayerCollective, phase: Phase) -> None:
        """Append a collective.

        Asynchronous tensor parallelism decomposes the product next to a collective: a gather runs beside the product
        that consumes it, a scatter beside the one that produces it. One in bulk leaves products whole (Transformer Engine's
        ``ub_bulk_dgrad`` and ``ub_bulk_wgrad``), and a host that waits for every kernel lets none run beside another.
        """
        is_async = (
            self.plan.asynchronous_tp and not self.plan.launch_blocking and found.axis == "tp" and not found.is_bulk
        )
        produced: list[Kernel] = []
        if is_async and found.collective == "reduce_scatter" and self.run:
            last = self.run.pop()
            produced = [replace(last, shape=in_pieces(last.shape, self.plan.tp))]
        self.flush(phase)
        after = self.last_compute + self.waits
        if produced:
            self.run = produced
            self.flush(phase)
        if found.waits:
            self.wait(phase, after)
        op = Collective(
            collective=found.collective, axis=found.axis, n_bytes=found.n_bytes, name=found.name,
            groups=self.communicators.groups(found.axis), phase=phase, routed=found.routed,
        )  # fmt: skip
        self.entries.append(Entry(op, found.axis, after))
        self.pending.append([len(self.entries) - 1, found.overlaps])
        self.is_gathering = is_async and found.collective == "all_gather"

    def wait(self, phase: Phase, after: tuple[int, ...], what: str = "tokens per expert") -> None:
        """Let the host wait for numbers that the device has: how many tokens each expert gets, say."""
        if after:
            self.entries.append(Entry(HostWork(name=f"wait for {what}", duration_s=0.0, phase=phase), HOST, after))

    def flush(self, phase: Phase) -> None:
        """Close the open run."""
        if not self.run:
            return
        run = KernelRun(name=f"{self.layer.name} {phase}", phase=phase, kernels=tuple(self.run))
        self.entries.append(Entry(run, COMPUTE, self.waits))
        self.last_compute, self.waits, self.run = (len(self.entries) - 1,), (), []

    def copy(self, n_bytes: int, phase: Phase) -> None:
        """Copy activations to the host behind forward, or back beside backward, for the block that comes next.

        One stream carries both ways, so that nothing is fetched before it has arrived.
        """
        is_forward = phase == "forward"
        op = Collective(
            collective="copy_to_host" if is_forward else "copy_from_host", axis="host", n_bytes=n_bytes, phase=phase,
            groups=tuple((rank,) for rank in self.communicators.members), name="offload activations",
        )  # fmt: skip
        self.entries.append(Entry(op, "host copies", self.last_compute if is_forward else ()))
        if not is_forward:
            self.pending.append([len(self.entries) - 1, 0])

    def result(self) -> Template:
        """Return the layer."""
        return Template(tuple(self.entries), self.last_compute + tuple(entry for entry, _ in self.pending))


def template_of(layer: Layer, kind: Kind, plan: ParallelPlan, communicators: Communicators) -> Template:
    """Return a layer's tasks for one kind of pass: ``F``, ``B``, ``I`` or ``W``."""
    builder = _Builder(layer, plan, communicators)
    phase: Phase = "forward"
    for phase, items in items_of(layer, kind):
        for item in exchange_experts(exchange_context(items, plan), plan, communicators):
            if isinstance(item, CommunicationPoint) and item.operator in _READ:
                if item.operator != "counted" or plan.waits_for_counts:
                    builder.flush(phase)
                    builder.wait(phase, builder.last_compute, _READ[item.operator])
                continue
            found = at_point(item, plan) if isinstance(item, CommunicationPoint) else item
            if isinstance(found, LayerCollective):
                builder.exchange(found, phase)
            elif found is not None:
                builder.kernel(found, phase)
        builder.flush(phase)
    if kind in ("B", "W"):
        builder.run += _accumulation(layer, plan)
        builder.flush(phase)
    if layer.offloaded_bytes and kind != "W":
        builder.copy(layer.offloaded_bytes, phase)
    return builder.result()


def _accumulation(layer: Layer, plan: ParallelPlan) -> list[Kernel]:
    """Add a layer's gradients to those of earlier micro-batches."""
    traffic = accumulation_traffic(plan)
    n_elements = layer.n_trained_parameters
    if not n_elements or traffic == (0, 0):
        return []
    shape = PointwiseShape(
        name="add", n_elements=n_elements, dtype="fp32",
        read_bytes=float(n_elements * traffic.read_bytes), written_bytes=float(n_elements * traffic.written_bytes),
    )  # fmt: skip
    return [Kernel(name="accumulate gradients", phase="backward", shape=shape, layer=layer.name)]


#: a pass that is being written down: it stops behind every communication and returns what must end before its output is complete
Steps = Generator[None, None, tuple[int, ...]]


def finish(steps: Steps) -> tuple[int, ...]:
    """Write a pass down to its end and return what it returns."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            done: tuple[int, ...] = stop.value
            return done


def take_turns(first: Steps, second: Steps) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Write two passes down in turns, each up to its next communication, and return what both return."""
    results: dict[int, tuple[int, ...]] = {}
    running = [first, second]
    while running:
        for steps in list(running):
            try:
                next(steps)
            except StopIteration as stop:
                results[id(steps)] = stop.value
                running.remove(steps)
    return results[id(first)], results[id(second)]


class Tail(NamedTuple):
    """What a pair ends with once its forward has ended, where there is any."""

    gradient: KernelRun | None = None  #: The rest of the input's gradient.
    weights: KernelRun | None = None  #: The weights' gradients of the last layer.


def _cut_tail(tasks: list[Task], first: int, *, delays_weights: bool) -> Tail:
    """Cut from a pair what runs behind its forward: the input gradient from the last attention on, then the weights' gradients.

    The two passes are ``tasks[first:]``, the backward ahead. While the last layer's tokens return, attention's output projection
    runs backward; the forward's output then leaves beside the rest of it, and the gradient of the input beside that of the
    weights, if they are delayed. Nothing is cut where the backward ends otherwise, with an exchange, say.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/models/common/model_chunk_schedule_plan.py``: ``post_forward`` on the stream that communicates beside
    the last backward of attention, ``backward_dw`` of the last layer behind ``post_backward``
    (``--delay-wgrad-compute``, which recipes of Megatron Bridge set beside ``--overlap-moe-expert-parallel-comm``).
    """
    backward = [i for i in range(first, len(tasks)) if getattr(tasks[i].op, "phase", "") == "backward"]
    last = backward[-1] if backward else -1
    run = tasks[last].op if backward else None
    if not isinstance(run, KernelRun) or len(run.kernels) < 2:
        return Tail()
    weights: list[Kernel] = []
    others: list[Kernel] = []
    for kernel in run.kernels:
        is_late = delays_weights and getattr(kernel.shape, "kernel_pass", "") == "wgrad"
        (weights if is_late else others).append(kernel)
    mixers = [i for i, kernel in enumerate(others) if isinstance(kernel.shape, AttentionShape | ScanShape)]
    cut = mixers[-1] if mixers else len(others)
    if not cut:
        return Tail()
    tasks[last] = tasks[last]._replace(op=replace(run, kernels=tuple(others[:cut])))
    return Tail(*(replace(run, kernels=tuple(part)) if part else None for part in (others[cut:], weights)))


#: layers of a chunk, by the identity of each: equal ones are shared, and the model holds them
_Content = tuple[int, ...]
#: tasks of a layer, by its identity, the kind of pass and whether all ranks of the stage do the same
Templates = dict[tuple[int, Kind, bool], Template]


class StageLayers:
    """Emits the layers of one pipeline stage, one at a time or as a block.

    Parameters
    ----------
    inside : Communicators, optional
        Of all ranks that do the same inside a pass; those of the whole stage by default.
    twin : StageLayers, optional
        Of a stage whose blocks are the same where they have the same layers.
    partner : StageLayers, optional
        Of a class whose parts of joint passes are the same where they have the same layers.
    templates : Templates, optional
        Tasks of layers, which their owner holds, as another stage in the same circumstances has written them down.
    """

    def __init__(
        self,
        chunks: Sequence[Sequence[Layer]],
        plan: ParallelPlan,
        communicators: Communicators,
        inside: Communicators | None = None,
        twin: StageLayers | None = None,
        partner: StageLayers | None = None,
        templates: Templates | None = None,
    ) -> None:
        self.chunks = [tuple(chunk) for chunk in chunks]
        self.plan = plan
        self.communicators = communicators
        self._class_communicators = inside or Communicators(communicators.mesh, communicators.rank, folded=True)
        # by the identity of a layer, whose hundreds of kernels take long to hash; the stage holds it
        self._templates: Templates = {} if templates is None else templates
        self._content = [tuple(map(id, chunk)) for chunk in chunks]
        self._blocks: dict[tuple[_Content, Kind, int], Block] = twin._blocks if twin else {}
        self._joint_blocks: dict[tuple[_Content, Kind, int], Block] = partner._joint_blocks if partner else {}
        self._pairs: dict[tuple[_Content, _Content], tuple[Block, Tail]] = twin._pairs if twin else {}

    def order(self, chunk: int, kind: Kind) -> Iterable[int]:
        """Positions of a chunk's layers in the order in which a pass visits them."""
        indices = range(len(self.chunks[chunk]))
        return indices if kind == "F" else reversed(indices)

    def steps(
        self,
        tasks: TaskList,
        layer: Layer,
        kind: Kind,
        after: tuple[int, ...],
        micro_batch: int,
        *,
        in_block: bool = False,
    ) -> Steps:
        """Append one layer's tasks, stopping behind every communication so that another pass may take its turn.

        What ranks merely agree on is no turn: nothing hides behind it.
        """
        folded = in_block or self.communicators.folded
        template = self._templates.get((id(layer), kind, folded))
        if template is None:
            template = template_of(layer, kind, self.plan, self._class_communicators if folded else self.communicators)
            self._templates[id(layer), kind, folded] = template
        indices: list[int] = []
        for entry in template.entries:
            deps = tuple([indices[index] for index in entry.after])
            key = None
            if isinstance(entry.op, Collective) and not folded:
                key = self.communicators.key(entry.op.axis, Occurrence(kind, micro_batch, len(tasks.tasks)))
            indices.append(tasks.add(entry.op, entry.stream, deps if indices else deps + after, key, micro_batch))
            if entry.stream not in (COMPUTE, HOST) and entry.op.name != "amax":
                yield
        return tuple(indices[index] for index in template.tails) if indices else after

    def block(self, chunk: int, kind: Kind, gather_bytes: int = 0) -> Block:
        """Return a whole chunk's pass as one block; always the same object for the same layers.

        With ``gather_bytes`` it begins by putting together the tensor that arrived in shares.
        """
        content = self._content[chunk]
        block = self._blocks.get((content, kind, gather_bytes))
        if block is None:
            tasks = TaskList()
            after = (tasks.add(self.gather(kind, gather_bytes, in_block=True), "tp"),) if gather_bytes else ()
            finish(self._chunk_steps(tasks, chunk, kind, after))
            block = self._blocks[content, kind, gather_bytes] = Block(name=PASS_NAMES[kind], tasks=tuple(tasks.tasks))
        return block

    def joint_block(self, chunk: int, kind: Kind, gather_bytes: int = 0) -> Block:
        """Return this class's part of a pass that other classes run, too; always the same object for the same layers."""
        content = self._content[chunk]
        block = self._joint_blocks.get((content, kind, gather_bytes))
        if block is None:
            tasks = TaskList()
            after: tuple[int, ...] = ()
            if gather_bytes:
                key = self.communicators.key("tp", Occurrence(kind, -1, 0))
                after = (tasks.add(self.gather(kind, gather_bytes), "tp", (), key),)
            finish(self._chunk_steps(tasks, chunk, kind, after, in_block=False))
            block = self._joint_blocks[content, kind, gather_bytes] = Block(
                name=PASS_NAMES[kind], tasks=tuple(tasks.tasks), is_joint=True
            )
        return block

    def paired_blocks(self, forward_chunk: int, backward_chunk: int) -> tuple[Block, Tail]:
        """Return a forward and a backward in turns, each of which computes while the other communicates, and their tail."""
        contents = self._content[forward_chunk], self._content[backward_chunk]
        pair = self._pairs.get(contents)
        if pair is None:
            tasks = TaskList()
            take_turns(self._chunk_steps(tasks, backward_chunk, "B"), self._chunk_steps(tasks, forward_chunk, "F"))
            tail = self.take_tail(tasks, 0)
            pair = self._pairs[contents] = Block(name=PAIR_NAME, tasks=tuple(tasks.tasks)), tail
        return pair

    def take_tail(self, tasks: TaskList, first: int) -> Tail:
        """Take what runs behind the forward from the tasks of a pair, the last ones from ``first`` on, where the schedule sends before.

        Under tensor parallelism exchanges of its own end a pair, and it is left whole.
        """
        plan = self.plan
        sends = plan.pp > 1 and plan.tp == 1 and find_schedule(plan.schedule, plan.virtual_pp).sends_inside
        return _cut_tail(tasks.tasks, first, delays_weights=self.plan.delay_wgrad) if sends else Tail()

    def gather(self, kind: Kind, n_bytes: int, *, in_block: bool = False) -> Collective:
        """Return what puts a boundary tensor together of which every tensor-parallel rank has a share."""
        communicators = self._class_communicators if in_block else self.communicators
        return Collective(
            collective="all_gather", axis="tp", n_bytes=n_bytes, groups=communicators.groups("tp"), name="boundary",
            phase="forward" if kind == "F" else "backward",
        )  # fmt: skip

    def _chunk_steps(
        self, tasks: TaskList, chunk: int, kind: Kind, after: tuple[int, ...] = (), *, in_block: bool = True
    ) -> Steps:
        for index in self.order(chunk, kind):
            after = yield from self.steps(tasks, self.chunks[chunk][index], kind, after, -1, in_block=in_block)
        return after
