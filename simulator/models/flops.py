"""Floating-point operations of the mathematical model, for MFU: no recomputation, no causal masks.

The one place that says which keys count: those that the model lets a token look at within its document, sequence, window or
chunk, whatever a causal mask hides of them. What is recomputed counts alike (:attr:`~simulator.models.layer.AttentionShape.whole_flops`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from simulator.models.parameters import sublayer_parameters
from simulator.models.spec import ATTENTION, RECURRENT, ModelSpec


def forward_flops_per_token(spec: ModelSpec, sequence_length: int, attended_length: int = 0) -> float:
    """Return the FLOPs of one token's forward pass, multiply-adds counted as two.

    Every weight of a matrix product that the token meets counts two, and so does every element of both
    attention products over what attention stays within, in tokens: ``attended_length`` of a packed document, else the whole sequence
    (a causal mask is not credited, as is the field's habit; windows, chunks and sparse choices are).

    References
    ----------
    Narayanan et al., arXiv:2104.04473, appendix: ``96 B s l h^2 (1 + s/6h + V/16lh)`` with recomputation,
    three quarters of it without; Chowdhery et al., PaLM, arXiv:2204.02311, appendix B. Of packed documents the sum of the squares of
    their lengths: NVIDIA-NeMo/Megatron-Bridge, pull request 3839 (May 2026).
    """
    attended = attended_length or sequence_length
    blocks = [*zip(spec.specs_of_blocks, spec.blocks, strict=True), *[(spec, spec.blocks[-1])] * spec.mtp_layers]
    flops = sum(
        n * _sublayer_flops(own, kind, attended) for (own, block), n in Counter(blocks).items() for kind in block
    )
    flops += _first_stack_flops(spec, sequence_length, attended) / sequence_length
    if spec.patch_values or spec.image:
        return flops + 2.0 * spec.hidden * (spec.projection or spec.vocab) / sequence_length
    head = spec.hidden * spec.vocab + (spec.hidden**2 if spec.family.transforms_head else 0)
    head += spec.residual_streams * spec.stream_width
    return flops + 2.0 * (1 + spec.mtp_layers) * head + spec.mtp_layers * 4.0 * spec.hidden**2


def _first_stack_flops(spec: ModelSpec, sequence_length: int, attended: int) -> float:
    """Return the FLOPs for one sequence of what comes before the blocks: patches, another model, an encoder and what reads it."""
    flops = 2.0 * (sequence_length - 1) * spec.patch_values * spec.hidden
    if spec.image:
        length = spec.image.max_positions
        flops += length * forward_flops_per_token(spec.image, length)
    if spec.encoder_layers:
        length = spec.encoder_positions or sequence_length
        flops += 6.0 * length * spec.hidden * (2 * spec.mel_bins + (spec.hidden if spec.mel_bins else 0))
        seen = spec.encoder_positions or attended
        flops += spec.encoder_layers * length * sum(_sublayer_flops(spec, kind, seen) for kind in "*-")
        across = _weights_met(spec, "*") * sequence_length  # cross-attention of every decoder block
        across += 2 * spec.hidden * spec.kv_width * (length - sequence_length)
        flops += spec.layers * (2.0 * across + sequence_length * _score_flops(spec, "*", seen))
    return flops


def _sublayer_flops(spec: ModelSpec, kind: str, attended: int) -> float:
    """Return the FLOPs of one token's forward pass through one sublayer and the connections around it."""
    if n := spec.residual_streams:
        mixing = (2 + n) * n * spec.stream_width + n * n * spec.hidden
        return 2.0 * mixing + _sublayer_flops(replace(spec, residual_streams=0), kind, attended)
    if kind == "p":
        return sum(_sublayer_flops(spec, one, attended) for one in "*M")
    flops = 2.0 * _weights_met(spec, kind)
    if kind in RECURRENT:
        return flops + _state_flops(spec, kind)
    return flops + (_score_flops(spec, kind, attended) if kind in ATTENTION else 0.0)


@lru_cache(maxsize=256)  # every plan of a search asks for the same blocks
def _weights_met(spec: ModelSpec, kind: str) -> int:
    """Return the elements of the matrices of a sublayer that a token meets: of experts as many as it is routed to."""
    matrices = [tensor for tensor in sublayer_parameters(spec, kind) if tensor.is_matrix]
    routed = sum(tensor.n_elements for tensor in matrices if tensor.is_expert)
    others = sum(tensor.n_elements for tensor in matrices if not tensor.is_expert)
    return others + (routed // spec.n_experts * spec.top_k if routed else 0)


def _score_flops(spec: ModelSpec, kind: str, attended: int) -> float:
    """Return the FLOPs of one token's scores and weighted values: all keys of its document, or those that its kind sees."""
    head_dim = spec.head_dim
    if spec.v_head_dim:
        head_dim = (spec.head_dim + spec.qk_rope_head_dim + spec.v_head_dim) // 2
    if spec.output_groups:
        return _compressed_score_flops(spec, kind, attended)
    limit = {"w": spec.sliding_window, "c": spec.attention_chunk}.get(kind, 0) or spec.index_top_k or attended
    index = 2.0 * spec.index_heads * spec.index_head_dim * attended
    return 4.0 * spec.heads * head_dim * min(limit, attended) + index


def _compressed_score_flops(spec: ModelSpec, kind: str, attended: int) -> float:
    """Return the FLOPs of one token's scores, the index's among them, and weighted values of DeepSeek-V4."""
    made = attended // {"k": spec.compression, "h": spec.heavy_compression}.get(kind, attended + 1)
    seen = min(attended, spec.sliding_window) + (min(spec.index_top_k, made) if kind == "k" else made)
    index = 2.0 * spec.index_heads * spec.index_head_dim * made if kind == "k" else 0.0
    return 4.0 * spec.heads * spec.head_dim * seen + index


def _state_flops(spec: ModelSpec, kind: str) -> float:
    """Return the FLOPs of one token's state and short convolution in a mixer that carries one, beside its products.

    References
    ----------
    Megatron-LM, ``megatron/training/training.py``, ``num_floating_point_operations``: 7 for every element of Mamba's state
    and 4 for every one of the delta net's (its products counted as two).
    """
    if kind == "s":
        return 2.0 * spec.hidden * spec.conv_kernel
    if kind == "l":  # the state takes up a key and a value, and a query reads it
        return 4.0 * spec.attention_width * spec.head_dim
    if kind in "mM":
        return 7.0 * spec.ssm_width * spec.ssm_state
    values = spec.delta_value_heads * spec.delta_value_dim
    mixed = 3 * values if kind == "d" else 2 * spec.delta_key_heads * spec.delta_key_dim + values
    return 2.0 * (spec.conv_kernel * mixed + 4 * values * spec.delta_key_dim)


def model_flops_per_sequence(
    spec: ModelSpec, sequence_length: int, *, attended_length: int = 0, is_frozen: bool = False
) -> float:
    """Return forward and backward FLOPs of one sequence: three times forward, but twice where the weights are frozen.

    ``attended_length`` is of the documents packed into it, in tokens; 0: it is one. Scores have no weights: theirs are three times
    forward in any case. Adapters are not counted.
    """
    forward = forward_flops_per_token(spec, sequence_length, attended_length)
    if not is_frozen:
        return 3.0 * sequence_length * forward
    scores = sum(
        _score_flops(own, kind, attended_length or sequence_length)
        for own, block in zip(spec.specs_of_blocks, spec.blocks, strict=True)
        for kind in block
        if kind in ATTENTION + "p"
    )
    return sequence_length * (2.0 * forward + scores)
