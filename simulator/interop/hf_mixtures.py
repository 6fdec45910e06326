"""Families of Hugging Face with experts, latent attention, or windows by layer."""

from __future__ import annotations

from functools import partial
from typing import Any

from simulator.interop.hf_families import SCALES
from simulator.interop.hf_fields import (
    RECORD,
    Family,
    biases,
    decoder,
    experts,
    layer_list,
    like,
    llama,
    refuse_if,
)
from simulator.interop.typed_values import Reader, words
from simulator.models.mixtures import by_window


def sparse_blocks(r: Reader) -> tuple[int, ...]:
    """Return the blocks without experts of Qwen: those that are named, and all but every n-th."""
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
        "dense_blocks": sparse_blocks(r),
        "expert_hidden": r.positive("moe_intermediate_size", default=768),
    }  # fmt: skip


def _qwen2_moe(r: Reader) -> dict[str, Any]:
    bias = r.boolean("qkv_bias", default=True)
    return llama(r) | experts(r, n=60, top_k=4) | {
        "attention_bias": bias,
        "attention_output_bias": False,
        "dense_blocks": sparse_blocks(r),
        "expert_hidden": r.positive("moe_intermediate_size", default=1408),
        "shared_expert_hidden": r.integer("shared_expert_intermediate_size", default=5632),
        "shared_expert_gate": True,
    }  # fmt: skip


def _granitemoe(r: Reader) -> dict[str, Any]:
    return (
        llama(r) | experts(r, n=8, top_k=2) | {"shared_expert_hidden": r.integer("shared_intermediate_size", default=0)}
    )


def _shared_and_dense(r: Reader, expert: int, *, shared: int = 0, dense: int = 0) -> dict[str, Any]:
    """Return what DeepSeek's relatives say of experts of one width: routed, shared, and layers without any."""
    r.irrelevant(words("first_k_dense_replace num_dense_layers") if r.has("mlp_layer_types") else ())
    layers, freq = range(r.positive("num_hidden_layers")), r.raw("moe_layer_freq")
    every = 1 if isinstance(freq, list) else r.positive("moe_layer_freq", default=1)
    named = layer_list(r, "mlp_layer_types", letters={"dense": "-", "sparse": "E"})
    marks = [kind == "E" for kind in named] or (freq if isinstance(freq, list) else [not i % every for i in layers])
    first = r.integer("first_k_dense_replace", "num_dense_layers", default=dense) if not named else 0
    return {
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer(
            "n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=shared
        ),
        "dense_layers": first,
        "dense_blocks": tuple(i for i, is_mixed in zip(layers, marks, strict=False) if i >= first and not is_mixed),
    }  # fmt: skip


def _deepseek(r: Reader) -> dict[str, Any]:
    """DeepSeek-MoE of the first generation: ordinary attention, routed and shared experts."""
    return llama(r) | experts(r) | _shared_and_dense(r, r.positive("moe_intermediate_size", default=1407))


def latent_deepseek(r: Reader, *, dense: int = 0, shared: int = 0) -> dict[str, Any]:
    """Latent attention, routed and shared experts of DeepSeek-V2 and its relatives; every layer has the same attention."""
    r.irrelevant(["layer_types"])
    fields = _latent(r) | experts(r, top_k=8)
    return fields | _shared_and_dense(r, r.positive("moe_intermediate_size"), shared=shared, dense=dense)


def _latent(r: Reader) -> dict[str, Any]:
    """Latent attention before a dense MLP (MiniCPM3)."""
    refuse_if(r, "attention_bias", "a bias of latent attention")
    return decoder(r) | {
        "head_dim": r.positive("qk_nope_head_dim", default=128),
        "kv_heads": 0,
        "q_lora_rank": r.integer("q_lora_rank", default=0),
        "kv_lora_rank": r.positive("kv_lora_rank", default=512),
        "qk_rope_head_dim": r.positive("qk_rope_head_dim", default=64),
        "v_head_dim": r.positive("v_head_dim", default=128),
    }  # fmt: skip


