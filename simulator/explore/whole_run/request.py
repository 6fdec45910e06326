"""What is asked about a whole run: how long it is, what it costs, and how it is operated."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from simulator.errors import ConfigError
from simulator.explore.whole_run.price import Price
from simulator.units import parse_quantity

_COUNT = re.compile(r"\s*(\d[\d_,]*(?:\.\d*)?(?:[eE][+-]?\d+)?)\s*([kKMGBT]?)\s*")
_SUFFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
_STEPS = re.compile(r"\s*(\d+)\s*(?:steps?|iterations?|it)\s*")
_WORDS_FOR_NEVER = ("none", "never", "inf", "off")

Per = Literal["gpu", "node", "job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mtbf:
    """Mean time between failures of one part of the machine.

    Parameters
    ----------
    seconds : float
        Infinite for none.
    per : str
        ``gpu``, ``node`` or ``job``.
    source : str
    """

    seconds: float
    per: Per
    source: str = ""

    def job_s(self, n_gpus: int, n_nodes: int) -> float:
        """Return the mean time between failures of a job: any part that fails ends it.

        Examples
        --------
        >>> Mtbf(seconds=8000.0, per="gpu").job_s(n_gpus=16, n_nodes=2)
        500.0
        """
        return self.seconds / {"gpu": n_gpus, "node": n_nodes, "job": 1}[self.per]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """How long a run is and how it is operated; what is None is taken from the cluster file or the defaults.

    Parameters
    ----------
    tokens : float
        To train on; 0 where ``iterations`` says it.
    iterations : int
        Optimizer steps; 0 where ``tokens`` says it.
    price : Price, optional
    mtbf : Mtbf, optional
    interval_s : float, optional
        Time between checkpoints.
    interval_iterations : int, optional
        The same in steps.
    write_s : float, optional
        Time that training stands still for one checkpoint.
    restart_s : float, optional
        From a failure until the job begins to read its checkpoint.
    pue : float, optional
    """

    tokens: float = 0.0
    iterations: int = 0
    price: Price | None = None
    mtbf: Mtbf | None = None
    interval_s: float | None = None
    interval_iterations: int | None = None
    write_s: float | None = None
    restart_s: float | None = None
    pue: float | None = None

    def n_iterations(self, tokens_per_iteration: int) -> int:
        """Return the number of optimizer steps."""
        return self.iterations or math.ceil(self.tokens / tokens_per_iteration)


def parse_count(text: str, flag: str) -> float:
    """Read a number above 0 such as ``300e9``, ``300B`` or ``15.6T``.

    Raises
    ------
    ConfigError
        If it is none.

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
    """Return tokens and iterations, one of them 0, or None where no length is given.

    Raises
    ------
    ConfigError
        If it is given twice, or epochs without a data set.
    """
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
    """Read ``50000 h/gpu``, ``6000 h/node``, ``3 h/job``, or ``none``.

    Raises
    ------
    ConfigError
        If it does not say of what, or is no time above 0.

    Examples
    --------
    >>> parse_mtbf("3 h/job").seconds, parse_mtbf("none").seconds
    (10800.0, inf)
    """
    if text.strip().lower() in _WORDS_FOR_NEVER:
        return Mtbf(seconds=math.inf, per="job", source="--mtbf")
    time, separator, per = text.rpartition("/")
    if not separator or per.strip() not in ("gpu", "node", "job"):
        raise ConfigError(
            f"--mtbf {text}: the mean time between failures of what?",
            hint="--mtbf '50000 h/gpu', '6000 h/node', '3 h/job' or none",
        )
    per_what: Per = "gpu" if per.strip() == "gpu" else "node" if per.strip() == "node" else "job"
    return Mtbf(seconds=parse_time(time, "--mtbf", least_s=1e-3), per=per_what, source="--mtbf")


def parse_interval(text: str) -> tuple[float | None, int | None]:
    """Read ``30 min`` or ``500 steps``: seconds, or steps.

    Raises
    ------
    ConfigError
        If it is neither.

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
    """Read a time with its unit.

    Raises
    ------
    ConfigError
        If it has none, or is less than allowed.
    """
    try:
        seconds = parse_quantity(text, "time")
    except ConfigError as error:
        raise ConfigError(f"{flag} {text}: {error.message}", hint="for example '90 s', '30 min' or '2 h'") from None
    if seconds < least_s:
        raise ConfigError(f"{flag} {text}: {'above 0' if least_s else 'cannot be negative'}")
    return seconds
