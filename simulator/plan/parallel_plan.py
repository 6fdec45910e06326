"""The parallel plan: every setting declared once, what follows where one is left out, and whether the degrees multiply up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import gcd
from typing import Any, Literal

from simulator.errors import InfeasiblePlanError
from simulator.plan import module_names as parts
from simulator.plan import vocabularies as terms
from simulator.plan.data_parallelism import SHARDING_NAMES, Zero3Limits
from simulator.plan.dispatchers import DISPATCHERS, Dispatcher, usual_sms
from simulator.plan.fields import Effect, Setting, check_settings, declared, setting, words_of
from simulator.plan.framework import Framework, Host
from simulator.plan.frameworks import FRAMEWORK_ALIASES, FRAMEWORKS, hosted
from simulator.plan.precision import PRECISIONS, SYNONYMS, Precision
from simulator.plan.rank_order import DEFAULT_ORDER, replicas_in_node
from simulator.plan.releases import ReleaseFacts
from simulator.plan.rules import batch_of, check_combination, check_words, replicas_of
from simulator.plan.stage_layout import chunks_of_layout, layout_text

_EVERYTHING: tuple[Effect, ...] = ("time", "memory", "training")
_BOTH: tuple[Effect, ...] = ("time", "memory")
_LIMITS = Zero3Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelPlan:
    """Everything the user decides about a run that is neither the model nor the machine.

    Each field declares its setting: see :data:`SETTINGS`. Unset is None. What follows from the number of GPUs and the
    model (``gpus``, ``dp``, ``micro_batch``, ``global_batch``, ``sequence_length``) is filled in when the plan is resolved,
    and typed as it is from then on; what follows from the framework stays unset, so that it changes with the framework,
    and is read from the properties below.
    """

    gpus: int = setting("degrees", "GPUs in use.", unset="all of the cluster", least=1, aliases=("world_size",))
    dp: int = setting(
        "degrees", "Data-parallel degree.", unset="what the other degrees leave of the GPUs", least=1, is_common=True,
        aliases=("data_parallel",),
    )  # fmt: skip
    tp: int = setting(
        "degrees", "Tensor-parallel degree.", default=1, least=1, is_common=True, changes=_BOTH,
        aliases=("tensor_parallel", "tensor_model_parallel_size", "tensor_parallel_size", "tensor_parallel_degree"),
    )  # fmt: skip
    pp: int = setting(
        "degrees", "Pipeline stages.", default=1, least=1, is_common=True, changes=_BOTH,
        aliases=("pipeline_parallel", "pipeline_model_parallel_size", "pipeline_parallel_size", "pipeline_parallel_degree"),
    )  # fmt: skip
    virtual_pp: int = setting(
        "degrees", "Model chunks per stage (interleaving).", default=1, least=1, is_common=True, changes=_BOTH,
    )  # fmt: skip
    cp: int = setting(
        "degrees", "Context-parallel degree.", default=1, least=1, is_common=True, changes=_BOTH,
        aliases=("context_parallel", "context_parallel_size", "context_parallel_degree"),
    )  # fmt: skip
    ep: int = setting(
        "degrees", "Expert-parallel degree.", default=1, least=1, is_common=True, changes=_BOTH,
        aliases=("expert_parallel", "expert_model_parallel_size", "expert_parallel_size", "expert_parallel_degree"),
    )  # fmt: skip
    etp: int | None = setting(
        "degrees", "Tensor-parallel degree of the experts, which lie over tp x cp x dp independently of the dense layers.",
        unset="tp", least=1, changes=_BOTH, aliases=("expert_tensor_parallel", "expert_tensor_parallel_size"),
    )  # fmt: skip
    sharding: terms.Sharding = setting(
        "sharding", "none (DDP), zero1, zero2, zero3 (FSDP's full shard) or hsdp (full shard within a group of ranks).",
        default="none", is_common=True, changes=_BOTH, aliases=("zero", "zero_stage"), synonyms=SHARDING_NAMES,
    )  # fmt: skip
    sharding_group: int | None = setting(
        "sharding",
        "Ranks over which sharding splits.",
        least=1,
        changes=_BOTH,
        unset="all, or with hsdp those of a node",
    )
    outer_sharding: terms.OuterSharding = setting(
        "sharding", "`optim` shards masters and optimizer states over the copies of a full shard, too (a flag of Megatron-FSDP).",
        default="none", changes=_BOTH, aliases=("outer_dp_sharding_strategy",), synonyms={"no_shard": "none"},
    )  # fmt: skip
    schedule: str = setting(
        "pipeline", "Pipeline schedule: 1f1b, gpipe, zb-1p ...", default="1f1b", is_common=True, changes=_BOTH,
        synonyms=terms.SCHEDULE_NAMES,
    )  # fmt: skip
    pipeline_batch: int | None = setting("pipeline", "Micro-batches until a pipeline drains.", unset="all", least=1)
    delay_wgrad: bool = setting("pipeline", "Whether `1f1b-combined` sends before weights' gradients.", default=True,
                                aliases=("delay_wgrad_compute",))  # fmt: skip
    micro_batch: int = setting(
        "batch", "Sequences per rank and micro-batch.", unset="the largest power of two that fits", least=1, is_common=True,
        changes=_BOTH, aliases=("mbs", "micro_batch_size", "train_micro_batch_size_per_gpu"),
    )  # fmt: skip
    global_batch: int = setting(
        "batch", "Sequences per optimizer step.", least=1, is_common=True, changes=("time", "training"),
        unset="one micro-batch per replica, 4 x pp of them with a pipeline", aliases=("gbs", "global_batch_size", "train_batch_size"),
    )  # fmt: skip
    sequence_length: int = setting(
        "batch", "Tokens per sequence.", unset="the model's own", least=1, is_common=True,
        changes=_EVERYTHING, aliases=("seq_len", "seq_length"),
    )  # fmt: skip
    document_length: int | None = setting(
        "batch", "Mean tokens of the documents that are packed into a sequence, beyond which fused attention does not look.",
        unset="a sequence is one document", least=1, changes=("time", "training"),
    )  # fmt: skip
    document_spread: float = setting(
        "batch", "Standard deviation of the lengths of these documents, relative to their mean.", default=0.0, least=0,
        changes=("time", "training"),
    )  # fmt: skip
    precision: str = setting(
        "precision", "fp16, bf16, amp_fp16, amp_bf16, tf32, fp32, fp8, fp8_current, mxfp8, nvfp4 ...", default="bf16",
        words=PRECISIONS, synonyms=SYNONYMS, is_common=True, changes=_EVERYTHING,
    )  # fmt: skip
    fp8_modules: str | None = setting(
        "precision", "What a precision of 8 or 4 bits puts in 8 beside the products of the layers, joined by `+`: `attention`, "
        "`output` (the projection to the vocabulary), `activation` (the MLP's saved up-projection).",
        unset="nothing", words=parts.FP8_MODULES,
        synonyms={"fp8_dot_product_attention": "attention", "fp8_output_proj": "output",
                  "activation_func_fp8_input_store": "activation"}, takes_several=True, changes=_EVERYTHING,
    )  # fmt: skip
    bf16_modules: str | None = setting(
        "precision", "Whose products a precision of 8 or 4 bits leaves in 16, joined by `+`: `attention` (`linear_qkv` and "
        "`linear_proj` in Megatron-Core's `quant_recipe`), `mlp`, `experts`, `latent` (`fc1_latent_proj`, `fc2_latent_proj`), `mtp`.",
        unset="nothing but router and output projection", words=parts.BF16_MODULES, takes_several=True, changes=_EVERYTHING,
    )  # fmt: skip
    bf16_first_layers: int = setting(
        "precision", "Blocks at the start of the model whose products stay in 16 bits.", default=0, least=0, changes=_EVERYTHING
    )  # fmt: skip
    bf16_last_layers: int = setting(
        "precision", "Blocks at the end of the model whose products stay in 16 bits.", default=0, least=0, changes=_EVERYTHING
    )  # fmt: skip
    recompute: terms.Recompute = setting(
        "recompute", "Activation recomputation: none, selective (core attention, or every second matrix product) or full.",
        default="none", is_common=True, changes=_BOTH, aliases=("recompute_granularity",),
        synonyms=dict.fromkeys(("yes", "true", "1"), "full") | dict.fromkeys(("no", "false", "0"), "none"),
    )  # fmt: skip
    recompute_modules: str | None = setting(
        "recompute", "What selective recomputation of Megatron-Core recomputes, joined by `+`: `core_attn`, `mlp`, `moe` and "
        "`shared_experts` keep input and output, `layernorm`, `moe_act` and `mla_up_proj` their input only.",
        unset="what the framework's selective recomputation is",
        words=parts.RECOMPUTE_MODULES, synonyms={"up_proj": "mla_up_proj", "core_attention": "core_attn"}, takes_several=True, changes=_BOTH
    )  # fmt: skip
    recompute_method: terms.RecomputeMethod = setting(
        "recompute", "Of full recomputation: block recomputes the first so many blocks of every virtual stage, uniform keeps "
        "one input for so many blocks.", default="uniform", changes=_BOTH,
    )  # fmt: skip
    recompute_layers: int | None = setting(
        "recompute", "Blocks to recompute per stage (`block`; 0: none), or per stored input (`uniform`).", least=0, changes=_BOTH,
        unset="every block is recomputed from an input of its own",
    )  # fmt: skip
    attention: terms.Attention = setting(
        "software", "flash or eager.", default="flash", is_common=True, changes=_BOTH)  # fmt: skip
    attention_kernel: terms.AttentionKernel | None = setting(
        "software", "Which fused attention kernel runs: `flash_attention_1`, `flash_attention_triton` (its port), `flash_attention_2`, "
        "or `flash_attention` (the device's best: cuDNN or FlashAttention 3 on Hopper, FlashAttention 2 before); of eager attention, "
        "`fused_softmax` (Megatron's mask and softmax in one).", unset="the framework's own",
    )  # fmt: skip
    rope_fusion: bool = setting("software", "Use Megatron's fused rotary-embedding kernel.", default=True)  # fmt: skip
    sequence_parallel: bool = setting(
        "degrees", "Megatron sequence parallelism.", default=False, is_common=True, changes=_BOTH)  # fmt: skip
    framework: str = setting(
        "software", "megatron, megatron-deepspeed, fsdp, hf-eager, torchtitan-compile ...", default="megatron",
        words=FRAMEWORKS, synonyms=FRAMEWORK_ALIASES, is_common=True, changes=_BOTH,
    )  # fmt: skip
    overlap: bool | None = setting(
        "overlap", "Run gradient communication beside compute.", unset="the framework's default", is_common=True, changes=_BOTH
    )  # fmt: skip
    overlap_p2p: bool | None = setting(
        "overlap", "Run pipeline messages beside the next pass instead of blocking it.",
        unset="the framework's default: Megatron-Core hides those of virtual stages",
    )  # fmt: skip
    overlap_parameter_gather: bool = setting(
        "overlap", "Gather the parameters of a sharded optimizer beside the next forward.", default=False,
        aliases=("overlap_param_gather",),
    )  # fmt: skip
    nccl_user_buffers: bool = setting(
        "overlap", "Register Megatron's buffers of parameters and gradients with NCCL (`nccl_ub`), whose kernels then take few SMs "
        "from the compute beside them.", default=False, aliases=("nccl_ub", "use_nccl_ub"),
    )  # fmt: skip
    asynchronous_tp: bool = setting(
        "overlap", "Cut the gathers and scatters of sequence parallelism into pieces that run beside the matrix product.",
        default=False,
    )  # fmt: skip
    scatter_gather: bool | None = setting(
        "pipeline", "Send each pipeline message once per tensor-parallel group, scattered and gathered again.",
        unset="the framework's default: Megatron-LM and DeepSpeed do, Megatron-Core does not",
    )  # fmt: skip
    first_stage_layers: int | None = setting(
        "pipeline", "Layers on the first pipeline stage.", unset="an even split", least=1, changes=_BOTH)  # fmt: skip
    last_stage_layers: int | None = setting(
        "pipeline", "Layers on the last pipeline stage.", unset="an even split", least=1, changes=_BOTH)  # fmt: skip
    account_for_embedding: bool = setting(
        "pipeline", "Count the embedding as a layer of the first stage: layers, and what is counted with them, divide over pp x "
        "virtual_pp.", default=False, changes=_BOTH, aliases=("account_for_embedding_in_pipeline_split",),
    )  # fmt: skip
    account_for_loss: bool = setting(
        "pipeline", "Count output and loss as a layer of the last stage, in the same way.", default=False,
        changes=_BOTH, aliases=("account_for_loss_in_pipeline_split",),
    )  # fmt: skip
    pipeline_layout: str | None = setting(
        "pipeline", "Layers of every virtual stage as in Megatron-Core: `E` embedding, `t` transformer layer, `m` multi-token prediction, "
        "`L` loss, `|` between stages, `*` repeats: `Et*4|(t*4|)*14tmL`; or lists of the words `embedding`, `decoder`, `mtp`, `loss`.",
        unset="an even split", changes=_BOTH, aliases=("pipeline_model_parallel_layout",), as_text=layout_text,
    )  # fmt: skip
    rank_order: str = setting(
        "degrees", "Axes from the nearest ranks to the farthest, as in Megatron-Core: `tp-cp-ep-dp-pp` (also DeepSpeed's and "
        "DeviceMesh's), `tp-cp-ep-pp-dp` (`--use-tp-pp-dp-mapping`), any other permutation.", default=DEFAULT_ORDER,
    )  # fmt: skip
    bucket_bytes: int | None = setting(
        "sharding", "Gradient bucket size.", unset="the framework's default", least=1, unit="bytes", changes=_BOTH
    )  # fmt: skip
    gradient_bytes: int | None = setting(
        "precision", "Bytes of one reduced gradient element, 2 or 4.", unset="the framework's own", least=2, most=4, changes=_EVERYTHING,
    )  # fmt: skip
    optimizer: terms.Optimizer = setting(
        "precision", "`adam`, or `muon` for matrices of blocks (Megatron-Core).", default="adam", changes=_EVERYTHING)  # fmt: skip
    muon_tp_mode: terms.MuonMode = setting(
        "precision", "What Muon takes of a matrix that tensor-parallel ranks share: all of it on every rank (`duplicated`), all of it "
        "together (`distributed`), or each rank its own part (`blockwise`).", default="duplicated", changes=_EVERYTHING)  # fmt: skip
    optimizer_implementation: terms.OptimizerImplementation | None = setting(
        "precision", "How Adam steps (torchtitan's word): `fused`, `foreach`, operation by operation over all tensors, which is the "
        "default of torch.optim on a GPU, or `for-loop`, tensor by tensor, whose launches are not counted.", unset="the framework's own",
        changes=_BOTH,
    )  # fmt: skip
    moment_bytes: int = setting(
        "precision", "Bytes of each moment: 4, or fewer (Megatron-Core's `exp_avg_dtype`, 8-bit Adam); 2 at most where the optimizer "
        "steps 16-bit weights themselves.", default=4,
        least=1, most=4, changes=_EVERYTHING,
    )  # fmt: skip
    master_bytes: int = setting(
        "precision", "Bytes of a master weight: 4, or 2 where the optimizer keeps only what the 16-bit weight beside it lacks "
        "(`store_param_remainders`), or where FSDP's shards have 16 bits themselves.", default=4, least=2, most=4, changes=_BOTH,
    )  # fmt: skip
    gradient_collective: terms.GradientCollective | None = setting(
        "sharding", "`all_reduce`, `reduce_scatter` or `reduce` (one per owner of a shard).", unset="the framework's own"
    )  # fmt: skip
    gradient_compression: terms.Compression = setting(
        "precision", "DDP's communication hook: fp16 or bf16 reduces 16-bit gradients. DeepSpeed's 1-bit Adam after its warm-up: "
        "onebit sends the signs of the momentum, and keeps what that leaves out.", default="none", changes=("time", "training"),
    )  # fmt: skip
    gradient_as_bucket_view: bool = setting(
        "sharding", "DDP: gradients live in the buckets instead of being copied there and back.", default=False, changes=_BOTH
    )  # fmt: skip
    no_sync: bool | None = setting(
        "sharding", "FSDP: leave gradients of all but the last micro-batch of a step whole on every rank, and reduce their sum.",
        unset="as the framework does", changes=_BOTH,
    )  # fmt: skip
    recompute_gathers: bool | None = setting(
        "sharding", "FSDP's wrapper: blocks are checkpointed outside their units (`gradient_checkpointing` of transformers), so that "
        "recomputation gathers a unit and frees it, and backward gathers it again.", unset="as the framework does",
    )  # fmt: skip
    backward_prefetch: Literal["pre", "post", "none"] = setting(
        "overlap", "FSDP: gather the next unit before (`pre`) or after (`post`) the current one's backward, or not ahead.", default="pre"
    )  # fmt: skip
    forward_prefetch: bool = setting(
        "overlap", "FSDP: issue the next unit's gather before the current one's forward rather than behind it.", default=False
    )  # fmt: skip
    prefetch_depth: int = setting(
        "overlap", "`fully_shard`: units that are gathered ahead of one where `forward_prefetch` or `backward_prefetch=pre` says so.",
        default=1, least=1, changes=_BOTH,
    )  # fmt: skip
    limit_all_gathers: bool = setting(
        "overlap", "FSDP: the host never runs further ahead than two gathers.", default=True, changes=_BOTH
    )  # fmt: skip
    secondary_group: int | None = setting(
        "sharding", "Full sharding: ranks over which a second copy of the parameters is sharded, in which backward gathers: "
        "ZeRO++'s `zero_hpz_partition_size`, FSDP2's integer `reshard_after_forward`.", unset="no second copy", least=1, changes=_BOTH
    )  # fmt: skip
    fp8_param_gather: bool | None = setting(
        "precision", "Whether weights are kept in eight bits, and gathered so where one scale serves a tensor (Megatron's flag, torchao's "
        "`enable_fsdp_float8_all_gather`).", unset="the framework's own", changes=_BOTH
    )  # fmt: skip
    quantized_weights: bool = setting(
        "precision", "ZeRO++: parameters are gathered in int8.", default=False, changes=("time", "training")
    )  # fmt: skip
    quantized_gradients: bool = setting(
        "precision", "ZeRO++: gradients are reduced as int4 all-to-alls in and between nodes.", default=False,
        changes=("time", "training"),
    )  # fmt: skip
    prefetch_elements: int | None = setting(
        "sharding", "DeepSpeed's `stage3_prefetch_bucket_size`.", unset=f"DeepSpeed's default, {_LIMITS.prefetch_elements:,}", least=0,
        changes=_BOTH,
    )  # fmt: skip
    persistence_elements: int | None = setting(
        "sharding", "DeepSpeed's `stage3_param_persistence_threshold`.", least=0,
        unset=f"DeepSpeed's default, {_LIMITS.persistence_elements:,}",
    )  # fmt: skip
    max_live_elements: int | None = setting(
        "sharding", "DeepSpeed's `stage3_max_live_parameters`.", unset=f"DeepSpeed's default, {_LIMITS.max_live_elements:,}", least=0,
        changes=_BOTH,
    )  # fmt: skip
    max_reuse_elements: int | None = setting(
        "sharding", "DeepSpeed's `stage3_max_reuse_distance`.", unset=f"DeepSpeed's default, {_LIMITS.max_reuse_elements:,}", least=0
    )  # fmt: skip
    offload_optimizer: terms.Offload = setting(
        "recompute", "`cpu` keeps optimizer states in host memory and steps them there (ZeRO-Offload).", default="none", changes=_BOTH
    )  # fmt: skip
    offload_layers: int | None = setting(
        "recompute", "Blocks whose activations wait in host memory from forward to backward, copied beside compute (Transformer "
        "Engine's).", unset="none", least=0, changes=_BOTH, aliases=("cpu_offloading_num_layers",),
    )  # fmt: skip
    offload_modules: str | None = setting(
        "recompute", "Modules whose inputs wait in host memory, copied beside compute, joined by `+` as Megatron-Core's "
        "`--offload-modules` names them: `attn_norm`, `qkv_linear`, `core_attn`, `attn_proj` (with `core_attn` only), `mlp_norm`, "
        "`expert_fc1`, `moe_act`.", unset="none", words=parts.OFFLOAD_MODULES, takes_several=True, changes=_BOTH,
    )  # fmt: skip
    offload_parameters: terms.Offload = setting(
        "recompute", "`cpu` keeps sharded parameters in host memory.", default="none", changes=_BOTH)  # fmt: skip
    cp_comm_type: terms.ContextExchange | None = setting(
        "overlap", "How context parallelism exchanges keys and values: `p2p` (ring attention), `all_gather` or `a2a` (Ulysses).",
        unset="the framework's own", aliases=("cp_type",),
    )  # fmt: skip
    cp_load_balance: bool = setting(
        "overlap", "Whether each context-parallel rank holds a chunk of the beginning and one of the end, so that a causal mask "
        "costs every rank the same.", default=True,
    )  # fmt: skip
    moe_dispatcher: str = setting(
        "experts", "`alltoall`, `allgather` (every rank sees all tokens), `deepep` (one copy of a token per node and rank) or "
        "`hybridep` (the same at the rate of the links, not of its SMs).", default="alltoall", words=DISPATCHERS,
        synonyms={"flex": "deepep"}, aliases=("moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
    )  # fmt: skip
    moe_dispatcher_sms: int | None = setting(
        "experts", "SMs that the dispatcher's own kernels take from compute.", least=1,
        unset=usual_sms({name: one.dispatcher_recipes for name, one in FRAMEWORKS.items()}),
    )  # fmt: skip
    moe_fused_experts: bool = setting(
        "experts", "Whether one kernel serves all experts of a rank, whose rows the device counts without the host.", default=False,
    )  # fmt: skip
    moe_capacity_factor: float | None = setting(
        "experts", "Tokens that an expert takes, relative to an even share; more are dropped.", unset="no limit", least=1e-6,
        changes=_EVERYTHING, aliases=("capacity_factor",),
    )  # fmt: skip
    moe_pad_to_capacity: bool = setting("experts", "Whether every expert computes its full capacity.", default=False)
    moe_imbalance: float = setting(
        "experts", "Tokens of the busiest expert-parallel rank relative to the mean.", default=1.0, least=1
    )  # fmt: skip
    moe_fp8_dispatch: bool = setting(
        "experts", "Whether tokens travel to the experts in eight bits.", default=False, changes=("time", "training")
    )  # fmt: skip
    moe_shared_expert_overlap: bool = setting(
        "experts", "Whether the shared expert runs beside dispatch and combine.", default=False
    )  # fmt: skip
    fused_operations: bool = setting(
        "software", "Whether norm and activation of a dense MLP narrow what its products read (Transformer Engine's fuser).", default=False
    )  # fmt: skip
    host: Host | None = setting(
        "software", "How kernels are issued: one by one from Python (`eager`), from the code of `torch.compile`, which also fuses what "
        "modules of PyTorch's own do operation by operation (`compiled`), as CUDA graphs (`graphs`).", unset="the framework's own",
    )  # fmt: skip
    launch_blocking: bool = setting(
        "software", "The host waits for every kernel before it issues the next (`CUDA_LAUNCH_BLOCKING=1`), so that nothing "
        "overlaps.", default=False,
    )  # fmt: skip
    cuda_graphs: str | None = setting(
        "software", "What is captured in CUDA graphs, which costs the host almost nothing and some memory: `none`, modules joined "
        "by `+` as Megatron-Core's `--cuda-graph-scope` names them (`attn`, `mlp`, `mamba`, `moe_router`, `moe_preprocess`; `moe` "
        "needs experts padded to a capacity), or `full_iteration`.", unset="as `host` says", words=parts.GRAPH_SCOPES,
        takes_several=True, changes=_BOTH, aliases=("cuda_graph_scope",),
    )  # fmt: skip
    release: str | None = setting(
        "software", "Container of the framework, such as `26.06`: features that its recipes turn on from some release on, where "
        "the plan says nothing else.", unset="settings as given",
    )  # fmt: skip
    cuda: str | None = setting(
        "software", "CUDA release whose matrix libraries run, such as `12.1`. It matters on devices whose file says how much "
        "faster they became (`kernels.gemm.release_efficiency`).", unset="a current one",
    )  # fmt: skip
    lora_rank: int | None = setting(
        "tuning", "Rank of low-rank adapters (LoRA): all other weights are frozen, without gradients, optimizer states and "
        "weight-gradient products.", unset="every weight is trained", least=1, changes=_EVERYTHING, is_common=True,
    )  # fmt: skip
    lora_targets: str | None = setting(
        "tuning", "Projections that have adapters, joined by `+`: `qkv`, `proj`, `fc1`, `fc2` (NeMo's `linear_qkv` and so on).",
        unset="all four", words=parts.LORA_TARGETS, synonyms={f"linear_{word}": word for word in parts.LORA_TARGETS}, takes_several=True,
        changes=_EVERYTHING,
    )  # fmt: skip
    loader_workers: int = setting(
        "data", "Processes per GPU that read the next batch beside the step; 0 reads it first.", default=2, least=0, is_common=True,
    )  # fmt: skip
    sample_bytes: int | None = setting(
        "data", "Bytes in storage per sequence.", unset="2 per token, 4 with a vocabulary beyond 65,500", least=1,
        unit="bytes", is_common=True,
    )  # fmt: skip
    sample_time_s: float = setting(
        "data", "Processor seconds of a worker per sequence: decoding, augmenting, tokenising.", default=0.0, least=0,
        unit="time", is_common=True,
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_settings(SETTINGS, self.__getattribute__)
        check_words(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any], *, is_mixture: bool | None = None) -> ParallelPlan:
        """Return the plan of these settings, with what the recipes of its framework turn on where nothing is said.

        Those of mixtures of experts turn on more; a model that is not known is one where its experts are spread (``ep``).

        Examples
        --------
        >>> ParallelPlan.of({"framework": "megatron-bridge", "sharding": "none"}).sharding
        'none'
        """
        framework = FRAMEWORKS.get(settings.get("framework", SETTINGS["framework"].default))
        if is_mixture is None:
            is_mixture = int(settings.get("ep") or 1) > 1
        return cls(**{**(framework.defaults(settings, is_mixture=is_mixture) if framework else {}), **settings})

    # -- what follows from other settings where one is left out

    @property
    def framework_spec(self) -> Framework:
        """The entry of :data:`FRAMEWORKS` that the plan names, with the plan's own way to issue kernels."""
        host: Host | None = "graphs" if self.captures_iteration else self.host
        return FRAMEWORKS[self.framework] if host is None else hosted(self.framework, host)

    @property
    def release_facts(self) -> ReleaseFacts:
        """What the framework does at the plan's release."""
        return self.framework_spec.at(self.release)

    @property
    def softmax_kernel(self) -> Literal["fused_softmax", ""]:
        """The fused kernel between the products of eager attention, empty for separate ones."""
        return "fused_softmax" if self.attention == "eager" and self.attention_kernel == "fused_softmax" else ""

    @property
    def captures_iteration(self) -> bool:
        """Whether the whole iteration is one CUDA graph."""
        return self.cuda_graphs == "full_iteration"

    @property
    def captured_modules(self) -> tuple[str, ...]:
        """Modules that run as CUDA graphs of their own: words of :data:`~simulator.plan.module_names.GRAPH_SCOPES`."""
        scopes = words_of(self.cuda_graphs)
        return () if "none" in scopes or self.captures_iteration else scopes

    @property
    def narrow_modules(self) -> tuple[str, ...]:
        """What runs or waits in eight bits beside the products of layers: words of :data:`~simulator.plan.module_names.FP8_MODULES`."""
        return words_of(self.fp8_modules) if self.precision_spec.quantisation is not None else ()

    @property
    def unquantised_modules(self) -> tuple[str, ...]:
        """Whose products stay in 16 bits: words of :data:`~simulator.plan.module_names.BF16_MODULES`."""
        return words_of(self.bf16_modules)

    @property
    def attended_length(self) -> int:
        """Tokens of the document that the mean token is in, as attention costs the sum of squares; 0: a sequence is one."""
        return round((self.document_length or 0) * (1.0 + self.document_spread**2))

    @property
    def recomputed_modules(self) -> tuple[str, ...]:
        """Modules that selective recomputation is told to recompute: words of :data:`~simulator.plan.module_names.RECOMPUTE_MODULES`."""
        return words_of(self.recompute_modules)

    @property
    def offloaded_modules(self) -> tuple[str, ...]:
        """Modules whose inputs wait in host memory: words of :data:`~simulator.plan.module_names.OFFLOAD_MODULES`."""
        return words_of(self.offload_modules)

    @property
    def permutes_by_scan(self) -> bool:
        """Whether the kernels that sort tokens by expert visit all experts for every token."""
        return self.release_facts.permutes_by_scan and not self.dispatcher.n_sms

    @property
    def stashes_experts(self) -> bool:
        """Whether a graph of the whole iteration holds dropless experts, whose activations then live in buffers of static size."""
        return self.captures_iteration and self.ep > 1 and not self.moe_pad_to_capacity

    @property
    def waits_for_counts(self) -> bool:
        """Whether the host asks how many tokens each expert gets: fused experts do not, where what is exchanged has a static size."""
        is_static = self.moe_pad_to_capacity and self.moe_capacity_factor is not None
        is_on_device = self.moe_fused_experts and (self.ep == 1 or self.stashes_experts)
        return self.framework_spec.host != "graphs" and not is_static and not is_on_device

    @property
    def dispatcher(self) -> Dispatcher:
        """The entry of :data:`~simulator.plan.dispatchers.DISPATCHERS` that the plan names."""
        return DISPATCHERS[self.moe_dispatcher]

    @property
    def dispatcher_sms(self) -> int:
        """SMs of the dispatcher's own kernels; 0 where NCCL carries the tokens."""
        return self.dispatcher.n_sms and (self.moe_dispatcher_sms or self.dispatcher.n_sms)

    @property
    def model_parallel(self) -> int:
        """Ranks that hold one copy of the model: tp x pp x cp (experts share the data-parallel ranks)."""
        return self.tp * self.pp * self.cp

    def sharding_ranks(self, gpus_per_node: int) -> int:
        """Ranks of one sharding group; under ``hsdp`` those of a node unless the plan says otherwise."""
        n_replicas = self.dp * self.cp
        if self.sharding == "none":
            return 1
        if self.sharding_group or self.sharding != "hsdp":
            return min(self.sharding_group or n_replicas, n_replicas)
        return gcd(n_replicas, replicas_in_node(self, gpus_per_node))

    def state_ranks(self, n_shards: int) -> int:
        """Ranks that share optimizer states, where ``n_shards`` share parameters: with outer sharding all replicas."""
        return n_shards if self.outer_sharding == "none" else self.dp * self.cp

    @property
    def expert_tp(self) -> int:
        """Tensor-parallel degree of the experts."""
        return self.tp if self.etp is None else self.etp

    @property
    def expert_dp(self) -> int:
        """Replicas of an expert: what ep and the experts' tensor parallelism leave of a stage's ranks."""
        return self.tp * self.cp * self.dp // (self.expert_tp * self.ep)

    @property
    def has_expert_axes(self) -> bool:
        """Whether experts are spread over the ranks in another way than the dense layers."""
        return self.ep > 1 or self.expert_tp != self.tp

    @property
    def steps_adam(self) -> terms.OptimizerImplementation:
        """How Adam steps: beside Muon, of narrow moments and on a host it is taken as fused."""
        if self.optimizer != "adam" or self.moment_bytes != 4 or self.offload_optimizer == "cpu":
            return "fused"
        return self.optimizer_implementation or self.release_facts.optimizer_implementation

    @property
    def sums_norm(self) -> bool:
        """Whether ranks of one replica add up what each of them has of the gradients' norm."""
        return self.pp * self.tp > 1 and self.framework_spec.clips_gradients

    @property
    def splits_tokens(self) -> bool:
        """Whether the tensor-parallel ranks bring different tokens to the experts."""
        return self.tp == 1 or self.sequence_parallel

    def expert_shards(self, n_shards: int) -> int:
        """Ranks over which the states of an expert are sharded, where those of dense layers are over ``n_shards``."""
        return gcd(max(1, n_shards * self.expert_dp // (self.dp * self.cp)), self.expert_dp)

    @property
    def n_micro_batches(self) -> int:
        """Micro-batches that one data-parallel replica runs per step."""
        return self.global_batch // (self.micro_batch * self.dp)

    @property
    def drains_every(self) -> int | None:
        """Micro-batches after which its pipeline drains and begins anew within a step; None where it does not."""
        return self.pipeline_batch if self.pp > 1 else None

    @property
    def context_exchange(self) -> str:
        """How keys and values are exchanged: ``p2p``, ``all_gather`` or ``a2a``; eager attention needs them gathered."""
        usual = self.framework_spec.cp_comm_type if self.attention == "flash" else "all_gather"
        return self.cp_comm_type or usual

    @property
    def reduced_bytes(self) -> int:
        """Bytes of one gradient element as it is reduced."""
        if self.gradient_bytes is not None:
            return self.gradient_bytes
        if self.precision_spec.weights == "bf16":
            return self.framework_spec.gradient_bytes_bf16
        return self.framework_spec.gradient_bytes_fp16 if self.precision_spec.is_16_bit else 4

    @property
    def summed_bytes(self) -> int:
        """Bytes of one element of the gradients that micro-batches add up; autograd adds those of FSDP's wrapper as they are."""
        is_own = self.defers_reduction and self.framework_spec.data_parallel.fsdp_version == 1
        return self.gathered_bytes if is_own else self.reduced_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes of one parameter element as it is gathered: FSDP casts its fp32 shards to what autocast computes in."""
        if self.keeps_narrow and self.precision_spec.has_tensor_scales:
            return 1
        return 2 if self.precision_spec.is_16_bit or (self.precision_spec.is_autocast and self.shards_parameters) else 4

    @property
    def keeps_narrow(self) -> bool:
        """Whether weights themselves have eight bits (``fp8_param``): Megatron Bridge's recipes say so but for blocks of 128."""
        usual = self.framework_spec.gathers_narrow and self.precision != "fp8_block"
        is_wanted = usual if self.fp8_param_gather is None else self.fp8_param_gather
        return is_wanted and self.precision_spec.has_eight_bits and not self.lora_rank

    @property
    def sent_parameter_bytes(self) -> int:
        """Bytes of one parameter element in the messages of a gather."""
        return 1 if self.quantized_weights else self.gathered_bytes

    @property
    def precision_spec(self) -> Precision:
        """The entry of :data:`PRECISIONS` that the plan names."""
        return PRECISIONS[self.precision]

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters are gathered unit by unit: ZeRO-3, FSDP's strategies, HSDP."""
        return self.sharding in self.framework_spec.data_parallel.gathers_units

    @property
    def shards_masters(self) -> bool:
        """Whether the shards of its parameters are fp32 master weights, of which there is no copy in 16 bits (FSDP)."""
        keeps_masters = self.framework_spec.master_weights and self.framework_spec.data_parallel.shards_masters
        return keeps_masters and self.shards_parameters and not self.lora_rank

    @property
    def keeps_gathered(self) -> bool:
        """Whether what forward gathered stays for backward: FSDP's ``SHARD_GRAD_OP``."""
        return self.shards_parameters and self.sharding == "zero2"

    @property
    def has_second_copy(self) -> bool:
        """Whether backward gathers from a second, less finely sharded copy of the parameters."""
        return self.secondary_group is not None and self.shards_parameters and not self.keeps_gathered

    @property
    def synchronises_once(self) -> bool:
        """Whether sharded parameters are gathered, and gradients reduced, once per step: `fully_shard` under a pipeline."""
        return self.pp > 1 and self.shards_parameters and self.framework_spec.data_parallel.once_under_pipelines

    @property
    def defers_reduction(self) -> bool:
        """Whether every rank adds up whole gradients, which the last micro-batch of a step reduces (``no_sync``)."""
        facts = self.framework_spec.data_parallel
        defers = facts.orders_gathers and (facts.defers_reduction if self.no_sync is None else self.no_sync)
        return defers and self.n_micro_batches > 1 and self.shards_parameters and not self.synchronises_once

    def prefetched_units(self, *, forward: bool) -> int:
        """Units of FSDP whose gathers are issued before another unit's kernels."""
        is_asked = self.overlaps and (self.forward_prefetch if forward else self.backward_prefetch == "pre")
        return int(is_asked) * (self.prefetch_depth if self.framework_spec.data_parallel.fsdp_version == 2 else 1)

    @property
    def gathered_units(self) -> float:
        """Most units of FSDP beside the root whose gathered parameters are alive at once."""
        n_ahead = max(self.prefetched_units(forward=word) for word in (True, False))
        return self.framework_spec.data_parallel.units_alive(n_ahead, is_limited=self.limit_all_gathers)

    @property
    def overlaps(self) -> bool:
        """Whether gradient communication runs beside backward: the plan's word, or the framework's default."""
        wanted = self.framework_spec.overlap if self.overlap is None else self.overlap
        return wanted and not self.launch_blocking

    @property
    def message_shards(self) -> int:
        """Ranks of a tensor-parallel group that share in sending a pipeline message."""
        scatters = self.framework_spec.scatters_messages if self.scatter_gather is None else self.scatter_gather
        return self.tp if self.sequence_parallel or scatters else 1

    @property
    def zero3_limits(self) -> Zero3Limits | None:
        """What DeepSpeed's ZeRO-3 gathers ahead and keeps: the plan's word, or DeepSpeed's default; None elsewhere."""
        default = self.framework_spec.data_parallel.zero3_limits
        if default is None:
            return None
        given = {one.name: getattr(self, one.name) for one in fields(Zero3Limits)}
        return replace(default, **{key: value for key, value in given.items() if value is not None})

    def bucket_sizes(self, n_ranks: int) -> tuple[float, float]:
        """Bytes of the first gradient bucket and of the others, over ``n_ranks`` data-parallel ranks."""
        if self.bucket_bytes is not None:
            return self.bucket_bytes, self.bucket_bytes
        facts = self.framework_spec.data_parallel
        return facts.bucket_sizes(self.reduced_bytes, n_ranks, overlaps=self.overlaps)

    # -- resolving

    def without(self, *keys: str) -> ParallelPlan:
        """Return the plan with some settings back at their defaults, to be derived anew where they were derived."""
        changes: dict[str, Any] = {key: SETTINGS[key].default for key in keys}
        return replace(self, **changes)

    def resolve(self, n_gpus: int) -> ParallelPlan:
        """Fill ``gpus``, ``dp`` and, where the micro-batch is known, ``global_batch``; refuse degrees that do not multiply up."""
        gpus = self.gpus or n_gpus
        if gpus > n_gpus:
            raise InfeasiblePlanError(
                f"{gpus} GPUs asked for, the topology has {n_gpus}", hint=f"--gpus {n_gpus} or fewer"
            )
        dp = replicas_of(self, gpus)
        chunks, batch, plan = chunks_of_layout(self.pipeline_layout, self.pp, self.virtual_pp), batch_of(self, dp), self
        if (gpus, dp, chunks, batch) != (self.gpus, self.dp, self.virtual_pp, self.global_batch):
            plan = replace(self, gpus=gpus, dp=dp, virtual_pp=chunks, global_batch=batch)
        check_combination(plan)
        return plan

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, in the keys of plan files."""
        return {key: getattr(self, key) for key in SETTINGS}


#: every setting of a plan by its key
SETTINGS: dict[str, Setting] = declared(ParallelPlan)
