"""One pipeline stage's layers as tasks: one at a time, as a block, or two passes in turns."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

from simulator.models.layer import Layer
from simulator.parallel.mesh import Communicators
from simulator.parallel.template import Template, template_of
from simulator.plan import ParallelPlan
from simulator.program.op import Collective
from simulator.program.program import COMPUTE, Block, Occurrence, TaskList
from simulator.schedules import Kind

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


class StageLayers:
    """Emits the layers of one pipeline stage, one at a time or as a block.

    Parameters
    ----------
    chunks : sequence of sequence of Layer
        The layers of each virtual stage.
    plan : ParallelPlan
    communicators : Communicators
        Of the ranks that the stage's tasks are written for.
    inside : Communicators, optional
        Of all ranks that do the same inside a pass; those of the whole stage by default.
    twin : StageLayers, optional
        Of a stage whose blocks are the same.
    """

    def __init__(
        self,
        chunks: Sequence[Sequence[Layer]],
        plan: ParallelPlan,
        communicators: Communicators,
        inside: Communicators | None = None,
        twin: StageLayers | None = None,
    ) -> None:
        self.chunks = [tuple(chunk) for chunk in chunks]
        self.plan = plan
        self.communicators = communicators
        self._class_communicators = inside or Communicators(communicators.mesh, communicators.rank, folded=True)
        self._templates: dict[tuple[int, Kind, bool], Template] = {}
        self._blocks: dict[tuple[int, Kind, int], Block] = twin._blocks if twin else {}
        self._pairs: dict[tuple[int, int], Block] = twin._pairs if twin else {}

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
        return finish(self.steps(tasks, layer, kind, after, micro_batch, in_block=in_block))

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
        """Append one layer's tasks, stopping behind every communication so that another pass may take its turn."""
        folded = in_block or self.communicators.folded
        template = self._templates.get((id(layer), kind, folded))
        if template is None:
            template = template_of(layer, kind, self.plan, self._class_communicators if folded else self.communicators)
            self._templates[id(layer), kind, folded] = template
        indices: list[int] = []
        for entry in template.entries:
            deps = tuple(indices[index] for index in entry.after)
            key = None
            if isinstance(entry.op, Collective) and not folded:
                key = self.communicators.key(entry.op.axis, Occurrence(kind, micro_batch, len(tasks.tasks)))
            indices.append(tasks.add(entry.op, entry.stream, deps if indices else deps + after, key, micro_batch))
            if entry.stream != COMPUTE:
                yield
        return tuple(indices[index] for index in template.tails) if indices else after

    def block(self, chunk: int, kind: Kind, gather_bytes: int = 0) -> Block:
        """Return a whole chunk's pass as one block; always the same object.

        With ``gather_bytes`` it begins by putting together the tensor that arrived in shares.
        """
        block = self._blocks.get((chunk, kind, gather_bytes))
        if block is None:
            tasks = TaskList()
            after = (tasks.add(self.gather(kind, gather_bytes, in_block=True), "tp"),) if gather_bytes else ()
            finish(self._chunk_steps(tasks, chunk, kind, after))
            name = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}[kind]
            block = self._blocks[chunk, kind, gather_bytes] = Block(name=name, tasks=tuple(tasks.tasks))
        return block

    def paired_block(self, forward_chunk: int, backward_chunk: int) -> Block:
        """Return a forward and a backward in turns as one block: each computes while the other communicates."""
        block = self._pairs.get((forward_chunk, backward_chunk))
        if block is None:
            tasks = TaskList()
            take_turns(self._chunk_steps(tasks, forward_chunk, "F"), self._chunk_steps(tasks, backward_chunk, "B"))
            block = Block(name="forward and backward", tasks=tuple(tasks.tasks))
            self._pairs[forward_chunk, backward_chunk] = block
        return block

    def gather(self, kind: Kind, n_bytes: int, *, in_block: bool = False) -> Collective:
        """Return what puts a boundary tensor together of which every tensor-parallel rank has a share."""
        communicators = self._class_communicators if in_block else self.communicators
        return Collective(
            collective="all_gather", axis="tp", n_bytes=n_bytes, groups=communicators.groups("tp"), name="boundary",
            phase="forward" if kind == "F" else "backward",
        )  # fmt: skip

    def _chunk_steps(self, tasks: TaskList, chunk: int, kind: Kind, after: tuple[int, ...] = ()) -> Steps:
        for index in self.order(chunk, kind):
            after = yield from self.steps(tasks, self.chunks[chunk][index], kind, after, -1, in_block=True)
        return after
