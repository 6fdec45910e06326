"""Relations of the command line: a scenario said in several ways, under another hash seed, by several workers, through files."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draws import Case, InapplicableError
from ruamel.yaml import YAML

from simulator.answer import MEMORY_MARGIN
from simulator.config import resolve_name
from simulator.errors import InfeasiblePlanError
from simulator.explore.search.best_plans import search
from simulator.explore.search.objectives import to_dict
from simulator.explore.search.space import Space
from simulator.interop import FORMATS
from simulator.interop.trainers.emission import Request
from simulator.interop.trainers.written_plans import emit
from simulator.models.spec import ModelSpec
from simulator.plan import SETTINGS, ParallelPlan
from simulator.scenario import Scenario

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str) -> tuple[int, dict[str, Any]]:
    """Run a command in this process and return its status and its document."""
    from simulator.cli.main import main

    out, status, before = io.StringIO(), 0, sys.argv
    sys.argv = ["simulate", *argv, "--json"]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main()
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    finally:
        sys.argv = before
    return status, json.loads(out.getvalue())


def given(case: Case) -> dict[str, object]:
    """Return the settings of a case's plan that are not defaults, nor what the framework's recipe makes of the others."""
    plan = case.scenario.plan
    said = {key: value for key, one in SETTINGS.items() if (value := getattr(plan, key)) != one.default}
    recipe = ParallelPlan.of(said)
    return said | {key: getattr(plan, key) for key in SETTINGS if getattr(plan, key) != getattr(recipe, key)}


def machine(case: Case) -> list[str]:
    """Return the flags that are not the plan's."""
    scenario, default = case.scenario, Scenario(topology="", model="")
    words = ["-t", scenario.topology, "-m", scenario.model]
    words += ["--network", scenario.network] * (scenario.network != default.network)
    for rank, factor in scenario.faults.slow_ranks:
        words += ["--slow-rank", f"{rank}={factor}"]
    for link, factor in scenario.faults.slow_links:
        words += ["--slow-link", f"{link}={factor}"]
    return words


def flags(case: Case) -> list[str]:
    """Return the plan as flags."""
    words: list[str] = []
    for key, value in given(case).items():
        flag = SETTINGS[key].flag
        words += [flag if value else f"--no-{flag[2:]}"] if isinstance(value, bool) else [flag, str(value)]
    return words


def ways_to_say_it_are_one(case: Case, tolerance: float) -> Iterator[str]:
    del tolerance
    if not case.result.memory.fits:
        raise InapplicableError
    settings = list(given(case).items())
    gpus = ["--gpus", str(case.scenario.plan.gpus)]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for order in (settings, case.draw.sample(settings, len(settings))):
            files.append(Path(folder) / f"plan{len(files)}.yaml")
            lines = [f"{key}: {json.dumps(value)}\n" for key, value in order if key != "gpus"]
            files[-1].write_text("".join(lines), encoding="utf-8")
        said = {
            "flags": run(*machine(case), *flags(case)),
            "file": run(*machine(case), *gpus, "--plan", str(files[0])),
            "file in another order": run(*machine(case), *gpus, "--plan", str(files[1])),
            "--set": run(*machine(case), *gpus, *(word for key, value in settings if key != "gpus"
                                                 for word in ("--set", f"{key}={json.dumps(value).strip(chr(34))}"))),
        }  # fmt: skip
    expected = (0, json.loads(json.dumps(case.result.answer)))
    for way, answer in said.items():
        if answer != expected:
            differ = [key for key in expected[1] if answer[1].get(key) != expected[1][key]]
            yield f"{way}: exit {answer[0]}, other {', '.join(differ)}: {answer[1].get('error', '')}"


