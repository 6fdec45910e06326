"""``simulate collective``: columns, choices, messages."""

from __future__ import annotations

import json

import pytest

from simulator.interop.measurements.nccl_tests import import_nccl_tests


def test_the_table_is_one_that_readers_of_nccl_tests_understand(simulate, tmp_path):
    code, out, err = simulate(
        "collective",
        "all_reduce",
        "--topology",
        "polaris",
        "--gpus",
        8,
        "--min",
        "1KiB",
        "--max",
        "64MiB",
        "--factor",
        16,
    )
    assert (code, err) == (0, "")
    path = tmp_path / "log.txt"
    path.write_text(out, encoding="utf-8")
    table = import_nccl_tests(path)
    assert (table.collective, table.n_ranks) == ("all_reduce", 8)
    assert [row.n_bytes for row in table.rows] == [2**10, 2**14, 2**18, 2**22, 2**26]
    best = table.rows[-1]
    assert best.busbw_bytes_per_s == pytest.approx(1.75 * best.algbw_bytes_per_s, rel=1e-3)
    assert best.algbw_bytes_per_s == pytest.approx(best.n_bytes / best.time_s, rel=1e-3)


def test_json_is_one_document(simulate):
    code, out, err = simulate(
        "collective", "all_gather", "-t", "polaris", "--gpus", 8, "--min", "1MiB", "--max", "1MiB",
        "--transport", "tcp", "--nccl-algo", "ring", "--nccl-proto", "simple", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["transport"] == "tcp" and document["nodes"] == 2
    (row,) = document["rows"]
    assert (row["algorithm"], row["protocol"]) == ("ring", "simple")
    assert row["size_bytes"] == 2**20 and row["count"] == 2**20 // 4 // 8


def test_what_changes_nothing_is_said(simulate):
    code, _, err = simulate(
        "collective", "all_reduce", "-t", "polaris", "--gpus", 4, "--max", "1KiB", "--transport", "tcp"
    )
    assert code == 0
    assert err == "warning: --transport tcp has no effect: all GPUs are on one node\n"


def test_plot(simulate, tmp_path):
    path = tmp_path / "plot.html"
    code, _, err = simulate("collective", "reduce", "-t", "polaris", "--gpus", 8, "--max", "4KiB", "--plot", path)
    assert code == 0 and str(path) in err
    assert "bus bandwidth" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_reduse", "-t", "polaris", "--gpus", "8"], "one of all_reduce"),
        (["all_reduce", "-t", "polaris", "--gpus", "1"], "two or more"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--min", "many"], "--min"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--min", "1kb"], "b is a bit"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--nccl", "1.3"], "no NCCL 1.3"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--max", "1KiB", "--min", "2KiB"], "make no range"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--transport", "pigeons"], "one of rdma, tcp"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--nccl-algo", "spiral"], "algorithm 'spiral' is unknown"),
        (["all_reduce", "-t", "missing.yaml", "--gpus", "8"], "missing.yaml"),
        (["all_reduce", "-t", "polaris", "--gpus", "8", "--max", "1KiB", "--plot", "x.foo"], "unknown format"),
    ],
)
def test_mistakes_are_explained(simulate, arguments, message):
    code, out, err = simulate("collective", *arguments)
    assert code == 3
    assert message in err and "Traceback" not in err
    assert "error:" not in out


def test_a_mistake_under_json_is_one_document_too(simulate):
    code, out, _ = simulate("collective", "all_reduce", "-t", "polaris", "--gpus", "8", "--transport", "x", "--json")
    assert code == 3
    assert json.loads(out)["error"]["type"] == "ConfigError"


def test_all_network_models_side_by_side(simulate):
    code, out, _ = simulate("collective", "all_reduce", "-t", "polaris", "--gpus", 8, "--min", "1MiB", "--max", "4MiB",
                            "--network", "all", "--json")  # fmt: skip
    document = json.loads(out)
    assert code == 0
    assert set(document["networks"]) == {"flow", "alpha-beta", "chunk"}
    assert all(abs(value) < 0.01 for values in document["relative_to_chunk"].values() for value in values)
    assert simulate("collective", "all_reduce", "-t", "polaris", "--gpus", 8, "--network", "packets")[0] == 3


