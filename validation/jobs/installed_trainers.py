"""Strategies of frameworks that may be installed: DeepSpeed's ZeRO, Megatron-Core's tensor and pipeline parallelism, the Trainer.

All of them run over NCCL, and over gloo on processors, so that what they send can be looked at without a GPU.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from simulator.errors import ConfigError
from validation.jobs.job_settings import Settings
from validation.jobs.model import Block, GptSize, loss_of
from validation.jobs.timing import PhaseClock
from validation.jobs.trainers import LEARNING_RATE, Trainer, build_model, random_batch, replicated, stage_of

#: first part of a job's name -> the module that it needs, and the package that brings it
_NEEDS = {
    "deepspeed": ("deepspeed", "deepspeed"),
    "megatron": ("megatron.core", "megatron-core"),
    "hf": ("transformers", "transformers accelerate"),
}


def why_not(job: str) -> str:
    """Say why a job cannot run here; empty where it can, or needs nothing but torch."""
    module, package = _NEEDS.get(job.partition("-")[0], ("", ""))
    if not module:
        return ""
    parent = module.partition(".")[0]
    if importlib.util.find_spec(parent) is None or importlib.util.find_spec(module) is None:
        return f"{module} is not installed (pip install {package})"
    return ""


def _announce(device: torch.device) -> None:
    """Tell frameworks that read the environment which rank this is; the process group exists, the address is only looked for."""
    local = dist.get_rank() if device.index is None else device.index
    place = {"RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size(), "LOCAL_RANK": local}
    for name, value in {**place, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500}.items():
        os.environ.setdefault(name, str(value))
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")


def _deepspeed(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """ZeRO as DeepSpeed's engine runs it, with its own buckets and prefetching."""
    _announce(device)
    import deepspeed

    if settings.precision.startswith("amp_"):
        raise ConfigError(f"DeepSpeed has no {settings.precision}", hint="--precision fp32, bf16 or fp16")
    model = build_model(size, settings, device)
    config = {
        "train_micro_batch_size_per_gpu": settings.micro_batch,
        "gradient_accumulation_steps": settings.n_micro_batches,
        "zero_optimization": {"stage": int(settings.job[-1])},
        "zero_allow_untested_optimizer": True,
        **({} if settings.precision == "fp32" else {settings.precision: {"enabled": True}}),
    }
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    tokens, targets = random_batch(size, settings, device)

    def step(clock: PhaseClock) -> float:
        loss = torch.zeros(())
        for _ in range(settings.n_micro_batches):
            clock.mark("forward")
            loss = loss_of(engine(tokens), targets)
            clock.mark("backward")
            engine.backward(loss)
            clock.mark("optimizer")
            engine.step()
        return float(loss.detach()) if device.type == "cpu" else 0.0

    return Trainer(step=step)


def _hf_trainer(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """DDP as the Hugging Face Trainer sets it up, with its GPT-2, its loss and its clipping."""
    _announce(device)
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments
    from transformers import Trainer as HuggingFaceTrainer

    class Marked(HuggingFaceTrainer):  # type: ignore[misc]
        """A Trainer that says when forward ends."""

        clock: PhaseClock

        def compute_loss(self, *given: Any, **more: Any) -> Any:
            """Compute the loss; what follows is backward."""
            loss = super().compute_loss(*given, **more)
            self.clock.mark("backward")
            return loss

    torch.manual_seed(0)
    shape = {"n_layer": size.layers, "n_embd": size.hidden, "n_head": size.heads, "vocab_size": size.vocab}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = GPT2LMHeadModel(GPT2Config(**shape, **dropout, n_positions=size.seq_len))
    casts = {settings.precision.removeprefix("amp_"): True} if settings.precision.startswith("amp_") else {}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=settings.micro_batch, report_to=[],
        use_cpu=device.type == "cpu", learning_rate=LEARNING_RATE, **casts,
    )  # fmt: skip
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(settings.precision, torch.float32)
    trainer = Marked(model=model.to(device, dtype), args=arguments)
    trainer.current_gradient_accumulation_steps = settings.n_micro_batches
    wrapped, optimizer = trainer.accelerator.prepare(trainer.model, trainer.create_optimizer())
    tokens, _ = random_batch(size, settings, device)
    batch = {"input_ids": tokens, "labels": tokens}

    def step(clock: PhaseClock) -> float:
        trainer.clock = clock
        loss = torch.zeros(())
        for index in range(settings.n_micro_batches):
            is_last = index == settings.n_micro_batches - 1
            with contextlib.nullcontext() if is_last else trainer.accelerator.no_sync(wrapped):
                clock.mark("forward")
                loss = trainer.training_step(wrapped, dict(batch))
        clock.mark("optimizer")
        trainer.accelerator.clip_grad_norm_(wrapped.parameters(), arguments.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss) if device.type == "cpu" else 0.0

    return Trainer(step=step)


def _megatron_groups(device: torch.device, **degrees: int) -> None:
    from megatron.core import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**degrees, create_gloo_process_groups=device.type == "cuda")


