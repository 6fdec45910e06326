"""Fitted constants of collectives, by class: GPU generation inside a node, transport class between nodes.

A class may be refined by the GPU generation (``rdma.hopper``) and by the NCCL version (``tcp@2.21``: from
that version on); a refinement states only what differs. A cluster file may override any value in its
``collectives`` section.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simulator.config import load_yaml, resolve_name
from simulator.errors import ConfigError

#: Classes whose constants stand in for a class that has none of its own.
FALLBACK = {
    "roce": "rdma",
    "omni-path": "rdma",
    "ipoib": "tcp",
    "gloo": "tcp",
    "blackwell": "hopper",
    "cpu": "ampere",
}

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Latency and efficiency of one algorithm on one class of link, each for LL, LL128 and Simple.

    Parameters
    ----------
    base_s : tuple of float
        Once per collective.
    hop_s : tuple of float
        Per step of a ring or level of a tree.
    efficiency : tuple of float
        Payload over raw link rate.
    """

    base_s: Triple
    hop_s: Triple
    efficiency: Triple


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Point-to-point messages.

    Parameters
    ----------
    base_s, efficiency : tuple of float
        For LL (small messages) and Simple; between nodes both are the same.
    peer_s : float
        Per further peer; overlaps with moving bytes.
    inject_bytes, inject_factor : float
        Messages up to this size cost so many times as much per peer (immediate-data commands of some NICs).
    handshake_s, handshake_bytes : float
        Extra time per peer of messages that need a rendezvous, and the size at which half of it is felt.
    fill_s, fill_bytes : float
        Inside a node: time until all channels of a large message are full, and the size at which half of it is felt.
    """

    base_s: tuple[float, float]
    efficiency: tuple[float, float]
    peer_s: float
    inject_bytes: float = 0.0
    inject_factor: float = 1.0
    handshake_s: float = 0.0
    handshake_bytes: float = 1.0
    fill_s: float = 0.0
    fill_bytes: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Handshake before large messages: each hop costs ``extra_s`` more, half of it at the given message size.

    Parameters
    ----------
    extra_s : float
        Of one hop under LL128 and Simple.
    ring_bytes, tree_bytes : float
        Bytes per channel and step at which half of it is felt.
    """

    extra_s: float = 0.0
    ring_bytes: float = 1.0
    tree_bytes: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Nvls:
    """In-switch reduction: start-up, share of the NVLink rate, and a pipeline that fills with size.

    ``across`` is the share of that rate that is left when the switches take turns with a tree between nodes.
    """

    base_s: float
    efficiency: float
    fill_s: float
    fill_bytes: float
    across: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Constants inside a node.

    Parameters
    ----------
    line_bytes_per_s : float
        Rate at which one channel's threads fill up under LL before a second channel is used.
    tail : float
        Chunk times that a Simple ring needs beyond its steps to drain its pipeline.
    copy_reduce, copy_gather : float
        Weight of the local copy of a rank's own share, in all-reduce and in all-gather and reduce-scatter.
    sockets_bytes_per_s : float
        Rate at which one ring passes from a GPU to one of another socket, through host memory.
    launch_s, launch_grouped_s : float
        Host time per GPU when one process drives all GPUs of a node (``nccl-tests -g``), for a collective and
        for grouped sends and receives.
    """

    ring: Path
    tree: Path
    nvls: Nvls
    p2p: Messages
    line_bytes_per_s: float
    tail: float
    copy_reduce: float
    copy_gather: float
    launch_s: float
    launch_grouped_s: float
    sockets_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Constants between nodes."""

    ring: Path
    tree: Path
    p2p: Messages
    rendezvous: Rendezvous


def _triple(values: Any, scale: float) -> Triple:
    low, middle, high = values
    return float(low) * scale, float(middle) * scale, float(high) * scale


def _path(data: Mapping[str, Any]) -> Path:
    return Path(
        base_s=_triple(data.get("base_us", (0.0, 0.0, 0.0)), 1e-6),
        hop_s=_triple(data["hop_us"], 1e-6),
        efficiency=_triple(data["efficiency"], 1.0),
    )


def _messages(data: Mapping[str, Any]) -> Messages:
    low, high = data["base_us"]
    small, large = data["efficiency"]
    return Messages(
        base_s=(float(low) * 1e-6, float(high) * 1e-6),
        efficiency=(float(small), float(large)),
        peer_s=data["peer_us"] * 1e-6,
        inject_bytes=float(data.get("inject_bytes", 0.0)),
        inject_factor=float(data.get("inject_factor", 1.0)),
        handshake_s=float(data.get("handshake_us", 0.0)) * 1e-6,
        handshake_bytes=float(data.get("handshake_kib", 1.0)) * 1024.0,
        fill_s=float(data.get("fill_us", 0.0)) * 1e-6,
        fill_bytes=float(data.get("fill_mib", 1.0)) * 2.0**20,
    )


