"""Sets of measurements that together show how far emulated jobs are predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import ClusterShape
from validation.emulation.job import MIB, Job

Cases = list[tuple[ClusterShape, list[Job]]]
_SIZES = (1 * MIB, 4 * MIB, 16 * MIB, 64 * MIB)
_RATES = (1e8, 5e8, 1e9)
_ZERO_RATES = (2.5e8, 5e8)
#: hosts of one emulated machine and rates stay below what its processors carry
_QUEUE_BYTES = 512 * 1024
#: no frame is dropped
_LOSSLESS_BYTES = 4 * MIB
#: of time, of jobs that share a trunk at their own pace
_DILATION = 4.0


def _all_reduces(rate_bits_per_s: float) -> list[Job]:
    """Four sizes; those that take seconds each are repeated less."""
    return [
        Job(name="all_reduce", n_bytes=size, n_repeats=7 if 8 * size < rate_bits_per_s else 3, n_warm_up=1)
        for size in _SIZES
    ]


def small() -> Cases:
    """A minute's worth of the rest: for continuous integration."""
    jobs = [
        Job(name="all_reduce", n_bytes=MIB, n_repeats=5),
        Job(name="all_reduce", n_bytes=4 * MIB, n_repeats=5),
        Job(name="ddp", n_repeats=4, n_warm_up=2),
        Job(name="1f1b", n_repeats=4, n_warm_up=2),
    ]
    return [
        (ClusterShape(n_nodes=2), jobs),
        (ClusterShape(n_nodes=4), [*jobs, Job(name="zero1", n_repeats=4, n_warm_up=2)]),
    ]


def collectives() -> Cases:
    """All-reduce on 2, 4 and 8 hosts at three rates and four sizes; all-to-all and all-gather at two of each."""
    exchanges = [
        Job(name=name, n_bytes=size, n_repeats=5, n_warm_up=1)
        for name in ("all_to_all", "all_gather")
        for size in (4 * MIB, 16 * MIB)
    ]
    return [
        *((ClusterShape(n_nodes=n, rate_bits_per_s=rate), _all_reduces(rate)) for n in (2, 4, 8) for rate in _RATES),
        *((ClusterShape(n_nodes=n, rate_bits_per_s=rate), exchanges) for n in (2, 4, 8) for rate in (1e8, 2.5e8)),
    ]


def steps() -> Cases:
    """DDP with three bucketings and pipelines on 2, 4 and 8 hosts; ZeRO-1, and ZeRO-3 with separate groups, on 4 and 8.

    ZeRO keeps two groups busy at once: at these rates the links set the pace, not two processors under eight hosts.
    """
    ddp = [
        Job(name="ddp", bucket_bytes=4 * MIB, n_repeats=5),
        Job(name="ddp", bucket_bytes=25 * MIB, n_repeats=5),
        Job(name="ddp", bucket_bytes=2 * MIB, forward_s=0.03, backward_s=0.06, n_repeats=5),
    ]
    pipelines = [Job(name=name, n_repeats=5) for name in ("gpipe", "1f1b")]
    zero = [Job(name="zero1", n_repeats=5), Job(name="zero3", n_groups=2, forward_s=0.02, backward_s=0.04, n_repeats=5)]
    return [
        *(
            (ClusterShape(n_nodes=n, rate_bits_per_s=rate), [*ddp, *pipelines])
            for n in (2, 4, 8)
            for rate in _RATES[1:]
        ),
        *((ClusterShape(n_nodes=n, rate_bits_per_s=rate), zero) for n in (4, 8) for rate in _ZERO_RATES),
        (ClusterShape(n_nodes=4, rate_bits_per_s=_RATES[1]), [Job(name="fsdp2", n_repeats=5)]),
    ]


def sharing() -> Cases:
    """A straggler, a slow link, and two jobs on one trunk."""
    big = Job(name="all_reduce", n_bytes=16 * MIB, n_repeats=6)
    ddp = Job(name="ddp", n_repeats=5)
    straggler = Job(name="ddp", straggler=(0, 1.5), n_repeats=5)
    slow = ClusterShape(n_nodes=4, slow=((2, 5e8),), queue_bytes=_QUEUE_BYTES)
    both = Job(name="all_reduce", n_bytes=16 * MIB, n_jobs=2, n_repeats=6)
    small_both = Job(name="all_reduce", n_bytes=MIB, n_jobs=2, n_repeats=6)
    racks = [
        ClusterShape(n_nodes=n, n_racks=2, trunk_bits_per_s=trunk, queue_bytes=_QUEUE_BYTES)
        for n in (4, 8)
        for trunk in (5e8, 1e9)
    ]
    return [
        (ClusterShape(n_nodes=4, queue_bytes=_QUEUE_BYTES), [straggler]),
        (slow, [big, ddp]),
        *((shape, [both, small_both]) for shape in racks),
    ]


def beside() -> Cases:
    """Two unequal jobs on one trunk, each at its own pace: DDP beside DDP with other layers, and beside a pipeline.

    Queues hold what TCP has under way: the fabrics that are predicted drop nothing, and one lost message costs 200 ms. Time runs four
    times slower (about ten minutes): two processors under two jobs on eight hosts decide else which of them comes first.
    """
    short = Job(name="ddp", n_repeats=20, n_warm_up=1)
    long = replace(short, n_layers=4, layer_bytes=4 * MIB, forward_s=0.02, backward_s=0.02)
    pipeline = Job(name="1f1b", activation_bytes=MIB, n_repeats=20)
    pairs = [replace(short, n_jobs=2, beside=other).dilated(_DILATION) for other in (long, pipeline)]
    trunk = ClusterShape(n_nodes=4, n_racks=2, queue_bytes=_LOSSLESS_BYTES)
    return [
        (replace(trunk, n_nodes=n, trunk_bits_per_s=rate).dilated(_DILATION), pairs)
        for n in (4, 8)
        for rate in _RATES[1:]
    ]


def full() -> Cases:
    """Everything: about twenty minutes."""
    return [*collectives(), *steps(), *sharing(), *beside()]


#: name -> its cases
SUITES: dict[str, Callable[[], Cases]] = {
    "small": small,
    "collectives": collectives,
    "steps": steps,
    "sharing": sharing,
    "beside": beside,
    "full": full,
}


def suite(name: str) -> Cases:
    """Cases of a suite."""
    if name not in SUITES:
        raise ConfigError(f"suite '{name}' is unknown", hint=f"one of {', '.join(SUITES)}")
    return SUITES[name]()
