"""From recorded operators (names and sizes, as PyTorch reports them) to kernel shapes; no torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import Access, GemmShape, KernelShape, Pass, PointwiseShape
from simulator.models.ops import access_of, kernel

#: operators that launch no kernel although they are no views
SILENT = frozenset(
    {
        "_unsafe_view",
        "_reshape_alias",
        "alias",
        "detach",
        "empty",
        "empty_like",
        "empty_strided",
        "is_same_size",
        "lift_fresh",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
    }
)

#: operator -> the kernel name that measured tables use
KERNELS = {
    "native_layer_norm": "layer_norm",
    "native_layer_norm_backward": "layer_norm",
    "_fused_rms_norm": "rms_norm",
    "_fused_rms_norm_backward": "rms_norm",
    "_softmax": "softmax",
    "_safe_softmax": "softmax",
    "_softmax_backward_data": "softmax",
    "_log_softmax": "cross_entropy",
    "_log_softmax_backward_data": "cross_entropy",
    "nll_loss_forward": "nll_loss",
    "nll_loss_backward": "fill",
    "embedding_dense_backward": "embedding",
    "native_dropout": "dropout",
    "native_dropout_backward": "dropout",
    "clone": "copy",
    "copy_": "copy",
    "gelu_backward": "gelu",
    "silu_backward": "silu",
    "tanh_backward": "tanh",
    "sigmoid_backward": "sigmoid",
    "threshold_backward": "relu",
    "slice_backward": "copy",
    "select_backward": "copy",
    "zeros": "fill",
    "zeros_like": "fill",
    "ones_like": "fill",
    "new_zeros": "fill",
}

#: operators of one generic elementwise kernel, whose speed depends on the layout of their operands
_ELEMENTWISE = frozenset(
    ("add", "sub", "rsub", "mul", "div", "neg", "pow", "where", "exp", "sqrt", "rsqrt", "sigmoid", "tanh", "relu")
)

#: operators whose last dimension is reduced as a row
_ROWS = {"layer_norm", "rms_norm", "softmax", "cross_entropy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSize:
    """What the dispatcher tells about one tensor."""

    shape: tuple[int, ...]  #: Its dimensions.
    dtype: str  #: As shapes name it.
    n_bytes: int  #: Bytes of memory that it covers: less than its elements take where a dimension is expanded.
    is_parameter: bool = False  #: Whether it is a weight.
    strides: tuple[int, ...] = ()  #: Elements from one index to the next, by dimension; empty where they are not known.

    @property
    def n_elements(self) -> int:
        """Product of the dimensions."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One recorded operator: its name without overload, the tensors it reads and those it returns."""

    name: str
    inputs: tuple[TensorSize, ...]
    outputs: tuple[TensorSize, ...]


