"""Explains, for one rank, why each device operation started when it did.

An operation starts when the host has launched it, its stream is free and the events it waits for have fired. What is
left over is its *lead*: gaps that nothing in the trace explains. Reconstructed that way, a replay without changes
gives back the measured start of every operation, and a replay with changes moves what depends on them.

References
----------
Hu et al., "dPRO: A Generic Performance Diagnosis and Optimization Toolkit for Expediting Distributed DNN Training",
MLSys 2022; Liang et al., "Lumos: Efficient Performance Modeling and Estimation for Large-scale LLM Training", MLSys
2025.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.trace_io.dependencies import After, find_dependencies, shorten
from simulator.trace_io.evidence import Evidence, gather
from simulator.trace_io.host_waits import HostWait, find_host_waits
from simulator.trace_io.record import Int64, RankTrace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Causes:
    """Issue order, dependencies and gaps of one rank's operations; all times on the common clock.

    Parameters
    ----------
    order : array of int64 [n]
        Operations in issue order.
    lane : tuple of str
        Stream of each operation; where operations of one stream overlapped, lanes beside it.
    start_ns, end_ns : array of int64 [n]
        Start as measured; end as the replay will model it.
    issue_ns : array of int64 [n]
        Host time from the issue before (or the host wait) to the moment each could start, in issue order.
    lead_ns : array of int64 [n]
        Unexplained gap before each operation.
    tail_ns : array of int64 [n]
        What each operation lasted beyond its modelled end: ranks leave a collective one after the other, and streams
        overlap by rounding.
    after : tuple of tuple of int
        Operations on other lanes that each one waits for.
    waits : tuple of HostWait
        Ascending by position.
    """

    order: Int64
    lane: tuple[str, ...]
    start_ns: Int64
    end_ns: Int64
    issue_ns: Int64
    lead_ns: Int64
    tail_ns: Int64
    after: After
    waits: tuple[HostWait, ...]


def find_causes(rank: RankTrace, offset_ns: int, origin_ns: int, common_end_ns: dict[int, int]) -> Causes:
    """Explain one rank.

    Parameters
    ----------
    rank : RankTrace
    offset_ns : int
        Subtracted from its times to get to the common clock.
    origin_ns : int
        Start of the replay on the common clock.
    common_end_ns : dict
        Operation -> end of its collective on the common clock, for the joined ones.
    """
    evidence = gather(rank, offset_ns, origin_ns, common_end_ns)
    after = find_dependencies(evidence)
    shorten(evidence, after)
    waits, issue = find_host_waits(evidence)
    return Causes(
        order=evidence.order,
        lane=evidence.lane,
        start_ns=evidence.start_ns,
        end_ns=evidence.end_ns,
        issue_ns=issue,
        lead_ns=_leads(evidence, after),
        tail_ns=evidence.own_end_ns - evidence.end_ns,
        after=after,
        waits=waits,
    )


def _leads(evidence: Evidence, after: After) -> Int64:
    """Time between the last known reason of each start and the start."""
    explained = evidence.ready_ns.copy()
    before = np.array(evidence.previous, np.int64)
    has = before >= 0
    explained[has] = np.maximum(explained[has], evidence.end_ns[before[has]])
    for op, deps in enumerate(after):
        if deps:
            explained[op] = max(explained[op], *(evidence.end_ns[dep] for dep in deps))
    lead: Int64 = np.maximum(evidence.start_ns - explained, 0)
    return lead
