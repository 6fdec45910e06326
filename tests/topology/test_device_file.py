"""Device files that extend others: what is the same board's, what goes with its rates, and what is its own."""

import re

import pytest

from simulator.config import resolve_name
from simulator.errors import ConfigError
from simulator.kernels.roofline import KernelConstants
from simulator.topology.device_file import load_device

H100 = load_device("h100-sxm5-80g")


@pytest.fixture
def device(tmp_path):
    def written(text, name="mine"):
        file = tmp_path / f"{name}.yaml"
        file.write_text(f"name: {name}\nextends: h100-sxm5-80g\n{text}", encoding="utf-8")
        return load_device(file)

    return written


def test_what_is_not_said_is_that_of_the_other_board(device):
    mine = device("memory: 141 GB\n")
    assert (mine.name, mine.memory_bytes) == ("mine", 141e9)
    same = ("vendor", "architecture", "n_sms", "clock_hz", "peak_flops_per_s", "host", "interference")
    assert all(getattr(mine, one) == getattr(H100, one) for one in same)
    assert KernelConstants.of(mine) == KernelConstants.of(H100)


def test_constants_of_another_board_are_not_measured_on_this_one(device):
    """The relative error of a generation is 15 % where a file states none; sources say whose the constants are."""
    mine = device("")
    assert (H100.kernel_basis, mine.kernel_basis, mine.kernel_error) == ("measured", "generation", 0.15)
    assert device("kernel_error: 0.3\n", "other").kernel_error == 0.3
    assert mine.kernels["gemm"]["source"].startswith("carried over from h100-sxm5-80g: fitted to")
    assert "fit" not in mine.kernels["gemm"] and "fit" in H100.kernels["gemm"]


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("n_sms: 66\n", 0.5),  # each of half as many does twice as much
        ("n_sms: 66\npeak: {bf16: 494.7 TFLOP/s}\n", 1.0),
        ("peak: {bf16: 494.7 TFLOP/s}\n", 2.0),
    ],
)
def test_matrix_units_take_their_time_by_what_an_sm_does(device, text, factor):
    mine, theirs = KernelConstants.of(device(text)), KernelConstants.of(H100)
    assert mine.gemm.tile_s_per_element == pytest.approx(factor * theirs.gemm.tile_s_per_element)
    assert mine.gemm.launch_s == theirs.gemm.launch_s
    of = "attention", "default", "forward"
    mine_s, theirs_s = (one.kernels[of[0]][of[1]][of[2]]["score_s"] for one in (device(text), H100))
    assert mine_s == pytest.approx(factor * theirs_s)


def test_joules_and_heat(device):
    """A product's joules go with the voltage; what a hot board adds to them, 12 % at 700 W, goes with its watts."""
    cool = KernelConstants.of(device("relative_flop_energy: 0.5\npower_limit: 350 W\n")).gemm
    hot = KernelConstants.of(H100).gemm
    assert cool.joules_per_flop == pytest.approx(0.5 * hot.joules_per_flop)
    assert cool.joules_per_byte == hot.joules_per_byte
    assert (cool.sustained_energy, hot.sustained_energy) == (pytest.approx(1.06), 1.12)


def test_constants_that_a_file_states_are_its_own(device):
    mine = device(
        "relative_flop_energy: 0.5\nkernels: {gemm: {joules_per_flop: 7.0e-13, dtype_efficiency: {fp8: 0.9}}}\n"
    )
    gemm = KernelConstants.of(mine).gemm
    assert gemm.joules_per_flop == 7.0e-13
    assert gemm.dtype_efficiency == {**KernelConstants.of(H100).gemm.dtype_efficiency, "fp8": 0.9}


def test_what_was_fitted_to_the_board_itself_is_whole(device):
    """A fit has all constants that its rows determine; the others have defaults, not another board's values."""
    fit = "fit: {held_out: {}, one_standard_deviation: {}}"
    mine = device(
        f"kernels: {{gemm: {{launch_s: 5.0e-6, {fit}}}, attention: {{mla: {{forward: {{launch_s: 1.0e-5}}}}, {fit}}}}}\n"
    )
    assert KernelConstants.of(mine).gemm.launch_s == 5e-6
    assert dict(KernelConstants.of(mine).gemm.dtype_efficiency) == {} != KernelConstants.of(H100).gemm.dtype_efficiency
    assert mine.kernels["attention"]["mla"]["forward"] == {"launch_s": 1e-5}
    assert mine.kernels["attention"]["default"] == H100.kernels["attention"]["default"]


