from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.config import shipped_names
from simulator.costs import ModelCosts
from simulator.errors import ConfigError
from simulator.kernels import KERNEL_MODELS, RooflineKernels
from simulator.kernels.host import issue_s
from simulator.kernels.roofline import KernelConstants
from simulator.models.layer import AttentionShape, GemmShape, KernelShape, PointwiseShape
from simulator.plan import FRAMEWORKS, ParallelPlan
from simulator.program.op import Kernel
from simulator.scenario import Scenario
from simulator.topology import load_topology
from simulator.topology.device_file import load_device

SHAPES: tuple[KernelShape, ...] = (
    GemmShape(m=4096, n=4096, k=1024),
    AttentionShape(batch=2, heads=8, kv_heads=8, seq_q=1024, seq_k=1024, head_dim=64),
    PointwiseShape(name="gelu", n_elements=1 << 22, read_bytes=1 << 23, written_bytes=1 << 23),
)


@pytest.mark.parametrize("model", KERNEL_MODELS)
@pytest.mark.parametrize("device", shipped_names("devices"))
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_every_model_times_every_shape_on_every_device(model: str, device: str, shape: KernelShape) -> None:
    kernels, known = KERNEL_MODELS[model](), load_device(device)
    first = kernels.duration_s(shape, known)
    assert 0 < first < 10
    assert kernels.duration_s(shape, known) == first == KERNEL_MODELS[model]().duration_s(shape, known)


@pytest.mark.parametrize(("release", "measured_us"), [("26.06", 155.6), ("26.06.01", 1362.8)])
def test_sums_in_an_epilogue_lengthen_a_product_as_published(release: str, measured_us: float) -> None:
    """A product of 139.0 us takes as long as NVIDIA/cudnn-frontend measured with the bias' gradient (issue 256, pull request 322)."""
    kernels, device = RooflineKernels(), load_device("b200")
    plain = GemmShape(m=4096, n=4096, k=1024, dtype="mxfp8")
    summing = replace(plain, summing=FRAMEWORKS["megatron-bridge"].at(release).bias_summing)
    times_s = [kernels.duration_s(shape, device) for shape in (plain, summing)]
    assert 139.0 * times_s[1] / times_s[0] == pytest.approx(measured_us)


@pytest.mark.parametrize("device", shipped_names("devices"))
def test_device_files_name_their_sources_and_basis(device: str) -> None:
    known = load_device(device)
    assert known.name == device
    assert known.sources["datasheet"]
    assert known.kernel_basis in ("measured", "generation", "datasheet")
    assert 0.02 < known.kernel_error <= 0.5
    for section in (*known.kernels.values(), known.host, known.interference):
        assert section["source"]


def test_devices_rank_as_their_generations_do() -> None:
    model = RooflineKernels()
    shape = GemmShape(m=8192, n=8192, k=8192, dtype="fp16")
    order = ("b200", "h100-sxm5-80g", "h100-pcie", "a100-sxm4-80g", "a100-pcie-40g", "v100-sxm2-16g")
    times = [model.duration_s(shape, load_device(name)) for name in order]
    assert times == sorted(times)


def test_a_device_without_constants_still_works() -> None:
    known = replace(load_device("a100-sxm4-80g"), kernels={}, kernel_basis="datasheet")
    model = RooflineKernels()
    for shape in SHAPES:
        fitted = model.duration_s(shape, load_device("a100-sxm4-80g"))
        assert model.duration_s(shape, known) == pytest.approx(fitted, rel=0.5)


def test_unknown_device_suggests_near_names() -> None:
    with pytest.raises(ConfigError, match="a100-sxm4-80g"):
        load_device("a100-sxm-80g")


def test_unknown_constant_suggests_near_names() -> None:
    known = replace(load_device("a100-sxm4-80g"), kernels={"gemm": {"lunch_s": 1e-6}})
    with pytest.raises(ConfigError, match=r"kernels\.gemm\.lunch_s.*launch_s"):
        KernelConstants.of(known)
    bad = replace(known, kernels={"pointwise": {"launch_s": "2 us"}})
    with pytest.raises(ConfigError, match="not a number"):
        RooflineKernels().duration_s(SHAPES[2], bad)


def test_faults_of_a_device_file_come_all_at_once(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("name: mine\narchitecture: ampear\nn_sms: 0\nmemroy: 80 GiB\n")
    with pytest.raises(ConfigError) as error:
        load_device(file)
    for part in ("ampere", "n_sms", "memory", "mine.yaml:2", "mine.yaml:4"):
        assert part in str(error.value)


def test_dtypes_fall_back_to_what_the_device_has() -> None:
    v100 = load_device("v100-sxm2-16g")
    assert v100.peak("bf16") == v100.peak("fp32")
    assert v100.peak("fp8") == v100.peak("fp16")


def test_unknown_conditions_are_an_error() -> None:
    with pytest.raises(ConfigError, match="graph_replay"):
        RooflineKernels("graph replay")


def test_the_host_issues_faster_from_compiled_code_and_graphs() -> None:
    plans = [ParallelPlan(framework="hf-eager", host=host) for host in (None, "eager", "compiled", "graphs")]
    modes = [plan.framework_spec.host for plan in plans]
    assert modes == ["eager", "eager", "compiled", "graphs"]
    seconds = [issue_s(load_device("h200-sxm"), mode, "forward") for mode in modes]
    assert seconds == sorted(seconds, reverse=True) and seconds[1] > seconds[2] > seconds[3]


@pytest.mark.parametrize(
    ("m", "n", "k", "measured_s"), [(6144, 12288, 12288, 1407.76e-6), (32768, 32768, 32768, 52144.3e-6)]
)
def test_eight_bits_under_load_draw_what_an_h200_drew(m: int, n: int, k: int, measured_s: float) -> None:
    """cuBLASLt after 10,000 products on one GPU (Azure/AI-benchmarking-guide@7f20e5fa, split=fit)."""
    shape = GemmShape(m=m, n=n, k=k, dtype="fp8")
    device = load_device("h200-sxm")
    assert RooflineKernels(is_alone=True).duration_s(shape, device) == pytest.approx(measured_s, rel=0.015)
    # all eight GPUs at work are warmer: an eighth more energy, as on H100s (37 runs of NVIDIA/dgxc-benchmarking, split=fit)
    assert RooflineKernels().duration_s(shape, device) == pytest.approx(1.12 * measured_s, rel=0.015)


def test_one_gpu_of_a_node_is_alone() -> None:
    """A long product of a job of one GPU runs beside GPUs that rest; of a job of two, in a node at work."""
    product = Kernel(name="long", phase="forward", shape=GemmShape(m=32768, n=8192, k=32768))
    one, two = (
        ModelCosts(
            load_topology("hgx-h200", n),
            Scenario(topology="hgx-h200", model="gpt2", plan=ParallelPlan(gpus=n).resolve(n)),
        ).kernel_ps(product, 0)
        for n in (1, 2)
    )
    assert two == pytest.approx(1.12 * one, rel=0.015)  # and the slower of two boards counts


@pytest.mark.parametrize("device", ["h200-sxm", "h800-sxm", "h100-64g", "gh200-96g"])
@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_one_die_under_one_limit_has_one_sustained_rate(device: str, dtype: str) -> None:
    """Long products of a node at work are bound by 700 W, whatever memory stands beside the GH100."""
    shape = GemmShape(m=16384, n=16384, k=16384, dtype=dtype)
    rates = [
        shape.n_flops / RooflineKernels().duration_s(shape, load_device(name)) for name in ("h100-sxm5-80g", device)
    ]
    assert rates[1] == pytest.approx(rates[0], rel=0.04)
