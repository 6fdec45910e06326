"""From one iteration to a training run: days, GPU hours, cost, energy, and what checkpoints and failures add."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypedDict

from simulator.answer import Answer
from simulator.errors import ConfigError
from simulator.explore.checkpoint_policy import Policy
from simulator.explore.energy import (
    J_PER_KWH,
    PowerModel,
    Price,
    energy_kwh,
    failure_rates,
    power_model,
    price_of,
)
from simulator.explore.goodput import (
    Checkpoint,
    RunTime,
    daly_interval_s,
    expected_run,
    young_interval_s,
)
from simulator.explore.histories import FailureProcess, by_component, play_histories
from simulator.explore.placement import DOMAINS, nodes_of_domain
from simulator.explore.restarts import Restart, RestartSeconds, in_words, mean_restart, restart_of, total_s
from simulator.explore.shared_cluster import ContendingJob
from simulator.explore.shared_storage import write_factor
from simulator.plan import ParallelPlan
from simulator.topology import Topology
from simulator.topology.operation_spec import FailureSpec, operation_defaults
from simulator.topology.storage import total_rate_bytes_per_s
from simulator.units import S_PER_DAY, S_PER_HOUR, format_bytes, format_duration, parse_quantity

_COUNT = re.compile(r"\s*(\d[\d_,]*(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([kKMGBT]?)\s*")
_SUFFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_STEPS = re.compile(r"\s*(\d+)\s*(?:steps?|iterations?|it)\s*")
_DOMAIN = re.compile(rf"\s*(?:(\d+)\s*(?:nodes?)?|({'|'.join(DOMAINS)}))\s*=\s*(\d*\.?\d+)\s*")
_WORDS_FOR_NEVER = ("none", "never", "inf", "off")

Per = Literal["gpu", "node", "job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtbf:
    """Mean time between failures of one part of the machine."""

    seconds: float  #: Infinite for none.
    per: Per  #: ``gpu``, ``node`` or ``job``.
    source: str = ""
    hardware_share: float = 1.0  #: Share of the failures that take a node away for repair.
    #: Share of the failures by what failed, where it is published.
    components: Mapping[str, float] = field(default_factory=dict)

    def job_s(self, n_gpus: int, n_nodes: int) -> float:
        """Return the mean time between failures of a job: any part that fails ends it.

        Examples
        --------
        >>> Mtbf(seconds=8000.0, per="gpu").job_s(n_gpus=16, n_nodes=2)
        500.0
        """
        return self.seconds / {"gpu": n_gpus, "node": n_nodes, "job": 1}[self.per]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksInRun:
    """What links that come and go do to a run."""

    stalls: float = 1.0  #: How many times as long a step takes on average.
    ended_every_s: tuple[float, ...] = ()  #: From one time to the next that each link that ends the job goes down.


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """How long a run is and how it is operated; what is None is taken from the cluster file or the defaults."""

    tokens: float = 0.0  #: To train on; 0 where ``iterations`` says it.
    iterations: int = 0  #: Optimizer steps; 0 where ``tokens`` says it.
    price: Price | None = None
    mtbf: Mtbf | None = None
    interval_s: float | None = None  #: Time between checkpoints.
    interval_iterations: int | None = None  #: The same in steps.
    write_s: float | None = None  #: Time that training stands still for one checkpoint.
    restart: Restart | None = None  #: From a failure to the next iteration, but for reading the checkpoint.
    pue: float | None = None
    kg_co2_per_kwh: float | None = None
    n_histories: int = 0  #: Times that the run is played; 0 for the closed form alone.
    n_spares: int | None = None  #: Nodes that stand by in played histories; None for as many as are needed.
    repair_s: float = S_PER_DAY  #: Until a failed node is a spare again.
    seed: int = 0  #: Of the histories.
    policy: str = "sync"  #: How checkpoints are taken, see :mod:`simulator.explore.checkpoint_policy`.
    #: Share of the failures that take so many nodes at once.
    domain_share: float = 0.0
    domain_nodes: int | str = 1  #: Or what they have in common: one of :data:`simulator.explore.placement.DOMAINS`.
    is_elastic: bool = False  #: Whether the job goes on with fewer replicas while a node is missing.
    links: LinksInRun = LinksInRun()  #: That come and go.

    @property
    def has_length(self) -> bool:
        """Whether it says how long the run is; otherwise only prices and powers are asked for."""
        return bool(self.tokens or self.iterations)

    def n_iterations(self, tokens_per_iteration: int) -> int:
        """Return the number of optimizer steps."""
        return self.iterations or math.ceil(self.tokens / tokens_per_iteration)


def parse_count(text: str, flag: str) -> float:
    """Read a number above 0 such as ``300e9``, ``300B`` or ``15.6T``.

    Examples
    --------
    >>> parse_count("300B", "--tokens"), parse_count("1_000", "--tokens")
    (300000000000.0, 1000.0)
    """
    match = _COUNT.fullmatch(text)
    value = float(match[1].replace("_", "").replace(",", "")) * _SUFFIXES[match[2]] if match else 0.0
    if not (match and 0 < value < math.inf):
        raise ConfigError(f"{flag} {text}: not a number above 0", hint="write it like 300e9, 300B or 15.6T")
    return value


def run_length(
    tokens: str | None, epochs: float | None, dataset_tokens: str | None, iterations: int | None
) -> tuple[float, int] | None:
    """Return tokens and iterations, one of them 0, or None where no length is given."""
    given = [
        name
        for name, value in (("--tokens", tokens), ("--epochs", epochs), ("--iterations", iterations))
        if value is not None
    ]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} both say how long the run is", hint="give one of them")
    if epochs is not None and dataset_tokens is None:
        raise ConfigError("--epochs needs the size of the data set", hint="--dataset-tokens 10B")
    if dataset_tokens is not None and epochs is None:
        raise ConfigError("--dataset-tokens needs the number of epochs", hint="--epochs 1")
    if iterations is not None:
        if iterations < 1:
            raise ConfigError(f"--iterations {iterations}: at least 1")
        return 0.0, iterations
    if epochs is not None and dataset_tokens is not None:
        if not 0 < epochs < math.inf:
            raise ConfigError(f"--epochs {epochs:g}: above 0")
        return epochs * parse_count(dataset_tokens, "--dataset-tokens"), 0
    return None if tokens is None else (parse_count(tokens, "--tokens"), 0)


def parse_mtbf(text: str) -> Mtbf:
    """Read ``50000 h/gpu``, ``6000 h/node``, ``3 h/job``, the name of a published rate, or ``none``.

    Examples
    --------
    >>> parse_mtbf("3 h/job").seconds, parse_mtbf("none").seconds
    (10800.0, inf)
    """
    if text.strip().lower() in _WORDS_FOR_NEVER:
        return Mtbf(seconds=math.inf, per="job", source="--mtbf")
    if text.strip() in failure_rates():
        rate = failure_rates()[text.strip()]
        return replace(_stated(rate, rate.source), hardware_share=rate.hardware, components=rate.components)
    time, separator, per = text.rpartition("/")
    if not separator or per.strip() not in ("gpu", "node", "job"):
        raise ConfigError(
            f"--mtbf {text}: the mean time between failures of what?",
            hint=f"--mtbf '50000 h/gpu', '6000 h/node', '3 h/job', none, or a published rate: {', '.join(failure_rates())}",
        )
    per_what: Per = "gpu" if per.strip() == "gpu" else "node" if per.strip() == "node" else "job"
    return Mtbf(seconds=parse_time(time, "--mtbf", least_s=1e-3), per=per_what, source="--mtbf")


def parse_domain(text: str) -> tuple[int | str, float]:
    """Read ``8 nodes=0.08`` or ``switch=0.08``: so many nodes fail at once, in such a share of the failures.

    Examples
    --------
    >>> parse_domain("8 nodes=0.08"), parse_domain("switch=0.08")
    ((8, 0.08), ('switch', 0.08))
    """
    found = _DOMAIN.fullmatch(text)
    which = int(found[1]) if found and found[1] else found[2] if found else 0
    if found is None or not which or not 0 < float(found[3]) <= 1:
        raise ConfigError(
            f"--failure-domain {text}: not what fails at once, and in which share of the failures",
            hint=f"--failure-domain '8 nodes=0.08', or {', '.join(f'{name}=0.08' for name in DOMAINS)}",
        )
    return which, float(found[3])


def parse_interval(text: str) -> tuple[float | None, int | None]:
    """Read ``30 min`` or ``500 steps``: seconds, or steps.

    Examples
    --------
    >>> parse_interval("30 min"), parse_interval("500 steps")
    ((1800.0, None), (None, 500))
    """
    steps = _STEPS.fullmatch(text)
    if steps is None:
        return parse_time(text, "--checkpoint-interval", least_s=1e-3), None
    if int(steps[1]) < 1:
        raise ConfigError(f"--checkpoint-interval {text}: at least 1 step")
    return None, int(steps[1])


def parse_time(text: str, flag: str, *, least_s: float = 0.0) -> float:
    """Read a time with its unit."""
    try:
        seconds = parse_quantity(text, "time")
    except ConfigError as error:
        raise ConfigError(f"{flag} {text}: {error.message}", hint="for example '90 s', '30 min' or '2 h'") from None
    if seconds < least_s:
        raise ConfigError(f"{flag} {text}: {'above 0' if least_s else 'cannot be negative'}")
    return seconds


#: checkpoints in peers' memory per one in storage where nothing is said to take a node and its peer at once
_SELDOM = 100


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


def whole_run(
    request: RunRequest,
    answer: Answer,
    plan: ParallelPlan,
    topology: Topology,
    policy: Policy,
) -> TrainingRun:
    """Return what a run takes: ``whole_run`` of the documented answer.

    Parameters
    ----------
    policy : Policy
        How checkpoints are taken.

    Raises
    ------
    InfeasiblePlanError
        If failures are so frequent that the run never ends.
    """
    iteration_s = float(answer["iteration_time_s"])
    n_iterations = request.n_iterations(plan.global_batch * plan.sequence_length)
    run = _operated(request, plan, topology, policy, n_iterations, iteration_s)
    time, low, high = (
        _expected(run, n_iterations, seconds)
        for seconds in (iteration_s, answer["confidence"]["low_s"], answer["confidence"]["high_s"])
    )
    power = power_model(topology, pue=request.pue, kg_co2_per_kwh=request.kg_co2_per_kwh)
    bill = _Bill(
        n_gpus=plan.gpus, power=power, gpu_w=power.gpu_w(answer["breakdown"]), price=price_of(topology, request.price)
    )
    n_samples = n_iterations * plan.global_batch
    n_tokens = n_samples * plan.sequence_length
    stalled_s = time.useful_s - n_iterations * iteration_s
    assumptions = (*run.assumptions, *_power_assumptions(power, bill.price))
    return {
        "tokens": n_tokens, "samples": n_samples, "iterations": n_iterations,
        "total_s": time.total_s, "days": time.total_s / S_PER_DAY, "low_days": low.total_s / S_PER_DAY,
        "high_days": high.total_s / S_PER_DAY, "goodput": (time.useful_s - stalled_s) / time.total_s,
        "time": RunSeconds(
            useful_s=time.useful_s - stalled_s, stalled_s=stalled_s, checkpoint_s=time.checkpoint_s, lost_s=time.lost_s,
            restart_s=time.restart_s),
        "gpu_hours": bill.gpu_hours(time.total_s), "cost": bill.cost(time.total_s),
        "currency": bill.price.currency if bill.price else "",
        "energy": _energy(bill, (time, low, high), n_tokens),
        "checkpoint": _checkpoint(run, iteration_s, time.n_checkpoints),
        "failures": _failures(run, time.n_failures),
        "played": _played(request, run.process, bill),
        "assumptions": [{"what": what, "value": value, "source": source} for what, value, source in assumptions],
    }  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bill:
    """What time costs in money and energy."""

    n_gpus: int
    power: PowerModel
    gpu_w: float  #: Mean power of a board during iterations.
    price: Price | None

    def gpu_hours(self, total_s: float) -> float:
        """Return GPUs times hours."""
        return self.n_gpus * total_s / S_PER_HOUR

    def cost(self, total_s: float) -> float | None:
        """Return the price of the GPU hours; None without a price."""
        return self.gpu_hours(total_s) * self.price.gpu_hour if self.price else None

    def kwh(self, running_s: float, total_s: float) -> float:
        """Return the building's energy: boards run while iterations do and wait otherwise; nodes and building always draw."""
        boards_kwh = energy_kwh(self.gpu_w, running_s) + energy_kwh(self.power.idle_w, total_s - running_s)
        return self.n_gpus * (boards_kwh + energy_kwh(self.power.host_w, total_s)) * self.power.pue


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operated:
    """How a run is operated."""

    process: FailureProcess
    policy: Policy  #: Its checkpoint with the share of those in storage.
    per_checkpoint: int
    mtbf: Mtbf
    restart: RestartSeconds
    assumptions: tuple[tuple[str, str, str], ...]


