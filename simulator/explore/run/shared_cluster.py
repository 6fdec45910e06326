"""Jobs beside each other on one cluster: where they lie, what they share, and what each loses against running alone.

Every job repeats its step. The steps of two jobs shift against each other until they lock or come round again; from then on
everything repeats, and the mean over that period is the answer. How the jobs happen to start decides where they lock, so
several starts are played.

References
----------
Rajasekaran et al., "CASSINI: Network-Aware Job Scheduling in Machine Learning Clusters", NSDI 2024: periods of jobs on a
circle, and how they interleave. Cao et al., "Crux", SIGCOMM 2024: how often jobs contend, and what a pair lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypedDict

import numpy as np

from simulator.answer import Result
from simulator.config import content_in_words, load_yaml
from simulator.engine.period_watch import PeriodWatch
from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.explore.named_settings import named, scenario_of
from simulator.explore.run.goodput import checkpoint_of_job
from simulator.explore.run.placement import Switches, place, placements, read_free_nodes
from simulator.explore.run.shared_storage import read_steps_s
from simulator.faults import Faults
from simulator.interop import load_model
from simulator.parallel.loading import batch_bytes, sample_bytes_of
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.names import is_switch
from simulator.scenario import Scenario
from simulator.simulation import PlacedJob, Together, resolve, simulate_on, topology_of
from simulator.topology import Topology
from simulator.topology.storage import total_rate_bytes_per_s
from simulator.units import format_time, to_ps

#: starts of the later jobs that are played, spread over a step of theirs
N_STARTS = 4
#: placements that a search simulates
MOST_PLACEMENTS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job that is to be placed."""

    scenario: Scenario
    placement: str = "slurm"  #: As :func:`~simulator.explore.run.placement.place` takes it.
    gpus_per_node: int = 0  #: GPUs that it uses of each node; all by default.


class ContendingJob(TypedDict):
    """One of several jobs on a cluster."""

    model: str  #: What it trains.
    gpus: int  #: GPUs that it has.
    nodes: list[int]  #: On which it lies, by the cluster's numbers.
    on_leaves: list[int]  #: How many of them share a leaf switch, most first.
    alone_s: float  #: Time of a step with nothing beside it.
    beside_s: float  #: Mean time of a step beside the others.
    slowdown: float  #: The same over that alone.
    slowdown_low: float  #: Where the jobs happen to start best for it.
    slowdown_high: float  #: Where they happen to start worst for it.
    read_bytes: float  #: That a step reads from the file system; 0 where the cluster file says nothing of it.
    #: Of a checkpoint, and how long it takes to write with nothing beside it.
    checkpoint_bytes: int
    checkpoint_s: float


class ContendingJobs(TypedDict):
    """What jobs beside each other come to."""

    jobs: list[ContendingJob]  #: The job that is asked about, then the others.
    #: The link that they share and that all together ask most of; null where they share none that they load.
    shared_link: str | None
    #: Seconds per second that this link is needed for by all jobs at the pace of each alone; above 1 it cannot keep up.
    shared_load: float
    n_starts: int  #: Starts against each other that were played.
    n_steps: int  #: Steps of the first job in all of them.
    is_periodic: bool  #: Whether each came to repeat itself; means over many steps otherwise.


class PlacementRow(TypedDict):
    """One way to place a job on free nodes."""

    nodes: list[int]  #: By the cluster's numbers.
    on_leaves: list[int]  #: How many of them share a leaf switch, most first.
    iteration_time_s: float  #: Of a step there, beside the other jobs where there are any.
    is_slurms: bool  #: Whether Slurm's topology rules would choose it.


def read_job(path: str, base: Mapping[str, Any]) -> JobRequest:
    """Read a job's file: settings of a plan file, and ``model``, ``placement`` and ``gpus_per_node``.

    The cluster is that of the job that it runs beside.
    """
    data, locator = load_yaml(path)
    if not isinstance(data, dict):
        found = content_in_words(data)
        raise ConfigError(f"{path}: a job is a mapping of settings; found {found}", hint="model: bert-large, gpus: 16")
    own: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name, value in sorted(data.items(), key=lambda item: is_switch(str(item[0]))):
        try:
            if (key := str(name).replace("-", "_")) in ("placement", "gpus_per_node"):
                if key == "gpus_per_node" and (type(value) is not int or value < 1):
                    raise ConfigError(f"{value!r} is not a number of GPUs", hint="gpus_per_node: 4")
                own[key] = value
                continue
            made = named(str(name), value, settings)
            if not {*SETTINGS, "model"}.issuperset(made):
                raise ConfigError("the cluster is that of the main job", hint="keys of a plan, and model")
            settings |= made
        except SimulatorError as error:
            raise ConfigError(f"{locator.value((str(name),))}: {name}: {error.message}", hint=error.hint) from None
    missing = [name for name in ("model", "gpus") if name not in settings]
    if missing:
        raise ConfigError(f"{path}: no {' and no '.join(missing)}", hint="model: bert-large, gpus: 16, ...")
    shared = scenario_of(base)
    scenario = scenario_of({**settings, "topology": base["topology"]})
    return JobRequest(
        scenario=replace(scenario, overrides=shared.overrides, network=shared.network, seed=shared.seed),
        placement=str(own.get("placement", "slurm")), gpus_per_node=int(own.get("gpus_per_node", 0)),
    )  # fmt: skip


