"""Changes of what goes between ranks: other bandwidth and latency, or another machine's links.

As everything here that changes a reconstruction, each function returns a new one and notes what it assumed; they compose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from simulator.collectives import plan_collective, plan_transfer
from simulator.errors import SimulatorError, TraceError
from simulator.network import lone_flow_s
from simulator.topology import Topology
from simulator.trace_io.causes import RankPlan
from simulator.trace_io.reconstruct import Reconstruction, noted
from simulator.trace_io.trace_record import CollectiveCall

#: largest part of a transfer that is taken not to depend on its size: an assumption; launch and first hops of NCCL's
#: small messages take about this long
SHORT_NS = 10_000

#: (call, transfer in nanoseconds, part of it that does not depend on the size) -> new transfer
TransferChange = Callable[[CollectiveCall, int, int], int]


def transfers(whole: Reconstruction) -> Iterable[tuple[CollectiveCall, int]]:
    """Yield every communication with its time in nanoseconds: of joined ones the transfer, of others the kernel."""
    yield from zip(whole.calls, whole.transfer_ns, strict=True)
    for plan in whole.plans:
        for op in plan.alone:
            yield plan.call(op), int(plan.duration_ns[op])


def shortest(plan: RankPlan) -> dict[CollectiveCall, int]:
    """Return the shortest unjoined kernel of every call that comes three times or more."""
    found: dict[CollectiveCall, list[int]] = {}
    for op in plan.alone:
        call = plan.call(op)
        if call.n_bytes >= 0:
            found.setdefault(replace(call, sequence=-1), []).append(int(plan.duration_ns[op]))
    return {call: min(times) for call, times in found.items() if len(times) > 2}


def change_transfers(whole: Reconstruction, change: TransferChange, text: str) -> Reconstruction:
    """Apply ``change`` to every communication, joined or not.

    Of an unjoined kernel what it lasted longer than the shortest of its kind is waiting, and stays.
    """
    fixed: dict[tuple[str, tuple[int, ...]], int] = {}
    for call, duration in transfers(whole):
        key = (call.collective, call.ranks)
        fixed[key] = min(fixed.get(key, SHORT_NS), duration)

    def new(call: CollectiveCall, duration: int) -> int:
        return change(call, duration, fixed[(call.collective, call.ranks)])

    changed = tuple(new(call, duration) for call, duration in zip(whole.calls, whole.transfer_ns, strict=True))
    plans = change_unjoined(whole, lambda call, transfer, duration: duration + new(call, transfer) - transfer)
    return noted(whole, text, transfer_ns=changed, plans=plans)


def change_unjoined(whole: Reconstruction, change: Callable[[CollectiveCall, int, int], int]) -> tuple[RankPlan, ...]:
    """Give kernels that were not joined the durations that follow from their call, their transfer and their present duration."""
    plans = []
    for plan in whole.plans:
        durations = plan.duration_ns.copy()
        least = shortest(plan)
        for op in plan.alone:
            call, duration = plan.call(op), int(durations[op])
            durations[op] = change(call, least.get(replace(call, sequence=-1), duration), duration)
        plans.append(replace(plan, duration_ns=durations))
    return tuple(plans)


def scale_communication(whole: Reconstruction, *, bandwidth: float = 1.0, latency_s: float = 0.0) -> Reconstruction:
    """Multiply the bandwidth of every transfer, and add to its latency.

    The part of a transfer that does not depend on its size is taken as the shortest transfer of the same collective
    and group in the trace, at most 10 µs; waiting for other ranks is not part of the transfer and follows from the
    replay.
    """
    if bandwidth <= 0:
        raise TraceError(f"bandwidth factor {bandwidth:g}: must be positive")

    def change(call: CollectiveCall, duration_ns: int, fixed_ns: int) -> int:
        del call
        fixed = min(fixed_ns, duration_ns)
        return max(0, round(fixed + (duration_ns - fixed) / bandwidth + latency_s * 1e9))

    text = f"transfers at {bandwidth:g} times the bandwidth and {latency_s * 1e6:+g} us latency"
    return change_transfers(whole, change, text)


def on_topology(whole: Reconstruction, topology: Topology, *, measured_on: Topology | None = None) -> Reconstruction:
    """Run the communication on another machine's links.

    Rank r is GPU r of the new machine. With ``measured_on``, the machine of the trace, every measured transfer is
    scaled by the ratio of the two predictions; without it the prediction for the new machine replaces the measurement.
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
        new = call_alone_s(call, topology, everybody)
        old = call_alone_s(call, measured_on, everybody) if measured_on is not None else None
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


def call_alone_s(call: CollectiveCall, topology: Topology, everybody: tuple[int, ...]) -> float | None:
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
    return lone_flow_s(flow, topology, "alpha-beta")
