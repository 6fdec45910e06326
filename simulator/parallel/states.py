"""Parameters, gradients and optimizer states: bytes as they are gathered, reduced and accumulated, and the optimizer step.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3.1 (K = 12 bytes of optimizer state per parameter in mixed precision).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

from simulator.kernels.host import CPU_ADAM_READ_BYTES, CPU_ADAM_WRITTEN_BYTES
from simulator.memory.estimate import state_bytes
from simulator.models.layer import GemmShape, Layer, PointwiseShape
from simulator.models.styles import STYLES
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
    weight-gradient product; full sharding accumulates shards only.
    """
    framework = plan.framework_spec
    shards = plan.shards_parameters and not plan.synchronises_once
    if STYLES[framework.kernels].accumulates_in_product or shards:
        return StateTraffic(0, 0)
    n_bytes = plan.reduced_bytes
    if plan.precision_spec.is_16_bit and n_bytes == 4:
        return StateTraffic(6, 6 if framework.data_parallel.clears_gradients else 4)
    return StateTraffic(2 * n_bytes, n_bytes) if plan.n_micro_batches > 1 else StateTraffic(0, 0)


#: steps of Newton and Schulz that Muon takes (Megatron-Core's ``muon_num_ns_steps``)
NEWTON_SCHULZ_STEPS = 5


def muon_matrices(layers: Sequence[Layer], n_shards: int, n_expert_shards: int) -> tuple[GemmShape, ...]:
    """Return the matrices that the fullest rank orthogonalises, as the shapes of their gradients' products.

    Ranks that share them own whole matrices, the next one going to the rank that has least to do. Query, key and value are one matrix
    here, where Megatron-Core splits them (``muon_split_qkv``).

    References
    ----------
    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is scalable for LLM
    training", arXiv:2502.16982; NVIDIA/Megatron-LM, ``core/optimizer/layer_wise_optimizer.py``.
    """
    products = [item for layer in layers if layer.role not in ("embedding", "head") for item in layer.backward]
    found = [item for item in products if isinstance(item, GemmShape) and item.kernel_pass == "wgrad"]
    owned: list[GemmShape] = []
    for is_expert, n_ranks in ((False, n_shards), (True, n_expert_shards)):
        single = [replace(s, batch=1) for s in found if (s.name == "grouped_gemm") == is_expert for _ in range(s.batch)]
        ranks: list[tuple[float, int, list[GemmShape]]] = [(0.0, n, []) for n in range(max(1, n_ranks))]
        for shape in sorted(single, key=_newton_schulz_flops, reverse=True):
            load, n, mine = heappop(ranks)
            mine.append(shape)
            heappush(ranks, (load + _newton_schulz_flops(shape), n, mine))
        owned += max(ranks)[2]
    return tuple(owned)


def owned_matrices(layers: Sequence[Layer], plan: ParallelPlan, n_shards: int) -> tuple[GemmShape, ...]:
    """Matrices that the rank with most of them orthogonalises; none where the optimizer is Adam."""
    if plan.optimizer != "muon":
        return ()
    return muon_matrices(layers, *((n_shards, plan.expert_shards(n_shards)) if plan.sharding != "none" else (1, 1)))


def _newton_schulz_flops(shape: GemmShape) -> float:
    return sum(product.n_flops for product in _newton_schulz(shape))


def _newton_schulz(shape: GemmShape) -> list[GemmShape]:
    """Products that orthogonalise a matrix x: x times its transpose, the square of that, and a polynomial of both times x."""
    short, long = sorted((shape.m, shape.n))
    sizes = ((short, short, long), (short, short, short), (short, long, short))
    step = [GemmShape(m=m, n=n, k=k, batch=shape.batch, name="newton_schulz") for m, n, k in sizes]
    return step * NEWTON_SCHULZ_STEPS


def optimizer_run(n_elements: int, plan: ParallelPlan, matrices: Sequence[GemmShape] = ()) -> KernelRun:
    """Return the optimizer step over ``n_elements`` parameters, of which Muon has ``matrices``.

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
    grad = plan.reduced_bytes
    kernels: list[Kernel] = []

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
        return KernelRun(name="optimizer", phase="optimizer", kernels=tuple(kernels))
    if half and not plan.framework_spec.master_weights:
        add_adam(weight=2, moment=2, gradient=2, dtype="bf16")
        return KernelRun(name="optimizer", phase="optimizer", kernels=tuple(kernels))
    facts = plan.framework_spec.data_parallel
    if half and grad == 2 and not facts.shards_masters:
        add("cast", 2, 4)  # 16-bit gradients to the fp32 ones of the master weights
        grad = 4
    if facts.clips_in_kernel and plan.framework_spec.clips_gradients:
        add("clip_grad_norm", grad, 0)
    products = {
        matrix: [
            Kernel(name=product.name, phase="optimizer", shape=product, layer="optimizer")
            for product in _newton_schulz(matrix)
        ]
        for matrix in set(matrices)
    }
    for matrix in matrices:
        kernels += products[matrix]
    kept = state_bytes(plan)
    n_orthogonalised = min(n_elements, sum(matrix.m * matrix.n for matrix in matrices))
    states = kept.optimizer_bytes(n_elements, n_orthogonalised) / max(1, n_elements) + (0 if half else kept.parameter)
    moments = min(states, 2 * kept.moment)
    add_adam(
        weight=states - moments,
        moment=moments / 2,
        gradient=grad,
        written=2 if half and not facts.shards_masters else 0,
    )
    return KernelRun(name="optimizer", phase="optimizer", kernels=tuple(kernels))
