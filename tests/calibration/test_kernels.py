from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simulator.calibration.kernel_rows import TimedKernel, gemm_shape, read_kernel_rows, row_of
from simulator.calibration.kernels import (
    KernelFit,
    fit_kernel_rows,
    fit_kernels,
    predict_rows_s,
    residuals_of,
    write_kernels,
)
from simulator.calibration.robust import Free, Residuals, fit_constants, with_values
from simulator.config import resolve_name
from simulator.errors import CalibrationError, ConfigError
from simulator.kernels import RooflineKernels
from simulator.kernels.attention import AttentionConstants
from simulator.kernels.conditions import CONDITIONS
from simulator.kernels.gemm import GemmConstants
from simulator.kernels.roofline import ExpertConstants, KernelConstants
from simulator.models.layer import GemmShape, PointwiseShape
from simulator.topology.device_file import load_device

TABLE = Path(__file__).parents[3] / "shared" / "measurements" / "kernels.csv"
HEADER = "row_id,source,device,op,pass,m,n,k,batch,heads,kv_heads,seq_len,head_dim,causal,dtype,time_us,split,notes"


@pytest.fixture(scope="module")
def made_rows() -> list[TimedKernel]:
    """Rows whose times are the model's own, with one outlier in ten."""
    device = load_device("a100-sxm4-80g")
    shapes = [
        GemmShape(m=m, n=n, k=k) for m in (256, 1024, 5000) for n in (512, 4096) for k in (64, 512, 1024, 3000, 8192)
    ]
    model = RooflineKernels("graph_replay")
    return [
        TimedKernel(
            source="made",
            shape=shape,
            time_s=model.duration_s(shape, device) * (2.0 if i % 10 == 3 else 1.0),
            split="fit",
            conditions=CONDITIONS["graph_replay"],
        )
        for i, shape in enumerate(shapes)
    ]


def test_a_fit_finds_the_constants_that_made_the_rows(made_rows: list[TimedKernel]) -> None:
    device = load_device("a100-sxm4-80g")
    shifted = replace(device, kernels={"gemm": {**device.kernels["gemm"], "launch_s": 4e-6, "dram_bandwidth": 0.6}})
    fit = fit_kernel_rows(made_rows, made_rows, device, start_from=shifted)
    assert set(fit.sections) == {"gemm"}
    assert fit.residuals["gemm"].median < 0.01
    assert fit.held_out["gemm"].n == len(made_rows)
    assert {name.split(".")[0] for name in fit.uncertainty} == {"gemm"}
    assert all(error >= 0 for error in fit.uncertainty.values())


def test_the_uncertainty_of_a_fit_is_that_of_its_noise() -> None:
    rng = np.random.default_rng(0)
    work = np.linspace(1.0, 50.0, 400)
    free = [Free(name="launch_s", low=1e-7, high=1e-3), Free(name="split_s", low=1e-7, high=1e-3)]

    def predict(constants: GemmConstants) -> np.ndarray:
        return constants.launch_s * work

    measured = 4e-6 * work * np.exp(0.01 * rng.standard_normal(len(work)))
    found = fit_constants(GemmConstants(), free, predict, measured, n_starts=1)
    assert found.constants.launch_s == pytest.approx(4e-6, rel=0.003)
    assert found.relative_errors["launch_s"] == pytest.approx(0.01 / 20, rel=0.2)
    assert found.relative_errors["split_s"] == float("inf")


def test_too_few_rows_are_an_error() -> None:
    with pytest.raises(CalibrationError, match="cannot determine"):
        fit_constants(
            GemmConstants(),
            [Free(name="launch_s", low=1e-6, high=1e-5)],
            lambda c: np.array([]),
            np.array([]),
        )


def test_dotted_names_reach_into_mappings() -> None:
    changed = with_values(GemmConstants(), {"launch_s": 1.0, "tile_efficiency.64x64": 0.3})
    assert changed.launch_s == 1.0
    assert changed.tile_efficiency["64x64"] == 0.3
    assert changed.tile_efficiency["128x128"] == GemmConstants().tile_efficiency["128x128"]
    assert with_values(AttentionConstants(), {"tail": 0.1}).tail == 0.1


