"""The documented answer of a replay as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from simulator.replay.answer import Answer
from simulator.replay.operators import OperatorReplay
from simulator.replay.run import Replay
from simulator.replay.stages import StageReplay
from simulator.trace_io.analysis import Analysis, analyse
from simulator.trace_io.critical_path import critical_path
from simulator.trace_io.from_timeline import from_timeline
from simulator.trace_io.record import Trace
from simulator.units import to_s


def to_json(found: Answer) -> dict[str, Any]:
    """Return the documented answer as plain data.

    The keys are ``format``, ``world_size``, ``recorded_ranks``, ``iteration_time_s`` (mean over steps, slowest rank of
    each), ``measured_iteration_time_s``, ``identity_error`` (largest relative error of any step and rank of the
    unchanged replay), ``speedup``, ``confidence`` (null where all ranks and kernels are as recorded), ``stands_for``
    (recorded rank -> ranks like it), ``breakdown``, ``steps``, ``critical_path``, ``notes``.
    """
    if found.stages is not None:
        return _stages_json(found.trace, found.stages)
    if found.operators is not None:
        return _operators_json(found.trace, found.operators)
    assert found.identity is not None
    result = found.result
    simulated, measured = result.simulated_usage.iteration_s, found.identity.measured_usage.iteration_s
    whole = result.compiled.reconstruction
    path = critical_path(whole, result.times)
    notes = (*found.trace.notes, *(n for rank in found.trace.ranks for n in rank.notes))
    return {
        "format": found.trace.format,
        "world_size": max(found.trace.world_size, sum(len(members) for members in whole.members)),
        "recorded_ranks": [rank.rank for rank in found.trace.ranks],
        "iteration_time_s": simulated,
        "measured_iteration_time_s": measured,
        "identity_error": max((abs(error) for *_, error in found.identity.errors()), default=0.0),
        "speedup": measured / simulated if simulated else None,
        "confidence": None if found.confidence is None else asdict(found.confidence),
        "stands_for": {
            str(plan.rank.rank): list(members) for plan, members in zip(whole.plans, whole.members, strict=True)
        },
        "breakdown": _breakdown(result.simulated_usage),
        "measured_breakdown": _breakdown(found.identity.measured_usage),
        "steps": _steps(found.identity, result),
        "critical_path": {
            "by_kind_s": dict(path.by_kind_s),
            "by_rank_s": {str(rank): seconds for rank, seconds in path.by_rank_s.items()},
            "longest_s": dict(list(path.by_name_s.items())[:10]),
        },
        "notes": [*dict.fromkeys((*notes, *whole.notes))],
    }


def _breakdown(analysis: Analysis) -> dict[str, float]:
    names = ("compute", "exposed", "overlapped", "copy", "idle", "waiting")
    return {
        f"{name}_s": float(np.mean([getattr(usage, f"{name}_ns") for usage in analysis.usages] or [0])) / 1e9
        for name in names
    }


def _steps(identity: Replay, result: Replay) -> list[dict[str, Any]]:
    measured = {(usage.rank, usage.step): usage for usage in identity.measured_usage.usages}
    rows = []
    for usage in result.simulated_usage.usages:
        before = measured.get((usage.rank, usage.step))
        rows.append(
            {
                "rank": usage.rank,
                "step": usage.step,
                "measured_s": None if before is None else before.duration_ns / 1e9,
                "simulated_s": usage.duration_ns / 1e9,
                "compute_s": usage.compute_ns / 1e9,
                "exposed_s": usage.exposed_ns / 1e9,
                "overlapped_s": usage.overlapped_ns / 1e9,
                "idle_s": usage.idle_ns / 1e9,
                "waiting_s": usage.waiting_ns / 1e9,
                "waited_for": {str(rank): ns / 1e9 for rank, ns in usage.waited_for.items()},
            }
        )
    return rows


def _operators_json(trace: Trace, operators: OperatorReplay) -> dict[str, Any]:
    usage = analyse(from_timeline(operators.timeline))
    return {
        "format": trace.format,
        "world_size": trace.world_size,
        "recorded_ranks": [rank.rank for rank in trace.ranks],
        "iteration_time_s": to_s(operators.timeline.makespan_ps),
        "measured_iteration_time_s": None,
        "breakdown": _breakdown(usage),
        "n_kernels": operators.n_kernels,
        "n_communications": operators.n_communications,
        "notes": [
            *trace.notes,
            f"an execution trace holds no times: kernels, host and links of {operators.device} are predicted",
        ],
    }


def _stages_json(trace: Trace, stages: StageReplay) -> dict[str, Any]:
    return {
        "format": trace.format,
        "world_size": trace.world_size,
        "layout": dict(trace.layout),
        "iteration_time_s": float(np.mean(stages.simulated_s)),
        "measured_iteration_time_s": float(np.mean(stages.measured_s)),
        "relative_error": stages.error,
        "compute_only_s": stages.compute_only_s,
        "message_s": stages.message_s,
        "steps": [
            {"step": i, "measured_s": m, "simulated_s": s}
            for i, m, s in zip(stages.iterations, stages.measured_s, stages.simulated_s, strict=True)
        ],
        "notes": [*trace.notes, f"time of a message between stages: {stages.basis}"],
    }
