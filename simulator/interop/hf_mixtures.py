"""Families of Hugging Face with experts, latent attention, windows by layer, or a state instead of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.interop.hf_families import activation, decoder, deepseek, llama
from simulator.interop.reader import Reader
from simulator.models.catalog import LLAMA_STYLE, MEGATRON_STYLE


def _layer_list(r: Reader, *keys: str, letters: dict[str, str]) -> tuple[str, ...]:
    """Return a pattern from a list of layer kinds in the file's words, empty where there is none."""
    kinds = r.raw(*keys)
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in letters for kind in kinds):
        r.fault(keys[0], f"{kinds!r:.80} is not a list of {', '.join(letters)}")
    return tuple(letters[kind] for kind in kinds)


def experts(r: Reader, *, n: int | None = None, top_k: int | None = None) -> dict[str, Any]:
    """Return how many experts there are, and how many a token takes."""
    return {
        "n_experts": r.positive("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", default=n),
        "top_k": r.positive("num_experts_per_tok", "experts_per_token", "moe_topk", "moe_k", default=top_k),
    }


def _leave_out_mtp(r: Reader) -> None:
    count = r.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0)
    if count:
        r.assume("mtp_layers", 0, f"{count} multi-token-prediction module left out, as in the published counts")


def _deepseek_v2(r: Reader) -> dict[str, Any]:
    if r.data.get("q_lora_rank", 0) is None:
        r.assume("q_lora_rank", 0, "null: queries are projected directly")
    return deepseek(r)


def _sparse_deepseek(r: Reader) -> dict[str, Any]:
    _leave_out_mtp(r)
    r.irrelevant(["indexer_rope_interleave", "index_share_for_mtp_iteration", "index_skip_topk_offset"])
    if r.data.get("index_topk_pattern") or r.integer("index_topk_freq", default=1) > 1:
        r.miss("index_topk_freq", "layers that share the choice of keys: every layer is taken to choose its own")
    return deepseek(r) | {
        "index_heads": r.positive("index_n_heads", default=64),
        "index_head_dim": r.positive("index_head_dim", default=128),
        "index_top_k": r.positive("index_topk", default=2048),
    }


def _kimi(r: Reader) -> dict[str, Any]:
    _leave_out_mtp(r)
    return deepseek(r)


def _gpt_oss(r: Reader) -> dict[str, Any]:
    bias = r.boolean("attention_bias", default=True)
    fields = llama(r)
    expert = r.positive("intermediate_size")
    return fields | experts(r, n=128, top_k=4) | {
        "expert_hidden": expert,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "attention_sinks": True,
        "router_bias": True,
        "expert_bias": True,
    }  # fmt: skip


def _glm4_moe(r: Reader) -> dict[str, Any]:
    _leave_out_mtp(r)
    bias = r.boolean("attention_bias")
    expert = r.positive("moe_intermediate_size", default=1408)
    fields = llama(r)
    return fields | experts(r, n=128, top_k=8) | {
        "attention_bias": bias,
        "attention_output_bias": False,
        "head_dim": fields["head_dim"] or fields["hidden"] // fields["heads"],
        "qk_norm": r.boolean("use_qk_norm"),
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer("n_shared_experts", default=1),
        "dense_layers": r.integer("first_k_dense_replace", default=1),
    }  # fmt: skip


def _minimax_m2(r: Reader) -> dict[str, Any]:
    for key in ("num_mtp_modules", "mtp_transformer_layers", "use_mtp"):
        r.irrelevant([key])
    kinds = r.raw("attn_type_list")
    if kinds is not None and (not isinstance(kinds, list) or any(kind != 1 for kind in kinds)):
        r.fault("attn_type_list", "other attention than full is not known here")
    return llama(r) | experts(r, n=256, top_k=8) | {
        "expert_hidden": r.positive("intermediate_size"),
        "shared_expert_hidden": r.integer("shared_intermediate_size", default=0),
        "qk_norm": r.boolean("use_qk_norm", default=True),
        "qk_norm_width": r.text("qk_norm_type", default="per_layer", one_of=("per_layer", "per_head")) == "per_layer",
    }  # fmt: skip


