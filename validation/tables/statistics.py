"""Statistics: of repeated durations; of relative errors by group, of verdicts, of rankings, of intervals."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from simulator.arrays import FloatArray
from validation.tables.kinds import names_of
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

#: plans compete that agree in these columns
_JOB_COLUMNS = names_of(
    "source topology architecture model layers hidden heads kv_heads ffn vocab seq_len gpus precision "
    "global_batch metric"
)
#: layouts differ that differ in one of these; those of other releases and days do not
_LAYOUT_COLUMNS = names_of(
    "framework dp tp pp virtual_pp schedule cp ep sharding sequence_parallel micro_batch recompute flash_attention kernels "
    "vocabulary_parallel float8_recipe task fsdp pp_layout dispatcher moe_a2a_overlap token_drop mtp cuda_graph_impl "
    "cuda_graph_scope recompute_modules recompute_num_layers offload_modules nccl_ub fused_grouped_mlp"
)
_MIN_PLANS = 4
#: plans whose times differ by less may be in either order: runs of equal settings differ by so much
APART = 0.03
#: error at which a measurement's own uncertainty halves what it counts
_AIM = 0.05
#: assumed uncertainty of what a row leaves to be guessed, by its grade: nothing, small things, something that matters
_GUESSED = {"": 0.0, "A": 0.0, "B": 0.05, "C": 0.2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Median and quartiles of repeated measurements, in seconds."""

    median_s: float
    lower_s: float
    upper_s: float
    n_repeats: int

    def describe(self) -> str:
        """Words for a notes column: quartiles and repetitions."""
        return f"median of {self.n_repeats}; quartiles {self.lower_s * 1e6:.1f} and {self.upper_s * 1e6:.1f} us"


