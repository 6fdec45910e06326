"""Emulated jobs: to and from rows, what they send, what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from validation.emulation import emulate_command
from validation.emulation.cluster_shape import ClusterShape
from validation.emulation.job import JOBS, MIB, Job, buffer_bytes, job_of_row, parse_bytes
from validation.emulation.judged import TARGETS, kind_of
from validation.emulation.measure import Limits, check, durations_s, expected_traffic_bytes


def _row(job: Job) -> dict[str, str]:
    name = f"two-{job.name}" if job.n_jobs == 2 else job.name
    return {
        "job": name,
        "cfg": job.configuration(),
        "bytes": str(job.size_bytes),
        "gloo_threads": str(job.gloo_threads),
        "procs_per_node": "1",
        "repeats": str(job.n_repeats),
    }


@pytest.mark.parametrize("name", JOBS)
def test_a_job_is_read_back_from_its_row(name):
    job = Job(name=name, gloo_threads=1)
    assert job_of_row(_row(job)) == job


@pytest.mark.parametrize(
    "job",
    [
        Job(
            name="ddp",
            n_layers=4,
            layer_bytes=8 * MIB,
            forward_s=0.005,
            backward_s=0.01,
            bucket_bytes=16 * MIB,
            straggler=(0, 1.5),
        ),
        Job(name="zero3", n_groups=2, forward_s=0.02),
        Job(name="1f1b", n_micro_batches=4, activation_bytes=MIB),
        Job(name="all_reduce", n_jobs=2),
        Job(name="all_reduce", n_jobs=2, alone=True),
    ],
)
def test_configurations_are_read_back(job):
    assert job_of_row(_row(job)) == job


def test_shipped_names_are_understood():
    row = {"job": "allreduce", "bytes": "65536", "gloo_threads": "2", "procs_per_node": "1", "repeats": "12"}
    assert job_of_row(row).name == "all_reduce"
    row |= {"job": "zero", "cfg": "zero1 rs=gloo L8x2MiB f10 b20"}
    assert job_of_row(row).name == "zero1"
    row |= {"job": "zero", "cfg": "zero3 rs=ring L8x2MiB f10 b20"}
    with pytest.raises(ConfigError, match="hand-written ring"):
        job_of_row(row)


@pytest.mark.parametrize(
    "wrong", [{"name": "nothing"}, {"name": "ddp", "n_layers": 0}, {"name": "ddp", "forward_s": -1.0}]
)
def test_impossible_jobs_are_refused(wrong):
    with pytest.raises(ConfigError):
        Job(**wrong)


@given(st.integers(1, 1 << 24), st.integers(2, 32))
def test_buffers_divide_into_equal_parts_of_whole_floats(n_bytes, world):
    found = buffer_bytes(n_bytes, world)
    assert found % (4 * world) == 0
    assert found <= max(n_bytes, 4 * world)
    assert n_bytes - found < 4 * world


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_jobs_beside_each_other_share_no_rank(n_racks, share, n_jobs):
    job = Job(name="all_reduce", n_jobs=n_jobs)
    world = n_racks * share * n_jobs
    ranks = [job.ranks_of_job(index, world, n_racks) for index in range(n_jobs)]
    assert sorted(rank for one in ranks for rank in one) == list(range(world))


def test_sizes():
    assert parse_bytes("4MiB") == parse_bytes("4194304") == 4 * MIB


def test_a_repetition_lasts_from_the_last_start_to_the_last_end():
    assert durations_s([[(0.0, 2.0), (5.0, 6.0)], [(0.5, 1.5), (5.5, 7.0)]]) == [1.5, 1.5]


def test_traffic_is_bounded():
    shape = ClusterShape(n_nodes=4)
    job = Job(name="all_reduce", n_bytes=1 << 30, n_repeats=10)
    assert expected_traffic_bytes(shape, job) > 80 << 30
    with pytest.raises(ConfigError, match="more than the limit"):
        check(shape, job, Limits())


def test_what_cannot_finish_in_time_is_refused():
    job = Job(name="all_reduce", n_bytes=64 * MIB)
    with pytest.raises(ConfigError, match="--timeout"):
        check(ClusterShape(n_nodes=2, rate_bits_per_s=1e7), job, Limits(timeout_s=10))


def test_what_distorts_a_measurement_is_said():
    assert check(ClusterShape(n_nodes=8, rate_bits_per_s=5e9), Job(name="all_reduce", n_bytes=1024), Limits())
    assert not check(ClusterShape(n_nodes=4), Job(name="all_reduce"), Limits())


@pytest.mark.parametrize("wrong", [ClusterShape(n_nodes=1), ClusterShape(n_nodes=2, n_racks=2)])
def test_jobs_need_partners(wrong):
    with pytest.raises(ConfigError):
        check(wrong, Job(name="all_reduce", n_jobs=2), Limits())


@pytest.mark.parametrize(
    ("name", "groups", "said", "at_once", "kind"),
    [
        ("zero3", 1, 0, 1, "zero3"),
        ("zero3", 1, 2, 2, "zero3, two at once on one group"),
        ("zero3", 2, 0, 2, "zero3, separate groups"),
        ("ddp", 1, 0, 2, "ddp"),
    ],
)
def test_one_group_runs_zero3s_collectives_in_turn(monkeypatch, name, groups, said, at_once, kind):
    """FSDP's wrapper gives all its collectives to one communicator, whose stream runs them one by one (PyTorch's source)."""
    seen = []
    monkeypatch.setattr(emulate_command, "_run", lambda cases, *rest: seen.extend(cases))
    emulate_command.emulate(job=name, groups=groups, gloo_threads=said)
    [(_, [job])] = seen
    assert job.gloo_threads == at_once
    threads = str(job.gloo_threads)
    assert (
        kind_of({"job": name, "nodes": "4", "rate": "1gbit", "cfg": job.configuration(), "gloo_threads": threads})
        == kind
    )


@pytest.mark.parametrize(
    ("dilation", "kind"), [(1.0, "a job beside another, undilated"), (4.0, "a job beside another")]
)
def test_pairs_in_real_time_are_only_reported(dilation, kind):
    """Eight hosts of 1 Gbit/s with two jobs keep two processors busy; of 250 Mbit/s they do not."""
    pair = Job(name="ddp", n_jobs=2, beside=Job(name="ddp")).dilated(dilation)
    rate = f"{1000 / dilation:g}mbit"
    assert kind_of({"job": "pair-ddp", "nodes": "8", "rate": rate, "cfg": pair.configuration()}) == kind
    assert (kind in TARGETS) == (dilation > 1.0)
