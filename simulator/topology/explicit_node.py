"""What an explicit graph says about its nodes: NVLinks, NICs and who uses which, as collectives need to know."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.topology.link import LINK_KINDS, LinkTable
from simulator.topology.spec import (
    PCIE_X16_BYTES_PER_S,
    CpuSpec,
    NicSpec,
    NodeSpec,
    NvlinkSpec,
    NvMatrixSpec,
    NvSwitchSpec,
    PcieSpec,
)

_INSIDE = ("nvlink", "nvswitch", "pcie", "socket")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """Where a node meets the network.

    Parameters
    ----------
    of_gpu : tuple of tuple of int
        Ports, counted within the node, that each GPU of the node is nearest to.
    rates_bytes_per_s : tuple of float
        Of each port, per direction.
    """

    of_gpu: tuple[tuple[int, ...], ...]
    rates_bytes_per_s: tuple[float, ...]


def ports_of(links: LinkTable, gpus: Sequence[int]) -> Ports:
    """Find the ports of a node: the links that lead out of what its GPUs reach over NVLink, PCIe and sockets.

    Parameters
    ----------
    links : LinkTable
        All links of the graph.
    gpus : sequence of int
        Vertices of the GPUs of one node.
    """
    inside = {LINK_KINDS.index(kind) for kind in _INSIDE}
    out: dict[int, list[int]] = {}
    for index, source in enumerate(links.sources):
        out.setdefault(source, []).append(index)
    numbers: dict[int, int] = {}
    nearest = []
    for gpu in gpus:
        found = _nearest(links, out, inside, gpu, closed=set(gpus) - {gpu})
        for index in found:
            numbers.setdefault(index, len(numbers))
        nearest.append(found)
    return Ports(
        of_gpu=tuple(tuple(numbers[index] for index in found) for found in nearest),
        rates_bytes_per_s=tuple(links.bandwidths[index] for index in numbers),
    )


def _nearest(
    links: LinkTable, out: dict[int, list[int]], inside: set[int], gpu: int, closed: set[int]
) -> tuple[int, ...]:
    """Links out of the node that a GPU reaches over the fewest hops, without passing through other GPUs."""
    seen, queue = {gpu: 0}, deque([gpu])
    best: list[int] = []
    depth = -1
    while queue:
        vertex = queue.popleft()
        if depth >= 0 and seen[vertex] > depth:
            break
        for index in out.get(vertex, ()):
            target = links.targets[index]
            if links.kinds[index] not in inside:
                best.append(index)
                depth = seen[vertex]
            elif target not in seen and target not in closed:
                seen[target] = seen[vertex] + 1
                queue.append(target)
    return tuple(best)


def node_of_graph(links: LinkTable, kinds: Sequence[str], gpus: Sequence[int], device: str) -> NodeSpec:
    """Describe the first node of a graph as a cluster file would.

    Parameters
    ----------
    kinds : sequence of str
        Kind of each vertex.
    gpus : sequence of int
        Vertices of its GPUs.
    device : str
        Their device.
    """
    ports = ports_of(links, gpus)
    nics = None
    if ports.rates_bytes_per_s:
        rate = min(ports.rates_bytes_per_s)
        nics = NicSpec.model_construct(count=len(ports.rates_bytes_per_s), bandwidth_bytes_per_s=rate, model="")
    return NodeSpec.model_construct(
        device=device,
        gpus=len(gpus),
        nvlink=_nvlink(links, kinds, gpus),
        pcie=_pcie(links, gpus),
        cpu=CpuSpec(),
        nics=nics,
    )


def _nvlink(links: LinkTable, kinds: Sequence[str], gpus: Sequence[int]) -> NvlinkSpec | None:
    place = {gpu: number for number, gpu in enumerate(gpus)}
    matrix = [[0] * len(gpus) for _ in gpus]
    lanes_up, rates = [0] * len(gpus), []
    for source, target, kind, rate, lanes in zip(
        links.sources, links.targets, links.kinds, links.bandwidths, links.lanes, strict=True
    ):
        if source not in place or LINK_KINDS[kind] not in ("nvlink", "nvswitch"):
            continue
        rates.append(rate / lanes)
        if target in place:
            matrix[place[source]][place[target]] += lanes
        elif kinds[target] == "nvswitch":
            lanes_up[place[source]] += lanes
    if not rates:
        return None
    if any(lanes_up):
        return NvSwitchSpec.model_construct(
            kind="switch", links_per_gpu=max(1, min(lanes_up)), bandwidth_per_link_bytes_per_s=min(rates)
        )
    rows = tuple(tuple(row) for row in matrix)
    return NvMatrixSpec.model_construct(kind="matrix", matrix=rows, bandwidth_per_link_bytes_per_s=min(rates))


def _pcie(links: LinkTable, gpus: Sequence[int]) -> PcieSpec:
    """Return the generation whose rate is nearest to that of the GPUs' PCIe links; that of the device without any."""
    own = set(gpus)
    pcie = LINK_KINDS.index("pcie")
    rates = [
        rate
        for source, kind, rate in zip(links.sources, links.kinds, links.bandwidths, strict=True)
        if source in own and kind == pcie
    ]
    if not rates:
        return PcieSpec()
    generation = min(PCIE_X16_BYTES_PER_S, key=lambda g: abs(PCIE_X16_BYTES_PER_S[g] - min(rates)))
    return PcieSpec.model_validate({"generation": generation})
