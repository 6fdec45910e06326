"""Times of timed layers and limits of the machine under an emulated cluster."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

from simulator.config import load_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What costs time beside sleeping and the shaped links.

    Parameters
    ----------
    layer_s : float
        Of one pass of a timed layer under autograd.
    spend_s : float
        Of one plain sleep.
    copy_s_per_byte : float
        Of copying a gradient when every rank has a processor.
    fresh_s_per_byte : float
        Of copying to or from memory that was just allocated.
    processors : int
        How many ranks can copy at once.
    shaped_bytes_per_s, unshaped_bytes_per_s : float
        Payload that all processors together push through the network stack, with and without shapers.
    """

    layer_s: float
    spend_s: float
    copy_s_per_byte: float
    fresh_s_per_byte: float
    processors: int
    shaped_bytes_per_s: float
    unshaped_bytes_per_s: float

    def copy_s(self, n_bytes: int, n_ranks: int) -> float:
        """Time of a copy that all ranks do at the same time."""
        return n_bytes * self.copy_s_per_byte * max(1.0, n_ranks / self.processors)

    def fresh_s(self, n_bytes: int, n_ranks: int) -> float:
        """Time of a copy to or from new memory that all ranks do at the same time."""
        return n_bytes * self.fresh_s_per_byte * max(1.0, n_ranks / self.processors)


@lru_cache(maxsize=1)
def shipped_overheads() -> Overheads:
    """Overheads of the shipped constants file."""
    data, _ = load_yaml(str(files("validation.emulation") / "constants.yaml"))
    return Overheads(
        layer_s=data["layer_us"] * 1e-6,
        spend_s=data["spend_us"] * 1e-6,
        copy_s_per_byte=data["copy_ns_per_byte"] * 1e-9,
        fresh_s_per_byte=data["fresh_ns_per_byte"] * 1e-9,
        processors=data["processors"],
        shaped_bytes_per_s=float(data["shaped_bytes_per_s"]),
        unshaped_bytes_per_s=float(data["unshaped_bytes_per_s"]),
    )
