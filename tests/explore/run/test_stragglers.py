"""Played steps: against the engine with slow GPUs, closed forms of pauses, and what meets waits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.answer import Result
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.run.lengths import Lengths
from simulator.explore.run.stragglers import (
    Causes,
    StepModel,
    in_words,
    parse_causes,
    straggle,
)
from simulator.faults import Faults
from simulator.parallel.mesh import Mesh
from simulator.report.straggler_page import straggler_page


@cache
def answer(schedule: str = "1f1b", virtual_pp: int = 1, slow: float = 1.0, sharding: str = "none") -> Result:
    pp = 1 if sharding == "zero3" else 4
    plan = ParallelPlan(
        gpus=16, tp=2, pp=pp, virtual_pp=virtual_pp, schedule=schedule, micro_batch=1, global_batch=16, sharding=sharding,
        sequence_length=1024, framework="fsdp" if sharding == "zero3" else "megatron-core",
    )  # fmt: skip
    faults = Faults(slow_ranks=tuple((rank, slow) for rank in range(16))) if slow > 1 else Faults()
    return simulate(Scenario(topology="polaris", model="gpt-1.3b", plan=plan, faults=faults), detail=True)


@pytest.mark.parametrize(
    ("schedule", "virtual_pp"), [("1f1b", 1), ("gpipe", 1), ("1f1b-interleaved", 2), ("zb-1p", 1), ("zb-v", 2)]
)
def test_passes_explain_nearly_the_whole_step(schedule: str, virtual_pp: int) -> None:
    """What the engine knows besides are the optimizer, and communication outside the passes."""
    model = StepModel(answer(schedule, virtual_pp))
    parts = answer(schedule, virtual_pp).answer["breakdown"]
    communication_s = parts["exposed_communication_s"] + parts["overlapped_communication_s"]
    assert parts["optimizer_s"] <= model.rest_s <= parts["optimizer_s"] + communication_s
    assert model.even_s() == pytest.approx(model.iteration_s)


def test_all_gpus_slow_is_what_the_engine_says() -> None:
    played = StepModel(answer()).play(Causes(slow_gpus=(1.0, 1.3)), n_jobs=2, n_steps=2)
    assert played.step_s == pytest.approx(np.full((2, 2), answer(slow=1.3).metrics.iteration_time_s), rel=0.02)


def test_a_slow_node_is_slow_in_all_its_gpus() -> None:
    """Four nodes of four GPUs hold a stage of two replicas each: a share of 0.3 leaves 0.7^4 of the jobs alone, not 0.7^16."""
    model = StepModel(answer())
    every = model.play(Causes(slow_nodes=(1.0, 1.3)), n_jobs=2, n_steps=2)
    assert every.step_s == pytest.approx(np.full((2, 2), answer(slow=1.3).metrics.iteration_time_s), rel=0.02)
    some = model.play(Causes(slow_nodes=(0.3, 1.3)), n_jobs=4000, n_steps=1).step_s[:, 0]
    assert (some < 1.001 * model.iteration_s).mean() == pytest.approx(0.7**4, abs=4 * np.sqrt(0.24 * 0.76 / 4000))


def test_a_slow_nic_delays_the_jobs_that_have_one_as_the_engine_says() -> None:
    """Of four nodes a quarter has slow NICs: 1 - 0.75^4 = 0.684 of the jobs have one."""
    model = StepModel(answer())
    scenario = replace(answer().scenario, faults=Faults(slow_links=(("node0.nic", 20.0),)))
    slow_s = simulate(scenario).metrics.iteration_time_s
    assert slow_s > 1.001 * model.iteration_s
    every = model.play(Causes(slow_links=(1.0, 20.0)), n_jobs=2, n_steps=2)
    assert every.step_s == pytest.approx(np.full((2, 2), slow_s))
    some = model.play(Causes(slow_links=(0.25, 20.0)), n_jobs=4000, n_steps=1).step_s[:, 0]
    share = 1 - 0.75**4
    assert (some > 1.0001 * model.iteration_s).mean() == pytest.approx(
        share, abs=4 * np.sqrt(share * (1 - share) / 4000)
    )
    assert [name for name, _ in Causes(slow_links=(0.25, 20.0), slow_nodes=(0.1, 2.0)).alone()] == [
        "slow nodes",
        "slow links",
    ]


def test_planned_pauses_cost_their_share_of_the_steps() -> None:
    """Every step: each is longer by the pause; once in four steps on average: a quarter of it, by a binomial's error."""
    model = StepModel(answer())
    always = model.play(Causes(pause_s=0.5, plans_pauses=True), n_jobs=1, n_steps=8)
    assert always.step_s == pytest.approx(np.full((1, 8), model.iteration_s + 0.5))
    often = model.play(Causes(pause_s=0.5, pause_every_steps=4, plans_pauses=True), n_jobs=50, n_steps=40)
    error = 4.0 * 0.5 * np.sqrt(0.25 * 0.75 / 2000)
    assert often.step_s.mean() == pytest.approx(model.iteration_s + 0.125, abs=error)