def _deepseek_v2(r: Reader) -> dict[str, Any]:
    if r.data.get("q_lora_rank", 0) is None:
        r.assume("q_lora_rank", 0, "null: queries are projected directly")
    return latent_deepseek(r)


def _sparse_deepseek(r: Reader, *, heads: int = 64, **usual: int) -> dict[str, Any]:
    """Latent attention to keys that an index chooses, in some layers of GLM-5.2 that of a layer before."""
    r.irrelevant(["indexer_rope_interleave", "index_share_for_mtp_iteration"])
    fields, heads = latent_deepseek(r, **usual), r.positive("index_n_heads", default=heads)
    every, first = r.positive("index_topk_freq", default=1), r.integer("index_skip_topk_offset", default=2)
    spread = ["shared" if max(i - first + 1, 0) % every else "full" for i in range(fields["layers"])]
    kinds = r.raw("indexer_types", "index_topk_pattern") or spread
    if not isinstance(kinds, list | str) or len(kinds) != len(spread):
        r.fault("indexer_types", f"{kinds!r:.60} is not full or shared for each of {len(spread)} layers")
    own = tuple(heads if str(kind)[:1] in "fF" else 0 for kind in kinds)
    return fields | {
        "index_heads": heads,
        "index_head_dim": r.positive("index_head_dim", default=128),
        "index_top_k": r.positive("index_topk", default=2048),
        "of_blocks": (("index_heads", own),) if 0 in own else (),
    }


def _deepseek_v4(r: Reader) -> dict[str, Any]:
    """DeepSeek-V4: compressed attention by layer, experts in every layer, and hyper-connections."""
    r.irrelevant(
        words("num_hash_layers mlp_layer_types hc_sinkhorn_iters hc_eps swiglu_limit compress_rope_theta expert_dtype")
    )
    layers, rates = r.positive("num_hidden_layers"), r.section("compress_rates")
    csa, hca = "compressed_sparse_attention", "heavily_compressed_attention"
    light, heavy = rates.positive(csa, default=4), rates.positive(hca, default=128)
    letters = {"sliding_attention": "w", csa: "k", hca: "h"}
    ratios = r.raw("compress_ratios")
    kinds = layer_list(r, "layer_types", letters=letters)
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


def _scales_rotation(r: Reader) -> bool:
    """Whether positions are stretched by YaRN, which multiplies sine and cosine by 0.1 ln(factor) + 1."""
    rotation = r.raw("rope_scaling", "rope_parameters")
    return isinstance(rotation, dict) and rotation.get("rope_type") == "yarn"


def _gpt_oss(r: Reader) -> dict[str, Any]:
    return llama(r, bias=True) | experts(r, n=128, top_k=4) | {
        "expert_hidden": r.positive("intermediate_size"),
        "attention_sinks": True,
        "scales_rotation": _scales_rotation(r),
        "router_bias": True,
        "expert_bias": True,
    }  # fmt: skip


def _glm4_moe(r: Reader, *, dense: int = 1) -> dict[str, Any]:
    expert = r.positive("moe_intermediate_size", default=1408)
    r.data.setdefault("intermediate_size", expert)  # of models without dense layers, which have none
    fields, mixed = llama(r), _shared_and_dense(r, expert, shared=1, dense=dense)
    return fields | experts(r, n=128, top_k=8) | mixed | {
        "attention_output_bias": False,
        "head_dim": fields["head_dim"] or fields["hidden"] // fields["heads"],
        "qk_norm": r.boolean("use_qk_norm"),
    }  # fmt: skip


