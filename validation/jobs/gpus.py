"""GPUs of one node: topology from NVML, constants from their own kernels and collectives, training steps judged.

The calibration sees models around the one that is judged; the files it writes are those that ``simulate calibrate``
writes, in a folder that is gone afterwards.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simulator.analysis.side_by_side import Part, causes_of
from simulator.errors import CalibrationError, ThresholdError
from simulator.interop.machines.cluster import ImportedCluster
from simulator.units import count_of
from validation.jobs.job_settings import Settings
from validation.jobs.launch import start_here
from validation.tables.kinds import KINDS
from validation.tables.outcome import Outcome
from validation.tables.predicting import Validation, validate
from validation.tables.writing import Row, write_rows

#: models whose kernels calibrate, and the one that is judged
CALIBRATED, JUDGED = ("gpt2", "gpt2-large"), "gpt2-medium"
_SIZES_BYTES = tuple(1 << power for power in range(16, 29, 2))
_JUDGED_BYTES = tuple(1 << power for power in range(17, 29, 4))
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
_BASE = Settings(job="single", model=JUDGED, micro_batch=4, precision="bf16", device="cuda", timeout_s=240.0)
_PHASES = ("forward_s", "backward_s", "optimizer_s")

#: runs a job on so many GPUs and returns its rows
Run = Callable[[Settings, int], list[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuComparison:
    """Outcomes of the judged rows, and what calibration could not do."""

    found: Validation
    notes: tuple[str, ...]

    def causes(self) -> list[tuple[str, float]]:
        """Phases of the judged iterations by predicted less measured, in seconds, largest first."""
        phases = [
            Part(
                name=f"{_gpus(o)}, {o.row.metric.removesuffix('_s')}",
                predicted_s=o.predicted,
                measured_s=o.row.measured,
            )
            for o in self.found.outcomes
            if o.predicted is not None and o.row.metric in _PHASES
        ]
        return causes_of(phases)

    def iterations(self) -> list[Outcome]:
        """Return the judged iterations."""
        return [o for o in self.found.outcomes if o.row.metric == "iteration_time_s"]


def _gpus(outcome: Outcome) -> str:
    return count_of(int(outcome.row.text("gpus")), "GPU")


def run_on_gpus(settings: Settings, n_gpus: int) -> list[Row]:
    """Run a job in processes of its own: this one never touches a GPU."""
    from validation.jobs.run_command import run_job

    rows: list[Row] = start_here(n_gpus, lambda launch: run_job(settings, launch), timeout_s=settings.timeout_s)[0]
    return rows


def compare_gpus(
    folder: Path, n_gpus: int, cluster: ImportedCluster, *, run: Run = run_on_gpus, quiet: bool = True
) -> GpuComparison:
    """Calibrate, run and predict on GPUs."""

    def say(text: str) -> None:
        if not quiet:
            print(text, file=sys.stderr, flush=True)

    say(f"timing kernels of {' and '.join(CALIBRATED)}")
    device = _fit_device(folder, str(cluster.data["node"]["device"]), run)
    node = {**cluster.data["node"], "device": str(device)}
    path = folder / "cluster.yaml"
    path.write_text(replace(cluster, data={**cluster.data, "node": node}).to_yaml(), encoding="utf-8")
    notes = list(cluster.report.assumed)
    files = [_write(folder, "kernels", run(_job("kernels", device), 1), "judged-kernels")]
    if n_gpus > 1:
        say(f"timing collectives of {n_gpus} GPUs")
        notes += _fit_collectives(folder, path, n_gpus, run)
        rows = run(replace(_job("collectives", path), sizes_bytes=_JUDGED_BYTES, collectives=_COLLECTIVES), n_gpus)
        files.append(_write(folder, "collectives", rows, "judged-collectives"))
    say(f"training {JUDGED}")
    rows = run(_job("single", path), 1)
    if n_gpus > 1:
        rows += run(_job("ddp", path), n_gpus)
    files.append(_write(folder, "training", rows, "training"))
    return GpuComparison(found=validate(files, n_processes=1, quiet=quiet), notes=tuple(notes))


def _job(job: str, topology: Path | str, model: str = JUDGED) -> Settings:
    return replace(_BASE, job=job, topology=str(topology), model=model)


def _write(folder: Path, kind: str, rows: Sequence[Row], name: str) -> Path:
    path = folder / f"{name}.csv"
    write_rows(path, KINDS[kind].columns, rows)
    return path


def _fit_device(folder: Path, name: str, run: Run) -> Path:
    """Time kernels of the calibration models and return a device file with constants fitted to them."""
    from simulator.calibration.kernels import fit_kernels, write_kernels
    from simulator.config import read_text, resolve_name

    rows = [{**row, "split": "fit"} for model in CALIBRATED for row in run(_job("kernels", name, model), 1)]
    table = _write(folder, "kernels", rows, "kernels")
    path = folder / "device.yaml"
    path.write_text(read_text(resolve_name(name, "devices")), encoding="utf-8")
    write_kernels(path, fit_kernels(table, name), source=f"{len(rows)} kernels timed on this machine")
    return path


def _fit_collectives(folder: Path, path: Path, n_gpus: int, run: Run) -> list[str]:
    """Fit the cluster file's constants to its own collectives; return why not where they do not determine any."""
    from simulator.calibration.cluster_fit import fit_cluster, fitted_cluster_text, read_measurements
    from simulator.interop import open_topology

    rows = run(replace(_job("collectives", path), sizes_bytes=_SIZES_BYTES, collectives=_COLLECTIVES), n_gpus)
    table = _write(folder, "collectives", [{**row, "split": "fit"} for row in rows], "collectives")
    machine = open_topology(str(path))
    try:
        fit = fit_cluster(read_measurements([table], machine, str(path)), machine.name)
    except CalibrationError as error:
        return [f"constants of collectives stay as shipped: {error.message}"]
    path.write_text(fitted_cluster_text(str(path), fit, [table]), encoding="utf-8")
    return list(fit.notes)


def check_gpus(one: GpuComparison, threshold: float) -> None:
    """Check that no judged iteration is further off than ``threshold``."""
    far = []
    for outcome in one.iterations():
        error = outcome.relative_error
        if error is None:
            far.append(f"{_gpus(outcome)}: {outcome.reason}")
        elif abs(error) > threshold:
            far.append(f"{_gpus(outcome)}: {error:+.1%}")
    if far:
        raise ThresholdError(f"iterations are predicted worse than {threshold:.1%}: {', '.join(far)}")


def document(one: GpuComparison) -> dict[str, Any]:
    """Return the JSON document: that of ``simulate validate`` with ``causes`` and ``notes``."""
    from validation.tables.error_tables import document as rows_document

    return {**rows_document(one.found.outcomes, one.found.by), "causes": one.causes(), "notes": list(one.notes)}


def print_gpus(one: GpuComparison) -> None:
    """Print errors per group and row, and the phases that the difference comes from."""
    from validation.tables.error_tables import print_tables

    for note in one.notes:
        print(f"assumed: {note}")
    print_tables(one.found.outcomes, one.found.by)
    print("where the difference of the iterations comes from, largest first")
    for cause, seconds in one.causes():
        print(f"  {cause:<40} {seconds * 1e3:>+9.3f} ms")
