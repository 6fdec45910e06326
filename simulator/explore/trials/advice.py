"""The one best piece of advice, quickly: what the critical path says could help is simulated, the most promising first.

A change that makes one kind of work twice as fast saves at most half of that kind's share of the critical path (Amdahl,
AFIPS 1967), hiding it saves at most the share. Once no bound exceeds what was found, no other trial is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from simulator.analysis.critical_path import HOST_KIND, PathRow, path_rows
from simulator.analysis.explain import NEARLY, Outcome, saving
from simulator.answer import Result
from simulator.explore.trials.knobs import knobs_of
from simulator.explore.trials.machine import Trials
from simulator.explore.trials.options import options_of

#: events of a run above which nothing is simulated without being asked for
MOST_EVENTS = 8_000

_COMPUTES = ("compute", "optimizer", "matrix products", "attention", "elementwise, norms and copies", "other kernels")
_FASTER_LINKS = ("network between nodes", "NVLink bandwidth", "NVLink bandwidth (to the NVSwitch)")
_FASTER_DEVICE = ("arithmetic rate and power limit of the GPU", "memory bandwidth of the GPU")
_LOADS = ("storage bandwidth", "processor speed of the loader's workers")


class _Candidate(NamedTuple):
    bound: float
    name: str
    simulate: Callable[[], Outcome]
    parts: tuple[str, ...] = ()


def advise(result: Result) -> list[dict[str, Any]]:
    """Simulate the single changes that could save most and return them, the most useful first.

    Returns
    -------
    list of dict
        ``change``, ``iteration_time_s`` and ``saving`` (share of the iteration; negative where it costs time); empty
        where the run is too large to be simulated again unasked.
    """
    if result.timeline.n_events > MOST_EVENTS:
        return []
    trials = Trials(result)
    rows: list[dict[str, Any]] = []
    best = 0.0
    whole: _Candidate | None = None
    for candidate in sorted(_candidates(trials), key=lambda one: -one.bound):
        if candidate.bound <= best:
            break
        row = _row(trials, candidate.name, candidate.simulate())
        if row is not None:
            rows.append(row)
            if row["saving"] > best:
                best, whole = row["saving"], candidate
    rows.sort(key=lambda row: -row["saving"])
    if whole is None:
        return rows
    for knob in knobs_of(trials):
        part = _row(trials, knob.large, knob.simulate(2.0)) if knob.name in whole.parts else None
        if part is not None and part["saving"] >= NEARLY * best:  # the one that does it says more than the whole
            return [part, *(row for row in rows if row["change"] != whole.name)]
    return rows


def _row(trials: Trials, name: str, outcome: Outcome) -> dict[str, Any] | None:
    if outcome.reason:
        return None
    saves = saving(trials.baseline, outcome)
    return {"change": name, "iteration_time_s": outcome.iteration_time_s, "saving": saves}


def _candidates(trials: Trials) -> Iterator[_Candidate]:
    """Yield what could help, with the most that it could save."""
    shares = {"communication": 0.0, "compute": 0.0, "host": 0.0, "data": 0.0}
    for row in path_rows(trials.result.timeline):
        shares[_part(row)] = shares.get(_part(row), 0.0) + row["share"]
    parts = dict.fromkeys(_FASTER_LINKS, "communication") | dict.fromkeys(_FASTER_DEVICE, "compute")
    parts |= {"host speed": "host"} | dict.fromkeys(_LOADS, "data")
    for knob in knobs_of(trials):
        if shares.get(parts.get(knob.name, ""), 0.0) > 0:
            yield _Candidate(shares[parts[knob.name]] / 2, knob.large, lambda knob=knob: knob.simulate(2.0), knob.parts)  # type: ignore[misc]
    for option in options_of(trials):
        bound = {"--overlap": shares["communication"], "--loader-workers": shares["data"]}.get(option.name.split()[0])
        if bound:
            yield _Candidate(bound, option.name, option.simulate)


def _part(row: PathRow) -> str:
    if row["communication"]:
        return "communication"
    if row["kind"] in _COMPUTES:
        return "compute"
    return {HOST_KIND: "host", "host work": "host", "data loading": "data"}.get(row["kind"], "waiting")
