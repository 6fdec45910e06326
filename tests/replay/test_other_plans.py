"""Other plans and models of a recorded job: against recordings of another configuration, and what must hold of any."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator import simulate
from simulator.errors import ConfigError, TraceError
from simulator.interop import load_model, open_topology
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.replay.changes_of_plan import PlanChange, PlannedJob, predict_plan
from simulator.replay.recorded_efficiency import Spent, efficiency_of
from simulator.replay.recorded_job import recorded_job
from simulator.replay.replay_answer import answer_of
from simulator.replay.stage_replay import StageMessages, regrouped, stage_times_of
from simulator.replay.what_if import WhatIf, what_if
from simulator.scenario import Scenario
from simulator.trace_io import read
from simulator.trace_io.from_timeline import from_timeline
from simulator.trace_io.kineto import write as write_kineto
from simulator.trace_io.reconstruct import reconstruct
from simulator.trace_io.trace_record import CollectiveCall, StageTimes

OWN = Path(__file__).resolve().parents[2] / "traces"
SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not beside this checkout")
RECORDED = {"gpus": 4, "tp": 2, "pp": 2, "dp": 1, "micro_batch": 2, "global_batch": 8, "sequence_length": 512}


def simulated(**changes):
    plan = ParallelPlan(**{**RECORDED, **changes})
    topology = open_topology("dgx-h100", plan.gpus)
    return simulate(Scenario(topology=topology, model="gpt2-medium", plan=plan), detail=True)


@pytest.fixture(scope="module")
def recording():
    run = simulated()
    trace = from_timeline(run.timeline, world_size=4, all_members=True)
    job = PlannedJob(spec=load_model("gpt2-medium"), plan=run.plan, topology=open_topology("dgx-h100", 4))
    return reconstruct(trace), job


def predicted(recording, **change):
    whole, job = recording
    change = PlanChange(**change)
    plan = change.plan(job.plan)
    after = PlannedJob(
        spec=change.spec(job.spec, plan.sequence_length), plan=plan, topology=open_topology("dgx-h100", plan.gpus)
    )
    return predict_plan(whole, job, after)


def test_the_recorded_plan_is_what_was_recorded(recording):
    found = predicted(recording)
    assert found.iteration_s == found.recorded_s
    assert found.explained == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(
    "other", [{"tp": 1}, {"pp": 1}, {"pp": 4}, {"sequence_length": 1024}, {"pp": 1, "dp": 2}], ids=str
)
def test_one_simulated_plan_predicts_another(recording, other):
    """The export holds times and names only: what the simulator says of the other plan itself is not in it."""
    found = predicted(recording, settings=other)
    truth = simulated(**other, gpus=found.after.plan.gpus, global_batch=found.after.plan.global_batch)
    assert found.iteration_s == pytest.approx(truth.timeline.makespan_ps / 1e12, rel=0.02)


@pytest.mark.parametrize("other", [{"tp": 1}, {"pp": 4}], ids=str)
def test_a_file_with_launches_predicts_another_plan(tmp_path, recording, other):
    """Launches stand right before their kernels there: a host that waited must not be taken for one that worked."""
    whole, job = recording
    write_kineto(whole.trace, tmp_path)
    trace = read(tmp_path)
    assert any((rank.ops.launch >= 0).any() for rank in trace.ranks)
    found = predicted((reconstruct(trace), job), settings=other)
    truth = simulated(**other, gpus=found.after.plan.gpus, global_batch=found.after.plan.global_batch)
    assert found.iteration_s == pytest.approx(truth.timeline.makespan_ps / 1e12, rel=0.03)


@lru_cache(maxsize=3)
def own(name):
    trace = read(OWN / name)
    return recorded_job(trace), reconstruct(trace)


#: seconds per step of recordings of one machine and hour, as traces/README.md lists them
MEASURED = {
    "ddp": 0.0712,
    "ddp, 2 blocks": 0.0388,
    "ddp, 256 tokens": 0.1115,
    "pp": 0.0807,
    "pp, 4 micro-batches": 0.1331,
}
DATA_PARALLEL = {"pp": 1, "dp": 2}
PIPELINED = {"pp": 2, "dp": 1}


@pytest.mark.parametrize(("source", "change", "other"), [
    ("tiny-ddp-2", {"layers": 4}, "ddp"),
    ("tiny-ddp-2", {"layers": 4, "settings": {"sequence_length": 256}}, "ddp, 256 tokens"),
    ("tiny-ddp-2", {"layers": 4, "micro_batches": 2, "settings": PIPELINED}, "pp"),
    ("tiny-ddp-2", {"layers": 4, "micro_batches": 4, "settings": PIPELINED}, "pp, 4 micro-batches"),
    ("tiny-pp-2", {"micro_batches": 4}, "pp, 4 micro-batches"),
    ("tiny-pp-2", {"micro_batches": 1, "settings": DATA_PARALLEL}, "ddp"),
    ("tiny-pp-2", {"micro_batches": 1, "layers": 2, "settings": DATA_PARALLEL}, "ddp, 2 blocks"),
    ("tiny-pp-2", {"micro_batches": 1, "settings": {**DATA_PARALLEL, "sequence_length": 256}}, "ddp, 256 tokens"),
])  # fmt: skip
def test_one_recording_predicts_another(source, change, other):
    """Within 10 %: steps of one recording differ by up to 8 %, and repeated recordings of one job by 10 %."""
    found = what_if(read(OWN / source), WhatIf(plan=PlanChange(**change))).planned
    assert found.iteration_s == pytest.approx(MEASURED[other], rel=0.10)


@needs_shared
def test_communication_was_moved_into_the_backward_pass():
    """One training before and after its author did so: 61.5 and 60.8 ms per step of 8 H100s, of which rank 0 was recorded."""
    folder = SHARED / "modded-nanogpt" / "2025-10-31_AdamSyncGradientHook"
    before, after = (read(next(folder.glob(f"*-{name}-*"))) for name in ("current", "hook"))
    found, recorded = (answer_of(what_if(*one)) for one in ((before, WhatIf(overlap=True)), (after,)))
    assert found["speedup"] > 1.0
    assert found["iteration_time_s"] == pytest.approx(recorded["measured_iteration_time_s"], rel=0.03)


def test_collectives_are_not_scaled_by_what_messages_took():
    """Whoever waits for a message looks when it has time: that tells nothing of an all-reduce, which was not recorded."""
    from simulator.program.op import Collective, Transfer

    found = efficiency_of(Spent(messages={("message", 2): 9.0}), Spent(messages={("message", 2): 1.0}))
    assert found.of_message(Transfer(n_bytes=8, pairs=((0, 1),))) == 9.0
    assert found.of_message(Collective(collective="all_reduce", axis="dp", n_bytes=8, groups=((0, 1),))) == 1.0


def test_layers_that_are_said_to_have_run_are_taken():
    """Of a model that is known as well as of one that is not."""
    before = recorded_job(read(OWN / "ddp-2"), given={"layers": 3})
    assert (before.spec.layers, before.spec.hidden) == (3, 64)


@pytest.mark.parametrize("name", ["ddp-2", "fsdp2-2", "pp-4"])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(
    knob=st.sampled_from(["layers", "hidden", "micro_batches", "sequence_length", "micro_batch"]),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
)
def test_more_work_never_takes_less_time(name, knob, sizes):
    job, whole = own(name)
    unit = {"layers": 4, "hidden": 64, "micro_batches": 1, "sequence_length": 64, "micro_batch": 1}[knob]
    times = []
    for size in sorted(sizes):
        change = (
            {knob: size * unit} if knob in ("layers", "hidden", "micro_batches") else {"settings": {knob: size * unit}}
        )
        asked = PlanChange(**change)
        plan = asked.plan(job.plan)
        after = PlannedJob(spec=asked.spec(job.spec, plan.sequence_length), plan=plan, topology=job.topology)
        times.append(predict_plan(whole, job, after).iteration_s)
    assert times[0] <= times[1] * (1 + 1e-9)


def test_kernels_count_by_what_they_take_over_the_model(recording):
    whole, job = recording
    plain = predicted(recording)
    twice = predict_plan(whole, job, job, kernels=2.0)
    assert plain.iteration_s < twice.iteration_s <= 2 * plain.iteration_s


def test_shapes_tell_the_model_that_was_recorded():
    """As traces/README.md says how it was recorded: gpt2-micro, 64 tokens, 512 words."""
    job = recorded_job(read(OWN / "ddp-2"))
    spec, plan = job.spec, job.plan
    assert isinstance(spec, ModelSpec)
    assert (spec.layers, spec.hidden, spec.heads, spec.vocab, spec.ffn_hidden) == (2, 64, 4, 512, 256)
    assert (plan.dp, plan.micro_batch, plan.sequence_length, plan.precision) == (2, 1, 64, "fp32")
    job = recorded_job(read(OWN / "pp-4"))
    assert (job.spec.layers, job.plan.pp, job.plan.n_micro_batches) == (4, 4, 4)
    assert recorded_job(read(OWN / "fsdp2-2")).plan.sharding == "zero3"


def test_replicas_of_a_pipeline_are_told_from_its_stages():
    """Messages lead from stage to stage, never to another replica: two copies of four ranks that reduce their gradients."""
    trace = read(OWN / "pp-4")
    reduction = CollectiveCall(collective="all_reduce", n_bytes=1 << 20)

    def moved(rank, by):
        calls = tuple(replace(call, peer=call.peer + by if call.peer >= 0 else -1) for call in rank.calls)
        return replace(rank, rank=rank.rank + by, calls=(*calls, reduction))

    ranks = tuple(moved(rank, by) for by in (0, 4) for rank in trace.ranks)
    plan = recorded_job(replace(trace, ranks=ranks, world_size=8)).plan
    assert (plan.pp, plan.dp, plan.tp, plan.framework) == (4, 2, 1, "torch-pp")


def test_one_rank_without_communication_ran_plain_pytorch():
    trace = read(OWN / "tiny-ddp-2")
    alone = replace(trace.ranks[0], calls=())
    assert recorded_job(replace(trace, ranks=(alone,), world_size=1)).plan.framework == "torch-ddp"


@pytest.mark.parametrize(
    ("recorded", "settings", "framework"),
    [
        ("torch-ddp", {"sharding": "zero3"}, "torch-fsdp2"),
        ("torch-ddp", {"tp": 2, "dp": 1}, "torch-tp"),
        ("torch-ddp", {"pp": 2, "dp": 1}, "torch-pp"),
        ("torch-fsdp2", {"sharding": "none"}, "torch-ddp"),
        ("torch-ddp", {"dp": 4}, "torch-ddp"),
        ("torch-ddp", {"tp": 2, "dp": 1, "framework": "torch-ddp"}, "torch-ddp"),
        ("torch-3d", {"tp": 2, "dp": 1}, "torch-3d"),
        ("megatron", {"tp": 2, "dp": 1}, "megatron"),
    ],
)
def test_plans_run_with_the_part_of_pytorch_that_is_made_for_them(recorded, settings, framework):
    """Replicas, shards, distributed tensors and stages have modules of their own there; other frameworks do it all."""
    sharding = "zero3" if recorded == "torch-fsdp2" else "none"
    plan = ParallelPlan(framework=recorded, dp=2, micro_batch=1, global_batch=2, sharding=sharding).resolve(2)
    found = PlanChange(settings=settings).plan(plan)
    assert found.framework == framework
    assert all(getattr(found, key) == value for key, value in settings.items())


@pytest.mark.parametrize(("change", "is_said"), [({"settings": {"dp": 4}}, True), ({"settings": {"dp": 1}}, False)])
def test_more_ranks_than_were_recorded_are_taken_to_have_cores_of_their_own(change, is_said):
    """A trace does not say how many cores there are: four ranks on the two cores of these recordings would share them."""
    found = what_if(read(OWN / "tiny-ddp-2"), WhatIf(plan=PlanChange(layers=3, **change))).planned
    assert any("as many cores" in note for note in found.notes) == is_said


def test_layers_that_divide_themselves_dispatch_nothing_in_python():
    """No distributed tensor was recorded: gaps before kernels grow as the kernels do, to at most twice with twice the blocks."""
    by_hand = read(OWN / "tiny-ddp-2")
    ranks = tuple(replace(rank, names=(*rank.names, "PythonSubclass")) for rank in by_hand.ranks)
    change = WhatIf(plan=PlanChange(layers=4), recorded={"framework": "torch-tp", "tp": 2, "dp": 1})
    gaps = [
        what_if(one, change).planned.parts_s["gaps before kernels"] for one in (by_hand, replace(by_hand, ranks=ranks))
    ]
    assert gaps[0][0] == gaps[1][0]
    assert gaps[0][2] <= 2 * gaps[0][0]
    assert gaps[0][2] < gaps[1][2]


def test_a_rank_with_half_of_the_heads_is_one_of_two_tensor_parallel_ones():
    """The shapes of gpt2-micro as two ranks share them: half of the heads, and of the rows or columns of every projection."""
    trace = read(OWN / "ddp-2")

    def shared(call):
        shapes = [list(shape) for shape in call.shapes]
        if call.name == "aten::scaled_dot_product_attention":
            for shape in shapes[:3]:
                shape[1] //= 2
        elif call.name == "aten::gelu":
            shapes[0][-1] //= 2
        elif call.name == "aten::addmm":  # linear keeps the shape of the whole weight, as distributed tensors show it
            side = 1 if shapes[2][1] >= shapes[2][0] else 0
            shapes[2][side] //= 2
            shapes[1][1] = shapes[2][0]
        return call._replace(shapes=tuple(map(tuple, shapes)))

    ranks = tuple(
        replace(rank, operator_calls={shared(call): n for call, n in rank.operator_calls.items()})
        for rank in trace.ranks
    )
    job = recorded_job(replace(trace, ranks=ranks))
    assert isinstance(job.spec, ModelSpec)
    assert (job.plan.tp, job.plan.dp, job.plan.framework) == (2, 1, "torch-tp")
    assert (job.spec.layers, job.spec.hidden, job.spec.heads, job.spec.vocab, job.spec.ffn_hidden) == (
        2,
        64,
        4,
        512,
        256,
    )


@needs_shared
def test_execution_traces_beside_profiles_tell_megatrons_model():
    """examples/run_simple_mcore_train_loop.py of Megatron-LM: 2 layers of width 12 with 4 heads, 100 words, 64 places, batch 8."""
    folder = SHARED / "megatron-tp2" / "tp2"
    job = recorded_job(read(folder))
    spec, plan = job.spec, job.plan
    assert isinstance(spec, ModelSpec)
    assert (spec.layers, spec.hidden, spec.heads, spec.vocab, spec.max_positions) == (2, 12, 4, 100, 64)
    assert spec.ffn_hidden == 4 * 12
    assert (plan.tp, plan.dp, plan.micro_batch, plan.sequence_length, plan.framework) == (2, 1, 8, 64, "megatron")
    with pytest.raises(TraceError, match="does not identify the model") as refused:
        what_if(read(folder / "result"), WhatIf(plan=PlanChange(layers=4)))
    assert "--recorded tp=2" in str(refused.value)


@needs_shared
def test_data_parallel_ranks_are_those_of_the_stated_degree():
    """Of 2 x 4 stages become 4 x 4: a ring of 4 has (3/4)/(1/2) of the bytes of a ring of 2 on the wire, whatever is fixed."""
    trace = read(SHARED / "straggler" / "data" / "trace-ST.csv.gz")
    found = answer_of(what_if(trace, WhatIf(dp=4)))
    assert found["world_size"] == 16
    assert any("groups of 2 became 4" in note for note in found["notes"])
    assert found["iteration_time_s"] > found["measured_iteration_time_s"]


def test_what_a_trace_does_not_tell_is_asked_for(tmp_path):
    path = tmp_path / "a.json"
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 0.0, "dur": 5.0, "args": {"stream": 7}}
    ]
    path.write_text(json.dumps({"deviceProperties": [{"name": "NVIDIA H100 80GB HBM3"}], "traceEvents": events}))
    with pytest.raises(TraceError, match="does not identify the model"):
        what_if(read(path), WhatIf(plan=PlanChange(layers=4)))
    told = WhatIf(plan=PlanChange(layers=24), model="gpt2", recorded={"micro_batch": 1})
    assert what_if(read(path), told).planned.after.spec.layers == 24
    with pytest.raises(TraceError, match="where another plan takes its place"):
        WhatIf(model="gpt2")
    with pytest.raises(TraceError, match="not together with another plan"):
        what_if(read(path), WhatIf(plan=PlanChange(layers=4), cuda_graphs=True))
    with pytest.raises(ConfigError):
        PlanChange(hidden=65).spec(load_model("gpt2"), 0)


def test_kinds_that_one_side_lacks_count_with_the_rest_of_their_phase():
    from simulator.replay.recorded_efficiency import ATTENTION, OTHER, PRODUCTS

    # recorded: 4 s of products where 2 s were expected; 3 s of unnamed kernels where 1 s of attention and 0.5 s of
    # others were expected
    recorded = Spent(kernels={(PRODUCTS, "forward"): 4.0, (OTHER, "forward"): 3.0, (OTHER, "backward"): 1.0})
    simulated = Spent(
        kernels={
            (PRODUCTS, "forward"): 2.0,
            (ATTENTION, "forward"): 1.0,
            (OTHER, "forward"): 0.5,
            (OTHER, "backward"): 1.0,
        }
    )
    found = efficiency_of(recorded, simulated)
    assert found.kernels == {(PRODUCTS, "forward"): 2.0, (OTHER, "forward"): 2.0, (OTHER, "backward"): 1.0}


def test_the_schedule_of_another_plan_is_heard():
    trace = read(OWN / "pp-4")
    found = what_if(trace, WhatIf(plan=PlanChange(micro_batches=8)), schedule="gpipe").planned
    assert (found.before.plan.schedule, found.after.plan.schedule) == ("1f1b", "gpipe")
    with pytest.raises(TraceError, match="priced on its links"):
        what_if(trace, WhatIf(plan=PlanChange(micro_batches=8)), messages=StageMessages(time_s=1e-3))


def test_stages_merge_split_and_repeat():
    """Four stages of 1 s forward and 2 s backward, the last with a head of 0.5 s and 1 s."""
    times = StageTimes(
        forward_s=tuple(((one, one),) for one in (1.0, 1.0, 1.0, 1.5)),
        backward_s=tuple(((one, one),) for one in (2.0, 2.0, 2.0, 3.0)),
        iteration_s=((20.0,),) * 4, pp=4,
    )  # fmt: skip
    two = regrouped(times, PlanChange(settings={"pp": 2}), {})
    assert (two.pp, two.forward_s, two.backward_s) == (
        2,
        (((2.0, 2.0),), ((2.5, 2.5),)),
        (((4.0, 4.0),), ((5.0, 5.0),)),
    )
    eight = regrouped(times, PlanChange(settings={"pp": 8}, layers=16, micro_batches=3), {"layers": 8})
    assert eight.forward_s == ((((1.0,) * 3),),) * 7 + ((((1.5,) * 3),),)
    with pytest.raises(TraceError, match="of how many layers"):
        regrouped(times, PlanChange(layers=4), {})
    with pytest.raises(TraceError, match="hold no tp"):
        regrouped(times, PlanChange(settings={"tp": 2}), {})


def kernels_of_layers(path, *, steps, layers, per_layer, last):
    """Steps of kernels of 100 us that follow each other, each layer's alike, and one of another name behind them."""
    events, at, number = [], 1000.0, 0
    for step in range(steps):
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": 1, "tid": 1,
                       "ts": 10.0 * step, "dur": 10.0})  # fmt: skip
        names = [f"block_{i}" for _ in range(layers) for i in range(per_layer)] + [f"head_{i}" for i in range(last)]
        for place, name in enumerate(names):
            number += 1
            launch = 10.0 * step + place * 9.0 / len(names)
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": launch,
                           "dur": 0.01, "args": {"correlation": number}})  # fmt: skip
            events.append({"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": 100.0,
                           "args": {"stream": 7, "device": 0, "correlation": number}})  # fmt: skip
            at += 100.0
    path.write_text(json.dumps({"traceEvents": events}))
    return read(path)


