"""The table of relations that must hold between answers: what, within which tolerance, why, and where it is known not to."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from command_checks import (
    exit_status_says_whether_it_fits,
    exports_come_back,
    hash_seed_changes_nothing,
    jobs_change_nothing,
    order_of_files_changes_nothing,
    order_of_keys_changes_nothing,
    traces_replay_in_the_same_time,
    ways_to_say_it_are_one,
)
from draws import Case, InapplicableError, n_gpus_of, unfaulted

from simulator.analysis.metrics import PARTS
from simulator.answer import MEMORY_PARTS, Result
from simulator.changes import MachineChange, improvements
from simulator.collectives import ALGORITHMS
from simulator.explore.neighbourhood import Site, neighbours, objection
from simulator.faults import Faults
from simulator.kernels.base import peak_flops_per_s
from simulator.memory.estimate import OPTIMIZER_STEP
from simulator.models.catalog import rename
from simulator.models.layer import AttentionShape, CommunicationPoint
from simulator.models.spec import ATTENTION, ModelSpec
from simulator.models.styles import STYLES
from simulator.parallel.rank_model import model_for

#: times are whole picoseconds: a step of thousands of operations is off by nanoseconds
ROUNDING = 1e-6

Violations = Iterator[str]
Check = Callable[[Case, float], Violations]


@dataclass(frozen=True, kw_only=True)
class Exemption:
    """Where a relation does not hold as elsewhere, and why that is right.

    Parameters
    ----------
    reason : str
    applies : callable
        Whether a case is one of them.
    tolerance : float
        Relative, of such a case; infinite where the relation says nothing about it.
    """

    reason: str
    applies: Callable[[Case], bool]
    tolerance: float = math.inf


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One line of the table.

    Parameters
    ----------
    name : str
    why : str
    check : callable
        Of a case and the tolerance: yields what is wrong.
    tolerance : float
        Relative.
    is_cheap : bool
        Whether it needs no further simulation: checked on every scenario.
    exemptions : tuple of Exemption
    """

    name: str
    why: str
    check: Check
    tolerance: float = ROUNDING
    is_cheap: bool = False
    exemptions: tuple[Exemption, ...] = ()

    def violations(self, case: Case) -> list[str]:
        """Return what is wrong with a case; nothing where the relation does not apply."""
        tolerance = max([self.tolerance, *(one.tolerance for one in self.exemptions if one.applies(case))])
        if tolerance == math.inf:
            return []
        try:
            return list(self.check(case, tolerance))
        except InapplicableError:
            return []


def longer(name: str, seconds: float, limit_s: float, tolerance: float) -> Violations:
    """Complain where a time exceeds another."""
    if seconds > limit_s * (1 + tolerance):
        yield f"{name}: {seconds:.9g} s > {limit_s:.9g} s ({seconds / limit_s - 1:+.3%})"


def larger(name: str, n_bytes: float, limit_bytes: float, tolerance: float) -> Violations:
    """Complain where a size exceeds another."""
    if n_bytes > limit_bytes * (1 + tolerance):
        yield f"{name}: {n_bytes / 2**30:.4f} GiB > {limit_bytes / 2**30:.4f} GiB ({n_bytes / limit_bytes - 1:+.3%})"


def seconds_of(result: Result) -> float:
    """Return the time of a step."""
    return result.metrics.iteration_time_s


# -- one answer: its parts add up ---------------------------------------------------------------------------------


def breakdown_adds_up(case: Case, tolerance: float) -> Violations:
    answer = case.result.answer
    total = sum(answer["breakdown"][part] for part in PARTS)
    if not math.isclose(total, answer["iteration_time_s"], rel_tol=tolerance):
        yield f"parts {total} of {answer['iteration_time_s']}"
    for part, value in answer["breakdown"].items():
        if value < -1e-12:  # type: ignore[operator]
            yield f"{part} is {value}"


def interval_contains(case: Case, tolerance: float) -> Violations:
    del tolerance
    sure, seconds = case.result.answer["confidence"], case.seconds
    if not 0 < sure["low_s"] <= seconds <= sure["high_s"] < math.inf:
        yield f"{seconds} is not in [{sure['low_s']}, {sure['high_s']}]"


def memory_adds_up(case: Case, tolerance: float) -> Violations:
    del tolerance
    memory = case.result.answer["memory"]
    total = sum(memory[part] for part in MEMORY_PARTS)
    if total != memory["peak_bytes"]:
        yield f"parts {total} of {memory['peak_bytes']}"
    if memory["fits"] != (memory["peak_bytes"] <= memory["capacity_bytes"]):
        yield f"fits={memory['fits']} with {memory['peak_bytes']} of {memory['capacity_bytes']}"
    yield from (f"{part} is {memory[part]}" for part in MEMORY_PARTS if memory[part] < 0)


