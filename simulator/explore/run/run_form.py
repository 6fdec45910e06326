"""The form of a whole run in an answer: the keys of ``training`` and what each means."""

from __future__ import annotations

from typing import TypedDict

from simulator.explore.run.restarts import RestartSeconds


class RunSeconds(TypedDict):
    """What the time of a run is spent on."""

    useful_s: float  #: Iterations that count.
    stalled_s: float  #: Standing still, or going slower, for links that come and go.
    checkpoint_s: float  #: Writing checkpoints that were finished.
    lost_s: float  #: Work, and begun checkpoints, that failures undid.
    restart_s: float  #: From failures until the job runs again.


class RunEnergy(TypedDict):
    """What a run draws."""

    kwh: float  #: Energy of the building.
    gpu_w: float  #: Mean power of a board during iterations.
    host_w_per_gpu: float  #: Power of the rest of the node, per GPU.
    pue: float  #: Energy of the building over that of its computers.
    mean_w: float  #: Mean power of the building.
    j_per_token: float  #: Energy of the building for a token.
    low_j_per_token: float  #: With the time of a step and the powers at the lower ends of their intervals.
    high_j_per_token: float  #: At the upper ends.
    kg_co2: float  #: What making the electricity emits, as carbon dioxide.
    kg_co2_per_kwh: float  #: Of the grid.


class RunCheckpoint(TypedDict):
    """One checkpoint, and how often it is written."""

    bytes: int  #: Its size.
    writers: int  #: Ranks that write.
    policy: str  #: How it is taken: ``sync``, ``async``, ``peers`` or ``tiers``.
    write_s: float  #: How long training stands still for it, and what it takes from the steps that it overlaps.
    lag_s: float  #: From the moment that it is taken until it counts.
    shared_every: int  #: Checkpoints of which one leaves its node; 1 where all do.
    stored_every: int  #: Checkpoints of which one goes to storage; 1 where all do.
    interval_iterations: int  #: Optimizer steps between two.
    interval_s: float  #: The same as time.
    count: int  #: How many are written.
    young_interval_s: float | None  #: The optimum after Young; null where nothing fails.
    daly_interval_s: float | None  #: The optimum after Daly; null where nothing fails.


class RunFailures(TypedDict):
    """What failures are reckoned with."""

    mtbf_s: float | None  #: Mean time between failures of the job; null for none.
    expected: float  #: How many there are.
    restart_s: float  #: From a failure to the first iteration after it.
    restart_phases: RestartSeconds  #: What it consists of.
    domain_nodes: int  #: Nodes that fail at once.
    domain_share: float  #: Share of the failures in which they do.
    by_component: dict[str, float]  #: Expected failures by what failed; empty where no shares are published.


class PlayedRuns(TypedDict):
    """What played histories of the run took."""

    histories: int  #: How many.
    seed: int  #: Of their failures.
    mean_days: float  #: On average.
    p10_days: float  #: A tenth of the histories took less.
    p50_days: float  #: Half of them took less.
    p90_days: float  #: A tenth of them took more.
    goodput: float  #: Mean share of the time that makes progress.
    failures: float  #: Mean number of failures.
    gpu_hours: float  #: Of a history, on average.
    cost: float | None  #: The same at the price of a GPU hour; null without one.
    kwh: float  #: Mean energy of the building.
    waiting_days: float  #: Mean time lost to nodes that are missing: waiting, or going on with fewer replicas.
    is_elastic: bool  #: Whether the job went on with fewer replicas.
    spares: int | None  #: Nodes that stood by; null for as many as were needed.
    repair_s: float  #: Until a failed node was a spare again.


class RunAssumption(TypedDict):
    """A figure that a training run rests on."""

    what: str  #: Its name.
    value: str  #: In words.
    source: str  #: Where it comes from.


class TrainingRun(TypedDict):
    """What a training run takes."""

    tokens: int  #: To train on.
    samples: int  #: Sequences.
    iterations: int  #: Optimizer steps.
    total_s: float  #: From start to end, interruptions included.
    days: float  #: The same in days.
    low_days: float  #: Where an iteration is at the low end of its interval.
    high_days: float  #: Where it is at the high end.
    goodput: float  #: Share of the time that makes progress.
    time: RunSeconds  #: What the time is spent on.
    gpu_hours: float  #: GPUs times hours.
    cost: float | None  #: At the price of a GPU hour; null without one.
    currency: str  #: Of the cost.
    energy: RunEnergy  #: What it draws.
    checkpoint: RunCheckpoint  #: How often a checkpoint is written.
    failures: RunFailures  #: What failures cost.
    played: PlayedRuns | None  #: The distribution over played histories; null where none were asked for.
    assumptions: list[RunAssumption]  #: Every figure that was taken from a file or a default.
