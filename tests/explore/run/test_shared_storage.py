"""Jobs on one file system: shares by hand, and writes that meet by chance against writes drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.explore.full_answer import to_json
from simulator.explore.named_settings import scenario_of
from simulator.explore.run.goodput import daly_interval_s
from simulator.explore.run.run_request import RunRequest, parse_mtbf
from simulator.explore.run.shared_cluster import JobRequest, beside, on_its_nodes
from simulator.explore.run.shared_storage import read_steps_s, write_factor

CLUSTER = {
    "topology": "dgx-a100-40g", "nodes": "8", "fabric.kind": "one-switch", "storage.node_bandwidth": "25 GB/s", "model": "gpt2",
    "gpus": 32, "micro_batch": 1, "global_batch": 32,
}  # fmt: skip


def job(placement: str, **settings: object) -> JobRequest:
    return JobRequest(scenario=scenario_of({**CLUSTER, **settings}), placement=placement)


def test_steps_wait_for_storage_only_where_all_ask_for_more_than_it_has() -> None:
    """10 a second, of which 2 are asked for: 8 are left for the one that asks for 12 and gets its 12 in 1.5 s."""
    assert read_steps_s(10.0, [12.0, 1.0], [1.0, 0.5]) == pytest.approx([1.5, 0.5])
    assert read_steps_s(14.0, [12.0, 1.0], [1.0, 0.5]) == pytest.approx([1.0, 0.5])
    assert read_steps_s(10.0, [0.0, 0.0], [1.0, 0.5]) == [1.0, 0.5]


def test_writes_that_meet_share_storage_as_played_ones_do() -> None:
    """A write of 30 s at a random moment of a job that writes 50 s in every 400 s, both at half rate while both write."""
    rng = np.random.default_rng(1)
    took = []
    for start in rng.uniform(0.0, 400.0, 20_000):
        left, other, waits = 30.0, 50.0 - start if start < 50.0 else 0.0, 400.0 - start
        now = 0.0
        while left > 1e-12:
            alone = other <= 1e-12
            step = min(left, waits - now) if alone and now < waits else left if alone else 2 * min(left, other)
            now += step
            left -= step if alone else step / 2
            other -= 0.0 if alone else step / 2
            if alone and left > 1e-12:
                other, waits = 50.0, np.inf
        took.append(now)
    assert np.mean(took) / 30.0 == pytest.approx(write_factor(1.0, 1.0, [(1.0, 50 / 400)]), rel=0.01)


def test_twins_that_saturate_storage_take_twice_as_long_as_it_takes_one_of_them() -> None:
    """32 sequences of 50 MB a step for each of two jobs from 10 GB/s: 0.32 s, whatever the network does."""
    pair = [job(nodes, sample_bytes=50_000_000, **{"storage.bandwidth": "10 GB/s"}) for nodes in ("0-3", "4-7")]
    found = beside(pair)["jobs"]
    assert [one["read_bytes"] for one in found] == [32 * 5e7] * 2
    assert [one["beside_s"] for one in found] == pytest.approx([0.32, 0.32])
    calm = beside(
        [job("0-3", sample_bytes=50_000, **{"storage.bandwidth": "10 GB/s"}), job("4-7", sample_bytes=50_000)]
    )
    assert [one["slowdown"] for one in calm["jobs"]] == pytest.approx([1.0, 1.0])


def test_a_run_beside_others_goes_at_the_pace_beside_them_and_waits_for_their_checkpoints() -> None:
    settings = {"sample_bytes": 50_000_000, "storage.bandwidth": "10 GB/s", "storage.write_bandwidth": "1 GB/s"}
    own = job("0-3", **settings)
    contending, result = beside([own, job("4-7", **settings)]), on_its_nodes(own)
    request = RunRequest(iterations=100_000, mtbf=parse_mtbf("400 h/gpu"), restart=None)
    alone, both = (to_json(result, request, one)["whole_run"] for one in (None, contending))
    assert both["time"]["useful_s"] == pytest.approx(contending["jobs"][0]["slowdown"] * alone["time"]["useful_s"])
    write_s = contending["jobs"][1]["checkpoint_s"]
    share = write_s / (daly_interval_s(write_s, 400 * 3600 / 32) + write_s)
    assert both["checkpoint"]["write_s"] == pytest.approx((1.0 + share) * alone["checkpoint"]["write_s"])
    job_s, beside_s = contending["jobs"][0]["alone_s"], contending["jobs"][0]["beside_s"]
    joules = (
        job_s * alone["energy"]["gpu_w"] + (beside_s - job_s) * 200.0
    )  # half of an A100's 400 W while it waits for others
    assert both["energy"]["gpu_w"] == pytest.approx(joules / beside_s)
    assert both["days"] > alone["days"] and both["high_days"] > both["days"] > both["low_days"]
