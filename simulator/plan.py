"""The parallel plan: degrees, sharding, schedule, batch, precision, recompute and framework, and whether they multiply up."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from pydantic import Field, create_model

from simulator.config import Spec, did_you_mean, load_yaml, validate
from simulator.errors import ConfigError, InfeasiblePlanError

Sharding = Literal["none", "zero1", "zero2", "zero3", "hsdp"]
Recompute = Literal["none", "selective", "full"]
Attention = Literal["flash", "eager"]
Precision = Literal["fp16", "bf16", "amp_fp16", "amp_bf16", "tf32", "fp32", "fp8"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How one training framework turns a model into kernels and collectives.

    Parameters
    ----------
    kernels : str
        Style of the operator stream: ``hf-eager`` (unfused Hugging Face), ``torch-modules`` (the same with gathered
        logits), ``eager-fused-norm`` (with fused norms too), ``megatron`` (fused bias, dropout, softmax and norm
        kernels), ``compiled`` (torch.compile), ``fused`` (hand-written, llm.c or Transformer Engine style).
    data_parallel : str
        Who reduces gradients: ``ddp``, ``deepspeed``, ``megatron``, ``fsdp`` (the wrapper), ``fsdp2`` (fully_shard).
    host : str
        How the host issues kernels: ``eager``, ``compiled``, ``graphs``.
    gradient_bytes : dict-like tuple
        Bytes of one reduced gradient element per 16-bit precision, as the framework's usual recipes set it.
    overlap : bool
        Whether gradient reduction overlaps backward unless the plan says otherwise.
    master_weights : bool
        Whether the optimizer of 16-bit weights keeps fp32 masters and moments, or steps the 16-bit weights themselves.
    fragmentation : float
        Share of activations and temporaries lost between the allocator's blocks (Guo et al., GMLake, ASPLOS 2024: a few
        percent in regular training on one GPU, up to 30 % in distributed training of irregular modules).
    synchronous_p2p : bool
        Whether pipeline messages block the host (Megatron's ``batch_p2p_sync``).
    overlaps_interleaved_p2p : bool
        Whether the interleaved schedule hides its messages instead (Megatron-Core's ``overlap_p2p_comm``, its default
        with virtual stages).
    flash : str
        Which fused attention kernel: ``flash_attention`` (the device's best: cuDNN or FlashAttention 3 on Hopper,
        FlashAttention 2 before), ``flash_attention_2``, or ``flash_attention_1`` (also its Triton port).
    """

    name: str
    kernels: Literal["hf-eager", "torch-modules", "eager-fused-norm", "megatron", "compiled", "fused"]
    data_parallel: Literal["ddp", "deepspeed", "megatron", "fsdp", "fsdp2"]
    host: Literal["eager", "compiled", "graphs"] = "eager"
    gradient_bytes_bf16: int = 2
    gradient_bytes_fp16: int = 2
    overlap: bool = True
    synchronous_p2p: bool = True
    master_weights: bool = True
    fragmentation: float = 0.03
    overlaps_interleaved_p2p: bool = False
    flash: str = "flash_attention"


