"""Kernel models: how long one kernel takes on one device."""

from __future__ import annotations

from simulator.kernels.base import KernelModel
from simulator.kernels.roofline import RooflineKernels

#: name -> kernel model class
KERNEL_MODELS: dict[str, type[KernelModel]] = {"roofline": RooflineKernels}

__all__ = ["KERNEL_MODELS", "KernelModel", "RooflineKernels"]
