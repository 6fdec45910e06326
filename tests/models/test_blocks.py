"""Blocks of which models have few: what runs beside attention, which keys it sees, tables of angles, and what waits on the host."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape
from simulator.models.setting import RankSetting
from simulator.models.tape import Tape

OSS = find_spec("gpt-oss-20b")
TOKENS, HIDDEN = 4096, 2880


def forward(spec, **settings):
    """Kernels of the first two blocks, of which the first one has a window."""
    model = build_model(spec, RankSetting(micro_batch=1, sequence_length=TOKENS, kernels="fused", **settings))
    return [layer.forward for layer in model.layers if layer.is_block][:2]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_the_letters_of_a_block_say_what_it_does_side_by_side_too(is_parallel):
    """Cohere's blocks read one norm for both parts and alternate windows (Command R7B); with gpt-oss's sizes: 64 heads of 64, a window
    of 128, four of 32 SwiGLU experts 2,880 wide."""
    scores = {True: TOKENS**2 / 2 - (TOKENS - 128) ** 2 / 2, False: TOKENS**2 / 2}
    spec = replace(OSS, name="x", parallel_block=is_parallel)
    for has_window, kernels in zip((True, False), forward(spec), strict=True):
        (attention,) = [item for item in kernels if isinstance(item, AttentionShape)]
        assert attention.n_flops == pytest.approx(2 * 2 * 64 * 64 * scores[has_window])
        experts = [item.n_flops for item in kernels if isinstance(item, GemmShape) and item.name == "grouped_gemm"]
        assert sum(experts) == pytest.approx(TOKENS * 4 * 3 * 2 * HIDDEN * 2880)
    dense = replace(spec, pattern=("w-", "*-") * 12)
    assert not [i for i in forward(dense)[0] if isinstance(i, GemmShape) and i.name == "grouped_gemm"]


@pytest.mark.parametrize("sequence", [1024, TOKENS])
def test_a_scaled_rotation_makes_its_table_anew_for_queries_and_keys(sequence):
    """Megatron-LM, ``_apply_rotary_pos_emb_bshd``: ``(cos(freqs) * mscale).to(t.dtype)``, and the same of the sine; an angle in fp32 for
    every token and element of a head: four kernels from fp32 to fp32 and two to 16 bits."""
    model = build_model(OSS, RankSetting(micro_batch=1, sequence_length=sequence, kernels="fused"))
    n = sequence * 64
    block = next(layer for layer in model.layers if layer.is_block)
    table = [i for i in block.forward if isinstance(i, PointwiseShape) and i.dtype == "fp32" and i.n_elements == n]
    moved = sorted((i.name, i.read_bytes, i.written_bytes) for i in table if i.name in ("cos", "sin", "mul", "cast"))
    wide, narrow = (4 * n, 4 * n), (4 * n, 2 * n)
    one = [("cast", *narrow), ("cast", *narrow), ("cos", *wide), ("mul", *wide), ("mul", *wide), ("sin", *wide)]
    assert moved == sorted(2 * one)


def offloaded(first, second, *, n_elements=2**21):
    """A layer of two operations that save the same tensor, each of which lets it wait on the host or does not."""
    tape = Tape()
    x = tape.input(n_elements, "bf16")
    for is_away in (first, second):
        if is_away:
            with tape.offloading():
                x_next = tape.record([x], n_elements, "bf16", saves=[x])
        else:
            x_next = tape.record([x], n_elements, "bf16", saves=[x])
    return tape.finish("block", x_next)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True), (False, False)])
def test_what_another_operation_holds_on_the_device_stays_there(first, second):
    """A tensor is freed once nothing refers to it; Transformer Engine fetches one layer ahead (``pytorch/cpu_offload.py``), so that two
    layers' tensors are on the device in backward, which is all that a layer by itself gains nothing by."""
    plain, layer = offloaded(False, False), offloaded(first, second)
    n_bytes = 2 * 2**21 if first and second else 0
    assert layer.offloaded_bytes == n_bytes
    assert layer.saved_bytes == plain.saved_bytes - n_bytes
    assert layer.transient_bytes == plain.transient_bytes + 2 * n_bytes


@pytest.mark.parametrize(("n_elements", "is_away"), [(2**20 - 1, False), (2**20, True)])
def test_tensors_of_a_million_elements_are_worth_a_copy(n_elements, is_away):
    """Megatron-Core's ``min_offloaded_tensor_size``."""
    assert bool(offloaded(True, True, n_elements=n_elements).offloaded_bytes) == is_away
