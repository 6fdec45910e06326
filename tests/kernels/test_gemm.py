from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.kernels import RooflineKernels
from simulator.kernels.conditions import CONDITIONS, Conditions
from simulator.kernels.gemm import GemmColumns, GemmConstants, alignment_elements, gemm_times_s, under_release
from simulator.models.layer import GemmShape, Pass, PointwiseShape
from simulator.topology.device import Device
from simulator.topology.device_file import load_device

BARE = GemmConstants(
    launch_s=0.0,
    tile_s=0.0,
    tile_s_per_element=0.0,
    solo_penalty=0.0,
    split_s=1.0,
    overlap_norm=30.0,
    dram_bandwidth=1.0,
    warm_share=0.0,
    tile_efficiency={"128x128": 1.0},
)
FED_BYTES_PER_S = 1e15

TRAINING = CONDITIONS["training"]


def time_s(
    shape: GemmShape, device: Device, constants: GemmConstants = BARE, conditions: Conditions = TRAINING
) -> float:
    return float(gemm_times_s(GemmColumns.of([shape], device, constants), device, constants, conditions)[0])


@pytest.mark.parametrize("waves", [1, 2, 5])
@pytest.mark.parametrize("batch", [1, 4])
def test_perfectly_tiled_product_takes_waves_times_tile_time(plain_device: Device, waves: int, batch: int) -> None:
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
    shape = GemmShape(m=128 * waves * 100 // batch, n=128, k=8192, batch=batch)
    tile_s = 2 * 128 * 128 * 8192 / (300e12 / 100)
    assert time_s(shape, fed) == pytest.approx(waves * tile_s, rel=1e-6)


def test_one_tile_more_costs_a_whole_wave(plain_device: Device) -> None:
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
    full = time_s(GemmShape(m=128 * 100, n=128, k=8192), fed)
    more = time_s(GemmShape(m=128 * 100 + 1, n=128, k=8192), fed)
    assert more == pytest.approx(2 * full, rel=1e-6)


def test_sms_that_are_left_to_others_take_no_tile(plain_device: Device) -> None:
    """90 of 100 SMs work on 90 tiles at once, and on 100 in two turns, each SM at its own rate."""
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
    tile_s = 2 * 128 * 128 * 8192 / (300e12 / 100)
    for tiles, left, waves in ((90, 10, 1), (100, 0, 1), (100, 10, 2), (180, 10, 2)):
        shape = GemmShape(m=128 * tiles, n=128, k=8192, left_sms=left)
        assert time_s(shape, fed) == pytest.approx(waves * tile_s, rel=1e-6)


def test_memory_floor(plain_device: Device) -> None:
    shape = GemmShape(m=1 << 20, n=128, k=32)
    floor_s = shape.n_bytes / 2e12
    assert time_s(shape, plain_device) == pytest.approx(floor_s, rel=0.05)


def test_split_k_helps_a_long_product_with_few_tiles(plain_device: Device) -> None:
    shape = GemmShape(m=128, n=128, k=1 << 20)
    without = time_s(shape, plain_device)
    assert time_s(shape, plain_device, replace(BARE, split_s=2e-6)) < 0.2 * without


def test_power_limit_bounds_long_runs_and_not_bursts(plain_device: Device) -> None:
    constants = replace(BARE, joules_per_flop=2e-12)
    shape = GemmShape(m=128 * 100, n=128 * 8, k=8192)
    limited = time_s(shape, plain_device, constants)
    assert limited == pytest.approx(shape.n_flops * 2e-12 / 400.0)
    burst = time_s(shape, plain_device, constants, Conditions(name="burst", burst_s=10.0))
    assert burst == pytest.approx(time_s(shape, plain_device), rel=1e-3)


def test_a_job_takes_more_energy_than_a_benchmark_whose_limit_acts(plain_device: Device) -> None:
    """An eighth more joules per FLOP is an eighth more time under the limit, and nothing in a benchmark of one board."""
    constants = replace(BARE, joules_per_flop=2e-12)
    warm = replace(constants, sustained_energy=1.125)
    shape = GemmShape(m=128 * 100, n=128 * 8, k=8192)
    assert time_s(shape, plain_device, warm) == pytest.approx(shape.n_flops * 2.25e-12 / 400.0)
    benchmark = Conditions(name="benchmark", burst_s=1e-5)
    assert time_s(shape, plain_device, warm, benchmark) == time_s(shape, plain_device, constants, benchmark)


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "mxfp8", "nvfp4"])
@pytest.mark.parametrize(("less", "more"), [("b200", "gb200"), ("b300", "gb300"), ("b200", "b300"), ("gb200", "gb300")])
def test_a_board_of_the_same_family_with_less_power_trains_no_faster(less: str, more: str, dtype: str) -> None:
    """Limits are 1,000, 1,200, 1,100 and 1,400 W; the dies are of one process, so no precision turns the order round."""
    shape = GemmShape(m=8192, n=8192, k=8192, dtype=dtype)
    kernels = RooflineKernels()
    assert kernels.duration_s(shape, load_device(less)) > kernels.duration_s(shape, load_device(more))


