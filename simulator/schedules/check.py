"""What every schedule must satisfy, and what follows from one: makespan, bubble, activations in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from simulator.errors import ConfigError
from simulator.schedules.action import Action, Placement, Row, Table

Pass = tuple[str, int, int]

#: activations that a pass takes (forward) and gives back (the end of backward)
_HELD = {"F": 1, "B": -1, "I": 0, "W": -1, "V": 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """When every action of a table runs if it starts as soon as its inputs and its stage are there."""

    #: ``starts[stage][i]`` of the stage's ``i``-th action, in the unit of the durations. Of a pair that runs together
    #: the second is counted behind the first, and both end with the pair.
    starts: tuple[tuple[float, ...], ...]
    ends: tuple[tuple[float, ...], ...]

    @property
    def makespan(self) -> float:
        """From the first start to the last end, over all stages."""
        return max((row[-1] for row in self.ends if row), default=0.0)

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Idle time of every stage between its own first start and last end."""
        return tuple(
            sum(max(0.0, start - end) for start, end in zip(starts[1:], ends, strict=False))
            for starts, ends in zip(self.starts, self.ends, strict=True)
            if starts
        )


def infer_placement(table: Table) -> Placement:
    """Return the looped placement with as many chunks as the table mentions."""
    return Placement(n_stages=len(table), n_chunks=1 + max((a.chunk for row in table for a in row), default=0))


def execute(table: Table, placement: Placement, duration_of: Callable[[Action], float]) -> Execution:
    """Run a table without clock, network or memory: the order of each row and the data dependencies alone.

    Raises
    ------
    ConfigError
        If the rows wait for one another and none can go on; the message says who waits for what.
    """
    ends: dict[Pass, float] = {}
    starts_by_row: list[list[float]] = [[] for _ in table]
    ends_by_row: list[list[float]] = [[] for _ in table]
    waiting: dict[Pass, list[int]] = {}
    meetings = _Meetings(len(table))
    ready = list(range(len(table)))
    while ready:
        stage = ready.pop()
        row, starts, row_ends = table[stage], starts_by_row[stage], ends_by_row[stage]
        now = row_ends[-1] if row_ends else 0.0
        while len(starts) < len(row):
            if row[len(starts)].kind == "V" and not meetings.arrive(stage, row[len(starts)].micro_batch, now):
                break
            together = row[len(starts) : len(starts) + 1 + row[len(starts)].is_paired]
            needed = [p for action in together for p in _inputs(action, stage, placement) if p is not None]
            missing = next((p for p in needed if p not in ends), None)
            if missing is not None:
                waiting.setdefault(missing, []).append(stage)
                break
            now = max(now, meetings.start(together[0]))
            start = max(now, max((ends[p] for p in needed), default=0.0))
            now = start + sum(map(duration_of, together))
            for action in together:
                starts.append(start)
                start += duration_of(action)
                row_ends.append(now)
                done = (_gradient(action), action.micro_batch, placement.virtual_stage(stage, action.chunk))
                ends[done] = now
                ready += [*waiting.pop(done, ()), *meetings.awaken()]
    if waiting or meetings.waiting:
        raise ConfigError(
            _deadlock(table, placement, starts_by_row),
            hint="reorder the rows so that what is waited for comes first",
        )
    return Execution(starts=tuple(map(tuple, starts_by_row)), ends=tuple(map(tuple, ends_by_row)))


class _Meetings:
    """Which stages have come to which meeting, and when it starts: when all are there."""

    def __init__(self, n_stages: int) -> None:
        self.n_stages = n_stages
        self.waiting: dict[int, dict[int, float]] = {}
        self._starts: dict[int, float] = {}
        self._awake: list[int] = []

    def arrive(self, stage: int, micro_batch: int, now: float) -> bool:
        """Note that a stage is there; tell whether all are."""
        if micro_batch in self._starts:
            return True
        there = self.waiting.setdefault(micro_batch, {})
        there[stage] = now
        if len(there) < self.n_stages:
            return False
        self._starts[micro_batch] = max(there.values())
        self._awake += [other for other in self.waiting.pop(micro_batch) if other != stage]
        return True

    def start(self, action: Action) -> float:
        """When the meeting of an action starts, 0 where it is none."""
        return self._starts[action.micro_batch] if action.kind == "V" else 0.0

    def awaken(self) -> list[int]:
        """Return the stages that may go on."""
        awake, self._awake = self._awake, []
        return awake


