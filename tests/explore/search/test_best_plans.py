"""The search: the same plans as simulating everything, with reasons, and files that come back."""

import itertools
import json
import os
import subprocess
import sys
from array import array
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest

from simulator.answer import abbreviate_plan, to_json
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.named_settings import Sweep
from simulator.explore.run.energy import parse_price, power_model
from simulator.explore.run.run_request import RunRequest
from simulator.explore.search import best_plans
from simulator.explore.search.best_plans import (
    FRONT_SLOWDOWN,
    Energy,
    Frontier,
    Ranked,
    Unfit,
    pareto,
    search,
)
from simulator.explore.search.bounds import Bounds
from simulator.explore.search.candidates import TIGHTER, Candidates
from simulator.explore.search.judged_plans import JudgedPlans
from simulator.explore.search.objectives import answer_of, differences_s, explain, search_counts, to_dict
from simulator.explore.search.space import search_space
from simulator.explore.sweeps import run_sweep
from simulator.explore.work.evaluation import Store
from simulator.explore.work.workers import Pool
from simulator.memory import MemoryReport
from simulator.plan import ParallelPlan
from simulator.report.sweep_page import search_rows, write_search
from simulator.simulation import simulate_on

SETTINGS = {"topology": "bigred200", "model": "gpt2", "gpus": 8, "global_batch": 8, "sequence_length": 256}


@lru_cache
def request_of(**settings):
    return search_space({**SETTINGS, **settings}, {"recompute": ("none", "full")})


def all_that_fit(scenario, space):
    """Simulate every valid plan; return (plan, result) of those that fit."""
    bounds = Bounds(replace(scenario, plan=space.base), space.topology, space.spec)
    found = []
    for plan in space.plans():
        layout = bounds.layout(plan)
        if plan.recompute == "selective" and not layout.recomputes:
            continue
        result = simulate_on(replace(scenario, plan=plan), space.topology, space.spec)
        if result.memory.fits:
            found.append((plan, result))
    return found


def brute_force(scenario, space):
    """Return (time, plan) of all that fit, the fastest first."""
    times = [(result.metrics.iteration_time_s, plan) for plan, result in all_that_fit(scenario, space)]
    return sorted(times, key=lambda item: item[0])


def test_alone_a_search_begins_no_plan_before_its_turn(monkeypatch):
    """Of three plans begun together the first may rule out the others; workers would wait instead."""
    asked = []
    take = Frontier.take
    monkeypatch.setattr(Frontier, "take", lambda self, n, limit: asked.append(n) or take(self, n, limit))
    scenario, space = request_of()
    search(scenario, space, top=1, n_jobs=1)
    assert set(asked) == {1}


@pytest.mark.parametrize(
    "settings", [{}, {"topology": "emulated-1g", "overlap": True}, {"framework": "fsdp", "gpus": 4, "virtual_pp": 1}]
)
def test_pruning_loses_nothing(settings):
    """The proof by brute force: the ranking is that of simulating every plan."""
    scenario, space = request_of(**settings)
    everything = brute_force(scenario, space)
    found = search(scenario, space, top=5, n_jobs=1)
    assert [one.iteration_time_s for one in found.ranked] == [seconds for seconds, _ in everything[:5]]
    assert found.ranked[0].plan == everything[0][1]
    assert found.n_pruned > 0
    assert found.n_plans == found.n_unfit + found.n_pruned + found.n_simulated + found.n_failed
    assert found.n_plans - found.n_unfit == len(everything)
    for label, sharding in (("DDP", "none"), ("FSDP", "zero3")):
        plain = [s for s, plan in everything if plan.model_parallel == 1 and plan.sharding == sharding]
        assert found.plain[label].iteration_time_s == plain[0]


