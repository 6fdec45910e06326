"""The operations a program is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from simulator.models.layer import KernelShape

Phase = Literal["forward", "backward", "recompute", "optimizer", "data"]


class Routed(NamedTuple):
    """Tokens of one rank on their way to or from their experts."""

    n_tokens: int
    token_bytes: float  #: Of one token with its scales.
    n_places: float  #: Ranks (between nodes: nodes) that a token goes to on average.
    n_all: int  #: Ranks (nodes) that there are.

    @property
    def n_bytes(self) -> float:
        """Bytes of all copies, those that stay on the rank counted."""
        return self.n_tokens * self.token_bytes * self.n_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel launch."""

    name: str
    phase: Phase
    #: What runs; its duration comes from the KernelModel.
    shape: KernelShape | None = None
    #: A measured duration that replaces the model's (trace replay). Exactly one of the two is given.
    duration_s: float | None = None
    layer: str = ""
    #: A measured host time before it is issued that replaces the model's.
    issue_s: float | None = None
    #: Idle time of the stream before it starts although nothing holds it up: launch and scheduling gaps of a trace.
    lead_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective operation of a communicator."""

    #: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``broadcast``, ``reduce``, ``all_to_all``, ``gather``,
    #: ``scatter``.
    collective: str
    #: The mesh axis it runs over: ``dp``, ``tp``, ``pp``, ``cp``, ``ep``, ``replicate``, ``shard``, ``embedding`` ...
    axis: str
    #: Bytes as nccl-tests counts them: the whole gathered buffer for ``all_gather`` and ``reduce_scatter``.
    n_bytes: int
    #: The communicators (global ranks) that run this operation at the same time: one, or several where one simulated
    #: rank stands for a class of ranks.
    groups: tuple[tuple[int, ...], ...]
    name: str = ""
    phase: Phase = "backward"
    #: Measured transfer and host issue times that replace the models' (trace replay).
    duration_s: float | None = None
    issue_s: float | None = None
    host_s: float = 0.0  #: What the host does in front of its launch, waiting for nothing: slicing buffers, say.
    #: Tokens that a dispatcher's own kernels carry.
    routed: Routed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A point-to-point message: a send matched with a receive, in flight from the moment both are posted."""

    #: Bytes of one message.
    n_bytes: int
    #: (source, destination) global ranks of all messages that a rank class sends at the same time.
    pairs: tuple[tuple[int, int], ...]
    axis: str = "pp"
    name: str = ""
    phase: Phase = "forward"
    #: Measured transfer and host issue times that replace the models' (trace replay).
    duration_s: float | None = None
    issue_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork:
    """Time that the host thread spends before it issues anything else: a synchronisation, data loading, Python."""

    name: str
    duration_s: float
    phase: Phase = "forward"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """Kernels launched back to back on one stream with nothing between them: the unit in which models are lowered."""

    name: str
    phase: Phase
    kernels: tuple[Kernel, ...]


Op = Kernel | KernelRun | Collective | Transfer | HostWork

#: a union of types is built anew each time it is written; what asks often asks these
COMMUNICATIONS = (Collective, Transfer)
COMPUTE_OPS = (Kernel, KernelRun)
