"""Fused (flash) attention: blocks of rows over the SMs, softmax cost, memory floor, power limit.

Forward gives one block of 128 query rows to an SM, backward one of 128 keys; a causal mask skips the blocks
above the diagonal, so blocks differ in length and the longest one bounds the time from below. Per block, the
exponentials, and the random numbers of dropout, cost time that depends on the number of scores and not on the head
dimension.

References
----------
Dao, FlashAttention-2, arXiv:2307.08691 (work partitioning); Shah et al., FlashAttention-3, arXiv:2407.08608
(the throughput of exponentials beside tensor cores).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from simulator.arrays import FloatArray
from simulator.dtypes import DTYPE_BYTES, SCALED_ELEMENTS
from simulator.kernels.base import peak_flops_per_s
from simulator.kernels.conditions import Conditions
from simulator.kernels.constants import release_before
from simulator.kernels.smooth import smooth_maximum
from simulator.models.layer import AttentionShape
from simulator.topology.device import Device

#: speed beside FlashAttention 2 on A100, forward and backward, with heads of up to 64 and of more elements: FlashAttention 1 is
#: 1.7 to 3.0 times slower, least with the narrow heads that its blocks were made for, and its Triton port 1.3 to 2.5 times
#: (arXiv:2307.08691, section 4.1 and figures 4 to 6); 2.1 with heads of 128 is fitted to runs of equal layouts with either
#: (Hagemann et al., arXiv:2311.05610, split=fit: 13B to 65B at 2,048 and 8,192 tokens)
FIRST_GENERATION_SPEED: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "flash_attention_1": {"forward": (1 / 1.7, 1 / 2.1), "backward": (1 / 1.7, 1 / 2.1)},
    "flash_attention_triton": {"forward": (0.6, 0.6), "backward": (0.5, 0.5)},
}
#: clocks of one SM that dropout takes per score: Philox 4x32 with ten rounds serves 16 scores (about 80 instructions),
#: each then compares and selects, and backward makes the mask anew and applies it to two products (Salmon et al., "Parallel
#: random numbers: as easy as 1, 2, 3", SC'11; 128 lanes an SM)
DROPOUT_CLOCKS = {"forward": 0.06, "backward": 0.12}
#: suffix of the constants of heads of more than so many elements, for which libraries have other kernels; others again where keys are
#: latent ones, which serve as values, too
_HEAD_CLASSES = (("_latent", 256), ("_wide", 128), ("", 0))
#: sharpness of the maximum of compute and memory time, and share of the memory bandwidth at which caches are copied: estimates, no
#: source
_OVERLAP_NORM, _COPY_SHARE = 4, 0.8
BLOCK_ROWS = 128.0
BLOCK_COLUMNS = 64.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionConstants:
    """Constants of fused attention on one device, for one direction."""

    launch_s: float = 4e-6  #: Fixed part; backward includes its preparation kernel.
    efficiency: float = 0.7  #: Share of the datasheet peak in the products.
    score_s: float = 20e-12  #: Seconds that one SM needs per score for softmax, not hidden behind the products.
    block_s: float = 1.5e-6  #: Prologue and epilogue of one block of rows.
    longest: float = 0.8  #: Share of the longest block's time that bounds the whole from below.
    tail: float = 0.8  #: Share of the shorter of average load and longest block that is not hidden by the other.
    dram_bandwidth: float = 0.75  #: Share of the datasheet bandwidth for the tensors.
    #: Additional traffic of backward per element of q: the fp32 accumulator of its gradient.
    accumulator_bytes: float = 0.0
    #: Share of the datasheet bandwidth at which keys that an index chooses are fetched for each query by itself, and their gradients
    #: added one by one; FlashMLA's sparse kernels fetch at 0.75 and more of it (its README: 640 TFLOP/s on H800, 1,450 on B200).
    gather_bandwidth: float = 0.75
    #: Heads for which they are fetched once, where they share keys: those of one block of rows; 0 where it is all.
    gathering_heads: float = 0.0
    #: As for matrix products.
    joules_per_flop: float = 0.0
    joules_per_byte: float = 0.0
    #: As for matrix products: shares of this speed under the libraries of a CUDA release and those before it.
    release_efficiency: Mapping[str, float] = field(default_factory=dict)

    def under_release(self, cuda: str) -> AttentionConstants:
        """Return the constants under the libraries of a CUDA release; an empty one is current."""
        release = release_before(self.release_efficiency, cuda)
        if not release:
            return self
        speed = self.release_efficiency[release]
        slower = {name: getattr(self, name) / speed for name in ("score_s", "block_s")}
        return replace(self, efficiency=self.efficiency * speed, **slower)


def constants_names(name: str, head_dim: int, dtype: str) -> tuple[str, ...]:
    """Return the names under which a device may keep an implementation's constants, the most special one first.

    Examples
    --------
    >>> constants_names("default", 192, "fp8")
    ('default_wide_fp8', 'default_fp8', 'default_wide', 'default')
    >>> constants_names("default", 128, "bf16")
    ('default',)
    """
    of_heads = [f"{name}{suffix}" for suffix, above in _HEAD_CLASSES if head_dim > above]
    scaled = [f"{one}_{dtype}" for one in of_heads] if dtype in SCALED_ELEMENTS else []
    return (*scaled, *of_heads)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionFamily:
    """The constants of all implementations on one device, by implementation and direction."""

    implementations: Mapping[str, Mapping[str, AttentionConstants]]

    def of(self, name: str, direction: str, head_dim: int = 128, dtype: str = "bf16") -> AttentionConstants:
        """Constants by the name in the shape, or those of the device's default implementation, for operands of ``dtype``.

        Kernels of eight bits, of heads wider than 128 and of latent heads are other kernels: a device that has their times keeps
        them as ``default_fp8``, ``default_mxfp8``, ``default_wide``, ``default_wide_fp8``, ``default_latent`` and so on. The first
        generation of fused attention is the second one at :data:`FIRST_GENERATION_SPEED` where a device keeps none of it.
        """
        own = self._named(name, head_dim, dtype)
        if own is None and name in FIRST_GENERATION_SPEED:
            second = self.of("flash_attention_2", direction, head_dim, dtype)
            speed = FIRST_GENERATION_SPEED[name][direction][head_dim > 64]
            return replace(second, efficiency=second.efficiency * speed, score_s=second.score_s / speed)
        return (own or self._named("default", head_dim, dtype) or self.implementations["default"])[direction]

    def _named(self, name: str, head_dim: int, dtype: str) -> Mapping[str, AttentionConstants] | None:
        """Return the constants that a device keeps under a name, the most special ones first."""
        names = constants_names(name, head_dim, dtype)
        return next((self.implementations[one] for one in names if one in self.implementations), None)


def attention_times_s(
    shapes: Sequence[AttentionShape],
    device: Device,
    constants: AttentionConstants,
    conditions: Conditions,
    *,
    is_backward: bool,
) -> FloatArray:
    """Seconds of each call, all of one direction."""
    rows = [
        (
            s.batch,
            s.heads,
            s.kv_heads,
            s.seq_q,
            s.seq_k,
            s.head_dim,
            s.causal,
            DTYPE_BYTES[s.dtype],
            s.reach or s.seq_k,
        )
        for s in shapes
    ]
    table = np.array(rows, dtype=np.float64).T
    batch, heads, kv_heads, seq_q, seq_k, head_dim, causal, width, window = table
    peak = np.array([peak_flops_per_s(s, device) for s in shapes]) / device.n_sms
    products = 10.0 if is_backward else 4.0
    n_blocks, n_pairs, longest = _blocks(seq_q, seq_k, causal, window)
    padded = np.ceil(head_dim / 32.0) * 32.0
    scores = BLOCK_ROWS * BLOCK_COLUMNS
    dropout = np.array([s.has_dropout for s in shapes]) * DROPOUT_CLOCKS["backward" if is_backward else "forward"]
    score_s = constants.score_s + dropout / device.clock_hz
    pair_s = scores * (products * padded / (peak * constants.efficiency) + score_s)
    per_sm = batch * heads / device.n_sms
    load = per_sm * n_pairs * pair_s + constants.block_s * np.maximum(per_sm * n_blocks, 1.0)
    longest_s = constants.longest * longest * pair_s + constants.block_s
    compute = np.maximum(load, longest_s) + constants.tail * np.minimum(load, longest_s)
    n_bytes = width * head_dim * batch * 2.0 * (heads * seq_q + kv_heads * seq_k) * (2.0 if is_backward else 1.0)
    n_bytes = n_bytes + constants.accumulator_bytes * batch * heads * seq_q * head_dim * is_backward
    bandwidth = device.memory_bandwidth_bytes_per_s
    # what no two queries share: read, and in backward read and written once more as sums of 32 bits
    n_fetches = np.ceil(heads / kv_heads / constants.gathering_heads) if constants.gathering_heads else 1.0
    chosen = np.array([s.gathered for s in shapes]) * batch * kv_heads * seq_q * head_dim * n_fetches
    gathered_bytes = chosen * (width + 8.0 * is_backward)
    memory = n_bytes / (constants.dram_bandwidth * bandwidth) + gathered_bytes / (
        constants.gather_bandwidth * bandwidth
    )
    copies = conditions.cache_copies * 2.0 * width * batch * kv_heads * seq_k * head_dim / (_COPY_SHARE * bandwidth)
    unlimited = smooth_maximum(compute, memory, _OVERLAP_NORM) + copies
    n_flops = np.minimum(1.0, width / 2.0) * np.array([s.n_flops for s in shapes])  # in 16-bit ones
    energy = n_flops * constants.joules_per_flop + n_bytes * constants.joules_per_byte
    return constants.launch_s + conditions.overhead_s + conditions.limited(unlimited, energy / device.sustained_power_w)


def _blocks(
    seq_q: FloatArray, seq_k: FloatArray, causal: FloatArray, window: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Blocks of rows, pairs of row and column block in all, and pairs of the longest row block."""
    n_rows = np.ceil(seq_q / BLOCK_ROWS)
    n_columns = np.ceil(seq_k / BLOCK_COLUMNS)
    ratio = BLOCK_ROWS / BLOCK_COLUMNS
    full = n_rows * n_columns
    skipped = np.minimum(ratio * n_rows * (n_rows - 1.0) / 2.0, full - n_rows)
    n_old = np.maximum(seq_k - window - BLOCK_ROWS, 0.0)  # blocks that only touch the window are computed whole
    older = n_old**2 / (2.0 * BLOCK_ROWS * BLOCK_COLUMNS)
    longest = np.minimum(n_columns, np.ceil((window + BLOCK_ROWS) / BLOCK_COLUMNS))
    return n_rows, np.where(causal > 0.0, full - skipped - older, full), longest
