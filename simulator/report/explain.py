"""What would change the answer: derivatives and single changes, each found by simulating it, then ranked.

Nothing here knows how to simulate. A :class:`Knob` is a rate or latency that can be made better by a factor, an
:class:`Option` one other way to set the plan; both bring a function that simulates and says how it went.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

#: a small improvement, from which the derivative is taken, and a large one that people ask about
SMALL, LARGE = 1.05, 2.0
#: share of the iteration below which a change has no effect
NOTHING = 1e-4
N_BEST = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial went.

    Parameters
    ----------
    iteration_time_s : float
        0 where it could not be made.
    n_samples : int
        Sequences that one iteration trains on.
    reason : str
        Why it cannot be made: it does not fit, or the degrees do not multiply up. Empty where it can.
    """

    iteration_time_s: float = 0.0
    n_samples: int = 1
    reason: str = ""

    @property
    def per_sample_s(self) -> float:
        """Time for one sequence: what is compared, since a change may alter the batch."""
        return self.iteration_time_s / self.n_samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Something of the machine that can be better by a factor.

    Parameters
    ----------
    name : str
        As a noun: ``NIC bandwidth``.
    large : str
        What the large change is called: ``twice the NIC bandwidth``.
    simulate : callable
        Simulates it that many times better.
    counts : bool
        Whether it may be among the best changes; not so for parts of another knob.
    """

    name: str
    large: str
    simulate: Callable[[float], Outcome]
    counts: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One other setting of the plan.

    Parameters
    ----------
    name : str
        ``--recompute selective``.
    simulate : callable
        Simulates it.
    same_training : bool
        Whether training computes the same; a change of the global batch does not, and is never among the best.
    """

    name: str
    simulate: Callable[[], Outcome]
    same_training: bool = True


def explain(
    baseline: Outcome,
    knobs: Sequence[Knob],
    options: Sequence[Option],
    *,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Simulate every knob and option and rank them.

    Parameters
    ----------
    baseline : Outcome
        What is.
    knobs, options : sequence
    say : callable
        Told what is being tried.

    Returns
    -------
    dict
        ``changes``: rows with ``change``, ``kind`` (``machine`` or ``plan``), ``iteration_time_s``, ``saving`` (share of
        the time per sample; negative where it costs), ``elasticity`` (per cent saved for one per cent more of it; None
        for options) and ``same_training``, the most useful first. ``best``: the three best of them that save anything.
        ``without_effect``: names of what does not matter. ``impossible``: ``change`` and ``reason``.
    """
    changes: list[dict[str, Any]] = []
    impossible: list[dict[str, str]] = []
    idle: list[str] = []
    for knob in knobs:
        say(knob.large)
        row = _row(baseline, knob.large, "machine", knob.simulate(LARGE))
        if abs(row["saving"]) < NOTHING:
            idle.append(knob.name)
            continue
        row["elasticity"] = _saving(baseline, knob.simulate(SMALL)) / (SMALL - 1)
        changes.append(row | {"counts": knob.counts})
    for option in options:
        say(option.name)
        outcome = option.simulate()
        if outcome.reason:
            impossible.append({"change": option.name, "reason": outcome.reason})
            continue
        row = _row(baseline, option.name, "plan", outcome) | {"same_training": option.same_training}
        if abs(row["saving"]) < NOTHING:
            idle.append(option.name)
        else:
            changes.append(row | {"counts": option.same_training})
    changes.sort(key=lambda row: (-row["saving"], row["change"]))
    best = [row for row in changes if row["counts"] and row["saving"] >= NOTHING][:N_BEST]
    for row in changes:
        row.pop("counts")
    return {"changes": changes, "best": best, "without_effect": idle, "impossible": impossible}


def _saving(baseline: Outcome, outcome: Outcome) -> float:
    return 1.0 - outcome.per_sample_s / baseline.per_sample_s


def _row(baseline: Outcome, name: str, kind: str, outcome: Outcome) -> dict[str, Any]:
    return {
        "change": name,
        "kind": kind,
        "iteration_time_s": outcome.iteration_time_s,
        "saving": _saving(baseline, outcome),
        "elasticity": None,
        "same_training": True,
    }
