"""Intervals of collectives: from clusters left out, and the same for all that nobody measured."""

from __future__ import annotations

from simulator.analysis.collective_confidence import collective_interval, shipped_spread


def test_intervals_hold_one_and_come_from_several_clusters():
    for entry in shipped_spread():
        assert 0.3 < entry["low"] <= 1.0 <= entry["high"] < 5.0
        assert len(entry["clusters"]) >= 5 and entry["n"] > 100
    assert {entry["part"] for entry in shipped_spread()} == {"inside", "between"}


def test_sizes_and_places_choose_the_entry():
    small, large, across = collective_interval(1024, 1), collective_interval(2**30, 1), collective_interval(2**30, 2)
    assert (small.sizes, large.sizes) == ("below 1 MiB", "from 1 MiB")
    assert "inside nodes" in large.basis and "between nodes" in across.basis
    assert across.high / across.low > large.high / large.low  # networks differ more than NVLink does
