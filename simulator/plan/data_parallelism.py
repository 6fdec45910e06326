"""How implementations of data parallelism shard, bucket and gather: DDP, FSDP, ZeRO and Megatron's, each declared once.

References
----------
PyTorch, ``torch/nn/parallel/distributed.py`` and ``torch/distributed/fsdp``; DeepSpeed, ``runtime/zero``; Megatron-LM,
``core/distributed``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, get_args

from simulator.plan.vocabularies import ContextExchange

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
    #: How ranks that share a sequence may exchange keys and values; none where no ranks can share one.
    context_exchanges: tuple[ContextExchange, ...] = get_args(ContextExchange)
    #: Whether they share it beside tensor and pipeline parallelism.
    shares_beside_splits: bool = True
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
    reduces_in_fp32: bool = False
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
    #: Whether micro-batches that are not the last of a step leave whole gradients to be added up (``no_sync`` of FSDP's wrapper,
    #: ``set_requires_gradient_sync`` of ``fully_shard``).
    defers_reduction: bool = False
    #: How far gathers run ahead where that is a matter of elements.
    zero3_limits: Zero3Limits | None = None
    #: Whether every tensor is gathered into a list of views, and scattered out of one, which PyTorch copies one by one, after
    #: the host has waited for the device (DeepSpeed 0.3, ``partition_parameters.py``, ``_allgather_param``).
    moves_lists: bool = False
    #: Whether its buffers of parameters and gradients may be registered with NCCL (Megatron-Core's ``nccl_ub``).
    registers_buffers: bool = False
    #: Whether optimizer states may be sharded over the copies of a full shard, too (Megatron-FSDP's ``outer_dp_sharding_strategy``).
    shards_copies: bool = False
    #: Whether copies of full shards add their gradients up once a step, in the last micro-batch (Megatron-FSDP, ``is_last_microbatch``).
    sums_copies_once: bool = False
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
    #: What may wait in host memory: ``optimizer``, ``parameters``, ``optimizer+parameters`` where both go at once.
    offloads: tuple[str, ...] = ()

    def bucket_sizes(self, element_bytes: int, n_ranks: int, *, overlaps: bool) -> tuple[float, float]:
        """Return the default bytes of the first gradient bucket and of the others."""
        if self.buckets_whole_without_overlap and not overlaps:
            return inf, inf
        if self.bucket_bytes is not None:
            return self.first_bucket_bytes or self.bucket_bytes, self.bucket_bytes
        n_bytes = max(self.bucket_elements, self.bucket_elements_per_rank * n_ranks) * element_bytes
        return n_bytes, n_bytes

    def units_alive(self, n_ahead: int, *, is_limited: bool) -> float:
        """Return how many units beside the root are gathered at once at most, where ``n_ahead`` of them are prefetched explicitly.

        The wrapper's host, unless it is not limited, waits before a gather once two freed units are in its queue: one runs and one
        more is gathered, and what is prefetched explicitly comes on top. `fully_shard` holds the parameters of the unit that runs, the
        buffers that those ahead of it were gathered into, and the one behind it, from whose copy-out it was spared.

        References
        ----------
        torch/distributed/fsdp, ``_limiter_utils.py``, ``_runtime_utils.py`` (``_unshard``, ``_reshard``) and
        ``_fully_shard/_fsdp_param_group.py`` (``wait_for_unshard``).
        """
        if not self.gathers_in_flight:
            return 2 + max(1, n_ahead)
        return self.gathers_in_flight + n_ahead if is_limited else inf


#: ``DistributedDataParallel``: ``_DEFAULT_FIRST_BUCKET_BYTES`` and ``bucket_cap_mb``
DDP = DataParallelism(
    splits_models=False,
    context_exchanges=(),
    bucket_bytes=25 * MIB,
    first_bucket_bytes=MIB,
    copies_into_buckets=True,
    has_hooks=True,
    frees_gradients=True,
    clips_in_kernel=False,
    shards_optimizer=False,
)
#: what may wait in host memory where optimizer and parameters are moved by flags of their own
SEPARATELY = ("optimizer", "parameters", "optimizer+parameters")
#: sharding of each stage of ZeRO
ZERO_STAGES = ("none", "zero1", "zero2", "zero3")
#: sharding of each ``ShardingStrategy`` of PyTorch's FSDP, which are numbered from 1
FSDP_STRATEGIES = {
    "FULL_SHARD": "zero3",
    "SHARD_GRAD_OP": "zero2",
    "NO_SHARD": "none",
    "HYBRID_SHARD": "hsdp",
    "HYBRID_SHARD_ZERO2": "hsdp",
}
#: sharding in the words of Megatron-FSDP (``data_parallel_sharding_strategy``) -> ours
MEGATRON_FSDP = {"no_shard": "none", "optim": "zero1", "optim_grads": "zero2", "optim_grads_params": "zero3"}
#: the same in the words of NeMo 1 (``fsdp_sharding_strategy``)
NEMO_FSDP = {"full": "zero3", "hybrid": "zero3", "grad": "zero2"}
#: what people call shardings -> ours: stages of ZeRO, PyTorch's ``ShardingStrategy``, Megatron's own words, MiCS (sharding in groups)
SHARDING_NAMES = {
    **{f"zero{mark}{stage}": ours for mark in "-_ " for stage, ours in enumerate(ZERO_STAGES)},
    **{str(stage): ours for stage, ours in enumerate(ZERO_STAGES)},
    **{"zero0": "none", "ddp": "none", "fsdp": "zero3", "fsdp2": "zero3", "mics": "hsdp"},
    **{word.lower(): ours for word, ours in FSDP_STRATEGIES.items()},
    **{"distributed_optimizer": "zero1", "distributed optimizer": "zero1"},
    **MEGATRON_FSDP,
}


def mesh_sharding(replicas: int, shards: int, cp: int = 1, *, reshards: bool = True) -> dict[str, Any]:
    """Return the settings of PyTorch's mesh of replicas and shards, where -1 shards are the rest of the ranks.

    Ranks of context parallelism share one state as shards do: the mesh that ``fully_shard`` is given is that of both.

    References
    ----------
    pytorch/torchtitan, ``distributed/parallel_dims.py``: ``dp_shard_cp``; huggingface/accelerate, ``parallelism_config.py``:
    ``dp_shard_cp_dim_names``.
    """
    group = shards * cp
    if group == 1:
        return {"sharding": "none"}
    if replicas > 1:
        return {"sharding": "hsdp"} | ({"sharding_group": group} if group > 1 else {})
    return {"sharding": "zero3" if reshards else "zero2"}


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
#: before Megatron-Core, which brought context parallelism
MEGATRON_2021 = replace(MEGATRON, context_exchanges=())
#: Megatron-LM's since, with ``--optimizer-cpu-offload`` (``core/optimizer/cpu_offloading``)
MEGATRON_LM = replace(MEGATRON, offloads=("optimizer",))
#: Megatron-Core's, whose FSDP may shard gradients and leave parameters whole (``optim_grads``)
MEGATRON_CORE = replace(
    MEGATRON_LM,
    shardings=("none", "zero1", "zero2", "zero3"),
    registers_buffers=True,
    shards_copies=True,
    sums_copies_once=True,
)
#: DeepSpeed's: ``reduce_bucket_size``; its pipeline engine refuses ZeRO-2 and ZeRO-3; ``offload_optimizer`` and ``offload_param``
DEEPSPEED = DataParallelism(
    shardings=("none", "zero1", "zero2", "zero3"),
    pipeline_shardings=("none", "zero1"),
    # Ulysses (``deepspeed/sequence``), which Megatron-DeepSpeed asserts to have no tensor and no pipeline parallelism beside it
    # (``megatron/core/parallel_state.py``: "DeepSpeed's sequence parallel does not work with tensor parallel or pipeline parallel")
    context_exchanges=("a2a",),
    shares_beside_splits=False,
    has_config=True,
    units="tensor",
    bucket_elements=500_000_000,
    holds_buckets=True,
    reduces_to_owners=True,
    zero3_limits=Zero3Limits(),
    quantizes=True,
    clears_gradients=True,
    offloads=SEPARATELY,
)
#: InternEvo's: ``reduce_bucket_size``
INTERNEVO = replace(MEGATRON, bucket_bytes=512 * MIB, scatters_gradients=False, gathers_by_bucket=False)
#: Nanotron's: DDP's buckets, whose hook reduces the fp32 sums, with ZeRO-1 to their owners
NANOTRON = replace(MEGATRON, bucket_bytes=25 * MIB, first_bucket_bytes=MIB, gathers_by_bucket=False)
#: Aleph Alpha's: ``allreduce_bucket_size`` elements at a time, summed in fp32 after backward (Aleph-Alpha/scaling,
#: ``core/optimizer/allreduce.py``); every rank then steps its shard
SCALING = replace(
    MEGATRON,
    context_exchanges=(),  # its topology has model, pipe and data parallel ranks (``core/topology``)
    shardings=("none", "zero1"),
    bucket_elements=500_000_000,
    bucket_elements_per_rank=0,
    buckets_whole_without_overlap=False,
    scatters_gradients=False,
    gathers_by_bucket=False,
    reduces_in_fp32=True,
)
#: the wrapper, ``FullyShardedDataParallel``; ``CPUOffload`` and ``CPUOffloadPolicy`` move parameters, gradients and optimizer at once
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
    offloads=("optimizer+parameters",),
)
#: what trainers over either set: ``ShardingStrategy.FULL_SHARD``, ``reshard_after_forward``, ``data_parallel_shard_degree = -1``
FULLY_SHARDED = {"sharding": "zero3"}
#: how Accelerate's loop accumulates under either, and with it the Trainer (``Accelerator.accumulate``, ``Accelerator.no_sync``)
ACCELERATES_LOOP = {"no_sync": True}
#: ``fully_shard``, which copies what it gathered into tensors of their own
FSDP2 = replace(FSDP, fsdp_version=2, copies_gathered=True, gathers_in_flight=0, once_under_pipelines=True)
