"""Families of Hugging Face with experts, latent attention, windows by layer, or a state instead of attention."""

from __future__ import annotations

from functools import partial
from typing import Any

from simulator.interop.hf_families import SCALES
from simulator.interop.hf_fields import Family, activation, biases, decoder, experts, like, llama, sizes
from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import LLAMA_STYLE


def _layer_list(r: Reader, *keys: str, letters: dict[str, str]) -> tuple[str, ...]:
    """Return a pattern from a list of layer kinds in the file's words, empty where there is none."""
    kinds = r.raw(*keys)
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in letters for kind in kinds):
        r.fault(keys[0], f"{kinds!r:.80} is not a list of {', '.join(letters)}")
    return tuple(letters[kind] for kind in kinds)


def _sparse_blocks(r: Reader) -> tuple[int, ...]:
    """Return the blocks without experts of Qwen: those that are named, and all but every so-manieth."""
    layers, every = r.positive("num_hidden_layers"), r.positive("decoder_sparse_step", default=1)
    dense = r.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        r.fault("mlp_only_layers", f"{dense!r:.60} is not a list of layers")
    return tuple(i for i in range(layers) if i in dense or (i + 1) % every)


def _mixtral(r: Reader) -> dict[str, Any]:
    return llama(r) | experts(r, n=8, top_k=2)


def _qwen3_moe(r: Reader) -> dict[str, Any]:
    return llama(r) | experts(r, n=128, top_k=8) | {
        "qk_norm": True,
        "dense_blocks": _sparse_blocks(r),
        "expert_hidden": r.positive("moe_intermediate_size", default=768),
    }  # fmt: skip


def _qwen2_moe(r: Reader) -> dict[str, Any]:
    bias = r.boolean("qkv_bias", default=True)
    return llama(r) | experts(r, n=60, top_k=4) | {
        "attention_bias": bias,
        "attention_output_bias": False,
        "dense_blocks": _sparse_blocks(r),
        "expert_hidden": r.positive("moe_intermediate_size", default=1408),
        "shared_expert_hidden": r.integer("shared_expert_intermediate_size", default=5632),
        "shared_expert_gate": True,
    }  # fmt: skip


def _granitemoe(r: Reader) -> dict[str, Any]:
    return (
        llama(r) | experts(r, n=8, top_k=2) | {"shared_expert_hidden": r.integer("shared_intermediate_size", default=0)}
    )


def _shared_and_dense(r: Reader, expert: int) -> dict[str, Any]:
    """Return what DeepSeek's relatives say of experts of one width: routed, shared, and layers without any."""
    every = r.positive("moe_layer_freq", default=1)
    return {
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer("n_shared_experts", default=0),
        "dense_layers": r.integer("first_k_dense_replace", default=0),
        "dense_blocks": tuple(i for i in range(r.positive("num_hidden_layers")) if i % every),
    }


def _deepseek(r: Reader) -> dict[str, Any]:
    """DeepSeek-MoE of the first generation: ordinary attention, routed and shared experts."""
    return llama(r) | experts(r) | _shared_and_dense(r, r.positive("moe_intermediate_size", default=1407))


def _latent_deepseek(r: Reader) -> dict[str, Any]:
    """Latent attention, routed and shared experts of DeepSeek-V2 and its relatives; every layer has the same attention."""
    r.irrelevant(["layer_types"])
    _leave_out_mtp(r)
    return decoder(r) | experts(r, top_k=8) | _shared_and_dense(r, r.positive("moe_intermediate_size")) | {
        "head_dim": r.positive("qk_nope_head_dim", default=128),
        "kv_heads": 0,
        "q_lora_rank": r.integer("q_lora_rank", default=0),
        "kv_lora_rank": r.positive("kv_lora_rank", default=512),
        "qk_rope_head_dim": r.positive("qk_rope_head_dim", default=64),
        "v_head_dim": r.positive("v_head_dim", default=128),
    }  # fmt: skip


def _leave_out_mtp(r: Reader) -> None:
    count = r.integer("num_nextn_predict_layers", "mtp_num_hidden_layers", default=0)
    if count:
        r.assume("mtp_layers", 0, f"{count} multi-token-prediction module left out, as in the published counts")


def _deepseek_v2(r: Reader) -> dict[str, Any]:
    if r.data.get("q_lora_rank", 0) is None:
        r.assume("q_lora_rank", 0, "null: queries are projected directly")
    return _latent_deepseek(r)


def _sparse_deepseek(r: Reader) -> dict[str, Any]:
    r.irrelevant(["indexer_rope_interleave", "index_share_for_mtp_iteration", "index_skip_topk_offset"])
    if r.data.get("index_topk_pattern") or r.integer("index_topk_freq", default=1) > 1:
        r.miss("index_topk_freq", "layers that share the choice of keys: every layer is taken to choose its own")
    return _latent_deepseek(r) | {
        "index_heads": r.positive("index_n_heads", default=64),
        "index_head_dim": r.positive("index_head_dim", default=128),
        "index_top_k": r.positive("index_topk", default=2048),
    }