def test_residuals_are_relative() -> None:
    found = Residuals.of(np.array([0.1, -0.1, 1.0]))
    assert (found.n, found.median, found.bias) == (3, pytest.approx(0.1), pytest.approx(1 / 3))
    assert Residuals.of(np.zeros(0)) == Residuals(n=0)


def test_passes_turn_layer_sizes_into_products() -> None:
    sizes = (4096, 3072, 1024)
    assert gemm_shape(*sizes, "forward", "bf16") == GemmShape(m=4096, n=3072, k=1024)
    dgrad, wgrad = (gemm_shape(*sizes, p, "bf16") for p in ("dgrad", "wgrad"))
    assert (dgrad.m, dgrad.n, dgrad.k) == (4096, 1024, 3072)
    assert (wgrad.m, wgrad.n, wgrad.k) == (3072, 1024, 4096)


def test_tables_are_read_with_their_conditions(tmp_path: Path) -> None:
    file = tmp_path / "kernels.csv"
    lines = (
        "1,lab,h200-sxm,gemm,wgrad,64,32,16,,,,,,,bf16,7.5,fit,CUDA graph",
        "2,lab,h200-sxm,softmax,forward,,,,4,16,,512,512,,bf16,33,fit,L2 flushed",
        "3,lab,h200-sxm,add,backward,64,32,,,,,,,,bf16,1.2,fit,",
        "4,lab,h200-sxm,flash_attention,backward,,,,4,16,16,512,64,1,bf16,60,fit,autograd.grad",
        "5,lab,h200-sxm,gelu,forward,64,32,,,,,,,,bf16,1.2,test,",
    )
    file.write_text("\n".join((HEADER, *lines)))
    rows = read_kernel_rows(file, "h200-sxm")
    assert [r.conditions.name for r in rows] == ["graph_replay", "events_flushed", "autograd_flushed"]
    assert rows[0].time_s == pytest.approx(7.5e-6)
    softmax = rows[1].shape
    assert isinstance(softmax, PointwiseShape)
    assert (softmax.n_elements, softmax.row_length) == (4 * 16 * 512 * 512, 512)
    with pytest.raises(CalibrationError, match="no rows of h100"):
        fit_kernels(file, "h100-sxm5-80g")


def test_writing_a_fit_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    original = Path(__file__).parents[2] / "topologies" / "devices" / "a100-sxm4-40g.yaml"
    file = tmp_path / "mine.yaml"
    file.write_text(original.read_text())
    zero = Residuals(n=9, median=0.01, p90=0.05, bias=0.0)
    fit = KernelFit(
        device="mine",
        sections={"gemm": {"launch_s": 5e-6, "tile_efficiency": {"128x128": 0.7}}},
        residuals={"gemm": zero},
        held_out={"gemm": zero, "gemm / a source with a very long name, and commas": zero},
        uncertainty={"gemm.launch_s": 0.123, "gemm.tile_efficiency.128x128": float("inf")},
        relative_error=0.07,
    )
    write_kernels(file, fit, source="a test")
    device = load_device(file)
    constants = KernelConstants.of(device)
    assert constants.gemm.launch_s == 5e-6
    assert dict(constants.gemm.tile_efficiency) == {"128x128": 0.7}
    assert (device.kernel_basis, device.kernel_error) == ("measured", 0.07)
    assert "# what CUDA reports" in file.read_text()
    assert "launch_s: 12.3%" in file.read_text()
    assert "tile_efficiency.128x128: not determined" in file.read_text()
    assert device.host == load_device("a100-sxm4-40g").host


def _anchors() -> Iterator[tuple[str, str, float, float]]:
    """Device, family, and limits of the median and the 90th percentile of errors on held-out rows."""
    for device in ("a100-sxm4-80g", "h100-sxm5-80g", "h200-sxm"):
        yield device, "gemm", 0.05, 0.15
        yield device, "attention", 0.08, 0.25
    yield "h200-sxm", "pointwise", 0.10, 0.25


