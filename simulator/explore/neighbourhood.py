"""Which plans are legal, and which lie one change away: the one set of rules behind search, advice and ways out of memory.

A rule says why a plan is not legal with a model on a cluster. The search space (:mod:`simulator.explore.search.space`) applies each
rule as soon as the axes that it looks at are set; a neighbour of a plan (:func:`neighbours`) carries the reason of the first rule
that refuses it. A plan that breaks a rule itself, because its user knows better, is not measured against that rule again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from simulator.errors import SimulatorError
from simulator.models.recorded import RecordedModule
from simulator.models.setting import partition_refusal
from simulator.models.spec import ModelSpec
from simulator.models.styles import STYLES
from simulator.models.transformer import capturable
from simulator.parallel.expert import expert_refusal
from simulator.parallel.idle import idle_settings, is_alone
from simulator.parallel.rank_model import n_predictions
from simulator.plan import SETTINGS, ParallelPlan
from simulator.plan.rules import (
    capture_doubt,
    captures_layers,
    counted_layers,
    gathers_to_recompute,
    sharding_refusal,
)
from simulator.plan.stage_layout import beside_ends, shortened_ends
from simulator.plan.vocabularies import RECOMPUTES
from simulator.schedules import SCHEDULES, find_schedule, plain_name
from simulator.topology import Topology

#: settings of whose words or switches every other one is a neighbour where it means anything
_SWITCHES = (
    "overlap_parameter_gather", "sequence_parallel", "asynchronous_tp", "scatter_gather", "gradient_collective",
    "gradient_as_bucket_view", "no_sync", "recompute_gathers", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "cp_comm_type",
    "cp_load_balance", "moe_dispatcher", "moe_shared_expert_overlap", "offload_optimizer", "offload_parameters",
    "gradient_bytes", "gradient_compression", "moe_fp8_dispatch", "quantized_weights", "quantized_gradients",
    "muon_tp_mode",
)  # fmt: skip
#: what a bucket is tried at where the plan leaves it to the framework
_BUCKETS_BYTES = (25_000_000, 400_000_000)


def divisors(number: int) -> tuple[int, ...]:
    """Return all divisors in ascending order.

    Examples
    --------
    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What plans are judged against."""

    topology: Topology  #: Cut to the GPUs in use.
    spec: ModelSpec | RecordedModule

    @property
    def node_gpus(self) -> int:
        """GPUs of a node that are in use."""
        return min(self.topology.gpus_per_node, self.topology.n_gpus)


# -- rules: why a plan is not legal, or nothing --------------------------------------------------------------------


def tensor_rule(plan: ParallelPlan, site: Site) -> str:
    """Tensor parallelism stays within a node and divides the model; a module of the user's own says itself how it is split."""
    if plan.tp == 1:
        return ""
    facts = plan.framework_spec
    if not facts.data_parallel.splits_models and facts.splits != "tensors":
        return f"{plan.framework} has no tensor parallelism"
    if site.node_gpus % plan.tp:
        return f"tp={plan.tp} does not divide the {site.node_gpus} GPUs of a node"
    refused = None if isinstance(site.spec, RecordedModule) else partition_refusal(site.spec, tp=plan.tp)
    return refused[0] if refused else ""


def pipeline_rule(plan: ParallelPlan, site: Site) -> str:
    """Stages divide the layers."""
    if plan.pp == 1:
        return ""
    if not plan.framework_spec.has_pipeline:
        return f"{plan.framework} has no pipeline"
    if isinstance(site.spec, RecordedModule):
        return ""
    if site.spec.encoder_layers:
        return "an encoder-decoder is not cut into pipeline stages"
    if (counted := counted_layers(plan)) and (site.spec.layers + counted) % plan.pp:
        return f"pp={plan.pp} does not divide the {site.spec.layers} layers and {counted} more"
    is_uneven = counted or plan.first_stage_layers or plan.last_stage_layers or plan.pipeline_layout
    if plan.virtual_pp > 1 and beside_ends(site.spec.layers, plan.pp * plan.virtual_pp):
        return ""
    if plan.framework_spec.lays_out_pipelines and site.spec.layers >= plan.pp:
        return ""
    return (
        f"pp={plan.pp} does not divide the {site.spec.layers} layers"
        if site.spec.layers % plan.pp and not is_uneven
        else ""
    )


