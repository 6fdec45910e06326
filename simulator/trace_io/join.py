"""Joins the kernels of one collective across ranks, aligns the ranks' clocks on them, separates waiting from transfer.

A collective's kernel lasts on each rank from that rank's arrival to the common end. What comes before the last
arrival is waiting, and the last to arrive is whom the others waited for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from simulator.trace_io.collective_names import merge_calls
from simulator.trace_io.trace_record import COMMUNICATION, CollectiveCall, Int64, Trace

_TOLERANCE_NS = 500_000
#: ends that scatter by more are not those of one collective: sends that are buffered, ranks that poll
_SCATTER_NS = 200_000
#: differences of ends that are kept for a pair of ranks
_MOST_DIFFERENCES = 4096
_POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """One collective on the ranks that recorded it; times on the clock of the first rank."""

    #: (index into ``trace.ranks``, index of the device operation), one per recorded participant.
    members: tuple[tuple[int, int], ...]
    call: CollectiveCall  #: Metadata, completed over the members.
    arrival_ns: tuple[int, ...]  #: When each member's kernel started.
    start_ns: int  #: Last arrival: from here on data moves.
    end_ns: int  #: Earliest end, but not before ``start_ns``.

    @property
    def last(self) -> int:
        """Index into ``trace.ranks`` of the member that arrived last."""
        return self.members[max(range(len(self.members)), key=lambda i: self.arrival_ns[i])][0]

    @property
    def transfer_ns(self) -> int:
        """From the last arrival to the first end."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Joins:
    """All joined collectives of a trace."""

    joined: tuple[Joined, ...]  #: Ascending by end.
    offset_ns: tuple[int, ...]  #: What to subtract from each rank's times to get to the clock of the first rank.
    basis: str = ""  #: How partners were found: ``sequence``, ``order``, or ``order and end time``.


@dataclass(frozen=True, slots=True)
class _Item:
    op: int
    end_ns: int
    kind: Hashable
    sequence: tuple[int, int]
    group_size: int


def join(trace: Trace) -> Joins:
    """Find partners and align clocks.

    Partners share the process group and the sequence number where the trace has them; else the group and the order
    within it; without any metadata the order over all recorded ranks. Where orders disagree, because ranks recorded
    different numbers of kernels, the ends decide.
    """
    lanes: dict[Hashable, dict[int, list[_Item]]] = {}
    for index, rank in enumerate(trace.ranks):
        seen: dict[Hashable, int] = {}
        ops = np.flatnonzero(rank.ops.kind == COMMUNICATION)
        for op in ops[np.argsort(rank.ops.end_ns[ops], kind="stable")]:
            call = rank.calls[rank.ops.call[op]]
            lane = _lane(call, rank.rank)
            key = (lane, call.sequence)
            seen[key] = seen.get(key, 0) + 1
            kind = "p2p" if call.collective in _POINT_TO_POINT else (call.collective, call.n_bytes)
            item = _Item(int(op), int(rank.ops.end_ns[op]), kind, (call.sequence, seen[key]), call.group_size)
            lanes.setdefault(lane, {}).setdefault(index, []).append(item)
    sets: list[tuple[tuple[int, int], ...]] = []
    bases = set()
    for lists in lanes.values():
        if len(lists) > 1:
            found, basis = _match(lists)
            sets.extend(found)
            bases.add(basis)
    offsets = _offsets(trace, sets)
    joined = sorted((_joined(trace, members, offsets) for members in sets), key=lambda j: (j.end_ns, j.start_ns))
    return Joins(joined=tuple(joined), offset_ns=offsets, basis=" and ".join(sorted(bases)))


def _lane(call: CollectiveCall, rank: int) -> Hashable:
    if call.collective in _POINT_TO_POINT and call.peer >= 0:
        source, target = (rank, call.peer) if call.collective == "send" else (call.peer, rank)
        return ("p2p", source, target, call.group)
    if call.group or call.ranks:
        return ("group", call.group, call.ranks)
    return ("all",)


def _match(lists: dict[int, list[_Item]]) -> tuple[list[tuple[tuple[int, int], ...]], str]:
    """Return the joined sets of one lane and how they were found."""
    if all(item.sequence[0] >= 0 for items in lists.values() for item in items):
        by_sequence: dict[tuple[int, int], list[tuple[int, _Item]]] = {}
        for index, items in lists.items():
            for item in items:
                by_sequence.setdefault(item.sequence, []).append((index, item))
        parts = [part for members in by_sequence.values() for part in _split(members)]
        return [part for part in parts if len(part) > 1], "sequence"
    reference = min(lists, key=lambda index: (len(lists[index]), index))
    sets: dict[int, list[tuple[int, int]]] = {
        place: [(reference, item.op)] for place, item in enumerate(lists[reference])
    }
    basis = "order"
    for index, items in lists.items():
        if index == reference:
            continue
        pairs, exact = _pair(lists[reference], items)
        basis = basis if exact else "order and end time"
        for mine, other in pairs:
            sets[mine].append((index, items[other].op))
    return [tuple(sorted(members)) for members in sets.values() if len(members) > 1], basis


def _split(members: list[tuple[int, _Item]]) -> list[tuple[tuple[int, int], ...]]:
    """Split members into groups of the size they state: names of groups without ranks repeat. Ends tell who is one."""
    size = min(item.group_size for _, item in members)
    if not 0 < size < len(members):
        return [tuple((index, item.op) for index, item in members)]
    ordered = sorted(members, key=lambda member: member[1].end_ns)
    chunks = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    return [tuple(sorted((index, item.op) for index, item in chunk)) for chunk in chunks]


