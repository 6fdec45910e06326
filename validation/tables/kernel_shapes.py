"""Kernel rows: the shape that was timed, and the kernel model's time for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.errors import ConfigError, SimulatorError
from simulator.kernels.conditions import conditions_of, library_kernel
from simulator.models.layer import DTYPE_BYTES, AttentionShape, GemmShape, KernelShape, Pass, PointwiseShape
from validation.tables.many_jobs import Progress
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

_DTYPES = {
    "f32": "fp32",
    "float32": "fp32",
    "float": "fp32",
    "f16": "fp16",
    "half": "fp16",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8": "fp8",
    "fp8_e4m3": "fp8",
    "e4m3": "fp8",
}
#: pass names of the tables -> of the shapes; "nn" is a product of two plain matrices, as a forward runs it
_PASSES: dict[str, Pass] = {
    "": "forward",
    "nn": "forward",
    "forward": "forward",
    "fwd": "forward",
    "dgrad": "dgrad",
    "wgrad": "wgrad",
    "backward": "backward",
    "bwd": "backward",
}


def _dtype(row: Row) -> str:
    name = row.text("dtype", "bf16").lower()
    name = _DTYPES.get(name, name)
    if name not in DTYPE_BYTES:
        raise ConfigError(f"dtype '{row.text('dtype')}' is unknown", hint=f"one of {', '.join(DTYPE_BYTES)}")
    return name


def _pass(row: Row) -> Pass:
    name = row.text("pass").lower()
    if name not in _PASSES:
        raise ConfigError(f"pass '{name}' is unknown", hint="forward, dgrad, wgrad or backward")
    return _PASSES[name]


def _gemm(row: Row) -> GemmShape:
    """Return the product that ran: ``[m,k][n,k]^T``, as dgrad ``[m,n][n,k]``, as wgrad ``[n,m][m,k]``."""
    m, n, k, kernel_pass = row.integer("m"), row.integer("n"), row.integer("k"), _pass(row)
    if kernel_pass == "backward":
        raise ConfigError("the pass of a GEMM is forward, dgrad or wgrad; backward is two of them")
    if kernel_pass == "dgrad":
        n, k = k, n
    elif kernel_pass == "wgrad":
        m, n, k = n, k, m
    return GemmShape(m=m, n=n, k=k, batch=row.integer("batch", 1), dtype=_dtype(row), kernel_pass=kernel_pass)


def _attention(row: Row) -> AttentionShape:
    heads = row.integer("heads")
    seq = row.integer("seq_len")
    causal = row.flag("causal")
    return AttentionShape(
        batch=row.integer("batch", 1),
        heads=heads,
        kv_heads=row.integer("kv_heads", heads),
        seq_q=seq,
        seq_k=seq,
        head_dim=row.integer("head_dim"),
        causal=True if causal is None else causal,
        dtype=_dtype(row),
        kernel_pass=_pass(row),
        name=library_kernel(row.text("notes")) or "flash_attention",
    )


def _batched(row: Row) -> GemmShape:
    """Return eager attention's products over ``batch x heads``: scores, or probabilities times values."""
    seq, head_dim = row.integer("seq_len"), row.integer("head_dim")
    n, k = (seq, head_dim) if row.text("op") == "bmm_qk" else (head_dim, seq)
    return GemmShape(
        m=seq,
        n=n,
        k=k,
        batch=row.integer("batch", 1) * row.integer("heads"),
        dtype=_dtype(row),
        kernel_pass=_pass(row),
        name=row.text("op"),
    )


def _softmax(row: Row) -> PointwiseShape:
    seq = row.integer("seq_len")
    elements = row.integer("batch", 1) * row.integer("heads") * seq * seq
    reads = 1.0 if _pass(row) == "forward" else 2.0
    size = DTYPE_BYTES[_dtype(row)]
    return PointwiseShape(
        name="softmax",
        n_elements=elements,
        read_bytes=reads * elements * size,
        written_bytes=float(elements * size),
        row_length=seq,
        dtype=_dtype(row),
        kernel_pass=_pass(row),
    )


#: op -> (name in shapes, reduces over a row, tensors read and written forward, read and written backward)
_POINTWISE: dict[str, tuple[str, bool, float, float, float, float]] = {
    "layer_norm": ("layer_norm", True, 1, 1, 2, 1),
    "rms_norm": ("rms_norm", True, 1, 1, 2, 1),
    "gelu": ("gelu", False, 1, 1, 2, 1),
    "silu": ("silu", False, 1, 1, 2, 1),
    "relu": ("relu", False, 1, 1, 2, 1),
    "add": ("add", False, 2, 1, 0, 0),
    "mul": ("mul", False, 2, 1, 2, 1),
    "copy": ("copy", False, 1, 1, 1, 1),
    "cross_entropy": ("cross_entropy", True, 1, 1, 1, 1),
}


