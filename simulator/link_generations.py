"""What a lane or a link of each generation carries, in one direction and after line coding.

References
----------
InfiniBand Architecture Specification (lanes); PCI-SIG base specifications (PCI Express); NVIDIA's data sheets of P100, V100, A100,
H100 and B200 (NVLink) and AMD's of MI50 to MI355X (Infinity Fabric).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

#: InfiniBand: speed of a lane -> bits per second on the wire, and of data
INFINIBAND_LANES = {
    "SDR": (2.5e9, 2e9),
    "DDR": (5e9, 4e9),
    "QDR": (10e9, 8e9),
    "FDR10": (10.3125e9, 10e9),
    "FDR": (14.0625e9, 13.64e9),
    "EDR": (25.78125e9, 25e9),
    "HDR": (53.125e9, 50e9),
    "NDR": (106.25e9, 100e9),
    "XDR": (212.5e9, 200e9),
}
#: generation of PCI Express -> raw bytes per second of 16 lanes
PCIE_X16_BYTES_PER_S = {1: 4.0e9, 2: 8.0e9, 3: 15.75e9, 4: 31.5e9, 5: 63.0e9, 6: 121.0e9}
#: transfers of a lane in units of 1e9 per second, as drivers write them -> generation of PCI Express
PCIE_TRANSFERS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
#: generations of PCI Express that a node may have, and the lanes of a slot
NodePcie = Literal[3, 4, 5, 6]
PcieLanes = Literal[1, 2, 4, 8, 16]
NODE_PCIE: tuple[NodePcie, ...] = get_args(NodePcie)
PCIE_LANES: tuple[PcieLanes, ...] = get_args(PcieLanes)
#: generation of NVLink -> bytes per second of a link
NVLINK_BYTES_PER_S = {1: 20e9, 2: 25e9, 3: 25e9, 4: 25e9, 5: 50e9}
#: links of one GPU in the latest of them
MOST_NVLINKS = 18
#: generation of AMD's GPUs -> bytes per second of a link of Infinity Fabric: both ways 92e9 of MI50 to MI100 (three links: 276e9),
#: 100e9 of MI200, 128e9 of MI300 (seven links: 896e9) and 153.6e9 of MI350
XGMI_BYTES_PER_S = {"gcn5": 46e9, "cdna1": 46e9, "cdna2": 50e9, "cdna3": 64e9, "cdna4": 76.8e9}


def lane_data_bits_per_s(wire_bits_per_s: float) -> float:
    """Return the data that a lane of InfiniBand carries, whose rate on the wire is nearest to one that a tool prints.

    Examples
    --------
    >>> lane_data_bits_per_s(53.125e9), lane_data_bits_per_s(10.3e9)
    (50000000000.0, 10000000000.0)
    """
    return min(INFINIBAND_LANES.values(), key=lambda lane: abs(math.log(lane[0] / wire_bits_per_s)))[1]


def node_pcie(x16_bytes_per_s: float) -> NodePcie:
    """Return the generation of PCI Express, of those that a node can have, whose 16 lanes are nearest to a rate."""
    return min(NODE_PCIE, key=lambda one: abs(math.log(PCIE_X16_BYTES_PER_S[one] / x16_bytes_per_s)))


def nvlink_of(compute_capability: int) -> int:
    """Return the generation of NVLink of GPUs of a compute capability, written without its dot.

    Examples
    --------
    >>> [nvlink_of(capability) for capability in (60, 70, 80, 90, 103)]
    [1, 2, 3, 4, 5]
    """
    return min(max(compute_capability // 10 - 5, 1), 5)
