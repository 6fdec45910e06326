"""DeepSeek-V4: attention over compressed keys, and a residual stream of several copies.

References
----------
DeepSeek-AI, "DeepSeek-V4", 2026, sections 2.2 (hyper-connections) and 2.3 (compressed attention), as implemented in
huggingface/transformers, ``models/deepseek_v4/modeling_deepseek_v4.py``; Xie et al., "mHC", arXiv:2512.24880.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.models.latent import chosen_by_index
from simulator.models.layer import AttentionShape, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import kernel, map_kernel, pointwise
from simulator.models.spec import ModelSpec
from simulator.models.styles.base import Style


def compressed_attention(style: Style, x: Tensor, *, kind: str) -> Tensor:
    """Append self-attention with one key per token that is its own value, from its normed input to its output.

    Heads and the groups of the output projection are split over tensor-parallel ranks; all that makes keys is whole.
    """
    spec, setting = style.spec, style.setting
    width = style.heads * spec.head_dim
    low = style.linear(x, spec.q_lora_rank, spec.hidden, name="down")
    with style.recomputed("mla_up_proj", is_discarding=True):
        low = style.norm(low, width=spec.q_lora_rank)
        (q,) = style.columns(low, [width], name="q_up", columns=spec.q_lora_rank)
        q = _rotated(style, style.norm(q, width=spec.head_dim))
    kv = style.norm(style.linear(x, spec.head_dim, spec.hidden, name="kv"), width=spec.head_dim)
    kv = _rotated(style, kv)
    shape = style.attention_shape(causal=True, kind="w" if kind == "w" else "*")
    if kind != "w":
        kv = _with_compressed(style, x, kv, shape, kind)
        compressed = seen_keys(spec, kind, shape.seq_k)
        shape = replace(shape, gathered=compressed if kind == "k" else 0).limited(spec.sliding_window + compressed)
    context = _rotated(style, style.core_attention(q, kv, kv, shape))
    groups = max(1, spec.output_groups // setting.tp)
    grouped = style.linear(context, spec.output_lora_rank, width // groups, name="output_down", split="column")
    return style.row(grouped, groups * spec.output_lora_rank, name="attention_output")


def seen_keys(spec: ModelSpec, kind: str, sequence_length: int) -> int:
    """Return how many compressed keys a query sees at the mean: all before it, or those chosen of them.

    Examples
    --------
    >>> spec = ModelSpec(name="x", architecture="llama", layers=1, hidden=8, heads=2, vocab=8, max_positions=8,
    ...     compression=4, heavy_compression=128, index_top_k=512)
    >>> seen_keys(spec, "h", 4096), seen_keys(spec, "k", 4096)
    (16, 384)
    """
    if kind == "h":
        made = sequence_length // spec.heavy_compression
        return mean_keys(made, made)
    return mean_keys(sequence_length // spec.compression, spec.index_top_k)


def mean_keys(made: int, most: int) -> int:
    """Return how many of the compressed keys before it a query sees at the mean: all while they are few, later the chosen ones."""
    chosen = min(most, made)
    return chosen - chosen * chosen // (2 * made) if made else 0


def _rotated(style: Style, x: Tensor) -> Tensor:
    """Append the rotation of the last channels of every head, in place."""
    share = style.spec.qk_rope_head_dim / style.spec.head_dim
    n, n_bytes = round(x.n_elements * share), x.n_bytes * share
    turned = [kernel("rotary", n, n_bytes, n_bytes, x.dtype)]
    back = [kernel("rotary", n, n_bytes, n_bytes, x.dtype, in_pass="backward")]
    return style.tape.record([x], x.n_elements, x.dtype, forward=turned, backward=back, view=x, gradient="alias")


def _compressed(style: Style, x: Tensor, width: int, rate: int, *, series: int, name: str) -> Tensor:
    """Append two products and the weighted sum of the tokens of a window, or of two neighbouring ones, normed and rotated."""
    spec = style.spec
    parts = [style.linear(x, series * width, spec.hidden, name=name, is_narrow=False) for _ in range(2)]
    n_keys = x.n_elements // spec.hidden // rate
    summed = pointwise(style.tape, "softmax", parts, n_elements=n_keys * width, saves=parts, row=series * rate)
    return style.norm(summed, width=width)


def _with_compressed(style: Style, x: Tensor, kv: Tensor, shape: AttentionShape, kind: str) -> Tensor:
    """Append the compressed keys behind those of the tokens and, where an index chooses among them, its scores."""
    spec, tape = style.spec, style.tape
    rate, series = (spec.heavy_compression, 1) if kind == "h" else (spec.compression, 2)
    short = _compressed(style, x, spec.head_dim, rate, series=series, name="compressor")
    whole = Tensor(kv.n_elements + short.n_elements, kv.dtype, kv.storage)
    joined: list[LayerItem] = [map_kernel("cat", [kv, short], [whole])]
    if kind == "k":
        joined += _choice(style, shape)
    return tape.record([kv, short], whole.n_elements, kv.dtype, forward=joined, gradient="alias")


def _choice(style: Style, shape: AttentionShape) -> list[LayerItem]:
    """Return the products of the index, with compressed keys of its own, and its choice; nothing flows back through it."""
    spec, made = style.spec, max(1, shape.seq_k // style.spec.compression)
    return chosen_by_index(
        style, shape, n_keys=made, n_scores=style.setting.tokens * made // 2, top_k=min(spec.index_top_k, made),
        key_width=4 * spec.index_head_dim,
    )  # fmt: skip


def collapsed(style: Style, streams: Tensor, n_weights: int) -> tuple[Tensor, Tensor]:
    """Append the weights that hyper-connections take from all copies of the stream, and their sum: what a sublayer reads.

    The norm of the copies is part of the kernel that sums them; its iterations run in registers.
    """
    spec = style.spec
    raw = style.linear(streams, n_weights, spec.stream_width, bias=True, name="connection", is_narrow=False)
    weights = pointwise(style.tape, "sinkhorn", [raw], saves=[raw], row=n_weights)
    n = streams.n_elements // spec.residual_streams
    return weights, pointwise(style.tape, "collapse", [streams, weights], n_elements=n, saves=[streams, weights])


def expanded(style: Style, streams: Tensor, branch: Tensor, weights: Tensor) -> Tensor:
    """Append the copies of the stream mixed with one another, and a sublayer's output added to each."""
    parts = [streams, branch, weights]
    return pointwise(style.tape, "expand", parts, n_elements=streams.n_elements, saves=parts)


def copied(style: Style, x: Tensor) -> Tensor:
    """Append the copies of the residual stream, all alike at first; the stream itself where there is one."""
    n = style.spec.residual_streams
    return pointwise(style.tape, "copy", [x], n_elements=n * x.n_elements) if n else x


def merged(style: Style, streams: Tensor) -> Tensor:
    """Append the weighted sum of the copies before the output; the stream itself where there is one."""
    n = style.spec.residual_streams
    return collapsed(style, streams, n)[1] if n else streams
