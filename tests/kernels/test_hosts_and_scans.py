"""Recurrences, launches, copies and steps on processors, in closed form."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.kernels import RooflineKernels
from simulator.kernels.conditions import CONDITIONS
from simulator.kernels.host import copy_bytes_per_s, cpu_adam_s, issue_s
from simulator.kernels.pointwise import ELEMENTS_PER_CLOCK, PointwiseConstants, lookup
from simulator.kernels.scan import ScanConstants, scan_time_s
from simulator.models.layer import PointwiseShape, ScanShape
from simulator.plan.frameworks import FRAMEWORKS
from simulator.topology.device import Device
from simulator.topology.device_file import load_device

SCAN = ScanShape(name="mamba2_ssd", batch=2, seq=4096, heads=8, groups=1, head_dim=64, state=128, chunk=256)


def test_a_recurrence_is_its_launches_and_the_slower_of_products_and_bytes(plain_device: Device) -> None:
    constants = ScanConstants(launch_s=7e-6, efficiency={"mamba2_ssd": 0.1})
    products_s, bytes_s = SCAN.n_flops / (0.1 * 300e12), SCAN.n_bytes / 2e12
    assert scan_time_s(SCAN, plain_device, constants) == pytest.approx(7e-6 + max(products_s, bytes_s))
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=1e20)
    assert scan_time_s(SCAN, fed, constants) == pytest.approx(7e-6 + products_s)
    assert scan_time_s(replace(SCAN, dtype="fp16"), fed, constants) == pytest.approx(7e-6 + products_s)
    assert scan_time_s(replace(SCAN, dtype="fp32"), fed, constants) == pytest.approx(7e-6 + 15 * products_s)
    assert scan_time_s(replace(SCAN, name="new"), fed, constants) == pytest.approx(
        7e-6 + 2 * products_s
    )  # 5 % where unknown
    slow = replace(plain_device, memory_bandwidth_bytes_per_s=1e9)
    assert scan_time_s(SCAN, slow, constants) == pytest.approx(7e-6 + SCAN.n_bytes / 1e9)
    assert all(0.01 < share < 0.1 for share in ScanConstants().efficiency.values())  # "a few per cent of the peak"
    assert 5e-6 < ScanConstants().launch_s < 50e-6
    assert RooflineKernels().duration_s(SCAN, plain_device) == scan_time_s(SCAN, plain_device, ScanConstants())


@pytest.mark.parametrize(
    ("n_tokens", "tokens_per_s"), [(8192, 1.262327e7), (16384, 1.292440e7), (32768, 1.180002e7), (131072, 1.070444e7)]
)
def test_mamba_2_runs_on_an_h100_as_its_triton_kernels_were_timed(n_tokens: int, tokens_per_s: float) -> None:
    """vllm-project/vllm, pull request 27299, column "Original": 128 heads of 64, one group, states of 128, chunks of 256."""
    shape = replace(SCAN, batch=1, seq=n_tokens, heads=128)
    predicted = scan_time_s(shape, load_device("h100-sxm5-80g"), ScanConstants())
    assert n_tokens / predicted == pytest.approx(tokens_per_s, rel=0.12)


def test_the_same_triton_kernels_take_as_long_on_all_devices_with_the_same_processors() -> None:
    """One fact: two sequences of 8,192 tokens and 64 heads take 721 us on a B200 (ai-dynamo/aiconfigurator, a row with split=fit)."""
    shape = replace(SCAN, seq=8192, heads=64, groups=8, chunk=128)
    for name in ("b200", "gb200", "b300", "gb300"):
        assert RooflineKernels().duration_s(shape, load_device(name)) == pytest.approx(720.9e-6, rel=0.05), name


def test_backward_has_a_share_of_its_own_and_states_beyond_a_tile_cost_bytes_alone(plain_device: Device) -> None:
    fed = replace(plain_device, memory_bandwidth_bytes_per_s=1e20)
    constants = ScanConstants(launch_s=0.0, efficiency={"mamba2_ssd": 0.1}, backward={"mamba2_ssd": 0.5})
    forward_s = scan_time_s(SCAN, fed, constants)
    assert scan_time_s(replace(SCAN, kernel_pass="backward"), fed, constants) == pytest.approx(6 * forward_s)
    assert scan_time_s(replace(SCAN, state=256), fed, constants) == pytest.approx(forward_s)
    assert scan_time_s(replace(SCAN, state=64), fed, constants) < 0.8 * forward_s


def test_the_host_takes_what_the_device_file_says_or_microseconds(plain_device: Device) -> None:
    """Table 4 of ZeRO-Offload: 0.24 s for 1e9 parameters on the processors of one node."""
    assert cpu_adam_s(plain_device, 10**9, 1) == pytest.approx(0.24)
    assert cpu_adam_s(plain_device, 10**8, 8) == pytest.approx(0.8 * 0.24)
    host = {"cpu_adam_bytes_per_s": 60e9, "h2d_bytes_per_s": 5e9, "d2h_bytes_per_s": 4e9, "dispatch_forward_s": 1e-3}
    said = replace(plain_device, host=host)
    assert cpu_adam_s(said, 10**9, 2) == pytest.approx(
        1.0
    )  # 30 bytes each: 16-bit weight and gradient, master, two moments
    assert (copy_bytes_per_s(said, to_host=False), copy_bytes_per_s(said, to_host=True)) == (5e9, 4e9)
    assert copy_bytes_per_s(plain_device, to_host=True) == pytest.approx(0.85 * 32e9)
    assert [issue_s(said, "eager", phase) for phase in ("forward", "recompute", "data")] == [1e-3] * 3
    for mode in ("eager", "compiled", "graphs"):
        for phase in ("forward", "backward", "optimizer"):
            assert 0.5e-6 < issue_s(plain_device, mode, phase) < 2e-5
    # autograd's C++ threads issue faster than Python, graphs faster than anything
    eager = [issue_s(plain_device, "eager", phase) for phase in ("forward", "backward", "optimizer")]
    assert eager == sorted(eager, reverse=True) and issue_s(plain_device, "graphs", "backward") < min(eager) / 2


def test_experts_that_are_launched_one_by_one_take_the_host_as_often(plain_device):
    """Each of them 45 us beside what the product takes as a whole; a graph has one node for each."""
    said = replace(plain_device, host={**plain_device.host, "dispatch_expert_s": 4.5e-5})
    whole, few, many = (issue_s(said, "eager", "forward", n_pieces=n) for n in (1, 4, 16))
    assert (few - whole, many - whole) == (pytest.approx(4 * 4.5e-5), pytest.approx(16 * 4.5e-5))
    assert issue_s(said, "graphs", "forward", n_pieces=16) == pytest.approx(16 * issue_s(said, "graphs", "forward"))


def test_modules_cost_the_host_more_before_their_overhead_was_reduced(plain_device):
    """Container 25.11 against 26.02, the same recipe (MB-0086 and MB-0061, split=fit): 11.03 and 10.05 s, mostly the host's."""
    call = {"is_call": True, "n_pieces": 16}
    late, early = (issue_s(plain_device, "eager", "forward", is_early=age, **call) for age in (False, True))
    assert 11.03 / 10.05 < early / late < 1.25
    assert issue_s(plain_device, "eager", "forward", is_early=True) == issue_s(plain_device, "eager", "forward")
    assert issue_s(plain_device, "graphs", "forward", is_early=True, **call) == issue_s(
        plain_device, "graphs", "forward", **call
    )


