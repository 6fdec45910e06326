"""The tables of an answer, of sweeps and searches, and of whole runs, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from simulator.analysis.critical_path import PathRow
from simulator.analysis.explain import Change
from simulator.analysis.link_use import LinkClass, LinkTraffic
from simulator.analysis.metrics import CommunicationRow
from simulator.answer import describe_axes, describe_scaling, throughput
from simulator.explore.answer_form import ScalingRow, WayOut
from simulator.explore.run.restarts import in_words
from simulator.explore.run.shared_cluster import ContendingJobs, PlacementRow
from simulator.plan import ParallelPlan
from simulator.report.grid import Grid, Number, Quantity, Share
from simulator.units import S_PER_DAY, count_of, format_bytes, format_duration

if TYPE_CHECKING:
    from simulator.explore.run.stragglers import Straggling
    from simulator.explore.search.objectives import CountAnswer, NoPlan, PlanRow

#: characters of a list of nodes
_NODES = 40

_COMMUNICATION: dict[str, tuple[str, Callable[[Any], object]]] = {
    "ranks": ("group_size", "{:,}".format),
    "count": ("count", "{:,.4g}".format),
    "size": ("bytes", lambda value: Quantity(value, "bytes")),
    "time": ("total_s", Quantity),
    "algbw": ("algbw_bytes_per_s", lambda value: Quantity(value, "bandwidth")),
    "busbw": ("busbw_bytes_per_s", lambda value: Quantity(value, "bandwidth")),
}


def communication(rows: Sequence[CommunicationRow]) -> Grid:
    """Return one row per collective, axis and group size."""
    cells = [
        (
            row["collective"].replace("_", "-"),
            row["axis"],
            *(
                Number(f"communication.{i}.{key}", value := cast(Mapping[str, Any], row)[key], write(value))
                for key, write in _COMMUNICATION.values()
            ),
        )
        for i, row in enumerate(rows)
    ]
    title = "Communication per rank and iteration; bandwidths as nccl-tests defines them"
    return Grid(
        title, ("collective", "axis", *_COMMUNICATION), cells, 2, note=describe_axes(row["axis"] for row in rows)
    )


def leaving(traffic: Sequence[LinkTraffic], domain: str, n_domains: int) -> Grid:
    """Return which bytes of all ranks stay in a node or rack, whose GPUs NVLink joins, and which leave it."""
    most = max((row.nic_bytes for row in traffic), default=0.0)
    cells = [
        (
            row.collective.replace("_", "-"), row.axis, Quantity(row.nvlink_bytes, "bytes"), Quantity(row.nic_bytes, "bytes"),
            Share(row.nic_bytes, most),
        )
        for row in traffic
    ]  # fmt: skip
    out, inside = sum(row.nic_bytes for row in traffic), sum(row.nvlink_bytes for row in traffic)
    title = (
        f"Which bytes leave a {domain}: in an iteration {format_bytes(out)} leave one of {n_domains:,} {domain}s and "
        f"{format_bytes(inside)} stay on NVLink, headers and protocols included"
    )
    columns = ("collective", "axis", "over NVLink", f"out of the {domain}", "")
    return Grid(title, columns, cells, 2, note=describe_axes(row.axis for row in traffic))


def links(classes: Sequence[LinkClass]) -> Grid:
    """Return one row per class of equal links."""
    cells = [
        (
            one.kind, one.busiest if one.most > 0 else "none carries anything", f"{one.mean:.1%}", f"{one.most:.1%}",
            f"{one.n_links:,}", Quantity(one.bandwidth_bytes_per_s, "bandwidth"), Quantity(one.latency_s),
        )
        for one in classes
    ]  # fmt: skip
    columns = ("links", "busiest", "mean use", "largest use", "number", "bandwidth each way", "latency")
    return Grid(
        "Links by class; use is the share of the iteration that their bytes take at full rate", columns, cells, 2
    )


def _fit(memory: Mapping[str, Any]) -> str:
    """Return what stands behind the peak of a row; plans of searches and sweeps that do not fit have no figures."""
    return " (does not fit)" if not memory.get("fits", True) else " (tight)" if memory.get("is_tight") else ""


def scaling(answers: Sequence[ScalingRow]) -> Grid:
    """Return one row per number of GPUs."""
    rate, unit = throughput(answers[0])
    first, key = rate / answers[0]["gpus"], unit.replace("/", "_per_")
    cells = []
    for i, answer in enumerate(answers):
        rate, _ = throughput(answer)
        per_gpu = rate / answer["gpus"]
        at, memory = f"scaling.{i}", answer["memory"]
        seconds, exposed = answer["iteration_time_s"], answer["communication_fraction"]
        cells.append(
            (
                Number(f"{at}.gpus", answer["gpus"], f"{answer['gpus']:,}"),
                Number(f"{at}.iteration_time_s", seconds, Quantity(seconds)),
                Number(f"{at}.{key}", rate, _rate(rate)),
                _rate(per_gpu),
                f"{per_gpu / first:.1%}",
                Number(f"{at}.communication_fraction", exposed, f"{exposed:.1%}"),
                Number(f"{at}.mfu", answer["mfu"], f"{answer['mfu']:.1%}"),
                Quantity(memory["peak_bytes"], "bytes", more=_fit(memory)),
            )
        )
    columns = ("GPUs", "iteration", unit, f"{unit}/GPU", "efficiency", "exposed communication", "MFU", "memory")
    plans = [ParallelPlan(**answer["provenance"]["scenario"]["plan"]) for answer in answers]
    return Grid("Scaling; efficiency is relative to the first row", columns, cells, note=describe_scaling(plans))


def _rate(per_s: float) -> str:
    return f"{per_s:,.4g}" if per_s < 100 else f"{per_s:,.0f}"


def critical_path(rows: Sequence[PathRow]) -> Grid:
    """Return the critical path, one row per kind of work."""
    longest = max((row["share"] for row in rows), default=1.0)
    cells = [
        (
            row["kind"],
            Share(row["share"], longest, "talk" if row["communication"] else ""),
            Quantity(row["seconds"]),
            f"{row['share']:.1%}",
        )
        for row in rows
    ]
    title = "Critical path by kind of work: the chain of operations that decides how long the step takes"
    return Grid(title, ("kind", "", "time", "share"), cells, words=(1,))


def changes(title: str, rows: Sequence[Change]) -> Grid:
    """Return what single changes save."""
    largest = max((row["saving"] for row in rows if row["saving"] > 0), default=1.0)
    cells = [
        (
            _named(row),
            Share(row["saving"], largest, "good" if row["saving"] > 0 else "worse"),
            f"{row['saving']:+.1%}",
            Quantity(row["iteration_time_s"]),
            "" if row["elasticity"] is None else f"{row['elasticity']:.3f} %",
        )
        for row in rows
    ]
    columns = ("single change", "", "saves", "iteration", "saved per 1 % more of what changes")
    return Grid(title, columns, cells, words=(1,), note=_other_training(rows))


def _other_training(rows: Sequence[Change | WayOut]) -> str:
    return (
        ""
        if all(row["same_training"] for row in rows)
        else "other training: another batch or precision, with which a model learns otherwise"
    )


def _named(row: Change | WayOut) -> str:
    return row["change"] + ("" if row["same_training"] else " (other training)")


def _verdict(row: WayOut) -> str:
    if not row["fits"]:
        return "too large"
    return "fits, tight" if row["is_tight"] else "fits"


def ways_out(rows: Sequence[WayOut]) -> Grid:
    """Return the changes with which a plan that does not fit needs less memory, those that suffice first."""
    cells: list[tuple[object, ...]] = [
        (
            _named(row),
            _verdict(row),
            Number(f"ways_out.{i}.peak_bytes", row["peak_bytes"], Quantity(row["peak_bytes"], "bytes")),
            "" if row["iteration_time_s"] is None else Quantity(row["iteration_time_s"]),
            "" if row["gpu_hours_per_billion_tokens"] is None else f"{row['gpu_hours_per_billion_tokens']:.4g}",
            ""
            if row["cost_per_billion_tokens"] is None
            else f"{row['cost_per_billion_tokens']:,.2f} {row['currency']}".strip(),
        )
        for i, row in enumerate(rows)
    ]
    columns = ["change", "verdict", "peak memory", "iteration", "GPU hours per 1e9 tokens"]
    if any(row["cost_per_billion_tokens"] is not None for row in rows):
        columns.append("cost of them")
    cells = [cell[: len(columns)] for cell in cells]
    return Grid("Ways out of memory, the fastest first", columns, cells, words=(1,), note=_other_training(rows))


def contending_jobs(found: ContendingJobs) -> Grid:
    """Return what jobs beside each other lose against running alone."""
    cells = [
        (
            job["model"], f"{count_of(job['gpus'], 'GPU')}, nodes {_by_leaf(job['on_leaves'])}", Quantity(job["alone_s"]),
            Quantity(job["beside_s"]), f"{job['slowdown']:.3f}",
            f"{job['slowdown_low']:.3f} to {job['slowdown_high']:.3f}",
        )
        for job in found["jobs"]
    ]  # fmt: skip
    columns = ("job", "where", "alone", "beside the others", "slowdown", "by how they start")
    return Grid("Each job against itself alone", columns, cells, words=(1,))


def placements(rows: Sequence[PlacementRow]) -> Grid:
    """Return the ways to place a job, the fastest first."""
    cells = []
    for row in rows:
        nodes = ",".join(map(str, row["nodes"]))
        shown = nodes if len(nodes) <= _NODES else f"{nodes[: _NODES - 3]}..."
        slurms = "Slurm's choice" if row["is_slurms"] else ""
        cells.append((_by_leaf(row["on_leaves"]), shown, slurms, Quantity(row["iteration_time_s"])))
    columns = ("nodes by leaf", "nodes", "", "iteration")
    return Grid("Placements on the free nodes, the fastest first", columns, cells, words=(1, 2))


def _by_leaf(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))


def causes(found: Straggling) -> Grid:
    """Return what each cause of uneven steps costs alone."""
    cells = [(row["cause"], f"{row['slowdown']:.3f}") for row in found["causes"]]
    return Grid("Each cause without the others", ("cause", "slowdown"), cells)


def per_gpu(row: Mapping[str, Any]) -> float:
    """Throughput of one GPU in tokens per second, which compares rows of any batch and any number of GPUs."""
    return float(row["tokens_per_s"]) / float(row["gpus"])


#: figure of a row of a sweep or a search -> what writes it
FIGURES: dict[str, Callable[[Mapping[str, Any]], object]] = {
    "iteration": lambda row: Quantity(row["iteration_time_s"]),
    "tokens/s": lambda row: f"{row['tokens_per_s']:,.0f}",
    "tokens/s/GPU": lambda row: f"{per_gpu(row):,.0f}",
    "MFU": lambda row: f"{row['mfu']:.1%}",
    "exposed": lambda row: f"{row['communication_fraction']:.1%}",
    "memory": lambda row: Quantity(row["peak_bytes"], "bytes", more=_fit(row)),
}


def figures(row: Mapping[str, Any], names: Iterable[str] = FIGURES) -> tuple[object, ...]:
    """Return figures of a row as cells, dashes where it has no answer."""
    return tuple(FIGURES[name](row) if "iteration_time_s" in row else "-" for name in names)


def ranking(answer: CountAnswer) -> Iterator[tuple[int | None, list[str], PlanRow | NoPlan]]:
    """Yield rank, labels and row of every plan that a search shows: the ranking, then what stands beside it without a rank."""
    beside = answer["plain"] | ({"yours": answer["given"]} if "given" in answer else {})
    labels: dict[str, list[str]] = {}
    for label, row in beside.items():
        labels.setdefault("" if "reason" in row else row["summary"], []).append(label)
    for rank, plan in enumerate(answer["plans"], start=1):
        yield rank, labels.get(plan["summary"], []), plan
    listed = [row["summary"] for row in answer["plans"]]
    for label, row in beside.items():
        if "reason" in row or row["summary"] not in listed:
            yield None, [label], row


def whole_run_rows(run: Mapping[str, Any]) -> Iterator[tuple[str, str, float | None, str]]:
    """Yield what, the key of its number, the number where it is known, and the line in words."""
    time, low, high = (format_duration(run[key] * S_PER_DAY) for key in ("days", "low_days", "high_days"))
    length = f"{_count(run['tokens'])} tokens in {run['iterations']:,} iterations"
    yield "time", "days", run["days"], f"{time} (80 %: {low} to {high}) for {length}"
    yield "GPU hours", "gpu_hours", run["gpu_hours"], f"{run['gpu_hours']:,.0f}"
    unpriced = "not known: no list price of this device is shipped (--gpu-hour-price 2.50)"
    cost = unpriced if run["cost"] is None else f"{run['cost']:,.0f} {run['currency']}".strip()
    yield "cost", "cost", run["cost"], cost
    energy = run["energy"]
    low, middle, high = (f"{energy[f'{end}j_per_token']:.3g}" for end in ("low_", "", "high_"))
    per_gpu = (
        f"{energy['gpu_w']:.0f} W per GPU and {energy['host_w_per_gpu']:.0f} W of its node, PUE {energy['pue']:.3g}; "
        f"{middle} J per token, {low} to {high}"
    )
    yield "energy", "energy.kwh", energy["kwh"], f"{_energy(energy['kwh'])} ({per_gpu})"
    grid = f"{_mass(energy['kg_co2'])} ({energy['kg_co2_per_kwh']:.3g} kg per kWh)"
    yield "CO2", "energy.kg_co2", energy["kg_co2"], grid
    yield "goodput", "goodput", run["goodput"], f"{run['goodput']:.2%} expected{_losses(run)}"
    checkpoint = run["checkpoint"]
    every = f"every {format_duration(checkpoint['interval_s'])}" if checkpoint["count"] > 1 else "at the end"
    words = f"{format_bytes(checkpoint['bytes'])} in {format_duration(checkpoint['write_s'])}, {every}"
    yield "checkpoints", "checkpoint.count", checkpoint["count"], f"{checkpoint['count']:,} ({words})"
    failures = run["failures"]
    if failures["mtbf_s"] is not None:
        restart = f"{format_duration(failures['restart_s'])}: {in_words(failures['restart_phases'])}"
        words = f"one every {format_duration(failures['mtbf_s'])}, each with a restart of {restart}"
        yield "failures", "failures.expected", failures["expected"], f"{failures['expected']:,.3g} expected ({words})"
    if failures["by_component"]:
        parts = sorted(failures["by_component"].items(), key=lambda part: -part[1])[:5]
        yield (
            "of them",
            "failures.expected",
            failures["expected"],
            ", ".join(f"{name} {count:,.3g}" for name, count in parts),
        )
    if (played := run["played"]) is not None:
        middle, low, high = (format_duration(played[f"{key}_days"] * S_PER_DAY) for key in ("p50", "p10", "p90"))
        words = f"{middle} at the median of {played['histories']:,} (80 % between {low} and {high}), mean goodput {played['goodput']:.2%}"
        waiting = format_duration(played["waiting_days"] * S_PER_DAY)
        money = "" if played["cost"] is None else f", {played['cost']:,.0f} {run['currency']}".rstrip()
        words += f"{money}, {_energy(played['kwh'])}"
        yield (
            "played",
            "played.p50_days",
            played["p50_days"],
            words + (f", {waiting} waiting for nodes" if played["waiting_days"] else ""),
        )


def _count(n_tokens: float) -> str:
    for suffix, scale in (("trillion", 1e12), ("billion", 1e9), ("million", 1e6)):
        if n_tokens >= scale:
            return f"{n_tokens / scale:,.4g} {suffix}"
    return f"{n_tokens:,.0f}"


def _energy(kwh: float) -> str:
    return f"{kwh / 1e3:,.4g} MWh" if kwh >= 1e4 else f"{kwh:,.4g} kWh"


def _losses(run: Mapping[str, Any]) -> str:
    names = {"stalled_s": "links down", "checkpoint_s": "checkpoints", "lost_s": "lost work", "restart_s": "restarts"}
    parts = [f"{label} {run['time'][key] / run['total_s']:.2%}" for key, label in names.items() if run["time"][key] > 0]
    return f" ({', '.join(parts)})" if parts else ""


def money_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Callable[[Mapping[str, Any]], str]]:
    """Return the columns of money and days that rows of a table have something in: heading to what writes a cell."""
    if any("days" in row for row in rows):
        return {
            "run": lambda row: format_duration(row["days"] * S_PER_DAY) if "days" in row else "-",
            **({"played, 80 %": _played} if any("p10_days" in row for row in rows) else {}),
            **({"cost": lambda row: _money(row, "cost")} if any(row.get("cost") is not None for row in rows) else {}),
            "energy": lambda row: _energy(row["kwh"]) if "kwh" in row else "-",
            "CO2": lambda row: _mass(row["kg_co2"]) if "kg_co2" in row else "-",
        }
    if any(row.get("cost_per_billion_tokens") for row in rows):
        return {"cost per 1e9 tokens": lambda row: _money(row, "cost_per_billion_tokens")}
    return {}


def _money(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if value is None:
        return "no list price" if "gpu_hours_per_billion_tokens" in row else "-"
    shown = f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}"
    return f"{shown} {row.get('currency', '')}".strip()


def _played(row: Mapping[str, Any]) -> str:
    if "p10_days" not in row:
        return "-"
    return " to ".join(format_duration(row[key] * S_PER_DAY) for key in ("p10_days", "p90_days"))


def _mass(kg: float) -> str:
    return f"{kg / 1e3:,.3g} t" if kg >= 1e3 and kg < 1e6 else f"{kg / 1e3:,.0f} t" if kg >= 1e6 else f"{kg:,.3g} kg"


def whole_run(run: Mapping[str, Any]) -> list[Grid]:
    """Return the whole run, and what it assumes."""
    rows = [
        (what, words if value is None else Number(f"whole_run.{key}", value, words))
        for what, key, value, words in whole_run_rows(run)
    ]
    taken = [(row["what"], row["value"], row["source"]) for row in run["assumptions"]]
    return [
        Grid("What the whole run takes", ("what", "how much"), rows, words=(1,)),
        Grid("Assumed", ("what", "value", "source"), taken, words=(1, 2)),
    ]


#: combinations without an answer that are named before they are counted
_NAMED = 3


def without_answer(named: Iterable[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Say which rows of a sweep or search have no answer and why, the most frequent reason first.

    Examples
    --------
    >>> without_answer([("tp=2", {"status": "ok"}), ("tp=3", {"status": "invalid", "reason": "tp must divide 20"})])
    ['tp=3: tp must divide 20']
    >>> bad = {"status": "invalid", "reason": "tp must divide 20"}
    >>> without_answer([("tp=1", {"status": "too large", "reason": "needs 90 GiB"}), *((f"tp={n}", bad) for n in (3, 6, 7, 9))])
    ['tp=3, tp=6, tp=7 and 1 more: tp must divide 20', 'tp=1: needs 90 GiB']
    """
    failed: dict[str, list[str]] = {}
    for name, row in named:
        if row["status"] != "ok":
            failed.setdefault(row["reason"], []).append(name)
    ranked = sorted(failed.items(), key=lambda item: -len(item[1]))
    return [f"{', '.join(which[:_NAMED])}{_more(len(which))}: {reason}" for reason, which in ranked]


def _more(n_rows: int) -> str:
    return f" and {n_rows - _NAMED:,} more" if n_rows > _NAMED else ""