#: ms of four forward products of 15,872 tokens (hidden 4,096, intermediate 16,384), their dgrads and wgrads on one B300: the mean of
#: what NVIDIA/TransformerEngine prints at 332941783 and d0067d0da (``gemm_profiling.rst``); and of its NVFP4 with quantising (autocast)
_B300_MS = {"bf16": 12.73, "fp8": 6.81, "mxfp8": 7.24, "nvfp4": 3.76}
_B300_NVFP4_QUANTISED_MS = 6.45


@pytest.mark.parametrize("dtype", list(_B300_MS))
def test_products_of_a_layer_on_one_b300_take_what_transformer_engine_prints(dtype: str) -> None:
    device, kernels = load_device("b300"), RooflineKernels("profiler")
    tokens, sizes = 15872, [(4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096)]
    shapes = [(m, n, k) for a, b in sizes for m, n, k in ((tokens, b, a), (tokens, a, b), (a, b, tokens))]
    products_s = sum(kernels.duration_s(GemmShape(m=m, n=n, k=k, dtype=dtype), device) for m, n, k in shapes)
    assert 1e3 * products_s == pytest.approx(_B300_MS[dtype], rel=0.02)
    if dtype == "nvfp4":  # the first operand in rows and columns, the second in rows; all read twice
        rows, both = sum(n * k for _, n, k in shapes), sum(m * k for m, _, k in shapes)
        casts = [
            PointwiseShape(name="quantize_nvfp4", n_elements=n, read_bytes=4 * n, written_bytes=layouts * 0.5625 * n, dtype="fp8")
            for n, layouts in ((rows, 1), (both, 2))
        ]  # fmt: skip
        casts_s = sum(kernels.duration_s(cast, device) for cast in casts)
        assert 1e3 * (products_s + casts_s) == pytest.approx(_B300_NVFP4_QUANTISED_MS, rel=0.02)


def test_grouped_products_on_gb200_draw_what_they_drew_once_the_limit_acted() -> None:
    """NVIDIA/cudnn-frontend, ``benchmark/cutedsl_fusion_kernels/results``: 4.4 TFLOP in mxfp8 in 1.61 and 1.66 ms on two GB200."""
    n = round((4.4e12 / 2) ** (1 / 3) / 128) * 128
    seconds = RooflineKernels("profiler").duration_s(GemmShape(m=n, n=n, k=n, dtype="mxfp8"), load_device("gb200"))
    assert 1e3 * seconds * 4.4e12 / (2 * n**3) == pytest.approx((1.61 + 1.66) / 2, rel=0.03)


def test_products_that_power_does_not_limit_run_at_the_rate_of_their_library() -> None:
    """NVFP4 on a GB200: cuBLASLt at 7,628 TFLOP/s where operands are half zeros (Azure); FlashInfer's in vLLM (KM-57205e07, a GB300)."""
    device = replace(load_device("gb200"), power_limit_w=1e6)
    n, kernels = 16384, RooflineKernels()
    vendor = GemmShape(m=n, n=n, k=n, dtype="nvfp4")
    assert vendor.n_flops / kernels.duration_s(vendor, device) == pytest.approx(7628e12, rel=0.02)
    timed = GemmShape(m=8192, n=51200, k=12288, dtype="nvfp4", library="flashinfer")
    assert RooflineKernels("graph_replay").duration_s(timed, load_device("gb300")) == pytest.approx(1821e-6, rel=0.06)
    eight = [replace(timed, dtype="fp8", library=name) for name in ("", "flashinfer")]  # no table tells them apart
    assert kernels.duration_s(eight[0], device) == kernels.duration_s(eight[1], device)


