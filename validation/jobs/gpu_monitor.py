"""Clocks and power of a GPU while a job runs, through NVML; silent where there is none."""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

_PERIOD_S = 0.1
_QUANTITIES = (("SM ", "MHz"), ("memory ", "MHz"), ("", "W"))


class GpuMonitor:
    """Samples one GPU's clocks and power in the background while the context is open.

    Parameters
    ----------
    index : int or None
        Which GPU; None samples nothing.
    """

    def __init__(self, index: int | None) -> None:
        self._index = index
        self._samples: list[tuple[float | None, ...]] = []
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
        try:
            handle = _handle(pynvml, self._index, os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        except Exception:  # no such GPU for NVML, which may see other ones than CUDA does: nothing to sample
            return self
        self._thread = threading.Thread(target=self._sample, args=(handle,), daemon=True)
        self._thread.start()
        return self

    def _sample(self, handle: Any) -> None:
        nvml = self._nvml
        queries = (
            lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            lambda: float(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        )
        while not self._stop.wait(_PERIOD_S):
            self._samples.append(tuple(_asked(query) for query in queries))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._nvml.nvmlShutdown()

    def describe(self) -> str:
        """Words for a notes column: median clocks and power; empty where nothing was sampled."""
        said = []
        for (name, unit), column in zip(_QUANTITIES, zip(*self._samples, strict=True), strict=False):
            known = [value for value in column if value is not None]
            said += [f"{name}{statistics.median(known):.0f} {unit}"] if known else []
        return f"{', '.join(said)} (NVML medians of {len(self._samples)})" if said else ""


def _asked(query: Callable[[], float]) -> float | None:
    """Return the answer, None where a GPU (or a part of one) does not give it."""
    try:
        return query()
    except Exception:
        return None


def _handle(nvml: Any, index: int, visible: str) -> Any:
    """Return NVML's handle of the GPU that CUDA calls ``index``: NVML does not know CUDA_VISIBLE_DEVICES."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    name = names[index] if index < len(names) else str(index)
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