def test_a_host_is_said_whole(device):
    assert device("host: {launch_s: 2.0e-6}\n").host == {"launch_s": 2e-6}


def test_a_chain_of_files(device, tmp_path):
    device("memory: 141 GB\npeak: {bf16: 494.7 TFLOP/s}\n")
    (tmp_path / "third.yaml").write_text("name: third\nextends: mine.yaml\nn_sms: 66\n", encoding="utf-8")
    third = load_device(tmp_path / "third.yaml")
    assert (third.memory_bytes, third.n_sms) == (141e9, 66)
    ours, theirs = (KernelConstants.of(one).gemm.tile_s_per_element for one in (third, H100))
    assert ours == pytest.approx(theirs), "half the SMs of half the rate"


def test_faults_are_shown_where_they_stand(device, tmp_path):
    with pytest.raises(ConfigError, match=r"mine.yaml:3:10: extends: h100: no such file"):
        (tmp_path / "mine.yaml").write_text("name: mine\nmemory: 1 GB\nextends: h100\n", encoding="utf-8")
        load_device(tmp_path / "mine.yaml")
    (tmp_path / "list.yaml").write_text("[1, 2]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine.yaml:2:10: extends: list.yaml is no mapping of keys"):
        (tmp_path / "mine.yaml").write_text("name: mine\nextends: list.yaml\n", encoding="utf-8")
        load_device(tmp_path / "mine.yaml")
    with pytest.raises(ConfigError, match="in turn"):
        (tmp_path / "loop.yaml").write_text("name: loop\nextends: loop.yaml\n", encoding="utf-8")
        load_device(tmp_path / "loop.yaml")
    with pytest.raises(ConfigError, match=r"alone.yaml:\d+:1: relative_flop_energy is relative to a device that"):
        text = resolve_name("h100-sxm5-80g", "devices").read_text(encoding="utf-8")
        (tmp_path / "alone.yaml").write_text(text + "relative_flop_energy: 0.5\n", encoding="utf-8")
        load_device(tmp_path / "alone.yaml")
    device("kernels: {gemm: {lunch_s: 1.0e-6}}\n", "below")
    (tmp_path / "above.yaml").write_text("name: above\nextends: below.yaml\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"below.yaml:3:\d+: kernels.gemm.lunch_s: unknown constant"):
        KernelConstants.of(load_device(tmp_path / "above.yaml"))


@pytest.mark.parametrize(("name", "base"), [("h800-sxm", "h100-sxm5-80g"), ("gh200-96g", "h100-sxm5-80g")])
def test_relatives_have_all_kernels_of_their_generation(name, base):
    """DeepSeek's H800 and Grace Hopper's H100 are the H100's die: grouped products, latent attention, eight bits."""
    mine, theirs = load_device(name).kernels, load_device(base).kernels
    assert set(mine) == set(theirs)
    assert set(mine["attention"]) - {"fit", "source"} == set(theirs["attention"]) - {"fit", "source"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host: {dispach_forward_s: 1.0e-5}\n", "dispach_forward_s.*dispatch_forward_s"),
        ("host: {launch_s: 1.5}\n", "launch_s"),
        ("host: {h2d_bytes_per_s: 0}\n", "h2d_bytes_per_s"),
        ("interference: {nvlnk: {compute: 0.8}}\n", "nvlnk.*nvlink"),
        ("interference: {network: {comm: 0.8}}\n", "network.*comm"),
        ("interference: {copy: {compute: 1.5}}\n", "compute"),
    ],
)
def test_what_a_host_or_interference_does_not_know_is_refused(device, text, told):
    """A constant that is misspelt, or that no machine has, would be another machine's without a word."""
    with pytest.raises(ConfigError) as error:
        device(text)
    assert re.search(told, f"{error.value.message} {error.value.hint}", re.DOTALL), error.value.message