@pytest.mark.parametrize(("device", "family", "median", "p90"), list(_anchors()))
def test_shipped_constants_predict_held_out_rows(device: str, family: str, median: float, p90: float) -> None:
    if not TABLE.is_file():
        pytest.skip("the measured tables are not beside this checkout")
    with TABLE.open() as file:
        assert next(csv.reader(file)) == HEADER.split(",")
    known = load_device(device)
    rows = read_kernel_rows(TABLE, known.name, splits=("test",))
    found = residuals_of(rows, known, KernelConstants.of(known))[family]
    assert found.median < median
    assert found.p90 < p90
    assert abs(found.bias) < 0.03


def test_rows_are_predicted_in_their_order(made_rows: list[TimedKernel]) -> None:
    device = load_device("a100-sxm4-80g")
    constants = KernelConstants.of(device)
    mixed = [replace(r, conditions=CONDITIONS["profiler"]) if i % 2 else r for i, r in enumerate(made_rows)]
    whole = predict_rows_s(mixed, device, constants)
    assert whole[3] == predict_rows_s(mixed[3:4], device, constants)[0]


def test_writing_keeps_kinds_of_attention_that_no_row_timed(tmp_path: Path) -> None:
    """Only one library kernel was timed: the default, which training uses, stays."""
    device = load_device("a100-sxm4-80g")
    file = tmp_path / "own.yaml"
    file.write_text(Path(resolve_name("a100-sxm4-80g", "devices")).read_text(encoding="utf-8"), encoding="utf-8")
    before = device.kernels["attention"]["default"]
    timed = {"timed_kernel": {"forward": {"efficiency": 0.5}}}
    zero = Residuals(n=9, median=0.01, p90=0.05, bias=0.0)
    fit = KernelFit(
        device=device.name, sections={"attention": timed}, residuals={"attention": zero}, held_out={"attention": zero},
        uncertainty={}, relative_error=0.05,
    )  # fmt: skip
    write_kernels(file, fit, source="a test")
    after = load_device(file).kernels["attention"]
    assert after["default"] == before
    assert after["timed_kernel"] == timed["timed_kernel"]


LINEAR = {
    "device": "gb200", "op": "gemm", "m": "1024", "n": "512", "k": "256", "dtype": "nvfp4", "time_us": "20",
    "notes": "linear layer, CUDA graph; includes NVFP4 quantisation of the activation",
}  # fmt: skip


def test_a_quantised_layer_is_a_product_and_the_quantisation_of_its_input() -> None:
    row = row_of(LINEAR)
    (quantize,) = row.beside
    assert quantize.read_bytes == 2 * 1024 * 256  # bf16
    assert quantize.written_bytes == (0.5 + 1 / 16) * 1024 * 256  # four bits, and eight bits for sixteen of them
    plain = row_of({**LINEAR, "notes": ""})
    device = load_device("gb200")
    constants = KernelConstants.of(device)
    with_it, without = predict_rows_s([row, plain], device, constants)
    assert with_it > without + quantize.n_bytes / device.memory_bandwidth_bytes_per_s


def test_the_fit_of_one_library_leaves_what_another_quantises_with() -> None:
    """Rows of the vendor's library say nothing about FlashInfer's kernels, and the other way round."""
    device = load_device("b200")
    sizes = [(m, n, k) for m in (2048, 8192, 32768) for n, k in ((4096, 4096), (8192, 2048), (2048, 8192))]

    def rows(words: str, time_per_element: float) -> list[TimedKernel]:
        notes = f"linear layer, CUDA graph; includes quantisation of the activation; {words}"
        return [
            row_of({
                **LINEAR, "m": str(m), "n": str(n), "k": str(k), "notes": notes, "split": "fit",
                "time_us": str(8 + time_per_element * m * k + 2 * m * n * k / 5e9),
            })
            for m, n, k in sizes
        ]  # fmt: skip

    vendors, others = rows("", 2e-6), rows("kernel FlashInferNvFp4LinearKernel", 2e-5)
    alone = fit_kernel_rows(vendors, [], device, start_from=device).sections["pointwise"]
    both = fit_kernel_rows([*vendors, *others], [], device, start_from=device).sections["pointwise"]
    for table in ("efficiency", "fixed_s", "row_s"):
        assert both[table]["dynamic_quantize.nvfp4"] == alone[table]["dynamic_quantize.nvfp4"]
    assert both["efficiency"]["flashinfer_quantize.nvfp4"] < both["efficiency"]["dynamic_quantize.nvfp4"]


