"""The same function over many items: in this process, on all cores, or on a Dask cluster."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from simulator.errors import ConfigError

#: how long to wait for the first worker of a scheduler that somebody started
_NO_WORKER_S = 20

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def _numbered(function: Callable[[Item], Answer], index: int, item: Item) -> tuple[int, Answer]:
    return index, function(item)


class Pool:
    """Workers that apply functions to items; use it as a context manager.

    Parameters
    ----------
    n_jobs : int
        Processes; 0 means one per core. With 1, everything happens in this process.
    scheduler : str
        Address of a Dask scheduler, such as ``tcp://10.0.0.1:8786``, whose workers then do the work; or a Slurm file
        (:class:`simulator.explore.slurm.SlurmSpec`) that says which jobs to submit.
    """

    def __init__(self, *, n_jobs: int = 0, scheduler: str = "") -> None:
        self.n_jobs = n_jobs
        self.scheduler = scheduler
        self._stack = ExitStack()
        self._options: dict[str, Any] = {}

    def __enter__(self) -> Pool:
        """Connect.

        Raises
        ------
        ConfigError
            If the scheduler cannot be used.
        """
        if self.scheduler:
            self._options = self._stack.enter_context(_dask(self.scheduler))
        else:
            self._options = {"n_jobs": self.n_jobs or -1}
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def n_workers(self) -> int:
        """Items in work at the same time."""
        if self.n_jobs == 1 and not self.scheduler:
            return 1
        import joblib

        return int(joblib.effective_n_jobs(self._options["n_jobs"]))

    def run(
        self, function: Callable[[Item], Answer], items: Sequence[Item], *, batch_size: int | str = "auto"
    ) -> Iterator[tuple[int, Answer]]:
        """Apply a function to every item and yield the answers as they come.

        Parameters
        ----------
        function : callable
            Importable by its name, so that it can be sent to other processes.
        items : sequence
            Plain data.
        batch_size : int or str
            Items that a worker takes at a time.

        Yields
        ------
        tuple of (int, answer)
            Position of the item and its answer, in the order of completion.
        """
        if not self.scheduler and (self.n_workers == 1 or len(items) <= 1):
            for index, item in enumerate(items):
                yield index, function(item)
            return
        import joblib

        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=batch_size, **self._options)
        yield from parallel(joblib.delayed(_numbered)(function, i, item) for i, item in enumerate(items))


def check_scheduler(scheduler: str) -> None:
    """Complain about a scheduler that cannot be one, even where nothing is left to do.

    Raises
    ------
    ConfigError
        If it is neither an address nor a Slurm file, or the file has faults.
    """
    if scheduler and "://" not in scheduler:
        if not Path(scheduler).is_file():
            raise ConfigError(
                f"--scheduler {scheduler}: neither an address nor a file",
                hint="tcp://HOST:8786 of a Dask scheduler, or a YAML file with the key 'slurm'",
            )
        from simulator.explore.slurm import read_slurm

        read_slurm(scheduler)


@contextmanager
def _dask(scheduler: str) -> Iterator[dict[str, Any]]:
    """Connect to a scheduler, or start one whose workers Slurm starts; a task whose worker dies is given to another one."""
    if importlib.util.find_spec("distributed") is None:
        raise ConfigError(
            "--scheduler needs the package 'distributed', which is not installed",
            hint="pip install 'distributed-training-simulator[cluster]'",
        )
    import joblib

    with ExitStack() as stack:
        if "://" in scheduler:
            client = _connect(scheduler)
            stack.callback(client.close)
            _wait(client, f"{_NO_WORKER_S} s", f"start some with 'dask worker {scheduler} --nthreads 1'")
        else:
            from simulator.explore.slurm import read_slurm, start_cluster

            cluster = start_cluster(read_slurm(scheduler))
            stack.callback(cluster.close)
            client = _connect(cluster)
            stack.callback(client.close)
            _wait(client, None, "")
        stack.enter_context(joblib.parallel_config(backend="dask", client=client, pure=False))
        yield {"n_jobs": -1}


def _connect(address: Any) -> Any:
    import distributed

    connect: Any = distributed.Client  # no types
    try:
        return connect(address, timeout="10s", set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        hint = "start one with 'dask scheduler'; a Slurm file is given by its path"
        raise ConfigError(f"no Dask scheduler answers at {address}: {error}", hint=hint) from None


def _wait(client: Any, limit: str | None, hint: str) -> None:
    try:
        client.wait_for_workers(1, timeout=limit)
    except TimeoutError:
        raise ConfigError(f"the Dask scheduler has no workers after {limit}", hint=hint) from None
