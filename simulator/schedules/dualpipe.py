"""DualPipe: two copies of the model in opposite directions, each taking half of the micro-batches; and DualPipeV, one half of it."""

from __future__ import annotations

from collections import deque

from simulator.errors import InfeasiblePlanError
from simulator.schedules.action import Action, Row, Table


def dualpipe(n_stages: int, n_micro_batches: int, *, n_chunks: int = 2) -> Table:
    """Feed micro-batches from both ends; chunk 0 belongs to the copy that starts on stage 0.

    A forward of one direction is paired with a backward of the other wherever both are at hand: the two run in turns, so
    that the communication of one hides behind the compute of the other.

    Stages are even, and so are the micro-batches of both directions together, at least twice as many; the table numbers
    them per direction.

    Raises
    ------
    InfeasiblePlanError
        If stages or micro-batches are odd, or micro-batches too few.

    References
    ----------
    DeepSeek-AI, DeepSeek-V3 Technical Report, arXiv:2412.19437, section 3.2.1. Bubble is
    ``(p / 2 - 1) (T_F&B + T_B - 3 T_W)``, activations ``p + 1``, parameters twice.
    """
    if n_stages % 2 or n_micro_batches % 2 or n_micro_batches < 2 * n_stages:
        raise InfeasiblePlanError(
            f"DualPipe needs even pp and an even number of at least 2 pp micro-batches, "
            f"got pp = {n_stages} and {n_micro_batches}",
            hint="choose an even --pp and a global batch of at least 2 x pp micro-batches per replica",
        )
    return tuple(_row(stage, n_stages, n_micro_batches // 2) for stage in range(n_stages))


def dualpipe_v(n_stages: int, n_micro_batches: int, *, n_chunks: int = 2) -> Table:
    """Do as the first half of DualPipe's stages does, on one copy of the model that goes down and comes back up.

    What the other copy of DualPipe does on its way up is then the second chunk of every stage.

    Raises
    ------
    InfeasiblePlanError
        If there are fewer than two micro-batches per stage.

    References
    ----------
    Qi, "Cut-in-half schedule of DualPipe", 2025; deepseek-ai/DualPipe, ``dualpipev.py``. Of ``2 p`` chunks the bubble is
    ``(p - 1) (T_F&B + T_B - 3 T_W)``, activations ``2 p + 1``.
    """
    if n_micro_batches < 2 * n_stages:
        raise InfeasiblePlanError(
            f"DualPipeV needs at least 2 pp micro-batches, got pp = {n_stages} and {n_micro_batches}",
            hint="choose a global batch of at least 2 x pp micro-batches per replica",
        )
    return tuple(_row(stage, 2 * n_stages, n_micro_batches) for stage in range(n_stages))


class _RowWriter:
    """Appends passes of the near direction (that enters on this half) and of the far one."""

    def __init__(self, *, near_chunk: int) -> None:
        self.chunks = {"near": near_chunk, "far": 1 - near_chunk}
        self.row: list[Action] = []
        self.n_forwards = {"near": 0, "far": 0}
        self.n_backwards = {"near": 0, "far": 0}
        self.weights: deque[Action] = deque()

    def forward(self, direction: str, *, is_paired: bool = False) -> None:
        """Append the direction's next forward."""
        self.row.append(Action("F", self.n_forwards[direction], self.chunks[direction], is_paired))
        self.n_forwards[direction] += 1

    def pair(self, forward: str, backward: str) -> None:
        """Append a forward of one direction that runs together with a backward of the other."""
        self.forward(forward, is_paired=True)
        self.backward(backward)

    def backward(self, direction: str, *, split: bool = False) -> None:
        """Append the direction's next backward, or its input gradient while the weight gradient waits."""
        micro_batch, chunk = self.n_backwards[direction], self.chunks[direction]
        self.row.append(Action("I" if split else "B", micro_batch, chunk))
        self.n_backwards[direction] += 1
        if split:
            self.weights.append(Action("W", micro_batch, chunk))

    def weight(self) -> None:
        """Append the oldest weight gradient that waits."""
        self.row.append(self.weights.popleft())


def _row(stage: int, n_stages: int, n_per_direction: int) -> Row:
    depth = min(stage, n_stages - 1 - stage)
    outer, inner = n_stages // 2 - depth - 1, depth + 1
    write = _RowWriter(near_chunk=0 if stage < n_stages // 2 else 1)
    for _ in range(2 * outer):
        write.forward("near")
    for _ in range(inner):
        write.forward("near")
        write.forward("far")
    for _ in range(outer):
        write.backward("far", split=True)
        write.weight()
        write.forward("far")
    for i in range(n_per_direction - n_stages + inner):
        if i or outer:
            write.pair("near", "far")
        else:  # the middle stages have the backward at hand before the forward's neighbour is ready
            write.forward("near")
            write.backward("far")
        write.pair("far", "near")
    for _ in range(outer):
        write.backward("far")
        write.pair("far", "near")
    for i in range(2 * inner):
        write.backward("near" if i % 2 else "far", split=i >= inner)
    for _ in range(outer):
        write.weight()
        write.backward("near", split=True)
    while write.weights:
        write.weight()
    return tuple(write.row)
