"""The answer with what needs further simulations or a run around it: explanation, whole run, and a way out of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from simulator.analysis.critical_path import path_rows
from simulator.analysis.explain import explain as rank_changes
from simulator.answer import to_json as answer_of
from simulator.errors import InfeasiblePlanError
from simulator.explore.trials import Trials, knobs_of, options_of
from simulator.explore.whole_run import RunRequest, whole_run
from simulator.models.recorded import RecordedModule
from simulator.plan import ParallelPlan
from simulator.simulation import Result, lower_scenario
from simulator.units import format_bytes


def to_json(result: Result, request: RunRequest | None = None) -> dict[str, Any]:
    """Return the documented answer as plain data, with ``whole_run`` where a run is asked about.

    Raises
    ------
    InfeasiblePlanError
        If the run that is asked about would never end.
    """
    answer = answer_of(result)
    if request is None:
        return answer
    run = whole_run(request, answer, result.plan, result.topology, result.spec.n_parameters)
    return {**answer, "whole_run": run.to_dict()}


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
        What :func:`simulator.analysis.explain.explain` returns, and ``critical_path``: rows with ``kind``, ``seconds``,
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
