"""What a network must be: bisections against closed forms, monotone answers, the rule of thumb."""

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.changes import BETWEEN, MachineChange
from simulator.costs import ModelCosts
from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.explore.network_needs import (
    FREE,
    LATENCY_TOLERANCE,
    MOST_LATENCY_S,
    TOLERANCE,
    NetworkNeeds,
    Requirement,
    RuleOfThumb,
    closed_form_bytes_per_s,
    compute_s,
    least_factor,
    most_latency_s,
    requirement,
    requirements,
    rule_of_thumb,
)
from simulator.explore.trials import ChangedCosts, n_hops
from simulator.models.catalog import find_spec
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, Transfer
from simulator.report.network_charts import requirement_tables, requirements_charts, requirements_page
from simulator.report.page import check_page
from simulator.scenario import Scenario
from simulator.simulation import resolve, simulate_on
from simulator.topology import load_topology

BILLION = 10**9


def scenario_of(gpus=8, **plan):
    settings = {"framework": "deepspeed", "micro_batch": 2, "sequence_length": 512, **plan}
    return Scenario(topology="bigred200", model="gpt2-medium", plan=ParallelPlan(gpus=gpus, **settings))


@lru_cache
def needs_of(gpus=8):
    scenario = scenario_of(gpus)
    topology, spec = load_topology("bigred200", gpus), find_spec("gpt2-medium")
    return NetworkNeeds(resolve(scenario, topology, spec), topology, spec)


# -- bisections --------------------------------------------------------------------------------------------------


@given(knee=st.floats(0.01, 200.0), target=st.floats(0.5, 0.99))
def test_the_least_factor_of_a_known_curve(knee, target):
    """Compute of 1 s beside communication of knee / factor s: the efficiency is min(1, factor / knee)."""
    found = least_factor(lambda factor: min(1.0, factor / knee), target)
    if target * knee <= 2.0**-8:
        assert found == 0.0
    else:
        assert target * knee <= found <= target * knee * (1.0 + TOLERANCE)


def test_a_dip_further_down_is_not_the_answer():
    def efficiency(factor):
        return 1.0 if factor >= 3.0 or 0.1 < factor < 0.2 else 0.5

    assert least_factor(efficiency, 0.9) == pytest.approx(3.0, rel=2 * TOLERANCE)


@given(slope=st.floats(1.0, 1e5), target=st.floats(0.5, 0.99))
def test_the_most_latency_of_a_known_curve(slope, target):
    found = most_latency_s(lambda extra_s: 1.0 / (1.0 + slope * extra_s), target)
    exact = min(MOST_LATENCY_S, (1.0 / target - 1.0) / slope)
    assert exact / (1.0 + LATENCY_TOLERANCE) <= found <= exact * (1 + 1e-9)


def test_a_target_that_is_missed_anyway_leaves_no_latency():
    assert most_latency_s(lambda _: 0.5, 0.9) is None
    assert most_latency_s(lambda _: 1.0, 0.9) == MOST_LATENCY_S


# -- the simulator -----------------------------------------------------------------------------------------------


def test_a_changed_network_takes_the_time_of_the_simulator_on_it():
    needs = needs_of()
    result = needs.result
    faster = result.topology.scaled({"nic": 2.0, "fabric": 2.0})
    expected = simulate_on(result.scenario, faster, result.spec).metrics.iteration_time_s
    assert needs.iteration_s(2.0) == pytest.approx(expected, rel=1e-12)
    assert needs.iteration_s() == result.metrics.iteration_time_s > expected


def test_more_bandwidth_and_less_latency_are_never_worse():
    needs = needs_of()
    factors = (0.125, 0.5, 1.0, 4.0, 64.0)
    efficiencies = [needs.efficiency(factor) for factor in factors]
    assert efficiencies == sorted(efficiencies)
    assert 0.0 < efficiencies[0] < efficiencies[-1] <= 1.0
    times = [needs.iteration_s(1.0, extra_s) for extra_s in (0.0, 1e-5, 1e-3)]
    assert times == sorted(times) and times[0] < times[-1]


