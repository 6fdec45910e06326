"""The dense families of Hugging Face: how the keys of each ``config.json`` make a model."""

from __future__ import annotations

from functools import partial
from typing import Any

from simulator.interop.hf_fields import (
    ACTIVATIONS,
    IRRELEVANT,
    RECORD,
    WHOLE_OR_WINDOW,
    Family,
    activation,
    biases,
    layer_list,
    like,
    llama,
    refuse_if,
    sizes,
    window,
)
from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import (
    BERT_STYLE,
    CLIP_STYLE,
    GPT2_STYLE,
    LLAMA_STYLE,
    MEGATRON_STYLE,
    MPT_STYLE,
    T5_STYLE,
    VIT_STYLE,
    WHISPER_STYLE,
)
from simulator.models.spec import ModelSpec

# ---- GPT-2 and after ---------------------------------------------------------------------------------------------

_GPT2 = {
    "layers": "n_layer num_hidden_layers",
    "hidden": "n_embd hidden_size",
    "heads": "n_head num_attention_heads",
    "ffn_hidden": "n_inner intermediate_size",
    "max_positions": "n_positions n_ctx max_position_embeddings",
}
_GPTJ = _GPT2 | {"max_positions": "n_positions"}
_BLOOM = {
    "layers": "n_layer num_hidden_layers",
    "hidden": "hidden_size n_embed",
    "heads": "n_head num_attention_heads",
    "ffn_hidden": "",
    "max_positions": "seq_length",
}
_MPT = {
    "layers": "n_layers num_hidden_layers",
    "hidden": "d_model hidden_size",
    "heads": "n_heads num_attention_heads",
    "ffn_hidden": "",
    "max_positions": "max_seq_len",
}
_GPT_NEO = {"layers": "num_layers num_hidden_layers", "heads": "num_heads num_attention_heads"}
_FALCON = {
    "layers": "num_hidden_layers n_layer",
    "heads": "num_attention_heads n_head",
    "ffn_hidden": "ffn_hidden_size",
}


def _gpt2(r: Reader) -> dict[str, Any]:
    return GPT2_STYLE | sizes(r, _GPT2, ffn_hidden=0, vocab=50257, max_positions=1024, tied=True) | {
        "activation": activation(r, "activation_function", default="gelu_new"),
        "dropout": r.number("resid_pdrop", default=0.1),
    }  # fmt: skip


def _gpt_bigcode(r: Reader) -> dict[str, Any]:
    r.irrelevant(["num_key_value_heads"])
    return _gpt2(r) | {"kv_heads": 1 if r.boolean("multi_query", default=True) else 0}


def _gptj(r: Reader) -> dict[str, Any]:
    """GPT-J and CodeGen: a parallel block with one norm, rotary positions, biases in MLP and head only."""
    r.irrelevant(["rotary_dim"])
    return MEGATRON_STYLE | sizes(r, _GPTJ, ffn_hidden=0, vocab=50400, max_positions=2048) | biases(False, mlp=True) | {
        "positions": "rotary",
        "activation": activation(r, "activation_function", default="gelu_new"),
        "parallel_block": True,
        "shared_norm": True,
        "dropout": r.number("resid_pdrop", default=0.0),
        "head_bias": True,
    }  # fmt: skip


