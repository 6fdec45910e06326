"""Rows of expert dispatch and combine: the time of the dispatcher's kernel, within a node and between nodes.

Between nodes a token goes once to every node over the network card, and the SMs that forward it set another bound. No plan is
priced by the constants here: they are of kernels that tables have.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from simulator.collectives.shape import shape_of
from simulator.dtypes import DTYPE_BYTES
from simulator.errors import ConfigError
from simulator.interop import open_topology
from simulator.kernels.dispatcher import DispatchConstants, DispatcherKernels, copying_s
from simulator.parallel.expert import expected_places
from simulator.plan.dispatchers import DISPATCHERS
from simulator.plan.precision import SCALED_BYTES
from simulator.program.op import Routed
from simulator.topology import Topology
from validation.tables.outcome import one_by_one
from validation.tables.reader import Row

#: bytes of an element on its way, with its scales: these benchmarks dispatch in fp8 with a scale of fp32 per 128, and return bf16
_ELEMENT_BYTES = {"dispatch": SCALED_BYTES["fp8_block"], "combine": float(DTYPE_BYTES["bf16"])}


#: nodes up to which the network's share holds; beyond it falls by ``crowding``
_FEW_NODES = 4
_GB = 1e9


def _between_nodes(
    launch_us: float, gb_per_s: float, nic_share: float, crowding: float
) -> tuple[DispatchConstants, float]:
    """Return constants over network cards, and the exponent by which a card's share falls with the nodes beyond four."""
    constants = DispatchConstants(
        launch_s=1e-6 * launch_us, sm_bytes_per_s=gb_per_s * _GB, link_share=nic_share, reads=1.0, header_bytes=500.0
    )
    return constants, crowding


#: 276 rows each of 4 and 8 nodes of hgx-h200 (sglang 0.5.6.post2), hidden size 7,168, top 8: median 6.4 and 8.5 % off
_NETWORK = {"dispatch": _between_nodes(42, 8.08, 1.0, 0.96), "combine": _between_nodes(62, 6.03, 0.92, 0.12)}


def _whole(
    launch_us: float, tb_per_s: float, link_share: float, reads: float, header_bytes: float
) -> DispatchConstants:
    """Return constants of a kernel that has the whole device, which counts as one SM."""
    return DispatchConstants(
        launch_s=1e-6 * launch_us,
        sm_bytes_per_s=1e3 * tb_per_s * _GB,
        link_share=link_share,
        reads=reads,
        header_bytes=header_bytes,
    )


#: kernels of TensorRT-LLM over an NVLink domain, from rows with split=fit of 2 to 64 GB200 (of each line 45, 60, 15 and 14): median 9.7,
#: 4.6, 6.2 and 16.3 % off, on test rows of dispatch 13.9 and 18.0 %. Several values stand at the bounds of the fit and name nothing
#: physical (a share above one, a hundredth of a read): they hold for tables of such kernels, and no plan is priced by them
_NVLINK: Mapping[str, Mapping[str, DispatchConstants]] = {
    "nvlinktwosided": {
        "dispatch": _whole(9.9, 1.962, 0.988, 3.53, 5858.0),
        "combine": _whole(9.9, 0.5034, 1.3, 0.965, 1.0),
    },
    "nvlinkonesided": {
        "dispatch": _whole(11.0, 40.4, 0.599, 100.0, 1.17),
        "combine": _whole(8.7, 100.0, 0.613, 0.01, 43.1),
    },
}
#: shares of the rates of NVLink, and of the network card, that DeepEP's low-latency kernels reach; from three rows each with split=fit
#: of dgx-h800 with 128 tokens a GPU
_LOW_LATENCY = {"dispatch": (0.48, 0.80), "combine": (0.64, 0.85)}


@cache
def _machine(name: str, n_gpus: int) -> tuple[Topology, DispatcherKernels]:
    topology = open_topology(name, n_gpus)
    return topology, DispatcherKernels.of(topology.device(0))


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
        n_places=expected_places(n_places, top_k, n_experts),
        n_all=n_places,
    )
    return 1e6 * _deepep_s(operator, routed, row.integer("sms"), n_nodes, topology, dispatcher), ""


def _deepep_s(
    operator: str, routed: Routed, n_sms: int, n_nodes: int, topology: Topology, dispatcher: DispatcherKernels
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
        held, copies = (expected_places(n, top_k, n_experts) for n in (n_places, n_gpus))
    elif limited is not None:
        n_tokens, held = int(limited[1]), float(limited[2])
        copies = held
    else:
        raise ConfigError("the notes of an exchange say 'tokens 4096 hidden 7168 top-8 experts 256'")
    routed = Routed(n_tokens=n_tokens, token_bytes=n_bytes / n_tokens / copies, n_places=held, n_all=n_places)
    if kernel.startswith("nvlink"):
        return nvlink_s(kernel, operator, routed, _nvlink_rate(topology, n_gpus))
    stated = re.search(r"(\d+) sms", kernel)
    n_sms = int(stated[1]) if stated else DISPATCHERS["deepep"].n_sms
    return _deepep_s(operator, routed, n_sms, n_nodes, topology, DispatcherKernels.of(topology.device(0)))


def _nvlink_rate(topology: Topology, n_gpus: int) -> float:
    return shape_of(tuple(range(n_gpus)), topology).nvlink_bytes_per_s


def _nic_rate(topology: Topology) -> float:
    """Return the bytes per second of the network card between a GPU and its peer on the next node."""
    links = [topology.links[index] for index, _ in topology.route(0, topology.gpus_per_node)]
    return min(link.bandwidth_bytes_per_s for link in links if link.kind == "nic")


def nvlink_s(kernel: str, operator: str, routed: Routed, nvlink_bytes_per_s: float) -> float:
    """Seconds of an exchange over one NVLink domain by a kernel of TensorRT-LLM that takes the whole device."""
    if kernel not in _NVLINK:
        raise ConfigError(f"dispatcher '{kernel}' is unknown", hint=f"{', '.join(_NVLINK)}, deepep normal 20 SMs")
    constants = _NVLINK[kernel][operator]
    return constants.launch_s + copying_s(constants, routed, 1, nvlink_bytes_per_s)


def low_latency_s(
    operator: str, n_bytes: float, n_nodes: int, nvlink_bytes_per_s: float, nic_bytes_per_s: float
) -> float:
    """Seconds in which DeepEP's low-latency kernels send these bytes: to peers in the node, and one by one over the network card.

    References
    ----------
    deepseek-ai/DeepEP, README, low-latency kernels with pure RDMA.
    """
    inside, outside = _LOW_LATENCY[operator]
    leaving = n_bytes * (1.0 - 1.0 / n_nodes)
    return (n_bytes - leaving) / (inside * nvlink_bytes_per_s) + leaving / (outside * nic_bytes_per_s)


def network_s(operator: str, routed: Routed, n_sms: int, nic_bytes_per_s: float) -> float:
    """Seconds of an exchange between nodes, its launch included; ``routed`` counts nodes."""
    constants, crowding = _NETWORK[operator]
    crowd = max(1.0, routed.n_all / _FEW_NODES) ** crowding
    return constants.launch_s + copying_s(constants, routed, n_sms, nic_bytes_per_s / crowd)


predict = one_by_one(_exchange_us)
