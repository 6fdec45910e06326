"""Families of Hugging Face that read images or sound: ViT, CLIP and Whisper."""

from __future__ import annotations

from typing import Any

from simulator.interop.hf_fields import ACTIVATIONS, IRRELEVANT, RECORD, Family, activation, biases, refuse_if, sizes
from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import CLIP_STYLE, VIT_STYLE, WHISPER_STYLE
from simulator.models.spec import ModelSpec

#: CLIP's approximation of GELU by a sigmoid costs one pointwise kernel like any other
_ACTIVATIONS = {**ACTIVATIONS, "quick_gelu": "gelu"}
_IMAGE = {"max_positions": "", "vocab": "", "tied": ""}


def _patches(r: Reader, image_size: int, patch_size: int) -> dict[str, Any]:
    """Return what an image becomes: square patches that fill it, and the token of the class."""
    side, patch = r.positive("image_size", default=image_size), r.positive("patch_size", default=patch_size)
    if side < patch:
        r.fault("patch_size", f"{patch} is more than image_size={side}")
    return {
        "max_positions": (side // patch) ** 2 + 1,
        "patch_values": r.positive("num_channels", default=3) * patch**2,
    }


#: sizes of ViT-Base, which transformers takes where a file says none
_BASE: dict[str, Any] = {
    "layers": 12, "hidden": 768, "heads": 12, "ffn_hidden": 3072, "vocab": 1, "max_positions": 1,
}  # fmt: skip


def _vit(r: Reader) -> dict[str, Any]:
    r.irrelevant(words("encoder_stride pooler_act pooler_output_size"))
    labels = r.raw("id2label")
    n_classes = r.positive("num_labels", default=len(labels) if isinstance(labels, dict) and labels else 2)
    return VIT_STYLE | sizes(r, _IMAGE, **_BASE) | _patches(r, 224, 16) | {
        "vocab": n_classes,
        "attention_bias": r.boolean("qkv_bias", default=True),
        "activation": activation(r, "hidden_act", default="gelu"),
        "dropout": r.number("hidden_dropout_prob", default=0.0),
    }  # fmt: skip


def _clip_tower(r: Reader, names: dict[str, str], **usual: Any) -> dict[str, Any]:
    r.irrelevant([*IRRELEVANT, *words("dropout attention_dropout projection_dim model_type initializer_factor")])
    kind = _ACTIVATIONS[r.text("hidden_act", default="quick_gelu", one_of=_ACTIVATIONS)]
    return CLIP_STYLE | sizes(r, {"tied": "", **names}, **usual) | {"activation": kind}


def _clip(r: Reader) -> dict[str, Any]:
    """CLIP: a text model whose micro-batch has an image for every text."""
    r.irrelevant(words("logit_scale_init_value text_config_dict vision_config_dict initializer_factor"))
    width = r.positive("projection_dim", default=512)
    inner, outer = r.section("vision_config"), r.section("text_config")
    image = _clip_tower(inner, _IMAGE, **_BASE) | _patches(inner, 224, 32) | {
        "causal": False, "embedding_norm": True, "patch_bias": False, "projection": width,
    }  # fmt: skip
    usual: dict[str, Any] = {
        "layers": 12,
        "hidden": 512,
        "heads": 8,
        "ffn_hidden": 2048,
        "vocab": 49408,
        "max_positions": 77,
    }
    text = _clip_tower(outer, {}, **usual)
    inner.finish()
    outer.finish()
    return text | {"projection": width, "image": ModelSpec(name="image", **image)}


_WHISPER = {
    "layers": "decoder_layers", "hidden": "d_model", "heads": "decoder_attention_heads", "ffn_hidden": "decoder_ffn_dim",
    "max_positions": "max_target_positions",
}  # fmt: skip


def _whisper(r: Reader) -> dict[str, Any]:
    found = sizes(
        r, _WHISPER, layers=4, hidden=384, heads=6, ffn_hidden=1536, vocab=51865, max_positions=448, tied=True
    )
    for key, field in (("encoder_attention_heads", "heads"), ("encoder_ffn_dim", "ffn_hidden")):
        if r.positive(key, default=found[field]) != found[field]:
            r.fault(key, f"{r.data[key]} beside {found[field]} of the decoder is not modelled", hint=RECORD)
    refuse_if(r, "use_weighted_layer_sum", "a weighted sum of layers")
    r.irrelevant([key for key in r.data if key.startswith("mask_")])
    r.irrelevant(
        words(
            "scale_embedding apply_spec_augment encoder_layerdrop decoder_layerdrop forced_decoder_ids median_filter_width "
            "num_hidden_layers classifier_proj_size alignment_heads"
        )
    )
    return WHISPER_STYLE | found | biases(True) | {
        "encoder_layers": r.positive("encoder_layers", default=4),
        "encoder_positions": r.positive("max_source_positions", default=1500),
        "mel_bins": r.positive("num_mel_bins", default=80),
        "activation": activation(r, "activation_function", default="gelu"),
        "dropout": r.number("dropout", default=0.0),
    }  # fmt: skip


#: ``model_type`` -> how its keys are read
PERCEPTION: dict[str, Family] = {"vit": _vit, "clip": _clip, "whisper": _whisper}