def shares_are_at_most_one(case: Case, tolerance: float) -> Violations:
    answer, spec = case.result.answer, case.result.spec
    units = _time_at_units_peaks(case, spec) if isinstance(spec, ModelSpec) else 1.0  # attention of 32 bits in TF32
    shares = {"mfu": answer["mfu"] * min(1.0, units), "communication_fraction": answer["communication_fraction"]}
    shares["least time"] = case.result.metrics.least_s / answer["iteration_time_s"]
    if answer["bottleneck"] is not None and case.scenario.network != "alpha-beta":  # which lets flows overlap on a link
        shares[f"use of {answer['bottleneck']['link']}"] = answer["bottleneck"]["utilization"]
    yield from (f"{name} is {share:.4f}" for name, share in shares.items() if not 0 <= share <= 1 + tolerance)


def _time_at_units_peaks(case: Case, spec: ModelSpec) -> float:
    """Least time of the model's FLOPs, each at the peak of its unit, over that at the plan's one peak.

    Attention counts whole, and in backward four products of the five that a kernel computes.
    """
    device = case.result.topology.device(0)
    peak, n_flops, least_s = device.peak(case.plan.precision_spec.products), 0.0, 0.0
    for layer in model_for(spec, case.plan).layers:
        for item in (*layer.forward, *layer.backward):
            if isinstance(item, CommunicationPoint):
                continue
            whole = item.n_flops
            if isinstance(item, AttentionShape):
                counted = 1.0 if item.kernel_pass == "forward" else 4 / 5
                whole = counted * replace(item, causal=False).n_flops
            n_flops += whole
            least_s += whole / peak_flops_per_s(item, device)
    return least_s * peak / n_flops


def utilizations_follow_their_conventions(case: Case, tolerance: float) -> Violations:
    """MFU counts no recomputation, HFU that of activations too (PaLM, arXiv:2204.02311, appendix B), attention whole in both.

    At most every forward runs once more: a third of what MFU counts, half where frozen weights have no gradients. What is recomputed for
    padding and for several ranks alike is beside it.
    """
    mfu, hfu = case.result.answer["mfu"], case.result.answer["hfu"]
    if hfu < mfu:
        yield f"HFU {hfu:.4f} is below MFU {mfu:.4f}"
    if case.plan.recompute == "none" and hfu != mfu:
        yield f"HFU {hfu:.4f} is not MFU {mfu:.4f}, and nothing is recomputed"
    if hfu > 3 / 2 * mfu * (1 + tolerance):
        yield f"HFU {hfu:.4f} is {hfu / mfu:.3f} of MFU {mfu:.4f}"


def throughput_is_the_batch(case: Case, tolerance: float) -> Violations:
    answer, plan = case.result.answer, case.plan
    samples = answer["samples_per_s"] * answer["iteration_time_s"]
    if not math.isclose(samples, plan.global_batch, rel_tol=tolerance):
        yield f"{samples} samples per step, not {plan.global_batch}"
    tokens = answer.get("tokens_per_s")
    if tokens is not None and not math.isclose(tokens, answer["samples_per_s"] * plan.sequence_length, rel_tol=1e-9):
        yield f"{tokens} tokens/s"


#: small products that all tensor-parallel ranks compute where they have the same tokens: experts' routers and gates, BERT's head,
#: the low ranks of latent attention, of its indexer and of latent experts
REPLICATED = (
    "router", "gate", "transform", "down", "index_query", "index_key", "index_scores", "latent_down", "latent_up",
)  # fmt: skip
#: products that are never split, whatever else is: what turns images and sounds into tokens (Megatron-LM's ``CLIPViTModel`` and
#: torch's convolutions stand whole on every rank), and heads over classes or pairs in the place of a vocabulary
WHOLE = ("patches", "front", "projection")


def degrees_share_the_work(case: Case, tolerance: float) -> Violations:
    """The products of all tensor-parallel ranks are those of one rank that computes alone; experts' degrees share tokens evenly."""
    plan, spec = case.plan, case.result.spec
    if not isinstance(spec, ModelSpec):
        raise InapplicableError

    def flops(**degrees: int) -> Counter[str]:
        found: Counter[str] = Counter()
        for layer in model_for(spec, replace(plan, **degrees)).layers:
            for item in layer.forward:
                found[getattr(item, "name", "")] += getattr(item, "n_flops", 0)
        return found

    alone = flops(tp=1, ep=1, sequence_parallel=False)
    for degrees in ({"tp": plan.tp, "ep": 1}, {"tp": plan.tp, "ep": plan.ep}):
        for name, n_flops in flops(**degrees).items():
            expected, allowed = 1.0, tolerance
            is_whole = name in WHOLE or (name == "logits" and spec.patch_values + spec.projection > 0)
            if is_whole or (name in REPLICATED and not plan.sequence_parallel):
                expected = plan.tp
            elif name == "qkv":
                expected = _qkv_rows(spec, plan.tp) / _qkv_rows(spec, 1)
            elif name == "logits":  # of a vocabulary that is padded to be split
                allowed = 1e-3
            elif name == "grouped_gemm":  # whole rows for every expert
                allowed = 0.05
            shared = plan.tp * n_flops
            if not math.isclose(shared, expected * alone[name], rel_tol=allowed):
                yield f"{degrees}: {name} {shared:.6g} FLOPs forward, alone {alone[name]:.6g} x {expected:g}"


