"""What runs on an emulated cluster: collectives by size and steps of timed layers, to and from rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from simulator.errors import ConfigError
from simulator.units import parse_quantity

KIB, MIB = 1024, 1024 * 1024
#: parameters, gradients and buffers are fp32
FLOAT_BYTES = 4

#: job -> what it does
COLLECTIVES: dict[str, str] = {
    "all_reduce": "sum of a tensor over all ranks",
    "all_gather": "every rank's part to every rank (bytes: the gathered tensor)",
    "reduce_scatter": "sum, of which every rank keeps a part (bytes: the input tensor)",
    "broadcast": "a tensor from rank 0 to all",
    "reduce": "sum of a tensor on rank 0",
    "all_to_all": "a part from every rank to every rank (bytes: one rank's tensor)",
    "p2p": "a message from rank 0 to rank 1",
    "ring_shift": "a message from every rank to the next",
    "cross_ring": "as ring_shift, neighbours always in different racks",
}
STEPS: dict[str, str] = {
    "ddp": "DistributedDataParallel over timed layers",
    "zero1": "reduce-scatter of every layer's gradient beside backward, then all-gather of the parameters",
    "zero3": "all-gather of each layer before its forward and backward, reduce-scatter of its gradient",
    "fsdp2": "fully_shard over timed layers (on CPUs it overlaps nothing)",
    "gpipe": "pipeline, all forwards then all backwards",
    "1f1b": "pipeline, one forward one backward",
}
JOBS = {**COLLECTIVES, **STEPS}

#: collectives in which gloo posts sends before receives: their time depends on who comes first
SENDS_FIRST = ("all_gather", "all_to_all")

_ALIASES = {name.replace("_", ""): name for name in JOBS}
_BESIDE = " beside "
_LAYERS = re.compile(r"L(\d+)x(\d+(?:\.\d+)?)MiB f(\d+(?:\.\d+)?) b(\d+(?:\.\d+)?)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One job."""

    name: str  #: A key of :data:`JOBS`.
    n_bytes: int = 4 * MIB  #: Size of a collective, as its entry in :data:`COLLECTIVES` counts it.
    #: Timed layers and the bytes of parameters of each.
    n_layers: int = 8
    layer_bytes: int = 2 * MIB
    #: Compute time of one layer (of one stage and micro-batch for pipelines).
    forward_s: float = 0.010
    backward_s: float = 0.020
    bucket_bytes: int = 4 * MIB  #: DDP's gradient buckets.
    #: Of a pipeline: micro-batches per step, and the message between stages.
    n_micro_batches: int = 8
    activation_bytes: int = 256 * KIB
    n_groups: int = 1  #: Process groups of ``zero3``: 2 gathers and scatters on separate ones.
    #: Of a collective whose ranks send before they receive (:data:`SENDS_FIRST`), how long each rank begins after the one
    #: before it; 0 leaves to chance who comes first, and so how long it takes.
    gap_s: float = 0.001
    gloo_threads: int = 2  #: Collectives that one process group runs at once.
    n_jobs: int = 1  #: Equal jobs beside each other, on hosts of every rack each.
    alone: bool = False  #: Of several jobs, run only the first and keep the others' hosts idle.
    beside: Job | None = None  #: Another job that goes through its own steps meanwhile, on hosts of every rack, too.
    straggler: tuple[int, float] | None = None  #: A rank and the factor on its compute time.
    procs_per_node: int = 1  #: Ranks on each host.
    #: Measured and unmeasured repetitions.
    n_repeats: int = 10
    n_warm_up: int = 3

    def __post_init__(self) -> None:
        if self.name not in JOBS:
            raise ConfigError(f"job '{self.name}' is unknown", hint=f"one of {', '.join(JOBS)}")
        counts = (
            "n_bytes n_layers layer_bytes n_micro_batches activation_bytes n_repeats n_jobs gloo_threads procs_per_node"
        )
        for field in counts.split(" "):
            if getattr(self, field) < 1:
                raise ConfigError(f"{field}={getattr(self, field)}: must be at least 1")
        if self.beside is not None and (self.n_jobs != 2 or self.beside.beside is not None):
            raise ConfigError("a job beside another makes two jobs", hint="n_jobs=2")
        if self.forward_s < 0 or self.backward_s < 0 or self.n_warm_up < 0 or self.gap_s < 0:
            raise ConfigError("times and warm-up cannot be negative")

    @property
    def is_step(self) -> bool:
        """Whether this is a training step rather than one collective."""
        return self.name in STEPS

    @property
    def turn_s(self) -> float:
        """How long each rank begins after the one before it: nothing, unless it matters."""
        return self.gap_s if self.name in SENDS_FIRST else 0.0

    @property
    def is_zero3_on_one_group(self) -> bool:
        """Whether gathers and reductions, whose rings run in opposite directions, share connections."""
        return self.name == "zero3" and self.n_groups == 1

    @property
    def is_pipeline(self) -> bool:
        """Whether this is a step of a pipeline."""
        return self.name in ("gpipe", "1f1b")

    @property
    def size_bytes(self) -> int:
        """What the ``bytes`` column holds: a collective's size, a step's parameters, a pipeline's message."""
        if self.is_pipeline:
            return self.activation_bytes
        return self.n_layers * self.layer_bytes if self.is_step else self.n_bytes

    def dilated(self, factor: float) -> Job:
        """Return the job in time that runs slower by a factor: layers take as much longer, bytes stay."""
        beside = self.beside.dilated(factor) if self.beside else None
        return replace(self, forward_s=self.forward_s * factor, backward_s=self.backward_s * factor, beside=beside)

    def configuration(self) -> str:
        """Text of the ``cfg`` column.

        Examples
        --------
        >>> Job(name="ddp").configuration()
        'L8x2MiB f10 b20 bucket4'
        >>> Job(name="ddp", n_jobs=2, beside=Job(name="ddp", forward_s=0.03)).configuration()
        'L8x2MiB f10 b20 bucket4 beside ddp L8x2MiB f30 b20 bucket4'
        """
        if self.beside is not None:
            plain = replace(self, beside=None, n_jobs=1)
            return f"{plain.configuration()}{_BESIDE}{self.beside.name} {self.beside.configuration()}"
        times = f"f{self.forward_s * 1e3:g} b{self.backward_s * 1e3:g}"
        layers = f"L{self.n_layers}x{self.layer_bytes / MIB:g}MiB {times}"
        slow = f" slow{self.straggler[1]:g}" if self.straggler else ""
        if self.is_pipeline:
            return f"pp {self.name} m{self.n_micro_batches} act{self.activation_bytes / KIB:g}KiB {times}{slow}"
        if self.name == "ddp":
            return f"{layers} bucket{self.bucket_bytes / MIB:g}{slow}"
        if self.name in ("zero1", "zero3"):
            groups = f" groups{self.n_groups}" if self.n_groups > 1 and self.name == "zero3" else ""
            return f"{self.name} rs=gloo {layers}{groups}{slow}"
        if self.name == "fsdp2":
            return f"fsdp2 {layers} reshard1{slow}"
        placed = ("alone" if self.alone else "together") if self.n_jobs > 1 else ""
        return f"{placed} gap{self.turn_s * 1e3:g}".strip() if self.turn_s else placed

    def ranks_of_job(self, index: int, world: int, n_racks: int) -> tuple[int, ...]:
        """Global ranks of one of several jobs: an equal share of every rack.

        Examples
        --------
        >>> Job(name="all_reduce", n_jobs=2).ranks_of_job(1, 4, 2)
        (1, 3)
        """
        per_rack = world // n_racks
        share = per_rack // self.n_jobs
        if share == 0:
            return ()
        return tuple(
            r for r in range(world) if (r % per_rack) // share == index and (r % per_rack) < share * self.n_jobs
        )


