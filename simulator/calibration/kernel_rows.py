"""Rows of a kernel measurement table as kernel shapes, with the conditions under which each was timed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from simulator.calibration.tables import read_rows
from simulator.errors import CalibrationError
from simulator.kernels.conditions import Conditions, conditions_of, library_kernel
from simulator.models.layer import DTYPE_BYTES, AttentionShape, GemmShape, KernelShape, Pass, PointwiseShape

_DTYPES = {"f32": "fp32", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
_PASSES: dict[str, Pass] = {
    "": "forward",
    "nn": "forward",
    "forward": "forward",
    "dgrad": "dgrad",
    "wgrad": "wgrad",
    "backward": "backward",
}

#: operation -> bytes read and written per element forward, and backward; rows are reduced where True
_TRAFFIC: dict[str, tuple[float, float, float, float, bool]] = {
    "layer_norm": (2, 2, 4, 2, True),
    "rms_norm": (2, 2, 4, 2, True),
    "gelu": (2, 2, 4, 2, False),
    "silu": (2, 2, 4, 2, False),
    "add": (4, 2, 0, 0, False),
    "mul": (4, 2, 4, 2, False),
    "dropout": (2, 3, 3, 2, False),
    "to_f32": (2, 4, 4, 2, False),
    "cross_entropy": (2, 2, 2, 2, True),
    "softmax": (2, 2, 4, 2, True),
}


#: operations with a rule of their own
_OTHERS = ("gemm", "flash_attention", "bmm_qk", "bmm_pv", "adamw_fused", "clip_grad_norm", "embedding")
_BATCHED = ("batch", "heads", "seq_len", "head_dim")
#: operation -> sizes that it must have; ``m`` for all others
_SIZES = {
    "gemm": ("m", "n", "k"),
    "flash_attention": (*_BATCHED, "kv_heads"),
    "bmm_qk": _BATCHED,
    "bmm_pv": _BATCHED,
    "softmax": ("batch", "heads", "seq_len"),
}
_NEEDED = ("device", "op", "time_us")
_OPTIONAL = (
    "row_id", "source", "pass", "m", "n", "k", "batch", "heads", "kv_heads", "seq_len", "head_dim", "causal", "dtype",
    "split", "notes",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """One timed kernel.

    Parameters
    ----------
    source : str
        Repository or publication, without the file.
    shape : KernelShape
    time_s : float
    split : str
        ``fit`` or ``test``.
    conditions : Conditions
        How it was timed.
    implementation : str
        Name of the library kernel where the table states it, otherwise empty.
    """

    source: str
    shape: KernelShape
    time_s: float
    split: str
    conditions: Conditions
    implementation: str = ""


def read_kernel_rows(path: str | Path, device: str, *, splits: Iterable[str] = ("fit",)) -> list[KernelRow]:
    """Read the rows of one device.

    Parameters
    ----------
    path : str or Path
        A table in the columns of ``kernels.csv``.
    device : str
        Name in the ``device`` column.
    splits : iterable of str
        Which rows to keep.

    Returns
    -------
    list of KernelRow
        Rows of operations that launch a kernel; an addition's backward does not.

    Raises
    ------
    CalibrationError
        If the file cannot be read, has no row of this device, or a row makes no sense.

    Notes
    -----
    Of rows that say neither ``fit`` nor ``test``, every fourth is for testing.
    """
    wanted = set(splits)
    table = read_rows(Path(path), _NEEDED, _OPTIONAL)
    ours = [row for row in table if row["device"] == device]
    if not ours:
        others = ", ".join(sorted({row["device"] for row in table})) or "nothing"
        raise CalibrationError(f"{path}: no rows of {device}", hint=f"its 'device' column has {others}")
    for number, row in enumerate(ours):
        row["split"] = row["split"] or ("test" if number % 4 == 3 else "fit")
    rows = [row for row in ours if row["split"] in wanted]
    if not rows:
        raise CalibrationError(f"{path}: no rows of {device} with split {' or '.join(sorted(wanted))}")
    found = []
    for row in rows:
        try:
            shape = _shape(row)
            if shape is not None:
                found.append(_row(row, shape))
        except (ValueError, OverflowError) as error:
            name = row["row_id"] or "without row_id"
            raise CalibrationError(f"{path}: row {name}: {error}") from None
    return found


def _row(row: dict[str, str], shape: KernelShape) -> KernelRow:
    notes = row["notes"]
    time_s = 1e-6 * float(row["time_us"])
    if not 0.0 < time_s < math.inf:
        raise ValueError(f"time_us={row['time_us']} is no measurement")
    return KernelRow(
        source=row["source"].split("@")[0].split(",")[0],
        shape=shape,
        time_s=time_s,
        split=row["split"],
        conditions=conditions_of(row["source"], notes, row["pass"]),
        implementation=library_kernel(notes),
    )


def _number(row: dict[str, str], key: str, default: int = 0) -> int:
    return int(float(row[key])) if row.get(key) else default


def _shape(row: dict[str, str]) -> KernelShape | None:
    op = row["op"]
    if row["pass"] not in _PASSES:
        raise ValueError(f"pass '{row['pass']}' is unknown; one of {', '.join(filter(None, _PASSES))}")
    kernel_pass = _PASSES[row["pass"]]
    sizes = _SIZES.get(op, ("m",))
    if any(_number(row, name) < 1 for name in sizes):
        raise ValueError(f"{op} needs {', '.join(sizes)} above zero")
    dtype = _DTYPES.get(row["dtype"], row["dtype"])
    if op == "gemm":
        return gemm_shape(_number(row, "m"), _number(row, "n"), _number(row, "k"), kernel_pass, dtype)
    if op == "flash_attention":
        return AttentionShape(
            batch=_number(row, "batch"),
            heads=_number(row, "heads"),
            kv_heads=_number(row, "kv_heads"),
            seq_q=_number(row, "seq_len"),
            seq_k=_number(row, "seq_len"),
            head_dim=_number(row, "head_dim"),
            causal=row["causal"] == "1",
            dtype=dtype,
            kernel_pass=kernel_pass,
        )
    seq = _number(row, "seq_len")
    products = _number(row, "batch", 1) * _number(row, "heads", 1)
    if op in ("bmm_qk", "bmm_pv"):
        width = _number(row, "head_dim")
        n, k = (seq, width) if op == "bmm_qk" else (width, seq)
        return GemmShape(m=seq, n=n, k=k, batch=products, dtype=dtype, kernel_pass=kernel_pass, name=op)
    if op == "softmax":
        return _pointwise(op, products * seq, seq, dtype, kernel_pass)
    return _pointwise(op, _number(row, "m"), _number(row, "n", 1), dtype, kernel_pass)


def gemm_shape(m: int, n: int, k: int, kernel_pass: Pass, dtype: str) -> GemmShape:
    """Turn a layer's sizes (``y[m, n] = x[m, k] w[n, k]^T``) into the product that a pass runs.

    Examples
    --------
    >>> shape = gemm_shape(4096, 3072, 1024, "wgrad", "bf16")
    >>> shape.m, shape.n, shape.k
    (3072, 1024, 4096)
    """
    if kernel_pass == "dgrad":
        n, k = k, n
    elif kernel_pass == "wgrad":
        m, n, k = n, k, m
    return GemmShape(m=m, n=n, k=k, dtype=dtype, kernel_pass=kernel_pass)


def _pointwise(op: str, rows: int, columns: int, dtype: str, kernel_pass: Pass) -> PointwiseShape | None:
    elements = rows * columns
    row_length = 0
    if op == "adamw_fused":
        elements, read, written = rows, 16.0, 12.0
    elif op == "clip_grad_norm":
        elements, read, written = rows, 8.0, 4.0
    elif op == "embedding":
        width = DTYPE_BYTES[dtype]
        table = 50304 * columns * width if kernel_pass == "backward" else 0
        read, written, row_length = float(width), width + table / elements, columns
    else:
        if op not in _TRAFFIC:
            raise ValueError(f"operation '{op}' is unknown; one of {', '.join((*_OTHERS, *_TRAFFIC))}")
        forward_read, forward_written, back_read, back_written, reduces = _TRAFFIC[op]
        is_backward = kernel_pass == "backward"
        read, written = (back_read, back_written) if is_backward else (forward_read, forward_written)
        row_length = columns if reduces else 0
    if not written:
        return None
    return PointwiseShape(
        name=op,
        n_elements=elements,
        read_bytes=read * elements,
        written_bytes=written * elements,
        row_length=row_length,
        dtype=dtype,
        kernel_pass=kernel_pass,
    )
