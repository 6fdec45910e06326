"""How long runs of kernels and blocks take: computed once per kind of device, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from operator import attrgetter
from typing import NamedTuple

from simulator.engine.costs import Costs
from simulator.identity import ByIdentity, counted
from simulator.program.op import KernelRun, Op
from simulator.program.program import COMPUTE, HOST, Block, Task
from simulator.timeline import Span

#: Lead of a host that is never waited for
FAR_AHEAD_PS = 10**18
#: Runs of kernels whose costs are known before all are forgotten; where every GPU has a speed of its own, each is asked for once.
_MEMO_LIMIT = 8192
#: Likewise, pairs of a pass and the links of a flow.
_MOST_PAIRS = 4096


class RunCost(NamedTuple):
    """A run of kernels as a max-plus linear map: end = max(start + device, host + both)."""

    device_ps: int
    host_ps: int
    first_issue_ps: int
    both_ps: int


class BlockResult(NamedTuple):
    """What a block does when its host has at least ``needed_lead_ps`` of lead at its start.

    ``issued_ps`` is when the host has issued all of it, counted from its start; ``trails`` says that communication ends after
    the last kernel, so that what needs neither could begin before the end.
    """

    duration_ps: int
    needed_lead_ps: int
    spans: Sequence[Span]
    issued_ps: int = 0
    trails: bool = False


#: runs a block on the device of a rank whose host has a lead: ``(durations, rank, block, lead_ps) -> result``
RunBlock = Callable[["Durations", int, Block, int], BlockResult]


class PassPart(NamedTuple):
    """What one rank runs of a pass that ranks of other classes run, too.

    ``offset_ps`` is when it begins, counted from the first of them, and ``lead_ps`` how far its host is ahead then.
    """

    block: Block
    rank: int
    kind: int
    offset_ps: int
    lead_ps: int


class JointResult(NamedTuple):
    """What the parts of a pass come to, and the links that they load."""

    results: tuple[BlockResult, ...]
    links: frozenset[int]


#: runs a pass of several ranks: ``(durations, parts) -> result``
RunJointly = Callable[["Durations", Sequence[PassPart]], JointResult]


class TouchedError(Exception):
    """Something outside a pass that several ranks run touches what it uses: it has to be run layer by layer."""


class Durations:
    """Memory of what costs and blocks came to, for a machine and all the machines that run its blocks.

    Parameters
    ----------
    detail : bool
        Whether spans carry what happened inside runs of kernels.
    run_block, run_jointly : callable
        What computes a block, or a pass of several ranks, that is not known yet. They are handed this memory, and do not hold
        it: all of it goes when its owner does, without the garbage collector.
    """

    def __init__(self, costs: Costs, run_block: RunBlock, run_jointly: RunJointly, *, detail: bool) -> None:
        self.costs = costs
        self.detail = detail
        self._run_block = run_block
        self._run_jointly = run_jointly
        self._joint: dict[tuple[tuple[int, int, int, int], ...], JointResult] = {}
        self._kinds: dict[Hashable, int] = {}
        self._runs: dict[tuple[int, int], RunCost] = {}
        self._hosts: dict[int, dict[int, int]] = {}
        self._blocks: dict[tuple[int, int, int], BlockResult] = {}
        self._counts: ByIdentity[Block, list[tuple[Op | Block, int]]] = ByIdentity()
        self._waits: ByIdentity[Block, bool] = ByIdentity()
        self._serial: ByIdentity[Block, bool] = ByIdentity()
        self._equal: dict[tuple[int, int], bool] = {}
        # by identity, and with what is asked about, which keeps it alive
        self._touching: dict[tuple[int, int], tuple[frozenset[int], Collection[int], bool]] = {}

    def kind(self, rank: int) -> int:
        """Return a number that ranks of one kind share."""
        return self._kinds.setdefault(self.costs.kind(rank), len(self._kinds))

    def hosts(self, kind: int) -> dict[int, int]:
        """What :meth:`host_ps` has found for a kind of rank so far, by the operation's identity."""
        return self._hosts.setdefault(kind, {})

    def host_ps(self, op: Op | Block, rank: int, kind: int) -> int:
        """Time that the host takes to issue all of an operation."""
        known = self.hosts(kind)
        cost_ps = known.get(id(op))
        if cost_ps is None:
            if isinstance(op, KernelRun):
                cost_ps = self.run(op, rank, kind).host_ps
            elif isinstance(op, Block):
                cost_ps = sum(n * self.host_ps(each, rank, kind) for each, n in self._counts.of(op, _ops))
            else:
                cost_ps = self.costs.issue_ps(op, rank)
            known[id(op)] = cost_ps
        return cost_ps

    def waits(self, block: Block) -> bool:
        """Return :attr:`Block.waits`, asked for once per block."""
        return self._waits.of(block, attrgetter("waits"))

    def run(self, op: KernelRun, rank: int, kind: int) -> RunCost:
        """Return the map of a run of kernels."""
        key = (id(op), kind)
        cost = self._runs.get(key)
        if cost is None:
            device_ps = host_ps = both_ps = 0
            first_issue_ps = -1
            for kernel in op.kernels:
                host_ps += self.costs.issue_ps(kernel, rank)
                if first_issue_ps < 0:
                    first_issue_ps = host_ps
                duration_ps = self.costs.kernel_ps(kernel, rank)
                device_ps += duration_ps
                both_ps = max(both_ps, host_ps) + duration_ps
            if len(self._runs) >= _MEMO_LIMIT:
                self._runs.clear()
            cost = self._runs[key] = RunCost(device_ps, host_ps, max(first_issue_ps, 0), both_ps)
        return cost

    def kernel_spans(self, op: KernelRun, rank: int, start_ps: int, host_ps: int) -> tuple[Span, ...]:
        """Lay out the kernels of a run relative to its start, if detail is asked for."""
        if not self.detail:
            return ()
        spans = []
        end_ps = start_ps
        for kernel in op.kernels:
            host_ps += self.costs.issue_ps(kernel, rank)
            begin_ps = max(end_ps, host_ps)
            wait_ps = begin_ps - end_ps
            end_ps = begin_ps + self.costs.kernel_ps(kernel, rank)
            spans.append(Span(kernel, rank, COMPUTE, begin_ps - start_ps, end_ps - start_ps, -1, wait_ps))
        return tuple(spans)

    def block(self, block: Block, rank: int, kind: int, lead_ps: int) -> BlockResult:
        """Return what a block does whose host has a lead of ``lead_ps`` when it starts.

        The outside reaches into a block only through that lead: one result is kept for an ample lead, and one for
        every smaller lead that occurs. Where nothing runs beside compute every time in it is the later one of two: what
        the device allows from its start, and what the host allows from when it began; both are then known from the
        ample lead and from none.
        """
        ample = self._known(block, rank, kind, FAR_AHEAD_PS)
        if lead_ps >= ample.needed_lead_ps:
            return ample
        if (
            self.detail
            or lead_ps == 0
            or not (self.waits(block) or self._serial.of(block, lambda one: is_serial(one.tasks)))
        ):
            return self._known(block, rank, kind, lead_ps)
        key = (id(block), kind, lead_ps)
        if key not in self._blocks:
            self._blocks[key] = between(ample, self._known(block, rank, kind, 0), lead_ps)
        return self._blocks[key]

    def joint(self, parts: Sequence[PassPart]) -> JointResult:
        """Return what a pass of several ranks does, given when each begins and how far its host is ahead.

        As of a block, one result is kept for ample leads, and one for each other combination that occurs.
        """
        ample = self._known_jointly([part._replace(lead_ps=FAR_AHEAD_PS) for part in parts])
        if all(part.lead_ps >= one.needed_lead_ps for part, one in zip(parts, ample.results, strict=True)):
            return ample
        return self._known_jointly(parts)

    def touches(self, used: frozenset[int], links: Collection[int]) -> bool:
        """Whether a flow, or another pass, takes links that a pass uses; asked again and again about the same two."""
        key = (id(used), id(links))
        known = self._touching.get(key)
        if known is None:
            if len(self._touching) >= _MOST_PAIRS:
                self._touching.clear()
            known = self._touching[key] = (used, links, not used.isdisjoint(links))
        return known[2]

    def _known_jointly(self, parts: Sequence[PassPart]) -> JointResult:
        key = tuple((id(part.block), part.kind, part.offset_ps, part.lead_ps) for part in parts)
        result = self._joint.get(key)
        if result is None:
            firsts = self.distinct(parts)
            ran = sorted(set(firsts))
            found = self._run_jointly(self, [parts[place] for place in ran])
            by_place = dict(zip(ran, found.results, strict=True))
            result = JointResult(tuple(by_place[place] for place in firsts), found.links)
            self._joint[key] = result
        return result

    def distinct(self, parts: Sequence[PassPart]) -> list[int]:
        """Return, for each part, the first that does the same on the same kind of rank from the same time on: one stands for all."""
        firsts: list[int] = []
        by_start: dict[tuple[int, int, int], list[int]] = {}
        for place, part in enumerate(parts):
            rivals = by_start.setdefault((part.kind, part.offset_ps, part.lead_ps), [])
            first = next((rival for rival in rivals if self._are_equal(parts[rival].block, part.block)), place)
            if first == place:
                rivals.append(place)
            firsts.append(first)
        return firsts

    def _are_equal(self, one: Block, other: Block) -> bool:
        key = (id(one), id(other))
        known = self._equal.get(key)
        if known is None:
            known = self._equal[key] = one.tasks == other.tasks
        return known

    def _known(self, block: Block, rank: int, kind: int, lead_ps: int) -> BlockResult:
        key = (id(block), kind, lead_ps)
        result = self._blocks.get(key)
        if result is None:
            result = self._blocks[key] = self._run_block(self, rank, block, lead_ps)
        return result