def summarize(durations_s: Sequence[float]) -> Durations:
    """Median and quartiles.

    Examples
    --------
    >>> summarize([3.0, 1.0, 2.0]).median_s
    2.0
    """
    lower, median, upper = (float(x) for x in np.quantile(durations_s, (0.25, 0.5, 0.75)))
    return Durations(median_s=median, lower_s=lower, upper_s=upper, n_repeats=len(durations_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Errors of the rows that share the grouping columns."""

    key: dict[str, str]  #: Grouping column -> value.
    n: int = 0  #: Rows with a prediction.
    #: Of the absolute relative errors.
    mean_absolute: float | None = None
    median_absolute: float | None = None
    p90_absolute: float | None = None
    max_absolute: float | None = None
    bias: float | None = None  #: Mean of the signed relative errors: positive predicts too much.
    #: The same means with every row weighted by :func:`weight_of`.
    weighted_mean_absolute: float | None = None
    weighted_bias: float | None = None
    n_unpredicted: int = 0  #: Rows without a prediction.
    coverage: float | None = None  #: Share of measurements inside their interval.
    #: For verdicts: ``accuracy``, ``false_fits``, ``false_oom`` (shares of n); empty otherwise.
    verdicts: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the group of the JSON document: the grouping columns beside the figures."""
        figures = asdict(self)
        for name in ("key", "verdicts", *(["coverage"] if self.coverage is None else [])):
            del figures[name]
        return {**self.key, **figures, **self.verdicts}


def weight_of(row: Row) -> float:
    """Return how much a row counts where errors are summed up, from its uncertainty and its grade: at most 1.

    Notes
    -----
    ``a^2 / (a^2 + u^2 + g^2)`` with the error ``a`` = 5 % that is aimed at, the row's ``rel_uncertainty`` u and what its
    grade leaves to be guessed, g.
    """
    stated = row.number("rel_uncertainty") if row.text("rel_uncertainty") else 0.0
    guessed = _GUESSED.get(row.text("grade").upper(), max(_GUESSED.values()))
    return _AIM**2 / (_AIM**2 + stated**2 + guessed**2)


def weighted(errors: Sequence[float], weights: Sequence[float]) -> dict[str, float]:
    """Return the weighted mean of the absolute errors, and of the signed ones.

    Examples
    --------
    >>> weighted([-0.5, 1.0], [3, 1])
    {'weighted_mean_absolute': 0.625, 'weighted_bias': -0.125}
    """
    signed = np.asarray(errors, dtype=float)
    return {
        "weighted_mean_absolute": round(float(np.average(np.abs(signed), weights=weights)), 12),
        "weighted_bias": round(float(np.average(signed, weights=weights)), 12),
    }


def describe(errors: Sequence[float]) -> dict[str, float]:
    """Return mean, median, 90th percentile and maximum of the absolute errors, and the bias.

    Examples
    --------
    >>> describe([-0.1, 0.3])["mean_absolute"], round(describe([-0.1, 0.3])["bias"], 3)
    (0.2, 0.1)
    """
    if not errors:
        raise ValueError("no errors to describe")
    signed = np.asarray(errors, dtype=float)
    absolute = np.abs(signed)
    return {
        "mean_absolute": float(absolute.mean()),
        "median_absolute": float(np.median(absolute)),
        "p90_absolute": float(np.quantile(absolute, 0.9)),
        "max_absolute": float(absolute.max()),
        "bias": float(signed.mean()),
    }


def verdict_figures(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """Return how often a fits verdict (1 runs, 0 runs out of memory) is right, and which way it errs.

    Examples
    --------
    >>> verdict_figures([1, 1, 0, 0], [1, 0, 0, 1])
    {'accuracy': 0.5, 'false_fits': 0.25, 'false_oom': 0.25}
    """
    said, was = np.asarray(predicted) > 0.5, np.asarray(measured) > 0.5
    return {
        "accuracy": float(np.mean(said == was)),
        "false_fits": float(np.mean(said & ~was)),
        "false_oom": float(np.mean(~said & was)),
    }


def group_of(key: dict[str, str], errors: Sequence[float]) -> Group:
    """Return a group of rows by their relative errors alone."""
    found = describe(errors)
    return Group(key=key, n=len(errors), verdicts={}, coverage=None, n_unpredicted=0, **found)


def group_outcomes(outcomes: Sequence[Outcome], by: Sequence[str]) -> list[Group]:
    """Return one group per combination of the columns ``by``, worst mean first."""
    members: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        members.setdefault(tuple(outcome.row.key(column) for column in by), []).append(outcome)
    groups = [_group(dict(zip(by, key, strict=True)), group) for key, group in members.items()]
    return sorted(groups, key=lambda group: -1.0 if group.mean_absolute is None else group.mean_absolute, reverse=True)


def _group(key: dict[str, str], outcomes: Sequence[Outcome]) -> Group:
    judged = [(o, error) for o in outcomes if (error := o.relative_error) is not None]
    n_unpredicted = len(outcomes) - len(judged)
    if not judged:
        return Group(key=key, n_unpredicted=n_unpredicted)
    verdicts = {}
    if all(o.row.metric == "fits" for o, _ in judged):
        verdicts = verdict_figures([o.predicted or 0.0 for o, _ in judged], [o.row.measured for o, _ in judged])
    covered = [o.covered for o, _ in judged if o.covered is not None]
    return Group(
        key=key,
        n=len(judged),
        n_unpredicted=n_unpredicted,
        coverage=sum(covered) / len(covered) if covered else None,
        verdicts=verdicts,
        **describe([error for _, error in judged]),
        **weighted([error for _, error in judged], [weight_of(o.row) for o, _ in judged]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the rows of one source do not state, and how often which rule filled it."""

    source: str
    n: int  #: Rows of the source.
    rules: tuple[tuple[str, int], ...]  #: What was assumed, in words, and for how many rows; most frequent first.

    def describe(self) -> str:
        """Return the rules as one line; those of all rows carry no number."""
        return "; ".join(rule if count == self.n else f"{rule} ({count})" for rule, count in self.rules)


def assumptions_of(outcomes: Sequence[Outcome]) -> list[Assumptions]:
    """Return per source what was assumed about its rows; numbers that differ among rows are left out.

    Examples
    --------
    >>> from validation.tables.reader import Row
    >>> row = Row(kind="training", file="f", line=2, cells={"source": "s"})
    >>> rows = [Outcome(row=row, assumed=(f"vocab {n}: usual",)) for n in (7, 7, 8)]
    >>> assumptions_of(rows)[0].describe()
    'vocab ...: usual'
    """
    sources: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        sources.setdefault(outcome.row.key("source"), []).append(outcome)
    found = []
    for source, mine in sources.items():
        said: dict[str, Counter[str]] = {}
        for text in (text for outcome in mine for text in outcome.assumed):
            said.setdefault(re.sub(r"\d+", "...", text), Counter())[text] += 1
        rules = [(next(iter(t)) if len(t) == 1 else alike, t.total()) for alike, t in said.items()]
        if rules:
            found.append(Assumptions(source=source, n=len(mine), rules=tuple(sorted(rules, key=lambda r: -r[1]))))
    return found


def _ranks(values: Sequence[float]) -> FloatArray:
    """Return ranks from 0, ties sharing their mean rank."""
    array = np.asarray(values, dtype=float)
    below = (array[:, None] > array[None, :]).sum(axis=1)
    equal = (array[:, None] == array[None, :]).sum(axis=1) - 1
    return np.asarray(below + 0.5 * equal, dtype=np.float64)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 where one side is constant.

    Examples
    --------
    >>> rank_correlation([1, 2, 3], [10, 20, 30])
    1.0
    """
    a, b = _ranks(first), _ranks(second)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return round(float(np.corrcoef(a, b)[0, 1]), 12)


def _jobs(outcomes: Sequence[Outcome]) -> dict[tuple[str, ...], list[Outcome]]:
    """Return the timed plans of every job, by the job's columns."""
    jobs: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        if outcome.relative_error is not None and outcome.row.metric == "iteration_time_s":
            jobs.setdefault(tuple(outcome.row.key(column) for column in _JOB_COLUMNS), []).append(outcome)
    return jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """How well predictions decide between plans of one job."""

    n_pairs: int  #: Pairs of different layouts whose measured times are apart by at least :data:`APART`.
    ordered: float  #: Share of them that is predicted in the measured order.
    n_jobs: int  #: Jobs with at least two such plans.
    regret: float  #: Mean over the jobs of how much slower the plan predicted fastest ran than the fastest.


def decisions(outcomes: Sequence[Outcome]) -> Decisions:
    """Return how well predictions order pairs of plans, and what their choice costs; a pair predicted alike is half right.

    References
    ----------
    Harrell et al., "Evaluating the yield of medical tests", JAMA 247 (1982): the concordance index counts ties one half.
    """
    n_pairs, n_right = 0, 0.0
    regrets: list[float] = []
    for plans in _jobs(outcomes).values():
        known = [(plan.predicted or 0.0, plan.row.measured) for plan in plans]
        layouts = [tuple(plan.row.key(column) for column in _LAYOUT_COLUMNS) for plan in plans]
        before = n_pairs
        for one, other in itertools.combinations(range(len(plans)), 2):
            (first_s, first), (second_s, second) = known[one], known[other]
            if layouts[one] != layouts[other] and max(first, second) >= (1.0 + APART) * min(first, second):
                n_pairs += 1
                n_right += 0.5 if first_s == second_s else (first_s < second_s) == (first < second)
        if n_pairs > before:
            regrets.append(min(known)[1] / min(measured for _, measured in known) - 1.0)
    ordered, regret = n_right / max(n_pairs, 1), sum(regrets) / max(len(regrets), 1)
    return Decisions(n_pairs=n_pairs, ordered=ordered, n_jobs=len(regrets), regret=regret)


def rank_plans(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Compare the order of plans that compete for the same job: same model, machine, GPUs, batch and metric.

    Returns
    -------
    list of dict
        Per job with at least four timed rows: the job's columns, ``n``, ``rank_correlation``
        (Spearman), ``best_found`` (whether the plan predicted fastest is the one measured fastest) and
        ``regret`` (how much slower the plan predicted fastest was measured than the fastest).
    """
    ranked = []
    for key, plans in _jobs(outcomes).items():
        if len(plans) < _MIN_PLANS:
            continue
        predicted = [plan.predicted or 0.0 for plan in plans]
        measured = [plan.row.measured for plan in plans]
        chosen = measured[int(np.argmin(predicted))]
        job = dict(zip(_JOB_COLUMNS, key, strict=True))
        found = {
            "n": len(plans),
            "rank_correlation": rank_correlation(predicted, measured),
            "best_found": chosen <= min(measured) * (1.0 + 1e-9),
            "regret": chosen / min(measured) - 1.0,
        }
        named = ("source", "topology", "model", "seq_len", "gpus", "global_batch")
        ranked.append({**{column: job[column] for column in named}, **found})
    return sorted(ranked, key=lambda job: -int(job["n"]))