def test_unplanned_pauses_hit_nearly_every_step_of_many_ranks() -> None:
    """Of 16 processes at least one pauses in 1 - 0.9^16 = 81 % of the steps; planned, in a tenth."""
    model = StepModel(answer(sharding="zero3"))  # without stages every pause delays the step whole
    plain = model.play(Causes(pause_s=0.5, pause_every_steps=10), n_jobs=40, n_steps=50).step_s
    assert (plain > model.iteration_s + 0.49).mean() == pytest.approx(1 - 0.9**16, abs=0.04)
    planned = model.play(Causes(pause_s=0.5, pause_every_steps=10, plans_pauses=True), n_jobs=40, n_steps=50).step_s
    assert planned.mean() < plain.mean()


def test_replicas_that_gather_parameters_wait_for_each_other_in_every_pass() -> None:
    """Sharded, a step is the sum of the slowest passes; replicated, the slowest replica's sum, which is at most that."""
    lengths = Causes(lengths=Lengths.parse("lognormal:200,1.5"))
    model = StepModel(answer(sharding="zero3"))
    assert [list(group) for group in model.coupled] == [list(range(8))]
    met = model.play(lengths, n_jobs=4, n_steps=10, seed=3).step_s
    model.coupled = []
    alone = model.play(lengths, n_jobs=4, n_steps=10, seed=3).step_s
    assert np.all(met >= alone - 1e-12) and met.mean() > alone.mean()


def test_replicas_meet_where_the_mesh_says() -> None:
    """Experts of two ranks: neighbouring replicas exchange tokens, or, laid out behind data, those half the machine apart."""
    experts = {"gpus": 8, "micro_batch": 1, "ep": 2}
    near = Mesh(ParallelPlan(**experts).resolve(8))
    assert near.coupled_replicas() == ((0, 1), (2, 3), (4, 5), (6, 7))
    far = Mesh(ParallelPlan(**experts, rank_order="tp-cp-dp-ep-pp").resolve(8))
    assert far.coupled_replicas() == ((0, 4), (1, 5), (2, 6), (3, 7))


def test_equal_lengths_change_nothing_and_shorter_ones_shorten() -> None:
    model = StepModel(answer())
    full = model.play(Causes(lengths=Lengths.parse("uniform:1024-1024")), n_jobs=2, n_steps=3)
    assert full.step_s == pytest.approx(np.full((2, 3), model.iteration_s))
    half = model.play(Causes(lengths=Lengths.parse("uniform:512-512")), n_jobs=2, n_steps=3)
    attention = max(model.attention)
    assert np.all(half.step_s < full.step_s) and np.all(half.step_s > (1 - attention) * full.step_s)


