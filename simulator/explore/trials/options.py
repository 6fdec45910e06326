"""What of the plan can be set otherwise, one setting at a time: named as the flags that set it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from simulator.analysis.explain import Option
from simulator.answer import Result
from simulator.errors import SimulatorError
from simulator.explore.trials.machine import Trials
from simulator.models.spec import ModelSpec
from simulator.parallel.gradients import gradient_bytes
from simulator.plan import SETTINGS, ParallelPlan, idle_settings
from simulator.schedules import SCHEDULES

#: settings of whose words or switches every other one is tried where it means anything; the numerics stay as they are
_SWITCHES = (
    "overlap_parameter_gather", "sequence_parallel", "asynchronous_tp", "scatter_gather", "gradient_collective",
    "gradient_as_bucket_view", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "cp_comm_type",
    "cp_load_balance", "moe_dispatcher", "moe_shared_expert_overlap",
)  # fmt: skip
#: settings that change what training computes, if only its rounding
_NUMERICS = ("gradient_bytes", "gradient_compression", "moe_fp8_dispatch", "quantized_weights", "quantized_gradients")
#: what a bucket is tried at where the plan leaves it to the framework
_BUCKETS_BYTES = (25_000_000, 400_000_000)


class _Change(NamedTuple):
    """Other values of one setting, with what they bring along.

    ``ratio`` is the new number over the old one, 0 for words.
    """

    name: str
    settings: dict[str, object]
    ratio: float = 0.0
    same_training: bool = True


def options_of(trials: Trials) -> Iterator[Option]:
    """Yield single changes of the plan that make sense from where it is."""
    for change in _changes(trials.result):
        yield Option(
            name=change.name,
            simulate=lambda change=change: trials.plan(**change.settings),  # type: ignore[misc]
            same_training=change.same_training,
            ratio=change.ratio,
        )


def _changes(result: Result) -> Iterator[_Change]:
    plan = result.plan
    if plan.gpus > 1:
        word = "--no-overlap" if plan.overlaps else "--overlap"
        yield _Change(word, {"overlap": not plan.overlaps})
    yield from _switches(result)
    for recompute in ("none", "selective", "full"):
        if recompute != plan.recompute:
            yield _Change(f"--recompute {recompute}", {"recompute": recompute})
    if plan.attention == "eager":
        yield _Change("--attention flash", {"attention": "flash"})
    yield from _batches(plan)
    yield from _shardings(plan)
    yield from _degrees(plan)
    if plan.pp > 1:
        yield from _pipelines(plan)
    if result.topology.storage is not None or plan.sample_time_s:
        workers = max(1, plan.loader_workers * 2)
        ratio = workers / plan.loader_workers if plan.loader_workers else 0.0
        yield _Change(f"--loader-workers {workers}", {"loader_workers": workers}, ratio)


def _switches(result: Result) -> Iterator[_Change]:
    """Yield the other words and switches, leaving out those that mean nothing with this plan and model."""
    plan = result.plan
    for name in (*_SWITCHES, *_NUMERICS):
        for value in _others(plan, name):
            if _means_something(result, name, value):
                yield _Change(SETTINGS[name].spelled(value), {name: value}, 0.0, name not in _NUMERICS)


def _others(plan: ParallelPlan, name: str) -> list[object]:
    now, one = getattr(plan, name), SETTINGS[name]
    if one.kind is bool:
        return [not now]
    if name == "gradient_bytes":
        return [6 - gradient_bytes(plan)]
    assert one.words, name
    return [word for word in one.words if word != now]


def _means_something(result: Result, name: str, value: object) -> bool:
    plan, spec = result.plan, result.spec
    if name == "asynchronous_tp" and (plan.tp == 1 or plan.sequence_parallel):
        return False
    if name in ("sequence_parallel", "scatter_gather") and plan.tp == 1:
        return False
    if name == "scatter_gather" and (plan.pp == 1 or plan.sequence_parallel):
        return False
    if name == "overlap_parameter_gather" and plan.sharding == "none":
        return False
    if name == "gradient_bytes" and plan.dp * plan.cp == 1:
        return False
    has_experts = isinstance(spec, ModelSpec) and spec.n_experts > 0
    has_shared = isinstance(spec, ModelSpec) and spec.shared_expert_hidden > 0
    try:
        changed = replace(plan, **{name: value}).resolve(result.topology.n_gpus)  # type: ignore[arg-type]
    except SimulatorError:
        return False  # what excludes another setting needs more than a single change
    # a setting is idle as it is or as it would be: one of the two is its default, of which nothing is said
    idle = {
        setting
        for one in (plan, changed)
        for setting, _ in idle_settings(one, has_experts=has_experts, has_shared_expert=has_shared)
    }
    return name not in idle


def _batches(plan: ParallelPlan) -> Iterator[_Change]:
    for micro_batch in sorted({plan.micro_batch * 2, plan.micro_batch // 2} - {0}):
        ratio = micro_batch / plan.micro_batch
        if plan.global_batch % (micro_batch * plan.dp) == 0:
            yield _Change(f"--micro-batch {micro_batch}", {"micro_batch": micro_batch}, ratio)
            continue
        global_batch = plan.global_batch * micro_batch // plan.micro_batch
        settings: dict[str, object] = {"micro_batch": micro_batch, "global_batch": global_batch}
        name = f"--micro-batch {micro_batch} --global-batch {global_batch}"
        yield _Change(name, settings, ratio, same_training=False)
    doubled = plan.global_batch * 2
    yield _Change(f"--global-batch {doubled}", {"global_batch": doubled}, 2.0, same_training=False)


def _shardings(plan: ParallelPlan) -> Iterator[_Change]:
    """Yield other shardings, and other sizes of what is reduced at a time."""
    if plan.dp * plan.cp == 1:
        return
    for sharding in ("none", "zero1", "zero2") if plan.pp > 1 else ("none", "zero1", "zero2", "zero3", "hsdp"):
        if sharding != plan.sharding:
            yield _Change(f"--sharding {sharding}", {"sharding": sharding})
    if plan.sharding == "hsdp" and plan.sharding_group:
        for group in sorted({plan.sharding_group * 2, plan.sharding_group // 2} - {0}):
            settings: dict[str, object] = {"sharding_group": group}
            yield _Change(f"--set sharding_group={group}", settings, group / plan.sharding_group)
    if not plan.shards_parameters:
        sizes = (plan.bucket_bytes * 2, plan.bucket_bytes // 2) if plan.bucket_bytes else _BUCKETS_BYTES
        for n_bytes in sizes:
            ratio = n_bytes / plan.bucket_bytes if plan.bucket_bytes else 0.0
            yield _Change(f"--set bucket_bytes={n_bytes}", {"bucket_bytes": n_bytes}, ratio)


def _degrees(plan: ParallelPlan) -> Iterator[_Change]:
    """Yield degrees of twice and half, data parallelism taking up the difference."""
    for axis in ("tp", "pp", "cp"):
        degree = getattr(plan, axis)
        for other in (degree * 2, degree // 2):
            if other and (plan.dp * degree) % other == 0:
                settings: dict[str, object] = {axis: other, "dp": plan.dp * degree // other}
                if axis == "pp" and plan.virtual_pp > 1 and other == 1:
                    settings["virtual_pp"] = 1
                yield _Change(f"--{axis} {other} --dp {settings['dp']}", settings, other / degree)
    if plan.ep > 1:
        for other in (plan.ep * 2, plan.ep // 2):
            yield _Change(f"--ep {other}", {"ep": other}, other / plan.ep)


def _pipelines(plan: ParallelPlan) -> Iterator[_Change]:
    for chunks in sorted({1, plan.virtual_pp * 2, plan.virtual_pp // 2} - {0, plan.virtual_pp}):
        yield _Change(f"--virtual-pp {chunks}", {"virtual_pp": chunks}, chunks / plan.virtual_pp)
    for schedule in SCHEDULES:
        if schedule not in (plan.schedule, "1f1b-interleaved"):
            # most know their own number of chunks, the others take any from two on
            virtual_pp = 1 if SCHEDULES[schedule].n_chunks else max(2, plan.virtual_pp)
            is_same = virtual_pp == plan.virtual_pp
            name = f"--schedule {schedule}" + ("" if is_same else f" --virtual-pp {virtual_pp}")
            yield _Change(name, {"schedule": schedule} if is_same else {"schedule": schedule, "virtual_pp": virtual_pp})