def test_a_grouped_product_of_a_whole_backward_is_refused_as_a_product_is() -> None:
    cells = {"device": "b200", "dtype": "bf16", "time_us": "1", "m": "4096", "n": "512", "k": "256", "batch": "8"}
    for op in ("gemm", "grouped_gemm"):
        with pytest.raises(ConfigError, match="backward is two of them"):
            row_of({**cells, "op": op, "pass": "backward"})


@pytest.mark.parametrize(
    ("notes", "library"),
    [
        ("8 groups; torch._grouped_mm", "torch"),
        ("torchao 0.16, 1000 W; 8 groups, 2D-3D", "torch"),
        ("torch._scaled_grouped_mm; 8 groups", "torch"),
        ("8 groups; as in pytorch/ao's benchmark, cuBLASLt; torch.compile", ""),
    ],
)
def test_torchs_grouped_product_is_known_by_its_name(notes: str, library: str) -> None:
    cells = {"device": "b200", "dtype": "bf16", "time_us": "1", "m": "4096", "n": "512", "k": "256", "batch": "8"}
    shape = row_of({**cells, "op": "grouped_gemm", "notes": notes}).shape
    assert isinstance(shape, GemmShape)
    assert shape.library == library


def test_what_the_host_issues_slowly_is_no_faster_than_that() -> None:
    row = row_of({**LINEAR, "dtype": "fp8_block", "notes": "includes quantisation of the activation; no CUDA graph"})
    device = load_device("gb200")
    assert predict_rows_s([row], device, KernelConstants.of(device))[0] == row.issue_s > 0


@pytest.mark.parametrize(
    ("cells", "flops"),
    [
        ({"op": "grouped_gemm", "m": "4096", "n": "512", "k": "256", "batch": "8"}, 2 * 4096 * 512 * 256),
        (  # gradients of the weights of eight experts: torchao prints the sizes of the product
            {
                "op": "grouped_gemm",
                "pass": "wgrad",
                "m": "2048",
                "n": "7168",
                "k": "131072",
                "notes": "8 groups, 2D-2D",
            },
            2 * 2048 * 7168 * 131072,
        ),
        # two products over half of the scores, keys of 192 and values of 128 elements
        (
            {"op": "mla_attention", "batch": "1", "heads": "2", "seq_len": "1024", "head_dim": "192", "causal": "1"},
            2 * (192 + 128) * 2 * 1024**2 / 2,
        ),
        (
            {"op": "flash_attention", "batch": "1", "heads": "1", "seq_len": "64", "head_dim": "32", "causal": "0"},
            4 * 32 * 64 * 64,
        ),
    ],
)
def test_work_of_what_was_timed(cells: dict[str, str], flops: float) -> None:
    assert row_of({"device": "b200", "dtype": "bf16", "time_us": "1", **cells}).shape.n_flops == pytest.approx(flops)


BOTH = {
    "device": "b200", "op": "grouped_gemm", "pass": "forward+backward", "m": "128000", "n": "2048", "k": "7168",
    "notes": "forward and backward together, with quantisation for mxfp8; torch._grouped_mm; torch.compile",
}  # fmt: skip


def test_forward_and_backward_together_are_three_products_and_what_quantises_their_operands() -> None:
    """pytorch/ao, ``torchao/prototype/moe_training/README.md``: input, weight and output's gradient, along both directions each."""
    m, n, k = 128000, 2048, 7168
    for dtype, n_operands in (("bf16", 0), ("mxfp8", 2 * (m * k + 8 * n * k + m * n))):
        row = row_of({**BOTH, "batch": "8", "dtype": dtype, "time_us": "1"})
        products = [shape for shape in (row.shape, *row.beside) if isinstance(shape, GemmShape)]
        assert [p.kernel_pass for p in products] == ["forward", "dgrad", "wgrad"]
        assert [p.n_flops for p in products] == [2 * m * n * k] * 3
        assert [p.m * p.n * p.batch for p in products] == [m * n, m * k, 8 * n * k]
        assert sum(shape.n_elements for shape in row.beside if isinstance(shape, PointwiseShape)) == n_operands


