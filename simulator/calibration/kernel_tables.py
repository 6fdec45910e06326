"""Published operator tables in their own columns: layer profiles, and efficiencies by shape."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from simulator.calibration.kernel_rows import KernelRow
from simulator.errors import CalibrationError
from simulator.kernels.conditions import CONDITIONS
from simulator.models.layer import GemmShape, Pass

#: operation of the profiles -> output and input features in units of the hidden size
_LAYERS = {
    "enc-attention-dense": (1, 1),
    "enc-MLP-GEMM-1": (4, 1),
    "enc-MLP-GEMM-2": (1, 4),
}

#: layout of the operands in the tables -> pass whose operands lie so
_LAYOUTS: dict[str, Pass] = {"TN": "forward", "NN": "dgrad", "NT": "wgrad"}


def _read(path: str | Path) -> Iterator[dict[str, str]]:
    try:
        if str(path).endswith(".gz"):
            with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
                yield from csv.DictReader(file)
        else:
            with Path(path).open(encoding="utf-8", newline="") as file:
                yield from csv.DictReader(file)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from None


def read_layer_profiles(path: str | Path, gpus: tuple[str, ...], *, shortest_s: float = 150e-6) -> list[KernelRow]:
    """Read the matrix products of training profiles: forward passes without tensor parallelism.

    Backward passes are left out (their gradients are constant, and constant operands draw less power), and so
    are times in which the host shows.

    Parameters
    ----------
    path : str or Path
        A table with columns ``gpu, dtype, tp, tokens_inferred, hidden_inferred, op, fwd_us``.
    gpus : collection of str
        Names in the ``gpu`` column that mean one device.
    shortest_s : float
        Shorter times are left out.

    Returns
    -------
    list of KernelRow
        One per device and shape, the median where several were timed.
    """
    times: dict[tuple[str, GemmShape], list[float]] = {}
    for row in _read(path):
        known = row["gpu"] in gpus and row["dtype"] == "fp16" and row["tp"] == "1" and row["op"] in _LAYERS
        if not known or not row["tokens_inferred"] or not row["hidden_inferred"]:
            continue
        rows, columns = _LAYERS[row["op"]]
        hidden = int(row["hidden_inferred"])
        shape = GemmShape(m=int(row["tokens_inferred"]), n=rows * hidden, k=columns * hidden, dtype="fp16")
        time_s = 1e-6 * float(row["fwd_us"])
        if time_s >= shortest_s:
            times.setdefault((row["gpu"], shape), []).append(time_s)
    return [
        KernelRow(
            source=f"training profiles {gpu}",
            shape=shape,
            time_s=median(found),
            split="fit",
            conditions=CONDITIONS["training"],
        )
        for (gpu, shape), found in sorted(times.items(), key=lambda item: (item[0][0], repr(item[0][1])))
    ]


def read_efficiencies(path: str | Path, gpu: str) -> list[KernelRow]:
    """Read single matrix products from a table of efficiencies by shape and layout.

    Parameters
    ----------
    path : str or Path
        A table with columns ``gpu, op, b, m, n, k, layout, out_dtype, time_us``.
    gpu : str
        Name in the ``gpu`` column.
    """
    return [
        KernelRow(
            source=f"efficiency table {gpu}",
            shape=GemmShape(
                m=int(row["m"]),
                n=int(row["n"]),
                k=int(row["k"]),
                batch=int(row["b"]),
                kernel_pass=_LAYOUTS[row["layout"]],
            ),
            time_s=1e-6 * float(row["time_us"]),
            split="fit",
            conditions=CONDITIONS["graph_replay"],
        )
        for row in _read(path)
        if row["gpu"] == gpu and row["op"] == "matmul" and row["time_us"]
    ]
