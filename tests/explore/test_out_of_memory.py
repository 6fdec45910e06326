"""Ways out of memory: every change that suffices, the fastest first; pairs where no single one does."""

from dataclasses import replace

import pytest

from simulator.answer import is_tight
from simulator.explore import out_of_memory
from simulator.explore.neighbourhood import Site, neighbours, objection
from simulator.explore.out_of_memory import in_words, ways_out
from simulator.explore.search.bounds import Bounds
from simulator.explore.trials import explain
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.report import answer_tables
from simulator.scenario import Scenario
from simulator.simulation import lower_scenario, simulate, simulate_on
from simulator.topology import load_topology


def run(topology, model, **plan):
    return simulate(Scenario(topology=topology, model=model, plan=ParallelPlan(**plan)))


@pytest.fixture(scope="module")
def single():
    """A plan of which one change suffices."""
    return run(
        "bigred200", "gpt-2.7b", gpus=8, micro_batch=8, global_batch=64, framework="hf-eager", sequence_length=1024
    )


@pytest.fixture(scope="module")
def paired():
    """A 7B model in plain data parallelism on 40 GB: no single change suffices."""
    plan = {"micro_batch": 8, "global_batch": 256, "framework": "deepspeed", "cp_comm_type": "p2p"}
    return run("dgx-a100-40g", "llama2-7b", gpus=16, **plan)


def simulated(result, row, plans):
    plan = plans[row["change"]]
    return simulate_on(Scenario(topology="", model="", plan=plan), result.topology, result.spec)


def test_every_way_out_is_what_its_simulation_says(single):
    assert not single.memory.fits
    plans = {one.name: one.plan for one in neighbours(single.plan, Site(topology=single.topology, spec=single.spec))}
    rows = ways_out(single)
    fitting = [row for row in rows if row["fits"]]
    assert fitting and fitting == rows[: len(fitting)]
    for row in fitting:
        other = simulated(single, row, plans)
        assert row["peak_bytes"] == other.memory.peak_bytes <= other.memory.capacity_bytes
        assert row["iteration_time_s"] == other.metrics.iteration_time_s
        assert other.plan.global_batch == single.plan.global_batch
        hours = 8 * row["iteration_time_s"] / 3600 * 1e9 / (64 * 1024)
        assert row["gpu_hours_per_billion_tokens"] == pytest.approx(hours)
        assert not row["is_tight"] or row["peak_bytes"] / row["capacity_bytes"] > 0.95
    all_tight = ways_out(replace(single, memory_margin=0.99))
    assert [row["is_tight"] for row in all_tight] == [row["fits"] for row in all_tight]
    times = [row["iteration_time_s"] for row in fitting]
    assert times == sorted(times)
    assert fitting[0]["change"] in in_words(rows)


def test_no_single_change_that_fits_is_left_out(single):
    """Against lowering every neighbour that the rules allow."""
    expected = set()
    for one in neighbours(single.plan, Site(topology=single.topology, spec=single.spec)):
        if one.reason or one.plan.global_batch != single.plan.global_batch:
            continue
        memory = lower_scenario(Scenario(topology="", model="", plan=one.plan), single.topology, single.spec)[2]
        if memory.fits:
            expected.add(one.plan)
    plans = {one.name: one.plan for one in neighbours(single.plan, Site(topology=single.topology, spec=single.spec))}
    assert {plans[row["change"]] for row in ways_out(single) if row["fits"]} == expected


def test_pairs_are_tried_where_nothing_else_suffices_and_the_fastest_is_the_hint(paired):
    """The hint was --sharding zero3 --recompute full, which is slower than another pair."""
    rows = ways_out(paired)
    times = {row["change"]: row["iteration_time_s"] for row in rows if row["fits"]}
    assert all(change.count("--") >= 2 for change in times)
    assert times["--micro-batch 1 --sharding zero3"] < times["--recompute full --sharding zero3"]
    same = {row["change"] for row in rows if row["same_training"]}
    assert in_words(rows).startswith(min((t, change) for change, t in times.items() if t and change in same)[1])


