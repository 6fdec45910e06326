"""Predictions of emulated jobs: closed forms, shipped rows, targets."""

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.errors import ConfigError, ThresholdError
from simulator.program.op import Collective
from simulator.program.startable import check as check_program
from validation.emulation.cluster_shape import ClusterShape, goodput_bytes_per_s
from validation.emulation.job import JOBS, MIB, Job, job_of_row
from validation.emulation.judged import TARGETS, check_targets, groups_of, read_rows
from validation.emulation.measure import Limits, check, paces_s, rows_of
from validation.emulation.predict import predicted_s, shape_of_row, shipped_overheads, with_prediction
from validation.emulation.programs import program_of
from validation.emulation.suites import SUITES, suite

ROOT = Path(__file__).parents[3]


MEASURED = sorted((ROOT / "validation" / "emulation" / "measurements").glob("*.csv"))


_ROW = {"job": "two-allgather", "bytes": "1"}


@pytest.mark.parametrize("name", JOBS)
def test_every_program_can_run(name):
    check_program(program_of(Job(name=name), 4, 2))


def test_a_program_has_the_jobs_bytes():
    program = program_of(Job(name="ddp"), 2, 1)
    for rank in program.ranks:
        sizes = [task.op.n_bytes for task in rank.tasks if isinstance(task.op, Collective)]
        assert sizes == [4 * MIB] * 4


def test_an_all_reduce_takes_what_its_ring_takes():
    shape = ClusterShape(n_nodes=4)
    ideal_s = 2 * 3 / 4 * 64 * MIB / goodput_bytes_per_s(1e9)
    assert predicted_s(shape, Job(name="all_reduce", n_bytes=64 * MIB)) == pytest.approx(ideal_s, rel=0.01)


def test_ranks_that_begin_in_turn_exchange_before_the_last_one_begins():
    """Eight messages' times less two gaps: the first of six ranks receives five without a pause once the second has begun."""
    job, shape = Job(name="all_to_all", n_bytes=96 * MIB, gap_s=0.01), ClusterShape(n_nodes=6)
    message_s = 16 * MIB / goodput_bytes_per_s(1e9)
    assert predicted_s(shape, job) == pytest.approx((5 + 3) * message_s - 4 * 0.01, rel=0.001)
    at_once = replace(job, gap_s=0.0)
    assert predicted_s(shape, at_once) == pytest.approx(5 * message_s, rel=0.001)
    assert job_of_row({"job": job.name, "cfg": job.configuration(), "bytes": "1"}).turn_s == 0.01
    assert job_of_row({"job": job.name, "bytes": "1"}).turn_s == 0.0
    assert Job(name="all_reduce").turn_s == 0.0 and Job(name="all_reduce").configuration() == ""
    both = Job(name="all_gather", n_jobs=2, alone=True)
    assert both.configuration() == "alone gap1" and job_of_row({**_ROW, "cfg": both.configuration()}).alone


def test_a_step_of_zero3_gathers_its_last_layer_once():
    """As the loop of the real job does: eight gathers in forward, seven in backward."""
    tasks = program_of(Job(name="zero3"), 4, 1).ranks[0].tasks
    collectives = [task.op.collective for task in tasks if isinstance(task.op, Collective)]
    assert collectives.count("all_gather") == 15 and collectives.count("reduce_scatter") == 8


def test_a_slow_link_sets_the_pace_of_a_ring():
    job = Job(name="all_reduce", n_bytes=64 * MIB)
    slow = predicted_s(ClusterShape(n_nodes=4, slow=((2, 5e8),)), job)
    assert slow == pytest.approx(2 * predicted_s(ClusterShape(n_nodes=4), job), rel=0.01)


def test_two_jobs_share_a_trunk():
    shape = ClusterShape(n_nodes=4, n_racks=2, trunk_bits_per_s=5e8)
    alone = predicted_s(shape, Job(name="all_reduce", n_bytes=16 * MIB, n_jobs=2, alone=True))
    both = predicted_s(shape, Job(name="all_reduce", n_bytes=16 * MIB, n_jobs=2))
    assert both == pytest.approx(2 * alone, rel=0.01)


def test_a_straggler_holds_up_everybody():
    shape = ClusterShape(n_nodes=4)
    plain, late = (predicted_s(shape, Job(name="ddp", straggler=s)) for s in (None, (1, 2.0)))
    assert late > plain + 0.15


def test_processors_limit_what_links_do_not():
    job = Job(name="all_reduce", n_bytes=64 * MIB)
    fast = ClusterShape(n_nodes=8, rate_bits_per_s=5e9)
    sent = 8 * 2 * 7 / 8 * 64 * MIB
    assert predicted_s(fast, job) > sent / shipped_overheads().shaped_bytes_per_s


def test_shipped_rows_are_predicted_within_their_targets():
    rows = [with_prediction(row) for path in MEASURED for row in read_rows(path)]
    groups = groups_of(rows)
    assert {group.key["kind"] for group in groups} >= set(TARGETS)
    check_targets(groups)
    assert {row["reason"] for row in rows if "reason" in row} == {"reduce-scatter by hand-written ring is not emulated"}
    chance = {group.key["kind"] for group in groups if "left to chance" in group.key["kind"]}
    assert chance == {f"{name}, who comes first left to chance" for name in ("all_gather", "all_to_all")}
    assert not chance & set(TARGETS)


def test_a_constant_of_small_layers_holds_for_larger_ones():
    """``unit_us`` is of 64 KiB; these are steps with 2 MiB, on an idle machine, between 4 and 8 hosts and at three rates."""
    zero = next(path for path in MEASURED if path.name == "zero.csv")
    rows = [row for row in read_rows(zero) if row["cfg"].startswith("fsdp2") and row["nodes"] != "2"]
    assert len(rows) == 6
    for row in rows:
        assert abs(with_prediction(row)["relative_error"]) < 0.05


