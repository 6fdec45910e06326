"""The tensors of a transformer by name, whole or as one tensor- and expert-parallel rank holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from simulator.models.layer import Parameter

if TYPE_CHECKING:
    from simulator.models.spec import ModelSpec


def padded_vocab(vocab: int, tp: int) -> int:
    """Rows of the vocabulary table after padding so that every tensor-parallel rank holds equally many.

    Examples
    --------
    >>> padded_vocab(50257, 1), padded_vocab(50257, 8)
    (50257, 50264)
    """
    return -(-vocab // tp) * tp


def _split(name: str, n_elements: int, tp: int) -> Parameter:
    return Parameter(name=name, n_elements=n_elements // tp, is_tensor_parallel=tp > 1)


def _linear(
    name: str, rows: int, columns: int, *, bias: bool = False, tp: int = 1, split: str = "none"
) -> list[Parameter]:
    """Return weight and bias of ``y[rows] = x[columns]``, ``split`` by ``column``, ``row`` or ``none``."""
    weight = replace(_split(f"{name}.weight", rows * columns, 1 if split == "none" else tp), is_matrix=True)
    return [weight, _split(f"{name}.bias", rows, tp if split == "column" else 1)] if bias else [weight]


def frozen(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return tensors as they are where they are not trained."""
    return [replace(parameter, is_trained=False) for parameter in parameters]


