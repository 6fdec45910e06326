"""Answers around an answer: one and two settings changed, each simulated, for a page on which a reader changes one thing.

A choice is a setting and the word that it takes: ``micro_batch: 8``, ``NIC bandwidth: x 2``. An answer is found by its choices; what
was not simulated is not there, and nothing is interpolated. A machine is changed by keys of its cluster file, as on the command
line, so that the command of an answer gives that answer; only graphs without such keys have their links and boards changed as they are.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations
from typing import TypedDict

from simulator.analysis.metrics import Breakdown
from simulator.answer import Memory, Result
from simulator.changes import BETWEEN, MachineChange
from simulator.errors import ConfigError, SimulatorError
from simulator.explore.neighbourhood import Neighbour, Site, nearest, neighbours
from simulator.explore.run.energy import Price, price_of, training_of
from simulator.interop import FORMATS
from simulator.interop.trainers.emission import Request
from simulator.models.spec import ModelSpec
from simulator.plan import SETTINGS, ParallelPlan
from simulator.scenario import FLAG_NAMES, Scenario
from simulator.simulation import simulate_on, topology_of
from simulator.topology import LINK_KINDS, Topology
from simulator.topology.device_file import load_device
from simulator.topology.link import NVLINK_KINDS
from simulator.units import format_duration

Choices = dict[str, str]

#: machines that are looked at: what it is called, and the kinds of links that get so many times their rate
_LINKS = {"NIC bandwidth": BETWEEN, "NVLink bandwidth": NVLINK_KINDS}
#: the same in a cluster file: section and key of each rate that is stated there
_KEYS = {
    "NIC bandwidth": (("node.nics", "bandwidth"), ("fabric", "link_bandwidth"), ("fabric", "global_bandwidth")),
    "NVLink bandwidth": (("node.nvlink", "bandwidth_per_link"),),
}
_FACTORS = {"x 0.5": 0.5, "x 2": 2.0, "x 4": 4.0}
#: boards that take the place of the cluster's
_DEVICES = ("a100-sxm4-80g", "h100-sxm5-80g", "h200-sxm", "b200", "mi300x")
#: numbers of GPUs that are looked at, as factors
_SIZES = (0.5, 2, 4)
#: settings of a scenario and their flags
_FLAGS = {
    name: f"--{FLAG_NAMES.get(name, name).replace('_', '-')}"
    for name in ("network", "transport", "algorithm", "protocol", "seed")
}
_PLAIN = Scenario(topology="", model="")


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
    scenario: Scenario
    topology: Topology

    @property
    def plan(self) -> ParallelPlan:
        return self.scenario.plan


class _Around:
    """What can be chosen around one result."""

    def __init__(self, result: Result, price: Price | None) -> None:
        self.result = result
        self.price = price
        self.base = _Place(choices=(), scenario=result.asked, topology=result.topology)

    def answer(self, place: _Place) -> NearbyAnswer | None:
        """Simulate a place; None where its plan is not legal."""
        result = self.result
        if place is not self.base:
            try:
                near = simulate_on(place.scenario, place.topology, result.spec)
            except SimulatorError:  # layers, heads or the schedule do not allow it
                return None
            result = replace(near, memory_margin=result.memory_margin)
        answer, plan = result.answer, place.plan
        rate = answer["tokens_per_s"]
        spent = training_of(plan.gpus, rate, price_of(place.topology, self.price)) if rate else None
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
        near, far = (self._plans(self.base, of) for of in (nearest, neighbours))
        places = chain(near, self._sizes(self.base), self._machines(self.base), far)
        return list({place.choices: place for place in places}.values())

    def pair(self, first: _Place, second: _Place) -> _Place | None:
        """Return the place where both choices are made, if they are of two settings and can be combined."""
        (one, _), (other, word) = first.choices[0], second.choices[0]
        if one == other:
            return None
        if other == "gpus" and one not in SETTINGS:  # a machine is changed when it has its size
            return self.pair(second, first)
        if other == "gpus":
            places = self._sizes(first)
        elif other in SETTINGS:
            places = self._plans(first, neighbours)
        else:
            places = self._machines(first)
        return next((place for place in places if place.choices[-1] == (other, word)), None)

    def _plans(self, around: _Place, of: Callable[[ParallelPlan, Site], Iterator[Neighbour]]) -> Iterator[_Place]:
        for one in of(around.plan, Site(topology=around.topology, spec=self.result.spec)):
            changes_batch = one.plan.global_batch != around.plan.global_batch
            if one.reason or changes_batch:
                continue
            choice = (one.setting, str(getattr(one.plan, one.setting)).lower())
            scenario = replace(around.scenario, plan=one.plan)
            yield replace(around, choices=(*around.choices, choice), scenario=scenario)

    def _sizes(self, around: _Place) -> Iterator[_Place]:
        """Yield the same step on other numbers of GPUs: more or fewer replicas share its sequences."""
        plan = around.plan
        for factor in _SIZES:
            gpus, dp = plan.gpus * factor, plan.dp * factor
            if dp % 1:
                continue
            try:
                resized = replace(plan, gpus=int(gpus), dp=int(dp)).resolve(int(gpus))
                scenario = replace(around.scenario, plan=resized)
                topology = topology_of(scenario)
            except SimulatorError:  # the cluster has fewer, or the batch cannot be shared by so many
                continue
            yield _Place(choices=(*around.choices, ("gpus", str(resized.gpus))), scenario=scenario, topology=topology)

    def _command(self, place: _Place) -> str:
        scenario = place.scenario
        name = scenario.topology if isinstance(scenario.topology, str) else scenario.topology.name
        words = ["simulate", "--topology", shlex.quote(name), "--model", shlex.quote(scenario.model)]
        stated = _stated(place.plan)
        words += [f"--gpus {stated.pop('gpus', place.plan.gpus)}"]
        words += [SETTINGS[key].spelled(value) for key, value in stated.items()]
        words += [f"--set {shlex.quote(f'{key}={value}')}" for key, value in scenario.overrides]
        given = {
            flag: getattr(scenario, key)
            for key, flag in _FLAGS.items()
            if getattr(scenario, key) != getattr(_PLAIN, key)
        }
        words += [f"{flag} {value}" for flag, value in given.items()]
        words += [f"--slow-rank {rank}={factor}" for rank, factor in scenario.faults.slow_ranks]
        words += [f"--slow-link {shlex.quote(f'{link}={factor}')}" for link, factor in scenario.faults.slow_links]
        words += ["--unfold"] * scenario.unfold
        inside = scenario.overrides != self.base.scenario.overrides
        machine = [f"{key} {word}" for key, word in place.choices if key not in SETTINGS and not inside]
        return " ".join(words) + (f"  # on a machine with {' and '.join(machine)}" if machine else "")

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
                    yield self._changed(around, (name, word), _rates(topology, name, factor), change)
        for name in _DEVICES:
            if name != topology.device(0).name:
                change = MachineChange(device=load_device(name))
                yield self._changed(around, ("GPU", name), {"node.device": name}, change)

    def _changed(self, around: _Place, choice: tuple[str, str], keys: dict[str, str], change: MachineChange) -> _Place:
        """Return a place with keys of the cluster file changed or, where it has no such keys, with the change itself."""
        scenario = replace(around.scenario, overrides=tuple((dict(around.scenario.overrides) | keys).items()))
        try:
            topology = topology_of(scenario)
        except ConfigError:  # a graph, whose links are its own
            scenario, topology = around.scenario, change.apply(around.topology)
        return _Place(choices=(*around.choices, choice), scenario=scenario, topology=topology)


def _rates(topology: Topology, name: str, factor: float) -> dict[str, str]:
    """Return the keys of a cluster file that hold some rate, each with so many times what it says."""
    spec = topology.spec
    parts = {"node.nics": spec.node.nics, "node.nvlink": spec.node.nvlink, "fabric": spec.fabric}
    rates = {f"{section}.{key}": getattr(parts[section], f"{key}_bytes_per_s", None) for section, key in _KEYS[name]}
    return {key: f"{rate * factor / 1e9:.12g} GB/s" for key, rate in rates.items() if rate is not None}


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
