"""Published figures and ours: what agrees, what a reading changes, and that every claim can be asked for."""

from __future__ import annotations

import pytest

from simulator.config import load_yaml
from validation.tables import published_figures
from validation.tables.published_figures import PAGES, Document, Figure, Reading, claims_file, render


def figure(published: float, ours: float | None, unit: str = "s", **more: object) -> Figure:
    return Figure(says="a figure", published=published, ours=ours, unit=unit, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "agrees"),
    [
        (figure(10.0, 10.9), True),
        (figure(10.0, 11.1), False),
        (figure(0.30, 0.34, "fraction"), True),  # 13 %, but 0.04
        (figure(0.30, 0.36, "fraction"), False),
        (figure(1.0, 0.0, "fits"), False),
        (figure(1.5, 2.0, "x", bound="at least"), True),
        (figure(1.5, 1.4, "x", bound="at least"), False),
        (figure(0.1, 0.05, "fraction", bound="at most"), True),
        (figure(36.0, None, "years"), False),
    ],
)
def test_agreement(found: Figure, agrees: bool) -> None:
    assert found.agrees is agrees


def test_verdicts_name_what_was_fitted_and_what_the_source_contradicts() -> None:
    assert figure(10.0, 10.0, fitted=True).verdict == "agrees (fitted)"
    assert figure(36.0, None, source_is="8 x 3 is 24").verdict == "inconsistent in the source"


def test_a_claim_is_made_of_the_answers_of_its_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"slow": {"time": 3.0, "rows": [{"rate": 7.0}]}, "fast": {"time": 2.0}}
    monkeypatch.setattr(published_figures, "_answer", answers.__getitem__)
    runs = {"a": "slow", "b": "fast"}
    assert published_figures._ours({"ratio": "time"}, runs, ()) == pytest.approx(1.5)
    assert published_figures._ours({"gain": "time"}, runs, ()) == pytest.approx(0.5)
    assert published_figures._ours({"value": "rows.0.rate", "times": 2.0}, {"a": "slow"}, ()) == pytest.approx(14.0)
    assert published_figures._ours({"value": "time+rows.0.rate/time"}, {"a": "slow"}, ()) == pytest.approx(
        (3.0 + 7.0) / 3.0
    )


def test_a_slowdown_is_the_mean_over_cells_with_a_network() -> None:
    """Compute takes 1 s over both networks; communication 1 and 3 s, and 1 and 2 s: steps of 2 and 4, and of 2 and 3 s."""
    cells = [("a", 0.5, 0.75), ("b", 0.5, 2 / 3), ("one node", 0.2, 0.2)]
    figures = [
        figure(0.0, share, "fraction", transport=transport, case=case)
        for case, *shares in cells
        for transport, share in zip(("rdma", "tcp"), shares, strict=True)
    ]
    assert published_figures.slowdown(figures, "tcp", "rdma") == pytest.approx((4 / 2 + 3 / 2) / 2)
    assert published_figures._ours({"slowdown": ["tcp", "rdma"]}, {}, figures) == pytest.approx(1.75)


def test_what_the_source_contradicts_never_agrees() -> None:
    assert not figure(10.0, 10.0, source_is="its other table says 8").agrees


def test_the_reading_under_which_most_agree_is_shown() -> None:
    first = Reading(name="512 tokens", why="", figures=(figure(0.3, 0.5, "fraction"),))
    second = Reading(name="1,024 tokens", why="two GPUs fit it", figures=(figure(0.3, 0.31, "fraction"),))
    document = Document(
        name="A", title="B", readings=(first, second), claims=(figure(36.0, None, source_is="it is 24"),)
    )
    page = render("founding", [document])
    assert document.best is second and second.mean_difference == pytest.approx(0.01)
    assert "Of 2 figures, 1 agree" in page and "2 in all" in page
    assert "| 1,024 tokens (two GPUs fit it) | 1 of 1 | 0.010 |" in page


@pytest.mark.parametrize("page", PAGES)
def test_every_claim_states_how_it_is_judged(page: str) -> None:
    entries, _ = load_yaml(claims_file(page))
    assert len(entries) >= 4
    for claim in (claim for entry in entries for claim in entry["claims"]):
        is_judged = claim.get("runs") or claim.get("source_is") or "slowdown" in claim.get("ours", {})
        assert is_judged or claim.get("note"), claim["says"]  # what is not reproduced says why
        names = set(claim.get("ours", {})) - {"times"}
        assert len(names) == (1 if "ours" in claim else 0) and names <= {"value", "ratio", "gain", "slowdown"}
        assert ("b" in claim.get("runs", {})) == bool(names & {"ratio", "gain"})
