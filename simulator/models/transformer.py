"""The families' blocks: which sublayers follow one another, and where norms and residuals stand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from simulator.models.compressed import collapsed, compressed_attention, expanded
from simulator.models.latent import latent_attention
from simulator.models.layer import CommunicationPoint
from simulator.models.liveness import Tensor
from simulator.models.moe import moe as routed_experts
from simulator.models.ops import mul, pointwise
from simulator.models.recurrent import (
    gated_delta_net,
    kimi_delta_attention,
    lightning_attention,
    mamba1,
    mamba2,
    short_convolution,
)
from simulator.models.spec import ATTENTION, ModelSpec
from simulator.models.styles.base import Style
from simulator.plan.module_names import GRAPH_SCOPES, RECOMPUTE_MODULES


def attention(style: Style, x: Tensor, *, causal: bool, kind: str = "*") -> Tensor:
    """Append self-attention, of the kind that a letter names, from ``x[tokens, hidden]`` to its output projection."""
    spec = style.spec
    if spec.is_latent_attention:
        return latent_attention(style, x, causal=causal)
    if spec.output_groups:
        return compressed_attention(style, x, kind=kind)
    values = style.kv_heads * style.value_dim
    widths = [style.heads * style.head_dim, style.kv_heads * style.head_dim, *([] if spec.value_is_key else [values])]
    gate = None
    if spec.attention_gate:
        (gate,) = style.columns(x, [widths[0]], name="attention_gate")
    with style.offloaded("qkv_linear"):
        parts = style.columns(x, widths, bias=spec.attention_bias, name="qkv")
    parts = parts if len(parts) == len(widths) else list(style.split_heads(parts[0], widths))
    q, k, v = parts if len(parts) == 3 else (*parts, parts[1])
    if spec.qk_norm:
        q, k = (_head_norm(style, part) for part in (q, k))
    if spec.positions == "rotary":
        q, k = style.rotary(q), style.rotary(k)
    shape = style.attention_shape(causal=causal, head_dim=(style.head_dim + style.value_dim) // 2, kind=kind)
    with style.offloaded("core_attn"):
        context = style.core_attention(q, k, v, shape)
    if gate is not None:
        context = mul(style.tape, context, pointwise(style.tape, "sigmoid", [gate], saves_output=True))
    width = style.heads * style.value_dim
    with style.offloaded("attn_proj"):
        return style.row(context, width, bias=spec.attention_output_bias, name="attention_output")


def _beside(style: Style, x: Tensor) -> Tensor:
    """Append attention and a Mamba-2 mixer that read the same norm, and the sum of both.

    References
    ----------
    Zuo et al., "Falcon-H1", arXiv:2507.22448, section 2.1.
    """
    return style.residual(attention(style, x, causal=style.spec.causal), mamba2(style, x), bias=False)


def _head_norm(style: Style, x: Tensor) -> Tensor:
    width = x.n_elements // style.setting.tokens if style.spec.qk_norm_width else style.head_dim
    return style.norm(x, width=width)


def cross_attention(style: Style, x: Tensor, encoded: Tensor) -> Tensor:
    """Append attention of the decoder's tokens to the encoder's output."""
    spec = style.spec
    width, kv_width = style.heads * style.head_dim, style.kv_heads * style.head_dim
    (q,) = style.columns(x, [width], bias=spec.attention_bias, name="query")
    parts = style.columns(encoded, [kv_width, kv_width], bias=spec.attention_bias, name="kv")
    if len(parts) == 1:
        parts = list(style.split_pair(parts[0]))
    shape = style.attention_shape(causal=False)
    shape = replace(shape, seq_k=spec.encoder_positions or shape.seq_k)
    context = style.core_attention(q, parts[0], parts[1], shape)
    return style.row(context, width, bias=spec.attention_output_bias, name="attention_output")


def mlp(style: Style, x: Tensor, width: int = 0) -> Tensor:
    """Append a dense MLP of this ``width`` (whole, before tensor-parallel partitioning), ``ffn_hidden`` unless given."""
    spec = style.spec
    local = (width or spec.ffn_hidden) // style.setting.tp
    late = spec.mlp_bias and style.late_up_bias
    early = spec.mlp_bias and not late
    if spec.gated_mlp:
        parts = style.columns(x, [local, local], bias=early, name="mlp_up")
        y = style.gated(*parts) if len(parts) == 2 else style.activation(parts[0], bias=late)
    else:
        (up,) = style.columns(x, [local], bias=early, name="mlp_up")
        y = style.activation(up, bias=late)
    return style.row(y, local, bias=spec.mlp_bias, name="mlp_down")


def _with_residual(style: Style, x: Tensor) -> Tensor:
    """Append experts and a dense MLP beside them, each weighted by a learned coefficient of the token (PR-MoE)."""
    done = [routed_experts(style, x), mlp(style, x)]
    weights = pointwise(
        style.tape, "softmax", [style.linear(x, 2, style.spec.hidden, bias=True, name="gate", is_narrow=False)],
        saves_output=True,
    )  # fmt: skip
    parts = [pointwise(style.tape, "mul", [part, weights], saves=[part, weights]) for part in done]
    return style.residual(*parts, bias=False)


def experts(style: Style, x: Tensor) -> Tensor:
    """Append a mixture-of-experts MLP: routed experts and, where there is one, the shared one."""
    if style.spec.residual_experts:
        return _with_residual(style, x)
    if not style.spec.shared_expert_hidden:
        return routed_experts(style, x)
    has_norms = style.spec.expert_norms
    with style.captured("moe_router"):
        inside = _shared_mark(style, x)
        with style.recomputed("shared_experts"):
            inside = mlp(style, inside, style.spec.shared_expert_hidden)
        shared = style.norm(inside) if has_norms else inside
        shared = _shared_mark(style, shared)
    if style.spec.shared_expert_gate:
        gate = pointwise(
            style.tape,
            "sigmoid",
            [style.linear(x, 1, style.spec.hidden, name="gate", is_narrow=False)],
            saves_output=True,
        )
        shared = pointwise(style.tape, "mul", [shared, gate], saves=[shared, gate])
    routed = routed_experts(style, style.norm(x) if has_norms else x)
    return style.residual(style.norm(routed) if has_norms else routed, shared, bias=False)


def _shared_mark(style: Style, x: Tensor) -> Tensor:
    """Mark begin or end of the shared expert, which may run beside the exchange of tokens."""
    if style.setting.ep == 1:
        return x
    point = CommunicationPoint(operator="shared", n_bytes=0)
    back = CommunicationPoint(operator="shared", n_bytes=0, kernel_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, forward=[point], backward=[back], view=x, gradient="alias")


#: letter -> how a sublayer that is not attention runs, and the module that plans mean by it
_SUBLAYERS: dict[str, tuple[Callable[[Style, Tensor], Tensor], str]] = {
    "-": (mlp, "mlp"),
    "E": (experts, "moe"),
    "M": (mamba2, "mamba"),
    "m": (mamba1, "mamba"),
    "G": (gated_delta_net, "attn"),
    "d": (kimi_delta_attention, "attn"),
    "p": (_beside, "attn"),
    "s": (short_convolution, "mamba"),
    "l": (lightning_attention, "attn"),
}


def graph_scopes(spec: ModelSpec) -> tuple[str, ...]:
    """Return what of a model CUDA graphs may launch, as ``cuda_graphs`` names it."""
    found = {"attn" if kind in ATTENTION else _SUBLAYERS[kind][1] for kind in "".join(spec.blocks)}
    found |= {"attn", "mlp"} if spec.encoder_layers else set()
    found |= set(graph_scopes(spec.image)) if spec.image else set()
    found |= {"moe_router", "moe_preprocess"} if "moe" in found else set()
    return tuple(scope for scope in GRAPH_SCOPES if scope in found)


def recomputable(spec: ModelSpec) -> tuple[str, ...]:
    """Return what of a model selective recomputation may compute again, as ``recompute_modules`` names it."""
    kinds = set("".join(spec.blocks))
    has_attention = bool(kinds.intersection((*ATTENTION, "p"))) or spec.encoder_layers > 0
    found = {"layernorm", *graph_scopes(spec)} | ({"core_attn"} if has_attention else set())
    found |= {"moe_act"} if "moe" in found else set()
    found |= {"shared_experts"} if "moe" in found and spec.shared_expert_hidden else set()
    found |= {"mla_up_proj"} if has_attention and (spec.is_latent_attention or spec.output_groups) else set()
    found |= set(recomputable(spec.image)) if spec.image else set()
    return tuple(module for module in RECOMPUTE_MODULES if module in found)


def capturable(spec: ModelSpec) -> tuple[str, ...]:
    """Return the modules of a model that CUDA graphs can launch whatever experts get: of experts what comes before their tokens travel."""
    return tuple(scope for scope in graph_scopes(spec) if scope != "moe")


#: sublayer -> the product that it begins with, of which the norm before is a part in Megatron-Core (``models/gpt/gpt_layer_specs.py``,
#: ``TELayerNormColumnParallelLinear``); routers take 16 bits
_FIRST_PRODUCTS = {"-": "mlp_up", "M": "mamba_in", "G": "delta_in"}


def _first_of_attention(spec: ModelSpec) -> str:
    """Return the only product that takes the input of attention, empty where several do."""
    takes_several = spec.is_latent_attention or spec.output_groups or spec.attention_gate
    return "" if takes_several else "qkv"


def block(
    style: Style, x: Tensor, sublayers: str = "*-", *, causal: bool = True, encoded: Tensor | None = None
) -> Tensor:
    """Append one transformer block.

    Parameters
    ----------
    x : Tensor
        Residual stream ``[tokens, hidden]``.
    sublayers : str
        Letters of :data:`simulator.models.spec.SUBLAYERS`, in order.
    encoded : Tensor, optional
        The encoder's output, for a decoder with cross-attention.
    """
    spec = style.spec
    if spec.parallel_block:
        return _parallel_block(style, x, *_SUBLAYERS[sublayers[-1]], kind=sublayers[0], causal=causal)
    for kind in sublayers:
        if kind not in ATTENTION:
            sublayer, module = _SUBLAYERS[kind]
            first = _FIRST_PRODUCTS.get(kind, "")
            x = _added(style, x, sublayer, module, has_bias=spec.mlp_bias and kind == "-", first=first)
            continue
        inner = partial(attention, causal=causal, kind=kind)
        x = _added(style, x, inner, "attn", has_bias=spec.attention_output_bias, first=_first_of_attention(spec))
        if encoded is not None:
            inner = partial(cross_attention, encoded=encoded)
            x = _added(style, x, inner, "attn", has_bias=spec.attention_output_bias)
    return x


def _added(
    style: Style,
    x: Tensor,
    sublayer: Callable[[Style, Tensor], Tensor],
    module: str,
    *,
    has_bias: bool,
    first: str = "",
) -> Tensor:
    """Append one sublayer with its norms and its residual; ``module`` is what plans call it, ``first`` a product that it begins with."""
    position = style.spec.norm_position
    with style.captured(module):
        streams, n = x, style.spec.residual_streams
        if n:
            weights, x = collapsed(style, streams, (2 + n) * n)
        branch = x
        if position in ("before", "around"):
            outside = style.captured(_FIRST.get(module, module))
            with style.recomputed("layernorm", is_discarding=True), style.offloaded(_NORMS.get(module, "")), outside:
                branch = style.norm_before(x, first) if first else style.norm(x)
        with style.recomputed(module):
            branch = sublayer(style, branch)
        if position in ("after", "around"):
            branch = style.norm(branch)
        if n:
            return expanded(style, streams, branch, weights)
        x = style.residual(x, branch, bias=has_bias and style.adds_bias_late())
        return style.norm(x) if position == "after_residual" else x


#: module -> the part of it that begins with the norm before it
_FIRST = {"moe": "moe_router"}
#: module -> what plans call the norm before it
_NORMS = {"attn": "attn_norm", "mlp": "mlp_norm", "moe": "mlp_norm"}


def _parallel_block(
    style: Style, x: Tensor, second: Callable[[Style, Tensor], Tensor], module: str, *, kind: str, causal: bool
) -> Tensor:
    """Append a block whose attention and MLP or experts (``module``) read the same stream (GPT-J, NeoX, Falcon)."""
    spec, late = style.spec, style.adds_bias_late()
    with style.captured("attn"):
        normed = style.norm(x)
        branch = attention(style, normed, causal=causal, kind=kind)
        y = style.residual(x, branch, bias=late and spec.attention_output_bias)
    with style.captured(module):
        inside = normed if spec.shared_norm else style.norm(x)
        return style.residual(y, second(style, inside), bias=late and spec.mlp_bias)
