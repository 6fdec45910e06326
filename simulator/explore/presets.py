"""Published runs to start from: cluster, model and plan of each, with what was measured and where it is published."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from simulator.config import Spec, load_spec, resolve_name, shipped_names


class MeasuredRun(Spec):
    """What a publication measured."""

    iteration_time_s: float = Field(gt=0)
    source: str
    row: str  #: Of the measurement tables.
    split: str  #: ``test`` where no constant was fitted to the run.


class Preset(Spec):
    """A file of ``topologies/presets``, or one of your own: settings by name, as in a sweep file."""

    title: str
    settings: dict[str, Any]
    measured: MeasuredRun | None = None


def read_preset(name: str) -> Preset:
    """Return a shipped preset by its name, or the one of a file."""
    return load_spec(resolve_name(name, "presets"), Preset)


def presets() -> dict[str, Preset]:
    """Return the shipped presets by name."""
    return {name: read_preset(name) for name in shipped_names("presets")}
