"""Precisions: which products a recipe narrows, and what its casts move, from the published formats."""

from dataclasses import replace

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, rename
from simulator.models.layer import AttentionShape, CommunicationPoint, GemmShape, PointwiseShape
from simulator.models.setting import RankSetting
from simulator.parallel.rank_model import model_for
from simulator.plan import FRAMEWORKS, PRECISIONS, ParallelPlan
from simulator.plan.frameworks import FRAMEWORK_ALIASES
from simulator.topology.device_file import load_device

QUANTISED = [name for name, precision in PRECISIONS.items() if precision.quantisation]

#: bytes of 32 elements with their scales: one of 32 bits per 128 (DeepSeek-V3), 8 bits per 32 (MX), 8 per 16 (NVFP4)
BYTES_OF_32 = {"fp8": 32, "fp8_current": 32, "fp8_block": 33, "mxfp8": 33, "nvfp4": 18}


def kernels(model, kind):
    items = [item for layer in model.layers for item in (*layer.forward, *layer.backward)]
    return [item for item in items if isinstance(item, kind)]


def built(name, precision, kernels="fused"):
    spec = rename(CATALOG[name], "x", layers=2, **({"dense_layers": 0} if name == "deepseek-v3" else {}))
    return build_model(spec, RankSetting(micro_batch=1, sequence_length=1024, precision=precision, kernels=kernels))


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


@pytest.mark.parametrize("precision", BYTES_OF_32)
def test_casts_beside_frozen_weights_write_rows_only(precision):
    """Transformer Engine, ``module/linear.py``: columns of input and gradient are for the gradient of a weight that needs one."""
    setting = RankSetting(micro_batch=1, sequence_length=1024, precision=precision, kernels="fused", lora_rank=16)
    model = build_model(rename(CATALOG["llama3-8b"], "x", layers=1), setting)
    casts = [item for item in kernels(model, PointwiseShape) if item.name.startswith("quantize")]
    assert {cast.kernel_pass for cast in casts} == {"forward", "backward"}
    for cast in casts:
        assert cast.written_bytes == pytest.approx(cast.n_elements * BYTES_OF_32[precision] / 32)


def test_activations_of_narrow_products_are_saved_narrow():
    wide, narrow = (built("llama3-8b", name).layers[1].saved_bytes for name in ("bf16", "mxfp8"))
    assert narrow < wide


@pytest.mark.parametrize(("written", "meant"), [("fp8_cs", "fp8_current"), ("fp8_ds", "fp8"), ("bfloat16", "bf16")])
def test_other_spellings(written, meant):
    from simulator.plan import SETTINGS

    assert SETTINGS["precision"].parse(written) == meant


def products_of(name, **changes):
    """Blocks of narrow precision: by layer the names of its products in 16 bits, forward."""
    spec = rename(CATALOG[name], "x", mtp_layers=1, **changes.pop("spec", {}))
    model = build_model(
        spec, RankSetting(micro_batch=1, sequence_length=1024, precision="nvfp4", kernels="fused", **changes)
    )
    return [
        {item.name for item in layer.forward if isinstance(item, GemmShape) and item.dtype == "bf16"}
        for layer in model.layers
    ]


def test_first_and_last_blocks_may_keep_16_bits():
    """Megatron-Core's ``num_layers_at_start_in_bf16`` 1 and ``num_layers_at_end_in_bf16`` 2 of four blocks."""
    narrow = products_of("llama3-8b", spec={"layers": 4})
    found = products_of(
        "llama3-8b", spec={"layers": 4}, unquantised_first=1, unquantised_last=2, narrow_modules=("attention",)
    )
    whole = {"qkv", "attention_output", "mlp_up", "mlp_down"}
    assert [names == whole for names in found[1:5]] == [True, False, True, True]
    assert found[2] == narrow[2] == set() and found[5] == narrow[5]


