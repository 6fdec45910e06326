"""The answer with what needs further simulations or a run around it: explanation, whole run, and a way out of memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict, cast

from simulator.analysis.explain import Explanation
from simulator.answer import Answer, Result
from simulator.errors import InfeasiblePlanError
from simulator.explore.training_run import RunRequest, whole_run
from simulator.models.recorded import RecordedModule
from simulator.plan import ParallelPlan
from simulator.simulation import lower_scenario
from simulator.units import format_bytes


class Document(Answer):
    """What ``--json`` prints for one number of GPUs."""

    whole_run: NotRequired[dict[str, Any]]
    """Days, GPU hours, cost, energy and goodput, where the length of a run is given."""
    explanation: NotRequired[Explanation]
    """With ``--explain``."""


class ScalingRow(Document):
    """The answer for one of several numbers of GPUs."""

    gpus: int
    """The number of GPUs."""


class Scaling(TypedDict):
    """What ``--json`` prints for several numbers of GPUs."""

    scaling: list[ScalingRow]
    """One answer per number of GPUs."""
    explanation: NotRequired[Explanation]
    """Of the last one, with ``--explain``."""


def to_json(result: Result, request: RunRequest | None = None) -> Document:
    """Return the documented answer as plain data, with ``whole_run`` where a run is asked about.

    Raises
    ------
    InfeasiblePlanError
        If the run that is asked about would never end.
    """
    answer = cast(Document, {**result.answer})
    if request is not None:
        run = whole_run(request, answer, result.plan, result.topology, result.spec.n_parameters)
        answer["whole_run"] = run.to_dict()
    return answer


def document(
    results: Sequence[Result], explanation: Explanation | None = None, *, request: RunRequest | None = None
) -> Document | Scaling:
    """Return what ``--json`` prints: one answer, or ``scaling``, a list of them with ``gpus`` added."""
    answers = [to_json(result, request) for result in results]
    whole: Document | Scaling = answers[0]
    if len(answers) > 1:
        rows = [{"gpus": result.plan.gpus, **answer} for result, answer in zip(results, answers, strict=True)]
        whole = Scaling(scaling=cast(list[ScalingRow], rows))
    if explanation is not None:
        whole["explanation"] = explanation
    return whole


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
    open_batch = plan.without("global_batch") if plan.pp == 1 else plan
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
            yield f"--tp {tp}", replace(plan.without("dp", "global_batch"), tp=tp)
    for pp in (2, 4, 8):
        if pp > plan.pp and plan.dp % (pp // plan.pp) == 0:
            yield f"--pp {pp}", replace(plan.without("dp", "global_batch"), pp=pp)
    yield "--sharding zero3 --recompute full", replace(plan, sharding="zero3", recompute="full")
    yield (
        "--sharding zero3 --recompute full --micro-batch 1",
        replace(open_batch, sharding="zero3", recompute="full", micro_batch=1),
    )