def kernels_of(call: Call, *, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> list[KernelShape]:
    """Return what one operator launches; shapes of the parameters tell weight gradients from input gradients."""
    if call.name in SILENT or not call.outputs or all(not t.n_elements for t in call.outputs):
        return []
    special = _SPECIAL.get(call.name)
    if special is not None:
        return special(call, is_backward, weight_shapes)
    return [_pointwise(call, is_backward)]


def _pass(call: Call, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> Pass:
    if not is_backward:
        return "forward"
    if any(t.is_parameter for t in call.inputs):
        return "dgrad"
    shape = call.outputs[0].shape
    return "wgrad" if shape in weight_shapes or shape[::-1] in weight_shapes else "dgrad"


def _matrices(call: Call) -> Sequence[TensorSize]:
    return [t for t in call.inputs if len(t.shape) >= 2][-2:]


def _product(call: Call, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> list[KernelShape]:
    a, b = _matrices(call)
    batch = a.shape[0] if len(a.shape) == 3 else 1
    shape = GemmShape(
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        batch=batch,
        dtype=a.dtype,
        kernel_pass=_pass(call, is_backward, weight_shapes),
        name=call.name,
    )
    return [shape]


def _grouped(call: Call, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> list[KernelShape]:
    """Return one product per group: of a tensor of two dimensions every group takes an equal share of the rows or columns.

    References
    ----------
    PyTorch, ``torch.nn.functional.grouped_mm``: two dimensions by three share the rows, three by two the columns, two by two
    what is summed over.
    """
    a, b = _matrices(call)
    groups = next((t.shape[0] for t in (a, b, call.outputs[0]) if len(t.shape) == 3), 1)
    m, n, k = a.shape[-2], b.shape[-1], a.shape[-1]
    n_dims = len(a.shape), len(b.shape)
    if n_dims == (2, 3):
        each = max(1, -(-m // groups))  # fewer groups where the rows do not suffice
        groups, m = max(1, round(m / each)), each
    elif n_dims == (3, 2):
        n = max(1, -(-n // groups))
    elif n_dims == (2, 2):
        k = max(1, -(-k // groups))
    kernel_pass = _pass(call, is_backward, weight_shapes)
    return [GemmShape(m=m, n=n, k=k, batch=groups, dtype=a.dtype, kernel_pass=kernel_pass, name="grouped_gemm")]


def _convolution(call: Call, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> list[KernelShape]:
    """Return the implicit matrix products of a convolution: pixels x output channels x (channels x taps).

    A transposed one spreads each pixel of its image over all taps: image and output change places.
    """
    tensors = [t for t in call.inputs if len(t.shape) >= 3]
    is_gradient = call.name.endswith("_backward")
    image, weight = tensors[1:3] if is_gradient else tensors[-2:]
    output = tensors[0] if is_gradient else call.outputs[0]
    is_transposed = "transposed" in call.name
    source, target = (output, image) if is_transposed else (image, output)
    groups = max(1, source.shape[1] // weight.shape[1])
    pixels = target.shape[0] * math.prod(target.shape[2:])
    rows, depth = weight.shape[0] // groups, math.prod(weight.shape[1:])
    product = GemmShape(m=pixels, n=rows, k=depth, batch=groups, dtype=image.dtype, name="convolution")
    turned = replace(product, n=depth, k=rows)
    if not is_gradient:
        return [turned if is_transposed else product]
    to_image = replace(product if is_transposed else turned, kernel_pass="dgrad")
    to_weight = replace(product, m=rows, n=depth, k=pixels, kernel_pass="wgrad")
    return [to_image, to_weight] if any(t.shape == image.shape for t in call.outputs) else [to_weight]


def _lookup(call: Call, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> list[KernelShape]:
    """Return a gather, which reads the rows it returns and not the whole table."""
    output, name = call.outputs[0], "embedding" if call.name == "embedding" else "gather"
    in_pass: Pass = "backward" if is_backward else "forward"
    return [kernel(name, output.n_elements, output.n_bytes, output.n_bytes, output.dtype, in_pass=in_pass)]


def _picked(call: Call, is_backward: bool, weight_shapes: frozenset[tuple[int, ...]]) -> list[KernelShape]:
    """Return the negative log-likelihood: it reads one value a row, and its backward fills all of them."""
    output = call.outputs[0]
    n_rows = math.prod((output if is_backward else call.inputs[0]).shape[:-1])
    in_pass: Pass = "backward" if is_backward else "forward"
    read = DTYPE_BYTES[output.dtype] * n_rows
    written = output.n_bytes if is_backward else read
    return [kernel(KERNELS[call.name], max(output.n_elements, n_rows), read, written, output.dtype, in_pass=in_pass)]


_SPECIAL: dict[str, Callable[[Call, bool, frozenset[tuple[int, ...]]], list[KernelShape]]] = {
    "mm": _product,
    "addmm": _product,
    "bmm": _product,
    "baddbmm": _product,
    "_grouped_mm": _grouped,
    "convolution": _convolution,
    "convolution_backward": _convolution,
    "convolution_transposed": _convolution,
    "convolution_transposed_backward": _convolution,
    "embedding": _lookup,
    "gather": _lookup,
    "index": _lookup,
    "index_select": _lookup,
    "nll_loss_forward": _picked,
    "nll_loss_backward": _picked,
}


def _pointwise(call: Call, is_backward: bool) -> PointwiseShape:
    output = call.outputs[0]
    name = KERNELS.get(call.name, call.name.removeprefix("_"))
    if call.name == "_to_copy":
        name = "cast" if call.inputs and call.inputs[0].dtype != output.dtype else "copy"
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    row = call.inputs[0].shape[-1] if name in _ROWS and call.inputs and call.inputs[0].shape else 0
    return PointwiseShape(
        name=name,
        n_elements=max(t.n_elements for t in call.outputs),
        read_bytes=float(sum(t.n_bytes for t in call.inputs)),
        written_bytes=float(sum(t.n_bytes for t in call.outputs)),
        row_length=row,
        dtype=output.dtype if output.dtype in DTYPE_BYTES else "fp32",
        kernel_pass="backward" if is_backward else "forward",
        access=_access(call, name),
    )


def _access(call: Call, name: str) -> Access:
    """Return how an elementwise kernel reaches its operands: by their types, then by their layout."""
    operands = [t for t in (*call.inputs, *call.outputs) if t.shape]
    if (name != "cast" and name not in _ELEMENTWISE) or not operands:
        return "vector"
    found = access_of(name, operands[0].dtype, [t.dtype for t in operands[1:]])
    return "strided" if found == "vector" and _n_dimensions(operands, call.outputs[0].shape) > 2 else found


def _n_dimensions(operands: Sequence[TensorSize], shape: tuple[int, ...]) -> int:
    """Dimensions that stay after those are joined over which every operand runs as over one; 1 where unknown.

    Up to two of them (a vector along the rows, a number for each) cost an elementwise kernel next to nothing.
    """
    if any(len(t.strides) != len(t.shape) for t in operands):
        return 1
    aligned = []
    for tensor in operands:
        missing = (0,) * (len(shape) - len(tensor.shape))
        strides = (0 if size == 1 else stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
        aligned.append((*missing, *strides))
    kept = [index for index, size in enumerate(shape) if size > 1]
    joined = sum(all(row[a] == row[b] * shape[b] for row in aligned) for a, b in pairwise(kept))
    return len(kept) - joined
