"""Families of Hugging Face whose blocks carry a state or a short memory instead of keys and values, all or some of them."""

from __future__ import annotations

from typing import Any

from simulator.interop.hf_families import SCALES
from simulator.interop.hf_fields import (
    RECORD,
    Family,
    activation,
    biases,
    decoder,
    experts,
    layer_list,
    refuse_if,
    sizes,
)
from simulator.interop.hf_mixtures import latent_deepseek, sparse_blocks
from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import LLAMA_STYLE

#: keys of models that are Mamba alone, which have neither heads of attention nor an MLP nor a longest sequence
_PURE = {
    "layers": "num_hidden_layers n_layer",
    "hidden": "hidden_size d_model",
    "heads": "",
    "ffn_hidden": "",
    "max_positions": "",
}


def _plain_mixers(r: Reader) -> None:
    """Account for what mixers of both generations share: kernels, steps, and biases, which are those that are published."""
    for key in ("mamba_proj_bias", "use_bias", "projectors_bias"):
        refuse_if(r, key, "a bias of the mixers' projections")
    for key in ("mamba_conv_bias", "use_conv_bias"):
        refuse_if(r, key, "a convolution without bias", when=False)
    r.irrelevant(
        words("chunk_size mamba_chunk_size mamba_hidden_act mamba_ssm_cache_dtype rescale_prenorm_residual residual_in_fp32 "
              "time_step_floor time_step_limit time_step_max time_step_min time_step_rank use_mamba_kernels num_logits_to_keep expand "
              "rms_norm mamba_expand time_step_scale time_step_init_scheme use_mambapy use_associative_scan mixer_rms_eps")
    )  # fmt: skip


def _mamba(r: Reader, prefix: str = "mamba_") -> dict[str, Any]:
    """Return the sizes of Mamba-2 mixers, whose keys some families prefix."""
    _plain_mixers(r)
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
    pattern = layer_list(r, "layers_block_type", "layer_types", letters=named) or tuple(letters)
    if not pattern or set(pattern) - set(named.values()):
        r.fault(
            "hybrid_override_pattern",
            f"{letters!r} is not made of M, *, - and E",
            hint="or give layers_block_type, a list",
        )
    layers = r.integer("num_hidden_layers", default=len(pattern))
    if layers != len(pattern):
        r.fault("num_hidden_layers", f"{layers} beside a pattern of {len(pattern)} layers")
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
    """Mamba-2 alone, block after block."""
    fields = _mamba(r, "") | {
        "ssm_heads": r.positive("num_heads", default=128),
        "ssm_head_dim": r.positive("head_dim", default=64),
    }
    return fields | _pure(r, "M", heads=fields["ssm_heads"]) | {"head_dim": fields["ssm_head_dim"]}


def _pure(r: Reader, letter: str, **usual: Any) -> dict[str, Any]:
    """Return what a model has whose blocks are all one mixer."""
    r.irrelevant(["hidden_act"])
    found = sizes(r, _PURE, ffn_hidden=0, max_positions=2048, **usual)
    return LLAMA_STYLE | found | {"positions": "none", "pattern": (letter,) * found["layers"]}


