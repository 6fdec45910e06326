"""Rows of tables of timed kernels: the kernels that ran, and how they were timed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

from simulator.calibration.cells import Cells, number_in
from simulator.calibration.row_conditions import kernel_conditions, library_kernel
from simulator.calibration.tables import LINE, read_rows
from simulator.config import shipped_names
from simulator.dtypes import DTYPE_BYTES, our_name
from simulator.errors import CalibrationError, ConfigError
from simulator.kernels.conditions import CONDITIONS, Conditions
from simulator.models.compressed import mean_keys
from simulator.models.layer import AttentionShape, GemmShape, KernelShape, Pass, PointwiseShape, ScanShape
from simulator.plan.precision import SCALED_BYTES
from simulator.topology.device_file import load_device
from simulator.units import LARGEST

#: types written as activation/weight and scaling -> ours; the activation decides what the matrix units compute in
_OPERANDS = (
    (re.compile(r"^float4\w*/"), "mxfp4"),
    (re.compile(r"^float8\w*/\w+ per_1x128"), "fp8_block"),
    (re.compile(r"^float8\w*/\w+ per_1x32|^w4a8_mxfp4_mxfp8"), "mxfp8"),
    (re.compile(r"^float8\w*/"), "fp8"),
    (re.compile(r"^bfloat16/"), "bf16"),
)
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
#: host time of an FP8 block-scaled linear layer of vLLM without CUDA graphs, by machine: medians of rows with split=fit
#: below 30 GFLOP, ai-dynamo/aiconfigurator@095f58a51c
EAGER_LINEAR_S = {"b200": 180e-6, "gb200": 308e-6, "gb300": 315e-6, "h100-sxm5-80g": 86e-6, "h200-sxm": 85e-6}

_NEEDED = ("device", "op", "time_us")
_OPTIONAL = (
    "row_id", "source", "pass", "m", "n", "k", "batch", "heads", "kv_heads", "seq_len", "head_dim", "causal", "dtype",
    "split", "notes",
)  # fmt: skip


#: name of the products of expert blocks, which are fitted after all others
EXPERTS = "experts"


class KernelCells(Cells):
    """The cells of a timed kernel, whose sizes are above zero."""

    least: ClassVar[int] = 1

    @property
    def dtype(self) -> str:
        """Type of the operands, by our names."""
        name = self.text("dtype").lower() or "bf16"
        ours = next((ours for words, ours in _OPERANDS if words.search(name)), name)
        found = ours if ours in DTYPE_BYTES else our_name(ours.removesuffix("_rowwise"))
        if not found:
            raise ConfigError(f"dtype '{self.text('dtype')}' is unknown", hint=f"one of {', '.join(DTYPE_BYTES)}")
        return found

    @property
    def is_both_passes(self) -> bool:
        """Whether forward and backward were timed together."""
        return self.text("pass").lower() == "forward+backward"

    @property
    def kernel_pass(self) -> Pass:
        """Pass by our names."""
        name = self.text("pass").lower()
        if name not in _PASSES:
            raise ConfigError(f"pass '{name}' is unknown", hint="forward, dgrad, wgrad or backward")
        return _PASSES[name]

    @property
    def product_pass(self) -> Pass:
        """Pass of a matrix product."""
        if self.kernel_pass == "backward":
            raise ConfigError("the pass of a GEMM is forward, dgrad or wgrad; backward is two of them")
        return self.kernel_pass


#: library of serving stacks for products whose operands have scales of their own
_SERVING = "flashinfer"
#: how notes name PyTorch's own grouped product, and torchao, which calls it
_TORCHS = re.compile(r"\btorch(ao\b|\.\w*grouped_mm\b)")


def _gemm(row: KernelCells) -> GemmShape:
    shape = gemm_shape(row.integer("m"), row.integer("n"), row.integer("k"), row.product_pass, row.dtype)
    return replace(shape, library=_SERVING if "kernel FlashInfer" in row.text("notes") else "")


def gemm_shape(m: int, n: int, k: int, kernel_pass: Pass, dtype: str, *, batch: int = 1) -> GemmShape:
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
    return GemmShape(m=m, n=n, k=k, batch=batch, dtype=dtype, kernel_pass=kernel_pass)


def quantise_name(library: str) -> str:
    """Name the kernel by which a library quantises the activation of a linear layer."""
    return f"{library or 'dynamic'}_quantize"


def _grouped(row: KernelCells) -> GemmShape:
    """Return products of equal groups of rows, one for each expert; ``m`` counts the rows of all, ``k`` where both operands are cut.

    Of both passes together it is the forward one; see :func:`_both_passes`.
    """
    notes = row.text("notes")
    library = "torch" if _TORCHS.search(notes) else ""
    kernel_pass = "forward" if row.is_both_passes else row.product_pass
    stated = re.search(r"(\d+) groups", notes)
    groups = row.integer("batch", int(stated[1]) if stated else 1)
    if "2D-2D" in notes:  # gradients of weights, as PyTorch's grouped product names them: the sizes are the product's
        m, n, k = row.integer("m"), row.integer("n"), max(1, row.integer("k") // groups)
        return GemmShape(m=m, n=n, k=k, batch=groups, dtype=row.dtype, kernel_pass=kernel_pass, library=library)
    rows = max(1, row.integer("m") // groups)
    shape = gemm_shape(rows, row.integer("n"), row.integer("k"), kernel_pass, row.dtype, batch=groups)
    return replace(shape, library=library)


def _both_passes(first: GemmShape) -> tuple[KernelShape, ...]:
    """Return what a grouped product runs beside its forward one: that of both gradients, and quantisation.

    In eight bits input, weight and output's gradient are quantised twice each, along both of the directions that products go over.

    References
    ----------
    pytorch/ao, ``torchao/prototype/moe_training/README.md``, "MXFP8 kernel breakdown by pass".
    """
    m, n, k = first.m, first.n, first.k
    products = (replace(first, n=k, k=n, kernel_pass="dgrad"), replace(first, m=n, n=k, k=m, kernel_pass="wgrad"))
    written = SCALED_BYTES.get(first.dtype)
    if written is None:
        return products
    sizes = [first.batch * size for size in (m * k, n * k, m * n)]
    casts = [
        PointwiseShape(
            name=f"{first.dtype}_quantize", n_elements=size, read_bytes=2.0 * size, written_bytes=written * size
        )
        for size in sizes
    ]
    return (*products, *casts, *casts)


def _attention(row: KernelCells) -> AttentionShape:
    heads, seq, notes = row.integer("heads"), row.integer("seq_len"), row.text("notes")
    window = re.search(r"sliding window (\d+)", notes)
    latent = row.text("op") == "mla_attention"
    return AttentionShape(
        batch=row.integer("batch", 1),
        heads=heads,
        kv_heads=row.integer("kv_heads", heads),
        seq_q=seq,
        seq_k=seq,
        # keys of 192 and values of 128 elements are as much work as two of 160 (DeepSeek-V3)
        head_dim=160 if latent else row.integer("head_dim"),
        causal=row.flag("causal") is not False,
        dtype=row.dtype,
        kernel_pass=row.kernel_pass,
        name="mla" if latent else library_kernel(notes) or "flash_attention",
        window=int(window[1]) if window else 0,
    )


def _compressed(row: KernelCells) -> AttentionShape:
    """Return DeepSeek-V4's attention: a window, and the keys that stand for 4 or 128 tokens, of those of 4 the chosen ones."""
    notes, length = row.text("notes"), row.integer("seq_len")
    rate, top_k = re.search(r"compression ratio (\d+)", notes), re.search(r"top-k (\d+)", notes)
    if rate is None:
        raise ConfigError("the notes of DeepSeek-V4's attention say 'compression ratio 4 (sparse, index top-k 1024)'")
    made = length // int(rate[1]) if int(rate[1]) else 0
    seen = mean_keys(made, int(top_k[1]) if top_k else made)
    return replace(_attention(row), window=min(128 + seen, length - 1), gathered=seen if top_k else 0)


