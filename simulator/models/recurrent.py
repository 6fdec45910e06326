"""Mixers with a state instead of keys and values: Mamba-2, Mamba-1, the gated delta net and its relatives.

All project the tokens, convolve a few of them causally, carry a state along the sequence chunk by chunk, and gate and
project what comes out. Heads (channels of Mamba-1) are split over tensor-parallel ranks.

References
----------
Dao and Gu, "Transformers are SSMs", arXiv:2405.21060; Gu and Dao, "Mamba", arXiv:2312.00752; Yang et al., "Gated Delta
Networks", arXiv:2412.06464; Yang et al., "Parallelizing Linear Transformers with the Delta Rule", arXiv:2406.06484 (chunks).
"""

from __future__ import annotations

from dataclasses import replace

from simulator.models.layer import ScanShape
from simulator.models.liveness import Tensor
from simulator.models.ops import map_kernel, mul, pointwise
from simulator.models.styles.base import Style

#: tokens of one chunk: mamba_ssm's default for Mamba-2, that of flash-linear-attention for the delta rule
MAMBA2_CHUNK, DELTA_CHUNK = 128, 64
#: MiniMax-AI/MiniMax-01, ``modeling_minimax_text_01.py``: BLOCK
LIGHTNING_CHUNK = 256


def mamba2(style: Style, x: Tensor) -> Tensor:
    """Append a Mamba-2 mixer, from its normed input to its output projection, ``[tokens, hidden]`` both."""
    spec, tp = style.spec, style.setting.tp
    heads, groups = spec.ssm_heads // tp, max(1, spec.ssm_groups // tp)
    width, shared = heads * spec.ssm_head_dim, groups * spec.ssm_state
    (projected,) = style.columns(x, [2 * width + 2 * shared + heads], name="mamba_in")
    gate, mixed, steps = _parts(style, projected, width, width + 2 * shared, heads)
    mixed = _convolution(style, mixed)
    shape = ScanShape(
        name="mamba2_ssd", batch=style.setting.micro_batch, seq=style.setting.sequence, heads=heads, groups=groups,
        head_dim=spec.ssm_head_dim, state=spec.ssm_state, chunk=MAMBA2_CHUNK, dtype=style.dtype,
    )  # fmt: skip
    y = _scan(style, [mixed, steps], width, shape)
    gated = _gated_norm(style, y, gate, width) if spec.ssm_norm else _gated(style, y, gate)
    return style.row(gated, width, name="mamba_out")


def mamba1(style: Style, x: Tensor) -> Tensor:
    """Append a Mamba-1 mixer, Jamba's with norms on step, B and C, from its normed input to its output projection."""
    spec, tp = style.spec, style.setting.tp
    width, rank, state = spec.ssm_width // tp, spec.ssm_dt_rank, spec.ssm_state
    (projected,) = style.columns(x, [2 * width], name="mamba_in")
    gate, mixed = _parts(style, projected, width, width)
    mixed = _convolution(style, mixed)
    chosen = style.linear(mixed, rank + 2 * state, width, name="mamba_x")
    step, _, _ = (
        style.norm(part, width=n) if spec.ssm_norm else part
        for part, n in zip(_parts(style, chosen, rank, state, state), (rank, state, state), strict=True)
    )
    steps = style.linear(step, width, rank, bias=True, name="mamba_dt")
    shape = ScanShape(
        name="selective_scan", batch=style.setting.micro_batch, seq=style.setting.sequence, heads=width, groups=1,
        head_dim=1, state=state, chunk=1, dtype=style.dtype,
    )  # fmt: skip
    y = _scan(style, [mixed, steps], width, shape)
    return style.row(_gated(style, y, gate), width, name="mamba_out")


