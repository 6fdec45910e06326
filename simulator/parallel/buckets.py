"""Gradient buckets: which parameters are reduced together, and whose backward completes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulator.models.layer import Layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Gradients that are reduced together.

    Parameters
    ----------
    n_elements : int
    trigger : int
        Position (in the stage, over all chunks) of the layer whose backward completes the bucket.
    """

    n_elements: int
    trigger: int


def fill_buckets(
    layers: Sequence[Layer], cap_bytes: float, first_bytes: float, element_bytes: int, *, experts: bool = True
) -> list[Bucket]:
    """Fill buckets with parameters in reverse order, as DDP and Megatron do.

    Parameters
    ----------
    layers : sequence of Layer
        In forward order.
    cap_bytes, first_bytes : float
        A bucket is closed once it holds at least this much; the first one may be smaller.
    element_bytes : int
        Bytes of one gradient element.
    experts : bool
        Whether experts are reduced with the rest; under expert parallelism they have fewer replicas.

    Returns
    -------
    list of Bucket
        In the order in which backward completes them; the sizes sum to all these parameters.
    """
    buckets: list[Bucket] = []
    filled = 0
    for index in reversed(range(len(layers))):
        for parameter in reversed(layers[index].parameters):
            filled += parameter.n_elements if experts or not parameter.is_expert else 0
            limit = first_bytes if not buckets else cap_bytes
            if filled and filled * element_bytes >= limit:
                buckets.append(Bucket(n_elements=filled, trigger=index))
                filled = 0
    if filled:
        buckets.append(Bucket(n_elements=filled, trigger=0))
    return buckets