def test_the_answer_adds_up() -> None:
    causes = parse_causes(
        lengths="lognormal:200,1.5", slow_gpus="0.05=1.3", spread=0.02, pause="50 ms/20 steps", stall="1 s/40 steps"
    )
    found, played = straggle(answer(), causes, n_jobs=30, n_steps=10, seed=1)
    assert found["mean_s"] == pytest.approx(played.step_s.mean()) and found["slowdown"] * found[
        "even_s"
    ] == pytest.approx(found["mean_s"])
    assert {row["cause"] for row in found["causes"]} == {
        "sequence lengths", "slow GPUs", "spread of clocks", "pauses of hosts", "late data",
    }  # fmt: skip
    assert all(1.0 <= row["slowdown"] <= found["slowdown"] for row in found["causes"])
    assert found["job_slowdown_p10"] <= found["slowdown"] * 1.2 and found["p50_s"] <= found["p95_s"]
    assert straggle(answer(), causes, n_jobs=30, n_steps=10, seed=1)[0] == found


def test_replicas_that_are_alike_do_not_wait_and_the_head_makes_the_last_stage_long() -> None:
    """Planned pauses stop all replicas at once; of four equal stages the last has 50,257 words to compute besides."""
    found, _ = straggle(answer(), Causes(pause_s=0.5, pause_every_steps=3, plans_pauses=True), n_jobs=4, n_steps=5)
    assert found["waiting_share"] == 0.0 and found["stages_slowdown"] > 1.0
    slow = Causes(slow_gpus=(0.1, 3.0))
    waits = straggle(answer(), slow, n_jobs=20, n_steps=1)[0]["waiting_share"]
    assert 0.0 < waits < 1.0 - 1.0 / 3.0  # no rank is more than three times as slow
    assert straggle(answer(sharding="zero3"), slow, n_jobs=2, n_steps=1)[0]["stages_slowdown"] == pytest.approx(1.0)


def test_schedules_whose_passes_overlap_are_refused() -> None:
    with pytest.raises(InfeasiblePlanError, match="dualpipe"):
        StepModel(answer("dualpipe"))


@pytest.mark.parametrize(
    "given",
    [{}, {"plans_pauses": True}, {"slow_gpus": "1.3"}, {"slow_gpus": "2=1.3"}, {"slow_nodes": "0.1=0.5"},
     {"slow_links": "0=2"}, {"spread": 2.0}, {"pause": "200 ms"},
     {"stall": "2 s/0 steps"}, {"pause": "-1 s/5 steps"}],
)  # fmt: skip
def test_what_is_no_cause_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        parse_causes(**given)  # type: ignore[arg-type]


def test_rows_name_the_ranks_that_meet_in_every_layer_and_slow_nodes_are_slow_in_their_own() -> None:
    """Of 16 ranks, pairs of tensor parallelism are nearest, then two replicas, then four stages; a node holds four ranks."""
    rows = straggle(answer(), Causes(slow_nodes=(0.3, 1.5)), n_jobs=9, n_steps=3, seed=2)[0]["ranks"]
    assert [row["ranks"] for row in rows] == [[first, first + 1] for first in range(0, 16, 2)]
    assert [(row["stage"], row["replica"]) for row in rows] == [(s, r) for s in range(4) for r in range(2)]
    is_slow = [row["slowdown"] > 1.01 for row in rows]
    assert is_slow[::2] == is_slow[1::2] and 0 < sum(is_slow) < 8
    assert all(row["steps"] == pytest.approx([row["slowdown"]] * 3) for row in rows)


def test_a_slow_rank_costs_alone_what_the_engine_says() -> None:
    plan = ParallelPlan(gpus=8, tp=2, micro_batch=4, global_batch=64, sequence_length=2048, framework="megatron-core")
    scenario = Scenario(topology="dgx-h100", model="gpt-1.3b", plan=plan)
    result = simulate(scenario, detail=True)
    rows = straggle(result, Causes(slow_gpus=(0.2, 1.5)), n_jobs=9, n_steps=3)[0]["ranks"]
    slow_s = simulate(replace(scenario, faults=Faults(slow_ranks=((2, 1.5),)))).metrics.iteration_time_s
    slow = [row["slowdown"] for row in rows if row["slowdown"] > 1.0]
    assert len(rows) == 4 and 0 < len(slow) < 4
    assert slow == pytest.approx([slow_s / result.metrics.iteration_time_s] * len(slow), rel=0.02)


