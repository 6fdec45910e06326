"""Memory of hosts: the rates that vendors state, and what STREAM was measured to reach of them."""

import pytest

from simulator.topology import load_topology
from simulator.topology.processors import socket_memory_bytes_per_s


@pytest.mark.parametrize(("model", "generation", "gb_per_s"), [
    ("EPYC 7742", 4, 204.8), ("EPYC 7763", 4, 204.8), ("EPYC 9554", 5, 460.8), ("EPYC 9575F", 5, 576.0),
    ("Xeon E5-2698 v4", 3, 76.8), ("Xeon Platinum 8168", 3, 128.0), ("Xeon Gold 6248", 3, 140.8), ("Xeon Platinum 8360Y", 4, 204.8),
    ("Xeon Platinum 8480C", 5, 307.2), ("Sapphire Rapids", 5, 307.2), ("Xeon Platinum 8570", 5, 358.4), ("Grace", 5, 512.0),
])  # fmt: skip
def test_rates_are_those_of_the_vendors_pages(model, generation, gb_per_s):
    """Product pages of AMD ("Per Socket Mem BW") and NVIDIA; Intel's channels and speeds, whose clock of 2,666 is 2,666.67."""
    assert socket_memory_bytes_per_s(model, generation) == pytest.approx(gb_per_s * 1e9, rel=1e-3)


@pytest.mark.parametrize(("model", "generation", "sockets", "low", "high"), [
    ("Grace", 5, 1, 410, 486),  # NVIDIA, Grace CPU benchmarking guide, foundations/STREAM: triad with 120 GB
    ("EPYC 7V73X", 4, 2, 330, 350),  # Microsoft, Azure HPC, STREAM: HBv3, Milan
    ("EPYC 9V33X", 5, 2, 650, 780),  # the same: HBv4, Genoa
    ("Xeon Platinum 8180", 3, 2, 190, 215),  # Intel's own binary of AVX-512, 199 GB/s (AnandTech, July 2017)
])  # fmt: skip
def test_stream_reaches_most_of_a_rate_and_never_more(model, generation, sockets, low, high):
    peak = sockets * socket_memory_bytes_per_s(model, generation) / 1e9
    assert 0.65 * peak < low < high < 0.97 * peak


@pytest.mark.parametrize(("cluster", "n_gpus", "gb_per_s"), [
    ("dgx-a100-80g", 8, 2 * 204.8), ("dgx-a100-80g", 1, 2 * 204.8),  # a rank's threads run on both sockets, as on a DGX-2
    ("dgx-h100", 8, 2 * 307.2), ("alps", 4, 4 * 512), ("alps", 1, 512),
    ("gb200-nvl72", 4, 2 * 384), ("gb200-nvl72", 2, 384), ("gb200-nvl72", 3, 2 * 384),
])  # fmt: skip
def test_a_host_has_the_memory_of_its_sockets(cluster, n_gpus, gb_per_s):
    """Of a rack the host is a tray; GPUs on Grace step in the memory of their own processor. NVIDIA's guide has 288 to 342 GB/s of
    STREAM with 480 GB on each."""
    node = load_topology(cluster).node
    assert node.sockets_of(n_gpus) * node.socket_memory_bytes_per_s == pytest.approx(gb_per_s * 1e9)
