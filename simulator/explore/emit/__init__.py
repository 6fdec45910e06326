"""Plans in the words of training frameworks; every file is read back before it is handed out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.explore.best_plans import describe
from simulator.explore.emit.accelerate import emit_accelerate
from simulator.explore.emit.deepspeed import emit_deepspeed
from simulator.explore.emit.megatron import emit_megatron
from simulator.explore.emit.record import Emission, Request, completed, effective
from simulator.explore.emit.torchtitan import emit_torchtitan
from simulator.explore.space import Space
from simulator.interop.accelerate import import_accelerate
from simulator.interop.deepspeed import import_deepspeed
from simulator.interop.megatron import import_megatron
from simulator.interop.record import Imported
from simulator.interop.torchtitan import import_torchtitan
from simulator.plan import ParallelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format: its file, its writer, and the importer that reads it."""

    file: str
    emit: Callable[[Request], Emission]
    read: Callable[[str | Path], Imported]


#: name -> format
EMITTERS = {
    "megatron": Format(file="train.sh", emit=emit_megatron, read=import_megatron),
    "deepspeed": Format(file="ds_config.json", emit=emit_deepspeed, read=import_deepspeed),
    "torchtitan": Format(file="train.toml", emit=emit_torchtitan, read=import_torchtitan),
    "accelerate": Format(file="accelerate.yaml", emit=emit_accelerate, read=import_accelerate),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file, or why there is none.

    Parameters
    ----------
    kind : str
        One of :data:`EMITTERS`.
    path : str
        Empty if the plan cannot be said in this format.
    note : str
        What the file does not say, or why there is none.
    """

    kind: str
    path: str = ""
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"format": self.kind, "path": self.path, "note": self.note}


def emit(kind: str, request: Request) -> Emission:
    """Write a plan in one format, read it back, and compare.

    Raises
    ------
    InfeasiblePlanError
        If the format has no word for something.
    """
    chosen = EMITTERS[kind]
    emission = chosen.emit(request)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / chosen.file
        file.write_text(emission.text, encoding="utf-8")
        settings = chosen.read(file).settings
    found, meant = effective(completed(settings, emission)), effective(emission.plan)
    lost = [f"{name} {meant[name]} comes back as {found[name]}" for name in meant if meant[name] != found[name]]
    if lost:
        raise InfeasiblePlanError(f"{chosen.file} would not say the same: {', '.join(lost)}")
    return emission


def write_all(plans: Sequence[ParallelPlan], space: Space, folder: Path) -> list[Written]:
    """Write in every format the first of some plans that it can say.

    Parameters
    ----------
    plans : sequence of ParallelPlan
        Resolved, the best first; the others are for formats that cannot say it.
    space : Space
        Of the search that found it.
    folder : Path
        Made if it does not exist.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, chosen in EMITTERS.items():
        reasons: list[str] = []
        for plan in plans:
            request = Request(plan=plan, spec=space.spec, gpus_per_node=space.topology.gpus_per_node)
            try:
                emission = emit(kind, request)
            except SimulatorError as error:
                reasons.append(error.message)
                continue
            path = folder / chosen.file
            path.write_text(emission.text, encoding="utf-8")
            written.append(Written(kind=kind, path=str(path), note=_note(plan, emission, reasons)))
            break
        else:
            written.append(Written(kind=kind, note=reasons[0] if reasons else "there is no plan"))
    return written


def _note(plan: ParallelPlan, emission: Emission, reasons: Sequence[str]) -> str:
    notes = [f"{describe(plan)}, because of the best plan {reasons[0]}"] if reasons else []
    if emission.plan.framework != plan.framework:
        notes.append(f"framework {emission.plan.framework} instead of {plan.framework}")
    return "; ".join([*notes, _elsewhere(emission)])


def _elsewhere(emission: Emission) -> str:
    """Say where those settings go that the file does not hold, unless they are at their defaults."""
    default, places = ParallelPlan(), dict[str, list[str]]()
    for name, place in emission.unsaid.items():
        if getattr(emission.plan, name) != getattr(default, name):
            places.setdefault(place, []).append(name)
    text = "; ".join(f"{', '.join(names)} ({place})" for place, names in places.items())
    return f"not in the file: {text}" if text else "everything is in the file"


__all__ = ["EMITTERS", "Emission", "Format", "Request", "Written", "completed", "effective", "emit", "write_all"]
