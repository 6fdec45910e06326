"""Muon: which matrices a rank orthogonalises, by which products, and what tensor-parallel ranks exchange for it.

References
----------
Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; Liu et al., "Muon is scalable for LLM training",
arXiv:2502.16982; NVIDIA/Megatron-LM, ``core/optimizer/emerging_optimizers.py`` (``TensorParallelMuon``) and ``layer_wise_optimizer.py``;
NVIDIA-NeMo/Emerging-Optimizers, ``orthogonalized_optimizers/muon_utils.py`` (``newton_schulz_tp``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

from simulator.dtypes import DTYPE_BYTES
from simulator.models.layer import GemmShape, Layer, PointwiseShape
from simulator.models.matrices import is_expert, matrices_of, sharing, whole
from simulator.plan import ParallelPlan

#: steps of Newton and Schulz that Muon takes (Megatron-Core's ``muon_num_ns_steps``)
NEWTON_SCHULZ_STEPS = 5


class MuonMessage(NamedTuple):
    """What ranks exchange between two kernels of the optimizer, which wait for it."""

    collective: str
    axis: str  #: Of the mesh.
    n_bytes: int  #: As of :class:`~simulator.program.op.Collective`.


#: what orthogonalises a matrix, in order
Steps = tuple[GemmShape | PointwiseShape | MuonMessage, ...]


def muon_matrices(
    layers: Sequence[Layer], plan: ParallelPlan, n_shards: int, n_expert_shards: int
) -> tuple[GemmShape, ...]:
    """Return the matrices that the fullest rank orthogonalises, as the shapes of their gradients' products.

    Ranks that share them own whole matrices, or of each the part that their tensor-parallel rank has; the next one goes to the rank that
    has least to do by the parts. Which rank is the fullest is decided by what the plan computes of them. Query, key and value are one
    matrix here, where Megatron-Core splits them (``muon_split_qkv``).
    """
    found = matrices_of(layers)
    owned: list[GemmShape] = []
    for of_experts, n_ranks in ((False, n_shards), (True, n_expert_shards)):
        single = [replace(s, batch=1) for s in found if is_expert(s) == of_experts for _ in range(s.batch)]
        flops = {shape: _n_flops(newton_schulz(shape)) for shape in set(single)}
        computed = {shape: _n_flops(orthogonalised(shape, plan)) for shape in flops}
        ranks: list[tuple[float, int, float, list[GemmShape]]] = [(0.0, n, 0.0, []) for n in range(max(1, n_ranks))]
        for shape in sorted(single, key=flops.__getitem__, reverse=True):
            load, n, work, mine = heappop(ranks)
            mine.append(shape)
            heappush(ranks, (load + flops[shape], n, work + computed[shape], mine))
        owned += max(ranks, key=lambda rank: (rank[2], rank[1]))[3]
    return tuple(owned)


def owned_matrices(layers: Sequence[Layer], plan: ParallelPlan, n_shards: int) -> tuple[GemmShape, ...]:
    """Matrices that the rank with most of them orthogonalises; none where the optimizer is Adam."""
    if plan.optimizer != "muon":
        return ()
    shards = (n_shards, plan.expert_shards(n_shards)) if plan.sharding != "none" else (1, 1)
    return muon_matrices(layers, plan, *shards)


def orthogonalised(shape: GemmShape, plan: ParallelPlan) -> Steps:
    """Return what orthogonalises a matrix of which tensor-parallel ranks may have parts, in the plan's way.

    ``blockwise`` takes the part as a matrix of its own. ``duplicated`` gathers the whole in fp32 into a list of parts, to which one copy
    each brings what NCCL left in a row, concatenates them, and lets every rank orthogonalise all of it. ``distributed`` works on the
    parts: they are scaled by the sum of all squares, and in each step every rank's ``x x^T`` over its part of the shared dimension is
    summed up, so that the other dimension is the one that is squared, be it the longer one.
    """
    axis, degree = sharing(shape, plan)
    if degree == 1 or plan.muon_tp_mode == "blockwise":
        return newton_schulz(shape)
    if plan.muon_tp_mode == "duplicated":
        full = whole(shape, plan)
        n_elements = full.m * full.n
        n_bytes = n_elements * DTYPE_BYTES["fp32"]
        move = PointwiseShape(
            name="copy", n_elements=n_elements, dtype="fp32", read_bytes=float(n_bytes), written_bytes=float(n_bytes)
        )
        copies = replace(move, n_pieces=degree)
        return MuonMessage("all_gather", axis, n_bytes), copies, replace(move, name="cat"), *newton_schulz(full)
    squared, shared = (shape.n, shape.m) if shape.split == "column" else (shape.m, shape.n)
    gram, *others = _products(squared, shared)
    sums = MuonMessage("all_reduce", axis, squared * squared * DTYPE_BYTES[gram.dtype])
    norm = MuonMessage("all_reduce", axis, DTYPE_BYTES["fp32"])
    step: Steps = (gram, sums, *others)
    return norm, *(step * NEWTON_SCHULZ_STEPS)


def newton_schulz(shape: GemmShape) -> tuple[GemmShape, ...]:
    """Return the products that orthogonalise a matrix that a rank has all of, lying on its longer side."""
    return _products(*sorted((shape.m, shape.n))) * NEWTON_SCHULZ_STEPS


def _products(squared: int, other: int) -> tuple[GemmShape, ...]:
    """Products of a step on x ``[squared, other]``: x times its transpose, the square of that, and a polynomial of both times x."""
    sizes = ((squared, squared, other), (squared, squared, squared), (squared, other, squared))
    return tuple(GemmShape(m=m, n=n, k=k, name="newton_schulz") for m, n, k in sizes)


def _n_flops(steps: Iterable[GemmShape | PointwiseShape | MuonMessage]) -> float:
    return sum(step.n_flops for step in steps if isinstance(step, GemmShape))