def _step_rank(r: Reader, key: str, hidden: int) -> int:
    """Return the rank of Mamba-1's step projection, a sixteenth of the width where the file says ``auto``."""
    rank = r.raw(key)
    return rank if isinstance(rank, int) else -(-hidden // 16)


def _mamba1(r: Reader) -> dict[str, Any]:
    """Mamba of the first generation; Falcon's norms of step, B and C have no weights."""
    hidden = r.positive("hidden_size", "d_model")
    width = r.positive("intermediate_size", default=hidden * r.positive("expand", default=2))
    rank = _step_rank(r, "time_step_rank", hidden)
    _plain_mixers(r)
    return _pure(r, "m", heads=1, tied=True) | {
        "ssm_heads": width,
        "ssm_head_dim": 1,
        "ssm_state": r.positive("state_size", default=16),
        "ssm_dt_rank": rank,
        "ssm_norm": False,
        "conv_kernel": r.positive("conv_kernel", default=4),
    }  # fmt: skip


def _bamba(r: Reader) -> dict[str, Any]:
    """Bamba: Mamba-2 with attention in some blocks, an MLP in all."""
    layers, whole = r.positive("num_hidden_layers"), r.raw("attn_layer_indices") or []
    r.irrelevant(["z_loss_coefficient", "attn_rotary_emb"])
    return decoder(r) | _mamba(r) | {
        "ssm_groups": r.positive("mamba_n_groups", default=1),
        "pattern": tuple(("*" if i in whole else "M") + "-" for i in range(layers)),
    }  # fmt: skip


def _granite_hybrid(r: Reader) -> dict[str, Any]:
    """Granite 4: Mamba-2 or attention, then experts beside a shared MLP, or that MLP alone."""
    r.irrelevant(words(SCALES))
    letters = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*"}
    layers, shared = r.positive("num_hidden_layers"), r.positive("shared_intermediate_size", default=1024)
    mixers = layer_list(r, "layer_types", "layers_block_type", letters=letters) or ("M",) * layers
    is_rotary = r.text("position_embedding_type", default="nope") == "rope"
    n_experts = r.integer("num_local_experts", default=8)
    fields = decoder(r) | _mamba(r) | {
        "ssm_groups": r.positive("mamba_n_groups", default=1),
        "positions": "rotary" if is_rotary else "none",
        "pattern": tuple(mixer + ("E" if n_experts else "-") for mixer in mixers),
    }  # fmt: skip
    if not n_experts:
        r.irrelevant(words("num_experts_per_tok"))
        return fields | {"ffn_hidden": shared}
    return fields | experts(r, n=8, top_k=2) | {"expert_hidden": fields["ffn_hidden"], "shared_expert_hidden": shared}


def _falcon_h1(r: Reader) -> dict[str, Any]:
    """Falcon-H1: attention and Mamba-2 read the same norm in every block."""
    r.irrelevant([key for key in r.data if key.endswith(("_multiplier", "_multipliers"))])
    r.irrelevant(words("mamba_norm_before_gate mamba_use_mlp attn_layer_indices mlp_expansion_factor rope_type"))  # fmt: skip
    fields, heads = decoder(r) | _mamba(r), r.positive("mamba_n_heads", default=128)
    width = r.positive("mamba_d_ssm", default=fields["hidden"] * r.positive("mamba_expand", default=2))
    return fields | {
        "ssm_heads": heads,
        "ssm_head_dim": width // heads,
        "ssm_groups": r.positive("mamba_n_groups", default=1),
        "ssm_state": r.positive("mamba_d_state", default=256),
        "ssm_norm": r.boolean("mamba_rms_norm"),
        "pattern": ("p-",) * fields["layers"],
    }


def _lfm2(r: Reader) -> dict[str, Any]:
    """LFM2: gated short convolutions, attention in some blocks; the width of the MLP follows from another one."""
    layers = r.positive("num_hidden_layers")
    for key in ("block_dim", "conv_dim", "conv_dim_out"):
        if r.data.get(key) not in (None, r.data.get("hidden_size")):
            r.fault(key, f"{r.data[key]} beside hidden_size={r.data.get('hidden_size')} is not modelled", hint=RECORD)
    refuse_if(r, "conv_bias", "a bias of convolutions")
    whole = r.raw("full_attn_idxs") or []
    letters = {"conv": "s", "short_conv": "s", "full_attention": "*"}
    kinds = layer_list(r, "layer_types", letters=letters) or tuple("*" if i in whole else "s" for i in range(layers))
    r.irrelevant(words("block_dim conv_dim conv_dim_out block_mlp_init_scale block_norm_eps block_out_init_scale block_use_swiglu "
                       "block_use_xavier_init use_pos_enc conv_use_xavier_init full_attn_idxs theta num_heads"))  # fmt: skip
    r.data["intermediate_size"] = r.raw("block_ff_dim") or r.data.get("intermediate_size")
    tied = r.boolean("tie_embedding", "tie_word_embeddings", default=True)
    fields = decoder(r) | {"tied": tied}
    width, step = fields["ffn_hidden"], r.positive("block_multiple_of", default=256)
    if r.boolean("block_auto_adjust_ff_dim", default="num_experts" not in r.data):
        width = int(r.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
        width = -(-width // step) * step
    fields |= {"ffn_hidden": width, "qk_norm": True, "conv_kernel": r.positive("conv_L_cache", default=3)}
    if "num_experts" not in r.data:
        return fields | {"pattern": tuple(kind + "-" for kind in kinds)}
    dense = r.integer("num_dense_layers", default=2)
    r.irrelevant(["use_expert_bias"])
    return fields | experts(r, n=32, top_k=4) | {
        "expert_hidden": r.positive("moe_intermediate_size", default=1792),
        "pattern": tuple(kind + ("E" if i >= dense else "-") for i, kind in enumerate(kinds)),
    }  # fmt: skip


def _kimi_linear(r: Reader) -> dict[str, Any]:
    """Kimi Linear: three Kimi delta attentions to one latent attention, experts in all but the first layers."""
    linear, layers = r.section("linear_attn_config"), r.positive("num_hidden_layers")
    for key in ("routed_expert_hidden_size", "attn_res_block_size", "mla_use_output_gate", "latent_moe_use_norm"):
        if r.data.get(key):
            r.fault(key, "is not modelled for this family", hint=RECORD)
    kda = linear.raw("kda_layers")
    letters = {"linear_attention": "d", "full_attention": "*"}
    kinds = layer_list(r, "layer_types", letters=letters)
    kinds = kinds or tuple("d" if i + 1 in (kda or ()) else "*" for i in range(layers))
    r.irrelevant(
        words("mla_use_nope moe_renormalize moe_router_activation_func num_expert_group use_grouped_topk qk_head_dim")
    )
    linear.irrelevant(["full_attn_layers"])
    width = linear.positive("head_dim", default=r.positive("linear_head_dim", default=128))
    heads = linear.positive("num_heads", default=r.positive("linear_num_heads", default=32))
    taps = linear.positive("short_conv_kernel_size", default=r.positive("linear_conv_kernel_dim", default=4))
    linear.finish()
    if "max_position_embeddings" not in r.data:
        r.data["max_position_embeddings"] = r.positive("model_max_length", default=4096)
    r.irrelevant(["model_max_length", "head_dim"])
    fields = latent_deepseek(r, dense=1, shared=1)
    dense = {*range(fields["dense_layers"]), *fields["dense_blocks"]}
    return fields | {
        "pattern": tuple(kind + ("-" if i in dense else "E") for i, kind in enumerate(kinds)),
        "delta_key_heads": heads, "delta_value_heads": heads, "delta_key_dim": width, "delta_value_dim": width,
        "delta_gate_rank": width, "conv_kernel": taps,
    }  # fmt: skip


def _jamba(r: Reader) -> dict[str, Any]:
    layers, hidden = r.positive("num_hidden_layers"), r.positive("hidden_size")
    attention = (r.positive("attn_layer_period", default=8), r.integer("attn_layer_offset", default=4))
    expert = (r.positive("expert_layer_period", default=2), r.integer("expert_layer_offset", default=1))
    _plain_mixers(r)
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
        "ssm_dt_rank": _step_rank(r, "mamba_dt_rank", hidden),
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
    kinds = layer_list(r, "layer_types", letters={"linear_attention": "G", "full_attention": "*"})
    return kinds or tuple("*" if (i + 1) % every == 0 else "G" for i in range(r.positive("num_hidden_layers")))


def _qwen3_5(r: Reader) -> dict[str, Any]:
    """Qwen3.5: gated delta nets, every fourth layer gated attention."""
    mixers, fields = _delta_mixers(r), decoder(r)
    return fields | _delta(r) | {
        "head_dim": fields["head_dim"] or 256,
        "qk_norm": True,
        "attention_gate": True,
        "pattern": tuple(mixer + "-" for mixer in mixers),
    }  # fmt: skip


def _qwen3_next(r: Reader) -> dict[str, Any]:
    """Qwen3-Next and Qwen3.5 with experts: the same, most layers with experts."""
    dense = sparse_blocks(r)
    if not r.data.get("intermediate_size"):
        r.data["intermediate_size"] = 4 * r.positive("hidden_size")
    fields = _qwen3_5(r)
    return fields | experts(r, n=512, top_k=10) | {
        "pattern": tuple(block if i in dense else block[0] + "E" for i, block in enumerate(fields["pattern"])),
        "expert_hidden": r.positive("moe_intermediate_size", default=512),
        "shared_expert_hidden": r.positive("shared_expert_intermediate_size", default=512),
        "shared_expert_gate": True,
    }  # fmt: skip


def _olmo_hybrid(r: Reader) -> dict[str, Any]:
    """OLMo Hybrid: three gated delta nets to one attention with norms of whole queries and keys."""
    r.irrelevant([key for key in r.data if key.startswith(("linear_a_log", "linear_dt_", "linear_allow"))])
    mixers = _delta_mixers(r)
    return decoder(r) | _delta(r) | {
        "qk_norm": True, "qk_norm_width": True, "pattern": tuple(mixer + "-" for mixer in mixers),
    }  # fmt: skip


#: ``model_type`` -> how its keys are read
HYBRIDS: dict[str, Family] = {
    "granitemoehybrid": _granite_hybrid,
    "olmo_hybrid": _olmo_hybrid,
    "kimi_linear": _kimi_linear,
    "nemotron_h": _nemotron_h,
    "mamba": _mamba1,
    "falcon_mamba": _mamba1,
    "bamba": _bamba,
    "falcon_h1": _falcon_h1,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "mamba2": _mamba2,
    "jamba": _jamba,
    "qwen3_next": _qwen3_next,
    "qwen3_5_moe": _qwen3_next,
    "qwen3_5": _qwen3_5,
}
