"""How checkpoints are taken: while training waits, behind its back, in the memory of other nodes, or in tiers.

What is written behind training's back takes links from the steps that it overlaps; both are played on one network
(:mod:`simulator.explore.run.overlapped`). Training then stands still only while states are copied to the host, and a checkpoint counts
once it has arrived.

References
----------
Mohan et al., "CheckFreq", FAST 2021: snapshot, then persist beside the steps. Wang et al., "GEMINI", SOSP 2023: checkpoints
in the host memory of peers, storage behind them. Moody et al., "Design, Modeling, and Evaluation of a Scalable Multi-level
Checkpointing System" (SCR), SC 2010: local drives for what leaves the node alive, peers, storage. Jiang et al., "MegaScale",
NSDI 2024: two stages, the second of them hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulator.answer import Result
from simulator.collectives import plan_transfer
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.run.goodput import Checkpoint, checkpoint_of_job, local_s, writers_of
from simulator.explore.run.overlapped import overlap
from simulator.kernels.host import COPY_LATENCY_S, copy_bytes_per_s
from simulator.network.base import Flow
from simulator.topology import Topology

POLICIES = ("sync", "async", "peers", "tiers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a way to take checkpoints costs."""

    name: str = "sync"
    checkpoint: (
        Checkpoint  #: Whose ``write_s`` is what training loses to one, and ``read_s`` from where a failure resumes.
    )
    lag_s: float = 0.0  #: From the moment that it is taken until it counts.
    storage: Checkpoint  #: The same in storage, to which a failure of peers goes back.
    shared: Checkpoint | None = (
        None  #: In tiers, the same in the memory of peers, to which the loss of a node goes back.
    )

    @property
    def stays_in_memory(self) -> bool:
        """Whether most checkpoints go to memory, from which fewer are written to storage."""
        return self.name in ("peers", "tiers")


def check_policy(name: str) -> str:
    """Return a policy's name if there is one."""
    if name not in POLICIES:
        raise ConfigError(f"--checkpoint-policy {name}: unknown", hint=f"one of {', '.join(POLICIES)}")
    return name


def synchronous(checkpoint: Checkpoint) -> Policy:
    """Return the policy under which training waits for storage."""
    return Policy(checkpoint=checkpoint, storage=checkpoint)


def policy_of(name: str, result: Result, stored: Checkpoint | None = None) -> Policy:
    """Work out what a policy costs an answer's job.

    Parameters
    ----------
    stored : Checkpoint, optional
        The job's checkpoint in storage where that is slower than alone: other jobs write there, too.
    """
    topology, plan = result.topology, result.plan
    stored = stored or checkpoint_of_job(plan, topology, result.spec)
    if name == "sync":
        return synchronous(stored)
    writers = writers_of(plan, topology.gpus_per_node)
    each_bytes = stored.n_bytes / len(writers)
    snapshot_s = COPY_LATENCY_S + each_bytes / copy_bytes_per_s(topology.device(0), to_host=True)
    written = overlap(result, storage_flow(writers, stored, topology))
    behind = replace(stored, write_s=snapshot_s + written.delay_s)
    if name == "async":
        return Policy(name=name, checkpoint=behind, lag_s=snapshot_s + written.traffic_beside_s, storage=behind)
    if topology.n_hosts == 1:
        raise InfeasiblePlanError(
            f"--checkpoint-policy {name}: the job has one node, and its memory goes with it",
            hint="async, or more nodes",
        )
    pairs = tuple((rank, (rank + topology.gpus_per_host) % topology.n_gpus) for rank in writers)
    sent = overlap(
        result, plan_transfer(round(each_bytes), pairs, topology, transport=result.scenario.transport or None)
    )
    held = replace(
        stored,
        write_s=snapshot_s + sent.delay_s,
        read_s=sent.traffic_s + stored.base_s,
        source="memory of the next node",
    )
    lag_s = snapshot_s + sent.traffic_beside_s
    if name == "peers":
        return Policy(name=name, checkpoint=held, lag_s=lag_s, storage=behind)
    # states are copied to the host once, and go from there to drives, peers and storage
    drives_s = local_s(stored, writers, topology)
    local = replace(
        stored,
        write_s=snapshot_s,
        read_s=drives_s + stored.base_s,
        source="drives of each node, peers and storage behind them",
    )
    return Policy(
        name=name, checkpoint=local, lag_s=max(lag_s, snapshot_s + drives_s),
        storage=replace(behind, write_s=written.delay_s), shared=replace(held, write_s=sent.delay_s),
    )  # fmt: skip


def storage_flow(writers: Sequence[int], checkpoint: Checkpoint, topology: Topology) -> Flow:
    """Return the flow of a checkpoint: out of every writer's node over its NICs, at the rate of storage at most."""
    loads = np.zeros(len(topology.links))
    arrays = topology.arrays
    per_node = topology.gpus_per_node
    for rank in writers:
        node = topology.node_of(rank)
        if topology.n_nodes > 1:
            other_node = (node + 1) % max(2, topology.n_gpus // per_node)  # of those with all GPUs, if there are two
            other = min(other_node * per_node + rank % per_node, topology.n_gpus - 1)  # same rail: out of its own NIC
            for index, share in topology.route(rank, other):
                if arrays.source[index] in topology.layout.vertices_of(node):
                    loads[index] += share / len(writers)
    links = np.flatnonzero(loads)
    return Flow(
        latency_s=0.0, n_bytes=float(checkpoint.n_bytes), links=tuple(links.tolist()), weights=tuple(loads[links].tolist()),
        rate_cap_bytes_per_s=checkpoint.n_bytes / checkpoint.write_s, label="checkpoint",
    )  # fmt: skip