def gated_delta_net(style: Style, x: Tensor) -> Tensor:
    """Append a gated delta net, from its normed input to its output projection."""
    spec, tp = style.spec, style.setting.tp
    key_heads, heads = max(1, spec.delta_key_heads // tp), spec.delta_value_heads // tp
    keys, values = key_heads * spec.delta_key_dim, heads * spec.delta_value_dim
    (projected,) = style.columns(x, [2 * keys + 2 * values + 2 * heads], name="delta_in")
    gate, mixed, steps = _parts(style, projected, values, 2 * keys + values, 2 * heads)
    mixed = _convolution(style, mixed)
    shape = ScanShape(
        name="gated_delta_rule", batch=style.setting.micro_batch, seq=style.setting.sequence, heads=heads, groups=key_heads,
        head_dim=spec.delta_value_dim, state=spec.delta_key_dim, chunk=DELTA_CHUNK, dtype=style.dtype,
    )  # fmt: skip
    y = _scan(style, [mixed, steps], values, shape)
    return style.row(_gated_norm(style, y, gate, spec.delta_value_dim), values, name="delta_out")


def kimi_delta_attention(style: Style, x: Tensor) -> Tensor:
    """Append a Kimi delta attention, a delta rule that forgets channel by channel, from its normed input to its output projection.

    References
    ----------
    Kimi Team, "Kimi Linear", arXiv:2510.26692, section 3.
    """
    spec, tp = style.spec, style.setting.tp
    heads, rank = spec.delta_value_heads // tp, spec.delta_gate_rank
    width = heads * spec.delta_value_dim
    (projected,) = style.columns(x, [3 * width + heads + (0 if rank else 2 * width)], name="delta_in")
    if rank:
        mixed, _ = _parts(style, projected, 3 * width, heads)
        forget, gate = (
            style.columns(style.linear(x, rank, spec.hidden, name="down"), [width], name="delta_up", columns=rank)[0]
            for _ in range(2)
        )
    else:
        mixed, _, forget, gate = _parts(style, projected, 3 * width, heads, width, width)
    shape = ScanShape(
        name="gated_delta_rule", batch=style.setting.micro_batch, seq=style.setting.sequence, heads=heads, groups=heads,
        head_dim=spec.delta_value_dim, state=spec.delta_key_dim, chunk=DELTA_CHUNK, dtype=style.dtype,
    )  # fmt: skip
    y = _scan(style, [_convolution(style, mixed), forget], width, shape)
    return style.row(_gated_norm(style, y, gate, spec.delta_value_dim), width, name="delta_out")


def lightning_attention(style: Style, x: Tensor) -> Tensor:
    """Append a lightning attention, linear attention of heads that forget at rates of their own, to its output projection.

    Its recurrence is that of Mamba-2 with a query, key and value for every head, and is priced as that.

    References
    ----------
    Qin et al., "Lightning Attention-2", arXiv:2401.04658; MiniMax, arXiv:2501.08313, section 2.2.
    """
    heads, head_dim = style.heads, style.head_dim
    width = heads * head_dim
    (gate,) = style.columns(x, [width], name="lightning_gate")
    (projected,) = style.columns(x, [3 * width], name="lightning_qkv")
    mixed = pointwise(style.tape, "silu", [projected], saves=[projected])
    shape = ScanShape(
        name="mamba2_ssd", batch=style.setting.micro_batch, seq=style.setting.sequence, heads=heads, groups=heads,
        head_dim=head_dim, state=head_dim, chunk=LIGHTNING_CHUNK, dtype=style.dtype,
    )  # fmt: skip
    y = style.norm(_scan(style, [mixed], width, shape), width=width)
    return style.row(_gated(style, y, gate), width, name="lightning_out")


def short_convolution(style: Style, x: Tensor) -> Tensor:
    """Append a convolution over a few tokens, gated before and after, from its normed input to its output projection.

    References
    ----------
    Liquid AI, "LFM2 Technical Report", arXiv:2511.23404, section 2.
    """
    width = style.spec.hidden // style.setting.tp
    (projected,) = style.columns(x, [3 * width], name="conv_in")
    before, after, inside = _parts(style, projected, width, width, width)
    mixed = _convolution(style, mul(style.tape, before, inside))
    return style.row(mul(style.tape, after, mixed), width, name="conv_out")


def _gated(style: Style, y: Tensor, gate: Tensor) -> Tensor:
    """Append ``y * silu(gate)`` as one kernel each way."""
    return pointwise(style.tape, "swiglu", [y, gate], n_elements=y.n_elements, saves=[y, gate])


def _parts(style: Style, x: Tensor, *widths: int) -> tuple[Tensor, ...]:
    """Append the views of the parts of a merged projection."""
    n_rows = x.n_elements // sum(widths)
    gather = map_kernel("cat", [x], [x], in_pass="backward")
    return style.tape.split(x, [n_rows * width for width in widths], [gather])


def _convolution(style: Style, x: Tensor) -> Tensor:
    """Append the causal convolution over a few tokens with its SiLU, one kernel each way."""
    return pointwise(style.tape, "causal_conv1d", [x], saves=[x])


def _scan(style: Style, inputs: list[Tensor], width: int, shape: ScanShape) -> Tensor:
    """Append the recurrence in chunks; backward recomputes the states, as the published kernels do."""
    return style.tape.record(
        inputs,
        shape.batch * shape.seq * width,
        style.dtype,
        forward=[shape],
        backward=[replace(shape, kernel_pass="backward")],
        saves=inputs,
        kept=True,
    )


def _gated_norm(style: Style, y: Tensor, gate: Tensor, width: int) -> Tensor:
    """Append ``norm(y) * silu(gate)`` as one kernel each way."""
    return pointwise(style.tape, "rms_norm", [y, gate], n_elements=y.n_elements, saves=[y, gate], row=width)
