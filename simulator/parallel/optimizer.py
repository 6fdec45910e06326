"""The optimizer step as kernels: bytes of every state that is read and written.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3.1 (K = 12 bytes of optimizer state per parameter in mixed precision).
"""

from __future__ import annotations

from simulator.models.layer import PointwiseShape
from simulator.parallel.gradients import gradient_bytes
from simulator.plan import ParallelPlan
from simulator.program.op import Kernel, KernelRun


def optimizer_run(n_elements: int, n_tensors: int, plan: ParallelPlan) -> KernelRun:
    """Return the optimizer step over ``n_elements`` parameters held in ``n_tensors`` tensors.

    Adam reads and writes master weight and two moments in fp32, reads the gradient, and in pure 16-bit precision writes
    the 16-bit weight; without masters it reads and writes weight and moments in 16 bits. Gradient clipping
    reads all gradients once more for their norm. An offloaded optimizer runs on the host's processors.
    """
    half = plan.precision_spec.is_16_bit
    grad = gradient_bytes(plan)
    kernels: list[Kernel] = []

    def add(name: str, read_bytes: float, written_bytes: float, dtype: str = "fp32") -> None:
        shape = PointwiseShape(name=name, n_elements=n_elements, dtype=dtype,
                               read_bytes=n_elements * read_bytes, written_bytes=n_elements * written_bytes)  # fmt: skip
        kernels.append(Kernel(name=name, phase="optimizer", shape=shape, layer="optimizer"))

    if plan.offload_optimizer == "cpu":
        add("cpu_adam", 16, 14)
        return KernelRun(name="optimizer", phase="optimizer", kernels=tuple(kernels))
    if half and plan.precision_spec.quantisation is None and not plan.framework_spec.master_weights:
        add("adamw_fused", 8, 6, "bf16")
        return KernelRun(name="optimizer", phase="optimizer", kernels=tuple(kernels))
    facts = plan.framework_spec.data_parallel
    if half and grad == 2 and not facts.shards_masters:
        add("cast", 2, 4)  # 16-bit gradients to the fp32 ones of the master weights
        grad = 4
    if facts.clips_in_kernel and plan.framework_spec.clips_gradients:
        add("clip_grad_norm", grad, 0)
    add("adamw_fused", grad + 12, 12 + (2 if half and not facts.shards_masters else 0))
    return KernelRun(name="optimizer", phase="optimizer", kernels=tuple(kernels))