def _ops(block: Block) -> list[tuple[Op | Block, int]]:
    return counted(task.op for task in block.tasks)


def is_serial(tasks: Sequence[Task]) -> bool:
    """Whether compute never runs beside communication: each begins when all of the other that stands before it has ended."""
    ended: set[int] = set()
    before: dict[int, frozenset[int]] = {}
    last_compute: frozenset[int] = frozenset()
    for index, task in enumerate(tasks):
        if task.stream == HOST:
            continue
        done = frozenset().union(*(before[earlier] | {earlier} for earlier in task.after if earlier in before))
        others = {i for i in ended if (tasks[i].stream == COMPUTE) != (task.stream == COMPUTE)}
        if task.stream == COMPUTE:
            done |= last_compute
        if not others <= done:
            return False
        before[index] = done
        if task.stream == COMPUTE:
            last_compute = done | {index}
        ended.add(index)
    return True


def between(ample: BlockResult, without: BlockResult, lead_ps: int) -> BlockResult:
    """Return what a block does whose host has ``lead_ps``, from what it does with an ample lead and without any.

    Times are max-plus linear in the start of the device and that of the host (Baccelli et al., "Synchronization and
    Linearity", 1992): ``max(device path, host path - lead)``. Where exchanges meet on a link that is an approximation.
    """
    spans = []
    end_ps = 0
    for late, early in zip(without.spans, ample.spans, strict=True):
        start_ps = max(early.start_ps, late.start_ps - lead_ps)
        before_ps, end_ps = end_ps, max(early.end_ps, late.end_ps - lead_ps)
        work_ps = early.end_ps - early.start_ps - early.host_idle_ps
        wait_ps = max(0, start_ps - before_ps) if late.host_wait_ps else 0
        idle_ps = max(0, end_ps - start_ps - work_ps) if late.host_idle_ps else early.host_idle_ps
        spans.append(late._replace(start_ps=start_ps, end_ps=end_ps, host_wait_ps=wait_ps, host_idle_ps=idle_ps))
    return BlockResult(
        max(ample.duration_ps, without.duration_ps - lead_ps),
        ample.needed_lead_ps,
        tuple(spans),
        max(ample.issued_ps, without.issued_ps - lead_ps),
    )