@pytest.mark.parametrize(
    ("shape", "elements"),
    [
        (GemmShape(m=3, n=64, k=64), 8),
        (GemmShape(m=8, n=50257, k=768), 1),
        (GemmShape(m=8, n=30522, k=768), 2),
        (GemmShape(m=50257, n=768, k=8192, kernel_pass="wgrad"), 1),
        (GemmShape(m=768, n=768, k=3, kernel_pass="wgrad"), 8),
        (GemmShape(m=8, n=20, k=64, dtype="fp32"), 4),
        (GemmShape(m=1024, n=2145, k=1024, dtype="fp8"), 16),
        (GemmShape(m=1024, n=2048, k=1028, dtype="fp8", kernel_pass="wgrad"), 4),
    ],
)
def test_alignment_follows_the_contiguous_dimensions(shape: GemmShape, elements: int) -> None:
    assert alignment_elements(shape) == elements


def test_unaligned_products_are_slower_on_tensor_cores_only() -> None:
    device, model = load_device("h100-sxm5-80g"), RooflineKernels()
    assert model.duration_s(GemmShape(m=8192, n=50257, k=1600), device) > 3 * model.duration_s(
        GemmShape(m=8192, n=50304, k=1600), device
    )
    # operands of 8 bits lie along k: of odd length they are no better off
    odd, even = (model.duration_s(GemmShape(m=8192, n=50304, k=k, dtype="fp8"), device) for k in (1601, 1600))
    assert odd > 3 * even
    # cuBLASLt on an H200, split=fit of Azure/AI-benchmarking-guide@7f20e5fa: an odd number of columns takes 11.0 us, not 29
    measured_s = 11.0282e-6
    assert model.duration_s(GemmShape(m=1024, n=2145, k=1024, dtype="fp8"), load_device("h200-sxm")) < 1.5 * measured_s
    odd = model.duration_s(GemmShape(m=8192, n=50257, k=1600, dtype="fp32"), device)
    even = model.duration_s(GemmShape(m=8192, n=50304, k=1600, dtype="fp32"), device)
    assert odd <= even


@pytest.mark.parametrize(
    ("shape", "tflops"),
    [
        (GemmShape(m=8192, n=51136, k=14336, dtype="fp16"), 255.4),
        (GemmShape(m=8192, n=51138, k=14336, dtype="fp16"), 136.9),
        (GemmShape(m=8192, n=51137, k=14336, dtype="fp16"), 76.1),
        (GemmShape(m=2048, n=2048, k=130, batch=64, dtype="fp16"), 69.5),
        (GemmShape(m=2048, n=134, k=2048, batch=64, dtype="fp16"), 88.6),
    ],
)
def test_unaligned_products_on_a100_are_as_slow_as_published(shape: GemmShape, tflops: float) -> None:
    """EleutherAI/cookbook@27dff48d59, sizing/results: vocabularies of 51,136 and more, heads of 130 and 134."""
    seconds = RooflineKernels().duration_s(shape, load_device("a100-sxm4-40g"))
    assert shape.n_flops / seconds / 1e12 == pytest.approx(tflops, rel=0.2)


@pytest.mark.parametrize(
    ("head", "batch", "cuda", "is_scalar"),
    [
        (108, 64, "11.3", True),
        (108, 64, "11.5", True),
        (108, 64, "11.6", False),
        (108, 64, "11.8", False),
        (108, 64, "", False),
        (112, 64, "11.3", False),
        (108, 1, "11.3", False),
    ],
)
def test_early_libraries_leave_batches_of_unaligned_products_to_the_fp32_units(
    head: int, batch: int, cuda: str, is_scalar: bool
) -> None:
    """The datasheet of the A100: 19.5 TFLOP/s without tensor cores; scores of one long sequence are a plain product."""
    shape = GemmShape(m=4096, n=4096, k=head, batch=batch, dtype="fp16")
    seconds = RooflineKernels(cuda=cuda).duration_s(shape, load_device("a100-sxm4-80g"))
    assert (shape.n_flops / seconds <= 19.5e12) == is_scalar


