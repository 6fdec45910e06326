"""Calibrate this machine, run small jobs on it, simulate the same jobs, and say where the difference comes from.

What ``simulate validate --here`` and ``python -m validation compare`` do.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.errors import ConfigError, ThresholdError
from simulator.units import count_of
from validation.emulation.ranks import ending_cleanly
from validation.jobs.job_settings import COMPARED, Settings
from validation.jobs.launch import Launch, process_group, require_torch, start_here
from validation.jobs.shown import lost_words, machine, print_comparisons
from validation.processors import Watch

if TYPE_CHECKING:
    from validation.jobs.compare import Comparison
    from validation.jobs.job_comparison import JobComparison

#: GPT of under 4 million parameters: a step takes a tenth of a second on one processor
HERE = Settings(job="single", model="gpt2-tiny", micro_batch=2, device="cpu", timeout_s=280.0)
#: processes of the jobs
COUNTS = (1, 2)


def gpus_here() -> int:
    """Return the number of GPUs that jobs here can use; does not touch one."""
    require_torch()
    import torch

    return torch.cuda.device_count()


def compare_here(
    settings: Settings = HERE, counts: Sequence[int] = COUNTS, *, jobs: Sequence[str] = ()
) -> list[Comparison]:
    """Calibrate, run and simulate a training step on so many processes of this machine each.

    ``counts`` are the processes of each run, ``jobs`` other kinds of training to compare where there is more than one
    process.
    """
    require_torch()
    if not counts or min(counts) < 1:
        raise ConfigError("a job needs at least one process", hint="such as 1,2")
    found = []
    with ending_cleanly():
        for n_ranks in counts:
            said = count_of(n_ranks, "process", "processes")
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

    watch = Watch()
    seen = start_here(n_ranks, body, timeout_s=settings.timeout_s)
    # one process is timed by its own processor's clock, which stands still while others run
    return replace(compare(seen, size, settings), lost=watch.lost(n_ranks) if n_ranks > 1 else 0.0)


def document(found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the JSON document: ``machine`` and ``comparisons``, each with its error, ranked causes and other ``jobs``."""
    return {
        "machine": machine(),
        "comparisons": [
            {**_with_causes(one), "interval_s": one.interval_s, "jobs": [_with_causes(job) for job in one.jobs]}
            for one in found
        ],
    }


def _with_causes(one: Comparison | JobComparison) -> dict[str, Any]:
    return {**asdict(one), "relative_error": one.relative_error, "causes": one.causes()}


def check_here(found: Sequence[Comparison], threshold: float) -> None:
    """Check that no iteration that is judged is further off than ``threshold``, or than that and what other work took.

    Where other work had half of what the ranks needed or more, nothing is judged, and that is said.
    """
    far = []
    for one in found:
        if not one.is_judged:
            print(
                f"{count_of(one.n_ranks, 'process', 'processes')}: not judged, {lost_words(one.lost)}", file=sys.stderr
            )
            continue
        errors = [(str(one.n_ranks), one.relative_error)]
        judged = [job for job in one.jobs if not job.note]
        errors += [(f"{one.n_ranks} {job.job}", job.relative_error) for job in judged if job.relative_error is not None]
        allowed = one.allowed(threshold)
        far += [f"{name}: {error:+.1%}" for name, error in errors if abs(error) > allowed]
    if far:
        raise ThresholdError(f"iterations are predicted worse than {threshold:.1%}, by processes: {', '.join(far)}")


def compare(
    model: Annotated[str, typer.Option(help="GPT-2 size: gpt2-micro, gpt2-tiny, gpt2 ...")] = HERE.model,
    layers: Annotated[int, typer.Option(help="Blocks; 0 is the model's own number.")] = 0,
    micro_batch: Annotated[int, typer.Option(help="Sequences per rank.")] = HERE.micro_batch,
    nproc: Annotated[str, typer.Option(help="Processes; a list compares each.")] = "1,2",
    jobs: Annotated[
        str, typer.Option(help="Kinds of training beside DDP where there are 2 processes or more; none for none.")
    ] = ",".join(COMPARED),
    schedule: Annotated[str, typer.Option(help="Pipeline schedule of pp: gpipe or 1f1b.")] = HERE.schedule,
    repeats: Annotated[int, typer.Option(help="Measured repetitions.")] = 10,
    warm_up: Annotated[int, typer.Option(help="Repetitions before.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds after which a comparison is ended.")] = 300.0,
    max_error: Annotated[float, typer.Option(help="Exit with 5 if an iteration is further off, such as 0.15.")] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document: machine, comparisons.")] = False,
) -> None:
    """Calibrate this machine on other models, predict training steps of this one, run them, and explain the difference.

    Runs on CPUs over gloo; GPUs are compared with python -m validation run and simulate validate.
    """
    counts = [text.strip() for text in nproc.split(",")]
    if not all(text.isdigit() and int(text) for text in counts):
        raise ConfigError(f"{nproc!r} is not a number of processes", hint="such as 2, or 1,2")
    settings = replace(
        HERE, model=model, layers=layers, micro_batch=micro_batch, schedule=schedule, n_repeats=repeats,
        n_warm_up=warm_up, timeout_s=timeout,
    )  # fmt: skip
    found = compare_here(settings, [int(text) for text in counts], jobs=_jobs_of(jobs))
    if json_:
        print(json.dumps(document(found)))
    else:
        print_comparisons(model, found)
    if max_error:
        check_here(found, max_error)


def _jobs_of(text: str) -> list[str]:
    names = [] if text == "none" else [name.strip() for name in text.split(",")]
    unknown = [name for name in names if name not in COMPARED]
    if unknown:
        raise ConfigError(f"job {unknown[0]!r} cannot be compared", hint=f"some of {', '.join(COMPARED)}, or none")
    return list(dict.fromkeys(names))
