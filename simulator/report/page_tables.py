"""The report's words and tables: headline, communication, links, inputs and the sources of constants."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from simulator.analysis.critical_path import PathRow
from simulator.analysis.explain import Change, Explanation
from simulator.analysis.link_use import LinkClass
from simulator.analysis.metrics import CommunicationRow
from simulator.answer import (
    Answer,
    describe_axes,
    describe_chosen,
    describe_plan,
    describe_scaling,
    describe_support,
    throughput,
)
from simulator.explore.full_answer import ScalingRow, WayOut
from simulator.explore.neighbours import Neighbours, PlacementRow
from simulator.explore.restarts import in_words
from simulator.plan import ParallelPlan
from simulator.report.constant_sources import Section, write_value
from simulator.report.markup import Markup, element, number, share_bar, table
from simulator.scenario import Scenario
from simulator.units import format_bandwidth, format_bytes, format_duration, format_time

#: settings beside the plan, and settings of a plan that follow from the others where nobody gives them
_SCENARIO = ("topology", "model", "network", "kernels", "transport", "algorithm", "protocol", "seed", "unfold")
_DERIVED = ("gpus", "dp", "micro_batch", "global_batch", "sequence_length")


#: changes that are shown before the fold
_N_CHANGES = 8


def headline(answer: Answer, scenario: Scenario) -> Markup:
    """Return the answer in a few seconds' reading: the time, its interval, six figures and one sentence."""
    seconds, sure = answer["iteration_time_s"], answer["confidence"]
    time = number("iteration_time_s", seconds, format_time(seconds))
    low, high = (number(f"confidence.{key}", sure[key], format_time(sure[key])) for key in ("low_s", "high_s"))
    level = "80 % interval: "
    interval = element("p", level, low, " to ", high, element("span", sure["basis"], class_="basis"), class_="interval")
    big = element("p", time, element("small", " per iteration"), class_="big")
    return Markup(
        element("p", describe_plan(scenario.plan), class_="plan")
        + (element("p", describe_chosen(answer), class_="plan") if answer["provenance"]["chosen"] else "")
        + element("div", big, interval, class_="answer")
        + element("p", describe_support(answer["support"]), class_="plan")
        + element("dl", *_figures(answer), class_="kpis")
        + _busiest_link(answer)
    )


def _figures(answer: Answer) -> list[Markup]:
    memory = answer["memory"]
    exposed, peak = answer["communication_fraction"], memory["peak_bytes"]
    verdict = f"{'fits in' if memory['fits'] else 'does not fit in'} {format_bytes(memory['capacity_bytes'])}"
    tokens, samples = answer["tokens_per_s"], answer["samples_per_s"]
    rates = [_figure("samples", number("samples_per_s", samples, f"{samples:.4g}"), "samples/s")]
    if tokens is not None:
        rates.insert(0, _figure("throughput", number("tokens_per_s", tokens, f"{tokens:,.0f}"), "tokens/s"))
    return [
        *rates,
        _figure(
            "per GPU", number("tflops_per_gpu", answer["tflops_per_gpu"], f"{answer['tflops_per_gpu']:.1f}"), "TFLOP/s"
        ),
        _figure("MFU", number("mfu", answer["mfu"], f"{answer['mfu']:.1%}"), "model FLOPs of the peak"),
        _figure(
            "HFU", number("hfu", answer["hfu"], f"{answer['hfu']:.1%}"), "least time of what ran, of the iteration"
        ),
        _figure(
            "exposed communication", number("communication_fraction", exposed, f"{exposed:.1%}"), "of the iteration"
        ),
        _figure(
            "memory", number("memory.peak_bytes", peak, format_bytes(peak)), verdict, "ok" if memory["fits"] else "bad"
        ),
    ]


def _figure(label: str, value: Markup, unit: str, state: str = "") -> Markup:
    return element(
        "div", element("dt", label), element("dd", element("b", value), " ", unit), class_=f"kpi {state}".strip()
    )


def _busiest_link(answer: Answer) -> str:
    link = answer["bottleneck"]
    if link is None:
        return ""
    use = number("bottleneck.utilization", link["utilization"], f"{link['utilization']:.1%}")
    rate = write_value("bandwidth_bytes_per_s", link["bandwidth_bytes_per_s"])
    what = f"Busiest link: {link['link']} ({link['kind']}, {rate} per direction), "
    return element("p", what, use, " of the iteration at its full rate.", class_="verdict")