@pytest.mark.parametrize("name", ["v100-sxm2-16g", "a100-sxm4-40g", "h100-sxm5-80g", "h200-sxm", "b200"])
@given(
    sizes=st.tuples(st.integers(1, 20000), st.integers(1, 2000), st.integers(1, 1000)),
    more=st.integers(1, 500),
    batch=st.integers(1, 64),
)
def test_a_longer_sum_is_never_faster(name: str, sizes: tuple[int, int, int], more: int, batch: int) -> None:
    m, n, k = sizes
    device, model = load_device(name), RooflineKernels()
    short = model.duration_s(GemmShape(m=m, n=8 * n, k=8 * k, batch=batch), device)
    long = model.duration_s(GemmShape(m=m, n=8 * n, k=8 * (k + more), batch=batch), device)
    assert long >= short > 0


@given(m=st.integers(1, 5000), n=st.integers(1, 600), k=st.integers(1, 600))
def test_no_product_beats_the_datasheet(m: int, n: int, k: int) -> None:
    model = RooflineKernels()
    for name in ("v100-sxm2-32g", "a100-sxm4-80g", "h200-sxm"):
        device = load_device(name)
        shape = GemmShape(m=m, n=8 * n, k=8 * k, dtype="fp16")
        assert model.duration_s(shape, device) >= shape.n_flops / device.peak("fp16")


def test_many_shapes_at_once_equal_one_by_one() -> None:
    device = load_device("a100-sxm4-80g")
    shapes = [GemmShape(m=m, n=n, k=k) for m in (1, 300, 4096) for n in (64, 50257) for k in (32, 1000)]
    together = gemm_times_s(GemmColumns.of(shapes, device, GemmConstants()), device, GemmConstants(), TRAINING)
    alone = [time_s(shape, device, GemmConstants()) for shape in shapes]
    assert together.tolist() == alone


# -- whole products worked out by hand --------------------------------------------------------------------------------------
#
# 100 SMs of 3 TFLOP/s, tiles of 128 x 64 at half of that: 8,192 elements, of which four fit on an SM at a time.

NARROW = GemmConstants(tile_efficiency={"128x64": 0.5})
AREA = 128 * 64
EDGE_S = 1e-6 + 100e-12 * AREA


def loop_s(steps: int, rounds: int = 1) -> float:
    """Rounds of tiles; where fewer than four are on an SM, up to a tenth more."""
    return rounds * 2 * AREA * steps / 1.5e12 * (1 + 0.1 * max(0.0, 1 - rounds / 4))


@pytest.mark.parametrize(
    ("m", "k", "steps", "rounds"), [(1280, 64, 64, 1), (1280, 65, 96, 1), (1281, 64, 64, 2), (3 * 1280, 64, 64, 3), (6 * 1280, 64, 64, 6)]
)  # fmt: skip
def test_a_product_is_launch_rounds_edges_and_their_exposed_rest(
    m: int, k: int, steps: int, rounds: int, plain_device: Device
) -> None:
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
    expected = 2.3e-6 + loop_s(steps, rounds) + EDGE_S * (1 + 0.9 * (rounds - 1))
    constants = replace(NARROW, alignment_efficiency={})
    assert time_s(GemmShape(m=m, n=640, k=k), fed, constants) == pytest.approx(expected, rel=1e-6)


def test_parts_of_a_split_product_are_added_from_memory(plain_device: Device) -> None:
    """One tile over 16 SMs: each a sixteenth of k; 8 bytes (written and read) of each part at 1.6 of 1 TB/s."""
    slow = replace(plain_device, memory_bandwidth_bytes_per_s=1e12)
    shape = GemmShape(m=128, n=64, k=1 << 16)
    n_bytes = 2 * (128 + 64) * (1 << 16) + 2 * AREA
    warm = 0.5 * 40e6
    assert n_bytes > warm
    memory_s = (warm / 0.7 + (n_bytes - warm) / 0.8) / 1e12
    body_s = ((loop_s(4096) + EDGE_S) ** 4.5 + memory_s**4.5) ** (1 / 4.5)
    expected = 2.3e-6 + body_s + 2.5e-6 + 8 * 16 * AREA / 1.6e12
    assert time_s(shape, slow, NARROW) == pytest.approx(expected, rel=1e-6)
    twice = time_s(replace(shape, batch=2), slow, NARROW)
    memory_s = (warm / 0.7 + (2 * n_bytes - warm) / 0.8) / 1e12
    body_s = ((loop_s(4096) + EDGE_S) ** 4.5 + memory_s**4.5) ** (1 / 4.5)
    assert twice == pytest.approx(2.3e-6 + body_s + 2.5e-6 + 8 * 16 * 2 * AREA / 1.6e12, rel=1e-6)


