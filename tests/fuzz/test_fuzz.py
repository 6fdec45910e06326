"""Broken files, the same every time; ``python -m tests.fuzz`` draws others, and command lines too."""

import random

import pytest

from tests.fuzz.fuzz_seeds import missing, seeds
from tests.fuzz.mutating import mutated
from tests.fuzz.running import Findings, fuzz


def test_every_format_has_a_file_to_start_from():
    assert missing() == set()


def test_broken_files_end_in_errors_of_ours():
    found = fuzz(1200, seed=7, share_of_commands=0.0)
    assert found.n_inputs == 1200
    assert not found.places, "\n".join(f"{name}\n{found.examples[name][2]}" for name in found.places)


def test_the_same_seed_draws_the_same_inputs():
    texts = [text for _, _, text in seeds() if text]
    first, second = ([mutated(text, random.Random(3), texts) for text in texts] for _ in range(2))
    assert first == second and first != texts


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
