"""What a recorded job takes over what the models say of it, part by part: kernels, collectives, the host, gaps.

On processors computing threads dispatch their own operators, collectives take the cores that compute, and distributed
tensors dispatch every operator in Python. None of that grows with the work, so that it is held apart from it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np

from simulator.analysis.trace_difference import work_of
from simulator.analysis.usage import Usage
from simulator.arrays import BoolArray
from simulator.costs import ModelCosts
from simulator.identity import ByIdentity
from simulator.models.layer import AttentionShape, GemmShape, KernelShape, Layer, PointwiseShape
from simulator.network.base import Flow
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.replay.changes_of_links import shortest, transfers
from simulator.scenario import Scenario
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.trace_record import COMPUTE, OPERATOR, Int64, RankTrace
from simulator.units import to_ps, to_s

#: operators that compute; autograd's nodes and functions in Python have no namespace, or one of these
_COMPUTES = re.compile(r"^(?!autograd::|_?c10d)[\w.]+::")
#: what PyTorch calls the dispatch of a tensor that is implemented in Python, as distributed tensors are
_PYTHON = "PythonSubclass"
#: an operator that computes nothing: what it takes is what one dispatch takes
_VIEW = "aten::view"

#: what distributed tensors take beyond plain ones, in dispatches of one operator: of each projection in forward and backward, of
#: each of their parameters in AdamW's update, and of each parameter that ``fully_shard`` gathers, frees, reduces and updates.
#: Torch 2.13 recorded by this project, two ranks, gpt2-micro and gpt2-tiny of 2 blocks: 716 and 1030, 117 to 131, 674 and 457
VIEWS_PER_PROJECTION, VIEWS_PER_TENSOR, VIEWS_PER_SHARD = 870, 125, 565


def without_dispatch_ns(rank: RankTrace) -> Int64:
    """Return what every operation of a run on processors takes without dispatch.

    An operator's own time, without the operators within it, is work, unless it has been dispatched anew within itself, as one
    of a distributed tensor is: then its own time is what that took.
    """
    own = _own_times(rank)
    found = rank.ops.end_ns - rank.ops.start_ns
    for name, thread in enumerate(rank.streams):
        mine = np.flatnonzero(rank.ops.stream == name)
        if thread not in rank.threads or not len(mine):
            continue
        here = rank.host.thread == rank.threads.index(thread)
        start, dispatch = rank.host.start_ns[here], np.where(own.computes[here], 0, own.time_ns[here])
        place = np.argsort(start, kind="stable")
        before = np.concatenate(([0], np.cumsum(dispatch[place])))
        low = np.searchsorted(start[place], rank.ops.start_ns[mine], side="left")
        high = np.searchsorted(start[place], rank.ops.end_ns[mine], side="left")
        found[mine] -= before[high] - before[low]
    return found.clip(min=0)


def view_s(ranks: tuple[RankTrace, ...]) -> float:
    """Return the seconds that a processor takes to dispatch one operator: the median view, 0 where none was recorded."""
    found: list[int] = []
    for rank in ranks:
        if _VIEW in rank.names:
            own = _own_times(rank)
            found += own.time_ns[own.computes & (rank.host.name == rank.names.index(_VIEW))].tolist()
    return median(found) / 1e9 if found else 0.0


def dispatches_in_python(ranks: tuple[RankTrace, ...]) -> bool:
    """Whether tensors were recorded whose operators are dispatched in Python."""
    return any(_PYTHON in rank.names for rank in ranks)


class _Own(NamedTuple):
    time_ns: Int64  #: Of each host event without the operators within it; 0 for other events. Shape [n].
    computes: BoolArray  #: Whether it computes itself. Shape [n].


def _own_times(rank: RankTrace) -> _Own:
    """Tell the operators of every thread apart from those within them; a parent comes before its children."""
    host = rank.host
    computing = np.array([bool(_COMPUTES.match(name)) for name in rank.names], bool)
    computes = computing[host.name] if len(host) else np.empty(0, bool)
    own = np.zeros(len(host), np.int64)
    python = rank.names.index(_PYTHON) if _PYTHON in rank.names else -1
    start, end, names = host.start_ns.tolist(), host.end_ns.tolist(), host.name.tolist()
    open_ones: dict[int, list[int]] = {}
    operators = np.flatnonzero(host.kind == OPERATOR)
    for event in operators[np.lexsort((-host.end_ns[operators], host.start_ns[operators]))].tolist():
        around = open_ones.setdefault(int(host.thread[event]), [])
        while around and end[around[-1]] <= start[event]:
            around.pop()
        own[event] = end[event] - start[event]
        if around:
            own[around[-1]] -= own[event]
        for parent in around if names[event] == python else [p for p in around if names[p] == names[event]]:
            computes[parent] = False
        around.append(event)
    return _Own(own, computes)


#: what kernels are told apart by: finer kinds are named too differently by frameworks and compilers
PRODUCTS, ATTENTION, OTHER = "matrix products", "attention", "other kernels"
#: copies into gradient buckets, which stay where they are, and of shards, into memory that is new each time
BUCKETS, SHARDS = "copies of buckets", "copies of shards"
#: what does them on processors: a name that identifies the software -> kind of copies, names of all operators that do them
_COPIES = {
    "torch.distributed.ddp.reducer::copy_bucket_to_grad": (BUCKETS, re.compile("reducer::|AccumulateGrad$")),
    "fsdp::chunk_cat": (SHARDS, re.compile("^fsdp::|^aten::(copy_|clone)$")),
}
#: a collective ran alone if nothing computed beside it for more of its time than this
_ALONE = 0.5
#: (kind of work, phase), and (collective, ranks of the group)
KernelKey = tuple[str, str]
MessageKey = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What a recorded job takes over what the models say of it."""

    #: Factor on the model's time by kind. Work in a phase that has no kind of its own takes the phase's.
    kernels: Mapping[KernelKey, float] = field(default_factory=dict)
    messages: Mapping[MessageKey, float] = field(default_factory=dict)
    host: float = 1.0  #: Factor on the host's time per operation.
    gap_s: float = 0.0  #: Idle time of the device before every kernel.
    #: What dispatch takes beyond it before every kernel of a kind: of distributed tensors on processors.
    dispatch_s: Mapping[KernelKey, float] = field(default_factory=dict)

    def before_s(self, kernel: Kernel) -> float:
        """Seconds for which nothing computes before a kernel."""
        return self.gap_s + self.dispatch_s.get(_key(kernel), 0.0)

    def times(self, kernels: float, host: float) -> Efficiency:
        """Return it with all kernels and the host taking a factor as long."""
        scaled = {key: kernels * value for key, value in {(OTHER, ""): 1.0, **self.kernels}.items()}
        return replace(self, kernels=scaled, host=self.host * host)

    def of_kernel(self, kernel: Kernel) -> float:
        """Factor on a kernel."""
        work, phase = _key(kernel)
        places = ((work, phase), (work, ""), (OTHER, phase), (OTHER, ""))
        return next((self.kernels[place] for place in places if place in self.kernels), 1.0)

    def of_message(self, op: Collective | Transfer) -> float:
        """Factor on a communication; of a collective of a kind that was not recorded that of all of them."""
        other = 1.0 if isinstance(op, Transfer) else self.messages.get(("", 0), 1.0)
        return self.messages.get(_message_key(op), other)


