"""Precisions: which products a recipe narrows, and what its casts move, from the published formats."""

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, rename
from simulator.models.layer import GemmShape, PointwiseShape
from simulator.plan import PRECISIONS, ParallelPlan

QUANTISED = [name for name, precision in PRECISIONS.items() if precision.quantisation]

#: bytes of 32 elements with their scales: one of 32 bits per 128 (DeepSeek-V3), 8 bits per 32 (MX), 8 per 16 (NVFP4)
BYTES_OF_32 = {"fp8": 32, "fp8_current": 32, "fp8_block": 33, "mxfp8": 33, "nvfp4": 18}


def kernels(model, kind):
    items = [item for layer in model.layers for item in (*layer.forward, *layer.backward)]
    return [item for item in items if isinstance(item, kind)]


def built(name, precision, kernels="fused"):
    spec = rename(CATALOG[name], "x", layers=2, **({"dense_layers": 0} if name == "deepseek-v3" else {}))
    return build_model(spec, micro_batch=1, sequence_length=1024, precision=precision, kernels=kernels)


@pytest.mark.parametrize("precision", QUANTISED)
@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "deepseek-v3"])
def test_blocks_are_narrow_and_head_and_router_are_not(name, precision):
    """Megatron-Core's output layer and router are no Transformer Engine modules; torchtitan filters the output."""
    wide = {
        item.name
        for item in kernels(built(name, precision), GemmShape)
        if item.dtype == "bf16" and item.kernel_pass != "wgrad"
    }
    assert wide == {"logits"} | ({"router"} if CATALOG[name].n_experts else set())


def test_rowwise_can_keep_the_weight_gradient_in_16_bits():
    """torchao's ``rowwise_with_gw_hp``: the gradient of the weight in high precision."""
    wgrads = [
        item for item in kernels(built("llama3-8b", "fp8_rowwise_gw_hp"), GemmShape) if item.kernel_pass == "wgrad"
    ]
    assert {item.dtype for item in wgrads} == {"bf16"}


@pytest.mark.parametrize("precision", BYTES_OF_32)
def test_casts_write_both_directions(precision):
    casts = [
        item for item in kernels(built("llama3-8b", precision), PointwiseShape) if item.name.startswith("quantize")
    ]
    assert casts
    for cast in casts:
        assert cast.written_bytes == pytest.approx(2 * cast.n_elements * BYTES_OF_32[precision] / 32)
        assert cast.read_bytes == cast.n_elements * 2 * (2 if precision in ("fp8_current", "nvfp4") else 1)


def test_activations_of_narrow_products_are_saved_narrow():
    wide, narrow = (built("llama3-8b", name).layers[1].saved_bytes for name in ("bf16", "mxfp8"))
    assert narrow < wide


@pytest.mark.parametrize(("written", "meant"), [("fp8_cs", "fp8_current"), ("fp8_ds", "fp8"), ("bfloat16", "bf16")])
def test_other_spellings(written, meant):
    from simulator.plan import SETTINGS

    assert SETTINGS["precision"].parse(written) == meant


def test_what_is_stored():
    assert ParallelPlan(precision="nvfp4").precision_spec.is_16_bit, "masters are kept beside 16-bit weights"
    assert PRECISIONS["amp_bf16"].is_autocast and not PRECISIONS["tf32"].is_autocast


def test_gradients_are_added_to_sums_in_the_epilogue():
    """Megatron-Core's gradient_accumulation_fusion reads and writes the sum: 8 bytes an element in fp32, 4 in 16 bits."""
    spec = rename(CATALOG["llama3-8b"], "x", layers=2)
    for gradient_bytes, traffic in ((4, 8.0), (2, 4.0)):
        model = build_model(spec, micro_batch=1, sequence_length=1024, kernels="fused", gradient_bytes=gradient_bytes)
        wgrads = [item for item in kernels(model, GemmShape) if item.kernel_pass == "wgrad"]
        assert {item.result_bytes for item in wgrads} == {traffic}
    unfused = build_model(spec, micro_batch=1, sequence_length=1024, kernels="megatron")
    assert {item.result_bytes for item in kernels(unfused, GemmShape) if item.kernel_pass == "wgrad"} == {2}


def test_products_of_eight_bits_write_sixteen():
    shape = GemmShape(m=100, n=10, k=20, dtype="fp8")
    assert shape.n_bytes == 100 * 20 + 20 * 10 + 2 * 100 * 10


def test_recipes_turn_settings_on_where_nothing_is_said():
    plan = ParallelPlan.of({"framework": "megatron-bridge", "tp": 4})
    assert (plan.sharding, plan.sequence_parallel, plan.asynchronous_tp, plan.overlap) == ("zero1", True, True, True)
    plan = ParallelPlan.of({"framework": "megatron-bridge", "sharding": "none", "overlap": False})
    assert (plan.sharding, plan.sequence_parallel, plan.overlap) == ("none", False, False)
