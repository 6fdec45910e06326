"""Refit the constants of collectives, and show what they are worth.

``python -m simulator.calibration.collective_fit TABLE.csv`` fits from round figures and prints errors;
``--leave-one-out`` fits without each cluster in turn and predicts it; ``--write FILE`` keeps the constants.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.calibration.collective_blocks import all_blocks
from simulator.calibration.collectives import (
    Errors,
    Measured,
    errors_of,
    fit_all,
    leave_one_out,
    read_measured,
    write_table,
)
from simulator.config import load_yaml, resolve_name
from simulator.errors import CalibrationError

#: from this size on a collective counts as large
LARGE_BYTES = 2**20
_HEADER = """What a collective costs once NCCL has chosen algorithm and protocol, by class of GPU and network.
Lists are per protocol: LL, LL128, Simple (two values: LL and Simple). Efficiencies are payload over raw
link rate; those of LL between nodes are far below one, since few threads wait for each line. Refit with
python -m simulator.calibration.collective_fit."""
_SOURCE = (
    "fitted by simulator.calibration.collective_fit to the fit rows of measurements/collectives.csv "
    "(nccl-tests tables of {clusters}), starting from network/nccl-start.yaml"
)


def starting_table() -> dict[str, Any]:
    """Round figures from which every fit starts."""
    data, _ = load_yaml(resolve_name("nccl-start", "network"))
    return dict(data)


def fitted_table(rows: Sequence[Measured]) -> dict[str, Any]:
    """Constants fitted to the rows with ``split=fit``, with their source."""
    kept = [row for row in rows if row.split == "fit"]
    table = fit_all(starting_table(), all_blocks(), kept)
    clusters = ", ".join(sorted({row.topology for row in kept}))
    return {**table, "source": _SOURCE.format(clusters=clusters)}


def _line(name: str, errors: Errors) -> str:
    return f"{name:<28} {errors.n:>5} {errors.median:>8.1%} {errors.p90:>8.1%} {errors.bias:>+8.1%}"


def describe(rows: Sequence[Measured], table: dict[str, Any]) -> str:
    """Errors by split and size, and by cluster for large sizes, as text."""
    lines = [f"{'':<28} {'n':>5} {'median':>8} {'p90':>8} {'bias':>8}"]
    for split in ("fit", "test"):
        large = [row for row in rows if row.split == split and row.n_bytes >= LARGE_BYTES]
        small = [row for row in rows if row.split == split and row.n_bytes < LARGE_BYTES]
        lines.append(_line(f"{split}, from 1 MiB", errors_of(large, table)))
        lines.append(_line(f"{split}, below 1 MiB", errors_of(small, table)))
    for cluster in sorted({row.topology for row in rows}):
        large = [row for row in rows if row.topology == cluster and row.n_bytes >= LARGE_BYTES]
        lines.append(_line(f"{cluster}, from 1 MiB", errors_of(large, table)))
    return "\n".join(lines)


def left_out(rows: Sequence[Measured]) -> dict[str, Errors]:
    """Errors on each cluster, by constants fitted without it; see :func:`leave_one_out`."""
    return leave_one_out(starting_table(), all_blocks(), rows, smallest_bytes=LARGE_BYTES)


def write_fitted(table: dict[str, Any], path: Path) -> None:
    """Write fitted constants as the shipped file has them.

    Raises
    ------
    CalibrationError
        If the file cannot be written.
    """
    try:
        write_table(table, path, _HEADER)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be written: {error.strerror}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="collective_fit", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("table", type=Path, help="measured rows in the columns of collectives.csv")
    parser.add_argument("--leave-one-out", action="store_true", help="fit without each cluster and predict it")
    parser.add_argument("--write", type=Path, help="file for the fitted constants")
    options = parser.parse_args(arguments)
    rows = read_measured(options.table)
    if options.leave_one_out:
        left = left_out(rows)
        sys.stdout.write("".join(_line(name, errors) + "\n" for name, errors in left.items()))
        return 0
    table = fitted_table(rows)
    sys.stdout.write(describe(rows, table) + "\n")
    if options.write:
        write_fitted(table, options.write)
    return 0


if __name__ == "__main__":
    sys.exit(main())