def _operated(
    request: RunRequest, plan: ParallelPlan, topology: Topology, policy: Policy, n_iterations: int, iteration_s: float
) -> _Operated:
    """Fill in what the request leaves open: rate of failures, checkpoints, restarts."""
    checkpoint, write_source = policy.checkpoint, policy.checkpoint.source
    if request.write_s is not None:
        checkpoint, write_source = replace(checkpoint, write_s=request.write_s), "--checkpoint-time"
    mtbf = _mtbf(request, topology)
    mtbf_s = mtbf.job_s(topology.n_gpus, topology.n_hosts)
    any_s = _with_links_s(mtbf_s, request.links.ended_every_s)
    phases, restart_source = restart_of(request.restart, topology)
    random_share = any_s / mtbf_s if math.isfinite(mtbf_s) else 0.0  # links take nothing with them
    node_share = random_share * (1.0 - request.domain_share) * mtbf.hardware_share
    load_s = _read_s(policy, random_share * request.domain_share, node_share)
    restart = mean_restart(phases, load_s=load_s, hardware_share=random_share * mtbf.hardware_share)
    per_checkpoint, interval_source = _interval(
        request, n_iterations, iteration_s, checkpoint.write_s, any_s, least_s=policy.lag_s
    )
    shared_every, stored_every = _every(request, policy, mtbf, per_checkpoint * iteration_s, mtbf_s)
    checkpoint = _with_tiers(policy, checkpoint, shared_every, stored_every)
    process = FailureProcess(
        useful_s=n_iterations * iteration_s, work_s=iteration_s * per_checkpoint, write_s=checkpoint.write_s, mtbf_s=mtbf_s,
        restart_s=total_s(restart), hardware_share=mtbf.hardware_share, n_spares=request.n_spares,
        repair_s=request.repair_s, lag_s=policy.lag_s, domain_share=request.domain_share,
        domain_nodes=nodes_of_domain(request.domain_nodes, topology), shared_every=shared_every, stored_every=stored_every,
        stalls=request.links.stalls, ended_every_s=request.links.ended_every_s,
        elastic_loss=_lost_share(plan, topology) if request.is_elastic else None,
    )  # fmt: skip
    assumptions = (
        ("mean time between failures", _mtbf_words(mtbf, mtbf_s), mtbf.source),
        *_link_assumptions(request.links),
        ("restart", f"{format_duration(process.restart_s)}: {in_words(restart)}", restart_source),
        ("checkpoint", f"{format_bytes(checkpoint.n_bytes)} in {format_duration(checkpoint.write_s)}", write_source),
        ("checkpoint interval", f"{per_checkpoint:,} iteration{'s' if per_checkpoint > 1 else ''}", interval_source),
    )
    return _Operated(
        process=process, policy=replace(policy, checkpoint=checkpoint), per_checkpoint=per_checkpoint, mtbf=mtbf,
        restart=restart, assumptions=assumptions,
    )  # fmt: skip