class _MegatronBlock(Block):
    """A block whose projections are Megatron's: query, key and value in one split by columns, and so on."""

    def __init__(self, size: GptSize, config: Any, device: torch.device) -> None:
        super().__init__(size.hidden, size.heads)
        from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear

        def split(kind: Any, n_in: int, n_out: int, **how: bool) -> Any:
            made = kind(
                n_in, n_out, config=config, init_method=nn.init.xavier_uniform_, bias=True, skip_bias_add=False, **how
            )
            return made.to(device)

        h = size.hidden
        del self.query, self.key, self.value
        self.qkv = split(ColumnParallelLinear, h, 3 * h, gather_output=False)
        self.out = split(RowParallelLinear, h, h, input_is_parallel=True)
        self.up = split(ColumnParallelLinear, h, 4 * h, gather_output=False)
        self.down = split(RowParallelLinear, 4 * h, h, input_is_parallel=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then transform every token."""
        heads = self.qkv(self.norm1(x))[0].unflatten(-1, (-1, 3 * self.head_dim)).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=-1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))[0]
        inner = functional.gelu(self.up(self.norm2(x))[0], approximate="tanh")
        result: torch.Tensor = x + self.down(inner)[0]
        return result


def _megatron_tp(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """Megatron-Core's split projections: one all-reduce after attention and one after the MLP, in each direction."""
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    from megatron.core.transformer.transformer_config import TransformerConfig

    n_ranks = dist.get_world_size()
    _megatron_groups(device, tensor_model_parallel_size=n_ranks)
    if device.type == "cuda":
        model_parallel_cuda_manual_seed(0)
    model = build_model(size, settings, device)
    dtype = next(model.parameters()).dtype
    config = TransformerConfig(
        num_layers=size.layers, hidden_size=size.hidden, num_attention_heads=size.heads, params_dtype=dtype,
        tensor_model_parallel_size=n_ranks, use_cpu_initialization=True, gradient_accumulation_fusion=False,
    )  # fmt: skip
    for index in range(1, size.layers + 1):
        model[index] = _MegatronBlock(size, config, device).to(device, dtype)
    return replicated(size, settings, device, model, torch.optim.AdamW(model.parameters(), LEARNING_RATE))


class _Stage(nn.Module):
    """A pipeline stage as Megatron's schedules drive it: they hand it what arrived."""

    def __init__(self, layers: nn.Sequential, config: Any) -> None:
        super().__init__()
        from megatron.core.enums import ModelType

        self.layers, self.config, self.model_type = layers, config, ModelType.encoder_or_decoder
        self.arrived: torch.Tensor | None = None

    def set_input_tensor(self, arrived: Any) -> None:
        """Take what the stage before sent; None on the first."""
        self.arrived = arrived[0] if isinstance(arrived, list) else arrived

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Run the stage; messages are ``[seq, batch, hidden]`` as in Megatron."""
        result: torch.Tensor = self.layers(tokens if self.arrived is None else self.arrived.transpose(0, 1))
        return result


class _OnProcessors(TorchFunctionMode):
    """Makes on processors what Megatron-Core's schedules make on ``cuda`` by name."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call with the processor as the device."""
        named = dict(kwargs or {})
        if named.get("device") == "cuda":
            named["device"] = "cpu"
        return func(*args, **named)


@contextlib.contextmanager
def _messages_on(device: torch.device) -> Iterator[None]:
    """Where there is no GPU, answer Megatron-Core, which asks CUDA where messages go, with the processor."""
    if device.type == "cuda":
        yield
        return
    with mock.patch.object(torch.cuda, "current_device", return_value=device), _OnProcessors():
        yield


def _megatron_pp(size: GptSize, settings: Settings, device: torch.device) -> Trainer:
    """One stage per rank under Megatron-Core's 1F1B."""
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer.transformer_config import TransformerConfig

    rank, n_ranks = dist.get_rank(), dist.get_world_size()
    _megatron_groups(device, pipeline_model_parallel_size=n_ranks)
    whole = build_model(size, settings, device, tied=False)
    dtype = next(whole.parameters()).dtype
    config = TransformerConfig(
        num_layers=size.layers, hidden_size=size.hidden, num_attention_heads=size.heads, pipeline_dtype=dtype,
        pipeline_model_parallel_size=n_ranks, batch_p2p_comm=device.type == "cuda",
    )  # fmt: skip
    stage = _Stage(stage_of(whole, rank, n_ranks), config)
    optimizer = torch.optim.AdamW(stage.parameters(), LEARNING_RATE)
    tokens, targets = random_batch(size, settings, device)

    def forward(
        _: Any, model: _Stage
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], tuple[torch.Tensor, dict[str, Any]]]]:
        out = model(tokens)
        sent = out if rank == n_ranks - 1 else out.transpose(0, 1).contiguous()
        return sent, lambda logits: (loss_of(logits, targets), {})

    def step(clock: PhaseClock) -> None:
        optimizer.zero_grad(set_to_none=True)
        clock.mark("pipeline")
        with _messages_on(device):
            get_forward_backward_func()(
                forward_step_func=forward, data_iterator=None, model=stage, num_microbatches=settings.n_micro_batches,
                seq_length=size.seq_len, micro_batch_size=settings.micro_batch, forward_only=False,
            )  # fmt: skip
        clock.mark("optimizer")
        optimizer.step()

    return Trainer(step=step)


#: job -> builder
INSTALLED: dict[str, Callable[[GptSize, Settings, torch.device], Trainer]] = {
    **dict.fromkeys(("deepspeed-zero1", "deepspeed-zero2", "deepspeed-zero3"), _deepspeed),
    "megatron-tp": _megatron_tp,
    "megatron-pp": _megatron_pp,
    "hf-trainer": _hf_trainer,
}
