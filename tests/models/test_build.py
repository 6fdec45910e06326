from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, find_spec, rename
from simulator.models.layer import AttentionShape, CommunicationPoint, GemmShape, PointwiseShape
from simulator.models.setting import RankSetting
from simulator.models.styles import STYLES
from simulator.parallel.rank_model import model_for
from simulator.plan import ParallelPlan

FAMILIES = ["gpt2", "gpt-1.3b", "bert-base", "t5-small", "llama2-7b", "llama3-8b", "mpt-125m", "mixtral-8x7b"]
RECOMPUTES = ["none", "selective", "full"]


def small(name, **more):
    spec = find_spec(name)
    sizes = {"layers": 2, "encoder_layers": 2 if spec.encoder_layers else 0}
    return rename(spec, f"small-{name}", **(sizes | more))


def built(spec, **more):
    return build_model(spec, RankSetting(**({"micro_batch": 2, "sequence_length": 256} | more)))


def shapes(items):
    return [item for item in items if not isinstance(item, CommunicationPoint)]


@pytest.mark.parametrize("kernels", STYLES)
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("attention", ["flash", "eager"])
@pytest.mark.parametrize("recompute", RECOMPUTES)
def test_every_family_in_every_style(name, kernels, attention, recompute):
    model = built(small(name), kernels=kernels, attention=attention, recompute=recompute)
    for layer in model.layers:
        assert layer.forward and layer.saved_bytes > 0 and layer.transient_bytes >= 0
        for item in shapes([*layer.forward, *layer.backward, *layer.recompute]):
            assert item.n_bytes > 0
            assert (item.kernel_pass == "forward") <= (item not in layer.backward)
    has_flash = any(isinstance(i, AttentionShape) for i in model.layers[1].forward)
    assert has_flash == (attention == "flash")
    assert bool(model.layers[1].recompute) <= (recompute != "none")


@pytest.mark.parametrize("name", CATALOG)
def test_parameters_of_the_layers_are_those_of_the_model(name):
    spec = rename(CATALOG[name], "x", layers=4, dense_layers=min(1, CATALOG[name].dense_layers))
    model = built(spec, micro_batch=1, sequence_length=64)
    assert sum(layer.n_parameters for layer in model.layers) == spec.n_parameters == model.n_parameters


@pytest.mark.parametrize("name", ["gpt-1.3b", "llama3-8b", "bert-large", "t5-base", "mpt-7b"])
@pytest.mark.parametrize("kernels", ["megatron", "fused"])
def test_tensor_parallel_parts_sum_to_the_whole(name, kernels):
    spec = small(name, vocab=32000)
    whole, part = built(spec, kernels=kernels), built(spec, kernels=kernels, tp=4)
    for one, quarter in zip(whole.layers, part.layers, strict=True):
        split = sum(p.n_elements for p in quarter.parameters if p.is_tensor_parallel)
        copied = sum(p.n_elements for p in quarter.parameters if not p.is_tensor_parallel)
        assert 4 * split + copied == one.n_parameters
        gemms = [k for k in shapes(one.forward) if k.n_flops]
        parts = [k for k in shapes(quarter.forward) if k.n_flops]
        whole_flops = sum(k.n_flops for k in gemms if k.name != "transform")
        part_flops = sum(k.n_flops for k in parts if k.name != "transform")
        assert 4 * part_flops == pytest.approx(whole_flops)


def test_experts_compute_every_routed_row_however_few():
    """128 tokens choose 2 of 8 experts: 256 rows; of 3 tokens 6 rows, fewer than experts."""
    spec = small("mixtral-8x7b")
    for length in (128, 3):
        model = build_model(spec, RankSetting(micro_batch=1, sequence_length=length))
        products = [k for layer in model.layers for k in layer.forward if getattr(k, "name", "") == "grouped_gemm"]
        assert [k.batch * k.m for k in products] == [2 * length] * len(products)
        weights = 3 * spec.hidden * spec.expert_hidden * spec.layers  # gate, up and down
        assert sum(k.n_flops for k in products) == 2.0 * 2 * length * weights


def test_expert_parallel_ranks_share_the_experts():
    spec = small("mixtral-8x7b")
    whole, part = built(spec, kernels="fused").layers[1], built(spec, kernels="fused", ep=4).layers[1]
    experts = [sum(p.n_elements for p in layer.parameters if p.is_expert) for layer in (whole, part)]
    assert experts[0] == 4 * experts[1]
    assert whole.n_forward_flops == pytest.approx(part.n_forward_flops)  # as many tokens arrive as leave
    points = [i.operator for i in part.forward if isinstance(i, CommunicationPoint)]
    assert points == ["dispatch", "combine"]


