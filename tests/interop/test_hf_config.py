from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.interop import import_any, load_model
from simulator.interop.models.hf_config import import_hf_config
from simulator.interop.typed_values import words
from simulator.models.catalog import find_spec

GPT2 = {"model_type": "gpt2", "n_embd": 1280, "n_layer": 36, "n_head": 20, "n_ctx": 1024, "vocab_size": 50257}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
QWEN2 = LLAMA | {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "use_sliding_window": False,
    "sliding_window": 131072,
}
QWEN3 = LLAMA | {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "intermediate_size": 12288,
    "vocab_size": 151936,
}
BERT = {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}
BERT |= {"intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2}
T5 = {"model_type": "t5", "d_model": 512, "num_layers": 6, "num_heads": 8, "d_kv": 64, "d_ff": 2048}
T5 |= {"vocab_size": 32128, "num_decoder_layers": None, "relative_attention_num_buckets": 32}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
QWEN3_MOE = LLAMA | {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 129280,
}
MPT = {"model_type": "mpt", "d_model": 4096, "n_layers": 32, "n_heads": 32, "vocab_size": 50432}
MPT |= {"attn_config": {"alibi": True, "attn_impl": "torch"}, "no_bias": True}

CONFIGS = {
    "gpt2-large": (GPT2, 774_030_080),
    "llama3-8b": (LLAMA, 8_030_261_248),
    "qwen2-7b": (QWEN2, 7_615_616_512),
    "qwen3-8b": (QWEN3, 8_190_735_360),
    "bert-large": (BERT, 335_141_888),
    "t5-small": (T5, 60_506_624),
    "mixtral-8x7b": (MIXTRAL, 46_702_792_704),
    "qwen3-30b-a3b": (QWEN3_MOE, 30_532_122_624),
    "deepseek-v3": (DEEPSEEK, 671_026_404_352),
}


@pytest.fixture
def write(tmp_path):
    def _write(data, name="config.json"):
        path = tmp_path / name
        path.write_text(data if isinstance(data, str) else json.dumps(data, indent=2))
        return path

    return _write


@pytest.mark.parametrize("name", CONFIGS)
def test_published_parameter_counts(write, name):
    config, n_parameters = CONFIGS[name]
    imported = import_hf_config(write(config))
    assert imported.spec is not None and imported.spec.n_parameters == n_parameters
    assert imported.report.unknown == ()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_the_catalogue_model_of_its_name(write, name):
    spec, known = load_model(str(write(CONFIGS[name][0]))), find_spec(name)
    names = (
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "expert_hidden",
        "gated_mlp",
        "tied",
        "positions",
        "norm",
    )
    assert {n: getattr(spec, n) for n in names} == {n: getattr(known, n) for n in names}


def test_mpt_and_others(write):
    assert import_hf_config(write(MPT)).spec.positions == "alibi"
    opt = {
        "model_type": "opt",
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "ffn_dim": 8192,
    }
    assert import_hf_config(write(opt)).spec.n_parameters == 1_315_758_080
    bloom = {"model_type": "bloom", "hidden_size": 14336, "n_layer": 70, "num_attention_heads": 112}
    assert import_hf_config(write(bloom)).spec.n_parameters == 176_247_271_424


def test_a_folder_and_a_name(write, tmp_path):
    write(GPT2)
    assert load_model(str(tmp_path)).n_parameters == load_model("gpt2-large").n_parameters


def test_text_config_is_taken_and_said(write):
    imported = import_hf_config(write({"model_type": "llava", "vision_config": {}, "text_config": LLAMA}))
    assert imported.spec.n_parameters == 8_030_261_248
    assert any("text_config" in line for line in imported.report.assumed)
    assert "vision_config" in imported.report.irrelevant


@pytest.mark.parametrize(
    "key",
    words(
        "num_local_experts num_experts n_routed_experts moe_num_experts moe_intermediate_size shared_expert_intermediate_size kv_lora_rank "
        "q_lora_rank qk_rope_head_dim mamba_d_state mamba_n_heads ssm_state_size linear_num_key_heads index_topk attention_chunk_size"
    ),
)
def test_sizes_of_parts_that_a_family_does_not_have_are_refused(write, key):
    """A Llama whose file has experts, latent attention or a state is none that transformers' class would build."""
    with pytest.raises(ConfigError, match=rf"{key}: 8 .*is not modelled for this family"):
        import_hf_config(write(LLAMA | {key: 8}))
    for plain in (None, 0, 1, False):
        assert import_hf_config(write(LLAMA | {key: plain})).spec.n_experts == 0


@pytest.mark.parametrize(
    ("key", "plain", "other"), [("num_key_value_heads", 12, 1), ("head_dim", 64, 128), ("sliding_window", 1024, 256)]
)
def test_sizes_of_a_plain_model_stay_accepted(write, key, plain, other):
    """GPT-2 reads none of them: 768 by 12 heads, which are those of keys and values, and 1024 positions."""
    gpt2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 2, "n_head": 12}
    assert import_hf_config(write(gpt2 | {key: plain})).spec == import_hf_config(write(gpt2)).spec
    with pytest.raises(ConfigError, match=f"{key}: {other} "):
        import_hf_config(write(gpt2 | {key: other}))