FRAMEWORKS: dict[str, Framework] = {
    f.name: f
    for f in (
        Framework(name="hf-eager", kernels="hf-eager", data_parallel="ddp", master_weights=False),
        Framework(
            name="megatron",
            kernels="megatron",
            data_parallel="megatron",
            gradient_bytes_bf16=4,
            overlap=False,
        ),
        Framework(
            name="megatron-core",
            kernels="fused",
            data_parallel="megatron",
            gradient_bytes_bf16=4,
            overlaps_interleaved_p2p=True,
        ),
        Framework(
            name="megatron-deepspeed",
            kernels="megatron",
            data_parallel="deepspeed",
            gradient_bytes_bf16=4,
            overlap=False,
        ),
        Framework(name="deepspeed", kernels="hf-eager", data_parallel="deepspeed"),
        Framework(name="fsdp", kernels="hf-eager", data_parallel="fsdp", flash="flash_attention_2"),
        Framework(name="llm-foundry", kernels="hf-eager", data_parallel="fsdp", flash="flash_attention_1"),
        Framework(
            name="torchtitan",
            kernels="hf-eager",
            data_parallel="fsdp2",
            gradient_bytes_bf16=4,
            flash="flash_attention_2",
        ),
        Framework(
            name="torchtitan-compile",
            kernels="compiled",
            data_parallel="fsdp2",
            host="compiled",
            gradient_bytes_bf16=4,
            flash="flash_attention_2",
        ),
        Framework(name="torch-3d", kernels="torch-modules", data_parallel="megatron", overlap=False, fragmentation=0.3),
        Framework(
            name="torch-3d-fused-norm",
            kernels="eager-fused-norm",
            data_parallel="megatron",
            overlap=False,
            fragmentation=0.3,
        ),
        Framework(name="apex-ddp", kernels="eager-fused-norm", data_parallel="ddp"),
        Framework(name="apex-ddp-fused", kernels="megatron", data_parallel="ddp"),
        Framework(name="compiled-ddp", kernels="compiled", data_parallel="ddp", host="compiled"),
        Framework(name="fused", kernels="fused", data_parallel="ddp", host="graphs"),
    )
}


