"""From one iteration to a whole run: days, GPU hours, cost, energy, and what checkpoints and failures add."""

from __future__ import annotations

from simulator.explore.whole_run.answer import WholeRun, whole_run
from simulator.explore.whole_run.request import RunRequest

__all__ = ["RunRequest", "WholeRun", "whole_run"]
