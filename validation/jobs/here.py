"""Calibrate this machine, run small jobs on it, simulate the same jobs, and say where the difference comes from.

What ``simulate validate --here`` and ``python -m validation compare`` do.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError, ThresholdError
from validation.emulation.ranks import ending_cleanly
from validation.jobs.launch import Launch, process_group, require_torch, start_here
from validation.jobs.settings import Settings

if TYPE_CHECKING:
    from validation.jobs.compare import Comparison

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


def compare_here(settings: Settings = HERE, counts: Sequence[int] = COUNTS, *, quiet: bool = True) -> list[Comparison]:
    """Calibrate, run and simulate a training step on so many processes of this machine each.

    Parameters
    ----------
    settings : Settings
        The job; ``job`` itself follows from the number of processes.
    counts : sequence of int
        Processes of each run.
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
            found.append(_compare(settings, n_ranks))
    return found


def _compare(settings: Settings, n_ranks: int) -> Comparison:
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
    return compare(seen, size, settings)


def machine() -> str:
    """Say in a few words what this machine is."""
    import torch

    system = f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}"
    load = os.getloadavg()[0]
    busy = f", busy with other work (load {load:.1f})" if load > 1.5 * (os.cpu_count() or 1) + 1 else ""
    return f"{os.cpu_count()} processors, {system}, PyTorch {torch.__version__} (CPU, gloo){busy}"


def document(found: Sequence[Comparison]) -> dict[str, Any]:
    """Return the JSON document: ``machine`` and ``comparisons``, each with its relative error and ranked causes."""
    return {
        "machine": machine(),
        "comparisons": [{**asdict(one), "relative_error": one.relative_error, "causes": one.causes()} for one in found],
    }


def print_comparisons(name: str, found: Sequence[Comparison]) -> None:
    """Print predicted beside measured: iteration, operators, collectives, and the causes of the difference."""
    print(machine())
    for one in found:
        _print_comparison(name, one)


def _print_comparison(name: str, one: Comparison) -> None:
    said = f"{name} on {one.n_ranks} process{'es' if one.n_ranks > 1 else ''}"
    print(f"\n{said:<44} {'predicted':>12} {'measured':>12}    error")

    def line(what: str, predicted: float, measured: float) -> None:
        error = f"{predicted / measured - 1:+8.1%}" if measured > 0 else ""
        print(f"  {what:<42} {predicted * 1e3:>9.3f} ms {measured * 1e3:>9.3f} ms {error}")

    line("iteration", *one.iteration)
    line("forward and backward", *one.forward_backward)
    line("optimizer", *one.optimizer)
    print("  operators, each timed by itself, per step")
    for op in one.operators:
        line(f"  {op.name}, {op.n_calls} call{'s' if op.n_calls > 1 else ''}", op.predicted_s, op.measured_s)
    if one.collectives:
        print("  collectives, at sizes between those calibrated on")
        for n_bytes, predicted, measured in one.collectives:
            line(f"  all_reduce of {n_bytes / 2**20:g} MiB", predicted, measured)
    print("  where the difference of the iteration comes from, largest first")
    for cause, seconds in one.causes():
        print(f"    {cause:<40} {seconds * 1e3:>+9.3f} ms {seconds / one.iteration[1]:>+22.1%}")


def write_page(path: str | Path, name: str, found: Sequence[Comparison]) -> None:
    """Write plots and tables of the comparisons as one HTML file.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    from simulator.report.agreement import PageTable, Point, agreement_page

    points, tables = [], []
    for one in found:
        series = f"{one.n_ranks} process{'es' if one.n_ranks > 1 else ''}"
        values = [("iterations and operators, seconds per step", "iteration", *one.iteration)]
        values += [(values[0][0], op.name, op.predicted_s, op.measured_s) for op in one.operators]
        values += [("collectives, seconds", f"all_reduce of {n} bytes", p, m) for n, p, m in one.collectives]
        points += [Point(plot=p, series=series, label=what, predicted=a, measured=b) for p, what, a, b in values]
        rows = sorted(values, key=lambda value: -abs(value[2] / value[3] - 1))
        tables.append(
            PageTable(
                title=f"{name} on {series}, worst first",
                columns=("what", "predicted, ms:", "measured, ms:", "error:"),
                rows=tuple((what, f"{1e3 * a:.4g}", f"{1e3 * b:.4g}", f"{a / b - 1:+.1%}") for _, what, a, b in rows),
            )
        )
        tables.append(
            PageTable(
                title=f"Where the difference of the iteration comes from: {series}",
                columns=("cause", "difference, ms:", "of the iteration:"),
                rows=tuple((c, f"{1e3 * s:+.4g}", f"{s / one.iteration[1]:+.1%}") for c, s in one.causes()),
            )
        )
    try:
        page = agreement_page("This machine: predicted against measured", machine(), points, tables)
        Path(path).write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from None


def check_here(found: Sequence[Comparison], threshold: float) -> None:
    """Check that no iteration is further off than ``threshold``.

    Raises
    ------
    ThresholdError
        Naming those that are.
    """
    far = [f"{one.n_ranks}: {one.relative_error:+.1%}" for one in found if abs(one.relative_error) > threshold]
    if far:
        raise ThresholdError(f"iterations are predicted worse than {threshold:.1%}, by processes: {', '.join(far)}")
