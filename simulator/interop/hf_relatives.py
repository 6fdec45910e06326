"""Families of Hugging Face that differ from GPT-2's, Llama's or BERT's block in a few tensors or in the names of their keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.interop.hf_families import RECORD, activation, decoder, llama, window
from simulator.interop.hf_mixtures import experts
from simulator.interop.reader import Reader
from simulator.models.catalog import BERT_STYLE, LLAMA_STYLE, MEGATRON_STYLE


def _gptj(r: Reader) -> dict[str, Any]:
    """GPT-J and CodeGen: a parallel block with one norm, rotary positions, biases in MLP and head only."""
    r.irrelevant(["rotary_dim"])
    return MEGATRON_STYLE | {
        "layers": r.positive("n_layer", "num_hidden_layers"),
        "hidden": r.positive("n_embd", "hidden_size"),
        "heads": r.positive("n_head", "num_attention_heads"),
        "ffn_hidden": r.integer("n_inner", default=0),
        "vocab": r.positive("vocab_size", default=50400),
        "max_positions": r.positive("n_positions", default=2048),
        "positions": "rotary",
        "activation": activation(r, "activation_function", default="gelu_new"),
        "attention_bias": False,
        "attention_output_bias": False,
        "parallel_block": True,
        "shared_norm": True,
        "dropout": r.number("resid_pdrop", default=0.0),
        "tied": r.boolean("tie_word_embeddings"),
        "head_bias": True,
    }


def _gpt_neo(r: Reader) -> dict[str, Any]:
    """GPT-Neo: every second layer sees a window; query, key and value have no biases."""
    layers = r.positive("num_layers", "num_hidden_layers")
    r.irrelevant(["embed_dropout"])
    kinds = r.raw("attention_layers")
    runs = r.raw("attention_types") or [[["global", "local"], layers // 2]]
    try:
        kinds = kinds or [kind for cycle, times in runs for kind in list(cycle) * min(int(times), layers)]
        whole = tuple(index for index, kind in enumerate(kinds) if {"global": True, "local": False}[kind])
    except (TypeError, ValueError, KeyError, OverflowError):
        r.fault("attention_types", f"{runs!r:.60} is no list of cycles of global and local", hint=RECORD)
    return MEGATRON_STYLE | {
        "layers": layers,
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_heads", "num_attention_heads"),
        "ffn_hidden": r.integer("intermediate_size", default=0),
        "vocab": r.positive("vocab_size", default=50257),
        "max_positions": r.positive("max_position_embeddings", default=2048),
        "activation": activation(r, "activation_function", default="gelu_new"),
        "attention_bias": False,
        "sliding_window": r.positive("window_size", default=256),
        "full_attention_blocks": whole,
        "dropout": r.number("resid_dropout", default=0.0),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _phi(r: Reader) -> dict[str, Any]:
    """Phi-1 to Phi-2: a parallel block with one norm, biases everywhere, the head too."""
    if r.boolean("qk_layernorm"):
        r.fault("qk_layernorm", "is not known for this family", hint=RECORD)
    act = activation(r, "hidden_act", default="gelu_new")
    return llama(r) | {
        "architecture": "gpt",
        "gated_mlp": False,
        "activation": act,
        "norm": "layer_norm",
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "parallel_block": True,
        "shared_norm": True,
        "head_bias": True,
        "dropout": r.number("resid_pdrop", default=0.0),
    }


def _cohere(r: Reader) -> dict[str, Any]:
    """Command R: a parallel block with one norm without shift, tied embeddings."""
    if r.boolean("use_qk_norm"):
        r.fault("use_qk_norm", "a norm of its own for every head is not known here", hint=RECORD)
    r.irrelevant(["sliding_window_pattern", "layer_switch", "order_of_interleaved_layers", "position_embedding_type"])
    return llama(r) | {
        "norm": "layer_norm",
        "norm_bias": False,
        "parallel_block": True,
        "shared_norm": True,
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


_SCALES = ("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier", "scale_emb",
           "scale_depth", "dim_model_base")  # fmt: skip


def _granite(r: Reader) -> dict[str, Any]:
    r.irrelevant(_SCALES)
    return llama(r)


def _granitemoe(r: Reader) -> dict[str, Any]:
    shared = r.integer("shared_intermediate_size", default=0)
    return _granite(r) | experts(r, n=8, top_k=2) | {"shared_expert_hidden": shared}


def _olmo(r: Reader) -> dict[str, Any]:
    r.irrelevant(["clip_qkv"])
    r.assume("norms", "with weights", "OLMo's have none: a difference of less than 0.1 % of the parameters")
    return llama(r) | {"norm": "layer_norm", "norm_bias": False}


def _olmoe(r: Reader) -> dict[str, Any]:
    r.irrelevant(["clip_qkv"])
    return llama(r) | experts(r, n=64, top_k=8) | {"qk_norm": True, "qk_norm_width": True}


def _olmo3(r: Reader) -> dict[str, Any]:
    return llama(r) | {"norm_position": "after", "qk_norm": True, "qk_norm_width": True}


def _qwen2_moe(r: Reader) -> dict[str, Any]:
    layers, every = r.positive("num_hidden_layers"), r.positive("decoder_sparse_step", default=1)
    dense = r.raw("mlp_only_layers") or []
    if not isinstance(dense, list):
        r.fault("mlp_only_layers", f"{dense!r:.60} is not a list of layers")
    bias = r.boolean("qkv_bias", default=True)
    return llama(r) | experts(r, n=60, top_k=4) | {
        "attention_bias": bias,
        "attention_output_bias": False,
        "dense_blocks": tuple(i for i in range(layers) if i in dense or (i + 1) % every),
        "expert_hidden": r.positive("moe_intermediate_size", default=1408),
        "shared_expert_hidden": r.integer("shared_expert_intermediate_size", default=5632),
        "shared_expert_gate": True,
    }  # fmt: skip


def _deepseek(r: Reader) -> dict[str, Any]:
    """DeepSeek-MoE of the first generation: ordinary attention, routed and shared experts."""
    expert, every = r.positive("moe_intermediate_size", default=1407), r.positive("moe_layer_freq", default=1)
    layers = r.positive("num_hidden_layers")
    return llama(r) | experts(r) | {
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer("n_shared_experts", default=0),
        "dense_layers": r.integer("first_k_dense_replace", default=0),
        "dense_blocks": tuple(i for i in range(layers) if i % every),
    }  # fmt: skip


def _ernie(r: Reader) -> dict[str, Any]:
    bias = r.boolean("use_bias")
    return llama(r) | {
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _seed_oss(r: Reader) -> dict[str, Any]:
    output = r.boolean("attention_out_bias")
    bias = r.boolean("attention_bias", default=True)
    return llama(r) | {"attention_bias": bias, "attention_output_bias": output}


def _hunyuan(r: Reader) -> dict[str, Any]:
    r.irrelevant(["eod_token_id"])
    return llama(r) | {"qk_norm": True}


def _exaone4(r: Reader) -> dict[str, Any]:
    r.irrelevant(["sliding_window_pattern"])
    return llama(r) | {"norm_position": "after", "qk_norm": True}


def _glm(r: Reader) -> dict[str, Any]:
    bias = r.boolean("attention_bias", default=True)
    return llama(r) | {"attention_bias": bias, "attention_output_bias": False}


def _glm4(r: Reader) -> dict[str, Any]:
    return _glm(r) | {"norm_position": "around"}


def _smollm3(r: Reader) -> dict[str, Any]:
    r.irrelevant(["no_rope_layers", "no_rope_layer_interval"])
    return llama(r) | {"tied": r.boolean("tie_word_embeddings", default=True)}


def _arcee(r: Reader) -> dict[str, Any]:
    act = activation(r, "hidden_act", default="relu2")
    return llama(r) | {"gated_mlp": False, "activation": act}


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
    return llama(r) | {"tied": r.boolean("tie_word_embeddings", default=True)}


def _phi4mm(r: Reader) -> dict[str, Any]:
    r.assume("model_type", "the language model", "vision and audio parts are left out, and so are their adapters")
    r.irrelevant(
        ["embd_layer", "img_processor", "audio_processor", "full_attn_mod", "interpolate_factor", "vision_lora", "speech_lora",
         "lm_head_bias", "_attn_implementation"]
    )  # fmt: skip
    return decoder(r) | window(r) | {"tied": r.boolean("tie_word_embeddings", default=True)}


def _llava(r: Reader) -> dict[str, Any]:
    """LLaVA before it had a ``text_config``: Llama's keys beside those of the vision tower."""
    r.assume("model_type", "the language model", "the vision tower and its projector are left out")
    r.irrelevant([key for key in r.data if "mm_" in key or key.startswith(("image_", "vision_"))])
    return llama(r)


