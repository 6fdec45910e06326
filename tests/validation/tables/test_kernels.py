"""Kernel rows as shapes."""

import pytest

from simulator.calibration.kernel_rows import shape_of
from simulator.errors import ConfigError
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape
from validation.tables.reader import MEASUREMENTS, read_table


class TestKernelShapes:
    def row(self, **cells):
        return {"dtype": "bf16", "pass": "forward", **cells}

    @pytest.mark.parametrize(
        ("kernel_pass", "product"), [("forward", (64, 32, 16)), ("dgrad", (64, 16, 32)), ("wgrad", (32, 16, 64))]
    )
    def test_gemm_layouts_of_the_passes(self, kernel_pass, product):
        shape = shape_of(self.row(op="gemm", m="64", n="32.0", k="16", **{"pass": kernel_pass}))
        assert isinstance(shape, GemmShape)
        assert (shape.m, shape.n, shape.k) == product
        assert shape.n_flops == 2 * 64 * 32 * 16

    def test_attention_defaults(self):
        shape = shape_of(self.row(op="flash_attention", batch="2", heads="8", seq_len="128", head_dim="64", causal="0"))
        assert isinstance(shape, AttentionShape)
        assert (shape.kv_heads, shape.seq_k, shape.causal) == (8, 128, False)

    @pytest.mark.parametrize(("cell", "causal"), [("0.0", False), ("False", False), ("1.0", True), ("", True)])
    def test_a_flag_is_read_as_spreadsheets_write_it(self, cell, causal):
        shape = shape_of(self.row(op="flash_attention", heads="8", seq_len="128", head_dim="64", causal=cell))
        assert shape.causal is causal

    def test_traffic_of_pointwise_kernels(self):
        norm = shape_of(self.row(op="layer_norm", m="10", n="4"))
        assert isinstance(norm, PointwiseShape)
        assert (norm.n_bytes, norm.row_length) == (2 * 10 * 4 * 2, 4)
        adam = shape_of(self.row(op="adamw_fused", m="1000", n="3", dtype="f32"))
        assert adam.n_bytes == 28 * 1000

    @pytest.mark.parametrize(
        ("cells", "said"),
        [
            ({"op": "sorting"}, "unknown"),
            ({"op": "gemm", "m": "1", "n": "1"}, "k: the cell is blank"),
            ({"op": "gemm", "m": "8x", "n": "1", "k": "1"}, "m: '8x' is not a number"),
            ({"op": "gemm", "m": "0", "n": "1", "k": "1"}, "m: '0' is not at least 1"),
            ({"op": "gemm", "m": "1.5", "n": "1", "k": "1"}, "m: '1.5' is not a whole number"),
            ({"op": "gemm", "m": "1", "n": "1", "k": "1", "pass": "backward"}, "two of them"),
            ({"op": "add", "m": "4", "n": "4", "pass": "backward"}, "no kernel"),
            ({"op": "gelu", "m": "4", "n": "4", "dtype": "int3"}, "dtype"),
        ],
    )
    def test_what_is_no_kernel_has_a_reason(self, cells, said):
        with pytest.raises(ConfigError, match=said):
            shape_of(self.row(**cells))

    def test_every_shipped_kernel_row_has_a_shape_or_a_reason(self):
        for row in read_table(MEASUREMENTS / "kernels.csv"):
            if (row.text("op"), row.text("pass")) != ("add", "backward"):
                shape_of(row.cells)
