"""What a cluster file may say about running it: storage, power, price and failures.

All of it is optional. What a file leaves out is not modelled (storage of the input pipeline), or taken from
``topologies/operation/defaults.yaml`` where a whole run is asked for.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated

from pydantic import Field, model_validator

from simulator.config import Bandwidth, Latency, Power, Spec, Time, complaint, load_spec, resolve_name
from simulator.errors import ConfigError

Share = Annotated[float, Field(ge=0, le=1)]


class StorageSpec(Spec):
    """The way between the nodes and the file system that holds data and checkpoints.

    Rates are those that a job sees. A missing rate of a node is that of its network cards, a missing total no limit
    beyond the nodes', and a missing rate of writing that of reading.
    """

    source: str = ""
    bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="bandwidth", gt=0)
    node_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="node_bandwidth", gt=0)
    write_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="write_bandwidth", gt=0)
    node_write_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="node_write_bandwidth", gt=0)
    local_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="local_bandwidth", gt=0)
    latency_s: Latency = Field(default=0.0, alias="latency", ge=0)

    @model_validator(mode="after")
    def _says_something(self) -> StorageSpec:
        if self.bandwidth_bytes_per_s is None and self.node_bandwidth_bytes_per_s is None:
            hint = "write 'bandwidth: 100 GB/s' (all nodes together), 'node_bandwidth: 4 GB/s', or both"
            raise complaint(ConfigError("storage needs a rate of reading", hint=hint))
        return self


class PowerSpec(Spec):
    """What the machine draws: a board that computes, communicates or waits, the rest of its node, the building."""

    source: str = ""
    gpu_compute_w: Power | None = Field(default=None, alias="gpu_compute", gt=0)
    gpu_communication_w: Power | None = Field(default=None, alias="gpu_communication", gt=0)
    gpu_idle_w: Power | None = Field(default=None, alias="gpu_idle", ge=0)
    host_w: Power | None = Field(default=None, alias="host", ge=0)
    gpu_cap_w: Power | None = Field(default=None, alias="gpu_cap", gt=0)
    node_cap_w: Power | None = Field(default=None, alias="node_cap", gt=0)
    rack_cap_w: Power | None = Field(default=None, alias="rack_cap", gt=0)
    nodes_per_rack: int | None = Field(default=None, ge=1)
    pue: float | None = Field(default=None, ge=1, le=10)
    kg_co2_per_kwh: float | None = Field(default=None, ge=0, le=5)

    def cap_w(self, n_gpus: int, n_hosts: int) -> float | None:
        """Return what a board may draw at most by the operator's will; None where the file says nothing of it.

        A limit of a node or rack is shared by its boards once the rest of them has its part.

        Parameters
        ----------
        n_gpus, n_hosts : int
            Of what NVLink joins: a rack where these are several hosts, a node otherwise.
        """
        rest_w = operation_defaults().host.per_gpu_w if self.host_w is None else self.host_w * n_hosts / n_gpus
        caps = [] if self.gpu_cap_w is None else [self.gpu_cap_w]
        for what, watts in (("node", self.node_cap_w), ("rack", self.rack_cap_w)):
            if watts is None:
                continue
            is_rack = what == "rack"
            n_boards = self.n_in_rack(n_hosts, "power.rack_cap") * n_gpus if is_rack else n_gpus // n_hosts
            if watts <= n_boards * rest_w:
                raise ConfigError(
                    f"power.{what}_cap: {watts:,.0f} W leave nothing for GPUs beside {n_boards * rest_w:,.0f} W of the rest of a {what}",
                    hint="raise it, or say the rest of a node: power.host",
                )
            caps.append(watts / n_boards - rest_w)
        return min(caps, default=None)

    def n_in_rack(self, n_hosts: int, asked: str) -> int:
        """Return how many nodes, or groups of hosts that NVLink joins, share a rack; ``asked`` is the setting that needs to know."""
        if self.nodes_per_rack is None and n_hosts == 1:
            raise ConfigError(f"{asked}: how many nodes share a rack?", hint="--set power.nodes_per_rack=4")
        return self.nodes_per_rack or 1


class PriceSpec(Spec):
    """What an hour of one GPU costs."""

    source: str = ""
    gpu_hour: float = Field(gt=0)
    currency: str = ""


class ListPrice(PriceSpec):
    """A published price of a device."""

    date: str


class ListPrices(Spec):
    """``topologies/operation/prices.yaml``: published prices by device."""

    prices: dict[str, ListPrice]


class FailureSpec(Spec):
    """How often something ends the job, and how long it takes until it runs again."""

    source: str = ""
    gpu_mtbf_s: Time | None = Field(default=None, alias="gpu_mtbf", gt=0)
    node_mtbf_s: Time | None = Field(default=None, alias="node_mtbf", gt=0)
    detection_s: Time | None = Field(default=None, alias="detection", ge=0)
    allocation_s: Time | None = Field(default=None, alias="allocation", ge=0)
    restart_s: Time | None = Field(default=None, alias="restart", ge=0)
    warm_up_s: Time | None = Field(default=None, alias="warm_up", ge=0)

    @model_validator(mode="after")
    def _says_it_once(self) -> FailureSpec:
        if self.gpu_mtbf_s is not None and self.node_mtbf_s is not None:
            raise complaint(ConfigError("gpu_mtbf and node_mtbf say the same thing", hint="leave one out"), "node_mtbf")
        return self


class OperatedSpec(Spec):
    """The sections of a cluster file that say how it is run."""

    storage: StorageSpec | None = None
    power: PowerSpec | None = None
    price: PriceSpec | None = None
    failures: FailureSpec | None = None


class PowerShares(Spec):
    """Default powers as shares of the device's power limit."""

    source: str
    gpu_compute: Share
    gpu_communication: Share
    gpu_idle: Share
    deviation: Share


class HostPower(Spec):
    """Default power of the rest of a node, per GPU."""

    source: str
    per_gpu_w: Power = Field(alias="per_gpu", ge=0)


class Facility(Spec):
    """Default of what the building adds."""

    source: str
    pue: float = Field(ge=1)


class ElectricGrid(Spec):
    """Default of what making electricity emits."""

    source: str
    kg_co2_per_kwh: float = Field(ge=0)


class OperationDefaults(Spec):
    """``topologies/operation/defaults.yaml``: what is taken where neither flags nor the cluster file say it."""

    power: PowerShares
    host: HostPower
    facility: Facility
    grid: ElectricGrid
    failures: str  #: A rate of ``failures.yaml``.
    restart: FailureSpec
    storage: StorageSpec


@lru_cache(maxsize=1)  # a file that every search asks for
def operation_defaults() -> OperationDefaults:
    """Return ``topologies/operation/defaults.yaml``."""
    return load_spec(resolve_name("defaults", "operation"), OperationDefaults)


class FailureRate(FailureSpec):
    """A published rate of failures."""

    hardware: Share = 1.0
    components: dict[str, Share] = Field(default_factory=dict)
    devices: tuple[str, ...] = ()  #: Beginnings of the names of devices that have it by default.


class FailureRates(Spec):
    """``topologies/operation/failures.yaml``: published rates by name."""

    rates: dict[str, FailureRate]
