"""What is asked of a whole run: its length, failures, checkpoints and prices, and the words that flags say them in."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from simulator.errors import ConfigError
from simulator.explore.run.energy import Price, failure_rates
from simulator.explore.run.placement import DOMAINS
from simulator.explore.run.restarts import Restart
from simulator.topology.operation_spec import FailureSpec
from simulator.units import S_PER_DAY, parse_quantity

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
    policy: str = "sync"  #: How checkpoints are taken, see :mod:`simulator.explore.run.checkpoint_policy`.
    #: Share of the failures that take so many nodes at once.
    domain_share: float = 0.0
    domain_nodes: int | str = 1  #: Or what they have in common: one of :data:`simulator.explore.run.placement.DOMAINS`.
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


def stated_mtbf(said: FailureSpec, source: str) -> Mtbf:
    """Return the rate of a section that gives one, of a node or of a GPU."""
    if said.node_mtbf_s is not None:
        return Mtbf(seconds=said.node_mtbf_s, per="node", source=source)
    assert said.gpu_mtbf_s is not None
    return Mtbf(seconds=said.gpu_mtbf_s, per="gpu", source=source)


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
        return replace(stated_mtbf(rate, rate.source), hardware_share=rate.hardware, components=rate.components)
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