#: settings that are words, and the words
_CHOICES: dict[str, tuple[str, ...]] = {
    "sharding": get_args(Sharding),
    "recompute": get_args(Recompute),
    "precision": get_args(Precision),
    "attention": get_args(Attention),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Everything the user decides about a run that is neither the model nor the machine.

    ``dp=0`` and ``global_batch=0`` mean "derive"; :meth:`resolve` fills them from the number of GPUs.

    Parameters
    ----------
    dp, tp, pp, virtual_pp, cp, ep : int
        Degrees of data, tensor, pipeline, virtual pipeline (chunks per stage), context and expert parallelism.
    sharding : str
        ``none`` (DDP), ``zero1``, ``zero2``, ``zero3`` (FSDP full shard), ``hsdp`` (full shard within a node).
    sharding_group : int
        Ranks over which sharding splits; 0 means all data-parallel ranks.
    schedule : str
        Name of the pipeline schedule.
    micro_batch, global_batch : int
        Sequences per rank and micro-batch, and per optimizer step. ``micro_batch=0``: the largest that fits.
    sequence_length : int
        Tokens per sequence; 0 means the model's own.
    attention : str
        ``flash`` or ``eager``.
    overlap : bool or None
        Whether communication may run beside compute; None takes the framework's default.
    first_stage_layers, last_stage_layers : int
        Layers on the first and last pipeline stage where they differ; 0 means an even split.
    bucket_bytes : int
        Gradient bucket size; 0 takes the framework's default.
    """

    gpus: int = 0
    dp: int = 0
    tp: int = 1
    pp: int = 1
    virtual_pp: int = 1
    cp: int = 1
    ep: int = 1
    sharding: Sharding = "none"
    sharding_group: int = 0
    schedule: str = "1f1b"
    micro_batch: int = 0
    global_batch: int = 0
    sequence_length: int = 0
    precision: Precision = "bf16"
    recompute: Recompute = "none"
    attention: Attention = "flash"
    sequence_parallel: bool = False
    framework: str = "megatron"
    overlap: bool | None = None
    overlap_parameter_gather: bool = False
    asynchronous_tp: bool = False
    scatter_gather: bool = False
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    bucket_bytes: int = 0
    gradient_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "virtual_pp", "cp", "ep"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: a degree is at least 1")
        for name in ("gpus", "dp", "micro_batch", "global_batch", "sequence_length"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)}: cannot be negative")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise ConfigError(
                    f"{name} '{getattr(self, name)}' is unknown.{did_you_mean(str(getattr(self, name)), known)}",
                    hint=f"one of {', '.join(known)}",
                )
        if self.framework not in FRAMEWORKS:
            raise ConfigError(f"framework '{self.framework}' is unknown", hint=f"one of {', '.join(FRAMEWORKS)}")

    @property
    def framework_spec(self) -> Framework:
        """The entry of :data:`FRAMEWORKS` that the plan names."""
        return FRAMEWORKS[self.framework]

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of the model: tp x pp x cp (experts share the data-parallel ranks)."""
        return self.tp * self.pp * self.cp

    @property
    def n_micro_batches(self) -> int:
        """Micro-batches that one data-parallel replica runs per step."""
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def synchronous_p2p(self) -> bool:
        """Whether pipeline messages block the host and the next pass.

        Only Megatron's and DeepSpeed's own schedules do; the others post their sends and go on.
        """
        framework = self.framework_spec
        hides = framework.overlaps_interleaved_p2p and self.virtual_pp > 1
        is_own = self.schedule in ("gpipe", "1f1b", "1f1b-interleaved", "interlaced")
        return framework.synchronous_p2p and is_own and not hides and self.sharding not in ("zero3", "hsdp")

    @property
    def overlaps(self) -> bool:
        """Whether gradient communication runs beside backward: the plan's word, or the framework's default."""
        return self.framework_spec.overlap if self.overlap is None else self.overlap

    def resolve(self, n_gpus: int) -> ParallelPlan:
        """Fill ``gpus``, ``dp`` and ``global_batch`` and check that the degrees multiply up.

        Raises
        ------
        InfeasiblePlanError
            If they do not; the message names the rule and the numbers.
        """
        gpus = self.gpus or n_gpus
        if gpus > n_gpus:
            raise InfeasiblePlanError(
                f"{gpus} GPUs asked for, the topology has {n_gpus}", hint=f"--gpus {n_gpus} or fewer"
            )
        if gpus % self.model_parallel:
            raise InfeasiblePlanError(
                f"{gpus} GPUs are not a multiple of tp x pp x cp = {self.tp} x {self.pp} x {self.cp} = {self.model_parallel}",
                hint=f"use --gpus {max(1, gpus // self.model_parallel) * self.model_parallel} or other degrees",
            )
        dp = self.dp or gpus // self.model_parallel
        if dp * self.model_parallel != gpus:
            raise InfeasiblePlanError(
                f"dp x tp x pp x cp = {dp} x {self.tp} x {self.pp} x {self.cp} = {dp * self.model_parallel}, but there are {gpus} GPUs",
                hint=f"leave --dp out, or set it to {gpus // self.model_parallel}",
            )
        if (dp * self.cp) % self.ep:
            raise InfeasiblePlanError(
                f"ep={self.ep} does not divide dp x cp = {dp * self.cp}",
                hint="expert parallelism splits data-parallel ranks",
            )
        return replace(self, gpus=gpus, dp=dp)._with_batch()

    def _with_batch(self) -> ParallelPlan:
        if not self.micro_batch:
            return self
        global_batch = self.global_batch or self.micro_batch * self.dp * (1 if self.pp == 1 else 4 * self.pp)
        per_step = self.micro_batch * self.dp
        if global_batch % per_step:
            raise InfeasiblePlanError(
                f"global batch {global_batch} is not a multiple of micro-batch x dp = {self.micro_batch} x {self.dp} = {per_step}",
                hint=f"use --global-batch {max(1, global_batch // per_step) * per_step}",
            )
        return replace(self, global_batch=global_batch)

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, in the keys of plan files."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


def load_plan(path: str | Path) -> dict[str, Any]:
    """Read a plan file: the settings it makes, in the names of :class:`ParallelPlan`.

    Parameters
    ----------
    path : str or Path
        YAML whose keys are those of the command-line flags, with hyphens or underscores.

    Raises
    ------
    ConfigError
        With every fault of the file, its line and near misses.
    """
    data, locator = load_yaml(path)
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: a plan file is a mapping of settings", hint="for example 'tp: 8'")
    spelled = {str(key).replace("-", "_"): str(key) for key in data}
    hints = get_type_hints(ParallelPlan)
    fields_of: dict[str, Any] = {
        f.name: (hints[f.name] | None, Field(default=None, alias=spelled.get(f.name))) for f in fields(ParallelPlan)
    }
    spec = validate(data, create_model("PlanFile", __base__=Spec, **fields_of), locator)
    return dict(spec.model_dump(exclude_unset=True))
