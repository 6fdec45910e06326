"""A dispatcher of experts is one entry of ``DISPATCHERS``: facts, and nothing that asks for its name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.plan.dispatchers import DISPATCHERS, Dispatcher

JOB = (
    *(
        "--topology",
        "dgx-h100",
        "--model",
        "mixtral-8x7b",
        "--sequence-length",
        2048,
        "--gpus",
        16,
        "--ep",
        8,
        "--pp",
        2,
    ),
    *("--sharding", "zero1", "--global-batch", 16, "--micro-batch", 1),
)
COMPARED = ("iteration_time_s", "breakdown", "communication", "memory", "bottleneck")


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    """Those that there are under other names, and one of its own: all tokens to all ranks by kernels that take 8 SMs."""
    for name in tuple(DISPATCHERS):
        monkeypatch.setitem(DISPATCHERS, f"{name}-again", replace(DISPATCHERS[name], name=f"{name}-again"))
    monkeypatch.setitem(DISPATCHERS, "toy", Dispatcher(name="toy", carries="all", n_sms=8))


@pytest.mark.parametrize("name", ["alltoall", "allgather", "deepep", "hybridep"])
def test_a_dispatcher_under_another_name_gives_the_same_answer(answer_of, name):
    known, again = (answer_of(*JOB, "--set", f"moe_dispatcher={one}") for one in (name, f"{name}-again"))
    for key in COMPARED:
        assert known[key] == again[key], key


def test_its_facts_decide_what_travels(answer_of):
    """Every rank gets the tokens of the 7 others, whatever their experts: 8 shares of 2048 x 4096 x 2 bytes in each exchange."""
    rows = [row for row in answer_of(*JOB, "--set", "moe_dispatcher=toy")["communication"] if row["axis"] == "ep"]
    assert {row["collective"] for row in rows} == {"all_gather", "reduce_scatter"}
    assert {row["bytes"] / row["count"] for row in rows} == {8 * 2048 * 4096 * 2}
