"""A network model is a class with three facts and five methods, and one entry of ``NETWORKS``."""

from __future__ import annotations

from typing import ClassVar

import pytest

from simulator.network import NETWORKS
from simulator.units import to_ps

JOB = (
    "--topology", "dgx-a100-80g", "--model", "gpt2", "--gpus", 16, "--tp", 2, "--pp", 2, "--micro-batch", 1, "--global-batch", 16,
)  # fmt: skip


class Wide:
    """Links of any width: a flow takes its latency."""

    contends: ClassVar[bool] = False
    plays_others: ClassVar[bool] = False
    work_per_task: ClassVar[int] = 1

    def __init__(self, topology):
        self._ends_ps = {}
        self._n_started = 0

    @classmethod
    def watched(cls, topology):
        """Groups of equal latency are alike, whatever they load."""
        return lambda: cls(topology)

    def start(self, flow, now_ps):
        self._n_started += 1
        self._ends_ps[self._n_started] = now_ps + to_ps(flow.latency_s)
        return self._n_started

    def next_completion_ps(self):
        return min(self._ends_ps.values(), default=None)

    def advance(self, now_ps):
        ended = tuple(handle for handle, end_ps in self._ends_ps.items() if end_ps <= now_ps)
        for handle in ended:
            del self._ends_ps[handle]
        return ended

    def set_slowdown(self, handle, factor, now_ps):
        """Only bytes are slowed down."""


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setitem(NETWORKS, "wide", Wide)


def test_it_is_what_is_left_of_alpha_beta_without_bytes(answer_of):
    wide, known = (answer_of(*JOB, "--network", name) for name in ("wide", "alpha-beta"))
    assert wide["breakdown"]["compute_s"] <= known["breakdown"]["compute_s"]
    assert (
        0 < sum(row["total_s"] for row in wide["communication"]) < sum(row["total_s"] for row in known["communication"])
    )
    again = answer_of(*JOB, "--network", "wide", "--unfold")
    assert again["iteration_time_s"] == pytest.approx(wide["iteration_time_s"], rel=1e-12)


def test_it_is_compared_explained_searched_and_refused_where_jobs_share_links(answer_of, simulate, tmp_path):
    size = ("--topology", "dgx-a100-80g", "--gpus", 16, "--min", "1MiB", "--max", "1MiB")
    assert "wide" in str(answer_of("collective", "all_reduce", *size, "--network", "all"))
    assert answer_of(*JOB, "--network", "wide", "--explain")["explanation"]
    axes = ("--axis", "tp=2", "--axis", "pp=1,2", "--axis", "micro_batch=1", "--axis", "recompute=none", "--jobs", 1)
    assert answer_of("search", *JOB[:6], "--global-batch", 16, "--network", "wide", *axes)["plans"]
    other = tmp_path / "other.yaml"
    other.write_text("model: gpt2\ngpus: 8\nmicro_batch: 1\n", encoding="utf-8")
    code, _, err = simulate(*JOB, "--network", "wide", "--with", other, "--json")
    assert code == 3 and "--network flow" in err
