"""The answer in full, as ``--json`` prints it: with a training run around it, an explanation, and ways out of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, cast

from simulator.answer import Answer, Result
from simulator.explore.named_settings import given_in, scenario_of, with_recipe
from simulator.faults import Faults
from simulator.models.recorded import RecordedModule, fit_plan
from simulator.simulation import simulate

if TYPE_CHECKING:  # what is asked for less often is loaded where it is
    from simulator.explore.answer_form import Document, Extras, Scaling
    from simulator.explore.run.run_request import RunRequest
    from simulator.explore.run.shared_cluster import ContendingJob, ContendingJobs


def to_json(result: Result, request: RunRequest | None = None, contending: ContendingJobs | None = None) -> Document:
    """Return the documented answer as plain data, with ``whole_run`` where a run is asked about.

    Parameters
    ----------
    contending : ContendingJobs, optional
        Jobs beside which the run goes through its steps, and writes its checkpoints.

    Raises
    ------
    InfeasiblePlanError
        If the run that is asked about would never end.
    """
    answer = cast("Document", {**result.answer})
    if request is not None:
        from simulator.explore.run.checkpoint_policy import policy_of
        from simulator.explore.run.goodput import checkpoint_of_job
        from simulator.explore.run.training_run import whole_run, written_beside

        step = _beside(result.answer, contending["jobs"][0]) if contending else result.answer
        others = contending["jobs"][1:] if contending else ()
        plan, topology = result.plan, result.topology
        stored = checkpoint_of_job(plan, topology, result.spec)
        policy = policy_of(request.policy, result, written_beside(stored, others, request, topology))
        answer["whole_run"] = whole_run(request, step, plan, topology, policy)
    return answer


def _beside(answer: Answer, job: ContendingJob) -> Answer:
    """Return the answer about a step that others slow down, for whom its GPUs wait."""
    confidence, slowdown = answer["confidence"], job["slowdown"]
    waits_s = answer["breakdown"]["exposed_communication_s"] + (slowdown - 1.0) * answer["iteration_time_s"]
    changed = {
        "iteration_time_s": slowdown * answer["iteration_time_s"],
        "breakdown": {**answer["breakdown"], "exposed_communication_s": waits_s},
        "confidence": {**confidence, **{end: slowdown * confidence[end] for end in ("low_s", "high_s")}},
    }  # fmt: skip
    return cast(Answer, {**answer, **changed})


def document(
    results: Sequence[Result], *, request: RunRequest | None = None, **extras: Unpack[Extras]
) -> Document | Scaling:
    """Return what ``--json`` prints: one answer, or ``scaling``, a list of them with ``gpus`` added."""
    answers = [to_json(result, request, extras.get("neighbours")) for result in results]
    if len(answers) == 1:
        return cast("Document", {**answers[0], **extras})
    rows = [{"gpus": result.plan.gpus, **answer} for result, answer in zip(results, answers, strict=True)]
    return cast("Scaling", {"scaling": rows, **extras})


def simulate_counts(
    settings: Mapping[str, Any],
    counts: Sequence[int] = (),
    *,
    module: RecordedModule | None = None,
    faults: Faults | None = None,
    detail: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Simulate settings on every number of GPUs, or on their own; all keep the micro-batch that was found for the first.

    Of several numbers each takes what the published recipe for it sets beside the settings.
    A recorded module takes the place of the model; with detail, timelines hold every single kernel.
    """
    results: list[Result] = []
    for count in counts or (0,):
        scenario = scenario_of(with_recipe({**settings, "gpus": count}) if count else settings)
        plan = scenario.plan
        if module is not None:
            plan = fit_plan(plan, module, has_framework="framework" in given_in(settings))
        if results and not plan.micro_batch:
            plan = replace(plan, micro_batch=results[0].plan.micro_batch)
        scenario = replace(scenario, plan=plan, faults=faults or scenario.faults)
        results.append(simulate(scenario, detail=detail, progress=say, spec=module))
    return results