def test_the_front_of_time_and_memory_is_that_of_all_plans():
    scenario, space = request_of(gpus=4, framework="fsdp", virtual_pp=1)
    bounds = Bounds(replace(scenario, plan=space.base), space.topology, space.spec)
    everything = [
        (seconds, bounds.memory(bounds.layout(plan)).peak_bytes) for seconds, plan in brute_force(scenario, space)
    ]
    expected, least = [], float("inf")
    for seconds, n_bytes in sorted(everything):
        if n_bytes < least:
            expected.append((seconds, n_bytes))
            least = n_bytes
    found = search(scenario, space, top=1, n_jobs=1, whole_front=True)
    assert [(one.iteration_time_s, one.peak_bytes) for one in found.pareto] == expected
    assert found.n_pruned > 0


@pytest.mark.parametrize(
    "settings", [{"topology": "emulated-1g"}, {"framework": "deepspeed", "tp": 1, "virtual_pp": 1}]
)
def test_the_plan_that_draws_least_is_that_of_all_plans(settings):
    """Where a slower plan draws less than the fastest one: the network is slow, or the host is late."""
    scenario, space = request_of(**settings)
    energy = Energy.on(space.topology, Bounds(replace(scenario, plan=space.base), space.topology, space.spec))
    least_j = min(energy.joules(to_json(result)) for _, result in all_that_fit(scenario, space))
    base = {**SETTINGS, **settings}
    found = search_counts(base, {"recompute": ("none", "full")}, (), top=1, n_jobs=1, objective="energy")
    result = found[0].result
    assert energy.joules(result.frugal.answer) == least_j < energy.joules(result.ranked[0].answer)
    assert result.n_pruned > 0
    assert result.n_plans == result.n_unfit + result.n_pruned + result.n_simulated + result.n_failed
    choice = answer_of(found, "energy")[0]["choice"]
    assert choice["summary"] == abbreviate_plan(result.frugal.plan)
    assert choice["iteration_time_s"] > result.ranked[0].iteration_time_s


def test_processes_do_not_change_the_answer():
    scenario, space = request_of()
    one, two = (search(scenario, space, top=3, n_jobs=n) for n in (1, 2))
    assert [r.plan for r in one.ranked] == [r.plan for r in two.ranked]


def test_what_does_not_fit_is_not_ranked():
    scenario, space = search_space(
        {**SETTINGS, "model": "gpt-2.7b", "sequence_length": 1024}, {"recompute": ("none",), "micro_batch": (1, 2)}
    )
    found = search(scenario, space, top=3, n_jobs=1)
    assert found.n_unfit > 0
    assert all(one.answer["memory"]["fits"] for one in found.ranked)
    assert "too much" in found.plain["DDP"]


def test_plain_plans_that_cannot_be_have_a_reason():
    scenario, space = search_space({**SETTINGS, "global_batch": 4}, {})
    assert search(scenario, space, top=1, n_jobs=1).plain["FSDP"] == "global batch 4 is not a multiple of dp=8"
    scenario, space = search_space({**SETTINGS, "framework": "hf-eager"}, {})
    assert "hf-eager does not run it with zero3" in search(scenario, space, top=1, n_jobs=1).plain["FSDP"]
    scenario, space = search_space(SETTINGS, {"tp": (2, 4)})
    assert search(scenario, space, top=1, n_jobs=1).plain["FSDP"] == "tp=2,4 leaves it out: it has tp=1"


def test_nothing_valid_and_nothing_that_fits_are_errors():
    scenario, space = search_space({**SETTINGS, "tp": 3}, {})
    with pytest.raises(InfeasiblePlanError, match="no plan is valid"):
        search(scenario, space, n_jobs=1)
    scenario, space = search_space({**SETTINGS, "model": "gpt-18.4b", "gpus": 4}, {})
    with pytest.raises(InfeasiblePlanError, match=r"none of \d+ plans fits; the smallest: rank"):
        search(scenario, space, n_jobs=1)


@pytest.mark.parametrize(
    ("settings", "axes"),
    [({"schedule": "dualpipe", "gpus": 4}, {}), ({"cp_comm_type": "a2a", "gpus": 8}, {"cp": (1, 8)})],
    ids=["pairs of stages", "heads of gpt2"],
)
def test_plans_that_a_schedule_or_an_exchange_refuses_are_left_out(settings, axes):
    scenario, space = search_space({**SETTINGS, **settings}, {"recompute": ("none",), "micro_batch": (1,), **axes})
    found = search(scenario, space, top=2, n_jobs=1)
    assert 0 < found.n_plans < len(list(space.plans()))
    assert found.n_failed == 0


