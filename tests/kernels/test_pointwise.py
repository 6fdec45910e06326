from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import shipped_names
from simulator.kernels import RooflineKernels
from simulator.kernels.conditions import CONDITIONS
from simulator.kernels.pointwise import PointwiseConstants, pointwise_time_s
from simulator.models.layer import Access, PointwiseShape
from simulator.topology.device import Device
from simulator.topology.device_file import load_device

NAMES = (
    "layer_norm",
    "rms_norm",
    "gelu",
    "silu",
    "add",
    "mul",
    "dropout",
    "softmax",
    "cast",
    "cross_entropy",
    "unheard_of",
)


def shape_of(name: str, elements: int, row: int = 0, read: float = 4.0, written: float = 2.0) -> PointwiseShape:
    return PointwiseShape(
        name=name,
        n_elements=elements,
        read_bytes=read * elements,
        written_bytes=written * elements,
        row_length=row,
    )


def test_time_is_launch_plus_bytes_at_the_share_of_bandwidth(plain_device: Device) -> None:
    constants = PointwiseConstants(launch_s=3e-6, efficiency={"default": 0.8, "gelu": 0.5})
    found = pointwise_time_s(shape_of("gelu", 1 << 20), plain_device, constants, CONDITIONS["training"])
    assert found == pytest.approx(3e-6 + 6 * (1 << 20) / (0.5 * 2e12))


def test_what_an_operation_costs_once_and_per_row_is_added(plain_device: Device) -> None:
    constants = PointwiseConstants(
        launch_s=3e-6, warm_share=0.0, efficiency={"default": 0.5}, fixed_s={"softmax": 7e-6}, row_s={"softmax": 2e-9},
        row_elements=100,
    )  # fmt: skip
    timing = CONDITIONS["events_flushed"]
    n, rows = 1 << 20, 1 << 14
    found = pointwise_time_s(shape_of("softmax", n, row=n // rows), plain_device, constants, timing)
    assert found == pytest.approx(3e-6 + timing.overhead_s + 7e-6 + 2e-9 * rows + 6 * n / (0.5 * 2e12))
    # rows longer than row_elements are read once more, two bytes an element
    longer = pointwise_time_s(shape_of("softmax", n, row=256), plain_device, constants, timing)
    assert longer == pytest.approx(3e-6 + timing.overhead_s + 7e-6 + 2e-9 * n / 256 + 8 * n / (0.5 * 2e12))


def test_narrow_rows_of_a_norm_share_a_block(plain_device: Device) -> None:
    """Transformer Engine's general kernels give a row of 128 a warp, four of which are a block: a quarter of a row's fixed cost."""
    constants = PointwiseConstants(launch_s=0.0, warm_share=0.0, efficiency={"default": 0.5}, row_s={"rms_norm": 2e-9})
    n = 1 << 20
    moved_s = 6 * n / (0.5 * 2e12)
    for row, share in ((1024, 1.0), (512, 1.0), (128, 0.25)):
        found = pointwise_time_s(shape_of("rms_norm", n, row=row), plain_device, constants, CONDITIONS["training"])
        assert found == pytest.approx(moved_s + share * 2e-9 * n / row)


def test_kernels_of_single_experts_cost_what_they_do_one_after_the_other(plain_device: Device) -> None:
    kernels = RooflineKernels()
    one = shape_of("quantize_mxfp8", 1 << 18)
    all_of_them = replace(shape_of("quantize_mxfp8", 1 << 22), n_pieces=16)
    assert kernels.duration_s(all_of_them, plain_device) == pytest.approx(16 * kernels.duration_s(one, plain_device))


def test_power_limits_what_runs_long() -> None:
    """Half-way at ``burst_s``: there the share of the power limit is 1 / (1 + 1)."""
    for timing in CONDITIONS.values():
        if timing.power_share < 1.0:  # a throttled board: its limit is another one
            continue
        if not timing.burst_s:
            assert timing.limited(np.array(1e-3), np.array(2e-3)) == 2e-3
            continue
        assert timing.burst_s < 1e-3, "benchmarks repeat a kernel for some hundred microseconds before power acts"
        at = timing.burst_s
        assert timing.limited(np.array(at / 2), np.array(at)) == pytest.approx(0.75 * at)
        assert timing.limited(np.array(1.0), np.array(2.0)) == pytest.approx(2.0, rel=1e-6)
        assert timing.limited(np.array(1e-6), np.array(2e-6)) == pytest.approx(1e-6, rel=1e-3)


def test_operands_in_cache_move_faster_unless_flushed(plain_device: Device) -> None:
    constants = PointwiseConstants(launch_s=0.0, warm_bandwidth=2.0, warm_share=0.5)
    shape = shape_of("add", 1 << 20)
    warm = pointwise_time_s(shape, plain_device, constants, CONDITIONS["training"])
    cold = pointwise_time_s(shape, plain_device, constants, CONDITIONS["events_flushed"])
    assert cold - CONDITIONS["events_flushed"].overhead_s == pytest.approx(2 * warm)


def test_specific_constants_come_before_general_ones(plain_device: Device) -> None:
    table = {"default": 0.8, "gelu": 0.5, "gelu.backward": 0.25, "gelu.fp32": 0.4}
    constants = PointwiseConstants(launch_s=0.0, efficiency=table)

    def seconds(**changes: str) -> float:
        shape = PointwiseShape(name="gelu", n_elements=1, read_bytes=1e6, written_bytes=1e6, **changes)  # type: ignore[arg-type]
        return pointwise_time_s(shape, plain_device, constants, CONDITIONS["training"])

    assert seconds(kernel_pass="backward") == pytest.approx(2 * seconds())
    assert seconds(dtype="fp32") == pytest.approx(1.25 * seconds())


@pytest.mark.parametrize("device", shipped_names("devices"))
@given(
    name=st.sampled_from(NAMES),
    elements=st.integers(1, 1 << 28),
    factor=st.floats(1.0, 50.0),
    row=st.integers(0, 60000),
)
def test_more_bytes_are_never_faster(device: str, name: str, elements: int, factor: float, row: int) -> None:
    known, model = load_device(device), RooflineKernels()
    less = model.duration_s(shape_of(name, elements, row), known)
    more = model.duration_s(shape_of(name, elements, row, 4.0 * factor, 2.0 * factor), known)
    assert more >= less > 0


def test_instructions_bound_what_is_loaded_one_by_one(plain_device: Device) -> None:
    constants = PointwiseConstants(launch_s=0.0, warm_share=0.0, elements_per_clock={"mixed": 0.5, "tanh": 0.25})
    n = 1 << 20

    def seconds(name: str, access: Access, read: float = 4.0) -> float:
        shape = replace(shape_of(name, n, read=read), access=access)
        return pointwise_time_s(shape, plain_device, constants, CONDITIONS["training"])

    by_instructions = n / (0.5 * plain_device.n_sms * plain_device.clock_hz)
    assert seconds("add", "mixed") == pytest.approx(by_instructions)
    assert seconds("add", "vector") == pytest.approx(6 * n / (0.8 * 2e12))
    assert seconds("tanh", "vector") == pytest.approx(2 * by_instructions)
    assert seconds("add", "mixed", read=100.0) == pytest.approx(102 * n / (0.8 * 2e12))