def test_kernels_that_visited_every_expert_took_ten_times_as_long():
    """Transformer Engine's pull request 1927, as Megatron's guide sums it up: up to ten times faster for 8 of 256 experts."""
    spec = small("mixtral-8x7b", n_experts=256, top_k=8)
    traffic = []
    for scans in (True, False):
        layer = built(spec, kernels="fused", permutes_by_scan=scans).layers[1]
        traffic.append(sum(i.n_bytes for i in layer.forward if getattr(i, "name", "") == "permute"))
    assert traffic[0] / traffic[1] == pytest.approx(10.0)


def test_tokens_of_an_all_to_all_are_sorted_by_expert_and_back_in_both_passes():
    """Megatron's dispatcher: a global permutation before the exchange, a local one behind it; with one expert a rank there is none."""
    spec = small("mixtral-8x7b")
    moves: dict[tuple[int, bool], list[float]] = {}
    for ep, sorts in ((4, True), (4, False), (8, True)):
        layer = built(spec, kernels="fused", ep=ep, sorts_arrivals=sorts).layers[1]
        kernels = [
            [i.n_bytes for i in each if getattr(i, "name", "") == "permute"] for each in (layer.forward, layer.backward)
        ]
        assert len(kernels[0]) == len(kernels[1])
        moves[ep, sorts] = kernels[0]
    assert [len(each) for each in moves.values()] == [3, 1, 1]
    assert set(moves[4, True]) == set(moves[4, False])  # every one of them copies all routed tokens


@pytest.mark.parametrize("layers", [3, 7])
def test_equal_layers_are_the_same_object(layers):
    model = built(small("gpt2", layers=layers))
    assert len(model.layers) == layers + 2
    assert len({id(layer) for layer in model.layers[1:-1]}) == 1


# ---- FLOPs: Narayanan et al. 2021, appendix --------------------


@pytest.mark.parametrize("kernels", STYLES)
@given(
    batch=st.integers(1, 8),
    sequence=st.sampled_from([64, 128, 512]),
    heads=st.sampled_from([2, 4]),
    vocab=st.integers(50, 999),
)
def test_forward_flops_of_a_gpt_layer(kernels, batch, sequence, heads, vocab):
    spec = small("gpt-1.3b", hidden=heads * 32, heads=heads, kv_heads=heads, head_dim=32, ffn_hidden=4 * heads * 32)
    spec = rename(spec, "x", vocab=vocab, max_positions=sequence)
    b, s, h = batch, sequence, spec.hidden
    model = build_model(spec, RankSetting(micro_batch=b, sequence_length=s, kernels=kernels, attention="eager"))
    assert model.layers[1].n_forward_flops == 24 * b * s * h**2 + 4 * b * s**2 * h
    assert model.layers[-1].n_forward_flops == 2 * b * s * h * vocab
    assert model.model_flops_per_sequence * b == 3 * sum(layer.n_forward_flops for layer in model.layers)


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b", "mpt-7b", "bert-large", "t5-base", "deepseek-v3"])
@pytest.mark.parametrize("kernels", STYLES)
def test_model_flops_are_three_times_the_eager_forward(name, kernels):
    spec = small(name, dense_layers=0) if name == "deepseek-v3" else small(name)
    model = built(spec, kernels=kernels, attention="eager")
    forward = sum(layer.n_forward_flops for layer in model.layers)
    assert model.model_flops_per_sequence * 2 == pytest.approx(3 * forward, rel=1e-12)


@pytest.mark.parametrize("kernels", STYLES)
@pytest.mark.parametrize("name", FAMILIES)
def test_backward_costs_twice_forward(name, kernels):
    model = built(small(name), kernels=kernels, attention="eager")
    for layer in model.layers[1:]:
        backward = sum(k.n_flops for k in shapes(layer.backward))
        assert backward == pytest.approx(2 * layer.n_forward_flops)


@pytest.mark.parametrize("kernels", STYLES)
def test_full_recompute_repeats_forward(kernels):
    layer = built(small("llama2-7b"), kernels=kernels, recompute="full").layers[1]
    assert layer.recompute == layer.forward
    assert layer.saved_bytes == layer.output_bytes


@pytest.mark.parametrize("kernels", ["hf-eager", "compiled"])
def test_early_stop_leaves_the_last_product_out_of_recomputation(kernels):
    spec = find_spec("llama2-7b")
    whole, early = (
        build_model(
            spec, RankSetting(micro_batch=1, sequence_length=512, tp=2, sequence_parallel=True, kernels=kernels,
            recompute="full", stops_early=stops,
        )).layers[1]
        for stops in (False, True)
    )  # fmt: skip
    dropped = whole.recompute[len(early.recompute) :]
    assert whole.recompute[: len(early.recompute)] == early.recompute
    assert [item.name for item in dropped if isinstance(item, GemmShape)] == ["mlp_down"]
    assert [item.operator for item in dropped if isinstance(item, CommunicationPoint)] == ["g"]
    assert early.saved_bytes == whole.saved_bytes