def _batched(row: KernelCells) -> GemmShape:
    """Return eager attention's products over ``batch x heads``: scores, or probabilities times values."""
    seq, head_dim, op = row.integer("seq_len"), row.integer("head_dim"), row.text("op")
    n, k = (seq, head_dim) if op == "bmm_qk" else (head_dim, seq)
    batch = row.integer("batch", 1) * row.integer("heads")
    return GemmShape(m=seq, n=n, k=k, batch=batch, dtype=row.dtype, kernel_pass=row.kernel_pass, name=op)


def _scan(row: KernelCells) -> ScanShape:
    chunk = re.search(r"chunk (\d+)", row.text("notes"))
    delta = row.text("op").startswith("gdn")
    head_dim = row.integer("head_dim")
    return ScanShape(
        name="gated_delta_rule" if delta else "mamba2_ssd",
        batch=row.integer("batch", 1),
        seq=row.integer("seq_len"),
        heads=row.integer("heads"),
        groups=row.integer("kv_heads"),
        head_dim=head_dim,
        state=head_dim if delta else row.integer("k"),
        chunk=int(chunk[1]) if chunk else 64,
        dtype=row.dtype,
        kernel_pass=row.kernel_pass,
    )


def _convolution(row: KernelCells) -> PointwiseShape:
    """Return the short convolution along the sequence before a recurrence: each channel is read and written once."""
    width, groups = row.integer("heads") * row.integer("head_dim"), row.integer("kv_heads")
    delta = row.text("op").startswith("gdn")
    channels = width + 2 * groups * (row.integer("head_dim") if delta else row.integer("k"))
    elements = row.integer("batch", 1) * row.integer("seq_len") * channels
    return _traffic(row, row.text("op"), elements, 2.0 * elements, 2.0 * elements)


