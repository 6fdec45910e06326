"""What if the machine were another: transfers priced on a topology, kernels rescaled through the kernel model."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from simulator.collectives import plan_collective, plan_transfer
from simulator.config.names import shipped_names
from simulator.errors import SimulatorError, TraceError
from simulator.kernels import RooflineKernels
from simulator.models.layer import GemmShape, PointwiseShape
from simulator.network.alpha_beta import AlphaBetaNetwork
from simulator.replay.network_whatif import change_transfers
from simulator.replay.whatif import noted
from simulator.topology import Topology
from simulator.topology.device import Device, load_device
from simulator.trace_io.reconstruct import Reconstruction
from simulator.trace_io.record import COMPUTE, CollectiveCall
from simulator.units import to_s

_GEMM = re.compile(r"gemm|cutlass|nvjet|cublas|xmma|conv|wgrad|dgrad|splitk|flash|fmha|attention|mma", re.IGNORECASE)
_DTYPES = (
    ("fp8", re.compile(r"e4m3|e5m2|fp8|qqtst", re.IGNORECASE)),
    ("bf16", re.compile(r"bf16|bfloat|s16816|flash|nvjet", re.IGNORECASE)),
    ("fp16", re.compile(r"half|fp16|f16|hgemm|h884|h1688|s884|s1688", re.IGNORECASE)),
    ("tf32", re.compile(r"tf32", re.IGNORECASE)),
)
_SIDES = tuple(int(2 ** (5 + 0.5 * i)) for i in range(20))
_ELEMENTS = tuple(2**i for i in range(8, 32, 2))


def on_topology(whole: Reconstruction, topology: Topology, *, measured_on: Topology | None = None) -> Reconstruction:
    """Run the communication on another machine's links.

    Parameters
    ----------
    whole : Reconstruction
    topology : Topology
        The new machine; rank r is GPU r of it.
    measured_on : Topology, optional
        The machine of the trace. With it every measured transfer is scaled by the ratio of the two predictions;
        without it the prediction for the new machine replaces the measurement.

    Raises
    ------
    TraceError
        If the topology has too few GPUs, or no communication in the trace carries a size.
    """
    if topology.n_gpus < whole.trace.world_size:
        raise TraceError(
            f"the trace has {whole.trace.world_size} ranks, topology {topology.name} has {topology.n_gpus} GPUs",
            hint="give a larger topology",
        )
    everybody = tuple(range(whole.trace.world_size))
    counts = {"priced": 0, "kept": 0}

    def change(call: CollectiveCall, duration_ns: int, fixed_ns: int) -> int:
        del fixed_ns
        new = lone_s(call, topology, everybody)
        old = lone_s(call, measured_on, everybody) if measured_on is not None else None
        if new is None or (measured_on is not None and not old):
            counts["kept"] += 1
            return duration_ns
        counts["priced"] += 1
        return round(new * 1e9 if old is None else duration_ns * new / old)

    edited = change_transfers(whole, change, f"communication runs on {topology.name}")
    if not counts["priced"]:
        raise TraceError(
            "no communication in the trace carries both a size and a kind",
            hint="record shapes, or give the execution traces beside it",
        )
    return noted(edited, f"{counts['priced']} transfers were priced, {counts['kept']} kept for lack of a size")


def lone_s(call: CollectiveCall, topology: Topology, everybody: tuple[int, ...]) -> float | None:
    """Return a call's time on a topology when nothing else is in flight, None where the call says too little."""
    if call.n_bytes < 0:
        return None
    try:
        if call.collective in ("send", "recv") and call.peer >= 0 and len(call.ranks) == 2:
            flow = plan_transfer(call.n_bytes, ((call.ranks[0], call.ranks[1]),), topology)
        else:
            name = "all_to_all" if call.collective == "send_recv" else call.collective
            eight_bit = "float8" in call.dtype.lower()
            flow = plan_collective(name, call.n_bytes, (call.ranks or everybody,), topology, eight_bit_float=eight_bit)
    except SimulatorError:
        return None
    network = AlphaBetaNetwork(topology)
    network.start(flow, 0)
    end_ps = network.next_completion_ps()
    return 0.0 if end_ps is None else to_s(end_ps)


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


def shipped_device(name: str) -> Device | None:
    """Return the shipped device that a trace's device name means, None where none fits.

    Examples
    --------
    >>> shipped_device("NVIDIA H100 80GB HBM3").name
    'h100-sxm5-80g'
    >>> shipped_device("Tesla V100-SXM2-16GB").name
    'v100-sxm2-16g'
    """
    text = name.lower().replace(" ", "-").replace("gb", "g").replace("hbm3", "sxm")
    family = next((word for word in ("h200", "h100", "b200", "a100", "v100") if word in text), None)
    if family is None:
        return None
    candidates = [device for device in shipped_names("devices") if device.startswith(family)]
    words = set(re.findall(r"[a-z]+|\d+g?", text))
    best = max(candidates, key=lambda c: (len(words & set(re.findall(r"[a-z]+|\d+g?", c))), c), default=None)
    return None if best is None else load_device(best)
