"""Models as the simulator sees them, recorded from their torch modules, and those around the one to predict."""

from __future__ import annotations

from dataclasses import replace

import torch

from simulator.models.layer import CommunicationPoint, KernelShape, Model
from simulator.models.torch_module import record_module
from validation.jobs.model import GptSize, build_gpt, loss_of


def calibration_sizes(size: GptSize) -> tuple[GptSize, GptSize]:
    """Models around the one to predict, none of whose products has its shape.

    Examples
    --------
    >>> [s.hidden for s in calibration_sizes(GptSize(name="x", layers=4, hidden=256, heads=4, vocab=2048, seq_len=128))]
    [192, 320]
    """

    def scaled(factor: float) -> GptSize:
        hidden = max(size.heads, round(size.hidden * factor / size.heads / 8) * size.heads * 8)
        return replace(
            size, name=f"{size.name} x {factor:g}", layers=max(2, size.layers // 2), hidden=hidden,
            vocab=round(size.vocab * factor), seq_len=round(size.seq_len * factor),
        )  # fmt: skip

    return scaled(0.75), scaled(1.25)


def record(size: GptSize, micro_batch: int, *, n_shards: int = 1, tied: bool = True) -> Model:
    """Layers of a model as the simulator sees them, recorded from its torch module without computing.

    Parameters
    ----------
    size : GptSize
    micro_batch : int
        Sequences.
    n_shards : int
        Tensor-parallel ranks, one of which is recorded.
    tied : bool
        Whether the head shares the token table.
    """
    tokens = torch.zeros((micro_batch, size.seq_len), dtype=torch.long)
    with torch.device("meta"):
        module = build_gpt(size, tied=tied, n_shards=n_shards)
    model = record_module(module, tokens, name=size.name, loss=lambda out: loss_of(out, tokens), dtype="fp32")
    blocks = {id(layer): replace(layer, name="block") for layer in model.layers[1 : size.layers + 1]}
    return replace(model, layers=tuple(blocks.get(id(layer), layer) for layer in model.layers))


def kernels_of(model: Model) -> list[KernelShape]:
    """All kernels of one forward and backward, in order."""
    items = [item for layer in model.layers for item in (*layer.forward, *layer.backward)]
    return [item for item in items if not isinstance(item, CommunicationPoint)]