def context_rule(plan: ParallelPlan, site: Site) -> str:
    """Context parallelism divides the sequence, and the framework has it beside what else splits the model."""
    if plan.cp == 1:
        return ""
    facts = plan.framework_spec.data_parallel
    if not facts.context_exchanges:
        return f"{plan.framework} has no context parallelism"
    if plan.context_exchange not in facts.context_exchanges:
        return f"{plan.framework} exchanges keys and values by {' or '.join(facts.context_exchanges)}, not {plan.context_exchange}"
    if not facts.shares_beside_splits and (plan.tp > 1 or plan.pp > 1):
        return f"{plan.framework} has context parallelism without tensor and pipeline parallelism only"
    length = plan.sequence_length or site.spec.max_positions
    return f"cp={plan.cp} does not divide the sequence of {length} tokens" if length % plan.cp else ""


def expert_rule(plan: ParallelPlan, site: Site) -> str:
    """Expert parallelism divides experts and data-parallel ranks."""
    if isinstance(site.spec, ModelSpec):
        if refused := partition_refusal(site.spec, ep=plan.ep, etp=plan.expert_tp):
            return refused[0]
    elif plan.ep > 1 and not site.spec.has_experts:
        return "the model has no experts"
    elif plan.ep > 1 and site.spec.n_experts % plan.ep:
        return f"ep={plan.ep} does not divide the {site.spec.n_experts} experts"
    n_ranks = plan.tp * plan.cp * plan.dp
    if plan.ep > 1 and n_ranks % (plan.expert_tp * plan.ep):
        return f"etp x ep = {plan.expert_tp} x {plan.ep} does not divide the {n_ranks} ranks of a stage"
    return ""


def sharding_rule(plan: ParallelPlan, site: Site) -> str:
    """The framework knows the sharding, and there is something to shard over."""
    if plan.sharding == "none":
        return ""
    replicas = plan.dp * plan.cp
    if is_alone(plan, has_experts=site.spec.has_experts):
        return f"sharding={plan.sharding}: there is one data-parallel rank"
    facts = plan.framework_spec.data_parallel
    group = plan.sharding_ranks(site.topology.gpus_per_node)
    is_grouped = 1 < group < replicas and not replicas % group
    known = facts.shardings if plan.pp == 1 else facts.pipeline_shardings
    if plan.sharding not in known:
        has_copies = plan.sharding == "hsdp" and is_grouped and facts.shards_copies and "zero3" in known
        word = f" by this name: there it is sharding=zero3 with sharding_group={group}" if has_copies else ""
        return sharding_refusal(plan) or f"{plan.framework} does not run {plan.sharding}{word}"
    if plan.sharding == "hsdp" and not is_grouped:
        alone = f"no two of the {replicas} data-parallel ranks make groups that lie within nodes"
        return f"hsdp: {alone if group == 1 else f'{replicas} data-parallel ranks are not several groups of {group}'}"
    return ""


def sequence_rule(plan: ParallelPlan, site: Site) -> str:
    """Sequence parallelism splits the sequence over tensor-parallel ranks, and some frameworks' experts need it."""
    if not plan.sequence_parallel:
        return expert_refusal(plan, site.spec)
    if plan.tp == 1:
        return "sequence parallelism needs tensor-parallel ranks: tp=1"
    length = plan.sequence_length or site.spec.max_positions
    return (
        f"tp={plan.tp} does not divide the {length // plan.cp} tokens of a rank" if length // plan.cp % plan.tp else ""
    )


def attention_rule(plan: ParallelPlan, site: Site) -> str:
    """The framework's modules have a fused kernel for the model's attention."""
    if plan.attention == "eager" or not isinstance(site.spec, ModelSpec):
        return ""
    is_fused = STYLES[plan.framework_spec.kernels].fuses_attention(site.spec)
    return "" if is_fused else f"{plan.framework} has no fused attention for {site.spec.name}"


def chunk_rule(plan: ParallelPlan, site: Site) -> str:
    """Several chunks of layers per stage need a pipeline, layers that divide, and micro-batches in groups of one per stage."""
    return chunk_refusal(plan, site, plan.virtual_pp, plan.n_micro_batches if plan.micro_batch else 0)


