"""The families of Hugging Face: how the keys of each ``config.json`` make a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulator.interop.reader import Reader, words
from simulator.models.catalog import BERT_STYLE, GPT2_STYLE, LLAMA_STYLE, MEGATRON_STYLE, MPT_STYLE, T5_STYLE
from simulator.models.spec import Activation

#: keys that bear on neither time nor memory
IRRELEVANT = words(
    "_name_or_path architectures attn_implementation auto_map bad_words_ids begin_suppress_tokens "
    "bos_token_id chunk_size_feed_forward classifier_dropout cross_attention_hidden_size "
    "decoder_start_token_id diversity_penalty do_sample early_stopping embd_pdrop eos_token_id "
    "exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id "
    "gradient_checkpointing id2label initializer_factor initializer_range is_decoder is_encoder_decoder "
    "label2id layer_norm_eps layer_norm_epsilon length_penalty max_length max_window_layers min_length "
    "no_repeat_ngram_size norm_eps num_beam_groups num_beams num_return_sequences output_attentions "
    "output_hidden_states output_router_logits pad_token_id pretraining_tp problem_type "
    "reorder_and_upcast_attn repetition_penalty return_dict return_dict_in_generate rms_norm_eps "
    "rope_parameters rope_scaling rope_theta router_aux_loss_coef router_jitter_noise "
    "scale_attn_by_inverse_layer_idx scale_attn_weights sep_token_id summary_activation "
    "summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens "
    "task_specific_params temperature tf_legacy_loss tie_encoder_decoder tokenizer_class top_k top_p "
    "transformers_version typical_p unk_token_id use_bfloat16 use_cache dtype torch_dtype n_ctx "
    "output_past relative_attention_max_distance ep_size num_nextn_predict_layers "
    "num_mtp_layers aux_loss_alpha seq_aux scoring_func topk_method topk_group n_group norm_topk_prob "
    "routed_scaling_factor expert_dropout learned_pos_emb logit_scale verbose init_device "
    "init_config embedding_fraction loss_fn "
    "use_qk_norm partial_rotary_factor max_sequence_length "
    "layerdrop activation_dropout attention_dropout "
    "hidden_dropout attention_probs_dropout_prob attn_pdrop prefix dense_act_fn is_gated_act "
    "scale_decoder_outputs rope_interleave qk_head_dim emb_pdrop norm_type init_std norm_epsilon "
    "layer_norm_elementwise_affine apply_residual_connection_post_layernorm slow_but_exact hidden_activation "
    "original_max_position_embeddings resid_pdrop embedding_dropout residual_dropout use_bias query_pre_attn_scalar "
    "attention_softmax_in_fp32 scale_attention_softmax_in_fp32 inference_runner max_batch_size max_sequence_length "
    "pre_allocate_kv_cache validate_runner_input use_bidirectional_attention"
)

_ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def activation(reader: Reader, *keys: str, default: str) -> Activation:
    """Return the activation that a key names, in the catalogue's words."""
    return _ACTIVATIONS[reader.text(*keys, default=default, one_of=_ACTIVATIONS)]


def _refuse_if(r: Reader, key: str, what: str) -> None:
    """End the import where a switch of the configuration means something that is not modelled."""
    if r.boolean(key):
        r.fault(key, f"{what} is not modelled for this family", hint=RECORD)