def _pointwise(row: Row) -> PointwiseShape:
    op, kernel_pass, dtype = row.text("op"), _pass(row), _dtype(row)
    name, reduces, read, written, read_back, written_back = _POINTWISE[op]
    if kernel_pass == "backward":
        read, written = read_back, written_back
        if not written:
            raise ConfigError(f"the backward of '{op}' launches no kernel: what was timed is the host")
    columns = row.integer("n", 1)
    elements = row.integer("m") * columns
    size = DTYPE_BYTES[dtype]
    return PointwiseShape(
        name=name,
        n_elements=elements,
        read_bytes=read * elements * size,
        written_bytes=written * elements * size,
        row_length=columns if reduces else 0,
        dtype=dtype,
        kernel_pass=kernel_pass,
    )


def _dropout(row: Row) -> PointwiseShape:
    """Return dropout with its byte mask: forward writes it, backward reads it."""
    elements, size = row.integer("m") * row.integer("n", 1), DTYPE_BYTES[_dtype(row)]
    forward = _pass(row) == "forward"
    return PointwiseShape(
        name="dropout",
        n_elements=elements,
        read_bytes=float(elements * (size if forward else size + 1)),
        written_bytes=float(elements * (size + 1 if forward else size)),
        dtype=_dtype(row),
        kernel_pass=_pass(row),
    )


def _cast(row: Row) -> PointwiseShape:
    elements, size = row.integer("m") * row.integer("n", 1), DTYPE_BYTES[_dtype(row)]
    return PointwiseShape(
        name=row.text("op"),
        n_elements=elements,
        read_bytes=float(elements * size),
        written_bytes=float(elements * 4),
        dtype=_dtype(row),
        kernel_pass=_pass(row),
    )


def _embedding(row: Row) -> PointwiseShape:
    """Return the lookup ``[tokens, hidden]``; backward zeroes the whole table's gradient and adds to it."""
    tokens, hidden, size = row.integer("m"), row.integer("n"), DTYPE_BYTES[_dtype(row)]
    moved = float(tokens * hidden * size)
    table = 0.0 if _pass(row) == "forward" else float(row.integer("vocab", 50304) * hidden * size)
    return PointwiseShape(
        name="embedding",
        n_elements=tokens * hidden,
        read_bytes=moved,
        written_bytes=moved + table,
        row_length=hidden,
        dtype=_dtype(row),
        kernel_pass=_pass(row),
    )


def _optimizer(row: Row) -> PointwiseShape:
    """Return a fused Adam step (parameter, gradient, two moments, fp32) or gradient clipping."""
    elements, name = row.integer("m"), row.text("op")
    read, written = (16.0, 12.0) if name.startswith("adam") else (8.0, 4.0)
    return PointwiseShape(
        name=name, n_elements=elements, read_bytes=read * elements, written_bytes=written * elements, dtype=_dtype(row)
    )


#: op of the tables -> the shape that it is
SHAPES: dict[str, Callable[[Row], KernelShape]] = {
    "gemm": _gemm,
    "flash_attention": _attention,
    "bmm_qk": _batched,
    "bmm_pv": _batched,
    "softmax": _softmax,
    "dropout": _dropout,
    "to_f32": _cast,
    "cast": _cast,
    "embedding": _embedding,
    "adamw_fused": _optimizer,
    "clip_grad_norm": _optimizer,
    **dict.fromkeys(_POINTWISE, _pointwise),
}


def shape_of(row: Row) -> KernelShape:
    """Return the kernel that a row timed.

    Raises
    ------
    ConfigError
        If its op, pass or dtype is unknown, or a size that the op needs is not stated.
    """
    op = row.text("op").lower()
    if op not in SHAPES:
        raise ConfigError(f"op '{op}' is unknown", hint=f"one of {', '.join(sorted(SHAPES))}")
    return SHAPES[op](row)


def predict(rows: Sequence[Row], progress: Progress | None = None, n_processes: int = 1) -> list[Outcome]:
    """Predict the time of every kernel row in microseconds, under the conditions of its timing.

    It runs in one process, as it takes milliseconds.
    """
    from simulator.kernels import RooflineKernels
    from simulator.topology.device import load_device

    del n_processes
    models: dict[str, RooflineKernels] = {}
    outcomes: list[Outcome] = []
    for row in rows:
        if progress is not None:
            progress.update(len(outcomes), len(rows))
        try:
            conditions = conditions_of(row.text("source"), row.text("notes"), row.text("pass"))
            model = models.setdefault(conditions.name, RooflineKernels(conditions))
            predicted = 1e6 * model.duration_s(shape_of(row), load_device(row.text("device")))
            outcomes.append(Outcome(row=row, predicted=predicted))
        except SimulatorError as error:
            outcomes.append(Outcome(row=row, reason=error.message))
    return outcomes