def _llama4(r: Reader) -> dict[str, Any]:
    layers, every = r.positive("num_hidden_layers"), r.positive("interleave_moe_layer_step", default=1)
    chunk = r.integer("attention_chunk_size", default=8192)
    whole = r.positive("no_rope_layer_interval", default=4)
    marked = r.raw("moe_layers")
    mixed = set(marked) if isinstance(marked, list) else set(range(every - 1, layers, every))
    kinds = _layer_list(r, "layer_types", letters={"chunked_attention": "c", "full_attention": "*"})
    kinds = kinds or tuple("*" if (i + 1) % whole == 0 or not chunk else "c" for i in range(layers))
    expert = r.positive("intermediate_size")
    r.irrelevant(["no_rope_layers", "attn_temperature_tuning", "floor_scale", "attn_scale", "for_llm_compressor"])
    return decoder(r) | experts(r, n=16, top_k=1) | {
        "pattern": tuple(kind + ("E" if i in mixed else "-") for i, kind in enumerate(kinds)),
        "attention_chunk": chunk,
        "ffn_hidden": r.positive("intermediate_size_mlp", default=16384),
        "expert_hidden": expert,
        "shared_expert_hidden": expert,
        "qk_norm": r.boolean("use_qk_norm", default=True),
        "qk_norm_scale": False,
    }  # fmt: skip


