"""How training frameworks differ: the facts of each, declared once; code asks for a fact and never for a name.

A framework is one entry of :data:`FRAMEWORKS`: a style of kernels, an implementation of data parallelism, and what it does
by default.

References
----------
What was read where is written down in ``docs/frameworks.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from simulator.plan import framework_schedules as pipelines
from simulator.plan.data_parallelism import (
    DDP,
    DEEPSPEED,
    FSDP,
    FSDP2,
    FULLY_SHARDED,
    INTERNEVO,
    MEGATRON,
    MEGATRON_2021,
    MEGATRON_CORE,
    MEGATRON_LM,
    MIB,
    NANOTRON,
    SCALING,
    SEPARATELY,
    DataParallelism,
)
from simulator.plan.framework_features import FUSED_EXPERTS, FUSED_PRECISIONS, Feature
from simulator.plan.module_names import COMPILED_GRAPHS, MEGATRON_GRAPHS
from simulator.plan.releases import ReleaseFacts, is_before, is_within
from simulator.plan.vocabularies import ContextExchange, Loss, Optimizer, OptimizerImplementation, Usual

#: How kernels are issued: operation by operation, from compiled code, or as captured graphs.
Host = Literal["eager", "compiled", "graphs"]
#: Style of the operator stream: ``hf-eager`` (unfused Hugging Face), ``torch-modules`` (the same with gathered logits),
#: ``eager-fused-norm`` (with fused norms too), ``megatron`` (fused bias, dropout, softmax and norm kernels), ``compiled``
#: (torch.compile), ``fused`` (Transformer Engine), ``hand-written`` (llm.c).
KernelStyle = Literal["hf-eager", "torch-modules", "eager-fused-norm", "megatron", "compiled", "fused", "hand-written"]
#: shares of memory lost between the allocator's blocks: a few percent in regular training on one GPU, up to 30 % in distributed
#: training of irregular modules (Guo et al., GMLake, ASPLOS 2024)
_REGULAR_FRAGMENTATION, _IRREGULAR_FRAGMENTATION = 0.03, 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """How one training framework turns a model into kernels and collectives."""

    name: str
    kernels: KernelStyle
    #: Who reduces gradients and shards states.
    data_parallel: DataParallelism
    #: How the host issues kernels: ``eager``, ``compiled``, ``graphs``.
    host: Host = "eager"
    #: Of one reduced gradient element, as the framework's usual recipes set it.
    gradient_bytes_bf16: int = 2
    gradient_bytes_fp16: int = 2
    #: Whether gradient reduction overlaps backward unless the plan says otherwise.
    overlap: bool = True
    #: Whether the optimizer of 16-bit weights keeps fp32 masters and moments, or steps the 16-bit weights themselves.
    master_weights: bool = True
    #: Optimizers that it has, as ``optimizer`` names them.
    optimizers: tuple[Optimizer, ...] = ("adam",)
    #: How Adam steps unless the plan says otherwise: ``fused``, in one operation over all tensors; ``foreach``, operation by operation
    #: over all of them, the default of ``torch.optim`` on a GPU; ``for-loop``, tensor by tensor.
    optimizer_implementation: OptimizerImplementation = "fused"
    #: First release whose default is fused.
    fused_since: str = ""
    #: Share of activations and temporaries lost between the allocator's blocks.
    fragmentation: float = _REGULAR_FRAGMENTATION
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
    cp_comm_type: ContextExchange = "p2p"
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
    #: Whether it refuses layers that do not divide over virtual stages, unless a layout says where they lie.
    needs_layouts: bool = False
    #: Pipelines that it has; without schedules where it has none, ``None`` where that is not known.
    pipeline: pipelines.Pipelines | None = None
    #: Schedules that it has for expert parallelism only.
    expert_schedules: tuple[str, ...] = ()
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
    #: Whether products that read one input are parallel modules of their own, each of which reduces its gradient, and where no compiler
    #: finds that they are the same gathers its input, by itself (``torch.distributed.tensor.parallel.ColwiseParallel`` of each, without
    #: a ``PrepareModuleInput`` around them).
    parallel_by_product: bool = False
    #: Over what the loss is: ``gathered`` where a head has ``output_layouts=Replicate()``.
    loss: Loss = "vocabulary"
    #: Month since which adapters are in fp32 beside 16-bit weights, and what enters and leaves them is cast, empty where they are in 16
    #: bits (huggingface/peft, ``autocast_adapter_dtype``, on by default since 0.11, and ``tuners/lora/layer.py``, ``Linear.forward``).
    adapters_fp32_since: str = ""
    #: Month since which rotations and gated activations are one kernel each way, empty where they always were, or ``never``; before it they
    #: are PyTorch's operations one by one (NVIDIA/Megatron-LM, commit 8503f754 of November 2023, "add rope and swiglu fusion").
    rope_and_swiglu_fused_since: str = ""
    #: First container in which a squared ReLU runs operation by operation, and the first in which it no longer does; empty where none
    #: does (NVIDIA/NeMo, ``llm/fn/activation.py``; NeMo 1 compiled it, and Megatron Bridge calls Megatron-Core's, which is fused).
    relu2_unfused_in: tuple[str, str] = ("", "")
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
    router_fp32: bool = False
    #: What it can capture in CUDA graphs in training, as ``cuda_graphs`` names it.
    captures: tuple[str, ...] = ()
    #: Precisions in which one kernel can serve all experts of a rank (``moe_fused_experts``).
    fused_experts: tuple[str, ...] = ()
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
    #: The same by dispatcher of experts.
    dispatcher_recipes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    #: What it splits, of the parts of PyTorch that run one by one: each degree and the sharding have one of their own there.
    splits: Literal["", "batch", "parameters", "tensors", "layers"] = ""
    #: What published runs have where they do not say, beside what its recipes set.
    usual: tuple[Usual, ...] = ()
    #: Other names that people type.
    aliases: tuple[str, ...] = ()

    @property
    def has_fused_layers(self) -> bool:
        """Whether its layers are such as Transformer Engine's, which may fuse operations, or recompute single modules."""
        return self.kernels == "fused"

    @property
    def has_megatron_layers(self) -> bool:
        """Whether its layers are Megatron-LM's, whose own arguments say how they are split."""
        return self.kernels == "megatron"

    @property
    def has_pipeline(self) -> bool:
        """Whether it cuts a model into pipeline stages."""
        return (self.data_parallel.splits_models or self.splits == "layers") and self.pipeline != pipelines.NONE

    @property
    def schedules(self) -> tuple[str, ...]:
        """Pipeline schedules that it is known to have."""
        return self.pipeline.schedules if self.pipeline else ()

    def has_schedule(self, name: str) -> bool:
        """Tell whether it has a pipeline schedule; one that is not known to be anybody's is the user's own, and runs everywhere."""
        had = (*self.schedules, *self.expert_schedules)
        return self.pipeline is None or name in had or name not in known_schedules()

    def at(self, release: str | None) -> ReleaseFacts:
        """Return what it does at a release; one that is not named is the newest."""
        is_fused = bool(self.fused_since) and not is_before(release, self.fused_since)
        return ReleaseFacts.of(
            release,
            calls_modules=self.calls_modules,
            optimizer_implementation="fused" if is_fused else self.optimizer_implementation,
            adapters_fp32=bool(self.adapters_fp32_since) and not is_before(release, self.adapters_fp32_since),
            has_unfused_rope_and_swiglu=is_before(release, self.rope_and_swiglu_fused_since),
            has_unfused_relu2=is_within(release, self.relu2_unfused_in),
        )

    def defaults(self, settings: Mapping[str, Any], *, is_mixture: bool) -> dict[str, Any]:
        """Return what the framework's recipes set beside ``settings``, which win; one replica on as many ranks has nothing to shard."""
        is_split, has_experts = (int(settings.get(axis) or 1) > 1 for axis in ("tp", "ep"))
        found = {**self.recipe, **(self.parallel_recipe if is_split else {})}
        if settings.get("gpus") == int(settings.get("tp") or 1) * int(settings.get("pp") or 1):
            found.pop("sharding", None)
        found |= self.expert_recipe if is_split and has_experts else {}
        found |= self.precision_recipes.get(settings.get("precision", "bf16"), {})
        for feature in self.features:
            found |= feature.settings if feature.is_on(settings, is_mixture=is_mixture) else {}
        found |= self.dispatcher_recipes.get({**found, **settings}.get("moe_dispatcher", ""), {})
        absent = ("master_bytes",) if settings.get("optimizer") == "muon" else ()  # of the precision-aware Adam
        return {key: value for key, value in found.items() if key not in (*settings, *absent)}