def _ernie_moe(r: Reader) -> dict[str, Any]:
    """ERNIE 4.5 with experts in a range of its layers, and a bias that balances them."""
    r.irrelevant(words("moe_norm_min moe_use_aux_free moe_gate moe_capacity use_bias compression_ratio"))
    layers = r.positive("num_hidden_layers")
    first, every = r.integer("moe_layer_start_index", default=1), r.positive("moe_layer_interval", default=1)
    last, bias = r.integer("moe_layer_end_index", default=-1), bool(r.data.get("use_bias"))
    expert = r.positive("moe_intermediate_size", default=1536)
    return llama(r, tied=True) | experts(r, n=64, top_k=6) | _shared_and_dense(r, expert, shared=2) | biases(bias) | {
        "router_bias": True,
        "dense_blocks": tuple(i for i in range(layers) if i < first or (0 <= last < i) or (i + 1) % every),
        "head_bias": bias,
    }  # fmt: skip


def _afmoe(r: Reader) -> dict[str, Any]:
    """Trinity: gated attention in windows, norms before and after, a bias that balances experts."""
    r.irrelevant(words("route_scale mup_enabled load_balance_coeff score_func route_norm use_grouped_mm num_expert_groups "
                       "num_limited_groups global_attn_every_n_layers"))  # fmt: skip
    refuse_if(r, "attention_bias", "a bias of gated attention")
    expert = r.positive("moe_intermediate_size", default=1408)
    return llama(r) | experts(r, n=64, top_k=6) | _shared_and_dense(r, expert, shared=2, dense=1) | {
        "qk_norm": True, "attention_gate": True, "norm_position": "around", "router_bias": True,
    }  # fmt: skip


def _aria(r: Reader) -> dict[str, Any]:
    expert = r.positive("intermediate_size")
    return llama(r) | experts(r, n=8, top_k=2) | _shared_and_dense(r, expert, shared=2)


def _hunyuan_moe(r: Reader) -> dict[str, Any]:
    """Hunyuan-Large and A13B, which give counts and widths once for every layer."""
    for key in ("num_shared_expert", "moe_topk", "moe_intermediate_size", "num_experts"):
        value = r.data.get(key)
        if isinstance(value, list):
            if len(set(map(str, value))) > 1:
                r.fault(key, f"{value!r:.60}: layers that differ are not modelled", hint=RECORD)
            r.data[key] = value[0]
    for key in ("use_cla", "use_mla", "attention_bias", "add_classification_head"):
        refuse_if(r, key, "what it stands for")
    r.irrelevant(
        [
            key
            for key in r.data
            if key.startswith(("dense_list", "im_", "image_", "video_", "vit_", "cla_", "pad_id", "eod_"))
        ]
    )
    r.irrelevant(words("moe_drop_tokens moe_random_routing_dropped_token moe_layer_num_skipped use_rotary_pos_emb "
                       "moe_router_score_function num_experts_per_tok sep_id org_vocab_size mask_init_id"))  # fmt: skip
    is_mixed = r.boolean("use_mixed_mlp_moe", default=True)
    expert, n_shared = (
        r.positive("moe_intermediate_size", "intermediate_size"),
        r.integer("num_shared_expert", default=1),
    )
    fields = llama(r) | {"n_experts": r.positive("num_experts"), "top_k": r.positive("moe_topk", default=1)}
    return fields | {
        "expert_hidden": expert,
        "shared_expert_hidden": fields["ffn_hidden"] * n_shared if is_mixed else 0,
        "qk_norm": r.boolean("use_qk_norm", "use_qk_layernorm", default=True),
    }


def _bailing(r: Reader) -> dict[str, Any]:
    """Ling and Ring 1 and 2: Llama with norms of query and key, sigmoid routing, shared experts."""
    bias, qkv = r.boolean("use_bias"), r.boolean("use_qkv_bias")
    r.irrelevant(words("norm_softmax norm_head use_rmsnorm score_function router_dtype "
                       "group_norm_size rope_pct"))  # fmt: skip
    r.irrelevant([key for key in r.data if key.startswith(("mtp_", "moe_router_", "router_"))])
    fields = _glm4_moe(r, dense=0) | biases(bias or qkv, output=bias, mlp=bias)
    shared = r.positive("moe_shared_expert_intermediate_size", default=fields["expert_hidden"])
    return fields | {
        "shared_expert_hidden": shared * r.integer("num_shared_experts", default=1),
        "qk_norm": r.boolean("use_qk_norm"),
    }


