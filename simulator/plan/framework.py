"""How training frameworks differ: the facts of each, declared once; code asks for a fact and never for a name.

A framework is one entry of :data:`FRAMEWORKS`: a style of kernels, an implementation of data parallelism, and what it does
by default.

References
----------
PyTorch, ``torch/nn/parallel/distributed.py`` and ``torch/distributed/fsdp``; DeepSpeed, ``runtime/zero``; Megatron-LM,
``core/distributed``. What was read where is written down in ``docs/frameworks.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero3Limits:
    """How far ZeRO-3 of DeepSpeed gathers ahead and keeps what it gathered, in elements; the defaults are DeepSpeed's."""

    prefetch_elements: int = 50_000_000  #: ``stage3_prefetch_bucket_size``: what is gathered ahead.
    persistence_elements: int = 100_000  #: ``stage3_param_persistence_threshold``: smaller tensors stay whole.
    max_live_elements: int = 1_000_000_000  #: ``stage3_max_live_parameters``: nothing is prefetched beyond it.
    #: ``stage3_max_reuse_distance``: a gathered tensor that is not used again within so many elements is released.
    max_reuse_elements: int = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DataParallelism:
    """Facts of an implementation of data parallelism."""

    #: What it can shard, without a pipeline and with one.
    shardings: tuple[str, ...] = ("none",)
    pipeline_shardings: tuple[str, ...] = ("none",)
    #: The shardings under which parameters are gathered unit by unit.
    gathers_units: tuple[str, ...] = ("zero3", "hsdp")
    #: What is gathered at a time: a transformer ``block``, or every ``tensor`` by itself.
    units: Literal["block", "tensor"] = "block"
    #: Whether it runs beside tensor and pipeline parallelism.
    splits_models: bool = True
    #: Default size of a gradient bucket, and of the first one.
    bucket_bytes: int | None = None
    first_bucket_bytes: int | None = None
    #: The same in elements, the larger of both, where the size is not given in bytes.
    bucket_elements: int = 0
    bucket_elements_per_rank: int = 0
    #: Whether everything is one bucket where reduction does not overlap backward.
    buckets_whole_without_overlap: bool = False
    #: Whether a bucket is a buffer of its own, and a second one where reduction overlaps.
    holds_buckets: bool = False
    #: Whether gradients are copied into buckets and back unless they live there.
    copies_into_buckets: bool = False
    #: Whether gradients kept in 16 bits are reduced in fp32: flattened, divided by the number of ranks and cast, bucket by
    #: bucket, and the way back after it.
    reduces_wide: bool = False
    #: Whether a communication hook may compress gradients.
    has_hooks: bool = False
    #: Whether a sharded optimizer's gradients are reduce-scattered by default, instead of all-reduced.
    scatters_gradients: bool = False
    #: Whether ZeRO-1 and -2 can reduce every owner's part to it.
    reduces_to_owners: bool = False
    #: Whether updated parameters that are gathered beside the next forward come bucket by bucket.
    gathers_by_bucket: bool = False
    #: Whether gathered parameters are copied out of the flat buffer into tensors of their own.
    copies_gathered: bool = True
    #: Gathered units that are freed before the host waits for one of them (``_max_num_inflight_all_gathers`` of FSDP's wrapper);
    #: 0 where streams wait instead.
    gathers_in_flight: int = 0
    #: Whether the last unit stays gathered from its forward to its backward, which follows at once.
    keeps_last_unit: bool = False
    #: Whether prefetching is a matter of the order in which gathers are issued (``backward_prefetch`` and its like).
    orders_gathers: bool = False
    #: Whether under a pipeline the first forward gathers for the whole step and the last backward reduces its sum
    #: (``torch.distributed.pipelining``, ``backward_maybe_with_nosync``; torchtitan does not reshard after forward
    #: then).
    once_under_pipelines: bool = False
    #: Whether the sum of gradients is sharded there, too.
    sums_shards: bool = False
    #: How far gathers run ahead where that is a matter of elements.
    zero3_limits: Zero3Limits | None = None
    #: Whether every tensor is gathered into a list of views, and scattered out of one, which PyTorch copies one by one, after
    #: the host has waited for the device (DeepSpeed 0.3, ``partition_parameters.py``, ``_allgather_param``).
    moves_lists: bool = False
    #: Whether its buffers of parameters and gradients may be registered with NCCL (Megatron-Core's ``nccl_ub``).
    registers_buffers: bool = False
    #: Whether a file of its own says what it does: DeepSpeed's ``ds_config.json``.
    has_config: bool = False
    #: Version of PyTorch's FSDP that it is: 1 for the wrapper, 2 for ``fully_shard``; 0 where it is none.
    fsdp_version: Literal[0, 1, 2] = 0
    #: Whether it can send parameters and gradients quantised (ZeRO++).
    quantizes: bool = False
    #: Whether ``zero_grad`` frees gradients, so that they appear during backward.
    frees_gradients: bool = False
    #: Whether adding a 16-bit gradient to the fp32 sum also clears it.
    clears_gradients: bool = False
    #: Whether clipping reads all reduced gradients in a kernel of its own.
    clips_in_kernel: bool = True
    #: Whether its shards are the fp32 master weights themselves.
    shards_masters: bool = False
    #: Whether it has a sharded optimizer, which may then live on the host.
    shards_optimizer: bool = True

    def bucket_sizes(self, element_bytes: int, n_ranks: int, *, overlaps: bool) -> tuple[float, float]:
        """Return the default bytes of the first gradient bucket and of the others."""
        if self.buckets_whole_without_overlap and not overlaps:
            return inf, inf
        if self.bucket_bytes is not None:
            return self.first_bucket_bytes or self.bucket_bytes, self.bucket_bytes
        n_bytes = max(self.bucket_elements, self.bucket_elements_per_rank * n_ranks) * element_bytes
        return n_bytes, n_bytes


