"""The documented answer: a result, its plain data with a type for every key, and its summary in ten lines.

These types, and those of :mod:`simulator.analysis` that they are made of, are the words in which everything answers: the
main command, replays, rows of sweeps and searches. ``docs/answer.schema.json`` is made from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, TypedDict, cast

from simulator import __version__
from simulator.analysis.confidence import Confidence, confidence_of, features_of
from simulator.analysis.idle_inputs import Beside, idle_inputs
from simulator.analysis.link_use import LinkTraffic
from simulator.analysis.memory_trace import memory_points
from simulator.analysis.metrics import AXES, PARTS, Breakdown, CommunicationRow, Metrics
from simulator.analysis.passes import behind, passes_of, table_of
from simulator.analysis.support import Support, support_of
from simulator.config import notebook_table
from simulator.errors import ConfigError
from simulator.memory import CATEGORIES, MemoryReport
from simulator.models.layer import Model
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.parallel.lower import blocks_of_parts
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.fields import in_words
from simulator.plan.rules import (
    adapter_doubt,
    capture_doubt,
    fusion_doubt,
    graphs_doubt,
    layout_doubt,
    offload_doubt,
    recompute_doubt,
    vendor_doubt,
)
from simulator.plan.stage_layout import in_runs
from simulator.scenario import Scenario
from simulator.schedules import find_schedule, placement_of
from simulator.timeline import MemoryPoint, Timeline
from simulator.topology import Topology
from simulator.units import count_of, format_bandwidth, format_bytes, format_number, format_time

Category = Literal[
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "transient_bytes", "buffers_bytes",
    "communicators_bytes", "context_bytes", "fragmentation_bytes", "graphs_bytes",
]  # fmt: skip

#: categories of memory, which add up to the peak, and what they are called
MEMORY_PARTS = cast(dict[Category, str], {f"{name}_bytes": words for name, words in CATEGORIES.items()})

#: share of a time below which two answers take the same
SAME = 5e-4
#: share of the device's memory that a plan should leave free, for what no model sees: an assumption
MEMORY_MARGIN = 0.05


class Memory(TypedDict):
    """Bytes on the rank that needs most. The categories add up to the peak."""

    parameters_bytes: int  #: Parameters in the precision that computes.
    gradients_bytes: int  #: Gradients, accumulated ones included.
    optimizer_bytes: int  #: Master parameters and moments.
    activations_bytes: int  #: Saved for the backward, of all micro-batches in flight at the peak.
    transient_bytes: int  #: Working memory of the operator that needs most.
    buffers_bytes: int  #: Gathered parameters and communication buckets.
    context_bytes: int  #: The CUDA context.
    communicators_bytes: int  #: Buffers of NCCL.
    fragmentation_bytes: int  #: Lost between the allocator's blocks.
    graphs_bytes: int  #: Working memory of what is captured in CUDA graphs, which have a pool of their own.
    allocated_bytes: int  #: What ``torch.cuda.max_memory_allocated`` reports.
    reserved_bytes: int  #: What ``torch.cuda.max_memory_reserved`` reports.
    peak_bytes: int  #: Everything that the device must hold.
    #: The same of the first rank of every pipeline stage, in their order.
    stages_peak_bytes: list[int]
    capacity_bytes: int  #: Memory of the device.
    peak_at: str  #: Layer and operator at the peak, or the optimizer step.
    fits: bool  #: Whether the peak is within the capacity.
    margin: float  #: Share of the capacity that should stay free: ``--memory-margin``.
    is_tight: bool  #: Whether the plan fits, and less than the margin stays free.


class Bottleneck(TypedDict):
    """The link that is busy for the largest share of the iteration."""

    link: str  #: ``source -> target``.
    kind: str  #: Such as ``nic`` or ``nvlink``.
    bandwidth_bytes_per_s: float  #: Per direction.
    busy_s: float  #: Seconds that its bytes take at its full rate.
    utilization: float  #: The same as a share of the iteration.


class Provenance(TypedDict):
    """What made the answer."""

    version: str  #: Of this program.
    scenario: dict[str, Any]  #: Every input, with the plan resolved.
    digest: str  #: Content address of the scenario.
    model_parameters: int  #: Of the whole model.
    device: str  #: The GPU.
    n_events: int  #: Events that the engine processed.
    chosen: dict[str, str]  #: Settings that were left open, and how each was chosen.
    not_modelled: list[str]  #: What the answer leaves out because an input does not say it.
    #: What the framework itself would refuse of what is simulated, or what is out of all proportion, and what to set instead.
    warnings: list[str]


class Answer(TypedDict):
    """One training iteration: how long it takes, where the time goes, and whether it fits."""

    iteration_time_s: float  #: Of one optimizer step.
    samples_per_s: float  #: Sequences.
    tokens_per_s: float | None  #: Of all GPUs together; null for models that know no tokens.
    tflops_per_gpu: float  #: Model FLOPs per second and GPU, in units of 1e12.
    #: Model FLOPs utilization: ``tflops_per_gpu`` over the peak of the device in the plan's precision. The model's
    #: FLOPs are those of forward and twice as many of backward, without recomputation; of attention all keys that the model lets a
    #: token look at count, those of its document, window or chunk, as in PaLM (arXiv 2204.02311, appendix B) whether before or
    #: after it, although causal kernels skip half of them. Of a long document it may therefore exceed 1, in fp32 the more so,
    #: of which fused attention makes products in TF32.
    mfu: float
    #: Hardware FLOPs utilization: the same with what activation checkpointing runs again, counted alike, so that without it both are
    #: equal (PaLM, appendix B; Korthikanti et al., arXiv 2205.05198, appendix A) and both may exceed 1 for the same reason.
    hfu: float
    breakdown: Breakdown  #: Where the time goes.
    communication_fraction: float  #: Exposed communication as a share of the iteration.
    communication: list[CommunicationRow]  #: One row per collective, axis and group size.
    memory: Memory  #: Of the rank that needs most.
    #: Blocks of every chunk of every pipeline stage, embedding and head not counted; none without a pipeline.
    stages: list[list[int]]
    bottleneck: Bottleneck | None  #: The busiest link; null where no link carries anything.
    confidence: Confidence  #: The 80 % interval of the iteration.
    support: Support  #: Whether measured runs validate it.
    provenance: Provenance  #: What made the answer.


class Figures(TypedDict):
    """An answer in one row of a table."""

    iteration_time_s: float
    samples_per_s: float
    tokens_per_s: float | None
    tflops_per_gpu: float
    mfu: float
    hfu: float
    communication_fraction: float
    peak_bytes: int
    capacity_bytes: int
    low_s: float
    high_s: float


def figures_of(answer: Answer) -> Figures:
    """Return the figures of an answer that rows of tables have."""
    memory, sure = answer["memory"], answer["confidence"]
    return Figures(
        iteration_time_s=answer["iteration_time_s"], samples_per_s=answer["samples_per_s"],
        tokens_per_s=answer["tokens_per_s"], tflops_per_gpu=answer["tflops_per_gpu"], mfu=answer["mfu"], hfu=answer["hfu"],
        communication_fraction=answer["communication_fraction"], peak_bytes=memory["peak_bytes"],
        capacity_bytes=memory["capacity_bytes"], low_s=sure["low_s"], high_s=sure["high_s"],
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """One answer, with everything that went into it."""

    scenario: Scenario  #: With the plan resolved, as it ran: unfolded where the ranks of a class share links unequally.
    topology: Topology
    spec: ModelSpec | RecordedModule
    model: Model
    timeline: Timeline
    memory: MemoryReport
    metrics: Metrics
    link_busy_s: dict[int, float]  #: Seconds that each link needs for its bytes at its full rate, by link index.
    traffic: tuple[
        LinkTraffic, ...
    ] = ()  #: What each kind of communication sends over NVLink, and what leaves its domain.
    #: Settings that were left open and how each was chosen, by name.
    chosen: dict[str, str] = field(default_factory=dict)
    #: Share of the memory that should stay free: answers that leave less are marked.
    memory_margin: float = MEMORY_MARGIN
    #: Whether it ran unfolded because no split of classes sufficed, and not because that was asked for.
    is_unfolded_unasked: bool = False

    @property
    def asked(self) -> Scenario:
        """The scenario, folded unless it was asked to be unfolded: what other plans and machines start from."""
        return replace(self.scenario, unfold=False) if self.is_unfolded_unasked else self.scenario

    @property
    def plan(self) -> ParallelPlan:
        """The plan as it ran."""
        return self.scenario.plan

    @cached_property
    def answer(self) -> Answer:
        """The documented answer, as ``--json`` prints it."""
        return to_json(self)

    @property
    def warnings(self) -> list[str]:
        """What the framework itself would refuse of what is simulated, or is out of all proportion, and what to set instead."""
        plan, n_predictions = self.plan, sum(layer.role == "prediction" for layer in self.model.layers)
        n_blocks = sum(layer.is_block for layer in self.model.layers)
        doubts = (
            graphs_doubt(plan),
            capture_doubt(plan, has_experts=self.spec.has_experts),
            fusion_doubt(plan, has_experts=self.spec.has_experts),
            vendor_doubt(plan, self.topology.device(0).vendor),
            layout_doubt(plan, self.blocks_of_parts, n_predictions),
            recompute_doubt(plan, self.blocks_of_parts or [n_blocks]),
            offload_doubt(plan, n_blocks),
            adapter_doubt(plan, getattr(self.spec, "hidden", 0)),
            positions_doubt(self.spec, plan.sequence_length),
        )
        return [doubt for doubt in doubts if doubt]

    @cached_property
    def blocks_of_parts(self) -> list[int]:
        """Blocks of every virtual stage, in the order of the model; none without a pipeline."""
        return blocks_of_parts(self.model, self.plan) if self.plan.pp > 1 else []

    def idle_inputs(self, given: Collection[str] = (), beside: Collection[Beside] = ()) -> list[str]:
        """Name the inputs that have no effect on this result, nor on what is asked for ``beside`` it.

        Of settings of the plan those that are ``given``.
        """
        return idle_inputs(
            self.scenario, self.topology, self.spec, link_busy_s=self.link_busy_s, given=given, beside=beside
        )

    def __repr__(self) -> str:
        title, rows = _summary(self)
        return "\n".join([title, *(f"{name:<15}{value}" for name, value in rows)])

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        return notebook_table(*_summary(self))


def to_json(result: Result) -> Answer:
    """Return the documented answer as plain data."""
    plan, metrics = result.plan, result.metrics
    seconds = metrics.iteration_time_s
    device = result.topology.device(0)
    peak_flops_per_s = device.peak(plan.precision_spec.products)
    per_gpu = result.model.model_flops_per_sequence * plan.global_batch / seconds / plan.gpus
    least_s = metrics.least_s
    assert least_s <= seconds, f"{device.name} needs {least_s:.4g} s for what is said to run in {seconds:.4g} s"
    has_tokens = not isinstance(result.spec, RecordedModule) or result.spec.has_tokens
    experts, family = result.spec.has_experts, getattr(result.spec, "architecture", "module")
    return Answer(
        iteration_time_s=seconds,
        samples_per_s=plan.global_batch / seconds,
        tokens_per_s=plan.global_batch * plan.sequence_length / seconds if has_tokens else None,
        tflops_per_gpu=per_gpu / 1e12,
        mfu=per_gpu / peak_flops_per_s,
        hfu=(per_gpu + metrics.recomputed_flops / seconds) / peak_flops_per_s,
        breakdown=metrics.breakdown,
        communication_fraction=metrics.communication_fraction,
        communication=metrics.communication,
        memory=_memory(result.memory, result.memory_margin),
        stages=_stages(result),
        bottleneck=bottleneck(result),
        confidence=confidence_of(
            plan,
            device,
            seconds,
            experts=experts,
            communication_s=metrics.breakdown["exposed_communication_s"],
            n_nodes=result.topology.n_nodes,
        ),
        support=support_of(features_of(plan, device, experts=experts, family=family)),
        provenance=Provenance(
            version=__version__,
            scenario=result.scenario.to_dict(),
            digest=result.scenario.digest(),
            model_parameters=result.spec.n_parameters,
            device=device.name,
            n_events=result.timeline.n_events,
            chosen=result.chosen,
            not_modelled=not_modelled(result),
            warnings=result.warnings,
        ),
    )


def _memory(report: MemoryReport, margin: float) -> Memory:
    found = {f"{name}_bytes": n_bytes for name, n_bytes in report.by_category.items()} | {
        name: getattr(report, name)
        for name in ("allocated_bytes", "reserved_bytes", "peak_bytes", "capacity_bytes", "peak_at", "fits")
    }
    found["is_tight"] = is_tight(report.peak_bytes, report.capacity_bytes, margin)
    return cast(Memory, {**found, "margin": margin, "stages_peak_bytes": [stage.peak_bytes for stage in report.stages]})


def _stages(result: Result) -> list[list[int]]:
    plan, blocks = result.plan, result.blocks_of_parts
    if not blocks:
        return []
    placement = placement_of(plan.schedule, plan.pp, plan.virtual_pp)
    return [
        [blocks[placement.part(placement.virtual_stage(stage, chunk))] for chunk in range(placement.n_chunks)]
        for stage in range(placement.n_stages)
    ]


def memory_over_time(result: Result, *, whole: bool = False) -> dict[int, list[MemoryPoint]]:
    """Return the memory over the step of the first rank of every pipeline stage, by rank.

    Periods that :meth:`Timeline.shown` leaves out have no points, unless it is to be the whole step.
    """
    timeline, stages = result.timeline, {report.rank: report.stage for report in result.memory.stages}
    shown, gap = (timeline, None) if whole else timeline.shown()
    passes = passes_of(shown, table_of(result.plan, gap), stages)
    return {
        report.rank: memory_points(
            _memory(report, result.memory_margin), behind(passes[report.rank], gap, on_clock=True), timeline.makespan_ps
        )
        for report in result.memory.stages
    }


def chosen(asked: ParallelPlan, plan: ParallelPlan, memory: MemoryReport) -> dict[str, str]:
    """Say how the settings that a plan leaves open were chosen."""
    largest = SETTINGS["micro_batch"].unset if memory.fits else "the smallest, though even that does not fit"
    is_whole = bool(asked.global_batch) and memory.fits and plan.n_micro_batches == 1
    reasons = {
        "gpus": "all of the cluster",
        "micro_batch": "all of a replica's batch" if is_whole else largest,
        "global_batch": f"{plan.n_micro_batches} micro-batch{'es' * (plan.n_micro_batches > 1)} per replica",
        "sequence_length": "the model's own",
    }
    return {name: why for name, why in reasons.items() if not getattr(asked, name) and getattr(plan, name)}


def positions_doubt(spec: ModelSpec | RecordedModule, sequence_length: int) -> str:
    """Return what a framework says of sequences beyond a model's learned positions; empty where there are none.

    References
    ----------
    NVIDIA/Megatron-LM, ``training/arguments.py``: ``assert args.max_position_embeddings >= args.seq_length``.
    """
    if not isinstance(spec, ModelSpec) or spec.positions != "learned" or sequence_length <= spec.max_positions:
        return ""
    return (
        f"sequence_length={sequence_length} is beyond the {spec.max_positions} positions that {spec.name} has learned: frameworks refuse "
        f"it; use --sequence-length {spec.max_positions}, or a model file with more"
    )


def not_modelled(result: Result) -> list[str]:
    """Name what the answer leaves out because an input does not say it."""
    left_out = []
    if result.topology.storage is None and not result.plan.sample_time_s:
        left_out.append("reading data: the cluster file has no storage section")
    return left_out


def bottleneck(result: Result) -> Bottleneck | None:
    """Return the link that is busy for the largest share of the iteration."""
    if not result.link_busy_s:
        return None
    index = max(result.link_busy_s, key=lambda i: (result.link_busy_s[i], -i))
    link, busy_s = result.topology.links[index], result.link_busy_s[index]
    return Bottleneck(
        link=f"{link.source} -> {link.target}",
        kind=link.kind,
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        busy_s=busy_s,
        utilization=busy_s / result.metrics.iteration_time_s,
    )


# -- in words ----------------------------------------------------------------------------------------------------


def _said(plan: ParallelPlan) -> list[tuple[str, str]]:
    """Return what is not trivial in a plan, in words and in short, where the short line leaves out what all plans of a list share."""
    degrees = {name: getattr(plan, name) for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1}
    if plan.etp not in (None, plan.tp):
        degrees["etp"] = plan.etp
    said = [(count_of(plan.gpus, "GPU") if plan.gpus else "", ""), (f"dp={plan.dp}" * (plan.dp > 1), f"dp{plan.dp}")]
    said += [(f"{name}={degree}", f"{name}{degree}") for name, degree in degrees.items()]
    if plan.virtual_pp > 1:
        said.append((f"virtual_pp={plan.virtual_pp}", f"v{plan.virtual_pp}"))
    said += [(f"micro-batch {plan.micro_batch}", f"mb{plan.micro_batch}"), (f"global batch {plan.global_batch}", "")]
    narrow = f"{plan.fp8_modules} in 8 bits" if plan.fp8_modules else ""
    said += [(f"sequence {plan.sequence_length}", ""), (plan.precision, ""), (narrow, "")]
    if plan.sequence_parallel:
        said.append(("sequence parallelism", "sp"))
    if plan.sharding != "none":
        said.append((plan.sharding, plan.sharding))
    if plan.pp > 1:
        said.append((find_schedule(plan.schedule, plan.virtual_pp).name, ""))
    if plan.ep > 1:
        said.append((f"{plan.moe_dispatcher} dispatcher", ""))
    said.append(("fused experts" * plan.moe_fused_experts, ""))
    if plan.recompute != "none":
        modules = plan.recompute_modules or ""
        said.append(
            (f"{plan.recompute} recompute{modules and f' of {modules}'}", f"{modules or plan.recompute}-recompute")
        )
    if plan.lora_rank:
        said.append((f"LoRA of rank {plan.lora_rank}", ""))
    if plan.cuda_graphs not in (None, "none"):
        said.append((f"CUDA graphs of {plan.cuda_graphs}", ""))
    if plan.offload_layers:
        said.append((f"{plan.offload_layers} layers' activations on the host", ""))
    if plan.offload_modules:
        said.append((f"inputs of {plan.offload_modules} on the host", ""))
    return [*said, (f"{plan.attention} attention", ""), (plan.framework, "")]


def describe_plan(plan: ParallelPlan) -> str:
    """Say a plan in one line, leaving out what is trivial."""
    return ", ".join(words for words, _ in _said(plan) if words)


def abbreviate_plan(plan: ParallelPlan) -> str:
    """Say the choices of a plan in short.

    Examples
    --------
    >>> abbreviate_plan(ParallelPlan(dp=16, tp=8, pp=8, micro_batch=2, global_batch=512, sharding="zero1"))
    'dp16 tp8 pp8 mb2 zero1'
    """
    return " ".join(short for _, short in _said(plan) if short)


def describe_stages(plan: ParallelPlan, stages: Sequence[Sequence[int]]) -> str:
    """Say how layers lie on pipeline stages, and on their chunks in the order of the model; nothing without a pipeline.

    Examples
    --------
    >>> describe_stages(ParallelPlan(pp=4), [[7], [8], [8], [7]])
    'stages: 7 + 2 x 8 + 7 layers'
    >>> describe_stages(ParallelPlan(pp=2, virtual_pp=2), [[4, 4], [4, 1]])
    'stages: 8 + 5 layers, in chunks of 3 x 4 + 1'
    """
    if not stages:
        return ""
    place = placement_of(plan.schedule, plan.pp, plan.virtual_pp)
    parts = [stages[place.stage(virtual)][place.chunk(virtual)] for virtual in range(place.n_parts)]
    chunks = f", in chunks of {in_runs(parts)}" if place.n_chunks > 1 else ""
    return f"stages: {in_runs([sum(chunks) for chunks in stages])} layers{chunks}"


def describe_stage_memory(memory: Memory) -> str:
    """Say what the stages of a pipeline hold at most; nothing without one.

    Examples
    --------
    >>> describe_stage_memory({"stages_peak_bytes": [3 << 30, 5 << 29, 5 << 29, 2 << 30]})
    'peak by stage: 3.0, 2 x 2.5 and 2.0 GiB'
    >>> describe_stage_memory({"stages_peak_bytes": [3 << 30]})
    ''
    """
    peaks = [f"{n_bytes / 2**30:.1f}" for n_bytes in memory["stages_peak_bytes"]]
    if len(peaks) < 2:
        return ""
    runs = [(peak, len(list(alike))) for peak, alike in groupby(peaks)]
    *first, last = [f"{count} x {peak}" if count > 1 else peak for peak, count in runs]
    before = f"{', '.join(first)} and " if first else ""
    return f"peak by stage: {before}{last} GiB"


def throughput(answer: Answer) -> tuple[float, str]:
    """Return tokens per second where the model knows any, else samples per second, and the unit."""
    tokens_per_s = answer["tokens_per_s"]
    return (answer["samples_per_s"], "samples/s") if tokens_per_s is None else (tokens_per_s, "tokens/s")


def describe_scaling(plans: Sequence[ParallelPlan]) -> str:
    """Say which settings differ between the plans of a scaling table, and that the others do not.

    Examples
    --------
    >>> describe_scaling([ParallelPlan(gpus=n, dp=n, micro_batch=2, global_batch=2 * n) for n in (2, 4)])
    'differs between the rows: dp 2, 4; global batch 4, 8; all else is the same'
    """
    rows = [plan.to_dict() for plan in plans]
    changed = [name for name in rows[0] if name != "gpus" and len({str(row[name]) for row in rows}) > 1]
    values = (f"{in_words(name)} {', '.join(str(row[name]) for row in rows)}" for name in changed)
    return f"differs between the rows: {'; '.join(values)}; all else is the same"


def describe_throughput(answer: Answer) -> str:
    """Say tokens per second, where the model knows any, and samples per second."""
    tokens = "" if answer["tokens_per_s"] is None else f"{answer['tokens_per_s']:,.0f} tokens/s, "
    return f"{tokens}{format_number(answer['samples_per_s'])} samples/s"


def describe_utilization(answer: Answer) -> str:
    """Say model FLOPs per second, MFU and HFU."""
    plan = answer["provenance"]["scenario"]["plan"]
    units = ", and make fp32 of TF32 where there is any" if plan["precision"] == "fp32" else ""
    why = f" (counts attention whole; causal kernels skip half{units})" if answer["mfu"] > 1 else ""
    return f"{answer['tflops_per_gpu']:.1f} TFLOP/s per GPU, MFU {answer['mfu']:.1%}{why}, HFU {answer['hfu']:.1%}"


def describe_chosen(answer: Answer) -> str:
    """Say which settings were chosen for the user, and how; nothing where none was left open."""
    origin = answer["provenance"]
    plan = origin["scenario"]["plan"]
    chosen = (f"{in_words(name)} {plan[name]} ({why})" for name, why in origin["chosen"].items())
    return f"chosen for you: {', '.join(chosen)}" if origin["chosen"] else ""


def describe_interval(confidence: Confidence) -> str:
    """Say an interval in a few words.

    Examples
    --------
    >>> describe_interval({"low_s": 0.9, "high_s": 1.2, "basis": ""})
    '80 %: 900 ms to 1.2 s'
    """
    return f"80 %: {format_time(confidence['low_s'])} to {format_time(confidence['high_s'])}"


def describe_support(support: Support) -> str:
    """Say whether measured runs validate an answer, and which.

    Examples
    --------
    >>> describe_support({"word": "validated", "n_rows": 3, "error": 0.05, "basis": "3 measured runs"})
    'validated: 3 measured runs'
    """
    return (
        f"{support['word']}: {support['basis']}"
        if support["word"] == "validated"
        else f"{support['word']} {support['basis']}"
    )


def margin_of(asked: str | float | None) -> float:
    """Return the share of the memory that should stay free: what ``--memory-margin`` asks for, or the default.

    Examples
    --------
    >>> margin_of("10%"), margin_of("0.1"), margin_of(None)
    (0.1, 0.1, 0.05)
    """
    if asked is None:
        return MEMORY_MARGIN
    text = str(asked).strip()
    try:
        share = float(text[:-1]) / 100.0 if text.endswith("%") else float(text)
    except ValueError:
        share = -1.0
    if not 0.0 <= share < 1.0:
        raise ConfigError(
            f"--memory-margin {asked}: is not a share of the memory", hint="0.05 or 5%: the share that stays free"
        )
    return share


def is_tight(peak_bytes: int, capacity_bytes: int, margin: float) -> bool:
    """Whether a plan fits, and less than a share of the memory stays free.

    Examples
    --------
    >>> is_tight(77, 80, 0.05), is_tight(75, 80, 0.05), is_tight(81, 80, 0.05)
    (True, False, False)
    """
    return (1.0 - margin) * capacity_bytes < peak_bytes <= capacity_bytes


def describe_fit(memory: Memory) -> str:
    """Say whether a plan fits its device, what it leaves free, and whether that is less than it should be.

    Examples
    --------
    >>> describe_fit({"peak_bytes": 78 << 30, "capacity_bytes": 80 << 30, "fits": True, "margin": 0.05, "is_tight": True})
    'fits in 80 GiB, tight: 2.5% stays free, less than the margin of 5%'
    """
    capacity = format_bytes(memory["capacity_bytes"])
    if not memory["fits"]:
        return f"does not fit in {capacity}"
    free = f"{1.0 - memory['peak_bytes'] / memory['capacity_bytes']:.1%} stays free"
    verdict = (", tight", "less") if memory["is_tight"] else ("", "more")
    return (
        f"fits in {capacity}{verdict[0]}: {free}, {verdict[1]} than the margin of {describe_margin(memory['margin'])}"
    )


def describe_margin(margin: float) -> str:
    """Say how much of the memory should stay free.

    Examples
    --------
    >>> describe_margin(0.05), describe_margin(0.025), describe_margin(0.999)
    ('5%', '2.5%', '99.9%')
    """
    return f"{100 * margin:.3g}%"


def describe_link(link: Bottleneck | None) -> str:
    """Say what is known of the busiest link."""
    if link is None:
        return "no link carries anything"
    rate = format_bandwidth(link["bandwidth_bytes_per_s"])
    return f"{link['link']} ({link['kind']}, {rate} per direction), {link['utilization']:.1%} of the iteration at its full rate"


def parts_of(breakdown: Breakdown) -> list[tuple[str, float]]:
    """Return the parts of an iteration that take any time, by their names in words, with their seconds."""
    return [(label, breakdown[key]) for key, label in PARTS.items() if breakdown[key] > 0]


def describe_axes(axes: Iterable[str]) -> str:
    """Explain the axes whose names do not speak for themselves; nothing where all do."""
    known = dict.fromkeys(axis for axis in axes if axis in AXES)
    return "; ".join(f"{axis}: {AXES[axis]}" for axis in known)


def categories_of(memory: Memory) -> list[tuple[str, int]]:
    """Return the categories of memory that hold anything, by their names in words, with their bytes."""
    return [(label, memory[key]) for key, label in MEMORY_PARTS.items() if memory[key] > 0]


def _summary(result: Result) -> tuple[str, list[tuple[str, str]]]:
    """Return a headline and nine lines below it."""
    answer, scenario = result.answer, result.scenario
    seconds = answer["iteration_time_s"]
    parts = (f"{name} {spent_s / seconds:.1%}" for name, spent_s in parts_of(answer["breakdown"]))
    rows = [
        ("plan", describe_plan(scenario.plan)),
        (
            "iteration",
            f"{format_time(seconds)} ({describe_interval(answer['confidence'])}; {answer['support']['word']})",
        ),
        ("throughput", describe_throughput(answer)),
        ("utilization", describe_utilization(answer)),
        ("time", ", ".join(parts)),
        ("communication", f"{answer['communication_fraction']:.1%} exposed"),
        ("memory", f"{format_bytes(answer['memory']['peak_bytes'])} {describe_fit(answer['memory'])}"),
        ("busiest link", describe_link(answer["bottleneck"])),
        ("timeline", f"{len(result.timeline.simulated):,} spans of {len(result.timeline.ranks):,} simulated ranks"),
    ]
    return f"{scenario.model} on {scenario.topology}", rows