def test_a_single_change_that_costs_much_is_beaten_by_pairs():
    """Only sixteen-fold context parallelism suffices by itself, at three times the time of two gentle changes."""
    plan = {"tp": 8, "pp": 8, "micro_batch": 8, "global_batch": 96}
    rows = ways_out(run("selene", "gpt3-175b", gpus=256, **plan))
    fitting = [row for row in rows if row["fits"] and row["iteration_time_s"]]
    assert fitting[0]["change"].count("--") >= 2
    slowest = max(row["iteration_time_s"] for row in fitting)
    assert fitting[0]["iteration_time_s"] < 0.6 * slowest


def test_a_plan_that_does_not_fit_is_never_told_to_need_more(single):
    explained = explain(single)
    advised = {row["change"] for row in explained["changes"] if row["kind"] == "plan"}
    for one in neighbours(single.plan, Site(topology=single.topology, spec=single.spec)):
        if one.name in advised:
            bounds = Bounds(Scenario(topology="", model="", plan=one.plan), single.topology, single.spec)
            assert bounds.memory(bounds.layout(one.plan)).fits, one.name
    assert not any(row["change"] == "--micro-batch 16" for row in explained["changes"])


def test_advice_does_not_contradict_the_search():
    """ZeRO-2 with a pipeline under Megatron: the search refuses it, so nothing recommends it."""
    spec, topology = find_spec("gpt2"), load_topology("bigred200", 8)
    plan = ParallelPlan(gpus=8, pp=2, micro_batch=1, global_batch=16, sequence_length=256).resolve(8)
    site = Site(topology=topology, spec=spec)
    refused = {one.name: one.reason for one in neighbours(plan, site) if one.reason}
    assert refused["--sharding zero2"] == "megatron does not run zero2"
    assert refused["--sharding zero3"] == "megatron does not run zero3 with a pipeline"
    assert all(not objection(one.plan, site) for one in neighbours(plan, site) if not one.reason)


def test_other_stages_drop_a_layout():
    """A layout of four parts is that of 2 stages of 2 chunks: any other number of stages or chunks has none, and says so."""
    site = Site(topology=load_topology("bigred200", 8), spec=find_spec("gpt2"))
    plan = ParallelPlan(gpus=8, tp=2, pp=2, virtual_pp=2, pipeline_layout="Et*3|t*3|t*3|t*3L", micro_batch=1, global_batch=32,
                        sequence_length=256, framework="megatron-core", schedule="1f1b-interleaved").resolve(8)  # fmt: skip
    others = list(neighbours(plan, site))
    for one in others:
        keeps = one.plan.pipeline_layout is not None
        assert keeps == ((one.plan.pp, one.plan.virtual_pp) == (2, 2)), one.name
        assert keeps or "pipeline_layout=none" in one.name
    relaid = {one.name for one in others if one.plan.pipeline_layout is None}
    assert {
        "--pp 4 --dp 1 --virtual-pp 1 --set pipeline_layout=none",
        "--virtual-pp 1 --set pipeline_layout=none",
    } <= relaid
    assert not [one.name for one in others if "--virtual-pp 1" in one.name and "virtual_pp is 2" in one.reason]
    plain = list(neighbours(replace(plan, pipeline_layout=None), site))
    assert not any("pipeline_layout" in one.name for one in plain)


def test_ways_out_say_where_they_fit_only_just():
    """Of 80 GiB 90 are too many, 78 leave less than 5 %, 70 more."""
    row = {"change": "x", "same_training": True, "capacity_bytes": 80 << 30, "iteration_time_s": None, "currency": "",
           "gpu_hours_per_billion_tokens": None, "cost_per_billion_tokens": None}  # fmt: skip
    rows = [
        {**row, "fits": gib < 80, "peak_bytes": gib << 30, "is_tight": is_tight(gib << 30, 80 << 30, 0.05)}
        for gib in (70, 78, 90)
    ]
    assert [cells[1] for cells in answer_tables.ways_out(rows).rows] == ["fits", "fits, tight", "too large"]


