"""The shipped constants of collectives: which are fitted together to which rows, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simulator.arrays import FloatArray
from simulator.calibration.collectives import (
    LARGE_BYTES,
    ConstantBlock,
    Measured,
    errors_of,
    fit_all,
    left_out_errors,
    with_uncertainty,
    write_table,
)
from simulator.calibration.robust import Residuals
from simulator.collectives.constants import version_key
from simulator.collectives.nccl import RING_PASSES, is_legacy
from simulator.collectives.ring import Ring
from simulator.config import load_yaml, resolve_name
from simulator.errors import CalibrationError

_HEADER = """What a collective costs once NCCL has chosen algorithm and protocol, by class of GPU and network.
Lists are per protocol: LL, LL128, Simple (two values: LL and Simple). Efficiencies are payload over raw
link rate; those of LL between nodes are far below one, since few threads wait for each line. Latencies of hops and
messages are without the route's, which the cluster file gives. socket_gb_per_s is what the host's threads copy for a
NIC (fitted on Polaris, where they are the limit, not its NICs); efficiencies of sockets are wire shares: 5 % for
headers (assumed), of the rest half under LL and 120/128 under LL128. Refit with
simulate calibrate collectives TABLE.csv --out FILE."""
_SOURCE = (
    "fitted by simulate calibrate collectives to the fit rows of measurements/collectives.csv and "
    "measurements/frontier/collectives.csv (nccl-tests and rccl-tests of {clusters}), starting from network/nccl-start.yaml"
)


_RING = ("base_us", "hop_us", "efficiency")
Place = tuple[str | int, ...]


def _lists(*prefix: str, keys: tuple[str, ...] = _RING, positions: tuple[int, ...] = (0, 1, 2)) -> tuple[Place, ...]:
    return tuple((*prefix, key, position) for key in keys for position in positions)


def _inside(generation: str, old: bool | None, wiring: str | None = None) -> Callable[[Measured], bool]:
    return lambda r: (
        r.shape.n_nodes == 1
        and r.shape.generation == generation
        and r.collective in Ring.tables
        and (old is None or is_legacy(r.shape) == old)
        and (wiring is None or (r.shape.wiring == wiring))
    )


def _between(transport_class: str, test: Callable[[Measured], bool]) -> Callable[[Measured], bool]:
    return lambda r: (
        r.shape.n_nodes > 1 and r.shape.transport_class == transport_class and r.collective in RING_PASSES and test(r)
    )


def _exchange(test: Callable[[Measured], bool]) -> Callable[[Measured], bool]:
    return lambda r: r.collective == "all_to_all" and test(r)


def _inside_paths(generation: str) -> tuple[Place, ...]:
    section = ("inside", generation)
    scalars: tuple[Place, ...] = (
        (*section, "line_gb_per_s"),
        (*section, "tail"),
        (*section, "copy", "all_reduce"),
        (*section, "copy", "all_gather"),
    )
    return _lists(*section, "ring") + scalars


def _nvls_paths(generation: str) -> tuple[Place, ...]:
    return tuple(("inside", generation, "nvls", key) for key in ("base_us", "efficiency", "fill_us", "fill_mib"))


def _message_paths(generation: str) -> tuple[Place, ...]:
    section = ("inside", generation, "p2p")
    lists = ((*section, "base_us", 0), (*section, "base_us", 1), (*section, "efficiency", 1))
    return (*lists, (*section, "fill_us"), (*section, "fill_mib"))


def _old_ampere() -> tuple[Place, ...]:
    section = ("inside", "ampere@<2.12")
    paths = _lists(*section, "ring", positions=(0, 2))
    return (*paths, (*section, "line_gb_per_s"), (*section, "tail"))


def _tree_paths(name: str, keys: tuple[str, ...] = _RING) -> tuple[Place, ...]:
    """Constants of trees, which under LL have a rate per channel, not a share of the wire."""
    places = _lists("between", name, "tree", keys=keys)
    return (*(p for p in places if p[-2:] != ("efficiency", 0)), ("between", name, "tree", "channel_gb_per_s"))


def _network_paths(name: str) -> tuple[Place, ...]:
    return _lists("between", name, "ring") + _tree_paths(name)


def _socket_paths(name: str) -> tuple[Place, ...]:
    """Constants of sockets, whose efficiency is a share of the wire and whose limit is the host."""
    keys = ("base_us", "hop_us", "socket_gb_per_s")
    return _lists("between", name, "ring", keys=keys) + _lists("between", name, "tree", keys=keys)


def _handshake_paths(name: str) -> tuple[Place, ...]:
    return tuple(("between", name, "rendezvous", key) for key in ("extra_us", "ring_kib", "tree_kib"))


def _p2p_paths(name: str, rate: str = "efficiency") -> tuple[Place, ...]:
    return (
        ("between", name, "p2p", "base_us", 1),
        ("between", name, "p2p", rate, 1),
        ("between", name, "p2p", "peer_us"),
    )


def _new(r: Measured) -> bool:
    return r.shape.nccl != "" and version_key(r.shape.nccl) >= (2, 21)


#: A run labelled TCP from the months in which Polaris changed its network: its 9.8 GB/s and its 48 us on 8 nodes are
#: those of verbs on Slingshot-10 (as on Big Red 200), a third of the latency of the sockets of the same system later.
SLINGSHOT_10_RUN = "n8.g4.2023-10-13"

#: A cloud whose RoCE is called RDMA in the table, with one GPU and one NIC in each virtual machine, or 230 us of latency: it
#: says nothing about InfiniBand, for which its class stands.
CLOUD_ROCE_RUNS = "kubernetes-sigs/dranet"


def _leaves_ll_early(r: Measured) -> bool:
    """Say whether a gathering of Polaris runs Simple where its NCCL's own figures choose LL, whose share of the wire it is silent on.

    From 64 to 128 KiB its time doubles (111 to 227 us), and stays within a sixth up to 1 MiB: a message's cost, no bandwidth's.
    """
    return (
        r.topology == "polaris" and r.collective == "all_gather" and r.shape.n_nodes == 2 and 2**17 <= r.n_bytes < 2**20
    )


BLOCKS: tuple[ConstantBlock, ...] = (
    ConstantBlock(name="ampere", paths=_inside_paths("ampere"), rows=_inside("ampere", False)),
    ConstantBlock(name="ampere, NCCL before 2.12", paths=_old_ampere(), rows=_inside("ampere", True)),
    ConstantBlock(name="volta", paths=_inside_paths("volta"), rows=_inside("volta", None)),
    *(
        ConstantBlock(
            name=generation,
            paths=(*_inside_paths(generation), *_nvls_paths(generation)),
            rows=_inside(generation, None),
        )
        for generation in ("hopper", "blackwell")
    ),
    ConstantBlock(name="cdna3", paths=_inside_paths("cdna3"), rows=_inside("cdna3", None)),
    *(
        ConstantBlock(
            name=f"{generation} messages",
            paths=_message_paths(generation),
            rows=_exchange(lambda r, g=generation: r.shape.n_nodes == 1 and r.shape.generation == g),  # type: ignore[misc]
        )
        for generation in ("ampere", "hopper", "blackwell")
    ),
)
NETWORK_BLOCKS: tuple[ConstantBlock, ...] = (
    ConstantBlock(
        name="rdma",
        paths=_lists("between", "rdma", "ring")
        + _lists("between", "rdma", "tree", keys=("base_us", "hop_us"))
        + (("between", "rdma", "tree", "efficiency", 2), ("between", "rdma.volta", "tree", "channel_gb_per_s"))
        + tuple(("between", f"rdma.{g}", "tree", "efficiency", 1) for g in ("volta", "ampere")),
        rows=_between("rdma", lambda r: r.shape.generation in ("volta", "ampere")),
    ),
    ConstantBlock(
        name="rdma with hopper",
        # trees have the wire of rings: the one cluster whose trees tell reaches nine tenths of it with rings, too; under LL
        # their channels are those of all GPUs that reach their NICs over PCIe switches
        paths=(
            *(
                path
                for path in _network_paths("rdma.hopper")
                if path[2:] not in (("tree", "efficiency", 2), ("tree", "channel_gb_per_s"))
            ),
            ("between", "rdma", "tree", "channel_gb_per_s"),
            ("inside", "hopper", "nvls", "across"),
        ),
        rows=_between("rdma", lambda r: r.shape.generation == "hopper" and CLOUD_ROCE_RUNS not in r.source),
    ),
    ConstantBlock(
        name="roce with cdna",
        # chains inside nodes of a mesh are what trees between them end in, and no others run them
        paths=_network_paths("rdma.cdna3")
        + _network_paths("rdma.cdna4")
        + _lists("inside", "cdna3", "tree", keys=("efficiency",), positions=(1, 2)),
        rows=_between("roce", lambda r: r.shape.generation in ("cdna3", "cdna4")),
    ),
    ConstantBlock(
        name="slingshot",
        paths=_network_paths("slingshot") + _handshake_paths("slingshot"),
        rows=_between("slingshot", lambda r: not _new(r) and not _leaves_ll_early(r)),
    ),
    ConstantBlock(
        name="slingshot from 2.21",
        paths=_lists("between", "slingshot@2.21", "ring")
        + _tree_paths("slingshot@2.21")
        + _handshake_paths("slingshot@2.21"),
        rows=_between("slingshot", _new),
    ),
    ConstantBlock(
        name="tcp",
        paths=_socket_paths("tcp"),
        rows=_between("tcp", lambda r: not _new(r) and SLINGSHOT_10_RUN not in r.source),
    ),
    ConstantBlock(
        name="tcp from 2.21",
        paths=_socket_paths("tcp@2.21"),
        rows=_between("tcp", _new),
    ),
    ConstantBlock(
        name="efa",
        # a ring under Simple was measured where its rate rules, not its hops: those stay as on P5, for a slower network
        paths=tuple(path for path in _network_paths("efa") if path != ("between", "efa", "ring", "hop_us", 2)),
        rows=_between("efa", lambda r: r.shape.generation == "ampere"),
    ),
    ConstantBlock(
        name="efa with hopper",
        paths=_lists("between", "efa.hopper", "ring", keys=("hop_us", "efficiency"))
        + _tree_paths("efa.hopper", keys=("hop_us", "efficiency")),
        rows=_between("efa", lambda r: r.shape.generation == "hopper"),
    ),
    ConstantBlock(
        name="slingshot messages",
        paths=_p2p_paths("slingshot")
        + tuple(("between", "slingshot", "p2p", key) for key in ("inject_factor", "handshake_us", "handshake_kib")),
        rows=_exchange(lambda r: r.shape.transport_class == "slingshot"),
    ),
    ConstantBlock(
        name="tcp messages",
        paths=_p2p_paths("tcp", "socket_gb_per_s"),
        rows=_exchange(lambda r: r.shape.transport_class == "tcp"),
    ),
)


def all_blocks() -> tuple[ConstantBlock, ...]:
    """Blocks in the order in which they depend on each other: inside nodes first."""
    return BLOCKS + NETWORK_BLOCKS


def starting_table() -> dict[str, Any]:
    """Round figures from which every fit starts."""
    data, _ = load_yaml(resolve_name("nccl-start", "network"))
    return dict(data)


def fitted_table(rows: Sequence[Measured]) -> dict[str, Any]:
    """Constants fitted to the rows with ``split=fit``, with their source."""
    kept = [row for row in rows if row.split == "fit"]
    table = with_uncertainty(fit_all(starting_table(), all_blocks(), kept))
    clusters = ", ".join(sorted({row.topology for row in kept}))
    return {**table, "source": _SOURCE.format(clusters=clusters)}


def errors_by_part(rows: Sequence[Measured], table: dict[str, Any]) -> dict[str, Residuals]:
    """Residuals by split and size, and by cluster for large sizes."""
    large = [row for row in rows if row.n_bytes >= LARGE_BYTES]
    parts = {}
    for split in ("fit", "test"):
        small = [row for row in rows if row.split == split and row.n_bytes < LARGE_BYTES]
        parts[f"{split}, from 1 MiB"] = [row for row in large if row.split == split]
        parts[f"{split}, below 1 MiB"] = small
    for cluster in sorted({row.topology for row in rows}):
        parts[f"{cluster}, from 1 MiB"] = [row for row in large if row.topology == cluster]
    return {name: errors_of(mine, table) for name, mine in parts.items()}


LeftOut = dict[str, tuple[list[Measured], FloatArray]]


def left_out(rows: Sequence[Measured]) -> LeftOut:
    """Rows and errors of each cluster, by constants fitted without it; see :func:`left_out_errors`."""
    return left_out_errors(starting_table(), all_blocks(), rows)


def write_fitted(table: dict[str, Any], path: Path) -> None:
    """Write fitted constants as the shipped file has them."""
    try:
        write_table(table, path, _HEADER)
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be written: {error.strerror}") from None
