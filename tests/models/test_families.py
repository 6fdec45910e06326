"""Families of 2024 to 2026: parameters as transformers counts them, and products that follow from the parameters."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import InfeasiblePlanError
from simulator.interop.models.hf_config import FAMILIES, import_hf_config
from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, find_spec, rename
from simulator.models.flops import forward_flops_per_token, model_flops_per_sequence
from simulator.models.layer import AttentionShape, CommunicationPoint, GemmShape, PointwiseShape
from simulator.models.setting import RankSetting
from simulator.models.spec import ModelSpec
from simulator.parallel.context import exchange_context
from simulator.parallel.rank_model import model_for
from simulator.parallel.stage import template_of
from simulator.plan import ParallelPlan
from simulator.program.op import HostWork
from tests.models.active import n_active_parameters

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
    "glm-5.2": 743_377_000_704,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "minimax-m2": 228_689_748_992,
    "llama4-scout": 107_769_861_120,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "nemotron-h-56b": 56_324_350_464,
    "nemotron-3-nano": 31_577_937_344,
    "nemotron-3-nano-4b": 3_973_556_832,
    "nemotron-3-super": 120_668_687_360,
    "nemotron-3-ultra": 549_308_968_960,
    "gemma-4-31b": 30_697_345_280,
    "gemma-4-26b-a4b": 25_233_141_760,
    "glm-4.7-flash": 29_943_390_976,
    "mimo-v2-flash": 308_778_768_832,
    "kimi-linear-48b-a3b": 49_122_675_072,
    "falcon-h1-7b": 7_585_513_568,
    "lfm2-1.2b": 1_170_340_608,
    "granite-4.0-h-small": 32_207_337_984,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-122b-a10b": 122_111_526_912,
    "qwen3.5-397b-a17b": 396_346_350_336,
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
        assert n_active_parameters(CATALOG[name]) / 1e9 == pytest.approx(billions, rel=0.08)


def small(name, **changes):
    spec = CATALOG[name]
    cut = {"layers": 4} if len(spec.blocks) > 4 else {}
    return rename(spec, "x", **(cut | changes))


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
    model = build_model(spec, RankSetting(micro_batch=3, sequence_length=1024, kernels=kernels))
    products = [
        item
        for layer in model.layers
        for item in layer.forward
        if isinstance(item, GemmShape) and item.name != "index_scores"
    ]
    assert sum(item.n_flops for item in products) == pytest.approx(2.0 * 3 * 1024 * matrix_elements(spec), rel=2e-3)


@pytest.mark.parametrize("name", [*PUBLISHED, "llama3-8b", "mixtral-8x7b"])
def test_flops_of_a_token_are_those_of_its_products_and_scores(name):
    """Chowdhery et al., arXiv:2204.02311, appendix B; states, the mixing of streams, and scores
    of an index, whose kernel leaves out later keys, add up to two per cent.
    """
    spec = small(name, layers=8) if len(CATALOG[name].blocks) > 8 else small(name)
    model = build_model(spec, RankSetting(micro_batch=3, sequence_length=512, kernels="fused"))
    items = [item for layer in model.layers for item in layer.forward]
    products = sum(item.n_flops for item in items if isinstance(item, GemmShape))
    counted = products + sum(item.whole_flops for item in items if isinstance(item, AttentionShape))
    has_more = (
        spec.residual_streams or spec.index_heads or any(kind in block for block in spec.blocks for kind in "MmGdpsl")
    )
    assert 0.999 < 3 * 512 * forward_flops_per_token(spec, 512) / counted < (1.02 if has_more else 1.001)


def test_frozen_weights_have_no_gradients_and_scores_have():
    """Without products for the gradients of weights two passes are left of three, and scores, which have no weights, keep theirs."""
    spec = find_spec("falcon-h1-7b-4layers")
    scores = 4 * 4 * spec.heads * spec.head_dim * 1024
    forward = forward_flops_per_token(spec, 1024)
    assert model_flops_per_sequence(spec, 1024, is_frozen=True) == pytest.approx(1024 * (2 * forward + scores))


@pytest.mark.parametrize(
    ("tp", "window", "whole"), [(2, 16 + 2 * 8, 16 + 2), (4, 16 + 2 * 8, 16 + 4), (8, 16 + 2 * 8, 16 + 8)]
)
def test_ranks_hold_a_key_value_head_of_each_block_however_few_it_has(tp, window, whole):
    """Gemma 4 26B: 25 blocks of 16 and 8 heads of 256, and 5 of 16 and 2 of 512 whose keys are values, too; 2816 wide."""
    model = build_model(CATALOG["gemma-4-26b-a4b"], RankSetting(micro_batch=1, sequence_length=512, tp=tp))
    projections = [item for layer in model.layers for item in layer.forward if getattr(item, "name", "") == "qkv"]
    columns = 25 * window * 256 + 5 * whole * 512
    assert sum(item.n_flops for item in projections) == 2.0 * 512 * 2816 * columns / tp


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("lfm2-1.2b-1layers", {"causal_conv1d": 1, "mul": 2, "rms_norm": 2}),
        ("kimi-linear-48b-a3b-1layers", {"causal_conv1d": 1, "rms_norm": 3}),
        ("falcon-h1-7b-1layers", {"causal_conv1d": 1, "rms_norm": 2}),
        ("gemma-4-26b-a4b-1layers", {"rms_norm": 9}),
    ],
)
def test_kernels_of_mixers(name, counts):
    """Gates before and behind LFM2's convolution (arXiv:2511.23404, section 2); queries, keys and values of Kimi Linear are convolved,
    its output is normed (arXiv:2510.26692, section 3); Falcon-H1 norms nothing inside (``mamba_rms_norm`` false); Gemma 4 has seven
    norms in a layer with experts, and those of queries and keys (transformers, ``modeling_gemma4.py``).
    """
    layers = build_model(find_spec(name), RankSetting(micro_batch=1, sequence_length=512, kernels="fused")).layers
    (block,) = (layer for layer in layers if "block" in layer.name)
    names = [getattr(item, "name", "") for item in block.forward]
    assert {kernel: names.count(kernel) for kernel in counts} == counts


def test_ranks_divide_the_sizes_of_every_block():
    """Llama-3.3-Nemotron-Super cuts MLPs block by block; Megatron-Core splits each over all ranks."""
    cut = rename(CATALOG["llama3-8b"], "cut", layers=2, of_blocks=(("ffn_hidden", (14336, 14337)),))
    with pytest.raises(InfeasiblePlanError, match="tp=2 does not divide ffn_hidden=14337"):
        build_model(cut, RankSetting(micro_batch=1, sequence_length=512, tp=2))


def test_layers_that_share_a_choice_of_keys_have_no_index():
    """GLM-5.2, ``indexer_types``: three layers choose, then every fourth; all see as many keys."""
    model = build_model(
        find_spec("glm-5.2-12layers"), RankSetting(micro_batch=1, sequence_length=4096, kernels="fused")
    )
    blocks = [layer for layer in model.layers if "block" in layer.name]
    chooses = [any(getattr(item, "name", "") == "index_scores" for item in layer.forward) for layer in blocks]
    assert chooses == [True, True, True, False, False, False, True, False, False, False, True, False]
    windows = {item.window for layer in blocks for item in layer.forward if isinstance(item, AttentionShape)}
    assert windows == {2048}


def test_a_window_and_chunks_leave_out_scores():
    spec = CATALOG["gpt-oss-20b"]
    model = build_model(small("gpt-oss-20b"), RankSetting(micro_batch=1, sequence_length=4096, kernels="fused"))
    attention = [item for layer in model.layers for item in layer.forward if type(item).__name__ == "AttentionShape"]
    assert [item.window for item in attention] == [128, 0, 128, 0]
    assert spec.blocks[:4] == ("wE", "*E", "wE", "*E")
    chunked = build_model(small("llama4-scout"), RankSetting(micro_batch=1, sequence_length=32768, kernels="fused"))
    attention = [item for layer in chunked.layers for item in layer.forward if type(item).__name__ == "AttentionShape"]
    assert [(item.batch, item.seq_q) for item in attention] == [(4, 8192)] * 3 + [(1, 32768)]


def test_attention_stays_within_packed_documents():
    """Sixteen documents of 256 tokens have a sixteenth of the scores of one of 4,096; as many rows are read and written."""
    shapes = []
    for length in (0, 256, 5000):
        setting = RankSetting(micro_batch=2, sequence_length=4096, document_length=length, kernels="fused")
        layers = build_model(small("llama2-7b"), setting).layers
        shapes.append(next(i for layer in layers for i in layer.forward if type(i).__name__ == "AttentionShape"))
    whole, packed, longer = shapes
    assert (packed.batch, packed.seq_q, packed.seq_k) == (32, 256, 256)
    assert packed.n_flops == whole.n_flops / 16 and packed.n_bytes == whole.n_bytes
    assert longer == whole


@pytest.mark.parametrize("modules", [(), ("attention",)])
@pytest.mark.parametrize("length", [190, 70, 23])
def test_documents_that_do_not_fill_a_sequence_lose_no_token(modules, length):
    """4,096 tokens hold 21 documents of 190 and a rest; the projection behind attention multiplies all of them."""
    setting = RankSetting(
        micro_batch=2,
        sequence_length=4096,
        document_length=length,
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


@pytest.mark.parametrize("cp", [1, 2])
@pytest.mark.parametrize("seen", [300, 1100, 1500, 2047, 2049, 3000, 4000, 4096, 9000])
def test_unequal_documents_go_smoothly_to_one_that_fills_the_sequence(seen, cp):
    """A causal query sees half of its document at the mean: tokens x seen / 2 pairs, none in a longer document than the sequence."""
    s, spec = 4096, small("llama2-7b")
    plan = ParallelPlan(document_length=256, document_spread=(seen / 256 - 1) ** 0.5, sequence_length=s, micro_batch=1, cp=cp,
                        framework="megatron-core", cp_comm_type="a2a")  # fmt: skip
    model = model_for(spec, plan)
    items = exchange_context(model.layers[1].forward, plan)
    (shape,) = [item for item in items if isinstance(item, AttentionShape)]
    width = spec.heads * spec.head_dim // cp
    assert shape.n_flops == pytest.approx(4 * width * s * min(seen, s) / 2, rel=0.01)
    assert shape.whole_flops == pytest.approx(4 * width * s * min(seen, s), rel=0.01)
    narrow = replace(shape, dtype="fp8", kernel_pass="backward")
    assert narrow.reach == shape.reach  # where a document ends kernels of eight bits end, too


@pytest.mark.parametrize("length", [128, 256, 2048])
@pytest.mark.parametrize("rank", [0, 8])
def test_model_flops_of_packed_documents_are_the_sum_of_squares(length, rank):
    """NVIDIA-NeMo/Megatron-Bridge, pull request 3839: the term of attention, 4 s^2 h of a sequence forward and twice as much backward,
    is 4 h times the sum of the squares of the documents'; frozen weights do not change it."""
    spec = small("llama2-7b")
    s, width = 4096, spec.heads * spec.head_dim
    whole, packed = (
        build_model(
            spec,
            RankSetting(
                micro_batch=1, sequence_length=s, document_length=n, kernels="fused", lora_rank=rank, lora_targets=()
            ),
        ).model_flops_per_sequence
        for n in (0, length)
    )
    squares = sum(length**2 for _ in range(s // length))
    assert whole - packed == pytest.approx(3 * 4 * width * (s**2 - squares) * spec.layers, rel=1e-12)


@pytest.mark.parametrize(("name", "length", "seen"), [
    ("gpt-oss-20b", 64, {"wE": 64, "*E": 64}), ("gpt-oss-20b", 1024, {"wE": 128, "*E": 1024}),
    ("llama4-scout", 16384, {"cE": 8192, "*E": 16384}), ("llama4-scout", 4096, {"cE": 4096, "*E": 4096}),
])  # fmt: skip
def test_windows_and_chunks_lie_within_documents(name, length, seen):
    """A window of 128 tokens, chunks of 8,192: a token sees the shorter of them and its document, in both counts."""
    spec = small(name)
    s = 32768
    setting = RankSetting(micro_batch=1, sequence_length=s, document_length=length, kernels="fused")
    layers = build_model(spec, setting).layers
    shapes = [item for layer in layers for item in layer.forward if type(item).__name__ == "AttentionShape"]
    keys = [seen[block] for block in spec.blocks]
    width = spec.heads * spec.head_dim
    assert [shape.whole_flops for shape in shapes] == [4 * width * s * n for n in keys]
    whole = build_model(spec, RankSetting(micro_batch=1, sequence_length=s, kernels="fused")).model_flops_per_sequence
    unlimited = [{"w": 128, "c": 8192}.get(block[0], s) for block in spec.blocks]
    less = whole - build_model(spec, setting).model_flops_per_sequence
    assert less == pytest.approx(3 * 4 * width * s * (sum(unlimited) - sum(keys)), rel=1e-9)


def test_documents_that_no_kernel_is_told_of_count_whole():
    spec = small("llama2-7b")
    one, packed = (
        build_model(
            spec,
            RankSetting(micro_batch=1, sequence_length=4096, document_length=n, kernels="fused", attention="eager"),
        )
        for n in (0, 256)
    )
    assert one.model_flops_per_sequence == packed.model_flops_per_sequence


@pytest.mark.parametrize(("release", "n_lengths"), [("26.04", 2), ("26.08", 0)])
def test_rotations_by_operation_take_packed_documents_one_after_the_other(release, n_lengths):
    """NVIDIA/Megatron-LM, ``rope_utils.py`` of June 2026: lengths are read once for the queries and once for the keys; each of four
    documents has its sines and cosines (cos, sin, two factors, two casts), two products, a negation, two concatenations and a sum, 4 x 12,
    and a concatenation joins them. On 22 August all are rotated at once, by a table that is gathered, and nothing is asked."""
    plan = ParallelPlan(
        framework="megatron-core", release=release, precision="bf16", micro_batch=1, sequence_length=2048, document_length=512,
        rope_fusion=False,
    )  # fmt: skip
    block = next(layer for layer in model_for(small("llama2-7b"), plan).layers if "block" in layer.name)
    points = [item.operator for item in block.forward if isinstance(item, CommunicationPoint)]
    names = [item.name for item in block.forward if isinstance(item, PointwiseShape)]
    assert points.count("lengths") == n_lengths
    assert "rotary" not in names and names.count("gather") == (0 if n_lengths else 2)
    for name, each, joins in (("cos", 1, 0), ("sin", 1, 0), ("neg", 1, 0), ("cast", 2, 0), ("cat", 2, 1)):
        assert names.count(name) == (2 * (4 * each + joins) if n_lengths else 2 * each), name
    n = 2048 * small("llama2-7b").hidden
    assert sum(item.n_elements for item in block.forward if getattr(item, "name", "") == "neg") == 2 * n // 2


@pytest.mark.parametrize("fuses", [True, False])
def test_a_host_that_reads_the_lengths_of_documents_waits_for_the_device(fuses):
    plan = ParallelPlan(
        framework="megatron-core", release="26.04", precision="bf16", micro_batch=1, sequence_length=2048, document_length=512,
        rope_fusion=fuses, gpus=1, global_batch=1,
    )  # fmt: skip
    layer = next(layer for layer in model_for(small("llama2-7b"), plan).layers if "block" in layer.name)
    entries = template_of(layer, "F", plan, None).entries
    waits = [entry.op.name for entry in entries if isinstance(entry.op, HostWork)]
    assert waits == ([] if fuses else ["wait for lengths of documents"] * 2)


def test_prediction_modules_cost_a_block_a_head_and_a_projection():
    spec = small("deepseek-v3", dense_layers=0)
    with_module = rename(spec, "y", mtp_layers=1)
    plain, more = (
        build_model(s, RankSetting(micro_batch=1, sequence_length=512, kernels="fused")) for s in (spec, with_module)
    )
    extra = more.model_flops_per_sequence - plain.model_flops_per_sequence
    block = (
        plain.model_flops_per_sequence
        - build_model(
            rename(spec, "z", layers=3), RankSetting(micro_batch=1, sequence_length=512, kernels="fused")
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
    setting = RankSetting(micro_batch=1, sequence_length=4096, precision="bf16", kernels="fused")
    shapes = {
        (kernel.window, kernel.gathered)
        for layer in build_model(find_spec("deepseek-v4-flash"), setting).layers
        for kernel in layer.forward
        if isinstance(kernel, AttentionShape)
    }
    assert shapes == {(128, 0), (128 + 384, 384), (128 + 16, 0)}


def moved(items, names, sizes):
    return sum(i.n_bytes for i in items if isinstance(i, PointwiseShape) and i.name in names and i.n_elements in sizes)


def test_a_rotation_with_a_factor_runs_operation_by_operation_in_megatron():
    """``_apply_rotary_pos_emb_bshd`` by hand, in passes over the rotated tensor. Forward two products (2 each), the negated half (1),
    two concatenations (2 each), a sum (3); backward the products, the negated half, the halves' concatenation, two sums and zeros.
    """
    setting = RankSetting(micro_batch=1, sequence_length=1024, kernels="fused")
    block = next(layer for layer in build_model(small("gpt-oss-20b"), setting).layers if "block" in layer.name)
    names = ("mul", "neg", "cat", "add", "fill")
    for heads in (64, 8):
        n = 1024 * heads * 64
        assert moved(block.forward, names, {n, n // 2}) == 12 * 2 * n
        assert moved(block.backward, names, {n, n // 2}) == 14 * 2 * n
    assert not [i for i in block.forward if getattr(i, "name", "") == "rotary"]
    plain = build_model(small("gpt-oss-20b", scales_rotation=False), setting)
    assert {
        [getattr(i, "name", "") for i in layer.forward].count("rotary")
        for layer in plain.layers
        if "block" in layer.name
    } == {2}


@pytest.mark.parametrize(
    ("framework", "release", "is_unfused"),
    [("megatron", "23.08", True), ("megatron", "23.11", False), ("megatron", None, False), ("megatron-deepspeed", None, True)],
)  # fmt: skip
def test_gates_and_rotations_of_early_megatron_run_operation_by_operation(framework, release, is_unfused):
    """``F.silu(x[0]) * x[1]`` of a chunked product by hand, in passes over the gate of NVIDIA/Megatron-LM before 8503f754: forward silu (2)
    and the product (3); backward two products (3 each), silu's (3) and the concatenation of both gradients (4).
    """
    plan = ParallelPlan(framework=framework, release=release, precision="bf16", micro_batch=1, sequence_length=1024)
    block = next(layer for layer in model_for(small("llama2-7b"), plan).layers if "block" in layer.name)
    n = 1024 * small("llama2-7b").ffn_hidden
    found = [moved(items, ("silu", "mul", "cat"), {n, 2 * n}) for items in (block.forward, block.backward)]
    assert found == ([2 * 5 * n, 2 * 13 * n] if is_unfused else [0, 0])
    names = [getattr(item, "name", "") for item in block.forward]
    assert (names.count("rotary"), names.count("swiglu")) == ((0, 0) if is_unfused else (2, 1))


@pytest.mark.parametrize(("kind", "expected"), [("yarn", True), ("default", False), (None, True)])
def test_a_stretched_rotation_is_read(tmp_path, kind, expected):
    config = {"model_type": "gpt_oss", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
              "intermediate_size": 64, "vocab_size": 128, "num_local_experts": 4, "num_experts_per_tok": 2}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | ({"rope_scaling": {"rope_type": kind, "factor": 32.0}} if kind else {})))
    assert import_hf_config(path).spec.scales_rotation is expected


def test_queries_that_share_keys_are_copied_out_of_their_projection():
    """Megatron-Core's ``reshape`` of a group's queries and Transformer Engine's ``contiguous`` of values copy; of multi-head attention
    the three are views. A fused kernel that rotates the projection as it is needs neither, nor their gradients' concatenation."""
    found = {}
    for name, fuses in (("llama2-70b", False), ("llama2-7b", False), ("llama2-70b", True)):
        setting = RankSetting(micro_batch=1, sequence_length=1024, kernels="fused", fuses_operations=fuses)
        layers = build_model(rename(CATALOG[name], "x", layers=1), setting).layers
        found[name, fuses] = [
            [i.n_bytes for layer in layers for i in items(layer) if i.name == kernel]
            for items, kernel in ((lambda layer: layer.forward, "copy"), (lambda layer: layer.backward, "cat"))
        ]
    q, v = 1024 * 8192, 1024 * 1024
    assert found["llama2-70b", False] == [[4 * q, 4 * v], [4 * (q + 2 * v)]]
    assert found["llama2-7b", False] == [[], [4 * 3 * 1024 * 4096]]
    assert found["llama2-70b", True] == [[], []]


@pytest.mark.parametrize(
    ("settings", "n_kernels"),
    [
        ({"permutes_by_scan": True, "sorts_arrivals": True}, 72),
        ({"sorts_arrivals": True}, 31),
        ({"sorts_arrivals": False}, 17),
    ],
)
def test_kernels_from_the_routers_logits_to_the_exchange_are_as_many_as_were_counted(settings, n_kernels):
    """NVIDIA/Megatron-LM, ``docs/discussions/deepseek-v3-gb200-optimization``, sections 2.1.4 and 2.2.1."""
    spec = rename(CATALOG["deepseek-v3"], "x", layers=1, dense_layers=0, mtp_layers=0)
    setting = RankSetting(micro_batch=1, sequence_length=4096, ep=64, kernels="fused", **settings)
    items = build_model(spec, setting).layers[1].forward
    router = next(place for place, item in enumerate(items) if getattr(item, "name", "") == "router")
    exchange = next(place for place, item in enumerate(items) if getattr(item, "operator", "") == "dispatch")
    assert exchange - router - 1 == n_kernels


def test_a_router_in_fp32_widens_its_input_and_narrows_its_gradient_in_backward():
    """NVIDIA/Megatron-LM, ``core/transformer/moe/moe_utils.py``, ``RouterGatingLinearFunction``: forward reads 16 bits and writes
    fp32, both gradients are products of fp32 and the input's is narrowed; as many FLOPs as in 16 bits."""
    spec = rename(CATALOG["qwen3-30b-a3b"], "x", layers=1)
    tokens, hidden, experts = 4096, spec.hidden, spec.n_experts
    layers = {}
    for fp32 in (False, True):
        setting = RankSetting(micro_batch=1, sequence_length=tokens, ep=8, kernels="fused", router_fp32=fp32)
        layers[fp32] = build_model(spec, setting).layers[1]
    forward, *_ = [i for i in layers[True].forward if getattr(i, "name", "") == "router"]
    assert forward.dtype == "bf16" and forward.n_bytes == 2 * hidden * (tokens + experts) + 4 * tokens * experts
    backward = [i for i in layers[True].backward if getattr(i, "name", "") == "router"]
    assert [i.dtype for i in backward] == ["tf32", "tf32"]
    moved = [(i.read_bytes, i.written_bytes) for i in layers[True].backward if getattr(i, "name", "") == "cast"]
    assert sorted(moved) == [(2 * tokens * hidden, 4 * tokens * hidden), (4 * tokens * hidden, 2 * tokens * hidden)]
    flops = [sum(getattr(i, "n_flops", 0) for i in (*each.forward, *each.backward)) for each in layers.values()]
    assert flops[0] == flops[1]
