"""What comparisons are made of: phases, operators by family, and causes by how much they explain."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from simulator.models.layer import KernelShape
from validation.jobs.calibrated import CalibratedKernels, Line, family_of, fit_line
from validation.jobs.observe import Phases, Seen, typical
from validation.jobs.timed_training import slowest

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Calls of one family of kernels per step, each timed by itself, in seconds."""

    name: str
    n_calls: int
    predicted_s: float
    measured_s: float


def ranked(parts: Mapping[str, tuple[float, float]]) -> list[tuple[str, float]]:
    """Predicted less measured of every part, largest first."""
    differences = [(name, predicted - measured) for name, (predicted, measured) in parts.items()]
    return sorted(differences, key=lambda item: -abs(item[1]))


def typical_phases(ranks: Sequence[Phases]) -> dict[str, float]:
    """Seconds of every phase of the slowest rank, and of the iteration."""
    return {name: typical(durations) for name, durations in slowest(ranks).items()}


def slowest_of(collectives: Sequence[Sequence[tuple[_Key, float]]]) -> list[tuple[_Key, float]]:
    """Per size the longest time over all ranks."""
    return [(same[0][0], max(seconds for _, seconds in same)) for same in zip(*collectives, strict=True)]


def optimizer_line(n_tensors: Sequence[int], n_elements: Sequence[int], times_s: Sequence[float]) -> Line:
    """Fit the optimizer: time per tensor is what time per element, the same in all models, leaves."""
    return fit_line(
        [e / t for e, t in zip(n_elements, n_tensors, strict=True)],
        [s / t for s, t in zip(times_s, n_tensors, strict=True)],
    )


def operators_of(seen: Sequence[Seen], shapes: Sequence[KernelShape], kernels: CalibratedKernels) -> list[Operator]:
    """Families of a step's kernels, slowest first; those that cannot be timed by themselves are left out."""
    times: dict[KernelShape, list[float]] = defaultdict(list)
    for one in seen:
        for shape, seconds in one.judged_shapes:
            times[shape].append(seconds)
    measured = {shape: statistics.mean(found) for shape, found in times.items()}
    calls: dict[str, list[KernelShape]] = defaultdict(list)
    for shape in shapes:
        if shape in measured:
            calls[family_of(shape)].append(shape)
    operators = [
        Operator(
            name=name,
            n_calls=len(shapes),
            predicted_s=sum(kernels.alone_s(shape) for shape in shapes),
            measured_s=sum(measured[shape] for shape in shapes),
        )
        for name, shapes in calls.items()
    ]
    return sorted(operators, key=lambda one: -one.measured_s)


def by_kind(operators: Sequence[Operator]) -> dict[str, tuple[float, float]]:
    """Sum families to matrix products, attention and everything else: predicted, measured."""
    kinds: dict[str, tuple[float, float]] = {}
    for one in operators:
        first = one.name.split(" ", maxsplit=1)[0]
        kind = f"{first if first in ('gemm', 'attention') else 'pointwise'} kernels"
        predicted, measured = kinds.get(kind, (0.0, 0.0))
        kinds[kind] = (predicted + one.predicted_s, measured + one.measured_s)
    return kinds
