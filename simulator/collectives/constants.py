"""Fitted constants of collectives, by class: GPU generation inside a node, transport class between nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from simulator.config import load_yaml, resolve_name

#: Classes whose constants stand in for a class that has none of its own.
NETWORK_FALLBACK = {"roce": "rdma", "omni-path": "rdma", "ipoib": "tcp", "gloo": "tcp"}
INSIDE_FALLBACK = {"blackwell": "hopper", "cpu": "ampere"}

Triple = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Latency and efficiency of one algorithm on one class of link, each for LL, LL128 and Simple."""

    base_s: Triple = (0.0, 0.0, 0.0)
    hop_s: Triple = (0.0, 0.0, 0.0)
    efficiency: Triple = (1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """Point-to-point messages: start-up, cost per further peer, share of the raw rate."""

    base_s: float = 0.0
    peer_s: float = 0.0
    efficiency: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """Constants inside a node."""

    ring: Path
    tree: Path
    p2p: Messages
    nvls_base_s: float = 25e-6
    nvls_efficiency: float = 0.7
    line_bytes_per_s: float = 9e9
    tail: float = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """Constants between nodes."""

    ring: Path
    tree: Path
    p2p: Messages


def _triple(values: Any, scale: float) -> Triple:
    low, middle, high = values
    return float(low) * scale, float(middle) * scale, float(high) * scale


def _path(data: Mapping[str, Any]) -> Path:
    zero = (0.0, 0.0, 0.0)
    return Path(
        base_s=_triple(data.get("base_us", zero), 1e-6),
        hop_s=_triple(data["hop_us"], 1e-6),
        efficiency=_triple(data["efficiency"], 1.0),
    )


def _messages(data: Mapping[str, Any]) -> Messages:
    return Messages(
        base_s=data["base_us"] * 1e-6, peer_s=data["peer_us"] * 1e-6, efficiency=float(data["efficiency"])
    )


@lru_cache(maxsize=1)
def _data() -> dict[str, Any]:
    data, _ = load_yaml(resolve_name("nccl", "network"))
    return dict(data)


@lru_cache(maxsize=256)
def inside_of(generation: str) -> Inside:
    """Constants of a GPU generation, or of the nearest one that has been measured."""
    table = _data()["inside"]
    data = table[generation if generation in table else INSIDE_FALLBACK[generation]]
    return Inside(
        ring=_path(data["ring"]),
        tree=_path(data["tree"]),
        p2p=_messages(data["p2p"]),
        nvls_base_s=data["nvls"]["base_us"] * 1e-6,
        nvls_efficiency=float(data["nvls"]["efficiency"]),
        line_bytes_per_s=data["line_gb_per_s"] * 1e9,
        tail=float(data["tail"]),
    )


@lru_cache(maxsize=256)
def between_of(protocol: str) -> Between:
    """Constants of a transport class, or of the class that stands in for it."""
    table = _data()["network"]
    data = table[protocol if protocol in table else NETWORK_FALLBACK.get(protocol, "rdma")]
    return Between(ring=_path(data["ring"]), tree=_path(data["tree"]), p2p=_messages(data["p2p"]))
