"""What a change does to an iteration has the sign that it must have, on every recording: a property, not a figure.

Everything in a replay waits for the latest of its causes, so that no event can come later where a duration is shorter.
"""

from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.replay import replay
from simulator.replay.changes_of_kernels import scale_host, scale_kernels
from simulator.replay.changes_of_links import scale_communication
from simulator.replay.changes_of_ranks import delay, slow_down
from simulator.trace_io import read
from simulator.trace_io.reconstruct import reconstruct

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
OWN = Path(__file__).resolve().parents[2] / "traces"
TRACES = [*(OWN / name for name in ("ddp-2", "fsdp2-2", "pp-4")), *(SHARED / name for name in (
    "megatron-tp2/tp2/result", "torchrec/trace/sst_long_a2a_optimizer_4", "torchrec/trace/sst_long_a2a_optimizer",
    "param/et_replay/tests/inputs/dlrm_kineto.tar.gz", "hta", "nsys-ai", "kineto",
    "modded-nanogpt/2025-10-31_AdamSyncGradientHook/modded-nanogpt-current-gpu-rank-00-chrome-trace.ve12c782.json.gz",
))]  # fmt: skip
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
    low, high = sorted((*factors, 1.0))[::2]
    times = [replay(KNOBS[knob](whole, factor)).iteration_s(before) for factor in (low, high)]
    base = before.simulated_usage.iteration_s
    assert times[0] <= base * (1 + 1e-3)
    assert base <= times[1] * (1 + 1e-3)
    assert base == pytest.approx(before.measured_usage.iteration_s, rel=0.01), "as it was recorded"


@pytest.mark.parametrize("path", [TRACES[0], TRACES[4], TRACES[8], TRACES[10]], ids=lambda path: path.name[:30])
def test_half_and_twice_have_the_right_sign(path):
    whole, before = recorded(path)
    base = before.simulated_usage.iteration_s
    for change in KNOBS.values():
        half, twice = (replay(change(whole, factor)).iteration_s(before) for factor in (0.5, 2.0))
        assert half <= base * (1 + 1e-3) <= twice * (1 + 2e-3)


def test_a_delay_costs_at_most_what_it_is():
    whole, before = recorded(TRACES[4])
    late = replay(delay(whole, 1, 0.05)).iteration_s(before) - before.simulated_usage.iteration_s
    assert 0 <= late <= 0.0501
