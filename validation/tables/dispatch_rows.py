"""Rows of expert dispatch and combine: the time of the dispatcher's kernel, within a node and between nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from simulator.errors import ConfigError, SimulatorError
from validation.tables.many_jobs import Progress
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

if TYPE_CHECKING:
    from simulator.kernels.dispatcher import Dispatcher
    from simulator.topology import Topology

#: bytes of an element on its way, with its scales: these benchmarks dispatch in fp8 with a scale of fp32 per 128, and return bf16
_ELEMENT_BYTES = {"dispatch": 1.0 + 4 / 128, "combine": 2.0}


def predict(rows: Sequence[Row], progress: Progress | None = None, n_processes: int = 1) -> list[Outcome]:
    """Predict the time of every exchange in microseconds, notification between nodes excluded.

    It runs in one process, as it takes milliseconds.
    """
    from simulator.interop import open_topology
    from simulator.kernels.dispatcher import Dispatcher

    del n_processes
    machines: dict[tuple[str, int], tuple[Topology, Dispatcher]] = {}
    outcomes: list[Outcome] = []
    for row in rows:
        if progress is not None:
            progress.update(len(outcomes), len(rows))
        try:
            key = row.text("topology"), row.integer("gpus")
            if key not in machines:
                topology = open_topology(*key)
                machines[key] = topology, Dispatcher.of(topology.device(0))
            outcomes.append(Outcome(row=row, predicted=1e6 * _exchange_s(row, *machines[key])))
        except SimulatorError as error:
            outcomes.append(Outcome(row=row, reason=error.message))
    return outcomes


def _exchange_s(row: Row, topology: Topology, dispatcher: Dispatcher) -> float:
    from simulator.collectives.shape import shape_of
    from simulator.kernels.dispatcher import network_s, places_of
    from simulator.program.op import Routed

    operator = row.text("op").removeprefix("moe_")
    if operator not in _ELEMENT_BYTES:
        raise ConfigError(f"op '{row.text('op')}' is unknown", hint="moe_dispatch, moe_combine")
    n_experts, top_k, n_sms = int(row.text("experts")), row.integer("topk"), row.integer("sms")
    n_nodes = row.integer("nodes")
    n_places = n_nodes if n_nodes > 1 else row.integer("gpus")
    routed = Routed(
        n_tokens=row.integer("tokens_per_gpu"),
        token_bytes=int(row.text("hidden")) * _ELEMENT_BYTES[operator],
        n_places=places_of(n_places, top_k, n_experts),
        n_all=n_places,
    )
    if n_nodes == 1:
        nvlink_rate = shape_of(tuple(range(n_places)), topology).nvlink_bytes_per_s
        return dispatcher.launch_s(operator) + dispatcher.copying_s(operator, routed, n_sms, nvlink_rate)
    return network_s(operator, routed, n_sms, nic_rate(topology))


def nic_rate(topology: Topology) -> float:
    """Return the bytes per second of the network card between a GPU and its peer on the next node."""
    links = [topology.links[index] for index, _ in topology.route(0, topology.gpus_per_node)]
    return min(link.bandwidth_bytes_per_s for link in links if link.kind == "nic")
