"""What the recording changes while a module runs: one kernel where the GPU has one, and the GPU's autocast.

The fake tensors live on the CPU, whose PyTorch takes fused attention and dropout apart and whose autocast keeps fewer
operators in fp32 than the GPU's does.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal

from simulator.errors import InfeasiblePlanError
from simulator.models.aten import TensorSize
from simulator.models.layer import AttentionShape, CommunicationPoint, Pass, PointwiseShape
from simulator.models.recording import Recorder
from simulator.models.torch_module.load import load_torch

#: functions that autocast runs in fp32 on a GPU
#:
#: References: PyTorch documentation, "Automatic Mixed Precision", "CUDA Ops that can autocast to float32"
_WIDE_NAMES = (
    "acos asin binary_cross_entropy_with_logits cdist cosh cosine_embedding_loss cosine_similarity cross_entropy "
    "cumprod cumsum dist erfinv exp expm1 group_norm hinge_embedding_loss kl_div l1_loss layer_norm log log10 log1p "
    "log2 log_softmax margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss nll_loss norm normalize "
    "pdist poisson_nll_loss pow prod reciprocal renorm rms_norm rpow rsqrt sinh smooth_l1_loss soft_margin_loss "
    "softmax softmin softplus tan triplet_margin_loss"
)
WIDE = frozenset(_WIDE_NAMES.split())


#: operator -> place among its arguments that says whether a convolution is transposed
_TRANSPOSED = {"convolution": (6,), "convolution_backward": (7,)}


def recording_modes(torch: Any, recorder: Recorder, attention: str, cp: int) -> tuple[Any, Any]:
    """Return the dispatch mode and the function mode, bound to a recorder."""
    tree_leaves = load_torch("utils._pytree").tree_leaves

    def tensors(tree: Any) -> list[Any]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.split(".", maxsplit=1)[0]
        if any(args[place : place + 1] == (True,) for place in _TRANSPOSED.get(name, ())):
            name = name.replace("convolution", "convolution_transposed")
        recorder.call(name, tensors((args, kwargs or {})), tensors(result), is_view=bool(func.is_view))
        return result

    base = load_torch("utils._python_dispatch").TorchDispatchMode
    mode = type("Dispatch", (base,), {"__torch_dispatch__": dispatch})()
    return mode, _functions(torch, recorder, attention, cp)


def _function(torch: Any, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return an autograd function made of two plain ones."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Recorded", (torch.autograd.Function,), methods)


def _functions(torch: Any, recorder: Recorder, attention: str, cp: int) -> Any:
    """Return the mode that puts the GPU's one kernel for what the CPU takes apart, and its types under autocast."""
    flash, masked = _flash(torch, recorder, cp), _masked(torch, recorder)
    functional = torch.nn.functional
    tree_map = load_torch("utils._pytree").tree_map

    def widen(leaf: Any) -> Any:
        is_narrow = isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.bfloat16, torch.float16)
        return leaf.float() if is_narrow else leaf

    def intercept(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        cast_to = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        if cast_to is not None and getattr(func, "__name__", "").strip("_") in WIDE:
            args, kwargs = tree_map(widen, (args, kwargs))
        if func is functional.scaled_dot_product_attention and attention == "flash" and _may_fuse(torch):
            q, k, v = (t if cast_to is None else t.to(cast_to) for t in _operands(args, kwargs))
            probability = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            is_causal = _is_causal(recorder, args, kwargs)
            if cp > 1 and not is_causal and _mask(args, kwargs) is not None:
                raise InfeasiblePlanError(
                    f"cp={cp}: attention{recorder.place} has a mask, whose columns belong to the whole sequence",
                    hint="leave the mask out, or give is_causal=True: torch's context_parallel takes no other",
                )
            return flash.apply(q, k, v, is_causal, probability > 0)
        if func is functional.dropout:
            probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            x = kwargs.get("input", args[0] if args else None)
            return masked.apply(x) if training and probability else x
        return func(*args, **kwargs)

    base = load_torch("overrides").TorchFunctionMode
    return type("Functions", (base,), {"__torch_function__": intercept})()


def _may_fuse(torch: Any) -> bool:
    """Tell whether the module leaves a fused kernel to choose from (``torch.nn.attention.sdpa_kernel``)."""
    flags = torch.backends.cuda
    return bool(flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled() or flags.cudnn_sdp_enabled())


def _operands(args: Any, kwargs: Any) -> Any:
    return (args + tuple(kwargs[n] for n in ("query", "key", "value") if n in kwargs))[:3]


def _mask(args: Any, kwargs: Any) -> Any:
    return kwargs.get("attn_mask", args[3] if len(args) > 3 else None)


def _is_causal(recorder: Recorder, args: Any, kwargs: Any) -> bool:
    """Tell whether attention is causal: as it says, or by a mask where the module says so.

    Transformers builds the mask on tensors without data, and leaves it to ``is_causal`` on a GPU.
    """
    stated = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
    return bool(stated or (_mask(args, kwargs) is not None and getattr(recorder.module, "is_causal", False)))


def _flash(torch: Any, recorder: Recorder, cp: int) -> Any:
    """Return fused attention: one kernel each way, outputs laid out as the kernels lay them out.

    Under context parallelism queries are a rank's, and keys and values of all ranks are exchanged.
    """

    def exchange(k: Any, v: Any, kernel_pass: Literal["forward", "backward"]) -> list[CommunicationPoint]:
        n_bytes = (k.numel() * k.element_size() + v.numel() * v.element_size()) * cp
        point = CommunicationPoint(operator="context", n_bytes=n_bytes, kernel_pass=kernel_pass, overlaps=1)
        return [point] if cp > 1 else []

    def by_token(like: Any, width: int) -> Any:
        *batch, heads, length, _ = like.shape
        return like.new_empty((*batch, length, heads, width)).transpose(-3, -2)

    def forward(ctx: Any, q: Any, k: Any, v: Any, *flags: bool) -> Any:
        causal, dropout = flags
        ctx.shape = AttentionShape(
            batch=q.shape[:-3].numel(),
            heads=q.shape[-3],
            kv_heads=k.shape[-3],
            seq_q=q.shape[-2],
            seq_k=k.shape[-2] * cp,
            head_dim=q.shape[-1],
            causal=causal,
            dtype=recorder.size(q).dtype,
            has_dropout=dropout,
        )
        with recorder.paused():
            output = by_token(q, v.shape[-1])
            statistics = q.new_empty(q.shape[:-1], dtype=torch.float32)
        recorder.follow([output, statistics])
        recorder.add([*exchange(k, v, "forward"), ctx.shape])
        ctx.save_for_backward(q, k, v, output, statistics)
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        _, k, v, *_ = ctx.saved_tensors
        recorder.add([replace(ctx.shape, kernel_pass="backward"), *exchange(k, v, "backward")])
        with recorder.paused():
            made = [by_token(t, t.shape[-1]) for t in ctx.saved_tensors[:3]]
        recorder.follow(made)
        return (*made, None, None)

    return _function(torch, forward, backward)


def _masked(torch: Any, recorder: Recorder) -> Any:
    """Return dropout as the GPU runs it: one kernel each way and a mask of one byte per element."""

    def forward(ctx: Any, x: Any) -> Any:
        with recorder.paused():
            output, mask = x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.bool)
        ctx.save_for_backward(mask)
        recorder.follow([output, mask])
        recorder.add([_dropout(recorder.size(x), "forward")])
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        with recorder.paused():
            made = gradients[0].new_empty(gradients[0].shape)
        recorder.follow([made])
        recorder.add([_dropout(recorder.size(made), "backward")])
        return made

    return _function(torch, forward, backward)


