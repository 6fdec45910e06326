"""Real jobs as programs: models recorded from their torch modules, and a plan for each job, lowered as every plan is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from simulator.errors import ConfigError
from simulator.models.layer import CommunicationPoint, GemmShape, KernelShape, Layer, LayerItem, Model
from simulator.models.torch_module import record_module
from simulator.parallel.lower import lower
from simulator.parallel.replicated import owned_tensors
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, KernelRun, Transfer
from simulator.program.program import Block, Program, RankProgram, Task
from validation.jobs.job_settings import Settings, check_ranks
from validation.jobs.model import GptSize, build_gpt, loss_of

#: job -> why its prediction is shown but not judged
NOT_JUDGED = {
    "fsdp2": "on CPUs fully_shard waits for every gather and scatter where it issues it: reported, not judged"
}
#: threads of a gloo process group, each of which runs a collective
_GLOO_THREADS = 2
#: job -> what its plan says beside the batch
_PLANS: dict[str, dict[str, object]] = {
    "single": {"framework": "torch-ddp"},
    "ddp": {"framework": "torch-ddp"},
    "zero1": {"framework": "torch-ddp", "sharding": "zero1"},
    "fsdp2": {"framework": "torch-fsdp2", "sharding": "zero3", "overlap": False},
    "tp": {"framework": "torch-tp"},
    "pp": {"framework": "torch-pp"},
}
#: products of a block in the order in which they run, whose ends tensor parallelism reduces: after the output
#: projections; behind the input gradients of up, value, key and query, each of which enters the region by itself
_REDUCED_FORWARD, _REDUCED_BACKWARD = (3, 5), (1, 3, 4, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgram:
    """A real job, ready to simulate."""

    program: Program  #: Every rank written down.
    #: Parameter tensors and elements that each rank's optimizer updates.
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
    """Write down one step of a job."""
    job = settings.job
    check_ranks(settings, n_ranks, size.layers, size.heads)
    if job == "pp" and size.layers % n_ranks:
        raise ConfigError(
            f"{size.layers} layers over {n_ranks} stages are cut unevenly, which is not predicted",
            hint=f"--layers with a multiple of {n_ranks}",
        )
    model = record(size, settings.micro_batch, n_shards=n_ranks if job == "tp" else 1, tied=job != "pp")
    if job == "tp":
        blocks = {id(layer): _with_reductions(layer, size, settings) for layer in model.layers if layer.is_block}
        model = replace(model, layers=tuple(blocks.get(id(layer), layer) for layer in model.layers))
    lowered = lower(
        model, plan_of(settings, n_ranks), gpus_per_node=1, unfold=True, collectives_at_once=_GLOO_THREADS,
        on_processors=True, boundary_bytes=settings.micro_batch * size.seq_len * size.hidden * 4,
    )  # fmt: skip
    if job == "zero1":
        owned = owned_tensors([p.n_elements for layer in model.layers for p in layer.parameters], n_ranks)
        n_tensors = [len(one) for one in owned]
    else:
        held = [[layer for chunk in chunks for layer in chunk] for chunks in lowered.chunks]
        tensors = [sum(len(layer.parameters) for layer in layers) for layers in held]
        n_tensors = tensors if job == "pp" else tensors * n_ranks
    return JobProgram(
        program=lowered.program,
        n_tensors=tuple(n_tensors),
        n_elements=tuple(_optimizer_elements(one) for one in lowered.program.ranks),
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
    fields: dict[str, object] = {"precision": "fp32", "micro_batch": settings.micro_batch}
    fields |= _PLANS[job]
    if job == "pp":
        fields |= {"pp": n_ranks, "schedule": settings.schedule, "overlap_p2p": settings.schedule == "gpipe"}
    if job == "tp":
        fields["tp"] = n_ranks
    n_replicas = n_ranks // n_stages if job != "tp" else 1
    fields |= {"dp": n_replicas, "global_batch": settings.micro_batch * settings.n_micro_batches * n_replicas}
    return ParallelPlan(**fields).resolve(n_ranks)  # type: ignore[arg-type]


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


def _optimizer_elements(rank: RankProgram) -> int:
    runs = [op for op in ops_of(rank.tasks) if isinstance(op, KernelRun) and op.phase == "optimizer"]
    return max(getattr(k.shape, "n_elements", 0) for run in runs for k in run.kernels)


def calibration_sizes(size: GptSize) -> tuple[GptSize, GptSize]:
    """Models around the one to predict, none of whose products has its shape.

    Examples
    --------
    >>> [s.hidden for s in calibration_sizes(GptSize(name="x", layers=4, hidden=256, heads=4, vocab=2048, seq_len=128))]
    [192, 320]
    """

    def scaled(factor: float) -> GptSize:
        hidden = max(size.heads, round(size.hidden * factor / size.heads / 8) * size.heads * 8)
        return replace(
            size, name=f"{size.name} x {factor:g}", layers=max(2, size.layers // 2), hidden=hidden,
            vocab=round(size.vocab * factor), seq_len=round(size.seq_len * factor),
        )  # fmt: skip

    return scaled(0.75), scaled(1.25)


def record(size: GptSize, micro_batch: int, *, n_shards: int = 1, tied: bool = True) -> Model:
    """Layers of a model as the simulator sees them, recorded from its torch module without computing.

    ``n_shards`` counts the tensor-parallel ranks, one of which is recorded.
    """
    tokens = torch.zeros((micro_batch, size.seq_len), dtype=torch.long)
    with torch.device("meta"):
        module = build_gpt(size, tied=tied, n_shards=n_shards)
    model = record_module(module, tokens, name=size.name, loss=lambda out: loss_of(out, tokens), dtype="fp32")
    first, blocks, last = model.layers[0], model.layers[1 : size.layers + 1], model.layers[size.layers + 1 :]
    layers = (replace(first, role="embedding"), *blocks, *(replace(layer, role="head") for layer in last))
    return replace(model, layers=layers)


def kernels_of(model: Model) -> list[KernelShape]:
    """All kernels of one forward and backward, in order."""
    items = [item for layer in model.layers for item in (*layer.forward, *layer.backward)]
    return [item for item in items if not isinstance(item, CommunicationPoint)]