def test_selective_recompute_by_operator_repeats_every_second_product():
    layer = built(small("llama3-8b"), kernels="compiled", recompute="selective").layers[1]
    names = [k.name for k in layer.recompute if isinstance(k, GemmShape)]
    assert names == ["qkv", "attention_output", "mlp_up"]
    assert not any(isinstance(k, AttentionShape) for k in layer.recompute)
    plain = built(small("llama3-8b"), kernels="compiled").layers[1]
    assert plain.recompute == () and layer.saved_bytes < plain.saved_bytes


# ---- memory: Korthikanti et al. 2022, table 2 --------------------


@pytest.mark.parametrize(
    ("tp", "sequence_parallel", "recompute", "expected"),
    [
        (1, False, "none", lambda a, s, h, t: 34 + 5 * a * s / h),
        (8, False, "none", lambda a, s, h, t: 10 + 24 / t + 5 * a * s / h / t),
        (8, True, "none", lambda a, s, h, t: 34 / t + 5 * a * s / h / t),
        (8, False, "selective", lambda a, s, h, t: 10 + 24 / t),
        (8, True, "selective", lambda a, s, h, t: 34 / t),
        (1, False, "full", lambda a, s, h, t: 2),
        (8, True, "full", lambda a, s, h, t: 2 / t),
    ],
)
@pytest.mark.parametrize("name", ["gpt-22b", "gpt3-175b", "mt-nlg-530b"])
def test_saved_bytes_of_megatron(name, tp, sequence_parallel, recompute, expected):
    spec = find_spec(name)
    s, b, h, a = 2048, 2, spec.hidden, spec.heads
    model = build_model(
        spec,
        RankSetting(
            micro_batch=b,
            sequence_length=s,
            tp=tp,
            sequence_parallel=sequence_parallel,
            precision="fp16",
            kernels="megatron",
            attention="eager",
            recompute=recompute,
        ),
    )
    # the formula leaves out the statistics of the norms: 8 bytes per token and norm
    assert model.layers[1].saved_bytes == pytest.approx(s * b * h * expected(a, s, h, tp), rel=5e-4)


def test_head_of_megatron_saves_the_exponentials_in_fp32():
    spec = find_spec("gpt3-175b")
    head = built(spec, kernels="megatron", precision="fp16").layers[-1]
    tokens = 512
    inputs = 2 * 2 * tokens * spec.hidden + 8 * tokens
    assert head.saved_bytes == pytest.approx(inputs + 4 * tokens * spec.vocab, rel=1e-3)


@pytest.mark.parametrize("tp", [1, 4])
def test_what_megatrons_flash_keeps_that_selective_recomputation_leaves_alone(tp):
    """Its output in its own layout, 2 s b h / t, and the sums of its rows, 4 b a s / t: eager attention that is run again keeps neither."""
    spec = small("gpt-1.3b")
    flash, eager = (built(spec, tp=tp, recompute="selective", attention=kind).layers[1] for kind in ("flash", "eager"))
    own = 2 * 256 * 2 * spec.hidden // tp + 4 * 2 * spec.heads * 256 // tp
    assert flash.saved_bytes - eager.saved_bytes == own


def test_recompute_trades_saved_bytes_for_transient_ones():
    layers = [built(small("gpt2"), kernels="megatron", attention="eager", recompute=r).layers[1] for r in RECOMPUTES]
    saved = [layer.saved_bytes for layer in layers]
    assert saved == sorted(saved, reverse=True)
    totals = [layer.saved_bytes + layer.transient_bytes for layer in layers]
    assert totals[0] == pytest.approx(totals[2], rel=0.05)


def test_weights_cast_by_autocast_are_saved():
    spec = small("gpt2")
    plain, cast = (built(spec, kernels="hf-eager", precision=p).layers[1] for p in ("bf16", "amp_bf16"))
    weights = sum(p.n_elements for p in plain.parameters if "norm" not in p.name and "bias" not in p.name)
    assert cast.saved_bytes - plain.saved_bytes > 2 * weights


# ---- communication points --------------------


def points(items):
    return [(i.operator, i.kernel_pass) for i in items if isinstance(i, CommunicationPoint)]


@pytest.mark.parametrize("kernels", STYLES)
def test_no_points_on_one_gpu(kernels):
    model = built(small("gpt2"), kernels=kernels)
    assert not any(points([*layer.forward, *layer.backward]) for layer in model.layers)


