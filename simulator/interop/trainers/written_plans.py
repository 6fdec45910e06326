"""Plans in the files of training frameworks; every file is read back before it is handed out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.config import write_file
from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.interop import FORMATS
from simulator.interop.format import Imported
from simulator.interop.trainers.emission import Emission, Request, completed, effective, facts
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file, or why there is none."""

    kind: str  #: A format of :data:`simulator.interop.FORMATS` that can be written.
    path: str = ""  #: Empty if the plan cannot be said in this format.
    note: str = ""  #: What the file does not say, or why there is none.

    def to_dict(self) -> dict[str, str]:
        """Return plain data."""
        return {"format": self.kind, "path": self.path, "note": self.note}


def emit(kind: str, request: Request) -> Emission:
    """Write a plan in one format, read it back, and compare.

    An :class:`InfeasiblePlanError` says what the format has no word for.
    """
    chosen = FORMATS[kind]
    assert chosen.write is not None
    emission = chosen.write(request)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / chosen.file
        file.write_text(emission.text, encoding="utf-8")
        imported = chosen.read(file)
    assert isinstance(imported, Imported)
    found, meant = effective(completed(imported.settings, emission)), effective(emission.plan)
    if imported.spec is not None:
        found, meant = found | facts(imported.spec), meant | facts(request.spec)
    lost = [
        f"{name} {meant[name]!s:.40} comes back as {found[name]!s:.40}" for name in meant if meant[name] != found[name]
    ]
    if lost:
        raise InfeasiblePlanError(f"{chosen.file} would not say the same: {', '.join(lost)}")
    return emission


def write_all(
    plans: Sequence[ParallelPlan],
    spec: ModelSpec,
    folder: Path,
    *,
    gpus_per_node: int,
    describe: Callable[[ParallelPlan], str] = str,
) -> list[Written]:
    """Write in every format the first of some plans that it can say.

    The plans are resolved, the best first; the others are for formats that cannot say it. ``describe`` says a plan in
    one line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for kind, chosen in FORMATS.items():
        if chosen.write is None:
            continue
        reasons: list[str] = []
        for plan in plans:
            try:
                emission = emit(kind, Request(plan=plan, spec=spec, gpus_per_node=gpus_per_node))
            except SimulatorError as error:
                reasons.append(error.message)
                continue
            path = folder / chosen.file
            write_file(path, emission.text)
            instead = [f"{describe(plan)}, because of the best plan {reasons[0]}"] if reasons else []
            if emission.plan.framework != plan.framework:
                instead.append(f"framework {emission.plan.framework} instead of {plan.framework}")
            written.append(Written(kind=kind, path=str(path), note="; ".join([*instead, _elsewhere(emission)])))
            break
        else:
            written.append(Written(kind=kind, note=reasons[0] if reasons else "there is no plan"))
    return written


def _elsewhere(emission: Emission) -> str:
    """Say where those settings go that the file does not hold, unless they are at their defaults."""
    default, places = ParallelPlan(), dict[str, list[str]]()
    for name, place in emission.unsaid.items():
        if getattr(emission.plan, name) != getattr(default, name):
            places.setdefault(place, []).append(name)
    text = "; ".join(f"{', '.join(names)} ({place})" for place, names in places.items())
    return f"not in the file: {text}" if text else "everything is in the file"
