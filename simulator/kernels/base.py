"""The interface of kernel models."""

from __future__ import annotations

from typing import Protocol

from simulator.models.layer import AttentionShape, KernelShape, ScanShape
from simulator.topology.device import Device


def peak_flops_per_s(shape: KernelShape, device: Device) -> float:
    """FLOP per second that the unit which a kernel's products run on can do at most.

    Of 32 bits the memory-efficient attention kernel makes each product of three in TF32 from compute capability 8.0 on, whatever
    ``allow_tf32`` says; recurrences in fp16 run where those in bf16 do.

    References
    ----------
    pytorch/pytorch, ``aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h``: ``OpMultiplyAddFastF32``.
    """
    if isinstance(shape, AttentionShape) and shape.dtype in ("fp32", "tf32") and device.vendor == "NVIDIA":
        return max(device.peak("fp32"), device.peak("tf32") / 3.0)
    return device.peak("bf16" if isinstance(shape, ScanShape) and shape.dtype == "fp16" else shape.dtype)


class KernelModel(Protocol):
    """Predicts the time of one kernel: launch latency on the device included, host issue time not.

    Parameters
    ----------
    cuda : str
        CUDA release of the libraries that run; empty for a current one.
    is_alone : bool
        Whether the other GPUs of the node rest.
    """

    def __init__(self, *, cuda: str = "", is_alone: bool = False) -> None: ...

    def duration_s(self, shape: KernelShape, device: Device) -> float:
        """Seconds that the kernel occupies its stream."""
        ...