def attention_backend(attention: str, recorder: Recorder) -> Any:
    """Return the context in which attention is fused as on a GPU, or taken apart."""
    if attention == "flash":
        return _shared_heads(recorder)
    choice = load_torch("nn.attention")
    return choice.sdpa_kernel(choice.SDPBackend.MATH)


@contextmanager
def gpu_autocast(torch: Any) -> Iterator[None]:
    """Let autocast that the module asks for on a GPU act on the fake tensors, which live on the CPU."""
    kind = torch.amp.autocast_mode.autocast
    before = kind.__init__

    def begin(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        before(self, device_type, dtype, *args, **kwargs)

    kind.__init__ = begin
    try:
        yield
    finally:
        kind.__init__ = before


@contextmanager
def _shared_heads(recorder: Recorder) -> Iterator[None]:
    """Let attention of transformers share key-value heads among queries as it does on a GPU, instead of repeating them.

    It repeats them where there is a mask, which it builds on tensors without data alone. One of a window shorter than the keys
    stays on a GPU, too.

    References
    ----------
    huggingface/transformers, ``integrations/sdpa_attention.py``, ``use_gqa_in_sdpa``, and ``masking_utils.py``.
    """
    library = sys.modules.get("transformers.integrations.sdpa_attention")
    before = getattr(library, "use_gqa_in_sdpa", None)
    if library is None or before is None:
        yield
        return

    def shares(mask: Any, key: Any, *others: Any) -> bool:
        module = recorder.module
        window = getattr(module, "sliding_window", getattr(getattr(module, "config", None), "sliding_window", None))
        is_built = getattr(module, "is_causal", False) and not (window and key.shape[-2] >= window)
        return bool(before(None if is_built else mask, key, *others))

    library.use_gqa_in_sdpa = shares  # type: ignore[attr-defined]
    try:
        yield
    finally:
        library.use_gqa_in_sdpa = before  # type: ignore[attr-defined]


@contextmanager
def quiet(name: str) -> Iterator[None]:
    """Leave what a logger would print beside the error to the error."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@contextmanager
def plain_operators(torch: Any) -> Iterator[None]:
    """Keep the CPU's own library from taking whole recurrent layers as one operator."""
    library = torch.backends.mkldnn
    before, library.enabled = library.enabled, False
    try:
        yield
    finally:
        library.enabled = before


def _dropout(x: TensorSize, in_pass: Pass) -> PointwiseShape:
    n_bytes, n = float(x.n_bytes), x.n_elements
    masked = n_bytes + n
    return PointwiseShape(
        name="dropout",
        n_elements=n,
        read_bytes=n_bytes if in_pass == "forward" else masked,
        written_bytes=masked if in_pass == "forward" else n_bytes,
        dtype=x.dtype,
        kernel_pass=in_pass,
    )
