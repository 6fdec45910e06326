"""What a row of a table costs: time, money, energy and emissions of a billion tokens, and of a whole run where its length is given."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from simulator.answer import Answer
from simulator.explore.run.checkpoint_policy import policy_of, synchronous
from simulator.explore.run.energy import Training, power_model, price_of, training_of
from simulator.explore.run.goodput import checkpoint_of, checkpoint_of_job
from simulator.explore.run.run_request import RunRequest
from simulator.explore.run.training_run import whole_run
from simulator.interop import load_model
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import Topology


class PerBillionTokens(Training):
    """What training on a billion tokens takes, without checkpoints and failures."""

    s_per_billion_tokens: float  #: Seconds.
    kwh_per_billion_tokens: float  #: Energy of the building.
    kg_co2_per_billion_tokens: float  #: What making it emits.


class RunFigures(TypedDict, total=False):
    """What a whole run takes, in one row of a table; interruptions included."""

    days: float  #: From start to end.
    low_days: float  #: Where an iteration is at the low end of its interval.
    high_days: float  #: Where it is at the high end.
    p10_days: float  #: Where runs are played, a tenth of them took less.
    p90_days: float  #: A tenth of them took more.
    goodput: float  #: Share of the time that makes progress.
    gpu_hours: float  #: GPUs times hours.
    cost: float | None  #: At the price of a GPU hour; null without one.
    kwh: float  #: Energy of the building.
    kg_co2: float  #: What making it emits.


class Spending(PerBillionTokens, RunFigures):
    """Both."""


def spending(request: RunRequest, answer: Answer, plan: ParallelPlan, topology: Topology) -> Spending | None:
    """Return what training takes with an answer; None for models that know no tokens."""
    rate = answer["tokens_per_s"]
    if not rate:
        return None
    power = power_model(topology, pue=request.pue, kg_co2_per_kwh=request.kg_co2_per_kwh)
    training = training_of(plan.gpus, rate, price_of(topology, request.price))
    kwh = training["gpu_hours_per_billion_tokens"] * power.facility_w(power.gpu_w(answer["breakdown"])) / 1e3
    found = {
        "s_per_billion_tokens": 1e9 / rate, **training, "kwh_per_billion_tokens": kwh,
        "kg_co2_per_billion_tokens": kwh * power.kg_co2_per_kwh,
    }  # fmt: skip
    if request.has_length:
        origin = answer["provenance"]
        if request.policy != "sync":  # the step once more, beside its checkpoint
            policy = policy_of(request.policy, simulate(Scenario.from_dict(origin["scenario"])))
        elif (
            plan.optimizer == "muon" or plan.lora_rank
        ):  # which parameters are in matrices, or trained, is the model's to say
            policy = synchronous(checkpoint_of_job(plan, topology, load_model(origin["scenario"]["model"])))
        else:
            policy = synchronous(checkpoint_of(plan, topology, origin["model_parameters"]))
        run = whole_run(request, answer, plan, topology, policy)
        figures: dict[str, Any] = {**(run["played"] or {}), **run, **run["energy"]}
        found |= {name: figures[name] for name in RunFigures.__annotations__ if name in figures}
    return cast(Spending, found)
