"""Models of images and sound, and DeepSeek-V4: parameters of transformers, FLOPs of torch's counter, products and sizes."""

import json

import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.calibration.kernel_rows import shape_of
from simulator.errors import InfeasiblePlanError
from simulator.interop.models.hf_config import parse_hf_config
from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, find_spec
from simulator.models.compressed import seen_keys
from simulator.models.flops import _score_flops, forward_flops_per_token
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape
from simulator.models.setting import RankSetting

#: catalogue name -> parameters of transformers 5.23 on the meta device, and what ``torch.utils.flop_counter`` counts in a forward
#: pass of two samples (attention by SDPA) through ViTForImageClassification with 1,000 classes, CLIPModel (without the products of
#: its comparison: 4 x 512 or 768 x 2) and WhisperForConditionalGeneration (3,000 frames, 448 tokens)
COUNTED = {
    "vit-base": (86_567_656, 70_255_312_896),
    "vit-large": (304_326_632, 246_218_850_304),
    "vit-huge": (632_045_800, 669_180_436_480),
    "clip-vit-base-patch32": (151_277_313, 29_554_331_648 - 8 * 512),
    "clip-vit-base-patch16": (149_620_737, 82_172_899_328 - 8 * 512),
    "clip-vit-large-patch14": (427_616_513, 350_650_447_872 - 8 * 768),
    "whisper-tiny": (37_760_640, 142_164_393_984),
    "whisper-base": (72_593_920, 302_103_658_496),
    "whisper-small": (241_734_912, 1_086_551_556_096),
    "whisper-medium": (763_857_920, 3_476_234_174_464),
    "whisper-large-v3": (1_543_490_560, 6_896_958_177_280),
}

#: what the hub's config.json of these models say, their other keys left out
CONFIGS = {
    "vit-base": {"model_type": "vit", "image_size": 224, "id2label": {str(i): str(i) for i in range(1000)}},
    "clip-vit-large-patch14": {
        "model_type": "clip", "projection_dim": 768,
        "text_config": {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "num_hidden_layers": 12},
        "vision_config": {
            "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14,
        },
    },
    "whisper-large-v3": {
        "model_type": "whisper", "d_model": 1280, "encoder_layers": 32, "decoder_layers": 32, "encoder_attention_heads": 20,
        "decoder_attention_heads": 20, "encoder_ffn_dim": 5120, "decoder_ffn_dim": 5120, "vocab_size": 51866, "num_mel_bins": 128,
    },
}  # fmt: skip