def test_the_requirement_reaches_its_target_and_less_does_not():
    found = requirement(scenario_of(), target=0.8, with_curve=False)
    factor = found.least_bytes_per_s / found.present_bytes_per_s
    needs = needs_of()
    assert needs.efficiency(factor) >= 0.8 > needs.efficiency(factor / (1.0 + 2 * TOLERANCE))
    assert found.suffices == (found.efficiency >= 0.8)
    if found.suffices:
        assert needs.efficiency(1.0, found.most_latency_s) >= 0.8


def test_a_projection_from_a_profile_is_amdahls_law_over_the_network():
    """At 40 % of a free network's throughput, twice the bandwidth takes 0.4 + 0.6 / 2 of the time: 1.43 times as fast."""
    found = replace(requirement(scenario_of(), target=0.8, with_curve=False), efficiency=0.4)
    gain = found.speed_up(2.0 * found.present_bytes_per_s, 0.6)
    assert gain == pytest.approx({"speed_up": 1.5, "projected_speed_up": 1.0 / 0.7})


def test_storage_delivers_a_batch_per_step():
    found = requirement(scenario_of(), target=0.8, with_curve=False)
    batch_bytes = found.scenario.plan.global_batch * 512 * 2  # 50,257 words fit into 16 bits
    assert found.storage_bytes_per_s == pytest.approx(batch_bytes / (found.free_s / 0.8))
    images = requirement(scenario_of(sample_bytes=100_000), target=0.8, with_curve=False)
    assert images.storage_bytes_per_s == pytest.approx(found.storage_bytes_per_s * 1e5 / 1024)
    assert images.node_storage_bytes_per_s == pytest.approx(images.storage_bytes_per_s / 2)  # two nodes


def test_with_the_storage_that_is_asked_for_the_target_is_met_exactly():
    """On a free network, reading at the least rate makes the step as much longer as the target allows."""
    found = requirement(scenario_of(sample_bytes=10**7), target=0.8, with_curve=False)
    topology = load_topology("bigred200", 8, overrides={"storage.bandwidth": f"{found.storage_bytes_per_s:.3f} B/s"})
    fast = topology.scaled(dict.fromkeys(BETWEEN, FREE))
    step = simulate_on(found.scenario, fast, find_spec("gpt2-medium"))
    assert step.metrics.iteration_time_s == pytest.approx(found.free_s / 0.8, rel=1e-6)
    assert step.metrics.breakdown["data_s"] == pytest.approx(found.free_s / 0.8 - found.free_s, rel=1e-6)


def test_so_many_loader_workers_are_enough_and_one_less_is_not():
    found = requirement(scenario_of(sample_time_s=0.2), target=0.8, with_curve=False)
    assert found.loader_workers > 1
    fast = load_topology("bigred200", 8).scaled(dict.fromkeys(BETWEEN, FREE))
    limit_s = found.free_s / 0.8
    for workers, is_enough in ((found.loader_workers, True), (found.loader_workers - 1, False)):
        scenario = replace(found.scenario, plan=replace(found.scenario.plan, loader_workers=workers))
        step = simulate_on(scenario, fast, find_spec("gpt2-medium"))
        assert (step.metrics.iteration_time_s <= limit_s * (1 + 1e-9)) == is_enough
    assert requirement(scenario_of(), target=0.8, with_curve=False).loader_workers == 0


def test_storage_that_is_too_slow_does_not_change_what_the_network_must_be():
    slow = replace(scenario_of(), overrides=(("storage.bandwidth", "1 kB/s"),))
    plain, limited = (requirement(one, target=0.8, with_curve=False) for one in (scenario_of(), slow))
    assert limited.least_bytes_per_s == plain.least_bytes_per_s
    assert (plain.present_storage_bytes_per_s, limited.present_storage_bytes_per_s) == (None, 1000.0)