def _qkv_rows(spec: ModelSpec, tp: int) -> int:
    """Columns that the projections of all attentions have on all ranks together: every rank has a key-value head of its own."""
    rows = 0
    for own, block in zip(spec.specs_of_blocks, spec.blocks, strict=True):
        if not {*ATTENTION, "p"}.isdisjoint(block):
            shared = own.head_dim + (0 if own.value_is_key else own.v_head_dim or own.head_dim)
            rows += own.heads * own.head_dim + max(own.kv_heads, tp) * shared
    return rows


def every_layer_costs_the_same(case: Case, tolerance: float) -> Violations:
    """One more block of the last kind adds as many parameters, FLOPs and saved bytes as the one before it."""
    spec = case.result.spec
    if not isinstance(spec, ModelSpec) or spec.pattern or spec.encoder_layers or spec.sliding_window:
        raise InapplicableError
    counts = []
    for more in range(3):
        model = model_for(rename(spec, "deeper", layers=spec.layers + more), replace(case.plan, pp=1, virtual_pp=1))
        layers = model.layers
        counts.append([sum(layer.n_parameters for layer in layers), sum(layer.n_forward_flops for layer in layers),
                       sum(layer.saved_bytes for layer in layers)])  # fmt: skip
    for what, first, second, third in zip(("parameters", "FLOPs", "saved bytes"), *counts, strict=True):
        if not math.isclose(third - second, second - first, rel_tol=tolerance):
            yield f"{what}: {second - first:.6g} more, then {third - second:.6g}"


# -- another machine ----------------------------------------------------------------------------------------------


def better_machine_is_never_slower(case: Case, tolerance: float) -> Violations:
    one = case.draw.choice(list(improvements(case.result.topology)))
    factor = case.draw.choice((1.25, 2.0, 8.0))
    yield from longer(f"{one.name} x {factor:g}", case.on(one.by(factor)), case.seconds, tolerance)


def worse_machine_is_never_faster(case: Case, tolerance: float) -> Violations:
    one = case.draw.choice(list(improvements(case.result.topology)))
    factor = case.draw.choice((0.8, 0.5, 0.125))
    yield from longer(f"as is, against {one.name} x {factor:g}", case.seconds, case.on(one.by(factor)), tolerance)


#: what a slow rank may add beyond its factor where collectives and kernels slow each other (seen: 0.2 %)
_SKEW = 0.02


def slow_rank_costs_at_most_its_factor(case: Case, tolerance: float) -> Violations:
    healthy = unfaulted(case)
    factor = case.draw.choice((1.05, 1.3, 2.0))
    faults = Faults(slow_ranks=((case.draw.randrange(case.plan.gpus), factor),))
    slow_s = seconds_of(healthy.with_scenario(faults=faults))
    name = faults.describe()
    yield from longer(f"healthy, against {name}", healthy.seconds, slow_s, tolerance)
    # a collective is slowed as long as any of its ranks computes: ranks out of step lengthen that (alone, the bound is exact)
    beside = _SKEW if case.plan.overlaps and case.plan.gpus > 1 else 0.0
    yield from longer(f"{name}, against {factor:g} x healthy", slow_s, factor * healthy.seconds, tolerance + beside)


def slow_link_costs_at_most_its_factor(case: Case, tolerance: float) -> Violations:
    healthy = unfaulted(case)
    factor, kind = case.draw.choice((1.3, 2.0, 8.0)), case.draw.choice(("nic", "nvlink", "pcie", "fabric"))
    node = case.draw.randrange(case.result.topology.n_nodes)
    faults = Faults(slow_links=((f"node{node}.{kind}", factor),))
    slow_s = seconds_of(healthy.with_scenario(faults=faults))
    name = faults.describe()
    yield from longer(f"healthy, against {name}", healthy.seconds, slow_s, tolerance)
    yield from longer(f"{name}, against {factor:g} x healthy", slow_s, factor * healthy.seconds, tolerance)


# -- the same scenario, said or computed otherwise ------------------------------------------------------------------


def folded_is_unfolded(case: Case, tolerance: float) -> Violations:
    if case.plan.gpus > 16 or case.plan.n_micro_batches > 16:
        raise InapplicableError
    whole = case.with_scenario(unfold=True)
    if not math.isclose(seconds_of(whole), case.seconds, rel_tol=tolerance):
        yield f"folded {case.seconds:.9g} s, unfolded {seconds_of(whole):.9g} s ({case.seconds / seconds_of(whole) - 1:+.3%})"
    for part, value in case.result.answer["breakdown"].items():
        other = whole.answer["breakdown"][part]  # type: ignore[literal-required]
        if abs(other - value) > tolerance * case.seconds:  # type: ignore[operator]
            yield f"{part}: folded {value:.9g} s, unfolded {other:.9g} s"
    if whole.memory.by_category != case.result.memory.by_category:
        yield f"memory: folded {case.result.memory.peak_bytes}, unfolded {whole.memory.peak_bytes}"