class Turn(NamedTuple):
    """One action of a table, or a pair that runs together, and what must have ended before it."""

    #: Actions ``first`` to ``first + n - 1`` of the stage's row.
    stage: int
    first: int
    n: int
    #: (stage, index) of actions of other turns, that before it on its own stage included.
    after: tuple[tuple[int, int], ...]


def turns(table: Table, placement: Placement) -> list[Turn]:
    """Return the turns of a table in an order in which each comes after all that it waits for.

    Whoever has durations can then compute when everything ends in one pass, for many sets of durations at once; what
    :func:`execute` does with one.
    """
    starts = execute(table, placement, lambda _: 1.0).starts
    where: dict[Pass, tuple[int, int]] = {}
    meetings: dict[int, list[tuple[int, int]]] = {}
    for stage, row in enumerate(table):
        for index, action in enumerate(row):
            where[_gradient(action), action.micro_batch, placement.virtual_stage(stage, action.chunk)] = stage, index
            if action.kind == "V" and index:
                meetings.setdefault(action.micro_batch, []).append((stage, index - 1))
    found = []
    for stage, row in enumerate(table):
        index = 0
        while index < len(row):
            together = row[index : index + 1 + row[index].is_paired]
            after = {where[p] for action in together for p in _inputs(action, stage, placement) if p is not None}
            after |= {(stage, index - 1)} if index else set()
            if row[index].kind == "V":
                after |= set(meetings.get(row[index].micro_batch, ()))
            after -= {(stage, index + i) for i in range(len(together))}
            found.append((starts[stage][index], Turn(stage, index, len(together), tuple(sorted(after)))))
            index += len(together)
    return [turn for _, turn in sorted(found, key=lambda one: (one[0], one[1][:2]))]


def _gradient(action: Action) -> str:
    return "I" if action.kind == "B" else action.kind


def _inputs(action: Action, stage: int, placement: Placement) -> tuple[Pass | None, Pass | None]:
    """Return the passes whose outputs an action reads: its neighbour's, and its own earlier pass's."""
    if action.kind == "V":
        return (None, None)
    virtual = placement.virtual_stage(stage, action.chunk)
    if action.kind == "W":
        return (("I", action.micro_batch, virtual), None)
    if action.kind == "F":
        source = placement.previous(virtual)
        return (None if source is None else ("F", action.micro_batch, source), None)
    source = placement.following(virtual)
    return (None if source is None else ("I", action.micro_batch, source), ("F", action.micro_batch, virtual))


def _deadlock(table: Table, placement: Placement, starts_by_row: list[list[float]]) -> str:
    stuck = {
        stage: table[stage][len(starts)]
        for stage, starts in enumerate(starts_by_row)
        if len(starts) < len(table[stage])
    }
    performed = {
        (_gradient(a), a.micro_batch, placement.virtual_stage(stage, a.chunk))
        for stage, starts in enumerate(starts_by_row)
        for a in table[stage][: len(starts)]
    }
    lines = []
    for stage, action in stuck.items():
        if action.kind == "V":
            lines.append(f"stage {stage} waits for the others at the meeting of micro-batch {action.micro_batch}")
            continue
        kind, micro_batch, virtual = next(
            p for p in _inputs(action, stage, placement) if p is not None and p not in performed
        )
        lines.append(
            f"stage {stage} cannot run {_name(action)} before {kind} of micro-batch {micro_batch}, "
            f"chunk {placement.chunk(virtual)}, on stage {placement.stage(virtual)}"
        )
    return f"the schedule deadlocks with {len(stuck)} of {len(table)} stages stuck: " + "; ".join(lines)


def _name(action: Action) -> str:
    return f"{action.kind} of micro-batch {action.micro_batch}, chunk {action.chunk}"


