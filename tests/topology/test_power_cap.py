"""What an operator lets a board draw, and the speed that is left."""

from __future__ import annotations

import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.errors import ConfigError
from simulator.explore.run.energy import power_model
from simulator.topology import load_topology


def capped(**power: str):
    return load_topology("dgx-h100", overrides={f"power.{key}": value for key, value in power.items()})


def test_a_limit_of_a_node_is_shared_by_its_boards_after_the_rest_of_it():
    """8 boards and 8 x 240 W of processors, memory, cards and fans: (5,920 - 1,920) / 8 = 500 W."""
    assert capped(node_cap="5.92 kW").device(0).most_power_w == pytest.approx(500.0)
    assert capped(node_cap="5.92 kW", gpu_cap="450 W").device(0).most_power_w == pytest.approx(450.0)
    assert capped(node_cap="5 kW", host="1 kW").device(0).most_power_w == pytest.approx(500.0)
    with pytest.raises(ConfigError, match="nothing for GPUs"):
        capped(node_cap="1.9 kW").device(0)


def test_a_limit_of_a_rack_is_shared_by_its_nodes():
    """Four nodes of 5,920 W; a rack of NVL72 is what NVLink joins: (72 x 1,000 W + 72 x 240 W) leave each board 1,000 W."""
    assert capped(rack_cap="23.68 kW", nodes_per_rack="4").device(0).most_power_w == pytest.approx(500.0)
    with pytest.raises(ConfigError, match="how many nodes share a rack"):
        capped(rack_cap="23.68 kW").device(0)
    rack = load_topology("gb200-nvl72", overrides={"power.rack_cap": "89.28 kW"})
    assert rack.device(0).most_power_w == pytest.approx(1000.0)
    host = load_topology("gb200-nvl72", overrides={"power.node_cap": "4.96 kW"})  # 18 of them, with four boards each
    assert host.device(0).most_power_w == pytest.approx(1000.0)


def test_a_board_draws_no_more_than_the_cap_and_no_more_than_its_file_says():
    assert power_model(capped(gpu_compute="600 W", gpu_cap="400 W")).compute_w == 400.0
    assert power_model(capped(gpu_compute="300 W", gpu_cap="400 W")).compute_w == 300.0


def test_no_limit_takes_a_board_below_its_lowest_clock():
    """A fifth of 700 W does not depend on the clock, and a twentieth is what its lowest one takes."""
    assert capped(gpu_cap="175 W").device(0).most_power_w == 175.0
    for less in ({"gpu_cap": "174 W"}, {"node_cap": "3.3 kW"}):
        with pytest.raises(ConfigError, match="lowest clock"):
            capped(**less).device(0)


def test_a_cap_above_the_board_s_own_limit_changes_nothing():
    plain, high = load_topology("dgx-h100").device(0), capped(gpu_cap="900 W").device(0)
    assert high.sustained_power_w == plain.sustained_power_w == plain.power_limit_w == 700.0


def test_speed_falls_less_than_power():
    """With the voltage in proportion to the clock, dynamic power goes with its cube: at 500 of 700 W, 140 W of them static,
    (360 / 560) ** (1 / 3) = 0.863 of the speed; measured exponents lie at 0.2 to 0.35, so 0.85 to 0.92."""
    device = capped(gpu_cap="500 W").device(0)
    assert 0.85 <= device.sustained_power_w / device.power_limit_w <= 0.92


def test_a_capped_step_is_longer_and_draws_no_more_than_the_cap():
    plan = ParallelPlan(gpus=8, micro_batch=2, sharding="zero3", framework="fsdp", recompute="full")
    times = {}
    for cap in ("700 W", "500 W", "300 W"):
        result = simulate(
            Scenario(topology="dgx-h100", model="llama3-8b", plan=plan, overrides=(("power.gpu_cap", cap),))
        )
        times[cap] = result.metrics.iteration_time_s
        watts = power_model(result.topology).gpu_w(result.answer["breakdown"])
        assert watts <= float(cap.split()[0])
    assert times["700 W"] < times["500 W"] < times["300 W"]
    assert times["500 W"] < 700 / 500 * times["700 W"]  # energy per step falls
