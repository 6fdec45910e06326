"""The form of the full answer: what ``--json`` prints, key by key."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from simulator.analysis.explain import Explanation
from simulator.answer import Answer
from simulator.explore.run.local_steps import LocalSteps
from simulator.explore.run.network_trouble import Trouble
from simulator.explore.run.run_form import TrainingRun
from simulator.explore.run.shared_cluster import ContendingJobs, PlacementRow


class WayOut(TypedDict):
    """A change, or two, of a plan that does not fit."""

    change: str  #: As flags.
    fits: bool  #: Whether it suffices.
    peak_bytes: int  #: Memory of the fullest rank with it.
    capacity_bytes: int  #: What the device has.
    is_tight: bool  #: Whether it suffices, and leaves less free than ``--memory-margin`` asks for.
    #: Simulated time of a step with it; null where it does not suffice, or was not simulated.
    iteration_time_s: float | None
    untimed: str  #: Why one that suffices was not simulated; empty where it was.
    gpu_hours_per_billion_tokens: float | None  #: What training takes with it.
    cost_per_billion_tokens: float | None  #: The same at the price of a GPU hour, where one is known.
    currency: str  #: Of the cost.
    same_training: bool  #: Whether training computes the same, to the last bit of its rounding.


class Extras(TypedDict, total=False):
    """What stands beside the answer, where it was asked for."""

    explanation: Explanation  #: With ``--explain``; of the last of several answers.
    #: Where the plan does not fit: changes that need less, those that suffice first, the fastest of them first.
    ways_out: list[WayOut]
    neighbours: ContendingJobs  #: Jobs beside this one, with ``--with`` or ``--placement``.
    placements: list[PlacementRow]  #: Ways to place the job, the fastest first, with ``--nodes-free``.
    local_steps: LocalSteps  #: Training site by site, with ``--local-steps``.
    #: What is wrong with the network and what it costs, with ``--network-trouble`` or ``--flapping``.
    network_trouble: list[Trouble]


class Document(Answer, Extras):
    """What ``--json`` prints for one number of GPUs."""

    #: Days, GPU hours, cost, energy and goodput, where the length of a run is given.
    whole_run: NotRequired[TrainingRun]


class ScalingRow(Document):
    """The answer for one of several numbers of GPUs."""

    gpus: int  #: The number of GPUs.


class Scaling(Extras):
    """What ``--json`` prints for several numbers of GPUs."""

    scaling: list[ScalingRow]  #: One answer per number of GPUs.