_COMMUNICATION = (
    ("ranks", "group_size", "{:,}".format),
    ("count", "count", "{:,.4g}".format),
    ("bytes", "bytes", format_bytes),
    ("time", "total_s", format_time),
    ("algbw", "algbw_bytes_per_s", format_bandwidth),
    ("busbw", "busbw_bytes_per_s", format_bandwidth),
)


def communication_table(rows: Sequence[CommunicationRow]) -> Markup:
    """Return one row per collective, axis and group size."""
    cells = []
    for i, row in enumerate(rows):
        values: Mapping[str, Any] = {**row}
        shown = (
            number(f"communication.{i}.{key}", values[key], write(values[key])) for _, key, write in _COMMUNICATION
        )
        cells.append((row["collective"].replace("_", "-"), row["axis"], *shown))
    columns = ("collective", "axis", *(column for column, _, _ in _COMMUNICATION))
    caption = f"Communication per rank and iteration; bandwidths as nccl-tests defines them. {describe_axes(row['axis'] for row in rows)}"
    return table(caption, columns, cells, text_columns=2)


def link_table(classes: Sequence[LinkClass]) -> Markup:
    """Return one row per class of equal links."""
    cells = [
        (
            one.kind, one.busiest if one.most > 0 else "none carries anything", f"{one.mean:.1%}", f"{one.most:.1%}",
            f"{one.n_links:,}", write_value("bandwidth_bytes_per_s", one.bandwidth_bytes_per_s),
            write_value("latency_s", one.latency_s),
        )
        for one in classes
    ]  # fmt: skip
    columns = ("links", "busiest", "mean use", "largest use", "number", "bandwidth each way", "latency")
    caption = "Links by class; use is the share of the iteration that their bytes take at full rate"
    return table(caption, columns, cells, text_columns=2)


def scaling_table(answers: Sequence[ScalingRow]) -> Markup:
    """Return one row per number of GPUs."""
    rate, unit = throughput(answers[0])
    first, key = rate / answers[0]["gpus"], unit.replace("/", "_per_")
    cells = []
    for i, answer in enumerate(answers):
        rate, _ = throughput(answer)
        per_gpu = rate / answer["gpus"]
        at, memory = f"scaling.{i}", answer["memory"]
        cells.append(
            (
                number(f"{at}.gpus", answer["gpus"], f"{answer['gpus']:,}"),
                number(f"{at}.iteration_time_s", answer["iteration_time_s"], format_time(answer["iteration_time_s"])),
                number(f"{at}.{key}", rate, f"{rate:,.4g}" if rate < 100 else f"{rate:,.0f}"),
                f"{per_gpu:,.4g}" if per_gpu < 100 else f"{per_gpu:,.0f}",
                f"{per_gpu / first:.1%}",
                number(
                    f"{at}.communication_fraction",
                    answer["communication_fraction"],
                    f"{answer['communication_fraction']:.1%}",
                ),
                number(f"{at}.mfu", answer["mfu"], f"{answer['mfu']:.1%}"),
                format_bytes(memory["peak_bytes"]) + ("" if memory["fits"] else " (does not fit)"),
            )
        )
    columns = ("GPUs", "iteration", unit, f"{unit}/GPU", "efficiency", "exposed communication", "MFU", "memory")
    plans = [ParallelPlan(**answer["provenance"]["scenario"]["plan"]) for answer in answers]
    caption = f"Scaling; efficiency is relative to the first row; {describe_scaling(plans)}"
    return table(caption, columns, cells)


def input_table(scenario: Scenario, given: Collection[str]) -> Markup:
    """Return every input with its value: those that were given or derived, and folded those left at their default."""
    plain = Scenario(topology="", model="")
    rows: list[tuple[str, str, str]] = []
    for name in _SCENARIO:
        value = getattr(scenario, name)
        rows.append(
            (name, write_value(name, value) or "chosen by the model", _origin(name, value != getattr(plain, name)))
        )
    rows += [(key, value, "given") for key, value in scenario.overrides]
    rows += [("slow-rank", f"{rank}={factor:g}", "given") for rank, factor in scenario.faults.slow_ranks]
    rows += [("slow-link", f"{link}={factor:g}", "given") for link, factor in scenario.faults.slow_links]
    for name, value in scenario.plan.to_dict().items():
        open_ = value is None or (name.endswith("_bytes") and not value)
        text = "framework's default" if open_ else write_value(name, value)
        rows.append((name.replace("_", "-"), text, _origin(name, name in given)))
    columns = ("input", "value", "where from")
    defaults = [row for row in rows if row[2] == "default"]
    folded = table("Inputs left at their default", columns, defaults, text_columns=3)
    return Markup(
        table("Inputs", columns, [row for row in rows if row[2] != "default"], text_columns=3)
        + element("details", element("summary", "left at their default"), folded, class_="constants")
    )


