"""Parameters, gradients and optimizer states: bytes as they are gathered, reduced and accumulated, and the optimizer step.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3.1 (K = 12 bytes of optimizer state per parameter in mixed precision).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from simulator.kernels.host import CPU_ADAM_READ_BYTES, CPU_ADAM_WRITTEN_BYTES
from simulator.memory.estimate import state_bytes
from simulator.models.layer import GemmShape, Layer, PointwiseShape
from simulator.models.styles import STYLES
from simulator.parallel.muon import MuonMessage, Steps, orthogonalised
from simulator.plan import ParallelPlan
from simulator.program.op import Kernel, KernelRun


def split_parameters(layers: Sequence[Layer], plan: ParallelPlan) -> tuple[int, int]:
    """Return dense and expert parameters of one rank that are trained; without axes of their own experts are dense."""
    total = sum(layer.n_trained_parameters for layer in layers)
    experts = sum(p.n_elements for layer in layers for p in layer.trained if p.is_expert) if plan.has_expert_axes else 0
    return total - experts, experts


class StateTraffic(NamedTuple):
    """Bytes per parameter that a pass reads from and writes to device memory."""

    read_bytes: int
    written_bytes: int


def accumulation_traffic(plan: ParallelPlan) -> StateTraffic:
    """Traffic of adding one micro-batch's gradient to the sum of those before it, per parameter.

    Sixteen-bit gradients are added to fp32 ones where the framework keeps such (Megatron's main gradients, DeepSpeed's bf16
    optimizer, which also clears the former), otherwise in place by autograd. Fused kernels accumulate in the epilogue of the
    weight-gradient product; full sharding accumulates shards only, unless reduction waits for the last micro-batch.
    """
    framework = plan.framework_spec
    shards = plan.shards_parameters and not plan.synchronises_once and not plan.defers_reduction
    if STYLES[framework.kernels].accumulates_in_product or shards:
        return StateTraffic(0, 0)
    n_bytes = plan.summed_bytes
    if plan.precision_spec.is_16_bit and n_bytes == 4:
        return StateTraffic(6, 6 if framework.data_parallel.clears_gradients else 4)
    return StateTraffic(2 * n_bytes, n_bytes) if plan.n_micro_batches > 1 else StateTraffic(0, 0)


def optimizer_step(
    n_elements: int, plan: ParallelPlan, matrices: Sequence[GemmShape] = ()
) -> tuple[KernelRun | MuonMessage, ...]:
    """Return the optimizer step over ``n_elements`` parameters, of which Muon has ``matrices``: runs of kernels, and messages between them.

    Adam reads and writes master weight and two moments, in fp32 unless the plan says otherwise,
    reads the gradient, and in pure 16-bit precision writes
    the 16-bit weight; without masters it reads and writes weight and moments in 16 bits. Gradient clipping
    reads all gradients once more for their norm. Muon orthogonalises one matrix after the other
    (NVIDIA-NeMo/Emerging-Optimizers, ``OrthogonalizedOptimizer.step``). An offloaded optimizer runs on the host's processors.

    Operation by operation, Adam with decay passes eight times over memory (pytorch/pytorch, ``torch/optim/adam.py``,
    ``_multi_tensor_adam``): the weights' decay, the first moment's interpolation, the second moment's decay and the square that is added,
    root, correction and epsilon in a tensor of their own, and the weights' change.
    """
    half = plan.precision_spec.is_16_bit
    grad = plan.master_bytes if half and plan.shards_masters else plan.reduced_bytes
    kernels: list[Kernel | MuonMessage] = []

    def add(name: str, read_bytes: float, written_bytes: float, dtype: str = "fp32") -> None:
        shape = PointwiseShape(name=name, n_elements=n_elements, dtype=dtype,
                               read_bytes=n_elements * read_bytes, written_bytes=n_elements * written_bytes)  # fmt: skip
        kernels.append(Kernel(name=name, phase="optimizer", shape=shape, layer="optimizer"))

    def add_adam(*, weight: float, moment: float, gradient: float, written: float = 0.0, dtype: str = "fp32") -> None:
        if plan.steps_adam == "fused":
            add("adamw_fused", gradient + weight + 2 * moment, weight + 2 * moment + written, dtype)
        else:
            add("adamw_foreach", 2 * (gradient + weight) + 8 * moment, 2 * weight + 6 * moment + written, dtype)

    if plan.offload_optimizer == "cpu":
        add("cpu_adam", CPU_ADAM_READ_BYTES, CPU_ADAM_WRITTEN_BYTES)
        return _runs(kernels)
    if half and not plan.framework_spec.master_weights:
        add_adam(weight=2, moment=state_bytes(plan).moment, gradient=2, dtype="bf16")
        return _runs(kernels)
    facts = plan.framework_spec.data_parallel
    if half and grad == 2 and not facts.shards_masters:
        add("cast", 2, 4)  # 16-bit gradients to the fp32 ones of the master weights
        grad = 4
    if facts.clips_in_kernel and plan.framework_spec.clips_gradients:
        add("clip_grad_norm", grad, 0)
    steps = {matrix: _kernels(orthogonalised(matrix, plan)) for matrix in set(matrices)}
    for matrix in matrices:
        kernels += steps[matrix]
    kept = state_bytes(plan)
    n_orthogonalised = min(n_elements, sum(matrix.m * matrix.n for matrix in matrices))
    states = kept.optimizer_bytes(n_elements, n_orthogonalised) / max(1, n_elements) + (
        0 if half and not plan.shards_masters else kept.parameter
    )
    moments = min(states, 2 * kept.moment)
    add_adam(
        weight=states - moments,
        moment=moments / 2,
        gradient=grad,
        written=2 if half and not facts.shards_masters else 0,
    )
    return _runs(kernels)


def _kernels(steps: Steps) -> list[Kernel | MuonMessage]:
    """Return what orthogonalises a matrix as launches, and messages as they are."""
    return [
        step
        if isinstance(step, MuonMessage)
        else Kernel(name=step.name, phase="optimizer", shape=step, layer="optimizer")
        for step in steps
    ]


def _runs(items: Sequence[Kernel | MuonMessage]) -> tuple[KernelRun | MuonMessage, ...]:
    """Put together the kernels between two messages; equal runs are one object, whose cost is found once."""
    known: dict[tuple[Kernel | MuonMessage, ...], KernelRun] = {}
    found: list[KernelRun | MuonMessage] = []
    for is_message, group in groupby(items, key=lambda item: isinstance(item, MuonMessage)):
        part = tuple(group)
        if is_message:
            found += [item for item in part if isinstance(item, MuonMessage)]
            continue
        kernels = tuple(item for item in part if isinstance(item, Kernel))
        found.append(known.setdefault(kernels, KernelRun(name="optimizer", phase="optimizer", kernels=kernels)))
    return tuple(found)
