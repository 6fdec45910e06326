"""Predicts emulated jobs: the same job as a Program, run by the engine on an ``emulated`` topology with gloo.

The processors of the one machine under all hosts are a link, too, shared like every other: they set the pace
when hosts times rate exceeds about 8 Gbit/s.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from simulator.analysis.side_by_side import excess
from simulator.collectives import plan_collective, plan_transfer
from simulator.config import load_yaml
from simulator.engine import Costs, run
from simulator.engine.period_watch import PeriodWatch
from simulator.engine.together import run_together
from simulator.errors import SimulatorError
from simulator.network.base import Flow
from simulator.network.chunk import ChunkNetwork
from simulator.network.flow import FlowNetwork
from simulator.program.op import Collective, Kernel, Transfer
from simulator.program.program import Program
from simulator.topology.cluster_file import load_topology
from simulator.topology.graph import Topology
from simulator.units import to_ps, to_s
from validation.emulation.cluster_shape import ClusterShape, goodput_bytes_per_s, parse_rate, parse_slow
from validation.emulation.job import FLOAT_BYTES, SENDS_FIRST, Job, job_of_row
from validation.emulation.programs import TIMED, placed_program, program_of

_BASE = "emulated-1g"
#: a veth pair moves memory: the processors are the limit long before this
_UNSHAPED_BITS_PER_S = 100e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """What costs time beside sleeping and the shaped links."""

    layer_s: float  #: Of one pass of a timed layer under autograd.
    spend_s: float  #: Of one plain sleep.
    unit_s: float  #: Of the hooks around one pass of a unit of ``fully_shard`` when every rank has a processor.
    copy_s_per_byte: float  #: Of copying a gradient when every rank has a processor.
    fresh_s_per_byte: float  #: Of copying to or from memory that was just allocated.
    processors: int  #: How many ranks can copy at once.
    #: Payload that all processors together push through the network stack, with and without shapers.
    shaped_bytes_per_s: float
    unshaped_bytes_per_s: float

    def copy_s(self, n_bytes: int, n_ranks: int) -> float:
        """Time of a copy that all ranks do at the same time."""
        return n_bytes * self.copy_s_per_byte * self.crowding(n_ranks)

    def crowding(self, n_ranks: int) -> float:
        """How many ranks take turns on a processor."""
        return max(1.0, n_ranks / self.processors)

    def fresh_s(self, n_bytes: int, n_ranks: int) -> float:
        """Time of a copy to or from new memory that all ranks do at the same time."""
        return n_bytes * self.fresh_s_per_byte * self.crowding(n_ranks)


@lru_cache(maxsize=1)
def shipped_overheads() -> Overheads:
    """Overheads of the shipped constants file."""
    data, _ = load_yaml(str(files("validation.emulation") / "constants.yaml"))
    return Overheads(
        layer_s=data["layer_us"] * 1e-6,
        spend_s=data["spend_us"] * 1e-6,
        unit_s=data["unit_us"] * 1e-6,
        copy_s_per_byte=data["copy_ns_per_byte"] * 1e-9,
        fresh_s_per_byte=data["fresh_ns_per_byte"] * 1e-9,
        processors=data["processors"],
        shaped_bytes_per_s=float(data["shaped_bytes_per_s"]),
        unshaped_bytes_per_s=float(data["unshaped_bytes_per_s"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Processors:
    """The processors of the machine as one more link, which all traffic crosses."""

    bandwidth_bytes_per_s: float


class _Links:
    """Links of a topology and, behind them, the processors."""

    def __init__(self, topology: Topology, processors: _Processors) -> None:
        self.links = (*topology.links, processors)


class _Costs(Costs):
    """Layers that take as long as the job says, overheads included, copies at the machine's rate; compute sleeps."""

    def __init__(self, job: Job, ranks: Mapping[int, int], topology: Topology, limits: Overheads) -> None:
        self._job = job
        self._places = ranks
        self._topology = topology
        self._limits = limits
        self._n_links = len(topology.links)
        self._sends = {link.index for link in topology.links if link.kind == "nic" and ".nic" in link.source}
        self._flows: dict[tuple[object, ...], Flow] = {}

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """A pass of a timed layer, or a copy; nothing else takes time here: no optimizer runs."""
        shape = kernel.shape
        assert shape is not None
        if shape.name == TIMED:
            return to_ps(self._pass_s(kernel.phase, rank))
        if shape.name != "copy":
            return 0
        n_bytes = FLOAT_BYTES * getattr(shape, "n_elements", 0)
        copy_s = self._limits.copy_s if self._job.name == "ddp" else self._limits.fresh_s
        return to_ps(copy_s(n_bytes, self._n_ranks))

    @property
    def _n_ranks(self) -> int:
        return len(set(self._places.values()))

    def _pass_s(self, phase: str, rank: int) -> float:
        job, limits = self._job, self._limits
        straggler = job.straggler
        factor = straggler[1] if straggler and straggler[0] == self._places[rank] else 1.0
        around_s = limits.layer_s if job.name in ("ddp", "fsdp2") else limits.spend_s
        if job.name == "fsdp2":
            around_s += limits.unit_s * limits.crowding(self._n_ranks)
        if phase == "forward":
            return job.forward_s * factor + around_s
        if job.name in ("zero1", "zero3"):  # gloo copies what it scatters in the thread that computes
            around_s += limits.fresh_s(job.layer_bytes, self._n_ranks)
        return job.backward_s * factor + around_s

    def kind(self, rank: int) -> Hashable:
        """All ranks are alike but the straggler."""
        return self._job.straggler is not None and self._job.straggler[0] == self._places[rank]

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
        flow = plan_collective(op.collective, op.n_bytes, op.groups, self._topology)
        if self._job.name in SENDS_FIRST and not self._job.turn_s:  # at best all begin at once, and none waits
            flow = replace(flow, rate_cap_bytes_per_s=math.inf)
        if op.collective != "all_gather":
            return flow
        # gloo gathers into memory of its own and copies from there
        return replace(flow, latency_s=flow.latency_s + self._limits.fresh_s(op.n_bytes, self._n_ranks))

    def _crossing_processors(self, flow: Flow) -> Flow:
        sent = sum(weight for link, weight in zip(flow.links, flow.weights, strict=True) if link in self._sends)
        if not sent:
            return flow
        return replace(flow, links=(*flow.links, self._n_links), weights=(*flow.weights, sent), alone_bytes_per_s=0.0)


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