def message_pairs(name: str, n_ranks: int) -> list[tuple[int, int]]:
    """(source, target) of all messages that a job sends at once; none of a job that is a collective or a step.

    Examples
    --------
    >>> message_pairs("ring_shift", 3), message_pairs("cross_ring", 4)
    ([(0, 1), (1, 2), (2, 0)], [(0, 2), (2, 1), (1, 3), (3, 0)])
    """
    half = n_ranks // 2
    orders = {
        "ring_shift": [*range(n_ranks)],
        "cross_ring": [rank for low in range(half) for rank in (low, low + half)],
    }
    if name == "p2p":
        return [(0, 1)]
    order = orders.get(name, [])
    return list(zip(order, (*order[1:], *order[:1]), strict=True))


def job_of_row(row: Mapping[str, str]) -> Job:
    """Read the job from a measured row."""
    name, text = row["job"], row.get("cfg", "") or ""
    if _BESIDE in text:
        own, _, other = text.partition(_BESIDE)
        first = job_of_row({**row, "job": name.removeprefix("pair-"), "cfg": own})
        return replace(first, n_jobs=2, beside=job_named(other))
    job = Job(
        name=_name_of(name, text),
        gloo_threads=int(row.get("gloo_threads") or 2),
        procs_per_node=int(row.get("procs_per_node") or 1),
        n_repeats=int(row.get("repeats") or 10),
        n_jobs=2 if name.startswith("two-") else 1,
        alone=text.startswith("alone"),
    )
    if not job.is_step:
        gap = re.search(r"gap(\d+(?:\.\d+)?)", text)
        chance_s = 0.0 if job.name in SENDS_FIRST else job.gap_s
        return replace(job, n_bytes=int(row["bytes"]), gap_s=float(gap.group(1)) / 1e3 if gap else chance_s)
    straggler = re.search(r" slow(\d+(?:\.\d+)?)", text)
    if straggler:
        job = replace(job, straggler=(0, float(straggler.group(1))))
    if job.is_pipeline:
        return _pipeline_of(job, text)
    layers = _LAYERS.search(text)
    if layers is None:
        raise ConfigError(f"cfg {text!r} does not say which layers run", hint="such as 'L8x2MiB f10 b20 bucket4'")
    bucket = re.search(r"bucket(\d+(?:\.\d+)?)", text)
    return replace(
        job,
        n_layers=int(layers.group(1)),
        layer_bytes=round(float(layers.group(2)) * MIB),
        forward_s=float(layers.group(3)) / 1e3,
        backward_s=float(layers.group(4)) / 1e3,
        bucket_bytes=round(float(bucket.group(1)) * MIB) if bucket else job.bucket_bytes,
        n_groups=2 if "groups2" in text else 1,
    )


