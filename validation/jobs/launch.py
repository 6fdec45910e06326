"""Who am I among how many: torchrun, Slurm, MPI, or ranks started here; a clear message when that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.errors import ConfigError, SimulatorError
from validation.emulation.ranks import run_ranks

_DEFAULT_PORT = 29500
#: what MPI launchers set: rank, ranks, rank on the node, ranks on the node; PALS (Polaris, Aurora), Open MPI, MPICH, Cray PMI
_MPI = (
    ("PALS_RANKID", "PMI_SIZE", "PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
)


class JobError(SimulatorError):
    """A real job could not start or did not finish."""

    exit_code = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process of a job."""

    #: Among all processes.
    rank: int
    world_size: int
    #: Among those of this node.
    local_rank: int
    local_world_size: int
    #: Where rank 0 listens.
    address: str = "127.0.0.1"
    port: int = _DEFAULT_PORT
    launcher: str = "here"  #: ``torchrun``, ``slurm``, ``mpi`` or ``here``.

    @property
    def n_nodes(self) -> int:
        """Nodes, if all have as many ranks as this one."""
        return -(-self.world_size // self.local_world_size)


def find_launch(environment: Mapping[str, str]) -> Launch | None:
    """Read from the environment who launched this process; None if it was not launched so.

    Examples
    --------
    >>> find_launch({"SLURM_PROCID": "3", "SLURM_NTASKS": "8", "SLURM_NNODES": "4", "MASTER_ADDR": ""}).rank
    3
    """
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return Launch(
            rank=_number(environment, "RANK"),
            world_size=_number(environment, "WORLD_SIZE"),
            local_rank=_number(environment, "LOCAL_RANK", 0),
            local_world_size=_number(environment, "LOCAL_WORLD_SIZE", 1),
            address=_address(environment, "torchrun"),
            port=_number(environment, "MASTER_PORT", _DEFAULT_PORT),
            launcher="torchrun",
        )
    if "SLURM_PROCID" in environment and (environment.get("SLURM_NTASKS") or "1") != "1":
        world = _number(environment, "SLURM_NTASKS")
        nodes = _number(environment, "SLURM_NNODES", 1)
        per_node = environment.get("SLURM_NTASKS_PER_NODE", "").partition("(")[0]
        return Launch(
            rank=_number(environment, "SLURM_PROCID"),
            world_size=world,
            local_rank=_number(environment, "SLURM_LOCALID", 0),
            local_world_size=int(per_node) if per_node.isdigit() else -(-world // nodes),
            address=_address(environment, "validation/jobs/slurm.sh"),
            port=_number(environment, "MASTER_PORT", _DEFAULT_PORT),
            launcher="slurm",
        )
    for rank, world_size, local_rank, local_world_size in _MPI:
        if {rank, local_rank} <= environment.keys() and _number(environment, world_size, 1) > 1:
            return Launch(
                rank=_number(environment, rank),
                world_size=_number(environment, world_size),
                local_rank=_number(environment, local_rank),
                local_world_size=_number(environment, local_world_size),
                address=_address(environment, "validation/jobs/pbs.sh"),
                port=_number(environment, "MASTER_PORT", _DEFAULT_PORT),
                launcher="mpi",
            )
    return None


def _address(environment: Mapping[str, str], who: str) -> str:
    if "MASTER_ADDR" not in environment:
        raise ConfigError("MASTER_ADDR is not set", hint=f"{who} sets it: start the job with that")
    return environment["MASTER_ADDR"]


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdigit():
        raise ConfigError(f"{name}={text!r} is not a number of the launcher's environment")
    return int(text)


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_port(address: str, port: int) -> None:
    """Complain when rank 0 cannot listen on its port.

    A :class:`JobError` says that the port is taken.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise JobError(
                    f"port {port} on {address} is busy", hint="choose another with --port, or MASTER_PORT"
                ) from None
            raise JobError(f"rank 0 cannot listen on {address}:{port}: {error.strerror}") from None


def start_here(n_ranks: int, body: Callable[[Launch], Any], *, port: int = 0, timeout_s: float = 1800.0) -> list[Any]:
    """Start so many ranks on this machine and return their answers; none outlives this process.

    Rank 0 listens on ``port``; 0 takes a free one. After ``timeout_s`` all are ended.
    """
    if port:
        check_port("127.0.0.1", port)
    chosen = port or free_port()
    return run_ranks(
        n_ranks,
        lambda rank: body(
            Launch(rank=rank, world_size=n_ranks, local_rank=rank, local_world_size=n_ranks, port=chosen)
        ),
        timeout_s=timeout_s,
    )


@contextlib.contextmanager
def process_group(launch: Launch, backend: str, timeout_s: float) -> Iterator[None]:
    """Join the job's process group while the body runs."""
    from datetime import timedelta

    import torch.distributed as dist

    if launch.launcher == "here":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if launch.rank == 0 and launch.launcher == "slurm":
        check_port("", launch.port)
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{launch.address}:{launch.port}",
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
    except (RuntimeError, ValueError) as error:
        raise JobError(
            f"rank {launch.rank} of {launch.world_size} could not join at {launch.address}:{launch.port}: "
            f"{str(error).splitlines()[0]}",
            hint="is the port free on rank 0's node, and do all ranks run?",
        ) from None
    try:
        yield
    finally:
        dist.destroy_process_group()


def require_torch() -> None:
    """Complain in words when PyTorch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"real jobs need PyTorch: {error}", hint="pip install torch") from None