#: a small DeepSeek-V4 with one block of each kind, of which transformers 5.23 has 358,077 parameters
TINY = {
    "model_type": "deepseek_v4", "vocab_size": 256, "hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 32, "q_lora_rank": 16, "num_experts_per_tok": 2,
    "n_routed_experts": 8, "n_shared_experts": 1, "max_position_embeddings": 512, "qk_rope_head_dim": 8,
    "compress_ratios": [0, 0, 4, 128, 0], "hc_mult": 4, "sliding_window": 64, "o_groups": 2, "o_lora_rank": 8, "index_n_heads": 4,
    "index_head_dim": 16, "index_topk": 32, "num_hash_layers": 1, "num_nextn_predict_layers": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_parameters_and_flops_are_those_of_transformers_and_torch(name):
    spec, (parameters, flops) = find_spec(name), COUNTED[name]
    assert spec.n_parameters == parameters
    length = spec.max_positions
    assert 2 * length * forward_flops_per_token(spec, length) == pytest.approx(flops, rel=1e-12)


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_give_the_catalogues_models(name):
    found = parse_hf_config(json.dumps(CONFIGS[name]), "config.json", name=name)
    assert found.spec.to_dict() == CATALOG[name].to_dict()
    assert not found.report.unknown


@pytest.mark.parametrize("kernels", ["hf-eager", "megatron", "fused"])
@pytest.mark.parametrize("name", ["vit-base", "clip-vit-base-patch32", "whisper-tiny"])
def test_the_layers_launch_the_products_of_the_formula(name, kernels):
    """Without a causal mask every score is computed; with one, half of them: of CLIP's text and Whisper's decoder."""
    spec = find_spec(name)
    model = build_model(spec, RankSetting(micro_batch=2, sequence_length=spec.max_positions, kernels=kernels))
    products = [i for layer in model.layers for i in layer.forward if isinstance(i, GemmShape | AttentionShape)]
    masked = sum(i.n_flops for i in products if isinstance(i, AttentionShape) and i.causal)
    compared = 2 * 2 * 2 * spec.projection if spec.image else 0
    assert sum(i.n_flops for i in products) + masked - compared == pytest.approx(COUNTED[name][1], rel=1e-9)


def test_both_stacks_keep_their_own_sequences():
    """Whisper's encoder has 1,500 positions whatever the decoder's length, and the decoder looks at all of them."""
    model = build_model(find_spec("whisper-tiny"), RankSetting(micro_batch=1, sequence_length=100, kernels="fused"))
    shapes = [i for layer in model.layers for i in layer.forward if isinstance(i, AttentionShape)]
    assert [(s.seq_q, s.seq_k) for s in shapes] == [(1500, 1500)] * 4 + [(100, 100), (100, 1500)] * 4
    with pytest.raises(InfeasiblePlanError, match="pp=2: whisper-tiny has two stacks"):
        simulate(Scenario(topology="dgx-h100", model="whisper-tiny", plan=ParallelPlan(pp=2)))


def test_deepseek_v4_has_the_parameters_and_products_of_transformers():
    """``FlopCounterMode`` counts 245,760,000 in 256 tokens of transformers' eager attention, which scores all keys of all blocks."""
    found = parse_hf_config(json.dumps(TINY), "config.json", name="tiny")
    spec, n = found.spec, 256
    assert spec.n_parameters == 358_077
    assert spec.blocks == ("wE", "wE", "kE", "hE")
    assert any("multi-token-prediction" in line for line in found.report.assumed)
    forward = forward_flops_per_token(spec, n)
    for block in spec.blocks:
        made = {"w": 0, "k": n // 4, "h": n // 128}[block[0]]
        forward += 4 * 4 * 32 * (n + made) + (2 * 4 * 16 * made if block[0] == "k" else 0)
        forward -= _score_flops(spec, block[0], n)
    assert n * forward == 245_760_000


def test_a_query_of_deepseek_v4_sees_its_window_and_compressed_keys():
    """Of 4,096 tokens: 32 keys of 128 tokens, half of them earlier; of 1,024 keys of 4 tokens 512, fewer for the first half."""
    spec = CATALOG["deepseek-v4-flash"]
    seen = sum(min(512, t // 4) for t in range(4096)) / 4096
    assert (seen_keys(spec, "h", 4096), seen_keys(spec, "k", 4096)) == (16, pytest.approx(seen, abs=1))
    model = build_model(
        find_spec("deepseek-v4-flash-4layers"), RankSetting(micro_batch=1, sequence_length=4096, kernels="fused")
    )
    windows = [i.window for layer in model.layers for i in layer.forward if isinstance(i, AttentionShape)]
    assert windows == [128, 128, 128 + 384, 128 + 16]


def test_scores_of_deepseek_v4_by_hand():
    """64 heads of 512 channels, two products of each: a window of 128 tokens; 32 keys of 128 tokens beside it; or 512 chosen among
    1,024 keys of 4 tokens, all of which 64 heads of 128 channels score. An early window is not full yet."""
    spec, one_key = CATALOG["deepseek-v4-flash"], 2 * 2 * 64 * 512
    found = [_score_flops(spec, kind, 4096) for kind in "whk"]
    assert found == [one_key * 128, one_key * (128 + 32), one_key * (128 + 512) + 2 * 64 * 128 * 1024]
    assert _score_flops(spec, "w", 64) == one_key * 64


def test_windows_of_deepseek_v4_make_one_key_each():
    """Of 4,096 tokens 1,024 keys of 4 and 32 of 128, of 512 channels; of causal scores in four bytes half is there to choose from."""
    setting = RankSetting(micro_batch=1, sequence_length=4096, kernels="fused")
    model = build_model(find_spec("deepseek-v4-flash-4layers"), setting)
    sparse, dense = ([i for i in model.layers[n].forward if isinstance(i, PointwiseShape)] for n in (3, 4))
    keys = [next(i.n_elements for i in items if i.name == "softmax" and i.dtype == "bf16") for items in (sparse, dense)]
    assert keys == [1024 * 512, 32 * 512]
    assert next(i.read_bytes for i in sparse if i.row_length == 1024) == 4096 * 1024 / 2 * 4


def test_blocks_hand_on_every_copy_of_the_residual_stream():
    setting = RankSetting(micro_batch=1, sequence_length=4096, kernels="fused")
    model = build_model(find_spec("deepseek-v4-flash-4layers"), setting)
    assert {layer.output_bytes for layer in model.layers[:-1]} == {4 * 4096 * 4096 * 2}


@pytest.mark.parametrize(("notes", "seen"), [
    ("DeepSeek-V4 pro, compression ratio 0 (window 128)", 128), ("compression ratio 128 (hierarchical)", 128 + 16),
    ("compression ratio 4 (sparse, index top-k 1024)", 128 + 512),
])  # fmt: skip
def test_rows_of_timed_compressed_attention_say_which_keys_are_seen(notes, seen):
    cells = {
        "op": "dsv4_attention",
        "heads": "128",
        "kv_heads": "1",
        "seq_len": "4096",
        "head_dim": "512",
        "notes": notes,
    }
    shape = shape_of(cells)
    assert isinstance(shape, AttentionShape) and (shape.window, shape.kv_heads) == (seen, 1)
