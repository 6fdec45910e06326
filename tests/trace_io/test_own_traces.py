"""Traces that this project recorded itself: real gloo runs without an accelerator."""

from pathlib import Path

import pytest

from simulator.analysis.usage import analyse
from simulator.plan import ParallelPlan
from simulator.replay import replay
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.trace_io import read
from simulator.trace_io.perfetto import write as write_timeline
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.trace_record import COMMUNICATION, COMPUTE

TRACES = Path(__file__).resolve().parents[2] / "traces"
FOLDERS = sorted(path.name for path in TRACES.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_identity_replay(name):
    trace = read(TRACES / name)
    assert len(trace.ranks) == trace.world_size == int(name.rsplit("-", 1)[1])
    errors = replay(reconstruct(trace)).errors()
    n_steps = 3 if name.startswith("tiny") else 2  # as traces/README.md says
    assert len(errors) == n_steps * trace.world_size
    assert max(abs(error) for *_, error in errors) < 0.02


def test_collectives_of_gloo_carry_kind_size_and_group():
    rank = read(TRACES / "fsdp2-2").ranks[0]
    kinds = {call.collective for call in rank.calls}
    assert kinds == {"all_gather", "reduce_scatter"}
    assert all(call.n_bytes > 0 and call.ranks == (0, 1) for call in rank.calls)
    assert {int(kind) for kind in rank.ops.kind} == {COMPUTE, COMMUNICATION}


def test_buckets_of_ddp_join_across_ranks():
    joins = analyse(read(TRACES / "ddp-2")).joins
    assert len(joins.joined) == 8
    assert {len(joined.members) for joined in joins.joined} == {2}


def test_pipeline_messages_know_their_peers():
    trace = read(TRACES / "pp-4")
    for rank in trace.ranks:
        for call in rank.calls:
            assert call.collective in ("send", "recv")
            assert abs(call.peer - rank.rank) == 1
    assert analyse(trace).joins.offset_ns == (0, 0, 0, 0)


def test_a_simulated_step_replays_in_its_own_time(tmp_path):
    """One clock: nothing starts before what it waited for has ended, though gathers and exchanges end shortly behind."""
    plan = ParallelPlan(gpus=2, cp=2, framework="fsdp", sharding="zero3", precision="fp8", micro_batch=1, global_batch=1,
                        sequence_length=256)  # fmt: skip
    result = simulate(Scenario(topology="dgx-h100", model="gpt2", plan=plan, unfold=True))
    write_timeline(result.timeline, tmp_path / "step.json")
    errors = replay(reconstruct(read(tmp_path / "step.json"))).errors()
    assert max(abs(error) for *_, error in errors) < 1e-4
