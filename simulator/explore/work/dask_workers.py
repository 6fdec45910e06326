"""Work on a Dask cluster: items go out in pieces of about a second, and a piece whose worker dies goes to another one."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from simulator.errors import ConfigError, SimulatorError
from simulator.explore.work.workers import RESUMES

_LOG = logging.getLogger(__name__)
Item = TypeVar("Item")
Answer = TypeVar("Answer")

#: how long to wait for an answer of a scheduler
_ANSWER_S = 10
#: how long to wait for the first worker of a scheduler that is already running
_NO_WORKER_S = 20
#: what is sent to a worker at a time shall take it so long: less, and it waits for messages; more, and more is lost with it
_PIECE_S = 1.0
#: pieces of each worker: one that it works on, and one for when that is done
_AHEAD = 2
#: how old a count of the workers may be; they come and go
_COUNTED_S = 2.0
#: how long to go on without any worker
_LOST_S = 60.0


@contextmanager
def connected(scheduler: str, program: Callable[[], str]) -> Iterator[Any]:
    """Connect to a scheduler, or start one whose workers Slurm starts.

    Parameters
    ----------
    program : callable
        Tells the state of this program, here and on workers: answers of another one are not taken.
    """
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(
            "--scheduler needs the package 'distributed', which is not installed",
            hint="pip install 'distributed-training-simulator[cluster]'",
        )
    with ExitStack() as stack:
        if "://" in scheduler:
            client = _connect(scheduler)
            stack.callback(client.close)
            _wait(client, f"{_NO_WORKER_S} s", f"start some with 'dask worker {scheduler} --nthreads 1'")
        else:
            from simulator.explore.work.slurm_workers import read_slurm, start_cluster

            cluster = start_cluster(read_slurm(scheduler))
            stack.callback(cluster.close)
            client = _connect(cluster)
            stack.callback(client.close)
            _wait(client, None, "")
        _LOG.info("the Dask scheduler's dashboard: %s", client.dashboard_link)
        _check_program(client, program)
        yield client


def _connect(address: Any) -> Any:
    import distributed

    for name in ("distributed", "distributed.client"):  # what fails is an exception here; it is said once
        logging.getLogger(name).setLevel(logging.CRITICAL)
    connect: Any = distributed.Client  # no types
    try:
        if isinstance(address, str):
            asyncio.run(_answers(address))
        return connect(address, timeout=f"{_ANSWER_S} s", set_as_default=False)
    except (OSError, ValueError, MemoryError) as error:
        reason: object = error
        if isinstance(error, MemoryError):  # a greeting, read as the length of a message
            reason = "what answers speaks another protocol"
        elif isinstance(error, TimeoutError):
            reason = f"nothing for {_ANSWER_S} s"
        hint = "start one with 'dask scheduler'; a Slurm file is given by its path"
        raise ConfigError(f"no Dask scheduler answers at {address}: {reason}", hint=hint) from None


async def _answers(address: str) -> None:
    """Raise where no scheduler answers: a client waits without end for whatever takes a connection and says nothing."""
    from distributed.comm.core import connect

    if not address.startswith("tcp://"):  # others need keys
        return
    open_it: Any = connect  # no types
    comm = await asyncio.wait_for(open_it(address, timeout=_ANSWER_S), _ANSWER_S)
    comm.abort()


def _wait(client: Any, limit: str | None, hint: str) -> None:
    if not client.nthreads():
        _LOG.info("no workers yet: waiting for the first%s", f", {limit} at most" if limit else "")
    try:
        client.wait_for_workers(1, timeout=limit)
    except TimeoutError:
        raise ConfigError(f"the Dask scheduler has no workers after {limit}", hint=hint) from None


def _check_program(client: Any, program: Callable[[], str]) -> None:
    found = client.run(program, on_error="ignore")
    others = sorted(worker for worker, state in found.items() if state != program())
    if others:
        raise ConfigError(
            f"{len(others)} of {len(found)} workers have another state of the simulator than this command, such as {others[0]}",
            hint="start them again in the environment of this command",
        )


def n_threads(client: Any) -> int:
    """Return how many items the workers of a cluster do at the same time."""
    try:
        return sum(client.nthreads().values())
    except (OSError, TimeoutError):
        raise _gone("the Dask scheduler is gone") from None


def _gone(what: str) -> SimulatorError:
    return SimulatorError(what, hint=RESUMES)


def _piece(function: Callable[[Item], Answer], items: Sequence[Item]) -> tuple[list[Answer], float]:
    """Work on a piece, on a worker; also say how many seconds an item took."""
    start_s = time.monotonic()
    answers = [function(item) for item in items]
    return answers, (time.monotonic() - start_s) / len(items)


def spread(client: Any, function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[tuple[int, Answer]]:
    """Apply a function to items on the workers of a cluster and yield positions and answers as they come.

    Pieces begin with one item and grow until they take about a second; towards the end they shrink again, so that workers end
    together. Answers are fetched while others are worked on, and new pieces go out before answers are looked at.
    A piece whose workers die too often is divided; an item of which that is true ends the work, and so does a
    cluster that has had no workers for a minute.
    """
    import distributed

    left, alone = deque(range(len(items))), deque[int]()
    out: dict[Any, list[int]] = {}
    arrived: list[tuple[int, Answer]] = []
    size, crew = 1, _Crew(client)
    completed: Any = distributed.as_completed  # no types
    done = completed(loop=client.loop, with_results=True, raise_errors=False)
    try:
        while left or alone or out or arrived:
            n_out = _AHEAD * crew.n_threads()
            while (left or alone) and len(out) < n_out:
                n_fair = -(-len(left) // n_out)
                piece = [alone.popleft()] if alone else [left.popleft() for _ in range(min(size, n_fair))]
                future = client.submit(_piece, function, [items[index] for index in piece], pure=False)
                out[future] = piece
                done.add(future)
            yield from arrived
            arrived = []
            for future, result in _ready(done):
                piece = out.pop(future)
                if future.status != "finished":
                    alone.extend(_again(piece, result))
                    continue
                answers, item_s = result
                size = max(1, min(2 * len(piece), int(_PIECE_S / max(item_s, 1e-6))))
                arrived += zip(piece, answers, strict=True)
    finally:
        if out:
            client.cancel(list(out))


class _Crew:
    """Counts the workers, which come and go, every few seconds."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._n_threads = 0
        self._counted_s = -math.inf
        self._seen_s = time.monotonic()
        self._is_told = False  # that none is left

    def n_threads(self) -> int:
        """Return how many items are done at the same time, or will be by the first worker that comes back."""
        now_s = time.monotonic()
        if now_s - self._counted_s > _COUNTED_S:
            self._n_threads, self._counted_s = n_threads(self._client), now_s
        if self._n_threads:
            self._seen_s, self._is_told = now_s, False
        elif not self._is_told:
            self._is_told = True
            _LOG.info("the Dask scheduler has lost all its workers: waiting up to %d s for new ones", _LOST_S)
        if now_s - self._seen_s > _LOST_S:
            raise _gone("the Dask scheduler has lost all its workers")
        return max(1, self._n_threads)


def _ready(done: Any) -> list[tuple[Any, Any]]:
    """Return the pieces that are done, with what came of each; wait for the first of them, for a while."""
    end_s = time.monotonic() + _COUNTED_S
    while not done.has_ready() and time.monotonic() < end_s:
        time.sleep(0.01)
    found: list[tuple[Any, Any]] = done.next_batch(block=False)
    return found


def _again(piece: list[int], result: Any) -> list[int]:
    """Return what to try once more of a piece that failed; complain where that cannot help."""
    from distributed import KilledWorker

    if not isinstance(result, tuple):
        raise _gone("the Dask scheduler is gone")
    error = result[1]
    if not isinstance(error, KilledWorker):
        raise error
    if len(piece) == 1:
        raise SimulatorError(
            "each worker that was given a certain scenario died",
            hint="give the workers more memory, or read what they logged",
        )
    return piece