def flow_is_chunk(case: Case, tolerance: float) -> Violations:
    """Times of steps; the networks themselves are compared message by message in tests/network."""
    if case.plan.gpus > 8 or case.plan.global_batch > 8 * case.plan.dp or case.result.spec.n_parameters > 3e9:
        raise InapplicableError
    flow_s, chunk_s = (seconds_of(case.with_scenario(network=name)) for name in ("flow", "chunk"))
    if abs(flow_s / chunk_s - 1) > tolerance:
        yield f"flow {flow_s:.6g} s, chunk {chunk_s:.6g} s ({flow_s / chunk_s - 1:+.2%})"


def seed_changes_nothing(case: Case, tolerance: float) -> Violations:
    del tolerance
    if seconds_of(case.with_scenario(seed=case.draw.randrange(1, 1000))) != case.seconds:
        yield "another seed, another time"


def units_do_not_matter(case: Case, tolerance: float) -> Violations:
    nics = case.result.topology.spec.node.nics if hasattr(case.result.topology.spec, "node") else None
    if nics is None:
        raise InapplicableError
    rate = nics.bandwidth_bytes_per_s
    texts = (f"{rate * 8e-9!r} Gb/s", f"{rate * 1e-9!r} GB/s", f"{rate * 8e-6!r} Mb/s")
    times = [seconds_of(case.with_scenario(overrides=(("node.nics.bandwidth", text),))) for text in texts]
    if any(not math.isclose(time, case.seconds, rel_tol=tolerance) for time in times):
        yield f"{dict(zip(texts, times, strict=True))}, not {case.seconds}"


def relabelled_ranks_take_the_same_time(case: Case, tolerance: float) -> Violations:
    """In plain data parallelism within a node every rank is like every other one: whichever is slow."""
    healthy, plan = unfaulted(case), case.plan
    if plan.model_parallel > 1 or plan.ep > 1 or case.result.topology.n_nodes > 1 or plan.gpus < 2:
        raise InapplicableError
    ranks = case.draw.sample(range(plan.gpus), 2)
    times = [seconds_of(healthy.with_scenario(faults=Faults(slow_ranks=((rank, 1.5),)))) for rank in ranks]
    if not math.isclose(*times, rel_tol=tolerance):
        yield f"ranks {ranks} slow: {times}"


# -- another plan ---------------------------------------------------------------------------------------------------


def larger_batch_takes_longer_but_not_in_proportion(case: Case, tolerance: float) -> Violations:
    twice_s = seconds_of(case.with_plan(global_batch=2 * case.plan.global_batch))
    yield from longer("one batch, against two", case.seconds, twice_s, tolerance)
    yield from longer("twice the batch, against twice the time", twice_s, 2 * case.seconds, tolerance)


def longer_sequence_takes_longer(case: Case, tolerance: float) -> Violations:
    length = case.plan.sequence_length // 2
    if length % (2 * case.plan.cp * case.plan.tp) or length < 64:
        raise InapplicableError
    half = case.with_plan(sequence_length=length)
    yield from longer("half the sequence", seconds_of(half), case.seconds, tolerance)
    yield from larger("memory of half the sequence", half.memory.peak_bytes, case.result.memory.peak_bytes, 0.0)


def micro_batches_of_twice_the_size(case: Case, tolerance: float) -> Violations:
    """Twice the work in one pass takes at least as long as one, and no longer than two passes."""
    plan = case.plan
    twice = case.with_plan(micro_batch=2 * plan.micro_batch, global_batch=2 * plan.global_batch)
    yield from longer("a micro-batch, against one of twice the size", case.seconds, seconds_of(twice), tolerance)
    yield from longer(
        "a micro-batch of twice the size, against two steps", seconds_of(twice), 2 * case.seconds, tolerance
    )
    yield from larger("memory of one micro-batch", case.result.memory.peak_bytes, twice.memory.peak_bytes, 0.0)


def weak_scaling_is_never_faster(case: Case, tolerance: float) -> Violations:
    plan, healthy = case.plan, unfaulted(case)
    is_offloaded = "cpu" in (plan.offload_optimizer, plan.offload_parameters)
    fills_nodes = plan.gpus % case.result.topology.gpus_per_node == 0  # a part of a node may have fewer links per GPU
    if 2 * plan.gpus > n_gpus_of(case) or plan.pp > 1 or is_offloaded or not fills_nodes:
        raise InapplicableError
    twice = healthy.with_plan(gpus=2 * plan.gpus, dp=2 * plan.dp, global_batch=2 * plan.global_batch)
    times = [seconds_of(one) - one.answer["breakdown"]["optimizer_s"] for one in (healthy.result, twice)]
    yield from longer("on half the GPUs, the optimizer left out: more ranks shard its work", *times, tolerance)


