"""An invented GPU: one device file and a cluster file that names it, and nothing else."""

import json

import pytest

#: 100 TFLOP/s and 1 TB/s of a generation that the program has never heard of
DEVICE = """\
name: toy-gpu
vendor: Toys
architecture: abacus
n_sms: 64
memory: 24 GiB
memory_bandwidth: 1000 GB/s
l2: 16 MiB
clock: 1500 MHz
power_limit: 300 W
peak: {fp32: 25 TFLOP/s, fp16: 100 TFLOP/s, bf16: 100 TFLOP/s}
pcie_bandwidth: 31.5 GB/s
sources: {datasheet: made up for this test}
"""
CLUSTER = """\
nodes: 4
node:
  device: toy-gpu.yaml
  gpus: 4
  nvlink: {kind: mesh, links_per_peer: 2, bandwidth_per_link: 10 GB/s, latency: 1 us}
  nics: {count: 1, bandwidth: 100 Gb/s, latency: 1 us}
fabric: {kind: one-switch}
"""
#: parameters of GPT-2 (Radford et al., 2019), and FLOPs of a sequence of 1,024 tokens: 6 per parameter of the matrices
#: and the output (12 x 12 x 768^2 + 50257 x 768) and token, and attention's 12 x layers x hidden x tokens per token
GPT2_FLOPS = 1024 * (6 * (12 * 12 * 768**2 + 50257 * 768) + 12 * 12 * 768 * 1024)


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "toy-gpu.yaml").write_text(DEVICE, encoding="utf-8")
    file = tmp_path / "toy-cluster.yaml"
    file.write_text(CLUSTER, encoding="utf-8")
    return file


def answer(simulate, *arguments):
    status, out, err = simulate(*arguments, "--json")
    assert status == 0, err
    return json.loads(out)


@pytest.mark.parametrize("network", ["flow", "chunk", "alpha-beta"])
def test_it_is_simulated_on_every_network(simulate, cluster, network):
    main = ("--topology", cluster, "--model", "gpt2", "--gpus", 16, "--micro-batch", 2, "--global-batch", 32)
    found = answer(simulate, *main, "--network", network)
    assert found["provenance"]["device"] == "toy-gpu"
    assert found["memory"]["capacity_bytes"] == 24 * 2**30
    assert found["breakdown"]["compute_s"] > 2 * GPT2_FLOPS / 100e12
    assert found["mfu"] == pytest.approx(2 * GPT2_FLOPS / found["iteration_time_s"] / 100e12, rel=0.05)
    reduced = next(row for row in found["communication"] if row["collective"] == "all_reduce")
    assert reduced["busbw_bytes_per_s"] <= 12.5e9 * 4  # four GPUs of a node share 100 Gb/s both ways
    assert "far from anything measured" in found["confidence"]["basis"]


def test_it_is_searched_and_explained(simulate, cluster):
    found = answer(
        simulate, "search", "--topology", cluster, "--model", "gpt2-large", "--gpus", 8, "--global-batch", 16
    )
    assert found["best"]["peak_bytes"] <= 24 * 2**30
    main = ("--topology", cluster, "--model", "gpt2", "--gpus", 8, "--micro-batch", 1)
    explained = answer(simulate, *main, "--explain")["explanation"]
    assert "twice the arithmetic rate of the GPU" in [row["change"] for row in explained["changes"]]


def test_it_is_listed_with_its_source(simulate, cluster):
    status, out, err = simulate("topology", "show", cluster)
    assert status == 0, err
    assert "toy-gpu" in out
    assert "60 GB/s" in out  # two links to each of three peers


def test_a_gpu_without_a_peak_is_refused_by_name(simulate, cluster):
    device = cluster.parent / "toy-gpu.yaml"
    device.write_text(DEVICE.replace("peak: {", "peaks: {"), encoding="utf-8")
    status, _, err = simulate("--topology", cluster, "--model", "gpt2", "--gpus", 4)
    assert status == 3
    assert "toy-gpu.yaml:10:1: peaks: unknown key. Did you mean 'peak'" in err
