"""Answers around an answer: one and two settings changed, each simulated, for a page on which a reader changes one thing.

A choice is a setting and the word that it takes: ``micro_batch: 8``, ``NIC bandwidth: x 2``. An answer is found by its choices; what
was not simulated is not there, and nothing is interpolated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TypedDict

from simulator.analysis.metrics import Breakdown
from simulator.answer import Memory, Result
from simulator.changes import MachineChange
from simulator.errors import SimulatorError
from simulator.explore.energy import Price, price_of, training_of
from simulator.explore.neighbourhood import Neighbour, Site, nearest, neighbours
from simulator.interop import FORMATS
from simulator.interop.emission import Request
from simulator.models.spec import ModelSpec
from simulator.plan import SETTINGS, ParallelPlan
from simulator.simulation import simulate_on
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.device import load_device
from simulator.units import format_duration

Choices = dict[str, str]

#: machines that are looked at: what it is called, and the kinds of links that get so many times their rate
_LINKS = {"NIC bandwidth": ("nic", "fabric"), "NVLink bandwidth": ("nvlink", "nvswitch")}
_FACTORS = {"x 0.5": 0.5, "x 2": 2.0, "x 4": 4.0}
#: boards that take the place of the cluster's
_DEVICES = ("a100-sxm4-80g", "h100-sxm5-80g", "h200-sxm", "b200", "mi300x")


class NearbyAnswer(TypedDict):
    """What came of one combination of choices."""

    choices: Choices  #: Setting to word; empty for the answer itself.
    command: str  #: The command line that gives it, with every setting that is not at its default.
    files: dict[str, str]  #: The plan as files: ours, and those of the frameworks that can say it.
    iteration_time_s: float  #: Of one step.
    samples_per_s: float  #: Of all GPUs.
    tokens_per_s: float | None  #: Of all GPUs; null where the model has no tokens.
    mfu: float  #: Model FLOP utilization.
    breakdown: Breakdown  #: Where the time goes.
    memory: Memory  #: Of the fullest rank.
    gpu_hours_per_billion_tokens: float | None  #: GPUs times hours; null without tokens.
    cost_per_billion_tokens: float | None  #: At the price of a GPU hour; null without one.
    currency: str  #: Of the cost.


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A plan on a machine, and the choices that lead there."""

    choices: tuple[tuple[str, str], ...]
    plan: ParallelPlan
    topology: Topology


