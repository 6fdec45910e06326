"""Parameters of small configurations, counted by transformers 5.23 on the meta device; keys as their authors write them."""

import json

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_any

LLAMA_LIKE = {
    "hidden_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 1000,
}
GROUPED = LLAMA_LIKE | {"num_key_value_heads": 2}
GPTJ = {"n_embd": 512, "n_layer": 3, "n_head": 8, "n_positions": 256, "rotary_dim": 32, "vocab_size": 1000}

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
]  # fmt: skip


def read(tmp_path, family, keys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": family, **keys}))
    return import_any(path, "hf-config")


@pytest.mark.parametrize(("family", "keys", "count"), COUNTS, ids=[family for family, _, _ in COUNTS])
def test_parameters_as_transformers_counts_them(tmp_path, family, keys, count):
    found = read(tmp_path, family, keys)
    assert found.spec.n_parameters == count
    assert found.report.unknown == ()


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
