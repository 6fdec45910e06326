"""Several sites: the same fabric on each, joined by wide-area links.

Every site has a router that hangs on all switches into which nodes are plugged, at the rate of its wide-area link; the routers meet
in one point, so that what a site sends to all others together crosses its own link once.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.topology.fabrics.fabric import Fabric, FabricGraph, FabricSize
from simulator.topology.link import LinkTable
from simulator.topology.routing import Route, shifted


def over_sites(
    fabric: Fabric, size: FabricSize, n_sites: int, bandwidth_bytes_per_s: float, latency_s: float
) -> FabricGraph:
    """Lay a fabric out on every site and join the sites, nodes counted site by site.

    Bandwidth is that of the link of one site, per direction; latency is one way between two sites.
    """
    per_site = size.n_nodes // n_sites
    one = fabric.build(replace(size, n_nodes=per_site))
    n_switches, n_links = len(one.vertices), len(one.links)
    arrays = one.links.arrays()
    links = LinkTable()
    for site in range(n_sites):
        links.sources += (arrays.source + site * n_switches).tolist()
        links.targets += (arrays.target + site * n_switches).tolist()
        links.kinds += one.links.kinds
        links.bandwidths += one.links.bandwidths
        links.latencies += one.links.latencies
        links.lanes += one.links.lanes
    names = [f"site{site}.{name}" for site in range(n_sites) for name in one.vertices]
    routers = [len(names) + site for site in range(n_sites)]
    meeting = len(names) + n_sites
    used = sorted({one.attach(node, nic) for node in range(per_site) for nic in range(max(1, size.n_nics))})
    up: dict[int, int] = {}
    wan: list[int] = []
    for site, router in enumerate(routers):
        for switch in used:
            place = site * n_switches + switch
            up[place] = links.add_pair(place, router, "wan", bandwidth_bytes_per_s, 0.0)
        wan.append(links.add_pair(router, meeting, "wan", bandwidth_bytes_per_s, latency_s / 2))

    def path(a: int, b: int) -> Route | None:
        site_a, site_b = a // n_switches, b // n_switches
        if site_a == site_b:
            inside = one.path(a % n_switches, b % n_switches)
            return None if inside is None else shifted(inside, site_a * n_links)
        return ((up[a], 1.0), (wan[site_a], 1.0), (wan[site_b] + 1, 1.0), (up[b] + 1, 1.0))

    return FabricGraph(
        vertices=(*names, *(f"site{site}.router" for site in range(n_sites)), "wan"),
        links=links,
        attach=lambda node, nic: node // per_site * n_switches + one.attach(node % per_site, nic),
        path=path,
        cut_bytes_per_s=lambda n_nodes: (
            one.cut_bytes_per_s(n_nodes) if n_nodes <= per_site else bandwidth_bytes_per_s * (n_sites // 2)
        ),
        hashed=one.hashed,
    )