class SharedCluster:
    """A cluster on which jobs are placed one after the other, on the nodes that are free."""

    def __init__(self, scenario: Scenario, free_file: str | None = None) -> None:
        whole = replace(scenario, plan=ParallelPlan(), faults=Faults())
        self.cluster: Topology = topology_of(whole)
        self.switches = Switches(self.cluster)
        self.free = read_free_nodes(free_file, self.cluster) if free_file else list(range(self.cluster.n_nodes))
        self.rng = np.random.default_rng(scenario.seed)
        self.slow_links = scenario.faults.slow_links  #: Of the machine: every job meets those that it loads.
        self._held: dict[int, str] = {}
        self._elsewhere = f"not among the free ones of {free_file}"

    def n_nodes(self, job: JobRequest) -> int:
        """Return how many nodes a job needs."""
        n_gpus = job.scenario.plan.gpus
        if not n_gpus:
            raise InfeasiblePlanError(f"{job.scenario.model} has no --gpus", hint="--gpus N leaves room for others")
        return -(-n_gpus // (job.gpus_per_node or self.cluster.gpus_per_node))

    def place(self, job: JobRequest) -> PlacedJob:
        """Place a job on free nodes, which it keeps."""
        try:
            return self.put(
                job, place(job.placement, self.switches, self.free, self.n_nodes(job), self.rng, self._why_not)
            )
        except SimulatorError as error:
            raise type(error)(f"{job.scenario.model}: {error.message}", hint=error.hint) from None

    def open_others(self, free_file: str | None) -> None:
        """Let jobs be placed that run already: on nodes that are not free."""
        free = set(self.free) if free_file else set()
        self.free = [node for node in range(self.cluster.n_nodes) if node not in free]
        self._elsewhere = f"free in {free_file}, and this job runs already"

    def _why_not(self, node: int) -> str:
        """Say why a job cannot have a node."""
        if node >= self.cluster.n_nodes:
            return f"not there: {self.cluster.name} has nodes 0 to {self.cluster.n_nodes - 1}"
        return f"taken by {self._held[node]}" if node in self._held else self._elsewhere

    def put(self, job: JobRequest, nodes: Sequence[int]) -> PlacedJob:
        """Place a job on the nodes that are named."""
        self.free = [node for node in self.free if node not in nodes]
        self._held |= dict.fromkeys(nodes, job.scenario.model)
        topology = self.cluster.placed(nodes, job.scenario.plan.gpus, job.gpus_per_node)
        spec = load_model(job.scenario.model)
        scenario = replace(job.scenario, faults=replace(job.scenario.faults, slow_links=self.slow_links))
        topology = scenario.faults.apply(topology)
        return PlacedJob(
            scenario=resolve(scenario, topology, spec), topology=topology, spec=spec, nodes=tuple(sorted(nodes))
        )


def on_its_nodes(job: JobRequest, free_file: str | None = None, *, detail: bool = False) -> Result:
    """Simulate a job alone on the nodes where it is placed."""
    placed = SharedCluster(job.scenario, free_file).place(job)
    return simulate_on(placed.scenario, placed.topology, placed.spec, detail=detail)


def beside(
    jobs: Sequence[JobRequest],
    *,
    free_file: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ContendingJobs:
    """Place jobs one after the other on the cluster of the first, and play them beside each other."""
    shared = SharedCluster(jobs[0].scenario, free_file)
    return play(shared, [shared.place(job) for job in jobs], say)


def play(
    shared: SharedCluster, placed: Sequence[PlacedJob], say: Callable[[str], None] = lambda _: None
) -> ContendingJobs:
    """Play placed jobs beside each other, from several starts."""
    say("each alone")
    alone = [simulate_on(job.scenario, job.topology, job.spec) for job in placed]
    for one in alone:
        if not one.memory.fits:
            raise InfeasiblePlanError(f"{one.scenario.model} beside the others does not fit: {one.memory.explain()}")
    alone_s = [one.metrics.iteration_time_s for one in alone]
    link, load = busiest_shared(alone, alone_s)
    together = Together(placed)
    means: list[list[float]] = []
    n_steps, is_periodic = 0, True
    n_starts = N_STARTS if link is not None else 1
    for number in range(n_starts):
        say(f"together, start {number + 1} of {n_starts}")
        later = [to_ps(number / n_starts * seconds) for seconds in alone_s[1:]]
        watch = PeriodWatch(alone_s)
        found = together.play([0, *later], watch)
        means.append(_fed(placed, watch.means_s(found)))
        n_steps += len(found[0])
        is_periodic &= watch.first is not None
    rows = [
        _row(shared, job, seconds, [mean[number] for mean in means])
        for number, (job, seconds) in enumerate(zip(placed, alone_s, strict=True))
    ]
    return ContendingJobs(
        jobs=rows, shared_link=link, shared_load=load, n_starts=n_starts, n_steps=n_steps, is_periodic=is_periodic
    )


def _fed(placed: Sequence[PlacedJob], steps_s: Sequence[float]) -> list[float]:
    """Return how long steps take where all jobs read from one file system."""
    storage = placed[0].topology.storage
    rate = math.inf if storage is None else total_rate_bytes_per_s(storage)
    return list(steps_s) if math.isinf(rate) else read_steps_s(rate, [_read_bytes(job) for job in placed], steps_s)


def _read_bytes(job: PlacedJob) -> float:
    plan = job.scenario.plan
    return 0.0 if job.topology.storage is None else batch_bytes(plan, sample_bytes_of(job.spec, plan))


def _row(shared: SharedCluster, job: PlacedJob, alone_s: float, means_s: Sequence[float]) -> ContendingJob:
    nodes = list(job.nodes)
    beside_s = sum(means_s) / len(means_s)
    checkpoint = checkpoint_of_job(job.scenario.plan, job.topology, job.spec)
    return ContendingJob(
        model=job.scenario.model, gpus=job.scenario.plan.gpus, nodes=nodes, on_leaves=list(shared.switches.counts(nodes)),
        alone_s=alone_s, beside_s=beside_s, slowdown=beside_s / alone_s, slowdown_low=min(means_s) / alone_s,
        slowdown_high=max(means_s) / alone_s, read_bytes=_read_bytes(job), checkpoint_bytes=checkpoint.n_bytes,
        checkpoint_s=checkpoint.write_s,
    )  # fmt: skip


def busiest_shared(alone: Sequence[Result], alone_s: Sequence[float]) -> tuple[str | None, float]:
    """Return the link that more than one job loads and that they need most, and for which share of the time."""
    needed: dict[int, list[float]] = {}
    for result, seconds in zip(alone, alone_s, strict=True):
        for index, busy_s in result.link_busy_s.items():
            needed.setdefault(index, []).append(busy_s / seconds)
    shared = {index: sum(shares) for index, shares in needed.items() if len(shares) > 1}
    if not shared:
        return None, 0.0
    index = max(sorted(shared), key=lambda one: shared[one])
    link = alone[0].topology.links[index]
    return f"{link.source} -> {link.target}", shared[index]


def best_placements(
    job: JobRequest,
    others: Sequence[JobRequest] = (),
    *,
    free_file: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[PlacementRow], ContendingJobs | None]:
    """Return placements of a job on free nodes, the fastest first, and the job beside the others on the first of them.

    Other jobs run already, on nodes that their requests list or else on those that are not free.
    """
    shared = SharedCluster(job.scenario, free_file)
    open_nodes = shared.free
    if others:
        shared.open_others(free_file)
    running = [shared.place(one) for one in others]
    held = {node for one in running for node in one.nodes}
    free = [node for node in open_nodes if node not in held]
    ways = placements(shared.switches, free, shared.n_nodes(job), [one.nodes for one in running])
    found: list[tuple[PlacementRow, ContendingJobs | None]] = []
    for number, nodes in enumerate(islice(ways, MOST_PLACEMENTS)):
        say(f"placement {number + 1}")
        placed, played = shared.put(job, nodes), None
        if running:
            played = play(shared, [placed, *running])
            seconds = played["jobs"][0]["beside_s"]
        else:
            seconds = simulate_on(placed.scenario, placed.topology, placed.spec).metrics.iteration_time_s
        row = PlacementRow(
            nodes=list(nodes), on_leaves=list(shared.switches.counts(nodes)), iteration_time_s=seconds,
            is_slurms=number == 0,
        )  # fmt: skip
        found.append((row, played))
    found.sort(key=lambda one: (one[0]["iteration_time_s"], not one[0]["is_slurms"]))
    return [row for row, _ in found], found[0][1]


def in_words(found: ContendingJobs) -> str:
    """Say what the first job loses."""
    first = found["jobs"][0]
    if len(found["jobs"]) == 1:
        return f"{format_time(first['alone_s'])} per step on nodes {', '.join(map(str, first['nodes']))}, with no job beside it"
    words = f"{format_time(first['beside_s'])} per step beside the others, {first['slowdown']:.3f} times {format_time(first['alone_s'])}"
    if found["shared_link"] is None:
        return f"{words}: no link is shared"
    return f"{words}; of all shared links {found['shared_link']} is needed most, {found['shared_load']:.0%} of the time"