def written_beside(
    checkpoint: Checkpoint, others: Sequence[ContendingJob], request: RunRequest, topology: Topology
) -> Checkpoint:
    """Return a checkpoint that takes longer for other jobs' checkpoints, which fail and write as often as Daly says."""
    mtbf = _mtbf(request, topology)
    rate = total_rate_bytes_per_s(topology.storage, writes=True) if topology.storage is not None else math.inf
    if math.isinf(rate) or not others:
        return checkpoint
    writers = []
    for job in others:
        write_s = job["checkpoint_s"]
        work_s = daly_interval_s(write_s, mtbf.job_s(job["gpus"], len(job["nodes"]) * topology.node.hosts))
        writers.append((job["checkpoint_bytes"] / write_s, write_s / (work_s + write_s)))
    factor = write_factor(rate, checkpoint.n_bytes / checkpoint.write_s, writers)
    return replace(checkpoint, write_s=factor * checkpoint.write_s)


def _with_links_s(mtbf_s: float, ended_every_s: Sequence[float]) -> float:
    """Return the mean time between failures where links end the job, too, as if they went down at random."""
    rate = 1.0 / mtbf_s + sum(1.0 / every_s for every_s in ended_every_s)
    return 1.0 / rate if rate else math.inf


def _link_assumptions(links: LinksInRun) -> list[tuple[str, str, str]]:
    found = []
    if links.stalls > 1.0:
        found.append(
            ("links that come and go", f"steps of {links.stalls:.4f} times the length on average", "--flapping")
        )
    if links.ended_every_s:
        every = ", ".join(f"every {format_duration(every_s)}" for every_s in links.ended_every_s)
        found.append(("links that end the job", f"{every}, each a failure with its restart", "--flapping"))
    return found


