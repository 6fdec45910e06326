"""Which constants of collectives are fitted together, and to which rows."""

from __future__ import annotations

from collections.abc import Callable

from simulator.calibration.collectives import Block, Measured
from simulator.collectives.constants import version_key

_RING = ("base_us", "hop_us", "efficiency")
_RINGLIKE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
Place = tuple[str | int, ...]


def _lists(*prefix: str, keys: tuple[str, ...] = _RING, positions: tuple[int, ...] = (0, 1, 2)) -> tuple[Place, ...]:
    return tuple((*prefix, key, position) for key in keys for position in positions)


def _old(row: Measured) -> bool:
    return bool(row.shape.nccl) and version_key(row.shape.nccl) < (2, 12)


def _inside(generation: str, old: bool | None, wiring: str | None = None) -> Callable[[Measured], bool]:
    return lambda r: (
        r.shape.n_nodes == 1
        and r.shape.generation == generation
        and r.collective in _RINGLIKE
        and (old is None or _old(r) == old)
        and (wiring is None or (r.shape.wiring == wiring))
    )


def _between(protocol: str, test: Callable[[Measured], bool]) -> Callable[[Measured], bool]:
    return lambda r: r.shape.n_nodes > 1 and r.shape.protocol == protocol and r.collective in _RINGLIKE[:3] and test(r)


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
    lists = tuple((*section, key, i) for key in ("base_us", "efficiency") for i in (0, 1))
    return (*lists, (*section, "fill_us"), (*section, "fill_mib"))


def _old_ampere() -> tuple[Place, ...]:
    section = ("inside", "ampere@<2.12")
    paths = _lists(*section, "ring", positions=(0, 2))
    return (*paths, (*section, "line_gb_per_s"), (*section, "tail"))


def _network_paths(name: str) -> tuple[Place, ...]:
    return _lists("between", name, "ring") + _lists("between", name, "tree")


def _handshake_paths(name: str) -> tuple[Place, ...]:
    return tuple(("between", name, "rendezvous", key) for key in ("extra_us", "ring_kib", "tree_kib"))


def _p2p_paths(name: str) -> tuple[Place, ...]:
    return (
        ("between", name, "p2p", "base_us", 1),
        ("between", name, "p2p", "efficiency", 1),
        ("between", name, "p2p", "peer_us"),
    )


def _new(r: Measured) -> bool:
    return r.shape.nccl != "" and version_key(r.shape.nccl) >= (2, 21)


#: A run labelled TCP from the months in which Polaris changed its network: its 9.8 GB/s and its 48 us on 8 nodes are
#: those of verbs on Slingshot-10 (as on Big Red 200), a third of the latency of the sockets of the same system later.
SLINGSHOT_10_RUN = "n8.g4.2023-10-13"

BLOCKS: tuple[Block, ...] = (
    Block(name="ampere", paths=_inside_paths("ampere"), rows=_inside("ampere", False)),
    Block(name="ampere, NCCL before 2.12", paths=_old_ampere(), rows=_inside("ampere", True)),
    Block(name="volta", paths=_inside_paths("volta"), rows=_inside("volta", None)),
    Block(name="hopper", paths=(*_inside_paths("hopper"), *_nvls_paths("hopper")), rows=_inside("hopper", None)),
    *(
        Block(
            name=f"{generation} messages",
            paths=_message_paths(generation),
            rows=_exchange(lambda r, g=generation: r.shape.n_nodes == 1 and r.shape.generation == g),  # type: ignore[misc]
        )
        for generation in ("ampere", "hopper")
    ),
)
NETWORK_BLOCKS: tuple[Block, ...] = (
    Block(
        name="rdma",
        paths=_lists("between", "rdma", "ring")
        + _lists("between", "rdma", "tree", keys=("base_us", "hop_us"))
        + (("between", "rdma", "tree", "efficiency", 2),)
        + tuple(("between", f"rdma.{g}", "tree", "efficiency", i) for g in ("volta", "ampere") for i in (0, 1)),
        rows=_between("rdma", lambda r: r.shape.generation != "hopper"),
    ),
    Block(
        name="rdma with hopper",
        paths=(*_network_paths("rdma.hopper"), ("inside", "hopper", "nvls", "across")),
        rows=_between("rdma", lambda r: r.shape.generation == "hopper"),
    ),
    Block(
        name="slingshot",
        paths=_network_paths("slingshot") + _handshake_paths("slingshot"),
        rows=_between("slingshot", lambda r: not _new(r)),
    ),
    Block(
        name="slingshot from 2.21",
        paths=_lists("between", "slingshot@2.21", "ring")
        + _lists("between", "slingshot@2.21", "tree")
        + _handshake_paths("slingshot@2.21"),
        rows=_between("slingshot", _new),
    ),
    Block(
        name="tcp",
        paths=_network_paths("tcp"),
        rows=_between("tcp", lambda r: not _new(r) and SLINGSHOT_10_RUN not in r.source),
    ),
    Block(
        name="tcp from 2.21",
        paths=_network_paths("tcp@2.21"),
        rows=_between("tcp", _new),
    ),
    Block(
        name="efa",
        paths=_network_paths("efa"),
        rows=_between("efa", lambda r: r.shape.generation == "ampere"),
    ),
    Block(
        name="efa with hopper",
        paths=_lists("between", "efa.hopper", "ring", keys=("hop_us", "efficiency"))
        + _lists("between", "efa.hopper", "tree", keys=("hop_us", "efficiency")),
        rows=_between("efa", lambda r: r.shape.generation == "hopper"),
    ),
    Block(
        name="slingshot messages",
        paths=_p2p_paths("slingshot")
        + tuple(("between", "slingshot", "p2p", key) for key in ("inject_factor", "handshake_us", "handshake_kib")),
        rows=_exchange(lambda r: r.shape.protocol == "slingshot"),
    ),
    Block(name="tcp messages", paths=_p2p_paths("tcp"), rows=_exchange(lambda r: r.shape.protocol == "tcp")),
)


def all_blocks() -> tuple[Block, ...]:
    """Blocks in the order in which they depend on each other: inside nodes first."""
    return BLOCKS + NETWORK_BLOCKS
