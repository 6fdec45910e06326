"""What sources and notes of measured rows say about how they were timed."""

from __future__ import annotations

import pytest

from simulator.calibration.row_conditions import kernel_conditions, library_kernel


@pytest.mark.parametrize(
    ("source", "notes", "kernel_pass", "name"),
    [
        ("lab", "autograd, L2 flushed", "backward", "autograd_flushed"), ("lab", "autograd, L2 flushed", "forward", "events_flushed"),
        ("lab", "sustained power, CUDA graph", "forward", "profiler"), ("lab", "inference prefill", "backward", "inference_prefill"),
        ("x", "q_proj of layer 3", "forward", "profiler"), ("encoder attention", "", "forward", "graph_replay"),
        ("x", "events", "forward", "benchmark"),
    ],
)  # fmt: skip
def test_conditions_are_told_by_what_the_row_says(source: str, notes: str, kernel_pass: str, name: str) -> None:
    assert kernel_conditions(source, notes, kernel_pass).name == name


def test_library_kernels_are_named_in_notes() -> None:
    assert library_kernel("hidden; kernel fa3, more") == "fa3"
    assert library_kernel("no kernels here") == ""
