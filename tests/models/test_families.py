"""Families of 2024 to 2026: parameters as transformers counts them, and products that follow from the parameters."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.interop.hf_config import FAMILIES, import_hf_config
from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, find_spec, rename
from simulator.models.layer import AttentionShape, GemmShape
from simulator.models.setting import Setting
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan

#: catalogue name -> parameters that transformers 5.23 builds on the meta device from the published config.json
#: (``sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())``)
PUBLISHED = {
    "deepseek-v3": 671_026_404_352,
    "deepseek-v3.2": 671_877_929_216,
    "deepseek-v2-lite": 15_706_484_224,
    "kimi-k2": 1_026_408_209_408,
    "deepseek-v4-flash": 284_332_230_231,
    "deepseek-v2": 235_741_434_880,
    "glm-5": 743_911_199_232,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "minimax-m2": 228_689_748_992,
    "llama4-scout": 107_769_861_120,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-3-nano": 31_577_937_344,
    "nemotron-3-super": 120_668_687_360,
    "nemotron-3-ultra": 549_308_968_960,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_transformers(name):
    assert CATALOG[name].n_parameters == PUBLISHED[name]


def test_active_parameters_are_those_in_the_models_names():
    """Billions of active parameters that the publishers state: 3 of Nano, 12 of Super, 55 of Ultra, 17 of Llama 4, 37 of V3."""
    for name, billions in (
        ("nemotron-3-super", 12),
        ("nemotron-3-ultra", 55),
        ("llama4-scout", 17),
        ("deepseek-v3", 37),
    ):
        assert CATALOG[name].n_active_parameters / 1e9 == pytest.approx(billions, rel=0.08)


def small(name, **changes):
    spec = CATALOG[name]
    cut = {"layers": 4} if len(spec.blocks) > 4 else {}
    return rename(spec, "x", **cut, **changes)


def matrix_elements(spec):
    """Elements of the matrices that one token meets, from the names of the tensors alone."""
    total = 0.0
    for tensor in spec.parameters:
        skipped = (
            "norm",
            "bias",
            "positions",
            "embedding.weight",
            "sinks",
            "A_log",
            "mamba.D",
            "conv",
            "relative",
            "types",
            "pooler",
        )
        if any(word in tensor.name for word in skipped):
            continue
        total += tensor.n_elements * (spec.top_k / spec.n_experts if tensor.is_expert else 1.0)
    return total + (spec.vocab * spec.hidden if spec.tied else 0)


@pytest.mark.parametrize("name", [*PUBLISHED, "llama3-8b", "mixtral-8x7b", "grok1-314b", "nemotron-22b", "gpt3-5b"])
@pytest.mark.parametrize("kernels", ["fused", "hf-eager"])
def test_products_are_two_for_every_matrix_element_a_token_meets(name, kernels):
    # three sequences: so every expert has a whole number of rows
    spec = small(name)
    model = build_model(spec, Setting(micro_batch=3, sequence_length=1024, kernels=kernels))
    products = [
        item
        for layer in model.layers
        for item in layer.forward
        if isinstance(item, GemmShape) and item.name != "index_scores"
    ]
    assert sum(item.n_flops for item in products) == pytest.approx(2.0 * 3 * 1024 * matrix_elements(spec), rel=2e-3)


def test_a_window_and_chunks_leave_out_scores():
    spec = CATALOG["gpt-oss-20b"]
    model = build_model(small("gpt-oss-20b"), Setting(micro_batch=1, sequence_length=4096, kernels="fused"))
    attention = [item for layer in model.layers for item in layer.forward if type(item).__name__ == "AttentionShape"]
    assert [item.window for item in attention] == [128, 0, 128, 0]
    assert spec.blocks[:4] == ("wE", "*E", "wE", "*E")
    chunked = build_model(small("llama4-scout"), Setting(micro_batch=1, sequence_length=32768, kernels="fused"))
    attention = [item for layer in chunked.layers for item in layer.forward if type(item).__name__ == "AttentionShape"]
    assert [(item.batch, item.seq_q) for item in attention] == [(4, 8192)] * 3 + [(1, 32768)]


def test_attention_stays_within_packed_documents():
    """Sixteen documents of 256 tokens have a sixteenth of the scores of one of 4,096; as many rows are read and written."""
    shapes = []
    for length in (0, 256, 5000):
        setting = Setting(micro_batch=2, sequence_length=4096, document_length=length, kernels="fused")
        layers = build_model(small("llama2-7b"), setting).layers
        shapes.append(next(i for layer in layers for i in layer.forward if type(i).__name__ == "AttentionShape"))
    whole, packed, longer = shapes
    assert (packed.batch, packed.seq_q, packed.seq_k) == (32, 256, 256)
    assert packed.n_flops == whole.n_flops / 16 and packed.n_bytes == whole.n_bytes
    assert longer == whole


@pytest.mark.parametrize("modules", [(), ("attention",)])
def test_documents_that_do_not_fill_a_sequence_lose_no_token(modules):
    """4,096 tokens hold 21 documents of 190 and a rest; the projection behind attention multiplies all of them."""
    setting = Setting(
        micro_batch=2,
        sequence_length=4096,
        document_length=190,
        kernels="fused",
        precision="fp8",
        narrow_modules=modules,
    )
    layers = build_model(small("llama2-7b"), setting).layers
    found = {i.name: i.m for i in layers[1].forward if type(i).__name__ == "GemmShape"}
    assert found["qkv"] == found["attention_output"] == found["mlp_down"] == 2 * 4096


@given(st.lists(st.integers(64, 1024), min_size=2, max_size=40))
def test_documents_of_several_lengths_cost_the_sum_of_their_squares(lengths):
    """Mean and spread are enough: tokens times the attended length is the sum of the squares."""
    mean = sum(lengths) / len(lengths)
    spread = (sum((n - mean) ** 2 for n in lengths) / len(lengths)) ** 0.5 / mean
    plan = ParallelPlan(document_length=round(mean), document_spread=spread)
    assert sum(lengths) * plan.attended_length == pytest.approx(sum(n * n for n in lengths), rel=0.02)


def test_prediction_modules_cost_a_block_a_head_and_a_projection():
    spec = small("deepseek-v3", dense_layers=0)
    with_module = rename(spec, "y", mtp_layers=1)
    plain, more = (
        build_model(s, Setting(micro_batch=1, sequence_length=512, kernels="fused")) for s in (spec, with_module)
    )
    extra = more.model_flops_per_sequence - plain.model_flops_per_sequence
    block = (
        plain.model_flops_per_sequence
        - build_model(
            rename(spec, "z", layers=3), Setting(micro_batch=1, sequence_length=512, kernels="fused")
        ).model_flops_per_sequence
    )
    head_and_projection = 3 * 512 * 2 * (spec.hidden * spec.vocab + 2 * spec.hidden**2)
    assert extra == pytest.approx(block + head_and_projection)
    assert with_module.n_parameters == spec.n_parameters, "published counts leave the modules out"


def test_models_are_cut_by_name():
    assert find_spec("llama4-scout-2layers").blocks == ("cE", "cE")
    assert find_spec("nemotron-3-nano-7layers").blocks == tuple("MEMEM*E")


@pytest.mark.parametrize(
    "family", ["gpt_oss", "nemotron_h", "qwen3_next", "deepseek_v32", "glm4_moe", "minimax_m2", "llama4"]
)
def test_families_are_known(family):
    assert family in FAMILIES


def test_a_pattern_must_fit_its_layers(tmp_path):
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "M*-", "num_hidden_layers": 4, "hidden_size": 64,
              "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(Exception, match="num_hidden_layers: 4 beside a pattern of 3"):
        import_hf_config(path)
    path.write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert isinstance(import_hf_config(path).spec, ModelSpec)


def test_only_blocks_with_an_index_fetch_keys_for_each_query():
    """At 4,096 tokens a query has chosen 512 of its t / 4 compressed keys: 384 at the mean, beside 128 of a window."""
    setting = Setting(micro_batch=1, sequence_length=4096, precision="bf16", kernels="fused")
    shapes = {
        (kernel.window, kernel.gathered)
        for layer in build_model(find_spec("deepseek-v4-flash"), setting).layers
        for kernel in layer.forward
        if isinstance(kernel, AttentionShape)
    }
    assert shapes == {(128, 0), (128 + 384, 384), (128 + 16, 0)}
