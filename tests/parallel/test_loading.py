"""Data loading as a stage of the step: its duration in closed form, and only its excess over the step seen."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.analysis.critical_path import path_rows
from simulator.errors import ConfigError
from simulator.models.catalog import find_spec
from simulator.models.recorded import RecordedModule, parse_input
from simulator.parallel.loading import batch_bytes, loading_of, readers_of, sample_bytes_of
from simulator.plan import ParallelPlan
from simulator.program.program import LOADER
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology import load_topology


def plan_of(gpus=16, **settings):
    return ParallelPlan(gpus=gpus, micro_batch=4, sequence_length=512, **settings).resolve(gpus)


def cluster(gpus=16, **storage):
    return load_topology("bigred200", gpus, overrides={f"storage.{key}": value for key, value in storage.items()})


def step(*, overrides=(), unfold=False, **plan):
    settings = {"gpus": 8, "micro_batch": 2, "sequence_length": 256, "framework": "deepspeed", **plan}
    scenario = Scenario(
        topology="bigred200", model="gpt2", plan=ParallelPlan(**settings), overrides=tuple(overrides), unfold=unfold
    )
    return simulate(scenario)


# -- how long it takes -------------------------------------------------------------------------------------------


def test_without_storage_nothing_is_modelled():
    assert loading_of(plan_of(), cluster(), 1e6) is None


def test_the_busiest_node_or_the_file_system_decides():
    plan = plan_of()  # 16 ranks of 4 sequences on four nodes of four
    slow_node = loading_of(plan, cluster(node_bandwidth="1 MB/s"), 1e6)
    assert slow_node.duration_s == pytest.approx(4 * 4 * 1e6 / 1e6)
    slow_system = loading_of(plan, cluster(node_bandwidth="1 MB/s", bandwidth="1 MB/s"), 1e6)
    assert slow_system.duration_s == pytest.approx(64.0)
    nics = loading_of(plan, cluster(bandwidth="1 EB/s"), 1e6)  # a node is as fast as its one card of 12.5 GB/s
    assert nics.duration_s == pytest.approx(16e6 / 12.5e9)


def test_workers_share_the_latency_and_the_processor_time():
    storage = {"node_bandwidth": "100 GB/s", "latency": "10 ms"}
    plan = plan_of(sample_time_s=0.03, loader_workers=4)
    assert loading_of(plan, cluster(**storage), 1.0).duration_s == pytest.approx(4 * 0.04 / 4)
    alone = loading_of(replace(plan, loader_workers=0), cluster(node_bandwidth="1 MB/s", latency="10 ms"), 1e6)
    assert alone.duration_s == pytest.approx(16.0 + 4 * 0.04)
    assert not alone.has_workers


def test_one_rank_per_replica_reads_at_both_ends():
    plan = plan_of(tp=2, pp=2)
    assert readers_of(plan, 4) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert batch_bytes(plan, 10.0) == plan.global_batch * 20
    assert len(readers_of(plan_of(tp=2, cp=2), 4)) == 4


def test_token_ids_are_as_wide_as_the_vocabulary_needs():
    plan = plan_of()
    assert sample_bytes_of(find_spec("gpt2"), plan) == 512 * 2  # 50,257 words
    assert sample_bytes_of(find_spec("llama3-70b"), plan) == 512 * 4  # 128,256
    assert sample_bytes_of(find_spec("gpt2"), replace(plan, sample_bytes=100_000)) == 100_000


def test_a_module_reads_its_arguments():
    inputs = tuple(parse_input(text) for text in ("Bx3x224x224", "labels=BxS:int64"))
    module = RecordedModule(name="net", module=None, inputs=inputs, default_length=128)
    assert sample_bytes_of(module, replace(plan_of(), sequence_length=128)) == 3 * 224 * 224 * 4 + 128 * 8


@pytest.mark.parametrize(
    "wrong",
    [{"loader_workers": -1}, {"sample_bytes": -5}, {"sample_time_s": float("inf")}, {"sample_time_s": float("nan")}],
)
def test_numbers_that_mean_nothing(wrong):
    with pytest.raises(ConfigError):
        ParallelPlan(**wrong)


# -- what of it is seen ------------------------------------------------------------------------------------------


@given(load_s=st.floats(1e-3, 2.0), pp=st.sampled_from([1, 2]), workers=st.sampled_from([0, 1, 4]))
@settings(max_examples=12, deadline=None)
def test_only_the_excess_over_the_step_is_seen(load_s, pp, workers):
    plain = step(pp=pp)
    n_samples = plain.plan.global_batch // plain.plan.dp
    loaded = step(pp=pp, loader_workers=workers, sample_time_s=load_s * max(workers, 1) / n_samples)
    plain_s, loaded_s = plain.metrics.iteration_time_s, loaded.metrics.iteration_time_s
    seen_s = loaded.metrics.breakdown["data_s"]
    if workers:
        assert loaded_s == pytest.approx(max(plain_s, load_s), rel=1e-9)
        assert seen_s == pytest.approx(max(0.0, load_s - plain_s), abs=1e-9)
        assert loaded.metrics.breakdown["bubble_s"] == pytest.approx(plain.metrics.breakdown["bubble_s"], abs=1e-9)
    else:
        assert loaded_s == pytest.approx(plain_s + load_s, rel=1e-9)
    breakdown = loaded.metrics.breakdown
    total_s = sum(seconds for name, seconds in breakdown.items() if name != "overlapped_communication_s")
    assert total_s == pytest.approx(loaded_s, rel=1e-9)


def test_it_is_a_span_on_a_stream_of_its_own():
    loaded = step(overrides=[("storage.node_bandwidth", "1 kB/s")])
    spans = [span for span in loaded.timeline.spans if span.stream == LOADER]
    assert [span.op.name for span in spans] == ["read the next batch"]
    assert spans[0].duration_ps == loaded.timeline.makespan_ps
    assert path_rows(loaded.timeline)[0]["kind"] == "data loading"


def test_stages_between_the_ends_read_nothing():
    loaded = step(pp=4, gpus=8, sample_time_s=1.0)
    first, *between, last = sorted(loaded.timeline.members)
    readers = {span.rank for span in loaded.timeline.spans if span.stream == LOADER}
    assert readers == {first, last}
    assert len(between) == 2


@pytest.mark.parametrize("load_s", [0.01, 0.5, 30.0])
def test_a_steady_state_of_which_most_is_left_out_is_no_exception(load_s):
    settings_of = {"pp": 4, "gpus": 4, "global_batch": 256, "micro_batch": 1}
    plain = step(**settings_of)
    assert plain.timeline.cycle is not None
    loaded = step(**settings_of, sample_time_s=load_s * 2 / 256)
    assert loaded.metrics.iteration_time_s == pytest.approx(max(load_s, plain.metrics.iteration_time_s), rel=1e-9)
    seen_s = max(0.0, load_s - plain.metrics.iteration_time_s)
    assert loaded.metrics.breakdown["data_s"] == pytest.approx(seen_s, abs=1e-9)


def test_every_rank_written_down_gives_the_same():
    settings_of = {"overrides": [("storage.node_bandwidth", "100 kB/s")], "pp": 2}
    assert step(**settings_of).metrics.iteration_time_s == step(**settings_of, unfold=True).metrics.iteration_time_s


def test_reading_that_ends_after_the_steady_state_costs_no_more_to_simulate():
    """A million micro-batches, of each 256 tokens of 2 bytes that come at 1 kB/s."""
    settings_of = {"gpus": 1, "global_batch": 1_000_000, "micro_batch": 1}
    plain, loaded = step(**settings_of), step(**settings_of, overrides=[("storage.node_bandwidth", "1 kB/s")])
    assert loaded.metrics.iteration_time_s == pytest.approx(1e6 * 256 * 2 / 1e3)
    assert loaded.timeline.n_events == plain.timeline.n_events
    (reading,) = [span for span in loaded.timeline.simulated if span.stream == LOADER]
    assert reading.end_ps == loaded.timeline.simulated_ps
