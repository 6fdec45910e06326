"""The matrices of a model's blocks, found by the products that make their gradients: one rank's part, and the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.models.layer import GemmShape, Layer
from simulator.plan import ParallelPlan


def matrices_of(layers: Sequence[Layer]) -> list[GemmShape]:
    """Return the gradients ``[m, n]`` of matrices in blocks; those of a rank's experts are one batch."""
    return [item for layer in layers if layer.role not in ("embedding", "head") for item in layer.weight_gradients]


def is_expert(shape: GemmShape) -> bool:
    """Whether it is a matrix of experts."""
    return shape.name == "grouped_gemm"


def sharing(shape: GemmShape, plan: ParallelPlan) -> tuple[str, int]:
    """Return the axis of the ranks that have a part of a matrix each, and how many they are; 1 where it is whole."""
    axis, degree = ("etp", plan.expert_tp) if is_expert(shape) else ("tp", plan.tp)
    return axis, degree if shape.split != "none" else 1


def whole(shape: GemmShape, plan: ParallelPlan) -> GemmShape:
    """Return a matrix as all that share it have it together.

    Examples
    --------
    >>> whole(GemmShape(m=1024, n=4096, k=1, split="column"), ParallelPlan(tp=4)).m
    4096
    """
    _, degree = sharing(shape, plan)
    rows, columns = (degree, 1) if shape.split == "column" else (1, degree)
    return replace(shape, m=shape.m * rows, n=shape.n * columns, split="none")
