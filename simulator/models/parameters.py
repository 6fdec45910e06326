"""The tensors of a transformer by name, whole or as one tensor- and expert-parallel rank holds them."""

from __future__ import annotations

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


def _linear(name: str, rows: int, columns: int, *, bias: bool, tp: int, split: str) -> list[Parameter]:
    """Return weight and bias of ``y[rows] = x[columns]``, ``split`` by ``column``, ``row`` or ``none``."""
    is_split = tp > 1 and split != "none"
    weights = [
        Parameter(
            name=f"{name}.weight",
            n_elements=rows * columns // (tp if is_split else 1),
            is_tensor_parallel=is_split,
        )
    ]
    if bias:
        bias_split = is_split and split == "column"
        weights.append(
            Parameter(
                name=f"{name}.bias",
                n_elements=rows // (tp if bias_split else 1),
                is_tensor_parallel=bias_split,
            )
        )
    return weights


def norm_parameters(spec: ModelSpec, name: str, width: int = 0) -> list[Parameter]:
    """Return scale and, where the architecture has one, shift of one norm."""
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
        tensors += _linear(f"{name}.q_down", spec.q_lora_rank, spec.hidden, bias=False, tp=tp, split="none")
        tensors += norm_parameters(spec, f"{name}.q_norm", spec.q_lora_rank)
        tensors += _linear(f"{name}.q_up", query_dim, spec.q_lora_rank, bias=False, tp=tp, split="column")
    else:
        tensors += _linear(f"{name}.query", query_dim, spec.hidden, bias=False, tp=tp, split="column")
    tensors += _linear(f"{name}.kv_down", latent, spec.hidden, bias=False, tp=tp, split="none")
    tensors += norm_parameters(spec, f"{name}.kv_norm", spec.kv_lora_rank)
    kv_up = spec.heads * (spec.head_dim + spec.v_head_dim)
    tensors += _linear(f"{name}.kv_up", kv_up, spec.kv_lora_rank, bias=False, tp=tp, split="column")
    values = spec.heads * spec.v_head_dim
    return tensors + _linear(f"{name}.output", spec.hidden, values, bias=False, tp=tp, split="row")