def _expected(run: _Operated, n_iterations: int, iteration_s: float) -> RunTime:
    """Return the expected time of the run where an iteration takes so long while all links are up."""
    process = run.process
    mtbf_s = _with_links_s(process.mtbf_s, process.ended_every_s)
    random_share = mtbf_s / process.mtbf_s if math.isfinite(process.mtbf_s) else 0.0
    domain_share = random_share * process.domain_share
    node_share = random_share * (1.0 - process.domain_share) * process.hardware_share
    return expected_run(
        n_iterations, iteration_s * process.stalls, iterations_per_checkpoint=run.per_checkpoint, write_s=process.write_s,
        mtbf_s=mtbf_s, restart_s=process.restart_s, lag_s=process.lag_s, domain_share=domain_share,
        stored_every=process.stored_every, hardware_share=node_share / (1.0 - domain_share) if domain_share < 1.0 else 0.0,
        shared_every=process.shared_every,
    )  # fmt: skip


def _power_assumptions(power: PowerModel, price: Price | None) -> list[tuple[str, str, str]]:
    found = [
        ("power of a GPU", _power_words(power), power.sources["gpu"]),
        ("power of its share of the node", f"{power.host_w:.4g} W", power.sources["host"]),
        ("PUE", f"{power.pue:.4g}", power.sources["pue"]),
        ("emissions", f"{power.kg_co2_per_kwh:.4g} kg CO2 per kWh", power.sources["grid"]),
    ]
    if price:
        found.append(("price", f"{price.gpu_hour:g} {price.currency}".strip() + " per GPU hour", price.source))
    return found


