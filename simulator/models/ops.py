"""Operations on a tape: what each primitive launches forward and backward, and what autograd holds for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import Access, AttentionShape, GemmShape, LayerItem, Pass, PointwiseShape, Split
from simulator.models.liveness import Tensor
from simulator.models.tape import Tape

#: operators that eager PyTorch launches as one generic elementwise kernel, whatever the types of their operands
_GENERIC = frozenset(("add", "sub", "mul", "div", "where", "pow"))


def kernel(
    name: str,
    n_elements: int,
    read: float,
    written: float,
    dtype: str,
    *,
    row: int = 0,
    in_pass: Pass = "forward",
    access: Access = "vector",
) -> PointwiseShape:
    """Return a bandwidth-bound kernel that reads and writes these bytes."""
    return PointwiseShape(
        name=name,
        n_elements=n_elements,
        read_bytes=float(read),
        written_bytes=float(written),
        row_length=row,
        dtype=dtype,
        kernel_pass=in_pass,
        access=access,
    )


def access_of(name: str, read: str, others: Sequence[str]) -> Access:
    """Return how an eager elementwise kernel reaches operands of these types: the first input's, all others'.

    References
    ----------
    PyTorch, ``aten/src/ATen/native/cuda/Loops.cuh`` and ``Copy.cu``: operands of one type and layout are loaded as
    vectors; those of several types one element at a time, converted as they are loaded. A conversion from fp32 to 16
    bits has a vectorised kernel of its own.

    Examples
    --------
    >>> access_of("cast", "bf16", ["fp32"]), access_of("cast", "fp32", ["bf16"]), access_of("add", "bf16", ["fp32"])
    ('widen', 'vector', 'mixed')
    """
    if name == "cast":
        return "widen" if any(DTYPE_BYTES[read] < DTYPE_BYTES[other] for other in others) else "vector"
    return "mixed" if name in _GENERIC and any(other != read for other in others) else "vector"


def map_kernel(
    name: str,
    reads: Sequence[Tensor],
    writes: Sequence[Tensor],
    *,
    extra_bytes: float = 0,
    row: int = 0,
    in_pass: Pass = "forward",
    access: Access | None = None,
) -> PointwiseShape:
    """Return a kernel that reads whole tensors and writes whole tensors, ``extra_bytes`` more read.

    ``access`` follows from the types unless given.
    """
    n_read = sum(t.n_bytes for t in reads) + extra_bytes
    n_written = sum(t.n_bytes for t in writes)
    output = writes[0] if writes else reads[0]
    if access is None:
        access = access_of(name, reads[0].dtype, [t.dtype for t in (*reads[1:], *writes)]) if reads else "vector"
    return kernel(name, output.n_elements, n_read, n_written, output.dtype, row=row, in_pass=in_pass, access=access)


def wider(a: str, b: str) -> str:
    """Return the dtype that type promotion gives."""
    return a if DTYPE_BYTES[a] >= DTYPE_BYTES[b] else b


def like(tensor: Tensor) -> Tensor:
    """Return a stand-in of the same size, for the gradient of a tensor in a traffic count."""
    return Tensor(tensor.n_elements, tensor.dtype, tensor.storage)


def pointwise(
    tape: Tape,
    name: str,
    inputs: Sequence[Tensor],
    *,
    n_elements: int = 0,
    dtype: str = "",
    saves: Sequence[Tensor] = (),
    saves_output: bool = False,
    saved_bytes: int = 0,
    row: int = 0,
    backward: Sequence[LayerItem] | None = None,
    kept: bool = False,
    element_bytes: float = 0.0,
) -> Tensor:
    """Append one fused kernel over all inputs; one fused kernel backward unless ``backward`` says otherwise.

    The backward kernel reads the gradient and what was saved, and writes the gradients of the inputs. ``element_bytes`` are written
    for each element of the output where the kernel narrows it, 0 for those of its type.
    """
    n_elements = n_elements or inputs[0].n_elements
    dtype = dtype or inputs[0].dtype
    output = Tensor(n_elements, dtype, inputs[0].storage)
    if backward is None:
        read = [output, *saves, *([output] if saves_output else [])]
        written = [t for t in inputs if t.needs_gradient and t.storage.owner != "parameter"]
        backward = [map_kernel(name, read, written, extra_bytes=saved_bytes, row=row, in_pass="backward")]
    forward = kernel(
        name,
        n_elements,
        sum(t.n_bytes for t in inputs),
        (element_bytes * n_elements or output.n_bytes) + saved_bytes,
        dtype,
        row=row,
    )
    return tape.record(
        inputs,
        n_elements,
        dtype,
        forward=[forward],
        backward=backward,
        saves=saves,
        saves_output=saves_output,
        saved_bytes=saved_bytes,
        kept=kept,
    )


def cast(tape: Tape, x: Tensor, dtype: str) -> Tensor:
    """Append a dtype conversion, or nothing where it already is that dtype."""
    if x.dtype == dtype:
        return x
    output = Tensor(x.n_elements, dtype, x.storage)
    return tape.record(
        [x],
        x.n_elements,
        dtype,
        forward=[map_kernel("cast", [x], [output])],
        backward=[map_kernel("cast", [output], [x], in_pass="backward")],
    )


def scale(tape: Tape, x: Tensor) -> Tensor:
    """Append a multiplication by a constant."""
    return pointwise(tape, "mul", [x])


def shift(tape: Tape, x: Tensor) -> Tensor:
    """Append the addition of a constant, whose gradient passes through."""
    return tape.record([x], x.n_elements, x.dtype, forward=[map_kernel("add", [x], [x])], gradient="alias")


def add(tape: Tape, a: Tensor, b: Tensor, *, access: Access | None = None) -> Tensor:
    """Append a sum; gradients pass through, cast where type promotion widened an operand."""
    dtype = wider(a.dtype, b.dtype)
    output = Tensor(a.n_elements, dtype, a.storage)
    casts = [
        map_kernel("cast", [output], [t], in_pass="backward") for t in (a, b) if t.needs_gradient and t.dtype != dtype
    ]
    return tape.record(
        [a, b],
        a.n_elements,
        dtype,
        forward=[map_kernel("add", [a, b], [output], access=access)],
        backward=casts,
        gradient="alias",
    )


def squared_relu(tape: Tape, x: Tensor) -> Tensor:
    """Append a squared ReLU operation by operation.

    Backward takes the first power of what was squared, twice that, and the product with the gradient, as PyTorch's derivatives do.
    """
    positive = pointwise(tape, "relu", [x], saves_output=True)
    back = [map_kernel("mul", reads, [x], in_pass="backward") for reads in ([x], [x, x])]
    copied = map_kernel("copy", [x], [x], in_pass="backward")
    return pointwise(tape, "pow", [positive], saves=[positive], backward=[copied, *back])


def mul(tape: Tape, a: Tensor, b: Tensor) -> Tensor:
    """Append an elementwise product: two products backward, each cast as type promotion asks."""
    dtype = wider(a.dtype, b.dtype)
    output = Tensor(a.n_elements, dtype, a.storage)
    backward: list[LayerItem] = []
    for mine, other in ((b, a), (a, b)):
        if mine.needs_gradient:
            backward.append(map_kernel("mul", [output, other], [output], in_pass="backward"))
            if mine.dtype != dtype:
                backward.append(map_kernel("cast", [output], [mine], in_pass="backward"))
    saves = [t for t, other in ((a, b), (b, a)) if other.needs_gradient]
    forward = [map_kernel("mul", [a, b], [output])]
    return tape.record([a, b], a.n_elements, dtype, forward=forward, backward=backward, saves=saves)


def copy(tape: Tape, x: Tensor, *, copies_back: bool = True) -> Tensor:
    """Append a copy to a contiguous layout; ``copies_back`` if the gradient is laid out anew as well."""
    backward = [map_kernel("copy", [x], [x], in_pass="backward")] if copies_back else []
    gradient: Literal["new", "alias"] = "new" if copies_back else "alias"
    return tape.record(
        [x],
        x.n_elements,
        x.dtype,
        forward=[map_kernel("copy", [x], [x])],
        backward=backward,
        gradient=gradient,
    )


def dropout(tape: Tape, x: Tensor, probability: float) -> Tensor:
    """Append dropout with a saved mask of one byte per element; nothing where the probability is zero."""
    return pointwise(tape, "dropout", [x], saved_bytes=x.n_elements) if probability else x


#: bytes of statistics that a fused norm saves for every row
_STATISTICS = {"layer_norm": 8, "rms_norm": 4}


def fused_norm(tape: Tape, name: str, x: Tensor, width: int, dtype: str, *, element_bytes: float = 0.0) -> Tensor:
    """Append a fused norm with weights, ``layer_norm`` or ``rms_norm``; saves its input and its statistics."""
    n_bytes = _STATISTICS[name] * (x.n_elements // width)
    return pointwise(
        tape, name, [x], dtype=dtype, saves=[x], saved_bytes=n_bytes, row=width, element_bytes=element_bytes
    )


def product(
    tape: Tape,
    x: Tensor,
    weight: Tensor,
    *,
    rows: int,
    columns: int,
    dtype: str,
    output_dtype: str = "",
    name: str = "gemm",
    before: Sequence[LayerItem] = (),
    between: Sequence[LayerItem] = (),
    after: Sequence[LayerItem] = (),
    saves: Sequence[Tensor] | None = None,
    bias: Tensor | None = None,
    wgrad_bytes: float = 0.0,
    is_frozen: bool = False,
    split: Split = "none",
) -> Tensor:
    """Append ``y[tokens, rows] = x[tokens, columns] w[columns, rows]``.

    Backward launches ``before``, the input gradient, ``between``, the weight gradient and ``after``. Tensor-parallel ranks share the
    weight as ``split`` says.

    Parameters
    ----------
    rows, columns : int
        Output and input features.
    dtype : str
        In which the products run.
    output_dtype : str
        Of the result; that of ``x`` unless given.
    before, between, after : sequence of LayerItem
        Communication, casts and bias reductions around the two products of backward.
    saves : sequence of Tensor, optional
        What is held for backward; both operands unless given.
    bias : Tensor, optional
        Added in the epilogue; its gradient is a reduction over tokens, launched last.
    wgrad_bytes : float
        Traffic per element of the weight gradient; see :class:`GemmShape`.
    is_frozen : bool
        Whether weight and bias have no gradients, for which nothing is held then.
    """
    n_tokens = x.n_elements // columns
    if bias is not None and not is_frozen:
        after = [*after, bias_gradient(n_tokens, rows, bias.dtype)]
    forward = GemmShape(m=n_tokens, n=rows, k=columns, dtype=dtype, name=name)
    input_gradient = replace(forward, n=columns, k=rows, kernel_pass="dgrad")
    weight_gradient = replace(input_gradient, m=rows, k=n_tokens, kernel_pass="wgrad", output_bytes=wgrad_bytes, split=split)  # fmt: skip
    first: list[LayerItem] = [input_gradient] if x.needs_gradient else []
    return tape.record(
        [x, weight, *([bias] if bias is not None else [])],
        n_tokens * rows,
        output_dtype or x.dtype,
        forward=[forward],
        backward=[*first, *between, *after] if is_frozen else [*before, *first, *between, weight_gradient, *after],
        saves=[weight] if is_frozen else [x, weight] if saves is None else saves,
        kept=True,
    )


def bias_gradient(n_tokens: int, rows: int, dtype: str) -> PointwiseShape:
    """Return the reduction over tokens that gives a bias its gradient."""
    width = DTYPE_BYTES[dtype]
    return kernel("sum", rows, n_tokens * rows * width, rows * width, dtype, row=n_tokens, in_pass="wgrad")


def batched_product(
    tape: Tape, a: Tensor, b: Tensor, *, batch: int, m: int, n: int, k: int, dtype: str, name: str
) -> Tensor:
    """Append ``y[batch, m, n] = a[batch, m, k] b[batch, k, n]``, both operands activations and both saved."""
    forward = GemmShape(batch=batch, m=m, n=n, k=k, dtype=dtype, name=name)
    to_a = GemmShape(batch=batch, m=m, n=k, k=n, dtype=dtype, kernel_pass="dgrad", name=name)
    to_b = GemmShape(batch=batch, m=k, n=n, k=m, dtype=dtype, kernel_pass="dgrad", name=name)
    return tape.record(
        [a, b], batch * m * n, a.dtype, forward=[forward], backward=[to_b, to_a], saves=[a, b], kept=True
    )


def flash_attention(tape: Tape, q: Tensor, k: Tensor, v: Tensor, shape: AttentionShape, n_tokens: int) -> Tensor:
    """Append fused attention; saves q, k, v, its output and the log-sum-exp of every row.

    Documents of equal length need not fill a sequence, so that there may be more tokens than the shape has.
    """
    n_rows = n_tokens * shape.heads
    value_dim = 2 * shape.head_dim - q.n_elements // n_rows  # a shape has the mean of the widths of keys and values
    return tape.record(
        [q, k, v],
        n_rows * value_dim,
        q.dtype,
        forward=[shape],
        backward=[replace(shape, kernel_pass="backward")],
        saves=[q, k, v],
        saves_output=True,
        saved_bytes=4 * n_rows,
        kept=True,
    )
