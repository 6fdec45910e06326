"""What the keys of a Hugging Face ``config.json`` mean in many families: sizes, biases, activations, windows, experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import LLAMA_STYLE
from simulator.models.spec import Activation

#: how the keys of a family are read: the fields of its model
Family = Callable[[Reader], dict[str, Any]]

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
    "output_past relative_attention_max_distance ep_size "
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
    "pre_allocate_kv_cache validate_runner_input use_bidirectional_attention encoder_no_repeat_ngram_size output_scores "
    "remove_invalid_values torchscript attn_output_gate output_gate_type mamba_ssm_dtype mtp_use_dedicated_embeddings swiglu_limit "
    "initial_context_length use_routing_bias use_moe_router_bias moe_router_dtype rotary rotary_dim rotary_pct rotary_emb_base use_mrope "
    "layernorm_epsilon apply_query_key_layer_scaling bias_dropout_fusion fp32_residual_connection original_rope post_layer_norm "
    "sliding_window_pattern"
)

#: what helps with a family that is not known
RECORD = "any other is recorded: --module hf:NAME with transformers, --module FILE.py:NAME with a module of yours"

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
    "silu": "silu",
    "swish": "silu",
}


def activation(reader: Reader, *keys: str, default: str) -> Activation:
    """Return the activation that a key names, in the catalogue's words."""
    return ACTIVATIONS[reader.text(*keys, default=default, one_of=ACTIVATIONS)]


def refuse_if(r: Reader, key: str, what: str, *, when: bool = True) -> None:
    """End the import where a switch of the configuration, which is off or on by default, means something that is not modelled."""
    if r.boolean(key, default=not when) is when:
        r.fault(key, f"{what} is not modelled for this family", hint=RECORD)


def biases(attention: bool, *, output: bool | None = None, mlp: bool | None = None) -> dict[str, bool]:
    """Return which products have biases: all as those of queries, keys and values, unless said otherwise."""
    return {
        "attention_bias": attention,
        "attention_output_bias": attention if output is None else output,
        "mlp_bias": attention if mlp is None else mlp,
    }


def sizes(r: Reader, names: Mapping[str, str] = {}, *, tied: bool = False, **defaults: int) -> dict[str, Any]:
    """Return the sizes that every family has, with its defaults; ``names`` are its own keys by field, blanks between them."""

    def size(field: str, usual: str) -> int:
        return r.positive(*names.get(field, usual).split(), default=defaults.get(field))

    return {
        "layers": size("layers", "num_hidden_layers"),
        "hidden": size("hidden", "hidden_size"),
        "heads": size("heads", "num_attention_heads"),
        "ffn_hidden": size("ffn_hidden", "intermediate_size"),
        "vocab": size("vocab", "vocab_size"),
        "max_positions": size("max_positions", "max_position_embeddings"),
        "tied": r.boolean(*names.get("tied", "tie_word_embeddings").split(), default=tied),
    }


_DECODER = {
    "layers": "num_hidden_layers n_layer",
    "hidden": "hidden_size n_embd",
    "heads": "num_attention_heads n_head",
}


def decoder(r: Reader, *, bias: bool = False, tied: bool = False, act: str = "silu") -> dict[str, Any]:
    """Read the keys that Llama and all that followed it share, with a family's defaults, but for which layers see what."""
    found = sizes(r, _DECODER, tied=tied, max_positions=2048)
    return LLAMA_STYLE | found | biases(r.boolean("attention_bias", default=bias), mlp=r.boolean("mlp_bias")) | {
        "kv_heads": r.integer("num_key_value_heads", default=found["heads"]),
        "head_dim": r.positive("head_dim", default=0),
        "activation": activation(r, "hidden_act", default=act),
    }  # fmt: skip


def llama(r: Reader, *, bias: bool = False, tied: bool = False, act: str = "silu") -> dict[str, Any]:
    """Read a decoder all of whose layers are attention and MLP, some perhaps with a sliding window."""
    return decoder(r, bias=bias, tied=tied, act=act) | window(r)


#: kinds of layers that most files know -> sublayer
WHOLE_OR_WINDOW = {"full_attention": "*", "sliding_attention": "w"}


def layer_list(r: Reader, *keys: str, letters: dict[str, str]) -> tuple[str, ...]:
    """Return a pattern from a list of layer kinds in the file's words, empty where there is none."""
    kinds = r.raw(*keys)
    if kinds is None:
        return ()
    if not isinstance(kinds, list) or not all(isinstance(kind, str) and kind in letters for kind in kinds):
        r.fault(keys[0], f"{kinds!r:.80} is not a list of {', '.join(letters)}", hint=RECORD)
    return tuple(letters[kind] for kind in kinds)


def window(r: Reader) -> dict[str, Any]:
    """Read which layers see a sliding window only."""
    window, is_used = r.positive("sliding_window", default=0), r.boolean("use_sliding_window", default=True)
    kinds = layer_list(r, "layer_types", letters=WHOLE_OR_WINDOW)
    if not window or not is_used or (kinds and "w" not in kinds):
        return {}
    whole = tuple(index for index, kind in enumerate(kinds) if kind == "*")
    return {"sliding_window": window, "full_attention_blocks": whole}


def experts(r: Reader, *, n: int | None = None, top_k: int | None = None) -> dict[str, Any]:
    """Return how many experts there are, and how many a token takes."""
    return {
        "n_experts": r.positive("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts", default=n),
        "top_k": r.positive(
            "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_topk", "moe_k", default=top_k
        ),
    }  # fmt: skip


def like(family: Family, ignored: str = "", **fields: Any) -> Family:
    """Return a family that is read as another one, some keys left out and some fields as they are here."""

    def read(r: Reader) -> dict[str, Any]:
        r.irrelevant(words(ignored))
        return family(r) | fields

    return read
