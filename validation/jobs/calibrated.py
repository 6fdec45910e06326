"""A kernel model calibrated in minutes, and jobs simulated with it.

Per family of kernels it has a start-up time and a rate, fitted to calls timed on this machine. It knows nothing of tiles
or caches; it interpolates between the sizes that were timed around the ones it is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.collectives import plan_collective, plan_transfer
from simulator.engine import Costs, Interference, run
from simulator.errors import CalibrationError
from simulator.models.layer import AttentionShape, GemmShape, KernelShape
from simulator.network import lone_flow_s
from simulator.network.base import Flow
from simulator.network.flow import FlowNetwork
from simulator.program.op import Collective, Kernel, Transfer
from simulator.timeline import Timeline
from simulator.topology.device import Device
from simulator.topology.graph import Topology
from simulator.units import to_ps
from validation.jobs.job_programs import JobProgram

#: stands in for pointwise kernels that have no call of their own
_FALLBACK = "add forward"
#: one line prices the step of the machine, however it is made
_OPTIMIZERS = ("adamw_fused", "adamw_foreach")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """``time = start_s + work / rate``."""

    start_s: float
    s_per_unit: float

    def at(self, work: float) -> float:
        """Seconds for some work."""
        return self.start_s + work * self.s_per_unit


def family_of(shape: KernelShape) -> str:
    """Name of the family that a shape is priced with.

    Examples
    --------
    >>> family_of(GemmShape(m=1, n=1, k=1, kernel_pass="dgrad"))
    'gemm dgrad'
    """
    if isinstance(shape, GemmShape):
        return f"gemm {shape.kernel_pass}"
    if isinstance(shape, AttentionShape):
        return f"attention {shape.kernel_pass}"
    return f"{shape.name} {shape.kernel_pass}"


def kind_of(shape: KernelShape) -> str:
    """Coarse kind for tables: gemm, attention, optimizer, or pointwise."""
    if shape.name in _OPTIMIZERS:
        return "optimizer"
    return {GemmShape: "gemm", AttentionShape: "attention"}.get(type(shape), "pointwise")


def work_of(shape: KernelShape) -> float:
    """FLOPs of products and attention, bytes of everything else."""
    return shape.n_bytes if kind_of(shape) == "pointwise" else shape.n_flops


def fit_line(work: Sequence[float], times_s: Sequence[float]) -> Line:
    """Fit a line to relative errors; neither start-up nor rate is negative.

    Examples
    --------
    >>> fit_line([1e6, 2e6], [2e-3, 3e-3])
    Line(start_s=0.001, s_per_unit=1e-09)
    """
    if not times_s or min(times_s) <= 0:
        raise CalibrationError("a kernel family cannot be calibrated without positive times")
    times, amount = np.asarray(times_s), np.asarray(work)
    rows = np.stack([np.ones_like(amount), amount / max(amount.max(), 1.0)], axis=1) / times[:, None]
    start, slope = np.linalg.lstsq(rows, np.ones_like(times), rcond=None)[0]
    if start < 0:
        start, slope = 0.0, float(np.exp(np.mean(np.log(times / rows.T[1] / times))))
    if slope < 0 or len(set(work)) == 1:
        start, slope = float(np.exp(np.mean(np.log(times)))), 0.0
    return Line(start_s=round(float(start), 12), s_per_unit=float(f"{slope / max(amount.max(), 1.0):.6g}"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedKernels:
    """KernelModel of the machine that was timed."""

    lines: Mapping[str, Line]  #: By family, see :func:`family_of`.
    optimizer: Line  #: Per tensor, and per element.
    n_tensors: int  #: Tensors that the optimizer of the simulated rank updates.
    #: Of the framework around every kernel: Python and autograd per kernel, first touch of new memory per byte.
    overhead: Line = field(default=Line(start_s=0.0, s_per_unit=0.0))
    fallback: Line = field(default=Line(start_s=5e-6, s_per_unit=1e-10))

    def duration_s(self, shape: KernelShape, device: Device) -> float:
        """Seconds of a kernel here, in a training step; the device is the one that was timed."""
        if kind_of(shape) == "optimizer":
            return self.optimizer.start_s * self.n_tensors + getattr(shape, "n_elements", 0) * self.optimizer.s_per_unit
        return self.alone_s(shape) + self.overhead.at(shape.n_bytes)

    def alone_s(self, shape: KernelShape) -> float:
        """Seconds of a kernel that is called again and again."""
        line = self.lines.get(family_of(shape)) or self.lines.get(_FALLBACK, self.fallback)
        return line.at(work_of(shape))


def fit_lines(measured: Iterable[tuple[KernelShape, float]]) -> dict[str, Line]:
    """Fit one line per family to timed shapes."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for shape, seconds in measured:
        points[family_of(shape)].append((work_of(shape), seconds))
    return {family: fit_line(*zip(*values, strict=True)) for family, values in points.items()}


class _Costs(Costs):
    """Kernels of each rank as calibrated, communication from the topology; a CPU issues what it computes."""

    def __init__(self, topology: Topology, kernels: Sequence[CalibratedKernels], interference: Interference) -> None:
        self._topology = topology
        self._kernels = kernels
        self._interference = interference

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Calibrated duration, unless the program states one."""
        if kernel.shape is None:
            return to_ps(kernel.duration_s or 0.0)
        return to_ps(self._kernels[rank].duration_s(kernel.shape, self._topology.device(rank)))

    def flow(self, op: Collective | Transfer) -> Flow:
        """What gloo does between the ranks."""
        if isinstance(op, Transfer):
            return plan_transfer(op.n_bytes, op.pairs, self._topology)
        return plan_collective(op.collective, op.n_bytes, op.groups, self._topology)

    def interference(self, op: Collective) -> Interference:
        """Communication runs on the processors that compute."""
        return self._interference


def simulate_job(job: JobProgram, topology: Topology, kernels: CalibratedKernels, *, share: float = 1.0) -> Timeline:
    """Simulate one step of a job with calibrated kernels.

    ``share`` is what compute and communication keep of their speed beside each other: both need the processors.
    """
    own = [replace(kernels, n_tensors=n_tensors) for n_tensors in job.n_tensors]
    return run(job.program, _Costs(topology, own, Interference(share, share)), lambda: FlowNetwork(topology))


def message_s(kind: str, n_bytes: int, topology: Topology) -> float:
    """Predicted seconds of one message by itself: a collective of all ranks, or ``p2p`` from the first to the second."""
    if kind == "p2p":
        return lone_flow_s(plan_transfer(n_bytes, ((0, 1),), topology), topology)
    groups = (tuple(range(topology.n_gpus)),)
    return lone_flow_s(plan_collective(kind, n_bytes, groups, topology), topology)
