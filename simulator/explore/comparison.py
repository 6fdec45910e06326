"""Two answers side by side: what differs between their inputs, and which part of the time explains the difference."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

import msgspec

from simulator.analysis.metrics import PARTS, exposed_by_axis
from simulator.answer import MEMORY_PARTS, SAME, Answer, Result, describe_plan, throughput
from simulator.config import load_yaml
from simulator.errors import ConfigError
from simulator.explore.named_settings import given_in, named, scenario_of, with_recipe
from simulator.plan import ParallelPlan
from simulator.plan.names import is_switch
from simulator.simulation import simulate
from simulator.units import format_bytes, format_signed, format_time


class InputChange(TypedDict):
    """An input that differs."""

    setting: str  #: Its name; a dotted key for one of the cluster.
    a: str  #: Its value in the first answer.
    b: str  #: Its value in the second.


class PartChange(TypedDict):
    """A part of the time in both answers."""

    part: str  #: In words, exposed communication by axis where it is known.
    a_s: float  #: Seconds in the first answer.
    b_s: float  #: Seconds in the second, for the same number of samples where the batches differ.
    difference_s: float  #: Second less first; all add up to the difference of the times.
    #: Of the whole difference; negative where the part went the other way, null where there is none.
    share: float | None


class MemoryChange(TypedDict):
    """A category of memory in both answers."""

    category: str  #: In words.
    a_bytes: int  #: In the first answer.
    b_bytes: int  #: In the second.


class Comparison(TypedDict):
    """Two answers side by side."""

    a: str  #: The first scenario in words.
    b: str  #: The second.
    basis: str  #: What the times are of: an iteration, or a number of samples.
    inputs: list[InputChange]  #: What differs between the scenarios.
    a_s: float  #: Time of the first.
    b_s: float  #: Time of the second.
    difference_s: float  #: Second less first.
    parts: list[PartChange]  #: Where the difference comes from, the largest first.
    memory: list[MemoryChange]  #: Memory of the fullest rank by category, then the peak.
    summary: str  #: The comparison in one sentence.


#: less is what adding up rounds away
LEAST_S = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of a comparison."""

    answer: Answer
    exposed_s: Mapping[str, float] | None  #: Exposed communication by axis; None where only the answer is known.
    #: Settings that were given and change nothing, and what its framework would refuse, one sentence each; None where only the
    #: answer is known.
    idle: Sequence[str] | None = None
    settings: Mapping[str, Any] | None = None  #: What it was simulated from; None where only the answer is known.

    @property
    def plan(self) -> dict[str, Any]:
        """The plan as it ran."""
        return cast(dict[str, Any], self.answer["provenance"]["scenario"]["plan"])

    @property
    def parts_s(self) -> dict[str, float]:
        """Seconds by part in words; they add up to the iteration."""
        breakdown = self.answer["breakdown"]
        parts: dict[str, float] = {label: breakdown[key] for key, label in PARTS.items()}
        if self.exposed_s is not None:
            waiting_s = parts.pop(PARTS["exposed_communication_s"]) - sum(self.exposed_s.values())
            parts |= {f"exposed communication over {axis}": s for axis, s in self.exposed_s.items()}
            if waiting_s > LEAST_S:
                parts["waiting for slower ranks"] = waiting_s
        return parts

    def describe(self) -> str:
        """Say the scenario in one line."""
        scenario = self.answer["provenance"]["scenario"]
        return f"{scenario['model']} on {scenario['topology']}, {describe_plan(ParallelPlan(**self.plan))}"


def side_of(text: str, shared: Mapping[str, Any], *, say: Callable[[str], None] = lambda _: None) -> Side:
    """Read one side, or simulate it: a file that ``--json`` printed, a plan file, or settings that differ from the shared ones.

    Settings are written ``name=value,name=value``; each side takes what the published recipe for it sets beside them.
    """
    if text.endswith(".json") and Path(text).is_file():
        return side_of_answer(text)
    if text.endswith((".yaml", ".yml")) and ("=" not in text or Path(text).is_file()):
        return _simulated({**shared, "plan": text}, say)
    settings: dict[str, Any] = {}
    for item in sorted(text.split(","), key=lambda one: is_switch(one.partition("=")[0])):
        name, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(
                f"'{text}' is nothing to compare",
                hint="settings like gpus=16 or model=gpt-1.3b, a plan.yaml, or an answer that --json printed",
            )
        settings |= named(name, value, settings)
    return _simulated({**shared, **settings}, say)


def _simulated(settings: Mapping[str, Any], say: Callable[[str], None]) -> Side:
    result = simulate(scenario_of(with_recipe(settings)), progress=say)
    return replace(side_of_result(result, given_in(settings)), settings=settings)


def side_of_result(result: Result, given: Collection[str] = ()) -> Side:
    """Return a simulated result as a side; ``given`` are the settings of its plan that the user made."""
    said = (*result.idle_inputs(given), *result.warnings)
    return Side(answer=result.answer, exposed_s=exposed_by_axis(result.timeline), idle=said)


def idle_of_sides(shared: Mapping[str, Any], a: Side, b: Side) -> list[str]:
    """Name what changes nothing or would be refused: of a side by its letter, or of both; all that are shared, where both are answers."""
    if a.idle is None and b.idle is None:
        return [f"--{name.replace('_', '-')} has no effect: both sides are answers" for name in shared]
    mine, theirs = a.idle or (), b.idle or ()
    both = [text for text in mine if text in theirs]
    alone = [f"{name}: {text}" for name, side in (("A", mine), ("B", theirs)) for text in side if text not in both]
    return both + alone


