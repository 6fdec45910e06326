"""Turns the nodes of a Chakra trace into the neutral record: sorted, laid out in time where the trace holds none."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from simulator.errors import TraceError
from simulator.trace_io.chakra_node import ChakraNode
from simulator.trace_io.record import DeviceOps, Names, RankTrace, empty_host


def to_rank(
    nodes: Sequence[ChakraNode], source: str, rank: int, notes: Iterable[str], groups: Mapping[str, tuple[int, ...]]
) -> RankTrace:
    """Turn nodes into the neutral record, in an order in which every node follows its dependencies.

    Parameters
    ----------
    nodes : sequence of ChakraNode
    source : str
        Name for messages.
    rank : int
        -1 where nothing tells it.
    notes : iterable of str
    groups : mapping
        Process group name -> global ranks.

    Raises
    ------
    TraceError
        If there is no node, or two have the same id.
    """
    said = list(notes)
    if not nodes:
        raise TraceError(f"{source}: holds no node")
    if len({node.id for node in nodes}) < len(nodes):
        raise TraceError(f"{source}: two nodes have the same id", hint="the converter that wrote it is at fault")
    order = _order(nodes, said)
    place = {node.id: index for index, node in enumerate(order)}
    after = [tuple(place[d] for d in node.after if d in place and place[d] < i) for i, node in enumerate(order)]
    names, streams = Names(), Names()
    stream = [streams(node.stream) for node in order]
    if not any(node.start_ns for node in order):
        _lay_out(order, stream, after)
        said.append("the trace holds no start times: nodes start as soon as their dependencies allow")
    ops = _device_ops(order, [names(node.name) for node in order], stream)
    return _sorted(
        RankTrace(
            rank=rank,
            names=names.table,
            streams=streams.table,
            ops=ops,
            host=empty_host(),
            calls=tuple(node.call(groups) for node in order if node.communicates),
            groups=dict(groups),
            dependencies=tuple(after),
            source=source,
            notes=tuple(said),
        )
    )


def _device_ops(order: Sequence[ChakraNode], name: list[int], stream: list[int]) -> DeviceOps:
    start = np.array([node.start_ns for node in order], np.int64)
    is_call = np.array([node.communicates for node in order], bool)
    return DeviceOps(
        start_ns=start,
        end_ns=start + np.array([node.duration_ns for node in order], np.int64),
        name=np.array(name, np.int32),
        stream=np.array(stream, np.int32),
        kind=np.array([node.kind for node in order], np.int8),
        launch=np.full(len(order), -1, np.int32),
        call=np.where(is_call, np.cumsum(is_call) - 1, -1).astype(np.int32),
        n_bytes=np.array([node.copied_bytes for node in order], np.int64),
    )


def _sorted(trace: RankTrace) -> RankTrace:
    """Order operations by start, keeping dependencies before their dependents."""
    order = np.argsort(trace.ops.start_ns, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    assert trace.dependencies is not None
    after = tuple(
        tuple(int(place[d]) for d in trace.dependencies[int(old)] if place[d] < new) for new, old in enumerate(order)
    )
    columns = {name: getattr(trace.ops, name)[order] for name in DeviceOps.__slots__}
    return replace(trace, ops=DeviceOps(**columns), dependencies=after)


def _order(nodes: Sequence[ChakraNode], notes: list[str]) -> list[ChakraNode]:
    """Sort topologically, smallest id first; an edge that closes a cycle is broken and reported."""
    by_id = {node.id: node for node in nodes}
    waiting = {node.id: len({d for d in node.after if d in by_id and d != node.id}) for node in nodes}
    dependents: dict[int, list[int]] = {}
    for node in nodes:
        for earlier in {d for d in node.after if d in by_id and d != node.id}:
            dependents.setdefault(earlier, []).append(node.id)
    ready = [node_id for node_id, count in waiting.items() if not count]
    heapq.heapify(ready)
    done: dict[int, None] = {}
    while len(done) < len(nodes):
        if not ready:
            stuck = min(node_id for node_id in waiting if node_id not in done)
            blocker = next(d for d in by_id[stuck].after if d in by_id and d not in done)
            notes.append(f"the graph has a cycle: the dependency of node {stuck} on node {blocker} was dropped")
            heapq.heappush(ready, stuck)
        node_id = heapq.heappop(ready)
        if node_id in done:
            continue
        done[node_id] = None
        for later in dependents.get(node_id, ()):
            waiting[later] -= 1
            if waiting[later] == 0 and later not in done:
                heapq.heappush(ready, later)
    return [by_id[node_id] for node_id in done]


def _lay_out(order: list[ChakraNode], stream: list[int], after: list[tuple[int, ...]]) -> None:
    free: dict[int, int] = {}
    ends: list[int] = []
    for index, node in enumerate(order):
        start = max((ends[d] for d in after[index]), default=0)
        node.start_ns = max(start, free.get(stream[index], 0))
        ends.append(node.start_ns + node.duration_ns)
        free[stream[index]] = ends[-1]
