"""Local steps on several sites: closed forms of what is hidden, and of what is not."""

from __future__ import annotations

from functools import cache

import pytest

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.named_settings import scenario_of
from simulator.explore.run.local_steps import local_steps
from simulator.explore.run.overlapped import overlap
from simulator.network.base import Flow
from simulator.simulation import simulate

#: one link of 10 Gb/s for each of two sites
RATE = 10e9 / 8


@cache
def answer(**settings):
    base = {
        "topology": "dgx-h100", "nodes": "8", "model": "gpt-1.3b", "gpus": 32, "micro_batch": 4, "sharding": "zero1",
        "framework": "megatron-core", "sites.count": "2", "sites.bandwidth": "10 Gb/s", "sites.latency": "10 ms",
    }  # fmt: skip
    return simulate(scenario_of({**base, **settings}))


def test_the_outer_reduction_takes_its_bytes_over_the_wide_area_link():
    """Of two sites each sends and receives all 4 bytes per parameter once: reduce-scatter and all-gather of halves."""
    found = local_steps(answer(), 50)
    assert found["outer_bytes"] == 4 * answer().spec.n_parameters
    assert found["outer_s"] == pytest.approx(found["outer_bytes"] / RATE, rel=0.01)
    assert found["wan_bytes_per_s"] == pytest.approx(found["outer_bytes"] / (50 * found["inner_s"]))


def test_the_outer_reduction_is_hidden_as_soon_as_the_steps_last_longer():
    least = local_steps(answer(), 1)["steps_to_hide"]
    hidden, seen = local_steps(answer(), least), local_steps(answer(), least - 1)
    assert hidden["is_hidden"] and not seen["is_hidden"]
    assert hidden["mean_s"] == pytest.approx(hidden["inner_s"], rel=0.02)
    lost_s = hidden["outer_s"] * (1.0 - hidden["inner_s"] / hidden["inner_beside_s"])  # while both use the NICs
    assert lost_s > 0.0 and hidden["mean_s"] == pytest.approx(hidden["inner_s"] + lost_s / least)
    assert seen["mean_s"] == pytest.approx(seen["outer_s"] / (least - 1))
    assert seen["blocking_mean_s"] == pytest.approx(seen["inner_s"] + seen["outer_s"] / (least - 1), rel=0.01)


def test_a_site_by_itself_is_the_smaller_cluster():
    """Half of the GPUs and of the batch on one site of four nodes."""
    alone = simulate(scenario_of({
        "topology": "dgx-h100", "nodes": "4", "model": "gpt-1.3b", "gpus": 16, "micro_batch": 4, "sharding": "zero1",
        "framework": "megatron-core",
    }))  # fmt: skip
    assert local_steps(answer(), 10)["inner_s"] == pytest.approx(alone.metrics.iteration_time_s)


def test_where_nothing_is_to_be_averaged_there_is_an_error():
    with pytest.raises(ConfigError, match="is one site"):
        local_steps(simulate(scenario_of({"topology": "dgx-h100", "model": "gpt2", "gpus": 8, "micro_batch": 1})), 10)
    with pytest.raises(InfeasiblePlanError, match="do not divide over 2 sites"):
        local_steps(answer(tp=8, pp=4, global_batch=16), 10)


def test_traffic_on_links_that_a_step_does_not_use_costs_it_nothing():
    result = answer()
    used = set(result.link_busy_s)
    free = next(link.index for link in result.topology.links if link.index not in used and link.kind == "nic")
    found = overlap(result, Flow(latency_s=0.0, n_bytes=1e9, links=(free,), weights=(1.0,)))
    assert found.step_beside_s == pytest.approx(found.step_s)
    assert found.delay_s == pytest.approx(0.0, abs=1e-9)
    assert found.traffic_beside_s == pytest.approx(1e9 / result.topology.links[free].bandwidth_bytes_per_s)
