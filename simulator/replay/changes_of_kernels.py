"""Changes of what a rank computes: kernels and host at another speed, or kernels on another device."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from simulator.errors import TraceError
from simulator.kernels import RooflineKernels
from simulator.models.layer import GemmShape, PointwiseShape
from simulator.topology.device import Device
from simulator.trace_io.reconstruct import Reconstruction, noted
from simulator.trace_io.trace_record import COMPUTE

_GEMM = re.compile(r"gemm|cutlass|nvjet|cublas|xmma|conv|wgrad|dgrad|splitk|flash|fmha|attention|mma", re.IGNORECASE)
_DTYPES = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|qqtst", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat|s16816|flash|nvjet", re.IGNORECASE)),
    ("fp16", re.compile(r"half|fp16|f16|hgemm|h884|h1688|s884|s1688", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
)
_SIDES = tuple(int(2 ** (5 + 0.5 * i)) for i in range(20))
_ELEMENTS = tuple(2**i for i in range(8, 32, 2))


def scale_kernels(whole: Reconstruction, factor_of: Callable[[int, str], float], note: str = "") -> Reconstruction:
    """Multiply the duration of every compute kernel.

    ``factor_of`` gives the factor by global rank and name of the kernel; below 1 is faster.
    """
    plans = []
    for plan in whole.plans:
        by_name = [factor_of(plan.rank.rank, name) for name in plan.rank.names]
        if min(by_name, default=0.0) < 0:
            raise TraceError(f"a kernel of rank {plan.rank.rank} would take a negative time")
        factors = np.array(by_name)[plan.rank.ops.name]
        factors[plan.rank.ops.kind != COMPUTE] = 1.0
        plans.append(replace(plan, duration_ns=np.rint(plan.duration_ns * factors).astype(np.int64)))
    return noted(whole, note or "compute kernels were rescaled", plans=tuple(plans))


def scale_host(whole: Reconstruction, factor: float) -> Reconstruction:
    """Multiply all host time, for example 0.5 for a host that issues twice as fast.

    In traces without launches the host's time shows as gaps before operations: those are scaled.
    """
    plans = []
    for plan in whole.plans:
        launches = plan.rank.has_launches
        plans.append(
            replace(
                plan,
                issue_ns=np.rint(plan.issue_ns * factor).astype(np.int64),
                lead_ns=plan.lead_ns if launches else np.rint(plan.lead_ns * factor).astype(np.int64),
                waits=tuple(replace(wait, work_ns=round(wait.work_ns * factor)) for wait in plan.waits),
            )
        )
    return noted(whole, f"host time was multiplied by {factor:g}", plans=tuple(plans))


def capture(whole: Reconstruction) -> Reconstruction:
    """Launch what lies between two waits of the host, within a step, as one CUDA graph.

    The host's time up to the first kernel of a graph stays; kernels behind it cost no host time. Gaps on the device between
    them stay as they were measured: a graph may shorten them, which a recording without graphs does not tell.
    """
    plans = []
    for plan in whole.plans:
        if not plan.rank.has_launches:
            raise TraceError(f"rank {plan.rank.rank} launches nothing that a graph could hold")
        kept = np.zeros(len(plan.order), bool)
        kept[[wait.before for wait in plan.waits]] = True
        kept[np.isin(plan.order, [op for _, op in plan.first])] = True
        kept[:1] = True
        plans.append(replace(plan, issue_ns=np.where(kept, plan.issue_ns, 0)))
    text = "kernels between two waits of the host are launched as one CUDA graph: only its first one costs host time"
    return noted(whole, text, plans=tuple(plans))


def on_device(whole: Reconstruction, device: Device, measured_on: Device) -> Reconstruction:
    """Rescale every compute kernel from one device to another through the kernel model.

    A trace holds no shapes. A kernel is taken for a square matrix product if its name says so, else for a pointwise
    kernel; of either kind the size that takes the measured time on the measured device is the one that is priced on
    the new device. Where a device has no tensor cores for the dtype, the same kernel in half precision is meant.
    """
    used: dict[str, int] = {}
    curves: dict[tuple[bool, str], tuple[list[float], list[float]]] = {}
    plans = []
    for plan in whole.plans:
        duration = plan.duration_ns.copy()
        for name_index, name in enumerate(plan.rank.names):
            mine = np.flatnonzero((plan.rank.ops.name == name_index) & (plan.rank.ops.kind == COMPUTE))
            if not len(mine):
                continue
            kind = _class(name)
            used[kind[1]] = used.get(kind[1], 0) + len(mine) * kind[0]
            times, ratios = curves.setdefault(kind, _curve(device, measured_on, *kind))
            factors = np.interp(np.log(np.maximum(duration[mine], 1) / 1e9), times, ratios)
            duration[mine] = np.rint(duration[mine] * factors).astype(np.int64)
        plans.append(replace(plan, duration_ns=duration))
    text = f"compute runs on {device.name} instead of {measured_on.name}"
    missing = [dtype for dtype, count in used.items() if count and _tensor_dtype(dtype, device) != dtype]
    if missing:
        text += f"; {device.name} has no {' or '.join(sorted(missing))}: such kernels run in fp16"
    return noted(whole, text, plans=tuple(plans))


def _tensor_dtype(dtype: str, device: Device) -> str:
    """Return the dtype in which a device runs a kernel of another one: half precision where it lacks bf16 or fp8."""
    lacks = dtype in ("bf16", "fp8") and dtype not in device.peak_flops_per_s
    return "fp16" if lacks and "fp16" in device.peak_flops_per_s else dtype


def _class(name: str) -> tuple[bool, str]:
    """Whether a kernel multiplies matrices, and in which dtype."""
    if not _GEMM.search(name):
        return False, "bf16"
    return True, next((dtype for dtype, pattern in _DTYPES if pattern.search(name)), "fp32")


def _curve(new: Device, old: Device, matrix: bool, dtype: str) -> tuple[list[float], list[float]]:
    """Logarithm of the time on the old device, ascending, and the ratio new over old at it."""
    model = RooflineKernels()
    points = []
    for size in _SIDES if matrix else _ELEMENTS:
        before, after = (model.duration_s(_shape(matrix, size, _tensor_dtype(dtype, d)), d) for d in (old, new))
        points.append((float(np.log(before)), after / before))
    points.sort()
    return [x for x, _ in points], [y for _, y in points]


def _shape(matrix: bool, size: int, dtype: str) -> GemmShape | PointwiseShape:
    if matrix:
        return GemmShape(m=size, n=size, k=size, dtype=dtype)
    return PointwiseShape(name="add", n_elements=size, read_bytes=4.0 * size, written_bytes=2.0 * size)
