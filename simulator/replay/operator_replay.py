"""Replays execution traces, which hold operators and no times: priced by the kernel model and a topology.

What a Kineto trace measures is predicted here: kernels from the shapes of their tensors, host time from the device's
constants, collectives from their sizes. The order, the streams and the waits are those of the trace.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from simulator.collectives import plan_collective
from simulator.dtypes import element_bytes, our_name
from simulator.engine import Costs, run
from simulator.errors import TraceError
from simulator.kernels import RooflineKernels
from simulator.kernels.host import issue_s
from simulator.models.layer import GemmShape, KernelShape, PointwiseShape
from simulator.network.base import Flow
from simulator.network.flow import FlowNetwork
from simulator.program.op import Collective, HostWork, Kernel, Op, Phase, Transfer
from simulator.program.program import COMPUTE, HOST, Program, RankProgram, TaskList
from simulator.replay.replayed import NoLinks
from simulator.timeline import Timeline
from simulator.topology import Topology
from simulator.topology.device import Device
from simulator.trace_io.trace_record import COMMUNICATION, CollectiveCall, Operator, RankTrace, Trace
from simulator.units import to_ps

#: operators that launch no kernel: views, allocations, queries
NO_KERNEL = frozenset(
    f"aten::{word}"
    for word in (
        "view", "_unsafe_view", "as_strided", "_reshape_alias", "reshape", "t", "transpose", "permute", "select",
        "slice", "narrow", "expand", "squeeze", "unsqueeze", "alias", "detach", "detach_", "empty", "empty_like",
        "empty_strided", "resize_", "set_", "lift_fresh", "result_type", "is_pinned", "record_stream", "to", "item",
        "resolve_conj", "resolve_neg", "_has_compatible_shallow_copy_type", "unbind", "split", "chunk", "unflatten",
        "flatten", "view_as", "expand_as", "new_empty", "movedim", "swapaxes", "broadcast_to",
    )
)  # fmt: skip
_SYNCHRONISING = "aten::_local_scalar_dense"
_PRODUCTS = {"aten::mm": 0, "aten::bmm": 0, "aten::addmm": 1, "aten::baddbmm": 1, "aten::linear": 0, "aten::matmul": 0,
             "aten::_scaled_mm": 0}  # fmt: skip


class OperatorCosts(Costs):
    """Operators on one kind of device; without a topology that carries it communication takes no time."""

    def __init__(self, device: Device, topology: Topology | None) -> None:
        self.device, self.topology = device, topology
        self._kernels = RooflineKernels()

    def kind(self, rank: int) -> Hashable:
        """All ranks are equal."""
        del rank
        return self.device.name

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Time of the kernel model."""
        del rank
        assert kernel.shape is not None
        return to_ps(self._kernels.duration_s(kernel.shape, self.device))

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time of one eager operator."""
        del rank
        return 0 if isinstance(op, HostWork) else to_ps(issue_s(self.device, "eager", op.phase))

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a collective on the topology."""
        if self.topology is None or not isinstance(op, Collective) or len(op.groups[0]) < 2:
            return Flow(latency_s=0.0, n_bytes=0.0, label="free")
        return plan_collective(op.collective, op.n_bytes, op.groups, self.topology)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperatorReplay:
    """A predicted run of an execution trace."""

    timeline: Timeline
    #: Over all ranks.
    n_kernels: int
    n_communications: int
    device: str


def replay_operators(trace: Trace, device: Device, topology: Topology | None = None) -> OperatorReplay:
    """Predict the time of an execution trace.

    A topology is needed if anything communicates between several ranks.
    """
    if not any(rank.operators for rank in trace.ranks):
        raise TraceError(f"a trace of format {trace.format} holds no operators to price")
    together = _together(trace)
    writers = [_Writer(rank, trace.world_size, together) for rank in trace.ranks]
    n_communications = sum(writer.n_communications for writer in writers)
    if n_communications and trace.world_size > 1 and topology is None:
        raise TraceError(f"{n_communications} collectives need links", hint="name a cluster with --topology")
    alone = len(trace.ranks) == 1
    programs = tuple(
        RankProgram(
            rank=writer.rank.rank,
            members=tuple(range(trace.world_size)) if alone else (writer.rank.rank,),
            tasks=tuple(writer.tasks.tasks),
        )
        for writer in writers
    )
    network = topology if topology is not None else NoLinks()
    timeline = run(Program(ranks=programs), OperatorCosts(device, topology), lambda: FlowNetwork(network), detail=True)
    n_kernels = sum(writer.n_kernels for writer in writers)
    return OperatorReplay(timeline=timeline, n_kernels=n_kernels, n_communications=n_communications, device=device.name)