@pytest.mark.parametrize(("is_quantised", "least_s", "most_s"), [(False, 311e-6, 398e-6), (True, 441e-6, 519e-6)])
def test_modules_cost_a_grace_what_was_timed(is_quantised, least_s, most_s):
    """NVIDIA/TransformerEngine, pull request 3523, GB200, before it: CPU time of forward and backward of Linear and of LayerNormLinear,
    in BF16 and in MXFP8. Beside the two calls backward launches the product of the weight's gradient; in MXFP8 an input is quantised
    forward and a gradient backward."""
    device = load_device("gb200")
    call = {"is_call": True, "is_quantised": is_quantised}
    spent_s = issue_s(device, "eager", "forward", **call) + issue_s(device, "eager", "backward", **call)
    spent_s += issue_s(device, "eager", "backward")
    if is_quantised:
        spent_s += issue_s(device, "eager", "forward") + issue_s(device, "eager", "backward")
    assert least_s < spent_s < most_s


def test_a_grace_dispatches_as_slowly_as_was_timed():
    """NVIDIA/TransformerEngine, issue 2053: ``torch.nn.Linear`` takes the CPU 37.08 us forward on GB200 and 33.17 on GH200."""
    for name, measured_s in (("gb200", 37.08e-6), ("gb300", 37.08e-6), ("gh200-96g", 33.17e-6)):
        assert issue_s(load_device(name), "eager", "forward") == pytest.approx(measured_s, rel=0.02)


