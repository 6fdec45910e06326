"""One Kineto trace per rank of a few steps."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


@contextmanager
def profiled(folder: Path, job: str, rank: int, device: torch.device) -> Iterator[None]:
    """Record the body and write ``JOB-rankN.pt.trace.json.gz`` into ``folder``.

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
    """
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, record_shapes=True) as recording:
        yield
    folder.mkdir(parents=True, exist_ok=True)
    plain = folder / f"{job}-rank{rank}.pt.trace.json"
    recording.export_chrome_trace(str(plain))
    packed = plain.with_name(plain.name + ".gz")
    packed.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
