"""Any table as one flow: rounds follow one another, each as long as its busiest link takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.collectives.loads import FloatArray, Traffic, link_loads
from simulator.collectives.table import Send, Table
from simulator.network.base import capacities


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RoundLoads:
    """What a table does to the links of a topology, per byte of its buffer.

    Parameters
    ----------
    total : ndarray of float, shape [n_links]
        Bytes on each link over all rounds.
    busiest_s_per_byte : float
        Sum over rounds of the time of the busiest link.
    n_rounds : int
        Rounds that send anything.
    """

    total: FloatArray
    busiest_s_per_byte: float
    n_rounds: int


def round_loads(table: Table, groups: Sequence[Sequence[int]], topology: Any, *, by_host: bool = False) -> RoundLoads:
    """Route all rounds of a table that several groups run in step.

    Rounds that send the same amounts between the same ranks are routed once.
    """
    capacity = capacities(topology)
    total = np.zeros(len(capacity))
    busiest, n_rounds = 0.0, 0
    for signature, times in Counter(map(_signature, table.rounds)).items():
        if not signature:
            continue
        source, target, count = (np.array(column) for column in zip(*signature, strict=True))
        ranks = np.array(groups, dtype=np.int64)
        traffic = Traffic(
            source=ranks[:, source].ravel(),
            target=ranks[:, target].ravel(),
            amount=np.tile(count * table.bytes_per_chunk, len(groups)),
        )
        loads = link_loads(traffic, topology, by_host=by_host)
        total += times * loads
        busiest += times * float((loads / capacity).max(initial=0.0))
        n_rounds += times
    return RoundLoads(total=total, busiest_s_per_byte=busiest, n_rounds=n_rounds)


def _signature(sends: tuple[Send, ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple(sorted((send.source, send.target, send.count) for send in sends))
