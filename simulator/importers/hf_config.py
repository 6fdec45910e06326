"""Hugging Face ``config.json``: from the hub's keys to a :class:`ModelSpec`.

References
----------
Key names and defaults: huggingface/transformers, ``configuration_*.py`` of each family.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from simulator.config import load_yaml, near_misses
from simulator.importers.record import Imported, Reader, words
from simulator.models.catalog import BERT_STYLE, GPT2_STYLE, LLAMA_STYLE, MEGATRON_STYLE, MPT_STYLE, T5_STYLE
from simulator.models.spec import Activation, ModelSpec

_IRRELEVANT = words(
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
    "output_past relative_attention_max_distance position_embedding_type ep_size num_nextn_predict_layers "
    "num_mtp_layers aux_loss_alpha seq_aux scoring_func topk_method topk_group n_group norm_topk_prob "
    "routed_scaling_factor expert_dropout learned_pos_emb logit_scale verbose init_device "
    "init_config embedding_fraction loss_fn use_sliding_window "
    "layer_types use_qk_norm partial_rotary_factor max_sequence_length word_embed_proj_dim "
    "do_layer_norm_before _remove_final_layer_norm layerdrop activation_dropout attention_dropout "
    "hidden_dropout attention_probs_dropout_prob attn_pdrop prefix"
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


def _activation(reader: Reader, *keys: str, default: str) -> Activation:
    return _ACTIVATIONS[reader.text(*keys, default=default, one_of=_ACTIVATIONS)]


def _gpt2(r: Reader) -> dict[str, Any]:
    hidden = r.positive("n_embd", "hidden_size")
    return GPT2_STYLE | {
        "layers": r.positive("n_layer", "num_hidden_layers"),
        "hidden": hidden,
        "heads": r.positive("n_head", "num_attention_heads"),
        "ffn_hidden": r.integer("n_inner", "intermediate_size", default=0),
        "vocab": r.positive("vocab_size", default=50257),
        "max_positions": r.positive("n_positions", "n_ctx", "max_position_embeddings", default=1024),
        "activation": _activation(r, "activation_function", default="gelu_new"),
        "dropout": r.number("resid_pdrop", default=0.1),
        "tied": r.boolean("tie_word_embeddings", default=True),
    }


def _llama(r: Reader) -> dict[str, Any]:
    heads = r.positive("num_attention_heads", "n_head")
    bias = r.boolean("attention_bias")
    fields = LLAMA_STYLE | {
        "layers": r.positive("num_hidden_layers", "n_layer"),
        "hidden": r.positive("hidden_size", "n_embd"),
        "heads": heads,
        "kv_heads": r.integer("num_key_value_heads", default=heads),
        "head_dim": r.integer("head_dim", default=0),
        "ffn_hidden": r.positive("intermediate_size"),
        "vocab": r.positive("vocab_size"),
        "max_positions": r.positive("max_position_embeddings", default=2048),
        "activation": _activation(r, "hidden_act", default="silu"),
        "attention_bias": bias,
        "attention_output_bias": bias,
        "mlp_bias": r.boolean("mlp_bias"),
        "tied": r.boolean("tie_word_embeddings"),
    }
    window = r.integer("sliding_window", default=0)
    if window and r.boolean("use_sliding_window", default=True):
        fields["sliding_window"] = window
    return fields


def _qwen2(r: Reader) -> dict[str, Any]:
    r.assume("attention_bias", True, "qwen2 has query, key and value biases that no key announces")
    return _llama(r) | {"attention_bias": True, "attention_output_bias": False}


def _qwen3(r: Reader) -> dict[str, Any]:
    if r.data.get("head_dim") is None:
        r.assume("head_dim", 128, "the default of qwen3")
    fields = _llama(r) | {"qk_norm": True}
    return fields | {"head_dim": fields["head_dim"] or 128}


def _mixtral(r: Reader) -> dict[str, Any]:
    return _llama(r) | {
        "n_experts": r.positive("num_local_experts", "num_experts", default=8),
        "top_k": r.positive("num_experts_per_tok", default=2),
    }


def _qwen3_moe(r: Reader) -> dict[str, Any]:
    layers, every = r.positive("num_hidden_layers"), r.positive("decoder_sparse_step", default=1)
    dense = r.raw("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(index, int) for index in dense):
        r.fault("mlp_only_layers", f"{dense!r} is not a list of layers")
    return _qwen3(r) | {
        "dense_blocks": tuple(i for i in range(layers) if i in dense or (i + 1) % every),
        "n_experts": r.positive("num_experts", "num_local_experts", default=128),
        "top_k": r.positive("num_experts_per_tok", default=8),
        "expert_hidden": r.positive("moe_intermediate_size", default=768),
    }


def _every(r: Reader, key: str) -> tuple[int, ...]:
    """Return the dense blocks where only every so-manieth has experts."""
    every = r.positive(key, default=1)
    return tuple(i for i in range(r.positive("num_hidden_layers")) if i % every)


def _deepseek(r: Reader) -> dict[str, Any]:
    expert = r.positive("moe_intermediate_size")
    return _llama(r) | {
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
    return BERT_STYLE | {
        "layers": r.positive("num_hidden_layers", default=12),
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_attention_heads", default=12),
        "ffn_hidden": r.integer("intermediate_size", default=0),
        "vocab": r.positive("vocab_size", default=30522),
        "max_positions": r.positive("max_position_embeddings", default=512),
        "type_vocab": r.integer("type_vocab_size", default=2),
        "activation": _activation(r, "hidden_act", default="gelu"),
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
    }


def _opt(r: Reader) -> dict[str, Any]:
    return MEGATRON_STYLE | {
        "layers": r.positive("num_hidden_layers"),
        "hidden": r.positive("hidden_size"),
        "heads": r.positive("num_attention_heads"),
        "ffn_hidden": r.positive("ffn_dim"),
        "vocab": r.positive("vocab_size", default=50272),
        "max_positions": 2 + r.positive("max_position_embeddings", default=2048),
        "activation": _activation(r, "activation_function", default="relu"),
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
        "dropout": r.number("hidden_dropout", default=0.0),
        "tied": r.boolean("tie_word_embeddings"),
    }


def _nemotron(r: Reader) -> dict[str, Any]:
    return _llama(r) | {
        "architecture": "gpt",
        "gated_mlp": False,
        "norm": "layer_norm",
        "activation": "relu2",
    }


#: ``model_type`` -> how its keys are read
FAMILIES: dict[str, Callable[[Reader], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "bert": _bert,
    "t5": _t5,
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "deepseek_v3": _deepseek,
    "mpt": _mpt,
    "opt": _opt,
    "bloom": _bloom,
    "gpt_neox": _neox,
    "nemotron": _nemotron,
}


def import_hf_config(path: str | Path) -> Imported:
    """Read a ``config.json`` of the hub.

    Parameters
    ----------
    path : str or Path
        The file, or the folder that holds it.

    Raises
    ------
    ConfigError
        If it is not such a file, its family is not known, or a value is impossible.
    """
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    data, locator = load_yaml(path)
    return read_hf_config(Reader(data, str(path), locator=locator))


def read_hf_config(reader: Reader, *, name: str = "") -> Imported:
    """Read a configuration that is already a mapping; see :func:`import_hf_config`."""
    inner = reader
    if isinstance(reader.data.get("text_config"), dict):
        inner = reader.section("text_config")
        reader.assume("text_config", "the language model", "vision and audio parts are left out")
        reader.irrelevant([key for key in reader.data if key != "text_config"])
    family = inner.text("model_type") if "model_type" in inner.data else _unnamed(inner)
    known = family.removesuffix("_text")
    if known not in FAMILIES:
        near = near_misses(known, FAMILIES)
        hint = f"did you mean {near[0]!r}? " if near else ""
        inner.fault("model_type", f"{family!r} is not known", hint=f"{hint}known are {', '.join(FAMILIES)}")
    fields = FAMILIES[known](inner)
    if "quantization_config" in inner.data:
        inner.irrelevant(["quantization_config"])
        inner.assume("precision", "bf16", "quantization_config is left out: training in 16 bits")
    inner.irrelevant(_IRRELEVANT)
    inner.finish()
    spec = ModelSpec(name=name or _name(inner, Path(reader.file)), **fields)
    return Imported(kind="hf-config", file=reader.file, spec=spec, report=reader.log.report())


def _unnamed(reader: Reader) -> str:
    hint = "a Hugging Face config.json says 'model_type'"
    near = near_misses("model_type", reader.data)
    reader.fault("", "'model_type' is missing", hint=f"{hint}; is it {near[0]!r} here?" if near else hint)


def _name(reader: Reader, path: Path) -> str:
    name = reader.data.get("_name_or_path")
    if isinstance(name, str) and name:
        return name.rsplit("/", 1)[-1].lower()
    return (path.parent.name if path.stem == "config" and path.parent.name else path.stem).lower()
