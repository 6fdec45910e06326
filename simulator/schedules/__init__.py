"""Pipeline schedules: pure functions from stages and micro-batches to a table of actions per stage.

A new schedule is one function in one file and one entry of :data:`SCHEDULES`, which declares its properties: whatever depends
on a schedule asks for one of them, never for a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.config.names import check_word
from simulator.errors import InfeasiblePlanError
from simulator.plan import ParallelPlan
from simulator.plan.framework_schedules import NONE, Waits
from simulator.schedules.action import (
    PAIR_NAME,
    PARTS_OF_BACKWARD,
    PASS_NAMES,
    Action,
    Kind,
    Layout,
    Placement,
    Row,
    Table,
)
from simulator.schedules.check import (
    Execution,
    Turn,
    check,
    execute,
    peak_in_flight,
    turns,
    unit_time_execution,
)
from simulator.schedules.dualpipe import dualpipe, dualpipe_v
from simulator.schedules.exchange import arrivals
from simulator.schedules.gpipe import gpipe
from simulator.schedules.interlaced import interlaced
from simulator.schedules.interleaved import combined, interleaved
from simulator.schedules.one_f_one_b import one_f_one_b
from simulator.schedules.render import render
from simulator.schedules.vee import v_half, v_min, zb_v
from simulator.schedules.zero_bubble import zb_1p, zb_2p
from simulator.units import count_of

__all__ = [
    "PAIR_NAME",
    "PARTS_OF_BACKWARD",
    "PASS_NAMES",
    "SATURATED_GROUPS",
    "SCHEDULES",
    "Action",
    "Execution",
    "Kind",
    "Layout",
    "Placement",
    "Row",
    "Schedule",
    "Table",
    "Turn",
    "arrivals",
    "blocks_host",
    "build_table",
    "check",
    "execute",
    "find_schedule",
    "peak_in_flight",
    "placement_of",
    "plain_name",
    "render",
    "sends_block",
    "turns",
    "unit_time_execution",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A named schedule: how it builds its table, and how it lays the model out over the stages."""

    #: As in ``--schedule``.
    name: str
    #: ``build(n_stages, n_micro_batches, *, n_chunks)`` with the chunks per stage returns the :data:`Table`: one row of
    #: actions per stage. Builders say in their docstrings what is theirs alone: the order, its source, its bubble.
    build: Callable[..., Table]
    #: Of its :class:`Placement`.
    layout: Layout = "loop"
    #: Chunks per stage; 0 means that the user chooses.
    n_chunks: int = 1
    #: Of its :class:`Placement`.
    shares_vocabulary: bool = False
    #: The schedule that this one is with several chunks per stage, where that is another.
    with_chunks: str = ""
    #: Whether a message may block the next pass, as in Megatron's, DeepSpeed's and PyTorch's own schedules; the others post their sends
    #: and go on.
    blocks_sends: bool = False
    #: Whether rows hold each forward and each whole backward of every chunk once and end with a backward of chunk 0.
    ends_with_first_chunk: bool = False
    #: Whether forwards and backwards run in turns, layer by layer, so that each hides what the other sends.
    takes_turns: bool = False
    #: Whether such a pair sends each output as soon as it is there, and computes the gradients of its last weights beside.
    sends_inside: bool = False
    #: Whether the user must choose several chunks, where the number is the user's.
    needs_chunks: bool = True
    #: Whether more than :data:`SATURATED_GROUPS` micro-batches per stage hold no more activations.
    saturates: bool = True

    @property
    def takes_chunks(self) -> bool:
        """Whether the user may give a stage several chunks."""
        return not self.n_chunks or bool(self.with_chunks)

    def __call__(self, n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
        """Return the table; ``n_chunks=1`` takes the schedule's own number.

        Raises
        ------
        InfeasiblePlanError
            If the schedule cannot run with these numbers.
        """
        if n_stages < 1 or n_micro_batches < 1:
            raise InfeasiblePlanError(
                f"a pipeline needs a stage and a micro-batch, got {n_stages} and {n_micro_batches}"
            )
        return self.build(n_stages, n_micro_batches, n_chunks=self.chunks(n_chunks))

    def chunks(self, virtual_pp: int) -> int:
        """Return the chunks per stage for a plan's ``virtual_pp``.

        Raises
        ------
        InfeasiblePlanError
            If the schedule has another number of chunks.
        """
        if self.n_chunks and virtual_pp not in (1, self.n_chunks):
            raise InfeasiblePlanError(
                f"schedule {self.name} has {count_of(self.n_chunks, 'chunk')} per stage, but virtual_pp is {virtual_pp}",
                hint="use --schedule 1f1b-interleaved, or leave --virtual-pp out",
            )
        if not self.n_chunks and self.needs_chunks and virtual_pp < 2:
            raise InfeasiblePlanError(
                f"schedule {self.name} needs virtual_pp of at least 2",
                hint="use --virtual-pp 2, or --schedule 1f1b",
            )
        return self.n_chunks or virtual_pp


#: micro-batches per stage from which on a schedule that saturates never holds more activations
SATURATED_GROUPS = 4

SCHEDULES: dict[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        Schedule(name="gpipe", build=gpipe, blocks_sends=True, ends_with_first_chunk=True, saturates=False),
        Schedule(
            name="1f1b",
            build=one_f_one_b,
            with_chunks="1f1b-interleaved",
            blocks_sends=True,
            ends_with_first_chunk=True,
        ),
        Schedule(
            name="1f1b-combined", build=combined, n_chunks=0, takes_turns=True, sends_inside=True, needs_chunks=False
        ),
        Schedule(name="1f1b-interleaved", build=interleaved, n_chunks=0, blocks_sends=True, ends_with_first_chunk=True),
        Schedule(name="interlaced", build=interlaced, shares_vocabulary=True),
        Schedule(name="zb-1p", build=zb_1p),
        Schedule(name="zb-2p", build=zb_2p),
        Schedule(name="zb-v", build=zb_v, layout="vee", n_chunks=2),
        Schedule(name="v-half", build=v_half, layout="vee", n_chunks=2),
        Schedule(name="v-min", build=v_min, layout="vee", n_chunks=2),
        Schedule(name="dualpipe", build=dualpipe, layout="bidirectional", n_chunks=2, takes_turns=True),
        Schedule(name="dualpipe-v", build=dualpipe_v, layout="vee", n_chunks=2, takes_turns=True),
    )
}


