"""Names of element types, against torch itself and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from simulator.dtypes import element_bytes, our_name, torch_name
from simulator.models.layer import GemmShape
from simulator.replay.operator_replay import shape_of
from simulator.trace_io.trace_record import Operator

torch = pytest.importorskip("torch")
TORCHS = sorted(
    {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
    & {"float64", "double", "float32", "float", "float16", "half", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "long", "int32",
       "int", "int16", "short", "int8", "uint8", "uint16", "uint32", "uint64", "bool", "complex64"}
)  # fmt: skip


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize("form", ["{}", "torch.{}", "{} "])
def test_torchs_own_names_have_torchs_bytes(name, form):
    dtype = getattr(torch, name)
    assert getattr(torch, torch_name(form.format(name))) is dtype
    assert element_bytes(form.format(name)) == dtype.itemsize


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("c10::BFloat16", "bfloat16"), ("c10::Half", "float16"), ("c10::Float8_e4m3fn", "float8_e4m3fn"), ("Float8_e5m2", "float8_e5m2"),
        ("Tensor(long int)", "int64"), ("GenericList[Tensor(float)]", "float32"), ("unsigned char", "uint8"), ("Byte", "uint8"),
        ("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2"), ("bf16", "bfloat16"), ("f32", "float32"),
    ],
)  # fmt: skip
def test_other_peoples_names_are_torchs(word, same):
    """Those of C++ in traces (pytorch/pytorch, ``c10/core/ScalarType.h``) and of nccl-tests (``src/common.cu``)."""
    assert torch_name(word) == same


def test_our_names_are_those_that_kernels_have():
    words = ("Float8_e4m3fn", "fp8", "c10::BFloat16", "half", "float", "long int", "bool", "Byte")
    assert [our_name(one) for one in words] == ["fp8", "fp8", "bf16", "fp16", "fp32", "int64", "bool", "uint8"]
    assert [our_name(one) for one in ("", "double", "fp7", "ncclSum")] == [""] * 4


def test_numpys_names_have_numpys_bytes():
    for name in ("float64", "float32", "float16", "int64", "uint32", "int16", "uint8", "bool", "complex64"):
        assert element_bytes(name) == np.dtype(name).itemsize


def test_a_product_of_eight_bits_in_a_trace_is_one():
    """``torch._scaled_mm`` takes operands of eight bits (pytorch/pytorch, ``aten/src/ATen/native/cuda/Blas.cpp``)."""
    found = shape_of("aten::_scaled_mm", Operator(shapes=((512, 128), (128, 256)), dtype="c10::Float8_e4m3fn"))
    assert isinstance(found, GemmShape)
    assert (found.m, found.k, found.n, found.dtype) == (512, 128, 256, "fp8")
