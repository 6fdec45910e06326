"""Copies of one GPU, as nvbandwidth and p2pBandwidthLatencyTest measure them: to a peer, and to and from pinned host memory.

A copy needs no collective's protocol: it moves packets at the line rate. What a packet of NVLink carries decides its share:
copy engines send 256 bytes of payload, kernels 128, and each packet costs 32 bytes more, so that 25 GB/s of a link become
22.2 and 20.

References
----------
NVIDIA/nccl-tests, issue 149 (payloads of 256 and 128 bytes, and 20 of 25 GB/s at 128); cuda-samples,
``p2pBandwidthLatencyTest`` (``--sm_copy``; both directions added up); NVIDIA/nvbandwidth (``memcpy_ce``, ``memcpy_sm``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from simulator.collectives.benchmark import BenchmarkRow, row_of
from simulator.kernels.host import COPY_LATENCY_S, copy_bytes_per_s
from simulator.network import Flow, lone_flow_s
from simulator.topology.graph import Topology
from simulator.topology.link import HOST_KINDS, LINK_KINDS

#: bytes of payload of one NVLink packet by who copies, and what a packet costs beside them
PAYLOAD_BYTES = {"copy engine": 256, "kernel": 128}
PACKET_OVERHEAD_BYTES = 32


def copy_table(topology: Topology, sizes_bytes: Sequence[int]) -> tuple[BenchmarkRow, ...]:
    """Predict copies of the first GPU of a topology, size by size.

    Returns
    -------
    tuple of BenchmarkRow
        To a peer by a copy engine, by a kernel and by copy engines both ways (rates added up), then from and to the host.
    """
    device = topology.device(0)
    to_host, from_host = (copy_bytes_per_s(device, to_host=away) for away in (True, False))
    ways = [
        ("host to device", 1, partial(_host_copy_s, from_host)),
        ("device to host", 1, partial(_host_copy_s, to_host)),
    ]
    if topology.gpus_per_node > 1:
        pcie_share = to_host / device.pcie_bandwidth_bytes_per_s
        peers = [
            ("peer, copy engine", "copy engine", 1),
            ("peer, kernel", "kernel", 1),
            ("peer, both ways", "copy engine", 2),
        ]
        ways = [(label, n, partial(_peer_copy_s, topology, who, n, pcie_share)) for label, who, n in peers] + ways
    issue_s = float(device.host.get("launch_s", COPY_LATENCY_S))
    return tuple(
        row_of("p2p_copy", n_bytes * n, 2, dtype="uint8", time_s=issue_s + seconds(n_bytes), label=label)
        for label, n, seconds in ways
        for n_bytes in sizes_bytes
    )


def _host_copy_s(bytes_per_s: float, n_bytes: int) -> float:
    return n_bytes / bytes_per_s


def _peer_copy_s(topology: Topology, who: str, n_ways: int, pcie_share: float, n_bytes: int) -> float:
    """Seconds of a copy between the first two GPUs, or of one each way at the same time."""
    weights: dict[int, float] = {}
    payload = PAYLOAD_BYTES[who]
    routes = [topology.route(*ends) for ends in ((0, 1), (1, 0))[:n_ways]]
    for link, share in (part for route in routes for part in route):
        is_host = LINK_KINDS[topology.arrays.kind[link]] in HOST_KINDS
        packed = pcie_share if is_host else payload / (payload + PACKET_OVERHEAD_BYTES)
        weights[link] = weights.get(link, 0.0) + share / packed
    links = tuple(sorted(weights))
    latency_s = topology.route_latency_s(routes[0])
    flow = Flow(latency_s=latency_s, n_bytes=n_bytes, links=links, weights=tuple(weights[link] for link in links))
    return lone_flow_s(flow, topology)