def _deepseek_v4(r: Reader) -> dict[str, Any]:
    """DeepSeek-V4: compressed attention by layer, experts in every layer, and hyper-connections."""
    _leave_out_mtp(r)
    r.irrelevant(
        words("num_hash_layers mlp_layer_types hc_sinkhorn_iters hc_eps swiglu_limit compress_rope_theta expert_dtype")
    )
    layers, rates = r.positive("num_hidden_layers"), r.section("compress_rates")
    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    light, heavy = rates.positive(csa, default=4), rates.positive(hca, default=128)
    letters = {"sliding_attention": "w", csa: "k", hca: "h"}
    ratios = r.raw("compress_ratios")
    kinds = _layer_list(r, "layer_types", letters=letters)
    if not kinds and isinstance(ratios, list):
        by_rate = {0: "w", light: "k", heavy: "h"}
        if len(ratios) < layers or any(rate not in by_rate for rate in ratios):
            r.fault(
                "compress_ratios", f"{ratios!r:.60} is not one of 0, {light} and {heavy} for each of {layers} layers"
            )
        kinds = tuple(by_rate[rate] for rate in ratios[:layers])
    kinds = kinds or tuple("h" if i < 2 or i % 2 else "k" for i in range(layers))
    expert = r.positive("moe_intermediate_size", default=2048)
    r.data["intermediate_size"] = expert
    fields, rotated = decoder(r), r.number("partial_rotary_factor", default=64 / 512)
    return fields | experts(r, n=256, top_k=6) | {
        "kv_heads": 1,
        "head_dim": fields["head_dim"] or 512,
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer("n_shared_experts", default=1),
        "pattern": tuple(kind + "E" for kind in kinds),
        "q_lora_rank": r.positive("q_lora_rank", default=1024),
        "qk_rope_head_dim": r.positive("qk_rope_head_dim", default=round((fields["head_dim"] or 512) * rotated)),
        "output_groups": r.positive("o_groups", default=8),
        "output_lora_rank": r.positive("o_lora_rank", default=1024),
        "sliding_window": r.positive("sliding_window", default=128),
        "compression": light,
        "heavy_compression": heavy,
        "index_heads": r.positive("index_n_heads", default=64),
        "index_head_dim": r.positive("index_head_dim", default=128),
        "index_top_k": r.positive("index_topk", default=512),
        "residual_streams": r.positive("hc_mult", default=4),
    }  # fmt: skip


def _gpt_oss(r: Reader) -> dict[str, Any]:
    return llama(r, bias=True) | experts(r, n=128, top_k=4) | {
        "expert_hidden": r.positive("intermediate_size"),
        "attention_sinks": True,
        "router_bias": True,
        "expert_bias": True,
    }  # fmt: skip


