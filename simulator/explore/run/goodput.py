"""Checkpoints and failures: how large a checkpoint is, when to write one, and how long an interrupted run takes.

Failures come at a constant rate (a Poisson process), also while a checkpoint is written and while the job restarts. A
failure loses everything since the last finished checkpoint; the job then needs an undisturbed restart before it goes on.

References
----------
Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. Daly, "A higher order estimate
of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3), 2006: equations 13
(the whole time), 20 and 37 (the interval). Rajbhandari et al., ZeRO, arXiv:1910.02054: bytes per parameter of weights and
optimizer states.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.errors import InfeasiblePlanError
from simulator.memory.estimate import state_bytes
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.parallel.mesh import Mesh
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan
from simulator.topology import Topology
from simulator.topology.operation_spec import StorageSpec, operation_defaults
from simulator.topology.storage import storage_s
from simulator.units import format_duration

#: mean times between failures that a stretch without checkpoint may last: beyond, it practically never ends
MOST_MTBFS = 50.0


def young_interval_s(write_s: float, mtbf_s: float) -> float:
    """Return Young's time between checkpoints, ``sqrt(2 write mtbf)``.

    Examples
    --------
    >>> young_interval_s(write_s=18.0, mtbf_s=10000.0)
    600.0
    """
    return math.sqrt(2.0 * write_s * mtbf_s)


def daly_interval_s(write_s: float, mtbf_s: float) -> float:
    """Return Daly's time of work between checkpoints, a higher-order form of Young's.

    Examples
    --------
    >>> round(daly_interval_s(write_s=18.0, mtbf_s=10000.0), 1)
    588.1
    """
    if write_s >= 2.0 * mtbf_s:
        return mtbf_s
    ratio = write_s / (2.0 * mtbf_s)
    return math.sqrt(2.0 * write_s * mtbf_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - write_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTime:
    """Expected seconds of a run, by what they are spent on."""

    useful_s: float  #: Iterations that count.
    checkpoint_s: float = 0.0  #: Writing checkpoints that were finished.
    lost_s: float = 0.0  #: Work, and begun checkpoints, that failures undid.
    restart_s: float = 0.0  #: From failures until the job runs again.
    n_failures: float = 0.0
    n_checkpoints: int = 0

    @property
    def total_s(self) -> float:
        """From start to end."""
        return self.useful_s + self.checkpoint_s + self.lost_s + self.restart_s


def expected_run(
    n_iterations: int,
    iteration_s: float,
    *,
    iterations_per_checkpoint: int,
    write_s: float,
    mtbf_s: float = math.inf,
    restart_s: float = 0.0,
    lag_s: float = 0.0,
    domain_share: float = 0.0,
    stored_every: int = 1,
    hardware_share: float = 0.0,
    shared_every: int = 1,
) -> RunTime:
    """Return the expected time of a run under failures, exactly for the process described above.

    A stretch of ``L`` seconds (work and the checkpoint behind it) takes ``M (exp(L / M) - 1)`` of computing and, for each
    of its ``exp(L / M) - 1`` failures, a restart of ``M (exp(R / M) - 1)``: together Daly's
    ``M exp(R / M) (exp(L / M) - 1)``. The run ends with a checkpoint. Where a checkpoint counts only a lag of ``D`` after it was
    taken, a failure finds ``exp(-D / M) / (exp(L / M) - 1)`` finished stretches behind it on average, so that ``exp(D / M)`` as many
    failures come. Where a share of the failures takes what checkpoints lie on, the run goes back to the last one that lies
    further away: see :func:`failed_stretches`. A run that would practically never end is refused.

    Parameters
    ----------
    write_s : float
        Time that training stands still for one checkpoint.
    mtbf_s : float
        Mean time between failures of the whole job; infinite for none.
    restart_s : float
        From a failure to the first iteration after it.
    lag_s : float
        From the moment that a checkpoint is taken until it counts.
    domain_share, stored_every
        Share of the failures that go back to storage, and checkpoints of which one is there.
    hardware_share, shared_every
        Share of the other failures that take a node with its drives, and checkpoints of which one lies beyond it.
    """
    full, rest = divmod(n_iterations, iterations_per_checkpoint)
    n_checkpoints = full + bool(rest)
    useful_s, checkpoint_s = n_iterations * iteration_s, n_checkpoints * write_s
    if math.isinf(mtbf_s):
        return RunTime(useful_s=useful_s, checkpoint_s=checkpoint_s, n_checkpoints=n_checkpoints)
    _check_that_it_ends((iterations_per_checkpoint if full else rest) * iteration_s + write_s, restart_s, mtbf_s)
    each, last = (
        math.expm1((n * iteration_s + write_s) / mtbf_s) if n else 0.0
        for n in (full and iterations_per_checkpoint, rest)
    )
    back = _share_going_back(domain_share, restart_s / mtbf_s)
    beyond_node = domain_share + (1.0 - domain_share) * hardware_share if shared_every > 1 else domain_share
    back_shared = _share_going_back(beyond_node, restart_s / mtbf_s) - back
    n_groups, n_beyond = divmod(full, stored_every)
    n_failed = n_groups * failed_stretches([each] * stored_every, back, back_shared, shared_every)
    n_failed += failed_stretches([each] * n_beyond + [last] * bool(rest), back, back_shared, shared_every)
    running_s = mtbf_s * n_failed * math.exp(lag_s / mtbf_s)
    restarting_s = running_s * math.expm1(restart_s / mtbf_s)
    return RunTime(
        useful_s=useful_s, checkpoint_s=checkpoint_s, lost_s=max(0.0, running_s - useful_s - checkpoint_s),
        restart_s=restarting_s, n_failures=(running_s + restarting_s) / mtbf_s, n_checkpoints=n_checkpoints,
    )  # fmt: skip


def _check_that_it_ends(longest_s: float, restart_s: float, mtbf_s: float) -> None:
    for what, seconds, way_out in (
        ("the time between two checkpoints", longest_s, "write checkpoints more often: --checkpoint-interval"),
        ("a restart", restart_s, "a shorter --restart-time"),
    ):
        if seconds > MOST_MTBFS * mtbf_s:
            raise InfeasiblePlanError(
                f"the run would never end: {what}, {format_duration(seconds)}, is {seconds / mtbf_s:,.0f} times the mean "
                f"time between failures of the job, {format_duration(mtbf_s)}",
                hint=f"{way_out}, or fewer GPUs",
            )


def failed_stretches(odds: Sequence[float], back: float, back_shared: float = 0.0, shared_every: int = 1) -> float:
    """Return the expected number of failed stretches from one checkpoint in storage to the next.

    A stretch fails ``e = exp(L / M) - 1`` times on average before it succeeds. A share ``b`` of its failures repeats all
    before it, ``F(j + 1) = F(j) + e (1 + b F(j))``, of ``k`` equal ones ``((1 + b e)^k - 1) / b``; another share repeats what came
    since the last checkpoint beyond its node, ``F(j) - F(i)``.

    Parameters
    ----------
    odds : sequence of float
        ``e`` of each stretch.
    back : float
        Share of the failed stretches after which the run goes back to storage.
    back_shared, shared_every
        Share after which it goes back to a checkpoint beyond its node, and checkpoints of which one lies there.

    Examples
    --------
    >>> failed_stretches([0.5, 0.5], 0.0), failed_stretches([0.5, 0.5], 1.0)
    (1.0, 1.25)
    """
    n_failed = n_shared = 0.0
    for number, one in enumerate(odds):
        if number % shared_every == 0:
            n_shared = n_failed
        n_failed += one * (1.0 + back * n_failed + back_shared * (n_failed - n_shared))
    return n_failed


def _share_going_back(domain_share: float, restarts: float) -> float:
    """Return the share of failed stretches in which a failure of a whole domain comes before training resumes.

    A restart that lasts so many mean times between failures is disturbed with ``q = 1 - exp(-restarts)``, again and again; none of
    the failures is one of them with ``(1 - d) (1 - q) / (1 - (1 - d) q)``, which leaves ``d / (d + (1 - d) (1 - q))``.
    """
    return domain_share / (domain_share + (1.0 - domain_share) * math.exp(-restarts)) if domain_share else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One checkpoint."""

    n_bytes: int  #: Parameters and optimizer states, each once; of adapters alone beside weights that are frozen.
    n_writers: int  #: Ranks that write: one copy of the model, or a whole sharding group.
    write_s: float
    read_s: float  #: With the frozen weights, which a job reads beside it.
    source: str  #: Where the rate of storage comes from.
    base_s: float = 0.0  #: Of that, what frozen weights take wherever the checkpoint is.