@pytest.mark.parametrize(
    ("precision", "sequence_parallel", "input_bytes", "gradient_bytes"),
    [
        ("bf16", True, 2, 2),
        ("fp8", True, 1, 1),
        ("fp8_current", True, 1, 1),
        ("mxfp8", True, 33 / 32, 66 / 32),
        ("fp8_rowwise", True, 2, 2),
        ("fp8", False, 2, 2),
    ],
)
def test_ranks_quantise_what_they_gather_for_a_product(precision, sequence_parallel, input_bytes, gradient_bytes):
    """Transformer Engine gathers eight bits and their scales: of gradients both ways where a block of 32 has its own scale."""
    spec = small("llama2-7b")
    settings = {"kernels": "fused", "tp": 2, "sequence_parallel": sequence_parallel, "precision": precision}
    *_, block, head = built(spec, micro_batch=2, sequence_length=256, **settings).layers
    n = 2 * 256 * spec.hidden
    found = {(i.operator, i.kernel_pass): i.n_bytes / n for i in block.forward if isinstance(i, CommunicationPoint)}
    assert {at: x for at, x in found.items() if at[0] != "amax"} == {("f", "forward"): input_bytes, ("g", "forward"): 2}
    again = {
        i.n_bytes / n for i in block.backward if isinstance(i, CommunicationPoint) and points([i]) == [("f", "forward")]
    }
    assert again == ({input_bytes} if sequence_parallel else set())
    found = {(i.operator, i.kernel_pass): i.n_bytes / n for i in block.backward if isinstance(i, CommunicationPoint)}
    assert (found["g", "backward"], found["f", "backward"]) == (gradient_bytes, 2)
    assert {i.n_bytes / n for i in head.forward if isinstance(i, CommunicationPoint) and i.operator == "f"} == {2}


def around_products(items):
    """Communication, casts, transpositions and products in their order, pointwise kernels with elements, bytes read and written."""
    found = []
    for i in items:
        if isinstance(i, CommunicationPoint):
            found.append(i.operator)
        elif isinstance(i, GemmShape):
            found.append((i.name, i.kernel_pass))
        elif i.name.startswith(("quantize", "transpose")):
            found.append((i.name, i.n_elements, i.read_bytes, i.written_bytes))
    return found


