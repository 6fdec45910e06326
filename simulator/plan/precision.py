"""Precisions: what is stored in which type, in which the products run, and what quantising costs.

References
----------
Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433 (delayed scaling); Rouhani et al., "Microscaling data
formats", arXiv:2310.10537 (a scale of eight bits per 32 elements, which have eight or four); DeepSeek-AI, "DeepSeek-V3",
arXiv:2412.19437, section 3.3
(blocks of 128); NVIDIA, "Pretraining large language models with NVFP4", arXiv:2509.25149 (a scale of eight bits per 16 elements
under one of the tensor, random Hadamard transform before the weight gradient, stochastic rounding of gradients); NVIDIA
Transformer Engine, ``common/recipe``; pytorch/torchao, ``float8`` (tensorwise, rowwise, ``rowwise_with_gw_hp``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """How operands of matrix products become narrow."""

    kernel: str  #: Name of the kernel that quantises a tensor in both directions, along rows and along columns.
    element_bytes: float  #: Bytes of one quantised element with its share of the scales.
    reads: int = 1  #: Times that a tensor is read: twice where its scale must be known before it is quantised.
    #: Launches that quantise one expert's rows where each has its own: Transformer Engine's NVFP4 takes amax, random state, rows and
    #: transformed columns one by one (``NVFP4Quantizer::quantize_impl``).
    launches: int = 1
    transforms_columns: bool = False  #: Whether a random Hadamard transform makes what columns are quantised from.
    unquantised_wgrad: bool = False  #: Whether the weight gradient is computed in 16 bits nevertheless.
    #: Rows to a multiple of which an expert's tokens are padded (NVIDIA/Megatron-LM, ``moe_router_padding_for_fp8``).
    padded_rows: int = 16
    #: Elements that share a scale: both dimensions of what is quantised, along rows and along columns, are multiples of it
    #: (NVIDIA/TransformerEngine, ``pytorch/tensor``, ``MXFP8Quantizer.make_empty`` and ``NVFP4Quantizer.make_empty``: "Tensor dims
    #: must be divisible by"); 1 where tensors are taken as they are.
    block: int = 1
    is_by_tensor: bool = False  #: Whether one scale serves all of a tensor, whose columns are then its rows transposed.
    is_gathered: bool = True  #: Whether tensor-parallel ranks quantise what they gather for a product.


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """One precision of training."""

    name: str  #: The plan's word.
    #: Types of activations that enter matrix products, and of the weights on the rank.
    activations: str
    weights: str
    products: str  #: Type in which matrix products run: a key of a device's peak rates.
    quantisation: Quantisation | None = None  #: Where products run in fewer bits than activations have.

    @property
    def is_autocast(self) -> bool:
        """Whether fp32 weights are cast to 16 bits wherever they are used."""
        return self.weights == "fp32" and self.activations != "fp32"

    @property
    def is_16_bit(self) -> bool:
        """Whether the weights on the rank have 16 bits, with fp32 masters in the optimizer where the framework keeps such."""
        return self.weights in ("fp16", "bf16")

    @property
    def has_tensor_scales(self) -> bool:
        """Whether operands have eight bits and one scale for all of a tensor, or of a row."""
        return self.quantisation is not None and self.quantisation.element_bytes == 1.0

    @property
    def has_eight_bits(self) -> bool:
        """Whether operands have eight bits, whatever has a scale of its own."""
        return self.quantisation is not None and self.quantisation.element_bytes >= 1.0

    @property
    def narrow_bits(self) -> int:
        """Bits of an operand that is quantised, without its scales; 16 where none is."""
        return 16 if self.quantisation is None else 8 if self.has_eight_bits else 4

    @property
    def unquantised_products(self) -> str:
        """Type of the products that are not quantised: attention, router, output projection."""
        return self.activations if self.quantisation else self.products


def _quantised(name: str, products: str, quantisation: Quantisation) -> Precision:
    return Precision(name=name, activations="bf16", weights="bf16", products=products, quantisation=quantisation)


#: torchao's, which gathers activations in 16 bits
_ROWWISE = Quantisation(kernel="quantize", element_bytes=1.0, reads=3, is_gathered=False)

#: bytes per element of operands with their scales: one for a whole tensor (fp8), one of 32 bits for 128 elements (fp8_block), of 8 bits
#: for 32 (mxfp8), for 16 (nvfp4), for 32 of 4 bits (mxfp4)
SCALED_BYTES = {
    "fp8": 1.0,
    "fp8_block": 1.0 + 4 / 128,
    "mxfp8": 1.0 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
#: word -> precision
PRECISIONS: dict[str, Precision] = {
    p.name: p
    for p in (
        Precision(name="fp16", activations="fp16", weights="fp16", products="fp16"),
        Precision(name="bf16", activations="bf16", weights="bf16", products="bf16"),
        Precision(name="amp_fp16", activations="fp16", weights="fp32", products="fp16"),
        Precision(name="amp_bf16", activations="bf16", weights="fp32", products="bf16"),
        Precision(name="tf32", activations="fp32", weights="fp32", products="tf32"),
        Precision(name="fp32", activations="fp32", weights="fp32", products="fp32"),
        _quantised("fp8", "fp8", Quantisation(kernel="quantize", element_bytes=1.0, is_by_tensor=True)),
        _quantised(
            "fp8_current", "fp8", Quantisation(kernel="quantize", element_bytes=1.0, reads=2, is_by_tensor=True)
        ),
        _quantised("fp8_rowwise", "fp8", _ROWWISE),
        _quantised("fp8_rowwise_gw_hp", "fp8", replace(_ROWWISE, unquantised_wgrad=True)),
        _quantised("fp8_block", "fp8_block", Quantisation(kernel="quantize", element_bytes=SCALED_BYTES["fp8_block"])),
        _quantised(
            "mxfp8",
            "mxfp8",
            Quantisation(kernel="quantize_mxfp8", element_bytes=SCALED_BYTES["mxfp8"], padded_rows=32, block=32),
        ),
        _quantised(
            "mxfp4",
            "mxfp4",
            Quantisation(kernel="quantize_mxfp4", element_bytes=SCALED_BYTES["mxfp4"], padded_rows=32, block=32),
        ),
        _quantised(
            "nvfp4",
            "nvfp4",
            Quantisation(
                kernel="quantize_nvfp4",
                element_bytes=SCALED_BYTES["nvfp4"],
                reads=2,
                launches=4,
                padded_rows=32,
                block=16,
                transforms_columns=True,
            ),
        ),
    )
}

#: other spellings of the words, as frameworks and tables write them
SYNONYMS: dict[str, str] = {
    "fp8_ds": "fp8", "fp8_delayed": "fp8", "fp8_cs": "fp8_current", "fp8_tensorwise": "fp8_current", "fp8_sc": "fp8_block",
    "fp8_blockwise": "fp8_block", "fp8_mx": "mxfp8", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    "half": "fp16", "pure_bf16": "bf16", "fp8_hybrid": "fp8", "fp8-hybrid": "fp8",
    # Lightning's words (``precision=``), of which mixed ones autocast
    "16-mixed": "amp_fp16", "fp16-mixed": "amp_fp16", "bf16-mixed": "amp_bf16", "16-true": "fp16", "bf16-true": "bf16", "32-true": "fp32",
    # Megatron Bridge's (``training/mixed_precision.py``), whose mixed ones keep 16-bit weights and masters
    "fp16_mixed": "fp16", "bf16_mixed": "bf16", "bf16_with_fp8_delayed_scaling_mixed": "fp8",
    "bf16_with_fp8_current_scaling_mixed": "fp8_current", "bf16_with_fp8_subchannel_scaling_mixed": "fp8_block",
    "bf16_with_mxfp8_mixed": "mxfp8", "bf16_with_nvfp4_mixed": "nvfp4",
}  # fmt: skip


def next_wider(precision: Precision, computes: Callable[[str], bool]) -> str:
    """Return the narrowest precision of more bits that a device computes in; bf16 where it has none.

    Examples
    --------
    >>> next_wider(PRECISIONS["nvfp4"], {"mxfp8", "fp8", "bf16"}.__contains__), next_wider(PRECISIONS["mxfp8"], {"fp8"}.__contains__)
    ('mxfp8', 'fp8')
    >>> next_wider(PRECISIONS["fp8"], {"bf16"}.__contains__)
    'bf16'
    """
    wider = _NARROW[_NARROW.index(precision.products) + 1 :]
    return next((name for name in wider if computes(PRECISIONS[name].products)), "bf16")


#: precisions of few bits, the narrowest first
_NARROW = ("mxfp4", "nvfp4", "mxfp8", "fp8_block", "fp8")

#: moments that an optimizer keeps of an element of a matrix
MOMENTS = {"adam": 2, "muon": 1}