def test_time_that_runs_slower_shows_what_the_links_and_layers_do():
    """Gupta et al., To Infinity and Beyond (NSDI 2006): links and layers slow down alike, what the machine itself costs shrinks."""
    free = replace(shipped_overheads(), layer_s=0.0, copy_s_per_byte=0.0)
    shape, job = ClusterShape(n_nodes=16, rate_bits_per_s=1e8, slow=((3, 5e7),)), Job(name="ddp")
    plain = predicted_s(shape, job, free)
    dilated = predicted_s(shape.dilated(10.0), job.dilated(10.0), free) / 10.0
    assert dilated == pytest.approx(plain, rel=0.01) and dilated < plain
    assert shape.dilated(10.0).slow == ((3, 5e6),) and job.dilated(10.0).layer_bytes == job.layer_bytes


def test_fsdp2_on_cpu_overlaps_nothing():
    shape, job = ClusterShape(n_nodes=4), Job(name="fsdp2")
    compute_s = job.n_layers * (job.forward_s + job.backward_s)
    wire_s = job.n_layers * (2 * 3 / 4 + 2 * 3 / 4) * job.layer_bytes / goodput_bytes_per_s(1e9)
    # a layer is copied after each of two gathers by gloo and by FSDP2, and once more before its gradient is reduced; four
    # ranks share two processors
    copies_s = 5 * job.n_layers * job.layer_bytes * shipped_overheads().fresh_s_per_byte * 4 / 2
    hooks_s = 2 * job.n_layers * shipped_overheads().unit_s * 4 / 2
    assert predicted_s(shape, job) == pytest.approx(compute_s + wire_s + copies_s + hooks_s, rel=0.03)
    assert predicted_s(shape, job) > compute_s + wire_s + copies_s + hooks_s


def test_a_worse_constant_misses_the_targets():
    worse = replace(shipped_overheads(), layer_s=3e-3)
    rows = []
    for row in read_rows(next(path for path in MEASURED if path.name == "ddp.csv")):
        seconds = predicted_s(shape_of_row(row), job_of_row(row), worse)
        rows.append({**row, "relative_error": seconds / float(row["median_s"]) - 1.0})
    with pytest.raises(ThresholdError, match="ddp: "):
        check_targets(groups_of(rows))


def test_a_file_without_the_columns_is_refused(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="no columns job"):
        read_rows(tmp_path / "rows.csv")


@pytest.mark.parametrize("name", SUITES)
def test_suites_can_run(name):
    for shape, jobs in suite(name):
        assert shape.total_bits_per_s <= 8e9
        for job in jobs:
            assert check(shape, job, Limits()) == []


def test_an_unknown_suite_is_refused():
    with pytest.raises(ConfigError, match="one of small"):
        suite("huge")


def test_jobs_on_hosts_of_their_own_under_one_switch_lose_nothing():
    other = Job(name="ddp", n_layers=4, forward_s=0.02, backward_s=0.02)
    pair = Job(name="ddp", n_jobs=2, beside=other)
    alone_s = predicted_s(ClusterShape(n_nodes=2), Job(name="ddp"))
    assert predicted_s(ClusterShape(n_nodes=4), pair) == pytest.approx(alone_s, rel=0.01)


def test_the_pace_of_a_job_is_that_of_its_starts_while_the_other_runs():
    """Four steps begin 1, 1.5 and 2 s apart on the later of two ranks; the other job ends before the last begins."""
    own = [[(0.0, 0.9), (1.0, 1.9), (2.0, 2.9), (4.4, 5.0)], [(0.1, 0.9), (1.1, 1.9), (2.6, 2.9), (4.6, 5.0)]]
    other = [[(0.0, 2.0), (2.0, 4.5)]]
    assert paces_s(own, other) == pytest.approx([1.0, 1.5])
    with pytest.raises(ConfigError, match="over too soon"):
        paces_s(own, [[(0.0, 1.2)]])


def test_both_jobs_of_a_pair_are_rows_of_their_own():
    """Ranks 0 and 2 step every second and send 6,000 bytes in six steps, ranks 1 and 3 every 2 s and 6,000 in three."""

    def answer(step_s, n_steps, sent, bucket):
        times = [(step_s * n, step_s * n + 0.5) for n in range(n_steps)]
        counted = {"sent_bytes": sent, "received_bytes": sent + n_steps, "phases": {"fwd_s": [step_s / 10] * n_steps}}
        return {"times": times, **counted, "buckets": [bucket], "real_time": True}

    own, other = answer(1.0, 6, 6_000, 7), answer(2.0, 3, 6_000, 9)
    pair = Job(name="ddp", n_repeats=6, n_jobs=2, beside=Job(name="ddp", n_layers=4, n_repeats=3))
    first, second = rows_of(ClusterShape(n_nodes=4, n_racks=2), pair, [own, other, own, other])
    for row, step_s, sent, bucket in ((first, 1.0, 1_000, "7"), (second, 2.0, 2_000, "9")):
        assert row["median_s"] == pytest.approx(step_s) and row["fwd_s"] == pytest.approx(step_s / 10)
        assert (row["job"], row["world"], row["tx_min"], row["tx_max"], row["rx_max"], row["buckets"]) == (
            "pair-ddp", 4, sent, sent, sent + 1, bucket,
        )  # fmt: skip
    assert job_of_row({name: str(value) for name, value in second.items()}).beside.n_layers == pair.n_layers
    assert first["cfg"].startswith("L8x2MiB") and second["cfg"].startswith("L4x2MiB")
