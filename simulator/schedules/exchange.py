"""When the stages of a pipeline receive, where neighbours wait for what they send: at the time step at which it is sent."""

from __future__ import annotations

from bisect import bisect_right

from simulator.schedules.action import Action, Placement, Table
from simulator.schedules.check import execute


def arrivals(table: Table, placement: Placement) -> tuple[dict[int, tuple[Action, ...]], ...]:
    """Return for each stage which passes it receives for before each of its actions.

    A pass, forward or backward, takes one time step; at its end the stage that ran it sends, and the other one receives then, although
    it may need what it receives much later. So whoever waits for what it sends waits for passes of earlier time steps alone, and hosts
    that wait inside a pass never wait for each other.

    Returns
    -------
    tuple of dict
        One per stage: index of an action of its row -> the actions of this row whose inputs arrive before it.

    Examples
    --------
    >>> from simulator.schedules.one_f_one_b import one_f_one_b
    >>> of_last = arrivals(one_f_one_b(2, 2), Placement(n_stages=2))[1]
    >>> [(index, [f"{action.kind}{action.micro_batch}" for action in some]) for index, some in of_last.items()]
    [(0, ['F0']), (1, ['F1'])]

    References
    ----------
    pytorch/pytorch, release 2.9, ``torch/distributed/pipelining/schedules.py``, ``PipelineScheduleMulti._step_microbatches``.
    """
    starts = execute(table, placement, lambda _: 1.0).starts
    steps = {
        (action.kind, action.micro_batch, placement.virtual_stage(stage, action.chunk)): start
        for stage, row in enumerate(table)
        for action, start in zip(row, starts[stage], strict=True)
    }
    found = []
    for stage, row in enumerate(table):
        sent: dict[int, list[tuple[float, Action]]] = {}
        for action in row:
            virtual = placement.virtual_stage(stage, action.chunk)
            source = placement.previous(virtual) if action.kind == "F" else placement.following(virtual)
            if source is not None and placement.stage(source) != stage:
                step = steps[action.kind, action.micro_batch, source]
                sent.setdefault(bisect_right(starts[stage], step), []).append((step, action))
        found.append({index: tuple(action for _, action in sorted(some)) for index, some in sorted(sent.items())})
    return tuple(found)
