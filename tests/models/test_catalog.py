from __future__ import annotations

import pytest

from simulator.errors import ConfigError
from simulator.models.catalog import ALIASES, CATALOG, find_spec
from simulator.models.spec import ModelSpec
from tests.models.active import n_active_parameters

# Published totals (checkpoints on the Hugging Face hub; DeepSeek without the router's correction buffer).
PUBLISHED = {
    "gpt2": 124_439_808,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "t5-small": 60_506_624,
    "llama2-7b": 6_738_415_616,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "qwen2-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v3": 671_026_404_352,
}
#: what the weights on the hub hold, of DeepSeek, Moonlight and Ling without the biases of routers, and of Gemma 3 without its tower
PUBLISHED |= {
    "phi-4": 14_659_507_200,
    "phi-3-mini": 3_821_079_552,
    "phi-2": 2_779_683_840,
    "gemma-2b": 2_506_172_416,
    "gemma-7b": 8_537_680_896,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-270m": 268_098_176,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
    "qwen2.5-3b": 3_085_938_688,
    "mistral-nemo": 12_247_782_400,
    "mistral-small-24b": 23_572_403_200,
    "falcon3-7b": 7_455_550_464,
    "starcoder2-3b": 3_030_371_328,
    "starcoder2-7b": 7_173_923_840,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "glm-4-9b": 9_399_951_360,
    "baichuan2-7b": 7_505_973_248,
    "seed-oss-36b": 36_151_104_512,
    "command-r7b": 8_028_033_024,
    "smollm3-3b": 3_075_098_624,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "olmoe-1b-7b": 6_919_161_856,
    "moonlight-16b-a3b": 15_960_108_544,
    "ling-mini-2.0": 16_255_638_528,
    "ernie-4.5-21b-a3b": 21_825_437_888,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-6.9b": 6_857_302_016,
    "pythia-12b": 11_846_072_320,
    "falcon-7b": 6_921_720_704,
    "bart-base": 139_420_416,
    "bart-large": 406_291_456,
    "minimax-text-01": 456_089_655_296,
    "deepseek-v4-pro": 1_572_997_179_491,
    "qwen3-coder-480b-a35b": 480_154_875_392,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_count_is_the_published_one(name):
    assert find_spec(name).n_parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    "name", [n for n in CATALOG if n.startswith("gpt-") and n[4].isdigit() and "." in n and n >= "gpt-1.7b"]
)
def test_megatron_names_tell_the_size(name):
    billions = float(name.removeprefix("gpt-").removesuffix("b"))
    assert CATALOG[name].n_parameters / 1e9 == pytest.approx(billions, rel=0.06)


def test_the_largest_of_table_1_has_1008_billion():
    assert find_spec("gpt-1008b").n_parameters / 1e9 == pytest.approx(1008.0, rel=1e-3)


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("GPT2_Large", "gpt2-large"),
        ("meta-llama/Llama-2-7b-hf", "llama2-7b"),
        ("meta-llama/Llama-3.1-70B", "llama3-70b"),
        ("3.6b", "gpt-3.6b"),
        ("gpt3.6b", "gpt-3.6b"),
        ("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b"),
        ("zai-org/GLM-4.7", "glm-4.5"),
        ("Qwen/QwQ-32B", "qwen2.5-32b"),
    ],
)
def test_other_spellings(spelling, name):
    assert find_spec(spelling).name == name


def test_aliases_point_to_models():
    assert set(ALIASES.values()) <= set(CATALOG)


def test_unknown_name_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown model 'gpt2-larg'(.|\n)*'gpt2-large'"):
        find_spec("gpt2-larg")


def test_active_parameters_of_a_mixture():
    assert n_active_parameters(find_spec("mixtral-8x7b")) / 1e9 == pytest.approx(12.9, abs=0.05)
    assert n_active_parameters(find_spec("gpt2")) == find_spec("gpt2").n_parameters


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": 7},
        {"layers": 0},
        {"kv_heads": 5},
        {"n_experts": 4, "top_k": 5},
        {"of_blocks": (("kv_heads", (4,)),)},
        {"of_blocks": (("kv_head", (4, 4)),)},
        {"of_blocks": (("kv_heads", (4, 3)),)},
        {"of_blocks": (("n_experts", (4, 1)),), "n_experts": 4, "top_k": 2},
    ],
)
def test_impossible_sizes(wrong):
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100, "max_positions": 32} | wrong
    with pytest.raises(ConfigError):
        ModelSpec(name="x", architecture="gpt", **sizes)
