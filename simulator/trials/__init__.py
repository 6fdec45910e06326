"""One thing changed and simulated again: the trials behind ``--explain`` and the advice that nobody asked for."""

from __future__ import annotations

from simulator.trials.advice import advise
from simulator.trials.knobs import knobs_of
from simulator.trials.machine import ChangedCosts, Trials
from simulator.trials.options import options_of

__all__ = ["ChangedCosts", "Trials", "advise", "knobs_of", "options_of"]
