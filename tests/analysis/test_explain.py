"""Ranking changes needs no simulator."""

from __future__ import annotations

import math

import pytest

from simulator.analysis.explain import LARGE, SMALL, Knob, Option, TrialOutcome, explain

BASE = TrialOutcome(iteration_time_s=10.0, n_samples=5)


def knob(name, share):
    """A rate on which a share of the time depends inversely."""
    return Knob(
        name=name,
        large=f"twice {name}",
        simulate=lambda f: TrialOutcome(iteration_time_s=10 * (1 - share + share / f), n_samples=5),
    )


def option(name, seconds, **more):
    return Option(name=name, simulate=lambda: TrialOutcome(iteration_time_s=seconds, n_samples=5), **more)


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
    broken = Option(name="tp 3", simulate=lambda: TrialOutcome(reason="3 does not divide 8"))
    assert explain(BASE, [], [broken])["impossible"] == [{"change": "tp 3", "reason": "3 does not divide 8"}]


def test_another_batch_is_compared_per_sample_and_never_among_the_best():
    twice = Option(
        name="batch 10", simulate=lambda: TrialOutcome(iteration_time_s=16.0, n_samples=10), same_training=False
    )
    found = explain(BASE, [], [twice])
    assert found["changes"][0]["saving"] == pytest.approx(0.2)
    assert found["best"] == []


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


def test_what_is_tried_is_said_and_what_breaks_is_not_ranked():
    said = []
    broken = Knob(name="storage", large="twice storage", simulate=lambda _: TrialOutcome(reason="there is none"))
    found = explain(BASE, [broken, knob("NIC", 0.4)], [option("good", 7.0)], say=said.append)
    assert said == ["twice storage", "twice NIC", "good"]
    assert found["impossible"] == [{"change": "twice storage", "reason": "there is none"}]
    kinds = {row["change"]: (row["kind"], row["iteration_time_s"], row["same_training"]) for row in found["changes"]}
    assert kinds == {
        "twice NIC": ("machine", pytest.approx(10 * (0.6 + 0.4 / LARGE)), True),
        "good": ("plan", 7.0, True),
    }


def test_a_ten_thousandth_is_an_effect_and_less_is_none():
    found = explain(
        BASE,
        [],
        [option("little", 10 * (1 - 2e-4)), option("less", 10 * (1 - 0.5e-4)), option("worse", 10 * (1 + 0.5e-4))],
    )
    assert [row["change"] for row in found["changes"]] == ["little"]
    assert found["without_effect"] == ["less", "worse"]
    assert [row["change"] for row in found["best"]] == ["little"]
    costly = explain(BASE, [], [option("costly", 11.0)])
    assert (len(costly["changes"]), costly["best"]) == (1, [])


def test_three_are_the_best_and_equal_ones_stand_by_name():
    found = explain(
        BASE, [], [option(f"--{name} 1", 8.0 + i / 10) for i, name in enumerate("edcba")] + [option("--aa 1", 8.0)]
    )
    assert [row["change"] for row in found["best"]] == ["--aa 1", "--e 1", "--d 1"]


def test_a_part_that_does_nineteen_twentieths_stands_for_its_whole():
    whole = Knob(name="network", large="twice network", simulate=knob("", 0.4).simulate, parts=("NIC",))
    near, not_near = (explain(BASE, [whole, knob("NIC", 0.4 * share)], [])["best"] for share in (0.96, 0.94))
    assert [row["change"] for row in near] == ["twice NIC"]
    assert [row["change"] for row in not_near] == ["twice network"]
