"""The main command: settings from flags and files become a Scenario, the Result becomes a table or JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

from simulator.analysis.explain import Explanation
from simulator.answer import Result, memory_over_time
from simulator.cli.inputs import model_of, write_notes
from simulator.cli.modules import fit_plan, recorded_module
from simulator.cli.warnings import idle_faults, idle_loading, idle_release, without_effect, write_warnings
from simulator.cli.whole_run import run_request
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.full_answer import document, to_json
from simulator.explore.out_of_memory import WayOut, in_words, ways_out
from simulator.explore.training_run import RunRequest
from simulator.explore.trials import advise, explain
from simulator.faults import Faults
from simulator.interop import open_topology
from simulator.interop.plan_files import needs_ranks, plan_settings, without_deepspeed
from simulator.plan import SETTINGS, ParallelPlan, setting_named
from simulator.report import console
from simulator.report.answer_page import report
from simulator.report.explain_console import print_explanation, print_ways_out
from simulator.report.whole_run import print_whole_run
from simulator.scenario import Scenario
from simulator.simulation import simulate


def run_main(options: dict[str, Any]) -> None:
    """Run the main command from its parsed options and exit with the documented status."""
    said: set[str] = set()
    write_notes(options, said)
    request = run_request(options, said)
    counts = _gpu_counts(options["gpus"])
    say = None if options["json_output"] or not sys.stderr.isatty() else _progress
    detail = bool(options["trace"] or options["report"] or options["explain"])
    recorded = recorded_module(options)
    results: list[Result] = []
    for count in counts or [0]:
        scenario, given = _scenario(options, count)
        if recorded is not None:
            plan = fit_plan(scenario.plan, recorded, has_framework="framework" in given)
            scenario = replace(scenario, plan=plan)
        if results and not scenario.plan.micro_batch:
            scenario = replace(scenario, plan=replace(scenario.plan, micro_batch=results[0].plan.micro_batch))
        results.append(simulate(scenario, detail=detail, progress=say, spec=recorded))
    write_warnings(_idle_inputs(options, results[-1], given), said=said)
    write_warnings(idle_faults(results[-1]), said=said)
    write_warnings(idle_release(results[-1].plan, results[-1].topology.device(0)), said=said)
    has_storage = results[-1].topology.storage is not None
    write_warnings(idle_loading(results[-1].plan, has_storage=has_storage, given=given), said=said)
    explanation = explain(results[-1], say=say or (lambda _: None)) if options["explain"] else None
    unfit = next((one for one in results if not one.memory.fits), None)
    out = None if unfit is None else ways_out(unfit, say=say or (lambda _: None))
    _write_files(options, results, request, explanation, out, given)
    _print(options, results, request, explanation, out)
    if unfit is not None:
        error = InfeasiblePlanError(f"the plan does not fit: {unfit.memory.explain()}", hint=in_words(out or []))
        if not options["json_output"]:
            raise error
        print(f"error: {error}", file=sys.stderr)  # the answer is the one document on standard output
        sys.exit(error.exit_code)


def _scenario(options: dict[str, Any], count: int) -> tuple[Scenario, set[str]]:
    """Return the scenario on so many GPUs, and the names of the settings that somebody made."""
    n_gpus = count
    if not n_gpus and needs_ranks(options):
        known, overrides = collect_settings(without_deepspeed(options))
        n_gpus = known.get("gpus") or open_topology(options["topology"], overrides=dict(overrides)).n_gpus
    settings, overrides = collect_settings(options, n_gpus)
    plan = ParallelPlan(**settings)
    scenario = Scenario(
        topology=options["topology"],
        model=model_of(options) or options["module"],
        plan=replace(plan, gpus=count) if count else plan,
        network=options["network"],
        transport=options["transport"] or "",
        algorithm=options["nccl_algo"] or "",
        protocol=options["nccl_proto"] or "",
        overrides=overrides,
        seed=options["seed"],
        unfold=options["unfold"],
        faults=Faults.parse(options["slow_rank"] or (), options["slow_link"] or ()),
    )
    return scenario, {
        name for name, value in settings.items() if options.get(name) is not None or value != SETTINGS[name].default
    }


def _idle_inputs(options: dict[str, Any], result: Result, given: set[str]) -> list[str]:
    network = options["network"] if options["network"] != "flow" else ""
    return without_effect(
        result.plan, result.topology.n_nodes, result.plan.gpus, given=given, transport=options["transport"] or "",
        nccl_algo=options["nccl_algo"] or "", nccl_proto=options["nccl_proto"] or "", network=network, spec=result.spec,
    )  # fmt: skip


def collect_settings(options: dict[str, Any], n_gpus: int = 0) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Merge the files' settings, ``--set``, environment and flags, the later ones winning.

    Parameters
    ----------
    options : dict
        Parsed options.
    n_gpus : int
        GPUs that will run, where a file's batch depends on them.

    Returns
    -------
    settings : dict
        Keyword arguments of :class:`ParallelPlan`.
    overrides : tuple of (str, str)
        ``--set`` keys that are not the plan's.
    """
    settings = plan_settings(options, n_gpus)
    overrides: list[tuple[str, str]] = []
    for item in options["set_"] or []:
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"--set {item}: write key=value")
        one = setting_named(key.removeprefix("plan.")) if "." not in key.removeprefix("plan.") else None
        if one is not None:
            settings[one.key] = one.parse(value)
        else:
            overrides.append((key, value))
    for name, one in SETTINGS.items():
        said = os.environ.get(f"SIMULATE_PLAN__{name.upper()}")
        if said is not None:
            settings[name] = one.parse(said)
    settings |= {name: options[name] for name in SETTINGS if name != "gpus" and options.get(name) is not None}
    return settings, tuple(overrides)


