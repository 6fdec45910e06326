"""Training rows: one simulation per run, and from it every metric that was measured of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from simulator.analysis.metrics import PARTS
from simulator.errors import SimulatorError
from simulator.scenario import Scenario
from simulator.units import format_bytes
from validation.tables.cases import Case, case_of
from validation.tables.many_jobs import Tell, run_all
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

if TYPE_CHECKING:
    from simulator.answer import Result
    from simulator.memory import MemoryReport

#: peaks of memory: what PyTorch's allocator gave out at most, what it kept, and what the device held with all outside of it
PEAKS = ("peak_memory_bytes", "peak_reserved_bytes", "peak_device_bytes")
#: by what share a predicted peak may exceed the device's memory where a run is known to have fitted: public peaks are predicted within
#: 11 % at the median
_LEEWAY = 0.1
#: metrics that need no timeline
_MEMORY_METRICS = frozenset(("fits", *PEAKS))


@dataclass(frozen=True, slots=True)
class Answer:
    """What one simulation says: metrics by name, the plan that ran, and whether it fits."""

    metrics: dict[str, float]  #: Metric -> value in the metric's unit.
    note: str = ""  #: Warnings: what was chosen among alternatives, that the plan is predicted not to fit.
    reason: str = ""  #: Why there is no answer; empty otherwise.
    parts: dict[str, float] = field(default_factory=dict)  #: Seconds of the iteration by what they are spent on.


def _memory_metrics(memory: MemoryReport) -> dict[str, float]:
    peaks = (memory.allocated_bytes, memory.reserved_bytes, memory.peak_bytes)
    return {"fits": float(memory.fits), **dict(zip(PEAKS, map(float, peaks), strict=True))}


def hardware_tflops(result: Result) -> float:
    """Return TFLOP/s per GPU as the Megatron papers count: the model's, attention whole, and what is computed again.

    References
    ----------
    Narayanan et al., arXiv:2104.04473, equation 3; for gated layers, shared keys and experts ``num_floating_point_operations`` of
    NVIDIA/Megatron-LM, ``megatron/training/training.py``, which counts every product of the model.
    """
    metrics, plan = result.metrics, result.plan
    n_flops = result.model.model_flops_per_sequence * plan.global_batch / plan.gpus + metrics.recomputed_flops
    return n_flops / metrics.iteration_time_s / 1e12


def _mean_collective_s(result: Result, collective: str) -> float:
    """Return the seconds that the data-parallel operations of one kind take per iteration, on one rank."""
    rows = [row for row in result.metrics.communication if row["collective"] == collective]
    return float(sum(row["total_s"] for row in rows if row["axis"] not in ("tp", "cp", "ep", "pp")))


def _metrics(result: Result) -> dict[str, float]:
    phases = result.metrics.phase_s
    seconds, plan = result.metrics.iteration_time_s, result.plan
    samples_per_s = plan.global_batch / seconds
    return {
        **_memory_metrics(result.memory),
        "iteration_time_s": seconds,
        "forward_s": phases.get("forward", 0.0),
        "backward_s": phases.get("backward", 0.0),
        "optimizer_s": phases.get("optimizer", 0.0),
        "communication_fraction": result.metrics.communication_fraction,
        "tflops_per_gpu": hardware_tflops(result),
        "samples_per_s": samples_per_s,
        "tokens_per_s": samples_per_s * plan.sequence_length,
        "all_gather_s": _mean_collective_s(result, "all_gather"),
        "reduce_scatter_s": _mean_collective_s(result, "reduce_scatter"),
    }


def scenario_of(case: Case) -> Scenario:
    """Return what is simulated for a case."""
    return Scenario(
        topology=case.topology, model=case.spec.name, plan=case.plan, transport=case.transport, overrides=case.overrides
    )


def _fitting(case: Case) -> tuple[Case, MemoryReport]:
    """Return the case with the first plan that fits or nearly does, or the last one, and its memory."""
    from simulator import simulation

    for plan in (case.plan, *case.alternatives):
        case = replace(case, plan=plan)
        topology = simulation.topology_of(scenario_of(case))
        scenario = simulation.resolve(scenario_of(case), topology, case.spec)
        memory = simulation.lower_scenario(scenario, topology, case.spec)[2]
        if memory.peak_bytes <= memory.capacity_bytes * (1 + _LEEWAY):
            break
    return case, memory


def answer(case: Case, *, memory_only: bool) -> Answer:
    """Simulate one run."""
    from simulator.simulation import simulate

    try:
        chosen = ""
        if case.alternatives:
            stated = case.plan
            case, memory = _fitting(case)
            differs = [
                key
                for key in ("sharding", "micro_batch", "virtual_pp", "recompute")
                if getattr(case.plan, key) != getattr(stated, key)
            ]
            chosen = "; ".join(f"{key} {getattr(case.plan, key)} taken" for key in differs)
        if memory_only:
            memory = _fitting(replace(case, alternatives=()))[1]
            return Answer(_memory_metrics(memory), chosen)
        result = simulate(scenario_of(case), spec=case.spec)
    except SimulatorError as error:
        return Answer({}, reason=error.message)
    except Exception as error:  # one broken run must not take the other rows with it
        return Answer({}, reason=f"internal error: {type(error).__name__}: {error}")
    notes = [chosen] if chosen else []
    if not result.memory.fits:
        needs, has = format_bytes(result.memory.peak_bytes), format_bytes(result.memory.capacity_bytes)
        notes.append(f"predicted not to fit: {needs} of {has}")
    spent = {part.removesuffix("_s"): result.metrics.breakdown[part] for part in PARTS}
    return Answer(_metrics(result), "; ".join(notes), parts=spent)


def _answer_job(job: tuple[Case, bool]) -> Answer:
    return answer(job[0], memory_only=job[1])


def _weight(job: tuple[Case, bool]) -> float:
    """Return what a run costs to simulate, roughly: actions of all stages, and of the layers of one."""
    case, memory_only = job
    plan = case.plan
    replicas = (plan.dp or 1) * (plan.micro_batch or 1)
    n_micro_batches = max((plan.global_batch or 0) // replicas, 1) if plan.pp > 1 else 1
    passes = plan.pp * plan.virtual_pp * n_micro_batches if not memory_only else 1
    return 50.0 + case.spec.layers + passes


def predict(rows: Sequence[Row], tell: Tell | None = None, n_processes: int = 1) -> list[Outcome]:
    """Predict every training row in its metric's unit; rows of one run share one simulation."""
    cases: list[tuple[Case, tuple[str, ...]] | str] = []
    wanted: dict[Case, bool] = {}
    for row in rows:
        try:
            case, assumed = case_of(row)
        except SimulatorError as error:
            reason = re.sub(rf"^{re.escape(row.file)}:{row.line}:", "", error.message)
            cases.append(f"{reason} ({error.hint})" if error.hint else reason)
            continue
        cases.append((case, assumed))
        wanted[case] = wanted.get(case, True) and row.metric in _MEMORY_METRICS
    jobs = sorted(wanted.items(), key=lambda job: (job[0].topology, job[0].spec.name, job[0].plan.gpus))
    answers = dict(zip([case for case, _ in jobs], run_all(_answer_job, jobs, tell, n_processes, _weight), strict=True))
    outcomes = []
    for row, entry in zip(rows, cases, strict=True):
        if isinstance(entry, str):
            outcomes.append(Outcome(row=row, reason=entry))
            continue
        case, assumed = entry
        outcomes.append(_outcome(row, answers[case], assumed))
    return outcomes


def _outcome(row: Row, found: Answer, assumed: tuple[str, ...]) -> Outcome:
    reason, predicted = found.reason, found.metrics.get(row.metric)
    if predicted is None and not reason:
        reason = f"metric '{row.metric}' is unknown; known: {', '.join(sorted(found.metrics))}"
    parts = found.parts if row.metric == "iteration_time_s" else {}
    return Outcome(row=row, predicted=predicted, reason=reason, assumed=assumed, note=found.note, parts=parts)