def _gemma_windows(r: Reader, every: int, *, qk_norm: bool) -> dict[str, Any]:
    layers = r.positive("num_hidden_layers")
    r.irrelevant(
        ["hidden_act", "hidden_activation", "final_logit_softcapping", "attn_logit_softcapping", "cache_implementation"]
    )
    fields = decoder(r)
    span = r.positive("sliding_window", default=4096)
    kinds = _layer_list(r, "layer_types", letters={"sliding_attention": "w-", "full_attention": "*-"})
    every = r.positive("sliding_window_pattern", "_sliding_window_pattern", default=every)
    return fields | {
        "head_dim": fields["head_dim"] or 256,
        "activation": "gelu",
        "norm_position": "around",
        "qk_norm": qk_norm,
        "sliding_window": span,
        "pattern": kinds or tuple("*-" if (i + 1) % every == 0 else "w-" for i in range(layers)),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _gemma2(r: Reader) -> dict[str, Any]:
    return _gemma_windows(r, 2, qk_norm=False)


def _gemma3(r: Reader) -> dict[str, Any]:
    r.irrelevant(["rope_local_base_freq"])
    return _gemma_windows(r, 6, qk_norm=True)


def _falcon(r: Reader) -> dict[str, Any]:
    heads, new = r.positive("num_attention_heads", "n_head"), r.boolean("new_decoder_architecture")
    parallel, bias = r.boolean("parallel_attn", default=True), r.boolean("bias")
    kv_heads = r.integer("num_kv_heads", "n_head_kv", default=heads)
    n_norms = r.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    many = r.boolean("multi_query", default=True)
    hidden = r.positive("hidden_size")
    return MEGATRON_STYLE | {
        "layers": r.positive("num_hidden_layers", "n_layer"),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": kv_heads if new else 1 if many else heads,
        "ffn_hidden": r.integer("ffn_hidden_size", default=4 * hidden),
        "vocab": r.positive("vocab_size", default=65024),
        "max_positions": r.positive("max_position_embeddings", default=2048),
        "positions": "alibi" if r.boolean("alibi") else "rotary",
        "activation": activation(r, "activation", default="gelu"),
        "parallel_block": parallel or new,
        "shared_norm": (parallel or new) and n_norms == 1,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "dropout": r.number("hidden_dropout", default=0.0),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _stablelm(r: Reader) -> dict[str, Any]:
    parallel, bias = r.boolean("use_parallel_residual"), r.boolean("use_qkv_bias")
    if r.boolean("qk_layernorm"):
        r.fault("qk_layernorm", "a norm of its own for every head is not known here")
    r.irrelevant(["rope_pct", "rotary_scaling_factor"])
    return llama(r) | {
        "norm": "layer_norm",
        "attention_bias": bias,
        "attention_output_bias": False,
        "parallel_block": parallel,
        "shared_norm": parallel,
        "dropout": r.number("hidden_dropout", default=0.0),
    }


def _mamba(r: Reader, prefix: str = "mamba_") -> dict[str, Any]:
    """Return the sizes of Mamba-2 mixers, whose keys some families prefix."""
    r.irrelevant(
        [
            "chunk_size", "mamba_chunk_size", "mamba_hidden_act", "mamba_proj_bias", "mamba_ssm_cache_dtype", "rescale_prenorm_residual",
            "residual_in_fp32", "time_step_floor", "time_step_limit", "time_step_max", "time_step_min", "time_step_rank",
            "use_mamba_kernels", "use_conv_bias", "num_logits_to_keep", "expand", "rms_norm",
        ]
    )  # fmt: skip
    return {
        "ssm_heads": r.positive(f"{prefix}num_heads", "mamba_n_heads", default=128),
        "ssm_head_dim": r.positive(f"{prefix}head_dim", "mamba_d_head", default=64),
        "ssm_state": r.positive("ssm_state_size", "state_size", "mamba_d_state", default=128),
        "ssm_groups": r.positive("n_groups", "mamba_n_groups", default=8),
        "conv_kernel": r.positive("conv_kernel", "mamba_d_conv", default=4),
    }


def _nemotron_h(r: Reader) -> dict[str, Any]:
    """Nemotron-H and Nemotron 3: one sublayer a block, by letters or by a list."""
    letters = r.text("hybrid_override_pattern", default="")
    named = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    pattern = _layer_list(r, "layers_block_type", "layer_types", letters=named) or tuple(letters)
    if not pattern or set(pattern) - set(named.values()):
        r.fault(
            "hybrid_override_pattern",
            f"{letters!r} is not made of M, *, - and E",
            hint="or give layers_block_type, a list",
        )
    layers = r.integer("num_hidden_layers", default=len(pattern))
    if layers != len(pattern):
        r.fault("num_hidden_layers", f"{layers} beside a pattern of {len(pattern)} layers")
    _leave_out_mtp(r)
    r.irrelevant(
        ["mtp_hybrid_override_pattern", "mtp_layers_block_type", "moe_shared_expert_overlap", "moe_latent_size"]
    )
    bias = r.boolean("attention_bias")
    fields = (
        LLAMA_STYLE
        | {
            "layers": layers,
            "hidden": r.positive("hidden_size"),
            "heads": r.positive("num_attention_heads"),
            "kv_heads": r.positive("num_key_value_heads"),
            "head_dim": r.positive("head_dim", "attention_head_dim", default=128),
            "ffn_hidden": r.positive("intermediate_size"),
            "vocab": r.positive("vocab_size"),
            "max_positions": r.positive("max_position_embeddings", default=4096),
            "positions": "none",
            "gated_mlp": False,
            "activation": activation(r, "mlp_hidden_act", default="relu2"),
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": r.boolean("mlp_bias"),
            "tied": r.boolean("tie_word_embeddings"),
            "pattern": pattern,
        }
        | _mamba(r)
    )
    if "E" not in pattern:
        return fields
    latent = r.data.get("moe_latent_size")
    return fields | experts(r) | {
        "expert_hidden": r.positive("moe_intermediate_size"),
        "shared_expert_hidden": r.positive("moe_shared_expert_intermediate_size") * r.integer("n_shared_experts", default=1),
        "expert_latent": latent if isinstance(latent, int) else 0,
    }  # fmt: skip


def _mamba2(r: Reader) -> dict[str, Any]:
    layers, hidden = r.positive("num_hidden_layers", "n_layer"), r.positive("hidden_size", "d_model")
    fields = _mamba(r, "")
    fields["ssm_heads"] = r.positive("num_heads", default=128)
    fields["ssm_head_dim"] = r.positive("head_dim", default=64)
    r.irrelevant(["hidden_act", "use_bias", "layer_norm_epsilon"])
    return LLAMA_STYLE | fields | {
        "layers": layers,
        "hidden": hidden,
        "heads": fields["ssm_heads"],
        "head_dim": fields["ssm_head_dim"],
        "vocab": r.positive("vocab_size"),
        "max_positions": 2048,
        "positions": "none",
        "pattern": ("M",) * layers,
        "tied": r.boolean("tie_word_embeddings"),
    }  # fmt: skip


def _jamba(r: Reader) -> dict[str, Any]:
    layers, hidden = r.positive("num_hidden_layers"), r.positive("hidden_size")
    attention = (r.positive("attn_layer_period", default=8), r.integer("attn_layer_offset", default=4))
    expert = (r.positive("expert_layer_period", default=2), r.integer("expert_layer_offset", default=1))
    rank = r.raw("mamba_dt_rank")
    r.irrelevant(["mamba_conv_bias", "mamba_proj_bias", "use_mamba_kernels", "num_logits_to_keep"])
    fields = decoder(r) | experts(r, n=16, top_k=2)
    return fields | {
        "positions": "none",
        "pattern": tuple(
            ("*" if i % attention[0] == attention[1] else "m") + ("E" if i % expert[0] == expert[1] else "-")
            for i in range(layers)
        ),
        "ssm_heads": hidden * r.positive("mamba_expand", default=2),
        "ssm_head_dim": 1,
        "ssm_state": r.positive("mamba_d_state", default=16),
        "ssm_dt_rank": rank if isinstance(rank, int) else -(-hidden // 16),
        "conv_kernel": r.positive("mamba_d_conv", default=4),
    }


def _delta(r: Reader) -> dict[str, Any]:
    return {
        "delta_key_heads": r.positive("linear_num_key_heads", default=16),
        "delta_value_heads": r.positive("linear_num_value_heads", default=32),
        "delta_key_dim": r.positive("linear_key_head_dim", default=128),
        "delta_value_dim": r.positive("linear_value_head_dim", default=128),
        "conv_kernel": r.positive("linear_conv_kernel_dim", default=4),
    }


def _delta_mixers(r: Reader) -> tuple[str, ...]:
    every = r.positive("full_attention_interval", default=4)
    kinds = _layer_list(r, "layer_types", letters={"linear_attention": "G", "full_attention": "*"})
    return kinds or tuple("*" if (i + 1) % every == 0 else "G" for i in range(r.positive("num_hidden_layers")))


def _qwen3_next(r: Reader) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5 with experts: gated delta nets, every fourth layer gated attention."""
    _leave_out_mtp(r)
    every, dense = r.positive("decoder_sparse_step", default=1), r.raw("mlp_only_layers") or []
    mixers = _delta_mixers(r)
    feeds = ("-" if i in dense or (i + 1) % every else "E" for i in range(len(mixers)))
    if not r.data.get("intermediate_size"):
        r.data["intermediate_size"] = 4 * r.positive("hidden_size")
    shared = r.positive("shared_expert_intermediate_size", default=512)
    fields = decoder(r)
    return fields | experts(r, n=512, top_k=10) | _delta(r) | {
        "head_dim": fields["head_dim"] or 256,
        "qk_norm": True,
        "attention_gate": True,
        "pattern": tuple(mixer + feed for mixer, feed in zip(mixers, feeds, strict=True)),
        "expert_hidden": r.positive("moe_intermediate_size", default=512),
        "shared_expert_hidden": shared,
        "shared_expert_gate": True,
    }  # fmt: skip


def _qwen3_5(r: Reader) -> dict[str, Any]:
    _leave_out_mtp(r)
    fields = decoder(r)
    return fields | _delta(r) | {
        "head_dim": fields["head_dim"] or 256,
        "qk_norm": True,
        "attention_gate": True,
        "pattern": tuple(mixer + "-" for mixer in _delta_mixers(r)),
    }  # fmt: skip


def _olmo2(r: Reader) -> dict[str, Any]:
    return llama(r) | {"norm_position": "after", "qk_norm": True, "qk_norm_width": True}


def _phimoe(r: Reader) -> dict[str, Any]:
    r.irrelevant(["input_jitter_noise", "lm_head_bias"])
    return llama(r) | experts(r, n=16, top_k=2) | {
        "norm": "layer_norm", "head_bias": r.boolean("lm_head_bias"), "expert_hidden": r.positive("intermediate_size"),
    }  # fmt: skip


def _dots1(r: Reader) -> dict[str, Any]:
    return _glm4_moe(r) | {"qk_norm": True}


#: ``model_type`` -> how its keys are read
MIXTURES: dict[str, Callable[[Reader], dict[str, Any]]] = {
    "deepseek_v2": _deepseek_v2,
    "deepseek_v32": _sparse_deepseek,
    "glm_moe_dsa": _sparse_deepseek,
    "kimi_k2": _kimi,
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "dots1": _dots1,
    "minimax_m2": _minimax_m2,
    "llama4": _llama4,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "falcon": _falcon,
    "stablelm": _stablelm,
    "nemotron_h": _nemotron_h,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "qwen3_next": _qwen3_next,
    "qwen3_5_moe": _qwen3_next,
    "qwen3_5": _qwen3_5,
    "olmo2": _olmo2,
    "phimoe": _phimoe,
}
