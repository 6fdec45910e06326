"""The kernels of one layer of a model, of its head and of the optimizer, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional

from validation.jobs.gpu_monitor import GpuMonitor
from validation.jobs.launch import Launch
from validation.jobs.model import GptSize
from validation.jobs.settings import Settings
from validation.jobs.timed_training import size_of
from validation.jobs.timing import synchronize, time_repeated
from validation.jobs.trace import record_steps
from validation.tables.statistics import summarize
from validation.tables.writing import Row, make_row

_FLUSH_BYTES = 256 << 20
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kernel to measure: its row's columns, and the call."""

    op: str
    kernel_pass: str
    columns: dict[str, Any] = field(default_factory=dict)
    call: Callable[[], object]


def _gemms(size: GptSize, n_tokens: int, new: Callable[..., torch.Tensor]) -> Iterator[Probe]:
    h = size.hidden
    for out, inner in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h), (size.vocab, h)):
        x, w, dy = new(n_tokens, inner), new(out, inner), new(n_tokens, out)
        for kernel_pass, call in (
            ("forward", lambda x=x, w=w: functional.linear(x, w)),
            ("dgrad", lambda dy=dy, w=w: dy @ w),
            ("wgrad", lambda dy=dy, x=x: dy.t() @ x),
        ):
            yield Probe(op="gemm", kernel_pass=kernel_pass, columns={"m": n_tokens, "n": out, "k": inner}, call=call)


def _both_passes(
    op: str, columns: dict[str, Any], inputs: tuple[torch.Tensor, ...], run: Callable[..., torch.Tensor]
) -> Iterator[Probe]:
    """Probe the forward pass, and the backward pass alone."""
    leaves = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
    yield Probe(op=op, kernel_pass="forward", columns=columns, call=lambda: run(*inputs))
    out = run(*leaves)
    upstream = torch.ones_like(out)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    yield Probe(
        op=op, kernel_pass="backward", columns=columns,
        call=lambda: torch.autograd.grad(out, wanted, upstream, retain_graph=True),
    )  # fmt: skip


def _attention(size: GptSize, batch: int, new: Callable[..., torch.Tensor]) -> Iterator[Probe]:
    shape = (batch, size.heads, size.seq_len, size.hidden // size.heads)
    columns = {
        "batch": batch,
        "heads": size.heads,
        "kv_heads": size.heads,
        "seq_len": size.seq_len,
        "head_dim": shape[-1],
        "causal": 1,
    }
    yield from _both_passes(
        "flash_attention",
        columns,
        (new(*shape), new(*shape), new(*shape)),
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
    )


def _pointwise(size: GptSize, n_tokens: int, new: Callable[..., torch.Tensor]) -> Iterator[Probe]:
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
    dtype = _DTYPES[settings.precision.removeprefix("amp_")]

    def new(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype)

    n_tokens = settings.micro_batch * size.seq_len
    yield from _gemms(size, n_tokens, new)
    yield from _attention(size, settings.micro_batch, new)
    yield from _pointwise(size, n_tokens, new)
    yield from _optimizer(size, device)


def _conditions(probe: Probe, device: torch.device) -> str:
    """Say how a kernel was timed, in the words that predictions know."""
    if device.type != "cuda":
        return ""
    return "L2 flushed" + ("; through autograd.grad" if probe.kernel_pass == "backward" else "")


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
    return [
        make_row(
            "kernels",
            {
                "source": f"own measurement, torch {torch.__version__}",
                "device": settings.topology,
                "op": probe.op,
                "pass": probe.kernel_pass,
                "dtype": settings.precision.removeprefix("amp_"),
                **probe.columns,
                "time_us": round(statistics_.median_s * 1e6, 3),
                "notes": "; ".join(
                    filter(
                        None, (f"{size.name}, {statistics_.describe()}", _conditions(probe, device), monitor.describe())
                    )
                ),
            },
        )
        for probe, statistics_ in found
    ]
