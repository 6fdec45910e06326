"""Measuring: repetitions on the GPU's clock where there is one, its clocks and power, phases of a step, Kineto traces."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from simulator.errors import ConfigError

Clock = Callable[[], float]
#: steps of a recorded trace: the first of them warms the profiler up
_RECORDED_STEPS = 2


def synchronize(device: torch.device) -> None:
    """Wait until a device has done everything; nothing to wait for on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _event() -> torch.cuda.Event:
    make: Any = torch.cuda.Event
    event: torch.cuda.Event = make(enable_timing=True)
    return event


def time_repeated(
    action: Callable[[], object],
    device: torch.device,
    *,
    n_repeats: int,
    n_warm_up: int,
    before_each: Callable[[], object] = lambda: None,
    clock: Clock = time.perf_counter,
) -> list[float]:
    """Run an action again and again and return how long each took.

    On a GPU the times are those between two events on its stream, otherwise those of ``clock`` in seconds: wall time,
    or processor time, which other users of the machine do not stretch. ``before_each`` runs before every repetition and
    is not measured: a barrier, a flushed cache.
    """
    for _ in range(n_warm_up):
        before_each()
        action()
    synchronize(device)
    if device.type != "cuda":
        durations = []
        for _ in range(n_repeats):
            before_each()
            start_s = clock()
            action()
            durations.append(clock() - start_s)
        return durations
    pairs = []
    for _ in range(n_repeats):
        before_each()
        start, end = _event(), _event()
        start.record()
        action()
        end.record()
        pairs.append((start, end))
    synchronize(device)
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


class PhaseClock:
    """Cuts a step into phases without making the device wait.

    On a GPU the borders are events on its stream, otherwise seconds of ``clock``.
    """

    def __init__(self, device: torch.device, clock: Clock = time.perf_counter) -> None:
        self._clock = clock
        self._on_gpu = device.type == "cuda"
        self._marks: list[tuple[str, float, torch.cuda.Event | None]] = []

    def mark(self, phase: str) -> None:
        """Say that a phase begins now."""
        event = None
        if self._on_gpu:
            event = _event()
            event.record()
        self._marks.append((phase, self._clock(), event))

    def durations_s(self) -> dict[str, float]:
        """Seconds of every phase, summed over its occurrences; the last mark only ends the one before."""
        totals: dict[str, float] = {}
        for (phase, start_s, start), (_, end_s, end) in zip(self._marks, self._marks[1:], strict=False):
            seconds = start.elapsed_time(end) / 1e3 if start is not None and end is not None else end_s - start_s
            totals[phase] = totals.get(phase, 0.0) + seconds
        return totals


def record_steps(folder: Path, job: str, rank: int, device: torch.device, step: Callable[[], object]) -> Path:
    """Record some steps and write ``JOB-rankN.pt.trace.json.gz``.

    ``step`` does one step and waits for the device by itself.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as recording:
        for index in range(_RECORDED_STEPS):
            with record_function(f"ProfilerStep#{index}"):
                step()
    path = folder / f"{job}-rank{rank}.pt.trace.json.gz"
    plain = path.with_suffix("")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(plain))
        path.write_bytes(_packed(plain.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    finally:
        plain.unlink(missing_ok=True)
    return path


def _packed(text: str) -> bytes:
    """Compress a trace, without the machine's name."""
    trace = json.loads(text)
    trace["host_name"] = "host"
    return gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)


_PERIOD_S = 0.1
_QUANTITIES = (("SM ", "MHz"), ("memory ", "MHz"), ("", "W"))


class GpuMonitor:
    """Samples one GPU's clocks and power in the background while the context is open.

    Without an ``index`` it samples nothing.
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
