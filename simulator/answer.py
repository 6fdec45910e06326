"""The documented answer: a Result as plain data, with bottleneck, interval, advice and provenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simulator import __version__
from simulator.analysis.confidence import features_of, interval, shipped_table
from simulator.analysis.memory_trace import memory_points
from simulator.analysis.passes import passes_of
from simulator.simulation import Result
from simulator.timeline import MemoryPoint

if TYPE_CHECKING:
    from simulator.memory import MemoryReport


def to_json(result: Result) -> dict[str, Any]:
    """Return the documented answer as plain data."""
    plan, metrics, memory, spec = result.plan, result.metrics, result.memory, result.spec
    seconds = metrics.iteration_time_s
    flops = result.model.model_flops_per_sequence * plan.global_batch
    per_gpu = flops / seconds / plan.gpus
    dtype = plan.precision.removeprefix("amp_")
    return {
        "iteration_time_s": seconds,
        "samples_per_s": plan.global_batch / seconds,
        "tokens_per_s": plan.global_batch * plan.sequence_length / seconds,
        "tflops_per_gpu": per_gpu / 1e12,
        "mfu": per_gpu / result.topology.device(0).peak(dtype),
        "breakdown": {f"{name}_s": value for name, value in metrics.breakdown_s.items()},
        "communication_fraction": metrics.communication_fraction,
        "communication": metrics.communication,
        "memory": {**_bytes_of(memory), "peak_at": memory.peak_at, "fits": memory.fits},
        "bottleneck": bottleneck(result),
        "confidence": confidence(result),
        "provenance": {
            "version": __version__, "scenario": result.scenario.to_dict(), "digest": result.scenario.digest(),
            "model_parameters": spec.n_parameters, "device": result.topology.device(0).name,
            "n_events": result.timeline.n_events, "not_modelled": not_modelled(result),
        },
    }  # fmt: skip


def memory_over_time(result: Result) -> dict[int, list[MemoryPoint]]:
    """Return the memory over the step of the first rank of every pipeline stage, by rank."""
    passes = passes_of(result.timeline)
    return {
        report.rank: memory_points(_bytes_of(report), passes.get(report.rank, ()), result.timeline.makespan_ps)
        for report in result.memory.stages
    }


def _bytes_of(memory: MemoryReport) -> dict[str, int]:
    return {
        **{f"{name}_bytes": n for name, n in memory.by_category.items()}, "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes, "peak_bytes": memory.peak_bytes,
        "capacity_bytes": memory.capacity_bytes,
    }  # fmt: skip


def not_modelled(result: Result) -> list[str]:
    """Name what the answer leaves out because an input does not say it."""
    if result.topology.storage is None and not result.plan.sample_time_s:
        return ["reading data: the cluster file has no storage section"]
    return []


def bottleneck(result: Result) -> dict[str, Any] | None:
    """Return the link that is busy for the largest share of the iteration."""
    if not result.link_busy_s:
        return None
    index = max(result.link_busy_s, key=lambda i: (result.link_busy_s[i], -i))
    link = result.topology.links[index]
    return {
        "link": f"{link.source} -> {link.target}", "kind": link.kind, "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "busy_s": result.link_busy_s[index], "utilization": result.link_busy_s[index] / result.metrics.iteration_time_s,
    }  # fmt: skip


def confidence(result: Result) -> dict[str, Any]:
    """Return the 80 % interval that the residuals of comparable measured runs suggest."""
    device, seconds = result.topology.device(0), result.metrics.iteration_time_s
    table = shipped_table()
    if table.rows:
        found = interval(features_of(result.plan, device), table)
        # where comparable runs were all slower (or faster) than predicted, the prediction itself is the near end
        low, high = min(found.low, 1.0), max(found.high, 1.0)
        return {"low_s": seconds * low, "high_s": seconds * high, "basis": found.basis}
    error = max(0.1, float(device.kernel_error))
    basis = f"kernel model of {device.name}: {device.kernel_basis}"
    return {"low_s": seconds * (1 - error), "high_s": seconds * (1 + error), "basis": basis}
