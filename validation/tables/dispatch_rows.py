"""Rows of expert dispatch and combine: the time of the dispatcher's kernel, within a node and between nodes."""

from __future__ import annotations

import re
from functools import cache

from simulator.collectives.shape import shape_of
from simulator.errors import ConfigError
from simulator.interop import open_topology
from simulator.kernels.dispatcher import Dispatcher, low_latency_s, network_s, nvlink_s, places_of
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
    n_experts, top_k = row.integer("experts"), row.integer("topk")
    n_nodes = row.integer("nodes")
    n_places = n_nodes if n_nodes > 1 else row.integer("gpus")
    routed = Routed(
        n_tokens=row.integer("tokens_per_gpu"),
        token_bytes=row.integer("hidden") * _ELEMENT_BYTES[operator],
        n_places=places_of(n_places, top_k, n_experts),
        n_all=n_places,
    )
    return 1e6 * _deepep_s(operator, routed, row.integer("sms"), n_nodes, topology, dispatcher), ""


def _deepep_s(
    operator: str, routed: Routed, n_sms: int, n_nodes: int, topology: Topology, dispatcher: Dispatcher
) -> float:
    if n_nodes > 1:
        return network_s(operator, routed, n_sms, _nic_rate(topology))
    copying_s = dispatcher.copying_s(operator, routed, n_sms, _nvlink_rate(topology, routed.n_all))
    return dispatcher.launch_s(operator) + copying_s


def noted_exchange_s(row: Row, topology: Topology) -> float:
    """Return the seconds of an exchange in a table of collectives, whose tokens and experts stand in its notes.

    Routing limited to some nodes reaches so many, as a token's share of the size says.
    """
    operator, _, low = row.text("collective").removeprefix("moe_").partition("_")
    notes, kernel = row.text("notes"), row.text("algorithm").lower()
    n_gpus, n_nodes, n_bytes = row.integer("gpus"), row.integer("nodes", 1), row.integer("size_bytes")
    if operator not in _ELEMENT_BYTES or low not in ("", "ll"):
        raise ConfigError(
            f"collective '{row.text('collective')}' is unknown", hint="moe_dispatch, moe_combine, and with _ll"
        )
    if low:
        nic = _nic_rate(topology) if n_nodes > 1 else float("inf")
        return low_latency_s(operator, n_bytes, n_nodes, _nvlink_rate(topology, n_gpus // n_nodes), nic)
    named = re.search(r"tokens (\d+) hidden \d+ top-(\d+) experts (\d+)", notes)
    limited = re.search(r"(\d+) tokens, top-\d+ limited to (\d+) nodes", notes)
    n_places = n_gpus if kernel.startswith("nvlink") or n_nodes == 1 else n_nodes
    if named is not None:
        n_tokens, top_k, n_experts = map(int, named.groups())
        held, copies = (places_of(n, top_k, n_experts) for n in (n_places, n_gpus))
    elif limited is not None:
        n_tokens, held = int(limited[1]), float(limited[2])
        copies = held
    else:
        raise ConfigError("the notes of an exchange say 'tokens 4096 hidden 7168 top-8 experts 256'")
    routed = Routed(n_tokens=n_tokens, token_bytes=n_bytes / n_tokens / copies, n_places=held, n_all=n_places)
    if kernel.startswith("nvlink"):
        return nvlink_s(kernel, operator, routed, _nvlink_rate(topology, n_gpus))
    n_sms = re.search(r"(\d+) sms", kernel)
    return _deepep_s(
        operator, routed, int(n_sms[1]) if n_sms else 20, n_nodes, topology, Dispatcher.of(topology.device(0))
    )


def _nvlink_rate(topology: Topology, n_gpus: int) -> float:
    return shape_of(tuple(range(n_gpus)), topology).nvlink_bytes_per_s


def _nic_rate(topology: Topology) -> float:
    """Return the bytes per second of the network card between a GPU and its peer on the next node."""
    links = [topology.links[index] for index, _ in topology.route(0, topology.gpus_per_node)]
    return min(link.bandwidth_bytes_per_s for link in links if link.kind == "nic")


predict = one_by_one(_exchange_us)
