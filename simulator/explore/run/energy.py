"""What a GPU draws and what its hour costs: the cluster file's figures, or defaults with their sources.

References
----------
Fan, Weber and Barroso, "Power provisioning for a warehouse-sized computer", ISCA 2007: power linear in utilisation between
idle and busy. The powers themselves are the cluster file's, or shares of the device's limit, with their sources, in
``topologies/operation/defaults.yaml``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypedDict

from simulator.analysis.metrics import PARTS, Breakdown
from simulator.config import load_spec, resolve_name
from simulator.errors import ConfigError
from simulator.topology import Topology
from simulator.topology.operation_spec import (
    FailureRate,
    FailureRates,
    ListPrice,
    ListPrices,
    PowerSpec,
    operation_defaults,
)
from simulator.units import S_PER_HOUR


@lru_cache(maxsize=1)  # a file that every search asks for
def failure_rates() -> dict[str, FailureRate]:
    """Return ``topologies/operation/failures.yaml``: published rates of failures by name."""
    return load_spec(resolve_name("failures", "operation"), FailureRates).rates


@lru_cache(maxsize=1)  # a file that every row of a sweep asks for
def list_prices() -> dict[str, ListPrice]:
    """Return ``topologies/operation/prices.yaml``: what an hour of a device is offered for, with date and source."""
    return load_spec(resolve_name("prices", "operation"), ListPrices).prices


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one GPU for one hour."""

    gpu_hour: float
    currency: str = ""  #: Empty where it is not given.
    source: str = ""


#: where a currency follows a number without a blank, or a number a currency; the ``e`` of ``1e3`` is none
_CURRENCY = r"[A-Za-z]{2,}|[$€£¥]"
_RUN_TOGETHER = (re.compile(rf"([\d.])({_CURRENCY})"), re.compile(rf"({_CURRENCY})([\d.])"))


def parse_price(text: str) -> Price:
    """Read ``2.5``, ``2.5 USD``, ``2.5USD`` or ``EUR 2.5``.

    Examples
    --------
    >>> parse_price("2.5 USD").gpu_hour, parse_price("EUR 2.5").currency, parse_price("3USD").currency
    (2.5, 'EUR', 'USD')
    """
    apart = text
    for together in _RUN_TOGETHER:
        apart = together.sub(r"\1 \2", apart)
    words = apart.split()
    numbers = [value for word in words if (value := _number(word)) is not None]
    others = [word for word in words if _number(word) is None]
    if len(numbers) != 1 or len(others) > 1 or not (0 < numbers[0] < math.inf):
        raise ConfigError(f"'{text}' is not a price of a GPU hour", hint="--gpu-hour-price 2.50, or '2.50 USD'")
    return Price(gpu_hour=numbers[0], currency="".join(others), source="--gpu-hour-price")


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def price_of(topology: Topology, given: Price | None = None) -> Price | None:
    """Return the price that is given, else the cluster file's, else the device's list price, else None."""
    if given is not None:
        return given
    if (said := topology.spec.price) is not None:
        source = f"cluster file: {said.source or 'no source given'}"
        return Price(gpu_hour=said.gpu_hour, currency=said.currency, source=source)
    listed = list_prices().get(topology.device(0).name)
    if listed is None:
        return None
    return Price(
        gpu_hour=listed.gpu_hour, currency=listed.currency, source=f"list price of {listed.date}: {listed.source}"
    )


class Training(TypedDict):
    """What training on a billion tokens takes."""

    gpu_hours_per_billion_tokens: float  #: GPUs times hours.
    cost_per_billion_tokens: float | None  #: At the price of a GPU hour; null without one.
    currency: str  #: Of the cost.


def training_of(gpus: int, tokens_per_s: float, price: Price | None) -> Training:
    """Return what training on a billion tokens takes at a throughput.

    Examples
    --------
    >>> training_of(8, 1e6, Price(gpu_hour=2.0))["cost_per_billion_tokens"]
    4.444444444444445
    """
    gpu_hours = gpus * 1e9 / tokens_per_s / S_PER_HOUR
    return {
        "gpu_hours_per_billion_tokens": gpu_hours,
        "cost_per_billion_tokens": gpu_hours * price.gpu_hour if price else None,
        "currency": price.currency if price else "",
    }


J_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """Powers of one GPU, of its share of the node, and of the building."""

    #: Of a board while its compute stream is busy, while it only communicates, and while it waits.
    compute_w: float
    communication_w: float
    idle_w: float
    host_w: float  #: Rest of the node, per GPU: processors, memory, network cards, fans.
    pue: float  #: Power usage effectiveness: energy of the building over that of its computers.
    sources: Mapping[str, str]  #: Where the GPU's powers, the host's, the PUE and the emissions come from.
    kg_co2_per_kwh: float = 0.0  #: What making the electricity emits.

    def gpu_w(self, breakdown: Breakdown) -> float:
        """Return the mean power of a board over a step."""
        computing_s = breakdown["compute_s"] + breakdown["optimizer_s"]
        talking_s = breakdown["exposed_communication_s"]
        total_s = sum(breakdown[part] for part in PARTS)
        if total_s <= 0:
            return self.idle_w
        waiting_s = max(0.0, total_s - computing_s - talking_s)
        joules = computing_s * self.compute_w + talking_s * self.communication_w + waiting_s * self.idle_w
        return joules / total_s

    def facility_w(self, gpu_w: float) -> float:
        """Return the power of one GPU with its share of node and building."""
        return (gpu_w + self.host_w) * self.pue


def power_model(topology: Topology, *, pue: float | None = None, kg_co2_per_kwh: float | None = None) -> PowerModel:
    """Return the powers of a cluster: as given, else its own where its file says them, defaults elsewhere."""
    defaults, limit_w = operation_defaults(), topology.device(0).most_power_w
    said = topology.spec.power or PowerSpec()
    shares = defaults.power
    boards = {
        "compute_w": (said.gpu_compute_w, shares.gpu_compute),
        "communication_w": (said.gpu_communication_w, shares.gpu_communication),
        "idle_w": (said.gpu_idle_w, shares.gpu_idle),
    }
    from_file = f"cluster file: {said.source or 'no source given'}"
    is_own = any(watts is not None for watts, _ in boards.values())
    host_w = defaults.host.per_gpu_w if said.host_w is None else said.host_w * topology.node.hosts / topology.node.gpus

    def chosen(given: float | None, flag: str, of_file: float | None, default: float, source: str) -> tuple[float, str]:
        if given is not None:
            return given, flag
        return (default, source) if of_file is None else (of_file, from_file)

    facility, grid = defaults.facility, defaults.grid
    pue, pue_source = chosen(pue, "--pue", said.pue, facility.pue, facility.source)
    carbon, carbon_source = chosen(
        kg_co2_per_kwh, "--kg-co2-per-kwh", said.kg_co2_per_kwh, grid.kg_co2_per_kwh, grid.source
    )
    return PowerModel(
        **{name: share * limit_w if watts is None else min(watts, limit_w) for name, (watts, share) in boards.items()},
        host_w=host_w, pue=pue, kg_co2_per_kwh=carbon,
        sources={
            "gpu": from_file if is_own else shares.source,
            "host": defaults.host.source if said.host_w is None else from_file,
            "pue": pue_source, "grid": carbon_source,
        },
    )  # fmt: skip


def energy_kwh(watts: float, seconds: float) -> float:
    """Return energy in kilowatt-hours."""
    return watts * seconds / J_PER_KWH
