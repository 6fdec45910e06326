"""Answers to many scenarios: looked up in a store, or simulated here, on all cores or on a Dask cluster."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypeVar

import simulator
from simulator.answer import to_json
from simulator.config import data_folders, resolve_name, write_file
from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.explore.neighbourhood import Site, objection
from simulator.interop import load_model, open_topology
from simulator.models.spec import ModelSpec
from simulator.scenario import Scenario
from simulator.simulation import collector_paused, simulate

Record = dict[str, Any]
_LOG = logging.getLogger(__name__)


@lru_cache(maxsize=256)  # one cluster stands in most scenarios of a sweep; a changed file has another time stamp
def _topology_text(name: str, overrides: tuple[tuple[str, str], ...], _modified_ns: int) -> str:
    topology = open_topology(name, 1, overrides=dict(overrides))
    file = resolve_name(name, "clusters").read_bytes()
    return topology.spec.model_dump_json() + repr(topology.device(0)) + hashlib.sha256(file).hexdigest()


@lru_cache(maxsize=1)  # reads every file of the program
def _program() -> str:
    """Return a digest of this very program: answers of another state of it are not taken for its own."""
    files = sorted(Path(simulator.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


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
    parts = (_program(), _written_out(scenario, model).digest(), topology, repr(model), _constants())
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


class Store:
    """Results in a folder on disk, which several processes may use at the same time."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def get(self, key: str) -> Record | None:
        """Return a record, or None where there is none, or one that is not what was written under this key."""
        try:
            stored = json.loads(self._path(key).read_text(encoding="utf-8"))
            record: Record = stored["record"]
            is_whole = stored["digest"] == _digest(key, record)
        except (OSError, ValueError, RecursionError, KeyError, TypeError):
            return None
        return record if is_whole else None

    def put(self, key: str, record: Record) -> None:
        """Write a record; a reader sees it whole or not at all."""
        stored = {"digest": _digest(key, record), "record": record}
        write_file(self._path(key), json.dumps(stored, allow_nan=False, separators=(",", ":")))

    def __len__(self) -> int:
        return sum(1 for _ in self.folder.glob("*.json"))


def open_store(folder: str | Path) -> Store:
    """Return the store inside the folder of a sweep or a search: both may share one."""
    return Store(Path(folder) / "store")


Item = TypeVar("Item")
Answer = TypeVar("Answer")


def _numbered(function: Callable[[Item], Answer], index: int, item: Item, driver: int) -> tuple[int, Answer]:
    _end_with(driver)
    return index, function(item)


@lru_cache(maxsize=1)  # once for each worker
def _end_with(driver: int) -> None:
    """Have a worker end soon after the process that started it, which may be killed before it can end its workers."""

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(1.0)
        os._exit(1)

    if os.getppid() == driver:  # not the driver itself, nor a worker that another process looks after
        threading.Thread(target=watch, daemon=True, name="watch of the driver").start()


#: what workers take until they have loaded the simulator and answer
START_S = 2.0
#: short items of a call after which it is estimated how long the others take
N_TELLING = 4


