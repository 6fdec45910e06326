"""1F1B with a flush: as few forwards ahead as keep the last stage busy, then one forward, one backward."""

from __future__ import annotations

from simulator.schedules.action import Action, Row, Table


def one_f_one_b(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Run ``n_stages - s - 1`` forwards ahead, then alternate; stage ``s`` holds ``n_stages - s`` of them.

    References
    ----------
    Narayanan et al., PipeDream-2BW (PipeDream-Flush), ICML 2021, arXiv:2006.09503; Narayanan et al., SC 2021,
    arXiv:2104.04473, section 2.2. Bubble over work is ``(p - 1) / m``.

    Examples
    --------
    >>> [f"{a.kind}{a.micro_batch}" for a in one_f_one_b(2, 3)[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    """
    return tuple(row(min(n_stages - stage - 1, n_micro_batches), n_micro_batches) for stage in range(n_stages))


def row(n_warm_up: int, n_micro_batches: int) -> Row:
    """Return ``n_warm_up`` forwards, one forward and one backward in turn, then the other backwards."""
    actions = [Action("F", i) for i in range(n_warm_up)]
    for i in range(n_micro_batches):
        if n_warm_up + i < n_micro_batches:
            actions.append(Action("F", n_warm_up + i))
        actions.append(Action("B", i))
    return tuple(actions)
