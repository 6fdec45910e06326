"""Real jobs as Programs: the plan of each, lowered as every plan is, then what its framework does otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from simulator.errors import ConfigError
from simulator.models.layer import CommunicationPoint, GemmShape, KernelShape, Layer, LayerItem
from simulator.parallel.lower import lower
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, KernelRun, Transfer
from simulator.program.program import COMPUTE, Block, Program, RankProgram, Task
from validation.jobs.model import GptSize
from validation.jobs.recorded import record
from validation.jobs.settings import Settings, check_ranks

#: job -> why its prediction is shown but not judged
NOT_JUDGED = {
    "fsdp2": "on CPUs fully_shard waits for every gather and scatter where it issues it: reported, not judged",
}
_GLOO_THREADS = 2
_PLANS: dict[str, dict[str, object]] = {
    "single": {},
    "ddp": {},
    "zero1": {"sharding": "zero1"},
    "fsdp2": {"sharding": "zero3", "framework": "torchtitan", "overlap": False},
    "tp": {},
    "pp": {},
}
#: products of a block in the order in which they run, whose ends tensor parallelism reduces: after the output
#: projections; behind the input gradients of up, value, key and query, each of which enters the region by itself
_REDUCED_FORWARD, _REDUCED_BACKWARD = (3, 5), (1, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgram:
    """A real job, ready to simulate.

    Parameters
    ----------
    program : Program
        Every rank written down.
    n_tensors, n_elements : tuple of int
        Parameter tensors and elements that each rank's optimizer updates.
    """

    program: Program
    n_tensors: tuple[int, ...]
    n_elements: tuple[int, ...]

    def kernels(self, rank: int) -> list[KernelShape]:
        """All kernels of a rank's forward and backward passes in a step."""
        return [
            kernel.shape
            for op in ops_of(self.program.ranks[rank].tasks)
            for kernel in (op.kernels if isinstance(op, KernelRun) else [op] if isinstance(op, Kernel) else [])
            if kernel.shape is not None and kernel.phase != "optimizer"
        ]

    def messages(self, rank: int = 0) -> dict[tuple[str, int], int]:
        """Communication of a rank in a step: how often, by kind (``p2p`` between stages) and bytes."""
        counts: dict[tuple[str, int], int] = {}
        for op in ops_of(self.program.ranks[rank].tasks):
            if isinstance(op, Collective | Transfer):
                key = (op.collective if isinstance(op, Collective) else "p2p", op.n_bytes)
                counts[key] = counts.get(key, 0) + 1
        return counts


def ops_of(tasks: Iterable[Task]) -> Iterator[object]:
    """Operations of tasks, those inside blocks included."""
    for task in tasks:
        if isinstance(task.op, Block):
            yield from ops_of(task.op.tasks)
        else:
            yield task.op


def settings_of(settings: Settings, job: str, n_ranks: int) -> Settings:
    """Return the settings under which a job is compared; a pipeline runs as many micro-batches as it has stages."""
    return replace(settings, job=job, n_micro_batches=n_ranks if job == "pp" else 1)


def job_program(settings: Settings, size: GptSize, n_ranks: int) -> JobProgram:
    """Write down one step of a job.

    Raises
    ------
    SimulatorError
        If it cannot run on so many ranks or is not predicted; says why.
    """
    job = settings.job
    check_ranks(settings, n_ranks, size.layers, size.heads)
    if job == "pp" and size.layers % n_ranks:
        raise ConfigError(
            f"{size.layers} layers over {n_ranks} stages are cut unevenly, which is not predicted",
            hint=f"--layers with a multiple of {n_ranks}",
        )
    model = record(size, settings.micro_batch, n_shards=n_ranks if job == "tp" else 1, tied=job != "pp")
    if job == "tp":
        blocks = {id(layer): _with_reductions(layer, size, settings) for layer in model.layers if layer.name == "block"}
        model = replace(model, layers=tuple(blocks.get(id(layer), layer) for layer in model.layers))
    plan = plan_of(settings, n_ranks)
    boundary = settings.micro_batch * size.seq_len * size.hidden * 4
    lowered = lower(model, plan, gpus_per_node=1, boundary_bytes=boundary, unfold=True)
    ranks = [_as_run(one) for one in lowered.program.ranks]
    if job == "zero1":
        owned = owned_parameters([p.n_elements for layer in model.layers for p in layer.parameters], n_ranks)
        ranks = [_with_broadcasts(one, owned) for one in ranks]
        n_tensors = [len(one) for one in owned]
    else:
        held = [[layer for chunk in chunks for layer in chunk] for chunks in lowered.chunks]
        tensors = [sum(len(layer.parameters) for layer in layers) for layers in held]
        n_tensors = tensors if job == "pp" else tensors * n_ranks
    return JobProgram(
        program=replace(lowered.program, ranks=tuple(ranks)),
        n_tensors=tuple(n_tensors),
        n_elements=tuple(_optimizer_elements(one) for one in ranks),
    )