def recompute_trades_time_for_memory(case: Case, tolerance: float) -> Violations:
    runs = {word: case.with_plan(recompute=word) for word in ("none", "selective", "full")}
    for less, more in (("none", "selective"), ("selective", "full")):
        yield from longer(f"{less}, against {more}", seconds_of(runs[less]), seconds_of(runs[more]), tolerance)
        # the block that is computed again holds all its activations at once: of small models that is nearly all there is
        yield from larger(f"{more}, against {less}", runs[more].memory.peak_bytes, runs[less].memory.peak_bytes, 0.02)


def sharding_more_needs_less(case: Case, tolerance: float) -> Violations:
    plan = case.plan
    framework = plan.framework_spec.data_parallel
    known = [word for word in (framework.shardings if plan.pp == 1 else framework.pipeline_shardings) if word != "hsdp"]
    if plan.dp * plan.cp == 1 or len(known) < 2:
        raise InapplicableError
    base = {"offload_optimizer": "none", "offload_parameters": "none", "gradient_collective": None, "secondary_group": None,
            "sharding_group": None}  # fmt: skip
    reports = {word: case.with_plan(sharding=word, **base).memory for word in known}
    for less, more in itertools.pairwise(known):
        # units that are gathered when they are needed: of a small or a shallow model they are more than sharding saves
        gathered = reports[more].by_category["buffers"] - reports[less].by_category["buffers"]
        if reports[more].peak_at == OPTIMIZER_STEP:  # which finds none, and has their room
            gathered = max(0, gathered)
        peaks = (reports[more].peak_bytes, reports[less].peak_bytes + gathered)
        yield from larger(f"{more}, against {less}", *peaks, tolerance)


def sequence_parallelism_needs_less(case: Case, tolerance: float) -> Violations:
    if case.plan.tp == 1:
        raise InapplicableError
    runs = {split: case.with_plan(sequence_parallel=split).memory.by_category["activations"] for split in (False, True)}
    yield from larger("activations with sequence parallelism", runs[True], runs[False], tolerance)


def offloading_needs_less(case: Case, tolerance: float) -> Violations:
    runs = {where: case.with_plan(offload_optimizer=where).memory.peak_bytes for where in ("none", "cpu")}
    yield from larger("with offload", runs["cpu"], runs["none"], tolerance)


def flash_needs_less(case: Case, tolerance: float) -> Violations:
    exchange = "all_gather" if case.plan.cp > 1 else None  # which eager attention needs
    runs = {kind: case.with_plan(attention=kind, cp_comm_type=exchange) for kind in ("eager", "flash")}
    # eager attention that is recomputed keeps no scores either, and flash keeps a sum per row; where selective recomputation leaves
    # flash alone, it stands against scores that are kept: test_build.py has what it keeps of its own
    style = STYLES[case.plan.framework_spec.kernels]
    if case.plan.recompute == "selective" and not (style.recomputes_flash or style.recomputes_operators):
        kept = case.with_plan(attention="eager", cp_comm_type=exchange, recompute="none")
    else:
        kept = runs["eager"]
    yield from larger("flash", runs["flash"].memory.peak_bytes, kept.memory.peak_bytes, 0.01)
    yield from longer("flash", seconds_of(runs["flash"]), seconds_of(runs["eager"]), tolerance)


def narrower_numbers_are_faster(case: Case, tolerance: float) -> Violations:
    peaks = case.result.topology.device(0).peak_flops_per_s
    order = [word for word in ("bf16", "tf32", "fp32") if word in peaks or word == "fp32"]
    runs = {word: case.with_plan(precision=word) for word in order}
    times = {word: seconds_of(run) for word, run in runs.items()}
    if any(run.answer["breakdown"]["host_s"] > 0.01 * times[word] for word, run in runs.items()):
        raise InapplicableError("casts are kernels that a host must issue: where it is the limit, 16 bits take longer")
    for less, more in itertools.pairwise(order):
        yield from longer(f"{less}, against {more}", times[less], times[more], tolerance)


#: FLOPs of one product from which fp8 is faster: on H100 98 shapes were measured in both (ai-dynamo/aiconfigurator@095f58a51c), whose
#: median time in fp8 is 2.7 times that in bf16 below 1e10 FLOPs, 1.4 times to 1e11, 0.75 times to 1e12 and 0.61 times beyond
_LARGE_PRODUCT_FLOPS = 2e11


def fp8_is_faster_where_products_are_large(case: Case, tolerance: float) -> Violations:
    """Operands are quantised by kernels of their own, which only large products repay."""
    plan, spec, device = case.plan, case.result.spec, case.result.topology.device(0)
    if not isinstance(spec, ModelSpec) or spec.n_experts or not device.computes("fp8"):
        raise InapplicableError
    n_tokens = plan.micro_batch * plan.sequence_length // plan.cp
    if 2.0 * n_tokens * spec.hidden**2 / plan.tp < _LARGE_PRODUCT_FLOPS:
        raise InapplicableError
    times = {word: seconds_of(case.with_plan(precision=word)) for word in ("fp8", "bf16")}
    yield from longer("fp8, against bf16", times["fp8"], times["bf16"], tolerance)


