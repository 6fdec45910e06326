"""Times that a device cannot have had, beside its datasheet."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.calibration.doubtful_rows import possible
from simulator.calibration.kernel_rows import row_of
from simulator.topology.device_file import load_device

#: a product of 8,192 cubed at the 312 TFLOP/s of NVIDIA's datasheet of the A100
PRODUCT_S = 2 * 8192**3 / 312e12


@pytest.mark.parametrize(
    ("share", "is_possible"), [(3.0, True), (1.05, True), (0.9, True), (0.7, False), (0.01, False)]
)
def test_a_board_may_run_a_fifth_above_its_datasheet_and_no_faster(share: float, is_possible: bool) -> None:
    cells = {
        "device": "a100-sxm4-80g", "op": "gemm", "pass": "nn", "m": "8192", "n": "8192", "k": "8192", "dtype": "bf16",
        "time_us": str(1e6 * share * PRODUCT_S),
    }  # fmt: skip
    kept, left_out = possible([replace(row_of(cells), place="table.csv:2")], load_device("a100-sxm4-80g"))
    assert (len(kept), len(left_out)) == ((1, 0) if is_possible else (0, 1))
    assert all(text.startswith("table.csv:2: ") for text in left_out)