def test_a_pause_in_every_step_costs_each_rank_itself() -> None:
    """Without stages a pause of half a second lengthens the step by just that, whichever rank it is that pauses alone."""
    found, _ = straggle(answer(sharding="zero3"), Causes(pause_s=0.5), n_jobs=2, n_steps=70)
    assert len(found["ranks"]) == 8 and {len(row["steps"]) for row in found["ranks"]} == {60}
    for row in found["ranks"]:
        assert row["slowdown"] == pytest.approx(1.0 + 0.5 / found["even_s"])


@pytest.mark.parametrize("most_numbers", [1, 1 << 25])
def test_rows_of_ranks_are_of_the_job_in_the_middle(most_numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one replica without stages, what its ranks cost alone is all that there is, however many jobs are drawn at once."""
    monkeypatch.setattr("simulator.explore.run.stragglers._MOST_NUMBERS", most_numbers)
    causes = Causes(lengths=Lengths.parse("lognormal:200,1.5"))
    single = ParallelPlan(gpus=4, tp=4, micro_batch=1, global_batch=4, sequence_length=1024, framework="megatron-core")
    result = simulate(Scenario(topology="polaris", model="gpt-1.3b", plan=single), detail=True)
    found, played = straggle(result, causes, n_jobs=7, n_steps=5, seed=4)
    jobs = played.step_s.mean(axis=1)
    assert jobs[found["job"]] == np.median(jobs)
    assert found["ranks"][0]["ranks"] == [0, 1, 2, 3] and len(found["ranks"]) == 1
    assert found["ranks"][0]["steps"] == pytest.approx(played.step_s[found["job"]] / found["even_s"])


def test_of_many_ranks_those_that_cost_most_have_rows() -> None:
    """128 groups of ranks, of which three quarters are slow: 64 rows, all of slow ones, in the order of their ranks."""
    plan = ParallelPlan(gpus=128, micro_batch=1, global_batch=128, sequence_length=1024, framework="megatron-core")
    result = simulate(Scenario(topology="dgx-h100", model="gpt2", plan=plan), detail=True)
    rows = straggle(result, Causes(slow_gpus=(0.75, 10.0)), n_jobs=1, n_steps=1)[0]["ranks"]
    assert len(rows) == 64 and min(row["slowdown"] for row in rows) > 1.1
    assert [row["ranks"] for row in rows] == sorted(row["ranks"] for row in rows)


@pytest.mark.parametrize("factor", [1.5, 3.0])
def test_slow_kernels_first_fill_the_gaps_between_launches(factor: float) -> None:
    """Half of this step waits for launches, which GPUs half as fast hide: the engine without what its optimizer takes longer."""
    plan = ParallelPlan(gpus=8, tp=2, micro_batch=1, global_batch=32, sequence_length=1024, framework="megatron-core")
    scenario = Scenario(topology="dgx-h100", model="gpt-1.3b", plan=plan)
    result = simulate(scenario, detail=True)
    parts = result.answer["breakdown"]
    assert parts["host_s"] > parts["compute_s"]
    every = Faults(slow_ranks=tuple((rank, factor) for rank in range(8)))
    slow_s = simulate(replace(scenario, faults=every)).metrics.iteration_time_s - (factor - 1) * parts["optimizer_s"]
    played = StepModel(result).play(Causes(slow_gpus=(1.0, factor)), n_jobs=1, n_steps=1)
    assert played.step_s[0, 0] == pytest.approx(slow_s, rel=0.01)


@pytest.mark.parametrize(("factor", "within"), [(0.5, 0.05), (0.8, 0.01), (1.25, 0.01)])
@pytest.mark.parametrize("shape", [{"tp": 2, "micro_batch": 4}, {"tp": 2, "pp": 2, "micro_batch": 2}])
def test_kernels_that_wait_for_no_launch_shorten_a_step_as_they_lengthen_it(
    shape: dict[str, int], factor: float, within: float
) -> None:
    """The engine without what its optimizer takes longer: its hosts launch ahead, with stages from each message on."""
    plan = ParallelPlan(gpus=8, global_batch=32, sequence_length=4096, framework="megatron-core", **shape)
    scenario = Scenario(topology="dgx-h100", model="gpt-1.3b", plan=plan)
    result = simulate(scenario, detail=True)
    parts = result.answer["breakdown"]
    assert parts["host_s"] < 0.01 * parts["compute_s"]
    every = Faults(slow_ranks=tuple((rank, factor) for rank in range(8)))
    other_s = simulate(replace(scenario, faults=every)).metrics.iteration_time_s - (factor - 1) * parts["optimizer_s"]
    played = StepModel(result).play(Causes(slow_gpus=(1.0, factor)), n_jobs=1, n_steps=1)
    assert played.step_s[0, 0] == pytest.approx(other_s, rel=within)


def test_a_rank_that_is_slow_already_becomes_slower_with_all() -> None:
    """The engine with both factors on that rank, without what its optimizer takes longer."""
    plan = ParallelPlan(gpus=2, tp=2, micro_batch=4, global_batch=8, sequence_length=2048, framework="megatron-core")
    scenario = Scenario(topology="dgx-h100", model="gpt-1.3b", plan=plan, faults=Faults(slow_ranks=((0, 1.25),)))
    result = simulate(scenario, detail=True)
    both = replace(scenario, faults=Faults(slow_ranks=((0, 1.25 * 1.5), (1, 1.5))))
    optimizer_s = result.answer["breakdown"]["optimizer_s"]
    played = StepModel(result).play(Causes(slow_gpus=(1.0, 1.5)), n_jobs=1, n_steps=1)
    expected_s = simulate(both).metrics.iteration_time_s - 0.5 * optimizer_s
    assert played.step_s[0, 0] == pytest.approx(expected_s, rel=0.01)


def test_of_one_job_nothing_is_said_about_the_others() -> None:
    one = in_words(straggle(answer(), Causes(spread=0.02), n_jobs=1, n_steps=1)[0])
    assert "over 1 job of 1 step," in one and "of the jobs" not in one
    several = in_words(straggle(answer(), Causes(spread=0.02), n_jobs=2, n_steps=3)[0])
    assert "over 2 jobs of 3 steps," in several and "of the jobs are at least 10% slower" in several


def test_a_slow_tray_leaves_the_rest_of_its_rack_alone() -> None:
    """Eight GPUs of an NVL72 are two trays of four: a share of 0.3 leaves 0.7^2 of the jobs alone, not 0.7."""
    plan = ParallelPlan(gpus=8, micro_batch=1, global_batch=8, sequence_length=1024, framework="megatron-core")
    model = StepModel(simulate(Scenario(topology="gb200-nvl72", model="gpt2", plan=plan), detail=True))
    some = model.play(Causes(slow_nodes=(0.3, 10.0)), n_jobs=4000, n_steps=1).step_s[:, 0]
    assert (some < 1.001 * model.iteration_s).mean() == pytest.approx(0.49, abs=4 * np.sqrt(0.49 * 0.51 / 4000))


def test_what_ranks_cost_alone_is_nothing_where_the_others_take_as_long() -> None:
    """Half of the GPUs are faster than the mean: a replica of them waits for the other one, and no step is shorter."""
    plan = ParallelPlan(gpus=8, micro_batch=4, global_batch=64, sequence_length=2048, framework="megatron-core")
    result = simulate(Scenario(topology="dgx-h100", model="gpt-1.3b", plan=plan), detail=True)
    rows = straggle(result, Causes(spread=0.05), n_jobs=1, n_steps=1, seed=1)[0]["ranks"]
    assert {True, False} == {row["slowdown"] == 1.0 for row in rows} and min(row["slowdown"] for row in rows) == 1.0


def test_replicas_that_meet_in_every_layer_cannot_make_up_for_a_long_pass() -> None:
    """Of n = 16 passes of independent lengths, waiting for each costs n E[(x - m)+], for their sum only sqrt(n) of it."""
    lost = {}
    for sharding in ("none", "zero3"):
        plan = ParallelPlan(
            gpus=4, micro_batch=1, global_batch=64, sequence_length=1024, sharding=sharding, framework="fsdp"
        )
        result = simulate(Scenario(topology="polaris", model="gpt2", plan=plan), detail=True)
        causes = Causes(lengths=Lengths.parse("lognormal:200,1.5"))
        rows = straggle(result, causes, n_jobs=3, n_steps=60, seed=1)[0]["ranks"]
        lost[sharding] = np.mean([row["slowdown"] - 1.0 for row in rows])
    assert lost["zero3"] == pytest.approx(4 * lost["none"], rel=0.2)


def test_lengths_of_packed_documents_cost_what_was_published_of_such_jobs() -> None:
    """1.34 in the mean over jobs whose lengths vary (Lin et al., OSDI 2025); their lengths are not published, these are assumed."""
    plan = ParallelPlan(
        gpus=256, tp=8, micro_batch=1, global_batch=128, sequence_length=65536, framework="megatron-core",
        sequence_parallel=True, recompute="full",
    )  # fmt: skip
    result = simulate(Scenario(topology="dgx-h100", model="llama3-8b", plan=plan), detail=True)
    causes = Causes(lengths=Lengths.parse("lognormal:1500,1.5"))
    found, _ = straggle(result, causes, n_jobs=20)
    assert found["slowdown"] == pytest.approx(1.34, rel=0.15)
    assert found["even_s"] < 0.8 * result.metrics.iteration_time_s  # a third of the attention is left


def test_shares_are_the_same_whether_kernels_were_written_down_one_by_one_or_not() -> None:
    plan = ParallelPlan(gpus=8, tp=2, micro_batch=1, global_batch=32, sequence_length=1024, framework="megatron-core")
    scenario = Scenario(topology="dgx-h100", model="gpt-1.3b", plan=plan)
    one, other = (StepModel(simulate(scenario, detail=detail)) for detail in (True, False))
    assert other.compute == pytest.approx(one.compute, abs=0.02)


def test_the_map_by_rank_says_what_it_leaves_out() -> None:
    """Sixteen ranks in eight pairs have eight rows; what is not drawn, shares a row or is no rank's own is said."""
    found, played = straggle(answer(), Causes(slow_gpus=(0.2, 1.5), slow_links=(0.2, 2.0)), n_jobs=1, n_steps=2)
    links, pairs, rows = (
        "Slow NICs, for which all ranks wait",
        "Ranks that meet in every layer share a row",
        "Drawn are the 2 rows",
    )
    said = straggler_page(answer().scenario, found, played).charts["ranks"].summary
    assert links in said and pairs in said and rows not in said
    single = [{**row, "ranks": row["ranks"][:1]} for row in found["ranks"][:2]]
    plain = {**found, "causes": [row for row in found["causes"] if row["cause"] != "slow links"], "ranks": single}
    said = straggler_page(answer().scenario, plain, played).charts["ranks"].summary
    assert links not in said and pairs not in said and rows in said


@pytest.mark.parametrize("text", ["1e300 s/1 step", "2000000 s/5 steps", "1 s/10000000000000 steps"])
def test_pauses_are_bounded(text):
    with pytest.raises(ConfigError, match="at most 1e\\+06 s, once in at most 1e\\+12 steps"):
        parse_causes(pause=text)
