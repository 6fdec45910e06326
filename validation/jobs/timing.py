"""Measuring: warm-up and repetitions on the GPU's clock where there is one, phases of a step, one Kineto trace per rank."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
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

    Parameters
    ----------
    device : torch.device
        On a GPU the times are those between two events on its stream; otherwise wall time.
    before_each : callable
        Runs before every repetition and is not measured: a barrier, a flushed cache.
    clock : callable
        Seconds, where there is no GPU: wall time, or processor time, which other users of the machine do not stretch.
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

    Parameters
    ----------
    device : torch.device
        On a GPU the borders are events on its stream.
    clock : callable
        Otherwise this one's seconds.
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

    Parameters
    ----------
    step : callable
        What one step does; it waits for the device by itself.
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
