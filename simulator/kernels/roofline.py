"""The default kernel model: a roofline per kernel family, quantised by tiles and waves."""

from __future__ import annotations

from math import ceil

from simulator.models.layer import AttentionShape, GemmShape, KernelShape
from simulator.topology.device import Device


class RooflineKernels:
    """Kernel times from shapes, datasheet numbers and the fitted constants of the device file.

    Durations are memoised per device and shape.
    """

    def __init__(self) -> None:
        self._memo: dict[Device, dict[KernelShape, float]] = {}
        self._device: Device | None = None
        self._times: dict[KernelShape, float] = {}

    def duration_s(self, shape: KernelShape, device: Device) -> float:
        """Seconds that the kernel occupies its stream."""
        if device is not self._device:
            self._times = self._memo.setdefault(device, {})
            self._device = device
        found = self._times.get(shape)
        if found is None:
            found = self._times[shape] = self._predict(shape, device)
        return found

    @staticmethod
    def _predict(shape: KernelShape, device: Device) -> float:
        bytes_s = shape.n_bytes / (0.85 * device.memory_bandwidth_bytes_per_s)
        if isinstance(shape, GemmShape):
            tiles = shape.batch * ceil(shape.m / 128) * ceil(shape.n / 128)
            flops_s = shape.n_flops / (0.8 * device.peak(shape.dtype))
            return max(flops_s * ceil(tiles / device.n_sms) * device.n_sms / tiles, bytes_s) + 3e-6
        if isinstance(shape, AttentionShape):
            return max(shape.n_flops / (0.5 * device.peak(shape.dtype)), bytes_s) + 5e-6
        return bytes_s + 3e-6
