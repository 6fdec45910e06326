"""The words of a schedule: actions, rows, tables, and which stage holds which part of the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W", "V"]
Layout = Literal["loop", "vee", "bidirectional"]
#: what the tasks of a pass are called, by its kind
PASS_NAMES: Mapping[Kind, str] = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
#: what a forward and a backward in turns are called, of which no time belongs to one of them alone
PAIR_NAME = "forward and backward"
#: the passes in which a whole backward is split
PARTS_OF_BACKWARD = (PASS_NAMES["I"], PASS_NAMES["W"])


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a stage's layers."""

    #: ``F`` forward; ``B`` whole backward; or, where backward is split, ``I`` for the gradient of the input, which the
    #: previous stage waits for, and ``W`` for the gradient of the weights, which nothing waits for. ``V`` is a meeting
    #: of all stages, at which each computes its share of the vocabulary layers, forward and backward.
    kind: Kind
    micro_batch: int
    #: Which of the stage's chunks; see :class:`Placement`.
    chunk: int = 0
    #: Whether this forward runs together with the backward that follows it in the row, layer by layer in turns: both
    #: start when both have their inputs, and both end together (DualPipe's overlapped chunks).
    is_paired: bool = False


Row = tuple[Action, ...]
Table = tuple[Row, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which stage holds which virtual stage, and who feeds whom.

    A virtual stage is one contiguous run of layers on one stage; activations flow through the virtual stages
    of a chain in ascending order and gradients in descending order.

    Examples
    --------
    >>> vee = Placement(n_stages=4, n_chunks=2, layout="vee")
    >>> [vee.stage(v) for v in range(vee.n_virtual)]
    [0, 1, 2, 3, 3, 2, 1, 0]
    """

    #: Pipeline degree.
    n_stages: int
    #: Virtual stages per stage.
    n_chunks: int = 1
    #: ``loop``: virtual stage ``v`` is chunk ``v // n_stages`` of stage ``v % n_stages`` (Megatron). ``vee``: chunk 0
    #: runs down the stages and chunk 1 comes back up, so that stage 0 has both ends. ``bidirectional``: two copies of
    #: the model in opposite directions, each a chain of its own with ``n_stages`` virtual stages (DualPipe).
    layout: Layout = "loop"
    #: Whether embedding and head are split over all stages, as one chunk more of each, instead of standing at the ends.
    shares_vocabulary: bool = False

    @property
    def n_virtual(self) -> int:
        """Virtual stages in all, both copies counted."""
        return self.n_stages * self.n_chunks

    @property
    def n_parts(self) -> int:
        """Runs of layers that one copy of the model is cut into."""
        return self.n_stages if self.layout == "bidirectional" else self.n_virtual

    def stage(self, virtual: int) -> int:
        """Stage that holds a virtual stage."""
        lap, place = divmod(virtual, self.n_stages)
        return place if self.layout == "loop" or lap == 0 else self.n_stages - 1 - place

    def chunk(self, virtual: int) -> int:
        """Which of its stage's chunks a virtual stage is."""
        return virtual // self.n_stages

    def virtual_stage(self, stage: int, chunk: int) -> int:
        """Virtual stage that is this chunk of this stage."""
        place = stage if self.layout == "loop" or chunk == 0 else self.n_stages - 1 - stage
        return chunk * self.n_stages + place

    def part(self, virtual: int) -> int:
        """Which run of the model's layers a virtual stage computes."""
        return virtual % self.n_parts

    def previous(self, virtual: int) -> int | None:
        """Virtual stage whose output feeds this one; None for the one that reads the data."""
        return virtual - 1 if self.part(virtual) else None

    def following(self, virtual: int) -> int | None:
        """Virtual stage that this one feeds; None for the one that computes the loss."""
        return virtual + 1 if self.part(virtual) < self.n_parts - 1 else None
