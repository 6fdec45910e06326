"""A Scenario: everything that determines one answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.collectives.tuner import check_choice
from simulator.config import check_word
from simulator.faults import Faults
from simulator.kernels import KERNEL_MODELS
from simulator.network import NETWORKS
from simulator.plan import ParallelPlan
from simulator.topology import Topology

#: fields of a scenario whose flags have the names of NCCL's variables -> these names
FLAG_NAMES = {"algorithm": "nccl_algo", "protocol": "nccl_proto"}
#: the same the other way round
FIELD_NAMES = {flag: name for name, flag in FLAG_NAMES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What is simulated, so that it can be stored, compared and sent to another machine."""

    #: A shipped name or a path, or the topology itself; a networkx graph becomes one, see
    #: :meth:`~simulator.topology.Topology.from_graph`.
    topology: str | Topology
    #: A shipped name or a path.
    model: str
    plan: ParallelPlan = field(default_factory=ParallelPlan)
    #: Names of the cost models.
    network: str = "flow"
    kernels: str = "roofline"
    #: Forced choices of the collectives; empty means the topology's default and the least predicted time.
    transport: str = ""
    algorithm: str = ""
    protocol: str = ""
    #: ``--set key=value`` changes of topology values.
    overrides: tuple[tuple[str, str], ...] = ()
    seed: int = 0
    #: Simulate every rank and micro-batch instead of one rank per class and a few micro-batches of the steady state.
    unfold: bool = False
    #: Slow GPUs and links.
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        given: Any = self.topology
        if not isinstance(given, str | Topology):
            object.__setattr__(self, "topology", Topology.from_graph(given))
        check_word("network", self.network, NETWORKS)
        check_word("kernels", self.kernels, KERNEL_MODELS)
        check_choice(self.algorithm, self.protocol)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; of a topology that is in no file, its name and digest."""
        topology = self.topology
        return {
            "topology": topology if isinstance(topology, str) else f"{topology.name}@{topology.digest}",
            "model": self.model,
            "plan": self.plan.to_dict(),
            "network": self.network,
            "kernels": self.kernels,
            "transport": self.transport,
            "algorithm": self.algorithm,
            "protocol": self.protocol,
            "overrides": [list(item) for item in self.overrides],
            "seed": self.seed,
            "unfold": self.unfold,
            "faults": self.faults.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Scenario:
        """Return what :meth:`to_dict` was of; the topology has to be in a file."""
        faults = data["faults"]
        changed = {
            "plan": ParallelPlan(**data["plan"]),
            "overrides": tuple((key, value) for key, value in data["overrides"]),
            "faults": Faults(
                slow_ranks=tuple((int(rank), factor) for rank, factor in faults["slow_ranks"].items()),
                slow_links=tuple(faults["slow_links"].items()),
            ),
        }
        return cls(**{**data, **changed})

    def digest(self) -> str:
        """Return a content address of the scenario."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]
