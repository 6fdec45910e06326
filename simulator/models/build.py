"""From a model and a setting to the layers that one rank runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from simulator.dtypes import DTYPE_BYTES
from simulator.errors import ConfigError
from simulator.models.compressed import copied, merged
from simulator.models.edges import embedding, head, pooled, sound
from simulator.models.flops import model_flops_per_sequence
from simulator.models.layer import Layer, Model, Parameter
from simulator.models.ops import pointwise
from simulator.models.parameters import (
    between_parameters,
    block_parameters,
    embedding_parameters,
    front_parameters,
    frozen,
    head_parameters,
    mtp_parameters,
    relative_parameters,
)
from simulator.models.setting import RankSetting
from simulator.models.spec import ModelSpec
from simulator.models.styles import STYLES
from simulator.models.styles.base import Style
from simulator.models.tape import Checkpoint, Tape
from simulator.models.transformer import block
from simulator.plan import PRECISIONS
from simulator.plan.vocabularies import ATTENTIONS, RECOMPUTES


def build_model(spec: ModelSpec, setting: RankSetting) -> Model:
    """Return the layers of one rank for one micro-batch; equal layers are the same object.

    Of an encoder-decoder model both sides have the sequence length, unless the encoder's is fixed (Whisper, CLIP).
    """
    return _build(spec, setting)


def _check_names(setting: RankSetting) -> None:
    """Check that what is named exists."""
    for key, known in (
        ("precision", PRECISIONS),
        ("kernels", STYLES),
        ("attention", (*ATTENTIONS, "fused_softmax")),
        ("recompute", RECOMPUTES),
    ):
        value = getattr(setting, key)
        if value not in known:
            raise ConfigError(f"{key}='{value}' is unknown", hint=f"one of {', '.join(known)}")


@lru_cache(maxsize=512)  # plans of a search share models, and equal layers are then one object
def _build(spec: ModelSpec, setting: RankSetting) -> Model:
    _check_names(setting)
    setting.check(spec)
    first, before = _encoder(spec, setting)
    if before is not setting:
        before.check(first)
    layers = [_embedding_layer(first, before)]
    if spec.has_encoder:
        n_blocks = spec.encoder_layers or first.layers
        layers += [_block_layer(first, before, name="encoder_block", causal=False)] * n_blocks
        layers.append(_between_layer(spec, setting))
    decoder = spec.encoder_layers > 0
    narrow = range(setting.unquantised_first, spec.layers - setting.unquantised_last)
    settings = [setting if position in narrow else setting.unquantised for position in range(spec.layers)]
    known: dict[tuple[int, int, str], Layer] = {}
    for own, chosen, kind in zip(spec.specs_of_blocks, settings, spec.blocks, strict=True):
        key = (id(own), id(chosen), kind)  # to hash a hundred fields for each block takes longer than to build a layer
        if key not in known:
            known[key] = _block_layer(own, chosen, kind, causal=spec.causal, decoder=decoder)
        layers.append(known[key])
    if spec.mtp_layers:
        chosen = setting.unquantised if "mtp" in setting.unquantised_modules else setting
        layers += [_mtp_layer(spec, chosen)] * spec.mtp_layers
    layers.append(_head_layer(spec, setting))
    return Model(
        name=spec.name,
        layers=tuple(layers),
        n_parameters=spec.n_parameters,
        model_flops_per_sequence=model_flops_per_sequence(
            spec,
            setting.sequence_length,
            attended_length=setting.attended_length,
            is_frozen=setting.lora_rank > 0,
        ),
        tied_embedding=spec.tied,
    )


def adapted(style: Style, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the tensors of a layer; beside adapters they are frozen."""
    return [*frozen(parameters), *style.adapters] if style.setting.lora_rank else list(parameters)


def _style(spec: ModelSpec, setting: RankSetting, tape: Tape | None = None) -> Style:
    return STYLES[setting.kernels](spec, setting, Tape() if tape is None else tape)


def _encoder(spec: ModelSpec, setting: RankSetting) -> tuple[ModelSpec, RankSetting]:
    """Return the stack that comes first, and its setting: with a sequence of its own where it has one."""
    first = spec.image or spec
    length = spec.encoder_positions or (first.max_positions if spec.image else 0)
    return first, replace(setting, sequence_length=length, document_length=0) if length else setting