def chunk_refusal(plan: ParallelPlan, site: Site, virtual_pp: int, n_micro_batches: int) -> str:
    """Return what :func:`chunk_rule` says of a plan with these chunks and micro-batches, 0 where those are open."""
    if virtual_pp == 1:
        return ""
    if plan.pp == 1:
        return "virtual stages need a pipeline: pp=1"
    if plan.pipeline_layout is None and isinstance(site.spec, ModelSpec):
        layers, n_chunks = site.spec.layers, plan.pp * virtual_pp
        is_laid_out = plan.framework_spec.lays_out_pipelines and shortened_ends(layers, n_chunks) is not None
        if layers % n_chunks and not is_laid_out and beside_ends(layers, n_chunks) is None:
            return f"pp x virtual_pp = {plan.pp} x {virtual_pp} does not divide the {layers} layers"
    if SCHEDULES[plan.schedule].takes_chunks and n_micro_batches % plan.pp:
        return f"{n_micro_batches} micro-batches are not groups of one per stage: pp={plan.pp}"
    return ""


def schedule_rule(plan: ParallelPlan, site: Site) -> str:
    """The framework has the pipeline schedule."""
    facts, chosen = plan.framework_spec, find_schedule(plan.schedule, plan.virtual_pp)
    if not facts.schedules or (plan.pp == 1 and not (plan.ep > 1 and chosen.takes_turns)):
        return ""
    if not facts.has_schedule(chosen.name):
        return f"{plan.framework} has no schedule {chosen.name}: it has {', '.join((*facts.schedules, *facts.expert_schedules))}"
    if chosen.name in facts.expert_schedules and plan.ep == 1:
        return f"{plan.framework} has schedule {chosen.name} for expert parallelism only: ep=1"
    return ""


def combined_rule(plan: ParallelPlan, site: Site) -> str:
    """Beside forwards and backwards in turns, Megatron-Core recomputes no whole layers and exchanges tokens in some ways only.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/transformer_config.py``, assertions under ``overlap_moe_expert_parallel_comm``.
    """
    chosen = find_schedule(plan.schedule, plan.virtual_pp).name
    if chosen not in plan.framework_spec.expert_schedules or plan.pp == plan.ep == 1:
        return ""
    graphs = [module for module in plan.captured_modules if module in ("mlp", "moe")]
    refused = {
        "full recomputation": plan.recompute == "full",
        "recompute_modules=moe": "moe" in plan.recomputed_modules,
        f"moe_dispatcher={plan.moe_dispatcher}": plan.dispatcher.carries == "all",
        "moe_shared_expert_overlap": plan.moe_shared_expert_overlap,
        f"precision={plan.precision}": not plan.precision_spec.is_16_bit,
        f"graphs of {' and '.join(graphs)}": bool(graphs),
        "more than one module that predicts further tokens": n_predictions(site.spec, plan) > 1,
    }
    found = next((what for what, is_so in refused.items() if is_so), "")
    return f"{plan.framework} does not run schedule {chosen} beside {found}" if found else ""


def graph_rule(plan: ParallelPlan, site: Site) -> str:
    """Graphs of modules or layers lie inside of what Megatron-Core recomputes in full, where it captures none.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/transformer_config.py``, assertions on ``recompute_granularity`` under ``cuda_graph_impl``.
    """
    modules, is_by_layer = plan.captured_modules, captures_layers(plan)
    if "full_iteration" not in plan.framework_spec.captures or not (modules or is_by_layer):
        return ""
    said = f"cuda_graphs={plan.cuda_graphs}" if modules else "graphs of whole layers (host=graphs)"
    if plan.recompute == "full":
        return f"{plan.framework} does not run {said} beside full recomputation, only cuda_graphs=full_iteration"
    if "moe_router" in modules and "moe" in plan.recomputed_modules:
        return f"{plan.framework} does not run {said} beside recompute_modules=moe, which recomputes the router, too"
    return ""


#: what may wait in host memory, in words
_AWAY = {
    "optimizer": "the optimizer alone", "parameters": "parameters alone", "optimizer+parameters": "optimizer and parameters at once",
}  # fmt: skip


def offload_rule(plan: ParallelPlan, site: Site) -> str:
    """The framework moves to host memory what the plan has there."""
    away = "+".join(name for name in ("optimizer", "parameters") if getattr(plan, f"offload_{name}") == "cpu")
    offloads = plan.framework_spec.data_parallel.offloads
    if not away or away in offloads:
        return ""
    return f"{plan.framework} does not offload {_AWAY[away]}: it offloads {' or '.join(_AWAY[one] for one in offloads) or 'neither'}"


def module_rule(plan: ParallelPlan, site: Site) -> str:
    """A module of the user's own says how it is split."""
    refused = site.spec.refusal(plan) if isinstance(site.spec, RecordedModule) else None
    return refused[0] if refused else ""


