"""``python -m validation script slurm|pbs JOB ...``: the script that runs a real job on a cluster, one rank per GPU."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

from simulator.errors import ConfigError
from validation.jobs.job_settings import JOBS

_TIME = re.compile(r"\d+:[0-5]\d:[0-5]\d")
#: where rank 0 listens: two jobs on one node rarely get the same
_PORT = "MASTER_PORT=$((20000 + {job_number} % 20000))"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of the scheduler. ``account`` and ``queue`` (Slurm's partition) are the site's own if they are empty."""

    nodes: int
    gpus_per_node: int
    time: str
    account: str = ""
    queue: str = ""


def _slurm(request: Request, command: str) -> list[str]:
    wishes = [
        f"--nodes={request.nodes}",
        f"--ntasks-per-node={request.gpus_per_node}",
        f"--gpus-per-node={request.gpus_per_node}",
        f"--time={request.time}",
        "--output=validation-%j.log",
    ]
    wishes += [f"--account={request.account}"] * bool(request.account)
    wishes += [f"--partition={request.queue}"] * bool(request.queue)
    return [
        *(f"#SBATCH {wish}" for wish in ("--job-name=validation", *wishes)),
        "",
        "set -euo pipefail",
        "# load here whatever gives this site a Python with PyTorch and NCCL",
        'cd "${SLURM_SUBMIT_DIR:?run this with sbatch}"',
        'hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")',
        "MASTER_ADDR=${hosts%%$'\\n'*}",
        _PORT.format(job_number="SLURM_JOB_ID"),
        "export MASTER_ADDR MASTER_PORT",
        'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
        "# one failing task ends the others; every task sees all GPUs of its node and takes the one of its local rank",
        f"exec srun --kill-on-bad-exit=1 --gpu-bind=none {command}",
    ]


def _pbs(request: Request, command: str) -> list[str]:
    each = request.gpus_per_node
    wishes = [f"-l select={request.nodes}:ngpus={each}:mpiprocs={each}", f"-l walltime={request.time}", "-j oe"]
    wishes += [f"-A {request.account}"] * bool(request.account)
    wishes += [f"-q {request.queue}"] * bool(request.queue)
    return [
        *(f"#PBS {wish}" for wish in ("-N validation", *wishes)),
        "",
        "set -euo pipefail",
        "# load here whatever gives this site a Python with PyTorch and NCCL; some sites ask for -l filesystems, too",
        'cd "${PBS_O_WORKDIR:?run this with qsub}"',
        'MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")',
        _PORT.format(job_number="${PBS_JOBID%%.*}"),
        "export MASTER_ADDR MASTER_PORT OMP_NUM_THREADS=1",
        f"exec mpiexec -n {request.nodes * each} --ppn {each} "
        f'--env MASTER_ADDR="$MASTER_ADDR" --env MASTER_PORT="$MASTER_PORT" {command}',
    ]


SCHEDULERS: dict[str, Callable[[Request, str], list[str]]] = {"slurm": _slurm, "pbs": _pbs}


def batch_script(scheduler: str, request: Request, arguments: Sequence[str]) -> str:
    """Return a batch script.

    ``scheduler`` is ``slurm``, or ``pbs`` with the ``mpiexec`` of PALS.
    """
    if scheduler not in SCHEDULERS:
        raise ConfigError(f"scheduler '{scheduler}' is unknown", hint=" or ".join(SCHEDULERS))
    if not arguments or arguments[0] not in JOBS:
        raise ConfigError(f"job '{arguments[0] if arguments else ''}' is unknown", hint=", ".join(JOBS))
    if min(request.nodes, request.gpus_per_node) < 1:
        raise ConfigError("a job needs a node and a GPU", hint="--nodes 2 --gpus-per-node 4")
    if not _TIME.fullmatch(request.time):
        raise ConfigError(f"--time {request.time}: hours, minutes and seconds", hint="--time 00:20:00")
    command = shlex.join(["python", "-m", "validation", "run", *arguments])
    return "\n".join(["#!/bin/bash", *SCHEDULERS[scheduler](request, command)]) + "\n"


def script(
    context: typer.Context,
    scheduler: Annotated[str, typer.Argument(help="slurm, or pbs with the mpiexec of PALS, as on Polaris.")],
    nodes: Annotated[int, typer.Option(help="Nodes.")] = 2,
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each, and ranks.")] = 4,
    time: Annotated[str, typer.Option(help="Limit, as hours:minutes:seconds.")] = "00:20:00",
    account: Annotated[str, typer.Option(help="Who pays.")] = "",
    queue: Annotated[str, typer.Option(help="Queue, or Slurm's partition.")] = "",
) -> None:
    """Print a batch script; the job and its options follow, as for run."""
    request = Request(nodes=nodes, gpus_per_node=gpus_per_node, time=time, account=account, queue=queue)
    print(batch_script(scheduler, request, context.args), end="")
