"""Collective rows: the flow that the simulator plans for them, alone on its links."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError, SimulatorError
from validation.tables.many_jobs import Progress
from validation.tables.outcome import Outcome
from validation.tables.reader import Row

if TYPE_CHECKING:
    from simulator.collectives.benchmark import Conditions

_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "bcast": "broadcast",
}


def lone_time_s(flow: Any, topology: Any) -> float:
    """Return the seconds that a flow takes alone in the network."""
    from simulator.network import NETWORKS
    from simulator.units import to_s

    network = NETWORKS["flow"](topology)
    network.start(flow, 0)
    done_ps = network.next_completion_ps()
    return to_s(done_ps or 0)


def _plan(row: Row) -> tuple[Any, Any]:
    """Return the planned flow of a row and its topology."""
    from simulator.collectives import plan_collective

    gpus = row.integer("gpus")
    if gpus < 2:
        raise ConfigError(f"gpus={gpus}: a collective needs at least two ranks")
    nodes = row.integer("nodes", 1)
    topology = _load(row.text("topology"), gpus, row.integer("gpus_per_node", max(gpus // nodes, 1)))
    name = row.text("collective").lower().replace("-", "_")
    algorithm, _, protocol = row.text("algorithm").lower().partition("/")
    flow = plan_collective(
        _NAMES.get(name.replace("_", ""), name),
        row.integer("size_bytes"),
        (tuple(range(gpus)),),
        topology,
        transport=row.text("transport") or None,
        algorithm=algorithm or None,
        protocol=protocol or row.text("protocol").lower() or None,
        eight_bit_float=row.text("dtype").lower().startswith(("fp8", "float8", "f8e")),
        nccl=_conditions(row).nccl,
        pipelined=True,
    )
    return flow, topology


def _conditions(row: Row) -> Conditions:
    """Return how the benchmark was run, as far as columns and source say it."""
    from simulator.collectives.benchmark import conditions_of

    return conditions_of(row.text("source"), nccl=row.text("nccl"), gpus_per_process=row.text("gpus_per_process"))


def _launch_floor_s(row: Row, flow: Any, topology: Any) -> float:
    """Least time between operations when one process drives all GPUs (``nccl-tests -g``)."""
    from simulator.collectives.benchmark import launch_floor_s
    from simulator.collectives.shape import shape_of
    from simulator.collectives.tuner import constants_of

    per_process = _conditions(row).gpus_per_process
    inside, _ = constants_of(shape_of(range(topology.n_gpus), topology, row.text("transport") or None))
    return launch_floor_s(flow.label, per_process, inside)


@lru_cache(maxsize=256)
def _load(name: str, n_gpus: int, gpus_per_node: int) -> Any:
    from simulator.topology.cluster_file import load_topology

    if not name:
        raise ConfigError("the row names no topology")
    return load_topology(name, n_gpus, gpus_per_node=gpus_per_node)


def predict(rows: Sequence[Row], progress: Progress | None = None, n_processes: int = 1) -> list[Outcome]:
    """Predict the time of every collective row in microseconds; in one process, plans are shared."""
    del n_processes
    outcomes: list[Outcome] = []
    for row in rows:
        if progress is not None:
            progress.update(len(outcomes), len(rows))
        try:
            flow, topology = _plan(row)
            time_s = max(lone_time_s(flow, topology), _launch_floor_s(row, flow, topology))
            outcomes.append(Outcome(row=row, predicted=1e6 * time_s, note=flow.label))
        except SimulatorError as error:
            outcomes.append(Outcome(row=row, reason=error.message))
    return outcomes
