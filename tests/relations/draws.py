"""Random scenarios: drawn from all models, clusters, frameworks, schedules, shardings and networks, each from a seed and a number."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from simulator.answer import Result
from simulator.changes import MachineChange
from simulator.config import shipped_names
from simulator.errors import SimulatorError
from simulator.explore.neighbourhood import RULES, Site, offload_rule, schedule_rule
from simulator.explore.trials import Trials
from simulator.faults import Faults
from simulator.interop import load_model
from simulator.models.catalog import CATALOG
from simulator.network import NETWORKS
from simulator.plan import FRAMEWORKS, SETTINGS, ParallelPlan
from simulator.scenario import Scenario
from simulator.schedules import SCHEDULES
from simulator.simulation import simulate, topology_of

#: parameters beyond which a random scenario would take long, with every layer of its own
MOST_PARAMETERS = 80e9
#: draws of one scenario before it is given up
MOST_DRAWS = 60


class InapplicableError(Exception):
    """A relation says nothing about this scenario."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A scenario that runs, and its neighbours.

    Parameters
    ----------
    scenario : Scenario
        As drawn.
    draw : random.Random
        For what a relation chooses itself.
    """

    scenario: Scenario
    draw: random.Random = field(repr=False)

    @cached_property
    def result(self) -> Result:
        """The answer to it."""
        return simulate(self.scenario)

    @property
    def plan(self) -> ParallelPlan:
        """The plan as it ran."""
        return self.result.plan

    @property
    def seconds(self) -> float:
        """Time of a step."""
        return self.result.metrics.iteration_time_s

    @cached_property
    def trials(self) -> Trials:
        """Runs of the same plan on changed machines."""
        return Trials(self.result)

    def on(self, change: MachineChange) -> float:
        """Return the time of a step on a changed machine."""
        return self.trials.machine(change).iteration_time_s

    def with_plan(self, **settings: Any) -> Result:
        """Return the answer with other settings of the resolved plan.

        Raises
        ------
        InapplicableError
            If there is no such plan.
        """
        try:
            return simulate(replace(self.scenario, plan=replace(self.plan, **settings)))
        except SimulatorError as error:
            raise InapplicableError(str(error)) from None

    def with_scenario(self, **settings: Any) -> Result:
        """Return the answer to the resolved scenario with something else changed.

        Raises
        ------
        InapplicableError
            If it cannot be.
        """
        try:
            return simulate(replace(self.scenario, plan=self.plan, **settings))
        except SimulatorError as error:
            raise InapplicableError(str(error)) from None

    def command(self) -> str:
        """Return the command that shows it."""
        scenario, default = self.scenario, Scenario(topology="", model="")
        words = ["simulate", "-t", scenario.topology, "-m", scenario.model]
        for key, one in SETTINGS.items():
            value = getattr(scenario.plan, key)
            if value != one.default:
                words.append(one.spelled(value))
        words += [f"--network {scenario.network}"] * (scenario.network != default.network)
        words += ["--unfold"] * scenario.unfold
        words += [f"--slow-rank {rank}={factor:g}" for rank, factor in scenario.faults.slow_ranks]
        words += [f"--slow-link '{link}={factor:g}'" for link, factor in scenario.faults.slow_links]
        return " ".join(words)


#: rules that people break on purpose, to study what their framework lacks: it is simulated all the same
_STUDIED = (schedule_rule, offload_rule)


def draw_case(seed: int, number: int) -> Case | None:
    """Return a scenario that runs, the same for the same seed and number; None where none was found.

    It may not fit: most relations hold all the same.
    """
    draw = random.Random(f"{seed}/{number}")
    for _ in range(MOST_DRAWS):
        try:
            scenario = _scenario(draw)
            case = Case(scenario=scenario, draw=draw)
            site = Site(topology=case.result.topology, spec=case.result.spec)
            if any(rule(case.plan, site) for rule in RULES if rule not in _STUDIED):
                continue  # runs, but no framework does
        except SimulatorError:
            continue
        return case
    return None


def _models() -> tuple[str, ...]:
    return tuple(name for name, spec in sorted(CATALOG.items()) if spec.n_parameters <= MOST_PARAMETERS)


MODELS = _models()
CLUSTERS = tuple(sorted(shipped_names("clusters")))


def _scenario(draw: random.Random) -> Scenario:
    model = draw.choice(MODELS)
    spec = load_model(model)
    gpus = draw.choice((1, 2, 4, 4, 8, 8, 8, 16, 16, 24, 32))
    tp, pp, cp = draw.choice((1, 1, 1, 2, 4, 8)), draw.choice((1, 1, 1, 2, 4)), draw.choice((1, 1, 1, 1, 1, 2))
    dp = max(1, gpus // (tp * pp * cp))
    micro_batch = draw.choice((1, 1, 1, 2, 4))
    settings: dict[str, Any] = {
        "gpus": dp * tp * pp * cp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "micro_batch": micro_batch,
        "global_batch": micro_batch * dp * draw.choice((1, 1, 2, 4, 2 * pp)),
        "sequence_length": min(draw.choice((256, 512, 1024, 2048)), spec.max_positions),
        "framework": draw.choice(tuple(FRAMEWORKS)),
    }
    if dp * cp > 1:
        settings["sharding"] = draw.choice(("none", "none", "zero1", "zero2", "zero3", "zero3", "hsdp"))
    if pp > 1:
        settings["schedule"] = draw.choice(("1f1b", "1f1b", "1f1b", *SCHEDULES))
        settings["virtual_pp"] = draw.choice((1, 1, 2))
    if spec.n_experts and dp * cp > 1:
        settings["ep"] = draw.choice([degree for degree in (1, 2, 4, 8) if (dp * cp) % degree == 0])
    for name, values, share in (
        ("recompute", ("selective", "full"), 0.35),
        ("precision", ("fp16", "amp_bf16", "tf32", "fp32", "fp8"), 0.3),
        ("attention", ("eager",), 0.15),
        ("sequence_parallel", (True,), 0.4 if tp > 1 else 0.0),
        ("overlap", (True, False), 0.3),
    ):
        if draw.random() < share:
            settings[name] = draw.choice(values)
    for name in draw.sample(sorted(SETTINGS), 3):
        if draw.random() < 0.25 and name not in settings:
            settings |= _rare(draw, name)
    is_small = settings["gpus"] <= 8 and spec.n_parameters < 3e9 and settings["global_batch"] <= 16
    network = draw.choice(("flow", "flow", "flow", "alpha-beta", *(NETWORKS if is_small else ())))
    return Scenario(
        topology=draw.choice(CLUSTERS),
        model=model,
        plan=ParallelPlan.of(settings),
        network=network,
        faults=_faults(draw, settings["gpus"]) if draw.random() < 0.15 else Faults(),
    )


def _rare(draw: random.Random, name: str) -> dict[str, Any]:
    """Return another value of a switch or a word; numbers are left alone."""
    one = SETTINGS[name]
    if one.kind is bool:
        return {name: not one.default}
    return {name: draw.choice(sorted(one.words))} if one.words and name not in ("schedule", "framework") else {}


def _faults(draw: random.Random, gpus: int) -> Faults:
    if draw.random() < 0.6:
        return Faults(slow_ranks=((draw.randrange(gpus), draw.choice((1.1, 1.5, 2.0))),))
    return Faults(slow_links=((f"node0.{draw.choice(('nic', 'nvlink', 'pcie', 'fabric'))}", draw.choice((1.5, 4.0))),))


def unfaulted(case: Case) -> Case:
    """Return the same case on a machine without faults."""
    return Case(scenario=replace(case.scenario, faults=Faults()), draw=case.draw)


def n_gpus_of(case: Case) -> int:
    """Return how many GPUs the whole cluster has."""
    whole = replace(case.scenario, plan=replace(case.plan.without("gpus", "dp", "global_batch")), faults=Faults())
    return topology_of(whole).n_gpus