def test_small_operands_come_from_cache_unless_it_was_flushed(plain_device: Device) -> None:
    shape = GemmShape(m=1 << 13, n=64, k=64)
    n_bytes = 2 * (64 << 13) + 2 * 64 * 64 + 2 * (64 << 13)
    flat = replace(BARE, warm_share=0.5, dram_bandwidth=0.25)
    for name, share in (("training", 0.7), ("events_flushed", 0.25)):
        timing = CONDITIONS[name]
        expected = n_bytes / (share * plain_device.memory_bandwidth_bytes_per_s) + timing.overhead_s
        fast = replace(plain_device, peak_flops_per_s={"bf16": 1e18, "fp16": 1e18})
        assert time_s(shape, fast, flat, timing) == pytest.approx(expected, rel=1e-3)


def test_energy_is_that_of_arithmetic_and_of_traffic(plain_device: Device) -> None:
    """fp32 takes 300 / 20 times the energy of fp16 for a FLOP, less what the device's factor says."""
    shape = GemmShape(m=1 << 12, n=1 << 12, k=1 << 12, dtype="fp32", batch=2)
    constants = replace(BARE, joules_per_flop=3e-12, joules_per_byte=3e-9, dtype_energy={"fp32": 0.5})
    n_bytes = 2 * 3 * 4 * (1 << 24)
    energy = shape.n_flops * 7.5 * 3e-12 + n_bytes * 3e-9
    assert time_s(shape, plain_device, constants) == pytest.approx(energy / 400.0)


UNALIGNED = [(64, "bf16", 1.0), (68, "bf16", 0.85), (66, "bf16", 0.7), (65, "bf16", 0.5), (65, "fp32", 1.0)]


