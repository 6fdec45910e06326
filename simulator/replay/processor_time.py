"""What of the time of an operator on a processor is work, and what is dispatch, from the operators recorded within it."""

from __future__ import annotations

import re
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simulator.trace_io.trace_record import OPERATOR, Int64, RankTrace

#: operators that compute; autograd's nodes and functions in Python have no namespace, or one of these
_COMPUTES = re.compile(r"^(?!autograd::|_?c10d)[\w.]+::")
#: what PyTorch calls the dispatch of a tensor that is implemented in Python, as distributed tensors are
_PYTHON = "PythonSubclass"
#: an operator that computes nothing: what it takes is what one dispatch takes
_VIEW = "aten::view"

#: what distributed tensors take beyond plain ones, in dispatches of one operator: of each projection in forward and backward, of
#: each of their parameters in AdamW's update, and of each parameter that ``fully_shard`` gathers, frees, reduces and updates.
#: Torch 2.13 recorded by this project, two ranks, gpt2-micro and gpt2-tiny of 2 blocks: 716 and 1030, 117 to 131, 674 and 457
VIEWS_PER_PROJECTION, VIEWS_PER_TENSOR, VIEWS_PER_SHARD = 870, 125, 565


def without_dispatch_ns(rank: RankTrace) -> Int64:
    """Return what every operation of a run on processors takes without dispatch.

    An operator's own time, without the operators within it, is work, unless it has been dispatched anew within itself, as one
    of a distributed tensor is: then its own time is what that took.
    """
    own = _own_times(rank)
    found = rank.ops.end_ns - rank.ops.start_ns
    for name, thread in enumerate(rank.streams):
        mine = np.flatnonzero(rank.ops.stream == name)
        if thread not in rank.threads or not len(mine):
            continue
        here = rank.host.thread == rank.threads.index(thread)
        start, dispatch = rank.host.start_ns[here], np.where(own.computes[here], 0, own.time_ns[here])
        place = np.argsort(start, kind="stable")
        before = np.concatenate(([0], np.cumsum(dispatch[place])))
        low = np.searchsorted(start[place], rank.ops.start_ns[mine], side="left")
        high = np.searchsorted(start[place], rank.ops.end_ns[mine], side="left")
        found[mine] -= before[high] - before[low]
    return found.clip(min=0)


def view_s(ranks: tuple[RankTrace, ...]) -> float:
    """Return the seconds that a processor takes to dispatch one operator: the median view, 0 where none was recorded."""
    found: list[int] = []
    for rank in ranks:
        if _VIEW in rank.names:
            own = _own_times(rank)
            found += own.time_ns[own.computes & (rank.host.name == rank.names.index(_VIEW))].tolist()
    return median(found) / 1e9 if found else 0.0


def dispatches_in_python(ranks: tuple[RankTrace, ...]) -> bool:
    """Whether tensors were recorded whose operators are dispatched in Python."""
    return any(_PYTHON in rank.names for rank in ranks)


class _Own(NamedTuple):
    time_ns: Int64  #: Of each host event without the operators within it; 0 for other events. Shape [n].
    computes: NDArray[np.bool_]  #: Whether it computes itself. Shape [n].


def _own_times(rank: RankTrace) -> _Own:
    """Tell the operators of every thread apart from those within them; a parent comes before its children."""
    host = rank.host
    computing = np.array([bool(_COMPUTES.match(name)) for name in rank.names], bool)
    computes = computing[host.name] if len(host) else np.empty(0, bool)
    own = np.zeros(len(host), np.int64)
    python = rank.names.index(_PYTHON) if _PYTHON in rank.names else -1
    start, end, names = host.start_ns.tolist(), host.end_ns.tolist(), host.name.tolist()
    open_ones: dict[int, list[int]] = {}
    operators = np.flatnonzero(host.kind == OPERATOR)
    for event in operators[np.lexsort((-host.end_ns[operators], host.start_ns[operators]))].tolist():
        around = open_ones.setdefault(int(host.thread[event]), [])
        while around and end[around[-1]] <= start[event]:
            around.pop()
        own[event] = end[event] - start[event]
        if around:
            own[around[-1]] -= own[event]
        for parent in around if names[event] == python else [p for p in around if names[p] == names[event]]:
            computes[parent] = False
        around.append(event)
    return _Own(own, computes)
