"""Any kernel shape as a call that can be timed here: what calibration measures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from simulator.models.layer import AttentionShape, GemmShape, KernelShape, PointwiseShape, ScanShape

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
Call = Callable[[], object]


def call_of(shape: KernelShape, device: torch.device) -> Call | None:
    """Return a call that does what a shape describes; None where calibration has no way to.

    Parameters
    ----------
    shape : KernelShape
        As recorded from a module.
    device : torch.device
        Where its tensors live.
    """
    dtype = _DTYPES.get(shape.dtype, torch.float32)

    def new(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    if isinstance(shape, GemmShape):
        return _gemm(shape, new)
    if isinstance(shape, AttentionShape):
        return _attention(shape, new)
    if isinstance(shape, ScanShape):
        return None  # recurrences have kernels of their own, which plain PyTorch lacks
    return _pointwise(shape, new)


def _gemm(shape: GemmShape, new: Callable[..., torch.Tensor]) -> Call:
    m, n, k = shape.m, shape.n, shape.k
    if shape.batch > 1:
        a, b = new(shape.batch, m, k), new(shape.batch, k, n)
        return lambda: a @ b
    if shape.kernel_pass == "wgrad":
        upstream, x = new(k, m), new(k, n)
        return lambda: upstream.t() @ x
    if shape.kernel_pass == "dgrad":
        a, b = new(m, k), new(k, n)
        return lambda: a @ b
    x, weight = new(m, k), new(n, k)
    bias = new(n) if shape.name == "addmm" else None
    return lambda: functional.linear(x, weight, bias)


def _attention(shape: AttentionShape, new: Callable[..., torch.Tensor]) -> Call:
    query = new(shape.batch, shape.heads, shape.seq_q, shape.head_dim)
    key, value = (new(shape.batch, shape.kv_heads, shape.seq_k, shape.head_dim) for _ in range(2))

    def run(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=shape.causal)

    if shape.kernel_pass == "forward":
        return lambda: run(query, key, value)
    return _backward(run, query, key, value)


def _backward(run: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Call:
    leaves = [x.requires_grad_(x.is_floating_point()) for x in inputs]
    out = run(*leaves)
    upstream = torch.ones_like(out)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    return lambda: torch.autograd.grad(out, wanted, upstream, retain_graph=True)


def _pointwise(shape: PointwiseShape, new: Callable[..., torch.Tensor]) -> Call | None:
    width = shape.row_length or 1
    rows = max(1, shape.n_elements // width)
    x = new(rows, width) if shape.row_length else new(shape.n_elements)
    runs: dict[str, Callable[..., torch.Tensor]] = {
        "layer_norm": lambda a: functional.layer_norm(a, a.shape[-1:]),
        "gelu": lambda a: functional.gelu(a, approximate="tanh"),
        "cross_entropy": lambda a: functional.log_softmax(a, -1),
        "add": lambda a: a + x,
        "fill": torch.zeros_like,
    }
    if shape.name == "sum":
        columns = max(1, shape.n_elements)
        tall = new(max(1, round(shape.read_bytes / x.element_size()) // columns), columns)
        return lambda: tall.sum(0)
    if shape.name not in runs:
        return None
    run = runs[shape.name]
    if shape.kernel_pass == "forward" or shape.name in ("add", "fill"):
        return lambda: run(x)
    return _backward(run, x)
