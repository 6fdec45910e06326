"""The same function over many items: in this process, on all cores, or on a Dask cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from simulator.errors import ConfigError

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def _numbered(function: Callable[[Item], Answer], index: int, item: Item) -> tuple[int, Answer]:
    return index, function(item)


def run_all(
    function: Callable[[Item], Answer], items: Sequence[Item], *, n_jobs: int = 0, scheduler: str = ""
) -> Iterator[tuple[int, Answer]]:
    """Apply a function to every item and yield the answers as they come.

    Parameters
    ----------
    function : callable
        Importable by its name, so that it can be sent to other processes.
    items : sequence
        Plain data.
    n_jobs : int
        Processes; 0 means one per core. With 1, everything happens in this process.
    scheduler : str
        Address of a Dask scheduler, such as ``tcp://10.0.0.1:8786``; its workers then do the work.

    Yields
    ------
    tuple of (int, answer)
        Position of the item and its answer, in the order of completion.

    Raises
    ------
    ConfigError
        If the scheduler cannot be used.
    """
    if not scheduler and (n_jobs == 1 or len(items) <= 1):
        for index, item in enumerate(items):
            yield index, function(item)
        return
    import joblib

    with _backend(n_jobs, scheduler) as options:
        parallel = joblib.Parallel(return_as="generator_unordered", **options)
        yield from parallel(joblib.delayed(_numbered)(function, i, item) for i, item in enumerate(items))


def n_workers(n_jobs: int, scheduler: str) -> int:
    """Return how many items are in work at the same time."""
    import joblib

    with _backend(n_jobs, scheduler):
        return int(joblib.effective_n_jobs(n_jobs or -1))


def _backend(n_jobs: int, scheduler: str) -> AbstractContextManager[dict[str, Any]]:
    return _dask(scheduler) if scheduler else _local(n_jobs)


@contextmanager
def _local(n_jobs: int) -> Iterator[dict[str, Any]]:
    yield {"n_jobs": n_jobs or -1}


@contextmanager
def _dask(scheduler: str) -> Iterator[dict[str, Any]]:
    """Connect to a scheduler; a task whose worker dies is given to another one."""
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(
            "--scheduler needs the package 'distributed', which is not installed",
            hint="pip install 'distributed-training-simulator[cluster]'",
        )
    import distributed
    import joblib

    connect: Any = distributed.Client  # no types
    try:
        client = connect(scheduler, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at {scheduler}: {error}", hint="start one with 'dask scheduler'"
        ) from None
    try:
        with joblib.parallel_config(backend="dask", client=client, pure=False):
            yield {"n_jobs": -1}
    finally:
        client.close()
