"""The first and last layers: embedding, final norm, output projection and loss."""

from __future__ import annotations

from functools import partial

from simulator.dtypes import DTYPE_BYTES
from simulator.models.compressed import copied, merged
from simulator.models.layer import CommunicationPoint, LayerItem
from simulator.models.liveness import Tensor
from simulator.models.ops import add, batched_product, cast, dropout, kernel, map_kernel, pointwise
from simulator.models.parameters import padded_vocab
from simulator.models.styles.base import Style
from simulator.models.styles.hf_eager import eager_loss


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
    x = _patches(style) if spec.patch_values else lookup(style, rows, tied=spec.tied)
    if setting.tp > 1 and not spec.patch_values:
        x = _gather_parts(style, x)
    if spec.type_vocab:
        x = add(style.tape, x, lookup(style, spec.type_vocab))
    if spec.positions == "learned":
        x = add(style.tape, x, lookup(style, spec.max_positions + spec.position_offset))
    if spec.embedding_norm:
        x = style.norm(x)
    return copied(style, dropout(style.tape, x, spec.dropout))


def _patches(style: Style) -> Tensor:
    """Append the product that turns the patches of an image into tokens, and the token of the class before them.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words", arXiv:2010.11929, section 3.1.
    """
    spec, setting = style.spec, style.setting
    n_patches = setting.micro_batch * (setting.sequence_length - 1)
    pixels = style.tape.shared(n_patches * spec.patch_values, style.dtype)
    x = style.linear(pixels, spec.hidden, spec.patch_values, bias=spec.patch_bias, name="patches", is_narrow=False)
    return pointwise(style.tape, "cat", [x], n_elements=setting.tokens * spec.hidden)


def sound(style: Style) -> Tensor:
    """Append the two convolutions over three spectral frames each, of which the second makes one token of two frames.

    References
    ----------
    Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", arXiv:2212.04356, section 2.2.
    """
    spec, tape = style.spec, style.tape
    frames = tape.shared(2 * style.setting.tokens * 3 * spec.mel_bins, style.dtype)
    x = style.linear(frames, spec.hidden, 3 * spec.mel_bins, bias=True, name="front", is_narrow=False)
    x = pointwise(tape, "gelu", [x], saves=[x])
    columns = pointwise(tape, "im2col", [x], n_elements=3 * x.n_elements // 2)
    x = style.linear(columns, spec.hidden, 3 * spec.hidden, bias=True, name="front", is_narrow=False)
    x = pointwise(tape, "gelu", [x], saves=[x])
    return add(tape, x, lookup(style, spec.encoder_positions))


def pooled(style: Style, x: Tensor) -> Tensor:
    """Append the final norm and the choice of one token per sequence, in the width of the comparison where there is one."""
    spec, n_rows = style.spec, style.setting.micro_batch
    normed = style.norm(x) if spec.final_norm else x
    spread = map_kernel("copy", [normed], [normed], in_pass="backward")
    (chosen, *_) = style.tape.split(normed, [n_rows * spec.hidden], [spread])
    if not spec.projection:
        return chosen
    return style.linear(chosen, spec.projection, spec.hidden, name="projection", is_narrow=False)


def _comparison(style: Style, x: Tensor) -> None:
    """Append the losses of the texts of one rank's micro-batch against its images, and the other way round.

    That ranks do not compare with one another's samples is an assumption (OpenCLIP's ``--local-loss`` on one rank).

    References
    ----------
    Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", arXiv:2103.00020, figure 3.
    """
    spec, n_rows = style.spec, style.setting.micro_batch
    text = pooled(style, x)
    image = style.tape.shared(n_rows * spec.projection, text.dtype, needs_gradient=True)
    logits = batched_product(
        style.tape,
        text,
        image,
        batch=1,
        m=n_rows,
        n=n_rows,
        k=spec.projection,
        dtype=style.setting.gemm_dtype,
        name="logits",
    )
    style.loss(logits, n_rows, n_rows)


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


def _pieces(n_tokens: int, vocab: int, hidden: int) -> int:
    """Return in how many pieces Liger's loss makes logits: as many that one takes about as much as the hidden states.

    References
    ----------
    linkedin/Liger-Kernel, ``ops/fused_linear_cross_entropy.py``: ``chunk_size`` is a power of two of tokens.

    Examples
    --------
    >>> _pieces(8192, 128256, 4096), _pieces(16, 1000, 4096)
    (32, 1)
    """
    per_piece = -(-n_tokens // -(-vocab // hidden))
    return -(-n_tokens // (1 << (per_piece - 1).bit_length()))


def head(style: Style, x: Tensor) -> None:
    """Append final norm (BERT: its transformation), output projection and loss."""
    spec, setting = style.spec, style.setting
    tokens = setting.tokens
    if spec.image is not None:
        return _comparison(style, x)
    if spec.patch_values:
        logits = style.linear(pooled(style, x), spec.vocab, spec.hidden, bias=True, name="logits", is_narrow=False)
        style.loss(logits, setting.micro_batch, spec.vocab)
        return None
    x = merged(style, x)
    if spec.family.transforms_head:
        x = style.linear(x, spec.hidden, spec.hidden, bias=True, name="transform")
        x = style.norm(pointwise(style.tape, "gelu", [x], saves=[x]))
    elif spec.final_norm:
        x = style.norm(x)
        if spec.family.scales_head:
            x = dropout(style.tape, x, spec.dropout)
            x = pointwise(style.tape, "mul", [x])
    vocab = padded_vocab(spec.vocab, setting.tp) // setting.tp
    (logits,) = style.columns(
        x,
        [vocab],
        bias=spec.head_bias or spec.family.transforms_head,
        name="logits",
        is_narrow="output" in setting.narrow_modules,
    )
    if setting.loss in ("torch-fp32", "torch-parallel"):
        logits = cast(style.tape, logits, "fp32")
    if setting.loss == "linear":
        logits = logits.in_pieces(_pieces(tokens, vocab, spec.hidden))
    whole = style.gathered_logits(logits)
    loss = partial(eager_loss, style) if setting.loss.startswith("torch") else style.loss
    loss(whole, tokens, vocab * (whole.n_elements // logits.n_elements))
    return None