def plan_of(settings: Settings, n_ranks: int) -> ParallelPlan:
    """Return the plan of a training job as its framework runs it.

    References
    ----------
    PyTorch: ``torch/distributed/pipelining/schedules.py`` waits for every message of 1F1B, and only at the end of the
    passes of one direction for those of GPipe; ``torch/distributed/fsdp/_fully_shard``.
    """
    job = settings.job
    n_stages = n_ranks if job == "pp" else 1
    fields: dict[str, object] = {"framework": "hf-eager", "precision": "fp32", "micro_batch": settings.micro_batch}
    fields |= _PLANS[job]
    if job == "pp":
        fields |= {"pp": n_ranks, "schedule": settings.schedule, "overlap_p2p": settings.schedule == "gpipe"}
    if job == "tp":
        fields["tp"] = n_ranks
    n_replicas = n_ranks // n_stages if job != "tp" else 1
    fields |= {"dp": n_replicas, "global_batch": settings.micro_batch * settings.n_micro_batches * n_replicas}
    return ParallelPlan(**fields).resolve(n_ranks)  # type: ignore[arg-type]


def owned_parameters(n_elements: Sequence[int], n_ranks: int) -> list[list[int]]:
    """Give each parameter, largest first, to the rank that owns least, as ZeroRedundancyOptimizer does.

    Returns
    -------
    list of list of int
        Elements of every parameter by rank.

    Examples
    --------
    >>> owned_parameters([1, 4, 2, 2], 2)
    [[4, 1], [2, 2]]
    """
    owned: list[list[int]] = [[] for _ in range(n_ranks)]
    for count in sorted(n_elements, reverse=True):
        min(owned, key=sum).append(count)
    return owned


def _with_reductions(layer: Layer, size: GptSize, settings: Settings) -> Layer:
    """Mark where DTensor reduces inside a block."""
    n_bytes = settings.micro_batch * size.seq_len * size.hidden * 4

    def mark(
        items: Sequence[LayerItem], kernel_pass: str, where: Sequence[int], point: CommunicationPoint
    ) -> list[LayerItem]:
        found: list[LayerItem] = []
        seen = 0
        for item in items:
            found.append(item)
            if isinstance(item, GemmShape) and item.kernel_pass == kernel_pass:
                if seen in where:
                    found.append(point)
                seen += 1
        return found

    forward = CommunicationPoint(operator="g", n_bytes=n_bytes)
    backward = CommunicationPoint(operator="f", n_bytes=n_bytes, kernel_pass="backward")
    return replace(
        layer,
        forward=tuple(mark(layer.forward, "forward", _REDUCED_FORWARD, forward)),
        backward=tuple(mark(layer.backward, "dgrad", _REDUCED_BACKWARD, backward)),
    )


def _as_run(rank: RankProgram) -> RankProgram:
    """Leave out what these jobs do not do: gradients are not clipped, so their norm is neither computed nor summed."""

    def without(task: Task) -> Task:
        op = task.op
        if isinstance(op, KernelRun) and op.phase == "optimizer":
            return task._replace(op=replace(op, kernels=tuple(k for k in op.kernels if k.name != "clip_grad_norm")))
        if isinstance(op, Collective) and op.axis == "model":
            return task._replace(op=Kernel(name="no norm", phase="optimizer", duration_s=0.0), stream=COMPUTE, key=None)
        return task

    return replace(rank, tasks=tuple(without(task) for task in rank.tasks))


def _with_broadcasts(rank: RankProgram, owned: Sequence[Sequence[int]]) -> RankProgram:
    """Every owner broadcasts its parameters one by one, which gloo's threads take in turns.

    References
    ----------
    PyTorch, ``torch/distributed/optim/zero_redundancy_optimizer.py``, ``_sync_params``.
    """
    *tasks, gather = rank.tasks
    n_ranks = len(owned)
    number = 0
    for owner, parameters in enumerate(owned):
        group = (owner, *(other for other in range(n_ranks) if other != owner))
        for n_elements in parameters:
            op = Collective(
                collective="broadcast", axis="shard", n_bytes=4 * n_elements, groups=(group,), phase="optimizer",
                name="broadcast",
            )  # fmt: skip
            stream = f"broadcast {number % _GLOO_THREADS}"
            tasks.append(Task(op, stream, gather.after, ("broadcast", number)))
            number += 1
    return replace(rank, tasks=tuple(tasks))


def _optimizer_elements(rank: RankProgram) -> int:
    runs = [op for op in ops_of(rank.tasks) if isinstance(op, KernelRun) and op.phase == "optimizer"]
    return max(getattr(k.shape, "n_elements", 0) for run in runs for k in run.kernels)