def test_modules_may_keep_16_bits():
    """``te_quant.cfg`` of NVIDIA's recipe of Nemotron 3 Super: ``linear_qkv``, ``linear_proj``, ``fc[12]_latent_proj``, ``mtp.*``."""
    of_pattern = {"pattern": ("M", "E", "*"), "layers": 3}
    found = products_of("nemotron-3-super", spec=of_pattern, unquantised_modules=("attention", "latent"))
    assert found[1:4] == [set(), {"router", "latent_down", "latent_up"}, {"qkv", "attention_output"}]
    # torchtitan's ``quantize.linear.mx`` and ``quantize.grouped_mm.mx`` are converters of their own
    parts = {"router": (), "grouped_gemm": ("experts",), "mlp_up": ("mlp",), "qkv": ("attention",)}
    for name, modules in parts.items():
        unquantised = products_of("llama4-scout", spec={"layers": 1}, unquantised_modules=modules)[1]
        assert {one for one in parts if one in unquantised} == {"router", name}
    narrow, unquantised = (
        products_of("llama3-8b", spec={"layers": 1}, unquantised_modules=modules)[2] for modules in ((), ("mtp",))
    )
    assert "mlp_up" in unquantised and "mlp_up" not in narrow


@pytest.mark.parametrize(("modules", "of_attention"), [((), 1), (("attention",), 2)])
def test_what_stays_in_16_bits_is_gathered_in_16_bits(modules, of_attention):
    """Inputs and gradients of attention's projections, beside those of the MLP's in eight."""
    spec = rename(CATALOG["llama3-8b"], "x", layers=1)
    split = {
        "tp": 2,
        "sequence_parallel": True,
        "kernels": "fused",
        "precision": "fp8_current",
        "unquantised_modules": modules,
    }
    block = build_model(spec, RankSetting(micro_batch=1, sequence_length=1024, **split)).layers[1]
    for items, operator in ((block.forward, "f"), (block.backward, "g")):
        points = [i for i in items if isinstance(i, CommunicationPoint) and i.operator == operator]
        widths = [point.n_bytes / (1024 * spec.hidden) for point in points]
        assert widths == ([of_attention, 1] if operator == "f" else [1, of_attention])


def test_user_buffers_do_not_carry_four_bits():
    """Megatron Bridge: ``tp_comm_overlap = False if precision == "nvfp4"``; MLPerf's rounds print TP_COMM_OVERLAP=False there, too."""
    overlaps = [
        ParallelPlan.of({"framework": "megatron-bridge", "tp": 4, "precision": precision}).asynchronous_tp
        for precision in ("nvfp4", "mxfp8", "bf16")
    ]
    assert overlaps == [False, True, True]


def test_what_is_stored():
    assert ParallelPlan(precision="nvfp4").precision_spec.is_16_bit, "masters are kept beside 16-bit weights"
    assert PRECISIONS["amp_bf16"].is_autocast and not PRECISIONS["tf32"].is_autocast


def test_gradients_are_added_to_sums_in_the_epilogue():
    """Megatron-Core's gradient_accumulation_fusion reads and writes the sum: 8 bytes an element in fp32, 4 in 16 bits."""
    spec = rename(CATALOG["llama3-8b"], "x", layers=2)
    for gradient_bytes, traffic in ((4, 8.0), (2, 4.0)):
        model = build_model(
            spec, RankSetting(micro_batch=1, sequence_length=1024, kernels="fused", gradient_bytes=gradient_bytes)
        )
        wgrads = [item for item in kernels(model, GemmShape) if item.kernel_pass == "wgrad"]
        assert {item.result_bytes for item in wgrads} == {traffic}
    unfused = build_model(spec, RankSetting(micro_batch=1, sequence_length=1024, kernels="megatron"))
    assert {item.result_bytes for item in kernels(unfused, GemmShape) if item.kernel_pass == "wgrad"} == {2}


def test_products_of_eight_bits_write_sixteen():
    shape = GemmShape(m=100, n=10, k=20, dtype="fp8")
    assert shape.n_bytes == 100 * 20 + 20 * 10 + 2 * 100 * 10


def test_recipes_turn_settings_on_where_nothing_is_said():
    plan = ParallelPlan.of({"framework": "megatron-bridge", "tp": 4})
    assert (plan.sharding, plan.sequence_parallel, plan.asynchronous_tp, plan.overlap) == ("zero1", True, True, True)
    plan = ParallelPlan.of({"framework": "megatron-bridge", "sharding": "none", "overlap": False})
    assert (plan.sharding, plan.sequence_parallel, plan.overlap) == ("none", False, False)