Rule = Callable[[ParallelPlan, Site], str]
#: those that look at what is recomputed
RECOMPUTE_RULES: tuple[Rule, ...] = (combined_rule, graph_rule)
RULES: tuple[Rule, ...] = (
    tensor_rule, pipeline_rule, context_rule, expert_rule, sharding_rule, sequence_rule, attention_rule,
    schedule_rule, combined_rule, graph_rule, chunk_rule, offload_rule, module_rule,
)  # fmt: skip


def objection(
    plan: ParallelPlan, site: Site, *, than: ParallelPlan | None = None, rules: tuple[Rule, ...] = RULES
) -> str:
    """Return why a plan is not legal, or nothing; rules that another plan breaks, which is run anyway, do not count."""
    for rule in rules:
        if (reason := rule(plan, site)) and not (than is not None and rule(than, site)):
            return reason
    return ""


# -- neighbours: one change away ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A plan that is one change away."""

    name: str  #: The change as flags: ``--recompute full``.
    setting: str  #: What it changes first.
    plan: ParallelPlan  #: Resolved, unless ``reason`` says why it is not legal.
    same_training: bool = True  #: Whether training computes the same.
    ratio: float = 0.0  #: The new number over the old one; 0 for words.
    reason: str = ""  #: Why it is not legal; empty where it is.


class _Change(NamedTuple):
    settings: Mapping[str, object]
    ratio: float = 0.0
    same_training: bool = True
    follows: Mapping[str, object] = {}  #: What the framework sets beside them by itself: no command has to say it.


def neighbours(plan: ParallelPlan, site: Site, left_open: Collection[str] = ()) -> Iterator[Neighbour]:
    """Yield every plan that is one change away from a resolved plan, with the reason where it is not legal.

    A change of a degree leaves the GPUs and the batch as they are: data parallelism takes up the difference. Changes without
    effect are left out.

    Parameters
    ----------
    left_open : collection
        Settings that the plan's user did not make. Names of changes also hold those that would follow otherwise from the
        changed plan, so that a command with the change runs the very plan that is meant.
    """
    for change in _changes(plan, site):
        setting = next(iter(change.settings))
        try:
            changed: dict[str, Any] = {**change.follows, **change.settings}
            other = replace(plan, **changed).resolve(site.topology.n_gpus)
            reason = objection(other, site, than=plan)
        except SimulatorError as error:
            other, reason = plan, error.message.splitlines()[0]
        is_same = change.same_training and n_predictions(site.spec, other) == n_predictions(site.spec, plan)
        if not _is_idle(change, plan, other, site):
            said = {**change.settings, **_held(change, plan, other, left_open, is_mixture=site.spec.has_experts)}
            name = " ".join(SETTINGS[key].spelled(value) for key, value in said.items())
            yield Neighbour(
                name=name, setting=setting, plan=other, same_training=is_same, ratio=change.ratio, reason=reason
            )


def _held(
    change: _Change, plan: ParallelPlan, other: ParallelPlan, left_open: Collection[str], *, is_mixture: bool
) -> dict[str, object]:
    """Return what a command must say beside a change, or it would be derived anew: the batch, and what recipes set."""
    held: dict[str, object] = {}
    if other is plan:  # not legal
        return held
    if "micro_batch" in left_open:  # the largest that fits
        held["micro_batch"] = other.micro_batch
    if (
        "global_batch" in left_open
        and other.without("global_batch").resolve(other.gpus).global_batch != other.global_batch
    ):
        held["global_batch"] = other.global_batch
    before, after = (one.framework_spec.defaults(_named(one), is_mixture=is_mixture) for one in (plan, other))
    held |= {key: getattr(other, key) for key in {**before, **after} if before.get(key) != after.get(key)}
    return {key: value for key, value in held.items() if key not in {**change.follows, **change.settings}}


def _named(plan: ParallelPlan) -> dict[str, object]:
    """Return what recipes of frameworks look at."""
    return {key: getattr(plan, key) for key in ("gpus", "tp", "pp", "ep", "precision", "release", "moe_dispatcher")}


def _following(plan: ParallelPlan, settings: Mapping[str, object]) -> dict[str, object]:
    """Return what the framework sets otherwise where tensors are split or no more, of settings that a plan has as it sets them."""
    named, facts = _named(plan), plan.framework_spec
    unset = {key: SETTINGS[key].default for key in {**facts.parallel_recipe, **facts.expert_recipe}}
    before, after = ({**unset, **facts.defaults(some, is_mixture=False)} for some in (named, {**named, **settings}))
    return {key: after[key] for key in unset if before[key] != after[key] and getattr(plan, key) == before[key]}


