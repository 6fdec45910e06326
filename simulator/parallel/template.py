"""A layer as tasks without a place in a program: runs of kernels, and collectives at the communication points."""

from __future__ import annotations

from typing import NamedTuple

from simulator.models.layer import CommunicationPoint, KernelShape, Layer, LayerItem, PointwiseShape
from simulator.parallel.context import Exchange, exchange_context
from simulator.parallel.expert import exchange_experts
from simulator.parallel.gradients import accumulation_traffic
from simulator.parallel.mesh import Communicators
from simulator.parallel.tensor import at_point
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Kernel, KernelRun, Phase
from simulator.program.program import COMPUTE
from simulator.schedules import Kind


def items_of(layer: Layer, kind: Kind) -> list[tuple[Phase, tuple[LayerItem, ...]]]:
    """Return what a layer launches for one kind of pass, with the phase that each part is accounted to."""
    if kind == "F":
        return [("forward", layer.forward)]
    if kind == "B":
        return [("recompute", layer.recompute), ("backward", layer.backward)]
    is_weight = [not isinstance(i, CommunicationPoint) and i.kernel_pass == "wgrad" for i in layer.backward]
    chosen = tuple(i for i, weight in zip(layer.backward, is_weight, strict=True) if weight == (kind == "W"))
    return [("backward", chosen)] if kind == "W" else [("recompute", layer.recompute), ("backward", chosen)]


class Entry(NamedTuple):
    """A task of a layer; ``after`` counts from the layer's first task."""

    op: KernelRun | Collective
    stream: str
    after: tuple[int, ...]


class Template(NamedTuple):
    """A layer's tasks for one kind of pass, and those that must end before its output is complete."""

    entries: tuple[Entry, ...]
    tails: tuple[int, ...]


class _Builder:
    """Collects kernels into runs and cuts them where communication must be waited for."""

    def __init__(self, layer: Layer, plan: ParallelPlan, communicators: Communicators) -> None:
        self.layer = layer
        self.plan = plan
        self.communicators = communicators
        self.entries: list[Entry] = []
        self.run: list[Kernel] = []
        self.waits: tuple[int, ...] = ()
        self.last_compute: tuple[int, ...] = ()
        self.pending: list[list[int]] = []  # [entry, kernels that may still run beside it]

    def kernel(self, shape: KernelShape, phase: Phase) -> None:
        """Append a kernel, behind the communication that may not run beside it."""
        due = tuple(entry for entry, left in self.pending if left == 0)
        if due:
            self.flush(phase)
            self.waits += due
            self.pending = [p for p in self.pending if p[1] > 0]
        self.run.append(Kernel(name=shape.name, phase=phase, shape=shape, layer=self.layer.name))
        for p in self.pending:
            p[1] -= 1

    def exchange(self, found: Exchange, phase: Phase) -> None:
        """Append a collective.

        Asynchronous tensor parallelism decomposes the product next to a collective: a gather runs beside the product
        that consumes it, a scatter beside the one that produces it.
        """
        is_async = self.plan.asynchronous_tp and found.axis == "tp"
        produced = [self.run.pop()] if is_async and found.collective == "reduce_scatter" and self.run else []
        self.flush(phase)
        after = self.last_compute + self.waits
        if produced:
            self.run = produced
            self.flush(phase)
        op = Collective(
            collective=found.collective, axis=found.axis, n_bytes=found.n_bytes, name=found.name,
            groups=self.communicators.groups(found.axis), phase=phase,
        )  # fmt: skip
        self.entries.append(Entry(op, found.axis, after))
        overlaps = max(found.overlaps, int(is_async and found.collective == "all_gather"))
        self.pending.append([len(self.entries) - 1, overlaps])

    def flush(self, phase: Phase) -> None:
        """Close the open run."""
        if not self.run:
            return
        run = KernelRun(name=f"{self.layer.name} {phase}", phase=phase, kernels=tuple(self.run))
        self.entries.append(Entry(run, COMPUTE, self.waits))
        self.last_compute, self.waits, self.run = (len(self.entries) - 1,), (), []

    def result(self) -> Template:
        """Return the layer."""
        return Template(tuple(self.entries), self.last_compute + tuple(entry for entry, _ in self.pending))


def template_of(layer: Layer, kind: Kind, plan: ParallelPlan, communicators: Communicators) -> Template:
    """Return a layer's tasks for one kind of pass.

    Parameters
    ----------
    layer : Layer
    kind : str
        ``F``, ``B``, ``I`` or ``W``.
    plan : ParallelPlan
    communicators : Communicators
        Who takes part in the collectives.
    """
    builder = _Builder(layer, plan, communicators)
    phase: Phase = "forward"
    for phase, items in items_of(layer, kind):
        for item in exchange_experts(exchange_context(items, plan), plan, communicators):
            found = at_point(item, plan) if isinstance(item, CommunicationPoint) else item
            if isinstance(found, Exchange):
                builder.exchange(found, phase)
            elif found is not None:
                builder.kernel(found, phase)
        builder.flush(phase)
    if kind in ("B", "W"):
        builder.run += _accumulation(layer, plan)
        builder.flush(phase)
    return builder.result()


def _accumulation(layer: Layer, plan: ParallelPlan) -> list[Kernel]:
    """Add a layer's gradients to those of earlier micro-batches."""
    traffic = accumulation_traffic(plan)
    n_elements = layer.n_parameters
    if not n_elements or traffic == (0, 0):
        return []
    shape = PointwiseShape(
        name="add", n_elements=n_elements, dtype="fp32",
        read_bytes=float(n_elements * traffic.read_bytes), written_bytes=float(n_elements * traffic.written_bytes),
    )  # fmt: skip
    return [Kernel(name="accumulate gradients", phase="backward", shape=shape, layer=layer.name)]