@pytest.mark.parametrize(
    "framework", ["fsdp", "fsdp2", "hf-fsdp", "torchtitan", "torchtune", "llm-foundry", "automodel", "olmo"]
)
def test_trainers_of_fully_sharded_data_parallelism_shard_fully(framework):
    """``ShardingStrategy.FULL_SHARD``, ``reshard_after_forward=True`` and ``data_parallel_shard_degree = -1`` are their defaults."""
    named = {"framework": FRAMEWORK_ALIASES.get(framework, framework)}
    assert ParallelPlan.of({**named, "gpus": 8, "tp": 2}).sharding == "zero3"
    assert ParallelPlan.of({**named, "gpus": 8, "sharding": "zero2"}).sharding == "zero2"
    assert ParallelPlan.of({**named, "gpus": 8, "tp": 4, "pp": 2}).sharding == "none"


@pytest.mark.parametrize(
    ("framework", "splits_norms"), [("torchtitan", True), ("torchtitan-compile", True), ("fsdp2", False)]
)
def test_torchtitan_splits_the_sequence_where_it_splits_tensors(framework, splits_norms):
    """``SequenceParallel`` of norms in ``parallelize.py`` of its models, whatever else is set."""
    assert ParallelPlan.of({"framework": framework, "tp": 2}).sequence_parallel is splits_norms


def with_narrow(*modules, precision="fp8", **changes):
    spec = rename(CATALOG["llama3-8b"], "x", layers=1)
    model = build_model(
        spec,
        RankSetting(
            micro_batch=1,
            sequence_length=1024,
            precision=precision,
            kernels="fused",
            narrow_modules=modules,
            **changes,
        ),
    )
    return {layer.name: layer for layer in model.layers}


def test_narrow_attention_computes_and_saves_queries_keys_and_values_in_eight_bits():
    """Llama 3 8B: 32 heads of queries, 8 of keys and of values, 128 wide, one byte each; in 16 bits rotated queries and keys are
    saved, and values, which Transformer Engine's ``get_qkv_layout`` copies out of the projection of all three."""
    plain, narrow = with_narrow()["block"], with_narrow("attention")["block"]
    assert plain.saved_bytes - narrow.saved_bytes == 1024 * (2 - 1) * (32 + 8 + 8) * 128
    for items in (narrow.forward, narrow.backward):
        assert [item.dtype for item in items if isinstance(item, AttentionShape)] == ["fp8"]


def test_a_narrow_output_projection_is_a_narrow_product():
    head = with_narrow("output")["head"]
    assert {item.dtype for item in (*head.forward, *head.backward) if isinstance(item, GemmShape)} == {"fp8"}


def test_narrow_activations_save_gate_and_up_in_eight_bits():
    """Two times 14,336 values a token, one byte each instead of two (Megatron-Core's ``activation_func_fp8_input_store``)."""
    plain, narrow = with_narrow()["block"], with_narrow("activation")["block"]
    assert plain.saved_bytes - narrow.saved_bytes == 1024 * 2 * 14_336


def test_nothing_else_is_narrow_in_sixteen_bits():
    assert ParallelPlan(precision="bf16", fp8_modules="attention+output").narrow_modules == ()
    assert ParallelPlan(precision="mxfp8", fp8_modules="attention+output").narrow_modules == ("attention", "output")


def test_attention_in_blocks_is_quantised_along_rows_and_columns():
    """Transformer Engine's MXFP8 attention: a byte an element and a scale of one for 32, in either direction, 66 bytes of 32 elements."""
    assert narrow_attention_of("mxfp8") == ({"mxfp8"}, 66 / 32)
    for precision in ("fp8", "fp8_current", "nvfp4"):
        assert narrow_attention_of(precision) == ({"fp8"}, 1.0)


def narrow_attention_of(precision):
    block = with_narrow("attention", precision=precision)["block"]
    found = {"forward": block.forward, "backward": block.backward}
    dtypes = {i.dtype for items in found.values() for i in items if isinstance(i, AttentionShape)}
    shares = set()
    for items in found.values():
        at = next(n for n, i in enumerate(items) if isinstance(i, AttentionShape))
        cast = [i for i in items[:at] if isinstance(i, PointwiseShape) and i.name.startswith("quantize")][-1]
        shares.add(cast.written_bytes / cast.n_elements)
    (share,) = shares
    return dtypes, share


