"""Workers that apply functions to many items: this process, others on this machine, or those of a Dask cluster."""

from __future__ import annotations

import hashlib
import os
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, lru_cache
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeVar

import simulator
from simulator.errors import ConfigError, SimulatorError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


@lru_cache(maxsize=1)  # reads every file of the program
def program_digest() -> str:
    """Return a digest of this very program: answers of another state of it are not taken for its own."""
    files = sorted(Path(simulator.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _numbered(function: Callable[[Item], Answer], index: int, item: Item) -> tuple[int, Answer]:
    return index, function(item)


def _end_with(driver: int) -> None:
    """Have a worker end soon after the process that started it, which may be killed before it can end its workers."""

    def watch() -> None:
        while os.getppid() == driver:
            time.sleep(1.0)
        os._exit(1)

    if os.getpid() != driver:  # threads are no processes of their own
        threading.Thread(target=watch, daemon=True, name="watch of the driver").start()


@lru_cache(maxsize=1)  # once
def _ignore_lost_items() -> None:
    """Say nothing of a thread of joblib's that finds its items gone, as it does where work is ended as it begins."""
    hook = threading.excepthook

    def told(failed: threading.ExceptHookArgs) -> None:
        if not (failed.exc_type is KeyError and failed.thread and failed.thread.name.startswith("ExecutorManager")):
            hook(failed)

    threading.excepthook = told


@contextmanager
def _starting() -> Iterator[None]:
    """Start processes that leave an interrupt to this one, also while they load: a terminal sends it to all of them.

    What they inherit holds it back. They do not warn of files that a killed command has left, either: they remove them.
    """
    before = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (before, "ignore:resource_tracker")))
    _ignore_lost_items()
    holds_back = hasattr(signal, "pthread_sigmask")  # not on Windows
    if holds_back:
        resource_tracker.ensure_running()  # before: where it starts, it lets interrupts in again (bpo-33613)
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if holds_back else set()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before
        if holds_back:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


#: what workers take until they have loaded the simulator and answer
START_S = 2.0
#: short items of a call after which it is estimated how long the others take
N_TELLING = 4
#: what is left of work that ends early
RESUMES = "what arrived is kept if there is a store: the same command resumes from there"
#: what joblib says of items whose answers nobody waits for after an interrupt
_ENDED = r"\d+ tasks (have been successfully executed|which were still being processed)"
#: how often workers of one call may be killed from outside before the call ends
MOST_KILLED = 3


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
        (:class:`simulator.explore.work.slurm_workers.SlurmSpec`) that says which jobs to submit.
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
        """Connect; until the pool is left, nothing is said about workers that are replaced between tasks, or ended with theirs."""
        if self.n_jobs != 1:
            self._stack.enter_context(warnings.catch_warnings())
            for told in ("A worker stopped while some jobs", _ENDED):
                warnings.filterwarnings("ignore", message=told, category=UserWarning)
        if self.scheduler:
            from simulator.explore.work.dask_workers import connected

            self._client = self._stack.enter_context(connected(self.scheduler, program_digest))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def n_workers(self) -> int:
        """Items in work at the same time."""
        if self._client is not None:
            from simulator.explore.work.dask_workers import n_threads

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
            from simulator.explore.work.dask_workers import spread

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
        yield from self._spread(function, items, set(range(n_done, len(items))), batch_size)

    def _spread(
        self, function: Callable[[Item], Answer], items: Sequence[Item], left: set[int], batch_size: int | str
    ) -> Iterator[tuple[int, Answer]]:
        """Have processes work on what is left; where one of them is killed, others go on with what has not come back."""
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        n_killed = 0
        while left:
            try:
                for index, answer in self._processes(function, items, sorted(left), batch_size):
                    left.discard(index)
                    yield index, answer
            except TerminatedWorkerError:
                n_killed += 1
                if n_killed == MOST_KILLED:
                    raise SimulatorError(
                        f"processes that simulate were killed {n_killed} times from outside, as where memory runs out; "
                        f"{len(left)} of {len(items)} scenarios are left",
                        hint=f"fewer --jobs; {RESUMES}",
                    ) from None

    def _processes(
        self, function: Callable[[Item], Answer], items: Sequence[Item], indices: Sequence[int], batch_size: int | str
    ) -> Iterator[tuple[int, Answer]]:
        import joblib

        ends = {"initializer": _end_with, "initargs": (os.getpid(),)}
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=batch_size, n_jobs=self.n_jobs, **ends)
        answers: Any = None
        try:
            with _starting():
                answers = parallel(joblib.delayed(_numbered)(function, i, items[i]) for i in indices)
        except KeyboardInterrupt as interrupt:  # held back until the workers had begun
            if answers is not None:
                answers.throw(interrupt)  # ends them
            traceback.clear_frames(interrupt.__traceback__)  # what has them there does so when it is let go
            raise
        yield from answers

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
        from simulator.explore.work.slurm_workers import read_slurm

        read_slurm(scheduler)
