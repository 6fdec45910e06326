"""Collective rows: the flow that the simulator plans for them, alone on its links."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from simulator.errors import ConfigError, SimulatorError
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

_NAMES = {
    "allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "sendrecv": "send_recv", "bcast": "broadcast",
}  # fmt: skip
_DTYPE_BYTES = {
    "float": 4, "float32": 4, "int32": 4, "int": 4, "half": 2, "float16": 2, "bfloat16": 2, "bf16": 2, "double": 8,
    "int8": 1, "uint8": 1, "int64": 8,
}  # fmt: skip


def dtype_bytes(notes: str) -> int:
    """Return the element size that a row's notes state (``dtype=half``), 4 otherwise: nccl-tests' default is float.

    Examples
    --------
    >>> dtype_bytes("dtype=half; bw derived"), dtype_bytes("")
    (2, 4)
    """
    match = re.search(r"dtype[= ]+(\w+)", notes) or re.search(r"\b(int32|bfloat16|float16|half)\b", notes)
    return _DTYPE_BYTES.get(match[1], 4) if match else 4


def lone_time_s(flow: Any, topology: Any) -> float:
    """Return the seconds that a flow takes alone in the network."""
    from simulator.network import NETWORKS
    from simulator.units import to_s

    network = NETWORKS["flow"](topology)
    network.start(flow, 0)
    done_ps = network.next_completion_ps()
    return to_s(done_ps or 0)


@lru_cache(maxsize=4096)
def _ranks(n_gpus: int, n_nodes: int, per_node: int, node_gpus: int) -> tuple[int, ...]:
    used = per_node or max(n_gpus // max(n_nodes, 1), 1)
    return tuple(node * node_gpus + gpu for node in range(max(n_nodes, 1)) for gpu in range(used))[:n_gpus]


def _plan(row: Row) -> tuple[Any, Any]:
    """Return the planned flow of a row and its topology."""
    from simulator.collectives import plan_collective

    gpus = row.integer("gpus")
    if gpus < 2:
        raise ConfigError(f"gpus={gpus}: a collective needs at least two ranks")
    nodes = row.integer("nodes", 1)
    whole = _load(row.text("topology"), nodes)
    if gpus > nodes * whole.gpus_per_node:
        raise ConfigError(
            f"{gpus} GPUs on {nodes} nodes do not exist on '{whole.name}', whose nodes have {whole.gpus_per_node}"
        )
    group = _ranks(gpus, nodes, row.integer("gpus_per_node", 0), whole.gpus_per_node)
    name = row.text("collective").lower().replace("-", "_")
    flow = plan_collective(
        _NAMES.get(name.replace("_", ""), name),
        row.integer("size_bytes"),
        (group,),
        whole,
        transport=row.text("transport") or None,
        algorithm=row.text("algorithm").lower() or None,
        protocol=row.text("protocol").lower() or None,
        dtype_bytes=dtype_bytes(row.text("notes")),
    )
    return flow, whole


@lru_cache(maxsize=256)
def _load(name: str, n_nodes: int) -> Any:
    """Return the first ``n_nodes`` nodes of a topology."""
    from simulator.topology import load_topology

    if not name:
        raise ConfigError("the row names no topology")
    per_node = load_topology(name, n_gpus=1).node.n_gpus
    return load_topology(name, n_gpus=n_nodes * per_node)


def predict(rows: Sequence[Row]) -> list[Outcome]:
    """Predict the time of every collective row in microseconds."""
    outcomes = []
    for row in rows:
        try:
            flow, topology = _plan(row)
            outcomes.append(Outcome(row=row, predicted=1e6 * lone_time_s(flow, topology), note=flow.label))
        except SimulatorError as error:
            outcomes.append(Outcome(row=row, reason=error.message))
    return outcomes
