"""Checkpoints and failures: when to write one, and how long a run takes that is interrupted now and then.

Failures come at a constant rate (a Poisson process), also while a checkpoint is written and while the job restarts. A
failure loses everything since the last finished checkpoint; the job then needs an undisturbed restart before it goes on.

References
----------
Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006: equations 13
(the whole time), 20 and 37 (the interval).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulator.errors import InfeasiblePlanError
from simulator.units import format_duration

#: mean times between failures that a stretch without checkpoint may last: beyond, it practically never ends
MOST_MTBFS = 50.0


def young_interval_s(write_s: float, mtbf_s: float) -> float:
    """Return Young's time between checkpoints, ``sqrt(2 write mtbf)``.

    Examples
    --------
    >>> young_interval_s(write_s=18.0, mtbf_s=10000.0)
    600.0
    """
    return math.sqrt(2.0 * write_s * mtbf_s)


def daly_interval_s(write_s: float, mtbf_s: float) -> float:
    """Return Daly's time of work between checkpoints, a higher-order form of Young's.

    Examples
    --------
    >>> round(daly_interval_s(write_s=18.0, mtbf_s=10000.0), 1)
    588.1
    """
    if write_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = write_s / (2.0 * mtbf_s)
    return math.sqrt(2.0 * write_s * mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - write_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Expected seconds of a run, by what they are spent on.

    Parameters
    ----------
    useful_s : float
        Iterations that count.
    checkpoint_s : float
        Writing checkpoints that were finished.
    lost_s : float
        Work, and begun checkpoints, that failures undid.
    restart_s : float
        From failures until the job runs again.
    n_failures : float
    n_checkpoints : int
    """

    useful_s: float
    checkpoint_s: float = 0.0
    lost_s: float = 0.0
    restart_s: float = 0.0
    n_failures: float = 0.0
    n_checkpoints: int = 0

    @property
    def total_s(self) -> float:
        """From start to end."""
        return self.useful_s + self.checkpoint_s + self.lost_s + self.restart_s

    @property
    def goodput(self) -> float:
        """Share of the time that makes progress."""
        return self.useful_s / self.total_s if self.total_s else 1.0


def expected_run(
    n_iterations: int,
    iteration_s: float,
    *,
    iterations_per_checkpoint: int,
    write_s: float,
    mtbf_s: float = math.inf,
    restart_s: float = 0.0,
) -> RunTime:
    """Return the expected time of a run under failures, exactly for the process described above.

    A stretch of ``L`` seconds (work and the checkpoint behind it) takes ``M (exp(L / M) - 1)`` of computing and, for each
    of its ``exp(L / M) - 1`` failures, a restart of ``M (exp(R / M) - 1)``: together Daly's
    ``M exp(R / M) (exp(L / M) - 1)``. The run ends with a checkpoint.

    Parameters
    ----------
    n_iterations : int
    iteration_s : float
    iterations_per_checkpoint : int
    write_s : float
        Time that training stands still for one checkpoint.
    mtbf_s : float
        Mean time between failures of the whole job; infinite for none.
    restart_s : float
        From a failure to the first iteration after it.

    Raises
    ------
    InfeasiblePlanError
        If a stretch, or a restart, lasts so long that the run practically never ends.
    """
    full, rest = divmod(n_iterations, iterations_per_checkpoint)
    stretches = [(full, iterations_per_checkpoint * iteration_s), (1, rest * iteration_s)]
    n_checkpoints = full + bool(rest)
    useful_s, checkpoint_s = n_iterations * iteration_s, n_checkpoints * write_s
    if math.isinf(mtbf_s):
        return RunTime(useful_s=useful_s, checkpoint_s=checkpoint_s, n_checkpoints=n_checkpoints)
    longest_s = (iterations_per_checkpoint if full else rest) * iteration_s + write_s
    for what, seconds, way_out in (
        ("the time between two checkpoints", longest_s, "write checkpoints more often: --checkpoint-interval"),
        ("a restart", restart_s, "a shorter --restart-time"),
    ):
        if seconds > MOST_MTBFS * mtbf_s:
            raise InfeasiblePlanError(
                f"the run would never end: {what}, {format_duration(seconds)}, is {seconds / mtbf_s:,.0f} times the mean "
                f"time between failures of the job, {format_duration(mtbf_s)}",
                hint=f"{way_out}, or fewer GPUs",
            )
    n_failed_stretches = sum(n * math.expm1((work_s + write_s) / mtbf_s) for n, work_s in stretches if n and work_s)
    running_s = mtbf_s * n_failed_stretches
    restarting_s = n_failed_stretches * mtbf_s * math.expm1(restart_s / mtbf_s)
    return RunTime(
        useful_s=useful_s, checkpoint_s=checkpoint_s, lost_s=max(0.0, running_s - useful_s - checkpoint_s),
        restart_s=restarting_s, n_failures=(running_s + restarting_s) / mtbf_s, n_checkpoints=n_checkpoints,
    )  # fmt: skip