def test_a_higher_target_needs_more():
    needed = [requirement(scenario_of(), target=t, with_curve=False).least_bytes_per_s for t in (0.6, 0.8, 0.95)]
    assert needed == sorted(needed)


def test_one_node_needs_nothing():
    (found,) = requirements(scenario_of(4), ())
    assert (found.least_bytes_per_s, found.present_bytes_per_s, found.most_latency_s, found.rule) == (0, 0, None, None)
    assert found.efficiency == 1.0
    assert found.verdict == ""


@pytest.mark.parametrize("target", [0.0, 1.0, 1.5])
def test_targets_are_shares(target):
    with pytest.raises(ConfigError, match="between 0 and 1"):
        requirement(scenario_of(), target=target)


def test_hops_between_nodes():
    topology = load_topology("bigred200", 16)  # four GPUs to a node

    def all_reduce(*group, collective="all_reduce"):
        return Collective(collective=collective, axis="dp", n_bytes=8, groups=(group,))

    assert n_hops(all_reduce(0, 1, 2, 3), "ring/simple", topology) == 0
    assert n_hops(all_reduce(*range(16)), "ring/simple", topology) == 6
    assert n_hops(all_reduce(*range(16)), "tree/simple", topology) == 4
    assert n_hops(all_reduce(*range(16), collective="all_gather"), "ring/simple", topology) == 3
    assert n_hops(all_reduce(*range(16), collective="all_to_all"), "p2p/simple", topology) == 1
    assert n_hops(Transfer(n_bytes=8, pairs=((0, 1), (2, 6))), "p2p/simple", topology) == 1
    assert n_hops(Transfer(n_bytes=8, pairs=((0, 1),)), "p2p/simple", topology) == 0


def test_a_longer_way_delays_by_its_hops():
    topology = load_topology("bigred200", 16)
    op = Collective(collective="all_gather", axis="dp", n_bytes=1 << 20, groups=(tuple(range(16)),))
    near = ModelCosts(topology, scenario_of(16)).flow(op)
    far = ChangedCosts(topology, scenario_of(16), MachineChange(hop_latency_s=1e-3)).flow(op)
    assert far.latency_s - near.latency_s == pytest.approx(1e-3 * n_hops(op, near.label, topology))
    assert (far.n_bytes, far.weights) == (near.n_bytes, near.weights)


# -- the rule of thumb -------------------------------------------------------------------------------------------


def test_the_rule_holds_where_it_was_made():
    """Ten billion parameters on four nodes: N x P = 40 GB/s = 320 Gb/s, from its own assumptions within 10 %."""
    rule = rule_of_thumb(4, 10 * BILLION)
    assert rule.rule_bytes_per_s * 8 == 320e9
    assert rule.closed_form_bytes_per_s == pytest.approx(rule.rule_bytes_per_s, rel=0.10)
    assert rule.simulated_bytes_per_s == pytest.approx(rule.rule_bytes_per_s, rel=0.10)


def test_elsewhere_it_does_not():
    """Its own assumptions need neither more with more nodes nor with more parameters."""
    base = rule_of_thumb(4, 10 * BILLION)
    larger = rule_of_thumb(16, 100 * BILLION)
    assert larger.rule_bytes_per_s == 40 * base.rule_bytes_per_s
    assert larger.simulated_bytes_per_s == pytest.approx(base.simulated_bytes_per_s, rel=0.1)


@pytest.mark.parametrize("n_nodes", [2, 4, 16])
def test_the_simulated_assumptions_agree_with_their_closed_form(n_nodes):
    rule = rule_of_thumb(n_nodes, 10 * BILLION)
    assert 1.0 <= rule.simulated_bytes_per_s / rule.closed_form_bytes_per_s < 1.1


def test_no_bandwidth_hides_the_latency_of_a_ring_behind_a_small_model():
    rule = rule_of_thumb(64, 10_000_000)
    assert rule.simulated_bytes_per_s == math.inf
    assert rule.to_dict()["simulated_bytes_per_s"] is None
    assert rule_of_thumb(2, 124_000_000).simulated_bytes_per_s < 1e12  # host time of the step does not count