#: of a frozen weight as models are published
_FROZEN_BYTES = 2


def checkpoint_of(
    plan: ParallelPlan, topology: Topology, n_parameters: int, n_matrix_parameters: int = 0, n_frozen: int = 0
) -> Checkpoint:
    """Return the checkpoint of a plan: all its writers at once, each node at its rate, all at that of the file system.

    Parameters
    ----------
    n_matrix_parameters : int
        Of the parameters, those in matrices of blocks, of which Muon keeps less.
    n_frozen : int
        Weights beside them that are read when the job starts again, and never written.
    """
    state = state_bytes(plan)
    n_bytes = n_parameters * state.parameter + state.optimizer_bytes(n_parameters, n_matrix_parameters)
    writers = writers_of(plan, topology.gpus_per_node)
    busiest = max(Counter(topology.host_of(rank) for rank in writers).values())
    storage, source = _storage(topology)

    def takes_s(n_bytes: int, *, writes: bool) -> float:
        return storage_s(
            storage, topology, node_bytes=n_bytes * busiest / len(writers), total_bytes=n_bytes, writes=writes
        )

    base_s = takes_s(n_frozen * _FROZEN_BYTES, writes=False)
    return Checkpoint(
        n_bytes=n_bytes, n_writers=len(writers), write_s=storage.latency_s + takes_s(n_bytes, writes=True),
        read_s=storage.latency_s + takes_s(n_bytes, writes=False) + base_s, source=source, base_s=base_s,
    )  # fmt: skip


