"""The trials behind a ranking do what their names say."""

import json
from dataclasses import replace

import pytest

from simulator.changes import MachineChange
from simulator.explore import full_answer as documents
from simulator.explore.named_settings import scenario_of
from simulator.explore.neighbourhood import Neighbour
from simulator.explore.trials import Trials, advise, knobs_of, options_of
from simulator.explore.trials import explain as explain_result
from simulator.report import answer_page
from simulator.report.terminal import print_explanation
from simulator.simulation import simulate


@pytest.fixture(scope="module")
def explained(small):
    return explain_result(small)


def test_trials_start_from_the_same_answer(small):
    trials = Trials(small)
    assert trials.machine(MachineChange()) == trials.baseline
    assert trials.plan(Neighbour(name="", setting="", plan=small.plan)) == trials.baseline


def test_every_rate_helps_or_has_no_effect(small):
    trials = Trials(small)
    for one in knobs_of(trials):
        assert one.simulate(2.0).per_sample_s <= trials.baseline.per_sample_s * (1 + 1e-9), one.name


def test_network_matters_to_data_parallelism_between_nodes_and_sockets_do_not(explained):
    savings = {row["change"]: row["saving"] for row in explained["changes"]}
    assert savings["twice the NIC bandwidth"] > 0.05
    assert not any("CPU sockets" in change for change in savings)


def test_best_changes_are_the_largest_savings(explained):
    best = [row["saving"] for row in explained["best"]]
    assert best == sorted(best, reverse=True)
    assert best[0] == max(row["saving"] for row in explained["changes"] if row["same_training"])
    assert 1 <= len(best) <= 3


# -- unasked advice ----------------------------------------------------------------------------------------------


def test_advice_is_the_best_of_what_could_help_most(small, explained):
    rows = advise(small)
    known = {row["change"]: row["saving"] for row in explained["changes"]}
    assert rows[0]["saving"] == pytest.approx(known[rows[0]["change"]])
    assert rows == sorted(rows, key=lambda row: -row["saving"])
    assert rows[0]["change"] in ("twice the NIC bandwidth", "twice the network between nodes (NICs, fabric, PCIe)")


def test_advice_stops_where_nothing_left_can_save_more(small):
    """Communication is most of this step: what makes compute faster is not even tried."""
    assert not any("of the GPU" in row["change"] for row in advise(small))


def test_the_part_of_the_network_that_does_it_is_named(small):
    assert advise(small)[0]["change"] == "twice the NIC bandwidth"


def test_a_slow_line_between_sites_is_found_out():
    """Nearly all of the step is gradients on a line of 10 Gb/s, of which twice the bandwidth saves nearly half."""
    settings = {
        "topology": "dgx-h100", "model": "gpt-1.3b", "gpus": 16, "micro_batch": 4, "sharding": "zero1",
        "framework": "megatron-core", "nodes": "2", "sites.count": "2", "sites.bandwidth": "10 Gb/s", "sites.latency": "10 ms",
    }  # fmt: skip
    best = advise(simulate(scenario_of(settings)))[0]
    assert best["change"] == "twice the bandwidth between sites" and best["saving"] == pytest.approx(0.47, abs=0.03)


def test_large_runs_are_not_simulated_again_unasked(small, monkeypatch):
    monkeypatch.setattr("simulator.explore.trials.MOST_EVENTS", small.timeline.n_events - 1)
    assert advise(small) == []


def test_one_gpu_is_told_about_itself(simulated):
    rows = advise(simulated("bigred200", "gpt2", gpus=1, micro_batch=2))
    assert rows and all("network" not in row["change"] and "NVLink" not in row["change"] for row in rows)


def test_slow_storage_is_found_out(simulated):
    starved = simulated("bigred200", "gpt2", gpus=8, micro_batch=2, sample_time_s=1.0)
    assert advise(starved)[0]["change"] == "--loader-workers 4"
    explained = explain_result(starved)
    savings = {row["change"]: row["saving"] for row in explained["changes"]}
    assert savings["workers that process a sequence twice as fast"] == pytest.approx(0.5, abs=0.02)
    assert "NIC bandwidth" in explained["without_effect"]


def test_options_name_the_flags_that_set_them(piped):
    names = [one.name for one in options_of(Trials(piped))]
    assert "--recompute full" in names
    assert "--sequence-parallel" in names
    assert {"--virtual-pp 1", "--schedule gpipe --virtual-pp 1", "--schedule 1f1b-combined"} <= set(names)
    assert all(name.startswith("--") for name in names)


def test_explanation_is_json_and_prints(explained, capsys):
    assert json.loads(json.dumps(explained)) == explained
    print_explanation(explained)
    text = capsys.readouterr().out
    assert "Critical path" in text
    assert "1. " in text
    assert "saves" in text


def test_report_and_json_hold_the_explanation(small, explained):
    assert documents.document([small], explanation=explained)["explanation"] == explained
    html = answer_page.report([small], explanation=explained).html
    assert explained["best"][0]["change"] in html


def test_a_poor_choice_of_the_library_is_found(simulated):
    """An algorithm that is faster when it is forced is among the changes, with the time that forcing it takes."""
    fast = simulated("polaris", "gpt2", gpus=8, micro_batch=2, sharding="zero3", framework="torchtitan")
    rows = {row["change"]: row for row in explain_result(fast)["changes"] if "--nccl-algo" in row["change"]}
    for change, row in rows.items():
        _, algorithm, _, protocol = change.split()
        forced = simulate(replace(fast.scenario, algorithm=algorithm, protocol=protocol))
        assert row["iteration_time_s"] == forced.metrics.iteration_time_s
    assert rows
