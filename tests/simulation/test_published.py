"""Shapes of published studies that name no sequence or batch: who scales worse, and by about how much."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.plan import ParallelPlan
from simulator.program.op import KernelRun
from simulator.scenario import Scenario
from simulator.simulation import simulate


def zero3(topology, gpus, **overrides):
    plan = ParallelPlan(gpus=gpus, sharding="zero3", framework="deepspeed", micro_batch=2, precision="fp16")
    scenario = Scenario(topology=topology, model="gpt-1.3b", plan=plan, overrides=tuple(overrides.items()))
    metrics = simulate(scenario).metrics
    return 1.0 / metrics.iteration_time_s, sum(row["total_s"] for row in metrics.communication)


def test_zero3_scales_worse_on_polaris_than_on_thetagpu():
    """Cheng et al., SIGMETRICS 2024: at the extreme communication takes 7.35 times as long, throughput falls by 59 %."""
    polaris = {gpus: zero3("polaris", gpus) for gpus in (8, 512)}
    theta = {gpus: zero3("thetagpu-tg40", gpus, nodes="64") for gpus in (8, 512)}
    slowdown = {name: runs[512][0] / runs[8][0] for name, runs in (("polaris", polaris), ("theta", theta))}
    assert slowdown["polaris"] < 0.41
    assert slowdown["polaris"] < 0.7 * slowdown["theta"]
    assert polaris[512][1] / polaris[8][1] == pytest.approx(7.35, rel=0.25)


@pytest.mark.parametrize(("virtual_pp", "worth"), [(2, 0.027), (8, 0.118)])
def test_scatter_gather_is_worth_up_to_eleven_percent(virtual_pp, worth):
    """Narayanan et al., arXiv:2104.04473, section 5.7: up to 11 % for 175B on 96 GPUs, interleaved, large batch."""
    plans = [
        ParallelPlan(
            gpus=96, tp=8, pp=12, virtual_pp=virtual_pp, schedule="1f1b-interleaved", micro_batch=1, global_batch=60,
            recompute="full", precision="fp16", attention="eager", scatter_gather=scatter_gather,
        )
        for scatter_gather in (False, True)
    ]  # fmt: skip
    without, having = (
        simulate(Scenario(topology="selene", model="gpt3-175b", plan=plan)).metrics.iteration_time_s for plan in plans
    )
    assert 1.0 - having / without == pytest.approx(worth, abs=0.02)


def test_blocking_launches_put_every_launch_between_kernels():
    """CUDA C++ programming guide, CUDA_LAUNCH_BLOCKING: each launch waits, so issuing and waiting add to each kernel's time."""
    plan = ParallelPlan(gpus=1, framework="megatron", micro_batch=8, global_batch=8, precision="fp16")
    ahead, blocked = (
        simulate(Scenario(topology="selene", model="gpt2-medium", plan=replace(plan, launch_blocking=blocks)))
        for blocks in (False, True)
    )
    parts = [part for span in blocked.timeline.spans for part in (span.inner or (span,))]
    n_kernels = sum(len(part.op.kernels) for part in parts if isinstance(part.op, KernelRun))
    added_s = blocked.metrics.iteration_time_s - ahead.metrics.iteration_time_s
    assert n_kernels * (8e-6 + 6.07e-6) * 0.95 < added_s < n_kernels * (22e-6 + 6.07e-6)
