"""Played steps: against the engine with slow GPUs, closed forms of pauses, and what meets waits."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.answer import Result
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.lengths import Lengths
from simulator.explore.stragglers import Causes, StepModel, parse_causes, straggle
from simulator.faults import Faults
from simulator.parallel.mesh import Mesh


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
    """Every step: each is longer by the pause; once in four steps in the mean: a quarter of it, by a binomial's error."""
    model = StepModel(answer())
    always = model.play(Causes(pause_s=0.5, plans_pauses=True), n_jobs=1, n_steps=8)
    assert always.step_s == pytest.approx(np.full((1, 8), model.iteration_s + 0.5))
    often = model.play(Causes(pause_s=0.5, pause_every_steps=4, plans_pauses=True), n_jobs=50, n_steps=40)
    error = 4.0 * 0.5 * np.sqrt(0.25 * 0.75 / 2000)
    assert often.step_s.mean() == pytest.approx(model.iteration_s + 0.125, abs=error)


def test_pauses_that_nobody_plans_hit_nearly_every_step_of_many_ranks() -> None:
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


def test_replicas_that_are_alike_wait_for_nobody_and_the_head_makes_the_last_stage_long() -> None:
    """Planned pauses stop all replicas at once; of four equal stages the last has 50,257 words to compute besides."""
    found, _ = straggle(answer(), Causes(pause_s=0.5, pause_every_steps=3, plans_pauses=True), n_jobs=4, n_steps=5)
    assert found["waiting_share"] == 0.0 and found["stages_slowdown"] > 1.0
    slow = Causes(slow_gpus=(0.1, 3.0))
    waits = straggle(answer(), slow, n_jobs=20, n_steps=1)[0]["waiting_share"]
    assert 0.0 < waits < 1.0 - 1.0 / 3.0  # nobody is more than three times as slow
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