def test_unknown_keys_are_told_with_their_neighbour(write):
    report = import_hf_config(write(LLAMA | {"num_key_value_head": 8})).report
    assert report.unknown == ("num_key_value_head (did you mean 'num_key_value_heads'?)",)
    assert {"rope_theta", "torch_dtype"} <= set(report.irrelevant)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model_type": "lama"}, "config.json:2:17: model_type: 'lama' is not known(.|\n)*'llama'"),
        ({"hidden_size": "wide"}, "config.json:3:18: hidden_size: 'wide' is not a whole number"),
        ({"num_attention_heads": 0}, "num_attention_heads: 0 is not above zero"),
        ({"head_dim": -64}, "head_dim: -64 is not above zero"),
        ({"sliding_window": -5}, "sliding_window: -5 is not above zero"),
        ({"hidden_act": "tanh"}, "hidden_act: 'tanh' is not supported"),
        ({"num_attention_heads": 7, "num_key_value_heads": None}, "not a multiple of heads=7"),
    ],
)
def test_faults_name_file_line_and_key(write, change, text):
    with pytest.raises(ConfigError, match=text):
        import_hf_config(write(LLAMA | change))


def test_a_missing_size_names_what_is_there_instead(write):
    config = {k: v for k, v in LLAMA.items() if k != "num_hidden_layers"} | {"num_hidden_layer": 32}
    with pytest.raises(ConfigError, match=r"'num_hidden_layers' is missing(.|\n)*'num_hidden_layer'"):
        import_hf_config(write(config))


def test_no_such_file():
    with pytest.raises(ConfigError, match=r"no file 'nowhere/config.json'"):
        load_model("nowhere/config.json")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    family=st.sampled_from([config for config, _ in CONFIGS.values()]),
    key=st.integers(0, 30),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
        max_leaves=3,
    ),
)
def test_damage_is_an_error_of_ours_or_a_model(write, family, key, value):
    names = list(family)
    damaged = family | {names[key % len(names)]: value}
    try:
        spec = import_hf_config(write(damaged)).spec
    except ConfigError:
        return
    assert spec.layers > 0


