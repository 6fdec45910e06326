"""The documented answer: a Result as plain data, with bottleneck, interval, advice and provenance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator import __version__
from simulator.errors import InfeasiblePlanError
from simulator.models.recorded import RecordedModule
from simulator.parallel.mesh import Mesh
from simulator.plan import ParallelPlan
from simulator.report.confidence import features_of, interval, shipped_table
from simulator.report.critical_path import path_rows
from simulator.report.explain import explain as rank_changes
from simulator.report.memory_trace import MemoryPoint, memory_points
from simulator.report.passes import passes_of
from simulator.simulation import Result, lower_scenario
from simulator.trials import Trials, knobs_of, options_of
from simulator.units import format_bytes
from simulator.whole_run import RunRequest, whole_run

if TYPE_CHECKING:
    from simulator.memory import MemoryReport
    from simulator.report.page import Report


def to_json(result: Result, request: RunRequest | None = None) -> dict[str, Any]:
    """Return the documented answer as plain data, with ``whole_run`` where a run is asked about.

    Raises
    ------
    InfeasiblePlanError
        If the run that is asked about would never end.
    """
    answer = _of_iteration(result)
    if request is None:
        return answer
    run = whole_run(request, answer, result.plan, result.topology, result.spec.n_parameters)
    return {**answer, "whole_run": run.to_dict()}


def _of_iteration(result: Result) -> dict[str, Any]:
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


def explain(result: Result, *, say: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Say what decides the time and what would change it, every change simulated.

    Parameters
    ----------
    result : Result
        With detail, the kernels on the critical path are told apart.
    say : callable
        Told what is being tried.

    Returns
    -------
    dict
        What :func:`simulator.report.explain.explain` returns, and ``critical_path``: rows with ``kind``, ``seconds``,
        ``share`` and ``communication``.
    """
    trials = Trials(result)
    ranked = rank_changes(trials.baseline, list(knobs_of(trials)), list(options_of(trials)), say=say)
    return {"critical_path": path_rows(result.timeline), **ranked}


def document(
    results: Sequence[Result], explanation: Mapping[str, Any] | None = None, *, request: RunRequest | None = None
) -> dict[str, Any]:
    """Return what ``--json`` prints: one answer, or ``scaling``, a list of them with ``gpus`` added."""
    answers = [to_json(result, request) for result in results]
    rows = [{"gpus": result.plan.gpus, **answer} for result, answer in zip(results, answers, strict=True)]
    whole = answers[0] if len(answers) == 1 else {"scaling": rows}
    return whole if explanation is None else {**whole, "explanation": dict(explanation)}


def report(
    results: Sequence[Result],
    *,
    request: RunRequest | None = None,
    explanation: Mapping[str, Any] | None = None,
    given: Collection[str] = (),
) -> Report:
    """Make the HTML report of one result, or of several on growing numbers of GPUs, of which the last is shown.

    Parameters
    ----------
    results : sequence of Result
        The last one simulated with ``detail=True``, so that its timeline can be zoomed into.
    request : RunRequest, optional
        A whole run that is asked about.
    explanation : dict, optional
        As :func:`explain` returns it; without it the report has the critical path alone.
    given : collection of str
        Names of the settings that somebody made.
    """
    from simulator.report.page import Inputs, render

    last = results[-1]
    mesh = Mesh(last.plan, last.topology.gpus_per_node)
    return render(
        Inputs(
            document=document(results, explanation, request=request), scenario=last.scenario, topology=last.topology,
            timeline=last.timeline, link_busy_s=last.link_busy_s, fullest_rank=last.memory.rank,
            stages={rank: mesh.stage_of(rank) for rank in last.timeline.members}, given=given,
            explanation=explanation or {"critical_path": path_rows(last.timeline)},
        )
    )  # fmt: skip


def way_out(result: Result) -> str:
    """Return the smallest single change with which a plan that does not fit would fit, in words."""
    for label, plan in _smaller_plans(result):
        try:
            resolved = plan.resolve(result.topology.n_gpus)
            memory = lower_scenario(replace(result.scenario, plan=resolved), result.topology, result.spec)[2]
        except InfeasiblePlanError:
            continue
        if memory.fits:
            return f"{label} fits with {format_bytes(memory.peak_bytes)}"
    degrees = "--pp" if isinstance(result.spec, RecordedModule) else "--tp or --pp"
    return f"more GPUs with a larger {degrees} are needed"


def _smaller_plans(result: Result) -> Iterator[tuple[str, ParallelPlan]]:
    plan = result.plan
    open_batch = replace(plan, global_batch=0) if plan.pp == 1 else plan
    micro_batch = plan.micro_batch // 2
    while micro_batch:
        yield f"--micro-batch {micro_batch}", replace(open_batch, micro_batch=micro_batch)
        micro_batch //= 2
    for recompute in ("selective", "full"):
        yield f"--recompute {recompute}", replace(plan, recompute=recompute)
    if plan.attention == "eager":
        yield "--attention flash", replace(plan, attention="flash")
    for sharding in ("zero1", "zero2", "zero3"):
        yield f"--sharding {sharding}", replace(plan, sharding=sharding)
    if plan.framework == "hf-eager":
        yield "--sharding zero3 --framework fsdp", replace(plan, sharding="zero3", framework="fsdp")
    for tp in (2, 4, 8):
        if tp > plan.tp and plan.dp % (tp // plan.tp) == 0:
            yield f"--tp {tp}", replace(plan, tp=tp, dp=0, global_batch=0)
    for pp in (2, 4, 8):
        if pp > plan.pp and plan.dp % (pp // plan.pp) == 0:
            yield f"--pp {pp}", replace(plan, pp=pp, dp=0, global_batch=0)
    yield "--sharding zero3 --recompute full", replace(plan, sharding="zero3", recompute="full")
    yield (
        "--sharding zero3 --recompute full --micro-batch 1",
        replace(open_batch, sharding="zero3", recompute="full", micro_batch=1),
    )