def attention_parameters(spec: ModelSpec, tp: int = 1, name: str = "attention") -> list[Parameter]:
    """Return the tensors of one attention: fused projection, output projection, query and key norms."""
    if spec.is_latent_attention:
        return _latent_attention_parameters(spec, tp, name)
    kv_width = spec.kv_width * max(1, tp // spec.kv_heads)  # fewer heads than ranks: each rank holds a copy
    rows = spec.attention_width + 2 * kv_width
    tensors = _linear(f"{name}.qkv", rows, spec.hidden, bias=spec.attention_bias, tp=tp, split="column")
    if spec.qk_norm:
        tensors += [Parameter(name=f"{name}.{n}_norm.weight", n_elements=spec.head_dim) for n in ("query", "key")]
    output_bias = spec.attention_output_bias
    return tensors + _linear(f"{name}.output", spec.hidden, spec.attention_width, bias=output_bias, tp=tp, split="row")


def mlp_parameters(spec: ModelSpec, tp: int = 1, name: str = "mlp", width: int = 0) -> list[Parameter]:
    """Return the tensors of one dense MLP, ``ffn_hidden`` wide unless given; gate and up are one."""
    width = width or spec.ffn_hidden
    rows = width * (2 if spec.gated_mlp else 1)
    return [
        *_linear(f"{name}.up", rows, spec.hidden, bias=spec.mlp_bias, tp=tp, split="column"),
        *_linear(f"{name}.down", spec.hidden, width, bias=spec.mlp_bias, tp=tp, split="row"),
    ]


def moe_parameters(spec: ModelSpec, tp: int = 1, ep: int = 1) -> list[Parameter]:
    """Return router, the experts of this rank (``n_experts / ep`` of them) and the shared expert."""
    tensors = _linear("router", spec.n_experts, spec.hidden, bias=False, tp=tp, split="none")
    matrices = 3 if spec.gated_mlp else 2
    local = spec.n_experts // ep
    each = matrices * spec.hidden * spec.expert_hidden // tp
    tensors += [Parameter(name="experts.weight", n_elements=local * each, is_expert=True, is_tensor_parallel=tp > 1)]
    if spec.shared_expert_hidden:
        tensors += mlp_parameters(spec, tp, "shared_expert", spec.shared_expert_hidden)
    return tensors


def block_parameters(
    spec: ModelSpec, *, tp: int = 1, ep: int = 1, moe: bool = False, cross_attention: bool = False
) -> tuple[Parameter, ...]:
    """Return the tensors of one transformer block on one rank.

    Parameters
    ----------
    spec : ModelSpec
        The model.
    tp, ep : int
        Tensor- and expert-parallel degrees.
    moe : bool
        Experts instead of the dense MLP.
    cross_attention : bool
        A decoder block of an encoder-decoder model.
    """
    tensors = norm_parameters(spec, "norm_1") + attention_parameters(spec, tp)
    if cross_attention:
        tensors += norm_parameters(spec, "norm_cross") + attention_parameters(spec, tp, "cross_attention")
    if not spec.parallel_block or spec.norm == "layer_norm":
        tensors += norm_parameters(spec, "norm_2")
    tensors += moe_parameters(spec, tp, ep) if moe else mlp_parameters(spec, tp)
    return tuple(tensors)


def relative_parameters(spec: ModelSpec, tp: int = 1) -> list[Parameter]:
    """Return T5's table of relative position biases of one stack."""
    n_elements = spec.relative_buckets * spec.heads // tp
    return [Parameter(name="relative_bias", n_elements=n_elements, is_tensor_parallel=tp > 1)] if n_elements else []


def embedding_parameters(spec: ModelSpec, tp: int = 1) -> tuple[Parameter, ...]:
    """Return token, position and segment tables and the embedding norm of one rank."""
    rows = padded_vocab(spec.vocab, tp)
    tensors = [Parameter(name="embedding.weight", n_elements=rows * spec.hidden // tp, is_tensor_parallel=tp > 1)]
    if spec.positions == "learned":
        tensors.append(Parameter(name="positions.weight", n_elements=spec.max_positions * spec.hidden))
    if spec.type_vocab:
        tensors.append(Parameter(name="types.weight", n_elements=spec.type_vocab * spec.hidden))
    if spec.embedding_norm:
        tensors += norm_parameters(spec, "embedding_norm")
    return tuple(tensors)


def head_parameters(spec: ModelSpec, tp: int = 1) -> tuple[Parameter, ...]:
    """Return final norm and, when it is not tied, the output projection (BERT: the pooler) of one rank."""
    tensors = norm_parameters(spec, "final_norm") if spec.final_norm else []
    if spec.pooler:
        tensors += _linear("pooler", spec.hidden, spec.hidden, bias=True, tp=tp, split="none")
    if not spec.tied:
        rows = padded_vocab(spec.vocab, tp)
        tensors += _linear("output", rows, spec.hidden, bias=False, tp=tp, split="column")
    return tuple(tensors)


def model_parameters(spec: ModelSpec) -> tuple[Parameter, ...]:
    """Return every tensor of the whole model, tied tensors once."""
    decoder = spec.encoder_layers > 0
    tensors = list(embedding_parameters(spec))
    if decoder:
        tensors += relative_parameters(spec)
        tensors += [p for _ in range(spec.encoder_layers) for p in block_parameters(spec)]
        tensors += norm_parameters(spec, "encoder_norm")
    tensors += relative_parameters(spec)
    for index in range(spec.layers):
        moe = spec.has_experts(index)
        tensors += block_parameters(spec, moe=moe, cross_attention=decoder)
    return tuple(tensors) + head_parameters(spec)
