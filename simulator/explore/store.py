"""A store of results: one small file per scenario, named by its content, so that nothing is computed twice."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import simulator
from simulator.config import data_folders, resolve_name
from simulator.errors import InfeasiblePlanError, SimulatorError
from simulator.interop import load_model
from simulator.interop.topologies import open_topology
from simulator.models.spec import ModelSpec
from simulator.scenario import Scenario

Record = dict[str, Any]


@lru_cache(maxsize=256)
def _topology_text(name: str, overrides: tuple[tuple[str, str], ...], _modified_ns: int) -> str:
    topology = open_topology(name, 1, overrides=dict(overrides))
    file = resolve_name(name, "clusters").read_bytes()
    return topology.spec.model_dump_json() + repr(topology.device(0)) + hashlib.sha256(file).hexdigest()


@lru_cache(maxsize=1)
def _program() -> str:
    """Return a digest of this very program: answers of another state of it are not taken for its own."""
    files = sorted(Path(simulator.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@lru_cache(maxsize=1)
def _constants() -> str:
    files = sorted(file for folder in data_folders("network") for file in folder.glob("*.yaml"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def store_key(scenario: Scenario) -> str | None:
    """Return the content address of a scenario's answer: of the scenario and of all that its names mean.

    A cluster file, a device, a model or a line of this program that changes gives new keys, so a store never answers for an
    older version.

    Returns
    -------
    str or None
        None if a name means nothing; the scenario then fails at once.
    """
    try:
        modified_ns = resolve_name(scenario.topology, "clusters").stat().st_mtime_ns
        topology = _topology_text(scenario.topology, scenario.overrides, modified_ns)
        model = load_model(scenario.model)
    except SimulatorError:
        return None
    parts = (_program(), _written_out(scenario, model).digest(), topology, repr(model), _constants())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def _written_out(scenario: Scenario, model: ModelSpec) -> Scenario:
    """Return a scenario with what follows from its other settings, so that equal ones have one key."""
    plan = replace(scenario.plan, sequence_length=scenario.plan.sequence_length or model.max_positions)
    try:
        return replace(scenario, plan=plan.resolve(plan.gpus) if plan.gpus else plan)
    except InfeasiblePlanError:
        return scenario


class Store:
    """Results on disk.

    Parameters
    ----------
    folder : Path
        Made if it does not exist. Several processes may use it at the same time.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def get(self, key: str) -> Record | None:
        """Return a record, or None where there is none that can be read."""
        try:
            record = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return record if isinstance(record, dict) else None

    def put(self, key: str, record: Record) -> None:
        """Write a record; a reader sees it whole or not at all."""
        path = self._path(key)
        partial = path.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(json.dumps(record, allow_nan=False, separators=(",", ":")), encoding="utf-8")
        os.replace(partial, path)

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*.json"))


def open_store(folder: str | Path) -> Store:
    """Return the store inside the folder of a sweep or a search: both may share one."""
    return Store(Path(folder) / "store")
