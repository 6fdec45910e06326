"""The main command: options become settings, the API simulates them, and the answer is printed and written."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.answer import Result, margin_of, memory_over_time
from simulator.cli.inputs import (
    clusters_of,
    keep_files,
    recorded_module,
    say_recipes,
    settings_of,
    with_published,
    write_notes,
)
from simulator.cli.main_flags import RUN_OPTIONS
from simulator.cli.shared import after_the_answer, print_json, say_written, write_warnings
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.full_answer import document, simulate_counts
from simulator.explore.named_settings import given_in
from simulator.explore.neighbourhood import Site, objection
from simulator.faults import Faults
from simulator.report.progress import progress_line
from simulator.units import format_time

if TYPE_CHECKING:
    from simulator.analysis.idle_inputs import Beside
    from simulator.explore.answer_form import Document, Extras, Scaling
    from simulator.explore.nearby_answers import NearbyAnswer
    from simulator.explore.run.network_trouble import Trouble
    from simulator.explore.run.run_request import LinksInRun, RunRequest


def run_main(options: dict[str, Any]) -> None:
    """Run the main command from its parsed options and exit with the documented status."""
    said: set[str] = set()
    write_notes(options, said)
    write_warnings(_idle(options), said=said)
    request, margin = _request(options, said), margin_of(options["memory_margin"])
    _check_files(options)
    settings, counts = settings_of(options)
    if clusters := clusters_of(settings):
        return _run_clusters(options, settings, counts, clusters, margin)
    module = recorded_module(options)
    if module is not None:
        settings["model"] = options["module"]
    given, is_as_published = given_in(settings), set(settings) <= {"preset"} and not counts
    if counts:  # each takes its own
        say_recipes(({**settings, "gpus": count} for count in counts), said=said)
    else:
        settings = with_published(settings, said=said)
    faults = Faults.parse(options["slow_rank"] or (), options["slow_link"] or ())
    is_placed = any(options[name] for name in _PLACES)
    with progress_line(is_quiet=options["json_output"]) as say:
        results = simulate_counts(  # links of a job that is placed are found where it lies
            settings, counts, module=module, faults=replace(faults, slow_links=()) if is_placed else faults,
            detail=_is_detailed(options), say=say,
        )  # fmt: skip
        placed: Extras = {}
        if is_placed:
            results, placed = _on_their_nodes(options, settings, results, faults, say)
        results = [replace(result, memory_margin=margin) for result in results]
        others, request = _others(options, results, request, say)
        extras: Extras = {**_extras(options, results, request, say), **placed, **others}
        nearby = _nearby(options, results[-1], request, say)
    idle = [result.idle_inputs(given, _beside(options, results, request)) for result in results]
    write_warnings((text for text in idle[-1] if all(text in each for each in idle)), said=said)
    write_warnings((text for result in results for text in result.warnings), said=said)
    write_warnings(_left_out_of_searches(results[-1]), said=said, kind="note")
    is_as_published = is_as_published and not (faults or is_placed)
    write_warnings(_measured(options, results[-1], is_as_published=is_as_published), said=said, kind="note")
    if request and options["flapping"] and len(results) > 1:
        write_warnings(
            ["--flapping is about the last of several jobs: their whole runs are without it"], said=said, kind="note"
        )
    answer = document(results, request=request, **extras)
    if options["json_output"]:
        print_json(answer)
    else:
        _print(results, answer)
    with after_the_answer(is_json=options["json_output"]):
        _write_files(options, results, answer, nearby, {*given, *(["gpus"] if options["gpus"] else [])})
    if "ways_out" in extras:
        from simulator.explore.out_of_memory import in_words

        unfit = next(result for result in results if not result.memory.fits)
        with after_the_answer(is_json=options["json_output"]):
            raise InfeasiblePlanError(
                f"the plan does not fit: {unfit.memory.explain()}", hint=in_words(extras["ways_out"])
            )


def _idle(options: dict[str, Any]) -> list[str]:
    """Name flags that have no effect for want of others."""
    found = []
    if options["reroute_time"] is not None and not options["flapping"]:
        found.append("--reroute-time has no effect without --flapping")
    if options["seed"] and not any(options[name] for name in ("histories", *_PLACES)):
        found.append("--seed has no effect: only --histories and --placement random draw anything")
    return found


#: options that have other messages than those of the step cross the network, or steps on other nodes
_OF_MORE_MESSAGES = ("with_", "nodes_free", "local_steps", "network_trouble", "flapping", "neighbours")


def _beside(options: dict[str, Any], results: Sequence[Result], request: RunRequest | None) -> set[Beside]:
    """Return what is asked for beside a step."""
    found: set[Beside] = set()
    is_unfit = not all(result.memory.fits for result in results)  # ways out are looked for, and priced
    if is_unfit or any(options[name] for name in _OF_MORE_MESSAGES) or (request and request.policy != "sync"):
        found.add("messages")
    if is_unfit or options["neighbours"] or request:
        found.add("spending")
    return found | ({"run"} if request else set())


def _left_out_of_searches(result: Result) -> list[str]:
    reason = objection(result.plan, Site(topology=result.topology, spec=result.spec))
    return [f"a search leaves this plan out: {reason}"] if reason else []


def _measured(options: dict[str, Any], result: Result, *, is_as_published: bool) -> list[str]:
    """Say what the run of a preset took, and how far the answer is from it where it is about that run."""
    if not options["preset"]:
        return []
    from simulator.analysis.side_by_side import excess
    from simulator.explore.presets import read_preset

    preset, seconds = read_preset(options["preset"]), result.metrics.iteration_time_s
    if preset.measured is None:
        return []
    took = f"{preset.title} took {format_time(preset.measured.iteration_time_s)} ({preset.measured.source})"
    error = excess(seconds, preset.measured.iteration_time_s)
    return [
        f"{took}: the answer is {abs(error):.1%} {'slower' if error > 0 else 'faster'}" if is_as_published else took
    ]


def _request(options: dict[str, Any], said: set[str]) -> RunRequest | None:
    """Return the request about a whole run, if there is one; its parser is imported only then."""
    if all(options[name] is None or options[name] is False for name in RUN_OPTIONS):  # not 0, which is refused
        return None
    from simulator.cli.whole_run_flags import run_request

    asked = run_request(options, said)
    return asked if asked.has_length else None


#: flags that several clusters side by side do not take
_OF_ONE_ANSWER = (
    *("explain", "trace", "memory_trace", "neighbours", "module", "with_", "placement", "nodes_free", "local_steps"),
    *("flapping", "network_trouble", "slow_rank", "slow_link"),
)


def _run_clusters(
    options: dict[str, Any], settings: dict[str, Any], counts: Sequence[int], clusters: Sequence[str], margin: float
) -> None:
    """Simulate the same on several clusters: a sweep of which nothing is kept, the cheapest first."""
    from simulator.cli.whole_run_flags import run_request
    from simulator.explore.named_settings import Sweep
    from simulator.explore.sweeps import run_sweep, usable
    from simulator.report.progress import Progress
    from simulator.report.sweep_page import sweep_page

    if alone := [name for name in _OF_ONE_ANSWER if options[name] not in (None, "", (), [], 0, False)]:
        flag = alone[0].strip("_").replace("_", "-")
        raise ConfigError(f"--{flag} is about one answer", hint="name one --topology")
    axes = {"topology": tuple(clusters)} | ({"gpus": tuple(counts)} if counts else {})
    base = {name: value for name, value in settings.items() if name != "topology"}
    sweep = Sweep(base=base, axes=axes, takes_recipes=True)
    say_recipes({**base, **values} for values in sweep.combinations())
    with progress_line(is_quiet=options["json_output"]) as say:
        found = run_sweep(
            sweep, request=run_request(options, set(), of_rows=True), n_jobs=1, observe=Progress(say).sweep,
            margin=margin,
        )  # fmt: skip
    found.rows.sort(key=lambda row: (row["status"] != "ok", *_price_of(row)))
    if options["json_output"]:
        print_json(found.to_dict())
    else:
        from simulator.report import terminal

        terminal.print_sweep(found)
    with after_the_answer(is_json=options["json_output"]):
        if options["report"]:
            title = f"{settings.get('model', 'One model')} on {', '.join(clusters)}"
            say_written(*sweep_page(title, axes, found.rows, base=sweep.base).save(options["report"]))
        usable(found)


def _price_of(row: dict[str, Any]) -> tuple[float, float]:
    """Return what rows are ordered by: money where it is known, then GPU hours."""
    cost, hours = (row.get(f"{name}_per_billion_tokens") for name in ("cost", "gpu_hours"))
    return float("inf") if cost is None else cost, hours or 0.0


#: flags that place a job
_PLACES = ("with_", "placement", "nodes_free")


def _on_their_nodes(
    options: dict[str, Any],
    settings: dict[str, Any],
    results: list[Result],
    faults: Faults,
    say: Callable[[str], None],
) -> tuple[list[Result], Extras]:
    """Simulate one job on the nodes where it is placed, and beside the jobs that are named."""
    files, way, free = options["with_"] or (), options["placement"], options["nodes_free"]
    if len(results) > 1 or options["module"]:
        raise ConfigError("--with, --placement and --nodes-free are about one job", hint="one --gpus, and a --model")
    from simulator.explore.run.shared_cluster import JobRequest, beside, best_placements, on_its_nodes, read_job

    job = JobRequest(scenario=replace(results[0].scenario, faults=faults), placement=way or "slurm")
    others = [read_job(path, settings) for path in files]
    if free and way is None:
        rows, played = best_placements(job, others, free_file=free, say=say)
        job = replace(job, placement=",".join(map(str, rows[0]["nodes"])))
        found: Extras = {"placements": rows}
    else:
        found, played = {}, beside([job, *others], free_file=free, say=say)
    if played is not None:
        found["neighbours"] = played
    return [on_its_nodes(job, free, detail=_is_detailed(options))], found


def _is_detailed(options: dict[str, Any]) -> bool:
    """Whether something is asked for that needs every single kernel."""
    return bool(options["trace"] or options["report"] or options["explain"])


def _others(
    options: dict[str, Any], results: Sequence[Result], request: RunRequest | None, say: Callable[[str], None]
) -> tuple[Extras, RunRequest | None]:
    """Train site by site, or around what is wrong with the network, which the whole run meets."""
    found: Extras = {}
    if options["local_steps"] is not None:
        from simulator.explore.run.local_steps import local_steps

        say("sites by themselves")
        found["local_steps"] = local_steps(results[-1], options["local_steps"])
    if options["flapping"] or options["network_trouble"]:
        found["network_trouble"], links = _trouble(options, results[-1], say)
        if request and len(results) == 1:
            request = replace(request, links=links)
    return found, request


def _trouble(options: dict[str, Any], result: Result, say: Callable[[str], None]) -> tuple[list[Trouble], LinksInRun]:
    """Simulate the step without what is wrong with its network, and around links that flap; say what these do to its run."""
    from simulator.explore.run.network_trouble import REROUTE_S, Flapping, in_the_run, network_trouble
    from simulator.explore.run.run_request import parse_time

    reroute, flapping = options["reroute_time"], [Flapping.parse(text) for text in options["flapping"] or ()]
    reroute_s = REROUTE_S if reroute is None else parse_time(reroute, "--reroute-time")
    found = network_trouble(result, flapping, reroute_s, say)
    return found, in_the_run(found, flapping)


def _extras(
    options: dict[str, Any], results: Sequence[Result], request: RunRequest | None, say: Callable[[str], None]
) -> Extras:
    """Explain the last answer, and find ways out for the first that does not fit; what does it is loaded only then."""
    found: Extras = {}
    if options["explain"]:
        from simulator.explore.trials import explain

        found["explanation"] = explain(results[-1], say=say)
    unfit = next((result for result in results if not result.memory.fits), None)
    if unfit is not None:
        from simulator.explore.out_of_memory import ways_out

        found["ways_out"] = ways_out(unfit, price=request.price if request else None, say=say)
    return found


def _nearby(
    options: dict[str, Any], result: Result, request: RunRequest | None, say: Callable[[str], None]
) -> Sequence[NearbyAnswer]:
    """Simulate what a reader of the page may choose."""
    most = options["neighbours"]
    if most is None:
        return ()
    if most < 1:
        raise ConfigError(f"--neighbours {most}: at least 1")
    if not options["report"]:
        raise ConfigError("--neighbours are for a page", hint="--report out.html")
    from simulator.explore.nearby_answers import nearby_answers

    return nearby_answers(result, most, price=request.price if request else None, say=say)


def _check_files(options: dict[str, Any]) -> None:
    """Complain about files that could not be written, before the work; what checks them is loaded only then."""
    keep_files(options, {f"--{name.replace('_', '-')}": options[name] for name in ("report", "trace", "memory_trace")})
    if options["report"]:
        from simulator.report.page import check_page

        check_page(options["report"])
    if options["trace"]:
        from simulator.trace_io.perfetto import check_trace

        check_trace(options["trace"])
    if options["memory_trace"]:
        from simulator.analysis.memory_trace import check_memory_trace

        check_memory_trace(options["memory_trace"])


def _write_files(
    options: dict[str, Any],
    results: Sequence[Result],
    answer: Document | Scaling,
    nearby: Sequence[NearbyAnswer],
    given: Collection[str],
) -> None:
    last = results[-1]
    if options["trace"]:
        from simulator.trace_io.perfetto import check_length, write
        from simulator.trace_io.tracks import memory_counters

        check_length(last.timeline, options["trace"])
        counters = {rank: memory_counters(points) for rank, points in memory_over_time(last, whole=True).items()}
        write(last.timeline, options["trace"], memory=counters, device=last.topology.device(0).name)
        say_written(options["trace"])
    if options["memory_trace"]:
        from simulator.analysis.memory_trace import write_memory_trace

        rank, gap = last.memory.rank, last.timeline.shown()[1]
        write_memory_trace(options["memory_trace"], rank, last.answer["memory"], memory_over_time(last)[rank], gap)
        write_warnings([str(gap)] * (gap is not None), said=set(), kind="note")
        say_written(options["memory_trace"])
    if options["report"]:
        from simulator.report.answer_page import page_of

        say_written(*page_of(results[-1], answer, given=given, nearby=nearby).save(options["report"]))


def _print(results: Sequence[Result], answer: Document | Scaling) -> None:
    from simulator.report import terminal

    terminal.print_document(results, answer)
    if len(results) == 1 and not {"explanation", "ways_out"} & answer.keys():
        from simulator.explore.trials import advise

        terminal.print_advice(advise(results[0]))
