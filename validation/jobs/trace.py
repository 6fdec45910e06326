"""One Kineto trace per rank of a few steps."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from simulator.errors import ConfigError

_INDENT_FREE = (",", ":")


def record_steps(
    folder: Path, job: str, rank: int, device: torch.device, step: Callable[[], object], *, n_steps: int = 2
) -> Path:
    """Record some steps and write ``JOB-rankN.pt.trace.json.gz``.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    job : str
        Begins the file's name.
    rank : int
        Ends it.
    device : torch.device
        Whether GPU activity is recorded, too.
    step : callable
        What one step does; it waits for the device by itself.
    n_steps : int
        Steps, marked ``ProfilerStep#0`` and so on.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ConfigError
        If the folder cannot be written.
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as recording:
        for index in range(n_steps):
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
    return gzip.compress(json.dumps(trace, separators=_INDENT_FREE).encode(), mtime=0)
