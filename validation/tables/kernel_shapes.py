"""Kernel rows: the kernel model's time for what was timed."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.calibration.kernel_rows import row_of
from simulator.calibration.kernels import predict_rows_s
from simulator.kernels.roofline import KernelConstants
from simulator.topology.device_file import load_device
from validation.tables.many_jobs import Tell
from validation.tables.outcome import Outcome, one_by_one
from validation.tables.reader import Row


def predict(rows: Sequence[Row], tell: Tell | None = None, n_processes: int = 1) -> list[Outcome]:
    """Predict the time of every kernel row in microseconds, under the conditions of its timing."""
    constants: dict[str, KernelConstants] = {}

    def kernel_us(row: Row) -> tuple[float, str]:
        timed = row_of(row.cells, f"{row.file}:{row.line}")
        device = load_device(row.text("device"))
        known = constants.setdefault(device.name, KernelConstants.of(device))
        return 1e6 * float(predict_rows_s([timed], device, known)[0]), ""

    return one_by_one(kernel_us)(rows, tell, n_processes)
