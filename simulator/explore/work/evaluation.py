"""Answers to many scenarios: looked up in a store, or simulated by workers."""

from __future__ import annotations

import hashlib
import json
import logging
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from simulator.answer import to_json
from simulator.collector import collector_paused
from simulator.config import data_folders, resolve_name, write_file
from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.explore.neighbourhood import Site, objection
from simulator.explore.work.workers import Pool, program_digest
from simulator.interop import load_model, open_topology
from simulator.models.spec import ModelSpec
from simulator.scenario import Scenario
from simulator.simulation import simulate

Record = dict[str, Any]
_LOG = logging.getLogger(__name__)


@lru_cache(maxsize=256)  # one cluster stands in most scenarios of a sweep; a changed file has another time stamp
def _topology_text(name: str, overrides: tuple[tuple[str, str], ...], _modified_ns: int) -> str:
    topology = open_topology(name, 1, overrides=dict(overrides))
    file = resolve_name(name, "clusters").read_bytes()
    return topology.spec.model_dump_json() + repr(topology.device(0)) + hashlib.sha256(file).hexdigest()


@lru_cache(maxsize=1)  # reads every file of constants
def _constants() -> str:
    files = sorted(file for folder in data_folders("network") for file in folder.glob("*.yaml"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def store_key(scenario: Scenario) -> str | None:
    """Return the content address of a scenario's answer, of all that its names mean; None if one means nothing.

    A cluster file, a device, a model or a line of this program that changes gives new keys, so a store never answers for an
    older version.
    """
    try:
        named = scenario.topology
        if isinstance(named, str):
            modified_ns = resolve_name(named, "clusters").stat().st_mtime_ns
            topology = _topology_text(named, scenario.overrides, modified_ns)
        else:
            topology = named.digest
        model = load_model(scenario.model)
    except SimulatorError:
        return None
    parts = (program_digest(), _written_out(scenario, model).digest(), topology, repr(model), _constants())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _written_out(scenario: Scenario, model: ModelSpec) -> Scenario:
    """Return a scenario with what follows from its other settings, so that equal ones have one key."""
    plan = replace(scenario.plan, sequence_length=scenario.plan.sequence_length or model.max_positions)
    try:
        return replace(scenario, plan=plan.resolve(plan.gpus) if plan.gpus else plan)
    except InfeasiblePlanError:
        return scenario


def _digest(key: str, record: Record) -> str:
    """Return what a record must come to: JSON reads numbers and the order of keys back as they were written."""
    text = json.dumps(record, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(f"{key}\n{text}".encode()).hexdigest()[:16]


#: far more than any record takes
_MOST_BYTES = 256 * 2**20


def _small_text(path: Path) -> str:
    """Return what a file holds, unless it is a pipe, a device or larger than any record: those would never end."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > _MOST_BYTES:
        raise ValueError
    return path.read_text(encoding="utf-8")


class Store:
    """Results in a folder on disk, which several processes may use at the same time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def get(self, key: str) -> Record | None:
        """Return a record, or None where there is none; one that is not what was written under this key is none, and said."""
        path = self._path(key)
        try:
            stored = json.loads(_small_text(path))
            record: Record = stored["record"]
            if stored["digest"] == _digest(key, record):
                return record
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            pass
        _LOG.warning("%s: not the record that was written here; its scenario is simulated again", path)
        return None

    def put(self, key: str, record: Record) -> None:
        """Write a record; a reader sees it whole or not at all."""
        stored = {"digest": _digest(key, record), "record": record}
        write_file(self._path(key), json.dumps(stored, allow_nan=False, separators=(",", ":")))

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*.json"))


def open_store(folder: str | Path) -> Store:
    """Return the store inside the folder of a sweep or a search: both may share one."""
    return Store(Path(folder) / "store")


def failure(error: Exception) -> Record:
    """Return an error as a record."""
    if isinstance(error, SimulatorError):
        status = "infeasible" if error.exit_code == 4 else "invalid"
        return {"status": status, "reason": error.message, "hint": error.hint}
    return {"status": "error", "reason": f"{type(error).__name__}: {error}", "hint": ""}


def evaluate(scenario: Scenario) -> Record:
    """Simulate one scenario and return what is stored: its status, a reason, a remark and the documented answer.

    The remark says which rule of the search, or what the framework, refuses of a plan that can be simulated all the same.

    Nothing that goes wrong inside one scenario ends a sweep or a search: it becomes the reason of its row.
    """
    with collector_paused():  # until what was simulated has been let go, so that the collector does not look through it
        return _evaluate(scenario)


def _evaluate(scenario: Scenario) -> Record:
    try:
        result = simulate(scenario)
        answer = to_json(result)
    except Exception as error:
        return failure(error)
    refusal = objection(result.plan, Site(topology=result.topology, spec=result.spec))
    remark = "; ".join(filter(None, (refusal, *result.warnings)))
    if result.memory.fits:
        return {"status": "ok", "reason": "", "remark": remark, "answer": answer}
    return {"status": "does not fit", "reason": result.memory.explain(), "remark": remark, "answer": answer}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A scenario without an answer yet."""

    scenario: Scenario
    #: Of the store.
    key: str | None
    #: Where it stands among the scenarios that were asked for: equal ones are simulated once.
    positions: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUp:
    """What a store knows about some scenarios."""

    known: list[tuple[list[int], Record]]  #: Positions and record of each distinct scenario that it has.
    pending: list[Pending]  #: The others.


def look_up(scenarios: Sequence[Scenario], store: Store | None, told: Callable[[int], None] = lambda _: None) -> LookUp:
    """Divide scenarios into those whose answers are stored and those that must be simulated; tell how many are, so far."""
    n_known = 0
    known: dict[str, tuple[list[int], Record]] = {}
    pending: dict[str, Pending] = {}
    for position, scenario in enumerate(scenarios):
        told(n_known)  # each of many clusters is opened for its key
        key = store_key(scenario)
        name = key or f"unnamed {position}"
        if name in known:
            known[name][0].append(position)
            n_known += 1
            continue
        if name in pending:
            pending[name].positions.append(position)
            continue
        record = store.get(key) if store is not None and key is not None else None
        if record is None:
            pending[name] = Pending(scenario=scenario, key=key, positions=[position])
        else:
            known[name] = ([position], record)
            n_known += 1
    return LookUp(known=list(known.values()), pending=list(pending.values()))


def compute(
    pending: Sequence[Pending], store: Store | None, pool: Pool, *, batch_size: int | str = "auto"
) -> Iterator[tuple[list[int], Record]]:
    """Simulate scenarios; yield positions and record of each in the order of completion.

    Every answer is stored when it arrives, so that whatever ends the work early loses nothing.
    """
    for index, record in pool.run(evaluate, [one.scenario for one in pending], batch_size=batch_size):
        one = pending[index]
        # a fault of ours is not the scenario's answer: try again next time
        if store is not None and one.key is not None and record["status"] != "error":
            store.put(one.key, record)
        yield one.positions, record
