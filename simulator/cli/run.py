"""The main command: settings from flags and files become a Scenario, the Result becomes a table or JSON."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, replace
from typing import Any

from simulator.answer import advise, to_json, way_out
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.plan import ParallelPlan, load_plan
from simulator.report import console
from simulator.scenario import Scenario
from simulator.simulation import Result, simulate

_PLAN_FIELDS = {f.name: f for f in fields(ParallelPlan)}


def run_main(options: dict[str, Any]) -> None:
    """Run the main command from its parsed options and exit with the documented status."""
    settings, overrides = collect_settings(options)
    counts = _gpu_counts(options["gpus"])
    scenario = Scenario(
        topology=options["topology"], model=options["model"], plan=ParallelPlan(**settings), network=options["network"],
        transport=options["transport"] or "", algorithm=options["nccl_algo"] or "", protocol=options["nccl_proto"] or "",
        overrides=overrides, seed=options["seed"], unfold=options["unfold"],
    )  # fmt: skip
    say = None if options["json_output"] or not sys.stderr.isatty() else _progress
    detail = bool(options["trace"])
    results: list[Result] = []
    for count in counts or [scenario.plan.gpus]:
        plan = replace(scenario.plan, gpus=count)
        if results and not plan.micro_batch:
            plan = replace(plan, micro_batch=results[0].plan.micro_batch)
        results.append(simulate(replace(scenario, plan=plan), detail=detail, progress=say))
    _write_files(options, results[-1])
    _print(options, results, scaling=len(counts) > 1)
    unfit = [r for r in results if not r.memory.fits]
    if unfit:
        raise InfeasiblePlanError(f"the plan does not fit: {unfit[0].memory.explain()}", hint=way_out(unfit[0]))


def collect_settings(options: dict[str, Any]) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """Merge plan file, ``--set``, environment and flags, the later ones winning.

    Returns
    -------
    settings : dict
        Keyword arguments of :class:`ParallelPlan`.
    overrides : tuple of (str, str)
        ``--set`` keys that are not the plan's.
    """
    settings = load_plan(options["plan"]) if options["plan"] else {}
    overrides: list[tuple[str, str]] = []
    for item in options["set_"] or []:
        key, separator, value = item.partition("=")
        if not separator:
            raise ConfigError(f"--set {item}: write key=value")
        name = key.removeprefix("plan.").replace("-", "_")
        if name in _PLAN_FIELDS:
            settings[name] = _convert(name, value)
        else:
            overrides.append((key, value))
    for name in _PLAN_FIELDS:
        value = os.environ.get(f"SIMULATE_PLAN__{name.upper()}")
        if value is not None:
            settings[name] = _convert(name, value)
    settings |= {name: options[name] for name in _PLAN_FIELDS if name != "gpus" and options.get(name) is not None}
    return settings, tuple(overrides)


def _convert(name: str, value: str) -> Any:
    default = _PLAN_FIELDS[name].default
    if isinstance(default, bool) or default is None:
        if value.lower() not in ("true", "false", "on", "off"):
            raise ConfigError(f"{name}={value}: write true or false")
        return value.lower() in ("true", "on")
    if isinstance(default, int):
        try:
            return int(value)
        except ValueError:
            raise ConfigError(f"{name}={value}: not a whole number") from None
    return value


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


def _write_files(options: dict[str, Any], result: Result) -> None:
    if options["trace"]:
        from simulator.trace_io.perfetto import write

        write(result.timeline, options["trace"])
    if options["report"]:
        raise ConfigError("--report is not available yet", hint="use --json or --trace")


def _print(options: dict[str, Any], results: list[Result], *, scaling: bool) -> None:
    answers = [to_json(result) for result in results]
    if options["json_output"]:
        document: Any = {"scaling": [{"gpus": r.plan.gpus, **a} for r, a in zip(results, answers, strict=True)]} if scaling else answers[0]
        print(json.dumps(document))
        return
    if scaling:
        console.print_scaling([r.plan for r in results], answers)
    else:
        console.print_answer(results[0].scenario, answers[0])
        console.print_advice(advise(results[0]), everything=options["explain"])