def test_layers_are_what_repeats_where_no_shapes_tell(tmp_path):
    """Three steps of 4 layers of 2 kernels and a head of 3: 1.1 ms; with 8 layers 1.9 ms, with 2 layers 0.7 ms."""
    trace = kernels_of_layers(tmp_path / "a.json", steps=3, layers=4, per_layer=2, last=3)
    for layers, expected_s in ((8, 1.9e-3), (4, 1.1e-3), (2, 0.7e-3)):
        found = what_if(trace, WhatIf(plan=PlanChange(layers=layers), recorded={"layers": 4}))
        assert found.iteration_s == pytest.approx(expected_s, rel=0.01)
    with pytest.raises(TraceError, match="cannot be its micro-batches"):
        what_if(trace, WhatIf(plan=PlanChange(micro_batches=2), recorded={"micro_batches": 7}))


@needs_shared
def test_the_stages_of_a_pipelined_job_give_back_what_was_recorded():
    trace = read(SHARED / "straggler" / "data" / "trace-ST.csv.gz")
    same = what_if(trace, WhatIf(plan=PlanChange(micro_batches=4))).stages
    assert same.error == pytest.approx(0.0, abs=0.01)
    double = what_if(trace, WhatIf(plan=PlanChange(micro_batches=8))).stages
    # in the steady state of 1F1B, each further micro-batch takes a forward and a backward of the slowest stage
    times = stage_times_of(trace)
    per_stage = [np.mean(f[2:]) + np.mean(b[2:]) for f, b in zip(times.forward_s, times.backward_s, strict=True)]
    further_s = np.mean(double.simulated_s) - np.mean(same.simulated_s)
    assert further_s == pytest.approx(4 * max(per_stage), rel=0.05)


@needs_shared
def test_communication_in_backward_predicts_the_recording_that_has_it_there():
    """The same training before and after its reductions moved into the backward pass: 61.51 and 60.76 ms a step."""
    folder = SHARED / "modded-nanogpt" / "2025-10-31_AdamSyncGradientHook"
    before, after = (read(next(folder.glob(f"*-{name}-gpu-*"))) for name in ("current", "hook"))
    found = what_if(before, WhatIf(overlap=True))
    truth = what_if(after).iteration_s
    assert found.iteration_s == pytest.approx(truth, rel=0.025)
    assert found.iteration_s < found.identity.simulated_usage.iteration_s
