"""Completion times against SimGrid, whose max-min solver is not ours.

SimGrid is in Debian (``python3-simgrid``) and on PyPI; the test skips where no Python at hand has it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from simulator.network import NETWORKS, Flow
from simulator.units import to_s

PROGRAM = r"""
import json, sys
from simgrid import Actor, Comm, Engine, Host, LinkInRoute, NetZone

system = json.load(sys.stdin)
engine = Engine(["oracle", "--cfg=network/model:CM02", "--cfg=network/crosstraffic:0"])
zone = NetZone.create_full_zone("all")
links = []
for number, rate in enumerate(system["links"]):
    link = zone.create_link(f"l{number}", rate)
    link.set_latency(0.0)
    links.append(link.seal())
for number, flow in enumerate(system["flows"]):
    ends = [zone.create_host(f"{side}{number}", 1e9).seal() for side in "ab"]
    used = [links[link] for link in flow["links"]]
    if flow["cap"]:  # a link of its own
        used.append(zone.create_link(f"cap{number}", flow["cap"]).set_latency(0.0).seal())
    route = [LinkInRoute(link) for link in used]
    zone.add_route(ends[0].netpoint, ends[1].netpoint, None, None, route, False)
zone.seal()
ended = {}


def send(number, flow):
    comm = Comm.sendto_init(Host.by_name(f"a{number}"), Host.by_name(f"b{number}"))
    comm.set_payload_size(flow["bytes"])
    comm.start().wait()
    ended[number] = Engine.clock if not callable(Engine.clock) else Engine.clock()


for number, flow in enumerate(system["flows"]):
    Actor.create(f"s{number}", Host.by_name(f"a{number}"), send, number, flow)
engine.run()
print(json.dumps([ended[number] for number in range(len(system["flows"]))]))
"""


def python_with_simgrid():
    """The first interpreter that imports SimGrid."""
    for name in (sys.executable, shutil.which("python3"), "/usr/bin/python3"):
        if name and subprocess.run([name, "-c", "import simgrid"], capture_output=True, check=False).returncode == 0:
            return name
    return None


@pytest.fixture(scope="module")
def simgrid():
    name = python_with_simgrid()
    if name is None:
        pytest.skip("no Python with SimGrid: apt install python3-simgrid, or pip install simgrid")

    def run(system):
        done = subprocess.run(
            [name, "-c", PROGRAM], input=json.dumps(system), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    return run


def ours(kind, system):
    topology = SimpleNamespace(links=[SimpleNamespace(bandwidth_bytes_per_s=rate) for rate in system["links"]])
    network = NETWORKS[kind](topology)
    handles = {}
    for number, flow in enumerate(system["flows"]):
        links = tuple(flow["links"])
        cap = flow["cap"] or float("inf")
        described = Flow(
            latency_s=0.0, n_bytes=flow["bytes"], links=links, weights=(1.0,) * len(links), rate_cap_bytes_per_s=cap
        )
        handles[network.start(described, 0)] = number
    ended = [0.0] * len(system["flows"])
    while (wake_ps := network.next_completion_ps()) is not None:
        for handle in network.advance(wake_ps):
            ended[handles[handle]] = to_s(wake_ps)
    return ended


@pytest.mark.parametrize("seed", range(4))
def test_flows_end_when_simgrid_says(simgrid, seed):
    rng = np.random.default_rng(seed)
    system = {
        "links": rng.uniform(1e8, 1e10, 6).tolist(),
        "flows": [
            {
                "links": sorted(rng.choice(6, size=int(rng.integers(1, 4)), replace=False).tolist()),
                "bytes": int(rng.integers(10**6, 10**9)),
                "cap": float(rng.uniform(1e8, 1e9)) if rng.random() < 0.3 else 0.0,
            }
            for _ in range(20)
        ],
    }
    expected = simgrid(system)
    for kind in ("flow", "chunk"):
        assert ours(kind, system) == pytest.approx(expected, rel=1e-4)
