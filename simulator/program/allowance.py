"""How much may be written down and run: what keeps work that was not asked for by name within bounds.

Work is counted in tasks, not in seconds, so that what is done does not depend on the machine that does it.
"""

from __future__ import annotations

from math import inf


class TooMuchWorkError(Exception):
    """Something would take more tasks than are left; whoever gave the allowance goes on without it.

    Parameters
    ----------
    n_tasks : float
        How many it would take at least, those that it has taken included.
    """

    def __init__(self, n_tasks: float) -> None:
        super().__init__()
        self.n_tasks = n_tasks


class Allowance:
    """Tasks that may still be written down or run, each of which counts once.

    Parameters
    ----------
    n_tasks : float
        How many; as many as it takes by default.
    """

    def __init__(self, n_tasks: float = inf) -> None:
        self._n_given = n_tasks
        self.n_spent = 0  #: Tasks that have been written down or run.

    @property
    def n_left(self) -> float:
        """Tasks that may still be."""
        return self._n_given - self.n_spent

    def check(self, n_tasks: int = 0) -> None:
        """Refuse tasks of which fewer are left.

        Raises
        ------
        TooMuchWorkError
            If they are fewer.
        """
        if n_tasks > self.n_left:
            raise TooMuchWorkError(self.n_spent + n_tasks)

    def spend(self, n_tasks: int) -> None:
        """Count tasks that have been written down or run, and go no further if they were too many."""
        self.n_spent += n_tasks
        self.check()