#: the first of NeMo 2, and of Megatron Bridge
_NEMO_2 = ("24.09", "25.09")
#: month in which Megatron came to fuse rotations and gated activations
_MEGATRON_GATES = "23.11"
#: month of PEFT 0.11
_PEFT_0_11 = "24.05"
#: and with PyTorch 2.8, from which on the Trainer of Hugging Face takes the fused Adam
_TORCH_2_8 = "25.08"
#: optimizers of Megatron-Core (NVIDIA/Megatron-LM, ``core/optimizer``, ``muon.py``)
_MEGATRON_OPTIMIZERS: tuple[Optimizer, ...] = ("adam", "muon")
_USUAL_OF_CORE: tuple[Usual, ...] = ("flash", "interleaving", "parameter_gather", "padded_vocabulary")
_USUAL_OF_TORCHTITAN: tuple[Usual, ...] = ("flash", "unbalanced_context", "local_batch")
#: PyTorch's own parts run one by one, as this project's jobs do
_TORCH_DDP = Framework(
    name="torch-ddp",
    splits="batch",
    kernels="hf-eager",
    data_parallel=DDP,
    master_weights=False,
    optimizer_implementation="foreach",
    clips_gradients=False,
    owners_broadcast="tensors",
)

FRAMEWORKS: dict[str, Framework] = {
    f.name: f
    for f in (
        *(
            # Hugging Face's Trainer, as its models are or with Liger's fused norms, rotations, gates and loss (linkedin/Liger-Kernel,
            # ``monkey_patch.py``), by itself, under FSDP, whose shards Accelerate keeps in fp32, and under DeepSpeed; its optimizer is
            # ``adamw_torch``, and fused by default since PyTorch 2.8 (``training_args.py``, ``default_optim``)
            entry
            for kernels, plain, under in (("hf-eager", "hf-eager", ""), ("compiled", "hf-liger", "-liger"))
            for entry in (
                Framework(
                    name=plain,
                    kernels=kernels,  # type: ignore[arg-type]
                    data_parallel=DDP,
                    master_weights=False,
                    optimizer_implementation="foreach",
                    fused_since=_TORCH_2_8,
                    adapters_fp32_since=_PEFT_0_11,
                    sharded_by=f"hf-fsdp{under}",
                ),
                Framework(
                    name=f"hf-fsdp{under}",
                    kernels=kernels,  # type: ignore[arg-type]
                    data_parallel=FSDP,
                    pipeline=pipelines.NONE,
                    recipe=FULLY_SHARDED,
                    optimizer_implementation="foreach",
                    fused_since=_TORCH_2_8,
                    gathers_to_recompute=True,
                    flash="flash_attention_2",
                    adapters_fp32_since=_PEFT_0_11,
                ),
                Framework(
                    name=f"deepspeed{under}",
                    kernels=kernels,  # type: ignore[arg-type]
                    data_parallel=DEEPSPEED,
                    pipeline=pipelines.DEEPSPEED,
                    cp_comm_type="a2a",  # adapters are in 16 bits, to which its engine casts all modules (runtime/engine.py)
                ),
            )
        ),
        *(
            Framework(
                name=name,
                kernels="megatron",
                data_parallel=facts,
                pipeline=pipelines.MEGATRON,
                gradient_bytes_bf16=4,
                experts_need_split_tokens=True,
                overlap=False,
                scatters_messages=True,
                reduces_beside_products=beside,
                rope_and_swiglu_fused_since=_MEGATRON_GATES,
                usual=("padded_vocabulary",),
            )
            for name, facts, beside in (("megatron", MEGATRON_LM, True), ("megatron-2021", MEGATRON_2021, False))
        ),
        Framework(
            name="megatron-core",
            kernels="fused",
            data_parallel=MEGATRON_CORE,
            pipeline=pipelines.MEGATRON,
            expert_schedules=pipelines.COMBINED,
            rope_and_swiglu_fused_since=_MEGATRON_GATES,
            gradient_bytes_bf16=4,
            overlaps_interleaved_p2p=True,
            lays_out_pipelines=True,
            needs_layouts=True,
            optimizers=_MEGATRON_OPTIMIZERS,
            offloads_modules=True,
            experts_need_split_tokens=True,
            calls_modules=True,
            captures=MEGATRON_GRAPHS,
            fused_experts=FUSED_PRECISIONS,
            usual=(*_USUAL_OF_CORE, "sequence_parallel"),
            aliases=("primus",),
        ),
        Framework(
            # NVIDIA's recipes (NeMo, Megatron Bridge: scripts/performance/configs): distributed optimizer with both of its
            # overlaps, sequence parallelism and Transformer Engine's user buffers
            # wherever tensors are split, gradients reduced in 16 bits (grad_reduce_in_fp32=False)
            name="megatron-bridge",
            kernels="fused",
            data_parallel=MEGATRON_CORE,
            pipeline=pipelines.MEGATRON,
            expert_schedules=pipelines.COMBINED,
            overlaps_interleaved_p2p=True,
            lays_out_pipelines=True,
            needs_layouts=True,
            optimizers=_MEGATRON_OPTIMIZERS,
            offloads_modules=True,
            experts_need_split_tokens=True,
            calls_modules=True,
            gathers_narrow=True,  # all mixed-precision recipes of Megatron Bridge with delayed or current scaling
            relu2_unfused_in=_NEMO_2,
            router_fp32=True,  # providers of DeepSeek, Qwen3, Nemotron-H, OLMoE and others (src/megatron/bridge/models)
            captures=MEGATRON_GRAPHS,
            fused_experts=FUSED_PRECISIONS,
            margin_sms=16,  # CUDNNFE_CLUSTER_OVERLAP_MARGIN=8 clusters of two SMs (perf_plugins.py from 26.06 on)
            features=(FUSED_EXPERTS,),
            recipe={"sharding": "zero1", "overlap": True, "overlap_parameter_gather": True},
            parallel_recipe={"sequence_parallel": True, "asynchronous_tp": True},
            # of mixtures: expert_tensor_parallel_size=1, experts lie over the tensor-parallel ranks, too
            expert_recipe={"etp": 1},
            # with bf16 the precision-aware optimizer, whose fused Adam keeps of a master weight what the weight lacks; and
            # allocator segments that expand (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), between which nothing is lost
            # (in NVFP4 no user buffers: tp_comm_overlap = False if precision == "nvfp4")
            precision_recipes={"bf16": {"master_bytes": 2}, "nvfp4": {"asynchronous_tp": False}},
            dispatcher_recipes={
                "hybridep": {"moe_dispatcher_sms": 32},  # moe_hybridep_num_sms of all performance recipes since 25.11
            },
            fragmentation=0.0,
            usual=_USUAL_OF_CORE,
            aliases=("nemo",),
        ),
        Framework(
            name="megatron-deepspeed",
            kernels="megatron",
            data_parallel=DEEPSPEED,
            pipeline=pipelines.MEGATRON_DEEPSPEED,
            rope_and_swiglu_fused_since="never",  # both forks left Megatron-LM before (``megatron/model/transformer.py``)
            gradient_bytes_bf16=4,
            overlap=False,
            scatters_messages=True,
            reduces_beside_products=False,  # mpu/layers.py of both forks; deepspeedai/Megatron-DeepSpeed, issue 447
            usual=("padded_vocabulary",),
            aliases=("gpt-neox",),
        ),
        Framework(
            # the first ZeRO-3, below Megatron-LM's modules: tensor by tensor, nothing beside compute
            name="deepspeed-0.3",
            kernels="megatron",
            data_parallel=replace(DEEPSPEED, context_exchanges=(), moves_lists=True, bucket_elements=1),
            pipeline=pipelines.DEEPSPEED,
            overlap=False,
            reduces_beside_products=False,
        ),
        Framework(
            name="fsdp",
            kernels="hf-eager",
            data_parallel=FSDP,
            pipeline=pipelines.TORCH,
            recipe=FULLY_SHARDED,
            optimizer_implementation="foreach",
            stops_recompute_early=True,
            flash="flash_attention_2",
            usual=("flash",),
            aliases=("olmo",),
        ),
        Framework(
            name="fsdp2",
            kernels="hf-eager",
            data_parallel=FSDP2,
            pipeline=pipelines.TORCH,
            recipe=FULLY_SHARDED,
            optimizer_implementation="foreach",
            stops_recompute_early=True,
            flash="flash_attention_2",
            copies_sequence=True,
            aliases=("torchtune",),
        ),
        *(
            # Lightning-AI/litgpt at 26857050 (``litgpt/model.py``, ``pretrain.py``): modules of plain PyTorch with an RMSNorm in fp32,
            # rotation and gate operation by operation, attention and loss PyTorch's; on one GPU, or under Fabric's FSDP over blocks,
            # weights in 16 bits (``bf16-true``) that a fused AdamW steps as they are; ``pretrain.py`` compiles the model
            Framework(
                name=f"litgpt{sharded}{compiled}",
                kernels="compiled" if compiled else "hf-eager",
                data_parallel=facts,
                pipeline=pipelines.NONE,
                host="compiled" if compiled else "eager",
                captures=COMPILED_GRAPHS if compiled else (),
                master_weights=False,
                recipe=FULLY_SHARDED if sharded else {},
                stops_recompute_early=True,
                flash="flash_attention_2",
                sharded_by="" if sharded else f"litgpt-fsdp{compiled}",
            )
            for sharded, facts in (("", DDP), ("-fsdp", replace(FSDP, shards_masters=False, context_exchanges=())))
            for compiled in ("", "-compile")
        ),
        Framework(
            name="llm-foundry",
            kernels="hf-eager",
            data_parallel=FSDP,
            pipeline=pipelines.NONE,
            recipe=FULLY_SHARDED,
            stops_recompute_early=True,
            flash="flash_attention_triton",
            usual=("flash",),
            aliases=("composer",),
        ),
        Framework(
            name="torchtitan",
            kernels="hf-eager",
            data_parallel=FSDP2,
            pipeline=pipelines.TORCH,
            recipe=FULLY_SHARDED,
            parallel_recipe={"sequence_parallel": True},  # of the norms (parallelize.py of its models)
            gradient_bytes_bf16=4,
            stops_recompute_early=True,
            cp_comm_type="all_gather",
            flash="flash_attention_2",
            copies_sequence=True,
            usual=_USUAL_OF_TORCHTITAN,
        ),
        Framework(
            name="torchtitan-compile",
            kernels="compiled",
            data_parallel=FSDP2,
            pipeline=pipelines.TORCH,
            recipe=FULLY_SHARDED,
            parallel_recipe={"sequence_parallel": True},  # of the norms (parallelize.py of its models)
            host="compiled",
            gradient_bytes_bf16=4,
            stops_recompute_early=True,
            cp_comm_type="all_gather",
            flash="flash_attention_2",
            usual=_USUAL_OF_TORCHTITAN,
            aliases=("olmo-core",),
        ),
        *(
            # KempnerInstitute/KempnerForge at 5666d0d1 (``kempnerforge/distributed/tensor_parallel.py``): ``fully_shard`` over blocks whose
            # projections are each parallel by themselves, compiled or not; stages of pipelines and mixtures split no sequence
            Framework(
                name=name,
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=replace(FSDP2, offloads=()),
                pipeline=pipelines.KEMPNERFORGE,
                recipe=FULLY_SHARDED,
                parallel_recipe={"sequence_parallel": True},
                host=host,  # type: ignore[arg-type]
                gradient_bytes_bf16=4,
                stops_recompute_early=True,
                flash="flash_attention_2",
                copies_sequence=host == "eager",
                parallel_by_product=True,
                loss="gathered",
            )
            for name, kernels, host in (
                ("kempnerforge", "hf-eager", "eager"),
                ("kempnerforge-compile", "compiled", "compiled"),
            )
        ),
        Framework(
            # Llama 3 (arXiv:2407.21783, section 3.3.2): FSDP whose parameters stay gathered, fp32 gradients in shards, interleaved
            # pipeline with asynchronous messages, context parallelism by all-gather, no activation checkpointing
            name="llama3-4d",
            kernels="fused",
            data_parallel=replace(FSDP2, sums_shards=True),
            pipeline=pipelines.LLAMA3,
            gradient_bytes_bf16=4,
            overlaps_interleaved_p2p=True,
            cp_comm_type="all_gather",
            recipe={"sharding": "zero3", "overlap": True},
            parallel_recipe={"sequence_parallel": True},
            usual=("flash", "interleaving"),
        ),
        *(
            # NVIDIA-NeMo/Automodel, examples/benchmark/configs: models in bf16 under fully_shard, those of Hugging Face, as they are
            # or with Liger's fused norms, rotations and activations (``use_liger_kernel``, on by default but under tensor or context
            # parallelism), or its own ones of Transformer Engine's modules; torch.optim.Adam steps the 16-bit weights themselves
            Framework(
                name=name,
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=replace(FSDP2, shards_masters=False),
                pipeline=pipelines.TORCH,
                recipe=FULLY_SHARDED,
                stops_recompute_early=True,
                lays_out_pipelines=True,
                master_weights=False,
                optimizer_implementation="foreach",
                clips_gradients=False,
                loss=loss,  # type: ignore[arg-type]
                flash=flash,
                calls_modules=kernels == "fused",
                usual=("flash", "drained_batch"),
                aliases=(f"nemo-{name}",),
            )
            for name, kernels, flash, loss in (  # ``MaskedCrossEntropy``, with ``fp32_upcast: false`` beside Transformer Engine
                ("automodel", "hf-eager", "flash_attention_2", "torch-fp32"),
                ("automodel-liger", "compiled", "flash_attention_2", "torch-fp32"),
                ("automodel-te", "fused", "flash_attention", "torch"),
            )
        ),
        _TORCH_DDP,
        Framework(
            name="torch-fsdp2",
            splits="parameters",
            kernels="hf-eager",
            data_parallel=FSDP2,
            pipeline=pipelines.TORCH,
            recipe=FULLY_SHARDED,
            optimizer_implementation="foreach",
            stops_recompute_early=True,
            flash="flash_attention_2",
            clips_gradients=False,
        ),
        # its tensors are stepped one by one: DTensors and plain ones do not mix in an operation over all (validation/jobs/trainers.py)
        replace(
            _TORCH_DDP,
            name="torch-tp",
            splits="tensors",
            kernels="torch-modules",
            owners_broadcast="",
            optimizer_implementation="for-loop",
        ),
        replace(_TORCH_DDP, name="torch-pp", splits="layers", pipeline=pipelines.TORCH, owners_broadcast=""),
        *(
            Framework(
                name=f"torch-3d{ending}",
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=MEGATRON,
                overlap=False,
                fragmentation=_IRREGULAR_FRAGMENTATION,
            )
            for ending, kernels in (("", "torch-modules"), ("-fused-norm", "eager-fused-norm"))
        ),
        *(
            # Aleph Alpha's Scaling (Aleph-Alpha/scaling): its own modules, ``pipe_partition_method: balanced``
            Framework(
                name=name,
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=SCALING,
                pipeline=pipelines.DEEPSPEED,
                overlap=False,
                fragmentation=_IRREGULAR_FRAGMENTATION,
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
            pipeline=pipelines.INTERNEVO,
            flash="flash_attention_2",
            owners_broadcast="ranks",
            usual=("flash",),
        ),
        Framework(
            # Nanotron (huggingface/nanotron at 9b0de5be): Triton's norms, FlashAttention's rotation and kernel between
            # transpositions, a compiled gate, Megatron's loss in pieces; hooks of DDP add up and reduce gradients in fp32
            # (``accumulate_grad_in_fp32``); stages by cost (``models/base.py``, ``build_model``); its examples split the sequence
            name="nanotron",
            kernels="megatron",
            data_parallel=NANOTRON,
            pipeline=pipelines.NANOTRON,
            gradient_bytes_bf16=4,
            gradient_bytes_fp16=4,
            flash="flash_attention_2",
            balances="products",
            calls_modules=True,
            usual=("flash",),
            parallel_recipe={"sequence_parallel": True},
        ),
        Framework(
            # LiBai on OneFlow (Oneflow-Inc/libai, ``models/utils/graph_base.py``, ``layers``): fused kernels for what Megatron-LM
            # fuses, a static graph that the runtime issues; collectives run on the stream that computes wherever tensors or layers
            # are split (``enable_use_compute_stream``), else beside backward in buckets of 16 MB (``nccl_fusion_threshold_mb``)
            name="libai",
            kernels="megatron",
            data_parallel=replace(MEGATRON, context_exchanges=(), bucket_bytes=16 * MIB, gathers_by_bucket=False),
            pipeline=pipelines.LIBAI,
            host="compiled",
            reduces_beside_products=False,
            balances="blocks",
            parallel_recipe={"overlap": False},
            usual=("padded_vocabulary",),
        ),
        Framework(
            # trainers over JAX (MaxText, Paxml, Levanter ...): XLA compiles and schedules the whole step, gathers beside compute,
            # and its attention is cuDNN's (NVIDIA/JAX-Toolbox, docs/GPU_performance.md)
            name="jax",
            kernels="compiled",
            data_parallel=replace(
                FSDP2, copies_gathered=False, offloads=SEPARATELY
            ),  # MaxText: ``*_memory_host_offload``
            pipeline=pipelines.JAX,
            host="compiled",
            usual=("flash",),
            aliases=("maxtext", "paxml", "levanter", "easylm", "axlearn"),
        ),
        *(
            # trainers built from FlashAttention's modules (Dao-AILab/flash-attention, training/; TinyLlama, pretrain/): fused
            # norms with residual, biases in epilogues, fused rotation, gate and loss, run from Python
            Framework(
                name=name,
                kernels="fused",
                data_parallel=facts,
                pipeline=pipelines.NONE,
                recipe=FULLY_SHARDED if facts is FSDP else {},
                flash="flash_attention_2",
                owners_broadcast=owners,  # type: ignore[arg-type]
                sharded_by=sharded_by,
                usual=("flash",),
            )
            for name, facts, owners, sharded_by in (
                ("flash-attn", DDP, "tensors", "flash-attn-fsdp"),
                ("flash-attn-fsdp", FSDP, "", ""),
            )
        ),
        Framework(name="apex-ddp", kernels="eager-fused-norm", data_parallel=DDP),
        Framework(name="apex-ddp-fused", kernels="megatron", data_parallel=DDP),
        # torch.optim steps 16-bit weights as they are, compiled or not
        Framework(
            name="compiled-ddp",
            kernels="compiled",
            data_parallel=DDP,
            host="compiled",
            captures=COMPILED_GRAPHS,
            master_weights=False,
        ),
        Framework(
            name="fused",
            kernels="hand-written",
            data_parallel=replace(DDP, copies_into_buckets=False),
            host="graphs",
            usual=("flash",),
        ),
    )
}


def known_schedules() -> frozenset[str]:
    """Return the pipeline schedules of which it is known who has them."""
    had = ((*one.schedules, *one.expert_schedules) for one in FRAMEWORKS.values())
    return frozenset(pipelines.OTHER_PROGRAMS).union(*had)


#: what people type -> name of the framework
FRAMEWORK_ALIASES = {alias: f.name for f in FRAMEWORKS.values() for alias in f.aliases} | {
    **dict.fromkeys(("ddp", "transformers", "accelerate", "axolotl", "llama-factory"), "hf-eager"),
    "colossal-ai": "torch-3d",
    "deepspeed-ulysses": "deepspeed",
}


@cache  # every setting of a plan that follows from its framework asks
def hosted(name: str, host: Host) -> Framework:
    """Return a framework whose kernels are issued in another way than its own."""
    return replace(FRAMEWORKS[name], host=host)