def nearest(plan: ParallelPlan, site: Site, left_open: Collection[str] = ()) -> Iterator[Neighbour]:
    """Yield the neighbours, of numbers only the next larger and the next smaller legal one."""
    numbers: dict[tuple[str, bool, bool], list[Neighbour]] = {}
    for one in neighbours(plan, site, left_open):
        if one.ratio:
            numbers.setdefault((one.setting, one.ratio > 1, one.same_training), []).append(one)
        else:
            yield one
    for (_, is_larger, _), some in numbers.items():
        some.sort(key=lambda one: one.ratio if is_larger else -one.ratio)
        yield next((one for one in some if not one.reason), some[0])


def _changes(plan: ParallelPlan, site: Site) -> Iterator[_Change]:
    if plan.gpus > 1:
        yield _Change({"overlap": not plan.overlaps})
    for name in _SWITCHES:
        is_same = "training" not in SETTINGS[name].changes
        yield from (_Change({name: value}, same_training=is_same) for value in _others(plan, name))
    yield from _offloads(plan)
    yield from _host_bound(plan, site)
    if plan.precision_spec.has_eight_bits and plan.framework_spec.calls_modules and not plan.lora_rank:
        yield _Change({"fp8_param_gather": not plan.keeps_narrow})
    if plan.steps_adam != "fused":
        yield _Change({"optimizer_implementation": "fused"})
    yield from (_Change({"recompute": word}) for word in RECOMPUTES if word != plan.recompute)
    if plan.attention == "eager":
        yield _Change({"attention": "flash"} | ({"attention_kernel": None} if plan.softmax_kernel else {}))
    yield from _batches(plan)
    yield from _shardings(plan)
    yield from _degrees(plan, site)
    if plan.pp > 1:
        yield from _schedules(plan)
    if site.topology.storage is not None or plan.sample_time_s:
        workers = max(1, plan.loader_workers * 2)
        yield _Change({"loader_workers": workers}, workers / plan.loader_workers if plan.loader_workers else 0.0)


def _host_bound(plan: ParallelPlan, site: Site) -> Iterator[_Change]:
    """Yield what spares the host work, as far as the framework has it: CUDA graphs, and one kernel for all experts."""
    facts, has_experts = plan.framework_spec, site.spec.has_experts
    now = plan.cuda_graphs or "none"
    if has_experts and plan.precision in facts.fused_experts:
        yield _Change({"moe_fused_experts": not plan.moe_fused_experts})
    if not facts.captures or plan.host == "graphs":
        return
    words = ["none"]
    if isinstance(site.spec, ModelSpec) and plan.recompute != "full":  # modules are not captured inside of checkpoints
        words.append("+".join(word for word in capturable(site.spec) if word in facts.captures))
    whole = replace(plan, cuda_graphs="full_iteration")
    if "full_iteration" in facts.captures and not capture_doubt(whole, has_experts=has_experts):
        words.append("full_iteration")
    yield from (_Change({"cuda_graphs": word}) for word in words if word not in ("", now))


def _others(plan: ParallelPlan, name: str) -> list[object]:
    now, one = getattr(plan, name), SETTINGS[name]
    if name == "scatter_gather":
        return [plan.message_shards == 1]
    if name == "recompute_gathers":
        return [not gathers_to_recompute(plan)]
    if name == "no_sync":
        return [not plan.defers_reduction] if plan.n_micro_batches > 1 else []
    if one.kind is bool:
        return [not now]
    if name == "gradient_bytes":
        return [6 - plan.reduced_bytes] if plan.dp * plan.cp > 1 else []
    return [word for word in one.words if word != now]


def _offloads(plan: ParallelPlan) -> Iterator[_Change]:
    """Yield optimizer and parameters at once, where the framework moves neither by itself."""
    if plan.framework_spec.data_parallel.offloads == ("optimizer+parameters",):
        for word in SETTINGS["offload_optimizer"].words:
            if (plan.offload_optimizer, plan.offload_parameters) != (word, word):
                yield _Change({"offload_optimizer": word, "offload_parameters": word})


def _batches(plan: ParallelPlan) -> Iterator[_Change]:
    per_replica = plan.global_batch // plan.dp
    for micro_batch in divisors(per_replica):
        if micro_batch != plan.micro_batch:
            yield _Change({"micro_batch": micro_batch}, micro_batch / plan.micro_batch)
    if plan.micro_batch == per_replica:
        both = {"micro_batch": 2 * plan.micro_batch, "global_batch": 2 * plan.global_batch}
        yield _Change(both, 2.0, same_training=False)
    yield _Change({"global_batch": 2 * plan.global_batch}, 2.0, same_training=False)