def job_named(text: str) -> Job:
    """Read the job that runs beside another: its name and its configuration.

    Examples
    --------
    >>> job_named("ddp L4x1MiB f5 b10 bucket25").n_layers
    4
    """
    name, _, cfg = text.strip().partition(" ")
    if name not in STEPS or not cfg:
        raise ConfigError(f"{text!r} is not a step with its configuration", hint="ddp L8x2MiB f10 b20 bucket4")
    return job_of_row({"job": "pp" if name in ("gpipe", "1f1b") else name, "cfg": cfg})


def _pipeline_of(job: Job, text: str) -> Job:
    found = re.search(r"m(\d+) act(\d+(?:\.\d+)?)KiB f(\d+(?:\.\d+)?) b(\d+(?:\.\d+)?)", text)
    if found is None:
        raise ConfigError(f"cfg {text!r} does not describe a pipeline", hint="such as 'pp 1f1b m8 act256KiB f10 b20'")
    return replace(
        job,
        n_micro_batches=int(found.group(1)),
        activation_bytes=round(float(found.group(2)) * KIB),
        forward_s=float(found.group(3)) / 1e3,
        backward_s=float(found.group(4)) / 1e3,
    )


def _name_of(name: str, text: str) -> str:
    first = text.split(" ", maxsplit=1)[0]
    if name in ("zero", "fsdp"):
        if "rs=ring" in text:
            raise ConfigError("reduce-scatter by hand-written ring is not emulated")
        return first
    if name == "pp":
        return text.split(" ")[1]
    plain = name.removeprefix("two-").replace("-", "").replace("_", "")
    return _ALIASES.get(plain, name)


def parse_bytes(text: str) -> int:
    """Read a size: a bare number of bytes, or with a unit.

    Examples
    --------
    >>> parse_bytes("4194304") == parse_bytes("4MiB")
    True
    """
    if text.isdigit():
        return int(text)
    return round(parse_quantity(text, "bytes"))


def buffer_bytes(n_bytes: int, world: int) -> int:
    """Bytes of a buffer of about ``n_bytes`` that divides into equal parts of whole elements.

    Examples
    --------
    >>> buffer_bytes(5 << 20, 6)
    5242872
    """
    return max(1, n_bytes // FLOAT_BYTES // world) * world * FLOAT_BYTES
