"""One pipeline stage's layers as tasks, one at a time or as a block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.models.layer import Layer
from simulator.parallel.mesh import Communicators
from simulator.parallel.template import Kind, Template, template_of
from simulator.plan import ParallelPlan
from simulator.program.op import Collective
from simulator.program.program import Block, TaskList


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
        self._templates: dict[tuple[int, Kind, bool], Template] = {}
        self._blocks: dict[tuple[int, Kind], Block] = {}

    def order(self, chunk: int, kind: Kind) -> Iterable[int]:
        """Positions of a chunk's layers in the order in which a pass visits them."""
        indices = range(len(self.chunks[chunk]))
        return indices if kind == "F" else reversed(indices)

    def emit(
        self,
        tasks: TaskList,
        layer: Layer,
        kind: Kind,
        after: tuple[int, ...],
        micro_batch: int,
        *,
        in_block: bool = False,
    ) -> tuple[int, ...]:
        """Append one layer's tasks and return the indices that must end before its output is complete."""
        folded = in_block or self.communicators.folded
        template = self._templates.get((id(layer), kind, folded))
        if template is None:
            template = template_of(layer, kind, self.plan, self._class_communicators if folded else self.communicators)
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