def _pair(first: Sequence[_Item], second: Sequence[_Item]) -> tuple[list[tuple[int, int]], bool]:
    """Pair two ordered lists; also whether it was plain order."""
    kinds = [item.kind for item in first] == [item.kind for item in second]
    ends = np.array([item.end_ns for item in first]), np.array([item.end_ns for item in second])
    ordered = kinds and all(item.kind == "p2p" for item in first)
    if ordered or (kinds and _spread(ends[1] - ends[0])[1] <= _TOLERANCE_NS):
        return [(i, i) for i in range(len(first))], True
    slack = abs(len(first) - len(second)) + 3
    best: tuple[float, float, float] | None = None
    for shift in range(-slack, slack + 1):
        low, high = max(0, -shift), min(len(first), len(second) - shift)
        same = [i for i in range(low, high) if first[i].kind == second[i + shift].kind]
        if not same:
            continue
        at = np.array(same)
        median, spread = _spread(ends[1][at + shift] - ends[0][at])
        missing = min(len(first), len(second)) - len(same)
        score = spread + 0.01 * abs(median) + missing * _TOLERANCE_NS
        if best is None or score < best[0]:
            best = (score, median, spread)
    if best is None:
        return [], False
    return _merge_by_end(first, second, best[1], max(_TOLERANCE_NS, 10 * best[2])), False


def _spread(differences: Int64) -> tuple[float, float]:
    if not len(differences):
        return 0.0, 0.0
    median = float(np.median(differences))
    return median, float(np.median(np.abs(differences - median)))


def _merge_by_end(
    first: Sequence[_Item], second: Sequence[_Item], offset_ns: float, tolerance_ns: float
) -> list[tuple[int, int]]:
    """Walk both lists and pair what is of one kind and ends together."""
    pairs = []
    i = j = 0
    while i < len(first) and j < len(second):
        gap = second[j].end_ns - first[i].end_ns - offset_ns
        if abs(gap) <= tolerance_ns and first[i].kind == second[j].kind:
            pairs.append((i, j))
            i, j = i + 1, j + 1
        elif gap > 0:
            i += 1
        else:
            j += 1
    return pairs


def _offsets(trace: Trace, sets: Sequence[tuple[tuple[int, int], ...]]) -> tuple[int, ...]:
    """Offset of each rank's clock to an already aligned rank, spreading from the first rank."""
    if trace.common_clock:
        return (0,) * len(trace.ranks)
    evidence: dict[tuple[int, int], dict[int, list[int]]] = {}
    for members in sets:
        ends = [int(trace.ranks[index].ops.end_ns[op]) for index, op in members]
        sender = _sender(trace, members)
        for (a, _), end_a in zip(members, ends, strict=True):
            for (b, _), end_b in zip(members, ends, strict=True):
                known = evidence.setdefault((a, b), {}).setdefault(sender, []) if a != b else None
                if known is not None and len(known) < _MOST_DIFFERENCES:
                    known.append(end_b - end_a)
    neighbours: dict[int, list[int]] = {}
    for a, b in evidence:
        neighbours.setdefault(a, []).append(b)
    offsets: dict[int, int] = {}
    for root in range(len(trace.ranks)):
        if root in offsets:
            continue
        offsets[root] = 0
        queue = [root]
        for a in queue:
            for b in neighbours.get(a, ()):
                if b not in offsets:
                    offsets[b] = offsets[a] + _offset(evidence[(a, b)])
                    queue.append(b)
    return tuple(offsets[index] for index in range(len(trace.ranks)))


def _sender(trace: Trace, members: tuple[tuple[int, int], ...]) -> int:
    """Index of the rank that sends a message, -1 for a collective."""
    calls = {index: trace.ranks[index].calls[trace.ranks[index].ops.call[op]].collective for index, op in members}
    return next((index for index, word in calls.items() if word == "send"), -1) if "recv" in calls.values() else -1


def _offset(by_sender: dict[int, list[int]]) -> int:
    """How far one clock is ahead of another, 0 where that does not stand out from the spread of its estimates.

    It is estimated from the ends of collectives, which all ranks leave together. A message may end later where it is received: its two
    directions give it together, as two-way time transfer does, and what they disagree by is spread.
    """
    if -1 in by_sender:
        offset, spread = _spread(np.array(by_sender[-1]))
        buffered = spread > _SCATTER_NS and abs(offset) < 20 * spread
        return 0 if buffered or abs(offset) <= spread else round(offset)
    if len(by_sender) < 2:
        return 0
    (there, spread_there), (back, spread_back) = (_spread(np.array(found)) for found in by_sender.values())
    offset, spread = (there + back) / 2, abs(there - back) / 2 + max(spread_there, spread_back)
    return 0 if abs(offset) <= spread else round(offset)


def _joined(trace: Trace, members: tuple[tuple[int, int], ...], offsets: tuple[int, ...]) -> Joined:
    arrival = tuple(int(trace.ranks[i].ops.start_ns[op]) - offsets[i] for i, op in members)
    end = min(int(trace.ranks[i].ops.end_ns[op]) - offsets[i] for i, op in members)
    calls = [trace.ranks[i].calls[trace.ranks[i].ops.call[op]] for i, op in members]
    call = calls[0]
    for other in calls[1:]:
        call = merge_calls(call, other)
    return Joined(members=members, call=call, arrival_ns=arrival, start_ns=max(arrival), end_ns=max(end, *arrival))
