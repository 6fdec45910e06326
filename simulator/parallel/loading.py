"""Reading the next batch beside the step: how long it takes, and where the ranks that need it wait for it.

Worker processes read ahead, so that only what exceeds the step is seen (``DataLoader`` with workers); without workers the
training process reads the batch itself and everything else waits. One rank of every replica reads on the first stage, and
one on the last, which needs the labels; tensor- and context-parallel ranks get theirs from it.

References
----------
Mohan et al., "Analyzing and mitigating data stalls in DNN training", VLDB 2021, arXiv:2007.06775: fetch stalls
(storage) and prep stalls (CPU), both hidden behind the step as far as they are shorter.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.parallel.mesh import Mesh
from simulator.plan import ParallelPlan
from simulator.program.op import HostWork
from simulator.program.program import HOST, LOADER, TaskList
from simulator.topology import Topology
from simulator.topology.storage import storage_s

#: token ids of so many words or more do not fit into 16 bits
WIDE_VOCABULARY = 65_500


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Reading of one step's batch."""

    duration_s: float
    has_workers: bool  #: Whether others than the training process read, one step ahead.

    def add(self, tasks: TaskList) -> None:
        """Append the reading of one step to a rank that has issued nothing yet."""
        if self.has_workers:
            tasks.add(HostWork(name="read the next batch", duration_s=self.duration_s, phase="data"), LOADER)
        else:
            tasks.add(HostWork(name="read the batch", duration_s=self.duration_s, phase="data"), HOST)


def readers_of(plan: ParallelPlan, gpus_per_node: int) -> list[int]:
    """Return the ranks that read: of every data-parallel replica the first on the first stage and on the last.

    Examples
    --------
    >>> readers_of(ParallelPlan(gpus=8, tp=2, pp=2, micro_batch=1).resolve(8), 8)
    [0, 2, 4, 6]
    """
    mesh = Mesh(plan, gpus_per_node)
    return [mesh.rank(replica=d * plan.cp, pp=p) for p in sorted({0, plan.pp - 1}) for d in range(plan.dp)]


def sample_bytes_of(spec: ModelSpec | RecordedModule, plan: ParallelPlan) -> float:
    """Bytes of one sequence in storage: as the plan says, else its token ids in 16 bits where the vocabulary allows.

    Of a recorded module, they are those of one row of its arguments.

    References
    ----------
    Megatron-LM, ``IndexedDataset``: token ids are 16-bit for vocabularies below 65,500 and 32-bit beyond.
    """
    n_tokens = plan.sequence_length or spec.max_positions
    if isinstance(spec, RecordedModule):
        return float(plan.sample_bytes or spec.sample_bytes(n_tokens))
    return float(plan.sample_bytes or n_tokens * (2 if spec.vocab < WIDE_VOCABULARY else 4))


def batch_bytes(plan: ParallelPlan, sample_bytes: float) -> float:
    """Return bytes that one step reads from storage, all ranks together."""
    return plan.global_batch * sample_bytes * len({0, plan.pp - 1})


def worker_s(plan: ParallelPlan, topology: Topology) -> float:
    """Return seconds that one worker would take for the batch of its rank: latency and processor time of each sample."""
    latency_s = topology.storage.latency_s if topology.storage is not None else 0.0
    return plan.global_batch // plan.dp * (latency_s + plan.sample_time_s)


def loading_of(plan: ParallelPlan, topology: Topology, sample_bytes: float) -> Loading | None:
    """Return how long the batch of a step takes to read; None where nothing says how fast.

    With workers, the slowest of three decides: the busiest node's link to storage, the file system, and the workers,
    each of which spends the latency of storage and ``sample_time_s`` on a sample. Without, they add up.

    Parameters
    ----------
    sample_bytes : float
        Of one sequence.
    """
    storage = topology.storage
    if storage is None and not plan.sample_time_s:
        return None
    n_samples = plan.global_batch // plan.dp
    transfer_s = 0.0
    if storage is not None:
        busiest = max(Counter(topology.host_of(rank) for rank in readers_of(plan, topology.gpus_per_node)).values())
        transfer_s = storage_s(
            storage,
            topology,
            node_bytes=busiest * n_samples * sample_bytes,
            total_bytes=batch_bytes(plan, sample_bytes),
        )
    alone_s = worker_s(plan, topology)
    if not plan.loader_workers:
        return Loading(duration_s=transfer_s + alone_s, has_workers=False)
    return Loading(duration_s=max(transfer_s, alone_s / plan.loader_workers), has_workers=True)
