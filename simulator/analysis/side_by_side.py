"""Predicted beside measured, part by part: where differences are computed and causes ranked, for whoever compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from simulator.arrays import FloatArray

#: one value, or an array of them
Values = TypeVar("Values", float, FloatArray)


def excess(predicted: Values, measured: Values) -> Values:
    """Return predicted over measured, minus one, of what was measured.

    Examples
    --------
    >>> excess(1.5, 1.0)
    0.5
    """
    return predicted / measured - 1.0


def relative_error(predicted: float, measured: float) -> float | None:
    """Return predicted over measured, minus one; None where nothing was measured."""
    return excess(predicted, measured) if measured > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Something that takes time on both sides: an operator, a collective of one size, a kind of work, a phase."""

    name: str
    #: Seconds, over as much on either side.
    predicted_s: float
    measured_s: float
    #: How often it occurs, and what one occurrence moves; 0 where that says nothing.
    n_calls: int = 0
    n_bytes: int = 0

    @property
    def difference_s(self) -> float:
        """Predicted minus measured."""
        return self.predicted_s - self.measured_s

    @property
    def relative_error(self) -> float | None:
        """Predicted over measured, minus one; None where nothing was measured."""
        return relative_error(self.predicted_s, self.measured_s)


AnyPart = TypeVar("AnyPart", bound=Part)


def ranked(parts: Iterable[AnyPart]) -> list[AnyPart]:
    """Return parts by how much they add to the difference, largest magnitude first: the causes of what is off.

    Examples
    --------
    >>> two = Part(name="a", predicted_s=1.0, measured_s=1.5), Part(name="b", predicted_s=2.0, measured_s=1.0)
    >>> [part.name for part in ranked(two)]
    ['b', 'a']
    """
    return sorted(parts, key=lambda part: (-abs(part.difference_s), part.name))


def causes_of(parts: Iterable[Part]) -> list[tuple[str, float]]:
    """Return what each part adds to the difference, in seconds, largest magnitude first."""
    return [(part.name, part.difference_s) for part in ranked(parts)]