@pytest.mark.parametrize(("name", "known"), [("allreduce", "all_reduce"), ("alltoall_perf", "all_to_all")])
def test_names_of_nccl_tests_are_taken(simulate, name, known):
    code, out, _ = simulate("collective", name, "-t", "polaris", "--gpus", 8, "--max", "1KiB", "--json")
    assert (code, json.loads(out)["collective"]) == (0, known)


def test_intervals_stand_below_the_table_and_in_every_row(simulate):
    arguments = ("collective", "all_reduce", "-t", "dgx-h100", "--gpus", "16", "--min", "1MiB", "--max", "4MiB")
    code, out, _ = simulate(*arguments)
    assert code == 0 and "# 80 % interval from 1 MiB: " in out
    row = json.loads(simulate(*arguments, "--json")[1])["rows"][0]
    assert row["low_s"] <= row["time_s"] <= row["high_s"]


def test_copies_stand_in_the_same_columns(simulate):
    flags = ("-t", "polaris", "--gpus", 4, "--min", "64MiB", "--max", "64MiB")
    code, out, err = simulate("collective", "p2p_copy", *flags)
    assert (code, err) == (0, "")
    assert [line.split("  ")[-1] for line in out.splitlines() if line.startswith(" ")] == [
        "peer, copy engine", "peer, kernel", "peer, both ways", "host to device", "device to host",
    ]  # fmt: skip
    code, out, _ = simulate("collective", "p2p_copy", *flags, "--json")
    document = json.loads(out)
    assert code == 0 and document["collective"] == "p2p_copy" and len(document["rows"]) == 5


def test_values_of_the_cluster_are_changed_as_for_other_commands(simulate):
    """Large messages between nodes take as long as NICs are slow: half of the rate, twice the time."""
    arguments = ("collective", "all_reduce", "-t", "polaris", "--gpus", 8, "--min", "1GiB", "--max", "1GiB", "--json")
    times = []
    for rate in ("100 Gb/s", "50 Gb/s"):
        code, out, err = simulate(*arguments, "--set", "node.nics.count=1", "--set", f"node.nics.bandwidth={rate}")
        document = json.loads(out)
        assert (code, err) == (0, "")
        assert document["topology"] == f"polaris node.nics.count=1 node.nics.bandwidth={rate}"
        times.append(document["rows"][0]["time_s"])
    assert times[1] / times[0] == pytest.approx(2.0, rel=0.02)
    assert json.loads(simulate(*arguments)[1])["topology"] == "polaris"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("tp=4", "--set tp=4 changes no value of the cluster: a collective has no plan\nhint: a key of its file"),
        ("transport=tcp", "changes no value of the cluster: a collective has no plan\nhint: --transport tcp"),
        ("nccl_algo=ring", "hint: --nccl-algo ring"),
        ("gpus=4", "hint: --gpus 4"),
        ("plan=a.yaml", "a collective has no plan"),
        ("node.nics.cont=4", "unknown key. Did you mean 'count'?"),
        ("node.nics.count", "write key=value"),
    ],
)
def test_what_is_no_value_of_the_cluster_is_refused(simulate, change, said):
    code, out, err = simulate("collective", "all_reduce", "-t", "polaris", "--gpus", 8, "--set", change)
    assert (code, out) == (3, "") and said in err


def test_changes_that_a_collective_does_not_meet_are_named(simulate):
    code, _, err = simulate(
        "collective", "all_reduce", "-t", "polaris", "--gpus", 4, "--max", "1KiB", "--set", "node.nics.count=1"
    )
    assert (code, err) == (0, "warning: node.nics.count=1 has no effect: all GPUs are on one node\n")
