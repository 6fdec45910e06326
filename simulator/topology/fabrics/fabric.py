"""What every fabric is in a cluster file, and what it builds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pydantic import Field

from simulator.config import Bandwidth, Latency, Spec
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricSize:
    """What hangs on the fabric: nodes, NICs of each, and the rate of one NIC per direction."""

    n_nodes: int
    n_nics: int
    nic_bandwidth_bytes_per_s: float

    @property
    def injection_bytes_per_s(self) -> float:
        """Rate at which one node can send."""
        return self.n_nics * self.nic_bandwidth_bytes_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricGraph:
    """Switches and the links between them, with routes computed from the structure."""

    vertices: tuple[str, ...]  #: Names of the switches.
    links: LinkTable  #: Directed links between switches.
    attach: Callable[[int, int], int]  #: Switch that a NIC is plugged into.
    path: Callable[[int, int], Route | None]  #: Links between two switches with shares; None when there is no way.
    #: Capacity, per direction, of the links between the first and the second half of the first ``n_nodes`` nodes;
    #: infinite where only the NICs limit.
    cut_bytes_per_s: Callable[[int], float]
    #: What so many equal flows of a NIC each get of a bundle of so many physical links, over what its capacity says: they are hashed
    #: to single links. None where routing spreads them.
    hashed: Callable[[float, int], float] | None = None


class Fabric(Spec):
    """The ``fabric`` section of a cluster file; each kind adds its keys and builds its switches and links."""

    kind: str
    source: str = ""

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes with ``n_nics`` NICs that fit; None where the fabric grows with them."""
        return None

    def build(self, size: FabricSize) -> FabricGraph:
        """Lay out the fabric."""
        raise NotImplementedError


#: of a switch whose latency a file does not state: NVIDIA Quantum HDR datasheet
SWITCH_LATENCY_S = 0.13e-6


class SwitchedFabric(Fabric):
    """What all fabrics with switches share."""

    latency_s: Latency = Field(default=SWITCH_LATENCY_S, alias="latency", ge=0)


class LinkedFabric(SwitchedFabric):
    """What all fabrics with links between switches share."""

    link_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="link_bandwidth", gt=0)


def lanes(bandwidth_bytes_per_s: float, link_bandwidth_bytes_per_s: float) -> int:
    """Physical links in a bundle: at least one."""
    return max(1, round(bandwidth_bytes_per_s / link_bandwidth_bytes_per_s))
