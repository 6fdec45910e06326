"""``simulate calibrate``: constants of clusters and devices from measurements."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.cli.options import PLAIN_JSON, PROCESSES_HELP, WHERE_HELP, Text, Texts, option
from simulator.cli.shared import print_json, say_written, write_warnings

if TYPE_CHECKING:
    from simulator.calibration.cluster_fit import ClusterFit
    from simulator.calibration.kernels import KernelFit
    from simulator.calibration.robust import Residuals

calibrate = typer.Typer(no_args_is_help=True, help="Fit constants to measurements and write them with their source.")


@calibrate.command("collectives")
def collectives(
    files: Annotated[
        list[str], typer.Argument(help="nccl-tests logs (text or JSON) or tables (CSV).", show_default=False)
    ],
    topology: Annotated[
        Text, option("Cluster that was measured: a file or a shipped name.", "--topology", "-t")
    ] = None,
    transport: Annotated[Text, option("What carried the data between nodes.")] = None,
    collective: Annotated[Text, option("Collective of the logs, if they do not name it.")] = None,
    out: Annotated[Text, option("Write the cluster file with the fitted constants.", "--out", "-o")] = None,
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Fit without each cluster of a table in turn and predict it.")
    ] = False,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Fit what collectives cost on one cluster to its own nccl-tests runs, or judge the shipped constants.

    Without --topology, all clusters of the tables are fitted together, class by class, as the shipped constants were.
    """
    from simulator.config import keep_inputs
    from simulator.errors import CalibrationError

    keep_inputs(out, files)
    if topology is None:
        _all_clusters([Path(file) for file in files], out, leave_one_out=leave_one_out, json_output=json_output)
        return
    if leave_one_out:
        raise CalibrationError("--leave-one-out takes a table of several clusters", hint="leave --topology out")
    from simulator.calibration.cluster_fit import fit_cluster, fitted_cluster_text, read_measurements
    from simulator.config import write_file
    from simulator.interop import open_topology

    machine = open_topology(topology)
    rows = read_measurements(files, machine, topology, transport=transport or "", collective=collective)
    fit = fit_cluster(rows, machine.name)
    if out:
        write_file(out, fitted_cluster_text(topology, fit, files))
    if json_output:
        print_json(_cluster_document(fit, out))
    else:
        _print_cluster(fit)
    say_written(out)


