"""Timed layers: compute that takes as long as it is told, with parameters and gradients of real size.

Two cores cannot compute for eight hosts, but they can sleep for them. Communication, bucketing and overlap
stay real.
"""

from __future__ import annotations

import time
from typing import Any

import torch

_FLOAT_BYTES = 4


def spend(duration_s: float, since_s: float | None = None) -> float:
    """Sleep until ``duration_s`` after ``since_s`` (now, by default); return the time at waking."""
    start_s = time.monotonic() if since_s is None else since_s
    left_s = start_s + duration_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
    return time.monotonic()


class _Timed(torch.autograd.Function):
    """Hands its input through; forward and backward take set times, and the weight gets a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: TimedLayer) -> torch.Tensor:
        """Take the forward time."""
        ctx.layer = layer
        ctx.save_for_backward(weight)
        spend(layer.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Take the backward time, the making of the gradient included."""
        start_s = time.monotonic()
        (weight,) = ctx.saved_tensors
        gradient = torch.zeros_like(weight)
        ctx.layer.backward_done_s = spend(ctx.layer.backward_s, start_s)
        return gradients[0], gradient, None


class TimedLayer(torch.nn.Module):
    """A layer of ``n_bytes`` of fp32 parameters whose passes take set times.

    Parameters
    ----------
    n_bytes : int
        Bytes of the parameter.
    forward_s, backward_s : float
        Time of each pass.
    """

    def __init__(self, n_bytes: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(n_bytes // _FLOAT_BYTES))
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.backward_done_s = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hand ``x`` through after the forward time."""
        apply: Any = _Timed.apply
        result: torch.Tensor = apply(x, self.weight, self)
        return result


def timed_model(n_layers: int, n_bytes: int, forward_s: float, backward_s: float) -> torch.nn.Sequential:
    """Return so many equal timed layers in a row."""
    return torch.nn.Sequential(*(TimedLayer(n_bytes, forward_s, backward_s) for _ in range(n_layers)))
