"""Kernel rows: the kernel model's time for what was timed."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.errors import SimulatorError
from validation.tables.many_jobs import Progress
from validation.tables.outcome import Outcome
from validation.tables.reader import Row


def predict(rows: Sequence[Row], progress: Progress | None = None, n_processes: int = 1) -> list[Outcome]:
    """Predict the time of every kernel row in microseconds, under the conditions of its timing.

    It runs in one process, as it takes milliseconds.
    """
    from simulator.calibration.kernel_rows import row_of
    from simulator.calibration.kernels import predict_rows_s
    from simulator.kernels.roofline import KernelConstants
    from simulator.topology.device import load_device

    del n_processes
    constants: dict[str, KernelConstants] = {}
    outcomes: list[Outcome] = []
    for row in rows:
        if progress is not None:
            progress.update(len(outcomes), len(rows))
        try:
            timed = row_of(row.cells, f"{row.file}:{row.line}")
            device = load_device(row.text("device"))
            known = constants.setdefault(device.name, KernelConstants.of(device))
            predicted = 1e6 * float(predict_rows_s([timed], device, known)[0])
            outcomes.append(Outcome(row=row, predicted=predicted))
        except SimulatorError as error:
            outcomes.append(Outcome(row=row, reason=error.message))
    return outcomes
