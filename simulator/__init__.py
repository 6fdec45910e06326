"""A discrete-event simulator of distributed deep-learning training."""

from __future__ import annotations

__version__ = "0.1.0"
