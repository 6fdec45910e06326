"""Modules that plans name: what recomputing them drops, by hand from the shapes, and what a CUDA graph of them launches."""

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.layer import AttentionShape, CommunicationPoint
from simulator.models.setting import RankSetting
from simulator.models.transformer import graph_scopes, recomputable
from simulator.plan.module_names import GRAPH_SCOPES, RECOMPUTE_MODULES

DEEPSEEK = find_spec("deepseek-v3")
TOKENS, HIDDEN, HEADS = 4096, 7168, 128
MIB = 2**20


def layers(spec=DEEPSEEK, sequence_length=TOKENS, **settings):
    model = build_model(spec, RankSetting(micro_batch=1, sequence_length=sequence_length, kernels="fused", **settings))
    return {layer.name: layer for layer in model.layers}


def dropped(name, *modules, **settings):
    plain = layers(**settings)[name]
    chosen = layers(**settings, recompute="selective", recompute_modules=modules)[name]
    return plain.saved_bytes - chosen.saved_bytes, chosen


def test_up_projections_are_made_again_from_the_latents():
    """Queries and keys of 128 + 64, keys and values of 128 + 128 as projected, both norms' outputs and their statistics."""
    kept, layer = dropped("moe_block", "mla_up_proj")
    per_token = 2 * (HEADS * (192 + 192 + 256) + 1536 + 512) + 2 * 4
    assert kept == TOKENS * per_token
    names = [item.name for item in layer.recompute]
    assert names.count("q_up") == names.count("kv_up") == 1 and "attention_output" not in names


def test_megatrons_softmax_masks_in_the_same_kernel():
    """megatron/fused_kernels, ``scaled_upper_triang_masked_softmax``: one kernel in 16 bits instead of mask, casts and softmax."""
    model = build_model(
        find_spec("llama2-7b"),
        RankSetting(micro_batch=1, sequence_length=4096, kernels="torch-modules", attention="fused_softmax"),
    )
    names = [item.name for item in model.layers[1].forward]
    first, second = names.index("bmm_qk"), names.index("bmm_pv")
    assert names[first + 1 : second] == ["mul", "softmax"]
    softmax = model.layers[1].forward[second - 1]
    assert softmax.read_bytes == softmax.written_bytes == 2 * 32 * 4096**2


@pytest.mark.parametrize("name", ["block", "moe_block"])
def test_norms_drop_their_outputs(name):
    """Two norms of a block: outputs in bf16 and four bytes of statistics a token."""
    assert dropped(name, "layernorm")[0] == 2 * TOKENS * (2 * HIDDEN + 4)


def test_the_activation_of_experts_drops_its_output():
    """Eight routed copies of a token, 2,048 wide."""
    assert dropped("moe_block", "moe_act")[0] == 2 * TOKENS * 8 * 2048
    assert dropped("block", "moe_act")[0] == 0


def test_original_inputs_are_kept_or_dropped_where_eight_bits_would_be_saved():
    """Megatron-Core's ``save_original_input``: what is rebuilt in 16 bits is not saved in 8 either."""
    kept, _ = dropped("moe_block", "moe_act", precision="fp8")
    assert kept == TOKENS * 8 * 2048


def test_modules_that_keep_what_they_return():
    """The dense MLP drops gate and up (18,432 wide each) and their product; shared experts theirs of 2,048."""
    assert dropped("block", "mlp")[0] == 2 * TOKENS * 3 * 18432
    assert dropped("moe_block", "shared_experts")[0] == 2 * TOKENS * 3 * 2048


def test_a_module_inside_another_is_recomputed_once():
    both, layer = dropped("moe_block", "moe", "moe_act")
    alone, whole = dropped("moe_block", "moe")
    assert both == alone and layer.recompute == whole.recompute
    assert sum(isinstance(item, CommunicationPoint) for item in layers(ep=8, recompute="selective", recompute_modules=("moe",))[
        "moe_block"].recompute) >= 2  # fmt: skip


def test_core_attention_is_the_default():
    assert dropped("block")[1] == dropped("block", "core_attn")[1]


@pytest.mark.parametrize("precision", ["bf16", "fp8_current", "mxfp8"])
def test_sequence_parallelism_divides_all_that_is_saved(precision):
    """Korthikanti et al., arXiv:2205.05198, equation 4: with sequence parallelism every activation is a share of 1 / t."""
    llama = find_spec("llama3-70b")
    whole = layers(llama, 8192, precision=precision)["block"].saved_bytes
    share = layers(llama, 8192, precision=precision, tp=4, sequence_parallel=True)["block"].saved_bytes
    assert 4 * share == whole


def captured(name, *modules, **settings):
    layer = layers(captured_modules=modules, **settings)[name]
    kernels = [item for item in (*layer.forward, *layer.backward) if not isinstance(item, CommunicationPoint)]
    return [item for item in kernels if item.is_captured], kernels


@pytest.mark.parametrize(
    "model", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "nemotron-h-56b", "falcon-h1-7b", "gpt-neox-20b", "t5-large"]
)
def test_graphs_are_of_the_modules_that_a_model_has(model):
    """Each scope by itself: a graph launches something where the model is said to have the module, and nothing elsewhere."""
    spec = find_spec(model)
    for scope in (name for name in GRAPH_SCOPES if name not in ("none", "full_iteration")):
        setting = RankSetting(micro_batch=1, sequence_length=512, kernels="fused", captured_modules=(scope,))
        items = [item for layer in build_model(spec, setting).layers for item in (*layer.forward, *layer.backward)]
        assert any(getattr(item, "is_captured", False) for item in items) == (scope in graph_scopes(spec)), scope


@pytest.mark.parametrize(
    "model", ["llama3-8b", "qwen3-30b-a3b", "deepseek-v3", "qwen3-next-80b-a3b", "nemotron-h-56b", "falcon-h1-7b", "t5-large"]
)  # fmt: skip
def test_modules_are_recomputed_that_a_model_has(model):
    """Each by itself: a block is another than without recomputation where the model is said to have the module, and nowhere else."""
    spec = find_spec(model)
    for module in RECOMPUTE_MODULES:
        plain, again = (
            build_model(spec, RankSetting(micro_batch=1, sequence_length=512, kernels="fused", attention="eager", **told)).layers
            for told in ({}, {"recompute": "selective", "recompute_modules": (module,)})
        )  # fmt: skip
        assert (plain != again) == (module in recomputable(spec)), module


def test_scopes_capture_their_modules_in_both_passes():
    graph, kernels = captured("moe_block", "attn")
    assert {item.name for item in graph if isinstance(item, AttentionShape)} == {"flash_attention"}
    assert {item.kernel_pass for item in graph} >= {"forward", "backward", "dgrad", "wgrad"}
    assert not any(item.name in ("grouped_gemm", "router", "permute") for item in graph)
    router, _ = captured("moe_block", "moe_router")
    assert {"router", "topk"} <= {item.name for item in router} and "grouped_gemm" not in {item.name for item in router}
    whole, kernels = captured("block", "attn", "mlp")
    assert whole == kernels
    assert not captured("block")[0]