def _mimo_v2(r: Reader) -> dict[str, Any]:
    """MiMo-V2-Flash: five of six layers see a window, have more heads of keys and a sink; values are narrower than keys."""
    layers, freq = r.positive("num_hidden_layers"), r.raw("hybrid_layer_pattern")
    names = {"full_attention": 0, "sliding_attention": 1}
    kinds = freq or [names.get(kind, -1) for kind in r.raw("layer_types") or ()]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (0, 1) for kind in kinds):
        r.fault("hybrid_layer_pattern", f"{kinds!r:.60} is not a list of 0 and 1 for {layers} layers")
    for key, whole in (
        ("swa_num_attention_heads", "num_attention_heads"),
        ("swa_head_dim", "head_dim"),
        ("swa_v_head_dim", "v_head_dim"),
    ):
        if r.data.get(key, r.data.get(whole)) != r.data.get(whole):
            r.fault(key, f"{r.data[key]} beside {whole}={r.data[whole]} is not modelled", hint=RECORD)
    sinks = (r.boolean("add_swa_attention_sink_bias", default=True), r.boolean("add_full_attention_sink_bias"))
    r.irrelevant(words("swa_num_attention_heads swa_head_dim swa_v_head_dim swa_rope_theta sliding_window_size attention_chunk_size "
                       "attention_value_scale layernorm_epsilon attention_projection_layout"))  # fmt: skip
    r.data.pop("layer_types", None)
    few = r.positive("num_key_value_heads", default=4)
    shares = (r.positive("swa_num_key_value_heads", default=2 * few), few)
    fields = _glm4_moe(r, dense=0) | {"qk_norm": False, "v_head_dim": r.positive("v_head_dim", default=128)}
    return fields | {
        "shared_expert_hidden": 0,
        "full_attention_blocks": tuple(i for i, kind in enumerate(kinds) if not kind),
        "of_blocks": by_window([not kind for kind in kinds], kv_heads=shares, attention_sinks=sinks),
    }


def _gemma4(r: Reader) -> dict[str, Any]:
    """Gemma 4: layers that see all have wider heads, fewer of keys, which are values, too; experts stand beside the MLP."""
    for key, what in (
        ("hidden_size_per_layer_input", "an embedding of every layer's own"),
        ("num_kv_shared_layers", "keys of another layer"),
    ):
        if r.integer(key, default=0):
            r.fault(key, f"{what} is not modelled", hint=RECORD)
    refuse_if(r, "use_double_wide_mlp", "an MLP twice as wide in some layers")
    r.irrelevant(["vocab_size_per_layer_input"])
    fields = _gemma(r, 6, qk_norm=True)
    is_whole = [kind[0] == "*" for kind in fields["pattern"]]
    same, shares = bool(r.boolean("attention_k_eq_v")), fields["kv_heads"]
    narrow, wide = fields["head_dim"], r.positive("global_head_dim", default=512)
    few = r.positive("num_global_key_value_heads", default=shares) if same else shares
    r.irrelevant(["num_global_key_value_heads"])  # of layers whose keys are values
    own = by_window(is_whole, head_dim=(narrow, wide), kv_heads=(shares, few), value_is_key=(False, same))
    fields |= {"of_blocks": own}
    if not r.boolean("enable_moe_block"):
        r.irrelevant(words("num_experts top_k_experts moe_intermediate_size"))
        return fields
    return fields | experts(r) | {
        "pattern": tuple(kind[0] + "E" for kind in fields["pattern"]),
        "expert_hidden": r.positive("moe_intermediate_size"),
        "shared_expert_hidden": fields["ffn_hidden"],
        "expert_norms": True,
    }  # fmt: skip


