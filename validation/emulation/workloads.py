"""The jobs as real torch.distributed code: each builder sets up one rank and returns what is timed.

A timed function takes no arguments and returns the seconds of its phases by column name; its whole duration
is measured around it. Two cores cannot compute for eight hosts, but they can sleep for them: layers take as long as they
are told, with parameters and gradients of real size, and communication, bucketing and overlap stay real.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from simulator.schedules import build_table
from validation.emulation.collective_calls import collective_call
from validation.emulation.job import COLLECTIVES, FLOAT_BYTES, Job, message_pairs

Step = Callable[[], dict[str, float]]


def spend(duration_s: float, since_s: float | None = None) -> float:
    """Sleep until ``duration_s`` after ``since_s`` (now, by default); return the time at waking."""
    start_s = time.monotonic() if since_s is None else since_s
    left_s = start_s + duration_s - time.monotonic()
    if left_s > 0:
        time.sleep(left_s)
    return time.monotonic()


class _Timed(torch.autograd.Function):
    """Hands its input through; forward and backward take set times, and the weight gets a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, layer: TimedLayer) -> torch.Tensor:
        """Take the forward time."""
        ctx.layer = layer
        ctx.save_for_backward(weight)
        spend(layer.forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Take the backward time, the making of the gradient included."""
        start_s = time.monotonic()
        (weight,) = ctx.saved_tensors
        gradient = torch.zeros_like(weight)
        ctx.layer.backward_done_s = spend(ctx.layer.backward_s, start_s)
        return gradients[0], gradient, None


class TimedLayer(torch.nn.Module):
    """A layer of ``n_bytes`` of fp32 parameters whose passes take set times."""

    def __init__(self, n_bytes: int, forward_s: float, backward_s: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(n_bytes // FLOAT_BYTES))
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.backward_done_s = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Hand ``x`` through after the forward time."""
        apply: Any = _Timed.apply
        result: torch.Tensor = apply(x, self.weight, self)
        return result


def timed_model(n_layers: int, n_bytes: int, forward_s: float, backward_s: float) -> torch.nn.Sequential:
    """Return so many equal timed layers in a row."""
    return torch.nn.Sequential(*(TimedLayer(n_bytes, forward_s, backward_s) for _ in range(n_layers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where one rank sits in one job."""

    job: Job  #: What runs.
    #: Within the job.
    rank: int
    world: int
    group: dist.ProcessGroup  #: All ranks of the job.
    second_group: dist.ProcessGroup  #: Another one of the same ranks, for jobs that use two.
    ranks: tuple[int, ...]  #: Global ranks of the job, in order.

    @property
    def factor(self) -> float:
        """How much longer this rank computes than it should: above 1 for the straggler."""
        straggler = self.job.straggler
        return straggler[1] if straggler and straggler[0] == self.rank else 1.0


def _tensor(n_bytes: int) -> torch.Tensor:
    return torch.ones(max(1, n_bytes // FLOAT_BYTES))


def _collective(seat: Seat) -> Step:
    """One collective over the job's group."""
    call = collective_call(seat.job.name, seat.job.n_bytes, seat.world, group=seat.group, root=seat.ranks[0])

    def step() -> dict[str, float]:
        call()
        return {}

    return step


def _ring(seat: Seat) -> Step:
    """A message to the next rank of a ring and one from the one before."""
    out = _tensor(seat.job.n_bytes)
    into = torch.empty_like(out)
    pairs = message_pairs(seat.job.name, seat.world)
    [target] = [seat.ranks[to] for source, to in pairs if source == seat.rank]
    [source] = [seat.ranks[source] for source, to in pairs if to == seat.rank]

    def step() -> dict[str, float]:
        sending = dist.isend(out, target, group=seat.group)
        dist.recv(into, source, group=seat.group)
        assert sending is not None
        sending.wait()
        return {}

    return step


def _p2p(seat: Seat) -> Step:
    """A message from rank 0 to rank 1, answered by an empty one so that rank 0 sees its arrival."""
    data, note = _tensor(seat.job.n_bytes), torch.zeros(1)

    def step() -> dict[str, float]:
        if seat.rank == 0:
            dist.send(data, seat.ranks[1], group=seat.group)
            dist.recv(note, seat.ranks[1], group=seat.group)
        elif seat.rank == 1:
            dist.recv(data, seat.ranks[0], group=seat.group)
            dist.send(note, seat.ranks[0], group=seat.group)
        return {}

    return step


def _ddp(seat: Seat) -> Step:
    """One step of DistributedDataParallel: buckets are reduced beside backward."""
    job = seat.job
    factor = seat.factor
    layers = timed_model(job.n_layers, job.layer_bytes, job.forward_s * factor, job.backward_s * factor)
    model = torch.nn.parallel.DistributedDataParallel(
        layers, process_group=seat.group, bucket_cap_mb=job.bucket_bytes / (1 << 20), gradient_as_bucket_view=False
    )
    x = torch.zeros(1, requires_grad=True)
    first = layers[0]
    assert isinstance(first, TimedLayer)

    def step() -> dict[str, float]:
        model.zero_grad(set_to_none=True)
        start_s = time.monotonic()
        loss = model(x).sum()
        forward_s = time.monotonic()
        loss.backward()
        end_s = time.monotonic()
        return {
            "fwd_s": forward_s - start_s,
            "bwd_compute_s": first.backward_done_s - forward_s,
            "exposed_s": end_s - first.backward_done_s,
        }

    return step


def _shards(seat: Seat) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Whole parameters, their shards, whole gradients and their shards, layer by layer."""
    n_elements = seat.job.layer_bytes // FLOAT_BYTES // seat.world * seat.world
    count = range(seat.job.n_layers)
    whole = [torch.zeros(n_elements) for _ in count]
    shard = [torch.zeros(n_elements // seat.world) for _ in count]
    gradient = [torch.zeros(n_elements) for _ in count]
    reduced = [torch.zeros(n_elements // seat.world) for _ in count]
    return whole, shard, gradient, reduced


def _zero1(seat: Seat) -> Step:
    """ZeRO-1: gradients are reduce-scattered layer by layer beside backward, parameters gathered after it."""
    job, factor = seat.job, seat.factor
    whole, shard, gradient, reduced = _shards(seat)

    def step() -> dict[str, float]:
        start_s = now_s = time.monotonic()
        for _ in range(job.n_layers):
            now_s = spend(job.forward_s * factor, now_s)
        forward_s = now_s
        works = []
        for index in reversed(range(job.n_layers)):
            spend(job.backward_s * factor)
            works.append(dist.reduce_scatter_tensor(reduced[index], gradient[index], group=seat.group, async_op=True))
        backward_s = time.monotonic()
        _wait(works)
        _wait(
            [
                dist.all_gather_into_tensor(whole[i], shard[i], group=seat.group, async_op=True)
                for i in range(job.n_layers)
            ]
        )
        return {"fwd_s": forward_s - start_s, "bwd_s": backward_s - forward_s}

    return step


def _wait(works: list[dist.Work | None]) -> None:
    for work in works:
        assert work is not None
        work.wait()


def _zero3(seat: Seat) -> Step:
    """ZeRO-3: layers are gathered one ahead of forward and backward, gradients reduce-scattered.

    The last layer stays gathered between forward and backward, as FSDP keeps it.
    """
    job, factor = seat.job, seat.factor
    whole, shard, gradient, reduced = _shards(seat)
    scatter_group = seat.second_group if job.n_groups > 1 else seat.group

    def gather(index: int) -> dist.Work | None:
        work: dist.Work | None = dist.all_gather_into_tensor(
            whole[index], shard[index], group=seat.group, async_op=True
        )
        return work

    def scatter(index: int) -> None:
        works.append(dist.reduce_scatter_tensor(reduced[index], gradient[index], group=scatter_group, async_op=True))

    def run(order: list[int], duration_s: float, gathered: bool, after: Callable[[int], None]) -> None:
        pending = None if gathered else gather(order[0])
        for place, index in enumerate(order):
            if pending is not None:
                pending.wait()
            pending = gather(order[place + 1]) if place + 1 < len(order) else None
            spend(duration_s * factor)
            after(index)

    works: list[dist.Work | None] = []
    order = list(range(job.n_layers))

    def step() -> dict[str, float]:
        works.clear()
        start_s = time.monotonic()
        run(order, job.forward_s, False, lambda index: None)
        forward_s = time.monotonic()
        run(order[::-1], job.backward_s, True, scatter)
        backward_s = time.monotonic()
        _wait(works)
        return {"fwd_s": forward_s - start_s, "bwd_s": backward_s - forward_s}

    return step


def _fsdp2(seat: Seat) -> Step:
    """One step of ``fully_shard`` with one group per layer."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    job, factor = seat.job, seat.factor
    model = timed_model(job.n_layers, job.layer_bytes, job.forward_s * factor, job.backward_s * factor)
    mesh = DeviceMesh.from_group(seat.group, "cpu")
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    x = torch.zeros(1, requires_grad=True)

    def step() -> dict[str, float]:
        model.zero_grad(set_to_none=True)
        start_s = time.monotonic()
        loss = model(x).sum()
        forward_s = time.monotonic()
        loss.backward()
        return {"fwd_s": forward_s - start_s, "bwd_s": time.monotonic() - forward_s}

    return step


def _pipeline(seat: Seat) -> Step:
    """One step of a pipeline, one stage per rank: all receives are posted first, sends do not block."""
    job, factor = seat.job, seat.factor
    before = seat.ranks[seat.rank - 1] if seat.rank else None
    after = seat.ranks[seat.rank + 1] if seat.rank + 1 < seat.world else None
    table = build_table(job.name, seat.world, job.n_micro_batches)
    actions = [(action.kind, action.micro_batch) for action in table[seat.rank]]
    sides = {"F": (before, after, job.forward_s), "B": (after, before, job.backward_s)}
    out = {action: _tensor(job.activation_bytes) for action in actions}
    into = {action: _tensor(job.activation_bytes) for action in actions}

    def step() -> dict[str, float]:
        arriving: dict[tuple[str, int], dist.Work | None] = {}
        for action in actions:
            source = sides[action[0]][0]
            if source is not None:
                arriving[action] = dist.irecv(into[action], source, group=seat.group, tag=_tag(action))
        leaving = []
        for action in actions:
            _, target, duration_s = sides[action[0]]
            if action in arriving:
                _wait([arriving[action]])
            spend(duration_s * factor)
            if target is not None:
                leaving.append(dist.isend(out[action], target, group=seat.group, tag=_tag(action)))
        _wait(leaving)
        return {}

    return step


def _tag(action: tuple[str, int]) -> int:
    return 2 * action[1] + (action[0] == "B")


#: job -> builder
WORKLOADS: dict[str, Callable[[Seat], Step]] = {
    **dict.fromkeys(COLLECTIVES, _collective),
    "p2p": _p2p,
    "ring_shift": _ring,
    "cross_ring": _ring,
    "ddp": _ddp,
    "zero1": _zero1,
    "zero3": _zero3,
    "fsdp2": _fsdp2,
    "gpipe": _pipeline,
    "1f1b": _pipeline,
}
