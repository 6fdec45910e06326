"""Copies against measured ones: p2pBandwidthLatencyTest and nvbandwidth."""

from __future__ import annotations

import pytest

from simulator.collectives.copies import copy_table
from simulator.topology.cluster_file import load_topology


def rates(topology: str, n_bytes: int = 512 << 20) -> dict[str, float]:
    """Rate of each kind of copy in GB/s."""
    return {row.label: row.busbw_bytes_per_s / 1e9 for row in copy_table(load_topology(topology, 2), [n_bytes])}


@pytest.mark.parametrize(
    ("topology", "label", "measured"),
    [
        ("polaris-ss10", "peer, kernel", 80.5),  # Argonne, four NVLink3
        ("thetagpu-tg40", "peer, copy engine", 277.6),  # Argonne, twelve NVLink3 over NVSwitch
        ("dgx-a100-80g", "host to device", 26.8),  # shared measurements, launch_costs: pinned, 256 MiB
        ("dgx-a100-80g", "device to host", 26.2),
        ("hgx-h100", "peer, copy engine", 376.6),  # NVIDIA/nccl issue 1264, p2pBandwidthLatencyTest
        ("hgx-h100", "peer, both ways", 744.0),  # the same, bidirectional
    ],
)
def test_rates_are_those_measured(topology: str, label: str, measured: float) -> None:
    assert rates(topology)[label] == pytest.approx(measured, rel=0.08)


def test_packets_cost_32_bytes_beside_their_payload() -> None:
    """12 links of 25 GB/s, and launches that do not count at this size."""
    found = rates("dgx-a100-80g", 1 << 34)
    assert found["peer, copy engine"] == pytest.approx(300 * 256 / 288, rel=1e-3)
    assert found["peer, kernel"] == pytest.approx(300 * 128 / 160, rel=1e-3)
    assert found["peer, both ways"] == pytest.approx(600 * 256 / 288, rel=1e-3)


def test_one_gpu_to_a_node_copies_to_its_host_only() -> None:
    machine = load_topology("dgx-a100-80g", 2, gpus_per_node=1)
    assert {row.label for row in copy_table(machine, [1 << 20])} == {"host to device", "device to host"}
