from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernels import RooflineKernels
from simulator.kernels.attention import DROPOUT_CLOCKS, AttentionConstants, attention_times_s
from simulator.kernels.conditions import CONDITIONS
from simulator.models.layer import AttentionShape, Pass
from simulator.topology.device import Device, load_device

BARE = AttentionConstants(
    launch_s=0.0, efficiency=1.0, score_s=0.0, block_s=0.0, longest=0.0, tail=0.0, dram_bandwidth=1.0
)


def shape_of(
    seq: int = 4096, *, causal: bool = False, heads: int = 16, kernel_pass: Pass = "forward"
) -> AttentionShape:
    return AttentionShape(
        batch=4,
        heads=heads,
        kv_heads=heads,
        seq_q=seq,
        seq_k=seq,
        head_dim=128,
        causal=causal,
        kernel_pass=kernel_pass,
    )


def time_s(shape: AttentionShape, device: Device, constants: AttentionConstants = BARE) -> float:
    is_backward = shape.kernel_pass != "forward"
    return float(attention_times_s([shape], device, constants, CONDITIONS["training"], is_backward=is_backward)[0])


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
def test_full_attention_of_whole_blocks_runs_at_the_peak(plain_device: Device, kernel_pass: Pass) -> None:
    shape = shape_of(kernel_pass=kernel_pass)
    assert time_s(shape, plain_device) == pytest.approx(shape.n_flops / 300e12, rel=0.01)


def test_a_causal_mask_skips_the_blocks_above_the_diagonal(plain_device: Device) -> None:
    full, causal = (time_s(shape_of(causal=c), plain_device) for c in (False, True))
    n_rows, n_columns = 4096 / 128, 4096 / 64
    expected = sum(2 * (i + 1) for i in range(int(n_rows))) / (n_rows * n_columns)
    assert causal / full == pytest.approx(expected, rel=0.01)


def test_softmax_costs_the_same_for_every_head_dimension(plain_device: Device) -> None:
    costly = replace(BARE, score_s=50e-12)
    for head_dim in (64, 128, 256):
        shape = replace(shape_of(), head_dim=head_dim)
        extra = time_s(shape, plain_device, costly) - time_s(shape, plain_device)
        assert extra == pytest.approx(4 * 16 * 4096 * 4096 * 50e-12 / 100, rel=0.02)


@pytest.mark.parametrize("name", ["v100-sxm2-16g", "a100-sxm4-80g", "h100-sxm5-80g", "h200-sxm", "b200", "cpu-host"])
@given(seq=st.integers(1, 6000), more=st.integers(1, 3000), causal=st.booleans(), backward=st.booleans())
def test_longer_sequences_are_never_faster(name: str, seq: int, more: int, causal: bool, backward: bool) -> None:
    device, model = load_device(name), RooflineKernels()
    way: Pass = "backward" if backward else "forward"
    short, long = (model.duration_s(shape_of(s, causal=causal, kernel_pass=way), device) for s in (seq, seq + more))
    assert long >= short > 0


def test_fewer_key_heads_are_never_slower() -> None:
    device, model = load_device("a100-sxm4-80g"), RooflineKernels()
    shared = replace(shape_of(512), kv_heads=1)
    assert model.duration_s(shared, device) <= model.duration_s(shape_of(512), device)


def test_implementations_are_chosen_by_name() -> None:
    device, model = load_device("h100-sxm5-80g"), RooflineKernels()
    default = model.duration_s(shape_of(8192), device)
    assert model.duration_s(replace(shape_of(8192), name="flash_attention_2"), device) > 1.2 * default
    assert model.duration_s(replace(shape_of(8192), name="something else"), device) == default


@pytest.mark.parametrize("kernel_pass", ["forward", "backward"])
def test_dropout_costs_the_same_for_every_head_dimension(kernel_pass: Pass, plain_device: Device) -> None:
    def extra(head_dim: int) -> float:
        shape = replace(shape_of(kernel_pass=kernel_pass), head_dim=head_dim)
        return time_s(replace(shape, has_dropout=True), plain_device) - time_s(shape, plain_device)

    scores = 4 * 16 * 4096**2 / plain_device.n_sms
    expected = scores * DROPOUT_CLOCKS[kernel_pass] / plain_device.clock_hz
    assert extra(64) == pytest.approx(expected, rel=0.02) == pytest.approx(extra(128), rel=0.02)


def test_a_window_costs_its_keys_only(plain_device: Device) -> None:
    def seconds(seq: int, window: int) -> float:
        return time_s(replace(shape_of(seq, causal=True), window=window), plain_device)

    assert seconds(8192, 8192) == seconds(8192, 0)
    assert seconds(32768, 1024) == pytest.approx(2 * seconds(16384, 1024), rel=0.05)
    narrow = replace(shape_of(32768, causal=True), window=4096)
    assert seconds(32768, 4096) == pytest.approx(narrow.n_flops / 300e12, rel=0.1)
