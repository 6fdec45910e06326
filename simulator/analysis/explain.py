"""What would change the answer: derivatives and single changes, each found by simulating it, then ranked.

Nothing here knows how to simulate. A :class:`Knob` is a rate or latency that can be made better by a factor, an
:class:`Option` one other way to set the plan; both bring a function that simulates and says how it went.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from simulator.analysis.critical_path import PathRow

#: a small improvement, from which the derivative is taken, and a large one that people ask about
SMALL, LARGE = 1.05, 2.0
#: share of the iteration below which a change has no effect
NOTHING = 1e-4
N_BEST = 3
#: a part that saves this share of what the whole saves stands for it
NEARLY = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """How a trial went."""

    iteration_time_s: float = 0.0  #: 0 where it could not be made.
    n_samples: int = 1  #: Sequences that one iteration trains on.
    reason: str = ""  #: Why it cannot be made: it does not fit, or the degrees do not multiply up. Empty where it can.

    @property
    def per_sample_s(self) -> float:
        """Time for one sequence: what is compared, since a change may alter the batch."""
        return self.iteration_time_s / self.n_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Something of the machine that can be better by a factor."""

    name: str  #: As a noun: ``NIC bandwidth``.
    large: str  #: What the large change is called: ``twice the NIC bandwidth``.
    simulate: Callable[[float], TrialOutcome]  #: Simulates it that many times better.
    #: Names of knobs that it turns at once; where one of them does nearly as much, only that one is among the best.
    parts: tuple[str, ...] = ()
    shortens: str = ""  #: What of a step it can shorten, where it is tried unasked.


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One other setting of the plan."""

    name: str  #: ``--recompute selective``.
    simulate: Callable[[], TrialOutcome]  #: Simulates it.
    #: Whether training computes the same; a change of the global batch does not, and is never among the best.
    same_training: bool = True
    ratio: float = 0.0  #: The new number over the old one, for a setting that is a number; 0 for words.


class Change(TypedDict):
    """One single change, simulated."""

    change: str  #: What changes: ``twice the NIC bandwidth``, ``--recompute selective``.
    kind: str  #: ``machine`` or ``plan``.
    iteration_time_s: float  #: With the change.
    saving: float  #: Share of the time per sample that it saves; negative where it costs time.
    #: Per cent saved per per cent more: the derivative for the machine, the slope to the value tried for a number of
    #: the plan, null for words.
    elasticity: float | None
    same_training: bool  #: Whether training computes the same; a change of the global batch does not.


class Impossible(TypedDict):
    """A change that cannot be made."""

    change: str  #: What would change.
    reason: str  #: Why it cannot.


class Ranking(TypedDict):
    """What would change the time."""

    changes: list[Change]  #: Changes that matter, the most useful first.
    best: list[Change]  #: The three best different ones that save anything.
    without_effect: list[str]  #: What does not matter here.
    impossible: list[Impossible]  #: What cannot be made.


class Explanation(Ranking):
    """What decides the time and what would change it."""

    critical_path: list[PathRow]  #: The critical path by kind of work, the longest first.


def explain(
    baseline: TrialOutcome,
    knobs: Sequence[Knob],
    options: Sequence[Option],
    *,
    say: Callable[[str], None] = lambda _: None,
) -> Ranking:
    """Simulate every knob and option beside the baseline and rank them."""
    changes: list[Change] = []
    parts: dict[str, tuple[str, ...]] = {}
    impossible: list[Impossible] = []
    idle: list[str] = []
    for knob in knobs:
        say(knob.large)
        outcome = knob.simulate(LARGE)
        if outcome.reason:
            impossible.append({"change": knob.large, "reason": outcome.reason})
            continue
        row = _row(baseline, knob.large, "machine", outcome)
        if abs(row["saving"]) < NOTHING:
            idle.append(knob.name)
            continue
        row["elasticity"] = saving(baseline, knob.simulate(SMALL)) / (SMALL - 1)
        parts[knob.large] = tuple(one.large for one in knobs if one.name in knob.parts)
        changes.append(row)
    for option in options:
        say(option.name)
        outcome = option.simulate()
        if outcome.reason:
            impossible.append({"change": option.name, "reason": outcome.reason})
            continue
        row = _row(baseline, option.name, "plan", outcome)
        row["same_training"] = option.same_training
        if abs(row["saving"]) < NOTHING:
            idle.append(option.name)
            continue
        if option.ratio > 0:
            row["elasticity"] = math.log(baseline.per_sample_s / outcome.per_sample_s) / math.log(option.ratio)
        changes.append(row)
    changes.sort(key=lambda row: (-row["saving"], row["change"]))
    return {"changes": changes, "best": _best(changes, parts), "without_effect": idle, "impossible": impossible}


def _best(changes: Sequence[Change], parts: Mapping[str, tuple[str, ...]]) -> list[Change]:
    """Return the best few that are different changes: no part beside its whole, and nothing twice."""
    useful = [row for row in changes if row["same_training"] and row["saving"] >= NOTHING]
    savings = {row["change"]: row["saving"] for row in useful}
    found: list[Change] = []
    for row in useful:
        whole = [name for name, inner in parts.items() if row["change"] in inner]
        own = [savings.get(name, 0.0) for name in parts.get(row["change"], ())]
        is_its_part = max(own, default=0.0) >= NEARLY * row["saving"]
        is_in_whole = any(one["change"] in whole for one in found)
        is_repeated = any(_is_same_setting(row, one) for one in found)
        if not (is_its_part or is_in_whole or is_repeated):
            found.append(row)
    return found[:N_BEST]


def _is_same_setting(one: Change, other: Change) -> bool:
    """Whether two changes give one setting different words with the same effect."""
    setting = one["change"].rpartition(" ")[0]
    is_same = one["kind"] == other["kind"] == "plan" and setting == other["change"].rpartition(" ")[0]
    return is_same and math.isclose(one["iteration_time_s"], other["iteration_time_s"], rel_tol=1e-9)


def saving(baseline: TrialOutcome, outcome: TrialOutcome) -> float:
    """Return the share of the time per sample that a change saves."""
    return 1.0 - outcome.per_sample_s / baseline.per_sample_s


def _row(baseline: TrialOutcome, name: str, kind: str, outcome: TrialOutcome) -> Change:
    return {
        "change": name,
        "kind": kind,
        "iteration_time_s": outcome.iteration_time_s,
        "saving": saving(baseline, outcome),
        "elasticity": None,
        "same_training": True,
    }
