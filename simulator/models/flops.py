"""Floating-point operations of the mathematical model, for MFU: no recomputation, no masks."""

from __future__ import annotations

from simulator.models.spec import ModelSpec


def forward_flops_per_token(spec: ModelSpec, sequence_length: int) -> float:
    """Return the FLOPs of one token's forward pass, multiply-adds counted as two.

    Every weight of a matrix product that the token meets counts two, and so does every element of both
    attention products over the whole sequence (a causal mask is not credited, as is the field's habit).

    References
    ----------
    Narayanan et al., arXiv:2104.04473, appendix: ``96 B s l h^2 (1 + s/6h + V/16lh)`` with recomputation,
    three quarters of it without; Chowdhery et al., PaLM, arXiv:2204.02311, appendix B.
    """
    weights = 0.0
    for index in range(spec.layers):
        weights += _block_weights(spec, moe=spec.has_experts(index))
    weights += spec.encoder_layers * _block_weights(spec, moe=False)
    head_dim = spec.head_dim
    if spec.is_latent_attention:
        head_dim = (spec.head_dim + spec.qk_rope_head_dim + spec.v_head_dim) // 2
    n_attention = spec.layers * (2 if spec.encoder_layers else 1) + spec.encoder_layers
    attention = 4.0 * n_attention * spec.heads * head_dim * sequence_length
    if spec.encoder_layers:  # cross-attention of every decoder block
        weights += spec.layers * 2 * spec.hidden * (spec.attention_width + spec.kv_width)
    head = spec.hidden * spec.vocab + (spec.hidden**2 if spec.architecture == "bert" else 0)
    return 2.0 * (weights + head) + attention


def _block_weights(spec: ModelSpec, *, moe: bool) -> float:
    """Return the matrix elements of one block that one token meets."""
    if spec.is_latent_attention:
        query = spec.heads * (spec.head_dim + spec.qk_rope_head_dim)
        weights = spec.hidden * (spec.kv_lora_rank + spec.qk_rope_head_dim)
        weights += spec.kv_lora_rank * spec.heads * (spec.head_dim + spec.v_head_dim)
        weights += spec.heads * spec.v_head_dim * spec.hidden
        rank = spec.q_lora_rank
        weights += rank * (spec.hidden + query) if rank else spec.hidden * query
    else:
        weights = spec.hidden * 2 * (spec.attention_width + spec.kv_width)
    matrices = 3 if spec.gated_mlp else 2
    if not moe:
        return weights + matrices * spec.hidden * spec.ffn_hidden
    width = spec.top_k * spec.expert_hidden + spec.shared_expert_hidden
    return weights + matrices * spec.hidden * width + spec.hidden * spec.n_experts


def model_flops_per_sequence(spec: ModelSpec, sequence_length: int) -> float:
    """Return forward and backward FLOPs of one sequence: three times forward."""
    return 3.0 * sequence_length * forward_flops_per_token(spec, sequence_length)