def _embedding_layer(spec: ModelSpec, setting: RankSetting) -> Layer:
    style = _style(spec, setting)
    if spec.mel_bins:
        parameters = adapted(style, front_parameters(spec))
        return style.tape.finish("embedding", sound(style), role="embedding", parameters=parameters)
    output = embedding(style)
    parameters = list(embedding_parameters(spec, setting.tp))
    if spec.encoder_layers:
        parameters += relative_parameters(spec, setting.tp)
    table = 0 if setting.lora_rank else parameters[0].n_elements * DTYPE_BYTES[style.weight_dtype]
    return style.tape.finish(
        "embedding",
        output,
        role="embedding",
        parameters=adapted(style, parameters),
        workspace_bytes=table if spec.tied else 0,
    )


def _checkpoint(setting: RankSetting) -> Checkpoint:
    if setting.recompute == "full":
        return "full"
    is_told = bool(setting.recompute_modules)
    is_operators = setting.recompute == "selective" and not is_told and STYLES[setting.kernels].recomputes_operators
    return "operators" if is_operators else "none"


def _block_layer(
    spec: ModelSpec,
    setting: RankSetting,
    sublayers: str = "*-",
    *,
    name: str = "",
    causal: bool = True,
    decoder: bool = False,
) -> Layer:
    style = _style(spec, setting)
    name = name or ("moe_block" if "E" in sublayers else "block")
    x = style.tape.input(setting.tokens_outside * spec.stream_width, style.residual_dtype)
    encoded = None
    if decoder:
        n_encoded = _encoder(spec, setting)[1].tokens_outside * spec.hidden
        encoded = style.tape.shared(n_encoded, style.residual_dtype, needs_gradient=True)
    output = block(style, x, sublayers, causal=causal, encoded=encoded)
    parameters = block_parameters(
        spec, sublayers, tp=setting.tp, ep=setting.ep, etp=setting.expert_tp, cross_attention=decoder
    )
    layer = style.tape.finish(
        name,
        output,
        parameters=adapted(style, parameters),
        checkpoint=_checkpoint(setting),
        stops_early=setting.stops_early,
    )
    if setting.recompute != "full":
        return layer
    without = replace(setting, recompute="none", stops_early=False)
    return replace(layer, plain=_block_layer(spec, without, sublayers, name=name, causal=causal, decoder=decoder))


def _mtp_layer(spec: ModelSpec, setting: RankSetting) -> Layer:
    """Return one module that predicts a further token: projection of stream and next embedding, a block, and a loss."""
    style = _style(spec, setting)
    stream = style.tape.input(setting.tokens_outside * spec.stream_width, style.residual_dtype)
    both = [style.norm(merged(style, stream)), style.norm(merged(style, embedding(style)))]
    joined = pointwise(style.tape, "cat", both, n_elements=2 * both[0].n_elements)
    x = style.linear(joined, spec.hidden, 2 * spec.hidden, name="mtp_projection")
    head(style, block(style, copied(style, x), spec.blocks[-1], causal=spec.causal))
    return style.tape.finish(
        "mtp",
        stream,
        role="prediction",
        parameters=adapted(style, mtp_parameters(spec, tp=setting.tp, ep=setting.ep, etp=setting.expert_tp)),
        checkpoint=_checkpoint(setting),
    )


def _between_layer(spec: ModelSpec, setting: RankSetting) -> Layer:
    """Return what lies between the stacks: the first one's final norm and the second one's embedding."""
    first, before = _encoder(spec, setting)
    style = _style(first, before)
    x = style.tape.input(before.tokens_outside * first.hidden, style.residual_dtype)
    if spec.image:
        pooled(style, x)
        parameters = [*head_parameters(first, setting.tp), *embedding_parameters(spec, setting.tp)]
    else:
        if spec.final_norm:
            style.norm(x)
        parameters = [*between_parameters(spec), *relative_parameters(spec, setting.tp)]
        parameters += embedding_parameters(spec, setting.tp) if spec.mel_bins else ()
    output = embedding(_style(spec, setting, style.tape))
    return style.tape.finish("decoder_embedding", output, role="between", parameters=adapted(style, parameters))


def _head_layer(spec: ModelSpec, setting: RankSetting) -> Layer:
    style = _style(spec, setting)
    x = style.tape.input(setting.tokens_outside * spec.stream_width, style.residual_dtype)
    head(style, x)
    return style.tape.finish("head", None, role="head", parameters=adapted(style, head_parameters(spec, setting.tp)))