def test_the_closed_form():
    assert compute_s(BILLION) == pytest.approx(8 * BILLION * 2048 / 156e12)
    assert closed_form_bytes_per_s(2, BILLION) == pytest.approx(2 * 15 / 16 * 2 * BILLION / compute_s(BILLION))


def test_the_verdict_says_what_differs():
    found = requirement(scenario_of(micro_batch=16), target=0.9, with_curve=False)
    assert "8,192 tokens per step, not 2,048" in found.verdict
    assert "hardly grows with nodes" in found.verdict


# -- the plot ----------------------------------------------------------------------------------------------------


def test_the_chart_has_a_line_per_number_of_gpus_and_the_rule(tmp_path):
    found = requirements(scenario_of(), (8, 16), target=0.7)
    traces = [trace for chart in requirements_charts(found) for trace in chart.traces]
    names = [trace["name"] for trace in traces]
    assert names[:2] == ["8 GPUs", "16 GPUs"]
    assert {"needed", "present", "rule of thumb, N x P"} <= set(names)
    needed = next(trace for trace in traces if trace["name"] == "needed")
    assert needed["y"] == [one.least_bytes_per_s * 8e-9 for one in found]
    free = [replace(found[0], least_bytes_per_s=0.0, present_bytes_per_s=0.0, rule=None), found[1]]
    _, chart = requirements_charts(free)  # what is nothing has no place on a logarithmic axis
    assert [trace["x"] for trace in chart.traces[:3]] == [[16]] * 3
    path = tmp_path / "plot.html"
    requirements_page(found).save(path)
    page = path.read_text(encoding="utf-8")
    assert 'id="plot-needed"' in page
    assert f"{found[1].efficiency:.1%}" in page and f"{found[1].least_bytes_per_s * 8e-9:.4g} Gb/s" in page
    axes = [chart.layout[name] for chart in requirements_charts(found) for name in ("xaxis", "yaxis")]
    assert not any("e+" in text for axis in axes for text in axis.get("ticktext", ()))


def test_the_table_says_what_the_answer_says():
    """One node needs nothing of a network; two need 25 GB/s, 200 Gb/s; half of the time of a step is twice as fast."""
    rule = RuleOfThumb(
        n_nodes=2, n_parameters=10, rule_bytes_per_s=1e9, closed_form_bytes_per_s=1e9, simulated_bytes_per_s=math.inf, tokens_per_gpu=1,
    )  # fmt: skip
    one = Requirement(
        scenario=scenario_of(gpus=8), n_nodes=2, target=0.9, efficiency=0.5, iteration_time_s=2.0, free_s=1.0, tokens_per_s=1.0,
        free_wan_s=None, present_bytes_per_s=12.5e9, least_bytes_per_s=25e9, most_latency_s=3e-6, storage_bytes_per_s=2 << 30,
        present_storage_bytes_per_s=4 << 30, curve=[(25e9, 1.0)], rule=rule,
    )  # fmt: skip
    alone = replace(
        one, scenario=scenario_of(gpus=4), n_nodes=1, present_bytes_per_s=0.0, most_latency_s=None, rule=None, curve=[],
        present_storage_bytes_per_s=None,
    )  # fmt: skip
    needs, efficiency, faster = requirement_tables([alone, one])
    assert needs.rows == [
        (4, 1, "none", "none", "50.0%", "-", "2 GiB/s", "-", "-"),
        (8, 2, "200 Gb/s", "100 Gb/s", "50.0%", "up to 3 us", "2 GiB/s of 4 GiB/s", "8 Gb/s", "no bandwidth"),
    ]
    assert (efficiency.columns, efficiency.rows) == (("GPUs", "200 Gb/s"), [(8, "100.0%")])
    assert faster.rows == [(8, "2.00 (1.33)")]  # Amdahl: the half that a free network saves shrinks to a quarter
    assert requirement_tables([replace(one, least_bytes_per_s=0.0)])[0].rows[0][2] == "any"
    spending = {"cost_per_billion_tokens": 3.0, "gpu_hours_per_billion_tokens": 1.0, "currency": "USD"}
    priced = replace(one, spending=spending)
    assert requirement_tables([priced])[1].rows == [(8, "3.00 USD")]


