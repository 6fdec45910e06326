"""One pipeline stage's layers as tasks: runs of kernels, and collectives at the communication points."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from simulator.models.layer import CommunicationPoint, Layer, LayerItem, PointwiseShape
from simulator.parallel.gradients import accumulation_traffic
from simulator.parallel.mesh import Communicators
from simulator.parallel.tensor import at_point
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, KernelRun, Phase
from simulator.program.program import COMPUTE, Block, TaskList

#: what a stage does with its layers: forward; backward whole, or split into input and weight gradients
Kind = Literal["F", "B", "I", "W"]


def items_of(layer: Layer, kind: Kind) -> list[tuple[Phase, tuple[LayerItem, ...]]]:
    """Return what a layer launches for one kind of pass, with the phase that each part is accounted to."""
    if kind == "F":
        return [("forward", layer.forward)]
    if kind == "B":
        return [("recompute", layer.recompute), ("backward", layer.backward)]
    is_weight = [not isinstance(i, CommunicationPoint) and i.kernel_pass == "wgrad" for i in layer.backward]
    chosen = tuple(i for i, weight in zip(layer.backward, is_weight, strict=True) if weight == (kind == "W"))
    return [("backward", chosen)] if kind == "W" else [("recompute", layer.recompute), ("backward", chosen)]


class _Entry:
    """A task of a layer before it has a place in a program: ``after`` counts from the layer's first task."""

    __slots__ = ("after", "op", "stream")

    def __init__(self, op: KernelRun | Collective, stream: str, after: tuple[int, ...]) -> None:
        self.op = op
        self.stream = stream
        self.after = after


class _Template:
    """A layer's tasks for one kind of pass."""

    __slots__ = ("entries", "tails")

    def __init__(self, entries: list[_Entry], tails: tuple[int, ...]) -> None:
        self.entries = entries
        self.tails = tails


def _template(layer: Layer, kind: Kind, plan: ParallelPlan, communicators: Communicators) -> _Template:
    entries: list[_Entry] = []
    run: list[Kernel] = []
    waits: tuple[int, ...] = ()
    pending: list[list[int]] = []  # [entry, kernels that may still run beside it]
    last_compute: tuple[int, ...] = ()
    phase: Phase = "forward"

    def flush() -> None:
        nonlocal waits, last_compute
        if run:
            entries.append(_Entry(KernelRun(name=f"{layer.name} {phase}", phase=phase, kernels=tuple(run)), COMPUTE, waits))
            last_compute, waits = (len(entries) - 1,), ()
            run.clear()

    for phase, items in items_of(layer, kind):  # noqa: B007 - flush() reads it
        for item in items:
            if not isinstance(item, CommunicationPoint):
                if any(left == 0 for _, left in pending):
                    flush()
                    waits += tuple(entry for entry, left in pending if left == 0)
                    pending = [p for p in pending if p[1] > 0]
                run.append(Kernel(name=item.name, phase=phase, shape=item, layer=layer.name))
                for p in pending:
                    p[1] -= 1
                continue
            point = at_point(item, plan)
            if point is None:
                continue
            flush()
            op = Collective(collective=point.collective, axis=point.axis, n_bytes=point.n_bytes, name=f"{item.operator}",
                            groups=communicators.groups(point.axis), phase=phase)  # fmt: skip
            entries.append(_Entry(op, point.axis, last_compute + waits))
            pending.append([len(entries) - 1, item.overlaps])
        flush()
    if kind in ("B", "W"):
        run += _accumulation(layer, plan)
        flush()
    return _Template(entries, last_compute + tuple(entry for entry, _ in pending))


def _accumulation(layer: Layer, plan: ParallelPlan) -> list[Kernel]:
    """Add a layer's gradients to those of earlier micro-batches."""
    traffic = accumulation_traffic(plan)
    n_elements = layer.n_parameters
    if not n_elements or traffic == (0, 0):
        return []
    shape = PointwiseShape(
        name="add", n_elements=n_elements, dtype="fp32",
        read_bytes=float(n_elements * traffic.read_bytes), written_bytes=float(n_elements * traffic.written_bytes),
    )  # fmt: skip
    return [Kernel(name="accumulate gradients", phase="backward", shape=shape, layer=layer.name)]


class StageLayers:
    """Emits the layers of one pipeline stage, one at a time or as a block.

    Parameters
    ----------
    chunks : sequence of sequence of Layer
        The layers of each virtual stage.
    plan : ParallelPlan
    communicators : Communicators
    """

    def __init__(self, chunks: Sequence[Sequence[Layer]], plan: ParallelPlan, communicators: Communicators) -> None:
        self.chunks = [tuple(chunk) for chunk in chunks]
        self.plan = plan
        self.communicators = communicators
        self._class_communicators = Communicators(communicators.mesh, communicators.rank, folded=True)
        self._templates: dict[tuple[int, Kind, bool], _Template] = {}
        self._blocks: dict[tuple[int, Kind], Block] = {}

    def order(self, chunk: int, kind: Kind) -> Iterable[int]:
        """Positions of a chunk's layers in the order in which a pass visits them."""
        indices = range(len(self.chunks[chunk]))
        return indices if kind == "F" else reversed(indices)

    def emit(
        self, tasks: TaskList, layer: Layer, kind: Kind, after: tuple[int, ...], micro_batch: int, *, in_block: bool = False
    ) -> tuple[int, ...]:
        """Append one layer's tasks and return the indices that must end before its output is complete."""
        folded = in_block or self.communicators.folded
        template = self._templates.get((id(layer), kind, folded))
        if template is None:
            template = _template(layer, kind, self.plan, self._class_communicators if folded else self.communicators)
            self._templates[id(layer), kind, folded] = template
        base = len(tasks.tasks)
        for position, entry in enumerate(template.entries):
            deps = tuple(base + index for index in entry.after)
            key = None
            if isinstance(entry.op, Collective) and not folded:
                key = self.communicators.key(entry.op.axis, (kind, micro_batch, base + position))
            tasks.add(entry.op, entry.stream, deps + after if position == 0 else deps, key, micro_batch)
        return tuple(base + index for index in template.tails) if template.entries else after

    def block(self, chunk: int, kind: Kind) -> Block:
        """Return a whole chunk's pass as one block; always the same object."""
        block = self._blocks.get((chunk, kind))
        if block is None:
            tasks = TaskList()
            after: tuple[int, ...] = ()
            for index in self.order(chunk, kind):
                after = self.emit(tasks, self.chunks[chunk][index], kind, after, -1, in_block=True)
            name = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}[kind]
            block = Block(name=name, tasks=tuple(tasks.tasks))
            self._blocks[chunk, kind] = block
        return block