class EfficientCosts(ModelCosts):
    """The models' costs, times the efficiency that a recording shows."""

    def __init__(self, topology: Topology, scenario: Scenario, efficiency: Efficiency) -> None:
        super().__init__(topology, scenario)
        self.efficiency = efficiency
        self._scaled: ByIdentity[Collective | Transfer, Flow] = ByIdentity()

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Device time of a kernel, the gap before it included."""
        factor = self.efficiency.of_kernel(kernel)
        return round(super().kernel_ps(kernel, rank) * factor) + to_ps(self.efficiency.before_s(kernel))

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time to issue one operation."""
        return round(super().issue_ps(op, rank) * self.efficiency.host)

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a communication: one that takes longer than modelled has more to do, at start and on the links."""
        return self._scaled.of(op, self._as_recorded)

    def _as_recorded(self, op: Collective | Transfer) -> Flow:
        flow, factor = super().flow(op), self.efficiency.of_message(op)
        if factor != 1.0:
            rate = flow.alone_bytes_per_s
            flow = replace(
                flow, latency_s=flow.latency_s * factor, n_bytes=flow.n_bytes * factor, alone_bytes_per_s=rate
            )
        return flow


def _key(kernel: Kernel) -> KernelKey:
    phase = {"recompute": "backward", "data": "forward"}.get(kernel.phase, kernel.phase)
    if phase != "optimizer" and isinstance(kernel.shape, PointwiseShape) and kernel.shape.name == "copy":
        return (BUCKETS if kernel.name.endswith("bucket") else SHARDS), phase
    return ("optimizer" if phase == "optimizer" else _work(kernel.shape)), phase


def _work(shape: KernelShape | None) -> str:
    if isinstance(shape, GemmShape):
        return PRODUCTS
    return ATTENTION if isinstance(shape, AttentionShape) else OTHER


def _message_key(op: Collective | Transfer) -> MessageKey:
    if isinstance(op, Transfer):
        return "message", 2
    return op.collective, len(op.groups[0]) if op.groups else 0


@dataclass(slots=True)
class Spent:
    """What a mean rank spends in a mean step, in seconds, and how many kernels of each kind it runs.

    ``launches`` says whether a host apart from the device issues its work, None where the recording does not show it.
    ``view_s`` is what a processor takes to dispatch one operator, 0 elsewhere; ``in_python`` says whether it dispatches those of
    some tensors in Python.
    """

    kernels: dict[KernelKey, float] = field(default_factory=lambda: defaultdict(float))
    messages: dict[MessageKey, float] = field(default_factory=lambda: defaultdict(float))
    host_s: float = 0.0
    gap_s: float = 0.0
    counts: dict[KernelKey, float] = field(default_factory=lambda: defaultdict(float))
    view_s: float = 0.0
    in_python: bool = False
    launches: bool | None = True

    def without_phases(self) -> dict[KernelKey, float]:
        """Kernels of forward and backward together."""
        found: dict[KernelKey, float] = defaultdict(float)
        for (work, phase), seconds in self.kernels.items():
            found[work, phase if phase == "optimizer" else ""] += seconds
        return found


def simulated_spent(timeline: Timeline, costs: EfficientCosts, ranks: list[int]) -> Spent:
    """Add up the simulated ranks that stand for the recorded ones; the gaps that were put before kernels apart."""
    alike = {member: rank for rank, members in timeline.members.items() for member in members}
    share: dict[int, float] = defaultdict(float)
    for rank in ranks:
        share[alike.get(rank, rank if rank in timeline.members else min(timeline.members))] += 1 / len(ranks)
    spent = Spent()
    for span, n_times in timeline.counted:
        times = share.get(span.rank, 0.0) * n_times
        for one in span.expand() if times else ():
            op, seconds = one.op, times * to_s(one.duration_ps)
            if isinstance(op, Collective | Transfer):
                spent.messages[_message_key(op)] += seconds
            elif isinstance(op, Kernel):
                gap_s = times * costs.efficiency.before_s(op)
                spent.kernels[_key(op)] += max(0.0, seconds - gap_s)
                spent.gap_s += gap_s
                spent.counts[_key(op)] += times
            if isinstance(op, Kernel | Collective | Transfer):
                spent.host_s += times * to_s(costs.issue_ps(op, span.rank))
    return spent


def recorded_spent(whole: Reconstruction, usages: Mapping[int, list[Usage]]) -> Spent:
    """Add up the recorded ranks over the steps that count."""
    launches = any(rank.has_launches for rank in whole.trace.ranks)
    spent = Spent(launches=launches or (False if any(len(rank.host) for rank in whole.trace.ranks) else None))
    n_rank_steps = sum(len(found) for found in usages.values())
    for plan in whole.plans:
        mine = usages.get(plan.rank.rank, [])
        inside = np.zeros(len(plan.rank.ops), bool)
        for usage in mine:
            inside |= (plan.rank.ops.start_ns >= usage.start_ns) & (plan.rank.ops.start_ns < usage.end_ns)
        work_ns = plan.duration_ns if spent.launches is not False else without_dispatch_ns(plan.rank)
        for key, op in _kernels_of(plan, inside):
            spent.kernels[key] += int(work_ns[op]) / 1e9 / n_rank_steps
            spent.counts[key] += 1 / n_rank_steps
        compute = inside & (plan.rank.ops.kind == COMPUTE)
        if spent.launches is False:  # threads take turns, so that one's gap is another's work
            gap_ns = sum(usage.idle_ns for usage in mine) + int((plan.duration_ns - work_ns)[compute].sum())
        else:
            gap_ns = int(plan.lead_ns[compute].sum())
        host_ns = int(plan.issue_ns[inside[plan.order]].sum())
        host_ns += sum(wait.work_ns for wait in plan.waits if inside[plan.order[wait.before]])
        spent.host_s += host_ns / 1e9 / n_rank_steps
        spent.gap_s += gap_ns / 1e9 / n_rank_steps
        for kind, taken_ns in _messages_of(whole, plan, inside, beside=spent.launches is not False):
            spent.messages[kind] += taken_ns / 1e9 / n_rank_steps
    if spent.launches is False and not any(rank.device for rank in whole.trace.ranks):
        spent.view_s, spent.in_python = view_s(whole.trace.ranks), dispatches_in_python(whole.trace.ranks)
    return spent


def _messages_of(
    whole: Reconstruction, plan: RankPlan, inside: BoolArray, *, beside: bool
) -> Iterator[tuple[MessageKey, float]]:
    """What each communication of a rank takes once the last one has arrived.

    Of a message, and of an unjoined kernel, that is what the shortest of its size takes. Where a collective beside compute takes the
    cores that compute (``beside`` is false), what those take that ran alone tells of all, by their bytes.
    """
    messages, least = _shortest_messages(whole), shortest(plan)
    seen: list[tuple[MessageKey, int, int, float]] = []
    for op in (op for op in plan.communication if inside[op]):
        call, lasted = plan.call(op), int(plan.duration_ns[op])
        size = max(call.group_size, len(call.ranks)) or whole.trace.world_size
        if call.collective in ("send", "recv"):
            yield ("message", 2), messages[call.n_bytes]
            continue
        alone_ns = min(lasted, least.get(replace(call, sequence=-1), lasted))
        taken_ns = whole.transfer_ns[plan.key[op]] if op in plan.key else alone_ns
        share = 1.0 if beside else 1.0 - _computing_share(plan, op, taken_ns)
        seen.append(((call.collective, size), taken_ns, call.n_bytes, share))
    for kind in dict.fromkeys(row[0] for row in seen):
        mine = [row[1:] for row in seen if row[0] == kind]
        alone = [row for row in mine if row[2] > _ALONE and row[1] > 0]
        all_bytes, sizes_known = sum(row[1] for row in mine), all(row[1] > 0 for row in mine)
        if beside or not sizes_known or not alone:
            yield kind, sum(row[0] for row in mine)
        else:
            yield kind, sum(row[0] for row in alone) * all_bytes / sum(row[1] for row in alone)


def _computing_share(plan: RankPlan, op: int, taken_ns: int) -> float:
    """Share of a transfer during which its rank computes."""
    ops, end = plan.rank.ops, int(plan.rank.ops.end_ns[op])
    compute = ops.kind == COMPUTE
    start, stop = (np.clip(times[compute], end - taken_ns, end) for times in (ops.start_ns, ops.end_ns))
    return min(1.0, float((stop - start).sum()) / max(taken_ns, 1))


def _shortest_messages(whole: Reconstruction) -> dict[int, int]:
    """Bytes -> nanoseconds of the shortest message of that size: whatever others take longer is waiting or contention.

    Neither end of a message says when it has arrived, only when the receiver looked; and contention is simulated.
    """
    found: dict[int, int] = {}
    for call, taken_ns in transfers(whole):
        if call.collective in ("send", "recv"):
            found[call.n_bytes] = min(taken_ns, found.get(call.n_bytes, taken_ns))
    return found


def _kernels_of(plan: RankPlan, inside: BoolArray) -> Iterator[tuple[KernelKey, int]]:
    works = [{PRODUCTS: PRODUCTS, ATTENTION: ATTENTION}.get(work_of(n, COMPUTE), OTHER) for n in plan.rank.names]
    for software, (copies, pattern) in _COPIES.items():
        if software in plan.rank.names:
            works = [copies if pattern.search(n) else work for n, work in zip(plan.rank.names, works, strict=True)]
    of_ddp = ["reducer::" in name for name in plan.rank.names]
    for op in np.flatnonzero(inside & (plan.rank.ops.kind == COMPUTE)).tolist():
        name = plan.rank.ops.name[op]
        phase = "backward" if of_ddp[name] else plan.phase[op]
        yield ("optimizer" if phase == "optimizer" else works[name], phase), op


def efficiency_of(recorded: Spent, simulated: Spent, dispatch_s: Mapping[KernelKey, float] | None = None) -> Efficiency:
    """Return what the recording takes over what was simulated; kinds that only one side knows count with the others.

    What dispatch of distributed tensors takes (``dispatch_s``, before each kernel of a kind) is no gap of other plans.

    Where the recording does not tell backward from forward, nothing does. A recording that shows the host of no device
    (a simulated one) leaves the host as modelled; a thread that computes itself has gaps and issues nothing.
    """
    kernels: dict[KernelKey, float] = {}
    left: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    phases = any(phase == "backward" for _, phase in recorded.kernels)
    seen, modelled = ((one.kernels if phases else one.without_phases()) for one in (recorded, simulated))
    for key in {**seen, **modelled}:
        sides = seen.get(key, 0.0), modelled.get(key, 0.0)
        if min(sides) > 0 and key[0] != OTHER:
            kernels[key] = sides[0] / sides[1]
        else:
            left[key[1]][0] += sides[0]
            left[key[1]][1] += sides[1]
    for phase, (seconds, expected) in left.items():
        if min(seconds, expected) > 0:
            kernels[(OTHER, phase)] = seconds / expected
    messages = {
        key: recorded.messages[key] / simulated.messages[key]
        for key in recorded.messages
        if recorded.messages[key] > 0 and simulated.messages.get(key, 0.0) > 0
    }
    collectives = [key for key in messages if key[0] != "message"]
    if collectives:
        common = [sum(side.messages[key] for key in collectives) for side in (recorded, simulated)]
        messages["", 0] = common[0] / common[1]
    if recorded.launches is None:
        return Efficiency(kernels=kernels, messages=messages)
    dispatch_s = dispatch_s or {}
    dispatched_s = sum(seconds * simulated.counts.get(key, 0.0) for key, seconds in dispatch_s.items())
    return Efficiency(
        kernels=kernels,
        messages=messages,
        host=recorded.host_s / simulated.host_s if recorded.launches and simulated.host_s else float(recorded.launches),
        gap_s=max(0.0, recorded.gap_s - dispatched_s) / max(sum(simulated.counts.values()), 1.0),
        dispatch_s=dispatch_s,
    )


def dispatch_of(
    plan: ParallelPlan, layers: Iterable[Layer], recorded: Spent, simulated: Spent
) -> dict[KernelKey, float]:
    """Return what dispatch of distributed tensors takes on a processor before a kernel, in seconds.

    Some frameworks fuse query, key and value: products are as many as were recorded for each that was simulated.
    """
    splits, backward = plan.framework_spec.splits, (PRODUCTS, "backward")
    is_tp = splits == "tensors"
    tensors = [one for layer in layers for one in layer.parameters if one.is_tensor_parallel or not is_tp]
    if splits not in ("tensors", "parameters") or not tensors:
        return {}
    per_tensor_s = (VIEWS_PER_TENSOR if is_tp else VIEWS_PER_SHARD) * recorded.view_s
    found = {("optimizer", "optimizer"): per_tensor_s * len(tensors) / plan.pp}
    if is_tp and simulated.counts.get(backward):
        # a projection's backward is one recorded operator and two simulated products, its forward one of either
        projections = 2 * recorded.counts.get(backward, 0.0) / simulated.counts[backward]
        products_s = VIEWS_PER_PROJECTION * recorded.view_s * projections / 3
        found |= {(PRODUCTS, "forward"): products_s, backward: products_s}
    return found