def half_precisions_are_equal(case: Case, tolerance: float) -> Violations:
    """Where frameworks' recipes differ, it is in the width of gradients: bf16 is mostly reduced in fp32."""
    peaks = case.result.topology.device(0).peak_flops_per_s
    if "bf16" not in peaks or peaks["bf16"] != peaks["fp16"] or case.plan.gradient_compression != "none":
        raise InapplicableError
    runs = {word: case.with_plan(precision=word, gradient_bytes=4) for word in ("fp16", "bf16")}
    times = {word: seconds_of(run) for word, run in runs.items()}
    if not math.isclose(times["fp16"], times["bf16"], rel_tol=tolerance):
        yield f"{times} s"
    if runs["fp16"].memory.by_category != runs["bf16"].memory.by_category:
        yield f"memory: {[run.memory.peak_bytes for run in runs.values()]}"


def narrower_activations_need_less(case: Case, tolerance: float) -> Violations:
    half, whole = (case.with_plan(precision=word).memory.stages for word in ("bf16", "fp32"))
    for narrow, wide in zip(half, whole, strict=True):  # which stage is the fullest may change with the precision
        name = f"activations of bf16 on stage {narrow.stage}, against fp32"
        yield from larger(name, narrow.by_category["activations"], wide.by_category["activations"], tolerance)


def fewer_bytes_are_never_slower(case: Case, tolerance: float) -> Violations:
    if case.plan.dp * case.plan.cp == 1 or case.plan.gradient_compression != "none":
        raise InapplicableError
    runs = {size: case.with_plan(gradient_bytes=size) for size in (2, 4)}
    times = {size: seconds_of(run) - run.answer["breakdown"]["optimizer_s"] for size, run in runs.items()}
    name = "gradients of 2 bytes, against 4, the optimizer left out: Megatron's casts them to fp32 first (main_grad.float())"
    yield from longer(name, times[2], times[4], tolerance)


def the_librarys_choice_is_not_beaten(case: Case, tolerance: float) -> Violations:
    forced = {
        "algorithm": case.draw.choice(tuple(ALGORITHMS)),
        "protocol": case.draw.choice(("", "ll", "ll128", "simple")),
    }
    other = case.with_scenario(**forced)
    yield from longer(f"chosen, against {forced}", case.seconds, seconds_of(other), tolerance)


def advice_is_what_the_search_allows(case: Case, tolerance: float) -> Violations:
    """What advice recommends runs, takes the time that it says, and no rule of the search refuses it."""
    result = case.result
    site = Site(topology=result.topology, spec=result.spec)
    some = [one for one in neighbours(result.plan, site) if not one.reason and one.plan.n_micro_batches <= 16]
    if not some:
        raise InapplicableError
    one = case.draw.choice(some)
    outcome = case.trials.plan(one)
    if outcome.reason:
        raise InapplicableError
    if objection(one.plan, site, than=result.plan):
        yield f"{one.name}: {objection(one.plan, site, than=result.plan)}"
    other_s = seconds_of(case.with_plan(**one.plan.to_dict()))
    if not math.isclose(outcome.iteration_time_s, other_s, rel_tol=tolerance):
        yield f"{one.name}: advised {outcome.iteration_time_s:.9g} s, simulated {other_s:.9g} s"


def free_network_changes_nothing_but_communication(case: Case, tolerance: float) -> Violations:
    """Compute does not get longer where links are free."""
    change = MachineChange.of_all_links(1e6, latency={"inside": 1e6, "between": 1e6})
    yield from longer("free network", case.on(change), case.seconds, tolerance)


#: rows of queries that one block of FlashAttention 2 works on (Dao, 2023, arXiv:2307.08691)
_TILE_ROWS = 128


def _n_attention_tiles(case: Case) -> float:
    heads = getattr(case.result.spec, "heads", 0) / case.plan.tp
    return case.plan.micro_batch * heads * case.plan.sequence_length / case.plan.cp / _TILE_ROWS


