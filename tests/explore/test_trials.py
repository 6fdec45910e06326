"""Ranking needs no simulator; the trials behind it do what their names say."""

import json
import math
from dataclasses import replace

import pytest

from simulator.analysis.explain import SMALL, Knob, Option, Outcome, explain
from simulator.changes import MachineChange
from simulator.explore import full_answer as documents
from simulator.explore.neighbourhood import Neighbour
from simulator.explore.trials import Trials, advise, knobs_of, options_of
from simulator.explore.trials import explain as explain_result
from simulator.report import answer_page
from simulator.report.terminal import print_explanation
from simulator.simulation import simulate

BASE = Outcome(iteration_time_s=10.0, n_samples=5)


def knob(name, share):
    """A rate on which a share of the time depends inversely."""
    return Knob(
        name=name,
        large=f"twice {name}",
        simulate=lambda f: Outcome(iteration_time_s=10 * (1 - share + share / f), n_samples=5),
    )


def option(name, seconds, **more):
    return Option(name=name, simulate=lambda: Outcome(iteration_time_s=seconds, n_samples=5), **more)


def test_changes_are_ranked_by_what_they_save():
    found = explain(BASE, [knob("NIC", 0.4)], [option("good", 7.0), option("bad", 12.0)])
    assert [row["change"] for row in found["changes"]] == ["good", "twice NIC", "bad"]
    assert [row["saving"] for row in found["changes"]] == pytest.approx([0.3, 0.2, -0.2])
    assert [row["change"] for row in found["best"]] == ["good", "twice NIC"]


def test_elasticity_is_the_derivative():
    row = explain(BASE, [knob("NIC", 0.4)], [])["changes"][0]
    assert row["elasticity"] == pytest.approx(0.4 / SMALL)  # d(1 - s + s/f) / df at 1 is -s


def test_what_has_no_effect_is_named_and_not_tried_again():
    calls = []

    def simulate(factor):
        calls.append(factor)
        return BASE

    found = explain(BASE, [Knob(name="socket", large="twice", simulate=simulate)], [option("idle", 10.0)])
    assert found["without_effect"] == ["socket", "idle"]
    assert found["changes"] == found["best"] == []
    assert len(calls) == 1


def test_what_cannot_be_done_carries_its_reason():
    broken = Option(name="tp 3", simulate=lambda: Outcome(reason="3 does not divide 8"))
    assert explain(BASE, [], [broken])["impossible"] == [{"change": "tp 3", "reason": "3 does not divide 8"}]


def test_another_batch_is_compared_per_sample_and_never_among_the_best():
    twice = Option(name="batch 10", simulate=lambda: Outcome(iteration_time_s=16.0, n_samples=10), same_training=False)
    found = explain(BASE, [], [twice])
    assert found["changes"][0]["saving"] == pytest.approx(0.2)
    assert found["best"] == []


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


def test_the_best_are_different_changes():
    whole = Knob(name="network", large="twice network", simulate=knob("", 0.4).simulate, parts=("NIC", "switch"))
    parts = [knob("NIC", 0.4), knob("switch", 0.01)]
    found = explain(BASE, [whole, *parts], [option("--sharding zero1", 9.0), option("--sharding zero2", 9.0)])
    assert [row["change"] for row in found["best"]] == ["twice NIC", "--sharding zero1", "twice switch"]


def test_different_settings_with_the_same_effect_are_different_changes():
    found = explain(BASE, [knob("NIC", 0.2)], [option("--sharding hsdp", 9.0), option("--tp 2", 9.0)])
    assert [row["change"] for row in found["best"]] == ["--sharding hsdp", "--tp 2", "twice NIC"]


def test_a_whole_of_which_no_part_does_as_much_stands_for_its_parts():
    whole = Knob(name="device", large="twice device", simulate=knob("", 0.6).simulate, parts=("rate", "power"))
    found = explain(BASE, [whole, knob("rate", 0.2), knob("power", 0.2)], [])
    assert [row["change"] for row in found["best"]] == ["twice device"]


def test_numbers_of_the_plan_have_a_slope_and_words_have_none():
    rows = explain(BASE, [], [option("batch 4", 8.0, ratio=2.0), option("word", 8.0)])["changes"]
    slopes = {row["change"]: row["elasticity"] for row in rows}
    assert slopes["batch 4"] == pytest.approx(math.log(10 / 8) / math.log(2))
    assert slopes["word"] is None


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
    assert "critical path" in text
    assert "1. " in text
    assert "saves" in text


def test_report_and_json_hold_the_explanation(small, explained):
    assert documents.document([small], explained)["explanation"] == explained
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