@pytest.mark.parametrize("energy", [False, True])
def test_plans_whose_collectives_an_algorithm_does_not_run_are_left_out_with_the_reason(energy):
    """NCCL's tree runs reductions, not what ZeRO shards need: one of each kind of plan here can run."""
    settings, axes = {**SETTINGS, "gpus": 2, "global_batch": 2, "algorithm": "tree"}, {"sharding": ("none", "zero1")}
    scenario, space = search_space(
        settings, axes | {"tp": (1,), "pp": (1,), "micro_batch": (1,), "recompute": ("none",)}
    )
    found = search(scenario, space, top=2, n_jobs=1, least_energy=energy)
    assert [one.plan.sharding for one in found.ranked] == ["none"]
    ((reason, n),) = found.failures.items()
    assert (n, found.n_failed, found.n_plans) == (1, 1, 2)
    assert "reduce_scatter over 2 ranks on 1 node cannot use algorithm tree" in reason
    none_runs = search_space(settings, {**axes, "tp": (1,), "pp": (1,), "sharding": ("zero1",)})
    with pytest.raises(
        InfeasiblePlanError, match=r"no plan of the space could be simulated: .* cannot use algorithm tree"
    ):
        search(*none_runs, top=2, n_jobs=1)


def test_a_search_chooses_only_its_own_axes():
    with pytest.raises(ConfigError, match="does not choose 'precision'"):
        search_space(SETTINGS, {"precision": ("bf16", "fp16")})
    _, space = search_space({**SETTINGS, "tp": 2}, {"recompute": ("none", "full")})
    assert space.allowed == {"tp": (2,), "recompute": ("none", "full")}


# -- the store, and the plan that a search began with -------------------------------------------------------------


def test_a_search_again_simulates_nothing(tmp_path, monkeypatch):
    scenario, space = request_of(gpus=4)
    first = search(scenario, space, top=3, n_jobs=1, store=Store(tmp_path))
    # a batch holds plans that need not have run
    assert first.n_stored == 0 and len(Store(tmp_path)) >= first.n_simulated
    monkeypatch.setattr("simulator.explore.work.evaluation.simulate", None)
    second = search(scenario, space, top=3, n_jobs=1, store=Store(tmp_path))
    assert second.n_stored == second.n_simulated == first.n_simulated
    assert [one.answer for one in second.ranked] == [one.answer for one in first.ranked]


def test_an_interrupted_search_goes_on(tmp_path):
    scenario, space = request_of(gpus=4)
    store, seen = Store(tmp_path), []

    def stop(*, n_simulated, **_):
        if n_simulated:
            seen.append(n_simulated)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(scenario, space, top=3, n_jobs=1, store=store, observe=stop)
    assert len(store) == seen[0] > 0
    resumed = search(scenario, space, top=3, n_jobs=1, store=store)
    assert resumed.n_stored == seen[0]
    assert [one.plan for one in resumed.ranked] == [one.plan for one in search(scenario, space, top=3, n_jobs=1).ranked]


def test_a_sweep_answers_for_a_search(tmp_path):
    base = {**SETTINGS, "gpus": 4, "framework": "deepspeed"}
    rows = run_sweep(
        Sweep(base={**base, "micro_batch": 2}, axes={"sharding": ("none", "zero3")}), Store(tmp_path), n_jobs=1
    ).rows
    scenario, space = search_space(base, {"recompute": ("none",), "pp": (1,), "tp": (1,), "micro_batch": (2,)})
    found = search(scenario, space, top=4, n_jobs=1, store=Store(tmp_path))
    assert found.n_stored == 2
    assert {row["iteration_time_s"] for row in rows} <= {one.iteration_time_s for one in found.ranked}