@pytest.mark.parametrize(("groups", "time_us"), [(1, 13064.8), (2, 14900.2), (4, 15823.6), (8, 14966.8)])
def test_torchs_grouped_products_reach_half_of_what_the_vendors_do_on_blackwell(groups: int, time_us: float) -> None:
    """The table of the same page, torch 2.10 on a B200: 710 to 860 TFLOP/s in bf16."""
    device = load_device("b200")
    row = row_of({**BOTH, "batch": str(groups), "dtype": "bf16", "time_us": str(time_us)})
    vendors = replace(row, shape=replace(row.shape, library=""), beside=())
    alone = replace(row, beside=())
    found, first, other = predict_rows_s([row, alone, vendors], device, KernelConstants.of(device))
    assert found == pytest.approx(row.time_s, rel=0.13)
    assert 1.6 < first / other < 2.2


def _block(time_us: float, n_gpus: int, library: str = "vllm_unquantizedfusedmoe_triton_tritonexperts") -> TimedKernel:
    notes = f"top-8 of 128 experts, experts split over {n_gpus} GPUs; k = hidden; kernel {library} (vllm/0.24.0)"
    cells = {"device": "h100-sxm5-80g", "op": "moe_mlp", "dtype": "bf16", "pass": "", "notes": notes}
    return row_of({**cells, "m": "16384", "n": "1536", "k": "4096", "time_us": str(time_us)})


@pytest.mark.parametrize(("n_gpus", "time_us"), [(1, 10154.1), (8, 2696.5), (32, 1890.7), (64, 1770.6)])
def test_every_gpu_of_a_group_works_on_all_of_its_tokens(n_gpus: int, time_us: float) -> None:
    """ai-dynamo/aiconfigurator@095f58a51c: a 64th of the experts takes a sixth of the time, not a 64th."""
    device = load_device("h100-sxm5-80g")
    row = _block(time_us, n_gpus)
    assert predict_rows_s([row], device, KernelConstants.of(device))[0] == pytest.approx(row.time_s, rel=0.15)


def test_parts_of_an_expert_block_are_bytes_and_products_of_their_own() -> None:
    """16,384 tokens of 4,096 elements in bf16, top-8 of 128 on 64 GPUs: 1,024 rows for each of 2 experts here."""
    device = load_device("h100-sxm5-80g")
    known = KernelConstants.of(device)

    def bytes_of(**shares: dict[str, float]) -> float:
        tables = {name: {"bf16": 0.0} for name in ("factor", "routed", "group", "fixed_s")}
        constants = replace(known, experts=ExpertConstants(**{**tables, **shares}))
        return float(predict_rows_s([_block(1.0, 64)], device, constants)[0] * device.memory_bandwidth_bytes_per_s)

    rows, tokens, hidden, inner = 2 * 1024, 16384, 4096, 1536
    assert bytes_of(group={"bf16": 1.0}) == pytest.approx(2 * 2 * tokens * hidden)  # read and written once
    # permuted, summed, and activated: gate and up read, one of their width written
    assert bytes_of(routed={"bf16": 1.0}) == pytest.approx(2 * rows * (2 * hidden + 2 * hidden + 3 * inner))
    assert bytes_of(fixed_s={"bf16": 2e-6}) == pytest.approx(2e-6 * device.memory_bandwidth_bytes_per_s)
    library = {"bf16": 5.0, "bf16 vllm_unquantizedfusedmoe_triton_tritonexperts": 1.0}  # its own, where it has them
    none = dict.fromkeys(library, 0.0)
    assert bytes_of(factor=none, routed=none, group=library) == pytest.approx(2 * 2 * tokens * hidden)


