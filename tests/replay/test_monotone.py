"""What a change does to an iteration has the sign that it must have, on every recording: a property, not a figure.

Everything in a replay waits for the latest of its causes, so that no event can come later where a duration is shorter.
"""

import gzip
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.replay import replay
from simulator.replay.changes_of_kernels import scale_host, scale_kernels
from simulator.replay.changes_of_links import scale_communication
from simulator.replay.changes_of_ranks import _by_type, as_peers, delay, slow_down
from simulator.trace_io import read
from simulator.trace_io.reconstruct import reconstruct

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
OWN = Path(__file__).resolve().parents[2] / "traces"
NANOGPT = "modded-nanogpt/2025-10-31_AdamSyncGradientHook/modded-nanogpt-"
#: every set of recordings with operations: own ones, and all that lie beside this checkout
TRACES = [*(OWN / name for name in ("ddp-2", "fsdp2-2", "pp-4", "tiny-ddp-2", "tiny-pp-2")), *(SHARED / name for name in (
    "megatron-tp2/tp2/result", "torchrec/trace/sst_long_a2a_optimizer_4", "torchrec/trace/sst_long_a2a_optimizer",
    "param/et_replay/tests/inputs/dlrm_kineto.tar.gz", "hta", "nsys-ai", "kineto", "megatron-tp2/tp2/final.0.et",
    f"{NANOGPT}current-gpu-rank-00-chrome-trace.ve12c782.json.gz", f"{NANOGPT}hook-gpu-rank-00-chrome-trace.v3608dcf.json.gz",
    "megatron-tp2/tp2/final.0.json", "straggler/data/trace-ST.csv.gz",
))]  # fmt: skip
A2A = SHARED / "torchrec/trace/sst_long_a2a_optimizer_4"
#: what is tried on a recording of 70,000 operations, of which one replay takes seconds
LARGE = {"trace-ST.csv.gz": "links"}
#: knob -> the reconstruction in which that takes a factor as long
KNOBS = {
    "kernels": lambda whole, factor: scale_kernels(whole, lambda rank, name: factor),
    "host": scale_host,
    "links": lambda whole, factor: scale_communication(whole, bandwidth=1 / factor),
    "one rank": lambda whole, factor: slow_down(whole, whole.plans[0].rank.rank, factor),
}


@lru_cache(maxsize=2)
def recorded(path):
    if not path.exists():
        pytest.skip("the shared traces are not beside this checkout")
    whole = reconstruct(read(path))
    return whole, replay(whole)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:30])
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(knob=st.sampled_from(sorted(KNOBS)), factors=st.tuples(st.floats(0.1, 4.0), st.floats(0.1, 4.0)))
def test_what_takes_longer_never_speeds_a_run_up(path, knob, factors):
    whole, before = recorded(path)
    knob = LARGE.get(path.name, knob)
    low, high = sorted((*factors, 1.0))[::2]
    times = [replay(KNOBS[knob](whole, factor)).iteration_s(before) for factor in (low, high)]
    base = before.simulated_usage.iteration_s
    assert times[0] <= base * (1 + 1e-3)
    assert base <= times[1] * (1 + 1e-3)
    assert base == pytest.approx(before.measured_usage.iteration_s, rel=0.01), "as it was recorded"


def kernels_end_us(path):
    """Step -> end of its last kernel, with nothing but the file: a kernel is of the step in whose window it was launched."""
    with (gzip.open if path.name.endswith(".gz") else open)(path, "rt") as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    launched, windows, ends = {}, [], {}
    for event in events:
        kind, begin = str(event.get("cat")).lower(), float(event["ts"])
        if kind.endswith(("runtime", "driver")):
            launched[event["args"].get("correlation")] = begin
        elif event["name"].startswith("ProfilerStep") and not kind.startswith("gpu"):
            windows.append((begin, begin + float(event["dur"]), event["name"]))
    for event in events:
        at = launched.get(event.get("args", {}).get("correlation"))
        if str(event.get("cat")).lower() == "kernel" and at is not None:
            for begin, end, step in windows:
                if begin <= at < end:
                    ends[step] = max(ends.get(step, 0.0), float(event["ts"]) + float(event["dur"]))
    return ends


@pytest.mark.parametrize("path", [path for path in TRACES if "torchrec" in str(path) or "nanogpt" in str(path) or path.name in
                                  ("hta", "kineto")], ids=lambda path: path.name[:30])  # fmt: skip
def test_the_iteration_is_from_the_end_of_the_first_step_to_that_of_the_last(path):
    _, before = recorded(path)
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.name.endswith((".json", ".json.gz"))]
    ranks = [kernels_end_us(file) for file in files]
    ends = sorted(max(rank[step] for rank in ranks) for step in ranks[0])
    assert before.measured_usage.iteration_s == pytest.approx((ends[-1] - ends[0]) / (len(ends) - 1) / 1e6, rel=1e-3)


@pytest.mark.parametrize("path", [TRACES[0], A2A, SHARED / "nsys-ai", TRACES[13]], ids=lambda path: path.name[:30])
def test_half_and_twice_have_the_right_sign(path):
    whole, before = recorded(path)
    base = before.simulated_usage.iteration_s
    for change in KNOBS.values():
        half, twice = (replay(change(whole, factor)).iteration_s(before) for factor in (0.5, 2.0))
        assert half <= base * (1 + 1e-3) <= twice * (1 + 2e-3)


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name[:30])
def test_evening_delays_out_slows_no_run_down(path):
    whole, before = recorded(path)
    assert replay(as_peers(whole)).iteration_s(before) <= before.simulated_usage.iteration_s * 1.01


def test_a_stall_is_no_typical_delay():
    """All operations of two ranks are issued 5 us after the one before, but for one stall of 1 ms."""
    whole, _ = recorded(OWN / "ddp-2")
    stalled = [np.full(len(plan.rank.ops), 5_000, np.int64) for plan in whole.plans]
    stalled[0][7] = 1_000_000
    assert all((even == 5_000).all() for even in _by_type(whole, stalled, are_delays=True))
    assert not all((even == 5_000).all() for even in _by_type(whole, stalled))


def test_a_delay_costs_at_most_what_it_is():
    whole, before = recorded(A2A)
    late = replay(delay(whole, 1, 0.05)).iteration_s(before) - before.simulated_usage.iteration_s
    assert 0 <= late <= 0.0501
