"""Broken files, the same every time; ``python -m tests.fuzz`` draws others, and command lines too."""

import random

import pytest

from tests.fuzz.extremes import check, command, keys_of_clusters
from tests.fuzz.fuzz_seeds import missing, seeds
from tests.fuzz.mutating import mutated
from tests.fuzz.running import Findings, fuzz, run_settings


def test_every_format_has_a_file_to_start_from():
    assert missing() == set()


def test_broken_files_end_in_errors_of_ours():
    found = fuzz(4000, seed=7, share_of_commands=0.0)
    assert found.n_inputs == 4000
    assert not found.places, "\n".join(f"{name}\n{found.examples[name][2]}" for name in found.places)


def test_the_same_seed_draws_the_same_inputs():
    texts = [text for _, _, text in seeds() if text]
    first, second = ([mutated(text, random.Random(3), texts) for text in texts] for _ in range(2))
    assert first == second
    assert all(any(mutated(text, random.Random(seed), texts) != text for seed in range(5)) for text in texts)


def test_a_failure_is_counted_by_its_place():
    found = Findings()
    for _ in range(2):
        try:
            raise ValueError("x")
        except ValueError as error:
            found.note("a", "text", error)
    assert found.places == {"ValueError at outside": 2}
    assert found.examples["ValueError at outside"][:2] == ("a", "text")


@pytest.mark.parametrize("text", ["", "{}", "x", "\x00", "tp: 1\n" * 50])
def test_mutation_takes_any_text(text):
    for seed in range(50):
        assert isinstance(mutated(text, random.Random(seed), ["other", "text"]), str)


def test_extreme_settings_end_in_errors_of_ours_or_in_numbers_that_hold_together():
    rng, n_answers = random.Random(11), 0
    for _ in range(60):
        n_answers += run_settings(command(rng))
    assert n_answers > 10


def test_every_number_of_a_cluster_file_is_drawn():
    keys = keys_of_clusters()
    assert keys["node.nics.bandwidth"] == "bandwidth" and keys["fabric.oversubscription"] == ""
    assert "rail-optimised" in keys["fabric.kind"] and "switch" in keys["node.nvlink.kind"]


def test_an_answer_that_does_not_hold_together_is_found():
    parts = {"compute_s": 1.0, "bubble_s": 0.5, "overlapped_communication_s": 9.0}
    whole = {
        "iteration_time_s": 1.5,
        "breakdown": parts,
        "confidence": {"low_s": 1.0, "high_s": 2.0},
        "mfu": 0.4,
        "hfu": 0.4,
    }
    check(whole)
    for wrong in (
        {"iteration_time_s": 1.6},
        {"mfu": float("nan")},
        {"hfu": 2.0},
        {"confidence": {"low_s": 1.6, "high_s": 2.0}},
        {"x": [-1]},
    ):
        with pytest.raises(AssertionError):
            check(whole | wrong)