@pytest.mark.parametrize(
    ("precision", "any_layout", "amax", "read", "written", "turns"),
    [
        ("fp8", False, [], 2, 1, True),
        ("fp8", True, [], 2, 1, False),
        ("fp8_current", False, ["amax"], 4, 1, True),
        ("fp8_current", True, ["amax"], 4, 1, False),
        ("mxfp8", False, [], 2, 66 / 32, False),
        ("mxfp8", True, [], 2, 66 / 32, False),
    ],
)
def test_what_is_gathered_narrow_is_narrowed_before(precision, any_layout, amax, read, written, turns):
    """NVIDIA/TransformerEngine, ``gather_along_first_dim``.

    Each rank casts its own tokens, along rows alone where one scale serves both directions; such rows are transposed once they are
    there, for the product of the weight's gradient, unless the GPU multiplies any layout. For current scaling ranks agree on the
    largest element. What nobody gathers is cast along both directions at once.
    """
    spec = small("llama2-7b")
    settings = {
        "kernels": "fused",
        "tp": 2,
        "sequence_parallel": True,
        "precision": precision,
        "any_layout": any_layout,
    }
    block = built(spec, micro_batch=2, sequence_length=256, **settings).layers[-2]
    n, inside = 2 * 256 * spec.hidden, 2 * 256 * spec.ffn_hidden // 2
    name = "quantize_mxfp8" if precision == "mxfp8" else "quantize"
    share = (name, n // 2, read * n // 2, written * n / 2)
    turned = [("transpose", n, n, n)] * turns
    layouts = 1 if any_layout and precision != "mxfp8" else 2
    whole = (name, inside, read * inside, layouts * (33 / 32 if precision == "mxfp8" else 1) * inside)
    forward = around_products(block.forward)
    at = forward.index(("mlp_up", "forward"))
    assert forward[at - 2 - len(amax) :] == [
        *amax, share, "f", ("mlp_up", "forward"), whole, ("mlp_down", "forward"), "g",
    ]  # fmt: skip
    backward = around_products(block.backward)
    at = backward.index(("mlp_down", "wgrad"))
    assert backward[: at + 1] == [*amax, share, "g", ("mlp_down", "dgrad"), *turned, ("mlp_down", "wgrad")]
    gathered = backward[at + 2 : backward.index(("mlp_up", "wgrad")) + 1]
    assert gathered == ["f", ("mlp_up", "dgrad"), "f", *turned, ("mlp_up", "wgrad")]
    scattered = [
        i
        for i in block.backward
        if isinstance(i, CommunicationPoint) and (i.operator, i.kernel_pass) == ("f", "backward")
    ]
    assert {i.overlaps for i in scattered} == {1 + turns}, "it runs beside all that makes the weight's gradient"


def test_weights_that_are_cast_at_every_use_are_cast_once_and_before_the_gather():
    """torchao's ``Float8Linear`` casts its weight in each forward; what products wait for is the gather alone."""
    spec = small("llama2-7b")
    settings = {"kernels": "compiled", "tp": 2, "sequence_parallel": True, "precision": "fp8_current"}
    block = built(spec, micro_batch=2, sequence_length=256, **settings).layers[-2]
    forward = around_products(block.forward)
    at = forward.index("f")
    cast = sorted(i[1] for i in forward[:at] if i[0] == "quantize")
    assert cast == sorted([2 * 256 * spec.hidden // 2, *[spec.hidden * spec.hidden // 2] * 3]), (
        "own tokens, query, key and value"
    )
    products = [i for i in forward[at + 1 :] if isinstance(i, tuple)][:3]
    assert [i[1] for i in products] == ["forward"] * 3


def test_frozen_weights_need_no_tokens_again():
    """No gradient of a weight, so nothing is gathered or transposed for it, and nothing runs beside the reduction."""
    spec = small("llama2-7b")
    settings = {"kernels": "fused", "tp": 2, "sequence_parallel": True, "precision": "fp8", "lora_rank": 8}
    block = built(spec, micro_batch=2, sequence_length=256, **settings).layers[-2]
    backward = around_products(block.backward)
    assert ("mlp_up", "wgrad") not in backward
    assert not [i for i in backward if i[0] == "transpose"]
    at = backward.index(("mlp_up", "dgrad"))
    assert (backward[at - 1][0], backward[at + 1]) == ("quantize", "f")
    assert all(not i.overlaps for i in block.backward if isinstance(i, CommunicationPoint))


@pytest.mark.parametrize(
    ("framework", "sequence_parallel", "gathers", "reductions"),
    [
        ("kempnerforge", True, 5, 5),
        ("kempnerforge-compile", True, 2, 5),
        ("kempnerforge", False, 5, 5),
        ("torchtitan", True, 2, 2),
    ],
)
def test_products_that_are_parallel_by_themselves_reduce_by_themselves(
    framework, sequence_parallel, gathers, reductions
):
    """Queries, keys, values, gate and up are five modules with a gradient each (KempnerForge, ``_build_block_tp_plan``), which a
    compiler gathers for once where they read the same; torchtitan's ``PrepareModuleInput`` gathers for all of them."""
    plan = ParallelPlan(
        framework=framework,
        precision="bf16",
        tp=8,
        sequence_parallel=sequence_parallel,
        micro_batch=1,
        sequence_length=4096,
    )
    layers = model_for(find_spec("llama2-7b"), plan).layers
    assert points(layers[1].forward).count(("f", "forward")) == gathers
    assert points(layers[1].backward).count(("f", "backward")) == reductions
    of_head = points(layers[-1].forward)
    assert (("logits", "forward") in of_head) != (("vocabulary", "forward") in of_head)
    assert (("logits", "forward") in of_head) == framework.startswith("kempnerforge")


def test_dtensors_are_copied_to_lie_along_the_sequence():
    """Four exchanges a pass and block, each of all tokens: a gather is copied behind it and a reduction in front of it, read and written
    in 16 bits (pytorch/pytorch, ``all_gather_tensor`` and ``reduce_scatter_tensor`` with dimension 1)."""
    spec, moved = find_spec("llama2-7b"), []
    for copies in (False, True):
        block = build_model(
            spec, RankSetting(micro_batch=1, sequence_length=4096, tp=8, sequence_parallel=True, kernels="compiled", copies_sequence=copies)
        ).layers[1]  # fmt: skip
        moved.append(
            [
                sum(i.read_bytes + i.written_bytes for i in items if isinstance(i, PointwiseShape))
                for items in (block.forward, block.backward)
            ]
        )
    assert [b - a for a, b in zip(*moved, strict=True)] == [4 * 2 * 2 * 4096 * 4096] * 2


@pytest.mark.parametrize("tp", [2, 4])
def test_modules_that_share_a_norm_gather_its_output_each(tp):
    """Two bytes an element, eight a row for mean and deviation: input and one norm's output, or shares of 1/tp and two gathered copies.

    PyTorch's tutorial of tensor parallelism prepares the inputs of attention and of MLP one by one (``PrepareModuleInput``).
    """
    spec, tokens = find_spec("command-r7b"), 1024
    stream = 2 * tokens * 4096

    def saved(*, sequence_parallel):
        setting = RankSetting(
            micro_batch=1, sequence_length=tokens, kernels="hf-eager", tp=tp, sequence_parallel=sequence_parallel
        )
        return next(layer.saved_bytes for layer in build_model(spec, setting).layers if layer.is_block)

    whole, split = 2 * stream + 8 * tokens, 2 * stream + (stream + 8 * tokens) // tp
    assert saved(sequence_parallel=True) - saved(sequence_parallel=False) == split - whole


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_points_of_a_tensor_parallel_block(sequence_parallel):
    spec = small("gpt-1.3b")
    model = built(spec, tp=4, sequence_parallel=sequence_parallel)
    block = model.layers[1]
    assert points(block.forward) == [("f", "forward"), ("g", "forward")] * 2
    again = [("f", "forward")] if sequence_parallel else []
    assert points(block.backward) == [("g", "backward"), *again, ("f", "backward")] * 2
    assert {i.n_bytes for i in block.forward if isinstance(i, CommunicationPoint)} == {2 * 2 * 256 * spec.hidden}
    assert points(model.layers[0].forward) == [("embedding", "forward")]
    assert points(model.layers[-1].forward) == [("f", "forward")] + [("vocabulary", "forward")] * 3


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_reductions_run_beside_weight_gradients(sequence_parallel):
    block = built(small("gpt-1.3b"), tp=4, sequence_parallel=sequence_parallel).layers[1]
    for index, item in enumerate(block.backward):
        if not isinstance(item, CommunicationPoint) or item.operator != "f":
            continue
        beside = block.backward[index + 1]
        assert item.overlaps == 1 and isinstance(beside, GemmShape)
        assert beside.kernel_pass == ("wgrad" if item.kernel_pass == "backward" else "dgrad")


def test_full_recompute_repeats_the_collectives_and_selective_does_not():
    full, selective = (
        built(small("gpt-1.3b"), tp=4, recompute=r, attention="eager").layers[1] for r in ("full", "selective")
    )
    assert points(full.recompute) == points(full.forward)
    assert points(selective.recompute) == []


@pytest.mark.parametrize("tp", [2, 4])
def test_selective_recompute_by_operator_keeps_reduce_scatters_and_runs_all_reduces_again(tp):
    """torchtitan, ``_op_sac_save_list``: matrix products, attention and ``reduce_scatter_tensor``; neither ``all_reduce`` nor gathers.

    With sequence parallelism a block keeps what two reduce-scatters return, each 1/tp of ``[tokens, hidden]``, and 1/tp of its
    input instead of all of it.
    """
    spec = small("nemotron-22b")
    settings = {"kernels": "hf-eager", "recompute": "selective", "stops_early": True, "tp": tp}
    whole, split = (built(spec, sequence_parallel=word, **settings).layers[1] for word in (False, True))
    assert [operator for operator, _ in points(whole.recompute)].count("g") == 1  # nothing saved waits for the second
    assert {operator for operator, _ in points(split.recompute)} == {"f"}
    stream_bytes = 2 * 256 * spec.hidden * 2
    assert split.saved_bytes - whole.saved_bytes == stream_bytes * (3 - tp) // tp


def test_context_parallelism_exchanges_keys_and_values_of_the_whole_sequence():
    spec = small("llama3-8b")
    block = built(spec, cp=4, sequence_length=1024, kernels="fused").layers[1]
    (point,) = [i for i in block.forward if isinstance(i, CommunicationPoint)]
    assert point.operator == "context"
    assert point.n_bytes == 2 * 2 * 1024 * 2 * spec.kv_width
    (shape,) = [i for i in block.forward if isinstance(i, AttentionShape)]
    assert (shape.seq_q, shape.seq_k) == (256, 1024)


# ---- what cannot be built --------------------


@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    [
        ("gpt2-xl", {"tp": 8}, "tp=8 does not divide heads=25"),
        ("phi-4", {"tp": 4}, "tp=4 would cut key-value heads of phi-4, which has 10"),
        ("gpt2", {"cp": 3}, "cp=3 does not divide sequence_length=256"),
        ("gpt2", {"ep": 2}, "no experts"),
        ("mixtral-8x7b", {"ep": 16}, "ep=16 does not divide experts=8"),
    ],
)
def test_degrees_that_do_not_divide(name, wrong, text):
    with pytest.raises(InfeasiblePlanError, match=text):
        built(find_spec(name), **wrong)


@pytest.mark.parametrize("wrong", [{"kernels": "tpu"}, {"precision": "int4"}, {"attention": "x"}, {"recompute": "x"}])
def test_unknown_names(wrong):
    with pytest.raises(ConfigError, match="is unknown"):
        built(find_spec("gpt2"), **wrong)


def test_kernel_names_are_known():
    """The kernel models know these; a new name must be told to them."""
    known = {
        "layer_norm", "rms_norm", "add", "mul", "cast", "quantize", "copy", "dropout", "softmax", "cross_entropy",
        "embedding", "sum", "gelu", "silu", "relu", "relu2", "tanh", "pow", "cat", "neg", "mean",
        "rsqrt", "div", "fill", "nll_loss", "rotary", "swiglu", "bias_gelu", "bias_relu",
        "bias_dropout_add", "where", "max", "sub", "gather", "exp", "index_put", "topk", "sort",
        "scatter", "permute", "unpermute", "residual_norm",
    }  # fmt: skip
    seen = set()
    for name in FAMILIES:
        for kernels in STYLES:
            for attention in ("flash", "eager"):
                for precision in ("bf16", "amp_bf16", "fp8"):
                    model = built(small(name), kernels=kernels, attention=attention, precision=precision, tp=4)
                    for layer in model.layers:
                        items = [*layer.forward, *layer.backward]
                        seen |= {i.name for i in items if isinstance(i, PointwiseShape)}
    assert seen <= known


@pytest.mark.parametrize("tp", [1, 2])
def test_torch_modules_hold_their_logits_in_fp32_through_backward(tp):
    head = built(small("llama2-7b"), kernels="torch-modules", tp=tp).layers[-1]
    logits = 4 * 2 * 256 * 32000  # and as much: their log-softmax, its gradient, their gradient
    assert head.saved_bytes + head.transient_bytes == pytest.approx(4 * logits, rel=0.1)


def test_a_window_leaves_out_what_is_older():
    spec = small("llama2-7b", sliding_window=64, full_attention_blocks=(1,))
    whole, windowed = (built(s, attention="flash", sequence_length=256) for s in (small("llama2-7b"), spec))
    (full,) = shapes_of_kind(whole.layers[2], AttentionShape)
    (narrow,) = shapes_of_kind(windowed.layers[1], AttentionShape)
    assert shapes_of_kind(windowed.layers[2], AttentionShape) == [full]
    assert narrow.n_flops / full.n_flops == 1 - (256 - 64) ** 2 / 256**2
    assert built(spec, sequence_length=64).layers[1] == built(small("llama2-7b"), sequence_length=64).layers[1]


def shapes_of_kind(layer, kind):
    return [item for item in layer.forward if isinstance(item, kind)]


def test_the_position_bias_of_t5_keeps_plain_code_from_fused_attention():
    t5, gpt2 = find_spec("t5-base"), find_spec("gpt2")
    assert not any(STYLES[name].fuses_attention(t5) for name in ("hf-eager", "torch-modules", "eager-fused-norm"))
    assert STYLES["megatron"].fuses_attention(t5) and STYLES["hf-eager"].fuses_attention(gpt2)


def test_hand_written_kernels_pass_three_times_over_the_logits_and_copy_nothing_around_attention():
    """karpathy/llm.c@f1e2ace651, fused_classifier.cuh: two reads and one write, none in backward; cudnn_att.cpp: one dqkv."""
    whole, by_hand = (built(small("gpt2"), kernels=kernels, attention="flash") for kernels in ("fused", "hand-written"))
    logits_bytes = 2 * 256 * whole.layers[-1].forward[1].n * 2
    (loss,) = [item for item in by_hand.layers[-1].forward if item.name == "classifier"]
    assert loss.n_bytes == 3 * logits_bytes
    assert [i.name for i in by_hand.layers[-1].backward] == ["logits", "logits", "layer_norm"]
    names = [[i.name for i in shapes(model.layers[1].backward)] for model in (whole, by_hand)]
    assert names[0].count("cat") == 1 and [name for name in names[0] if name != "cat"] == names[1]
    split = [built(small("gpt2"), kernels=kernels, tp=2).layers[-1].forward for kernels in ("fused", "hand-written")]
    assert split[0][1:] == split[1][1:]  # a vocabulary that ranks share needs its sums between the passes


def test_bert_by_hand_adds_its_mask_and_the_bias_before_its_activation():
    """NVIDIA/DeepLearningExamples@482fe9ac8a, BERT/modeling.py: one sum over all scores and one over the MLP's width, forward only."""
    plain, by_hand = (
        built(small("bert-base"), kernels=kernels, attention="eager", precision="fp16").layers[1]
        for kernels in ("torch-modules", "eager-fused-norm")
    )
    scores, inner = 2 * 12 * 256 * 256, 2 * 256 * 3072

    def sums(items):
        return sorted(item.n_elements for item in shapes(items) if item.name == "add")

    assert sums(by_hand.forward) == sorted([*sums(plain.forward), scores, inner])
    assert sums(by_hand.backward) == sums(plain.backward)
    gpt2 = [built(small("gpt2"), kernels=k, attention="eager").layers[1] for k in ("torch-modules", "eager-fused-norm")]
    assert sums(gpt2[0].forward) == sums(gpt2[1].forward)


@pytest.mark.parametrize(("is_split", "inside"), [(False, 5), (True, 2)])
def test_modules_of_a_laboratory_reduce_behind_every_column_parallel_product(is_split, inside):
    """Aleph-Alpha/scaling, ``column_parallel_linear.py``, ``mlp.py``, with q, k, v, gate and up apart; norms gather once."""
    layers = built(
        small("llama2-7b"), kernels="torch-modules", tp=2, sequence_parallel=is_split, recompute="full"
    ).layers
    points = [item for item in layers[1].backward if isinstance(item, CommunicationPoint) and item.operator == "f"]
    assert len(points) == inside
    again = [item for item in layers[-1].recompute if isinstance(item, CommunicationPoint)]
    assert [item.operator for item in again if item.operator == "logits"] == ["logits"]  # the head is checkpointed, too


def test_forks_of_2021_reduce_behind_the_products_of_backward():
    """bigscience-workshop/ and microsoft/Megatron-DeepSpeed, ``mpu/layers.py``: ``copy_to_tensor_model_parallel_region``."""
    for beside in (True, False):
        block = built(small("gpt2"), kernels="megatron", tp=4, reduces_beside=beside).layers[1]
        points = [item for item in block.backward if isinstance(item, CommunicationPoint) and item.operator == "f"]
        assert [point.overlaps for point in points] == [int(beside)] * 2


@pytest.mark.parametrize(
    ("name", "tp", "fits"), [("nemotron-h-56b", 8, True), ("falcon-h1-7b", 2, False), ("granite-4.0-h-small", 2, False)]
)
def test_ranks_do_not_share_a_group_of_mamba2(name, tp, fits):
    """NVIDIA/Megatron-LM, ``core/ssm/mamba_mixer.py``: "ngroups must be evenly divisible by tp_size"; 8 groups, and one."""
    spec = rename(CATALOG[name], "x", layers=2)
    if fits:
        assert built(spec, tp=tp).layers
        return
    with pytest.raises(InfeasiblePlanError, match=f"tp={tp} does not divide ssm_groups=1"):
        built(spec, tp=tp)


@pytest.mark.parametrize(("precision", "length", "tp", "wrong"), [
    ("mxfp8", 1024, 1, ""), ("mxfp8", 1000, 1, "1000 tokens"), ("mxfp8", 1008, 1, "1008 tokens"), ("nvfp4", 1008, 1, ""),
    ("nvfp4", 1000, 1, "1000 tokens"), ("fp8_current", 1000, 1, ""), ("bf16", 1000, 1, ""),
    ("mxfp8", 1024, 4, "688 inputs of mlp_down"), ("nvfp4", 1024, 4, ""),
])  # fmt: skip
def test_formats_with_scales_of_blocks_refuse_what_is_no_whole_blocks(precision, length, tp, wrong):
    """NVIDIA/TransformerEngine, ``MXFP8Quantizer.make_empty``: "Incorrect shape ... for MXFP8. Tensor dims must be divisible by 32", NVFP4
    by 16. 2,752 channels are 688 on each of four ranks: 21.5 blocks of 32, 43 of 16; gate and up together are 43 of 32."""
    spec = rename(find_spec("llama2-7b"), "x", layers=1, ffn_hidden=2752)
    setting = RankSetting(micro_batch=1, sequence_length=length, tp=tp, precision=precision, kernels="fused")
    if not wrong:
        assert build_model(spec, setting).layers
        return
    with pytest.raises(InfeasiblePlanError, match=f"{precision}.*{wrong}"):
        build_model(spec, setting)


def test_experts_and_heads_that_are_padded_or_wide_need_no_whole_blocks():
    """Experts' rows are padded to blocks (``moe_router_padding_for_fp8``), and the head's product stays in 16 bits."""
    spec = rename(find_spec("qwen3-30b-a3b"), "x", layers=1, vocab=1001)
    setting = RankSetting(micro_batch=1, sequence_length=96, precision="mxfp8", kernels="fused")
    found = [i for layer in build_model(spec, setting).layers for i in layer.forward if isinstance(i, GemmShape)]
    assert all(size % 32 == 0 for i in found if i.dtype == "mxfp8" for size in (i.m, i.n, i.k))
    assert {i.dtype for i in found if i.name in ("logits", "router")} == {"bf16"}
