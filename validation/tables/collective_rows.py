"""Collective rows: what nccl-tests would print for them on that cluster."""

from __future__ import annotations

from functools import lru_cache

from simulator.calibration.row_conditions import benchmark_conditions
from simulator.collectives import collective_named, plan_collective
from simulator.collectives.benchmark import launch_floor_s
from simulator.collectives.shape import shape_of
from simulator.collectives.tuner import constants_of
from simulator.errors import ConfigError
from simulator.network import lone_flow_s
from simulator.topology import Topology, load_topology
from validation.tables.dispatch_rows import noted_exchange_s
from validation.tables.outcome import one_by_one
from validation.tables.reader import Row


@lru_cache(maxsize=256)
def _load(name: str, changes: tuple[tuple[str, str], ...], n_gpus: int, gpus_per_node: int | None) -> Topology:
    return load_topology(name, n_gpus, gpus_per_node=gpus_per_node, overrides=dict(changes))


def _collective_us(row: Row) -> tuple[float, str]:
    """Return the microseconds of a collective alone on its links, and what was chosen for it."""
    gpus = row.integer("gpus")
    if gpus < 2:
        raise ConfigError(f"gpus={gpus}: a collective needs at least two ranks")
    nodes, machine, changes = row.integer("nodes", 0), *row.machine()
    on_each = row.integer("gpus_per_node", 0) or (max(gpus // nodes, 1) if nodes else None)
    topology = _load(machine, tuple(changes.items()), gpus, on_each)
    name = collective_named(row.text("collective").lower())
    if name.startswith("moe_"):
        return 1e6 * noted_exchange_s(row, topology), ""
    transport = row.text("transport") or None
    ran = benchmark_conditions(row.cells)
    flow = plan_collective(
        name,
        row.integer("size_bytes"),
        (tuple(range(gpus)),),
        topology,
        transport=transport,
        algorithm=ran.algorithm,
        protocol=ran.protocol,
        eight_bit_float=ran.eight_bit_float,
        nccl=ran.nccl,
        pipelined=True,
    )
    inside, _ = constants_of(shape_of(range(topology.n_gpus), topology, transport))
    floor_s = launch_floor_s(flow.label, ran.gpus_per_process, inside)
    return 1e6 * max(lone_flow_s(flow, topology), floor_s), flow.label


predict = one_by_one(_collective_us)