def parse_inside(data: Mapping[str, Any]) -> Inside:
    """Read the constants of one GPU generation."""
    nvls = data["nvls"]
    return Inside(
        ring=_path(data["ring"]),
        tree=_path(data["tree"]),
        nvls=Nvls(
            base_s=nvls["base_us"] * 1e-6,
            efficiency=float(nvls["efficiency"]),
            fill_s=nvls["fill_us"] * 1e-6,
            fill_bytes=nvls["fill_mib"] * 2.0**20,
            across=float(nvls.get("across", 1.0)),
        ),
        p2p=_messages(data["p2p"]),
        line_bytes_per_s=data["line_gb_per_s"] * 1e9,
        tail=float(data["tail"]),
        copy_reduce=float(data["copy"]["all_reduce"]),
        copy_gather=float(data["copy"]["all_gather"]),
        launch_s=data["launch_us"]["collective"] * 1e-6,
        launch_grouped_s=data["launch_us"]["grouped"] * 1e-6,
        sockets_bytes_per_s=data["sockets_gb_per_s"] * 1e9,
    )


def parse_between(data: Mapping[str, Any]) -> Between:
    """Read the constants of one transport class."""
    handshake = data.get("rendezvous", {"extra_us": 0.0, "ring_kib": 1.0, "tree_kib": 1.0})
    return Between(
        ring=_path(data["ring"]),
        tree=_path(data["tree"]),
        p2p=_messages(data["p2p"]),
        rendezvous=Rendezvous(
            extra_s=handshake["extra_us"] * 1e-6,
            ring_bytes=handshake["ring_kib"] * 1024.0,
            tree_bytes=handshake["tree_kib"] * 1024.0,
        ),
    )


def merge(below: Any, above: Any) -> Any:
    """Lay one tree of values over another; ``null`` in a list keeps what is below."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}
    if isinstance(below, list | tuple) and isinstance(above, list | tuple) and len(below) == len(above):
        return [merge(b, a) for b, a in zip(below, above, strict=True)]
    return below if above is None else above


def version_key(version: str) -> tuple[int, ...]:
    """Turn ``"2.21"`` into something that compares.

    Raises
    ------
    ConfigError
        If it is not numbers joined by dots.
    """
    try:
        return tuple(int(part) for part in version.split("."))
    except ValueError:
        raise ConfigError(f"NCCL version {version!r} is not like '2.21'") from None


def layered(table: Mapping[str, Any], name: str, refinement: str, nccl: str) -> dict[str, Any]:
    """Constants of a class with its refinements laid over it, least specific first.

    Parameters
    ----------
    table : mapping
        Class name (optionally ``.generation`` and ``@version``) to constants.
    name, refinement : str
        Class, and GPU generation.
    nccl : str
        NCCL version, or empty when it is not known.
    """
    base = name if name in table else FALLBACK.get(name, name)
    if base not in table:
        known = ", ".join(sorted(key for key in table if "." not in key and "@" not in key))
        raise ConfigError(f"no collective constants for '{name}'", hint=f"classes with constants: {known}")
    stages = [base]
    for finer in (FALLBACK.get(refinement, ""), refinement):
        stages += [f"{base}.{finer}"] if finer else []
    result: dict[str, Any] = {}
    for stage in stages:
        result = merge(result, table.get(stage, {}))
        for version in _versions(table, stage, nccl):
            result = merge(result, table[f"{stage}@{version}"])
    return result


def _versions(table: Mapping[str, Any], stage: str, nccl: str) -> list[str]:
    """Versions with constants of their own that apply: ascending from the first, up to the given one."""
    if not nccl:
        return []
    found = [key.split("@")[1] for key in table if key.startswith(f"{stage}@")]
    later = [v for v in found if not v.startswith("<") and version_key(v) <= version_key(nccl)]
    earlier = [v for v in found if v.startswith("<") and version_key(nccl) < version_key(v[1:])]
    return sorted(earlier) + sorted(later, key=version_key)


@lru_cache(maxsize=1)
def shipped() -> dict[str, Any]:
    """The shipped file of constants, ``topologies/network/nccl.yaml``."""
    data, _ = load_yaml(resolve_name("nccl", "network"))
    return dict(data)


def constants_for(
    table: Mapping[str, Any],
    classes: tuple[str, str, str],
    nccl: str = "",
    overrides: Mapping[str, Any] | None = None,
) -> tuple[Inside, Between]:
    """Constants inside and between nodes for one kind of communicator.

    Parameters
    ----------
    table : mapping
        What :func:`shipped` returns, or a table under fit.
    classes : tuple of str
        GPU generation, wiring of the node, transport class.
    nccl : str
        NCCL version.
    overrides : mapping, optional
        ``{"inside": ..., "between": ...}`` of a cluster, laid over everything.
    """
    generation, wiring, protocol = classes
    inside = layered(table["inside"], generation, wiring, nccl)
    between = layered(table["between"], protocol, generation, nccl)
    if overrides:
        inside = merge(inside, overrides.get("inside", {}))
        between = merge(between, overrides.get("between", {}))
    return parse_inside(inside), parse_between(between)
