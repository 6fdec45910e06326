"""Architectures: what the usual implementation of each does beyond its sizes, declared once; code asks for a fact, never for a name.

References
----------
huggingface/transformers, ``modeling_gpt2.py``, ``modeling_bert.py``, ``modeling_t5.py``, ``modeling_llama.py``;
mosaicml/llm-foundry, ``models/mpt``; NVIDIA/DeepLearningExamples, ``PyTorch/LanguageModeling/BERT/modeling.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ArchitectureName = Literal["gpt", "bert", "t5", "llama", "mpt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Facts of one architecture."""

    #: Whether query, key and value are one product: GPT-2's ``Conv1D``, MPT's ``Wqkv``.
    merges_qkv: bool = False
    #: Whether its framework casts the gathered shards where others cast at use, so that kernels see 16 bits.
    casts_shards: bool = False
    #: Whether the Python RMSNorm multiplies its input, rather than the copy in fp32.
    norms_input: bool = False
    #: Whether eager attention takes its softmax in fp32 even without autocast.
    softmax_in_fp32: bool = False
    #: Whether it is a decoder alone, whose eager attention's weights return to 16 bits before dropout, and logits go to fp32 before
    #: the loss.
    is_decoder_like: bool = True
    #: Whether dropout follows the activation inside the MLP.
    drops_activations: bool = False
    #: Whether the sum with the bias before the activation, and the mask of the padding, are kernels of their own in modules with
    #: fused norms.
    adds_bias_and_mask: bool = False
    #: Whether a product, its activation and a norm stand before the output projection, which has a bias.
    transforms_head: bool = False
    #: Whether dropout and a scaling follow the final norm.
    scales_head: bool = False
    #: Whether its training code has a fused loss and counts its metrics beside it.
    fuses_loss: bool = False
    #: Whether Megatron-LM's ``pretrain_gpt.py`` trains it.
    is_megatrons_gpt: bool = False


ARCHITECTURES: dict[ArchitectureName, Architecture] = {
    "gpt": Architecture(merges_qkv=True, is_megatrons_gpt=True),
    "bert": Architecture(is_decoder_like=False, adds_bias_and_mask=True, transforms_head=True),
    "t5": Architecture(is_decoder_like=False, norms_input=True, drops_activations=True, scales_head=True),
    "llama": Architecture(softmax_in_fp32=True, is_megatrons_gpt=True),
    "mpt": Architecture(merges_qkv=True, casts_shards=True, softmax_in_fp32=True, fuses_loss=True),
}