@lru_cache(maxsize=1024)  # a pair of jobs takes seconds, and is measured more than once
def predicted_s(shape: ClusterShape, job: Job, overheads: Overheads | None = None) -> float:
    """Predict how long one repetition of a job takes."""
    topology = topology_of(shape, job.procs_per_node)
    limits = overheads or shipped_overheads()
    shaped = shape.rate_bits_per_s is not None
    links = _Links(
        topology,
        _Processors(bandwidth_bytes_per_s=limits.shaped_bytes_per_s if shaped else limits.unshaped_bytes_per_s),
    )
    world = shape.n_nodes * job.procs_per_node
    if job.beside is not None:
        return _beside_s(shape, job, topology, links, limits)
    program = program_of(job, world, shape.n_racks)
    ranks = [job.ranks_of_job(index, world, shape.n_racks) for index in range(job.n_jobs)]
    places = {rank: place for one in ranks for place, rank in enumerate(one)}
    timeline = run(program, _Costs(job, places, topology, limits), lambda: FlowNetwork(links))
    # the first rank receives from all others, and does so without a pause from when the second has begun
    early_s = job.turn_s * (len(ranks[0]) - 2) if job.name == "all_to_all" else 0.0
    return to_s(timeline.makespan_ps) - early_s


def _beside_s(shape: ClusterShape, job: Job, topology: Topology, links: _Links, limits: Overheads) -> float:
    """Predict the mean step of a job beside another; both begin at once and go on at their own pace.

    Message by message: a pipeline loads one direction of a trunk at a time, and the two directions of an all-reduce drift apart.
    """
    assert job.beside is not None
    world = shape.n_nodes * job.procs_per_node
    jobs: list[tuple[Program, Costs]] = []
    for index, one in enumerate((job, job.beside)):
        ranks = job.ranks_of_job(index, world, shape.n_racks)
        plain = replace(one, beside=None, n_jobs=1)
        places = {rank: place for place, rank in enumerate(ranks)}
        jobs.append((placed_program(plain, ranks), _Costs(plain, places, topology, limits)))

    def network() -> ChunkNetwork:
        return ChunkNetwork(links)

    alone_s = [to_s(run(*one, network).makespan_ps) for one in jobs]
    watch = PeriodWatch(alone_s)
    found = run_together(jobs, network, starts_ps=(0, 0), shared=frozenset(range(len(links.links))), is_enough=watch)
    return watch.means_s(found)[0]


def shape_of_row(row: Mapping[str, str]) -> ClusterShape:
    """Read the cluster from a measured row."""
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
        "relative_error": round(excess(seconds, float(text["median_s"])), 5),
    }