#: what transformers 5 counts of a module built from the same keys
RELATIVES = {
    "roberta": (BERT | {"model_type": "roberta", "max_position_embeddings": 514}, 335_143_936),
    "mt5": (T5 | {"model_type": "mt5", "vocab_size": 250112, "num_layers": 8, "d_ff": 1024, "num_heads": 6,
                  "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, 300_176_768),
    "gemma": ({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
               "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 256000}, 8_537_680_896),
    "phi3": ({"model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
              "num_attention_heads": 32, "vocab_size": 32064}, 3_821_079_552),
    "starcoder2": ({"model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
                    "num_hidden_layers": 30, "num_attention_heads": 24}, 3_030_371_328),
    "gpt_bigcode": (GPT2 | {"model_type": "gpt_bigcode", "n_embd": 768, "n_layer": 12, "n_head": 12}, 111_446_784),
}  # fmt: skip


@pytest.mark.parametrize("family", RELATIVES)
def test_relatives_of_the_families(family, write):
    config, n_parameters = RELATIVES[family]
    imported = import_hf_config(write(config))
    assert imported.spec.n_parameters == n_parameters
    assert not imported.report.unknown


def test_sliding_windows(write):
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 4096}
    assert import_hf_config(write(mistral)).spec.sliding_window == 4096
    assert import_hf_config(write(QWEN2)).spec.sliding_window == 0
    kinds = ["full_attention", "sliding_attention"] * 14
    mixed = import_hf_config(write(QWEN2 | {"use_sliding_window": True, "layer_types": kinds})).spec
    assert mixed.sliding_window == 131072 and mixed.full_attention_blocks == tuple(range(0, 28, 2))
    with pytest.raises(ConfigError, match="layer_types") as error:
        import_hf_config(write(LLAMA | {"layer_types": ["linear_attention"]}))
    assert "--module" in error.value.hint
    with pytest.raises(ConfigError, match="layer_types: 2 kinds for 28 layers"):
        import_hf_config(write(QWEN2 | {"layer_types": kinds[:2]}))


def test_opt_without_biases_and_weights_of_norms(write):
    """Products and embeddings are left; two positions are for padding."""
    sizes = {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "ffn_dim": 3072,
        "vocab_size": 50272,
    }
    bare = {
        "model_type": "opt",
        "max_position_embeddings": 2048,
        "enable_bias": False,
        "layer_norm_elementwise_affine": False,
    }
    found = import_hf_config(write(sizes | bare)).spec
    assert found.n_parameters == (50272 + 2050) * 768 + 12 * (4 * 768**2 + 2 * 768 * 3072)


def test_a_pattern_of_no_layers(write):
    with pytest.raises(ConfigError, match="sliding_window_pattern: 0 is not above zero"):
        import_hf_config(write(LLAMA | {"model_type": "gemma2", "sliding_window_pattern": 0}))


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 3}, (0, 1, 2)),
        (QWEN2 | {"use_sliding_window": None, "max_window_layers": 3}, None),
        (QWEN2 | {"use_sliding_window": True, "max_window_layers": 28}, None),
        (
            LLAMA
            | {"model_type": "cohere2", "sliding_window": 64, "num_hidden_layers": 9, "sliding_window_pattern": 3},
            (2, 5, 8),
        ),
        (LLAMA | {"model_type": "cohere2", "sliding_window": 64, "num_hidden_layers": 9}, (3, 7)),
        (LLAMA | {"model_type": "olmo3", "sliding_window": 64, "num_hidden_layers": 9}, (3, 7)),
    ],
    ids=["qwen-from-3", "qwen-not-asked", "qwen-none-left", "cohere2-by-3", "cohere2", "olmo3"],
)
def test_layers_that_see_all_where_no_list_says_so(write, config, whole):
    """As transformers 5.23 fills ``layer_types`` in (configuration_qwen2.py, configuration_cohere2.py, configuration_olmo3.py)."""
    spec = import_hf_config(write({key: value for key, value in config.items() if value is not None})).spec
    assert bool(spec.sliding_window) is (whole is not None)
    assert spec.full_attention_blocks == (whole or ())


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("bamba", {"attn_layer_indices": "3"}),
        ("lfm2", {"full_attn_idxs": 5}),
        ("kimi_linear", {"linear_attn_config": {"kda_layers": 5}}),
        ("llama4_text", {"moe_layers": [{}]}),
    ],
)
def test_lists_of_layers_that_are_none_are_refused(write, kind, own):
    with pytest.raises(ConfigError, match="is not a list of layers by their numbers"):
        import_hf_config(
            write(
                LLAMA
                | {"model_type": kind, "num_local_experts": 8, "num_experts": 8, "moe_intermediate_size": 64}
                | own
            )
        )


@pytest.mark.parametrize("kind", ["youtu", "minicpm3"])
def test_heads_that_are_not_tied_are_counted(write, kind):
    sizes = {"q_lora_rank": 96, "kv_lora_rank": 64, "qk_nope_head_dim": 48, "qk_rope_head_dim": 16, "v_head_dim": 64}
    tied, apart = (
        import_hf_config(write(LLAMA | sizes | {"model_type": kind, "tie_word_embeddings": one})).spec
        for one in (True, False)
    )
    assert apart.n_parameters - tied.n_parameters == LLAMA["vocab_size"] * LLAMA["hidden_size"]


@pytest.mark.parametrize("kind", [[[]], {}, 3, None])
def test_a_kind_of_model_that_is_no_word_is_refused(tmp_path, kind):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind, "text_config": {"model_type": "llama", "hidden_size": 64}}))
    with pytest.raises(ConfigError, match=r"config\.json"):
        import_any(path, "hf-config")
