from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.calibration.kernel_rows import read_kernel_rows, row_of
from simulator.calibration.kernel_rows import shape_of as row_shape
from simulator.calibration.kernels import predict_rows_s
from simulator.kernels import RooflineKernels
from simulator.kernels.attention import DROPOUT_CLOCKS, AttentionConstants, AttentionFamily, attention_times_s
from simulator.kernels.conditions import CONDITIONS
from simulator.kernels.roofline import KernelConstants
from simulator.models.layer import AttentionShape, Pass
from simulator.topology.device import Device
from simulator.topology.device_file import load_device
from validation.tables.reader import MEASUREMENTS

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


# -- whole calls worked out by hand -----------------------------------------------------------------------------------------


def one_per_sm(**changes: object) -> AttentionShape:
    """A head for each of 100 SMs, 2 blocks of 128 rows, 4 of 64 columns."""
    values: dict[str, object] = {
        "batch": 4,
        "heads": 25,
        "kv_heads": 5,
        "seq_q": 256,
        "seq_k": 256,
        "head_dim": 72,
        "causal": False,
    }
    return AttentionShape(**{**values, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(("causal", "n_pairs"), [(False, 8), (True, 2 + 4)])
@pytest.mark.parametrize(("kernel_pass", "products"), [("forward", 4), ("backward", 10)])
def test_compute_is_pairs_of_blocks_and_the_longest_row(
    causal: bool, n_pairs: int, kernel_pass: Pass, products: int, plain_device: Device
) -> None:
    """Heads of 72 are padded to 96; 4 pairs in the longest row; the smaller of load and longest row shows in part."""
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=1e20)
    constants = AttentionConstants(launch_s=3e-6, efficiency=0.5, score_s=20e-12, block_s=2e-6, longest=0.75, tail=0.25)
    pair_s = 128 * 64 * (products * 96 / (3e12 * 0.5) + 20e-12)
    load, longest = n_pairs * pair_s + 2 * 2e-6, 0.75 * 4 * pair_s + 2e-6
    expected = 3e-6 + max(load, longest) + 0.25 * min(load, longest)
    assert time_s(one_per_sm(causal=causal, kernel_pass=kernel_pass), fed, constants) == pytest.approx(expected)


def test_traffic_is_queries_keys_values_and_result(plain_device: Device) -> None:
    """Forward reads q, k, v and writes o; backward moves twice that and accumulates the gradient of q apart."""
    fast = replace(plain_device, peak_flops_per_s={"bf16": 1e25})
    constants = replace(BARE, dram_bandwidth=0.5, accumulator_bytes=16.0)
    tensors = 2 * 72 * 4 * 2 * (25 * 256 + 5 * 256)
    forward = time_s(one_per_sm(), fast, constants)
    backward = time_s(one_per_sm(kernel_pass="backward"), fast, constants)
    assert forward == pytest.approx(tensors / 1e12, rel=1e-6)
    assert backward == pytest.approx((2 * tensors + 16 * 4 * 25 * 256 * 72) / 1e12, rel=1e-6)
    copies = CONDITIONS["inference_prefill"]
    paged = float(attention_times_s([one_per_sm()], fast, constants, copies, is_backward=False)[0])
    extra = 2 * 2 * 2 * 4 * 5 * 256 * 72 / (0.8 * 2e12)  # keys and values, written and read once more
    assert paged == pytest.approx(copies.overhead_s + tensors / 1e12 + extra, rel=1e-3)


def test_power_limits_attention_by_flops_and_bytes(plain_device: Device) -> None:
    constants = replace(BARE, joules_per_flop=1e-9, joules_per_byte=1e-8)
    shape = one_per_sm()
    n_bytes = 2 * 72 * 4 * 2 * (25 * 256 + 5 * 256)
    assert time_s(shape, plain_device, constants) == pytest.approx((shape.n_flops * 1e-9 + n_bytes * 1e-8) / 400.0)


def test_the_first_generation_runs_at_a_share_of_the_second() -> None:
    """arXiv:2307.08691, section 4.1: 1.7 to 3.0 times as fast as the first, 1.3 to 2.5 times as fast as its Triton port."""
    second = {way: AttentionConstants(efficiency=0.8, score_s=10e-12) for way in ("forward", "backward")}
    family = AttentionFamily(implementations={"default": second})
    for name, least, most in (("flash_attention_1", 1.7, 3.0), ("flash_attention_triton", 1.3, 2.5)):
        for way, head_dim in itertools.product(("forward", "backward"), (64, 128)):
            found = family.of(name, way, head_dim)
            assert least <= 0.8 / found.efficiency * (1 + 1e-9) and 0.8 / found.efficiency <= most * (1 + 1e-9)
            assert found.score_s / 10e-12 == pytest.approx(0.8 / found.efficiency)
    own = {way: AttentionConstants(efficiency=0.1) for way in ("forward", "backward")}
    known = AttentionFamily(implementations={"default": second, "flash_attention_1": own})
    assert known.of("flash_attention_1", "forward").efficiency == 0.1


@pytest.mark.parametrize(
    ("heads", "cell", "kernel_pass", "triton_ms"),
    [
        (64, "compression ratio 4 (sparse, index top-k 512)", "forward", 1.47),
        (64, "compression ratio 128 (hierarchical)", "forward", 0.75),
        (128, "compression ratio 4 (sparse, index top-k 1024)", "forward", 4.44),
        (64, "compression ratio 0 (window 128)", "backward", 2.09),
        (64, "compression ratio 4 (sparse, index top-k 512)", "backward", 5.18),
        (128, "compression ratio 128 (hierarchical)", "backward", 5.55),
    ],
)
def test_triton_kernels_of_wide_heads_on_mi355x(heads: int, cell: str, kernel_pass: str, triton_ms: float) -> None:
    """AMD-AGI/Primus, ``deepseek-v4/benchmark/bench_v4_attention_results.md``: 4,096 tokens, heads of 512, column ``triton``."""
    cells = {
        "op": "dsv4_attention", "pass": kernel_pass, "batch": "1", "heads": str(heads), "kv_heads": "1", "seq_len": "4096",
        "head_dim": "512", "causal": "1", "dtype": "bf16", "notes": cell,
    }  # fmt: skip
    kernels, device, shape = RooflineKernels("benchmark"), load_device("mi355x"), row_shape(cells)
    assert isinstance(shape, AttentionShape)
    found_ms = 1e3 * kernels.duration_s(replace(shape, name="flash_attention_triton"), device)
    assert found_ms == pytest.approx(triton_ms, rel=0.35)


@pytest.mark.parametrize(
    ("cell", "forward_ms", "backward_ms"),
    [
        ("compression ratio 0 (window 128)", 0.20, 0.67),
        ("compression ratio 4 (sparse, index top-k 512)", 0.53, 2.55),
        ("compression ratio 128 (hierarchical)", 0.22, 0.78),
    ],
)
def test_chosen_keys_are_fetched_for_64_heads_at_a_time_on_mi355x(
    cell: str, forward_ms: float, backward_ms: float
) -> None:
    """AMD-AGI/Primus, as above, the fastest column of DeepSeek-V4-Flash; constants are fitted to the rows of V4-Pro, with 128 heads."""
    cells = {
        "op": "dsv4_attention", "batch": "1", "heads": "64", "kv_heads": "1", "seq_len": "4096", "head_dim": "512", "causal": "1",
        "dtype": "bf16", "notes": cell,
    }  # fmt: skip
    kernels, device = RooflineKernels("benchmark"), load_device("mi355x")
    for kernel_pass, measured_ms in (("forward", forward_ms), ("backward", backward_ms)):
        found_ms = 1e3 * kernels.duration_s(row_shape(cells | {"pass": kernel_pass}), device)
        assert found_ms == pytest.approx(measured_ms, rel=0.15)


def test_kernels_for_eight_bits_and_for_wide_heads_have_constants_of_their_own() -> None:
    names = ("default", "default_wide", "default_fp8", "default_wide_mxfp8", "other", "flash_attention_triton_latent")
    family = AttentionFamily(
        implementations={n: {"forward": AttentionConstants(launch_s=i)} for i, n in enumerate(names)}
    )
    for name, head_dim, dtype, expected in (
        ("flash_attention", 128, "bf16", "default"),
        ("flash_attention", 160, "bf16", "default_wide"),
        ("flash_attention", 64, "fp8", "default_fp8"),
        ("flash_attention", 160, "fp8", "default_fp8"),
        ("flash_attention", 192, "mxfp8", "default_wide_mxfp8"),
        ("flash_attention", 128, "mxfp8", "default"),
        ("other", 192, "fp8", "other"),
        ("flash_attention_triton", 512, "bf16", "flash_attention_triton_latent"),
        ("flash_attention", 512, "bf16", "default_wide"),
    ):
        assert names[int(family.of(name, "forward", head_dim, dtype).launch_s)] == expected


def test_backward_in_eight_bits_skips_nothing_before_the_window() -> None:
    """cuDNN 9.22 on GB200 by NVIDIA/cudnn-frontend@3929da2, window 128, 8,192 over 4,096 tokens: bf16 0.911 / 0.465 ms, fp8 6.176 / 1.731
    ms backward; 0.385 / 0.195 ms forward.
    """
    device = load_device("gb200")
    for dtype, kernel_pass, measured in (
        ("bf16", "backward", 0.911 / 0.465),
        ("fp8", "backward", 6.176 / 1.731),
        ("fp8", "forward", 0.385 / 0.195),
    ):
        shape = replace(
            shape_of(causal=True, heads=128, kernel_pass=kernel_pass), batch=2, head_dim=64, window=128, dtype=dtype
        )
        long, short = (RooflineKernels().duration_s(replace(shape, seq_q=n, seq_k=n), device) for n in (8192, 4096))
        assert long / short == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("device", ["gb200", "gb300", "h200-sxm"])
def test_attention_of_cudnn_takes_what_nvidia_measured_at_lengths_that_nothing_was_fitted_to(device: str) -> None:
    """Rows of 4,096 tokens (split=test); Hopper in eight bits is slower backward than in sixteen, Blackwell faster forward."""
    rows = read_kernel_rows(MEASUREMENTS / "cudnn_attention.csv", device, splits=("test",))
    errors = np.abs(predict_rows_s(rows, load_device(device), KernelConstants.of(load_device(device))))
    errors = np.abs(errors / np.array([row.time_s for row in rows]) - 1.0)
    assert np.median(errors) < 0.05 and errors.max() < 0.11


def test_cudnn_was_slower_before_its_release_of_november_2025() -> None:
    """GB300 with PyTorch 25.09 (cuDNN 9.13.1, CUDA 13.0), one sequence of 8,192 tokens, 128 heads: NVIDIA/cudnn-frontend@0b1577c."""
    device = load_device("gb300")
    for dtype, kernel_pass, measured_s in (
        ("bf16", "forward", 1.281e-3),
        ("bf16", "backward", 4.778e-3),
        ("fp8", "forward", 1.060e-3),
        ("fp8", "backward", 3.632e-3),
    ):
        shape = replace(shape_of(8192, causal=True, heads=128), batch=1, kv_heads=8, dtype=dtype)
        shape = replace(shape, kernel_pass="forward" if kernel_pass == "forward" else "backward")
        then, now = (RooflineKernels("benchmark", cuda=cuda).duration_s(shape, device) for cuda in ("13.0", "13.1"))
        assert then == pytest.approx(measured_s, rel=0.08) and now < 0.9 * measured_s
        assert RooflineKernels("benchmark", cuda="12.8").duration_s(shape, device) == then


def test_shares_of_attention_are_shares() -> None:
    for c in (AttentionConstants(), AttentionFamily(implementations=_attention_of_nothing()).of("", "backward")):
        assert all(0 < share <= 1 for share in (c.efficiency, c.longest, c.tail, c.dram_bandwidth))
        assert 1e-6 <= c.launch_s < 1e-5 and 1e-6 <= c.block_s < 1e-5 and 1e-11 <= c.score_s < 1e-10
    assert _attention_of_nothing()["default"]["forward"].accumulator_bytes == 0
    # fp32 gradients of q are zeroed, added to and read once more: 16 bytes an element
    assert _attention_of_nothing()["default"]["backward"].accumulator_bytes == 16


def _attention_of_nothing() -> Mapping[str, Mapping[str, AttentionConstants]]:
    return KernelConstants.of(replace(load_device("a100-sxm4-80g"), kernels={})).attention.implementations


def test_products_of_32_bits_are_three_in_tf32_from_ampere_on():
    """A100: 19.5 TFLOP/s on its plain units, 156 in TF32, so 52 by three products each; V100 has no TF32."""
    shape = replace(shape_of(8192), dtype="fp32")
    rates = {}
    for name in ("a100-sxm4-80g", "v100-sxm2-32g"):
        device = load_device(name)
        rates[name] = shape.n_flops / RooflineKernels().duration_s(shape, device)
    assert 19.5e12 < rates["a100-sxm4-80g"] < 156e12 / 3
    assert rates["v100-sxm2-32g"] < 15.7e12


def test_chosen_keys_are_fetched_for_every_query(plain_device: Device) -> None:
    """1,024 queries fetch 64 keys of 512 elements of 16 bits each; backward adds their gradients, 32 bits read and written."""
    chosen = AttentionShape(batch=1, heads=2, kv_heads=1, seq_q=1024, seq_k=1024, head_dim=512, window=64, gathered=64)
    slow = AttentionConstants(efficiency=1.0, score_s=0.0, block_s=0.0, gather_bandwidth=1e-3)
    for kernel_pass, n_bytes in (("forward", 2), ("backward", 2 + 4 + 4)):
        is_backward = kernel_pass == "backward"
        one, none = (
            float(
                attention_times_s(
                    [replace(chosen, kernel_pass=kernel_pass, gathered=n)], plain_device, slow,
                    CONDITIONS["training"], is_backward=is_backward,
                )[0]
            )
            for n in (64, 0)
        )  # fmt: skip
        fetched_s = 1024 * 64 * 512 * n_bytes / (1e-3 * plain_device.memory_bandwidth_bytes_per_s)
        assert one - none == pytest.approx(fetched_s, rel=0.02)


@pytest.mark.parametrize(("kernel_pass", "time_us"), [("forward", 1410.0), ("backward", 6320.0)])
def test_sparse_attention_of_deepseek_v4_takes_what_it_fetches(kernel_pass: str, time_us: float) -> None:
    """AMD-AGI/Primus on MI355X, split=fit; dense attention over as many keys would take a quarter."""
    cells = {
        "op": "dsv4_attention",
        "device": "mi355x",
        "heads": "128",
        "kv_heads": "1",
        "head_dim": "512",
        "batch": "1",
    }
    notes = "DeepSeek-V4 pro, compression ratio 4 (sparse, index top-k 1024)"
    row = row_of(
        {**cells, "seq_len": "4096", "dtype": "bf16", "pass": kernel_pass, "time_us": str(time_us), "notes": notes}
    )
    device = load_device("mi355x")
    assert predict_rows_s([row], device, KernelConstants.of(device))[0] == pytest.approx(row.time_s, rel=0.12)


def test_the_first_generation_of_wide_heads_is_a_share_of_the_second_of_wide_heads() -> None:
    narrow, wide = (
        {way: AttentionConstants(efficiency=share) for way in ("forward", "backward")} for share in (0.8, 0.4)
    )
    family = AttentionFamily(implementations={"default": narrow, "default_wide": wide})
    for way in ("forward", "backward"):
        first = {head_dim: family.of("flash_attention_1", way, head_dim).efficiency for head_dim in (128, 256)}
        assert first[256] == pytest.approx(first[128] / 2)