def _shardings(plan: ParallelPlan) -> Iterator[_Change]:
    """Yield other shardings, and other sizes of what is reduced at a time."""
    if plan.dp * plan.cp == 1:
        return
    is_outer = plan.outer_sharding != "none"
    without: dict[str, object] = {"outer_sharding": "none"} if is_outer else {}
    yield from (_Change({"sharding": word} | without) for word in SETTINGS["sharding"].words if word != plan.sharding)
    has_copies = plan.sharding_group is not None and plan.sharding_group < plan.dp * plan.cp
    if plan.framework_spec.data_parallel.shards_copies and plan.shards_parameters and has_copies:
        yield _Change({"outer_sharding": "none" if is_outer else "optim"})
    if plan.framework_spec.sharded_by:
        yield _Change({"sharding": "zero3", "framework": plan.framework_spec.sharded_by})
    if plan.sharding == "hsdp" and plan.sharding_group:
        for group in sorted({plan.sharding_group * 2, plan.sharding_group // 2} - {0}):
            yield _Change({"sharding_group": group}, group / plan.sharding_group)
    if not plan.shards_parameters:
        sizes = (plan.bucket_bytes * 2, plan.bucket_bytes // 2) if plan.bucket_bytes else _BUCKETS_BYTES
        for n_bytes in sizes:
            yield _Change({"bucket_bytes": n_bytes}, n_bytes / plan.bucket_bytes if plan.bucket_bytes else 0.0)


#: a layout names the stages of one pipeline: with other stages the framework cuts the layers itself
_RELAID: dict[str, object] = {"virtual_pp": 1, "pipeline_layout": None}


def _degrees(plan: ParallelPlan, site: Site) -> Iterator[_Change]:
    for axis in ("tp", "pp", "cp"):
        degree = getattr(plan, axis)
        for other in divisors(plan.dp * degree):
            if other == degree:
                continue
            settings: dict[str, object] = {axis: other, "dp": plan.dp * degree // other}
            without: dict[str, object] = {}
            if axis == "pp" and plan.pipeline_layout is not None:
                without = _RELAID
            elif axis == "pp" and plan.virtual_pp > 1 and other == 1:
                without = {"virtual_pp": 1}
            elif axis == "tp" and plan.sequence_parallel and other == 1:
                without = {"sequence_parallel": False}
            is_split_anew = axis == "tp" and 1 in (degree, other) and isinstance(site.spec, ModelSpec)
            follows = _following(plan, settings) if is_split_anew else {}
            without = {key: value for key, value in without.items() if key not in follows}
            yield _Change(settings | without, other / degree, follows=follows)
    if site.spec.has_experts:
        for other in divisors(plan.expert_dp * plan.ep):
            if other != plan.ep:
                yield _Change({"ep": other}, other / plan.ep)


def _schedules(plan: ParallelPlan) -> Iterator[_Change]:
    relaid = {} if plan.pipeline_layout is None else {"pipeline_layout": None}
    for chunks in sorted({1, plan.virtual_pp * 2, plan.virtual_pp // 2} - {0, plan.virtual_pp}):
        yield _Change({"virtual_pp": chunks, **relaid}, chunks / plan.virtual_pp)
    for schedule in SCHEDULES:
        if schedule != plan.schedule and schedule == plain_name(schedule):
            # most know their own number of chunks, the others take any from two on
            chunks = 1 if SCHEDULES[schedule].n_chunks else max(2, plan.virtual_pp)
            also = {} if chunks == plan.virtual_pp else {"virtual_pp": chunks, **relaid}
            yield _Change({"schedule": schedule, **also})


def _is_idle(change: _Change, plan: ParallelPlan, other: ParallelPlan, site: Site) -> bool:
    """Whether a change of a switch means nothing with this plan and model."""
    name = next(iter(change.settings))
    if name not in _SWITCHES:
        return False
    if name == "asynchronous_tp" and plan.sequence_parallel:
        return True
    has_shared = isinstance(site.spec, ModelSpec) and site.spec.shared_expert_hidden > 0
    # a setting is idle as it is or as it would be: one of the two is its default, of which nothing is said
    return any(
        setting == name
        for one in (plan, other)
        for setting, _ in idle_settings(one, has_experts=site.spec.has_experts, has_shared_expert=has_shared)
    )
