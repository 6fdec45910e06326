"""How long documents are, and what that makes of a sequence's work: linear in its tokens, quadratic in attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from simulator.arrays import FloatArray
from simulator.config import load_yaml, read_text
from simulator.errors import ConfigError

#: sequences that a mix holds, from which micro-batches are drawn
_N_SEQUENCES = 4096
_FORMS = "lognormal:MEDIAN,SIGMA, uniform:LOW-HIGH, exponential:MEAN, or a file with one length per line"


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMix:
    """Sequences of a batch, relative to full ones."""

    #: Of each sequence, over the sequence length.
    tokens: FloatArray
    #: Sum of the squares of its documents' lengths over the square of the sequence length: attention stays in a
    #: document.
    squares: FloatArray

    @property
    def mean(self) -> tuple[float, float]:
        """Of tokens and squares."""
        return float(self.tokens.mean()), float(self.squares.mean())

    def draw(self, n: int, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        """Return tokens and squares of micro-batches of ``n`` sequences, drawn with replacement."""
        which = rng.integers(len(self.tokens), size=(*shape, n))
        return self.tokens[which].mean(axis=-1), self.squares[which].mean(axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Lengths of documents, as a user gives them."""

    #: As it was written.
    text: str
    #: ``lognormal`` (median, sigma of the logarithm), ``uniform`` (least, most), ``exponential`` (mean) or ``file``.
    kind: str
    #: The numbers of the kind, or the lengths.
    values: tuple[float, ...]
    #: Whether documents are strung together and cut at the sequence length; else a sequence is one document, at most
    #: cut.
    is_packed: bool = True

    @classmethod
    def parse(cls, text: str, *, is_packed: bool = True) -> Lengths:
        """Read a distribution or a file.

        Examples
        --------
        >>> Lengths.parse("uniform:1-4096").values
        (1.0, 4096.0)
        """
        kind, colon, rest = text.partition(":")
        if colon and kind in ("lognormal", "uniform", "exponential"):
            words = rest.split("-" if kind == "uniform" else ",")
            values = tuple(_positive(word, text) for word in words)
            if len(values) != (1 if kind == "exponential" else 2) or (kind == "uniform" and values[0] > values[1]):
                raise ConfigError(f"--lengths {text}: not {kind}", hint=_FORMS)
            return cls(text=text, kind=kind, values=values, is_packed=is_packed)
        return cls(text=text, kind="file", values=_of_file(text), is_packed=is_packed)

    def draw(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw lengths of ``n`` documents, in tokens, at least 1."""
        if self.kind == "file":
            return rng.choice(np.array(self.values), n)
        first, *others = self.values
        if self.kind == "lognormal":
            found = rng.lognormal(math.log(first), others[0], n)
        else:
            found = rng.uniform(first, others[0], n) if self.kind == "uniform" else rng.exponential(first, n)
        return np.maximum(1.0, np.rint(found))

    def mix(self, sequence_length: int, rng: np.random.Generator) -> LengthMix:
        """Return what the documents make of sequences of this length."""
        if not self.is_packed:
            share = np.minimum(1.0, self.draw(_N_SEQUENCES, rng) / sequence_length)
            return LengthMix(tokens=share, squares=share**2)
        whole = _N_SEQUENCES * sequence_length
        ends = np.cumsum(self.draw(1024, rng))
        while ends[-1] < whole:  # as many documents again, until the sequences are full
            ends = np.concatenate([ends, ends[-1] + np.cumsum(self.draw(len(ends), rng))])
        cuts = np.union1d(ends[ends < whole], np.arange(0.0, whole + 1, sequence_length))
        pieces, owner = np.diff(cuts), (cuts[:-1] // sequence_length).astype(np.int64)
        squares = np.bincount(owner, (pieces / sequence_length) ** 2, minlength=_N_SEQUENCES).astype(np.float64)
        return LengthMix(tokens=np.ones(_N_SEQUENCES), squares=squares)


def _positive(word: str, text: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"--lengths {text}: '{word.strip()}' is not a number above 0", hint=_FORMS)
    return value


def _of_file(name: str) -> tuple[float, ...]:
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"--lengths {name}: neither a distribution nor a file", hint=_FORMS)
    words = load_yaml(path)[0] if path.suffix == ".json" else read_text(path).replace(",", " ").split()
    if not isinstance(words, list):
        raise ConfigError(f"--lengths {name}: no list of numbers", hint=_FORMS)
    values = tuple(_positive(str(word), name) for word in words)
    if not values:
        raise ConfigError(f"--lengths {name}: holds no lengths", hint=_FORMS)
    return values