def _gpu_counts(text: str | None) -> list[int]:
    if text is None:
        return []
    try:
        counts = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--gpus {text}: write a number, or a list like 1,2,4,8") from None
    if min(counts) < 1:
        raise ConfigError(f"--gpus {text}: at least one GPU")
    return counts


def _progress(what: str) -> None:
    print(f"\r{what} ...", end="\r" if what == "simulating" else "", file=sys.stderr)


def _write_files(
    options: dict[str, Any],
    results: list[Result],
    request: RunRequest | None,
    explanation: Explanation | None,
    out: list[WayOut] | None,
    given: set[str],
) -> None:
    if options["trace"]:
        from simulator.trace_io.perfetto import write
        from simulator.trace_io.tracks import memory_counters

        over_time = memory_over_time(results[-1])
        memory_of = {rank: memory_counters(points) for rank, points in over_time.items()}
        write(results[-1].timeline, options["trace"], memory=memory_of)
    if options.get("memory_trace"):
        from simulator.analysis.memory_trace import write_memory_trace

        result, rank = results[-1], results[-1].memory.rank
        points = memory_over_time(result)[rank]
        write_memory_trace(options["memory_trace"], rank, to_json(result)["memory"], points)
    if options["report"]:
        named = given | ({"gpus"} if options["gpus"] else set())
        report(results, request=request, explanation=explanation, ways_out=out, given=named).save(options["report"])


def _print(
    options: dict[str, Any],
    results: list[Result],
    request: RunRequest | None,
    explanation: Explanation | None,
    out: list[WayOut] | None,
) -> None:
    if options["json_output"]:
        print(json.dumps(document(results, explanation, request=request, ways_out=out)))
        return
    answers = [to_json(result, request) for result in results]
    if len(results) > 1:
        console.print_scaling([r.plan for r in results], answers)
    else:
        console.print_answer(results[0].scenario, answers[0])
    for result, answer in zip(results, answers, strict=True):
        if request is not None:
            print_whole_run(answer["whole_run"], gpus=result.plan.gpus if len(results) > 1 else 0)
    if explanation is not None:
        print_explanation(explanation)
    if out is not None:
        print_ways_out(out)
    elif explanation is None and len(results) == 1:
        console.print_advice(advise(results[0]))
