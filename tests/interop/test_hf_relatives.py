"""Parameters of small configurations, counted by transformers 5.23 on the meta device; keys as their authors write them."""

import csv
import json
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_any
from simulator.models.build import build_model
from simulator.models.layer import AttentionShape, GemmShape, ScanShape
from simulator.models.setting import RankSetting
from tests.models.active import n_active_parameters

LLAMA_LIKE = {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 1000,
}
GROUPED = LLAMA_LIKE | {"num_key_value_heads": 2}
GPTJ = {"n_embd": 512, "n_layer": 3, "n_head": 8, "n_positions": 256, "rotary_dim": 32, "vocab_size": 1000}

FIRST_DENSE = ["dense", "sparse", "sparse"]
EVERY_SECOND = ["full_attention", "sliding_attention", "full_attention"]
LAST_WHOLE = ["sliding_attention", "sliding_attention", "full_attention"]

LATENT = LLAMA_LIKE | {"num_key_value_heads": 8, "q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
    "v_head_dim": 64, "num_experts_per_tok": 2, "moe_intermediate_size": 256}  # fmt: skip
SPARSE = LATENT | {"n_routed_experts": 8, "first_k_dense_replace": 1}

#: what AutoModelForCausalLM.from_config(AutoConfig.for_model(...)) holds
COUNTS = [
    ("gptj", GPTJ, 10473960),
    ("codegen", GPTJ | {"tie_word_embeddings": False}, 10473960),
    (
        "gpt_neo",
        {"hidden_size": 512, "num_layers": 4, "num_heads": 8, "attention_types": [[["global", "local"], 2]],
         "vocab_size": 1000, "max_position_embeddings": 256, "window_size": 64},
        13247488,
    ),
    ("phi", LLAMA_LIKE, 10480104),
    ("cohere", GROUPED, 11917312),
    ("cohere2", GROUPED | {"num_hidden_layers": 4, "sliding_window": 64}, 15718912),
    ("granite", GROUPED, 12430848),
    ("granitemoe", GROUPED | {"intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2}, 40754688),
    ("olmoe", LLAMA_LIKE | {"intermediate_size": 1024, "num_experts": 8, "num_experts_per_tok": 2}, 41937408),
    ("olmo3", LLAMA_LIKE | {"num_hidden_layers": 4, "intermediate_size": 1024, "sliding_window": 64}, 11518464),
    (
        "qwen2_moe",
        GROUPED | {"moe_intermediate_size": 256, "shared_expert_intermediate_size": 1024, "num_experts": 8, "num_experts_per_tok": 2},
        17165568,
    ),
    ("distilbert", {"dim": 512, "n_layers": 3, "n_heads": 8, "hidden_dim": 2048, "vocab_size": 1000}, 10232320),
    ("ernie4_5", GROUPED | {"head_dim": 64}, 11918848),
    ("seed_oss", GROUPED | {"head_dim": 64}, 12433152),
    ("hunyuan_v1_dense", GROUPED | {"head_dim": 64}, 12431232),
    ("exaone4", GROUPED | {"num_hidden_layers": 4, "sliding_window": 64}, 16233472),
    ("glm", GROUPED | {"head_dim": 64}, 12433152),
    ("glm4", GROUPED | {"head_dim": 64}, 12436224),
    ("ministral3", GROUPED | {"head_dim": 64}, 12430848),
    ("arcee", GROUPED, 9285120),
    ("olmo", GROUPED, 12427264),
    ("nanochat", GROUPED, 9281536),
    ("apertus", GROUPED, 9285510),
    ("cwm", GROUPED | {"head_dim": 64, "sliding_window": 64, "layer_types": EVERY_SECOND}, 12430848),
    ("helium", GROUPED | {"head_dim": 64}, 12430848),
    ("granite_swa", GROUPED | {"layer_types": EVERY_SECOND, "layer_rope_theta": [1e4] * 3}, 11918872),
    ("modernbert", LLAMA_LIKE | {"num_hidden_layers": 4}, 17293824),
    ("mimo_v2_flash", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 96, "v_head_dim": 64,
        "n_routed_experts": 8, "swa_num_key_value_heads": 4, "layer_types": ["full_attention", "sliding_attention",
        "sliding_attention"], "mlp_layer_types": FIRST_DENSE}, 13258256),
    ("glm4_moe_lite", LATENT | {"n_routed_experts": 8, "mlp_layer_types": FIRST_DENSE}, 12636128),
    ("youtu", LLAMA_LIKE | {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64,
        "num_key_value_heads": 8}, 11329504),
    ("minicpm3", LLAMA_LIKE | {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16,
        "v_head_dim": 64, "num_key_value_heads": 8}, 11329504),
    ("ernie4_5_moe", GROUPED | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 256, "moe_num_shared_experts": 1,
        "moe_layer_end_index": 2}, 12713488),
    ("hy_v3", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 64, "num_experts": 8,
        "mlp_layer_types": FIRST_DENSE}, 13225856),
    ("solar_open", {"hidden_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 1000,
        "num_key_value_heads": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 64, "n_routed_experts": 8},
        13622784),
    ("exaone_moe", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_experts": 8, "layer_types": LAST_WHOLE,
        "mlp_layer_types": FIRST_DENSE, "sliding_window": 64}, 13225856),
    ("hunyuan_v1_moe", GROUPED | {"head_dim": 64, "num_experts": 8, "moe_topk": 2}, 87940992),
    ("afmoe", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 64, "num_experts": 8,
        "num_shared_experts": 1, "layer_types": LAST_WHOLE}, 14015376),
    ("aria_text", GROUPED | {"intermediate_size": 256, "head_dim": 64, "moe_num_experts": 8, "moe_topk": 2}, 14802432),
    ("cohere2_moe", GROUPED | {"intermediate_size": 256, "head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2,
        "layer_types": LAST_WHOLE, "mlp_layer_types": ["sparse", "sparse", "sparse"]}, 11929600),
    ("flex_olmo", LLAMA_LIKE | {"intermediate_size": 256, "num_key_value_heads": 8, "num_experts": 8, "num_experts_per_tok": 2},
        13625856),
    ("granitemoe_swa", GROUPED | {"intermediate_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2,
        "layer_types": EVERY_SECOND, "layer_rope_theta": [1e4] * 3}, 12443160),
    ("gemma4_text", GROUPED | {"head_dim": 64, "hidden_size_per_layer_input": 0, "layer_types": LAST_WHOLE, "global_head_dim": 128,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
        "moe_intermediate_size": 256, "tie_word_embeddings": True}, 21836824),
    ("gemma4_text", GROUPED | {"head_dim": 64, "hidden_size_per_layer_input": 0, "layer_types": LAST_WHOLE,
        "num_global_key_value_heads": 1, "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2,
        "moe_intermediate_size": 256}, 25179928),
    ("gemma4_text", GROUPED | {"head_dim": 64, "hidden_size_per_layer_input": 0, "layer_types": LAST_WHOLE,
        "per_layer_config": {"2": {"head_dim": 128, "num_key_value_heads": 1}}, "attention_k_eq_v": True, "enable_moe_block": True,
        "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 256}, 21836824),
    ("mimo_v2_flash", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 96, "v_head_dim": 64,
        "n_routed_experts": 8, "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        "mlp_layer_types": FIRST_DENSE}, 13258256),
    ("ernie4_5_moe", GROUPED | {"moe_num_experts": 8, "moe_k": 2, "moe_intermediate_size": 256, "moe_num_shared_experts": 1,
        "moe_layer_end_index": 4, "use_bias": True}, 12724984),
    ("exaone_moe", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_experts": 8, "layer_types": LAST_WHOLE,
        "mlp_layer_types": FIRST_DENSE, "first_k_dense_replace": 2, "sliding_window": 64}, 13225856),
    ("glm_moe_dsa", SPARSE | {"index_topk_freq": 2}, 13586912),
    ("glm_moe_dsa", SPARSE | {"index_topk_pattern": "FSS"}, 13111520),
    ("glm_moe_dsa", SPARSE | {"indexer_types": ["full", "full", "full"]}, 14062304),
    ("glm_moe_dsa", LATENT | {"num_hidden_layers": 5, "n_routed_experts": 8}, 22224416),
    ("granitemoehybrid", GROUPED | {"intermediate_size": 256, "mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 32,
        "layer_types": ["mamba", "mamba", "attention"], "num_local_experts": 8, "num_experts_per_tok": 2,
        "shared_intermediate_size": 512}, 16732384),
    ("bamba", GROUPED | {"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 32, "attn_layer_indices": [1]}, 14360800),
    ("falcon_h1", GROUPED | {"mamba_n_heads": 16, "mamba_d_head": 64, "mamba_d_state": 32, "mamba_d_ssm": 1024,
        "mamba_rms_norm": True}, 17291856),
    ("mamba", {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 1000}, 5598208),
    ("falcon_mamba", {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 1000}, 5598208),
    ("lfm2", GROUPED | {"layer_types": ["conv", "full_attention", "conv"], "tie_word_embeddings": True}, 10349184),
    ("lfm2_moe", GROUPED | {"num_experts_per_tok": 2, "moe_intermediate_size": 256, "layer_types": ["conv", "full_attention",
        "conv"], "num_experts": 8, "num_dense_layers": 1, "tie_word_embeddings": True}, 12716672),
    ("kimi_linear", LLAMA_LIKE | {"num_key_value_heads": 8, "num_experts": 8, "num_experts_per_token": 2,
        "moe_intermediate_size": 256, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64,
        "linear_num_heads": 8, "linear_head_dim": 64, "mlp_layer_types": FIRST_DENSE, "layer_types": ["linear_attention",
        "linear_attention", "full_attention"]}, 14262992),
    ("olmo_hybrid", LLAMA_LIKE | {"layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "num_key_value_heads": 8, "linear_num_key_heads": 8, "linear_num_value_heads": 8, "linear_key_head_dim": 48,
        "linear_value_head_dim": 96}, 14688992),
]  # fmt: skip


def keys_of(family, without="", **more):
    """The first keys above of a family, with some left out and others given."""
    own = next(keys for name, keys, _ in COUNTS if name == family)
    return {key: value for key, value in own.items() if key not in without.split()} | more


COUNTS += [
    ("granitemoehybrid", keys_of("granitemoehybrid", num_local_experts=0), 7282912),
    ("falcon_h1", keys_of("falcon_h1", "mamba_d_state"), 17986704),
    ("lfm2", keys_of("lfm2", "layer_types", full_attn_idxs=[1], block_ff_dim=1024), 6810240),
    (
        "kimi_linear",
        keys_of(
            "kimi_linear", "linear_num_heads linear_head_dim layer_types mlp_layer_types", model_max_length=512, first_k_dense_replace=1,
            linear_attn_config={"kda_layers": [1, 2], "full_attn_layers": [3], "num_heads": 8, "head_dim": 64, "short_conv_kernel_size": 4},
        ),
        14262992,
    ),
    ("gemma4_text", keys_of("gemma4_text", "attention_k_eq_v"), 22033432),
    ("cohere2_moe", keys_of("cohere2_moe", prefix_dense_intermediate_size=1024, mlp_layer_types=FIRST_DENSE), 10352640),
    ("ernie4_5_moe", keys_of("ernie4_5_moe", moe_layer_end_index=1), 12316168),
    ("phimoe", GROUPED | {"num_local_experts": 4, "lm_head_bias": True}, 40753128),
    ("vaultgemma", GROUPED | {"head_dim": 64}, 11918848),
    ("jais2", GROUPED | {"head_dim": 64}, 9300224),
    ("jais2", GROUPED | {"head_dim": 64, "mlp_bias": False}, 9292544),
    ("hyperclovax", GROUPED | {"attention_bias": True}, 12437760),
    ("mellum", GROUPED | {"head_dim": 64, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}, 12443520),
    ("xglm", {"d_model": 512, "num_layers": 3, "attention_heads": 8, "ffn_dim": 2048, "vocab_size": 1000}, 9970176),
    ("emu3_text_model", GROUPED, 12430848),
    ("hy_v3", keys_of("hy_v3", attention_bias=True, mlp_bias=True), 13236352),
    (
        "dots1",
        GROUPED | {"head_dim": 64, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1, "num_experts_per_tok": 2,
        "moe_intermediate_size": 256, "attention_bias": True},
        13229696,
    ),
    ("deepseek_v2", SPARSE | {"n_shared_experts": 1, "mlp_bias": True}, 12642784),
    ("deepseek_v3", SPARSE | {"n_shared_experts": 1, "mlp_bias": True}, 12636128),  # whose key mlp_bias changes nothing
    ("deepseek_v3", SPARSE, 12636128),
    ("youtu", keys_of("youtu", mlp_bias=True), 11329504),
    ("minicpm3", keys_of("minicpm3", mlp_bias=True), 11343328),
    *((family, LLAMA_LIKE, 10496000) for family in ("ernie", "data2vec-text", "megatron-bert")),  # AutoModel, with its pooler
    ("roberta-prelayernorm", LLAMA_LIKE, 10497024),
]  # fmt: skip


#: encoder and decoder of BART's relatives
STACKS = {"d_model": 512, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
    "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "vocab_size": 1000, "max_position_embeddings": 256}  # fmt: skip
SPARSER = {"num_key_value_heads": 2, "head_dim": 64, "moe_intermediate_size": 256, "shared_expert_intermediate_size": 128,
    "num_experts": 8, "num_experts_per_tok": 2, "hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
    "vocab_size": 1000}  # fmt: skip
DBRX = {"d_model": 512, "n_layers": 3, "n_heads": 8, "vocab_size": 1000, "attn_config": {"kv_n_heads": 2, "clip_qkv": 8},
    "ffn_config": {"ffn_hidden_size": 256, "moe_num_experts": 8, "moe_top_k": 2}}  # fmt: skip
LIGHTNING = GROUPED | {"head_dim": 64, "intermediate_size": 256, "num_local_experts": 8, "num_experts_per_tok": 2,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"]}  # fmt: skip
COUNTS += [
    ("bart", STACKS, 14447104),
    ("mbart", STACKS, 14449152),
    (
        "pegasus",
        STACKS,
        14182912,
    ),  # trained ones: two tables of sines are parameters there without gradients, and of Marian, too
    ("m2m_100", STACKS, 14182912),
    ("marian", STACKS, 14180864),
    ("blenderbot", STACKS, 14445056),
    ("blenderbot-small", STACKS, 14445056),
    ("openai-gpt", {"n_embd": 512, "n_layer": 3, "n_head": 8, "vocab_size": 1000, "n_positions": 256}, 10100224),
    ("iquestcoder", GROUPED | {"num_hidden_layers": 4, "intermediate_size": 1024, "head_dim": 64}, 9941504),
    ("flint", SPARSER | {"intermediate_size": 1024}, 13489184),
    ("kolibri1", SPARSER, 17040384),
    ("dbrx", DBRX, 12443136),
    ("minimax", LIGHTNING, 13754880),
]


@pytest.mark.parametrize("family", ["bart", "mbart", "pegasus", "m2m_100", "marian", "blenderbot", "blenderbot-small"])
def test_products_of_two_stacks_are_those_that_torch_counts(tmp_path, family):
    """Two sequences of 128 tokens through ``ForConditionalGeneration`` on the meta device under torch 2.13's ``FlopCounterMode``."""
    model = build_model(
        read(tmp_path, family, STACKS).spec, RankSetting(micro_batch=2, sequence_length=128, kernels="fused")
    )
    items = [item for layer in model.layers for item in layer.forward]
    products = sum(item.n_flops for item in items if isinstance(item, GemmShape))
    assert products + sum(item.whole_flops for item in items if isinstance(item, AttentionShape)) == 7778336768
    held = sum(tensor.n_elements for layer in model.layers for tensor in layer.parameters)
    assert held == model.n_parameters


def test_products_of_lightning_attention_are_those_that_torch_counts(tmp_path):
    """``MiniMaxLightningAttention`` over two sequences of 512 tokens, two blocks each, under torch 2.13's ``FlopCounterMode``."""
    model = build_model(read(tmp_path, "minimax", LIGHTNING).spec, RankSetting(micro_batch=2, sequence_length=512))
    items = [
        item
        for item in model.layers[1].forward
        if isinstance(item, ScanShape) or "lightning" in getattr(item, "name", "")
    ]
    assert sum(item.n_flops for item in items) == 3355443200


def test_minimax_in_its_own_words_is_that_of_transformers(tmp_path):
    own = {key: value for key, value in LIGHTNING.items() if key != "layer_types"} | {"attn_type_list": [0, 0, 1]}
    specs = [read(tmp_path, *one).spec for one in (("minimax", LIGHTNING), ("minimax_text_01", own))]
    assert specs[0].blocks == specs[1].blocks == ("lE", "lE", "*E")


@pytest.mark.parametrize(
    ("family", "why"), [("gemma3n_text", "several copies"), ("zamba2", "share"), ("rwkv", "recurrence")]
)
def test_what_is_known_and_not_modelled_says_why(tmp_path, family, why):
    with pytest.raises(ConfigError, match=f"model_type: '{family}': .*{why}.* is not modelled(.|\n)*--module hf:NAME"):
        read(tmp_path, family, GROUPED)


def read(tmp_path, family, keys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **keys}))
    return import_any(path, "hf-config")


@pytest.mark.parametrize(("family", "keys", "count"), COUNTS, ids=[family for family, _, _ in COUNTS])
def test_parameters_as_transformers_counts_them(tmp_path, family, keys, count):
    found = read(tmp_path, family, keys)
    assert found.spec.n_parameters == count
    assert found.report.unknown == ()


#: what transformers 5.23 makes of a file that says the sizes only: ``CONFIG_MAPPING[family]()``, built on the meta device where its class
#: can be, with the window of its layers and how many of them see it
DEFAULTS = list(csv.DictReader(Path(__file__).with_name("hf_defaults.csv").read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("row", DEFAULTS, ids=[row["family"] for row in DEFAULTS])
def test_keys_that_a_file_leaves_out_are_what_transformers_takes(tmp_path, row):
    sizes = dict(word.split("=") for word in row["sizes"].split())
    spec = read(tmp_path, row["family"], {key: int(value) for key, value in sizes.items()}).spec
    windowed = sum("w" in block for block in spec.blocks)
    found = {"parameters": spec.n_parameters, "max_positions": spec.max_positions, "windowed": windowed,
        "window": spec.sliding_window if windowed else 0, "top_k": spec.top_k}  # fmt: skip
    if not spec.n_experts:
        row = row | {"top_k": ""}
    assert found == found | {key: int(value) for key, value in row.items() if key in found and value}


@pytest.mark.parametrize(
    ("family", "keys", "count"),
    [
        ("bamba", keys_of("bamba", mamba_d_head="auto"), 14360800),
        ("granitemoehybrid", keys_of("granitemoehybrid", mamba_d_head="auto"), 16732384),
        ("falcon_h1", keys_of("falcon_h1", mamba_d_head="auto"), 17291856),
        ("lfm2", keys_of("lfm2", "layer_types"), 9559936),
        (
            "olmo_hybrid",
            keys_of("olmo_hybrid", "layer_types linear_num_key_heads linear_key_head_dim linear_value_head_dim"),
            14688992,
        ),
        ("ernie4_5", keys_of("ernie4_5", head_dim=None), 11918848),
        ("glm4_moe_lite", keys_of("glm4_moe_lite", q_lora_rank=None), 13127360),
    ],
)
def test_words_and_nulls_in_place_of_numbers(tmp_path, family, keys, count):
    assert read(tmp_path, family, keys).spec.n_parameters == count


def test_nulls_are_none_where_a_missing_key_is_not(tmp_path):
    """Mistral of transformers 5.23 sees 4096 keys, and all of them where its file says ``"sliding_window": null``."""
    specs = [read(tmp_path, "mistral", GROUPED | more).spec for more in ({}, {"sliding_window": None})]
    assert [spec.sliding_window for spec in specs] == [4096, 0]


def test_sizes_of_a_part_are_those_of_its_class(tmp_path):
    """The text of Gemma 3 4B writes four sizes, and that of LLaVA 1.5 7B none but its vocabulary (their files on the hub)."""
    gemma = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    spec = read(tmp_path, "gemma3", {"text_config": gemma, "vision_config": {}}).spec
    assert (spec.heads, spec.kv_heads, spec.head_dim, spec.vocab, spec.n_parameters) == (8, 4, 256, 262208, 3880263168)
    text = {"model_type": "llama", "vocab_size": 32064}
    spec = read(tmp_path, "llava", {"text_config": text, "tie_word_embeddings": False}).spec
    assert spec.n_parameters == 6738939904
    with pytest.raises(ConfigError, match="is missing"):
        read(tmp_path, "llama", {"vocab_size": 32064})


def test_the_head_is_tied_as_the_whole_says(tmp_path):
    """Qwen3-VL 2B and 8B write ``tie_word_embeddings`` beside the text, not in it."""
    text = GROUPED | {"model_type": "qwen3_vl_text"}
    tied, apart = (
        read(tmp_path, "qwen3_vl", {"text_config": text, "tie_word_embeddings": one}).spec for one in (True, False)
    )
    assert apart.n_parameters - tied.n_parameters == GROUPED["vocab_size"] * GROUPED["hidden_size"]


def test_what_a_switch_leaves_out_is_gone_from_the_count(tmp_path):
    """OPT's final norm has a scale and a shift; of Falcon's new blocks each has one norm or two."""
    opt = {key: value for key, value in GROUPED.items() if key != "num_key_value_heads"} | {"ffn_dim": 1024}
    counts = [
        read(tmp_path, "opt", opt | {"_remove_final_layer_norm": gone}).spec.n_parameters for gone in (False, True)
    ]
    assert counts[0] - counts[1] == 2 * 512
    falcon = GROUPED | {"new_decoder_architecture": True, "num_kv_heads": 2}
    counts = [read(tmp_path, "falcon", falcon | {"num_ln_in_parallel_attn": n}).spec.n_parameters for n in (1, 2)]
    assert counts[1] - counts[0] == 3 * 2 * 512


def test_latent_experts_work_between_two_projections(tmp_path):
    """NVIDIA, Nemotron 3: of two matrices of an expert each is as wide as the latent on one side."""
    keys = GROUPED | {"hybrid_override_pattern": "M*E", "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
        "moe_shared_expert_intermediate_size": 512}  # fmt: skip
    plain, latent = (
        read(tmp_path, "nemotron_h", keys | more).spec.n_parameters for more in ({}, {"moe_latent_size": 128})
    )
    assert latent - plain == 8 * 2 * 256 * (128 - 512) + 2 * 512 * 128


#: family -> keys of its config.json on the hub, and what transformers 5.23 holds on the meta device; Llama 4's text by its weights
PUBLISHED = {
    "minimax_m2": ({"num_hidden_layers": 62, "hidden_size": 3072, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 1536, "vocab_size": 200064, "num_local_experts": 256, "num_experts_per_tok": 8,
        "max_position_embeddings": 196608}, 228689748992),
    "qwen3_5_moe": ({"num_hidden_layers": 40, "hidden_size": 2048, "num_attention_heads": 16, "num_key_value_heads": 2,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8,
        "vocab_size": 248320, "max_position_embeddings": 262144}, 34660610688),
    "llama4": ({"num_hidden_layers": 48, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 8,
        "intermediate_size": 8192, "num_local_experts": 16, "vocab_size": 202048, "max_position_embeddings": 10485760},
        2 * 202048 * 5120 + 5120 + 48 * (2 * 5120 * (5120 + 1024) + 17 * 3 * 5120 * 8192 + 16 * 5120 + 2 * 5120)),
}  # fmt: skip


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_mixtures_have_their_parameters(tmp_path, family):
    keys, count = PUBLISHED[family]
    assert read(tmp_path, family, keys).spec.n_parameters == count


def test_a_shared_expert_of_no_width_is_none(tmp_path):
    """Its three matrices are gone from each of three layers; a width of zero is no width that is missing."""
    (keys, count), width = next((keys, count) for family, keys, count in COUNTS if family == "qwen2_moe"), 1024
    spec = read(tmp_path, "qwen2_moe", keys | {"shared_expert_intermediate_size": 0}).spec
    assert spec.n_parameters == count - 3 * 3 * 512 * width


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("granitemoehybrid", "mamba_proj_bias", True),
        ("bamba", "mamba_conv_bias", False),
        ("falcon_h1", "projectors_bias", True),
        ("mamba", "use_bias", True),
        ("falcon_mamba", "use_conv_bias", False),
        ("kimi_linear", "attention_bias", True),
        ("afmoe", "attention_bias", True),
        ("hunyuan_v1_moe", "use_cla", True),
        ("ernie", "use_task_id", True),
        ("hyperclovax", "use_post_norm", False),
    ],
)
def test_switches_that_are_not_modelled_are_refused(tmp_path, family, key, value):
    """Each changes the parameters that transformers 5.23, or the model's own code, counts."""
    keys, count = next((keys, count) for name, keys, count in COUNTS if name == family)
    with pytest.raises(ConfigError, match=f"{key}: .* is not modelled for this family"):
        read(tmp_path, family, keys | {key: value})
    assert read(tmp_path, family, keys | {key: not value}).spec.n_parameters == count


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        ("gemma4_text", "hidden_size_per_layer_input", 64),
        ("gemma4_text", "num_kv_shared_layers", 1),
        ("mimo_v2_flash", "swa_head_dim", 64),
        ("kimi_linear", "attn_res_block_size", 4),
        ("lfm2", "conv_dim", 64),
        ("nemotron_h", "num_hidden_layers", 7),
        ("glm_moe_dsa", "indexer_types", ["full", "shared"]),
        ("hunyuan_v1_moe", "num_experts", []),
    ],
)
def test_sizes_that_are_not_modelled_are_refused(tmp_path, family, key, value):
    """Each changes tensors of some layers: see ``configuration_*.py`` of the family."""
    keys = GROUPED | {"hybrid_override_pattern": "M*-"} if family == "nemotron_h" else keys_of(family)
    with pytest.raises(ConfigError, match=f"{key}: "):
        read(tmp_path, family, keys | {key: value})


@pytest.mark.parametrize("named", [{"1": {"hidden_size": 64}}, {"1": 64}, [64]])
def test_layers_that_override_other_keys_are_refused(tmp_path, named):
    with pytest.raises(ConfigError, match=r"per_layer_config: .* is not modelled"):
        own = {"hidden_size_per_layer_input": 0, "layer_types": LAST_WHOLE, "per_layer_config": named}
        read(tmp_path, "gemma4_text", GROUPED | own)


def test_an_embedding_of_every_layer_that_is_left_out_is_there(tmp_path):
    """transformers 5.23, ``configuration_gemma4.py``: 256 values per layer unless the file says otherwise."""
    with pytest.raises(ConfigError, match=r"hidden_size_per_layer_input: .* of 256 as it is left out"):
        read(tmp_path, "gemma4_text", GROUPED | {"layer_types": LAST_WHOLE})


@pytest.mark.parametrize(
    ("family", "key", "keys", "n_norms"),
    [
        ("mamba", "time_step_rank", {"hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 1000}, 0),
        ("jamba", "mamba_dt_rank", GROUPED, 1),
    ],
)
def test_the_rank_of_steps_is_that_of_two_products(tmp_path, family, key, keys, n_norms):
    """Gu and Dao, arXiv:2312.00752: to the rank and from it, in each of three mixers 1,024 wide; ``auto`` is 512 / 16 = 32."""
    counts = [read(tmp_path, family, keys | {key: rank}).spec.n_parameters for rank in ("auto", 32, 48)]
    assert counts[0] == counts[1]
    assert counts[2] - counts[1] == 3 * 16 * (2 * 1024 + n_norms)


def test_mixers_are_as_many_times_wider_as_their_files_say(tmp_path):
    """Gu and Dao, arXiv:2312.00752: each of 512 channels more has two rows of the first product and a column of the last, four taps and
    a bias, products to and from a step of rank 32, to both states of 16, a bias of the step, a row of A, and D."""
    two, three = (read(tmp_path, "jamba", GROUPED | {"mamba_expand": factor}).spec.n_parameters for factor in (2, 3))
    assert three - two == 3 * 512 * (2 * 512 + 512 + 4 + 1 + 2 * 32 + 2 * 16 + 1 + 16 + 1)
    # Falcon-H1's ``mamba_d_ssm`` is the width itself
    keys = keys_of("falcon_h1", "mamba_d_ssm")
    counts = [
        read(tmp_path, "falcon_h1", keys | one).spec.n_parameters
        for one in (
            {"mamba_expand": 3, "mamba_d_ssm": None},
            {"mamba_d_ssm": 1536},
            {"mamba_expand": 2, "mamba_d_ssm": None},
            {"mamba_d_ssm": 1024},
            {},
        )
    ]
    assert counts[0] == counts[1] > counts[2] == counts[3] == counts[4]


def test_kimi_counts_layers_from_one(tmp_path):
    """``linear_attn_config`` of moonshotai/Kimi-Linear-48B-A3B: layers 1 to 3 of each four are linear, ``model_max_length`` the length."""
    keys = next(keys for name, keys, _ in COUNTS if name == "kimi_linear" and "linear_attn_config" in keys)
    spec = read(tmp_path, "kimi_linear", keys).spec
    assert (spec.blocks, spec.max_positions) == (("d-", "dE", "*E"), 512)


def test_infinities_do_not_hide_what_a_file_is(tmp_path):
    """Python writes the limits of Mamba's steps as ``Infinity``, which is no JSON (nvidia/Nemotron-H on the hub)."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "mamba", "hidden_size": 512, "num_hidden_layers": 3, "vocab_size": 1000,
                                "time_step_limit": [0.0, float("inf")], "time_step_floor": float("nan")}))  # fmt: skip
    assert import_any(path).spec.blocks == ("m", "m", "m")


def test_cross_attention_is_refused_in_any_family(tmp_path):
    with pytest.raises(ConfigError, match="add_cross_attention: cross-attention in a decoder is not modelled"):
        read(tmp_path, "qwen3", GROUPED | {"add_cross_attention": True})
    assert read(tmp_path, "qwen3", GROUPED | {"add_cross_attention": False, "pruned_heads": {}}).report.unknown == ()


@pytest.mark.parametrize("family", ["cohere", "granitemoe", "falcon_h1", "gptj"])
def test_a_kind_that_is_not_known_is_read_by_its_architecture(tmp_path, family):
    """sgl-project/DeepSeek-V4-Flash-FP8 calls itself ``deepseek_ref``; its class is transformers' own."""
    keys, count = next((keys, count) for name, keys, count in COUNTS if name == family)
    named = {"cohere": "CohereForCausalLM", "granitemoe": "GraniteMoeForCausalLM", "falcon_h1": "FalconH1ForCausalLM",
             "gptj": "GPTJLMHeadModel"}  # fmt: skip
    found = read(tmp_path, "own", keys | {"architectures": [named[family]]})
    assert found.spec.n_parameters == count
    assert f"model_type={family}" in str(found.report.assumed)


@pytest.mark.parametrize(
    "architectures", [None, [], ["CohereModel"], ["OwnForCausalLM"], ["CohereForCausalLM", "LlamaForCausalLM"]]
)
def test_an_architecture_that_says_too_little_is_no_kind(tmp_path, architectures):
    with pytest.raises(ConfigError, match="model_type: 'own' is not known"):
        read(tmp_path, "own", GROUPED | {"architectures": architectures})


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_further_predictions_are_left_out_and_said_in_any_family(tmp_path, key):
    found = read(tmp_path, "mimo", GROUPED | {key: 1})
    assert found.spec.mtp_layers == 0
    assert "1 multi-token-prediction module left out" in str(found.report.assumed)


@pytest.mark.parametrize("is_used", [True, False])
def test_further_predictions_of_minimax_are_said(tmp_path, is_used):
    """MiniMaxAI/MiniMax-M2, ``config.json``: ``num_mtp_modules`` 3 beside ``use_mtp``."""
    keys = {"num_mtp_modules": 3, "use_mtp": is_used, "num_local_experts": 4, "num_experts_per_tok": 2}
    found = read(tmp_path, "minimax_m2", GROUPED | keys)
    assert found.spec.mtp_layers == 0
    assert ("3 multi-token-prediction module left out" in str(found.report.assumed)) == is_used


def test_blocks_that_a_search_cut(tmp_path):
    """Llama-3.3-Nemotron-Super-49B-v1: 49,867,145,216 parameters on the hub; blocks as its file lists them, in any order."""

    def block(heads, width):
        return {
            "attention": {"n_heads_in_group": heads, "no_op": heads is None},
            "ffn": {"ffn_mult": width, "no_op": False},
        }

    cut = {1.3125: 10, 1.0: 8, 0.5: 6, 2.625: 5, 3.28125: 1, 5.25: 1}
    blocks = (
        [block(8, 5.25)] * 48 + [block(8, 2.625)] + [block(None, width) for width, n in cut.items() for _ in range(n)]
    )
    keys = {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64, "vocab_size": 128256,
            "max_position_embeddings": 131072, "intermediate_size": None, "num_key_value_heads": None}  # fmt: skip
    spec = read(tmp_path, "nemotron-nas", keys | {"block_configs": blocks}).spec
    assert spec.n_parameters == 49_867_145_216
    assert spec.blocks.count("-") == 31
    assert [spec.specs_of_blocks[i].ffn_hidden for i in (0, 48, 49)] == [28672, 14336, 7168]
    linear = {"attention": {"replace_with_linear": True, "no_op": False}, "ffn": {"ffn_mult": 1.0, "no_op": False}}
    with pytest.raises(ConfigError, match="block_configs: a linear layer in place of attention or MLP is not modelled"):
        read(tmp_path, "nemotron-nas", keys | {"num_hidden_layers": 1, "block_configs": [linear]})


def test_the_first_ling(tmp_path):
    """Ling-lite-1.5: 16.8 billion parameters, 2.75 of them active (model card); its config.json's keys."""
    keys = {"hidden_size": 2048, "intermediate_size": 1408, "max_position_embeddings": 32768, "moe_intermediate_size": 1408,
            "num_experts": 64, "num_shared_experts": 2, "norm_topk_prob": True, "num_attention_heads": 16, "num_experts_per_tok": 6,
            "num_hidden_layers": 28, "num_key_value_heads": 4, "use_bias": False, "use_qkv_bias": False, "vocab_size": 126464,
            "first_k_dense_replace": 0, "norm_head": False, "norm_softmax": False, "output_dropout": 0.0}  # fmt: skip
    spec = read(tmp_path, "bailing_moe", keys).spec
    biased = read(tmp_path, "bailing_moe", keys | {"use_qkv_bias": True}).spec
    assert biased.n_parameters - spec.n_parameters == 28 * (16 + 2 * 4) * 128
    assert spec.n_parameters == pytest.approx(16.8e9, rel=1e-3)
    assert n_active_parameters(spec) == pytest.approx(2.75e9, rel=0.03)


def test_hunyuan_gives_counts_once_for_every_layer(tmp_path):
    """Hunyuan-A13B: 80.4 billion parameters, 13 of them active (model card)."""
    keys = {"hidden_size": 4096, "intermediate_size": 3072, "moe_intermediate_size": [3072] * 32, "num_hidden_layers": 32,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128167, "num_experts": 64,
            "moe_topk": [8] * 32, "num_shared_expert": [1] * 32, "use_mixed_mlp_moe": True, "use_qk_norm": True,
            "tie_word_embeddings": True}  # fmt: skip
    spec = read(tmp_path, "hunyuan_v1_moe", keys).spec
    assert spec.n_parameters == pytest.approx(80.4e9, rel=1e-3)
    assert n_active_parameters(spec) == pytest.approx(13e9, rel=0.05)
    without = read(tmp_path, "hunyuan_v1_moe", keys | {"use_mixed_mlp_moe": False}).spec
    assert spec.n_parameters - without.n_parameters == 32 * 3 * 4096 * 3072
    with pytest.raises(ConfigError, match=r"moe_topk: .* layers that differ are not modelled"):
        read(tmp_path, "hunyuan_v1_moe", keys | {"moe_topk": [8] * 31 + [1]})


def test_every_third_layer_of_modernbert_sees_all(tmp_path):
    """Warner et al., arXiv:2412.13663, section 2.1.2; transformers' ``ModernBertConfig`` begins with one that does."""
    spec = read(tmp_path, "modernbert", LLAMA_LIKE | {"num_hidden_layers": 4, "local_attention": 64}).spec
    assert (spec.blocks, spec.sliding_window) == (("*-", "w-", "w-", "*-"), 64)
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    spec = read(tmp_path, "modernbert", LLAMA_LIKE | {"num_hidden_layers": 4, "layer_types": kinds}).spec
    assert spec.blocks == ("*-", "w-", "*-", "w-")


@pytest.mark.parametrize("kinds", ["full_attention", ["full_attention", "full_attention", "chunked_attention"]])
@pytest.mark.parametrize("family", ["qwen3", "modernbert", "gemma3"])
def test_layers_of_another_kind_are_refused(tmp_path, family, kinds):
    with pytest.raises(ConfigError, match=r"layer_types: .* is not a list of"):
        read(tmp_path, family, GROUPED | {"layer_types": kinds})


def test_every_second_layer_of_gpt_neo_sees_a_window(tmp_path):
    spec = read(tmp_path, *COUNTS[2][:2]).spec
    assert spec.blocks == ("*-", "w-", "*-", "w-")


def test_the_first_qwen_counts_both_halves_of_its_mlp(tmp_path):
    """Qwen-7B: 7,721,324,544 parameters (Qwen/Qwen-7B on the hub: hidden 4096, intermediate 22016, 32 layers)."""
    keys = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 22016,
            "vocab_size": 151936, "kv_channels": 128, "seq_length": 8192, "no_bias": True, "tie_word_embeddings": False}  # fmt: skip
    assert read(tmp_path, "qwen", keys).spec.n_parameters == 7_721_324_544


def test_chatglm_with_its_own_words(tmp_path):
    """ChatGLM2-6B: 6,243,584,000 parameters (THUDM/chatglm2-6b on the hub)."""
    keys = {"num_layers": 28, "hidden_size": 4096, "num_attention_heads": 32, "ffn_hidden_size": 13696, "kv_channels": 128,
            "padded_vocab_size": 65024, "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True,
            "add_bias_linear": False, "rmsnorm": True, "seq_length": 32768}  # fmt: skip
    assert read(tmp_path, "chatglm", keys).spec.n_parameters == 6_243_584_000


def test_what_is_left_out_is_said(tmp_path):
    found = read(tmp_path, "yuan", GROUPED)
    assert any("convolutions" in text for text in found.report.unknown)
    old = read(
        tmp_path, "llava", GROUPED | {"mm_hidden_size": 1024, "mm_vision_tower": "x", "image_aspect_ratio": "pad"}
    )
    assert old.report.unknown == () and any("vision tower" in text for text in old.report.assumed)


def test_a_baichuan_that_may_have_alibi_is_not_guessed(tmp_path):
    with pytest.raises(ConfigError, match="max_position_embeddings: is missing"):
        read(tmp_path, "baichuan", LLAMA_LIKE | {"model_max_length": 4096})
    assert read(tmp_path, "baichuan", LLAMA_LIKE | {"max_position_embeddings": 4096}).spec.positions == "rotary"


def test_minimax_m3_names_its_sparse_attention(tmp_path):
    keys = GROUPED | {"dense_intermediate_size": 4096, "intermediate_size": 1024, "moe_intermediate_size": 1024,
                      "moe_layer_freq": [0, 1, 1], "num_local_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
                      "hidden_act": "swigluoai", "sparse_attention_config": {"sparse_block_size": 128}}  # fmt: skip
    found = read(tmp_path, "minimax_m3", keys)
    assert found.spec.blocks == ("*-", "*E", "*E")
    assert (found.spec.ffn_hidden, found.spec.expert_hidden, found.spec.shared_expert_hidden) == (4096, 1024, 1024)
    assert any(text.startswith("sparse_attention_config: not understood") for text in found.report.unknown)
