"""Which blocks of a stage are recomputed, and how many share one checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulator.models.layer import Layer
from simulator.plan import ParallelPlan


def checkpointed(layers: Sequence[Layer], plan: ParallelPlan, known: dict[tuple[int, int], Layer]) -> tuple[Layer, ...]:
    """Return the layers of one virtual stage as a plan recomputes them.

    ``recompute_method: block`` recomputes the first ``recompute_layers`` blocks and keeps what the others save;
    ``uniform`` keeps one input for that many blocks, and holds all that they save while it runs them again.

    Parameters
    ----------
    layers : sequence of Layer
        Blocks with full recomputation, and what lies around them.
    plan : ParallelPlan
    known : dict
        Layers made before, so that equal ones stay one object.

    References
    ----------
    Megatron-LM, ``--recompute-method`` and ``--recompute-num-layers``.
    """
    count = plan.recompute_layers
    if plan.recompute != "full" or not count:
        return tuple(layers)
    found: list[Layer] = []
    position = 0
    for layer in layers:
        plain = layer.plain
        if plain is None:
            found.append(layer)
            continue
        if plan.recompute_method == "block":
            found.append(layer if position < count else plain)
        else:
            place = position % count
            key = (id(layer), min(place, 1))
            if key not in known:
                kept = 0 if place else layer.saved_bytes
                more = (count - 1) * plain.saved_bytes
                known[key] = replace(layer, saved_bytes=kept, transient_bytes=layer.transient_bytes + more)
            found.append(known[key])
        position += 1
    return tuple(found)
