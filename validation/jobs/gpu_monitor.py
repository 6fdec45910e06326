"""Clocks and power of a GPU while a job runs, through NVML; silent where there is none."""

from __future__ import annotations

import statistics
import threading
from types import TracebackType
from typing import Any

_PERIOD_S = 0.1


class GpuMonitor:
    """Samples one GPU's clocks and power in the background while the context is open.

    Parameters
    ----------
    index : int or None
        Which GPU; None samples nothing.
    """

    def __init__(self, index: int | None) -> None:
        self._index = index
        self._samples: list[tuple[int, int, float]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._nvml: Any = None

    def __enter__(self) -> GpuMonitor:
        if self._index is None:
            return self
        try:
            import pynvml

            pynvml.nvmlInit()
        except Exception:  # no driver, no library: NVML has its own exception types for both
            return self
        self._nvml = pynvml
        handle = pynvml.nvmlDeviceGetHandleByIndex(self._index)
        self._thread = threading.Thread(target=self._sample, args=(handle,), daemon=True)
        self._thread.start()
        return self

    def _sample(self, handle: Any) -> None:
        nvml = self._nvml
        while not self._stop.wait(_PERIOD_S):
            self._samples.append(
                (
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
                    nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
                    nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                )
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._nvml.nvmlShutdown()

    def describe(self) -> str:
        """Words for a notes column: median clocks and power; empty where nothing was sampled."""
        if not self._samples:
            return ""
        sm, memory, power = (statistics.median(column) for column in zip(*self._samples, strict=True))
        return f"SM {sm:.0f} MHz, memory {memory:.0f} MHz, {power:.0f} W (NVML medians of {len(self._samples)})"