def side_of_answer(path: str) -> Side:
    """Read an answer that ``--json`` printed."""
    data, _ = load_yaml(path)
    try:
        answer = msgspec.convert(data, Answer)
        plan = ParallelPlan(**answer["provenance"]["scenario"]["plan"])
        fault = "" if answer["iteration_time_s"] > 0 and plan.gpus and plan.global_batch else "it ran nothing"
    except msgspec.ValidationError as error:
        fault = str(error)
    except (KeyError, TypeError, ConfigError) as error:
        fault = f"provenance.scenario.plan: {error}"
    if fault:
        raise ConfigError(f"{path}: no answer of one run of this version: {fault}", hint="what simulate --json prints")
    return Side(answer=answer, exposed_s=None)


def compare(a: Side, b: Side) -> Comparison:
    """Say what differs between two answers, and where the difference of their times comes from.

    Times are those of an iteration where both train on as many samples, in all or per GPU (weak scaling); else the second's
    are scaled to the samples of the first.
    """
    if a.exposed_s is None or b.exposed_s is None:
        a, b = (Side(answer=one.answer, exposed_s=None) for one in (a, b))
    batches = [one.plan["global_batch"] for one in (a, b)]
    per_gpu = [one.plan["global_batch"] / one.plan["gpus"] for one in (a, b)]
    is_same_work = batches[0] == batches[1] or per_gpu[0] == per_gpu[1]
    scale = 1.0 if is_same_work else batches[0] / batches[1]
    basis = "an iteration" if is_same_work else f"{batches[0]:,} samples"
    before, after = a.answer["iteration_time_s"], scale * b.answer["iteration_time_s"]
    parts = _parts(a.parts_s, {name: scale * s for name, s in b.parts_s.items()}, after - before)
    found = Comparison(
        a=a.describe(), b=b.describe(), basis=basis, inputs=_inputs(a, b), a_s=before, b_s=after,
        difference_s=after - before, parts=parts, memory=_memory(a.answer, b.answer), summary="",
    )  # fmt: skip
    found["summary"] = _summary(found, a.answer, b.answer)
    return found


def _inputs(a: Side, b: Side) -> list[InputChange]:
    first, second = (_flat(one.answer["provenance"]["scenario"]) for one in (a, b))
    names = dict.fromkeys([*first, *second])
    return [
        InputChange(setting=name, a=first.get(name, "default"), b=second.get(name, "default"))
        for name in names
        if first.get(name) != second.get(name)
    ]


def _flat(scenario: Mapping[str, Any]) -> dict[str, str]:
    found = {name: str(value) for name, value in scenario["plan"].items()}
    found |= {str(name): str(value) for name, value in scenario["overrides"]}
    rest = {name: value for name, value in scenario.items() if name not in ("plan", "overrides")}
    return {name: str(value) for name, value in rest.items()} | found


def _parts(first: Mapping[str, float], second: Mapping[str, float], difference_s: float) -> list[PartChange]:
    rows = [
        PartChange(
            part=name, a_s=first.get(name, 0.0), b_s=second.get(name, 0.0),
            difference_s=second.get(name, 0.0) - first.get(name, 0.0), share=None,
        )
        for name in dict.fromkeys([*first, *second])
        if first.get(name) or second.get(name)
    ]  # fmt: skip
    if abs(difference_s) > SAME * max(sum(first.values()), sum(second.values())):
        for row in rows:
            row["share"] = row["difference_s"] / difference_s
    return sorted(rows, key=lambda row: (-abs(row["difference_s"]), row["part"]))


def _memory(a: Answer, b: Answer) -> list[MemoryChange]:
    rows = [(label, a["memory"][key], b["memory"][key]) for key, label in MEMORY_PARTS.items()]
    rows.append(("peak", a["memory"]["peak_bytes"], b["memory"]["peak_bytes"]))
    return [MemoryChange(category=label, a_bytes=x, b_bytes=y) for label, x, y in rows if x or y]


def _summary(found: Comparison, a: Answer, b: Answer) -> str:
    """Return who is faster by how much, why, and what becomes of throughput and memory."""
    before, after, change = found["a_s"], found["b_s"], found["difference_s"]
    if abs(change) <= SAME * max(before, after):
        verdict = f"both take {format_time(before)} for {found['basis']}"
    else:
        words = "longer" if change > 0 else "less"
        verdict = (
            f"B takes {format_time(abs(change))} ({abs(change) / before:.1%}) {words} than A for {found['basis']}: "
            f"{format_time(after)} instead of {format_time(before)}"
        )
        causes = [row for row in found["parts"] if abs(row["share"] or 0.0) >= 0.1][:3]
        named = (f"{row['part']} {format_signed(row['difference_s'])} ({row['share'] or 0.0:.0%})" for row in causes)
        verdict += f"; {', '.join(named)}"
    (rate_a, unit), (rate_b, _) = throughput(a), throughput(b)
    peaks = [one["memory"]["peak_bytes"] for one in (a, b)]
    memory = f"peak memory {format_bytes(peaks[0])} and {format_bytes(peaks[1])}"
    digits = ",.0f" if min(rate_a, rate_b) >= 100 else ".4g"
    return f"{verdict}. Throughput {rate_a:{digits}} and {rate_b:{digits}} {unit}; {memory}."