HOST_STEPS = Exemption(
    reason="a trace shows the optimizer's work on the host as work of the device (5 % of a small model's step)",
    applies=lambda case: "cpu" in (case.plan.offload_optimizer, case.plan.offload_parameters),
)
UPCAST_SOFTMAX = Exemption(
    reason="Hugging Face's eager attention computes softmax of 16-bit scores in fp32 and keeps both (6 bytes a score to fp32's 4; "
    "autograd holds the same: tests/models/test_against_torch.py)",
    applies=lambda case: case.plan.attention == "eager",
)
ISSUED_EARLIER = Exemption(
    reason="what is issued earlier may share links and multiprocessors with what is waited for (Graham, Bounds on multiprocessing "
    "timing anomalies, SIAM J. Appl. Math. 17, 1969; seen: 0.3 %)",
    applies=lambda case: case.plan.overlaps and case.plan.gpus > 1,
    tolerance=0.01,
)
OUT_OF_STEP = Exemption(
    reason="groups that a slow GPU puts out of step take turns on NICs that in step each of them waits for (seen: 7 % with sharded "
    "parameters; nothing without contention, nothing without overlap)",
    applies=lambda case: (
        case.plan.overlaps and case.result.topology.n_nodes > 1 and case.scenario.network != "alpha-beta"
    ),
    tolerance=0.1,
)
ONE_RATE = Exemption(
    reason="processors without units for 16 bits multiply them at the rate of fp32: casts and master weights come on top (seen: 5 %)",
    applies=lambda case: (
        case.result.topology.device(0).peak_flops_per_s.get("bf16")
        == case.result.topology.device(0).peak_flops_per_s["fp32"]
    ),
    tolerance=0.1,
)
FIRST_NODE = Exemption(
    reason="a node's own links may be slower than its NICs together (one link between two GPUs of a mesh; a ring over 8 x 400 Gb/s "
    "passes NVLink 7 times of 8), and collectives inside a node are slowed more by kernels (0.79 to 0.98, measured on H200)",
    applies=lambda case: case.plan.gpus == case.result.topology.gpus_per_node,
)
SAVED_SCATTERS = Exemption(
    reason="torch's selective recomputation keeps what reduce-scatter returns, but not what all-reduce does (torchtitan, "
    "_op_sac_save_list): with sequence parallelism a block keeps two shares of 1/tp more of its stream, and 1 - 1/tp less of its "
    "input: of two ranks half a stream more, of three as much, of four a quarter less",
    applies=lambda case: case.plan.tp == 2 and case.plan.recompute == "selective"
    and STYLES[case.plan.framework_spec.kernels].recomputes_operators,
)  # fmt: skip
SAVED_GATHERS = Exemption(
    reason="torch.compile computes norms again in backward but no collectives (torch/_functorch/partitioners.py, "
    "force_save_collectives): what was gathered is kept beside its share",
    applies=lambda case: case.plan.framework_spec.kernels == "compiled",
)
SHARED_NORM = Exemption(
    reason="attention and MLP that read one norm share its output; what is divided along the sequence each of the two modules gathers "
    "for itself (PrepareModuleInput of torch's plans): two whole copies and a share of 1/tp, for two whole tensors "
    "(test_build.py has the bytes)",
    applies=lambda case: case.result.spec.shared_norm and not STYLES[case.plan.framework_spec.kernels].merges_columns,
)
SHARED_LINKS = Exemption(
    reason="sharded states of more ranks are gathered more slowly, and while they are they leave more of the links inside a node to the "
    "exchange or the all-reduce that is waited for: bert-large on 16 and 32 MI355X, tp 2 and cp 2, waits 0.4 ms less for keys and "
    "values, and twice the NIC bandwidth makes the 32 slower (seen: 1.5 %; nothing where flows do not share links)",
    applies=lambda case: (
        case.plan.overlaps and case.plan.tp * case.plan.cp > 1 and case.plan.sharding in ("zero3", "hsdp")
        and case.scenario.network != "alpha-beta"
    ),
    tolerance=0.02,
)  # fmt: skip