def _qwen(r: Reader) -> dict[str, Any]:
    """Qwen of the first generation, whose ``intermediate_size`` counts both halves of the gated MLP."""
    return LLAMA_STYLE | {
        "layers": r.positive("num_hidden_layers"),
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_attention_heads"),
        "head_dim": r.integer("kv_channels", default=0),
        "ffn_hidden": r.positive("intermediate_size") // 2,
        "vocab": r.positive("vocab_size"),
        "max_positions": r.positive("seq_length", "max_position_embeddings", default=8192),
        "attention_bias": True,
        "attention_output_bias": not r.boolean("no_bias", default=True),
        "tied": r.boolean("tie_word_embeddings"),
    }


def _chatglm(r: Reader) -> dict[str, Any]:
    """ChatGLM2 to GLM-4 with code of their own."""
    heads = r.positive("num_attention_heads")
    bias, qkv = r.boolean("add_bias_linear"), r.boolean("add_qkv_bias")
    groups = r.positive("multi_query_group_num", default=heads)
    return LLAMA_STYLE | {
        "layers": r.positive("num_layers"),
        "hidden": r.positive("hidden_size"),
        "heads": heads,
        "kv_heads": groups if r.boolean("multi_query_attention") else heads,
        "head_dim": r.integer("kv_channels", default=0),
        "ffn_hidden": r.positive("ffn_hidden_size"),
        "vocab": r.positive("padded_vocab_size", "vocab_size"),
        "max_positions": r.positive("seq_length", default=2048),
        "norm": "rms_norm" if r.boolean("rmsnorm", default=True) else "layer_norm",
        "attention_bias": bias or qkv,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "tied": r.boolean("tie_word_embeddings"),
    }