def test_one_kernel_for_all_experts_moves_what_its_epilogue_reads_and_writes():
    """cuDNN's grouped products of gate and up: forward 2 bytes of the result and 66 of 64 of the activation both ways; backward of the
    activation reads 2 x 2 bytes and writes 2 x 66 / 32.
    """
    spec = rename(CATALOG["mixtral-8x7b"], "x", layers=1)
    setting = RankSetting(micro_batch=1, sequence_length=1024, precision="mxfp8", kernels="fused", fuses_experts=True)
    products = [i for i in kernels(build_model(spec, setting), GemmShape) if i.name == "grouped_gemm"]
    moved = {(i.kernel_pass, i.k): i.output_bytes for i in products}
    assert moved["forward", 4096] == 2 + 66 / 64 and moved["forward", 14336] == 0
    assert moved["dgrad", 4096] == 2 * (2 + 66 / 32) and moved["dgrad", 2 * 14336] == 0


def test_one_kernel_for_all_experts_activates_and_quantises():
    """cuDNN's grouped products behind Transformer Engine's fused grouped MLP: of eight quantisations of a block two go, and SwiGLU.

    Query/key/value and output projection keep one each way; of the experts the first product's input and the second one's gradient.
    """
    spec = rename(CATALOG["mixtral-8x7b"], "x", layers=1)
    model = build_model(
        spec, RankSetting(micro_batch=1, sequence_length=1024, precision="mxfp8", kernels="fused", fuses_experts=True)
    )
    names = [item.name for item in kernels(model, PointwiseShape)]
    assert names.count("quantize_mxfp8") == 6 and "swiglu" not in names


@pytest.mark.parametrize(("precision", "share", "n_casts"), [("fp8", 2, 5), ("mxfp8", 66 / 32, 5), ("nvfp4", None, 8)])
def test_fused_operations_write_what_products_read(precision, share, n_casts):
    """Transformer Engine, ``pytorch/ops``: norm, activation and its gradient take the quantiser of the product behind them.

    Of eight casts of a block three go: the MLP's input, the activation's result and its gradient. One scale for all of a tensor
    (NVFP4's second level) only is found so, and those casts read 2 instead of 4 bytes.
    """
    spec = rename(CATALOG["llama3-8b"], "x", layers=1)
    setting = RankSetting(
        micro_batch=1, sequence_length=1024, precision=precision, kernels="fused", fuses_operations=True
    )
    shapes = kernels(build_model(spec, setting), PointwiseShape)
    casts = [item for item in shapes if item.name.startswith("quantize")]
    assert len(casts) == n_casts and (
        share or sorted(item.read_bytes / item.n_elements for item in casts) == [2] * 3 + [4] * 5
    )
    forward, backward = (item for item in shapes if item.name == "swiglu")
    n = 1024 * 14_336
    assert (forward.read_bytes, backward.read_bytes) == (4 * n, 6 * n)
    assert forward.written_bytes == pytest.approx((share or 2) * n)
    assert backward.written_bytes == pytest.approx((share or 2) * 2 * n)


def test_nvfp4_takes_an_experts_rows_in_four_launches():
    """Transformer Engine's ``NVFP4Quantizer::quantize_impl``: amax, random state, rows, transformed columns; MXFP8 is one kernel."""
    spec = rename(CATALOG["mixtral-8x7b"], "x", layers=1)
    for precision, launches in (("mxfp8", 1), ("nvfp4", 4)):
        setting = {"micro_batch": 1, "sequence_length": 1024, "precision": precision, "kernels": "fused"}
        casts = [
            item
            for item in kernels(build_model(spec, RankSetting(**setting)), PointwiseShape)
            if item.name.startswith("quantize")
        ]
        assert {cast.n_pieces for cast in casts} == {1, 8 * launches}


