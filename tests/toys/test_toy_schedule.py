"""A pipeline schedule is a function that returns a table, and one entry of ``SCHEDULES``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.cli.main import main
from simulator.schedules import SCHEDULES, Action, Schedule, Table

JOB = (
    "--topology",
    "dgx-a100-80g",
    "--model",
    "gpt2",
    "--gpus",
    8,
    "--pp",
    4,
    "--tp",
    2,
    "--micro-batch",
    1,
    "--global-batch",
    16,
)


def in_pairs(n_stages: int, n_micro_batches: int, *, n_chunks: int = 1) -> Table:
    """Run two forwards and their two backwards, over and over: a pipeline that is filled and drained for every pair."""
    row: list[Action] = []
    for first in range(0, n_micro_batches, 2):
        pair = range(first, min(first + 2, n_micro_batches))
        row += [Action("F", i) for i in pair] + [Action("B", i) for i in pair]
    return (tuple(row),) * n_stages


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    monkeypatch.setitem(
        SCHEDULES, "in-pairs", Schedule(name="in-pairs", build=in_pairs, blocks_sends=True, ends_with_first_chunk=True)
    )
    monkeypatch.setitem(SCHEDULES, "1f1b-again", replace(SCHEDULES["1f1b"], name="1f1b-again"))


@pytest.mark.parametrize("network", ["flow", "chunk", "alpha-beta"])
@pytest.mark.parametrize("framework", ["megatron", "megatron-core", "fsdp"])
def test_a_table_under_another_name_gives_the_same_answer(answer_of, network, framework):
    command = (*JOB, "--network", network, "--framework", framework)
    known, again = answer_of(*command), answer_of(*command, "--schedule", "1f1b-again")
    for key in ("iteration_time_s", "breakdown", "communication", "memory", "bottleneck"):
        assert known[key] == again[key], key


def test_chunks_under_another_name_give_the_same_answer(answer_of):
    known, again = (answer_of(*JOB, "--virtual-pp", 3, "--schedule", name) for name in ("1f1b", "1f1b-again"))
    assert known["breakdown"] == again["breakdown"]


def test_a_pipeline_filled_and_drained_for_every_pair_takes_as_many_times_longer(answer_of):
    """Each pair costs ``2 + p - 1`` forwards and backwards, 16 micro-batches at once ``16 + p - 1`` (Huang et al., GPipe).

    The last stage has the head, too, which is not quite one more layer beside its eight.
    """
    job = (
        *JOB[:2],
        "--model",
        "gpt-6.7b",
        *JOB[4:],
        "--framework",
        "fused",
        "--set",
        "overlap_p2p=true",
        "--recompute",
        "full",
    )
    pairs, gpipe = (answer_of(*job, "--schedule", name)["iteration_time_s"] for name in ("in-pairs", "gpipe"))
    low, high = (8 * (2 * last + 3) / (16 * last + 3) for last in (9 / 8, 1.0))
    assert 0.97 * low < pairs / gpipe < 1.03 * high


def test_it_is_listed_completed_drawn_searched_and_explained(answer_of, monkeypatch, capsys):
    axes = ("--axis", "pp=2,4", "--axis", "tp=1", "--axis", "micro_batch=1", "--axis", "recompute=none", "--jobs", 1)
    found = answer_of("search", *JOB[:6], "--global-batch", 16, "--schedule", "in-pairs", *axes)
    assert {row["plan"]["schedule"] for row in found["plans"]} == {"in-pairs"}
    options = answer_of(*JOB, "--explain")["explanation"]
    assert "in-pairs" in str(options), "one of the schedules that are tried"
    monkeypatch.setattr("sys.argv", ["simulate", "schedule", "in-pairs", "--stages", "2", "--micro-batches", "4"])
    with pytest.raises(SystemExit):
        main()
    assert "F0 F1 B0" in " ".join(capsys.readouterr().out.split())
