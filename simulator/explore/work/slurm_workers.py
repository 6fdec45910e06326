"""Workers that Slurm starts: a file of job options, read into a Dask cluster of dask-jobqueue."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from simulator.config import Bytes, Spec, complaint, load_spec
from simulator.errors import ConfigError

_WALLTIME = re.compile(r"(\d+-)?\d{1,3}(:\d{2}){0,2}$")


def _walltime(text: str) -> str:
    if not _WALLTIME.match(text):
        raise complaint(ConfigError(f"{text!r} is not a time limit", hint="write h:mm:ss or d-hh:mm:ss, in quotes"))
    return text


class SlurmSpec(Spec):
    """What a Slurm file may say.

    Parameters
    ----------
    jobs : int
        Jobs to submit; each brings ``processes`` workers.
    cores, processes : int
        CPU cores of a job, and worker processes that share them; one per core where it is not given.
    memory : quantity
        Of a job.
    walltime : str
        Limit of a job; a sweep whose jobs end early goes on when it is started again.
    queue, account : str
        Partition and account, as Slurm has them.
    interface : str
        Network interface by which workers reach the machine where the command runs, such as ``ib0``.
    directives : list of str
        More ``#SBATCH`` lines, such as ``--qos=debug``.
    prologue : list of str
        Shell lines before the worker starts, such as ``module load python``.
    python : str
        Interpreter of the workers; the one of this command where it is not given.
    log_directory : str
        Where Slurm writes what the jobs print.
    """

    jobs: int = Field(default=1, gt=0)
    cores: int = Field(default=1, gt=0)
    processes: int = Field(default=0, ge=0)
    memory_bytes: Bytes = Field(default=4 * 2**30, alias="memory", gt=0)
    walltime: Annotated[str, AfterValidator(_walltime)] = "01:00:00"
    queue: str | None = None
    account: str | None = None
    interface: str | None = None
    directives: list[str] = Field(default_factory=list)
    prologue: list[str] = Field(default_factory=list)
    python: str | None = None
    log_directory: str | None = None

    def options(self) -> dict[str, Any]:
        """Return the keyword arguments of ``dask_jobqueue.SLURMCluster``."""
        return {
            "cores": self.cores, "processes": self.processes or self.cores, "memory": f"{int(self.memory_bytes)} B",
            "walltime": self.walltime, "queue": self.queue, "account": self.account, "interface": self.interface,
            "job_extra_directives": list(self.directives), "job_script_prologue": list(self.prologue),
            "python": self.python or sys.executable, "log_directory": self.log_directory,
        }  # fmt: skip


class SlurmFile(Spec):
    """A Slurm file: one key, so that it is not taken for anything else."""

    slurm: SlurmSpec


def read_slurm(path: str) -> SlurmSpec:
    """Read a Slurm file."""
    return load_spec(path, SlurmFile).slurm


def start_cluster(spec: SlurmSpec) -> Any:
    """Start a Dask scheduler in this process and submit the jobs whose workers connect to it.

    Returns
    -------
    dask_jobqueue.SLURMCluster
        Close it to cancel the jobs. ``job_script()`` says what is submitted.
    """
    if importlib.util.find_spec("dask_jobqueue") is None:
        raise ConfigError(
            "Slurm needs the package 'dask-jobqueue', which is not installed",
            hint="pip install 'distributed-training-simulator[cluster]'",
        )
    from dask_jobqueue.slurm import SLURMCluster

    make: Any = SLURMCluster  # no types
    try:
        with warnings.catch_warnings():  # another dashboard has the port: ours says where it is
            warnings.filterwarnings("ignore", "Port .* is already in use")
            cluster = make(**spec.options())
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"no Dask scheduler can be started for Slurm: {_last_line(str(error))}") from None
    try:
        _check_job(cluster.job_script())
    except ConfigError:
        cluster.close()
        raise
    cluster.scale(jobs=spec.jobs)
    return cluster


def _check_job(script: str) -> None:
    """Ask Slurm whether it would take the job: dask-jobqueue itself would only write the refusal into a log."""
    if shutil.which("sbatch") is None:
        raise ConfigError("there is no Slurm here: no sbatch on the PATH", hint="run this on a login node")
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
        file.write(script)
        file.flush()
        done = subprocess.run(["sbatch", "--test-only", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"Slurm refuses the job: {_last_line(done.stderr)}", hint="check queue, account and limits")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it says nothing")