def _together(trace: Trace) -> bool:
    """Whether all ranks hold the same sequence of collectives, so that they can be joined by order."""
    sequences = {tuple((call.collective, call.group) for call in rank.calls) for rank in trace.ranks}
    return len(trace.ranks) > 1 and len(sequences) == 1


class _Writer:
    """Writes one rank: kernels in order, communication beside them, waits where the trace has them."""

    def __init__(self, rank: RankTrace, world_size: int, together: bool) -> None:
        self.rank, self.world_size, self.together = rank, world_size, together
        self.tasks = TaskList()
        self.n_kernels = self.n_communications = 0
        self._last = -1
        self._works: dict[int, int] = {}
        self._pending: set[int] = set()
        first_stream = rank.streams[rank.ops.stream[0]] if len(rank.ops) else ""
        for op, operator in enumerate(rank.operators):
            name = rank.names[rank.ops.name[op]]
            forward = rank.streams[rank.ops.stream[op]] == first_stream
            phase: Phase = "forward" if forward else "backward"
            self._add(op, name, operator, phase)

    def _add(self, op: int, name: str, operator: Operator, phase: Phase) -> None:
        if self.rank.ops.kind[op] == COMMUNICATION:
            self._communicate(self.rank.calls[self.rank.ops.call[op]], operator.work, phase)
        elif operator.work in self._works:
            self._pending.add(self._works[operator.work])
        elif name == _SYNCHRONISING and operator.on_device and self._last >= 0:
            self.tasks.add(HostWork(name="item", duration_s=0.0), HOST, (self._last,))
        elif operator.on_device and _launches(name):
            after = tuple(sorted(self._pending))
            self._pending.clear()
            kernel = Kernel(name=name, phase=phase, shape=shape_of(name, operator))
            self._last = self.tasks.add(kernel, COMPUTE, after)
            self.n_kernels += 1

    def _communicate(self, call: CollectiveCall, work: int, phase: Phase) -> None:
        group = call.ranks or tuple(range(self.world_size))
        self.n_communications += 1
        message = Collective(
            collective=call.collective
            if call.collective not in ("send", "recv", "unknown", "barrier")
            else "broadcast",
            axis=call.group or "world",
            n_bytes=max(call.n_bytes, 0),
            groups=(group,),
            name=call.collective,
            phase=phase,
        )
        key = self.n_communications if self.together and len(group) > 1 else None
        after = (self._last,) if self._last >= 0 else ()
        self._works[work] = self.tasks.add(message, f"comm {call.group}".rstrip(), after, key)


def _launches(name: str) -> bool:
    """Whether a leaf operator launches a kernel: library operators do, Python and autograd wrappers do not."""
    return "::" in name and name not in NO_KERNEL and not name.startswith(("c10d::", "torch::", "autograd::"))


def shape_of(name: str, operator: Operator) -> KernelShape:
    """Return the work of an operator: a matrix product by its inputs, else the bytes of its tensors.

    Examples
    --------
    >>> shape_of("aten::mm", Operator(shapes=((512, 12), (12, 18)), dtype="float")).k
    12
    """
    dtype = our_name(operator.dtype) or "fp32"
    first = _PRODUCTS.get(name)
    if first is not None and len(operator.shapes) > first + 1:
        a, b = operator.shapes[first], operator.shapes[first + 1]
        if len(a) > 1 and len(b) > 1:
            linear = name == "aten::linear"
            rows, columns = (prod(a[:-1]), b[0]) if linear else (a[-2], b[-1])
            batch = 1 if linear else prod(a[:-2])
            return GemmShape(m=max(rows, 1), n=max(columns, 1), k=max(a[-1], 1), batch=max(batch, 1), dtype=dtype)
    size = element_bytes(operator.dtype) or 4
    half = operator.n_bytes / 2
    return PointwiseShape(
        name="add", n_elements=max(1, int(half // size)), read_bytes=half, written_bytes=half, dtype=dtype
    )
