"""What there is to say of a training framework: code asks for one of these facts, never for a name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from simulator.plan import framework_schedules as pipelines
from simulator.plan.data_parallelism import (
    DataParallelism,
)
from simulator.plan.framework_features import Feature
from simulator.plan.releases import ReleaseFacts, is_before, is_within
from simulator.plan.vocabularies import ContextExchange, Loss, Optimizer, OptimizerImplementation, Usual

#: How kernels are issued: operation by operation, from compiled code, or as captured graphs.
Host = Literal["eager", "compiled", "graphs"]
#: What a part of PyTorch splits among ranks.
Split = Literal["", "batch", "parameters", "tensors", "layers"]
#: Style of the operator stream: ``hf-eager`` (unfused Hugging Face), ``torch-modules`` (the same with gathered logits),
#: ``eager-fused-norm`` (with fused norms too), ``megatron`` (fused bias, dropout, softmax and norm kernels), ``compiled``
#: (torch.compile), ``fused`` (Transformer Engine), ``hand-written`` (llm.c).
KernelStyle = Literal["hf-eager", "torch-modules", "eager-fused-norm", "megatron", "compiled", "fused", "hand-written"]
#: styles of modules in PyTorch's own operations, which its compiler fuses; other kernels it calls as they are
_COMPILES = ("hf-eager", "torch-modules", "eager-fused-norm")
#: shares of memory lost between the allocator's blocks: a few percent in regular training on one GPU, up to 30 % in distributed
#: training of irregular modules (Guo et al., GMLake, ASPLOS 2024)
_REGULAR_FRAGMENTATION, IRREGULAR_FRAGMENTATION = 0.03, 0.3


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
    #: Whether blocks are checkpointed outside the units of FSDP's wrapper, so that recomputation gathers a unit and frees it, and
    #: backward gathers it again (huggingface/transformers, ``TrainingArguments``: of ``gradient_checkpointing`` under full sharding,
    #: "introduces a redundant AllGather operation in backward pass").
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
    #: Months, from and before, in which its loss was not compiled with the model.
    loss_eager_in: tuple[tuple[str, str], ...] = ()
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
    #: Whether weights of layers are kept in eight bits, and gathered so where one scale serves a tensor (``fp8_param_gather``).
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
    splits: Split = ""
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
        return self.pipeline is None or name in had or name not in pipelines.KNOWN

    def hosted(self, host: Host) -> Framework:
        """Return the framework with its kernels issued in another way; ``torch.compile`` also fuses the operations of its modules.

        References
        ----------
        Ansel et al., "PyTorch 2", ASPLOS 2024, section 4 (TorchInductor).

        Examples
        --------
        >>> from simulator.plan.frameworks import FRAMEWORKS
        >>> FRAMEWORKS["fsdp2"].hosted("compiled").kernels, FRAMEWORKS["megatron-core"].hosted("compiled").kernels
        ('compiled', 'fused')
        """
        if host == "compiled" and self.kernels in _COMPILES:
            return replace(self, host=host, kernels="compiled", copies_sequence=False)
        return replace(self, host=host)

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
            compiles_loss=self.host == "compiled" and not any(is_within(release, span) for span in self.loss_eager_in),
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
