"""The exception family: every mistake a user can make raises one of these, never a bare traceback.

Whatever reads a file, a name or a trace raises the error of its kind for all that is wrong with it; docstrings name errors where
a caller handles them.
"""

from __future__ import annotations


class SimulatorError(Exception):
    """Base of all errors that the simulator raises for its user.

    Parameters
    ----------
    message : str
        What is wrong, with the numbers that make it wrong.
    hint : str, optional
        The way out: what to change, in one sentence.
    """

    exit_code = 3

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class ConfigError(SimulatorError):
    """A file or a name that cannot be understood; the message carries ``file:line:column`` and the key path."""


class UnroutableError(SimulatorError):
    """Two devices that must talk have no path between them in the topology graph."""


class TraceError(SimulatorError):
    """A trace that cannot be read or does not hold what a replay needs."""


class CalibrationError(SimulatorError):
    """Measurements from which a constant cannot be determined."""


class InfeasiblePlanError(SimulatorError):
    """A plan that cannot run: degrees do not multiply up, or memory does not suffice."""

    exit_code = 4


class ThresholdError(SimulatorError):
    """A comparison that was asked to stay under a limit and did not."""

    exit_code = 5
