"""One thing changed and simulated again: the trials behind ``--explain`` and the advice that nobody asked for."""

from __future__ import annotations

from simulator.explore.trials.advice import advise
from simulator.explore.trials.knobs import knobs_of
from simulator.explore.trials.machine import ChangedCosts, Trials
from simulator.explore.trials.options import options_of

__all__ = ["ChangedCosts", "Trials", "advise", "knobs_of", "options_of"]