def test_the_given_plan_is_compared_and_not_kept_fixed(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("global-batch: 8\nmicro-batch: 1\nsharding: zero3\nsequence-length: 256\n", encoding="utf-8")
    base = {"topology": "bigred200", "model": "gpt2", "plan": str(file)}
    (found,) = search_counts(base, {"recompute": ("none",)}, (4,), top=3, n_jobs=1)
    given = found.result.given
    assert (given.plan.sharding, given.plan.micro_batch, given.plan.gpus) == ("zero3", 1, 4)
    assert given.iteration_time_s > found.result.ranked[0].iteration_time_s
    assert {one.plan.sharding for one in found.result.ranked} != {"zero3"}
    answer, *_ = answer_of([found], "time")
    rows = search_rows(answer)
    assert rows[-1]["plan"].startswith("yours: dp4 mb1 zero3")
    assert [row["rank"] for row in rows[:3]] == [1, 2, 3]


def test_rows_of_several_clusters_say_which(tmp_path):
    """Also those without a plan: no plan has three GPUs among which eight sequences could be shared."""
    axes = {
        "recompute": ("none",),
        "tp": (1,),
        "pp": (1,),
        "micro_batch": (1,),
        "topology": ("bigred200", "dgx-a100-80g"),
    }
    base = {**SETTINGS, "global_batch": 8}
    answer, *_ = answer_of(search_counts(base, axes, (3, 4), top=1, n_jobs=1), "time")
    *files, page = write_search(answer, str(tmp_path), "csv,jsonl", None)
    rows = [json.loads(line) for line in files[1].read_text(encoding="utf-8").splitlines()]
    assert [(row["topology"], row["gpus"]) for row in rows if row["status"] != "ok"] == [
        ("bigred200", 3),
        ("dgx-a100-80g", 3),
    ]
    assert {row["topology"] for row in rows if row["status"] == "ok"} == {"bigred200", "dgx-a100-80g"}
    text = page.read_text(encoding="utf-8")
    assert "on bigred200 and dgx-a100-80g</h1>" in text
    assert "4 GPUs of dgx-a100-80g, dp4 mb1" in text
    assert "3 GPUs of bigred200, 3 GPUs of dgx-a100-80g: no plan is valid" in text


def test_a_given_plan_that_does_not_run_has_its_reason(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("global-batch: 8\nmicro-batch: 8\nsequence-length: 256\n", encoding="utf-8")
    base = {"topology": "bigred200", "model": "gpt2", "plan": str(file)}
    found = search_counts(base, {"recompute": ("none",), "micro_batch": (1,)}, (4,), top=2, n_jobs=1)
    answer, *_ = answer_of(found, "time")
    assert "not a multiple of micro-batch x dp" in answer["searches"][0]["given"]["reason"]


@pytest.mark.slow
def test_the_best_plan_is_as_fast_as_the_published_one():
    """GPT-3 175B on 1,024 A100s; of all plans, those with the published degrees are searched, to be quick.

    References
    ----------
    Narayanan et al., SC 2021, arXiv:2104.04473, table 1: tensor 8, pipeline 16, micro-batch 1, full recomputation.
    """
    base = {"topology": "selene", "model": "gpt3-175b", "gpus": 1024, "global_batch": 1536}
    degrees = {"tp": (8,), "pp": (8, 16), "micro_batch": (1, 2)}
    scenario, space = search_space(base, degrees)
    published = replace(space.base, tp=8, pp=16, virtual_pp=6, micro_batch=1, recompute="full")
    found = search(scenario, space, top=1, n_jobs=1, given=published)
    assert found.ranked[0].iteration_time_s <= found.given.iteration_time_s


# -- reasons -----------------------------------------------------------------------------------------------------


def ranked(seconds, peak=1, **breakdown):
    parts = dict.fromkeys(("compute_s", "exposed_communication_s", "bubble_s", "optimizer_s", "host_s", "data_s"), 0.0)
    answer = {"iteration_time_s": seconds, "memory": {"peak_bytes": peak}, "breakdown": {**parts, **breakdown}}
    return Ranked(plan=ParallelPlan(dp=1, micro_batch=1, global_batch=1), bound_s=0.0, answer=answer)


def test_reasons_name_the_parts_that_make_the_difference():
    best = ranked(10.0, compute_s=8.0, bubble_s=2.0)
    other = ranked(12.0, compute_s=7.0, bubble_s=4.9, host_s=0.1)
    assert explain(other, best) == "+2 s (+20.0%): pipeline bubble +2.9 s, compute -1 s"
    assert sum(differences_s(other, best).values()) == pytest.approx(2.0)
    assert explain(best, best) == "as fast"
    assert explain(ranked(10.0, peak=3 * 2**30), ranked(10.001, peak=2**30)) == "as fast, 2 GiB more memory"


def test_differences_add_up_in_real_answers():
    scenario, space = request_of()
    found = search(scenario, space, top=4, n_jobs=1)
    for one in found.ranked:
        gap_s = one.iteration_time_s - found.ranked[0].iteration_time_s
        assert sum(differences_s(one, found.ranked[0]).values()) == pytest.approx(gap_s, abs=1e-9)
    data = json.loads(json.dumps(to_dict(found, 0.05), allow_nan=False))
    assert [row["summary"] for row in data["plans"]] == [abbreviate_plan(one.plan) for one in found.ranked]
    assert data["best"]["compared_with"] == "runner-up"
    assert set(data["plain"]) == {"DDP", "FSDP"}


def test_the_pareto_front_is_what_nothing_beats():
    plans = [ranked(1.0, 5), ranked(2.0, 6), ranked(3.0, 4), ranked(4.0, 4), ranked(5.0, 1)]
    assert [one.iteration_time_s for one in pareto(plans)] == [1.0, 3.0, 5.0]


def test_objectives_over_several_numbers_of_gpus():
    base = {key: value for key, value in SETTINGS.items() if key != "gpus"}
    axes = {"recompute": ("none",), "tp": (1,), "pp": (1,), "micro_batch": (1,)}
    found = search_counts(base, axes, (1, 4, 3, 8), top=2, n_jobs=1)
    assert [one.gpus for one in found] == [1, 4, 3, 8]
    assert "no plan is valid" in found[2].reason
    fastest, *_ = answer_of(found, "time")
    assert fastest["choice"]["iteration_time_s"] == min(
        s["best"]["iteration_time_s"] for s in fastest["searches"] if "best" in s
    )
    fewest, space, plans = answer_of(found, "gpu-hours", request=RunRequest(price=parse_price("2 EUR")))
    choice = fewest["choice"]
    assert choice["gpus"] == space.n_gpus == plans[0].gpus == 1
    assert choice["cost_per_billion_tokens"] == pytest.approx(2.0 * choice["gpu_hours_per_billion_tokens"])
    power = power_model(space.topology)
    best = fewest["searches"][0]["best"]
    watts = power.facility_w(power.gpu_w(best["breakdown"]))
    assert choice["kwh_per_billion_tokens"] == pytest.approx(choice["gpu_hours_per_billion_tokens"] * watts / 1e3)
    assert (choice["currency"], fastest["choice"]["cost_per_billion_tokens"]) == ("EUR", None)
    assert choice["s_per_billion_tokens"] == pytest.approx(choice["gpu_hours_per_billion_tokens"] * 3600)
    assert fewest["searches"][2] == {"topology": "bigred200", "gpus": 3, "reason": found[2].reason}
    with pytest.raises(ConfigError, match="cost needs a price"):
        answer_of(found, "cost")
    with pytest.raises(ConfigError, match="no objective"):
        answer_of(found, "beauty")
    with pytest.raises(InfeasiblePlanError):
        search_counts(base, axes, (3,), n_jobs=1)


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "simulator.cli.main", "search", "--topology", "bigred200", "--model", "gpt2", "--gpus", "4",
         "--global-batch", "8", "--axis", "recompute=none", "--top", "3", "--jobs", "1", "--emit", str(tmp_path), "--json",
         "--out", str(tmp_path / "out")],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["plans"]) == 3
    assert answer["best"]["iteration_time_s"] == min(row["iteration_time_s"] for row in answer["plans"])
    assert (tmp_path / "train.sh").exists()
    assert [Path(file).name for file in answer["files"]] == ["search.csv", "search.jsonl", "search.html"]
    lines = (tmp_path / "out" / "search.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["plan"] for line in lines[:3]] == [row["summary"] for row in answer["plans"]]
    assert [one["format"] for one in answer["emitted"]] == ["megatron", "deepspeed", "torchtitan", "accelerate"]


@pytest.mark.parametrize("settings", [{"gpus": 8, "sequence_length": 128}, {"framework": "fsdp", "gpus": 4}])
def test_workers_change_nothing(settings):
    """Several workers simulate plans before their turn: what one worker would have ruled out does not count."""
    scenario, space = request_of(**settings)
    one, two = (to_dict(search(scenario, space, top=3, n_jobs=n), 0.05) for n in (1, 2))
    assert json.dumps(one) == json.dumps(two)


def test_the_front_holds_every_plan_up_to_its_slowdown_that_nothing_beats():
    scenario, space = request_of(gpus=4, framework="fsdp", virtual_pp=1)
    everything = [
        (result.metrics.iteration_time_s, result.memory.peak_bytes) for _, result in all_that_fit(scenario, space)
    ]
    best_s = min(seconds for seconds, _ in everything)
    expected = sorted(
        (seconds, size)
        for seconds, size in set(everything)
        if seconds <= FRONT_SLOWDOWN * best_s
        and not any((s <= seconds and b <= size) and (s, b) != (seconds, size) for s, b in everything)
    )
    found = search(scenario, space, top=1, n_jobs=1)
    assert [(one.iteration_time_s, one.peak_bytes) for one in found.pareto] == expected


def test_plans_that_leave_little_memory_free_are_marked():
    scenario, space = request_of(gpus=4)
    found = search(scenario, space, top=3, n_jobs=1)
    capacity = found.ranked[0].answer["memory"]["capacity_bytes"]
    least, most = sorted(one.peak_bytes for one in found.ranked)[:: len(found.ranked) - 1]
    margin = 1.0 - (least + most) / 2 / capacity
    marks = [row["is_tight"] for row in to_dict(found, margin)["plans"]]
    assert marks == [capacity - one.peak_bytes < margin * capacity for one in found.ranked]
    assert not any(row["is_tight"] for row in to_dict(found, 0.0)["plans"])


def test_candidates_come_back_as_they_were_and_few_layouts_are_held(monkeypatch):
    """Whatever was forgotten is made again: the same plan, what it holds at most, and its first bound."""
    monkeypatch.setattr("simulator.explore.search.candidates.MOST_LAYOUTS", 3)
    scenario, space = request_of()
    bounds = Bounds(replace(scenario, plan=space.base), space.topology, space.spec)
    layouts = [bounds.layout(plan) for plan in itertools.islice(space.plans(), 20)]
    some = Candidates(bounds, space.base)
    for number, layout in enumerate(layouts):
        some.add(layout, 1000 + number)
    for _ in range(2):
        assert [some[index].plan for index in range(len(some))] == [layout.plan for layout in layouts]
    assert len(some) == 20
    assert len(some._layouts) <= 3
    assert list(some.peak_bytes) == list(range(1000, 1020))
    assert list(some.quick_s) == [bounds.quick_s(layout) for layout in layouts]
    expected = [bounds.quick_s(layout) for layout in layouts[:4]]
    for level, bound in enumerate((bounds.stage_s, bounds.full_s, bounds.run_s, bounds.path_s)):
        expected = [bound(layout, known_s) for layout, known_s in zip(layouts[:4], expected, strict=True)]
        assert [some.bound_s(index, level) for index in range(4)] == expected
    arrays = (*vars(some).values(), *some._tighter_s)
    kept = sum(one.itemsize * len(one) for one in arrays if isinstance(one, array))
    assert kept < 100 * len(some)


def test_workers_find_the_bounds_that_are_found_alone():
    """Several plans at a time, in other processes, which look at the cluster and the model anew; each is asked for once."""
    scenario, space = search_space({**SETTINGS, "framework": "megatron-core", "model": "gpt-1.3b"}, {})
    bounds = Bounds(replace(scenario, plan=space.base), space.topology, space.spec)
    selective = [plan for plan in space.plans() if plan.recompute == "selective" and plan.micro_batch == 1]
    plain, some_again = (
        [plan for plan in selective if (plan.recompute_modules is None) == is_plain][:6] for is_plain in (True, False)
    )
    layouts = [bounds.layout(plan) for plan in (*plain, *some_again)]
    assert len(layouts) == 12
    alone, some = Candidates(bounds, space.base), Candidates(bounds, space.base)
    for layout in layouts:
        alone.add(layout, 1000)
        some.add(layout, 1000)
    with Pool(n_jobs=2, at_once=True) as pool:
        for level in range(len(TIGHTER)):
            some.ask(range(12), level, pool)
            assert all(some.has_bound(index, level) for index in range(12))
            found, expected = ([one.bound_s(index, level) for index in range(12)] for one in (some, alone))
            assert found == pytest.approx(expected, rel=1e-12)


def test_every_judged_plan_is_a_row_of_a_table_that_is_written_piece_by_piece(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr("simulator.explore.search.judged_plans.TOGETHER", 7)
    monkeypatch.setattr(best_plans, "_BETWEEN_LOOKS", 1)
    scenario, space = request_of(gpus=4)
    judged, told = JudgedPlans(tmp_path), []
    found = search(scenario, space, top=1, n_jobs=1, judged=judged, observe=lambda **counts: told.append(counts))
    pieces = [parquet.read_table(file).to_pylist() for file in judged.close()]
    rows = [row for piece in pieces for row in piece]
    assert [len(piece) for piece in pieces] == [7] * (found.n_plans // 7) + [found.n_plans % 7] * (
        found.n_plans % 7 > 0
    )
    n_fit = sum(row["fits"] for row in rows)
    assert n_fit == found.n_plans - found.n_unfit
    assert [one["n_left"] for one in told[-n_fit:]] == list(range(n_fit, 0, -1)), (
        "the front of time and memory, leanest first"
    )
    assert all((row["bound_s"] is not None) == row["fits"] for row in rows)
    best = found.ranked[0]
    settings = {name: getattr(best.plan, name) for name in ("dp", "tp", "pp", "sharding", "micro_batch", "recompute")}
    (row,) = (row for row in rows if settings.items() <= row.items() and row["virtual_pp"] == best.plan.virtual_pp
              and row["sequence_parallel"] == best.plan.sequence_parallel)  # fmt: skip
    assert (row["topology"], row["peak_bytes"]) == ("bigred200", best.peak_bytes)
    assert 0.0 < row["bound_s"] <= best.bound_s <= best.iteration_time_s
    # how far it is is told from the first plan on
    assert told[0]["n_simulated"] == told[1]["n_simulated"] == 0 < told[-1]["n_simulated"]
    assert (told[0]["n_judged"], told[1]["n_judged"], told[-1]["n_judged"]) == (0, 1, found.n_plans)


def test_of_plans_that_do_not_fit_the_smallest_are_kept():
    """Four plans: a pipeline of 5 bytes, DDP of 9 and then of 7, and FSDP of 8."""
    report = MemoryReport(by_category={}, rank=0, stage=0, capacity_bytes=1, peak_at="")
    unfit = Unfit()
    for settings, n_bytes in (({"pp": 2}, 5), ({}, 9), ({"sharding": "zero3"}, 8), ({}, 7)):
        plan = ParallelPlan(gpus=8, dp=4, global_batch=8, micro_batch=1, **settings)
        unfit.add(plan, replace(report, by_category={"parameters": n_bytes}))
    assert unfit.n == 4
    assert unfit.least.peak_bytes == 5
    assert {kind: report.peak_bytes for kind, report in unfit.plain.items()} == {"DDP": 7, "FSDP": 8}
