"""Played histories: the closed form is their mean, spares are servers with a repair time."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import numpy as np
import pytest

from simulator.errors import InfeasiblePlanError
from simulator.explore.run.goodput import expected_run
from simulator.explore.run.histories import FailureProcess, by_component, play_histories
from simulator.explore.run.run_request import parse_mtbf

DAY = 86400.0
PROCESS = FailureProcess(useful_s=10 * DAY, work_s=3600.0, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0)


def test_their_mean_is_the_closed_form() -> None:
    found = play_histories(PROCESS, 3000, seed=3)
    wanted = expected_run(240, 3600.0, iterations_per_checkpoint=1, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0)
    for values, mean in (
        (found.total_s, wanted.total_s),
        (found.lost_s, wanted.lost_s),
        (found.restart_s, wanted.restart_s),
        (found.n_failures, wanted.n_failures),
    ):
        assert values.mean() == pytest.approx(mean, abs=4.0 * values.std() / math.sqrt(3000))
    assert found.checkpoint_s == pytest.approx(np.full(3000, 240 * 60.0))
    parts = PROCESS.useful_s + found.checkpoint_s + found.lost_s + found.restart_s + found.waiting_s
    assert found.total_s == pytest.approx(parts)


def test_a_last_stretch_that_is_shorter_is_worked_once() -> None:
    found = play_histories(replace(PROCESS, useful_s=5000.0, mtbf_s=math.inf), 2)
    assert found.total_s == pytest.approx(np.full(2, 5000.0 + 2 * 60.0))


def test_without_a_spare_every_broken_node_is_waited_for() -> None:
    process = replace(PROCESS, n_spares=0, repair_s=3 * DAY)
    found = play_histories(process, 200, seed=1)
    assert found.waiting_s == pytest.approx(3 * DAY * found.n_failures)


def test_spares_wait_only_while_all_are_being_repaired() -> None:
    # the machine loses four nodes a day, and each is back after a day: forty spares are never all away
    plenty = play_histories(replace(PROCESS, n_spares=40, repair_s=DAY), 200, seed=1)
    assert plenty.waiting_s.max() == 0.0
    # with one spare, failure n waits for the node that failed at n - 2, so that two failures are ten days apart
    scarce = play_histories(replace(PROCESS, n_spares=1, repair_s=10 * DAY), 200, seed=1)
    assert np.all(scarce.total_s >= 10 * DAY * ((scarce.n_failures - 1) // 2))
    assert scarce.waiting_s.mean() > 0.8 * 5 * DAY * (scarce.n_failures.mean() - 1)


def test_software_failures_take_no_spare() -> None:
    found = play_histories(replace(PROCESS, n_spares=0, repair_s=DAY, hardware_share=0.0), 50)
    assert found.waiting_s.max() == 0.0 and found.n_failures.mean() > 30


def test_equal_seeds_give_equal_histories() -> None:
    first, same, other = (play_histories(PROCESS, 50, seed) for seed in (4, 4, 5))
    assert np.array_equal(first.total_s, same.total_s) and not np.array_equal(first.total_s, other.total_s)
    assert first.quantile_s(0.1) < first.quantile_s(0.9)


def test_components_of_llama_3_are_those_of_its_table() -> None:
    """Table 5 of arXiv:2407.21783: 148 faulty GPUs, 72 memories and 35 switches or cables of 419 interruptions."""
    rate = parse_mtbf("llama3-2024")
    assert rate.job_s(n_gpus=16384, n_nodes=2048) == pytest.approx(54 * DAY / 419, rel=0.001)
    counts = by_component(419, rate.components)
    # 30.1 % of all 466 interruptions: shares of the table, of which 419 were unexpected
    assert counts["HBM3 memory"] == pytest.approx(72, abs=0.5)
    assert counts["network switch or cable"] == pytest.approx(35, abs=0.5)
    assert sum(counts.values()) == pytest.approx(419)


@pytest.mark.parametrize(
    ("name", "gpus", "hours"), [("rsc1-2024", 16384, 1.8), ("rsc1-2024", 131072, 0.225), ("rsc1-jobs-2024", 1024, 7.9)]
)
def test_published_rates_give_their_published_times(name: str, gpus: int, hours: float) -> None:
    """arXiv:2410.21680: projections to 16,384 and 131,072 GPUs, and the time measured at 1,024."""
    assert parse_mtbf(name).job_s(n_gpus=gpus, n_nodes=gpus // 8) == pytest.approx(hours * 3600, rel=0.01)


def test_the_share_of_effective_time_is_the_published_formula() -> None:
    """E[ETTR] = (1 - N r (u0 + dt / 2)) / (1 + w / dt), arXiv:2410.21680, to first order in failures per stretch."""
    rate, restart_s, work_s, write_s = 1.0 / (40 * 3600.0), 300.0, 1800.0, 10.0
    found = play_histories(
        FailureProcess(useful_s=60 * DAY, work_s=work_s, write_s=write_s, mtbf_s=1 / rate, restart_s=restart_s), 400
    )
    published = (1 - rate * (restart_s + work_s / 2)) / (1 + write_s / work_s)
    assert float((60 * DAY / found.total_s).mean()) == pytest.approx(published, rel=0.001)


def test_checkpoints_that_count_late_cost_what_the_closed_form_says() -> None:
    """A lag of 40 minutes between hourly checkpoints, and a failure every six hours: e^(1/9) as many failures."""
    late = replace(PROCESS, useful_s=50 * DAY, lag_s=2400.0)
    found = play_histories(late, 1000, seed=5)
    wanted = expected_run(
        1200, 3600.0, iterations_per_checkpoint=1, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0, lag_s=2400.0
    )
    plain = expected_run(1200, 3600.0, iterations_per_checkpoint=1, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0)
    assert wanted.n_failures == pytest.approx(math.exp(2400.0 / 21600.0) * plain.n_failures)
    assert found.total_s.mean() == pytest.approx(wanted.total_s, rel=0.005)


def test_failures_of_whole_domains_go_back_to_storage() -> None:
    """If all failures do, and every fourth checkpoint is stored, a stretch is four checkpoints long."""
    found = play_histories(replace(PROCESS, domain_share=1.0, stored_every=4), 2000, seed=2)
    wanted = expected_run(
        60, 4 * 3600.0 + 3 * 60.0, iterations_per_checkpoint=1, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0
    )
    assert found.total_s.mean() == pytest.approx(wanted.total_s, rel=0.01)


def test_a_domain_takes_several_spares_at_once() -> None:
    rack = replace(PROCESS, domain_share=1.0, domain_nodes=4, repair_s=DAY)
    few = play_histories(replace(rack, n_spares=3), 50, seed=1)
    assert few.waiting_s == pytest.approx(DAY * few.n_failures)
    many = play_histories(replace(rack, n_spares=400), 50, seed=1)
    assert many.waiting_s.max() == 0.0


def test_going_on_with_fewer_replicas_costs_their_share() -> None:
    """A sixteenth of the speed for three days, and one more restart to grow again."""
    found = play_histories(replace(PROCESS, n_spares=0, repair_s=3 * DAY, elastic_loss=1 / 16), 50, seed=1)
    assert found.waiting_s == pytest.approx(found.n_failures * (3 * DAY / 16 + 900.0))


def test_a_domain_loses_no_more_than_a_stretch_where_every_checkpoint_is_stored() -> None:
    """Whatever the length of a stretch is: 1,800.7 s is no whole number of any unit of a float."""
    process = replace(PROCESS, useful_s=30 * DAY, work_s=1800.7, mtbf_s=10_000.0, domain_share=1.0, stored_every=1)
    found = play_histories(process, 200, seed=3)
    assert (found.lost_s <= found.n_failures * (process.work_s + process.write_s)).all()
    assert found.lost_s.sum() < 0.6 * found.n_failures.sum() * (process.work_s + process.write_s)


def test_without_a_domain_of_nodes_a_job_runs_on_at_what_the_others_leave() -> None:
    """A rack of four nodes takes four times what a node does from an elastic job, and never more than all."""
    elastic = replace(PROCESS, n_spares=0, repair_s=DAY, elastic_loss=0.1)
    alone, rack, all_gone = (
        play_histories(replace(elastic, domain_share=1.0, domain_nodes=n), 50, seed=4) for n in (1, 4, 40)
    )
    restart_s = elastic.restart_s
    assert alone.waiting_s == pytest.approx((0.1 * DAY + restart_s) * alone.n_failures)
    assert rack.waiting_s == pytest.approx((0.4 * DAY + restart_s) * rack.n_failures)
    assert all_gone.waiting_s == pytest.approx((DAY + restart_s) * all_gone.n_failures)


@pytest.mark.parametrize(
    ("share", "every", "lag_s"), [(0.3, 5, 0.0), (0.084, 12, 0.0), (0.3, 5, 1200.0), (1.0, 4, 0.0)]
)
def test_the_closed_form_goes_back_to_storage_as_often_as_histories_do(share: float, every: int, lag_s: float) -> None:
    """A run of 243 stretches and a half one, which are no whole number of groups between checkpoints in storage."""
    process = replace(
        PROCESS, useful_s=243.5 * 3600.0, restart_s=3600.0, domain_share=share, stored_every=every, lag_s=lag_s
    )
    found = play_histories(process, 4000, seed=6)
    wanted = expected_run(
        487, 1800.0, iterations_per_checkpoint=2, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=3600.0, lag_s=lag_s,
        domain_share=share, stored_every=every,
    )  # fmt: skip
    for values, mean in ((found.total_s, wanted.total_s), (found.n_failures, wanted.n_failures)):
        assert values.mean() == pytest.approx(
            mean, abs=4.0 * values.std() / math.sqrt(4000) + 0.002 * mean * bool(lag_s)
        )


def test_what_stays_in_the_node_is_lost_with_it() -> None:
    """If every failure takes a node, and every fourth checkpoint leaves it, a stretch is four checkpoints long."""
    found = play_histories(replace(PROCESS, shared_every=4), 2000, seed=2)
    wanted = expected_run(
        60, 4 * 3600.0 + 3 * 60.0, iterations_per_checkpoint=1, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0
    )
    assert found.total_s.mean() == pytest.approx(wanted.total_s, rel=0.01)
    software = play_histories(replace(PROCESS, shared_every=4, hardware_share=0.0), 2000, seed=2)
    assert software.total_s.mean() == pytest.approx(play_histories(PROCESS, 2000, seed=2).total_s.mean(), rel=0.01)


def test_three_tiers_are_what_the_closed_form_says() -> None:
    """The two are written apart: a recurrence over stretches, and failures one by one."""
    tiers = replace(
        PROCESS, useful_s=48 * 3600.0 * 4, shared_every=3, stored_every=12, hardware_share=0.5, domain_share=0.1
    )
    found = play_histories(tiers, 4000, seed=4)
    wanted = expected_run(
        192, 3600.0, iterations_per_checkpoint=1, write_s=60.0, mtbf_s=6 * 3600.0, restart_s=900.0, domain_share=0.1,
        stored_every=12, hardware_share=0.5, shared_every=3,
    )  # fmt: skip
    assert found.total_s.mean() == pytest.approx(wanted.total_s, abs=4.0 * found.total_s.std() / math.sqrt(4000))


def test_a_link_ends_the_job_as_often_as_it_goes_down() -> None:
    """Every 1,000 s: 100 s of restart, and of the 900 s of work behind it three stretches of 250 s are kept."""
    process = FailureProcess(
        useful_s=750_000.0, work_s=250.0, write_s=0.0, mtbf_s=math.inf, restart_s=100.0, ended_every_s=(1000.0,),
        n_spares=0, repair_s=DAY,
    )  # fmt: skip
    found = play_histories(process, 50)
    assert found.total_s == pytest.approx(np.full(50, 1e6), rel=0.002)
    assert found.n_failures == pytest.approx(np.full(50, 1000), abs=2)
    assert found.waiting_s.max() == 0.0  # it takes no node away
    domains = play_histories(replace(process, domain_share=1.0, stored_every=1000), 5)
    assert domains.total_s == pytest.approx(np.full(5, 1e6), rel=0.002), "nor what is stored beyond it"


def test_steps_that_wait_for_a_link_take_so_many_times_as_long() -> None:
    found = play_histories(replace(PROCESS, mtbf_s=math.inf, stalls=1.25), 2)
    assert found.total_s == pytest.approx(np.full(2, 1.25 * 10 * DAY + 240 * 60.0))
    lost = replace(PROCESS, domain_share=0.5, stored_every=7)  # as longer work does, whatever it is gone back to
    longer = replace(lost, useful_s=1.25 * lost.useful_s, work_s=1.25 * lost.work_s)
    assert play_histories(replace(lost, stalls=1.25), 5).total_s == pytest.approx(play_histories(longer, 5).total_s)


def test_a_run_that_meets_more_failures_than_can_be_played_is_refused_at_once() -> None:
    """A thousand years of a job that fails every hour: 8,766,000 hours, and no history has fewer failures than hours."""
    process = FailureProcess(useful_s=8_766_000 * 3600.0, work_s=60.0, write_s=1.0, mtbf_s=3600.0, restart_s=10.0)
    start = time.monotonic()
    with pytest.raises(InfeasiblePlanError, match="8,766,000 failures or more"):
        play_histories(process, 100)
    assert time.monotonic() - start < 0.5