@pytest.mark.parametrize("path", ["plot.doc", "plot", "no/such/folder/plot.html"])
def test_plots_that_cannot_be_written_are_refused_before_the_work(path):
    with pytest.raises(ConfigError):
        check_page(path)


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command():
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    arguments = ["requirements", "--topology", "bigred200", "--model", "gpt2", "--gpus", "4,8", "--micro-batch", "1",
                 "--sequence-length", "256", "--target", "0.7"]  # fmt: skip
    texts = []
    for extra in ([], ["--json"]):
        done = subprocess.run(
            [sys.executable, "-m", "simulator.cli.main", *arguments, *extra],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    rows = json.loads(texts[1])["requirements"]
    assert [row["gpus"] for row in rows] == [4, 8]
    assert rows[1]["least_bytes_per_s"] > 0
    assert "70% of the throughput" in texts[0]


def test_plans_that_do_not_fit_need_no_network():
    plan = ParallelPlan(gpus=8, micro_batch=64, sequence_length=1024)
    with pytest.raises(InfeasiblePlanError, match="on 8 GPUs the plan does not fit: rank 0") as refused:
        requirement(Scenario(topology="bigred200", model="gpt2-xl", plan=plan))
    assert refused.value.exit_code == 4


def test_a_network_between_nodes_that_is_free_leaves_the_way_between_sites_as_it_is():
    """A site must at least get what the other has summed: gradients in 32 bits over a link of 10 Gb/s."""
    overrides = {"nodes": "8", "sites.count": "2", "sites.bandwidth": "10 Gb/s", "sites.latency": "10 ms"}
    topology = load_topology("dgx-h100", 64, overrides=overrides)
    plan = ParallelPlan(gpus=64, framework="torch-ddp", micro_batch=1, sequence_length=512, overlap=False)
    scenario = Scenario(topology="dgx-h100", model="gpt2-medium", plan=plan, overrides=tuple(overrides.items()))
    spec = find_spec("gpt2-medium")
    needs = NetworkNeeds(resolve(scenario, topology, spec), topology, spec)
    assert needs.free_s > 4 * spec.n_parameters / 1.25e9
    wider = topology.scaled(dict.fromkeys(BETWEEN, FREE))
    rates = {link.kind: link.bandwidth_bytes_per_s for link in wider.links}
    assert rates["wan"] == 1.25e9 and rates["nic"] == FREE * 50e9


def test_links_between_sites_that_hold_a_step_back_are_said_to():
    """What crosses them takes a second and more; without them the step is that of one site's network and their latency."""
    overrides = {"nodes": "8", "sites.count": "2", "sites.bandwidth": "10 Gb/s", "sites.latency": "1 ms"}
    plan = ParallelPlan(gpus=64, framework="torch-ddp", micro_batch=1, sequence_length=512, overlap=False)
    scenario = Scenario(topology="dgx-h100", model="gpt2-medium", plan=plan, overrides=tuple(overrides.items()))
    found = requirement(scenario, with_curve=False)
    wide = (*tuple(overrides.items()), ("sites.bandwidth", "10000 Tb/s"))
    assert found.free_wan_s == pytest.approx(requirement(replace(scenario, overrides=wide)).iteration_time_s, rel=0.01)
    assert found.iteration_time_s > 2 * found.free_wan_s and "--local-steps" in found.between_sites
    one = requirement(replace(scenario, overrides=(("nodes", "8"),)), with_curve=False)
    assert one.free_wan_s is None and one.between_sites == ""