def _outside_blocks(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    return tuple(replace(parameter, is_matrix=False) for parameter in parameters)


def norm_parameters(spec: ModelSpec, name: str, width: int = 0) -> list[Parameter]:
    """Return scale and shift of one norm, where the architecture has them."""
    if not spec.norm_scale:
        return []
    width = width or spec.hidden
    tensors = [Parameter(name=f"{name}.weight", n_elements=width)]
    if spec.norm == "layer_norm" and spec.norm_bias:
        tensors.append(Parameter(name=f"{name}.bias", n_elements=width))
    return tensors


def _latent_attention_parameters(spec: ModelSpec, tp: int, name: str) -> list[Parameter]:
    query_dim = spec.heads * (spec.head_dim + spec.qk_rope_head_dim)
    latent = spec.kv_lora_rank + spec.qk_rope_head_dim
    tensors: list[Parameter] = []
    if spec.q_lora_rank:
        tensors += _linear(f"{name}.q_down", spec.q_lora_rank, spec.hidden)
        tensors += norm_parameters(spec, f"{name}.q_norm", spec.q_lora_rank)
        tensors += _linear(f"{name}.q_up", query_dim, spec.q_lora_rank, tp=tp, split="column")
    else:
        tensors += _linear(f"{name}.query", query_dim, spec.hidden, tp=tp, split="column")
    tensors += _linear(f"{name}.kv_down", latent, spec.hidden)
    tensors += norm_parameters(spec, f"{name}.kv_norm", spec.kv_lora_rank)
    kv_up = spec.heads * (spec.head_dim + spec.v_head_dim)
    tensors += _linear(f"{name}.kv_up", kv_up, spec.kv_lora_rank, tp=tp, split="column")
    values = spec.heads * spec.v_head_dim
    tensors += _linear(f"{name}.output", spec.hidden, values, tp=tp, split="row")
    return tensors + (_index_parameters(spec, f"{name}.index") if spec.index_heads else [])


def _index_parameters(spec: ModelSpec, name: str) -> list[Parameter]:
    """Return the tensors of the index of sparse attention, whole on every rank."""
    width = spec.index_heads * spec.index_head_dim
    tensors = _linear(f"{name}.query", width, spec.q_lora_rank or spec.hidden)
    tensors += _linear(f"{name}.key", spec.index_head_dim, spec.hidden)
    tensors += [
        Parameter(name=f"{name}.key_norm.{part}", n_elements=spec.index_head_dim) for part in ("weight", "bias")
    ]
    return tensors + _linear(f"{name}.weights", spec.index_heads, spec.hidden)


def _compressor_parameters(spec: ModelSpec, name: str, rate: int, width: int, *, series: int) -> list[Parameter]:
    """Return what turns ``rate`` tokens into one key of a width, whole on every rank: values, weights, positions, norm."""
    tensors = _linear(f"{name}.kv", series * width, spec.hidden)
    tensors += _linear(f"{name}.gate", series * width, spec.hidden)
    tensors.append(Parameter(name=f"{name}.position_bias", n_elements=rate * series * width))
    return tensors + norm_parameters(spec, f"{name}.norm", width)


def _compressed_attention_parameters(spec: ModelSpec, tp: int, name: str, kind: str) -> list[Parameter]:
    """Return the tensors of DeepSeek-V4's attention: heads and output groups are split, all that makes keys is whole."""
    groups, rank, width = spec.output_groups, spec.output_lora_rank, spec.attention_width
    tensors = _linear(f"{name}.q_down", spec.q_lora_rank, spec.hidden)
    tensors += norm_parameters(spec, f"{name}.q_norm", spec.q_lora_rank)
    tensors += _linear(f"{name}.q_up", width, spec.q_lora_rank, tp=tp, split="column")
    tensors += _linear(f"{name}.kv", spec.head_dim, spec.hidden)
    tensors += norm_parameters(spec, f"{name}.kv_norm", spec.head_dim)
    tensors += _linear(f"{name}.output_down", groups * rank, width // groups, tp=tp, split="column")
    tensors += _linear(f"{name}.output", spec.hidden, groups * rank, tp=tp, split="row")
    tensors.append(_split(f"{name}.sinks", spec.heads, tp))
    if kind == "h":
        tensors += _compressor_parameters(spec, f"{name}.compressor", spec.heavy_compression, spec.head_dim, series=1)
    elif kind == "k":
        inner, rate = spec.index_head_dim, spec.compression
        tensors += _compressor_parameters(spec, f"{name}.compressor", rate, spec.head_dim, series=2)
        tensors += _compressor_parameters(spec, f"{name}.index", rate, inner, series=2)
        tensors += _linear(f"{name}.index.query", spec.index_heads * inner, spec.q_lora_rank)
        tensors += _linear(f"{name}.index.weights", spec.index_heads, spec.hidden)
    return tensors


def attention_parameters(spec: ModelSpec, tp: int = 1, name: str = "attention", kind: str = "*") -> list[Parameter]:
    """Return the tensors of one attention: fused projection, output projection, query and key norms."""
    if spec.is_latent_attention:
        return _latent_attention_parameters(spec, tp, name)
    if spec.output_groups:
        return _compressed_attention_parameters(spec, tp, name, kind)
    kv_heads = spec.kv_heads * max(1, tp // spec.kv_heads)  # fewer heads than ranks: each rank holds a copy
    kv_width, values = kv_heads * spec.head_dim, spec.v_head_dim or spec.head_dim
    rows = spec.attention_width * (2 if spec.attention_gate else 1) + kv_width
    rows += 0 if spec.value_is_key else kv_heads * values
    tensors = _linear(f"{name}.qkv", rows, spec.hidden, bias=spec.attention_bias, tp=tp, split="column")
    if spec.attention_bias and not spec.key_bias:
        tensors[-1] = replace(tensors[-1], n_elements=(rows - kv_width) // tp)
    if spec.qk_norm and spec.qk_norm_scale:
        widths = (spec.attention_width, spec.kv_width) if spec.qk_norm_width else (spec.head_dim, spec.head_dim)
        names = zip(("query", "key"), widths, strict=True)
        tensors += [Parameter(name=f"{name}.{n}_norm.weight", n_elements=width) for n, width in names]
    if spec.attention_sinks:
        tensors.append(_split(f"{name}.sinks", spec.heads, tp))
    output_bias = spec.attention_output_bias
    width = spec.heads * values
    return tensors + _linear(f"{name}.output", spec.hidden, width, bias=output_bias, tp=tp, split="row")


def mlp_parameters(spec: ModelSpec, tp: int = 1, name: str = "mlp", width: int = 0) -> list[Parameter]:
    """Return the tensors of one dense MLP, ``ffn_hidden`` wide unless given; gate and up are one."""
    width = width or spec.ffn_hidden
    rows = width * (2 if spec.gated_mlp else 1)
    tensors = _linear(f"{name}.up", rows, spec.hidden, bias=spec.mlp_bias, tp=tp, split="column")
    if spec.activation == "xielu":
        tensors.append(Parameter(name=f"{name}.xielu", n_elements=2))
    return tensors + _linear(f"{name}.down", spec.hidden, width, bias=spec.mlp_bias, tp=tp, split="row")


def moe_parameters(spec: ModelSpec, tp: int = 1, ep: int = 1, etp: int | None = None) -> list[Parameter]:
    """Return router, the experts of this rank (``n_experts / ep``, ``1 / etp`` of each) and the shared expert."""
    etp = tp if etp is None else etp
    tensors = _linear("router", spec.n_experts, spec.hidden, bias=spec.router_bias)
    if spec.expert_latent:
        tensors += _linear("latent.down", spec.expert_latent, spec.hidden)
        tensors += _linear("latent.up", spec.hidden, spec.expert_latent)
    n_up = 2 if spec.gated_mlp else 1
    local = spec.n_experts // ep
    each = (n_up + 1) * spec.expert_input * spec.expert_hidden // etp
    tensors.append(
        Parameter(
            name="experts.weight", n_elements=local * each, is_expert=True, is_tensor_parallel=etp > 1, is_matrix=True
        )
    )
    if spec.expert_bias:
        biases = local * (n_up * spec.expert_hidden // etp + spec.expert_input)
        tensors.append(Parameter(name="experts.bias", n_elements=biases, is_expert=True))
    if spec.shared_expert_hidden:
        tensors += mlp_parameters(spec, tp, "shared_expert", spec.shared_expert_hidden)
    if spec.residual_experts:
        tensors += mlp_parameters(spec, tp) + _linear("coefficient", 2, spec.hidden, bias=True)
    if spec.expert_norms:
        norms = ("norm_experts", "norm_after_experts", "norm_after_shared_expert")
        tensors += [tensor for name in norms for tensor in norm_parameters(spec, name)]
        tensors.append(Parameter(name="router.scales", n_elements=spec.hidden + spec.n_experts))
    if spec.shared_expert_gate:
        tensors += _linear("shared_expert.gate", 1, spec.hidden)
    return tensors


def mamba2_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return the tensors of one Mamba-2 mixer; heads and groups are split over tensor-parallel ranks.

    References
    ----------
    Dao and Gu, "Transformers are SSMs", arXiv:2405.21060, section 8 (tensor parallelism).
    """
    mixed = spec.ssm_width + 2 * spec.ssm_groups * spec.ssm_state
    rows = spec.ssm_width + mixed + spec.ssm_heads
    return [
        *(_split(f"mamba.{name}", spec.ssm_heads, tp) for name in ("dt_bias", "A_log", "D")),
        _split("mamba.conv.weight", mixed * spec.conv_kernel, tp),
        _split("mamba.conv.bias", mixed, tp),
        *_linear("mamba.in", rows, spec.hidden, tp=tp, split="column"),
        *([_split("mamba.norm.weight", spec.ssm_width, tp)] if spec.ssm_norm else []),
        *_linear("mamba.out", spec.hidden, spec.ssm_width, tp=tp, split="row"),
    ]


def mamba1_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return the tensors of one Mamba-1 mixer, Jamba's with norms on step, B and C.

    References
    ----------
    Gu and Dao, "Mamba", arXiv:2312.00752; Lieber et al., "Jamba", arXiv:2403.19887.
    """
    width, rank, state = spec.ssm_width, spec.ssm_dt_rank, spec.ssm_state
    return [
        _split("mamba.A_log", width * state, tp),
        _split("mamba.D", width, tp),
        _split("mamba.conv.weight", width * spec.conv_kernel, tp),
        _split("mamba.conv.bias", width, tp),
        *_linear("mamba.in", 2 * width, spec.hidden, tp=tp, split="column"),
        *_linear("mamba.x", rank + 2 * state, width, tp=tp, split="row"),
        *_linear("mamba.dt", width, rank, bias=True, tp=tp, split="column"),
        *(
            Parameter(name=f"mamba.{name}_norm.weight", n_elements=n)
            for name, n in (("dt", rank), ("b", state), ("c", state))
            if spec.ssm_norm
        ),
        *_linear("mamba.out", spec.hidden, width, tp=tp, split="row"),
    ]


def delta_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return the tensors of one gated delta net.

    References
    ----------
    Yang et al., "Gated Delta Networks", arXiv:2412.06464.
    """
    keys, values = spec.delta_key_heads * spec.delta_key_dim, spec.delta_value_heads * spec.delta_value_dim
    mixed = 2 * keys + values
    return [
        *(_split(f"delta.{name}", spec.delta_value_heads, tp) for name in ("dt_bias", "A_log")),
        _split("delta.conv.weight", mixed * spec.conv_kernel, tp),
        *_linear("delta.in", mixed + values + 2 * spec.delta_value_heads, spec.hidden, tp=tp, split="column"),
        Parameter(name="delta.norm.weight", n_elements=spec.delta_value_dim),
        *_linear("delta.out", spec.hidden, values, tp=tp, split="row"),
    ]


def kimi_delta_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return the tensors of one Kimi delta attention, whose forget gate has a value for every channel.

    References
    ----------
    Kimi Team, "Kimi Linear", arXiv:2510.26692, section 3.
    """
    width, rank = spec.delta_value_heads * spec.delta_value_dim, spec.delta_gate_rank
    tensors = [_split("delta.dt_bias", width, tp), _split("delta.A_log", spec.delta_value_heads, tp)]
    tensors.append(_split("delta.conv.weight", 3 * width * spec.conv_kernel, tp))
    rows = 3 * width + spec.delta_value_heads + (0 if rank else 2 * width)
    tensors += _linear("delta.in", rows, spec.hidden, tp=tp, split="column")
    for name in ("forget", "gate") if rank else ():
        tensors += _linear(f"delta.{name}_down", rank, spec.hidden)
        tensors += _linear(f"delta.{name}_up", width, rank, tp=tp, split="column")
    tensors.append(Parameter(name="delta.norm.weight", n_elements=spec.delta_value_dim))
    return tensors + _linear("delta.out", spec.hidden, width, tp=tp, split="row")


def short_convolution_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return the tensors of one gated short convolution.

    References
    ----------
    Liquid AI, "LFM2 Technical Report", arXiv:2511.23404, section 2.
    """
    return [
        *_linear("short.in", 3 * spec.hidden, spec.hidden, tp=tp, split="column"),
        _split("short.conv.weight", spec.hidden * spec.conv_kernel, tp),
        *_linear("short.out", spec.hidden, spec.hidden, tp=tp, split="row"),
    ]


def lightning_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return the tensors of one lightning attention.

    References
    ----------
    MiniMax, "MiniMax-01: Scaling Foundation Models with Lightning Attention", arXiv:2501.08313, section 2.2.
    """
    width = spec.attention_width
    return [
        *_linear("lightning.qkv", 3 * width, spec.hidden, tp=tp, split="column"),
        *_linear("lightning.gate", width, spec.hidden, tp=tp, split="column"),
        _split("lightning.norm.weight", width, tp),
        *_linear("lightning.out", spec.hidden, width, tp=tp, split="row"),
    ]


def _beside_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    return attention_parameters(spec, tp) + mamba2_parameters(spec, tp)


#: letter -> the tensors of a sublayer that is neither attention nor experts
_MAKERS = {
    "-": mlp_parameters, "M": mamba2_parameters, "m": mamba1_parameters, "G": delta_parameters, "d": kimi_delta_parameters,
    "p": _beside_parameters, "s": short_convolution_parameters, "l": lightning_parameters,
}  # fmt: skip


def sublayer_parameters(
    spec: ModelSpec, kind: str, *, tp: int = 1, ep: int = 1, etp: int | None = None
) -> list[Parameter]:
    """Return the tensors of one sublayer, by its letter in :data:`simulator.models.spec.SUBLAYERS`, without norms."""
    if kind == "E":
        return moe_parameters(spec, tp, ep, etp)
    return _MAKERS[kind](spec, tp) if kind in _MAKERS else attention_parameters(spec, tp, kind=kind)


def _connection_parameters(spec: ModelSpec, name: str, n_weights: int, n_scales: int) -> list[Parameter]:
    """Return what gives the weights with which the copies of the residual stream are mixed, from all of them.

    References
    ----------
    Xie et al., "mHC: Manifold-Constrained Hyper-Connections", arXiv:2512.24880.
    """
    tensors = _linear(name, n_weights, spec.stream_width, bias=True)
    return [*tensors, Parameter(name=f"{name}.scale", n_elements=n_scales)]


def block_parameters(
    spec: ModelSpec,
    sublayers: str = "*-",
    *,
    tp: int = 1,
    ep: int = 1,
    etp: int | None = None,
    cross_attention: bool = False,
) -> tuple[Parameter, ...]:
    """Return the tensors of one transformer block, of these sublayers by their letters, on one rank."""
    tensors: list[Parameter] = []
    for index, kind in enumerate(sublayers):
        if spec.residual_streams:
            n_weights = (2 + spec.residual_streams) * spec.residual_streams
            tensors += _connection_parameters(spec, f"connection_{index + 1}", n_weights, 3)
        if index == 0 or not spec.shared_norm:
            tensors += norm_parameters(spec, f"norm_{index + 1}")
        if spec.norm_position == "around":
            tensors += norm_parameters(spec, f"norm_after_{index + 1}")
        tensors += sublayer_parameters(spec, kind, tp=tp, ep=ep, etp=etp)
        if cross_attention and index == 0:
            tensors += norm_parameters(spec, "norm_cross") + attention_parameters(spec, tp, "cross_attention")
    return tuple(tensors)


def mtp_parameters(spec: ModelSpec, *, tp: int = 1, ep: int = 1, etp: int | None = None) -> tuple[Parameter, ...]:
    """Return the tensors of one multi-token-prediction module: two norms, a projection, a block and a final norm.

    Embedding and output projection are the model's own.

    References
    ----------
    DeepSeek-AI, "DeepSeek-V3 Technical Report", arXiv:2412.19437, section 2.2.
    """
    tensors = norm_parameters(spec, "mtp.norm_embedding") + norm_parameters(spec, "mtp.norm_hidden")
    tensors += _linear("mtp.projection", spec.hidden, 2 * spec.hidden)
    tensors += block_parameters(spec, spec.blocks[-1], tp=tp, ep=ep, etp=etp)
    return (*tensors, *norm_parameters(spec, "mtp.final_norm"))


def relative_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return T5's table of relative position biases of one stack."""
    return [_split("relative_bias", spec.relative_buckets * spec.heads, tp)] if spec.relative_buckets else []


def embedding_parameters(spec: ModelSpec, tp: int = 1) -> tuple[Parameter, ...]:
    """Return token, position and segment tables and the embedding norm of one rank."""
    rows = padded_vocab(spec.vocab, tp)
    width = spec.embedding_width or spec.hidden
    if spec.patch_values:
        bias = spec.patch_bias
        tensors = _linear("patches", spec.hidden, spec.patch_values, bias=bias)
        tensors.append(Parameter(name="class", n_elements=spec.hidden))
    else:
        tensors = [_split("embedding.weight", rows * width, tp)]
    if spec.embedding_width:
        tensors += _linear("embedding.projection", spec.hidden, width)
    if spec.positions == "learned":
        n_positions = spec.max_positions + spec.position_offset
        tensors.append(Parameter(name="positions.weight", n_elements=n_positions * spec.hidden))
    if spec.type_vocab:
        tensors.append(Parameter(name="types.weight", n_elements=spec.type_vocab * spec.hidden))
    if spec.embedding_norm:
        tensors += norm_parameters(spec, "embedding_norm")
    return _outside_blocks(tensors)


def front_parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Return the convolutions over three spectral frames each and the positions of an encoder of sound (Whisper)."""
    if not spec.mel_bins:
        return ()
    tensors = _linear("front.1", spec.hidden, 3 * spec.mel_bins, bias=True)
    tensors += _linear("front.2", spec.hidden, 3 * spec.hidden, bias=True)
    tensors.append(Parameter(name="encoder_positions.weight", n_elements=spec.encoder_positions * spec.hidden))
    return _outside_blocks(tensors)


def between_parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Return the encoder's final norm, and what a decoder of tokens adds to the table that both read (BART, T5)."""
    tensors = norm_parameters(spec, "encoder_norm") if spec.final_norm else []
    own = () if spec.mel_bins else embedding_parameters(spec)
    return (*tensors, *(one for one in own if one.name.startswith(("positions", "embedding_norm"))))


def head_parameters(spec: ModelSpec, tp: int = 1) -> tuple[Parameter, ...]:
    """Return final norm and, when it is not tied, the output projection (BERT: the pooler) of one rank."""
    tensors = norm_parameters(spec, "final_norm") if spec.final_norm else []
    if spec.pooler:
        tensors += _linear("pooler", spec.hidden, spec.hidden, bias=True)
    if spec.embedding_width:
        tensors += _linear("output.projection", spec.embedding_width, spec.hidden)
    rows = padded_vocab(spec.vocab, tp)
    if spec.residual_streams:
        tensors += _connection_parameters(spec, "connection", spec.residual_streams, 1)
    if spec.projection:
        tensors += _linear("projection", spec.projection, spec.hidden)
    if spec.image is not None:
        tensors.append(Parameter(name="logit_scale", n_elements=1))
    elif spec.patch_values:
        n_classes = spec.vocab if not spec.projection else 0
        tensors += _linear("output", n_classes, spec.hidden, bias=True) if n_classes else []
    elif not spec.tied:
        tensors += _linear("output", rows, spec.hidden, bias=spec.head_bias, tp=tp, split="column")
    elif spec.head_bias:
        tensors.append(_split("output.bias", rows, tp))
    return _outside_blocks(tensors)


@lru_cache(maxsize=64)  # asked for once for every way to run a model
def model_parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Return every tensor of the whole model, tied tensors once."""
    decoder = spec.encoder_layers > 0
    tensors = list(spec.image.parameters) if spec.image else []
    tensors += embedding_parameters(spec)
    if decoder:
        tensors += [*front_parameters(spec), *relative_parameters(spec)]
        tensors += [p for _ in range(spec.encoder_layers) for p in block_parameters(spec)]
        tensors += between_parameters(spec)
    tensors += relative_parameters(spec)
    for own, sublayers in zip(spec.specs_of_blocks, spec.blocks, strict=True):
        tensors += block_parameters(own, sublayers, cross_attention=decoder)
    return tuple(tensors) + head_parameters(spec)
