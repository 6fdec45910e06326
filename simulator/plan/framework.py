"""How training frameworks differ: operator stream, data parallelism, host and defaults, one line each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero3Limits:
    """How far ZeRO-3 of DeepSpeed gathers ahead and keeps what it gathered, in elements; the defaults are DeepSpeed's.

    Parameters
    ----------
    prefetch_elements : int
        ``stage3_prefetch_bucket_size``: what is gathered ahead.
    persistence_elements : int
        ``stage3_param_persistence_threshold``: smaller tensors stay whole.
    max_live_elements : int
        ``stage3_max_live_parameters``: nothing is prefetched beyond it.
    max_reuse_elements : int
        ``stage3_max_reuse_distance``: a gathered tensor that is not used again within so many elements is released.
    """

    prefetch_elements: int = 50_000_000
    persistence_elements: int = 100_000
    max_live_elements: int = 1_000_000_000
    max_reuse_elements: int = 1_000_000_000


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
    stops_recompute_early : bool
        Whether recomputation ends as soon as all that was saved is there again (``early_stop`` of PyTorch's
        non-reentrant checkpointing).
    cp_comm_type : str
        How context parallelism exchanges keys and values unless the plan says otherwise.
    flash : str
        Which fused attention kernel: ``flash_attention`` (the device's best: cuDNN or FlashAttention 3 on Hopper,
        FlashAttention 2 before), ``flash_attention_2``, or ``flash_attention_1`` (also its Triton port).
    clips_gradients : bool
        Whether the step clips gradients by their global norm: a kernel over them, and a sum over model-parallel ranks.
    owners_broadcast : bool
        Whether with a sharded optimizer every rank owns whole tensors and broadcasts them one by one after the step
        (``ZeroRedundancyOptimizer``), instead of gathering equal shards.
    gathers_buckets : bool
        Whether updated parameters are gathered bucket by bucket even where that does not overlap the next forward.
    keeps_last_unit : bool
        Whether under full sharding the last unit stays gathered from forward to backward.
    scatters_apart : bool
        Whether under full sharding gradients are reduced in a process group of their own, beside gathers.
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
    stops_recompute_early: bool = False
    cp_comm_type: Literal["p2p", "all_gather", "a2a"] = "p2p"
    flash: str = "flash_attention"
    clips_gradients: bool = True
    owners_broadcast: bool = False
    gathers_buckets: bool = False
    keeps_last_unit: bool = False
    scatters_apart: bool = False


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
        Framework(name="deepspeed", kernels="hf-eager", data_parallel="deepspeed", cp_comm_type="a2a"),
        Framework(
            name="fsdp",
            kernels="hf-eager",
            data_parallel="fsdp",
            stops_recompute_early=True,
            flash="flash_attention_2",
        ),
        Framework(
            name="llm-foundry",
            kernels="hf-eager",
            data_parallel="fsdp",
            stops_recompute_early=True,
            flash="flash_attention_1",
        ),
        Framework(
            name="torchtitan",
            kernels="hf-eager",
            data_parallel="fsdp2",
            gradient_bytes_bf16=4,
            stops_recompute_early=True,
            cp_comm_type="all_gather",
            flash="flash_attention_2",
        ),
        Framework(
            name="torchtitan-compile",
            kernels="compiled",
            data_parallel="fsdp2",
            host="compiled",
            gradient_bytes_bf16=4,
            stops_recompute_early=True,
            cp_comm_type="all_gather",
            flash="flash_attention_2",
        ),
        Framework(
            name="torch-ddp",
            kernels="hf-eager",
            data_parallel="ddp",
            master_weights=False,
            clips_gradients=False,
            owners_broadcast=True,
        ),
        Framework(
            name="torch-fsdp2",
            kernels="hf-eager",
            data_parallel="fsdp2",
            stops_recompute_early=True,
            flash="flash_attention_2",
            clips_gradients=False,
        ),
        Framework(
            name="torch-tp", kernels="torch-modules", data_parallel="ddp", master_weights=False, clips_gradients=False
        ),
        Framework(
            name="torch-pp", kernels="hf-eager", data_parallel="ddp", master_weights=False, clips_gradients=False
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
