from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernels import RooflineKernels
from simulator.kernels.conditions import CONDITIONS, Conditions
from simulator.kernels.gemm import GemmColumns, GemmConstants, alignment_elements, gemm_times_s
from simulator.models.layer import GemmShape
from simulator.topology.device import Device, load_device

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


@pytest.mark.parametrize(
    ("shape", "elements"),
    [
        (GemmShape(m=3, n=64, k=64), 8),
        (GemmShape(m=8, n=50257, k=768), 1),
        (GemmShape(m=8, n=30522, k=768), 2),
        (GemmShape(m=50257, n=768, k=8192, kernel_pass="wgrad"), 1),
        (GemmShape(m=768, n=768, k=3, kernel_pass="wgrad"), 8),
        (GemmShape(m=8, n=20, k=64, dtype="fp32"), 4),
    ],
)
def test_alignment_follows_the_contiguous_dimensions(shape: GemmShape, elements: int) -> None:
    assert alignment_elements(shape) == elements


def test_unaligned_products_are_slower_on_tensor_cores_only() -> None:
    device, model = load_device("h100-sxm5-80g"), RooflineKernels()
    assert model.duration_s(GemmShape(m=8192, n=50257, k=1600), device) > 3 * model.duration_s(
        GemmShape(m=8192, n=50304, k=1600), device
    )
    odd = model.duration_s(GemmShape(m=8192, n=50257, k=1600, dtype="fp32"), device)
    even = model.duration_s(GemmShape(m=8192, n=50304, k=1600, dtype="fp32"), device)
    assert odd <= even


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
