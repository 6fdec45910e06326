"""Vocabulary layers shared by all stages of a pipeline: their shares, and the meetings at which they are computed.

At a meeting the last stage's output goes to all stages; each computes logits and loss over its part of the vocabulary, for
which the rows' maxima and sums are reduced, and then its part of the input's gradient, which is reduced too. Its part of the
embedding is looked up for a later micro-batch at the same meeting, and summed over the stages.

References
----------
Lin et al., nnScaler, OSDI 2024, section 5 (interlaced pipeline); Yeung et al., Balancing Pipeline Parallelism with Vocabulary
Parallelism, MLSys 2025, arXiv:2411.05288, section 3.
"""

from __future__ import annotations

from dataclasses import replace

from simulator.models.layer import CommunicationPoint, GemmShape, Layer, LayerItem, PointwiseShape
from simulator.parallel.mesh import Communicators
from simulator.program.op import Collective, Phase

#: axis of the groups of all stages
AXIS = "pipe"


def share(layer: Layer, n_stages: int) -> Layer:
    """Return one stage's part of an embedding or a head whose vocabulary is split evenly.

    What a meeting computes it computes forward and backward at once: nothing is held in between, but all of it at the time.
    """
    largest = max((p.n_elements for p in layer.parameters), default=0)
    parameters = tuple(
        replace(p, n_elements=max(1, -(-p.n_elements // n_stages))) if p.n_elements == largest else p
        for p in layer.parameters
    )
    vocabulary = max((max(i.m, i.n, i.k) for i in layer.forward if isinstance(i, GemmShape)), default=0)
    cut = {
        name: tuple(_share(item, n_stages, vocabulary) for item in getattr(layer, name))
        for name in ("forward", "backward", "recompute")
    }
    return replace(
        layer,
        **cut,  # type: ignore[arg-type]
        parameters=parameters,
        saved_bytes=0,
        transient_bytes=(layer.transient_bytes + layer.saved_bytes) // n_stages,
    )


def _share(item: LayerItem, n_stages: int, vocabulary: int) -> LayerItem:
    if isinstance(item, GemmShape):
        part = {
            name: max(1, -(-vocabulary // n_stages)) for name in ("m", "n", "k") if getattr(item, name) == vocabulary
        }
        return replace(item, **part)  # type: ignore[arg-type]
    if isinstance(item, PointwiseShape):
        return replace(
            item,
            n_elements=max(1, item.n_elements // n_stages),
            read_bytes=item.read_bytes / n_stages,
            written_bytes=item.written_bytes / n_stages,
            row_length=-(-item.row_length // n_stages),
        )
    assert isinstance(item, CommunicationPoint), "vocabulary layers have no attention"
    return item


def meeting_collectives(communicators: Communicators, boundary_bytes: int, n_rows: int) -> dict[str, Collective]:
    """Return the collectives of a meeting by what they carry.

    Parameters
    ----------
    n_rows : int
        Tokens, of each of which a maximum and a sum are reduced, in fp32.
    """
    groups = communicators.groups(AXIS)

    def collective(name: str, what: str, n_bytes: int, phase: Phase) -> Collective:
        return Collective(collective=name, axis=AXIS, n_bytes=max(1, n_bytes), groups=groups, phase=phase, name=what)

    return {
        "output": collective("broadcast", "output", boundary_bytes, "forward"),
        "loss": collective("all_reduce", "loss", 8 * n_rows, "forward"),
        "gradient": collective("all_reduce", "input gradient", boundary_bytes, "backward"),
        "embedding": collective("all_reduce", "embedding", boundary_bytes, "forward"),
    }