@pytest.mark.parametrize(("n", "dtype", "share"), UNALIGNED)
def test_what_is_not_aligned_is_loaded_piece_by_piece(n: int, dtype: str, share: float, plain_device: Device) -> None:
    """Full speed from multiples of 16 bytes; fp32 does not use the tensor cores."""
    peaks = dict.fromkeys(("fp32", "fp16", "bf16"), 300e12)
    device = replace(plain_device, peak_flops_per_s=peaks, memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
    tile_s = 2 * 128 * 128 * 8192 / 3e12
    assert time_s(GemmShape(m=128, n=n, k=8192, dtype=dtype), device) == pytest.approx(tile_s / share)


def test_factors_of_dtype_and_pass_multiply_the_peak(plain_device: Device) -> None:
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
    constants = replace(BARE, dtype_efficiency={"bf16": 0.8}, pass_efficiency={"wgrad": 0.5})
    plain, own, wgrad = (
        time_s(shape, fed, given)
        for shape, given in (
            (GemmShape(m=128, n=128, k=8192), BARE), (GemmShape(m=128, n=128, k=8192), constants),
            (GemmShape(m=128, n=128, k=8192, kernel_pass="wgrad"), constants),
        )
    )  # fmt: skip
    assert (plain / own, plain / wgrad) == (pytest.approx(0.8), pytest.approx(0.4))


def test_gradients_in_eight_bits_are_summed_accurately_on_hopper_alone() -> None:
    """Fast sums are 1.1 to 1.2 times as fast on H100 (pytorch/ao, issue 2377); H20's slow tensor cores hide most of the additions."""

    def loop_share(name: str, dtype: str, kernel_pass: Pass) -> float:
        device = replace(load_device(name), memory_bandwidth_bytes_per_s=FED_BYTES_PER_S)
        shape = GemmShape(m=2048, n=2048, k=8192, dtype=dtype)
        return time_s(replace(shape, kernel_pass=kernel_pass), device) / time_s(shape, device)

    for kernel_pass in ("dgrad", "wgrad"):
        assert 1.1 < loop_share("h100-sxm5-80g", "fp8", kernel_pass) < 1.2
        assert 1.0 < loop_share("h20", "fp8", kernel_pass) < 1.05
        assert loop_share("h100-sxm5-80g", "fp8_block", kernel_pass) == pytest.approx(1.0)
        assert loop_share("h100-sxm5-80g", "bf16", kernel_pass) == pytest.approx(1.0)
        assert loop_share("b200", "fp8", kernel_pass) == pytest.approx(1.0)


def test_old_libraries_are_slower_by_the_oldest_factor_that_still_counts() -> None:
    table = {"11.8": 0.5, "12.5": 0.75, "12.5/fp8": 0.6, "12.10": 0.9}
    constants = GemmConstants(tile_efficiency={"128x128": 0.8}, release_efficiency=table, dtype_efficiency={"fp8": 0.5})
    for cuda, tile, fp8 in (
        ("11.7", 0.4, 0.5),
        ("11.8", 0.4, 0.5),
        ("12.1", 0.6, 0.4),
        ("12.6", 0.72, 0.5),
        ("12.10", 0.72, 0.5),
        ("13.0", 0.8, 0.5),
    ):
        found = under_release(constants, cuda)
        assert found.tile_efficiency["128x128"] == pytest.approx(tile), cuda
        assert found.dtype_efficiency["fp8"] == pytest.approx(fp8), cuda
    assert under_release(constants, "") is constants


def test_what_is_not_a_tile_is_refused(plain_device: Device) -> None:
    with pytest.raises(ConfigError, match="'big' is not a tile"):
        time_s(GemmShape(m=1, n=1, k=1), plain_device, replace(BARE, tile_efficiency={"big": 1.0}))


def test_shares_are_shares_and_overheads_are_microseconds() -> None:
    """Of constants that a device file does not state: nothing runs faster than the datasheet, nothing starts in no time."""
    c = GemmConstants()
    for share in (
        *c.tile_efficiency.values(),
        *c.alignment_efficiency.values(),
        c.warm_bandwidth,
        c.warm_share,
        c.dram_bandwidth,
        c.exposed_tiles,
    ):
        assert 0 < share <= 1
    assert next(iter(c.tile_efficiency.values())) == max(c.tile_efficiency.values())  # larger tiles reuse more
    assert 0 <= c.solo_penalty < 1 < c.split_bandwidth < 2  # parts are added from cache, partly
    for seconds in (c.launch_s, c.tile_s, c.split_s):
        assert 0.5e-6 < seconds < 5e-6
    assert (c.k_step, c.joules_per_flop, c.joules_per_byte) == (32, 0, 0)


#: m, n, k -> microseconds of bf16 products on an A100 80 GB in replayed CUDA graphs: rows with split=fit drawn at random from
#: ai-dynamo/aiconfigurator@095f58a51c (shared measurements, kernels.csv)
MEASURED_US = {
    (2304, 768, 3584): 81.164, (3585, 1024, 12288): 411.983, (2560, 1024, 2560): 76.349, (1536, 32, 256): 4.892, (768, 1536, 32): 5.788,
    (2816, 51200, 512): 679.988, (8192, 1024, 3072): 237.722, (161, 128, 768): 7.292, (4352, 64, 8192): 65.338, (1280, 32, 2560): 10.798,
    (768, 2560, 65536): 1018.565, (16384, 65536, 256): 3289.281, (192, 7168, 10240): 188.646, (1793, 10240, 12288): 1968.136,
    (224, 16384, 8192): 322.217, (192, 256, 16384): 19.871,
}  # fmt: skip


def test_the_defaults_of_a_device_without_measurements_are_near_what_was_measured() -> None:
    """The datasheet's numbers alone: a quarter off at most, and 8 % on average."""
    bare, model = replace(load_device("a100-sxm4-80g"), kernels={}), RooflineKernels("graph_replay")
    errors = [
        abs(1e6 * model.duration_s(GemmShape(m=m, n=n, k=k), bare) / us - 1) for (m, n, k), us in MEASURED_US.items()
    ]
    assert max(errors) < 0.25
    assert sum(errors) / len(errors) < 0.08