def check(table: Table, placement: Placement | None = None) -> None:
    """Check that every pass is there exactly once and that the table runs to its end."""
    placement = placement or infer_placement(table)
    if len(table) != placement.n_stages:
        raise ConfigError(f"the schedule has {len(table)} rows for {placement.n_stages} stages")
    micro_batches = {a.micro_batch for row in table for a in row}
    if micro_batches != set(range(len(micro_batches))):
        missing = sorted(set(range(max(micro_batches))) - micro_batches)
        raise ConfigError(f"micro-batches {missing} are in no row of the schedule")
    for stage, row in enumerate(table):
        counts = Counter(action._replace(is_paired=False) for action in row)
        _check_pairs(stage, row)
        for micro_batch in micro_batches:
            for chunk in range(placement.n_chunks):
                found = tuple(counts.pop(Action(kind, micro_batch, chunk), 0) for kind in ("F", "B", "I", "W"))
                if found not in ((1, 1, 0, 0), (1, 0, 1, 1)):
                    passes = ", ".join(f"{n} {kind}" for kind, n in zip("FBIW", found, strict=True))
                    raise ConfigError(
                        f"stage {stage}, micro-batch {micro_batch}, chunk {chunk}: {passes}",
                        hint="write one F, and either one B or one I and one W",
                    )
        meetings = {action: n for action, n in counts.items() if action.kind == "V" and placement.shares_vocabulary}
        if meetings and sorted(meetings.items()) != [
            (Action("V", i, placement.n_chunks), 1) for i in sorted(micro_batches)
        ]:
            raise ConfigError(f"stage {stage} does not meet the others once for every micro-batch")
        counts -= Counter(meetings)
        if counts:
            raise ConfigError(
                f"stage {stage} has {_name(next(iter(counts)))}, "
                f"but the schedule has chunks 0 to {placement.n_chunks - 1}"
            )
    execute(table, placement, lambda _: 1.0)


def _check_pairs(stage: int, row: Row) -> None:
    for index, action in enumerate(row):
        partner = row[index + 1] if index + 1 < len(row) else None
        if action.is_paired and (action.kind != "F" or partner is None or partner.kind != "B" or partner.is_paired):
            raise ConfigError(
                f"stage {stage}: {_name(action)} is paired, but is not a forward with a whole backward behind it"
            )


def peak_in_flight(table: Table, n_chunks: int) -> tuple[tuple[int, ...], ...]:
    """Count the micro-batches whose activations a stage holds when it holds most.

    Activations are held from the forward to the end of the backward, the weight gradient included. A forward and a backward of
    one chunk in turns go through its layers in opposite order: what one takes the other gives back.

    Returns
    -------
    tuple of tuple of int
        ``[stage][chunk]``, a chunk of shared vocabulary layers included, at the first moment at which their sum over the chunks is largest.

    Examples
    --------
    >>> from simulator.schedules import build_table
    >>> peak_in_flight(build_table("1f1b", 4, 8), 1)
    ((4,), (3,), (2,), (1,))
    """
    peaks = []
    n_chunks = max(n_chunks, 1 + max((action.chunk for row in table for action in row), default=0))
    for row in table:
        held, peak = [0] * n_chunks, (0,) * n_chunks
        n_held = n_most = 0
        for action, following in zip(row, (*row[1:], None), strict=True):
            held[action.chunk] += _HELD[action.kind]
            n_held += _HELD[action.kind]
            swaps = action.is_paired and following is not None and following.chunk == action.chunk
            if not swaps and n_held > n_most:
                peak, n_most = tuple(held), n_held
        peaks.append(peak)
    return tuple(peaks)


def unit_time_execution(
    table: Table,
    placement: Placement | None = None,
    *,
    forward: float = 1.0,
    backward: float = 2.0,
    dgrad: float | None = None,
    wgrad: float | None = None,
    vocabulary: float = 0.0,
) -> Execution:
    """Execute a table with one duration per kind of pass and free communication.

    Parameters
    ----------
    forward, backward : float
        Durations of a forward and a whole backward of one chunk.
    dgrad, wgrad : float, optional
        Durations of the parts of a split backward; half of ``backward`` each where left out.
    vocabulary : float
        Duration of a meeting of all stages.

    Examples
    --------
    >>> from simulator.schedules import build_table
    >>> unit_time_execution(build_table("1f1b", 4, 8)).makespan  # (m + p - 1) (T_F + T_B)
    33.0
    """
    dgrad = backward / 2.0 if dgrad is None else dgrad
    durations = {
        "F": forward,
        "B": backward,
        "I": dgrad,
        "W": backward - dgrad if wgrad is None else wgrad,
        "V": vocabulary,
    }
    return execute(table, placement or infer_placement(table), lambda action: durations[action.kind])
