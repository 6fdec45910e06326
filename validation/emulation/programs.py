"""Emulated jobs as Programs: the same layers, buckets and schedules that the real ones run.

Every rank is written down. The host thread of a real rank is the ``compute`` stream here, since timed layers
sleep in it. One communication stream stands for each of a process group's threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.program.op import Collective, Kernel, Phase, Transfer
from simulator.program.program import COMPUTE, Program, RankProgram, TaskList
from validation.emulation.job import Job, pipeline_order
from validation.emulation.overheads import Overheads, shipped_overheads


@dataclass(slots=True)
class _Seat:
    """One rank while its program is written."""

    job: Job
    rank: int
    ranks: tuple[int, ...]
    overheads: Overheads
    tasks: TaskList = field(default_factory=TaskList)
    issued: dict[str, int] = field(default_factory=dict)
    done: tuple[int, ...] = ()

    @property
    def place(self) -> int:
        return self.ranks.index(self.rank)

    @property
    def factor(self) -> float:
        straggler = self.job.straggler
        return straggler[1] if straggler and straggler[0] == self.place else 1.0

    def sleep(self, name: str, duration_s: float, phase: Phase, after: tuple[int, ...] = ()) -> int:
        """Compute for a set time."""
        return self.tasks.add(Kernel(name=name, phase=phase, duration_s=duration_s), COMPUTE, after)

    def collective(self, kind: str, n_bytes: int, after: tuple[int, ...], group: str = "g") -> int:
        """Give a collective to the group's next thread, which also copies what an all-gather has gathered."""
        count = self.issued.get(group, 0)
        self.issued[group] = count + 1
        op = Collective(collective=kind, axis="dp", n_bytes=n_bytes, groups=(self.ranks,), name=f"{kind} {count}")
        stream = f"{group}{count % self.job.gloo_threads}"
        index = self.tasks.add(op, stream, after, key=(self.ranks, group, count))
        if kind != "all_gather":
            return index
        copy = Kernel(name="copy out", phase="forward", duration_s=self.overheads.fresh_s(n_bytes, len(self.ranks)))
        return self.tasks.add(copy, stream)


def _one_collective(seat: _Seat) -> None:
    world = len(seat.ranks)
    n_bytes = seat.job.n_bytes // world * world
    seat.collective(seat.job.name, n_bytes, ())


def _messages(seat: _Seat, pairs: Sequence[tuple[int, int]]) -> None:
    """Messages that all ranks send at once, each a transfer of its own."""
    for source, target in pairs:
        ends = (seat.ranks[source], seat.ranks[target])
        if seat.rank in ends:
            op = Transfer(n_bytes=seat.job.n_bytes, pairs=(ends,), name=f"{source} to {target}")
            seat.tasks.add(op, f"message {ends}", key=ends)


def _ring_pairs(order: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(order, (*order[1:], order[0]), strict=True))


def _p2p(seat: _Seat) -> None:
    _messages(seat, [(0, 1)])


def _ring_shift(seat: _Seat) -> None:
    _messages(seat, _ring_pairs(range(len(seat.ranks))))


def _cross_ring(seat: _Seat) -> None:
    half = len(seat.ranks) // 2
    _messages(seat, _ring_pairs([rank for low in range(half) for rank in (low, low + half)]))


def _ddp(seat: _Seat) -> None:
    job, cost = seat.job, seat.overheads
    world = len(seat.ranks)
    for index in range(job.n_layers):
        seat.sleep(f"forward {index}", job.forward_s * seat.factor + cost.layer_s, "forward")
    copy_s = cost.copy_s(job.layer_bytes, world)
    filled, reductions = 0, []
    for index in reversed(range(job.n_layers)):
        done = seat.sleep(f"backward {index}", job.backward_s * seat.factor + cost.layer_s + copy_s, "backward")
        filled += job.layer_bytes
        if filled >= job.bucket_bytes or index == 0:
            reductions.append((seat.collective("all_reduce", filled, (done,)), filled))
            filled = 0
    for reduction, n_bytes in reductions:
        seat.sleep("copy back", cost.copy_s(n_bytes, world), "backward", (reduction,))


def _zero1(seat: _Seat) -> None:
    job, cost = seat.job, seat.overheads
    copy_s = cost.fresh_s(job.layer_bytes, len(seat.ranks))
    for index in range(job.n_layers):
        seat.sleep(f"forward {index}", job.forward_s * seat.factor + cost.spend_s, "forward")
    works = []
    for index in reversed(range(job.n_layers)):
        done = seat.sleep(f"backward {index}", job.backward_s * seat.factor + cost.spend_s, "backward")
        works.append(seat.collective("reduce_scatter", job.layer_bytes, (done,)))
        seat.sleep("copy in", copy_s, "backward")
    waited = seat.sleep("wait", 0.0, "optimizer", tuple(works))
    gathers = tuple(seat.collective("all_gather", job.layer_bytes, (waited,)) for _ in range(job.n_layers))
    seat.sleep("wait", 0.0, "optimizer", gathers)


