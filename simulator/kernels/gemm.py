"""Matrix products: output tiles in waves over the SMs, split-k, memory floor and power limit.

A library kernel computes the output in tiles; ``n_sms`` of them run at a time. The time of a tile is its
prologue, its loop over k at the rate that its shape sustains, and its epilogue. Few tiles leave SMs idle, so
the library may split k over several of them and add the parts. It picks, as the model does, the candidate
that it expects to be fastest.

References
----------
Kerr et al., "CUTLASS: Fast linear algebra in CUDA C++", NVIDIA 2017 (tiles, waves). Osama et al., Stream-K,
arXiv:2301.03598 (split-k and wave quantisation). NVIDIA, "Matrix multiplication background user's guide"
(tile and wave quantisation, alignment). Hong and Kim, ISCA 2010 (energy of arithmetic and of memory traffic).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from simulator.arrays import FloatArray, IndexArray
from simulator.dtypes import DTYPE_BYTES
from simulator.errors import ConfigError
from simulator.kernels.base import peak_flops_per_s
from simulator.kernels.conditions import Conditions
from simulator.kernels.constants import release_before
from simulator.kernels.smooth import smooth_maximum
from simulator.models.layer import GemmShape
from simulator.topology.device import Device

#: 16-bit elements of a vector load of 16 bytes
_VECTOR_ELEMENTS = 8

#: factors where the contiguous dimensions are only multiples of 4, 2 or 1 16-bit elements: estimates, no source; device files have
#: fitted ones
_ALIGNMENT_EFFICIENCY = {"4": 0.85, "2": 0.7, "1": 0.5}
#: elements of output whose sums are held by one SM, half of its 65,536 registers, and the most tiles at a time: estimates, no source
_RESIDENT_ELEMENTS, _MOST_RESIDENT = 32768.0, 6.0

#: the architecture whose tensor cores add products in eight bits with too few bits, and after how many elements of k the FP32 units
#: take the sum over where it must be accurate: four instructions of 32 (CUTLASS, ``mma_promotion_interval``)
_PROMOTES, _PROMOTED_K = "hopper", 128
#: share of these additions that products do not hide: without them kernels are 1.1 to 1.2 times as fast (pytorch/ao, issue 2377)
_EXPOSED_PROMOTIONS = 0.65

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)

#: last CUDA release whose cuBLAS has only kernels without tensor cores for batches of 16-bit products that are not aligned to 16
#: bytes (``sgemm_fp16``): heads of 108, 150 and 450 elements at 10 to 13 TFLOP/s on A100s (bigscience-workshop, February 2022,
#: split=fit). With later releases they are slower than aligned ones, but use them (Anthony et al., arXiv:2401.14489)
_SCALAR_BATCHES = "11.5"

_TILE_EFFICIENCY = {
    "256x128": 0.92,
    "128x128": 0.75,
    "256x64": 0.62,
    "128x64": 0.63,
    "64x64": 0.5,
    "128x32": 0.4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmConstants:
    """Constants of matrix products on one device."""

    #: Fixed part: start of the grid, first loads, drain.
    launch_s: float = 2.3e-6
    #: Prologue and epilogue of one tile.
    tile_s: float = 1.0e-6
    tile_s_per_element: float = 100e-12
    #: Share of prologue and epilogue that the other tiles of the SM do not hide.
    exposed_tiles: float = 0.9
    #: Slowdown of a small tile alone on its SM, where others that would hide its latencies are missing.
    solo_penalty: float = 0.1
    #: Cost of adding up split-k parts; their traffic comes on top at ``split_bandwidth`` of the memory bandwidth.
    split_s: float = 2.5e-6
    split_bandwidth: float = 1.6
    #: Traffic up to ``warm_share`` of the L2 size moves at ``warm_bandwidth`` of the datasheet memory bandwidth (short
    #: transfers: cached, but never at full rate), the rest at ``dram_bandwidth`` of it.
    warm_bandwidth: float = 0.7
    warm_share: float = 0.5
    dram_bandwidth: float = 0.8
    #: Sharpness p of the maximum of compute and memory time, ``(c^p + m^p)^(1/p)``.
    overlap_norm: float = 4.5
    #: Share of the datasheet peak in the k loop, by tile; also the list of tiles to choose from.
    tile_efficiency: Mapping[str, float] = field(default_factory=lambda: dict(_TILE_EFFICIENCY))
    #: The loop over k advances in steps of so many elements.
    k_step: int = 32
    #: Energy of 16-bit arithmetic and of memory traffic; with the power limit they set the sustained speed.
    joules_per_flop: float = 0.0
    joules_per_byte: float = 0.0
    #: Factor on the former where the limit always acts: all boards of a node at work for hours are warmer, and leak more,
    #: than one in a benchmark.
    sustained_energy: float = 1.0
    #: Factors on the datasheet peak of a dtype and on the energy per FLOP relative to its peak.
    dtype_efficiency: Mapping[str, float] = field(default_factory=dict)
    dtype_energy: Mapping[str, float] = field(default_factory=dict)
    #: Factors for ``dgrad`` and ``wgrad``, whose operands lie in other layouts.
    pass_efficiency: Mapping[str, float] = field(default_factory=dict)
    #: Factors on both for kernels of another library: ``torch/bf16``, or of one pass, ``torch/mxfp8/wgrad``.
    library_efficiency: Mapping[str, float] = field(default_factory=dict)
    library_energy: Mapping[str, float] = field(default_factory=dict)
    #: Factors on the rate of the k loop under the matrix libraries of a CUDA release and those before it; ``12.5/fp8``
    #: is that of one dtype.
    release_efficiency: Mapping[str, float] = field(default_factory=dict)
    #: Factors where the contiguous dimensions are only multiples of 4, 2 or 1 16-bit elements.
    alignment_efficiency: Mapping[str, float] = field(default_factory=lambda: dict(_ALIGNMENT_EFFICIENCY))
    #: Whether batches of such products run on the FP32 units, which the libraries of a release may say.
    scalar_batches: bool = False


def under_release(constants: GemmConstants, cuda: str) -> GemmConstants:
    """Return the constants under the libraries of a CUDA release; an empty one is current.

    Examples
    --------
    >>> early = GemmConstants(tile_efficiency={"256x128": 0.8}, release_efficiency={"12.5": 0.75})
    >>> [under_release(early, cuda).tile_efficiency["256x128"] for cuda in ("12.4", "12.6", "")]
    [0.6000000000000001, 0.8, 0.8]
    """
    if release_before({_SCALAR_BATCHES: 1.0}, cuda):
        constants = replace(constants, scalar_batches=True)
    table = constants.release_efficiency
    release = release_before(table, cuda)
    if not release:
        return constants
    own = {key.partition("/")[2]: x / table[release] for key, x in table.items() if key.startswith(f"{release}/")}
    return replace(
        constants,
        tile_efficiency={tile: x * table[release] for tile, x in constants.tile_efficiency.items()},
        dtype_efficiency={
            **constants.dtype_efficiency,
            **{d: constants.dtype_efficiency.get(d, 1.0) * x for d, x in own.items()},
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmColumns:
    """Matrix products as columns of numbers, one entry per product."""

    #: As in :class:`~simulator.models.layer.GemmShape`. Shape [products].
    m: FloatArray
    n: FloatArray
    k: FloatArray
    batch: FloatArray
    element_bytes: FloatArray
    result_bytes: FloatArray
    #: Peak of one SM in the product's dtype, times the factors of dtype, pass and alignment. Shape [products].
    peak_flops_per_s: FloatArray
    #: Energy per FLOP relative to 16-bit arithmetic. Shape [products].
    flop_energy: FloatArray
    #: SMs that work on it. Shape [products].
    n_sms: FloatArray

    @classmethod
    def of(cls, shapes: Sequence[GemmShape], device: Device, constants: GemmConstants) -> GemmColumns:
        """Gather shapes into columns."""
        return cls(
            m=_column(s.m for s in shapes),
            n=_column(s.n for s in shapes),
            k=_column(s.k for s in shapes),
            batch=_column(s.batch for s in shapes),
            element_bytes=_column(DTYPE_BYTES[s.dtype] for s in shapes),
            result_bytes=_column(s.result_bytes for s in shapes),
            peak_flops_per_s=_column(_sm_peak_flops_per_s(s, device, constants) for s in shapes),
            flop_energy=_column(_flop_energy(s, device, constants) for s in shapes),
            n_sms=_column(device.n_sms - s.left_sms for s in shapes),
        )


def _column(values: object) -> FloatArray:
    return np.fromiter(values, dtype=np.float64)  # type: ignore[call-overload,no-any-return]


def alignment_elements(shape: GemmShape) -> int:
    """Largest power of two, up to the 16 bytes of a vector load, that divides every contiguous dimension.

    ``y[m, n] = x[m, k] w[n, k]^T`` is contiguous along k and n; in a weight gradient both operands and the
    result are contiguous along m and n, and k is free. Kernels of eight bits and fewer take operands along k alone, in every pass, and
    may write the result along m.

    References
    ----------
    NVIDIA, cuBLAS library documentation, ``cublasLtMatmul``: FP8 needs the TN format.
    """
    contiguous = shape.m | shape.n if shape.kernel_pass == "wgrad" else shape.n | shape.k
    if DTYPE_BYTES[shape.dtype] < DTYPE_BYTES["bf16"]:
        contiguous = shape.k
    widest = 16 // DTYPE_BYTES[shape.dtype]
    return min(widest, contiguous & -contiguous)


def _sm_peak_flops_per_s(shape: GemmShape, device: Device, constants: GemmConstants) -> float:
    factor = constants.dtype_efficiency.get(shape.dtype, 1.0) * constants.pass_efficiency.get(shape.kernel_pass, 1.0)
    factor *= _of_library(constants.library_efficiency, shape)
    peak = peak_flops_per_s(shape, device)
    factor /= 1.0 + _promotions(shape, device)
    if shape.dtype != "fp32" and device.architecture != "cpu":  # tensor cores only
        elements = alignment_elements(shape) * DTYPE_BYTES[shape.dtype] // 2  # in 16-bit units
        factor *= constants.alignment_efficiency.get(str(max(1, elements)), 1.0)
        if constants.scalar_batches and shape.batch > 1 and elements < _VECTOR_ELEMENTS:
            peak = min(peak, device.peak("fp32"))
    return peak * factor / device.n_sms


def _promotions(shape: GemmShape, device: Device) -> float:
    """Return the time of accurate sums of products in eight bits, as a share of the products'; those of gradients need them.

    Forward adds fast (``use_fast_accum`` of torchao, ``use_split_accumulator`` of Transformer Engine's recipes). Scaling by blocks
    always promotes, and is measured so.
    """
    if device.architecture != _PROMOTES or shape.dtype != "fp8" or shape.kernel_pass == "forward":
        return 0.0
    additions_per_s = device.peak("fp32") / 2.0  # peaks count multiplication and addition
    return _EXPOSED_PROMOTIONS * device.peak("fp8") / (2.0 * _PROMOTED_K) / additions_per_s


def _flop_energy(shape: GemmShape, device: Device, constants: GemmConstants) -> float:
    factor = constants.dtype_energy.get(shape.dtype, 1.0) * _of_library(constants.library_energy, shape)
    return factor * device.peak("fp16") / device.peak(shape.dtype)


def _of_library(factors: Mapping[str, float], shape: GemmShape) -> float:
    name = f"{shape.library}/{shape.dtype}"
    return factors.get(f"{name}/{shape.kernel_pass}", factors.get(name, 1.0))


@lru_cache(maxsize=64)  # the same for all products of a device
def _candidates(tiles: tuple[str, ...]) -> tuple[FloatArray, FloatArray, FloatArray, IndexArray]:
    """Tile rows, tile columns, splits and index of the tile of every candidate kernel."""
    rows = []
    for index, tile in enumerate(tiles):
        try:
            a, b = (int(part) for part in tile.split("x"))
        except ValueError:
            raise ConfigError(
                f"kernels.gemm.tile_efficiency: '{tile}' is not a tile", hint="write it like 256x128"
            ) from None
        for tm, tn in sorted({(a, b), (b, a)}):
            rows += [(tm, tn, split, index) for split in SPLITS]
    table = np.array(rows, dtype=np.float64)
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3].astype(np.intp)


def gemm_times_s(columns: GemmColumns, device: Device, constants: GemmConstants, conditions: Conditions) -> FloatArray:
    """Seconds of each product."""
    c = constants
    tile_m, tile_n, split, tile = _candidates(tuple(c.tile_efficiency))
    efficiency = np.array(list(c.tile_efficiency.values()), dtype=np.float64)[tile]
    m, n, k, batch = (x[:, None] for x in (columns.m, columns.n, columns.k, columns.batch))
    area = tile_m * tile_n
    rounds = np.ceil(batch * np.ceil(m / tile_m) * np.ceil(n / tile_n) * split / columns.n_sms[:, None])
    resident = np.clip(np.round(_RESIDENT_ELEMENTS / area), 1.0, _MOST_RESIDENT)
    solo = 1.0 + c.solo_penalty * np.maximum(0.0, 1.0 - rounds / resident)
    steps = np.ceil(k / split / c.k_step) * c.k_step
    loop = rounds * 2.0 * area * steps * solo / (columns.peak_flops_per_s[:, None] * efficiency)
    edges = (c.tile_s + c.tile_s_per_element * area) * (1.0 + c.exposed_tiles * (rounds - 1.0))
    n_bytes, memory = _memory(columns, device, c, conditions)
    body = smooth_maximum(loop + edges, memory[:, None], c.overlap_norm)
    parts_bytes = 8.0 * split * m * n * batch
    adding = c.split_s + parts_bytes / (c.split_bandwidth * device.memory_bandwidth_bytes_per_s)
    unlimited = (body + np.where(split > 1.0, adding, 0.0)).min(axis=1)
    n_flops = 2.0 * columns.m * columns.n * columns.k * columns.batch
    is_cool = conditions.burst_s or conditions.is_alone
    joules_per_flop = c.joules_per_flop * (1.0 if is_cool else c.sustained_energy)
    energy = n_flops * columns.flop_energy * joules_per_flop + n_bytes * c.joules_per_byte
    return c.launch_s + conditions.overhead_s + conditions.limited(unlimited, energy / device.sustained_power_w)


def _memory(
    columns: GemmColumns, device: Device, c: GemmConstants, conditions: Conditions
) -> tuple[FloatArray, FloatArray]:
    m, n, k = columns.m, columns.n, columns.k
    n_bytes = columns.batch * (columns.element_bytes * (m * k + k * n) + columns.result_bytes * m * n)
    warm = np.minimum(n_bytes, 0.0 if conditions.is_cold else c.warm_share * device.l2_bytes)
    bandwidth = device.memory_bandwidth_bytes_per_s
    seconds = warm / (c.warm_bandwidth * bandwidth) + (n_bytes - warm) / (c.dram_bandwidth * bandwidth)
    return n_bytes, seconds