def _energy(bill: _Bill, times: tuple[RunTime, RunTime, RunTime], n_tokens: int) -> RunEnergy:
    """Return what the run draws, and for a token at both ends of the intervals of time and power, which are independent."""
    kwh, low_kwh, high_kwh = (bill.kwh(time.useful_s + time.lost_s, time.total_s) for time in times)
    power, deviation = bill.power, operation_defaults().power.deviation
    j_per_token = kwh * J_PER_KWH / n_tokens if n_tokens else 0.0
    return {
        "kwh": kwh, "gpu_w": bill.gpu_w, "host_w_per_gpu": power.host_w, "pue": power.pue,
        "mean_w": kwh * J_PER_KWH / times[0].total_s, "j_per_token": j_per_token,
        "low_j_per_token": j_per_token * (1.0 - math.hypot(1.0 - low_kwh / kwh, deviation)),
        "high_j_per_token": j_per_token * (1.0 + math.hypot(high_kwh / kwh - 1.0, deviation)),
        "kg_co2": kwh * power.kg_co2_per_kwh, "kg_co2_per_kwh": power.kg_co2_per_kwh,
    }  # fmt: skip


def _every(request: RunRequest, policy: Policy, mtbf: Mtbf, interval_s: float, mtbf_s: float) -> tuple[int, int]:
    """Return of how many checkpoints one leaves its node, and of how many one goes to storage.

    Young's optimum for the failures that need it: those of whole domains, those of nodes and domains.
    """

    def optimum(write_s: float, share: float) -> int:
        if not share or math.isinf(mtbf_s):
            return _SELDOM
        return max(1, round(young_interval_s(write_s, mtbf_s / share) / interval_s))

    if policy.name not in ("peers", "tiers"):
        return 1, 1
    stored_every = optimum(policy.storage.write_s, request.domain_share)
    if policy.shared is None:
        return 1, stored_every
    beyond = request.domain_share + (1.0 - request.domain_share) * mtbf.hardware_share
    shared_every = min(stored_every, optimum(policy.shared.write_s, beyond))
    return shared_every, max(1, round(stored_every / shared_every)) * shared_every


