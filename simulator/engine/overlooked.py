"""What passes that run by themselves leave out: traffic on their links at the same time.

A pass whose ranks meet only their like is computed once, with its links to itself. Where its groups lie on several nodes, messages
between the stages, reductions, or passes of other stages may take the same NICs. Links conserve work: while two flows meet on a link
of which they would take three quarters each by themselves, half of that time is lost to them. So the run in which passes do not see the
others tells how much it has missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.arrays import FloatArray, IntArray
from simulator.engine.costs import Costs
from simulator.identity import ByIdentity, distinct
from simulator.network.base import NetworkModel, SeparableNetwork, rate_alone
from simulator.program.op import COMMUNICATIONS, Collective, Op, Transfer
from simulator.program.program import Block
from simulator.timeline import SheetSpans, Span, Timeline

_Groups = tuple[tuple[int, ...], ...]
#: a kind of traffic: who takes part, and the links of its flow
_Place = tuple[_Groups, tuple[int, ...]]


class _Sharing(NamedTuple):
    """Where traffic and passes by themselves take more of a link than there is, if they meet there."""

    place: _Place
    at: IntArray  #: Indices into the links of all families.
    families: IntArray  #: Whose they are.
    shares: FloatArray  #: Of the link, what the traffic takes by itself.


@dataclass(slots=True)
class _Met:
    """What a rank has of the traffic at one place while passes of a family communicate."""

    covered_ps: float = 0.0  #: How long, in all.
    parts: list[tuple[FloatArray, IntArray]] = field(default_factory=list)  #: Intervals, and how often each comes.

    def add(self, covered_ps: float, times_ps: FloatArray, n_times: IntArray) -> None:
        """Add intervals, shape ``[n_times, n_intervals, 2]``, of which so much is covered."""
        self.covered_ps += covered_ps
        self.parts.append((times_ps.reshape(-1, 2), np.repeat(n_times, times_ps.shape[1])))


def overlooked_share(
    timeline: Timeline, costs: Costs, network: NetworkModel, capacity_bytes_per_s: FloatArray
) -> float:
    """Return by which share of a run passes that were computed by themselves would be late on their busiest link, about.

    Parameters
    ----------
    timeline : Timeline
        Of the run.
    network : NetworkModel
        One like that of the run; it knows which links are never full.
    capacity_bytes_per_s : ndarray of float64
        Of every link, shape ``[n_links]``.
    """
    if not any(isinstance(op, Block) and not op.is_joint and _groups(op) for op in _ops(timeline)):
        return 0.0
    series = _series(timeline)
    passes = _Passes(series, costs, network, capacity_bytes_per_s)
    sharing: ByIdentity[Collective | Transfer, _Sharing] = ByIdentity()
    of_place: dict[_Place, _Sharing] = {}
    met: dict[tuple[_Place, int], dict[int, _Met]] = defaultdict(lambda: defaultdict(_Met))
    for one in series:
        for op, intervals_ps in passes.sent(one.span):
            found = sharing.of(op, passes.sharing)
            of_place.setdefault(found.place, found)
            for family in np.unique(found.families).tolist() if len(found.at) else ():
                if family != passes.family_of(one.span):
                    times_ps = one.times_ps(intervals_ps)
                    covered_ps = float(one.n_times @ passes.taking(family).covered_ps(times_ps))
                    met[found.place, family][one.span.rank].add(covered_ps, times_ps, one.n_times)
    met_on: dict[int, list[tuple[_Met, float]]] = defaultdict(list)
    for (place, family), by_rank in met.items():
        found = of_place[place]
        longest = max(by_rank.values(), key=lambda one: one.covered_ps)  # all that take part have a span of it
        is_own = found.families == family
        for at, share in zip(found.at[is_own].tolist(), found.shares[is_own].tolist(), strict=True):
            met_on[at].append((longest, share))
    alike = {passes.meeting(at, together): (at, together) for at, together in met_on.items()}  # NICs of most nodes
    lost_ps = 0.0
    for at, together in sorted(alike.values(), key=lambda one: -passes.most_lost_ps(*one)):
        if passes.most_lost_ps(at, together) <= lost_ps:
            break
        lost_ps = max(lost_ps, passes.lost_ps(at, together))
    return lost_ps / timeline.makespan_ps


def _ops(timeline: Timeline) -> Iterable[Op | Block]:
    return {id(span.op): span.op for span in timeline.simulated}.values()


class _Series(NamedTuple):
    """Spans of one operation of one rank that last equally long."""

    span: Span  #: The first of them.
    starts_ps: FloatArray  #: When each begins.
    n_times: IntArray  #: How often each comes.

    def times_ps(self, intervals_ps: FloatArray) -> FloatArray:
        """Return intervals inside a span, of each, shape ``[n_spans, n_intervals, 2]``."""
        return intervals_ps + self.starts_ps[:, np.newaxis, np.newaxis]


def _series(timeline: Timeline) -> list[_Series]:
    """Return all communication and all passes of a run."""
    found: dict[tuple[int, int, int], tuple[Span, dict[int, int]]] = {}
    kinds = {Block, *COMMUNICATIONS}
    for span, n in timeline.counted:
        if n and type(span.op) in kinds:
            inner, start_ps = span.inner, span.start_ps
            what = id(span.op), span.rank, id(inner) if inner else span.end_ps - start_ps
            if (one := found.get(what)) is None:
                found[what] = span, {start_ps: n}
            else:  # those of the period stand for the ones left out, too
                one[1][start_ps] = one[1].get(start_ps, 0) + n
    return [
        _Series(span, np.array(list(n_times), dtype=np.float64), np.array(list(n_times.values())))
        for span, n_times in found.values()
    ]


class _Passes:
    """Passes that ran by themselves: their links, and when they take them.

    Ranks whose blocks communicate in the same groups are a family: each writes down what all do at once, or they lie on nodes
    of their own in the same way and share the blocks of the first.
    """

    def __init__(self, series: Sequence[_Series], costs: Costs, network: NetworkModel, capacity: FloatArray) -> None:
        self._costs, self._network, self._capacity = costs, network, capacity
        self._sent: ByIdentity[object, list[tuple[Collective | Transfer, FloatArray]]] = ByIdentity()
        self._family_of: dict[int, int] = {}  # by rank: the first rank that communicates in the same groups
        first: dict[_Groups, int] = {}
        groups: ByIdentity[Block, _Groups] = ByIdentity()
        blocks: dict[int, dict[Block, None]] = defaultdict(dict)
        self._series: dict[int, list[_Series]] = defaultdict(list)
        for one in series:
            block, rank = one.span.op, one.span.rank
            if isinstance(block, Block) and not block.is_joint and (own := groups.of(block, _groups)):
                if rank not in self._family_of:
                    self._family_of[rank] = first.setdefault(own, rank)
                blocks[self._family_of[rank]][block] = None
                self._series[self._family_of[rank]].append(one)
        self._taking: dict[int, _Times] = {}
        uses = {family: self._uses_in(found) for family, found in blocks.items()}
        links = [np.fromiter(found, np.int64, len(found)) for found in uses.values()]
        shares = [np.fromiter(found.values(), np.float64, len(found)) for found in uses.values()]
        every = np.concatenate([np.zeros(0, np.int64), *links])
        order = np.argsort(every, kind="stable")
        self.links: IntArray = every[order]  #: Of all families, ascending, once for each that takes it.
        self._uses = np.concatenate([np.zeros(0), *shares])[order]
        self._families = np.repeat(np.fromiter(uses, np.int64, len(uses)), [len(found) for found in links])[order]

    def _uses_of(self, op: Collective | Transfer) -> tuple[IntArray, FloatArray]:
        """Return the links of an operation, and which share of each it takes by itself."""
        flow = self._costs.flow(op)
        links = np.array(flow.links, dtype=np.int64)
        rate = rate_alone(flow, self._capacity) if flow.links else 0.0
        return links, rate * np.array(flow.weights) / self._capacity[links]

    def _uses_in(self, blocks: Iterable[Block]) -> dict[int, float]:
        """Return the most that any communication of some blocks takes of each link on which others could hold it up."""
        uses: dict[int, float] = {}
        for op in distinct(task.op for block in blocks for task in block.tasks if isinstance(task.op, COMMUNICATIONS)):
            links, shares = self._uses_of(op)
            network, whole = self._network, self._costs.flow(op).links
            contended = network.contended(whole) if isinstance(network, SeparableNetwork) else frozenset(whole)
            for link, share in zip(links.tolist(), shares.tolist(), strict=True):
                if link in contended:
                    uses[link] = max(share, uses.get(link, 0.0))
        return uses

    def family_of(self, span: Span) -> int | None:
        """Return the family of a pass by itself."""
        return self._family_of.get(span.rank) if isinstance(span.op, Block) and not span.op.is_joint else None

    def taking(self, family: int) -> _Times:
        """Return when passes of a family communicate."""
        if family not in self._taking:
            own = self._series[family]
            times_ps = [one.times_ps(found).reshape(-1, 2) for one in own for _, found in self.sent(one.span)]
            self._taking[family] = _Times(np.concatenate(times_ps))
        return self._taking[family]

    def sent(self, span: Span) -> list[tuple[Collective | Transfer, FloatArray]]:
        """Return the communication of a span, with the times from its start at which it begins and ends, shape ``[n, 2]``."""
        if isinstance(span.op, COMMUNICATIONS):
            return [(span.op, np.array([[0, span.duration_ps]], dtype=np.float64))]
        return self._sent.of(span.inner, _sent_inside) if isinstance(span.op, Block) else []

    def sharing(self, op: Collective | Transfer) -> _Sharing:
        """Return where an operation and passes take more of a link than there is."""
        links, shares = self._uses_of(op)
        first, last = (np.searchsorted(self.links, links, side) for side in ("left", "right"))
        counts = last - first
        at = np.repeat(last - np.cumsum(counts), counts) + np.arange(counts.sum())
        taken = np.repeat(shares, counts)
        is_short = taken + self._uses[at] > 1.0
        at, taken = at[is_short], taken[is_short]
        return _Sharing((_members(op), self._costs.flow(op).links), at, self._families[at], taken)

    def meeting(self, at: int, together: Sequence[tuple[_Met, float]]) -> tuple[object, ...]:
        """Return all that :meth:`lost_ps` looks at: it is the same where this is."""
        return int(self._families[at]), float(self._uses[at]), *((id(met), share) for met, share in together)

    def most_lost_ps(self, at: int, together: Sequence[tuple[_Met, float]]) -> float:
        """Return a bound of :meth:`lost_ps`: no more is lost than passes take, each time that traffic meets them."""
        return float(self._uses[at]) * sum(met.covered_ps for met, _ in together)

    def lost_ps(self, at: int, together: Sequence[tuple[_Met, float]]) -> float:
        """Return how long a family's link lacks for both: its passes, and all traffic that meets them there, with its shares.

        Traffic of several places that comes at once takes no more than the link.
        """
        parts = [(times_ps, n_times, share) for met, share in together for times_ps, n_times in met.parts]
        edges_ps = np.concatenate([times_ps.T.ravel() for times_ps, _, _ in parts])
        signs = np.concatenate([np.repeat([1.0, -1.0], len(times_ps)) for times_ps, _, _ in parts])
        order = np.argsort(edges_ps, kind="stable")
        edges_ps, signs = edges_ps[order], signs[order]
        load = np.cumsum(
            signs * np.concatenate([np.full(2 * len(times_ps), share) for times_ps, _, share in parts])[order]
        )
        often = np.cumsum(signs * np.concatenate([np.tile(n_times, 2) for _, n_times, _ in parts])[order])
        n_at_once = np.maximum(1.0, np.cumsum(signs))
        lacking = np.clip(np.minimum(1.0, load) + self._uses[at] - 1.0, 0.0, 1.0)[:-1]
        covered_ps = self.taking(int(self._families[at])).covered_ps(
            np.column_stack((edges_ps[:-1], edges_ps[1:]))[:, np.newaxis]
        )
        return float((covered_ps * lacking) @ (often / n_at_once)[:-1])


class _Times:
    """The union of intervals, which says how much of another interval it covers."""

    def __init__(self, intervals_ps: FloatArray) -> None:
        starts_ps, ends_ps = intervals_ps[np.argsort(intervals_ps[:, 0], kind="stable")].T
        until_ps = np.maximum.accumulate(ends_ps)
        is_first = np.concatenate(([True], starts_ps[1:] > until_ps[:-1]))
        merged = np.column_stack((starts_ps[is_first], until_ps[np.concatenate((is_first[1:], [True]))]))
        lengths_ps = np.cumsum(merged[:, 1] - merged[:, 0])
        self._edges_ps = merged.ravel()
        self._covered_ps = np.column_stack((np.concatenate(([0], lengths_ps[:-1])), lengths_ps)).ravel()

    def covered_ps(self, intervals_ps: FloatArray) -> FloatArray:
        """Return how much of some intervals is covered, in sum over the second axis, shape ``[n_times, n_intervals, 2]``."""
        until_ps = np.interp(intervals_ps, self._edges_ps, self._covered_ps)
        covered_ps: FloatArray = (until_ps[:, :, 1] - until_ps[:, :, 0]).sum(axis=1)
        return covered_ps


def _members(op: Collective | Transfer) -> _Groups:
    return op.pairs if isinstance(op, Transfer) else op.groups


def _groups(block: Block) -> _Groups:
    """Return the groups of the first communication of a block; none where it has no communication."""
    return next((_members(task.op) for task in block.tasks if isinstance(task.op, COMMUNICATIONS)), ())


def _sent_inside(inner: object) -> list[tuple[Collective | Transfer, FloatArray]]:
    """Return each communication of a pass with its times."""
    assert isinstance(inner, tuple | SheetSpans)
    ops: dict[int, Collective | Transfer] = {}
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in inner:
        if isinstance(span.op, COMMUNICATIONS):
            ops[id(span.op)] = span.op
            found[id(span.op)].append((span.start_ps, span.end_ps))
    return [(op, np.array(found[key], dtype=np.float64)) for key, op in ops.items()]
