"""Emulated jobs as programs: training steps lowered from a plan as every plan is, single messages written down.

A training step is a model of timed layers and a plan; what its framework does with them says :mod:`simulator.parallel`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from simulator.models.layer import Layer, Model, Parameter, PointwiseShape
from simulator.parallel.lower import lower
from simulator.plan import FRAMEWORKS, Framework, ParallelPlan
from simulator.plan.data_parallelism import FSDP, MEGATRON
from simulator.program.op import Collective, Op, Transfer
from simulator.program.program import Block, Program, RankProgram, Task
from validation.emulation.job import FLOAT_BYTES, Job, buffer_bytes, message_pairs

#: the kernel of a pass of a timed layer
TIMED = "timed layer"
_ZERO3 = Framework(name="timed-zero3", kernels="hf-eager", data_parallel=replace(FSDP, keeps_last_unit=True))
#: the jobs that are loops of their own, and no framework that users have
_LOOPS = {
    one.name: one
    for one in (
        Framework(name="timed-zero1", kernels="hf-eager", data_parallel=MEGATRON, gathers_buckets=True),
        _ZERO3,
        replace(_ZERO3, name="timed-zero3-two-groups", scatters_apart=True),
    )
}


@contextmanager
def _loops_known() -> Iterator[None]:
    """Count the loops among the frameworks while a job is lowered, and no longer."""
    FRAMEWORKS.update(_LOOPS)
    try:
        yield
    finally:
        for name in _LOOPS:
            del FRAMEWORKS[name]


def timed_model(n_layers: int, layer_bytes: int) -> Model:
    """Return so many equal layers, each with one parameter of ``layer_bytes`` in fp32."""

    def kernel(kernel_pass: str) -> PointwiseShape:
        backward = kernel_pass == "backward"
        return PointwiseShape(
            name=TIMED, n_elements=0, read_bytes=0, written_bytes=0, kernel_pass="backward" if backward else "forward"
        )

    weights = (Parameter(name="weight", n_elements=layer_bytes // FLOAT_BYTES),) if layer_bytes else ()
    layer = Layer(name="block", forward=(kernel("forward"),), backward=(kernel("backward"),), parameters=weights)
    return Model(
        name="timed layers", layers=(layer,) * n_layers, n_parameters=n_layers * layer.n_parameters,
        model_flops_per_sequence=0.0, tied_embedding=False,
    )  # fmt: skip


def plan_of(job: Job, n_ranks: int) -> ParallelPlan:
    """Return the plan of a training step on so many ranks."""
    zero3 = "timed-zero3-two-groups" if job.n_groups > 1 else "timed-zero3"
    fields: dict[str, dict[str, object]] = {
        "ddp": {"framework": "torch-ddp", "bucket_bytes": job.bucket_bytes},
        "zero1": {"framework": "timed-zero1", "sharding": "zero1", "bucket_bytes": job.layer_bytes},
        "zero3": {"framework": zero3, "sharding": "zero3", "forward_prefetch": True},
        "fsdp2": {"framework": "torch-fsdp2", "sharding": "zero3", "overlap": False},
        "pipeline": {"framework": "torch-pp", "pp": n_ranks, "schedule": job.name, "overlap_p2p": True},
    }
    is_pipeline = job.is_pipeline
    batch = job.n_micro_batches if is_pipeline else n_ranks
    plan = ParallelPlan(
        gpus=n_ranks, precision="fp32", micro_batch=1, global_batch=batch, attention="eager",
        **fields["pipeline" if is_pipeline else job.name],  # type: ignore[arg-type]
    )  # fmt: skip
    return plan.resolve(n_ranks)


def _step(job: Job, n_ranks: int) -> Program:
    """Lower a training step; a pipeline posts all receives first, whatever its processors do."""
    model = timed_model(n_ranks, 0) if job.is_pipeline else timed_model(job.n_layers, job.layer_bytes)
    with _loops_known():
        return lower(
            model, plan_of(job, n_ranks), gpus_per_node=1, boundary_bytes=job.activation_bytes, unfold=True,
            collectives_at_once=job.gloo_threads, on_processors=not job.is_pipeline,
        ).program  # fmt: skip


def _exchange(job: Job, n_ranks: int) -> Program:
    """Write down one collective, or messages that are sent at once."""
    ops: list[tuple[tuple[int, ...], Collective | Transfer]] = []
    for pair in message_pairs(job.name, n_ranks):
        ops.append((pair, Transfer(n_bytes=job.n_bytes, pairs=(pair,), name="message")))
    if not ops:
        ranks = tuple(range(n_ranks))
        n_bytes = buffer_bytes(job.n_bytes, n_ranks)
        ops.append((ranks, Collective(collective=job.name, axis="dp", n_bytes=n_bytes, groups=(ranks,), name=job.name)))
    return Program(
        ranks=tuple(
            RankProgram(
                rank=rank,
                members=(rank,),
                tasks=tuple(Task(op, f"message {key}", (), key) for key, op in ops if rank in key),
            )
            for rank in range(n_ranks)
        )
    )


def program_of(job: Job, world: int, n_racks: int) -> Program:
    """Write a job down as a program."""
    found: list[RankProgram] = []
    for index in range(1 if job.alone else job.n_jobs):
        found += placed_program(job, job.ranks_of_job(index, world, n_racks)).ranks
    return Program(ranks=tuple(sorted(found, key=lambda one: one.rank)))


def placed_program(job: Job, ranks: tuple[int, ...]) -> Program:
    """Write a job down as a program of these ranks."""
    program = (_step if job.is_step else _exchange)(job, len(ranks))
    return replace(program, ranks=tuple(_placed(one, ranks) for one in program.ranks))


def _placed(program: RankProgram, ranks: tuple[int, ...]) -> RankProgram:
    """Put a rank of a job in its place among the ranks of all jobs."""

    def placed(op: Op | Block) -> Op | Block:
        if isinstance(op, Collective):
            return replace(op, groups=tuple(tuple(ranks[rank] for rank in group) for group in op.groups))
        if isinstance(op, Transfer):
            return replace(op, pairs=tuple((ranks[source], ranks[target]) for source, target in op.pairs))
        return op

    tasks = (t if t.key is None else t._replace(op=placed(t.op), key=(ranks, t.key)) for t in program.tasks)
    rank = ranks[program.rank]
    return RankProgram(rank=rank, members=(rank,), tasks=tuple(tasks))
