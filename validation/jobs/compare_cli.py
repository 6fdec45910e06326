"""``python -m validation compare``: calibrate, run, simulate and explain, on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Annotated

import typer

from simulator.errors import ConfigError
from validation.jobs.here import HERE, check_here, compare_here, document
from validation.jobs.settings import COMPARED
from validation.jobs.shown import print_comparisons


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
    found = compare_here(settings, [int(text) for text in counts], jobs=_jobs_of(jobs), quiet=False)
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