def _distilbert(r: Reader) -> dict[str, Any]:
    r.irrelevant(["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_", "tie_word_embeddings"])
    return BERT_STYLE | {
        "layers": r.positive("n_layers", default=6),
        "hidden": r.positive("dim", default=768),
        "heads": r.positive("n_heads", default=12),
        "ffn_hidden": r.positive("hidden_dim", default=3072),
        "vocab": r.positive("vocab_size", default=30522),
        "max_positions": r.positive("max_position_embeddings", default=512),
        "type_vocab": 0,
        "pooler": False,
        "activation": activation(r, "activation", default="gelu"),
        "dropout": r.number("dropout", default=0.1),
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


#: ``model_type`` -> how its keys are read
RELATIVES: dict[str, Callable[[Reader], dict[str, Any]]] = {
    "gptj": _gptj,
    "codegen": _gptj,
    "gpt_neo": _gpt_neo,
    "phi": _phi,
    "cohere": _cohere,
    "cohere2": _cohere,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "granitemoeshared": _granitemoe,
    "olmo": _olmo,
    "olmoe": _olmoe,
    "olmo3": _olmo3,
    "qwen2_moe": _qwen2_moe,
    "deepseek": _deepseek,
    "ernie4_5": _ernie,
    "seed_oss": _seed_oss,
    "hunyuan_v1_dense": _hunyuan,
    "exaone4": _exaone4,
    "glm": _glm,
    "glm4": _glm4,
    "smollm3": _smollm3,
    "arcee": _arcee,
    "ministral": llama,
    "ministral3": llama,
    "aquila": llama,
    "minicpm": _granite,
    "internlm": _internlm,
    "internlm2": _internlm,
    "internlm3": _internlm,
    "baichuan": _baichuan,
    "yuan": _yuan,
    "phi4mm": _phi4mm,
    "llava": _llava,
    "llava_llama": _llava,
    "qwen": _qwen,
    "chatglm": _chatglm,
    "distilbert": _distilbert,
    "minimax_m3": _minimax_m3,
}
