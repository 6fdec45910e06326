"""Predicts emulated jobs: the same job as a Program, run by the engine on an ``emulated`` topology with gloo.

The processors of the one machine under all hosts are a link, too, shared like every other: they set the pace
when hosts times rate exceeds about 8 Gbit/s.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from simulator.collectives import plan_collective, plan_transfer
from simulator.engine import Interference, run
from simulator.errors import ConfigError, SimulatorError
from simulator.network.base import Flow
from simulator.network.flow import FlowNetwork
from simulator.program.op import Collective, Kernel, Op, Transfer
from simulator.topology.graph import Topology
from simulator.topology.load import load_topology
from simulator.units import to_ps, to_s
from validation.emulation.job import Job, job_of_row
from validation.emulation.overheads import Overheads, shipped_overheads
from validation.emulation.programs import PROGRAMS, program_of
from validation.emulation.shape import ClusterShape, goodput_bytes_per_s, parse_rate, parse_slow

_BASE = "emulated-1g"
#: a veth pair moves memory: the processors are the limit long before this
_UNSHAPED_BITS_PER_S = 100e9
#: jobs that are measured but not predicted, and why
UNPREDICTED = {
    "gpt": "a computing model: needs this machine's kernel times",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Processors:
    """The processors of the machine as one more link, which everything that any host sends crosses."""

    bandwidth_bytes_per_s: float


class _Links:
    """Links of a topology and, behind them, the processors."""

    def __init__(self, topology: Topology, processors: _Processors) -> None:
        self.links = (*topology.links, processors)


class _Costs:
    """Durations as written in the program, communication from the topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._n_links = len(topology.links)
        self._sends = {link.index for link in topology.links if link.kind == "nic" and ".nic" in link.source}
        self._flows: dict[tuple[object, ...], Flow] = {}

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Duration that the program states."""
        assert kernel.duration_s is not None
        return to_ps(kernel.duration_s)

    def issue_ps(self, op: Op, rank: int) -> int:
        """Nothing: overheads are part of the layers."""
        return 0

    def kind(self, rank: int) -> Hashable:
        """All ranks are alike."""
        return 0

    def flow(self, op: Collective | Transfer) -> Flow:
        """What gloo does, and the processors' part in it."""
        key = (op.pairs,) if isinstance(op, Transfer) else (op.collective, op.groups)
        known = self._flows.get((*key, op.n_bytes))
        if known is None:
            known = self._flows[*key, op.n_bytes] = self._crossing_processors(self._plan(op))
        return known

    def _plan(self, op: Collective | Transfer) -> Flow:
        if isinstance(op, Transfer):
            return plan_transfer(op.n_bytes, op.pairs, self._topology)
        return plan_collective(op.collective, op.n_bytes, op.groups, self._topology)

    def _crossing_processors(self, flow: Flow) -> Flow:
        sent = sum(weight for link, weight in zip(flow.links, flow.weights, strict=True) if link in self._sends)
        if not sent:
            return flow
        return replace(flow, links=(*flow.links, self._n_links), weights=(*flow.weights, sent), alone_bytes_per_s=0.0)

    def interference(self, op: Collective) -> Interference:
        """None: compute sleeps."""
        return Interference()


def topology_of(shape: ClusterShape, procs_per_node: int = 1) -> Topology:
    """Topology of an emulated cluster: the shipped one with a shape's hosts, rates, racks and slow links."""
    rate = goodput_bytes_per_s(shape.rate_bits_per_s or _UNSHAPED_BITS_PER_S)
    overrides: dict[str, object] = {
        "nodes": shape.n_nodes,
        "node.gpus": procs_per_node,
        "node.nics.bandwidth": f"{rate:.0f} B/s",
        "node.nics.latency": f"{(20e-6 + shape.delay_s / 2) * 1e6:g} us",
    }
    if shape.trunk_bits_per_s is not None:
        per_rack = shape.n_nodes // shape.n_racks
        overrides |= {
            "fabric.kind": "fat-tree",
            "fabric.levels": 2,
            "fabric.nodes_per_leaf": per_rack,
            "fabric.oversubscription": per_rack * rate / goodput_bytes_per_s(shape.trunk_bits_per_s),
        }
    topology = load_topology(_BASE, overrides=overrides)
    factors: dict[str | int, float] = {}
    for host, slow_rate in shape.slow:
        for link in topology.links:
            if link.kind == "nic" and f"node{host}.nic0" in (link.source, link.target):
                factors[link.index] = goodput_bytes_per_s(slow_rate) / rate
    return topology.scaled(factors) if factors else topology


def predicted_s(shape: ClusterShape, job: Job, overheads: Overheads | None = None) -> float:
    """Predict how long one repetition of a job takes.

    Raises
    ------
    ConfigError
        If the job is not predicted; says why.
    """
    if job.name not in PROGRAMS:
        raise ConfigError(UNPREDICTED.get(job.name, f"job '{job.name}' has no program"))
    topology = topology_of(shape, job.procs_per_node)
    limits = overheads or shipped_overheads()
    shaped = shape.rate_bits_per_s is not None
    links = _Links(
        topology,
        _Processors(bandwidth_bytes_per_s=limits.shaped_bytes_per_s if shaped else limits.unshaped_bytes_per_s),
    )
    program = program_of(job, shape.n_nodes * job.procs_per_node, shape.n_racks, limits)
    timeline = run(program, _Costs(topology), lambda: FlowNetwork(links))
    return to_s(timeline.makespan_ps)


def shape_of_row(row: Mapping[str, str]) -> ClusterShape:
    """Read the cluster from a measured row.

    Raises
    ------
    ConfigError
        If a cell cannot be understood.
    """
    return ClusterShape(
        n_nodes=int(row["nodes"]),
        rate_bits_per_s=parse_rate(row["rate"]),
        delay_s=float(row.get("delay_us") or 0) * 1e-6,
        n_racks=int(row.get("racks") or 1),
        trunk_bits_per_s=parse_rate(row.get("trunk") or "none"),
        slow=parse_slow(row.get("slow") or ""),
        queue_bytes=round(float(row.get("queue_kb") or 0) * 1024),
    )


def with_prediction(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add ``predicted_s`` and ``relative_error`` (or ``reason``) to a measured row."""
    text = {name: str(value) for name, value in row.items()}
    try:
        seconds = predicted_s(shape_of_row(text), job_of_row(text))
    except SimulatorError as error:
        return {**row, "reason": error.message}
    return {
        **row,
        "predicted_s": round(seconds, 7),
        "relative_error": round(seconds / float(text["median_s"]) - 1.0, 5),
    }