def test_advice_offers_fused_attention_only_where_there_is_some():
    """Hugging Face's T5 adds its position bias to scores that only eager attention has (modeling_t5.py)."""
    spec, topology = find_spec("t5-base"), load_topology("bigred200", 8)
    plan = ParallelPlan(gpus=8, micro_batch=1, sequence_length=256, attention="eager", framework="fsdp").resolve(8)
    reasons = {one.name: one.reason for one in neighbours(plan, Site(topology=topology, spec=spec))}
    assert reasons["--attention flash"] == "fsdp has no fused attention for t5-base"


def test_degrees_that_the_heads_do_not_allow_are_no_way_out(simulated):
    """gpt2-large has 20 heads, which context parallelism of 8 by all-to-all cannot divide."""
    result = simulated("dgx-a100-40g", "gpt2-large", gpus=8, micro_batch=64, framework="deepspeed", cp_comm_type="a2a")
    assert not result.memory.fits
    rows = ways_out(result)
    assert any(row["fits"] for row in rows)
    assert not any("--cp 8" in row["change"] for row in rows)


def test_a_mixture_that_is_not_split_over_ranks_may_be():
    """64 experts on 8 ranks: every divisor of 8 divides them; a dense model has no experts to split."""
    site = {
        name: Site(topology=load_topology("dgx-a100-80g", 8), spec=find_spec(name))
        for name in ("deepseek-v2-lite", "gpt2")
    }
    plan = ParallelPlan(micro_batch=1, global_batch=8).resolve(8)
    degrees = {
        name: [one.plan.ep for one in neighbours(plan, place) if one.setting == "ep"] for name, place in site.items()
    }
    assert degrees == {"deepseek-v2-lite": [2, 4, 8], "gpt2": []}


def test_the_hint_names_a_way_that_leaves_room_before_a_faster_one_that_does_not():
    row = {"same_training": True, "fits": True, "peak_bytes": 78 << 30, "iteration_time_s": 1.0}
    tight, roomy = {**row, "change": "--tp 2", "is_tight": True}, {**row, "change": "--tp 4", "is_tight": False}
    other = {**roomy, "change": "--global-batch 2", "same_training": False}
    assert in_words([tight, other, roomy]).startswith("--tp 4 fits with 78 GiB, 1 s per iteration; 2 other ways")
    assert in_words([tight, other]).startswith("--tp 2 fits, tight, with 78 GiB")
    assert in_words([other, tight]).startswith("--tp 2 fits, tight, with 78 GiB")
    assert in_words([other]).startswith("--global-batch 2 fits with")


def test_what_is_not_simulated_is_listed_and_said(single, monkeypatch):
    """Without any work allowed, ways out are the same with their memory, none has a time, and all say why."""
    timed = [row for row in ways_out(single) if row["fits"]]
    assert not any(row["untimed"] for row in timed if row["iteration_time_s"])
    monkeypatch.setattr(out_of_memory, "MOST_TASKS_OF_ADVICE", 0)
    rows = [row for row in ways_out(single) if row["fits"]]
    assert {(row["change"], row["peak_bytes"]) for row in rows} >= {(row["change"], row["peak_bytes"]) for row in timed}
    assert not any(row["iteration_time_s"] for row in rows) and all(row["untimed"] for row in rows)
    assert in_words(rows).endswith(f", {len(rows)} of all not simulated")


def test_large_ways_out_come_last_and_within_what_is_left(single, monkeypatch):
    """Where every way out is large, the first one that is worth it takes what there is."""
    monkeypatch.setattr(out_of_memory, "LARGE", 0)
    whole = {row["change"]: row["iteration_time_s"] for row in ways_out(single)}
    n_spent = [0.0]

    class Counting(out_of_memory.Allowance):
        def spend(self, n_tasks):
            n_spent[0] += n_tasks
            super().spend(n_tasks)

    monkeypatch.setattr(out_of_memory, "Allowance", Counting)
    monkeypatch.setattr(out_of_memory, "MOST_TASKS_OF_ADVICE", 2_500)
    rows = ways_out(single)
    some = {row["change"]: row["iteration_time_s"] for row in rows if row["iteration_time_s"]}
    assert 0 < len(some) < sum(time is not None for time in whole.values())
    assert all(whole[change] == time for change, time in some.items())
    assert n_spent[0] < 2 * 2_500
