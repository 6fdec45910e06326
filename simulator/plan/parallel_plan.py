"""The parallel plan: degrees, sharding, schedule, batch, precision, recompute and framework, and whether they multiply up."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, Literal

from simulator.errors import InfeasiblePlanError
from simulator.plan.framework import FRAMEWORKS, Framework
from simulator.plan.rules import check_combination, check_values

Sharding = Literal["none", "zero1", "zero2", "zero3", "hsdp"]
Recompute = Literal["none", "selective", "full"]
RecomputeMethod = Literal["uniform", "block"]
Attention = Literal["flash", "eager"]
Precision = Literal["fp16", "bf16", "amp_fp16", "amp_bf16", "tf32", "fp32", "fp8"]
GradientCollective = Literal["auto", "all_reduce", "reduce_scatter", "reduce"]
Compression = Literal["none", "fp16", "bf16"]
Prefetch = Literal["pre", "post", "none"]
Offload = Literal["none", "cpu"]
ContextExchange = Literal["auto", "p2p", "all_gather", "a2a"]
Dispatcher = Literal["alltoall", "allgather", "deepep"]
Host = Literal["auto", "eager", "compiled", "graphs"]


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
    recompute : str
        ``none``, ``selective`` (core attention, or every second matrix product), ``full``.
    recompute_method, recompute_layers : str, int
        Of full recomputation: ``block`` recomputes the first so many blocks of every virtual stage, ``uniform`` keeps one
        input for so many blocks. 0 recomputes every block from an input of its own.
    attention : str
        ``flash`` or ``eager``.
    overlap : bool or None
        Whether communication may run beside compute; None takes the framework's default.
    overlap_p2p : bool or None
        Whether pipeline messages run beside the next pass instead of blocking it; None takes the framework's default, which
        is to hide those of virtual stages in Megatron-Core.
    first_stage_layers, last_stage_layers : int
        Layers on the first and last pipeline stage where they differ; 0 means an even split.
    rank_order : str
        Axes from the nearest ranks to the farthest, as in Megatron-Core: ``tp-cp-ep-dp-pp`` (also DeepSpeed's and
        DeviceMesh's), ``tp-cp-ep-pp-dp`` (``--use-tp-pp-dp-mapping``), any other permutation.
    bucket_bytes : int
        Gradient bucket size; 0 takes the framework's default.
    gradient_bytes : int
        Bytes of one reduced gradient element; 0 takes the framework's default.
    gradient_collective : str
        ``all_reduce``, ``reduce_scatter`` or ``reduce`` (one per owner of a shard); ``auto`` is the framework's own.
    gradient_compression : str
        DDP's communication hook: ``fp16`` or ``bf16`` reduces 16-bit gradients.
    gradient_as_bucket_view : bool
        DDP: gradients live in the buckets instead of being copied there and back.
    backward_prefetch : str
        FSDP: gather the next unit before (``pre``) or after (``post``) the current one's backward, or not ahead.
    forward_prefetch : bool
        FSDP: issue the next unit's gather before the current one's forward rather than behind it.
    limit_all_gathers : bool
        FSDP: the host never runs further ahead than two gathers.
    secondary_group : int
        Full sharding: ranks over which a second copy of the parameters is sharded, in which backward gathers: ZeRO++'s
        ``zero_hpz_partition_size``, FSDP2's integer ``reshard_after_forward``. 0 for none.
    quantized_weights, quantized_gradients : bool
        ZeRO++: gathers in int8, and reductions as int4 all-to-alls in and between nodes.
    prefetch_elements, persistence_elements, max_live_elements, max_reuse_elements : int
        DeepSpeed's ``stage3_prefetch_bucket_size``, ``stage3_param_persistence_threshold``,
        ``stage3_max_live_parameters`` and ``stage3_max_reuse_distance``; -1 takes their defaults.
    offload_optimizer, offload_parameters : str
        ``cpu`` keeps states in host memory and steps them there (ZeRO-Offload), ``none`` on the device.
    cp_comm_type : str
        ``p2p`` (ring attention), ``all_gather`` or ``a2a`` (Ulysses); ``auto`` is the framework's own.
    cp_load_balance : bool
        Whether each rank holds a chunk of the beginning and one of the end, so that a causal mask costs all the same.
    moe_dispatcher : str
        ``alltoall``, ``allgather`` (every rank sees all tokens) or ``deepep`` (one copy of a token per node and rank).
    moe_capacity_factor : float
        Tokens that an expert takes, relative to an even share; more are dropped. 0 for no limit.
    moe_pad_to_capacity : bool
        Whether every expert computes its full capacity.
    moe_imbalance : float
        Tokens of the busiest expert-parallel rank relative to the mean, at least 1.
    moe_fp8_dispatch : bool
        Whether tokens travel to the experts in eight bits.
    moe_shared_expert_overlap : bool
        Whether the shared expert runs beside dispatch and combine.
    host : str
        How kernels are issued: one by one from Python (``eager``), from compiled code (``compiled``), as CUDA graphs
        (``graphs``); ``auto`` is the framework's own. Which kernels there are depends on the framework alone.
    cuda : str
        CUDA release whose matrix libraries run, such as ``12.1``; empty for a current one. It matters on devices whose
        file says how much faster they became (``kernels.gemm.release_efficiency``).
    loader_workers : int
        Processes per GPU that read the next batch beside the step; 0 means that the training process reads it.
    sample_bytes : int
        Read from storage per sequence; 0 means 2 bytes per token, 4 with a vocabulary beyond 65,500.
    sample_time_s : float
        Processor time of a worker per sequence: decoding, augmenting, tokenising.
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
    recompute_method: RecomputeMethod = "uniform"
    recompute_layers: int = 0
    attention: Attention = "flash"
    sequence_parallel: bool = False
    framework: str = "megatron"
    overlap: bool | None = None
    overlap_p2p: bool | None = None
    overlap_parameter_gather: bool = False
    asynchronous_tp: bool = False
    scatter_gather: bool = False
    first_stage_layers: int = 0
    last_stage_layers: int = 0
    rank_order: str = "tp-cp-ep-dp-pp"
    bucket_bytes: int = 0
    gradient_bytes: int = 0
    gradient_collective: GradientCollective = "auto"
    gradient_compression: Compression = "none"
    gradient_as_bucket_view: bool = False
    backward_prefetch: Prefetch = "pre"
    forward_prefetch: bool = False
    limit_all_gathers: bool = True
    secondary_group: int = 0
    quantized_weights: bool = False
    quantized_gradients: bool = False
    prefetch_elements: int = -1
    persistence_elements: int = -1
    max_live_elements: int = -1
    max_reuse_elements: int = -1
    offload_optimizer: Offload = "none"
    offload_parameters: Offload = "none"
    cp_comm_type: ContextExchange = "auto"
    cp_load_balance: bool = True
    moe_dispatcher: Dispatcher = "alltoall"
    moe_capacity_factor: float = 0.0
    moe_pad_to_capacity: bool = False
    moe_imbalance: float = 1.0
    moe_fp8_dispatch: bool = False
    moe_shared_expert_overlap: bool = False
    host: Host = "auto"
    cuda: str = ""
    loader_workers: int = 2
    sample_bytes: int = 0
    sample_time_s: float = 0.0

    def __post_init__(self) -> None:
        check_values(self)

    @property
    def framework_spec(self) -> Framework:
        """The entry of :data:`FRAMEWORKS` that the plan names, with the plan's own way to issue kernels."""
        return FRAMEWORKS[self.framework] if self.host == "auto" else _hosted(self.framework, self.host)

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
        if self.overlap_p2p is not None:
            hides = self.overlap_p2p
        is_own = self.schedule in ("gpipe", "1f1b", "1f1b-interleaved")
        return framework.synchronous_p2p and is_own and not hides and self.sharding not in ("zero3", "hsdp")

    @property
    def context_exchange(self) -> str:
        """How keys and values are exchanged: ``p2p``, ``all_gather`` or ``a2a``; eager attention needs them gathered."""
        if self.cp_comm_type != "auto":
            return self.cp_comm_type
        return self.framework_spec.cp_comm_type if self.attention == "flash" else "all_gather"

    @property
    def reduced_bytes(self) -> int:
        """Bytes of one gradient element as it is reduced."""
        if self.gradient_bytes:
            return self.gradient_bytes
        if self.precision in ("bf16", "fp8"):
            return self.framework_spec.gradient_bytes_bf16
        return self.framework_spec.gradient_bytes_fp16 if self.precision == "fp16" else 4

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are gathered unit by unit: ZeRO-3, FSDP's strategies, HSDP."""
        is_fsdp = self.framework_spec.data_parallel in ("fsdp", "fsdp2")
        return self.sharding in ("zero3", "hsdp") or (self.sharding == "zero2" and is_fsdp)

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
        plan = replace(self, gpus=gpus, dp=dp)._with_batch()
        check_combination(plan)
        return plan

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


@cache
def _hosted(framework: str, host: Literal["eager", "compiled", "graphs"]) -> Framework:
    return replace(FRAMEWORKS[framework], host=host)
