"""Documents in sequences: tokens and squares by hand, packing keeps every token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from simulator.errors import ConfigError
from simulator.explore.run.lengths import Lengths


def test_documents_as_long_as_a_sequence_are_the_full_work() -> None:
    mix = Lengths.parse("uniform:512-512").mix(512, np.random.default_rng(0))
    assert mix.mean == (1.0, 1.0)


def test_documents_of_half_a_sequence_halve_attention_when_packed() -> None:
    """Two documents of S/2: 2 (S/2)^2 / S^2 = 1/2, and all tokens are there."""
    mix = Lengths.parse("uniform:256-256").mix(512, np.random.default_rng(0))
    assert np.all(mix.tokens == 1.0) and np.all(mix.squares == 0.5)


def test_a_document_longer_than_a_sequence_is_cut_at_its_border() -> None:
    """Documents of 3/2 S fill sequences as S | S/2 + S/2 | S ...: squares 1 and 1/2 in a pattern of two to one."""
    mix = Lengths.parse("uniform:768-768").mix(512, np.random.default_rng(0))
    assert set(np.round(mix.squares, 9)) == {1.0, 0.5}
    assert mix.squares.mean() == pytest.approx((1.0 + 0.5 + 1.0) / 3, abs=1e-3)


def test_one_document_per_sequence_leaves_tokens_out() -> None:
    mix = Lengths.parse("uniform:128-128", is_packed=False).mix(512, np.random.default_rng(0))
    assert mix.mean == (0.25, 0.0625)
    assert Lengths.parse("uniform:4096-4096", is_packed=False).mix(512, np.random.default_rng(0)).mean == (1.0, 1.0)


def test_distributions_have_their_moments(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    assert np.median(Lengths.parse("lognormal:600,1.2").draw(20_000, rng)) == pytest.approx(600, rel=0.05)
    assert Lengths.parse("exponential:800").draw(20_000, rng).mean() == pytest.approx(800, rel=0.03)
    for name, text in (("lengths.txt", "100\n300\n"), ("lengths.csv", "100,300"), ("lengths.json", "[100, 300]")):
        (tmp_path / name).write_text(text)
        assert set(Lengths.parse(str(tmp_path / name)).draw(200, rng)) == {100.0, 300.0}


@pytest.mark.parametrize(
    "text", ["lognormal:600", "uniform:9-3", "exponential:-4", "uniform:a-b", "nowhere.txt", "exponential:nan"]
)
def test_what_is_no_distribution_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--lengths"):
        Lengths.parse(text)


@pytest.mark.parametrize("text", ["3", "{}", "null", '["x"]', "[]", "[" * 20_000, "9" * 5_000, "[NaN]", "{"])
def test_a_file_that_holds_no_lengths_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"lengths\.json"):
        Lengths.parse(str(path))