@pytest.mark.parametrize(("release", "is_early"), [("25.11", True), ("26.02", False), ("26.08", False), (None, False)])
def test_containers_before_the_one_that_was_timed_anew_have_early_modules(release, is_early):
    """MB-0061 of container 26.02 is the later one of the two above; without a container modules are current."""
    assert FRAMEWORKS["megatron-bridge"].at(release).has_early_modules is is_early
    assert not FRAMEWORKS["torch-fsdp2"].at(release).has_early_modules


def pointwise(name: str = "add", read: float = 4.0, **more: str) -> PointwiseShape:
    return PointwiseShape(name=name, n_elements=1, read_bytes=read, written_bytes=2.0, **more)  # type: ignore[arg-type]


def test_products_and_sums_with_a_constant_are_scalings() -> None:
    table = {"scale": 1.0, "add": 2.0, "mul": 3.0, "gelu": 4.0, "add.backward": 5.0, "default": 6.0}
    assert [
        lookup(table, pointwise(name, read), 7.0)
        for name, read in (("add", 4.0), ("mul", 4.0), ("add", 2.0), ("mul", 1.0))
    ] == [2, 3, 1, 1]
    assert [
        lookup(table, pointwise(name), 7.0) for name in ("residual", "bias_add", "mask", "geglu", "gelu", "tanh")
    ] == [2, 2, 3, 4, 4, 6]
    assert lookup(table, pointwise(kernel_pass="backward"), 7.0) == 5 and lookup({}, pointwise(), 7.0) == 7


def test_default_rates_of_pointwise_kernels_are_those_measured() -> None:
    """``to_f32`` of own measurements on one H200: 358e9 elements/s at every size; no SM finishes two elements a clock."""
    h200, constants = load_device("h200-sxm"), PointwiseConstants()
    assert ELEMENTS_PER_CLOCK["widen"] * h200.n_sms * h200.clock_hz == pytest.approx(358e9, rel=0.15)
    assert all(1.0 < rate < 2.0 for rate in ELEMENTS_PER_CLOCK.values())
    assert 1e-6 < constants.launch_s < 5e-6
    assert 0.5 < constants.efficiency["default"] < 1 and (constants.warm_bandwidth, constants.warm_share) == (1.0, 0.5)
    cold = PointwiseShape(name="new", n_elements=1 << 28, read_bytes=2.0 * (1 << 28), written_bytes=2.0 * (1 << 28))
    bare = replace(h200, kernels={})
    share = cold.n_bytes / h200.memory_bandwidth_bytes_per_s / RooflineKernels().duration_s(cold, bare)
    assert 0.75 < share < 0.85  # four fifths of the datasheet


def test_timing_adds_microseconds_and_jobs_add_nothing() -> None:
    for timing in CONDITIONS.values():
        assert 0 <= timing.overhead_s < 50e-6 and 0 < timing.power_share <= 1
        assert timing.is_cold == timing.name.endswith("flushed")
    training = CONDITIONS["training"]
    assert (training.overhead_s, training.burst_s, training.cache_copies, training.power_share) == (0, 0, 0, 1)
    assert CONDITIONS["inference_prefill"].cache_copies == 2  # written into the pages and read from them
    throttled = CONDITIONS["graph_replay_throttled"]
    # 860 to 1,090 TFLOP/s of long 16-bit products, over the 1,300 that training and cuBLASLt's sustained products say
    assert 860 / 1300 < throttled.power_share < 1090 / 1300