def _origin(name: str, is_given: bool) -> str:
    return "given" if is_given else "derived" if name in _DERIVED else "default"


def constants_details(sections: Sequence[Section]) -> Markup:
    """Return all constants, folded by section, each with its source."""
    parts = [element("h3", "Constants and their sources")]
    for one in sections:
        summary = element("summary", one.title, element("span", one.source, class_="source"))
        rows = (element("tr", element("th", name, scope="row"), element("td", value)) for name, value in one.rows)
        whole = element("table", element("tbody", *rows))
        box = element("div", whole, class_="scroll", role="region", tabindex="0", aria_label=one.title)
        parts.append(element("details", summary, box, class_="constants"))
    return Markup("".join(parts))


def explanation_tables(explanation: Explanation) -> Markup:
    """Return the best changes, all changes, what has no effect, and the critical path by kind."""
    parts: list[Markup] = []
    if explanation["best"]:
        parts += [element("h3", "Best single changes, each simulated"), _best(explanation["best"])]
    parts.append(path_table(explanation["critical_path"]))
    changes = explanation["changes"]
    if changes:
        parts.append(_changes_table("What single changes save, each simulated", changes[:_N_CHANGES]))
    if changes[_N_CHANGES:]:
        title = "Changes that save less, or cost time"
        rest = _changes_table(title, changes[_N_CHANGES:])
        parts.append(element("details", element("summary", title), rest, class_="constants"))
    if explanation["without_effect"]:
        idle = ", ".join(explanation["without_effect"])
        parts.append(element("p", element("b", "Without effect here: "), f"{idle}."))
    if explanation["impossible"]:
        rows = [(row["change"], row["reason"]) for row in explanation["impossible"]]
        hidden = table("Changes that cannot be made", ("change", "why not"), rows, text_columns=2)
        parts.append(element("details", element("summary", "Changes that cannot be made"), hidden, class_="constants"))
    return Markup("".join(parts))


def ways_out_table(rows: Sequence[WayOut]) -> Markup:
    """Return the changes with which a plan that does not fit needs less memory, those that suffice first."""
    cells = [
        (
            row["change"] + ("" if row["same_training"] else " (other training)"),
            "fits" if row["fits"] else "too large",
            number(f"ways_out.{i}.peak_bytes", row["peak_bytes"], format_bytes(row["peak_bytes"])),
            "" if row["iteration_time_s"] is None else format_time(row["iteration_time_s"]),
            "" if row["gpu_hours_per_billion_tokens"] is None else f"{row['gpu_hours_per_billion_tokens']:.4g}",
            ""
            if row["cost_per_billion_tokens"] is None
            else f"{row['cost_per_billion_tokens']:,.2f} {row['currency']}".strip(),
        )
        for i, row in enumerate(rows)
    ]
    columns = ("change", "verdict", "peak memory", "iteration", "GPU hours per 1e9 tokens", "cost of them")
    return table("Ways out of memory, the fastest first", columns, cells, text_columns=2)


def neighbours_table(found: Neighbours) -> Markup:
    """Return what jobs beside each other lose against running alone."""
    cells = [
        (
            job["model"], f"{job['gpus']} GPUs, nodes {_by_leaf(job['on_leaves'])}", format_time(job["alone_s"]),
            format_time(job["beside_s"]), f"{job['slowdown']:.3f}",
            f"{job['slowdown_low']:.3f} to {job['slowdown_high']:.3f}",
        )
        for job in found["jobs"]
    ]  # fmt: skip
    columns = ("job", "where", "alone", "beside the others", "slowdown", "by how they start")
    return table("Each job against itself alone", columns, cells, text_columns=2)


def placements_table(rows: Sequence[PlacementRow]) -> Markup:
    """Return the ways to place a job, the fastest first."""
    cells = [
        (_by_leaf(row["on_leaves"]), "Slurm's choice" if row["is_slurms"] else "", format_time(row["iteration_time_s"]))
        for row in rows
    ]
    return table(
        "Placements on the free nodes, the fastest first", ("nodes by leaf", "", "iteration"), cells, text_columns=2
    )


def _by_leaf(counts: Sequence[int]) -> str:
    return " + ".join(map(str, counts))


