"""Calibrate this machine, run small jobs on it, simulate the same jobs, and say where the difference comes from.

What ``simulate validate --here`` and ``python -m validation compare`` do.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError, ThresholdError
from validation.emulation.ranks import ending_cleanly
from validation.jobs.launch import Launch, process_group, require_torch, start_here
from validation.jobs.settings import Settings
from validation.jobs.shown import machine

if TYPE_CHECKING:
    from validation.jobs.compare import Comparison
    from validation.jobs.compare_job import JobComparison

#: GPT of under 4 million parameters: a step takes a tenth of a second on one processor
HERE = Settings(job="single", model="gpt2-tiny", micro_batch=2, device="cpu", timeout_s=280.0)
#: processes of the jobs
COUNTS = (1, 2)


def gpus_here() -> int:
    """Return the number of GPUs that jobs here can use; does not touch one.

    Raises
    ------
    ConfigError
        If PyTorch is missing.
    """
    require_torch()
    import torch

    return torch.cuda.device_count()


def compare_here(
    settings: Settings = HERE, counts: Sequence[int] = COUNTS, *, jobs: Sequence[str] = (), quiet: bool = True
) -> list[Comparison]:
    """Calibrate, run and simulate a training step on so many processes of this machine each.

    Parameters
    ----------
    settings : Settings
        The job; ``job`` itself follows from the number of processes.
    counts : sequence of int
        Processes of each run.
    jobs : sequence of str
        Other kinds of training to compare where there is more than one process.
    quiet : bool
        Say nothing on stderr.

    Raises
    ------
    SimulatorError
        If PyTorch is missing, or a process fails or does not answer in time.
    """
    require_torch()
    if not counts or min(counts) < 1:
        raise ConfigError("a job needs at least one process", hint="such as 1,2")
    found = []
    with ending_cleanly():
        for n_ranks in counts:
            if not quiet:
                said = f"{n_ranks} process{'es' if n_ranks > 1 else ''}"
                print(f"{settings.model} on {said}: calibrating, running, simulating", file=sys.stderr, flush=True)
            found.append(_compare(settings, n_ranks, jobs if n_ranks > 1 else ()))
    return found


def _compare(settings: Settings, n_ranks: int, jobs: Sequence[str]) -> Comparison:
    import torch

    from validation.jobs.compare import compare
    from validation.jobs.observe import Seen, observe
    from validation.jobs.timed_training import size_of

    size = size_of(settings)

    def body(launch: Launch) -> Seen:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        if n_ranks == 1:
            return observe(settings, size, launch, device, jobs)
        with process_group(launch, "gloo", settings.timeout_s):
            return observe(settings, size, launch, device, jobs)

    seen = start_here(n_ranks, body, timeout_s=settings.timeout_s)
    return compare(seen, size, settings)


def document(found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the JSON document: ``machine`` and ``comparisons``, each with its error, ranked causes and other ``jobs``."""
    return {
        "machine": machine(),
        "comparisons": [{**_with_causes(one), "jobs": [_with_causes(job) for job in one.jobs]} for one in found],
    }


def _with_causes(one: Comparison | JobComparison) -> dict[str, Any]:
    return {**asdict(one), "relative_error": one.relative_error, "causes": one.causes()}


def check_here(found: Sequence[Comparison], threshold: float) -> None:
    """Check that no iteration that is judged is further off than ``threshold``.

    Raises
    ------
    ThresholdError
        Naming those that are.
    """
    errors = [(str(one.n_ranks), one.relative_error) for one in found]
    for one in found:
        judged = [job for job in one.jobs if not job.note]
        errors += [(f"{one.n_ranks} {job.job}", job.relative_error) for job in judged if job.relative_error is not None]
    far = [f"{name}: {error:+.1%}" for name, error in errors if abs(error) > threshold]
    if far:
        raise ThresholdError(f"iterations are predicted worse than {threshold:.1%}, by processes: {', '.join(far)}")