def test_experts_without_a_gate_have_one_first_projection() -> None:
    gated, plain = _block(1.0, 64).shape, _block(1.0, 64, "moe_torch_flow_nongated").shape
    assert isinstance(gated, GemmShape)
    assert isinstance(plain, GemmShape)
    assert (gated.n, plain.n) == (2 * 1536, 1536)
    activation = next(s for s in _block(1.0, 64, "moe_torch_flow_nongated").beside if s.name == "swiglu")
    assert isinstance(activation, PointwiseShape)
    assert activation.read_bytes == activation.written_bytes == 2 * 2048 * 1536


@pytest.mark.parametrize(
    ("device", "op", "rows", "columns", "time_us"),
    [  # rows with split=fit of ai-dynamo/aiconfigurator@095f58a51c, vLLM 0.24
        ("h100-sxm5-80g", "fp8_static_quantize", 1024, 8192, 5.7504),  # from the L2 cache, at twice the rate of memory
        ("h100-sxm5-80g", "fp8_static_quantize", 1024, 16384, 18.1547),  # 48 MiB are more than its half
        ("h200-sxm", "fp8_compute_scale", 32768, 2048, 33.5211),  # bound by instructions
        ("b200", "fp8_compute_scale", 4096, 7168, 12.304),
        ("h100-sxm5-80g", "fp8_compute_scale", 8192, 7168, 4.0917),  # bound by memory, as without a scale
        ("h100-sxm5-80g", "fp8_compute_scale", 32768, 51200, 1047.76),  # rows of 100 KiB come from memory twice
        ("b200", "fp8_compute_scale", 32768, 51200, 462.409),
    ],
)
def test_a_scale_for_each_token_costs_instructions_or_a_second_read(
    device: str, op: str, rows: int, columns: int, time_us: float
) -> None:
    cells = {"device": device, "op": op, "m": str(rows), "n": str(columns), "dtype": "fp8", "time_us": str(time_us)}
    row = row_of({**cells, "notes": "vLLM 0.24; static_scaled_fp8_quant"})
    known = load_device(device)
    assert predict_rows_s([row], known, KernelConstants.of(known))[0] == pytest.approx(row.time_s, rel=0.21)


@pytest.mark.parametrize(("m", "n", "k", "time_us"), [(32768, 1024, 1024, 289.396), (32768, 2048, 2560, 570.34)])
def test_narrow_layers_in_eight_bits_take_what_their_scales_take(m: int, n: int, k: int, time_us: float) -> None:
    """ai-dynamo/aiconfigurator@095f58a51c on H200, split=fit: the product alone would take a third."""
    cells = {
        "op": "gemm",
        "device": "h200-sxm",
        "m": str(m),
        "n": str(n),
        "k": str(k),
        "dtype": "fp8",
        "pass": "forward",
    }
    row = row_of(
        {
            **cells,
            "time_us": str(time_us),
            "notes": "CUDA graph; includes dynamic per-token quantisation of the activation",
        }
    )
    device = load_device("h200-sxm")
    assert predict_rows_s([row], device, KernelConstants.of(device))[0] == pytest.approx(row.time_s, rel=0.2)


def test_rows_of_another_processor_are_no_rows_of_the_device(tmp_path: Path) -> None:
    """ROCm/aiter tunes for gfx950 and gfx1250 in one file, and both have 256 compute units; MI355X is gfx950 (LLVM)."""
    cells = {
        "device": "mi355x",
        "op": "gemm",
        "m": "2048",
        "n": "20480",
        "k": "7168",
        "dtype": "bf16",
        "time_us": "807.6",
    }
    assert (
        row_of({**cells, "notes": "tuned kernel (asm); gfx950 with 256 CUs"}).shape.n_flops == 2 * 2048 * 20480 * 7168
    )
    with pytest.raises(ConfigError, match="timed on gfx1250, which is not a mi355x"):
        row_of({**cells, "notes": "tuned kernel (triton); gfx1250 with 256 CUs"})
    table = tmp_path / "kernels.csv"
    lines = [
        f"r{i},aiter,mi355x,gemm,,64,64,64,,,,,,,bf16,9.0,fit,gfx{name}" for i, name in enumerate((950, 1250, 950))
    ]
    table.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    assert len(read_kernel_rows(table, "mi355x")) == 2
