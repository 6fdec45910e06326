"""What a GPU hour costs: as given, or as the cluster file says."""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.errors import ConfigError
from simulator.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Price of one GPU for one hour.

    Parameters
    ----------
    gpu_hour : float
    currency : str
        Empty where nobody says it.
    source : str
    """

    gpu_hour: float
    currency: str = ""
    source: str = ""


def parse_price(text: str) -> Price:
    """Read ``2.5``, ``2.5 USD`` or ``EUR 2.5``.

    Raises
    ------
    ConfigError
        If there is no number above 0.

    Examples
    --------
    >>> parse_price("2.5 USD").gpu_hour, parse_price("EUR 2.5").currency
    (2.5, 'EUR')
    """
    words = text.split()
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
    """Return the price that is given, else the cluster file's, else None."""
    said = topology.spec.price
    if given is not None or said is None:
        return given
    return Price(
        gpu_hour=said.gpu_hour, currency=said.currency, source=f"cluster file: {said.source or 'no source given'}"
    )