def _gpt2(r: Reader) -> dict[str, Any]:
    _refuse_if(r, "add_cross_attention", "cross-attention in a decoder")
    hidden = r.positive("n_embd", "hidden_size")
    return GPT2_STYLE | {
        "layers": r.positive("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": r.positive("n_head", "num_attention_heads"),
        "ffn_hidden": r.integer("n_inner", "intermediate_size", default=0),
        "vocab": r.positive("vocab_size", default=50257),
        "max_positions": r.positive("n_positions", "n_ctx", "max_position_embeddings", default=1024),
        "activation": activation(r, "activation_function", default="gelu_new"),
        "dropout": r.number("resid_pdrop", default=0.1),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def decoder(r: Reader) -> dict[str, Any]:
    """Read the keys that Llama and all that followed it share, but for which layers see what."""
    heads = r.positive("num_attention_heads", "n_head")
    bias = r.boolean("attention_bias")
    return LLAMA_STYLE | {
        "layers": r.positive("num_hidden_layers", "n_layer"),
        "hidden": r.positive("hidden_size", "n_embd"),
        "heads": heads,
        "kv_heads": r.integer("num_key_value_heads", default=heads),
        "head_dim": r.positive("head_dim", default=0),
        "ffn_hidden": r.positive("intermediate_size"),
        "vocab": r.positive("vocab_size"),
        "max_positions": r.positive("max_position_embeddings", default=2048),
        "activation": activation(r, "hidden_act", default="silu"),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": r.boolean("mlp_bias"),
        "tied": r.boolean("tie_word_embeddings"),
    }


def llama(r: Reader) -> dict[str, Any]:
    """Read a decoder all of whose layers are attention and MLP, some perhaps with a sliding window."""
    return decoder(r) | window(r)


def window(r: Reader) -> dict[str, Any]:
    """Read which layers see a sliding window only."""
    window, is_used = r.positive("sliding_window", default=0), r.boolean("use_sliding_window", default=True)
    kinds = r.raw("layer_types") or []
    if not isinstance(kinds, list) or any(kind not in ("full_attention", "sliding_attention") for kind in kinds):
        r.fault("layer_types", f"{kinds!r:.60} is not a list of full_attention and sliding_attention", hint=RECORD)
    if not window or not is_used or (kinds and "sliding_attention" not in kinds):
        return {}
    whole = tuple(index for index, kind in enumerate(kinds) if kind == "full_attention")
    return {"sliding_window": window, "full_attention_blocks": whole}


def _gemma(r: Reader) -> dict[str, Any]:
    r.assume("activation", "gelu", "gemma has a gated tanh-gelu, whatever hidden_act says")
    r.irrelevant(["hidden_act"])
    fields = llama(r)
    return fields | {
        "head_dim": fields["head_dim"] or 256,
        "activation": "gelu",
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _starcoder2(r: Reader) -> dict[str, Any]:
    heads, bias = r.positive("num_attention_heads"), r.boolean("use_bias", default=True)
    return (
        MEGATRON_STYLE
        | {
            "layers": r.positive("num_hidden_layers"),
            "hidden": r.positive("hidden_size"),
            "heads": heads,
            "kv_heads": r.integer("num_key_value_heads", default=2),
            "ffn_hidden": r.positive("intermediate_size"),
            "vocab": r.positive("vocab_size", default=49152),
            "max_positions": r.positive("max_position_embeddings", default=4096),
            "positions": "rotary",
            "activation": activation(r, "hidden_act", default="gelu_pytorch_tanh"),
            "attention_bias": bias,
            "attention_output_bias": bias,
            "mlp_bias": bias,
            "dropout": r.number("residual_dropout", default=0.0),
            "tied": r.boolean("tie_word_embeddings", default=True),
        }
        | window(r)
    )


def _gpt_bigcode(r: Reader) -> dict[str, Any]:
    r.irrelevant(["num_key_value_heads"])
    return _gpt2(r) | {"kv_heads": 1 if r.boolean("multi_query", default=True) else 0}


def _qwen2(r: Reader) -> dict[str, Any]:
    r.assume("attention_bias", True, "qwen2 has query, key and value biases that no key announces")
    return llama(r) | {"attention_bias": True, "attention_output_bias": False}


def _qwen3(r: Reader) -> dict[str, Any]:
    if r.data.get("head_dim") is None:
        r.assume("head_dim", 128, "the default of qwen3")
    fields = llama(r) | {"qk_norm": True}
    return fields | {"head_dim": fields["head_dim"] or 128}


def _mixtral(r: Reader) -> dict[str, Any]:
    return llama(r) | {
        "n_experts": r.positive("num_local_experts", "num_experts", default=8),
        "top_k": r.positive("num_experts_per_tok", default=2),
    }


def _qwen3_moe(r: Reader) -> dict[str, Any]:
    layers, every = r.positive("num_hidden_layers"), r.positive("decoder_sparse_step", default=1)
    dense = r.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        r.fault("mlp_only_layers", f"{dense!r} is not a list of layers")
    return llama(r) | {
        "qk_norm": True,
        "dense_blocks": tuple(i for i in range(layers) if i in dense or (i + 1) % every),
        "n_experts": r.positive("num_experts", "num_local_experts", default=128),
        "top_k": r.positive("num_experts_per_tok", default=8),
        "expert_hidden": r.positive("moe_intermediate_size", default=768),
    }


def _every(r: Reader, key: str) -> tuple[int, ...]:
    """Return the dense blocks where only every so-manieth has experts."""
    every = r.positive(key, default=1)
    return tuple(i for i in range(r.positive("num_hidden_layers")) if i % every)


def deepseek(r: Reader) -> dict[str, Any]:
    """Read latent attention, routed and shared experts of DeepSeek and its relatives."""
    expert = r.positive("moe_intermediate_size")
    r.irrelevant(["layer_types"])  # every layer has the same attention
    return decoder(r) | {
        "head_dim": r.positive("qk_nope_head_dim", default=128),
        "kv_heads": 0,
        "n_experts": r.positive("n_routed_experts", "num_local_experts"),
        "top_k": r.positive("num_experts_per_tok", default=8),
        "expert_hidden": expert,
        "shared_expert_hidden": expert * r.integer("n_shared_experts", default=0),
        "dense_layers": r.integer("first_k_dense_replace", default=0),
        "dense_blocks": _every(r, "moe_layer_freq"),
        "q_lora_rank": r.integer("q_lora_rank", default=0),
        "kv_lora_rank": r.positive("kv_lora_rank", default=512),
        "qk_rope_head_dim": r.positive("qk_rope_head_dim", default=64),
        "v_head_dim": r.positive("v_head_dim", default=128),
    }


def _bert(r: Reader) -> dict[str, Any]:
    r.irrelevant(["tie_word_embeddings"])  # the published models have no head
    _refuse_if(r, "add_cross_attention", "cross-attention")
    kind = r.text("position_embedding_type", default="absolute")
    if kind in ("relative_key", "relative_key_query"):
        r.miss(
            "position_embedding_type",
            f"{kind}: scores of relative positions are left out, and positions are added as in BERT",
        )
    elif kind != "absolute":
        r.fault("position_embedding_type", f"{kind!r} is not modelled for this family", hint=RECORD)
    return BERT_STYLE | {
        "layers": r.positive("num_hidden_layers", default=12),
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_attention_heads", default=12),
        "ffn_hidden": r.integer("intermediate_size", default=0),
        "vocab": r.positive("vocab_size", default=30522),
        "max_positions": r.positive("max_position_embeddings", default=512),
        "type_vocab": r.integer("type_vocab_size", default=2),
        "activation": activation(r, "hidden_act", default="gelu"),
        "dropout": r.number("hidden_dropout_prob", default=0.1),
    }


def _t5(r: Reader) -> dict[str, Any]:
    layers = r.positive("num_layers", default=6)
    projection = r.text("feed_forward_proj", default="relu")
    gated = projection.startswith("gated-")
    kind = projection.removeprefix("gated-")
    if kind not in _ACTIVATIONS:
        r.fault("feed_forward_proj", f"{projection!r} is not known here", hint="relu or gated-gelu")
    return T5_STYLE | {
        "layers": r.integer("num_decoder_layers", default=layers),
        "encoder_layers": layers,
        "hidden": r.positive("d_model", "hidden_size"),
        "heads": r.positive("num_heads", "num_attention_heads", default=8),
        "head_dim": r.positive("d_kv", default=64),
        "ffn_hidden": r.positive("d_ff", default=2048),
        "vocab": r.positive("vocab_size", default=32128),
        "max_positions": r.positive("n_positions", default=512),
        "relative_buckets": r.positive("relative_attention_num_buckets", default=32),
        "gated_mlp": gated,
        "activation": "gelu_new" if gated and kind == "gelu" else _ACTIVATIONS[kind],
        "dropout": r.number("dropout_rate", default=0.1),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _mpt(r: Reader) -> dict[str, Any]:
    attention = r.section("attn_config")
    alibi = attention.boolean("alibi", default=True)
    for key in list(attention.data):
        attention.irrelevant([key])
    hidden = r.positive("d_model", "hidden_size")
    bias = not r.boolean("no_bias", default=True)
    return MPT_STYLE | {
        "layers": r.positive("n_layers", "num_hidden_layers"),
        "hidden": hidden,
        "heads": r.positive("n_heads", "num_attention_heads"),
        "ffn_hidden": hidden * r.positive("expansion_ratio", default=4),
        "vocab": r.positive("vocab_size", default=50368),
        "max_positions": r.positive("max_seq_len", default=2048),
        "positions": "alibi" if alibi else "learned",
        "norm_bias": bias,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "dropout": r.number("resid_pdrop", default=0.0),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _opt(r: Reader) -> dict[str, Any]:
    hidden, bias = r.positive("hidden_size"), r.boolean("enable_bias", default=True)
    width = r.positive("word_embed_proj_dim", default=hidden)
    norm_first, no_final = r.boolean("do_layer_norm_before", default=True), r.boolean("_remove_final_layer_norm")
    return MEGATRON_STYLE | {
        "embedding_width": 0 if width == hidden else width,
        "final_norm": norm_first and not no_final,
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": bias,
        "layers": r.positive("num_hidden_layers"),
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_attention_heads"),
        "ffn_hidden": r.positive("ffn_dim"),
        "vocab": r.positive("vocab_size", default=50272),
        "max_positions": r.positive("max_position_embeddings", default=2048),
        "position_offset": 2,
        "activation": activation(r, "activation_function", default="relu"),
        "dropout": r.number("dropout", default=0.1),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _bloom(r: Reader) -> dict[str, Any]:
    return MEGATRON_STYLE | {
        "layers": r.positive("n_layer", "num_hidden_layers"),
        "hidden": r.positive("hidden_size", "n_embed"),
        "heads": r.positive("n_head", "num_attention_heads"),
        "vocab": r.positive("vocab_size", default=250880),
        "max_positions": r.positive("seq_length", default=2048),
        "positions": "alibi",
        "embedding_norm": True,
        "dropout": r.number("hidden_dropout", default=0.0),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _neox(r: Reader) -> dict[str, Any]:
    return MEGATRON_STYLE | {
        "layers": r.positive("num_hidden_layers"),
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_attention_heads"),
        "ffn_hidden": r.positive("intermediate_size"),
        "vocab": r.positive("vocab_size", default=50432),
        "max_positions": r.positive("max_position_embeddings", default=2048),
        "positions": "rotary",
        "parallel_block": r.boolean("use_parallel_residual", default=True),
        "activation": activation(r, "hidden_act", default="gelu"),
        "attention_bias": (bias := r.boolean("attention_bias", default=True)),
        "attention_output_bias": bias,
        "dropout": r.number("hidden_dropout", default=0.0),
        "tied": r.boolean("tie_word_embeddings"),
    }


def _nemotron(r: Reader) -> dict[str, Any]:
    return llama(r) | {
        "architecture": "gpt",
        "gated_mlp": False,
        "norm": "layer_norm",
        "activation": "relu2",
    }


#: what helps with what is not known here
RECORD = "any other is recorded: --module hf:NAME with transformers, --module FILE.py:NAME with a module of yours"

#: ``model_type`` -> how its keys are read
DENSE: dict[str, Callable[[Reader], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "llama": llama,
    "mistral": llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_vl": _qwen3,
    "qwen3_vl_moe": _qwen3_moe,
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "camembert": _bert,
    "t5": _t5,
    "mt5": _t5,
    "gemma": _gemma,
    "phi3": llama,
    "starcoder2": _starcoder2,
    "gpt_bigcode": _gpt_bigcode,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": deepseek,
    "mpt": _mpt,
    "opt": _opt,
    "bloom": _bloom,
    "gpt_neox": _neox,
    "nemotron": _nemotron,
}
