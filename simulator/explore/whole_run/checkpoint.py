"""How large a checkpoint is and how long it takes over the storage link.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054: bytes per parameter of weights and optimizer states.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from simulator.explore.whole_run.defaults import operation_defaults
from simulator.memory.estimate import state_bytes
from simulator.parallel.gradients import gradient_bytes
from simulator.parallel.mesh import Mesh
from simulator.plan import ParallelPlan
from simulator.topology import Topology
from simulator.topology.operation_spec import StorageSpec
from simulator.topology.storage import storage_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint.

    Parameters
    ----------
    n_bytes : int
        Parameters and optimizer states, each once.
    n_writers : int
        Ranks that write: one copy of the model, or a whole sharding group.
    write_s, read_s : float
    source : str
        Where the rate of storage comes from.
    """

    n_bytes: int
    n_writers: int
    write_s: float
    read_s: float
    source: str


def checkpoint_of(plan: ParallelPlan, topology: Topology, n_parameters: int) -> Checkpoint:
    """Return the checkpoint of a plan: all its writers at once, each node at its rate, all at that of the file system.

    Parameters
    ----------
    plan : ParallelPlan
        Resolved.
    topology : Topology
    n_parameters : int
        Of the whole model.
    """
    state = state_bytes(plan, gradient_bytes(plan))
    n_bytes = n_parameters * (state.parameter + state.optimizer)
    writers = writers_of(plan, topology.gpus_per_node)
    busiest = max(Counter(topology.node_of(rank) for rank in writers).values())
    storage, source = _storage(topology)
    seconds = {
        writes: storage.latency_s
        + storage_s(storage, topology, node_bytes=n_bytes * busiest / len(writers), total_bytes=n_bytes, writes=writes)
        for writes in (True, False)
    }
    return Checkpoint(
        n_bytes=n_bytes, n_writers=len(writers), write_s=seconds[True], read_s=seconds[False], source=source
    )


def writers_of(plan: ParallelPlan, gpus_per_node: int) -> list[int]:
    """Return the ranks that hold the model and its optimizer states once: a replica, or a group that shards them."""
    mesh = Mesh(plan, gpus_per_node)
    replicas = range(mesh.sharding_group)
    return [mesh.rank(tp=t, replica=r, pp=p) for p in range(plan.pp) for r in replicas for t in range(plan.tp)]


def _storage(topology: Topology) -> tuple[StorageSpec, str]:
    if topology.storage is not None:
        return topology.storage, f"cluster file: {topology.storage.source or 'no source given'}"
    defaults = operation_defaults().storage
    return defaults, defaults.source