def _zero3(seat: _Seat) -> None:
    job, cost = seat.job, seat.overheads
    copy_s = cost.fresh_s(job.layer_bytes, len(seat.ranks))
    scatter_group = "s" if job.n_groups > 1 else "g"
    works = []
    pending: tuple[int, ...] = (seat.collective("all_gather", job.layer_bytes, ()),)
    for index in range(job.n_layers):
        waited = seat.sleep("wait", 0.0, "forward", pending)
        if index + 1 < job.n_layers:
            pending = (seat.collective("all_gather", job.layer_bytes, (waited,)),)
        seat.sleep(f"forward {index}", job.forward_s * seat.factor + cost.spend_s, "forward")
    pending = ()
    for index in reversed(range(job.n_layers)):
        waited = seat.sleep("wait", 0.0, "backward", pending)
        if index:
            pending = (seat.collective("all_gather", job.layer_bytes, (waited,)),)
        done = seat.sleep(f"backward {index}", job.backward_s * seat.factor + cost.spend_s, "backward")
        works.append(seat.collective("reduce_scatter", job.layer_bytes, (done,), scatter_group))
        seat.sleep("copy in", copy_s, "backward")
    seat.sleep("wait", 0.0, "backward", tuple(works))


def _fsdp2(seat: _Seat) -> None:
    """Write down ``fully_shard`` on CPU: every gather and every scatter is waited for where it is issued."""
    job, cost = seat.job, seat.overheads
    copy_s = cost.fresh_s(job.layer_bytes, len(seat.ranks))
    for index in range(job.n_layers):
        gathered = seat.collective("all_gather", job.layer_bytes, seat.done)
        seat.done = (
            seat.sleep(f"forward {index}", job.forward_s * seat.factor + cost.layer_s, "forward", (gathered,)),
        )
    for index in reversed(range(job.n_layers)):
        gathered = seat.collective("all_gather", job.layer_bytes, seat.done)
        done = seat.sleep(f"backward {index}", job.backward_s * seat.factor + cost.layer_s, "backward", (gathered,))
        scattered = seat.collective("reduce_scatter", job.layer_bytes, (done,))
        seat.done = (seat.sleep("copy", copy_s, "backward", (scattered,)),)


def _pipeline(seat: _Seat) -> None:
    job, place, n_stages = seat.job, seat.place, len(seat.ranks)
    order = pipeline_order(job.name, place, n_stages, job.n_micro_batches)
    neighbour = {"F": (place - 1, place + 1), "B": (place + 1, place - 1)}
    arriving = {}
    for action in order:
        source = neighbour[action[0]][0]
        if 0 <= source < n_stages:
            arriving[action] = _boundary(seat, action, source, place, ())
    for action in order:
        kind, micro_batch = action
        duration_s = job.forward_s if kind == "F" else job.backward_s
        phase: Phase = "forward" if kind == "F" else "backward"
        after = (arriving[action],) if action in arriving else ()
        name = f"{kind}{micro_batch}"
        done = seat.sleep(name, duration_s * seat.factor + seat.overheads.spend_s, phase, after)
        target = neighbour[kind][1]
        if 0 <= target < n_stages:
            _boundary(seat, action, place, target, (done,))


def _boundary(seat: _Seat, action: tuple[str, int], source: int, target: int, after: tuple[int, ...]) -> int:
    """Write down one end of a message between stages; messages of one direction follow one another."""
    pair = (seat.ranks[source], seat.ranks[target])
    op = Transfer(n_bytes=seat.job.activation_bytes, pairs=(pair,), name=f"{action[0]}{action[1]}")
    return seat.tasks.add(op, f"{source} to {target}", after, key=(pair, *action))


#: job -> what one rank does
PROGRAMS: dict[str, Callable[[_Seat], None]] = {
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all"), _one_collective
    ),
    "p2p": _p2p,
    "ring_shift": _ring_shift,
    "cross_ring": _cross_ring,
    "ddp": _ddp,
    "zero1": _zero1,
    "zero3": _zero3,
    "fsdp2": _fsdp2,
    "gpipe": _pipeline,
    "1f1b": _pipeline,
}


def program_of(job: Job, world: int, n_racks: int, overheads: Overheads | None = None) -> Program:
    """Write a job down as a program.

    Parameters
    ----------
    job : Job
        A key of :data:`PROGRAMS` by name.
    world : int
        Ranks of all jobs together.
    n_racks : int
        Racks over which they are spread.
    overheads : Overheads, optional
        The shipped ones by default.
    """
    ranks: list[RankProgram] = []
    for index in range(1 if job.alone else job.n_jobs):
        members = job.ranks_of_job(index, world, n_racks)
        for rank in members:
            seat = _Seat(job, rank, members, overheads or shipped_overheads())
            PROGRAMS[job.name](seat)
            ranks.append(RankProgram(rank=rank, members=(rank,), tasks=tuple(seat.tasks.tasks)))
    return Program(ranks=tuple(sorted(ranks, key=_rank_of)))


def _rank_of(program: RankProgram) -> Any:
    return program.rank
