"""The first and last layers: embedding, final norm, output projection and loss."""

from __future__ import annotations

from simulator.models.layer import DTYPE_BYTES, CommunicationPoint, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import add, dropout, kernel, pointwise
from simulator.models.parameters import padded_vocab
from simulator.models.styles.base import Style


def lookup(style: Style, n_rows: int, *, tied: bool = False) -> Tensor:
    """Append the gather of one row of a table per token; backward scatters into a zeroed table, or adds to a tied one."""
    spec, setting = style.spec, style.setting
    dtype = style.residual_dtype
    width = DTYPE_BYTES[dtype]
    n = setting.tokens * spec.hidden
    table = n_rows * spec.hidden * DTYPE_BYTES[style.weight_dtype]
    backward: list[LayerItem] = [kernel("embedding", n, n * width, table, dtype, in_pass="wgrad")]
    if tied:
        backward.append(kernel("add", n_rows * spec.hidden, 2 * table, table, style.weight_dtype, in_pass="wgrad"))
    weight = style.tape.weight(n_rows * spec.hidden, style.weight_dtype)
    is_frozen = setting.lora_rank > 0
    return style.tape.record(
        [weight],
        n,
        dtype,
        forward=[kernel("embedding", n, n * width, n * width, dtype)],
        backward=[] if is_frozen else backward,
        saved_bytes=0 if is_frozen else 8 * setting.tokens,
    )


def embedding(style: Style) -> Tensor:
    """Append token, position and segment embeddings, their norm and dropout: ``[tokens, hidden]``.

    With sequence parallelism the residual stream is ``[tokens / tp, hidden]``.
    """
    spec, setting = style.spec, style.setting
    rows = padded_vocab(spec.vocab, setting.tp) // setting.tp
    x = lookup(style, rows, tied=spec.tied)
    if setting.tp > 1:
        x = _gather_parts(style, x)
    if spec.type_vocab:
        x = add(style.tape, x, lookup(style, spec.type_vocab))
    if spec.positions == "learned":
        x = add(style.tape, x, lookup(style, spec.max_positions + spec.position_offset))
    if spec.embedding_norm:
        x = style.norm(x)
    return dropout(style.tape, x, spec.dropout)


def _gather_parts(style: Style, x: Tensor) -> Tensor:
    """Append the masking of foreign rows and the reduction of a vocabulary-parallel lookup."""
    setting = style.setting
    x = pointwise(style.tape, "where", [x], saved_bytes=setting.tokens)
    n_bytes = style.point_bytes(style.spec.hidden)
    return style.tape.record(
        [x],
        setting.tokens_outside * style.spec.hidden,
        x.dtype,
        forward=[CommunicationPoint(operator="embedding", n_bytes=n_bytes)],
        backward=[CommunicationPoint(operator="embedding", n_bytes=n_bytes, kernel_pass="backward")],
    )


def head(style: Style, x: Tensor) -> None:
    """Append final norm (BERT: its transformation), output projection and loss."""
    spec, setting = style.spec, style.setting
    tokens = setting.tokens
    if spec.architecture == "bert":
        x = style.linear(x, spec.hidden, spec.hidden, bias=True, name="transform")
        x = style.norm(pointwise(style.tape, "gelu", [x], saves=[x]))
    elif spec.final_norm:
        x = style.norm(x)
        if spec.architecture == "t5":
            x = dropout(style.tape, x, spec.dropout)
            x = pointwise(style.tape, "mul", [x])
    vocab = padded_vocab(spec.vocab, setting.tp) // setting.tp
    (logits,) = style.columns(
        x,
        [vocab],
        bias=spec.head_bias or spec.architecture == "bert",
        name="logits",
        is_narrow="output" in setting.narrow_modules,
    )
    style.loss(logits, tokens, vocab)