RELATIONS: tuple[Relation, ...] = (
    Relation(name="breakdown adds up", why="its parts divide the step", check=breakdown_adds_up, is_cheap=True),
    Relation(name="interval contains the prediction", why="it is an interval around it", check=interval_contains, is_cheap=True),
    Relation(name="memory adds up", why="categories divide the peak; fits means at most the capacity", check=memory_adds_up,
             is_cheap=True),
    Relation(name="shares are at most one", why="nothing computes or sends above its peak", check=shares_are_at_most_one,
             is_cheap=True),
    Relation(name="MFU and HFU", why="one convention each; products that all ranks repeat, and padding, are beside it",
             tolerance=0.02, check=utilizations_follow_their_conventions, is_cheap=True),
    Relation(name="throughput x time is the batch", why="definition", check=throughput_is_the_batch, is_cheap=True),
    Relation(name="degrees share the work", why="they divide products among ranks",
             check=degrees_share_the_work, is_cheap=True),
    Relation(name="layers", why="blocks of one kind are equal", check=every_layer_costs_the_same, is_cheap=True),
    Relation(name="a better machine is never slower", why="monotone: less time for every part", tolerance=1e-3,
             check=better_machine_is_never_slower, exemptions=(ISSUED_EARLIER,)),
    Relation(name="a worse machine is never faster", why="monotone: more time for every part", tolerance=1e-3,
             check=worse_machine_is_never_faster, exemptions=(ISSUED_EARLIER,)),
    Relation(name="a slow GPU", why="only its kernels take longer, by its factor", tolerance=1e-3,
             check=slow_rank_costs_at_most_its_factor, exemptions=(OUT_OF_STEP,)),
    Relation(name="a slow link", why="only its bytes take longer, by its factor", tolerance=1e-3,
             check=slow_link_costs_at_most_its_factor),
    Relation(name="a free network", why="communication only takes time", tolerance=1e-3,
             check=free_network_changes_nothing_but_communication),
    Relation(name="folded = unfolded", why="folding is exact", tolerance=1e-9, check=folded_is_unfolded),
    Relation(name="flow ~ chunk", why="both model the same messages; 1 % where nothing is in the way, less where flows share",
             tolerance=0.05, check=flow_is_chunk),
    Relation(name="seed", why="nothing is random", check=seed_changes_nothing),
    Relation(name="units", why="200 Gb/s = 25 GB/s", check=units_do_not_matter),
    Relation(name="relabelled ranks", why="equal ranks are interchangeable", check=relabelled_ranks_take_the_same_time),
    Relation(name="twice the global batch", why="more work, the end of the step once; chunks of two steps may meet", tolerance=0.01,
             check=larger_batch_takes_longer_but_not_in_proportion),
    Relation(name="half the sequence", why="less work", tolerance=1e-3, check=longer_sequence_takes_longer,
             exemptions=(ISSUED_EARLIER,)),
    Relation(name="twice the micro-batch", why="larger operations are at least as efficient", tolerance=0.02,
             check=micro_batches_of_twice_the_size),
    Relation(name="weak scaling", why="more ranks to wait for, more to reduce", tolerance=1e-3,
             check=weak_scaling_is_never_faster, exemptions=(FIRST_NODE, SHARED_LINKS)),
    Relation(name="recomputation", why="computes again what it does not keep", tolerance=1e-3,
             check=recompute_trades_time_for_memory),
    Relation(name="zero stages", why="each shards what the one before keeps whole", tolerance=0.0, check=sharding_more_needs_less),
    Relation(name="sequence parallelism", why="shards what tensor parallelism keeps whole", tolerance=0.0,
             check=sequence_parallelism_needs_less, exemptions=(SAVED_GATHERS, SAVED_SCATTERS, SHARED_NORM)),
    Relation(name="offload", why="moves states to the host", tolerance=0.0, check=offloading_needs_less),
    Relation(name="flash attention", why="keeps no scores", tolerance=1e-3, check=flash_needs_less, exemptions=(
        Exemption(reason="before Ampere there is no FlashAttention 2: the memory-efficient kernel computes scores again in backward",
                  applies=lambda case: case.result.topology.device(0).compute_capability < "8.0", tolerance=0.1),
        Exemption(reason="FlashAttention computes in 16 bits: of 32, the memory-efficient kernel is taken, whose backward computes "
                  "scores again; less than two waves of tiles leave multiprocessors idle (seen: 13 %)",
                  applies=lambda case: case.plan.precision in ("fp32", "tf32")
                  and _n_attention_tiles(case) < 2 * case.result.topology.device(0).n_sms, tolerance=0.15),
        Exemption(reason="short sequences: fused softmax over small scores is faster",
                  applies=lambda case: case.plan.sequence_length <= 512),
        Exemption(reason="few heads: a fused kernel has fewer tiles than the GPU has multiprocessors, three products have more",
                  applies=lambda case: _n_attention_tiles(case) < case.result.topology.device(0).n_sms))),
    Relation(name="precision", why="fewer bytes, faster units; casts are kernels", tolerance=0.01, check=narrower_numbers_are_faster,
             exemptions=(ONE_RATE,)),
    Relation(name="fp8", why="twice the rate pays for quantisation where products are large", tolerance=0.01,
             check=fp8_is_faster_where_products_are_large),
    Relation(name="fp16 = bf16", why="as many bits, the same units", check=half_precisions_are_equal),
    Relation(name="activations by precision", why="half the bytes of each", tolerance=0.0, check=narrower_activations_need_less,
             exemptions=(UPCAST_SOFTMAX,)),
    Relation(name="fewer gradient bytes", why="less to move", tolerance=1e-3, check=fewer_bytes_are_never_slower),
    Relation(name="forced algorithm", why="the library takes what it estimates to be fastest, which is an estimate", tolerance=0.2,
             check=the_librarys_choice_is_not_beaten),
    Relation(name="file = flags = --set = Python", why="one parser, one scenario", check=ways_to_say_it_are_one),
    Relation(name="order of keys", why="a file is a mapping", check=order_of_keys_changes_nothing),
    Relation(name="order of files", why="each says which rank it is", check=order_of_files_changes_nothing),
    Relation(name="exit status", why="4 means that it does not fit", check=exit_status_says_whether_it_fits),
    Relation(name="hash seed", why="no answer depends on the order of a set", check=hash_seed_changes_nothing),
    Relation(name="jobs", why="workers only share the work", check=jobs_change_nothing),
    Relation(name="trace and replay", why="the same program; a trace begins with its first kernel, not with its launch",
             tolerance=2e-3, check=traces_replay_in_the_same_time, exemptions=(HOST_STEPS,)),
    Relation(name="export and import", why="a file says the plan that it was written from", check=exports_come_back),
    Relation(name="advice and search", why="one set of rules, one simulator", tolerance=1e-9,
             check=advice_is_what_the_search_allows),
)  # fmt: skip
