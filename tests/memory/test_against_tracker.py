"""The peak of recorded modules against torch's own tracker of a whole step on tensors without data."""

from __future__ import annotations

import pytest

from simulator.memory.estimate import OPTIMIZER_STEP, estimate
from simulator.models.recorded import RecordedModule, parse_input
from simulator.plan import ParallelPlan
from simulator.topology.device_file import load_device

torch = pytest.importorskip("torch", reason="torch is not installed")

from tests.models.reference_modules import Size, arguments, module_of  # noqa: E402

MIB = 2**20
DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def size_of(tokens, vocab=1000, batch=1, layers=4):
    return Size(batch=batch, length=tokens, hidden=256, heads=4, ffn=1024, vocab=vocab, layers=layers, fused=True)


def tracked(size, precision, **how):
    """Bytes at the peak of the second step, in all and in activations, of ``torch.optim.AdamW`` over a Llama."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    with FakeTensorMode():
        torch.set_default_dtype(DTYPES[precision])
        try:
            module = module_of("llama", size)
        finally:
            torch.set_default_dtype(torch.float32)
        optimizer = torch.optim.AdamW(module.parameters(), **how)
        tracker = MemTracker()
        tracker.track_external(module, optimizer)
        ids = torch.zeros(size.batch, size.length, dtype=torch.long)
        with tracker:
            for _ in range(2):  # the first makes the moments
                tracker.reset_mod_stats()
                module(ids, ids).backward()
                optimizer.step()
                optimizer.zero_grad()
        (found,) = tracker.get_tracker_snapshot("peak").values()
    return found["Total"]


def predicted(size, precision, optimizer="foreach"):
    with torch.device("meta"):
        module = module_of("llama", size)
    inputs = (parse_input(f"{size.batch}x{size.length}:int64"),) * len(arguments(size, "meta"))
    plan = ParallelPlan(dp=1, micro_batch=size.batch, global_batch=size.batch, precision=precision, framework="hf-eager",
                        optimizer_implementation=optimizer)  # fmt: skip
    layers = RecordedModule(name="llama", module=module, inputs=inputs).model(plan).layers
    device = load_device("a100-sxm4-80g")
    return estimate([[layers]], [[1]], plan, device, shard_size=1, first_ranks=[0])


@pytest.mark.parametrize("precision", DTYPES)
def test_a_wide_head_is_the_peak(precision):
    size = size_of(1024, vocab=50_304)
    found = predicted(size, precision)
    assert found.peak_at.startswith("after blocks.3 (operator ")
    assert found.allocated_bytes == pytest.approx(tracked(size, precision, foreach=True), abs=4096)


@pytest.mark.parametrize("precision", DTYPES)
def test_backward_of_the_last_block_is_the_peak_under_a_narrow_head(precision):
    """To a gradient of its own largest matrix, which appears while its activations are there."""
    size = size_of(1024, batch=4)
    missing = tracked(size, precision, foreach=True) - predicted(size, precision).allocated_bytes
    matrix = size.hidden * size.ffn * DTYPES[precision].itemsize
    assert 0 <= missing <= 1.01 * matrix


@pytest.mark.parametrize("precision", DTYPES)
def test_a_step_over_all_tensors_at_once_is_the_peak_of_a_tiny_batch(precision):
    size = size_of(16)
    found = predicted(size, precision)
    assert found.peak_at == OPTIMIZER_STEP
    assert found.allocated_bytes == pytest.approx(tracked(size, precision, foreach=True), abs=4096)


def test_a_fused_step_holds_no_roots():
    """Fakes have no fused step on a CPU: one tensor after the other has the roots of the largest alone, here of the embedding."""
    size = size_of(16)
    one_by_one = tracked(size, "fp32", foreach=False)
    found = predicted(size, "fp32", optimizer="fused")
    assert found.peak_at != OPTIMIZER_STEP
    assert found.allocated_bytes <= one_by_one < predicted(size, "fp32").allocated_bytes
