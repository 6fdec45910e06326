"""GPipe: all forwards, then all backwards."""

from __future__ import annotations

from simulator.schedules.action import Action, Table


def gpipe(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Run all forwards, then all backwards; every stage holds the activations of all micro-batches.

    References
    ----------
    Huang et al., GPipe, NeurIPS 2019, arXiv:1811.06965. Bubble over work is ``(p - 1) / m``.

    Examples
    --------
    >>> [f"{a.kind}{a.micro_batch}" for a in gpipe(2, 2)[0]]
    ['F0', 'F1', 'B0', 'B1']
    """
    row = (
        *(Action("F", i) for i in range(n_micro_batches)),
        *(Action("B", i) for i in range(n_micro_batches)),
    )
    return (row,) * n_stages
