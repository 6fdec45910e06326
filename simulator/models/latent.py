"""Multi-head latent attention: queries, keys and values grown from low-rank latents.

References
----------
DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434, section 2.1.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from simulator.models.layer import AttentionShape, GemmShape, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import kernel, map_kernel
from simulator.models.styles.base import Style


def latent_attention(style: Style, x: Tensor, *, causal: bool) -> Tensor:
    """Append self-attention through latents, from its normed input ``[tokens, hidden]`` to its output projection.

    The down-projections are whole on every tensor-parallel rank; the up-projections and the heads are split.
    """
    spec = style.spec
    query_dim = spec.head_dim + spec.qk_rope_head_dim
    with style.offloaded("qkv_linear"):
        q, k, values = _projected(style, x, query_dim)
    shape = style.attention_shape(causal=causal, head_dim=(query_dim + spec.v_head_dim) // 2)
    shape = replace(shape, kv_heads=style.heads)
    if spec.index_top_k:
        k = _chosen(style, x, k, shape) if spec.index_heads else k
        shape = shape.limited(spec.index_top_k)
    with style.offloaded("core_attn"):
        context = style.core_attention(q, k, values, shape)
    with style.offloaded("attn_proj"):
        return style.row(context, style.heads * spec.v_head_dim, name="attention_output")


def _projected(style: Style, x: Tensor, query_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Append queries, keys and values, down to the latents and up again."""
    spec, tape = style.spec, style.tape
    if spec.q_lora_rank:
        low = _down(style, x, spec.q_lora_rank)
        with _up_projection(style):
            low = style.norm_before(low, "q_up", width=spec.q_lora_rank)
            (q,) = style.columns(low, [style.heads * query_dim], name="q_up", columns=spec.q_lora_rank)
    else:
        (q,) = style.columns(x, [style.heads * query_dim], name="query")
    latent = _down(style, x, spec.kv_lora_rank + spec.qk_rope_head_dim)
    n_rows = latent.n_elements // (spec.kv_lora_rank + spec.qk_rope_head_dim)
    sizes = [n_rows * spec.kv_lora_rank, n_rows * spec.qk_rope_head_dim]
    compressed, shared_key = tape.split(latent, sizes, [map_kernel("cat", [latent], [latent], in_pass="backward")])
    with _up_projection(style):
        compressed = style.norm_before(compressed, "kv_up", width=spec.kv_lora_rank)
        up = style.heads * (spec.head_dim + spec.v_head_dim)
        (kv,) = style.columns(compressed, [up], name="kv_up", columns=spec.kv_lora_rank)
        n_tokens = style.setting.tokens
        keys, values = tape.split(
            kv,
            [n_tokens * style.heads * spec.head_dim, n_tokens * style.heads * spec.v_head_dim],
            [map_kernel("cat", [kv], [kv], in_pass="backward")],
        )
        q = style.rotary(q)
        k = _join(style, keys, style.rotary(shared_key), n_tokens * style.heads * query_dim)
    return q, k, values


def _up_projection(style: Style) -> AbstractContextManager[None]:
    """Recompute norms, up-projections and rotations where a plan says so; only the latents are kept then."""
    return style.recomputed("mla_up_proj", is_discarding=True)


def _chosen(style: Style, x: Tensor, k: Tensor, shape: AttentionShape) -> Tensor:
    """Append the index attention that chooses each query's keys; nothing flows back through the choice.

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3.2-Exp", 2025, section 1 (lightning indexer, in eight bits).
    """
    spec, n_scores = style.spec, shape.batch * shape.seq_q * shape.seq_k // 2
    choice = chosen_by_index(
        style, shape, n_keys=shape.seq_k, n_scores=n_scores, top_k=spec.index_top_k, key_width=spec.index_head_dim
    )
    return style.tape.record([k, x], k.n_elements, k.dtype, forward=choice, view=k, gradient="alias")


def chosen_by_index(
    style: Style, shape: AttentionShape, *, n_keys: int, n_scores: int, top_k: int, key_width: int
) -> list[LayerItem]:
    """Return the products of an index over so many keys, made by a projection of ``key_width``, and its choice of ``top_k``."""
    spec, n_tokens, dtype = style.spec, style.setting.tokens, style.setting.gemm_dtype
    heads, width, chosen = spec.index_heads, spec.index_head_dim, n_tokens * top_k
    rows = shape.seq_q * heads
    return [
        GemmShape(m=n_tokens, n=heads * width, k=spec.q_lora_rank or spec.hidden, dtype=dtype, name="index_query"),
        GemmShape(m=n_tokens, n=key_width + heads, k=spec.hidden, dtype=dtype, name="index_key"),
        GemmShape(batch=shape.batch, m=rows, n=max(1, n_keys // 2), k=width, dtype=dtype, name="index_scores"),
        kernel("topk", chosen, 4 * n_scores, 4 * chosen, "fp32", row=n_keys),
    ]


def _down(style: Style, x: Tensor, rank: int) -> Tensor:
    return style.linear(x, rank, style.spec.hidden, name="down")


def _join(style: Style, keys: Tensor, rotated: Tensor, n_elements: int) -> Tensor:
    """Append the concatenation of every head's own key with the rotated key that all heads share."""
    whole = Tensor(n_elements, keys.dtype, keys.storage)
    return style.tape.record(
        [keys, rotated],
        n_elements,
        keys.dtype,
        forward=[map_kernel("cat", [keys, rotated], [whole])],
        backward=[
            map_kernel("copy", [keys], [keys], in_pass="backward"),
            map_kernel("sum", [whole], [rotated], in_pass="backward"),
        ],
    )
