"""How training frameworks differ: the facts of each, declared once.

A framework is one entry of :data:`FRAMEWORKS`: a style of kernels, an implementation of data parallelism, and what it does
by default.

References
----------
What was read where is written down in ``docs/frameworks.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

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
)
from simulator.plan.framework import IRREGULAR_FRAGMENTATION, Framework, Host, Split
from simulator.plan.framework_features import FUSED_EXPERTS, FUSED_PRECISIONS
from simulator.plan.module_names import COMPILED_GRAPHS, MEGATRON_GRAPHS
from simulator.plan.vocabularies import Optimizer, Usual

#: the first of NeMo 2, and of Megatron Bridge
_NEMO_2 = ("24.09", "25.09")
#: month in which Megatron came to fuse rotations and gated activations
_MEGATRON_GATES = "23.11"
#: month of PEFT 0.11
_PEFT_0_11 = "24.05"
#: and with PyTorch 2.8, from which on the Trainer of Hugging Face takes the fused Adam
_TORCH_2_8 = "25.08"
#: months in which torchtitan did not compile its loss (pytorch/torchtitan, commits e10cb949 of 22 October 2024, which turned it on,
#: e8977b00 of 18 December, off, and bbb1b616 of April 2025, on)
_TORCHTITAN_LOSS = (("", "24.11"), ("24.12", "25.04"))
#: optimizers of Megatron-Core (NVIDIA/Megatron-LM, ``core/optimizer``, ``muon.py``)
_MEGATRON_OPTIMIZERS: tuple[Optimizer, ...] = ("adam", "muon")
_USUAL_OF_CORE: tuple[Usual, ...] = ("flash", "interleaving", "parameter_gather", "padded_vocabulary")
_USUAL_OF_TORCHTITAN: tuple[Usual, ...] = ("flash", "unbalanced_context", "local_batch")
#: what Megatron-Core does below its own script and below NVIDIA's recipes
_MEGATRON_CORE = Framework(
    name="megatron-core",
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
    captures=MEGATRON_GRAPHS,
    fused_experts=FUSED_PRECISIONS,
)
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
_TORCHTITAN = Framework(
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
    loss_eager_in=_TORCHTITAN_LOSS,
    usual=_USUAL_OF_TORCHTITAN,
)
#: KempnerInstitute/KempnerForge at 5666d0d1 (``kempnerforge/distributed/tensor_parallel.py``): ``fully_shard`` over blocks whose
#: projections are each parallel by themselves; stages of pipelines and mixtures split no sequence; weights are cast to 16 bits before
#: they are sharded, and a fused AdamW steps them; whole gradients are added up and reduced once (``maybe_no_sync``); the loss is
#: ``cross_entropy`` of logits as they are
_KEMPNERFORGE = Framework(
    name="kempnerforge",
    kernels="hf-eager",
    data_parallel=replace(FSDP2, offloads=(), shards_masters=False, defers_reduction=True),
    pipeline=pipelines.KEMPNERFORGE,
    master_weights=False,
    recipe=FULLY_SHARDED,
    parallel_recipe={"sequence_parallel": True},
    gradient_bytes_bf16=4,
    stops_recompute_early=True,
    flash="flash_attention_2",
    copies_sequence=True,
    parallel_by_product=True,
    loss="torch",
)

FRAMEWORKS: dict[str, Framework] = {
    f.name: f
    for f in (
        *(
            # Hugging Face's Trainer, as its models are, with fused norms, rotations, gates and loss, or with Liger's, whose loss is fused
            # with the product before it (linkedin/Liger-Kernel, ``monkey_patch.py``), by itself, under FSDP, whose shards Accelerate keeps
            # in fp32, and under DeepSpeed; its optimizer is ``adamw_torch``, and fused by default since PyTorch 2.8
            # (``training_args.py``, ``default_optim``)
            entry
            for kernels, plain, under, loss in (
                ("hf-eager", "hf-eager", "", "vocabulary"),
                ("compiled", "hf-fused", "-fused", "vocabulary"),
                ("compiled", "hf-liger", "-liger", "linear"),
            )
            for entry in (
                Framework(
                    name=plain,
                    kernels=kernels,  # type: ignore[arg-type]
                    loss=loss,  # type: ignore[arg-type]
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
                    loss=loss,  # type: ignore[arg-type]
                    data_parallel=replace(FSDP, defers_reduction=True),  # ``Accelerator.no_sync``
                    pipeline=pipelines.NONE,
                    recipe=FULLY_SHARDED,
                    optimizer_implementation="foreach",
                    fused_since=_TORCH_2_8,
                    gathers_to_recompute=True,
                    flash="flash_attention_2",
                    adapters_fp32_since=_PEFT_0_11,
                ),
                Framework(
                    name=f"hf-fsdp2{under}",
                    kernels=kernels,  # type: ignore[arg-type]
                    loss=loss,  # type: ignore[arg-type]
                    data_parallel=replace(FSDP2, defers_reduction=True),
                    pipeline=pipelines.NONE,
                    recipe=FULLY_SHARDED,
                    optimizer_implementation="foreach",
                    fused_since=_TORCH_2_8,
                    stops_recompute_early=True,  # ``checkpoint_wrapper`` and transformers 5 without reentry
                    flash="flash_attention_2",
                    copies_sequence=True,
                    adapters_fp32_since=_PEFT_0_11,
                ),
                Framework(
                    name=f"deepspeed{under}",
                    kernels=kernels,  # type: ignore[arg-type]
                    loss=loss,  # type: ignore[arg-type]
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
        replace(
            _MEGATRON_CORE,
            rope_and_swiglu_fused_since=_MEGATRON_GATES,
            gradient_bytes_bf16=4,
            usual=(*_USUAL_OF_CORE, "sequence_parallel"),
            aliases=("primus",),
        ),
        replace(
            _MEGATRON_CORE,
            # NVIDIA's recipes (NeMo, Megatron Bridge: scripts/performance/configs): distributed optimizer with both of its
            # overlaps, sequence parallelism and Transformer Engine's user buffers
            # wherever tensors are split, gradients reduced in 16 bits (grad_reduce_in_fp32=False)
            name="megatron-bridge",
            gathers_narrow=True,  # all mixed-precision recipes of Megatron Bridge with delayed or current scaling
            relu2_unfused_in=_NEMO_2,
            router_fp32=True,  # providers of DeepSeek, Qwen3, Nemotron-H, OLMoE and others (src/megatron/bridge/models)
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
            usual=(*_USUAL_OF_CORE, "own_recipes"),
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
        ),
        Framework(
            # pytorch/torchtune, recipes/full_finetune_distributed.py: fully_shard over models whose weights, gradients and moments all have
            # the type that ``dtype`` says
            name="torchtune",
            kernels="hf-eager",
            data_parallel=replace(FSDP2, shards_masters=False),
            pipeline=pipelines.NONE,
            master_weights=False,
            recipe=FULLY_SHARDED,
            optimizer_implementation="foreach",
            stops_recompute_early=True,
            flash="flash_attention_2",
            copies_sequence=True,
        ),
        *(
            # Lightning-AI/litgpt at 26857050 (``litgpt/model.py``, ``pretrain.py``): modules of plain PyTorch with an RMSNorm in fp32,
            # rotation and gate operation by operation, attention and loss PyTorch's; on one GPU, or under Fabric's FSDP over blocks,
            # weights in 16 bits (``bf16-true``) that a fused AdamW steps as they are; ``pretrain.py`` compiles the model
            one if how == "eager" else replace(one.hosted("compiled"), captures=COMPILED_GRAPHS)
            for name, facts, recipe in (
                ("litgpt", DDP, {}),
                ("litgpt-fsdp", replace(FSDP, shards_masters=False, context_exchanges=()), FULLY_SHARDED),
            )
            for how, suffix in (("eager", ""), ("compiled", "-compile"))
            for one in (
                Framework(
                    name=f"{name}{suffix}",
                    kernels="hf-eager",
                    data_parallel=facts,
                    pipeline=pipelines.NONE,
                    master_weights=False,
                    recipe=recipe,
                    stops_recompute_early=True,
                    flash="flash_attention_2",
                    sharded_by="" if recipe else f"litgpt-fsdp{suffix}",
                ),
            )
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
        _TORCHTITAN,
        replace(_TORCHTITAN.hosted("compiled"), name="torchtitan-compile"),
        # allenai/OLMo-core: fully_shard over compiled blocks, with a loss that is fused (``fused_loss``, ``compile_loss``)
        replace(_TORCHTITAN.hosted("compiled"), name="olmo-core", loss_eager_in=()),
        _KEMPNERFORGE,
        replace(_KEMPNERFORGE.hosted("compiled"), name="kempnerforge-compile"),
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
            # parallelism), or its own ones of Transformer Engine's modules; torch.optim.Adam steps the 16-bit weights themselves; the last
            # micro-batch reduces their gradients (``defer_fsdp_grad_sync``)
            Framework(
                name=name,
                kernels=kernels,  # type: ignore[arg-type]
                data_parallel=replace(FSDP2, shards_masters=False, defers_reduction=True),
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
                fragmentation=IRREGULAR_FRAGMENTATION,
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
                fragmentation=IRREGULAR_FRAGMENTATION,
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


#: what people type -> name of the framework
FRAMEWORK_ALIASES = {alias: f.name for f in FRAMEWORKS.values() for alias in f.aliases} | {
    **dict.fromkeys(("ddp", "transformers", "accelerate", "axolotl", "llama-factory"), "hf-eager"),
    "colossal-ai": "torch-3d",
    "deepspeed-ulysses": "deepspeed",
}


@cache  # every setting of a plan that follows from its framework asks
def hosted(name: str, host: Host) -> Framework:
    """Return a framework whose kernels are issued in another way than its own."""
    return FRAMEWORKS[name].hosted(host)


def automodel_variant(degrees: Mapping[str, int], *, wants_liger: bool = True) -> str:
    """Return which entry runs plain modules of AutoModel: Liger's patches stay off where tensors, sequences or experts are split.

    References
    ----------
    NVIDIA-NeMo/Automodel, ``nemo_automodel/_transformers/auto_model.py`` (``use_liger_kernel``, off under tensor or context
    parallelism); models whose experts lie over ranks are its own, which it does not patch.
    """
    is_whole = all(degrees[axis] == 1 for axis in ("tp", "cp", "ep"))
    return "automodel-liger" if wants_liger and is_whole else "automodel"


def liger_variant(name: str) -> str:
    """Return the framework that runs the modules of another one with Liger's kernels; empty where there is none.

    Examples
    --------
    >>> [liger_variant(name) for name in ("hf-eager", "hf-fsdp2", "deepspeed", "automodel", "fsdp2")]
    ['hf-liger', 'hf-fsdp2-liger', 'deepspeed-liger', 'automodel-liger', '']
    """
    found = f"{name.removesuffix('-eager')}-liger"
    return found if found in FRAMEWORKS else ""


def that_splits(what: Split) -> str:
    """Return the part of PyTorch by itself that splits batches, parameters, tensors or layers.

    Examples
    --------
    >>> that_splits("batch"), that_splits("parameters"), that_splits("tensors"), that_splits("layers")
    ('torch-ddp', 'torch-fsdp2', 'torch-tp', 'torch-pp')
    """
    return next(name for name, one in FRAMEWORKS.items() if one.splits == what)
