"""A plan with its layers on their stages: what bounds are asked about."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.identity import distinct
from simulator.models.layer import Layer, Model
from simulator.plan import ParallelPlan
from simulator.schedules import Placement, Schedule, find_schedule

Chunks = tuple[tuple[tuple[Layer, ...], ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedPlan:
    """A plan with its layers on their stages."""

    plan: ParallelPlan
    model: Model
    placement: Placement
    chunks: Chunks

    @property
    def schedule(self) -> Schedule:
        """The schedule, whose properties decide what can be said about its rows."""
        return find_schedule(self.plan.schedule, self.plan.virtual_pp)

    @property
    def n_times(self) -> int:
        """How often a step runs each chunk forward and backward: for half of the micro-batches where pipelines run both ways."""
        return self.plan.n_micro_batches // (2 if self.placement.layout == "bidirectional" else 1)

    def stage_layers(self, stage: int) -> list[Layer]:
        """All layers of a stage, chunk after chunk."""
        return [layer for chunk in self.chunks[stage] for layer in chunk]

    @property
    def recomputes(self) -> bool:
        """Whether backward computes anything again."""
        return any(layer.recompute for layer in distinct(self.model.layers))