@calibrate.command("kernels")
def kernels(
    file: Annotated[str, typer.Argument(help="Timed kernels (CSV).", show_default=False)],
    device: Annotated[str, option("Device: a file or a shipped name; selects the rows.", "--device", "-d")],
    start_from: Annotated[Text, option("Device whose constants are the start; itself by default.")] = None,
    out: Annotated[Text, option("Write the device file with the fitted constants.", "--out", "-o")] = None,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Fit the kernel constants of a device to a table of timed kernels."""
    from simulator.calibration.doubtful_rows import shortened
    from simulator.calibration.kernels import fit_kernels, undetermined_kernels, write_kernels
    from simulator.config import keep_inputs, read_text, resolve_name, write_file
    from simulator.topology.device_file import load_device
    from validation.tables.reader import find_table

    file = str(find_table(Path(file)))
    keep_inputs(out, [file])
    known = load_device(device)
    fit = fit_kernels(file, device, start_from=start_from or "")
    write_warnings([*(f"{one}; left out" for one in shortened(fit.left_out)), *fit.doubts])
    missing = undetermined_kernels(file, known, fit)
    if out:
        write_file(out, read_text(resolve_name(device, "devices")))
        n_rows = sum(found.n for name, found in fit.residuals.items() if " / " not in name)
        write_kernels(out, fit, source=f"simulate calibrate kernels: {n_rows} rows of {Path(file).name}")
    if json_output:
        print_json(_kernel_document(fit, missing, out))
    else:
        _print_kernels(fit, missing)
    say_written(out)


@calibrate.command("training")
def training(
    file: Annotated[str, typer.Argument(help="Training measurements (CSV), of several sources.", show_default=False)],
    where: Annotated[Texts, option(WHERE_HELP)] = None,
    split: Annotated[str, typer.Option(help="Rows to fit: those of this split; empty takes all.")] = "fit",
    leave_one_out: Annotated[
        bool, typer.Option("--leave-one-out", help="Also predict each source with what the others say.")
    ] = False,
    processes: Annotated[int, typer.Option(min=0, help=PROCESSES_HELP)] = 0,
    json_output: Annotated[bool, PLAIN_JSON] = False,
) -> None:
    """Fit a factor to each part of predicted iterations: what shipped constants leave, and how sure that is.

    Nothing is written: constants come from kernels and collectives timed by themselves.
    """
    from dataclasses import asdict

    from validation.tables.predicting import validate
    from validation.tables.shares import fit_shares

    conditions = ["metric=iteration_time_s", *(where or ())]
    found = validate([file], where=conditions, split=split, n_processes=processes, quiet=False)
    write_warnings(found.warnings)
    fit = fit_shares(found.outcomes, split)
    if json_output:
        print_json(asdict(fit))
        return
    from simulator.report.grid import Grid
    from simulator.report.terminal import print_grid

    factors = [(one.part, f"{one.share:.1%}", f"{one.value:.3f}", f"{one.uncertainty:.3f}") for one in fit.factors]
    title = f"{fit.n} iterations of {len(fit.left_out)} sources"
    print_grid(Grid(title, ("part of the iteration", "share", "factor", "±"), factors))
    if leave_one_out:
        rows = [
            (
                one.source, one.n, f"{one.as_shipped:.1%} -> {one.refitted:.1%}",
                f"{one.bias_as_shipped:+.1%} -> {one.bias_refitted:+.1%}",
            )
            for one in fit.left_out
        ]  # fmt: skip
        title = "each source as predicted, and with factors that have not seen it"
        print()
        print_grid(Grid(title, ("", "n", "mean", "bias"), rows))


# ---- all clusters --------------------------------------------------------------------------


def _all_clusters(paths: Sequence[Path], out: str | None, *, leave_one_out: bool, json_output: bool) -> None:
    from simulator.calibration.collective_fit import errors_by_part, fitted_table, left_out, write_fitted
    from simulator.calibration.collectives import read_measured, summed_up
    from validation.tables.reader import find_table

    rows = [row for path in paths for row in read_measured(find_table(path))]
    n_clusters = len({row.topology for row in rows})
    times = f"{n_clusters} times, each time without one cluster" if leave_one_out else "once, all clusters together"
    print(f"fitting {times} ...", file=sys.stderr)
    if leave_one_out:
        errors = summed_up(left_out(rows))
        if json_output:
            print_json({"left_out": {name: _plain(found) for name, found in errors.items()}})
        else:
            _print_errors("each cluster predicted by constants that have not seen it, sizes from 1 MiB", errors)
        return
    table = fitted_table(rows)
    if out:
        write_fitted(table, Path(out))
    if json_output:
        print_json({"constants": table, "out": out})
    else:
        _print_errors("residuals", errors_by_part(rows, table))
    say_written(out)


def _plain(found: Residuals) -> dict[str, float]:
    return {"n": found.n, "median_absolute": found.median, "p90_absolute": found.p90, "bias": found.bias}


def _print_errors(title: str, errors: Mapping[str, Residuals]) -> None:
    from simulator.report.grid import Grid
    from simulator.report.terminal import print_grid

    rows = [(name, one.n, f"{one.median:.1%}", f"{one.p90:.1%}", f"{one.bias:+.1%}") for name, one in errors.items()]
    print_grid(Grid(title, ("", "n", "median", "p90", "bias"), rows))


def _print_undetermined(reasons: Mapping[str, str]) -> None:
    if reasons:
        print("\nnot determined, left as they were")
    for reason in dict.fromkeys(reasons.values()):
        print(f"  {reason}: {'; '.join(name for name, why in reasons.items() if why == reason)}")


# ---- one cluster ---------------------------------------------------------------------------


def _cluster_document(fit: ClusterFit, out: str | None) -> dict[str, Any]:
    return {
        "topology": fit.topology,
        "transport": fit.transport,
        "nccl": fit.nccl,
        "constants": [
            {"name": c.name, "before": c.before, "value": c.value, "relative_error": c.relative_error} for c in fit.constants
        ],
        "undetermined": dict(fit.undetermined),
        "errors_before": {name: _plain(found) for name, found in fit.before.items()},
        "errors_after": {name: _plain(found) for name, found in fit.after.items()},
        "n_fitted": fit.n_fitted,
        "n_held_out": fit.n_held_out,
        "notes": list(fit.notes),
        "out": out,
    }  # fmt: skip


def _print_cluster(fit: ClusterFit) -> None:
    from simulator.report.grid import Grid
    from simulator.report.terminal import print_grid

    where = f"{fit.topology}{f' over {fit.transport}' if fit.transport else ''}"
    version = f", NCCL {fit.nccl}" if fit.nccl else ""
    print("\n".join([f"{where}{version}: {fit.n_fitted} rows fitted, {fit.n_held_out} held out", *fit.notes, ""]))
    constants = [(c.name, f"{c.before:.4g}", f"{c.value:.4g}", f"{c.relative_error:.1%}") for c in fit.constants]
    print_grid(Grid("", ("constant", "before", "fitted", "±"), constants))
    residuals = []
    for name, after in fit.after.items():
        before = fit.before[name]
        shares = (f"{old:.1%} -> {new:.1%}" for old, new in ((before.median, after.median), (before.p90, after.p90)))
        residuals.append((name, after.n, *shares, f"{before.bias:+.1%} -> {after.bias:+.1%}"))
    print()
    print_grid(Grid("residuals", ("", "n", "median", "p90", "bias"), residuals))
    _print_undetermined(fit.undetermined)
    if _grew(fit):
        print("\nThe rows held out are predicted worse than before: more sizes are needed, or keep the old constants.")


def _grew(fit: ClusterFit) -> bool:
    held = [name for name in fit.after if name.startswith("held out")]
    after, before = (sum(errors[name].median * errors[name].n for name in held) for errors in (fit.after, fit.before))
    return after > before


# ---- kernels -------------------------------------------------------------------------------


def _kernel_document(fit: KernelFit, missing: Mapping[str, str], out: str | None) -> dict[str, Any]:
    def errors(found: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _plain(residuals) for name, residuals in found.items()}

    return {
        "device": fit.device, "constants": fit.sections, "errors_fitted": errors(fit.residuals),
        "errors_held_out": errors(fit.held_out),
        "uncertainty": {name: error if error < float("inf") else None for name, error in fit.uncertainty.items()},
        "relative_error": fit.relative_error, "undetermined": dict(missing), "left_out": list(fit.left_out),
        "doubts": list(fit.doubts), "out": out,
    }  # fmt: skip


def _print_kernels(fit: KernelFit, missing: Mapping[str, str]) -> None:
    from simulator.config import leaves

    print(f"{fit.device}: one standard deviation {fit.relative_error:.1%}\n\nconstants")
    for name, value in leaves(fit.sections):
        error = fit.uncertainty.get(name)
        sure = "" if error is None else f"  ± {error:.1%}" if error < float("inf") else "  not determined by these rows"
        print(f"  {name}: {f'{value:g}' if isinstance(value, int | float) else value}{sure}")
    for title, found in (("fitted rows", fit.residuals), ("rows held out", fit.held_out)):
        print()
        if found:
            _print_errors(f"residuals, {title}", found)
        else:
            print(f"no {title}")
    _print_undetermined(missing)
