"""The families' blocks: in which order attention, MLP, norms and residuals follow one another."""

from __future__ import annotations

from simulator.models.latent import latent_attention
from simulator.models.layer import CommunicationPoint
from simulator.models.liveness import Tensor
from simulator.models.moe import moe as routed_experts
from simulator.models.styles.base import Style


def attention(style: Style, x: Tensor, *, causal: bool) -> Tensor:
    """Append self-attention from its normed input to its output projection, residual excluded.

    Parameters
    ----------
    style : Style
        Implementation.
    x : Tensor
        ``[tokens, hidden]``.
    causal : bool
        Whether tokens see only those before them.

    Returns
    -------
    Tensor
        ``[tokens, hidden]``.
    """
    spec = style.spec
    if spec.is_latent_attention:
        return latent_attention(style, x, causal=causal)
    widths = [n * style.head_dim for n in (style.heads, style.kv_heads, style.kv_heads)]
    parts = style.columns(x, widths, bias=spec.attention_bias, name="qkv")
    q, k, v = parts if len(parts) == 3 else style.split_heads(parts[0])
    if spec.qk_norm:
        q, k = style.norm(q, width=style.head_dim), style.norm(k, width=style.head_dim)
    if spec.positions == "rotary":
        q, k = style.rotary(q), style.rotary(k)
    context = style.core_attention(q, k, v, style.attention_shape(causal=causal))
    return style.row(context, widths[0], bias=spec.attention_output_bias, name="attention_output")


def cross_attention(style: Style, x: Tensor, encoded: Tensor) -> Tensor:
    """Append attention of the decoder's tokens to the encoder's output."""
    spec = style.spec
    width, kv_width = style.heads * style.head_dim, style.kv_heads * style.head_dim
    (q,) = style.columns(x, [width], bias=spec.attention_bias, name="query")
    parts = style.columns(encoded, [kv_width, kv_width], bias=spec.attention_bias, name="kv")
    if len(parts) == 1:
        parts = list(style.split_pair(parts[0]))
    context = style.core_attention(q, parts[0], parts[1], style.attention_shape(causal=False))
    return style.row(context, width, bias=spec.attention_output_bias, name="attention_output")


def mlp(style: Style, x: Tensor, width: int) -> Tensor:
    """Append a dense MLP of this ``width`` (whole, before tensor-parallel partitioning)."""
    spec = style.spec
    local = width // style.setting.tp
    late = spec.mlp_bias and style.late_up_bias
    early = spec.mlp_bias and not late
    if spec.gated_mlp:
        parts = style.columns(x, [local, local], bias=early, name="mlp_up")
        y = style.gated(*parts) if len(parts) == 2 else style.activation(parts[0], bias=late)
    else:
        (up,) = style.columns(x, [local], bias=early, name="mlp_up")
        y = style.activation(up, bias=late)
    return style.row(y, local, bias=spec.mlp_bias, name="mlp_down")


def block(style: Style, x: Tensor, *, moe: bool = False, causal: bool = True, encoded: Tensor | None = None) -> Tensor:
    """Append one transformer block.

    Parameters
    ----------
    style : Style
        Implementation.
    x : Tensor
        Residual stream ``[tokens, hidden]``.
    moe : bool
        Experts instead of the dense MLP.
    causal : bool
        Mask of self-attention.
    encoded : Tensor, optional
        The encoder's output, for a decoder with cross-attention.
    """
    spec = style.spec
    late = style.adds_bias_late()
    attention_bias, mlp_bias = late and spec.attention_output_bias, late and spec.mlp_bias
    if spec.architecture == "bert":  # norms after the residuals
        x = style.norm(style.residual(x, attention(style, x, causal=causal), bias=attention_bias))
        return style.norm(style.residual(x, mlp(style, x, spec.ffn_hidden), bias=mlp_bias))
    if spec.parallel_block:
        normed = style.norm(x)
        branch = attention(style, normed, causal=causal)
        x = style.residual(x, branch, bias=attention_bias)
        return style.residual(x, mlp(style, style.norm(x), spec.ffn_hidden), bias=mlp_bias)
    x = style.residual(x, attention(style, style.norm(x), causal=causal), bias=attention_bias)
    if encoded is not None:
        x = style.residual(x, cross_attention(style, style.norm(x), encoded), bias=attention_bias)
    normed = style.norm(x)
    branch = experts(style, normed) if moe else mlp(style, normed, spec.ffn_hidden)
    return style.residual(x, branch, bias=mlp_bias and not moe)


def experts(style: Style, x: Tensor) -> Tensor:
    """Append a mixture-of-experts MLP: routed experts and, where there is one, the shared one."""
    if not style.spec.shared_expert_hidden:
        return routed_experts(style, x)
    shared = _shared_mark(style, mlp(style, _shared_mark(style, x), style.spec.shared_expert_hidden))
    return style.residual(routed_experts(style, x), shared, bias=False)


def _shared_mark(style: Style, x: Tensor) -> Tensor:
    """Mark begin or end of the shared expert, which may run beside the exchange of tokens."""
    if style.setting.ep == 1:
        return x
    point = CommunicationPoint(operator="shared", n_bytes=0)
    back = CommunicationPoint(operator="shared", n_bytes=0, kernel_pass="backward")
    return style.tape.record([x], x.n_elements, x.dtype, forward=[point], backward=[back], view=x, gradient="alias")