class _Around:
    """What can be chosen around one result."""

    def __init__(self, result: Result, price: Price | None) -> None:
        self.result = result
        self.price = price_of(result.topology, price)
        self.base = _Place(choices=(), plan=result.plan, topology=result.topology)

    def answer(self, place: _Place) -> NearbyAnswer | None:
        """Simulate a place; None where it cannot be had."""
        result = self.result
        if place is not self.base:
            scenario = replace(result.scenario, plan=place.plan)
            try:
                near = simulate_on(scenario, place.topology, result.spec)
            except SimulatorError:  # layers, heads or the schedule do not allow it
                return None
            result = replace(near, memory_margin=result.memory_margin)
        answer, plan = result.answer, place.plan
        rate = answer["tokens_per_s"]
        spent = training_of(plan.gpus, rate, self.price) if rate else None
        return {
            "choices": dict(place.choices),
            "command": self._command(place),
            "files": self._files(plan) if answer["memory"]["fits"] else {},
            "iteration_time_s": answer["iteration_time_s"],
            "samples_per_s": answer["samples_per_s"],
            "tokens_per_s": rate,
            "mfu": answer["mfu"],
            "breakdown": answer["breakdown"],
            "memory": answer["memory"],
            "gpu_hours_per_billion_tokens": spent and spent["gpu_hours_per_billion_tokens"],
            "cost_per_billion_tokens": spent and spent["cost_per_billion_tokens"],
            "currency": spent["currency"] if spent else "",
        }

    def singles(self) -> list[_Place]:
        """Return every place one choice away: the nearest plans first, then machines, then the farther plans."""
        plans = list(dict.fromkeys(self._plans(self.base, nearest)))
        farther = [place for place in self._plans(self.base, neighbours) if place not in plans]
        return [*plans, *self._machines(self.base), *farther]

    def pair(self, first: _Place, second: _Place) -> _Place | None:
        """Return the place where both choices are made, if they are of two settings and can be had together."""
        (one, _), (other, word) = first.choices[0], second.choices[0]
        if one == other:
            return None
        if second.plan is self.base.plan:  # of the machine
            topology = next(place.topology for place in self._machines(first) if place.choices[-1] == (other, word))
            return replace(first, choices=(*first.choices, (other, word)), topology=topology)
        return next((place for place in self._plans(first, neighbours) if place.choices[-1] == (other, word)), None)

    def _plans(self, around: _Place, of: Callable[[ParallelPlan, Site], Iterator[Neighbour]]) -> Iterator[_Place]:
        for one in of(around.plan, Site(topology=around.topology, spec=self.result.spec)):
            changes_batch = one.plan.global_batch != around.plan.global_batch
            if one.reason or changes_batch:
                continue
            choice = (one.setting, str(getattr(one.plan, one.setting)).lower())
            yield replace(around, choices=(*around.choices, choice), plan=one.plan)

    def _command(self, place: _Place) -> str:
        scenario = self.result.scenario
        name = scenario.topology if isinstance(scenario.topology, str) else scenario.topology.name
        words = [SETTINGS[key].spelled(value) for key, value in _stated(place.plan).items()]
        words += [f"--set {key}={value}" for key, value in scenario.overrides]
        machine = [f"{setting} {word}" for setting, word in place.choices if setting not in SETTINGS]
        command = " ".join(["simulate", "--topology", name, "--model", scenario.model, *words])
        return command + (f"  # on a machine with {' and '.join(machine)}" if machine else "")

    def _files(self, plan: ParallelPlan) -> dict[str, str]:
        """Return a plan as our file, and in the formats of frameworks that have a word for all of it."""
        files = {"plan.yaml": "".join(f"{key}: {_yaml(value)}\n" for key, value in _stated(plan).items())}
        if not isinstance(self.result.spec, ModelSpec):
            return files
        request = Request(plan=plan, spec=self.result.spec, gpus_per_node=self.result.topology.gpus_per_host)
        for one in FORMATS.values():
            if one.write is not None:
                try:
                    files[one.file] = one.write(request).text
                except SimulatorError:  # a setting that the format has no word for
                    continue
        return files

    def _machines(self, around: _Place) -> Iterator[_Place]:
        topology = around.topology
        present = {LINK_KINDS[kind] for kind in set(topology.arrays.kind.tolist())}
        for name, kinds in _LINKS.items():
            for word, factor in _FACTORS.items():
                if present & set(kinds):
                    change = MachineChange(bandwidth=dict.fromkeys(kinds, factor))
                    yield replace(around, choices=(*around.choices, (name, word)), topology=change.apply(topology))
        for name in _DEVICES:
            if name != topology.device(0).name:
                change = MachineChange(device=load_device(name))
                yield replace(around, choices=(*around.choices, ("GPU", name)), topology=change.apply(topology))


def nearby_answers(
    result: Result, most: int, *, price: Price | None = None, say: Callable[[str], None] = lambda _: None
) -> list[NearbyAnswer]:
    """Return a result and up to ``most`` answers around it, one choice away and then, the fastest first, two."""
    around = _Around(result, price)
    found = {around.base.choices: around.answer(around.base)}
    began = time.monotonic()

    def look(place: _Place | None) -> None:
        if place is None or len(found) > most or tuple(sorted(place.choices)) in found:
            return
        n_done = len(found)
        left_s = (time.monotonic() - began) / n_done * (most + 1 - n_done)
        say(f"{n_done} of at most {most} neighbours, about {format_duration(left_s)} left")
        found[tuple(sorted(place.choices))] = around.answer(place)

    singles = around.singles()
    for place in singles:
        look(place)

    def rank(place: _Place) -> float:
        answer = found.get(place.choices)
        if answer is None:
            return float("inf")
        return answer["iteration_time_s"] + (0.0 if answer["memory"]["fits"] else 1e6)

    known = [place for place in singles if found.get(place.choices) is not None]
    known.sort(key=rank)
    pairs = sorted(combinations(range(len(known)), 2), key=sum)  # the fastest with the fastest first
    for i, j in pairs:
        if len(found) > most:
            break
        look(around.pair(known[i], known[j]))
    return [answer for answer in found.values() if answer is not None]


def _stated(plan: ParallelPlan) -> dict[str, object]:
    return {key: value for key, value in plan.to_dict().items() if value != SETTINGS[key].default}


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)
