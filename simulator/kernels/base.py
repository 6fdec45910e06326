"""The interface of kernel models."""

from __future__ import annotations

from typing import Protocol

from simulator.models.layer import KernelShape
from simulator.topology.device import Device


class KernelModel(Protocol):
    """Predicts the time of one kernel: launch latency on the device included, host issue time not.

    Parameters
    ----------
    cuda : str
        CUDA release of the libraries that run; empty for a current one.
    """

    def __init__(self, *, cuda: str = "") -> None: ...

    def duration_s(self, shape: KernelShape, device: Device) -> float:
        """Seconds that the kernel occupies its stream."""
        ...