def _minimax_m2(r: Reader) -> dict[str, Any]:
    r.irrelevant(["num_mtp_modules", "mtp_transformer_layers", "use_mtp"])
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
    kinds = layer_list(r, "layer_types", letters={"chunked_attention": "c", "full_attention": "*"})
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
    """Gemma 2 and 3: all but every n-th block see a window."""
    layers = r.positive("num_hidden_layers")
    r.irrelevant(
        words("hidden_act hidden_activation final_logit_softcapping attn_logit_softcapping cache_implementation")
    )
    r.irrelevant(["rope_local_base_freq"])
    fields = decoder(r, tied=True)
    span = r.positive("sliding_window", default=4096)
    kinds = layer_list(r, "layer_types", letters={"sliding_attention": "w-", "full_attention": "*-"})
    every = r.positive("sliding_window_pattern", "_sliding_window_pattern", default=every)
    return fields | {
        "head_dim": fields["head_dim"] or 256,
        "activation": "gelu",
        "norm_position": "around",
        "qk_norm": qk_norm,
        "sliding_window": span,
        "pattern": kinds or tuple("*-" if (i + 1) % every == 0 else "w-" for i in range(layers)),
    }


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


def _cohere2_moe(r: Reader) -> dict[str, Any]:
    """Command A with experts: a parallel block of attention and experts that read one norm."""
    r.irrelevant(words("shared_expert_combination_strategy expert_selection_fn prefix_dense_sliding_window_pattern sliding_window_pattern "
                       "layer_switch order_of_interleaved_layers position_embedding_type prefix_dense_intermediate_size"))  # fmt: skip
    expert = r.positive("intermediate_size")
    return llama(r, tied=True) | experts(r, n=8, top_k=2) | _shared_and_dense(r, expert) | {
        "ffn_hidden": r.data.get("prefix_dense_intermediate_size") or expert,
        "norm": "layer_norm", "norm_bias": False, "parallel_block": True, "shared_norm": True,
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
    "granitemoe_swa": like(_granitemoe, "layer_rope_theta " + SCALES, attention_sinks=True),
    "olmoe": _olmoe,
    "flex_olmo": like(_olmoe, norm_position="after"),
    "phimoe": _phimoe,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": latent_deepseek,
    "deepseek_v32": _sparse_deepseek,
    "deepseek_v4": _deepseek_v4,
    "glm_moe_dsa": partial(_sparse_deepseek, heads=32, dense=3, shared=1),
    "kimi_k2": latent_deepseek,
    "glm4_moe_lite": partial(latent_deepseek, dense=1, shared=1),
    "youtu": like(_latent, tied=True),
    "minicpm3": like(_latent, SCALES, tied=True),
    "gpt_oss": _gpt_oss,
    "glm4_moe": _glm4_moe,
    "glm4v_moe": _glm4_moe,
    "solar_open": partial(_glm4_moe, dense=0),
    "hy_v3": like(partial(_glm4_moe, dense=1), "router_scaling_factor enable_moe_fp32_combine", qk_norm=True),
    "exaone_moe": like(partial(_glm4_moe, dense=1), "sliding_window_pattern", qk_norm=True),
    "hunyuan_v1_moe": _hunyuan_moe,
    "hunyuan": _hunyuan_moe,
    "bailing_moe": _bailing,
    "bailing_moe_v2": _bailing,
    "mimo_v2_flash": _mimo_v2,
    "ernie4_5_moe": _ernie_moe,
    "afmoe": _afmoe,
    "aria": _aria,
    "cohere2_moe": _cohere2_moe,
    "dots1": like(_glm4_moe, qk_norm=True),
    "minimax_m2": _minimax_m2,
    "minimax_m3": _minimax_m3,
    "llama4": _llama4,
    "gemma2": partial(_gemma, every=2, qk_norm=False),
    "gemma3": partial(_gemma, every=6, qk_norm=True),
    "gemma4": _gemma4,
}