def _checkpoint(run: _Operated, iteration_s: float, count: int) -> RunCheckpoint:
    process, checkpoint = run.process, run.policy.checkpoint
    mtbf_s = _with_links_s(process.mtbf_s, process.ended_every_s)
    fails = math.isfinite(mtbf_s)
    return {
        "bytes": checkpoint.n_bytes, "writers": checkpoint.n_writers, "policy": run.policy.name, "write_s": checkpoint.write_s,
        "lag_s": run.policy.lag_s, "shared_every": process.shared_every, "stored_every": process.stored_every,
        "interval_iterations": run.per_checkpoint, "interval_s": run.per_checkpoint * iteration_s, "count": count,
        "young_interval_s": young_interval_s(checkpoint.write_s, mtbf_s) if fails else None,
        "daly_interval_s": daly_interval_s(checkpoint.write_s, mtbf_s) if fails else None,
    }  # fmt: skip


def _lost_share(plan: ParallelPlan, topology: Topology) -> float:
    """Return which share of the replicas has ranks on one node, tensor and context parallelism innermost."""
    return min(1.0, max(1, topology.gpus_per_host // (plan.tp * plan.cp)) / plan.dp)


def _failures(run: _Operated, expected: float) -> RunFailures:
    process = run.process
    mtbf_s = _with_links_s(process.mtbf_s, process.ended_every_s)
    n_random = expected * mtbf_s / process.mtbf_s if math.isfinite(process.mtbf_s) else 0.0
    by_part = by_component(n_random, run.mtbf.components)
    if process.ended_every_s:
        by_part["links that come and go"] = expected - n_random
    return {
        "mtbf_s": mtbf_s if math.isfinite(mtbf_s) else None, "expected": expected,
        "restart_s": process.restart_s, "restart_phases": run.restart, "domain_nodes": process.domain_nodes,
        "domain_share": process.domain_share, "by_component": by_part,
    }  # fmt: skip


def _played(request: RunRequest, process: FailureProcess, bill: _Bill) -> PlayedRuns | None:
    """Return what the histories that are asked for say."""
    if not request.n_histories or (math.isinf(process.mtbf_s) and not process.ended_every_s):
        return None
    found = play_histories(process, request.n_histories, request.seed)
    mean_s, waiting_s = float(found.total_s.mean()), float(found.waiting_s.mean())
    still_s = float((found.checkpoint_s + found.restart_s).mean()) + (0.0 if request.is_elastic else waiting_s)
    return {
        "histories": len(found.total_s), "seed": request.seed, "mean_days": mean_s / S_PER_DAY,
        "p10_days": found.quantile_s(0.1) / S_PER_DAY, "p50_days": found.quantile_s(0.5) / S_PER_DAY,
        "p90_days": found.quantile_s(0.9) / S_PER_DAY, "goodput": float((process.useful_s / found.total_s).mean()),
        "failures": float(found.n_failures.mean()), "gpu_hours": bill.gpu_hours(mean_s), "cost": bill.cost(mean_s),
        "kwh": bill.kwh(mean_s - still_s, mean_s), "waiting_days": waiting_s / S_PER_DAY,
        "is_elastic": request.is_elastic, "spares": request.n_spares, "repair_s": request.repair_s,
    }  # fmt: skip


def _mtbf(request: RunRequest, topology: Topology) -> Mtbf:
    """Return the flag's, the cluster file's or the default mean time between failures."""
    if request.mtbf is not None:
        return request.mtbf
    said = topology.spec.failures
    source = f"cluster file: {said.source or 'no source given'}" if said else ""
    if said and (said.node_mtbf_s or said.gpu_mtbf_s):
        return _stated(said, source)
    device = topology.device(0).name
    for name, rate in failure_rates().items():
        if device.startswith(rate.devices):
            return parse_mtbf(name)
    return parse_mtbf(operation_defaults().failures)


def _stated(said: FailureSpec, source: str) -> Mtbf:
    """Return the rate of a section that gives one, of a node or of a GPU."""
    if said.node_mtbf_s is not None:
        return Mtbf(seconds=said.node_mtbf_s, per="node", source=source)
    assert said.gpu_mtbf_s is not None
    return Mtbf(seconds=said.gpu_mtbf_s, per="gpu", source=source)


def _read_s(policy: Policy, domain_share: float, node_share: float) -> float:
    """Return how long reading a checkpoint takes on average: failures of domains and nodes take checkpoints with them."""
    if policy.name not in ("peers", "tiers"):
        return policy.checkpoint.read_s
    shared = policy.shared or policy.checkpoint
    stays = (1.0 - domain_share - node_share) * policy.checkpoint.read_s
    return domain_share * policy.storage.read_s + node_share * shared.read_s + stays


def _with_tiers(policy: Policy, checkpoint: Checkpoint, shared_every: int, stored_every: int) -> Checkpoint:
    """Return a checkpoint with its share of those that leave their node, and of those that go to storage."""
    if policy.name not in ("peers", "tiers"):
        return checkpoint
    shared_s = policy.shared.write_s / shared_every if policy.shared else 0.0
    return replace(checkpoint, write_s=checkpoint.write_s + shared_s + policy.storage.write_s / stored_every)


def _interval(
    request: RunRequest, n_iterations: int, iteration_s: float, write_s: float, mtbf_s: float, *, least_s: float
) -> tuple[int, str]:
    """Return iterations between checkpoints: as asked, or those of Daly's interval, or one checkpoint at the end.

    None begins before the one before has arrived, ``least_s`` after its start (Mohan et al., CheckFreq, FAST 2021).
    """
    least = math.ceil(least_s / iteration_s)
    asked = request.interval_iterations
    if request.interval_s is not None:
        asked = max(1, round(request.interval_s / iteration_s))
    if asked is not None:
        if asked < least:
            raise ConfigError(
                f"--checkpoint-interval of {asked:,} steps: a checkpoint takes {format_duration(least_s)} to arrive",
                hint=f"--checkpoint-interval '{least} steps', or faster storage",
            )
        return asked, "--checkpoint-interval"
    if math.isinf(mtbf_s):
        return n_iterations, "one at the end: nothing fails"
    best_s = daly_interval_s(write_s, mtbf_s)
    best = max(1, round(best_s / iteration_s))
    if best < least:
        return min(n_iterations, least), "as soon as the one before has arrived"
    return min(n_iterations, best), "the optimum: Daly 2006, after Young 1974"


def _mtbf_words(mtbf: Mtbf, job_s: float) -> str:
    if math.isinf(mtbf.seconds):
        return "nothing fails"
    words = f"{format_duration(mtbf.seconds)} per {'GPU' if mtbf.per == 'gpu' else mtbf.per}"
    return words if mtbf.per == "job" else f"{words}, {format_duration(job_s)} for the job"


def _power_words(power: PowerModel) -> str:
    parts = ((power.compute_w, "computing"), (power.communication_w, "communicating"), (power.idle_w, "waiting"))
    return ", ".join(f"{watts:.4g} W {what}" for watts, what in parts)