#: ``DistributedDataParallel``: ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb``
DDP = DataParallelism(
    splits_models=False,
    bucket_bytes=25 * MIB,
    first_bucket_bytes=MIB,
    copies_into_buckets=True,
    has_hooks=True,
    frees_gradients=True,
    clips_in_kernel=False,
    shards_optimizer=False,
)
#: sharding in the words of Megatron-FSDP (``data_parallel_sharding_strategy``) -> ours
MEGATRON_FSDP = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
#: what people call shardings -> ours: stages of ZeRO, PyTorch's ``ShardingStrategy``, Megatron's own words, MiCS (sharding in groups)
SHARDING_NAMES = {
    **{f"zero{mark}{stage}": ours for mark in "-_ " for stage, ours in enumerate(("none", "zero1", "zero2", "zero3"))},
    **{"0": "none", "1": "zero1", "2": "zero2", "3": "zero3", "zero0": "none", "ddp": "none"},
    **{
        "fsdp": "zero3",
        "fsdp2": "zero3",
        "full_shard": "zero3",
        "shard_grad_op": "zero2",
        "hybrid_shard": "hsdp",
        "mics": "hsdp",
    },
    **{"distributed_optimizer": "zero1", "distributed optimizer": "zero1"},
    **MEGATRON_FSDP,
}
#: Megatron's: ``bucket_size = max(40000000, 1000000 * dp)``; it refuses FSDP together with a pipeline
MEGATRON = DataParallelism(
    shardings=("none", "zero1", "zero3"),
    pipeline_shardings=("none", "zero1"),
    bucket_elements=40_000_000,
    bucket_elements_per_rank=1_000_000,
    buckets_whole_without_overlap=True,
    scatters_gradients=True,
    gathers_by_bucket=True,
)
#: Megatron-Core's, whose FSDP may shard gradients and leave parameters whole (``optim_grads``)
MEGATRON_CORE = replace(
    MEGATRON,
    shardings=("none", "zero1", "zero2", "zero3"),
    registers_buffers=True,
)
#: DeepSpeed's: ``reduce_bucket_size``; its pipeline engine refuses ZeRO-2 and ZeRO-3
DEEPSPEED = DataParallelism(
    shardings=("none", "zero1", "zero2", "zero3"),
    pipeline_shardings=("none", "zero1"),
    has_config=True,
    units="tensor",
    bucket_elements=500_000_000,
    holds_buckets=True,
    reduces_to_owners=True,
    zero3_limits=Zero3Limits(),
    quantizes=True,
    clears_gradients=True,
)
#: InternEvo's: ``reduce_bucket_size``
INTERNEVO = replace(MEGATRON, bucket_bytes=512 * MIB, scatters_gradients=False, gathers_by_bucket=False)
#: Nanotron's: DDP's buckets, whose hook reduces the fp32 sums, with ZeRO-1 to their owners
NANOTRON = replace(MEGATRON, bucket_bytes=25 * MIB, first_bucket_bytes=MIB, gathers_by_bucket=False)
#: Aleph Alpha's: ``allreduce_bucket_size`` elements at a time, summed in fp32 after backward (Aleph-Alpha/scaling,
#: ``core/optimizer/allreduce.py``); every rank then steps its shard
SCALING = replace(
    MEGATRON,
    shardings=("none", "zero1"),
    bucket_elements=500_000_000,
    bucket_elements_per_rank=0,
    buckets_whole_without_overlap=False,
    scatters_gradients=False,
    gathers_by_bucket=False,
    reduces_wide=True,
)
#: the wrapper, ``FullyShardedDataParallel``
FSDP = DataParallelism(
    fsdp_version=1,
    shardings=("none", "zero2", "zero3", "hsdp"),
    pipeline_shardings=("none", "zero2", "zero3", "hsdp"),
    gathers_units=("zero2", "zero3", "hsdp"),
    bucket_bytes=25 * MIB,
    first_bucket_bytes=MIB,
    scatters_gradients=True,
    copies_gathered=False,
    gathers_in_flight=2,
    orders_gathers=True,
    shards_masters=True,
)
#: what trainers over either set: ``ShardingStrategy.FULL_SHARD``, ``reshard_after_forward``, ``data_parallel_shard_degree = -1``
FULLY_SHARDED = {"sharding": "zero3"}
#: ``fully_shard``, which copies what it gathered into tensors of their own
FSDP2 = replace(FSDP, fsdp_version=2, copies_gathered=True, gathers_in_flight=0, once_under_pipelines=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something that a framework's recipes turn on from a release on."""

    since: str  #: The first container that has it.
    precisions: tuple[str, ...]  #: Precisions whose recipes have it.
    settings: Mapping[str, Any] = field(hash=False)  #: What it means in a plan.

    def is_on(self, settings: Mapping[str, Any]) -> bool:
        """Tell whether it belongs to a plan of these settings."""
        release, has_experts = str(settings.get("release") or ""), int(settings.get("ep") or 1) > 1
        return has_experts and release >= self.since and settings.get("precision") in self.precisions


#: Megatron Bridge 26.06 (recipes under src/megatron/bridge/perf_recipes): grouped products fused with their activation, and whole
#: iterations as one graph over experts with paged buffers, attention in eight bits, for mixtures of experts in MXFP8
_FUSED_EXPERTS = Feature(
    since="26.06",
    precisions=("mxfp8",),
    settings={"moe_fused_experts": True, "cuda_graphs": "full_iteration", "fp8_modules": "attention"},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How one training framework turns a model into kernels and collectives."""

    name: str
    #: Style of the operator stream: ``hf-eager`` (unfused Hugging Face), ``torch-modules`` (the same with gathered
    #: logits), ``eager-fused-norm`` (with fused norms too), ``megatron`` (fused bias, dropout, softmax and norm
    #: kernels), ``compiled`` (torch.compile), ``fused`` (Transformer Engine), ``hand-written`` (llm.c).
    kernels: Literal["hf-eager", "torch-modules", "eager-fused-norm", "megatron", "compiled", "fused", "hand-written"]
    #: Who reduces gradients and shards states.
    data_parallel: DataParallelism
    #: How the host issues kernels: ``eager``, ``compiled``, ``graphs``.
    host: Literal["eager", "compiled", "graphs"] = "eager"
    #: Of one reduced gradient element, as the framework's usual recipes set it.
    gradient_bytes_bf16: int = 2
    gradient_bytes_fp16: int = 2
    #: Whether gradient reduction overlaps backward unless the plan says otherwise.
    overlap: bool = True
    #: Whether pipeline messages block the host (Megatron's ``batch_p2p_sync``).
    synchronous_p2p: bool = True
    #: Whether the optimizer of 16-bit weights keeps fp32 masters and moments, or steps the 16-bit weights themselves.
    master_weights: bool = True
    #: Share of activations and temporaries lost between the allocator's blocks (Guo et al., GMLake, ASPLOS 2024: a few
    #: percent in regular training on one GPU, up to 30 % in distributed training of irregular modules).
    fragmentation: float = 0.03
    #: Whether the interleaved schedule hides its messages instead (Megatron-Core's ``overlap_p2p_comm``, its default
    #: with virtual stages).
    overlaps_interleaved_p2p: bool = False
    #: Whether a pipeline message crosses once per tensor-parallel group, scattered and gathered again: Megatron-LM's
    #: ``scatter_gather_tensors_in_pipeline`` (on until Megatron-Core dropped it), and DeepSpeed's engine (``is_pipe_partitioned``).
    scatters_messages: bool = False
    #: Whether recomputation ends as soon as all that was saved is there again (``early_stop`` of PyTorch's
    #: non-reentrant checkpointing).
    stops_recompute_early: bool = False
    #: Whether blocks are checkpointed outside their FSDP units, so that recomputation gathers a unit and frees it, and backward gathers
    #: it again (huggingface/transformers, ``TrainingArguments``: of ``gradient_checkpointing`` under full sharding, "introduces a
    #: redundant AllGather operation in backward pass").
    gathers_to_recompute: bool = False
    #: How context parallelism exchanges keys and values unless the plan says otherwise.
    cp_comm_type: Literal["p2p", "all_gather", "a2a"] = "p2p"
    #: Which fused attention kernel: ``flash_attention`` (the device's best: cuDNN or FlashAttention 3 on Hopper,
    #: FlashAttention 2 before), ``flash_attention_2``, or ``flash_attention_triton`` (the port of the first one).
    flash: str = "flash_attention"
    #: Whether the step clips gradients by their global norm: a kernel over them, and a sum over model-parallel ranks.
    clips_gradients: bool = True
    #: Whether with a sharded optimizer every rank owns whole tensors and broadcasts them after the step, instead of
    #: gathering equal shards: ``tensors`` one by one (``ZeroRedundancyOptimizer``), ``ranks`` flattened, one broadcast
    #: for each rank (InternEvo's ``HybridZeroOptimizer``), empty not at all.
    owners_broadcast: Literal["", "tensors", "ranks"] = ""
    #: Whether updated parameters are gathered bucket by bucket even where that does not overlap the next forward.
    gathers_buckets: bool = False
    #: Whether under full sharding gradients are reduced in a process group of their own, beside gathers.
    scatters_apart: bool = False
    #: Whether chunks of a pipeline may differ (Megatron-Core's ``pipeline_model_parallel_layout``).
    lays_out_pipelines: bool = False
    #: Whether inputs of single modules may wait in host memory (Megatron-Core's ``--offload-modules``).
    offloads_modules: bool = False
    #: Whether backward of a column-parallel product reduces its input's gradient beside the product of its weight's (Megatron-LM's
    #: ``async_tensor_model_parallel_allreduce``, from 2022 on); it and its forks reduced it behind both before.
    reduces_beside_products: bool = True
    #: Whether what ranks of sequence parallelism exchange is copied by a kernel of its own, from parts that lie rank by rank to parts
    #: that lie along the sequence, and back before a reduction: DTensors ``[batch, sequence, hidden]`` are split along dimension 1,
    #: and collectives along dimension 0 (pytorch/pytorch, ``torch/distributed/_functional_collectives.py``, ``all_gather_tensor``
    #: and ``reduce_scatter_tensor``: ``torch.cat(torch.chunk(...))``). Compiled blocks are not slower for it (torchtitan's runs on 64
    #: and more GPUs without asynchronous tensor parallelism, split=fit).
    copies_sequence: bool = False
    #: Month since which adapters are in fp32 beside 16-bit weights, and what enters and leaves them is cast, empty where they are in 16
    #: bits (huggingface/peft, ``autocast_adapter_dtype``, on by default since 0.11, and ``tuners/lora/layer.py``, ``Linear.forward``).
    wide_adapters_since: str = ""
    #: Month since which rotations and gated activations are one kernel each way, empty where they always were, or ``never``; before it they
    #: are PyTorch's operations one by one (NVIDIA/Megatron-LM, commit 8503f754 of November 2023, "add rope and swiglu fusion").
    gates_fused_since: str = ""
    #: What a pipeline shares out equally instead of blocks: ``parameters`` of all layers, embedding and head among them, or
    #: the ``products`` of blocks and head (embeddings count nothing), each stage going on until it has passed its share; or
    #: ``blocks`` with fewer for the last of four and more stages, which has the head.
    balances: Literal["", "parameters", "products", "blocks"] = ""
    #: The framework that runs the same modules with sharded parameters, where this one cannot.
    sharded_by: str = ""
    #: Whether it refuses experts under tensor parallelism without sequence parallelism (Megatron-LM, ``arguments.py``:
    #: "When using MoE and tensor parallelism, sequence parallelism must be used").
    experts_need_split_tokens: bool = False
    #: Whether every matrix product and attention is a call of a module written in Python, forward and backward
    #: (Transformer Engine), which costs the host far more than a launch.
    calls_modules: bool = False
    #: Whether weights of layers are kept and gathered in eight bits where one scale serves a tensor (``fp8_param_gather``).
    gathers_narrow: bool = False
    #: Whether the routers of its mixtures of experts compute in fp32 (``moe_router_dtype``).
    routes_wide: bool = False
    #: SMs that fused products of experts leave to an exchange of tokens that runs beside them.
    margin_sms: int = 0
    #: What its recipes turn on from some release on.
    features: tuple[Feature, ...] = ()
    #: Settings of a plan that the framework's recipes turn on, where nothing else is said.
    recipe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The same of those that need tensor parallelism.
    parallel_recipe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The same of those that need tensor and expert parallelism.
    expert_recipe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: The same by precision.
    precision_recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    #: The same of those whose tokens HybridEP carries.
    hybrid_recipe: Mapping[str, Any] = field(default_factory=dict, hash=False)
    #: What it splits, of the parts of PyTorch that run one by one: each degree and the sharding have one of their own there.
    splits: Literal["", "batch", "parameters", "tensors", "layers"] = ""
    #: Other names that people type.
    aliases: tuple[str, ...] = ()

    def has_wide_adapters(self, release: str | None) -> bool:
        """Tell whether adapters are in fp32 beside 16-bit weights, at a release."""
        return bool(self.wide_adapters_since) and (release or "99") >= self.wide_adapters_since

    def has_loose_gates(self, release: str | None) -> bool:
        """Tell whether rotations and gated activations run operation by operation, at a release."""
        return (release or "99") < self.gates_fused_since

    def has_early_modules(self, release: str | None) -> bool:
        """Tell whether calls of Transformer Engine cost the host what they did before 2.11: containers before 26.02."""
        return self.calls_modules and (release or "99") < "26.02"

    @staticmethod
    def bias_summing(release: str | None) -> float:
        """By what share of its time a fused product of experts sums the gradient of a bias in its epilogue.

        References
        ----------
        NVIDIA/cudnn-frontend, issue 256 and pull request 322: 139.0 us without the sums, 155.6 with them, and 1,362.8 in its versions
        1.24 and 1.25, which container 26.06.01 has.
        """
        return (1362.8 if release == "26.06.01" else 155.6) / 139.0 - 1.0

    def defaults(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the framework's recipes set beside ``settings``, which win; one replica on as many ranks has nothing to shard."""
        is_split, has_experts = (int(settings.get(axis) or 1) > 1 for axis in ("tp", "ep"))
        found = {**self.recipe, **(self.parallel_recipe if is_split else {})}
        if settings.get("gpus") == int(settings.get("tp") or 1) * int(settings.get("pp") or 1):
            found.pop("sharding", None)
        found |= self.expert_recipe if is_split and has_experts else {}
        found |= self.precision_recipes.get(settings.get("precision", "bf16"), {})
        found |= self.hybrid_recipe if settings.get("moe_dispatcher") == "hybridep" else {}
        for feature in self.features:
            found |= feature.settings if feature.is_on(settings) else {}
        return {key: value for key, value in found.items() if key not in settings}


#: month in which Megatron came to fuse rotations and gated activations
_MEGATRON_GATES = "23.11"
#: month of PEFT 0.11
_PEFT_0_11 = "24.05"
#: PyTorch's own parts run one by one, as this project's jobs do
_TORCH_DDP = Framework(
    name="torch-ddp",
    splits="batch",
    kernels="hf-eager",
    data_parallel=DDP,
    master_weights=False,
    clips_gradients=False,
    owners_broadcast="tensors",
)

FRAMEWORKS: dict[str, Framework] = {
    f.name: f
    for f in (
        *(
            # Hugging Face's Trainer, as its models are or with Liger's fused norms, rotations, gates and loss (linkedin/Liger-Kernel,
            # ``monkey_patch.py``), by itself, under FSDP, whose shards Accelerate keeps in fp32, and under DeepSpeed
            entry
            for kernels, plain, under in (("hf-eager", "hf-eager", ""), ("compiled", "hf-liger", "-liger"))
            for entry in (
                Framework(
                    name=plain,
                    kernels=kernels,  # type: ignore[arg-type]
                    data_parallel=DDP,
                    master_weights=False,
                    wide_adapters_since=_PEFT_0_11,
                    sharded_by=f"hf-fsdp{under}",
                ),
                Framework(
                    name=f"hf-fsdp{under}",
                    kernels=kernels,  # type: ignore[arg-type]
                    data_parallel=FSDP,
                    recipe=FULLY_SHARDED,
                    gathers_to_recompute=True,
                    flash="flash_attention_2",
                    wide_adapters_since=_PEFT_0_11,
                ),
                Framework(
                    name=f"deepspeed{under}",
                    kernels=kernels,  # type: ignore[arg-type]
                    data_parallel=DEEPSPEED,
                    cp_comm_type="a2a",  # its engine casts all modules to 16 bits, adapters too (runtime/engine.py)
                ),
            )
        ),
        *(
            Framework(
                name=name,
                kernels="megatron",
                data_parallel=MEGATRON,
                gradient_bytes_bf16=4,
                experts_need_split_tokens=True,
                overlap=False,
                scatters_messages=True,
                reduces_beside_products=beside,
                gates_fused_since=_MEGATRON_GATES,
            )
            for name, beside in (("megatron", True), ("megatron-2021", False))
        ),
        Framework(
            name="megatron-core",
            kernels="fused",
            data_parallel=MEGATRON_CORE,
            gates_fused_since=_MEGATRON_GATES,
            gradient_bytes_bf16=4,
            overlaps_interleaved_p2p=True,
            lays_out_pipelines=True,
            offloads_modules=True,
            experts_need_split_tokens=True,
            calls_modules=True,
            aliases=("primus",),
        ),
        Framework(
            # NVIDIA's recipes (NeMo, Megatron Bridge: scripts/performance/configs): distributed optimizer with both of its
            # overlaps, sequence parallelism and Transformer Engine's user buffers
            # wherever tensors are split, gradients reduced in 16 bits (grad_reduce_in_fp32=False)
            name="megatron-bridge",
            kernels="fused",
            data_parallel=MEGATRON_CORE,
            overlaps_interleaved_p2p=True,
            lays_out_pipelines=True,
            offloads_modules=True,
            experts_need_split_tokens=True,
            calls_modules=True,
            gathers_narrow=True,  # all mixed-precision recipes of Megatron Bridge with delayed or current scaling
            routes_wide=True,  # providers of DeepSeek, Qwen3, Nemotron-H, OLMoE and others (src/megatron/bridge/models)
            margin_sms=16,  # CUDNNFE_CLUSTER_OVERLAP_MARGIN=8 clusters of two SMs (perf_plugins.py from 26.06 on)
            features=(_FUSED_EXPERTS,),
            recipe={"sharding": "zero1", "overlap": True, "overlap_parameter_gather": True},
            parallel_recipe={"sequence_parallel": True, "asynchronous_tp": True},
            # of mixtures: expert_tensor_parallel_size=1, experts lie over the tensor-parallel ranks, too
            expert_recipe={"etp": 1},
            # with bf16 the precision-aware optimizer, whose fused Adam keeps of a master weight what the weight lacks; and
            # allocator segments that expand (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), between which nothing is lost
            # (in NVFP4 no user buffers: tp_comm_overlap = False if precision == "nvfp4")
            precision_recipes={"bf16": {"master_bytes": 2}, "nvfp4": {"asynchronous_tp": False}},
            hybrid_recipe={"moe_dispatcher_sms": 32},  # moe_hybridep_num_sms of all performance recipes since 25.11
            fragmentation=0.0,
            aliases=("nemo",),
        ),
        Framework(
            name="megatron-deepspeed",
            kernels="megatron",
            data_parallel=DEEPSPEED,
            gates_fused_since="never",  # both forks left Megatron-LM before (``megatron/model/transformer.py``)
            gradient_bytes_bf16=4,
            overlap=False,
            scatters_messages=True,
            reduces_beside_products=False,  # mpu/layers.py of both forks; deepspeedai/Megatron-DeepSpeed, issue 447
            aliases=("gpt-neox",),
        ),
        Framework(
            # the first ZeRO-3, below Megatron-LM's modules: tensor by tensor, nothing beside compute
            name="deepspeed-0.3",
            kernels="megatron",
            data_parallel=replace(DEEPSPEED, moves_lists=True, bucket_elements=1),
            overlap=False,
            reduces_beside_products=False,
        ),
        Framework(
            name="fsdp",
            kernels="hf-eager",
            data_parallel=FSDP,
            recipe=FULLY_SHARDED,
            stops_recompute_early=True,
            flash="flash_attention_2",
            aliases=("olmo",),
        ),
        Framework(
            name="fsdp2",
            kernels="hf-eager",
            data_parallel=FSDP2,
            recipe=FULLY_SHARDED,
            stops_recompute_early=True,
            flash="flash_attention_2",
            copies_sequence=True,
            aliases=("torchtune",),
        ),
        Framework(
            name="llm-foundry",
            kernels="hf-eager",
            data_parallel=FSDP,
            recipe=FULLY_SHARDED,
            stops_recompute_early=True,
            flash="flash_attention_triton",
            aliases=("composer",),
        ),
        Framework(
            name="torchtitan",
            kernels="hf-eager",
            data_parallel=FSDP2,
            recipe=FULLY_SHARDED,
            parallel_recipe={
                "sequence_parallel": True
            },  # ``SequenceParallel`` of the norms (parallelize.py of its models)
            gradient_bytes_bf16=4,
            stops_recompute_early=True,
            cp_comm_type="all_gather",
            flash="flash_attention_2",
            copies_sequence=True,
        ),
        Framework(
            name="torchtitan-compile",
            kernels="compiled",
            data_parallel=FSDP2,
            recipe=FULLY_SHARDED,
            parallel_recipe={
                "sequence_parallel": True
            },  # ``SequenceParallel`` of the norms (parallelize.py of its models)
            host="compiled",
            gradient_bytes_bf16=4,
            stops_recompute_early=True,
            cp_comm_type="all_gather",
            flash="flash_attention_2",
            aliases=("olmo-core",),
        ),
        Framework(
            # Llama 3 (arXiv:2407.21783, section 3.3.2): FSDP whose parameters stay gathered, fp32 gradients in shards, interleaved
            # pipeline with asynchronous messages, context parallelism by all-gather, no activation checkpointing
            name="llama3-4d",
            kernels="fused",
            data_parallel=replace(FSDP2, sums_shards=True),
            gradient_bytes_bf16=4,
            overlaps_interleaved_p2p=True,
            cp_comm_type="all_gather",
            recipe={"sharding": "zero3", "overlap": True},
            parallel_recipe={"sequence_parallel": True},
        ),
        *(
            # NVIDIA-NeMo/Automodel, examples/benchmark/configs: models in bf16 under fully_shard, those of Hugging Face, as they are
            # or with Liger's fused norms, rotations and activations (``use_liger_kernel``, on by default but under tensor or context
            # parallelism), or its own ones of Transformer Engine's modules; torch.optim.Adam steps the 16-bit weights themselves
            Framework(
                name=name,
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=replace(FSDP2, shards_masters=False),
                recipe=FULLY_SHARDED,
                stops_recompute_early=True,
                lays_out_pipelines=True,
                synchronous_p2p=False,  # ``torch.distributed.pipelining`` waits for messages on streams
                master_weights=False,
                clips_gradients=False,
                flash=flash,
                calls_modules=kernels == "fused",
                aliases=(f"nemo-{name}",),
            )
            for name, kernels, flash in (
                ("automodel", "hf-eager", "flash_attention_2"),
                ("automodel-liger", "compiled", "flash_attention_2"),
                ("automodel-te", "fused", "flash_attention"),
            )
        ),
        _TORCH_DDP,
        Framework(
            name="torch-fsdp2",
            splits="parameters",
            kernels="hf-eager",
            data_parallel=FSDP2,
            recipe=FULLY_SHARDED,
            stops_recompute_early=True,
            flash="flash_attention_2",
            clips_gradients=False,
        ),
        replace(_TORCH_DDP, name="torch-tp", splits="tensors", kernels="torch-modules", owners_broadcast=""),
        replace(_TORCH_DDP, name="torch-pp", splits="layers", owners_broadcast=""),
        Framework(name="torch-3d", kernels="torch-modules", data_parallel=MEGATRON, overlap=False, fragmentation=0.3),
        Framework(
            name="torch-3d-fused-norm",
            kernels="eager-fused-norm",
            data_parallel=MEGATRON,
            overlap=False,
            fragmentation=0.3,
        ),
        *(
            # Aleph Alpha's Scaling (Aleph-Alpha/scaling): its own modules, ``pipe_partition_method: balanced``
            Framework(
                name=name,
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=SCALING,
                overlap=False,
                fragmentation=0.3,
                balances="parameters",
            )
            for name, kernels in (("scaling", "torch-modules"), ("scaling-fused-norm", "eager-fused-norm"))
        ),
        Framework(
            # InternEvo (HybridZeroOptimizer): eager modules with FlashAttention's fused norms, 16-bit gradients reduced in
            # buckets of 512 MB beside backward, every rank's parameters broadcast by it after the step
            name="internevo",
            kernels="eager-fused-norm",
            data_parallel=INTERNEVO,
            flash="flash_attention_2",
            owners_broadcast="ranks",
        ),
        Framework(
            # Nanotron (huggingface/nanotron at 9b0de5be): Triton's norms, FlashAttention's rotation and kernel between
            # transpositions, a compiled gate, Megatron's loss in pieces; hooks of DDP add up and reduce gradients in fp32
            # (``accumulate_grad_in_fp32``); stages by cost (``models/base.py``, ``build_model``); its examples split the sequence
            name="nanotron",
            kernels="megatron",
            data_parallel=NANOTRON,
            gradient_bytes_bf16=4,
            gradient_bytes_fp16=4,
            flash="flash_attention_2",
            balances="products",
            calls_modules=True,
            parallel_recipe={"sequence_parallel": True},
        ),
        Framework(
            # LiBai on OneFlow (Oneflow-Inc/libai, ``models/utils/graph_base.py``, ``layers``): fused kernels for what Megatron-LM
            # fuses, a static graph that the runtime issues; collectives run on the stream that computes wherever tensors or layers
            # are split (``enable_use_compute_stream``), else beside backward in buckets of 16 MB (``nccl_fusion_threshold_mb``)
            name="libai",
            kernels="megatron",
            data_parallel=replace(MEGATRON, bucket_bytes=16 * MIB, gathers_by_bucket=False),
            host="compiled",
            synchronous_p2p=False,
            reduces_beside_products=False,
            balances="blocks",
            parallel_recipe={"overlap": False},
        ),
        Framework(
            # trainers over JAX (MaxText, Paxml, Levanter ...): XLA compiles and schedules the whole step, gathers beside compute,
            # and its attention is cuDNN's (NVIDIA/JAX-Toolbox, docs/GPU_performance.md)
            name="jax",
            kernels="compiled",
            data_parallel=replace(FSDP2, copies_gathered=False),
            host="compiled",
            aliases=("maxtext", "paxml", "levanter", "easylm", "axlearn"),
        ),
        *(
            # trainers built from FlashAttention's modules (Dao-AILab/flash-attention, training/; TinyLlama, pretrain/): fused
            # norms with residual, biases in epilogues, fused rotation, gate and loss, run from Python
            Framework(
                name=name,
                kernels="fused",
                data_parallel=facts,
                recipe=FULLY_SHARDED if facts is FSDP else {},
                flash="flash_attention_2",
                owners_broadcast=owners,  # type: ignore[arg-type]
                sharded_by=sharded_by,
            )
            for name, facts, owners, sharded_by in (
                ("flash-attn", DDP, "tensors", "flash-attn-fsdp"),
                ("flash-attn-fsdp", FSDP, "", ""),
            )
        ),
        Framework(name="apex-ddp", kernels="eager-fused-norm", data_parallel=DDP),
        Framework(name="apex-ddp-fused", kernels="megatron", data_parallel=DDP),
        # torch.optim steps 16-bit weights as they are, compiled or not
        Framework(name="compiled-ddp", kernels="compiled", data_parallel=DDP, host="compiled", master_weights=False),
        Framework(
            name="fused", kernels="hand-written", data_parallel=replace(DDP, copies_into_buckets=False), host="graphs"
        ),
    )
}

#: what people type -> name of the framework
FRAMEWORK_ALIASES = {alias: f.name for f in FRAMEWORKS.values() for alias in f.aliases} | {
    **dict.fromkeys(("ddp", "transformers", "accelerate", "axolotl", "llama-factory"), "hf-eager"),
    "colossal-ai": "torch-3d",
    "deepspeed-ulysses": "deepspeed",
}