class Pool:
    """Workers that apply functions to items; use it as a context manager.

    Work begins in this process. Workers are started when what is left of it, by what an item took so far, is worth the time
    that they take to start; or when several calls have taken twice that time, as waves of a search do.

    Parameters
    ----------
    n_jobs : int
        Processes; 0 means one per core. With 1, everything happens in this process.
    scheduler : str
        Address of a Dask scheduler, such as ``tcp://10.0.0.1:8786``, whose workers then do the work; or a Slurm file
        (:class:`simulator.explore.slurm_workers.SlurmSpec`) that says which jobs to submit.
    at_once : bool
        Start workers with the first call: the work is known to be worth it, and its items are long.
    """

    def __init__(self, *, n_jobs: int = 0, scheduler: str = "", at_once: bool = False) -> None:
        self.n_jobs = n_jobs or -1  # as joblib counts
        self.scheduler = scheduler
        self._stack = ExitStack()
        self._client: Any = None
        self._spent_s = 0.0
        self._n_calls = 0
        self._has_started = at_once and n_jobs != 1

    def __enter__(self) -> Pool:
        """Connect; until the pool is left, nothing is said about workers that have grown and are replaced between tasks."""
        if self.n_jobs != 1:
            self._stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="A worker stopped while some jobs", category=UserWarning)
        if self.scheduler:
            from simulator.explore.dask_workers import connected

            self._client = self._stack.enter_context(connected(self.scheduler, _program))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def n_workers(self) -> int:
        """Items in work at the same time."""
        if self._client is not None:
            from simulator.explore.dask_workers import n_threads

            return max(1, n_threads(self._client))
        if self.n_jobs == 1:
            return 1
        import joblib

        return int(joblib.effective_n_jobs(self.n_jobs))

    def run(
        self, function: Callable[[Item], Answer], items: Sequence[Item], *, batch_size: int | str = "auto"
    ) -> Iterator[tuple[int, Answer]]:
        """Apply a function to every item and yield the answers as they come.

        The function is importable by its name, so that it can be sent to other processes, which take so many items at a time.
        """
        if self._client is not None:
            from simulator.explore.dask_workers import spread

            yield from spread(self._client, function, items)
            return
        self._n_calls += 1
        n_done = 0
        took_s: list[float] = []
        while n_done < len(items) and not self._starts(took_s, len(items) - n_done):
            start_s = time.process_time()
            answer = function(items[n_done])
            took_s.append(time.process_time() - start_s)
            self._spent_s += took_s[-1]
            yield n_done, answer
            n_done += 1
        if n_done == len(items):
            return
        import joblib

        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=batch_size, n_jobs=self.n_jobs)
        driver = os.getpid()
        yield from parallel(joblib.delayed(_numbered)(function, i, items[i], driver) for i in range(n_done, len(items)))

    def _starts(self, took_s: Sequence[float], n_left: int) -> bool:
        """Whether workers do the rest of a call of which some items have been done here, and took so many seconds each.

        The first one also loads what the others share, so it says little about them, unless it is as long as starting workers.
        """
        if not self._has_started:
            if self.n_workers == 1 or n_left <= 1:
                return False
            known_s = took_s[1:] if len(took_s) >= N_TELLING else [s for s in took_s if s > START_S]
            left_s = sum(known_s) / len(known_s) * n_left if known_s else 0.0
            is_worth_it = left_s * (1.0 - 1.0 / self.n_workers) > START_S
            self._has_started = is_worth_it or (self._n_calls > 1 and self._spent_s > 2.0 * START_S)
        return self._has_started and n_left > 1


def check_scheduler(scheduler: str) -> None:
    """Complain about a scheduler that cannot be one, even where nothing is left to do."""
    if scheduler and "://" not in scheduler:
        if not Path(scheduler).is_file():
            raise ConfigError(
                f"--scheduler {scheduler}: neither an address nor a file",
                hint="tcp://HOST:8786 of a Dask scheduler, or a YAML file with the key 'slurm'",
            )
        from simulator.explore.slurm_workers import read_slurm

        read_slurm(scheduler)


def failure(error: Exception) -> Record:
    """Return an error as a record."""
    if isinstance(error, SimulatorError):
        status = "infeasible" if error.exit_code == 4 else "invalid"
        return {"status": status, "reason": error.message, "hint": error.hint}
    return {"status": "error", "reason": f"{type(error).__name__}: {error}", "hint": ""}


def evaluate(scenario: Scenario) -> Record:
    """Simulate one scenario and return what is stored: its status, a reason, a remark and the documented answer.

    The remark says which rule of the search refuses a plan that can be simulated all the same.

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
    remark = objection(result.plan, Site(topology=result.topology, spec=result.spec))
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


def look_up(scenarios: Sequence[Scenario], store: Store | None) -> LookUp:
    """Divide scenarios into those whose answers are stored and those that must be simulated."""
    known: dict[str, tuple[list[int], Record]] = {}
    pending: dict[str, Pending] = {}
    for position, scenario in enumerate(scenarios):
        key = store_key(scenario)
        name = key or f"unnamed {position}"
        if name in known:
            known[name][0].append(position)
            continue
        if name in pending:
            pending[name].positions.append(position)
            continue
        record = store.get(key) if store is not None and key is not None else None
        if record is None:
            pending[name] = Pending(scenario=scenario, key=key, positions=[position])
        else:
            known[name] = ([position], record)
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