def _glm4_moe(r: Reader) -> dict[str, Any]:
    _leave_out_mtp(r)
    expert = r.positive("moe_intermediate_size", default=1408)
    fields = llama(r)
    return fields | experts(r, n=128, top_k=8) | {
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


def _gemma(r: Reader, every: int, *, qk_norm: bool) -> dict[str, Any]:
    """Gemma 2 and 3: all but every so-manieth block see a window."""
    layers = r.positive("num_hidden_layers")
    r.irrelevant(
        words("hidden_act hidden_activation final_logit_softcapping attn_logit_softcapping cache_implementation")
    )
    r.irrelevant(["rope_local_base_freq"])
    fields = decoder(r, tied=True)
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
    found = sizes(r, layers=len(pattern), max_positions=4096)
    fields = LLAMA_STYLE | found | biases(r.boolean("attention_bias"), mlp=r.boolean("mlp_bias")) | _mamba(r) | {
        "kv_heads": r.positive("num_key_value_heads"),
        "head_dim": r.positive("head_dim", "attention_head_dim", default=128),
        "positions": "none",
        "gated_mlp": False,
        "activation": activation(r, "mlp_hidden_act", default="relu2"),
        "pattern": pattern,
    }  # fmt: skip
    if "E" not in pattern:
        return fields
    latent = r.data.get("moe_latent_size")
    return fields | experts(r) | {
        "expert_hidden": r.positive("moe_intermediate_size"),
        "shared_expert_hidden": r.positive("moe_shared_expert_intermediate_size") * r.integer("n_shared_experts", default=1),
        "expert_latent": latent if isinstance(latent, int) else 0,
    }  # fmt: skip


def _mamba2(r: Reader) -> dict[str, Any]:
    fields = _mamba(r, "") | {
        "ssm_heads": r.positive("num_heads", default=128),
        "ssm_head_dim": r.positive("head_dim", default=64),
    }
    r.irrelevant(["hidden_act", "use_bias", "layer_norm_epsilon"])
    names = {
        "layers": "num_hidden_layers n_layer",
        "hidden": "hidden_size d_model",
        "heads": "",
        "ffn_hidden": "",
        "max_positions": "",
    }
    found = sizes(r, names, heads=fields["ssm_heads"], ffn_hidden=0, max_positions=2048)
    return LLAMA_STYLE | fields | found | {
        "head_dim": fields["ssm_head_dim"],
        "positions": "none",
        "pattern": ("M",) * found["layers"],
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


def _qwen3_5(r: Reader) -> dict[str, Any]:
    """Qwen3.5: gated delta nets, every fourth layer gated attention."""
    _leave_out_mtp(r)
    mixers, fields = _delta_mixers(r), decoder(r)
    return fields | _delta(r) | {
        "head_dim": fields["head_dim"] or 256,
        "qk_norm": True,
        "attention_gate": True,
        "pattern": tuple(mixer + "-" for mixer in mixers),
    }  # fmt: skip


def _qwen3_next(r: Reader) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5 with experts: the same, most layers with experts."""
    dense = _sparse_blocks(r)
    if not r.data.get("intermediate_size"):
        r.data["intermediate_size"] = 4 * r.positive("hidden_size")
    fields = _qwen3_5(r)
    return fields | experts(r, n=512, top_k=10) | {
        "pattern": tuple(block if i in dense else block[0] + "E" for i, block in enumerate(fields["pattern"])),
        "expert_hidden": r.positive("moe_intermediate_size", default=512),
        "shared_expert_hidden": r.positive("shared_expert_intermediate_size", default=512),
        "shared_expert_gate": True,
    }  # fmt: skip


def _minimax_m3(r: Reader) -> dict[str, Any]:
    layers = r.positive("num_hidden_layers")
    marked = r.raw("moe_layer_freq") or [1] * layers
    if not isinstance(marked, list) or len(marked) != layers or not all(one in (0, 1) for one in marked):
        r.fault("moe_layer_freq", f"{marked!r:.60} is not a list of 0 and 1 for {layers} layers")
    if r.data.get("sparse_attention_config"):
        r.miss("sparse_attention_config", "blocks of keys chosen by an index: attention is taken over all of them")
    expert = r.positive("moe_intermediate_size", "intermediate_size")
    dense = r.positive("dense_intermediate_size", "intermediate_size")
    r.irrelevant(
        ["hidden_act", "rotary_dim", "swiglu_alpha", "swiglu_limit", "use_gemma_norm", "use_routing_bias", "num_mtp_modules",
         "first_k_dense_replace", "attention_output_gate", "shared_intermediate_size", "qk_norm_type"]
    )  # fmt: skip
    data, r.data = r.data, {**r.data, "hidden_act": "silu"}
    fields = llama(r)
    r.data = data
    return fields | experts(r, n=128, top_k=4) | {
        "ffn_hidden": dense,
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer("n_shared_experts", default=0),
        "dense_blocks": tuple(index for index, one in enumerate(marked) if not one),
        "qk_norm": r.boolean("use_qk_norm", default=True),
    }  # fmt: skip


def _olmoe(r: Reader) -> dict[str, Any]:
    r.irrelevant(["clip_qkv"])
    return llama(r) | experts(r, n=64, top_k=8) | {"qk_norm": True, "qk_norm_width": True}


def _phimoe(r: Reader) -> dict[str, Any]:
    r.irrelevant(["input_jitter_noise", "lm_head_bias"])
    return llama(r) | experts(r, n=16, top_k=2) | {
        "norm": "layer_norm", "head_bias": r.boolean("lm_head_bias"), "expert_hidden": r.positive("intermediate_size"),
    }  # fmt: skip


#: ``model_type`` -> how its keys are read
MIXTURES: dict[str, Family] = {
    "mixtral": _mixtral,
    "qwen2_moe": _qwen2_moe,
    "qwen3_moe": _qwen3_moe,
    "qwen3_vl_moe": _qwen3_moe,
    "granitemoe": like(_granitemoe, SCALES),
    "granitemoeshared": like(_granitemoe, SCALES),
    "olmoe": _olmoe,
    "phimoe": _phimoe,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _latent_deepseek,
    "deepseek_v32": _sparse_deepseek,
    "deepseek_v4": _deepseek_v4,
    "glm_moe_dsa": _sparse_deepseek,
    "kimi_k2": _latent_deepseek,
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "dots1": like(_glm4_moe, qk_norm=True),
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "llama4": _llama4,
    "gemma2": partial(_gemma, every=2, qk_norm=False),
    "gemma3": partial(_gemma, every=6, qk_norm=True),
    "nemotron_h": _nemotron_h,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "qwen3_next": _qwen3_next,
    "qwen3_5_moe": _qwen3_next,
    "qwen3_5": _qwen3_5,
}