def _experts(row: KernelCells) -> GemmShape:
    """Return the first product of the experts of one GPU: tokens times the gate and the up projection of each, or the latter alone."""
    notes = row.text("notes")
    found = re.search(r"top-(\d+) of (\d+) experts(?:, experts split over (\d+))?", notes)
    if found is None:
        raise ConfigError("the notes of an expert block say 'top-8 of 256 experts'")
    top_k, n_experts, split = int(found[1]), int(found[2]), int(found[3] or 1)
    rows = max(1, round(row.integer("m") * top_k / n_experts))
    n_local = max(1, n_experts // split)
    width = row.integer("n") * (1 if "nongated" in library_kernel(notes) else 2)
    return GemmShape(
        m=rows, n=width, k=row.integer("k"), batch=n_local, dtype=row.dtype, name=EXPERTS, library=_SERVING
    )


#: name of what an expert block does to every token of its group, wherever the token's experts are
ALL_TOKENS = "all_tokens"


def _beside_experts(first: GemmShape, row: KernelCells) -> tuple[KernelShape, ...]:
    """Return what an expert block runs beside its first product: permutation, activation, second product, weighted sum.

    Each token of the group is read and written once more.
    """
    tokens, inner, hidden = first.m * first.batch, row.integer("n"), first.k
    every = row.integer("m") * hidden

    def pointwise(name: str, n_elements: int, read: float, written: float) -> PointwiseShape:
        return PointwiseShape(name=name, n_elements=n_elements, read_bytes=read, written_bytes=written)

    return (
        pointwise("expert_block", tokens * hidden, 2.0 * tokens * hidden, 2.0 * tokens * hidden),
        pointwise("swiglu", tokens * inner, 2.0 * tokens * first.n, 2.0 * tokens * inner),
        replace(first, n=hidden, k=inner),
        pointwise("add", tokens * hidden, 2.0 * tokens * hidden, 2.0 * tokens * hidden),
        pointwise(ALL_TOKENS, every, 2.0 * every, 2.0 * every),
    )


def _traffic(
    row: KernelCells, name: str, elements: int, read: float, written: float, row_length: int = 0
) -> PointwiseShape:
    return PointwiseShape(
        name=name, n_elements=elements, read_bytes=read, written_bytes=written, row_length=row_length,
        dtype=row.dtype, kernel_pass=row.kernel_pass,
    )  # fmt: skip


#: op -> reduces over a row, tensors read and written forward, read and written backward
_TENSORS: dict[str, tuple[bool, float, float, float, float]] = {
    "layer_norm": (True, 1, 1, 2, 1),
    "rms_norm": (True, 1, 1, 2, 1),
    "gelu": (False, 1, 1, 2, 1),
    "silu": (False, 1, 1, 2, 1),
    "relu": (False, 1, 1, 2, 1),
    "add": (False, 2, 1, 0, 0),
    "mul": (False, 2, 1, 2, 1),
    "copy": (False, 1, 1, 1, 1),
    "cross_entropy": (True, 1, 1, 1, 1),
    "softmax": (True, 1, 1, 2, 1),
}
#: op -> bytes read and written per element, whatever the type
_BYTES: dict[str, tuple[float, float]] = {
    "adamw_fused": (16.0, 12.0),
    "clip_grad_norm": (8.0, 4.0),
    "fp8_static_quantize": (2.0, SCALED_BYTES["fp8"]),
    "mxfp8_quantize": (2.0, SCALED_BYTES["mxfp8"]),
    "nvfp4_quantize_2d_weight": (2.0, 2 * SCALED_BYTES["nvfp4"]),
    "nvfp4_quantize_hadamard_row_col": (2.0, 2 * SCALED_BYTES["nvfp4"]),
    "nvfp4_amax_hadamard": (2.0, 1e-3),
}


def _elementwise(row: KernelCells) -> PointwiseShape:
    op = row.text("op").lower()
    if op == "softmax":
        columns = row.integer("seq_len")
        elements = row.integer("batch", 1) * row.integer("heads") * columns * columns
    else:
        columns = row.integer("n", 1)
        elements = row.integer("m") * (1 if op in ("adamw_fused", "clip_grad_norm") else columns)
    if op in _BYTES:
        read, written = _BYTES[op]
        return _traffic(row, op, elements, read * elements, written * elements)
    reduces, *forward_and_back = _TENSORS[op]
    read, written = forward_and_back[2:] if row.kernel_pass == "backward" else forward_and_back[:2]
    if not written:
        raise ConfigError(f"the backward of '{op}' launches no kernel: what was timed is the host")
    size = DTYPE_BYTES[row.dtype]
    return _traffic(row, op, elements, read * elements * size, written * elements * size, columns if reduces else 0)


def _per_token(row: KernelCells) -> PointwiseShape:
    """Return quantisation with a scale for each row, found before the row is written; the table has its difference to a given scale."""
    rows, columns = row.integer("m"), row.integer("n")
    elements = rows * columns
    return _traffic(row, "per_token_quantize", elements, 2.0 * elements, 1.0 * elements, columns)


def _dropout(row: KernelCells) -> PointwiseShape:
    """Return dropout with its byte mask: forward writes it, backward reads it."""
    elements, size = row.integer("m") * row.integer("n", 1), DTYPE_BYTES[row.dtype]
    forward = row.kernel_pass == "forward"
    return _traffic(
        row, "dropout", elements, float(elements * (size + (not forward))), float(elements * (size + forward))
    )


def _cast(row: KernelCells) -> PointwiseShape:
    elements = row.integer("m") * row.integer("n", 1)
    return _traffic(row, row.text("op"), elements, float(elements * DTYPE_BYTES[row.dtype]), 4.0 * elements)


def _embedding(row: KernelCells) -> PointwiseShape:
    """Return the lookup ``[tokens, hidden]``; backward zeroes the whole table's gradient and adds to it."""
    tokens, hidden, size = row.integer("m"), row.integer("n"), DTYPE_BYTES[row.dtype]
    moved = float(tokens * hidden * size)
    table = 0.0 if row.kernel_pass == "forward" else float(row.integer("vocab", 50304) * hidden * size)
    return _traffic(row, "embedding", tokens * hidden, moved, moved + table, hidden)


#: operations of several kernels, or of one that is in no model here: not fitted to
WHOLE_BLOCKS = ("moe_layer", "dsv4_attention", "stream_copy")

#: op of the tables -> the kernel that it is
SHAPES: dict[str, Callable[[KernelCells], KernelShape]] = {
    "gemm": _gemm,
    "grouped_gemm": _grouped,
    "moe_mlp": _experts,
    "flash_attention": _attention,
    "mla_attention": _attention,
    "dsv4_attention": _compressed,
    "bmm_qk": _batched,
    "bmm_pv": _batched,
    "dropout": _dropout,
    "fp8_compute_scale": _per_token,
    "to_f32": _cast,
    "cast": _cast,
    "embedding": _embedding,
    "mamba2_ssd": _scan,
    "gdn_chunk_gated_delta_rule": _scan,
    "causal_conv1d": _convolution,
    "gdn_causal_conv1d_fn": _convolution,
    **dict.fromkeys((*_TENSORS, *_BYTES), _elementwise),
}


def shape_of(cells: Mapping[str, str], place: str = "") -> KernelShape:
    """Return the kernel that a row timed."""
    row = KernelCells(cells=cells, file=place)
    op = row.text("op").lower()
    if op not in SHAPES:
        raise ConfigError(f"op '{op}' is unknown", hint=f"one of {', '.join(sorted(SHAPES))}")
    return SHAPES[op](row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedKernel:
    """One timed kernel."""

    source: str  #: Repository or publication, without the file.
    shape: KernelShape
    time_s: float
    split: str  #: ``fit`` or ``test``.
    conditions: Conditions  #: How it was timed.
    implementation: str = ""  #: Name of the library kernel where the table states it, otherwise empty.
    #: Other kernels that were timed with it: the quantisation of an operand, the rest of an expert block.
    beside: tuple[KernelShape, ...] = ()
    less: KernelShape | None = None  #: The kernel whose time was taken off.
    issue_s: float = 0.0  #: Time that the host took to issue it, which nothing shorter shows.
    place: str = field(default="", compare=False)  #: File and line.


def row_of(cells: Mapping[str, str], place: str = "") -> TimedKernel:
    """Return the kernels and conditions of one row."""
    notes, source = cells.get("notes") or "", cells.get("source") or ""
    other = _other_processor(cells["device"], notes)
    if other:
        raise ConfigError(f"timed on {other}, which is not a {cells['device']}")
    shape = shape_of(cells, place)
    time_s = 1e-6 * number_in(cells["time_us"])
    if not 0.0 < time_s <= 1e-6 * LARGEST:
        raise ConfigError(f"time_us={cells['time_us']} is not a measurement")
    beside: tuple[KernelShape, ...] = ()
    if cells["op"] == "moe_mlp" and isinstance(shape, GemmShape):
        beside = _beside_experts(shape, KernelCells(cells=cells, file=place))
    elif cells["op"] == "grouped_gemm" and isinstance(shape, GemmShape) and KernelCells(cells=cells).is_both_passes:
        beside = _both_passes(shape)
    elif isinstance(shape, GemmShape) and "quantisation of the activation" in notes:
        elements = shape.m * shape.k * shape.batch
        written = SCALED_BYTES.get(shape.dtype, 1.0) * elements
        beside = (
            PointwiseShape(
                name=quantise_name(shape.library), n_elements=elements, read_bytes=2.0 * elements,
                written_bytes=written, dtype=shape.dtype, row_length=shape.k,
            ),
        )  # fmt: skip
    return TimedKernel(
        source=source.split("@")[0].split(",")[0],
        shape=shape,
        time_s=time_s,
        split=cells.get("split") or "",
        conditions=_conditions(cells["device"], source, notes, cells.get("pass") or ""),
        implementation="mla" if cells["op"] == "mla_attention" else library_kernel(notes),
        beside=beside,
        less=shape_of({**cells, "op": "fp8_static_quantize"}, place) if cells["op"] == "fp8_compute_scale" else None,
        issue_s=EAGER_LINEAR_S.get(cells["device"], 0.0) if "no CUDA graph" in notes else 0.0,
    )


def _conditions(device: str, source: str, notes: str, kernel_pass: str) -> Conditions:
    found = kernel_conditions(source, notes, kernel_pass)
    throttled = device == "gb200" and source.startswith("ai-dynamo/") and found.name == "graph_replay"
    return CONDITIONS["graph_replay_throttled"] if throttled else found


def _other_processor(device: str, notes: str) -> str:
    """Return the processor that notes name where it is another one than the device's: tables count compute units, which machines share."""
    found = re.search(r"\bgfx\w+", notes)
    is_other = found and device in shipped_names("devices") and found[0] != load_device(device).compute_capability
    return found[0] if found and is_other else ""


def _is_one_kernel(row: Mapping[str, str]) -> bool:
    """Whether a row timed one kernel of its device, rather than a whole block, two passes at once, or nothing but the host."""
    return (
        row["op"] not in WHOLE_BLOCKS
        and not _other_processor(row["device"], row["notes"])
        and "top--1" not in row["notes"]  # a placeholder: how many experts see a token is not known
        and row["pass"] != "forward+backward"
        and (row["op"], row["pass"]) != ("add", "backward")
    )


def read_kernel_rows(path: str | Path, device: str, *, splits: Iterable[str] = ("fit",)) -> list[TimedKernel]:
    """Read the rows of one device.

    Parameters
    ----------
    path : str or Path
        A table in the columns of ``kernels.csv``.
    splits : iterable of str
        Which rows to keep.

    Notes
    -----
    Of rows that say neither ``fit`` nor ``test``, every fourth is for testing.
    """
    wanted = set(splits)
    table = read_rows(Path(path), _NEEDED, _OPTIONAL)
    ours = [row for row in table if row["device"] == device]
    named = {row["split"] for row in ours} - {"", "fit", "test"}
    if named:
        raise CalibrationError(f"{path}: split {', '.join(sorted(named))}", hint="fit, test, or blank")
    if not ours:
        others = ", ".join(sorted({row["device"] for row in table})) or "nothing"
        raise CalibrationError(f"{path}: no rows of {device}", hint=f"its 'device' column has {others}")
    for number, row in enumerate(ours):
        row["split"] = row["split"] or ("test" if number % 4 == 3 else "fit")
    rows = [row for row in ours if row["split"] in wanted and _is_one_kernel(row)]
    if not rows:
        raise CalibrationError(f"{path}: no rows of {device} with split {' or '.join(sorted(wanted))}")
    found = []
    for row in rows:
        try:
            found.append(replace(row_of(row), place=f"{path}:{row[LINE]}"))
        except ConfigError as error:
            raise CalibrationError(f"{path}:{row[LINE]}: {error.message}", hint=error.hint) from None
    return found