def _gpt_neo(r: Reader) -> dict[str, Any]:
    """GPT-Neo: every second layer sees a window; query, key and value have no biases."""
    found = sizes(r, _GPT_NEO, ffn_hidden=0, vocab=50257, max_positions=2048, tied=True)
    layers = found["layers"]
    r.irrelevant(["embed_dropout"])
    kinds = r.raw("attention_layers")
    runs = r.raw("attention_types") or [[["global", "local"], layers // 2]]
    try:
        kinds = kinds or [kind for cycle, times in runs for kind in list(cycle) * min(int(times), layers)]
        whole = tuple(index for index, kind in enumerate(kinds) if {"global": True, "local": False}[kind])
    except (TypeError, ValueError, KeyError, OverflowError):
        r.fault("attention_types", f"{runs!r:.60} is no list of cycles of global and local", hint=RECORD)
    return MEGATRON_STYLE | found | {
        "activation": activation(r, "activation_function", default="gelu_new"),
        "attention_bias": False,
        "sliding_window": r.positive("window_size", default=256),
        "full_attention_blocks": whole,
        "dropout": r.number("resid_dropout", default=0.0),
    }  # fmt: skip


def _neox(r: Reader) -> dict[str, Any]:
    return MEGATRON_STYLE | sizes(r, vocab=50432, max_positions=2048) | {
        "positions": "rotary",
        "parallel_block": r.boolean("use_parallel_residual", default=True),
        "activation": activation(r, "hidden_act", default="gelu"),
        "dropout": r.number("hidden_dropout", default=0.0),
    } | biases(r.boolean("attention_bias", default=True), mlp=True)  # fmt: skip


def _starcoder2(r: Reader) -> dict[str, Any]:
    return MEGATRON_STYLE | sizes(r, vocab=49152, max_positions=4096, tied=True) | {
        "kv_heads": r.integer("num_key_value_heads", default=2),
        "positions": "rotary",
        "activation": activation(r, "hidden_act", default="gelu_pytorch_tanh"),
        "dropout": r.number("residual_dropout", default=0.0),
    } | biases(r.boolean("use_bias", default=True)) | window(r)  # fmt: skip


def _opt(r: Reader) -> dict[str, Any]:
    refuse_if(r, "layer_norm_elementwise_affine", "a norm without weights", when=False)
    found = sizes(r, {"ffn_hidden": "ffn_dim"}, vocab=50272, max_positions=2048, tied=True)
    width = r.positive("word_embed_proj_dim", default=found["hidden"])
    norm_first, no_final = r.boolean("do_layer_norm_before", default=True), r.boolean("_remove_final_layer_norm")
    return MEGATRON_STYLE | found | biases(r.boolean("enable_bias", default=True)) | {
        "embedding_width": 0 if width == found["hidden"] else width,
        "final_norm": norm_first and not no_final,
        "position_offset": 2,
        "activation": activation(r, "activation_function", default="relu"),
        "dropout": r.number("dropout", default=0.1),
    }  # fmt: skip


def _bloom(r: Reader) -> dict[str, Any]:
    return MEGATRON_STYLE | sizes(r, _BLOOM, ffn_hidden=0, vocab=250880, max_positions=2048, tied=True) | {
        "positions": "alibi",
        "embedding_norm": True,
        "dropout": r.number("hidden_dropout", default=0.0),
    }  # fmt: skip


def _mpt(r: Reader) -> dict[str, Any]:
    attention = r.section("attn_config")
    alibi = attention.boolean("alibi", default=True)
    attention.irrelevant(list(attention.data))
    found, bias = (
        sizes(r, _MPT, ffn_hidden=0, vocab=50368, max_positions=2048, tied=True),
        not r.boolean("no_bias", default=True),
    )
    return MPT_STYLE | found | biases(bias) | {
        "ffn_hidden": found["hidden"] * r.positive("expansion_ratio", default=4),
        "positions": "alibi" if alibi else "learned",
        "norm_bias": bias,
        "dropout": r.number("resid_pdrop", default=0.0),
    }  # fmt: skip


def _falcon(r: Reader) -> dict[str, Any]:
    found, new = (
        sizes(r, _FALCON, ffn_hidden=0, vocab=65024, max_positions=2048, tied=True),
        r.boolean("new_decoder_architecture"),
    )
    parallel, heads = r.boolean("parallel_attn", default=True) or new, found["heads"]
    kv_heads = r.integer("num_kv_heads", "n_head_kv", default=heads)
    n_norms = r.integer("num_ln_in_parallel_attn", default=2 if new else 1)
    many = r.boolean("multi_query", default=True)
    return MEGATRON_STYLE | found | biases(r.boolean("bias")) | {
        "kv_heads": kv_heads if new else 1 if many else heads,
        "positions": "alibi" if r.boolean("alibi") else "rotary",
        "activation": activation(r, "activation", default="gelu"),
        "parallel_block": parallel,
        "shared_norm": parallel and n_norms == 1,
        "dropout": r.number("hidden_dropout", default=0.0),
    }  # fmt: skip


# ---- Llama and after ---------------------------------------------------------------------------------------------


def _gemma(r: Reader) -> dict[str, Any]:
    r.assume("activation", "gelu", "gemma has a gated tanh-gelu, whatever hidden_act says")
    r.irrelevant(["hidden_act"])
    fields = llama(r, tied=True)
    return fields | {"head_dim": fields["head_dim"] or 256, "activation": "gelu"}


def _qwen(r: Reader) -> dict[str, Any]:
    """Qwen of the first generation, whose ``intermediate_size`` counts both halves of the gated MLP."""
    found = sizes(r, {"max_positions": "seq_length max_position_embeddings"}, max_positions=8192)
    return LLAMA_STYLE | found | biases(True, output=not r.boolean("no_bias", default=True), mlp=False) | {
        "head_dim": r.integer("kv_channels", default=0),
        "ffn_hidden": found["ffn_hidden"] // 2,
    }  # fmt: skip


def _qwen2(r: Reader) -> dict[str, Any]:
    r.assume("attention_bias", True, "qwen2 has query, key and value biases that no key announces")
    return llama(r) | {"attention_bias": True, "attention_output_bias": False}


def _qwen3(r: Reader) -> dict[str, Any]:
    if r.data.get("head_dim") is None:
        r.assume("head_dim", 128, "the default of qwen3")
    fields = llama(r)
    return fields | {"qk_norm": True, "head_dim": fields["head_dim"] or 128}


def _phi(r: Reader) -> dict[str, Any]:
    """Phi-1 to Phi-2: a parallel block with one norm, biases everywhere, the head too."""
    if r.boolean("qk_layernorm"):
        r.fault("qk_layernorm", "is not known for this family", hint=RECORD)
    return llama(r, act="gelu_new") | biases(True) | {
        "architecture": "gpt",
        "gated_mlp": False,
        "norm": "layer_norm",
        "parallel_block": True,
        "shared_norm": True,
        "head_bias": True,
        "dropout": r.number("resid_pdrop", default=0.0),
    }  # fmt: skip


def _phi4mm(r: Reader) -> dict[str, Any]:
    r.assume("model_type", "the language model", "vision and audio parts are left out, and so are their adapters")
    r.irrelevant(
        ["embd_layer", "img_processor", "audio_processor", "full_attn_mod", "interpolate_factor", "vision_lora", "speech_lora",
         "lm_head_bias", "_attn_implementation"]
    )  # fmt: skip
    return llama(r, tied=True)


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


def _cohere(r: Reader) -> dict[str, Any]:
    """Command R: a parallel block with one norm without shift, tied embeddings."""
    if r.boolean("use_qk_norm"):
        r.fault("use_qk_norm", "a norm of its own for every head is not known here", hint=RECORD)
    r.irrelevant(["sliding_window_pattern", "layer_switch", "order_of_interleaved_layers", "position_embedding_type"])
    return llama(r, tied=True) | {"norm": "layer_norm", "norm_bias": False, "parallel_block": True, "shared_norm": True}


def _olmo(r: Reader) -> dict[str, Any]:
    r.irrelevant(["clip_qkv"])
    return llama(r) | {"norm": "layer_norm", "norm_scale": False}


def _nanochat(r: Reader) -> dict[str, Any]:
    r.irrelevant(["final_logit_softcapping"])
    return llama(r, act="relu2") | {"gated_mlp": False, "norm_scale": False, "qk_norm": True, "qk_norm_scale": False}


def _nemotron_nas(r: Reader) -> dict[str, Any]:
    """Llama of which a search left out attention, and cut MLPs, block by block (arXiv:2411.19146)."""
    blocks, hidden = r.raw("block_configs"), r.positive("hidden_size")
    heads = r.positive("num_attention_heads")
    pattern, kv_heads, widths = [], [], []
    try:
        for block in blocks:
            parts = [("*", block["attention"]), ("-", block["ffn"])]
            if any(part.get("replace_with_linear") for _, part in parts):
                r.fault("block_configs", "a linear layer in place of attention or MLP is not modelled", hint=RECORD)
            pattern.append("".join(letter for letter, part in parts if not part["no_op"]))
            kv_heads.append(heads // int(block["attention"].get("n_heads_in_group") or heads))
            width = int(2 * float(block["ffn"].get("ffn_mult") or 1.0) * hidden / 3)
            widths.append(-(-width // 256) * 256)
    except (AttributeError, KeyError, TypeError, ValueError):
        r.fault("block_configs", f"{blocks!r:.60} does not say attention and ffn of every block", hint=RECORD)
    r.data["intermediate_size"] = r.data.get("intermediate_size") or max(widths, default=1)
    return llama(r) | {
        "pattern": tuple(pattern),
        "of_blocks": (("kv_heads", tuple(kv_heads)), ("ffn_hidden", tuple(widths))),
    }


def _modernbert(r: Reader) -> dict[str, Any]:
    """ModernBERT, whose first norm is that of the embedding."""
    others = ("classifier_", "decoder_", "sparse_pred", "global_", "local_rope", "cls_")
    r.irrelevant([key for key in r.data if key.startswith(others)])
    r.irrelevant(
        words("mlp_dropout initializer_cutoff_factor deterministic_flash_attn reference_compile repad_logits_with_grad")
    )
    found = sizes(r, layers=22, heads=12, hidden=768, ffn_hidden=1152, vocab=50368, max_positions=8192, tied=True)
    every = r.positive("global_attn_every_n_layers", default=3)
    kinds = layer_list(r, "layer_types", letters=WHOLE_OR_WINDOW)
    kinds = kinds or tuple("w" if i % every else "*" for i in range(found["layers"]))
    return LLAMA_STYLE | found | biases(r.boolean("attention_bias"), mlp=r.boolean("mlp_bias")) | {
        "architecture": "bert",
        "causal": False,
        "norm": "layer_norm",
        "norm_bias": r.boolean("norm_bias"),
        "activation": activation(r, "hidden_activation", default="gelu"),
        "sliding_window": r.positive("local_attention", default=128),
        "full_attention_blocks": tuple(i for i, kind in enumerate(kinds) if kind == "*"),
    }  # fmt: skip


def _ernie(r: Reader) -> dict[str, Any]:
    return llama(r, tied=True) | biases(r.boolean("use_bias"))


def _seed_oss(r: Reader) -> dict[str, Any]:
    return llama(r, bias=True) | {"attention_output_bias": r.boolean("attention_out_bias")}


def _internlm(r: Reader) -> dict[str, Any]:
    bias = r.boolean("bias", default=r.data["model_type"] == "internlm")
    return llama(r) | {"attention_bias": bias, "attention_output_bias": bias}


def _baichuan(r: Reader) -> dict[str, Any]:
    r.irrelevant(["model_max_length", "_from_model_config", "z_loss_weight"])
    if r.data.get("max_position_embeddings") is None:
        hint = "set max_position_embeddings where it is; the 13B has none, and ALiBi"
        r.fault("max_position_embeddings", "is missing: only the 7B, with rotary positions, is known here", hint=hint)
    return llama(r)


def _yuan(r: Reader) -> dict[str, Any]:
    r.irrelevant(
        ["_from_model_config", "causal_mask", "use_flash_attention", "reset_attention_mask", "reset_position_ids", "use_loss_mask",
         "eod_token", "sep_token", "eod_token_id", "mask_token_id", "dropout"]
    )  # fmt: skip
    r.account.miss("model_type", "Yuan 2 filters the input of attention by convolutions, which are left out")
    return llama(r, tied=True)


def _llava(r: Reader) -> dict[str, Any]:
    """LLaVA before it had a ``text_config``: Llama's keys beside those of the vision tower."""
    r.assume("model_type", "the language model", "the vision tower and its projector are left out")
    r.irrelevant([key for key in r.data if "mm_" in key or key.startswith(("image_", "vision_"))])
    return llama(r)


_CHATGLM = {
    "layers": "num_layers",
    "ffn_hidden": "ffn_hidden_size",
    "vocab": "padded_vocab_size vocab_size",
    "max_positions": "seq_length",
}


def _chatglm(r: Reader) -> dict[str, Any]:
    """ChatGLM2 to GLM-4 with code of their own."""
    found, bias, qkv = sizes(r, _CHATGLM, max_positions=2048), r.boolean("add_bias_linear"), r.boolean("add_qkv_bias")
    groups = r.positive("multi_query_group_num", default=found["heads"])
    return LLAMA_STYLE | found | biases(bias or qkv, output=bias, mlp=bias) | {
        "kv_heads": groups if r.boolean("multi_query_attention") else found["heads"],
        "head_dim": r.integer("kv_channels", default=0),
        "norm": "rms_norm" if r.boolean("rmsnorm", default=True) else "layer_norm",
    }  # fmt: skip


# ---- encoders ----------------------------------------------------------------------------------------------------

_DISTILBERT = {"layers": "n_layers", "hidden": "dim", "heads": "n_heads", "ffn_hidden": "hidden_dim", "tied": ""}
_T5 = {
    "layers": "num_layers",
    "hidden": "d_model hidden_size",
    "heads": "num_heads num_attention_heads",
    "ffn_hidden": "d_ff",
    "max_positions": "n_positions",
}


def _bert(r: Reader) -> dict[str, Any]:
    r.irrelevant(["tie_word_embeddings"])  # the published models have no head
    kind = r.text("position_embedding_type", default="absolute")
    if kind in ("relative_key", "relative_key_query"):
        r.miss(
            "position_embedding_type",
            f"{kind}: scores of relative positions are left out, and positions are added as in BERT",
        )
    elif kind != "absolute":
        r.fault("position_embedding_type", f"{kind!r} is not modelled for this family", hint=RECORD)
    found = sizes(r, {"tied": ""}, layers=12, heads=12, ffn_hidden=0, vocab=30522, max_positions=512, tied=True)
    return BERT_STYLE | found | {
        "type_vocab": r.integer("type_vocab_size", default=2),
        "activation": activation(r, "hidden_act", default="gelu"),
        "dropout": r.number("hidden_dropout_prob", default=0.1),
    }  # fmt: skip


def _distilbert(r: Reader) -> dict[str, Any]:
    r.irrelevant(["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings"])
    usual = {"layers": 6, "hidden": 768, "heads": 12, "ffn_hidden": 3072, "vocab": 30522, "max_positions": 512}
    return BERT_STYLE | sizes(r, _DISTILBERT, tied=True, **usual) | {
        "type_vocab": 0,
        "pooler": False,
        "activation": activation(r, "activation", default="gelu"),
        "dropout": r.number("dropout", default=0.1),
    }  # fmt: skip


def _t5(r: Reader) -> dict[str, Any]:
    found = sizes(r, _T5, layers=6, heads=8, ffn_hidden=2048, vocab=32128, max_positions=512, tied=True)
    projection = r.text("feed_forward_proj", default="relu")
    gated = projection.startswith("gated-")
    kind = projection.removeprefix("gated-")
    if kind not in ACTIVATIONS:
        r.fault("feed_forward_proj", f"{projection!r} is not known here", hint="relu or gated-gelu")
    return T5_STYLE | found | {
        "layers": r.integer("num_decoder_layers", default=found["layers"]),
        "encoder_layers": found["layers"],
        "head_dim": r.positive("d_kv", default=64),
        "relative_buckets": r.positive("relative_attention_num_buckets", default=32),
        "gated_mlp": gated,
        "activation": "gelu_new" if gated and kind == "gelu" else ACTIVATIONS[kind],
        "dropout": r.number("dropout_rate", default=0.1),
    }  # fmt: skip


_glm = like(partial(llama, bias=True), attention_output_bias=False)
#: factors on activations, which cost nothing
SCALES = (
    "attention_multiplier embedding_multiplier logits_scaling residual_multiplier scale_emb scale_depth dim_model_base"
)

#: ``model_type`` -> how its keys are read
DENSE: dict[str, Family] = {
    "gpt2": _gpt2,
    "gpt_bigcode": _gpt_bigcode,
    "gptj": _gptj,
    "codegen": _gptj,
    "gpt_neo": _gpt_neo,
    "gpt_neox": _neox,
    "starcoder2": _starcoder2,
    "opt": _opt,
    "bloom": _bloom,
    "mpt": _mpt,
    "falcon": _falcon,
    "llama": llama,
    "mistral": llama,
    "ministral": llama,
    "ministral3": llama,
    "aquila": llama,
    "phi3": llama,
    "gemma": _gemma,
    "qwen": _qwen,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl": _qwen3,
    "phi": _phi,
    "phi4mm": _phi4mm,
    "stablelm": _stablelm,
    "cohere": _cohere,
    "cohere2": _cohere,
    "granite": like(llama, SCALES),
    "minicpm": like(llama, SCALES),
    "nemotron": like(llama, architecture="gpt", gated_mlp=False, norm="layer_norm", activation="relu2"),
    "olmo": _olmo,
    "olmo2": like(llama, norm_position="after", qk_norm=True, qk_norm_width=True),
    "olmo3": like(llama, norm_position="after", qk_norm=True, qk_norm_width=True),
    "ernie4_5": _ernie,
    "seed_oss": _seed_oss,
    "hunyuan_v1_dense": like(llama, "eod_token_id", qk_norm=True),
    "exaone4": like(llama, "sliding_window_pattern", norm_position="after", qk_norm=True),
    "glm": _glm,
    "glm4": like(_glm, norm_position="around"),
    "apertus": like(partial(llama, act="xielu"), gated_mlp=False, qk_norm=True),
    "cwm": llama,
    "helium": llama,
    "mimo": _qwen2,
    "qwen2_vl": _qwen2,
    "qwen2_5_vl": _qwen2,
    "qwen2_5_omni": _qwen2,
    "granite_swa": like(partial(llama, tied=True), "layer_rope_theta " + SCALES, attention_sinks=True),
    "nanochat": _nanochat,
    "nemotron-nas": _nemotron_nas,
    "modernbert": _modernbert,
    "smollm3": like(partial(llama, tied=True), "no_rope_layers no_rope_layer_interval"),
    "arcee": like(partial(llama, act="relu2"), gated_mlp=False),
    "internlm": _internlm,
    "internlm2": _internlm,
    "internlm3": _internlm,
    "baichuan": _baichuan,
    "yuan": _yuan,
    "llava": _llava,
    "llava_llama": _llava,
    "chatglm": _chatglm,
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "distilbert": _distilbert,
    "t5": _t5,
    "mt5": _t5,
}


#: CLIP's approximation of GELU by a sigmoid costs one pointwise kernel like any other
_ACTIVATIONS = {**ACTIVATIONS, "quick_gelu": "gelu"}
_IMAGE = {"max_positions": "", "vocab": "", "tied": ""}


def _patches(r: Reader, image_size: int, patch_size: int) -> dict[str, Any]:
    """Return what an image becomes: square patches that fill it, and the token of the class."""
    side, patch = r.positive("image_size", default=image_size), r.positive("patch_size", default=patch_size)
    if side < patch:
        r.fault("patch_size", f"{patch} is more than image_size={side}")
    return {
        "max_positions": (side // patch) ** 2 + 1,
        "patch_values": r.positive("num_channels", default=3) * patch**2,
    }


#: sizes of ViT-Base, which transformers takes where a file says none
_BASE: dict[str, Any] = {
    "layers": 12, "hidden": 768, "heads": 12, "ffn_hidden": 3072, "vocab": 1, "max_positions": 1,
}  # fmt: skip


def _vit(r: Reader) -> dict[str, Any]:
    r.irrelevant(words("encoder_stride pooler_act pooler_output_size"))
    labels = r.raw("id2label")
    n_classes = r.positive("num_labels", default=len(labels) if isinstance(labels, dict) and labels else 2)
    return VIT_STYLE | sizes(r, _IMAGE, **_BASE) | _patches(r, 224, 16) | {
        "vocab": n_classes,
        "attention_bias": r.boolean("qkv_bias", default=True),
        "activation": activation(r, "hidden_act", default="gelu"),
        "dropout": r.number("hidden_dropout_prob", default=0.0),
    }  # fmt: skip


def _clip_tower(r: Reader, names: dict[str, str], **usual: Any) -> dict[str, Any]:
    r.irrelevant([*IRRELEVANT, *words("dropout attention_dropout projection_dim model_type initializer_factor")])
    kind = _ACTIVATIONS[r.text("hidden_act", default="quick_gelu", one_of=_ACTIVATIONS)]
    return CLIP_STYLE | sizes(r, {"tied": "", **names}, **usual) | {"activation": kind}


def _clip(r: Reader) -> dict[str, Any]:
    """CLIP: a text model whose micro-batch has an image for every text."""
    r.irrelevant(words("logit_scale_init_value text_config_dict vision_config_dict initializer_factor"))
    width = r.positive("projection_dim", default=512)
    inner, outer = r.section("vision_config"), r.section("text_config")
    image = _clip_tower(inner, _IMAGE, **_BASE) | _patches(inner, 224, 32) | {
        "causal": False, "embedding_norm": True, "patch_bias": False, "projection": width,
    }  # fmt: skip
    usual: dict[str, Any] = {
        "layers": 12,
        "hidden": 512,
        "heads": 8,
        "ffn_hidden": 2048,
        "vocab": 49408,
        "max_positions": 77,
    }
    text = _clip_tower(outer, {}, **usual)
    inner.finish()
    outer.finish()
    return text | {"projection": width, "image": ModelSpec(name="image", **image)}


_WHISPER = {
    "layers": "decoder_layers", "hidden": "d_model", "heads": "decoder_attention_heads", "ffn_hidden": "decoder_ffn_dim",
    "max_positions": "max_target_positions",
}  # fmt: skip


def _whisper(r: Reader) -> dict[str, Any]:
    found = sizes(
        r, _WHISPER, layers=4, hidden=384, heads=6, ffn_hidden=1536, vocab=51865, max_positions=448, tied=True
    )
    for key, field in (("encoder_attention_heads", "heads"), ("encoder_ffn_dim", "ffn_hidden")):
        if r.positive(key, default=found[field]) != found[field]:
            r.fault(key, f"{r.data[key]} beside {found[field]} of the decoder is not modelled", hint=RECORD)
    refuse_if(r, "use_weighted_layer_sum", "a weighted sum of layers")
    r.irrelevant([key for key in r.data if key.startswith("mask_")])
    r.irrelevant(
        words(
            "scale_embedding apply_spec_augment encoder_layerdrop decoder_layerdrop forced_decoder_ids median_filter_width "
            "num_hidden_layers classifier_proj_size alignment_heads"
        )
    )
    return WHISPER_STYLE | found | biases(True) | {
        "encoder_layers": r.positive("encoder_layers", default=4),
        "encoder_positions": r.positive("max_source_positions", default=1500),
        "mel_bins": r.positive("num_mel_bins", default=80),
        "activation": activation(r, "activation_function", default="gelu"),
        "dropout": r.number("dropout", default=0.0),
    }  # fmt: skip


#: ``model_type`` -> how its keys are read
PERCEPTION: dict[str, Family] = {"vit": _vit, "clip": _clip, "whisper": _whisper}
