"""What lies between a failure and the next iteration: noticing it, other nodes, starting, the checkpoint, slow first steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TypedDict

from simulator.errors import ConfigError
from simulator.topology import Topology
from simulator.topology.operation_spec import FailureSpec, operation_defaults
from simulator.units import format_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Seconds of each phase, but for reading the checkpoint, which is of the plan."""

    detection: float = 0.0  #: Until it is known that and where something failed.
    allocation: float = 0.0  #: Until there is another node, where one is gone.
    start: float = 0.0  #: Of processes and communicators; all of a restart whose phases are not told apart.
    warm_up: float = 0.0  #: What first steps take longer than later ones.


class RestartSeconds(TypedDict):
    """Phases of a mean restart, which add up to it."""

    detection_s: float  #: Until it is known that and where something failed.
    allocation_s: float  #: Until there is another node, over all failures: those of software need none.
    start_s: float  #: Of processes and communicators.
    load_s: float  #: Of the checkpoint.
    warm_up_s: float  #: What first steps take longer.


def parse_restart(text: str, seconds_of: Callable[[str, str], float]) -> Restart:
    """Read ``10 min``, or phases: ``detection=3 min, allocation=5 min, start=2 min, warm-up=1 min``."""
    if "=" not in text:
        return Restart(start=seconds_of(text, "--restart-time"))
    known = [field.name for field in fields(Restart)]
    phases: dict[str, float] = {}
    for part in text.split(","):
        name, _, time = part.partition("=")
        if (key := name.strip().replace("-", "_")) not in known or key in phases:
            raise ConfigError(
                f"--restart-time {text}: '{name.strip()}' is not a phase, or is given twice",
                hint=f"NAME=TIME, separated by commas: {', '.join(known).replace('_', '-')}",
            )
        phases[key] = seconds_of(time.strip(), "--restart-time")
    return Restart(**phases)


def restart_of(given: Restart | None, topology: Topology) -> tuple[Restart, str]:
    """Return the phases that are given, else those of the cluster file, else the default ones; and where they come from."""
    if given is not None:
        return given, "--restart-time"
    said = topology.spec.failures
    if said and (own := _stated(said)) is not None:
        return own, f"cluster file: {said.source or 'no source given'}"
    defaults = operation_defaults().restart
    return _stated(defaults) or Restart(), defaults.source


def _stated(said: FailureSpec) -> Restart | None:
    times = {
        "detection": said.detection_s,
        "allocation": said.allocation_s,
        "start": said.restart_s,
        "warm_up": said.warm_up_s,
    }
    stated = {name: seconds for name, seconds in times.items() if seconds is not None}
    return Restart(**stated) if stated else None


def mean_restart(phases: Restart, *, load_s: float, hardware_share: float) -> RestartSeconds:
    """Return the phases of a mean restart, where such a share of the failures takes a node away."""
    return RestartSeconds(
        detection_s=phases.detection, allocation_s=hardware_share * phases.allocation, start_s=phases.start, load_s=load_s,
        warm_up_s=phases.warm_up,
    )  # fmt: skip


def total_s(phases: RestartSeconds) -> float:
    """Return how long the phases take together."""
    return phases["detection_s"] + phases["allocation_s"] + phases["start_s"] + phases["load_s"] + phases["warm_up_s"]


def in_words(phases: RestartSeconds) -> str:
    """Name the phases that take time.

    Examples
    --------
    >>> in_words(mean_restart(Restart(detection=600.0), load_s=30.0, hardware_share=1.0))
    'detection 10 min, load 30 s'
    """
    times = ((name.removesuffix("_s").replace("_", "-"), seconds) for name, seconds in phases.items())
    return ", ".join(f"{name} {format_duration(float(str(seconds)))}" for name, seconds in times if seconds)
