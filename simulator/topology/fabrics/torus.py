"""Tori of any dimension with dimension-order routing.

References
----------
Dally, Towles, "Principles and Practices of Interconnection Networks", 2004, chapters 5 and 8.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from simulator.config import complaint
from simulator.errors import ConfigError
from simulator.topology.fabrics.fabric import FabricGraph, FabricSize, LinkedFabric
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route

MOST_SWITCHES = 100_000


class Torus(LinkedFabric):
    """Switches on a grid with wrap-around; dimension-order routing, half each way where both are as short."""

    kind: Literal["torus"]
    dims: tuple[int, ...] = Field(min_length=1)
    nodes_per_switch: int = Field(default=1, gt=0)

    @model_validator(mode="after")
    def _positive(self) -> Torus:
        if any(dim < 1 for dim in self.dims):
            raise complaint(ConfigError(f"every dimension must be at least 1: {self.dims}"), "dims")
        if math.prod(self.dims) > MOST_SWITCHES:
            raise complaint(ConfigError(f"more than {MOST_SWITCHES} switches: {self.dims}"), "dims")
        return self

    def n_nodes_max(self, n_nics: int) -> int | None:
        """Nodes that the grid holds."""
        return math.prod(self.dims) * self.nodes_per_switch

    def build(self, size: FabricSize) -> FabricGraph:
        """Build the grid; a dimension of two has one link between its switches and no wrap-around beside it."""
        return _build_torus(self, size)


@dataclass(frozen=True, slots=True)
class _Grid:
    dims: tuple[int, ...]
    links: LinkTable
    steps: dict[tuple[int, int, int], int]  # (vertex, dimension, +1 or -1) -> link

    def coordinates(self, vertex: int) -> list[int]:
        found = []
        for dim in reversed(self.dims):
            vertex, place = divmod(vertex, dim)
            found.append(place)
        return found[::-1]

    def vertex(self, coordinates: list[int]) -> int:
        index = 0
        for dim, place in zip(self.dims, coordinates, strict=True):
            index = index * dim + place
        return index

    def path(self, a: int, b: int) -> Route | None:
        here, there = self.coordinates(a), self.coordinates(b)
        shares: list[tuple[int, float]] = []
        for axis, dim in enumerate(self.dims):
            forward = (there[axis] - here[axis]) % dim
            ways = []
            if forward and forward <= dim - forward:
                ways.append((1, forward))
            if forward and dim - forward <= forward and dim > 2:
                ways.append((-1, dim - forward))
            for direction, n_steps in ways:
                walker = list(here)
                for _ in range(n_steps):
                    shares.append((self.steps[self.vertex(walker), axis, direction], 1.0 / len(ways)))
                    walker[axis] = (walker[axis] + direction) % dim
            here[axis] = there[axis]
        return tuple(shares)


def _build_torus(spec: Torus, size: FabricSize) -> FabricGraph:
    bandwidth = spec.link_bandwidth_bytes_per_s or size.nic_bandwidth_bytes_per_s
    grid = _Grid(spec.dims, LinkTable(), {})
    n_switches = math.prod(spec.dims)
    for vertex in range(n_switches):
        place = grid.coordinates(vertex)
        for axis, dim in enumerate(spec.dims):
            if dim == 1 or (dim == 2 and place[axis] == 1):
                continue
            beside = list(place)
            beside[axis] = (place[axis] + 1) % dim
            other = grid.vertex(beside)
            there = grid.links.add_pair(vertex, other, "fabric", bandwidth, spec.latency_s)
            grid.steps[vertex, axis, 1] = there
            grid.steps[other, axis, -1 if dim > 2 else 1] = there + 1
    names = tuple("switch" + ".".join(map(str, place)) for place in itertools.product(*map(range, spec.dims)))

    def cut_bytes_per_s(n_nodes: int) -> float:
        if n_nodes <= spec.nodes_per_switch:
            return float("inf")
        longest = max(spec.dims)
        return n_switches / longest * (2 if longest > 2 else 1) * bandwidth

    return FabricGraph(
        vertices=names,
        links=grid.links,
        attach=lambda node, nic: node // spec.nodes_per_switch,
        path=grid.path,
        cut_bytes_per_s=cut_bytes_per_s,
    )
