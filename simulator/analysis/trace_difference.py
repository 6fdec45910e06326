"""Compares a measured with a simulated trace: operators aligned, and the residual explained and ranked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from simulator.analysis.side_by_side import Part, ranked, relative_error
from simulator.analysis.usage import Usage, analyse
from simulator.arrays import BoolArray
from simulator.errors import TraceError
from simulator.trace_io.selection import select
from simulator.trace_io.steps import phases
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE, COPY, HOST_NODE, CollectiveCall, RankTrace, Trace

_OPTIMIZER = "optimizer"
_WORKS = tuple(
    (work, re.compile(pattern, re.IGNORECASE))
    for work, pattern in (
        ("matrix products", r" gemm$"),
        ("attention", r"flash|fmha|attention|sdpa"),
        (_OPTIMIZER, r"adam|sgd|optimizer|multi_tensor_apply|lamb|clip_grad"),
        ("embedding", r"embedding|gather_kernel|indexselect|index_put"),
        ("loss", r"cross_entropy|nll_?loss|log_softmax|logsoftmax"),
        ("softmax", r"softmax"),
        ("normalisation", r"norm(?!al_)|rms"),
        (
            "matrix products",
            r"gemm|cutlass|nvjet|cublas|xmma|conv|wgrad|dgrad|splitk|mma|matmul|linear|: ?mm|addmm|bmm",
        ),
    )
)
#: parts into which the difference of a step is split; they add up to it
PARTS = ("compute", "transfer", "wait", "copy", "host")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDifference:
    """One step of one rank: simulated minus measured, in seconds."""

    rank: int
    step: int
    #: Lengths.
    measured_s: float
    simulated_s: float
    #: Part -> seconds; ``transfer`` and ``wait`` are exposed communication, ``host`` is idle time.
    parts_s: Mapping[str, float]

    @property
    def relative(self) -> float:
        """Simulated over measured, minus one."""
        return relative_error(self.simulated_s, self.measured_s) or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDifference(Part):
    """One operator, summed over the compared steps; of aligned occurrences, or of all of a kind.

    Its name is in parentheses where it is the kind of work of operators that have no namesake on the other side.
    """

    #: Occurrences on one side; ``n_calls`` are on both.
    n_only_measured: int = 0
    n_only_simulated: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The whole comparison."""

    steps: tuple[StepDifference, ...]
    #: Mean over steps and ranks, largest magnitude first.
    parts_s: Mapping[str, float]
    #: Kinds of work, and collectives by the size of their group, as means over steps and ranks, largest difference
    #: first: which part of a model is off.
    works: tuple[Part, ...]
    #: Largest magnitude first. Operators of one name are aligned by their order within a step; those without a
    #: namesake, as all kernels of a simulation, by the kind of work they do.
    operators: tuple[OperatorDifference, ...]
    #: Steps of the measured trace that were left out without being asked, and why.
    left_out: str = ""

    @property
    def mean_absolute_error(self) -> float:
        """Mean of the steps' absolute relative errors."""
        return float(np.mean([abs(step.relative) for step in self.steps])) if self.steps else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data."""
        step_s = float(np.mean([step.measured_s for step in self.steps])) if self.steps else 0.0
        return {
            "mean_absolute_error": self.mean_absolute_error,
            "left_out": self.left_out,
            "parts_s": dict(self.parts_s),
            "works": [
                {"work": part.name, **_seconds(part), "of_step": part.difference_s / step_s if step_s else 0.0}
                for part in self.works
            ],
            "steps": [
                {
                    "rank": step.rank, "step": step.step, "measured_s": step.measured_s, "simulated_s": step.simulated_s,
                    "relative_error": step.relative, "parts_s": dict(step.parts_s),
                }
                for step in self.steps
            ],
            "operators": [
                {
                    "name": one.name, "n_aligned": one.n_calls, "n_only_measured": one.n_only_measured,
                    "n_only_simulated": one.n_only_simulated, **_seconds(one),
                }
                for one in self.operators
            ],
        }  # fmt: skip


def _seconds(part: Part) -> dict[str, float]:
    return {"measured_s": part.measured_s, "simulated_s": part.predicted_s, "difference_s": part.difference_s}


def diff(measured: Trace, simulated: Trace, *, ranks: Collection[int] = (), steps: Collection[int] = ()) -> Difference:
    """Compare two traces of one run: the given ranks and steps of the measured one, or all but warm-up and partial steps.

    Ranks are compared with the rank of the same number, or with the only one where the simulation folds ranks into one; steps
    by their number, or in order where the numbers differ.
    """
    selection = select(measured, ranks=ranks, steps=steps)
    chosen = {one.rank.rank for one in selection.ranks}
    partner = _partners(measured, simulated)
    first, second = analyse(measured), analyse(simulated)
    own, others = ({rank.rank: rank for rank in trace.ranks} for trace in (measured, simulated))
    found, totals = [], _Totals()
    for rank, other in partner.items():
        sides = own[rank], others[other]
        updates = [_updates(side) for side in sides]
        wanted = tuple(usage for usage in first.of(rank) if rank in chosen and usage.step in selection.steps)
        for a, b in _paired_steps(wanted, second.of(other)):
            parts = {part: (_split(b)[part] - value) / 1e9 for part, value in _split(a).items()}
            found.append(
                StepDifference(
                    rank=rank,
                    step=a.step,
                    measured_s=a.duration_ns / 1e9,
                    simulated_s=b.duration_ns / 1e9,
                    parts_s=parts,
                )
            )
            totals.add(_durations(sides[0], a, updates[0]), _durations(sides[1], b, updates[1]))
    if not found:
        raise TraceError("the traces have no step in common")
    means = {part: float(np.mean([step.parts_s[part] for step in found])) for part in PARTS}
    return Difference(
        steps=tuple(found),
        parts_s=dict(sorted(means.items(), key=lambda item: -abs(item[1]))),
        works=totals.works(len(found)),
        operators=totals.ranked(),
        left_out=selection.left_out,
    )


def _partners(measured: Trace, simulated: Trace) -> dict[int, int]:
    numbers = {rank.rank for rank in simulated.ranks}
    if not all(any((r.ops.end_ns > r.ops.start_ns).any() for r in trace.ranks) for trace in (measured, simulated)):
        raise TraceError("a comparison needs two traces with device operations that have durations")
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


class _Totals:
    """Sums operators over steps: aligned by name where both sides have it, else by kind of work."""

    def __init__(self) -> None:
        self._rows: dict[str, list[float]] = {}
        self._works: dict[str, list[int]] = {}

    def add(self, measured: Mapping[str, _Occurrences], simulated: Mapping[str, _Occurrences]) -> None:
        """Add one step: name -> occurrences on either side."""
        for side, found in enumerate((measured, simulated)):
            for occurrences in found.values():
                self._works.setdefault(occurrences.work, [0, 0])[side] += sum(occurrences.durations_ns)
        nothing = _Occurrences(work="", durations_ns=())
        kinds: dict[str, list[list[int]]] = {}
        for name in {**measured, **simulated}:
            a, b = measured.get(name, nothing), simulated.get(name, nothing)
            n = min(len(a.durations_ns), len(b.durations_ns))
            if n:
                lists = (a.durations_ns[:n], b.durations_ns[:n])
                only = (len(a.durations_ns) - n, len(b.durations_ns) - n)
                self._add(name, n, only, lists)
                continue
            sides = kinds.setdefault(a.work or b.work, [[], []])
            sides[0] += a.durations_ns
            sides[1] += b.durations_ns
        for work, (first, second) in kinds.items():
            self._add(f"({work})", 0, (len(first), len(second)), (first, second))

    def _add(self, name: str, n: int, only: tuple[int, int], durations: Sequence[Sequence[int]]) -> None:
        row = self._rows.setdefault(name, [0, 0, 0, 0.0, 0.0])
        for place, value in enumerate((n, *only, sum(durations[0]), sum(durations[1]))):
            row[place] += value

    def works(self, n_steps: int) -> tuple[Part, ...]:
        """Return kinds of work per step, largest difference first."""
        parts = (
            Part(name=work, measured_s=a / n_steps / 1e9, predicted_s=b / n_steps / 1e9)
            for work, (a, b) in self._works.items()
        )
        return tuple(ranked(parts))

    def ranked(self) -> tuple[OperatorDifference, ...]:
        """Return the rows, largest difference first."""
        rows = (
            OperatorDifference(
                name=name, n_calls=int(n), n_only_measured=int(only_a), n_only_simulated=int(only_b),
                measured_s=a / 1e9, predicted_s=b / 1e9,
            )
            for name, (n, only_a, only_b, a, b) in self._rows.items()
        )  # fmt: skip
        return tuple(ranked(rows))


class _Occurrences(NamedTuple):
    work: str
    durations_ns: Sequence[int]


def _updates(rank: RankTrace) -> BoolArray:
    """Which operations compute for the optimizer."""
    found: BoolArray = (np.array(phases(rank)) == _OPTIMIZER) & (rank.ops.kind == COMPUTE)
    return found


def _durations(rank: RankTrace, step: Usage, updates: BoolArray) -> dict[str, _Occurrences]:
    """Device operations that start within a step, by name; what the optimizer launches is its work, whatever it is called."""
    ops = rank.ops
    inside = (ops.start_ns >= step.start_ns) & (ops.start_ns < step.end_ns) & (ops.kind != HOST_NODE)
    found: dict[str, list[int]] = {}
    works: dict[str, str] = {}
    for op in np.flatnonzero(inside).tolist():
        name = rank.names[ops.name[op]]
        if updates[op] and work_of(name, COMPUTE) != _OPTIMIZER:
            name = f"{name} ({_OPTIMIZER})"
        if name not in works:
            call = rank.calls[int(ops.call[op])] if ops.kind[op] == COMMUNICATION else None
            works[name] = _message(call) if call is not None else work_of(name, int(ops.kind[op]))
        found.setdefault(name, []).append(int(ops.end_ns[op] - ops.start_ns[op]))
    return {name: _Occurrences(works[name], durations) for name, durations in found.items()}


def _message(call: CollectiveCall) -> str:
    size = max(call.group_size, len(call.ranks))
    return f"{call.collective} of {size}" if size > 0 and call.collective not in ("send", "recv") else call.collective


def work_of(name: str, kind: int) -> str:
    """Return what a device operation works at, as its name tells.

    Examples
    --------
    >>> from simulator.trace_io.trace_record import COMPUTE
    >>> work_of("ampere_bf16_s16816gemm_bf16_128x128", COMPUTE), work_of("layer_norm", COMPUTE)
    ('matrix products', 'normalisation')
    >>> work_of("autograd::engine::evaluate_function: MmBackward0", COMPUTE), work_of("aten::mm", COMPUTE)
    ('matrix products', 'matrix products')
    """
    if kind == COPY:
        return "copies"
    return next((work for work, pattern in _WORKS if pattern.search(name)), "elementwise and other")
