"""Fitted constants of collectives, by class: GPU generation inside a node, transport class between nodes.

A class may be refined by the GPU generation (``rdma.hopper``) and by the NCCL version (``tcp@2.21``: from
that version on); a refinement states only what differs. A cluster file may override any value in its
``collectives`` section.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

from simulator.config import load_yaml, resolve_name
from simulator.errors import ConfigError

#: Classes whose constants stand in for what a class does not state.
FALLBACK = {
    "roce": "rdma",
    "omni-path": "rdma",
    "tcpxo": "rdma",
    "ipoib": "tcp",
    "gloo": "tcp",
    "blackwell": "hopper",
    "cdna4": "cdna3",
    "cdna2": "cdna3",
    "cdna1": "cdna3",
    "gcn5": "cdna3",
    "cpu": "ampere",
}

#: what NCCL takes other GPUs for, by their compute capability (NVIDIA/nccl v2.30.7, ``src/graph/tuning.cc``, ``compCapIndex``)
_TAKEN_AS = {"turing": "volta", "ada": "ampere"}
#: newest generation of each vendor whose constants were measured: stands in for those that were not
_NEWEST = {"NVIDIA": "blackwell", "AMD": "cdna4"}

#: payload of a line of LL128: 120 of 128 bytes
LL128_WIRE_SHARE = 120 / 128

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Latency and efficiency of one algorithm on one class of link, each for LL, LL128 and Simple."""

    #: Per step of a ring or level of a tree: in the file what the protocol takes, and :meth:`over` a route.
    hop_s: Triple
    #: Payload over raw link rate.
    efficiency: Triple
    #: Once per collective.
    base_s: Triple = (0.0, 0.0, 0.0)
    #: What the threads of the host copy for each NIC, where bytes go through sockets, whatever the link could take.
    socket_bytes_per_s: Triple = (math.inf, math.inf, math.inf)
    #: What one channel of a tree hands on under LL, whose few threads wait for each line, whatever the wire could take.
    channel_bytes_per_s: float = math.inf

    def over(self, route_s: float) -> Path:
        """Return the constants of steps that also take a route's latency."""
        low, middle, high = self.hop_s
        return replace(self, hop_s=(low + route_s, middle + route_s, high + route_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Point-to-point messages; ``socket_bytes_per_s`` as for :class:`Path`."""

    #: For LL (small messages) and Simple; between nodes both are the same.
    base_s: tuple[float, float]
    efficiency: tuple[float, float]
    peer_s: float  #: Per further peer; overlaps with moving bytes.
    #: Messages up to this size cost so many times as much per peer (immediate-data commands of some NICs).
    inject_bytes: float = 0.0
    inject_factor: float = 1.0
    #: Extra time per peer of messages that need a rendezvous, and the size at which half of it is felt.
    handshake_s: float = 0.0
    handshake_bytes: float = 1.0
    #: Inside a node: time until all channels of a large message are full, and the size at which half of it is felt.
    fill_s: float = 0.0
    fill_bytes: float = 1.0
    #: Share of the rate that is left between nodes where every GPU has messages for many peers there at once (all-to-all).
    crowd: float = 1.0
    socket_bytes_per_s: tuple[float, float] = (math.inf, math.inf)

    def over(self, route_s: float) -> Messages:
        """Return the constants of messages that also take a route's latency."""
        low, high = self.base_s
        return replace(self, base_s=(low + route_s, high + route_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendezvous:
    """Handshake before large messages: each hop costs ``extra_s`` more, half of it at the given message size."""

    extra_s: float = 0.0  #: Of one hop under LL128 and Simple.
    #: Bytes per channel and step at which half of it is felt.
    ring_bytes: float = 1.0
    tree_bytes: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlsConstants:
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
    """Constants inside a node."""

    ring: Path
    tree: Path
    nvls: NvlsConstants
    p2p: Messages
    line_bytes_per_s: float  #: Rate at which one channel's threads fill up under LL before a second channel is used.
    tail: float  #: Chunk times that a Simple ring needs beyond its steps to drain its pipeline.
    #: Weight of the local copy of a rank's own share, in all-reduce and in all-gather and reduce-scatter.
    copy_reduce: float
    copy_gather: float
    #: Host time per GPU when one process drives all GPUs of a node (``nccl-tests -g``), for a collective and for
    #: grouped sends and receives.
    launch_s: float
    launch_grouped_s: float
    #: Rate at which one ring passes from a GPU to one of another socket, through host memory.
    sockets_bytes_per_s: float
    #: Share of a ring's transfer time that hides the latency of its steps: half where a chunk moves in two slices.
    overlap: Triple = (0.0, 0.0, 0.0)

    def over(self, route_s: float) -> Inside:
        """Return the constants where GPUs are a route's latency apart; NVLS goes to the switch and back twice."""
        nvls = replace(self.nvls, base_s=self.nvls.base_s + 2.0 * route_s)
        return replace(
            self, ring=self.ring.over(route_s), tree=self.tree.over(route_s), p2p=self.p2p.over(route_s), nvls=nvls
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Constants between nodes; ``ll128_measured`` where a cluster's own rows show the rate of LL128."""

    ring: Path
    tree: Path
    p2p: Messages
    rendezvous: Rendezvous
    ll128_measured: bool = False

    def __post_init__(self) -> None:
        """Keep LL128 of a class within its share of what Simple reaches: it is asked for where it was not measured, too."""
        if self.ll128_measured:
            return
        for name in ("ring", "tree"):
            path: Path = getattr(self, name)
            low, middle, high = path.efficiency
            allowed = (low, min(middle, LL128_WIRE_SHARE * high), high)
            object.__setattr__(self, name, replace(path, efficiency=allowed))

    def over(self, route_s: float, nic_bytes_per_s: float = 0.0) -> Between:
        """Return the constants where nodes are a route's latency apart and a NIC has a rate; 0 where it is not known."""
        ring, tree, p2p = self.ring.over(route_s), self.tree.over(route_s), self.p2p.over(route_s)
        if nic_bytes_per_s:
            ring = replace(ring, efficiency=_through_sockets(ring, nic_bytes_per_s))
            tree = replace(tree, efficiency=_through_sockets(tree, nic_bytes_per_s))
            p2p = replace(p2p, efficiency=_through_sockets(p2p, nic_bytes_per_s))
        return replace(self, ring=ring, tree=tree, p2p=p2p)


def _through_sockets(path: Path | Messages, nic_bytes_per_s: float) -> Any:
    """Shares of a NIC's rate that are left when the threads behind its sockets are the limit."""
    limits = zip(path.efficiency, path.socket_bytes_per_s, strict=True)
    return tuple(min(share, socket / nic_bytes_per_s) for share, socket in limits)


#: unit at the end of a key of the file -> that of the attribute, and the factor between them
_UNITS = {
    "_us": ("_s", 1e-6), "_kib": ("_bytes", 1024.0), "_mib": ("_bytes", 2.0**20), "_gb_per_s": ("_bytes_per_s", 1e9),
}  # fmt: skip


_Section = TypeVar("_Section")


def _read(kind: type[_Section], data: Mapping[str, Any], **parts: Any) -> _Section:
    """Make a section from values in the units of the file, and from parts that are read already."""
    values = dict(parts)
    for key, value in data.items():
        if key == "source":
            continue
        ending = next((ending for ending in _UNITS if key.endswith(ending)), "")
        unit, factor = _UNITS.get(ending, ("", 1.0))
        is_list = isinstance(value, list | tuple)
        values[key.removesuffix(ending) + unit] = (
            tuple(factor * float(each) for each in value) if is_list else factor * float(value)
        )
    try:
        return kind(**values)
    except TypeError as error:
        what = str(error).partition("() ")[2]
        raise ConfigError(f"constants of collectives, {kind.__name__.lower()}: {what}") from None


def parse_inside(data: Mapping[str, Any]) -> Inside:
    """Read the constants of one GPU generation."""
    return _read(
        Inside,
        {key: value for key, value in data.items() if not isinstance(value, Mapping)},
        ring=_read(Path, data["ring"]),
        tree=_read(Path, data["tree"]),
        nvls=_read(NvlsConstants, data["nvls"]),
        p2p=_read(Messages, data["p2p"]),
        copy_reduce=float(data["copy"]["all_reduce"]),
        copy_gather=float(data["copy"]["all_gather"]),
        launch_s=data["launch_us"]["collective"] * 1e-6,
        launch_grouped_s=data["launch_us"]["grouped"] * 1e-6,
    )


def parse_between(data: Mapping[str, Any]) -> Between:
    """Read the constants of one transport class."""
    return Between(
        ring=_read(Path, data["ring"]),
        tree=_read(Path, data["tree"]),
        p2p=_read(Messages, data["p2p"]),
        rendezvous=_read(Rendezvous, data.get("rendezvous", {})),
        ll128_measured=bool(data.get("ll128_measured", False)),
    )


def merge(below: Any, above: Any) -> Any:
    """Lay one tree of values over another; ``null`` in a list keeps what is below."""
    if isinstance(below, Mapping) and isinstance(above, Mapping):
        return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}
    if isinstance(below, list | tuple) and isinstance(above, list | tuple) and len(below) == len(above):
        return [merge(b, a) for b, a in zip(below, above, strict=True)]
    return below if above is None else above


def version_key(version: str) -> tuple[int, ...]:
    """Turn ``"2.21"`` into something that compares."""
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
    """
    bases = [base for base in (FALLBACK.get(name, ""), name) if base in table]
    if not bases:
        known = ", ".join(sorted(key for key in table if "." not in key and "@" not in key))
        raise ConfigError(f"no collective constants for '{name}'", hint=f"classes with constants: {known}")
    finer = [f".{each}" for each in (FALLBACK.get(refinement, ""), refinement) if each]
    stages = [base + ending for base in bases for ending in ("", *finer)]
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


@lru_cache(maxsize=1)  # a file to read
def shipped() -> dict[str, Any]:
    """The shipped file of constants, ``topologies/network/nccl.yaml``."""
    data, _ = load_yaml(resolve_name("nccl", "network"))
    return dict(data)


@lru_cache(maxsize=2)  # a file to read
def tuner_machines(library: str) -> dict[str, dict[str, Any]]:
    """What a library chooses on some machines, ``topologies/network/LIBRARY-tuner.yaml``."""
    data, _ = load_yaml(resolve_name(f"{library}-tuner", "network"))
    return {name: machine for name, machine in data.items() if name != "source"}


def priced_as(architecture: str, vendor: str) -> str:
    """Return the generation whose row of NCCL's tables, and whose constants, a GPU is priced by.

    Examples
    --------
    >>> priced_as("hopper", "NVIDIA"), priced_as("ada", "NVIDIA"), priced_as("rubin", "NVIDIA"), priced_as("cdna2", "AMD")
    ('hopper', 'ampere', 'blackwell', 'cdna2')
    """
    known = architecture in shipped()["inside"] or architecture in FALLBACK
    return architecture if known else _TAKEN_AS.get(architecture) or _NEWEST.get(vendor, _NEWEST["NVIDIA"])


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
    overrides : mapping, optional
        ``{"inside": ..., "between": ...}`` of a cluster, laid over everything.
    """
    generation, wiring, transport_class = classes
    inside = layered(table["inside"], generation, wiring, nccl)
    between = layered(table["between"], transport_class, generation, nccl)
    if overrides:
        inside = merge(inside, overrides.get("inside", {}))
        between = merge(between, overrides.get("between", {}))
    return parse_inside(inside), parse_between(between)
