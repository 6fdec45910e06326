"""From a model and a setting to the layers that one rank runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from simulator.errors import ConfigError
from simulator.models.edges import embedding, head
from simulator.models.flops import model_flops_per_sequence
from simulator.models.layer import DTYPE_BYTES, Layer, Model, Parameter
from simulator.models.ops import pointwise
from simulator.models.parameters import (
    block_parameters,
    embedding_parameters,
    frozen,
    head_parameters,
    mtp_parameters,
    norm_parameters,
    relative_parameters,
)
from simulator.models.setting import Setting
from simulator.models.spec import ModelSpec
from simulator.models.styles import STYLES
from simulator.models.styles.base import Style
from simulator.models.tape import Checkpoint, Tape
from simulator.models.transformer import block
from simulator.plan import PRECISIONS


def build_model(spec: ModelSpec, setting: Setting) -> Model:
    """Return the layers of one rank for one micro-batch; equal layers are the same object.

    Of an encoder-decoder model both sides have the sequence length.
    """
    _check_names(setting)
    setting.check(spec)
    return _build(spec, setting)


def _check_names(setting: Setting) -> None:
    """Check that what is named exists."""
    for key, known in (
        ("precision", PRECISIONS),
        ("kernels", STYLES),
        ("attention", ("flash", "eager", "fused_softmax")),
        ("recompute", ("none", "selective", "full")),
    ):
        value = getattr(setting, key)
        if value not in known:
            raise ConfigError(f"{key}='{value}' is unknown", hint=f"one of {', '.join(known)}")


@lru_cache(maxsize=512)
def _build(spec: ModelSpec, setting: Setting) -> Model:
    layers = [_embedding_layer(spec, setting)]
    if spec.encoder_layers:
        layers += [_block_layer(spec, setting, name="encoder_block", causal=False)] * spec.encoder_layers
        layers.append(_between_layer(spec, setting))
    decoder = spec.encoder_layers > 0
    kinds = list(zip(spec.specs_of_blocks, spec.blocks, strict=True))
    blocks = {
        (own, kind): _block_layer(own, setting, kind, causal=spec.causal, decoder=decoder)
        for own, kind in dict.fromkeys(kinds)
    }
    layers += [blocks[kind] for kind in kinds]
    if spec.mtp_layers:
        layers += [_mtp_layer(spec, setting)] * spec.mtp_layers
    layers.append(_head_layer(spec, setting))
    return Model(
        name=spec.name,
        layers=tuple(layers),
        n_parameters=spec.n_parameters,
        model_flops_per_sequence=model_flops_per_sequence(
            spec, setting.sequence_length, is_frozen=setting.lora_rank > 0
        ),
        tied_embedding=spec.tied,
    )


def adapted(style: Style, parameters: Sequence[Parameter]) -> list[Parameter]:
    """Return the tensors of a layer; beside adapters they are frozen."""
    return [*frozen(parameters), *style.adapters] if style.setting.lora_rank else list(parameters)


def _style(spec: ModelSpec, setting: Setting) -> Style:
    return STYLES[setting.kernels](spec, setting, Tape())


def _embedding_layer(spec: ModelSpec, setting: Setting) -> Layer:
    style = _style(spec, setting)
    output = embedding(style)
    parameters = list(embedding_parameters(spec, setting.tp))
    if spec.encoder_layers:
        parameters += relative_parameters(spec, setting.tp)
    table = 0 if setting.lora_rank else parameters[0].n_elements * DTYPE_BYTES[style.weight_dtype]
    return style.tape.finish(
        "embedding", output, parameters=adapted(style, parameters), workspace_bytes=table if spec.tied else 0
    )


def _checkpoint(setting: Setting) -> Checkpoint:
    if setting.recompute == "full":
        return "full"
    is_told = bool(setting.recompute_modules)
    is_operators = setting.recompute == "selective" and not is_told and STYLES[setting.kernels].recomputes_operators
    return "operators" if is_operators else "none"


def _block_layer(
    spec: ModelSpec,
    setting: Setting,
    sublayers: str = "*-",
    *,
    name: str = "",
    causal: bool = True,
    decoder: bool = False,
) -> Layer:
    style = _style(spec, setting)
    name = name or ("moe_block" if "E" in sublayers else "block")
    n_elements = setting.tokens_outside * spec.hidden
    x = style.tape.input(n_elements, style.residual_dtype)
    encoded = None
    if decoder:
        encoded = style.tape.shared(n_elements, style.residual_dtype, needs_gradient=True)
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


def _mtp_layer(spec: ModelSpec, setting: Setting) -> Layer:
    """Return one module that predicts a further token: projection of stream and next embedding, a block, and a loss."""
    style = _style(spec, setting)
    stream = style.tape.input(setting.tokens_outside * spec.hidden, style.residual_dtype)
    both = [style.norm(stream), style.norm(embedding(style))]
    joined = pointwise(style.tape, "cat", both, n_elements=2 * stream.n_elements)
    x = style.linear(joined, spec.hidden, 2 * spec.hidden, name="mtp_projection")
    head(style, block(style, x, spec.blocks[-1], causal=spec.causal))
    return style.tape.finish(
        "mtp",
        stream,
        parameters=adapted(style, mtp_parameters(spec, tp=setting.tp, ep=setting.ep, etp=setting.expert_tp)),
        checkpoint=_checkpoint(setting),
    )


def _between_layer(spec: ModelSpec, setting: Setting) -> Layer:
    """Return what lies between the stacks: the encoder's final norm and the decoder's embedding."""
    style = _style(spec, setting)
    x = style.tape.input(setting.tokens_outside * spec.hidden, style.residual_dtype)
    style.norm(x)
    output = embedding(style)
    parameters = [*norm_parameters(spec, "encoder_norm"), *relative_parameters(spec, setting.tp)]
    return style.tape.finish("decoder_embedding", output, parameters=adapted(style, parameters))


def _head_layer(spec: ModelSpec, setting: Setting) -> Layer:
    style = _style(spec, setting)
    x = style.tape.input(setting.tokens_outside * spec.hidden, style.residual_dtype)
    head(style, x)
    return style.tape.finish("head", None, parameters=adapted(style, head_parameters(spec, setting.tp)))
