"""Kernels that carry tokens to their experts: bytes by hand, bounds, and measured exchanges."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.kernels.dispatcher import DispatcherKernels
from simulator.parallel.expert import expected_places
from simulator.program.op import Routed
from simulator.topology.device_file import load_device
from validation.tables.collective_rows import predict as predict_collectives
from validation.tables.dispatch_rows import network_s, predict
from validation.tables.reader import Row

H100 = load_device("h100-sxm5-80g")


def test_with_ample_sms_the_links_bound_the_time():
    dispatcher = DispatcherKernels.of(H100)
    routed = Routed(n_tokens=65536, token_bytes=14336.0, n_places=4.0, n_all=8)
    leaving = 65536 * (14336 + dispatcher.combine.header_bytes) * 4 * 7 / 8
    expected = leaving / (dispatcher.combine.link_share * 450e9)
    assert dispatcher.copying_s("combine", routed, 10**6, 450e9) == pytest.approx(expected, rel=1e-6)


@given(n_sms=st.integers(1, 100), tokens=st.integers(1, 10**5))
def test_more_sms_are_never_slower_and_few_share_the_work(n_sms, tokens):
    dispatcher = DispatcherKernels.of(H100)
    routed = Routed(n_tokens=tokens, token_bytes=7168.0, n_places=5.3, n_all=8)
    for operator in ("dispatch", "combine"):
        once, twice = (dispatcher.copying_s(operator, routed, n, 450e9) for n in (n_sms, 2 * n_sms))
        assert once / 2 <= twice <= once
        across = [network_s(operator, Routed(tokens, 7168.0, 3.6, nodes), n_sms, 5e10) for nodes in (4, 8)]
        assert across[0] <= across[1]


#: ai-dynamo/aiconfigurator@095f58a51c, DeepEP under SGLang: (topology, GPUs, nodes, op, tokens, hidden, top k, experts, SMs), us
MEASURED = [
    (("dgx-h100", 8, 1, "moe_dispatch", 4096, 7168, 8, 256, 20), 491.2),
    (("dgx-h100", 8, 1, "moe_combine", 4096, 7168, 8, 256, 20), 972.5),
    (("gb200-nvl72", 4, 1, "moe_dispatch", 4, 7168, 8, 256, 16), 33.3),
    (("gb200-nvl72", 4, 1, "moe_combine", 8192, 7168, 8, 256, 8), 2687.6),
    (("hgx-h200", 32, 4, "moe_dispatch", 4096, 7168, 8, 256, 24), 1791.0),
    # launches alone, few SMs, many SMs, and eight nodes, where cards are crowded
    (("hgx-h200", 8, 1, "moe_dispatch", 16, 4096, 10, 512, 16), 26.4),
    (("hgx-h200", 8, 1, "moe_combine", 16, 3072, 8, 256, 24), 35.8),
    (("hgx-h200", 8, 1, "moe_dispatch", 4096, 4096, 8, 256, 4), 1387.1),
    (("hgx-h200", 8, 1, "moe_combine", 8192, 7168, 8, 384, 4), 7650.7),
    (("hgx-h200", 8, 1, "moe_dispatch", 8192, 7168, 8, 384, 20), 977.8),
    (("hgx-h200", 8, 1, "moe_combine", 4096, 7168, 8, 384, 20), 987.9),
    (("hgx-h200", 32, 4, "moe_dispatch", 8192, 7168, 8, 256, 8), 4902.0 + 81.1),
    (("hgx-h200", 64, 8, "moe_dispatch", 8192, 7168, 8, 256, 20), 11612.0),
    (("hgx-h200", 64, 8, "moe_combine", 16, 7168, 8, 256, 24), 81.4),
    (("hgx-h200", 32, 4, "moe_combine", 8192, 7168, 8, 256, 8), 11849.0),
    (("hgx-h200", 32, 4, "moe_combine", 16, 7168, 8, 256, 24), 73.8),
]


@pytest.mark.parametrize(("cells", "measured_us"), MEASURED)
def test_rows_are_predicted_as_measured(cells, measured_us):
    names = ("topology", "gpus", "nodes", "op", "tokens_per_gpu", "hidden", "topk", "experts", "sms")
    texts = {name: str(value) for name, value in zip(names, cells, strict=True)}
    row = Row(cells={**texts, "transmit_us": str(measured_us)}, kind="moe_all_to_all", file="m.csv", line=2)
    (outcome,) = predict([row])
    assert outcome.predicted == pytest.approx(measured_us, rel=0.15)


@pytest.mark.parametrize(
    ("operator", "token_bytes", "published"), [("dispatch", 7392, 153e9), ("combine", 14336, 158e9)]
)
def test_a_device_without_rows_of_its_own_copies_at_the_rate_of_its_links(operator, token_bytes, published):
    """DeepEP's README, normal kernels on 8 H800 (200 GB/s each way): 4,096 tokens, 20 SMs; bytes received, one's own included."""
    dispatcher = DispatcherKernels.of(load_device("h800-sxm"))
    routed = Routed(n_tokens=4096, token_bytes=token_bytes, n_places=expected_places(8, 8, 256), n_all=8)
    time_s = dispatcher.launch_s(operator) + dispatcher.copying_s(operator, routed, 20, 200e9)
    assert 4096 * expected_places(8, 8, 256) * token_bytes / time_s == pytest.approx(published, rel=0.25)


def test_a_direction_that_does_not_exist_is_refused():
    row = Row(
        cells={"topology": "dgx-h100", "gpus": "8", "nodes": "1", "op": "moe_shuffle", "tokens_per_gpu": "1"},
        kind="moe_all_to_all", file="m.csv", line=2,
    )  # fmt: skip
    assert "moe_shuffle" in predict([row])[0].reason


def test_every_device_can_be_asked():
    for name, operator in product(("h100-sxm5-80g", "gb300", "mi300x", "a100-sxm4-80g"), ("dispatch", "combine")):
        assert DispatcherKernels.of(load_device(name)).launch_s(operator) > 0


#: ai-dynamo/aiconfigurator@095f58a51c and deepseek-ai/DeepEP@dd758ca, README: a row of a table of collectives, us
NOTED = [
    ("dgx-b200", 8, 1, "moe_dispatch", "deepep normal 20 SMs", 267831282, "tokens 8192 hidden 6144 top-8 experts 160; FP8 payload", 908.7),
    ("gb200-nvl72", 8, 2, "moe_combine", "NVLinkTwoSided", 2487226567, "tokens 32768 hidden 7168 top-8 experts 256 dtype bfloat16", 6415.4),
    ("gb200-nvl72", 16, 4, "moe_dispatch", "NVLinkOneSided", 430929724, "tokens 16384 hidden 7168 top-8 experts 256 dtype nvfp4", 774.7),
    ("hgx-h200", 32, 4, "moe_dispatch", "deepep normal 24 SMs", 0, "tokens 4096 hidden 7168 top-8 experts 256; FP8 payload", 1791.0),
    ("dgx-h800", 8, 1, "moe_dispatch_ll", "", 7340032, "low-latency kernels, 128 tokens per GPU", 77.0),
    ("dgx-h800", 64, 8, "moe_combine_ll", "", 14680064, "low-latency kernels, 128 tokens per GPU", 314.0),
    ("dgx-h800", 64, 8, "moe_combine", "deepep V1, 20 SMs", 234881024, "EP64, 4096 tokens, top-8 limited to 4 nodes, BF16", 6074.0),
]  # fmt: skip


@pytest.mark.parametrize("noted", NOTED, ids=[f"{row[0]}-{row[3]}-{row[4]}" for row in NOTED])
def test_exchanges_in_tables_of_collectives_are_predicted_from_their_notes(noted):
    machine, gpus, nodes, name, algorithm, n_bytes, notes, measured = noted
    n_bytes = n_bytes or round(4096 * 7168 * (1 + 4 / 128) * expected_places(gpus, 8, 256))
    cells = {"topology": machine, "gpus": str(gpus), "nodes": str(nodes), "collective": name, "algorithm": algorithm,
             "size_bytes": str(n_bytes), "time_us": str(measured), "notes": notes}  # fmt: skip
    (found,) = predict_collectives([Row(cells=cells, kind="collectives", file="", line=1)])
    assert found.reason is None or not found.reason
    assert found.predicted == pytest.approx(measured, rel=0.2)


def test_an_exchange_says_what_its_notes_lack():
    cells = {
        "topology": "dgx-h100",
        "gpus": "8",
        "nodes": "1",
        "collective": "moe_dispatch",
        "size_bytes": "1",
        "time_us": "1",
    }
    (found,) = predict_collectives([Row(cells=cells, kind="collectives", file="", line=1)])
    assert "tokens 4096 hidden 7168 top-8 experts 256" in found.reason
    notes = {"notes": "tokens 1 hidden 1 top-1 experts 8", "algorithm": "nvlinkx"}
    (found,) = predict_collectives([Row(cells=cells | notes, kind="collectives", file="", line=1)])
    assert "'nvlinkx' is unknown" in found.reason