def _best(rows: Sequence[Change]) -> Markup:
    items = (
        element(
            "li", element("b", row["change"]), f": saves {row['saving']:.1%} ({format_time(row['iteration_time_s'])})"
        )
        for row in rows
    )
    return element("ol", *items, class_="best")


def path_table(rows: Sequence[PathRow]) -> Markup:
    """Return the critical path, one row per kind of work."""
    longest = max((row["share"] for row in rows), default=1.0)
    cells = [
        (
            row["kind"],
            share_bar(row["share"], longest, "talk" if row["communication"] else ""),
            format_time(row["seconds"]),
            f"{row['share']:.1%}",
        )
        for row in rows
    ]
    caption = "Critical path by kind of work: the chain of operations that decides how long the step takes"
    return table(caption, ("kind", "", "time", "share"), cells, text_columns=2)


def _changes_table(caption: str, rows: Sequence[Change]) -> Markup:
    largest = max((abs(row["saving"]) for row in rows), default=1.0)
    cells = [
        (
            row["change"] + ("" if row["same_training"] else " (other training)"),
            share_bar(row["saving"], largest, "good" if row["saving"] > 0 else "worse"),
            f"{row['saving']:+.1%}",
            format_time(row["iteration_time_s"]),
            "" if row["elasticity"] is None else f"{row['elasticity']:.3f} %",
        )
        for row in rows
    ]
    columns = ("single change", "", "saves", "iteration", "saved per 1 % more of what changes")
    return table(caption, columns, cells, text_columns=2)


def whole_run_rows(run: Mapping[str, Any]) -> Iterator[tuple[str, str, float, str]]:
    """Yield what, the key of its number, the number, and the line in words."""
    time, low, high = (format_duration(run[key] * 86400.0) for key in ("days", "low_days", "high_days"))
    length = f"{_count(run['tokens'])} tokens in {run['iterations']:,} iterations"
    yield "time", "days", run["days"], f"{time} (80 %: {low} to {high}) for {length}"
    yield "GPU hours", "gpu_hours", run["gpu_hours"], f"{run['gpu_hours']:,.0f}"
    if run["cost"] is not None:
        yield "cost", "cost", run["cost"], f"{run['cost']:,.0f} {run['currency']}".strip()
    energy = run["energy"]
    low, middle, high = (f"{energy[f'{end}j_per_token']:.3g}" for end in ("low_", "", "high_"))
    per_gpu = (
        f"{energy['gpu_w']:.0f} W per GPU and {energy['host_w_per_gpu']:.0f} W of its node, PUE {energy['pue']:.3g}; "
        f"{middle} J per token, {low} to {high}"
    )
    yield "energy", "energy.kwh", energy["kwh"], f"{_energy(energy['kwh'])} ({per_gpu})"
    grid = f"{_mass(energy['kg_co2'])} ({energy['kg_co2_per_kwh']:.3g} kg per kWh)"
    yield "CO2", "energy.kg_co2", energy["kg_co2"], grid
    yield "goodput", "goodput", run["goodput"], f"{run['goodput']:.2%}{_losses(run)}"
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
        middle, low, high = (format_duration(played[f"{key}_days"] * 86400.0) for key in ("p50", "p10", "p90"))
        words = f"{middle} at the median of {played['histories']:,} (80 % between {low} and {high}), goodput {played['goodput']:.2%}"
        waiting = format_duration(played["waiting_days"] * 86400.0)
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
            "run": lambda row: format_duration(row["days"] * 86400.0) if "days" in row else "-",
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
        return "-"
    shown = f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}"
    return f"{shown} {row.get('currency', '')}".strip()


def _played(row: Mapping[str, Any]) -> str:
    if "p10_days" not in row:
        return "-"
    return " to ".join(format_duration(row[key] * 86400.0) for key in ("p10_days", "p90_days"))


def _mass(kg: float) -> str:
    return f"{kg / 1e3:,.3g} t" if kg >= 1e3 and kg < 1e6 else f"{kg / 1e3:,.0f} t" if kg >= 1e6 else f"{kg:,.3g} kg"


def whole_run_tables(run: Mapping[str, Any]) -> Markup:
    """Return the whole run and its assumptions as tables of a page."""
    rows = [(what, number(f"whole_run.{key}", value, words)) for what, key, value, words in whole_run_rows(run)]
    taken = [(row["what"], row["value"], row["source"]) for row in run["assumptions"]]
    return Markup(
        table("What the whole run takes", ("what", "how much"), rows, text_columns=2)
        + table("Taken for granted", ("what", "value", "source"), taken, text_columns=3)
    )
