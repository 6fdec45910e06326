"""``python -m validation compare``: calibrate, run, simulate and explain, on this machine."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import Annotated, Any

import typer

from simulator.errors import ConfigError, ThresholdError
from validation.emulation.ranks import ending_cleanly
from validation.jobs.launch import Launch, process_group, require_torch, start_here
from validation.jobs.settings import Settings


def _compare(settings: Settings, n_ranks: int) -> Any:
    """Measure on ``n_ranks`` processes of this machine and set the simulation beside it."""
    import torch

    from validation.jobs.compare import compare
    from validation.jobs.observe import Seen, observe
    from validation.jobs.training import size_of

    size = size_of(settings)

    def body(launch: Launch) -> Seen:
        torch.set_num_threads(1)
        device = torch.device("cpu")
        if n_ranks == 1:
            return observe(settings, size, launch, device)
        with process_group(launch, "gloo", settings.timeout_s):
            return observe(settings, size, launch, device)

    seen = start_here(n_ranks, body, timeout_s=settings.timeout_s)
    return compare(seen, size, settings, os.cpu_count() or 1)


def compare(
    model: Annotated[str, typer.Option(help="GPT-2 size: gpt2-micro, gpt2-tiny, gpt2 ...")] = "gpt2-tiny",
    layers: Annotated[int, typer.Option(help="Blocks; 0 is the model's own number.")] = 0,
    micro_batch: Annotated[int, typer.Option(help="Sequences per rank.")] = 2,
    nproc: Annotated[str, typer.Option(help="Processes; a list compares each.")] = "1,2",
    repeats: Annotated[int, typer.Option(help="Measured repetitions.")] = 10,
    warm_up: Annotated[int, typer.Option(help="Repetitions before.")] = 3,
    timeout: Annotated[float, typer.Option(help="Seconds after which a comparison is ended.")] = 300.0,
    max_error: Annotated[float, typer.Option(help="Exit with 5 if an iteration is further off, such as 0.15.")] = 0.0,
    json_: Annotated[bool, typer.Option("--json", help="Print one JSON document: comparisons.")] = False,
) -> None:
    """Calibrate this machine on other models, predict a training step of this one, run it, and explain the difference.

    Runs on CPUs over gloo; GPUs are compared with python -m validation run and simulate validate.
    """
    counts = [text.strip() for text in nproc.split(",")]
    if not all(text.isdigit() and int(text) for text in counts):
        raise ConfigError(f"{nproc!r} is not a number of processes", hint="such as 2, or 1,2")
    settings = Settings(
        job="single", model=model, layers=layers, micro_batch=micro_batch, n_repeats=repeats, n_warm_up=warm_up,
        device="cpu", timeout_s=timeout,
    )  # fmt: skip
    require_torch()
    found = []
    with ending_cleanly():
        for text in counts:
            print(f"calibrating, running and simulating with {text} processes", file=sys.stderr)
            found.append(_compare(settings, int(text)))
    if json_:
        documents = [{**asdict(one), "relative_error": one.relative_error, "causes": one.causes()} for one in found]
        print(json.dumps({"comparisons": documents}))
    else:
        for one in found:
            _show(model, one)
    far = [
        f"{one.n_ranks} processes: {one.relative_error:+.1%}" for one in found if abs(one.relative_error) > max_error
    ]
    if max_error and far:
        raise ThresholdError(f"iterations are predicted worse than {max_error:.0%}: {', '.join(far)}")


def _show(model: str, one: Any) -> None:
    print(f"\n{model} on {one.n_ranks} processes" + " " * 12 + "predicted    measured")

    def line(name: str, predicted: float, measured: float) -> None:
        error = f"{predicted / measured - 1:+8.1%}" if measured else ""
        print(f"  {name:<30} {predicted * 1e3:>9.3f} ms {measured * 1e3:>9.3f} ms {error}")

    line("iteration", *one.iteration)
    line("forward and backward", *one.forward_backward)
    line("optimizer", *one.optimizer)
    for kind, (predicted, measured) in one.operators.items():
        if predicted or measured:
            line(f"operators: {kind}", predicted, measured)
    for n_bytes, predicted, measured in one.collectives:
        line(f"all_reduce {n_bytes} bytes", predicted, measured)
    print("  the difference, by cause:")
    for cause, seconds in one.causes():
        print(f"    {cause:<36} {seconds * 1e3:>+9.3f} ms")
