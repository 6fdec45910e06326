"""How a model is trained in parallel: one builder per strategy, each returns what runs a step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from validation.jobs.job_settings import Settings
from validation.jobs.model import GptSize, build_gpt, loss_of
from validation.jobs.timing import PhaseClock

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LEARNING_RATE = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Trainer:
    """A model ready to train."""

    step: Callable[[PhaseClock], float | None]  #: One optimizer step; marks its phases on the clock.


@contextlib.contextmanager
def _autocast(precision: str, device: torch.device) -> Iterator[None]:
    if not precision.startswith("amp_"):
        yield
        return
    with torch.autocast(device.type, _DTYPES[precision.removeprefix("amp_")]):
        yield


def build_model(size: GptSize, settings: Settings, device: torch.device, *, tied: bool = True) -> nn.Sequential:
    """Return the model on its device, in the precision of its weights, the same on every rank."""
    torch.manual_seed(0)
    with torch.device(device):
        model = build_gpt(size, tied=tied)
    return model.to(_DTYPES.get(settings.precision, torch.float32))


def random_batch(size: GptSize, settings: Settings, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens and targets, each ``[micro_batch, seq]``."""
    shape = (settings.micro_batch, size.seq_len)
    return torch.randint(size.vocab, shape, device=device), torch.randint(size.vocab, shape, device=device)


def replicated(size: GptSize, settings: Settings, device: torch.device, model: nn.Module, optimizer: Any) -> Trainer:
    """Step of every strategy that runs the whole model on each rank."""
    tokens, targets = random_batch(size, settings, device)
    no_sync = getattr(model, "no_sync", contextlib.nullcontext)
    last = settings.n_micro_batches - 1

    def step(clock: PhaseClock) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros(())
        for index in range(settings.n_micro_batches):
            with no_sync() if index < last else contextlib.nullcontext():
                clock.mark("forward")
                with _autocast(settings.precision, device):
                    loss = loss_of(model(tokens), targets) / settings.n_micro_batches
                clock.mark("backward")
                torch.autograd.backward(loss)
        clock.mark("optimizer")
        optimizer.step()
        return float(loss.detach()) if device.type == "cpu" else 0.0

    return Trainer(step=step)


def _single(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """No parallelism."""
    model = build_model(size, settings, device)
    return replicated(size, settings, device, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE))


def _wrap(model: nn.Module, settings: Settings, device: torch.device) -> nn.Module:
    ids = [device.index] if device.type == "cuda" else None
    cap_mb = settings.bucket_bytes / (1 << 20) if settings.bucket_bytes else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids, bucket_cap_mb=cap_mb)


def _ddp(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """Buckets of gradients are all-reduced beside backward."""
    model = _wrap(build_model(size, settings, device), settings, device)
    return replicated(size, settings, device, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE))


def _zero1(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """DDP, and every rank keeps the optimizer states of its share of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = _wrap(build_model(size, settings, device), settings, device)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=LEARNING_RATE)
    return replicated(size, settings, device, model, optimizer)


def _fsdp2(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """Every block is a group of sharded parameters; embedding and head are the root's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = build_model(size, settings, device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for block in list(model)[1:-1]:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return replicated(size, settings, device, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE))


def _tp(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """Projections split by columns, then by rows: one all-reduce after attention, one after the MLP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = build_model(size, settings, device)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    rows = dict.fromkeys(("out", "down"), RowwiseParallel())
    for block in list(model)[1:-1]:
        parallelize_module(block, mesh, {**columns, **rows})
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE, foreach=False)
    return replicated(size, settings, device, model, optimizer)


def stage_of(model: nn.Sequential, stage: int, n_stages: int) -> nn.Sequential:
    """Cut one stage out of a model: blocks evenly, the embedding with the first, the head with the last."""
    blocks = list(model)[1:-1]
    low, high = (len(blocks) * index // n_stages for index in (stage, stage + 1))
    parts = blocks[low:high]
    if stage == 0:
        parts.insert(0, model[0])
    if stage == n_stages - 1:
        parts.append(model[-1])
    return nn.Sequential(*parts)


def _pp(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """One stage per rank; the schedule runs all micro-batches of a step."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    rank, world = dist.get_rank(), dist.get_world_size()
    module = stage_of(build_model(size, settings, device, tied=False), rank, world)
    stage = PipelineStage(module, rank, world, device)
    kind: Any = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[settings.schedule]
    schedule = kind(stage, settings.n_micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), LEARNING_RATE)
    shape = (settings.micro_batch * settings.n_micro_batches, size.seq_len)
    tokens = torch.randint(size.vocab, shape, device=device)
    targets = torch.randint(size.vocab, shape, device=device)

    def step(clock: PhaseClock) -> None:
        optimizer.zero_grad(set_to_none=True)
        clock.mark("pipeline")
        with _autocast(settings.precision, device):
            if rank == 0:
                schedule.step(tokens)
            elif rank == world - 1:
                schedule.step(target=targets)
            else:
                schedule.step()
        clock.mark("optimizer")
        optimizer.step()

    return Trainer(step=step)


#: job -> builder
STRATEGIES: dict[str, Callable[[GptSize, Settings, torch.device], Trainer]] = {
    "single": _single,
    "ddp": _ddp,
    "zero1": _zero1,
    "fsdp2": _fsdp2,
    "tp": _tp,
    "pp": _pp,
}
