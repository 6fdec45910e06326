"""Bytes per rank: parameters, gradients, optimizer states, activations in flight, buffers; the peak and the verdict.

References
----------
Rajbhandari et al., ZeRO, arXiv:1910.02054, section 3; Korthikanti et al., arXiv:2205.05198, section 4 (activations).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from simulator.dtypes import DTYPE_BYTES
from simulator.errors import InfeasiblePlanError
from simulator.identity import counted, distinct
from simulator.models.layer import Elements, Launch, Layer
from simulator.models.matrices import is_expert, matrices_of, sharing, whole
from simulator.models.styles import STYLES
from simulator.plan import MOMENTS, ParallelPlan
from simulator.plan.rules import captures_layers
from simulator.schedules import find_schedule
from simulator.topology.device import Device
from simulator.units import format_bytes

MIB = 2**20
#: CUDA context, cuBLAS workspaces and kernel images outside the allocator (H200 and A100, PyTorch 2: 0.4 to 0.6 GiB)
CONTEXT_BYTES = 550 * MIB
#: NCCL's buffers per communicator: an estimate, from 2 directions x channels (up to 32) x 3 protocols of 4 MiB and more each
NCCL_COMMUNICATOR_BYTES = 500 * MIB
#: what categories of memory are called
CATEGORIES = {
    "parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states", "activations": "activations",
    "transient": "working memory", "buffers": "communication buffers", "communicators": "NCCL communicators",
    "context": "CUDA context", "fragmentation": "fragmentation", "graphs": "CUDA graphs",
}  # fmt: skip
#: where the peak is if no layer needs as much
OPTIMIZER_STEP = "the optimizer step"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryReport:
    """Memory of the rank that needs most."""

    by_category: dict[str, int]  #: Bytes at the peak.
    #: Who needs them.
    rank: int
    stage: int
    capacity_bytes: int  #: Device memory.
    #: The same of the first rank of every pipeline stage.
    stages: tuple[MemoryReport, ...] = field(default=(), repr=False, compare=False)
    #: The layer that needs most beside what is saved, and the operator in it that moves most; or the optimizer step.
    peak_at: str = ""

    @property
    def allocated_bytes(self) -> int:
        """What ``torch.cuda.max_memory_allocated`` would report: everything but context, NCCL and fragmentation."""
        outside = ("context", "communicators", "fragmentation")
        return sum(n for name, n in self.by_category.items() if name not in outside)

    @property
    def reserved_bytes(self) -> int:
        """What ``torch.cuda.max_memory_reserved`` would report: allocated, and lost between the allocator's blocks."""
        return self.allocated_bytes + self.by_category.get("fragmentation", 0)

    @property
    def peak_bytes(self) -> int:
        """Everything the device must hold."""
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        """The verdict."""
        return self.peak_bytes <= self.capacity_bytes

    def explain(self) -> str:
        """Say what is missing, in one sentence."""
        worst = max(self.by_category, key=lambda name: self.by_category[name])
        missing = self.peak_bytes - self.capacity_bytes
        layer = self.peak_at if self.peak_at == OPTIMIZER_STEP else f"layer {self.peak_at}"
        place = f" at its peak, in {layer}" if self.peak_at else ""
        return (
            f"rank {self.rank} (stage {self.stage}) needs {format_bytes(self.peak_bytes)} of {format_bytes(self.capacity_bytes)}"
            f"{place}: {format_bytes(missing)} too much; the largest part is {CATEGORIES[worst]} with "
            f"{format_bytes(self.by_category[worst])}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter that stay for the whole run, before sharding."""

    parameter: int
    gradient: int
    optimizer: int  #: Of a parameter that Adam updates.
    matrix: int  #: The same of one in a matrix of a block, of which Muon keeps one moment.
    moment: int  #: One moment of Adam's.

    def optimizer_bytes(self, n_parameters: int, n_matrix_parameters: int) -> int:
        """Optimizer states of parameters, some of which are in matrices of blocks; vectors, tables and head are Adam's."""
        return n_parameters * self.optimizer - n_matrix_parameters * (self.optimizer - self.matrix)


def state_bytes(plan: ParallelPlan) -> StateBytes:
    """Bytes per parameter of weights, gradients and optimizer states in a precision.

    16-bit training keeps 16-bit weights and fp32 master weights with two fp32 moments unless ``master_bytes`` and
    ``moment_bytes`` say otherwise, or, where the optimizer steps the weights themselves, two moments in 16 bits at most; autocast
    and fp32 training keep fp32 weights, gradients and two moments. Full shards that are the master weights have no 16-bit weights
    beside them, and gradients of their type. Muon keeps one moment of a matrix.
    """
    half = plan.precision_spec.is_16_bit
    moments, matrix_moments = (plan.moment_bytes * MOMENTS[one] for one in ("adam", plan.optimizer))
    if half and not plan.framework_spec.master_weights:
        moment = min(2, plan.moment_bytes)
        n_bytes = moment * MOMENTS["adam"]
        return StateBytes(parameter=2, gradient=2, optimizer=n_bytes, matrix=n_bytes, moment=moment)
    if half and plan.shards_masters:
        width = plan.master_bytes
        return StateBytes(
            parameter=width, gradient=width, optimizer=moments, matrix=matrix_moments, moment=plan.moment_bytes
        )
    if half:
        main_gradient = 4 if plan.reduced_bytes == 4 else 2
        # what is whole is there in both directions
        parameter = min(2, plan.gathered_bytes) if plan.shards_parameters else 2
        return StateBytes(
            parameter=parameter,
            gradient=main_gradient,
            optimizer=plan.master_bytes + moments,
            matrix=plan.master_bytes + matrix_moments,
            moment=plan.moment_bytes,
        )
    return StateBytes(parameter=4, gradient=4, optimizer=moments, matrix=matrix_moments, moment=plan.moment_bytes)


def estimate(
    chunks: Sequence[Sequence[Sequence[Layer]]],
    in_flight: Sequence[Sequence[int]],
    plan: ParallelPlan,
    device: Device,
    *,
    shard_size: int,
    first_ranks: Sequence[int],
) -> MemoryReport:
    """Account for every stage and return the one that needs most.

    Parameters
    ----------
    chunks : sequence
        ``chunks[stage][chunk]`` is the layers of that virtual stage.
    in_flight : sequence
        ``in_flight[stage][chunk]`` is the most micro-batches whose activations are held at once.
    shard_size : int
        Ranks that share one sharded state.
    first_ranks : sequence of int
        A rank of each stage, for the verdict.
    """
    reports = []
    for stage, stage_chunks in enumerate(chunks):
        categories, peak_at = _stage_bytes(stage_chunks, in_flight[stage], plan, shard_size)
        categories["parameters"] += _narrow_weight_bytes(stage_chunks, plan, device)
        reports.append(
            MemoryReport(
                by_category=categories, rank=first_ranks[stage], stage=stage, capacity_bytes=int(device.memory_bytes),
                peak_at=peak_at,
            )
        )  # fmt: skip
    return replace(max(reports, key=lambda report: report.peak_bytes), stages=tuple(reports))


def check_host_memory(
    chunks: Sequence[Sequence[Sequence[Layer]]],
    plan: ParallelPlan,
    shard_size: int,
    *,
    n_ranks: int,
    host_bytes: float | None,
) -> None:
    """Check that the states which the ranks of a host offload fit into its memory.

    Parameters
    ----------
    chunks : sequence
        ``chunks[stage][chunk]`` is the layers of that virtual stage.

    References
    ----------
    Ren et al., ZeRO-Offload, arXiv:2101.06840, section 4: optimizer states and gradients are on the host.
    """
    if host_bytes is None or "cpu" not in (plan.offload_optimizer, plan.offload_parameters):
        return
    stages = (_States.of([layer for chunk in stage for layer in chunk], plan, shard_size) for stage in chunks)
    needed = n_ranks * max(states.offloaded_bytes() for states in stages)
    if needed > host_bytes:
        raise InfeasiblePlanError(
            f"the states that the {n_ranks} GPUs of a host offload need {format_bytes(needed)} of its {format_bytes(host_bytes)}",
            hint="more GPUs share the states (--gpus), or --set offload_optimizer=none keeps them on the device",
        )


def _needs(chunk: Sequence[Layer], *, is_whole: bool = True) -> Iterator[tuple[int, Layer]]:
    """Each layer with what its passes need beside all that a chunk saves, from the last to the first.

    While a layer runs, those behind it hold nothing: they have not run forward yet, or have run backward already, where backward
    is whole: they wait for the gradients of their weights where it is split.
    """
    behind = 0
    for layer in reversed(chunk):
        yield layer.transient_bytes - behind, layer
        behind += layer.saved_bytes if is_whole else 0


def _working_bytes(chunks: Sequence[Sequence[Layer]], plan: ParallelPlan) -> tuple[int, str]:
    """Return the most that a layer needs beside all that is saved; its name, and the operator in it that moves most."""
    is_whole = find_schedule(plan.schedule, plan.virtual_pp).ends_with_first_chunk
    needs = [need for chunk in chunks for need in _needs(chunk, is_whole=is_whole)]
    if not needs:
        return 0, ""
    most, layer = max(needs, key=itemgetter(0))
    return most, f"{layer.name} (operator {layer.heaviest})" if layer.heaviest else layer.name


def _sum(elements: Iterable[tuple[Elements, int]]) -> Elements:
    """Add elements up, given how often there is a layer with them."""
    n = n_expert = 0
    for one, times in elements:
        n += times * one.n
        n_expert += times * one.n_expert
    return Elements(n, n_expert)


def _held_bytes(n_bytes: int, elements: Elements, plan: ParallelPlan, n_shards: int) -> int:
    """Bytes of a state on one rank: experts have replicas of their own, mostly fewer, to be sharded over; 0 shards are a whole state."""
    if not n_shards:
        return elements.n * n_bytes
    n_experts = elements.n_expert if plan.has_expert_axes else 0
    return (elements.n - n_experts) * n_bytes // n_shards + n_experts * n_bytes // plan.expert_shards(n_shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class _States:
    """Weights, gradients and optimizer states of one rank of a stage."""

    plan: ParallelPlan
    shard_size: int
    bytes_each: StateBytes
    every: Elements
    trained: Elements
    matrices: Elements  #: Of trained matrices of blocks.

    @classmethod
    def of(cls, layers: Sequence[Layer], plan: ParallelPlan, shard_size: int) -> _States:
        """Count the elements of a stage's layers."""
        each = counted(layers)  # equal ones are the same object
        return cls(
            plan=plan,
            shard_size=shard_size,
            bytes_each=state_bytes(plan),
            every=_sum((layer.elements, n) for layer, n in each),
            trained=_sum((layer.trained_elements, n) for layer, n in each),
            matrices=_sum((layer.matrix_elements, n) for layer, n in each),
        )

    @property
    def shards_gradients(self) -> bool:
        """Whether a rank keeps its shard of the gradients alone."""
        once = self.plan.synchronises_once and not self.plan.framework_spec.data_parallel.sums_shards
        return (self.plan.shards_parameters or self.plan.sharding == "zero2") and not (
            once or self.plan.defers_reduction
        )

    def held(self, n_bytes: int, elements: Elements, *, is_sharded: bool, n_shards: int | None = None) -> int:
        """Bytes of a state of ``n_bytes`` an element, which ``n_shards`` ranks share if it is sharded."""
        n_shards = self.shard_size if n_shards is None else n_shards
        is_alone = self.plan.shards_parameters and n_shards == 1
        return _held_bytes(n_bytes, elements, self.plan, n_shards if is_sharded and not is_alone else 0)

    def stepped(self, n_bytes: int, elements: Elements) -> int:
        """Bytes of a state that the optimizer keeps or reads, of the elements that this rank steps."""
        n_shards = self.plan.state_ranks(self.shard_size)
        return self.held(n_bytes, elements, is_sharded=self.plan.sharding != "none", n_shards=n_shards)

    def parameter_bytes(self) -> int:
        """Bytes of the weights that stay between steps."""
        return self.held(self.bytes_each.parameter, self.every, is_sharded=self.plan.shards_parameters)

    def optimizer_bytes(self) -> int:
        """Bytes of what the optimizer keeps; Muon has no second moment of a matrix."""
        each = self.bytes_each
        return self.stepped(each.optimizer, self.trained) - self.stepped(each.optimizer - each.matrix, self.matrices)

    def offloaded_bytes(self) -> int:
        """Bytes that are in host memory: with the optimizer states the gradients that they are stepped by."""
        states = self.optimizer_bytes() + self.stepped(self.bytes_each.gradient, self.trained)
        return states * (self.plan.offload_optimizer == "cpu") + self.parameter_bytes() * (
            self.plan.offload_parameters == "cpu"
        )


def _stage_bytes(
    chunks: Sequence[Sequence[Layer]], in_flight: Sequence[int], plan: ParallelPlan, shard_size: int
) -> tuple[dict[str, int], str]:
    """Return the bytes of one stage by category, and where its peak is.

    The optimizer step finds neither activations nor gathered parameters: what it needs beyond them is working memory, too. Operation
    by operation it takes the roots of all second moments at once (pytorch/pytorch, ``torch/optim/adam.py``, ``_multi_tensor_adam``).

    CUDA graphs have a pool of their own, whose temporaries nothing else may use while they are not replayed (PyTorch, ``CUDA
    semantics``, "graph memory management").
    """
    layers = [layer for chunk in chunks for layer in chunk]
    states = _States.of(layers, plan, shard_size)
    every, trained, state = states.every, states.trained, states.bytes_each
    shards_parameters, shards_gradients = plan.shards_parameters, states.shards_gradients
    is_offloaded = plan.offload_optimizer == "cpu"
    saved = [sum(layer.saved_bytes for layer in chunk) * n for chunk, n in zip(chunks, in_flight, strict=True)]
    working, peak_at = _working_bytes(chunks, plan)
    gathered = _gathered_bytes(layers, plan, shard_size)
    categories = {
        "parameters": _parameter_bytes(states.parameter_bytes(), every.n, plan, shard_size)
        - _narrowed_bytes(layers, plan, shard_size if shards_parameters else 1),
        "gradients": 0
        if is_offloaded and shards_gradients
        else states.held(
            plan.summed_bytes if plan.defers_reduction else state.gradient, trained, is_sharded=shards_gradients
        )
        + _placeholder_bytes(layers, plan),
        "optimizer": 0 if is_offloaded else states.optimizer_bytes() + _left_out_bytes(trained.n, plan),
        "activations": sum(saved),
        "transient": working,
        "buffers": gathered
        + _bucket_bytes(trained.n, plan, shards_parameters=shards_parameters, shards_gradients=shards_gradients),
        "context": CONTEXT_BYTES,
        "communicators": _communicator_bytes(plan, has_experts=every.n_expert > 0),
    }
    categories["graphs"] = working if _has_graphs(layers, plan) else 0
    dynamic = sum(saved) + working
    in_step = categories["gradients"] + _gathered_matrix_bytes(layers, plan)
    if plan.steps_adam == "foreach":
        in_step += states.stepped(state.moment, trained)
    if plan.framework_spec.data_parallel.frees_gradients and plan.n_micro_batches == 1:
        categories["gradients"] = _appearing_gradients(layers, state.gradient)
    in_step -= dynamic + categories["gradients"] + gathered
    categories["transient"] += max(0, in_step)
    categories["fragmentation"] = round(plan.framework_spec.fragmentation * dynamic)
    return categories, OPTIMIZER_STEP if in_step > 0 else peak_at


def _has_graphs(layers: Sequence[Layer], plan: ParallelPlan) -> bool:
    """Whether a plan captures any of these layers, or of their modules."""
    if plan.captures_iteration or captures_layers(plan):
        return True
    kernels = (item for layer in distinct(layers) for item in layer.forward if isinstance(item, Launch))
    return bool(plan.captured_modules) and any(item.is_captured for item in kernels)


def _communicator_bytes(plan: ParallelPlan, *, has_experts: bool) -> int:
    sizes = [plan.dp * plan.cp, plan.tp, plan.pp]
    if has_experts:
        sizes += [plan.ep, plan.expert_tp * (plan.expert_tp != plan.tp)]
    return NCCL_COMMUNICATOR_BYTES * sum(n > 1 for n in sizes)


def _left_out_bytes(n_trained: int, plan: ParallelPlan) -> int:
    """Return what signs leave out of a momentum, kept in fp32 by who sends it whole and by who averages its part of it."""
    return 4 * n_trained + 4 * n_trained // (plan.dp * plan.cp) if plan.gradient_compression == "onebit" else 0


def _narrow_weight_bytes(chunks: Sequence[Sequence[Layer]], plan: ParallelPlan, device: Device) -> int:
    """Return what Transformer Engine keeps of trained weights in the narrow type of their products, beyond 16-bit weights.

    It casts them once a step, for all micro-batches, along rows, and along columns where scales are of blocks or the device
    multiplies no other layout. With weights that are narrow themselves there are none in 16 bits (``fp8_param_gather``).

    References
    ----------
    NVIDIA/TransformerEngine, ``pytorch/module/base.py``, ``get_weight_workspace``; NVIDIA/Megatron-LM,
    ``extensions/transformer_engine.py``, ``is_first_microbatch``.
    """
    narrowing = plan.precision_spec.quantisation
    if narrowing is None or not plan.framework_spec.calls_modules or plan.lora_rank or plan.shards_parameters:
        return 0
    products = plan.precision_spec.products
    n_weights = sum(layer.multiplied_elements.get(products, 0) for chunk in chunks for layer in chunk)
    is_once = plan.precision_spec.has_tensor_scales and device.multiplies_any_layout
    kept = n_weights * narrowing.element_bytes * (1 if is_once else 2)
    return round(kept) - (2 * n_weights if plan.keeps_narrow else 0)


def _placeholder_bytes(layers: Sequence[Layer], plan: ParallelPlan) -> int:
    """Return what autograd is given in place of gradients that fused products have added to the main ones, in 16 bits.

    Transformer Engine keeps one tensor for each shape of a weight; Megatron's own head makes one in its backward, where the peak is
    (NVIDIA/Megatron-LM, ``core/tensor_parallel/layers.py``, ``LinearWithGradAccumulationAndAsyncCommunication``).
    """
    facts = plan.release_facts
    are_fused = (
        STYLES[plan.framework_spec.kernels].accumulates_in_product
        and not plan.framework_spec.data_parallel.fsdp_version
    )
    is_kept = facts.keeps_placeholders and are_fused and plan.precision_spec.is_16_bit
    if not is_kept or plan.lora_rank or plan.shards_parameters:
        return 0
    gradients = (one for layer in distinct(layers) for one in layer.weight_gradients)
    shapes = {(one.m, one.n) for one in gradients if facts.keeps_expert_placeholders or not is_expert(one)}
    return DTYPE_BYTES[plan.precision_spec.weights] * sum(m * n for m, n in shapes)


def _narrowed_bytes(layers: Sequence[Layer], plan: ParallelPlan, n_shards: int) -> int:
    """Return what frozen weights need less where they are kept in the narrow type of their products only.

    That type is kept in both directions where scales are of blocks, along which each direction is quantised anew. With one scale
    the other direction is a transposition, which is made when it is needed: 70B parameters run without tensor parallelism in the
    141 GB of an H200 (MLPerf Training 5.0, LoRA), where both directions alone would be 138. Trained weights keep sixteen bits or both
    directions, which is as much.
    """
    narrowing = plan.precision_spec.quantisation
    if not plan.lora_rank or narrowing is None:
        return 0
    directions = 1 if plan.precision_spec.has_tensor_scales else 2
    n_frozen = sum(layer.n_parameters - layer.n_trained_parameters for layer in layers if layer.is_block)
    return max(0, round(n_frozen * (2 - directions * narrowing.element_bytes))) // n_shards


def _appearing_gradients(layers: Sequence[Layer], gradient_bytes: int) -> int:
    """Bytes that gradients add to the peak when ``zero_grad`` frees them and backward makes them anew.

    Backward visits the layers from the last to the first: what it has passed holds gradients, what is before it still
    holds activations. The peak is the largest such sum; what exceeds all activations and the largest transient is the
    gradients' part of it.
    """
    saved = sum(layer.saved_bytes for layer in layers)
    start = saved + max((need for need, _ in _needs(layers)), default=0)
    peak, gradients = start, 0
    for layer in reversed(layers):
        peak = max(peak, saved + layer.transient_bytes + gradients)
        saved -= layer.saved_bytes
        gradients += layer.n_trained_parameters * gradient_bytes
    return max(peak, gradients) - start


def _parameter_bytes(held: int, n_parameters: int, plan: ParallelPlan, shard_size: int) -> int:
    """Bytes of the parameters that stay: none if they live on the host; a second, less finely sharded copy if there is one."""
    if plan.offload_parameters == "cpu":
        return 0
    if plan.secondary_group is None or not plan.has_second_copy:
        return held
    return held + plan.gathered_bytes * n_parameters // min(plan.secondary_group, shard_size)


def _gathered_bytes(layers: Sequence[Layer], plan: ParallelPlan, shard_size: int) -> int:
    """Bytes of gathered units that are alive at once.

    Of DeepSpeed the current one and its prefetch bucket; of FSDP as many blocks as the plan says, and the root: what is outside the
    blocks, which stays from forward to backward. Experts without replicas of their own are not sharded, so that nothing of them is
    gathered. FSDP's ``zero2`` keeps all that forward gathered until backward.
    """
    if not plan.shards_parameters:
        return 0
    if plan.synchronises_once:
        return plan.gathered_bytes * sum(layer.n_parameters for layer in layers)
    has_whole_experts = plan.has_expert_axes and plan.expert_shards(shard_size) <= 1
    by_layer = {
        id(layer): layer.n_parameters - (layer.n_expert_parameters if has_whole_experts else 0)
        for layer in distinct(layers)
    }
    units = [by_layer[id(layer)] for layer in layers]
    if plan.keeps_gathered:
        return plan.gathered_bytes * sum(units)
    limits = plan.zero3_limits
    if limits is not None:
        unit = max(units, default=0)
        ahead = max(unit, min(limits.prefetch_elements, limits.max_live_elements))
        return plan.gathered_bytes * min(unit + ahead, sum(layer.n_parameters for layer in layers))
    blocks = [n for n, layer in zip(units, layers, strict=True) if layer.is_block]
    alive = min(plan.gathered_units * max(blocks, default=0), sum(blocks))
    return max(2, plan.gathered_bytes) * (sum(units) - sum(blocks)) + plan.gathered_bytes * int(alive)


def _gathered_matrix_bytes(layers: Sequence[Layer], plan: ParallelPlan) -> int:
    """Bytes of the largest matrix that Muon gathers from tensor-parallel ranks, in fp32: once as their parts, once as the whole.

    References
    ----------
    NVIDIA-NeMo/Emerging-Optimizers, ``orthogonalized_optimizers/muon_utils.py``, ``newton_schulz_tp``.
    """
    if plan.optimizer != "muon" or plan.muon_tp_mode != "duplicated":
        return 0
    gathered = [whole(one, plan) for one in matrices_of(distinct(layers)) if sharing(one, plan)[1] > 1]
    return max((2 * DTYPE_BYTES["fp32"] * one.m * one.n for one in gathered), default=0)


def _bucket_bytes(n_parameters: int, plan: ParallelPlan, *, shards_parameters: bool, shards_gradients: bool) -> int:
    """Flat communication buffers: DDP's buckets copy all gradients unless ranks keep shards; DeepSpeed keeps one or two."""
    facts = plan.framework_spec.data_parallel
    if plan.dp * plan.cp == 1:
        return 0
    if facts.holds_buckets:
        bucket_bytes = round(min(n_parameters * plan.reduced_bytes, plan.bucket_sizes(plan.dp * plan.cp)[1]))
        return bucket_bytes * (2 if plan.overlaps and not shards_parameters else 1)
    if facts.copies_into_buckets and not plan.gradient_as_bucket_view and not shards_gradients:
        return n_parameters * plan.reduced_bytes
    return 0