def test_biased_experts_of_megatron_clamp_and_add_in_kernels_of_their_own():
    """gpt-oss in Megatron-Core: what a block's experts move beside SwiGLU, by hand from ``_apply_bias`` and the clamps of gate and up.

    4 of 128 experts of 2,880 for 1,024 tokens. Forward 28 bytes per element of the result (``b * p`` 4, its sum 10, ``cat`` 8, ``to``
    6) and 8 of gate and up (clamped and joined again); backward 40 (``to`` and its cast back 6 each, ``split`` 4, two products of 8
    and their sums of 4) and 10.
    """
    spec = rename(CATALOG["gpt-oss-120b"], "x", layers=1)
    plain = build_model(spec, RankSetting(micro_batch=1, sequence_length=1024, kernels="fused"))
    setting = RankSetting(micro_batch=1, sequence_length=1024, precision="mxfp8", kernels="fused", fuses_experts=True)
    fused = build_model(spec, setting)
    (block,) = [layer for layer in plain.layers if layer.name == "moe_block"]
    n_out, n_up = 1024 * 4 * 2880, 1024 * 4 * 2 * 2880

    def moved(items):
        names = ("mul", "add", "cat", "cast", "sum", "clamp")
        chosen = [
            i
            for i in items
            if isinstance(i, PointwiseShape) and i.name in names and i.n_elements in (n_out, n_up, n_up // 2)
        ]
        return sum(item.read_bytes + item.written_bytes for item in chosen)

    assert moved(block.forward) == 28 * n_out + 8 * n_up
    assert moved(block.backward) == 40 * n_out + 10 * n_up
    assert not [i for i in kernels(fused, PointwiseShape) if i.name == "clamp"]


def test_graphs_of_whole_iterations_copy_what_experts_keep():
    """Transformer Engine's fused grouped MLP marks for paged stashing: both products' inputs, quantised along columns (33 bytes of
    32 elements), and gate and up in 16 bits. Recomputing the activation makes the second one anew. Mixtral, two experts a token.
    """
    spec = rename(CATALOG["mixtral-8x7b"], "x", layers=1)
    rows, narrow = 1024 * 2, 33 / 32
    kept = {rows * 4096 * narrow, rows * 2 * 14_336 * 2, rows * 14_336 * narrow}
    for recompute, expected in ((None, kept), ("moe_act", kept - {rows * 14_336 * narrow})):
        setting = RankSetting(
            micro_batch=1, sequence_length=1024, precision="mxfp8", kernels="fused", fuses_experts=True, stashes_experts=True,
            recompute="selective" if recompute else "none", recompute_modules=(recompute,) if recompute else (),
        )  # fmt: skip
        copies = [
            i for i in kernels(build_model(spec, setting), PointwiseShape) if i.name == "copy" and i.n_elements >= 2**23
        ]
        for in_pass in ("forward", "backward"):
            moved = {(i.read_bytes, i.written_bytes) for i in copies if i.kernel_pass == in_pass}
            assert moved == {(n, n) for n in expected}


def test_biases_of_fused_experts_are_added_by_products_and_their_gradients_summed():
    """The gradient of the first one in the epilogue of the second product's backward (cuDNN's frontend, pull request 322: 155.6 us
    instead of 139.0, and 1,362.8 in the versions of one container), that of the second by a kernel that reads the gradient once."""
    spec = rename(CATALOG["gpt-oss-120b"], "x", layers=1)
    n_out = 1024 * 4 * 2880
    for release, share in ((None, 16.6 / 139.0), ("26.06.01", 1223.8 / 139.0), ("26.08", 16.6 / 139.0)):
        assert FRAMEWORKS["megatron-core"].at(release).bias_summing == pytest.approx(share)
    common = {"micro_batch": 1, "sequence_length": 1024, "precision": "mxfp8", "kernels": "fused", "bias_summing": 0.5}
    fused = build_model(spec, RankSetting(**common, fuses_experts=True))
    products = [i for i in kernels(fused, GemmShape) if i.name == "grouped_gemm"]
    assert [(i.kernel_pass, i.n, i.summing) for i in products if i.summing] == [("dgrad", 2880, 0.5)]
    # a row of 2,880 in 16 bits for each of 128 experts, a weight in fp32 for each of four copies of a token
    sums = [(i.read_bytes, i.written_bytes) for i in kernels(fused, PointwiseShape) if i.name == "sum"]
    assert sums.count((2 * n_out, 2 * 128 * 2880 + 4 * 4 * 1024)) == 1
    for other in (
        build_model(spec, RankSetting(**common)),
        build_model(spec, RankSetting(**common, fuses_experts=True, lora_rank=8)),
    ):
        assert not [i for i in kernels(other, GemmShape) if i.summing]


def test_fused_experts_leave_sms_to_the_exchange_beside_them():
    """Eight clusters of two SMs where NVIDIA's recipes overlap it (``CUDNNFE_CLUSTER_OVERLAP_MARGIN``); nothing else leaves any."""
    spec = rename(CATALOG["mixtral-8x7b"], "x", layers=1)
    plan = ParallelPlan(
        framework="megatron-bridge", precision="mxfp8", micro_batch=1, sequence_length=1024, ep=2, dp=2, moe_fused_experts=True,
        schedule="1f1b-combined",
    )  # fmt: skip
    for changes, left in (
        ({}, 16),
        ({"schedule": "dualpipe-v", "pp": 2}, 16),
        ({"schedule": "1f1b"}, 0),
        ({"moe_fused_experts": False}, 0),
        ({"framework": "megatron-core"}, 0),
    ):
        products = kernels(model_for(spec, replace(plan, **changes)), GemmShape)
        assert {i.left_sms for i in products if i.name == "grouped_gemm"} == {left}
        assert {i.left_sms for i in products if i.name != "grouped_gemm"} == {0}


@pytest.mark.parametrize(("precision", "rows"), [("bf16", 86), ("fp8", 96), ("mxfp8", 96)])
def test_narrow_products_of_experts_have_rows_in_whole_blocks(precision, rows):
    """Kimi K2: 4,096 tokens choose 8 of 384 experts, 85.3 rows each; Megatron's ``moe_router_padding_for_fp8`` pads to 16 or 32."""
    spec = rename(CATALOG["kimi-k2"], "x", layers=2, dense_layers=0)
    model = build_model(spec, RankSetting(micro_batch=1, sequence_length=4096, precision=precision, kernels="fused"))
    products = [shape for shape in kernels(model, GemmShape) if shape.name == "grouped_gemm"]
    assert {shape.k if shape.kernel_pass == "wgrad" else shape.m for shape in products} == {rows}


@pytest.mark.parametrize(
    ("device", "computed"),
    [
        ("h100-sxm5-80g", {"fp8"}),
        ("b200", {"fp8", "mxfp8", "nvfp4"}),
        ("mi300x", {"fp8"}),
        ("mi355x", {"fp8", "mxfp8"}),
    ],
)
def test_blocks_with_scales_need_matrix_units_that_take_them(device, computed):
    """Transformer Engine: "compute capability 10.0 or higher required for MXFP8"; OCP's MX formats came to AMD with CDNA 4."""
    found = {name for name in ("fp8", "mxfp8", "nvfp4") if load_device(device).computes(name)}
    assert found == computed


@pytest.mark.parametrize(
    ("name", "is_any"),
    [("h100-sxm5-80g", False), ("b200", True), ("gb200", True), ("gb300", True), ("rtx5090", False), ("mi355x", False)],
)
def test_blackwell_transposes_nothing_for_products_with_one_scale_a_tensor(name, is_any):
    """NVIDIA/TransformerEngine, ``is_non_tn_fp8_gemm_supported``: compute capability 10 to below 12, and from 13 on; ROCm's: no GPU.

    A cast then writes one copy of eight bits instead of two, of 16 bits that it reads.
    """
    device = load_device(name)
    assert device.multiplies_any_layout == is_any
    assert not replace(device, vendor="AMD").multiplies_any_layout
    plan = ParallelPlan(framework="megatron-bridge", precision="fp8", sequence_length=1024, micro_batch=1)
    casts = [k for k in kernels(model_for(CATALOG["llama2-7b"], plan, device), PointwiseShape) if k.name == "quantize"]
    assert {k.written_bytes / k.n_elements for k in casts} == {1 if is_any else 2}
    assert {k.read_bytes / k.n_elements for k in casts} == {2}
