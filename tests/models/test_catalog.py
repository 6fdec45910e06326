from __future__ import annotations

import pytest

from simulator.errors import ConfigError
from simulator.models.catalog import ALIASES, CATALOG, find_spec
from simulator.models.spec import ModelSpec

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
    assert find_spec("mixtral-8x7b").n_active_parameters / 1e9 == pytest.approx(12.9, abs=0.05)
    assert find_spec("gpt2").n_active_parameters == find_spec("gpt2").n_parameters


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