def checkpoint_of_job(plan: ParallelPlan, topology: Topology, spec: ModelSpec | RecordedModule) -> Checkpoint:
    """Return the checkpoint of a plan of a model. Beside frozen weights, which do not change, it has the adapters alone.

    References
    ----------
    Adapters alone: NVIDIA-NeMo/Megatron-Bridge, ``peft/base.py``, ``adapter_key_filter``; huggingface/peft,
    ``PeftModel.save_pretrained``.
    """
    if not plan.lora_rank:
        return checkpoint_of(plan, topology, spec.n_parameters, spec.n_matrix_parameters)
    layers = model_for(spec, replace(plan, tp=1, cp=1, ep=1, etp=None, sequence_parallel=False)).layers
    matrices = sum(layer.matrix_elements.n for layer in layers)
    trained = sum(layer.n_trained_parameters for layer in layers)
    return checkpoint_of(plan, topology, trained, matrices, n_frozen=spec.n_parameters)


def writers_of(plan: ParallelPlan, gpus_per_node: int) -> list[int]:
    """Return the ranks that hold the model and its optimizer states once: a replica, or a group that shards them."""
    mesh = Mesh(plan, gpus_per_node)
    replicas = range(plan.state_ranks(mesh.sharding_group))
    return [mesh.rank(tp=t, replica=r, pp=p) for p in range(plan.pp) for r in replicas for t in range(plan.tp)]


def local_s(checkpoint: Checkpoint, writers: Sequence[int], topology: Topology) -> float:
    """Return how long the busiest node takes to write its part of a checkpoint to its own drives, or to read it."""
    said = topology.storage.local_bandwidth_bytes_per_s if topology.storage is not None else None
    rate = said or operation_defaults().storage.local_bandwidth_bytes_per_s
    assert rate is not None, "the defaults say it"
    busiest = max(Counter(topology.host_of(rank) for rank in writers).values())
    return checkpoint.n_bytes * busiest / len(writers) / rate


def _storage(topology: Topology) -> tuple[StorageSpec, str]:
    if topology.storage is not None:
        return topology.storage, f"cluster file: {topology.storage.source or 'no source given'}"
    defaults = operation_defaults().storage
    return defaults, defaults.source
