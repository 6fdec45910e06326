"""Rows of expert dispatch and combine: the time of the dispatcher's kernel, within a node and between nodes."""

from __future__ import annotations

from functools import cache

from simulator.collectives.shape import shape_of
from simulator.errors import ConfigError
from simulator.interop import open_topology
from simulator.kernels.dispatcher import Dispatcher, network_s, places_of
from simulator.program.op import Routed
from simulator.topology import Topology
from validation.tables.outcome import one_by_one
from validation.tables.reader import Row

#: bytes of an element on its way, with its scales: these benchmarks dispatch in fp8 with a scale of fp32 per 128, and return bf16
_ELEMENT_BYTES = {"dispatch": 1.0 + 4 / 128, "combine": 2.0}


@cache
def _machine(name: str, n_gpus: int) -> tuple[Topology, Dispatcher]:
    topology = open_topology(name, n_gpus)
    return topology, Dispatcher.of(topology.device(0))


def _exchange_us(row: Row) -> tuple[float, str]:
    """Return the microseconds of an exchange, notification between nodes excluded."""
    topology, dispatcher = _machine(row.text("topology"), row.integer("gpus"))
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
        return 1e6 * (dispatcher.launch_s(operator) + dispatcher.copying_s(operator, routed, n_sms, nvlink_rate)), ""
    return 1e6 * network_s(operator, routed, n_sms, _nic_rate(topology)), ""


def _nic_rate(topology: Topology) -> float:
    """Return the bytes per second of the network card between a GPU and its peer on the next node."""
    links = [topology.links[index] for index, _ in topology.route(0, topology.gpus_per_node)]
    return min(link.bandwidth_bytes_per_s for link in links if link.kind == "nic")


predict = one_by_one(_exchange_us)