def find_schedule(name: str, virtual_pp: int = 1) -> Schedule:
    """Return a schedule by name; as in Megatron-LM, ``1f1b`` with several chunks per stage is interleaved."""
    check_word("schedule", name, SCHEDULES)
    chosen = SCHEDULES[name]
    return SCHEDULES[chosen.with_chunks] if chosen.with_chunks and virtual_pp > 1 else chosen


def plain_name(name: str) -> str:
    """Return the schedule that becomes this one with several chunks per stage, itself where there is none."""
    return next((one.name for one in SCHEDULES.values() if one.with_chunks == name), name)


def sends_block(plan: ParallelPlan) -> bool:
    """Whether a plan's next pass waits for the messages of the one before."""
    hides = plan.framework_spec.overlaps_interleaved_p2p and plan.virtual_pp > 1
    if plan.overlap_p2p is not None:
        hides = plan.overlap_p2p
    may_block = find_schedule(plan.schedule, plan.virtual_pp).blocks_sends
    return may_block and not hides and _who_waits(plan) != "nobody"


def blocks_host(plan: ParallelPlan) -> bool:
    """Whether the host waits for them, too, and issues nothing meanwhile."""
    return sends_block(plan) and _who_waits(plan) == "host"


def _who_waits(plan: ParallelPlan) -> Waits:
    pipelines = plan.framework_spec.pipeline or NONE
    return pipelines.who_waits(find_schedule(plan.schedule, plan.virtual_pp).name)


def placement_of(name: str, n_stages: int, virtual_pp: int = 1) -> Placement:
    """Return how a schedule lays the model out over the stages.

    Examples
    --------
    >>> placement_of("zb-v", 4).n_virtual
    8
    """
    schedule = find_schedule(name, virtual_pp)
    return Placement(
        n_stages=n_stages, n_chunks=schedule.chunks(virtual_pp), layout=schedule.layout,
        shares_vocabulary=schedule.shares_vocabulary and n_stages > 1,
    )  # fmt: skip


def build_table(
    name: str, n_stages: int, n_micro_batches: int, *, n_chunks: int = 1, n_at_once: int | None = None
) -> Table:
    """Return a schedule's table: per stage, its actions in order.

    Parameters
    ----------
    n_chunks : int
        Chunks per stage; 1 takes the schedule's own number.
    n_at_once : int, optional
        Micro-batches after which the pipeline drains and the schedule begins anew; all by default.

    Raises
    ------
    ConfigError, InfeasiblePlanError
        If the schedule is unknown or cannot run with these numbers.

    Examples
    --------
    >>> [f"{action.kind}{action.micro_batch}" for action in build_table("1f1b", 2, 2)[1]]
    ['F0', 'B0', 'F1', 'B1']
    >>> [f"{action.kind}{action.micro_batch}" for action in build_table("1f1b", 2, 4, n_at_once=2)[0]]
    ['F0', 'F1', 'B0', 'B1', 'F2', 'F3', 'B2', 'B3']
    """
    n_at_once = n_at_once or n_micro_batches
    try:
        once = find_schedule(name, n_chunks)(n_stages, n_at_once, n_chunks=n_chunks)
    except InfeasiblePlanError as error:
        if n_at_once == n_micro_batches:
            raise
        raise InfeasiblePlanError(f"pipeline_batch={n_at_once}: {error.message}", hint=error.hint) from None
    if n_at_once == n_micro_batches:
        return once
    firsts = range(0, n_micro_batches, n_at_once)
    return tuple(
        tuple(action._replace(micro_batch=first + action.micro_batch) for first in firsts for action in row)
        for row in once
    )
