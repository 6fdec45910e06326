"""Kernels as calls that can be timed: those of one layer of a model, its head and optimizer, and any recorded shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from simulator.models.layer import AttentionShape, GemmShape, KernelShape, Pass, PointwiseShape, ScanShape
from validation.jobs.job_settings import Settings
from validation.jobs.launch import Launch
from validation.jobs.model import GptSize
from validation.jobs.timed_training import size_of
from validation.jobs.timing import GpuMonitor, record_steps, synchronize, time_repeated
from validation.tables.statistics import summarize
from validation.tables.writing import Row, make_row

_FLUSH_BYTES = 256 << 20
Call = Callable[[], object]
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kernel to measure: its row's columns, and the call."""

    op: str
    kernel_pass: str
    columns: dict[str, Any] = field(default_factory=dict)
    call: Callable[[], object]


def _maker(dtype: str, device: torch.device) -> Callable[..., torch.Tensor]:
    """Return what makes random tensors of a type where they are needed."""
    kind = _DTYPES.get(dtype, torch.float32)
    return lambda *sizes: torch.randn(sizes, device=device, dtype=kind)


def _gemms(size: GptSize, n_tokens: int, dtype: str, device: torch.device) -> Iterator[Probe]:
    h = size.hidden
    for out, inner in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h), (size.vocab, h)):
        m, n, k = n_tokens, out, inner
        shapes = (
            GemmShape(m=m, n=n, k=k, dtype=dtype),
            GemmShape(m=m, n=k, k=n, dtype=dtype, kernel_pass="dgrad"),
            GemmShape(m=n, n=k, k=m, dtype=dtype, kernel_pass="wgrad"),
        )
        for shape in shapes:
            call = _gemm(shape, _maker(dtype, device))
            yield Probe(op="gemm", kernel_pass=shape.kernel_pass, columns={"m": m, "n": n, "k": k}, call=call)


def _both_passes(
    op: str, columns: dict[str, Any], inputs: tuple[torch.Tensor, ...], run: Callable[..., torch.Tensor]
) -> Iterator[Probe]:
    """Probe the forward pass, and the backward pass alone."""
    yield Probe(op=op, kernel_pass="forward", columns=columns, call=lambda: run(*inputs))
    yield Probe(op=op, kernel_pass="backward", columns=columns, call=_backward(run, *(x.detach() for x in inputs)))


def _attentions(size: GptSize, batch: int, dtype: str, device: torch.device) -> Iterator[Probe]:
    cells = {"batch": batch, "heads": size.heads, "kv_heads": size.heads, "head_dim": size.hidden // size.heads}
    passes: tuple[Pass, ...] = ("forward", "backward")
    for one in passes:
        shape = AttentionShape(
            batch=batch, heads=size.heads, kv_heads=size.heads, head_dim=cells["head_dim"], seq_q=size.seq_len,
            seq_k=size.seq_len, dtype=dtype, kernel_pass=one,
        )  # fmt: skip
        columns = {**cells, "seq_len": size.seq_len, "causal": 1}
        call = _attention(shape, _maker(dtype, device))
        yield Probe(op="flash_attention", kernel_pass=one, columns=columns, call=call)


def _pointwise_probes(size: GptSize, n_tokens: int, new: Callable[..., torch.Tensor]) -> Iterator[Probe]:
    h = size.hidden
    narrow = {"m": n_tokens, "n": h}
    wide = {"m": n_tokens, "n": 4 * h}
    x, y = new(n_tokens, h), new(n_tokens, h)
    yield from _both_passes(
        "layer_norm", narrow, (x, new(h), new(h)), lambda a, w, b: functional.layer_norm(a, (h,), w, b)
    )
    yield from _both_passes("gelu", wide, (new(n_tokens, 4 * h),), lambda a: functional.gelu(a, approximate="tanh"))
    yield Probe(op="add", kernel_pass="forward", columns=narrow, call=lambda: x + y)
    targets = torch.randint(size.vocab, (n_tokens,), device=x.device)
    columns = {"m": n_tokens, "n": size.vocab}
    yield from _both_passes("cross_entropy", columns, (new(n_tokens, size.vocab), targets), functional.cross_entropy)
    yield from _both_passes("embedding", narrow, (targets, new(size.vocab, h)), functional.embedding)


def _optimizer(size: GptSize, device: torch.device) -> Iterator[Probe]:
    h = size.hidden
    shapes = [(3 * h, h), (h, h), (4 * h, h), (h, 4 * h)]
    parameters = [torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(parameters, fused=True)
    columns = {"m": sum(p.numel() for p in parameters), "n": len(parameters), "dtype": "f32"}
    yield Probe(op="adamw_fused", kernel_pass="forward", columns=columns, call=optimizer.step)


def probes(size: GptSize, settings: Settings, device: torch.device) -> Iterator[Probe]:
    """All kernels of a block, the head and the optimizer at this micro-batch."""
    dtype = settings.precision.removeprefix("amp_")
    n_tokens = settings.micro_batch * size.seq_len
    yield from _gemms(size, n_tokens, dtype, device)
    yield from _attentions(size, settings.micro_batch, dtype, device)
    yield from _pointwise_probes(size, n_tokens, _maker(dtype, device))
    yield from _optimizer(size, device)


def run_kernels(settings: Settings, launch: Launch, device: torch.device) -> list[Row]:
    """Time every kernel, with caches flushed in between on a GPU; return rows as in kernels.csv."""
    size = size_of(settings)
    flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=device) if device.type == "cuda" else None
    found = []
    with GpuMonitor(device.index if device.type == "cuda" else None) as monitor:
        for probe in probes(size, settings, device):
            durations = time_repeated(
                probe.call,
                device,
                n_repeats=settings.n_repeats,
                n_warm_up=settings.n_warm_up,
                before_each=flush.zero_ if flush is not None else lambda: None,
            )
            found.append((probe, summarize(durations)))
    if settings.profile is not None:

        def one_of_each() -> None:
            for probe in probes(size, settings, device):
                probe.call()
            synchronize(device)

        record_steps(settings.profile, settings.job, launch.rank, device, one_of_each)
    flushed = ", L2 flushed, backward by autograd" if flush is not None else ""
    return [
        make_row(
            "kernels",
            {
                "source": f"own measurement, torch {torch.__version__}{flushed}",
                "device": settings.topology,
                "op": probe.op,
                "pass": probe.kernel_pass,
                "dtype": settings.precision.removeprefix("amp_"),
                **probe.columns,
                "time_us": round(statistics_.median_s * 1e6, 3),
                "notes": "; ".join(filter(None, (f"{size.name}, {statistics_.describe()}", monitor.describe()))),
            },
        )
        for probe, statistics_ in found
    ]


def call_of(shape: KernelShape, device: torch.device) -> Call | None:
    """Return a call that does what a shape describes; None where calibration has no way to."""
    new = _maker(shape.dtype, device)
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