def order_of_keys_changes_nothing(case: Case, tolerance: float) -> Iterator[str]:
    """Of a cluster file, which is a mapping of mappings."""
    del tolerance
    written = YAML(typ="safe").load(resolve_name(case.scenario.topology, "clusters"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "cluster.yaml"
        file.write_text(json.dumps(_shuffled(case, written)), encoding="utf-8")
        other = case.with_scenario(topology=str(file))
    if other.metrics.iteration_time_s != case.seconds:
        yield f"{other.metrics.iteration_time_s} s, not {case.seconds} s"


def order_of_files_changes_nothing(case: Case, tolerance: float) -> Iterator[str]:
    """Of the ranks of a recorded trace, replayed on the case's cluster."""
    del tolerance
    folder = case.draw.choice(sorted(path for path in (ROOT / "traces").iterdir() if path.is_dir()))
    files = sorted(str(path) for path in folder.iterdir())
    one, other = (run("replay", *case.draw.sample(files, len(files)), "-t", case.scenario.topology) for _ in range(2))
    if json.dumps(one) != json.dumps(other):
        yield f"{folder.name}: {[key for key in one[1] if one[1][key] != other[1].get(key)]} differ"


def _shuffled(case: Case, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(case, value[key]) for key in case.draw.sample(sorted(value), len(value))}
    return [_shuffled(case, one) for one in value] if isinstance(value, list) else value


def exit_status_says_whether_it_fits(case: Case, tolerance: float) -> Iterator[str]:
    del tolerance
    status, answer = run(*machine(case), *flags(case))
    if status != (0 if case.result.memory.fits else 4):
        yield f"exit {status} where fits is {case.result.memory.fits}: {answer.get('error', '')}"
    for row in answer.get("ways_out", ()):
        if row["fits"] and row["peak_bytes"] > row["capacity_bytes"]:
            yield f"no way out: {row}"


def hash_seed_changes_nothing(case: Case, tolerance: float) -> Iterator[str]:
    del tolerance
    if not case.result.memory.fits:
        raise InapplicableError
    command = [sys.executable, "-m", "simulator.cli.main", *machine(case), *flags(case), "--json"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": str(case.draw.randrange(1, 1000))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.stdout.strip() != json.dumps(case.result.answer):
        yield f"exit {done.returncode}: other bytes than in this process"


def jobs_change_nothing(case: Case, tolerance: float) -> Iterator[str]:
    del tolerance
    plan, spec = case.plan, case.result.spec
    if not isinstance(spec, ModelSpec) or spec.n_parameters > 2e9 or plan.gpus > 8:
        raise InapplicableError
    allowed = {"recompute": (plan.recompute,), "pp": (plan.pp,), "cp": (plan.cp,), "virtual_pp": (plan.virtual_pp,)}
    base = plan.without("dp", "tp", "pp", "virtual_pp", "cp", "ep", "micro_batch", "sharding", "sharding_group", "recompute",
                        "sequence_parallel")  # fmt: skip
    try:
        space = Space(topology=case.result.topology, spec=spec, base=base, allowed=allowed)
        found = [search(case.scenario, space, top=3, n_jobs=n_jobs) for n_jobs in (1, 2)]
        one, two = (to_dict(each, MEMORY_MARGIN) for each in found)
    except InfeasiblePlanError:
        raise InapplicableError from None
    if json.dumps(one) != json.dumps(two):
        yield f"one worker and two differ: {[key for key in one if one[key] != two[key]]}"


def traces_replay_in_the_same_time(case: Case, tolerance: float) -> Iterator[str]:
    if case.plan.gpus > 8 or case.plan.n_micro_batches > 4 or not case.result.memory.fits:
        raise InapplicableError
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "step.json"
        _, written = run(*machine(case), *flags(case), "--unfold", "--trace", str(file))
        status, answer = run("replay", str(file))
    seconds = written["iteration_time_s"]
    if status or not math.isclose(answer["iteration_time_s"], seconds, rel_tol=tolerance, abs_tol=1e-4):
        yield f"exit {status}, replayed {answer.get('iteration_time_s')} s, simulated {seconds} s {answer.get('error', '')}"


def exports_come_back(case: Case, tolerance: float) -> Iterator[str]:
    """Writing reads back what it wrote and refuses where that is another plan; what it means takes the same time."""
    del tolerance
    if not isinstance(case.result.spec, ModelSpec):
        raise InapplicableError
    request = Request(plan=case.plan, spec=case.result.spec, gpus_per_node=case.result.topology.gpus_per_node)
    for kind, one in FORMATS.items():
        if one.write is None:
            continue
        with contextlib.suppress(InfeasiblePlanError):
            emission = emit(kind, request)
            other = case.with_plan(**emission.plan.to_dict())
            if emission.plan.framework == case.plan.framework and other.metrics.iteration_time_s != case.seconds:
                yield f"{kind}: {other.metrics.iteration_time_s} s, not {case.seconds} s"
