"""The answer in full, as ``--json`` prints it: with a training run around it, an explanation, and ways out of memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NotRequired, TypedDict, Unpack, cast

from simulator.analysis.explain import Explanation
from simulator.answer import Answer, Result
from simulator.explore.checkpoint_policy import policy_of
from simulator.explore.goodput import checkpoint_of
from simulator.explore.local_steps import LocalSteps
from simulator.explore.named_settings import given_in, scenario_of
from simulator.explore.neighbours import NeighbourJob, Neighbours, PlacementRow
from simulator.explore.network_trouble import Trouble
from simulator.explore.training_run import RunRequest, TrainingRun, whole_run, written_beside
from simulator.faults import Faults
from simulator.models.recorded import RecordedModule, fit_plan
from simulator.simulation import simulate


class WayOut(TypedDict):
    """A change, or two, of a plan that does not fit."""

    change: str  #: As flags.
    fits: bool  #: Whether it suffices.
    peak_bytes: int  #: Memory of the fullest rank with it.
    capacity_bytes: int  #: What the device has.
    #: Simulated time of a step with it; null where it does not suffice, or slower ones were not simulated any more.
    iteration_time_s: float | None
    gpu_hours_per_billion_tokens: float | None  #: What training takes with it.
    cost_per_billion_tokens: float | None  #: The same at the price of a GPU hour, where the cluster file has one.
    currency: str  #: Of the cost.
    same_training: bool  #: Whether training computes the same, to the last bit of its rounding.


class Extras(TypedDict, total=False):
    """What stands beside the answer, where it was asked for."""

    explanation: Explanation  #: With ``--explain``; of the last of several answers.
    #: Where the plan does not fit: changes that need less, those that suffice first, the fastest of them first.
    ways_out: list[WayOut]
    neighbours: Neighbours  #: Jobs beside this one, with ``--with`` or ``--placement``.
    placements: list[PlacementRow]  #: Ways to place the job, the fastest first, with ``--nodes-free``.
    local_steps: LocalSteps  #: Training site by site, with ``--local-steps``.
    #: What is wrong with the network and what it costs, with ``--network-trouble`` or ``--flapping``.
    network_trouble: list[Trouble]


class Document(Answer, Extras):
    """What ``--json`` prints for one number of GPUs."""

    #: Days, GPU hours, cost, energy and goodput, where the length of a run is given.
    whole_run: NotRequired[TrainingRun]


class ScalingRow(Document):
    """The answer for one of several numbers of GPUs."""

    gpus: int  #: The number of GPUs.


class Scaling(Extras):
    """What ``--json`` prints for several numbers of GPUs."""

    scaling: list[ScalingRow]  #: One answer per number of GPUs.


def to_json(result: Result, request: RunRequest | None = None, neighbours: Neighbours | None = None) -> Document:
    """Return the documented answer as plain data, with ``whole_run`` where a run is asked about.

    Parameters
    ----------
    neighbours : Neighbours, optional
        Jobs beside which the run goes through its steps, and writes its checkpoints.

    Raises
    ------
    InfeasiblePlanError
        If the run that is asked about would never end.
    """
    answer = cast(Document, {**result.answer})
    if request is not None:
        step = _beside(result.answer, neighbours["jobs"][0]) if neighbours else result.answer
        others = neighbours["jobs"][1:] if neighbours else ()
        plan, topology, spec = result.plan, result.topology, result.spec
        stored = checkpoint_of(plan, topology, spec.n_parameters, spec.n_matrix_parameters)
        policy = policy_of(request.policy, result, written_beside(stored, others, request, topology))
        answer["whole_run"] = whole_run(request, step, plan, topology, policy)
    return answer


def _beside(answer: Answer, job: NeighbourJob) -> Answer:
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
        return cast(Document, {**answers[0], **extras})
    rows = [{"gpus": result.plan.gpus, **answer} for result, answer in zip(results, answers, strict=True)]
    return cast(Scaling, {"scaling": rows, **extras})


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

    A recorded module takes the place of the model; with detail, timelines hold every single kernel.
    """
    results: list[Result] = []
    for count in counts or (0,):
        scenario = scenario_of({**settings, "gpus": count} if count else settings)
        plan = scenario.plan
        if module is not None:
            plan = fit_plan(plan, module, has_framework="framework" in given_in(settings))
        if results and not plan.micro_batch:
            plan = replace(plan, micro_batch=results[0].plan.micro_batch)
        scenario = replace(scenario, plan=plan, faults=faults or scenario.faults)
        results.append(simulate(scenario, detail=detail, progress=say, spec=module))
    return results
