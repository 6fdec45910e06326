"""Compares a measured with a simulated trace: operators aligned, and the residual explained and ranked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.analysis import Analysis, Usage, analyse
from simulator.trace_io.record import HOST_NODE, RankTrace, Trace

#: parts into which the difference of a step is split; they add up to it
PARTS = ("compute", "transfer", "wait", "copy", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """One step of one rank: simulated minus measured, in seconds.

    Parameters
    ----------
    rank, step : int
    measured_s, simulated_s : float
        Lengths.
    parts_s : mapping
        Part -> seconds; ``transfer`` and ``wait`` are exposed communication, ``host`` is idle time.
    """

    rank: int
    step: int
    measured_s: float
    simulated_s: float
    parts_s: Mapping[str, float]

    @property
    def relative(self) -> float:
        """Simulated over measured, minus one."""
        return self.simulated_s / self.measured_s - 1 if self.measured_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDifference:
    """One operator, summed over what was aligned.

    Parameters
    ----------
    name : str
    n_aligned : int
        Occurrences on both sides.
    n_only_measured, n_only_simulated : int
    measured_s, simulated_s : float
        Summed durations of the aligned ones.
    """

    name: str
    n_aligned: int
    n_only_measured: int
    n_only_simulated: int
    measured_s: float
    simulated_s: float

    @property
    def difference_s(self) -> float:
        """Simulated minus measured."""
        return self.simulated_s - self.measured_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The whole comparison.

    Parameters
    ----------
    steps : tuple of StepDifference
    parts_s : mapping
        Mean over steps and ranks, largest magnitude first.
    operators : tuple of OperatorDifference
        Largest magnitude first.
    """

    steps: tuple[StepDifference, ...]
    parts_s: Mapping[str, float]
    operators: tuple[OperatorDifference, ...]

    @property
    def mean_absolute_error(self) -> float:
        """Mean of the steps' absolute relative errors."""
        return float(np.mean([abs(step.relative) for step in self.steps])) if self.steps else 0.0


def diff(measured: Trace, simulated: Trace) -> Difference:
    """Compare two traces of one run.

    Ranks are compared with the rank of the same number, or with the only one where the simulation folds ranks into
    one; steps by their number, or in order where the numbers differ.

    Raises
    ------
    TraceError
        If no rank or no step is common to both.
    """
    partner = _partners(measured, simulated)
    first, second = analyse(measured), analyse(simulated)
    steps = []
    for rank, other in partner.items():
        for a, b in _paired_steps(first.of(rank), second.of(other)):
            parts = {part: value / 1e9 for part, value in _parts(a, b).items()}
            steps.append(
                StepDifference(
                    rank=rank,
                    step=a.step,
                    measured_s=a.duration_ns / 1e9,
                    simulated_s=b.duration_ns / 1e9,
                    parts_s=parts,
                )
            )
    if not steps:
        raise TraceError("the traces have no step in common")
    means = {part: float(np.mean([step.parts_s[part] for step in steps])) for part in PARTS}
    return Difference(
        steps=tuple(steps),
        parts_s=dict(sorted(means.items(), key=lambda item: -abs(item[1]))),
        operators=_operators(measured, simulated, partner, first, second),
    )


def _partners(measured: Trace, simulated: Trace) -> dict[int, int]:
    numbers = {rank.rank for rank in simulated.ranks}
    if not numbers or not measured.ranks:
        raise TraceError("a comparison needs two traces with device operations")
    if len(numbers) == 1:
        only = next(iter(numbers))
        return {rank.rank: only for rank in measured.ranks}
    common = {rank.rank: rank.rank for rank in measured.ranks if rank.rank in numbers}
    if not common:
        raise TraceError(
            f"no rank in common: {sorted(r.rank for r in measured.ranks)[:8]} against {sorted(numbers)[:8]}"
        )
    return common


def _paired_steps(first: tuple[Usage, ...], second: tuple[Usage, ...]) -> list[tuple[Usage, Usage]]:
    by_number = {usage.step: usage for usage in second}
    same = [(usage, by_number[usage.step]) for usage in first if usage.step in by_number]
    if same or not second:
        return same
    if len(second) == 1:
        return [(usage, second[0]) for usage in first]
    return list(zip(first, second, strict=False))


def _parts(a: Usage, b: Usage) -> dict[str, float]:
    return {part: _split(b)[part] - value for part, value in _split(a).items()}


def _split(usage: Usage) -> dict[str, float]:
    """A step as disjoint parts: exposed communication is split like the communication kernels themselves."""
    kernels = usage.waiting_ns + usage.transfer_ns
    waiting = usage.exposed_ns * usage.waiting_ns / kernels if kernels else 0.0
    copy = usage.duration_ns - usage.compute_ns - usage.exposed_ns - usage.idle_ns
    return {
        "compute": float(usage.compute_ns),
        "transfer": usage.exposed_ns - waiting,
        "wait": waiting,
        "copy": float(copy),
        "host": float(usage.idle_ns),
    }


def _operators(
    measured: Trace, simulated: Trace, partner: Mapping[int, int], first: Analysis, second: Analysis
) -> tuple[OperatorDifference, ...]:
    """Align the n-th occurrence of a name within a rank's steps, and sum by name."""
    del first, second
    others = {rank.rank: rank for rank in simulated.ranks}
    totals: dict[str, list[float]] = {}
    for rank in measured.ranks:
        if rank.rank not in partner:
            continue
        mine, other = _durations(rank), _durations(others[partner[rank.rank]])
        for name in {**mine, **other}:
            a, b = mine.get(name, []), other.get(name, [])
            n = min(len(a), len(b))
            entry = totals.setdefault(name, [0, 0, 0, 0.0, 0.0])
            for position, value in enumerate((n, len(a) - n, len(b) - n, sum(a[:n]), sum(b[:n]))):
                entry[position] += value
    result = [
        OperatorDifference(
            name=name,
            n_aligned=int(n),
            n_only_measured=int(only_a),
            n_only_simulated=int(only_b),
            measured_s=a / 1e9,
            simulated_s=b / 1e9,
        )
        for name, (n, only_a, only_b, a, b) in totals.items()
    ]
    return tuple(sorted(result, key=lambda entry: (-abs(entry.difference_s), entry.name)))


def _durations(rank: RankTrace) -> dict[str, list[int]]:
    ops = rank.ops
    found: dict[str, list[int]] = {}
    for op in np.flatnonzero(ops.kind != HOST_NODE).tolist():
        found.setdefault(rank.names[ops.name[op]], []).append(int(ops.end_ns[op] - ops.start_ns[op]))
    return found
