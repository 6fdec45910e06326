"""``simulate calibrate``: what is fitted, what is left open, what is written, messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simulator.calibration.tables import read_rows
from simulator.collectives.benchmark import benchmark_table, size_range
from simulator.interop import open_topology
from simulator.kernels import RooflineKernels
from simulator.models.layer import GemmShape
from simulator.topology.device_file import load_device

KERNEL_COLUMNS = "row_id,source,device,op,pass,m,n,k,dtype,time_us,split,notes"


def log_text(n_gpus, *, slower):
    """A log as nccl-tests writes it, of a Polaris whose NICs are slower for large messages than the shipped ones."""
    machine = open_topology("polaris", n_gpus)
    rows = benchmark_table("all_reduce", machine, size_range(2**10, 2**30, 2))
    lines = [f"#  Rank {r} Group 0 Pid {r} on  n{r // 4} device {r % 4} [0x07] A100" for r in range(n_gpus)]
    lines += ["# all_reduce_perf", "#  size  count  type  redop  root  time  algbw  busbw #wrong"]
    for row in rows:
        time_us = row.time_s * 1e6 * (slower if row.label == "ring/simple" else 1.0)
        bus = 2 * (n_gpus - 1) / n_gpus * row.n_bytes / time_us / 1e3
        lines.append(
            f"{row.n_bytes} {row.count} float sum -1 {time_us:.2f} {row.n_bytes / time_us / 1e3:.3f} {bus:.3f} 0"
        )
    return "\n".join(lines) + "\n"


@pytest.fixture
def logs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for n_gpus in (8, 16):
        (tmp_path / f"n{n_gpus}.log").write_text(log_text(n_gpus, slower=1.4), encoding="utf-8")
    return ["n8.log", "n16.log"]


def test_a_cluster_from_its_logs(simulate, logs):
    code, out, err = simulate("calibrate", "collectives", *logs, "-t", "polaris", "--out", "mine.yaml", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "wrote mine.yaml\n")
    assert document["transport"] == "rdma" and document["n_held_out"] > 8
    fitted = {c["name"]: c for c in document["constants"]}["between nodes: ring efficiency, Simple"]
    assert fitted["value"] == pytest.approx(fitted["before"] / 1.4, rel=0.1)
    assert 0 < fitted["relative_error"] < 0.3
    large = "held out, all_reduce, from 1 MiB"
    before, after = document["errors_before"][large], document["errors_after"][large]
    assert before["p90_absolute"] > 0.25
    assert after["p90_absolute"] < 0.2
    assert any("depends on it" in why for why in document["undetermined"].values())
    mine = benchmark_table("all_reduce", open_topology("mine.yaml", 8), [2**30])[0]
    shipped = benchmark_table("all_reduce", open_topology("polaris", 8), [2**30])[0]
    assert mine.time_s == pytest.approx(1.4 * shipped.time_s, rel=0.1)
    tcp = {"transport": "tcp"}
    same = [benchmark_table("all_reduce", open_topology(t, 8), [2**30], **tcp)[0] for t in ("mine.yaml", "polaris")]
    assert same[0].time_s == same[1].time_s
    assert "simulate calibrate collectives" in Path("mine.yaml").read_text(encoding="utf-8")


def test_a_refitted_cluster_is_right_in_the_middle(simulate, logs):
    _, out, _ = simulate("calibrate", "collectives", *logs, "-t", "polaris", "--out", "mine.yaml", "--json")
    after = json.loads(out)["errors_after"]["held out, all_reduce, from 1 MiB"]
    assert 4 * after["median_absolute"] < 0.2


def test_the_account_in_words(simulate, logs):
    code, out, _ = simulate("calibrate", "collectives", "n8.log", "--topology", "polaris")
    assert code == 0
    assert re.search(r"polaris over rdma: \d+ rows fitted, \d+ held out", out)
    assert "not determined, left as they were" in out and "held out, all_reduce" in out


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("nothing\n", ["-t", "polaris"], "neither a log of nccl-tests nor a table"),
        ("#  size count type redop root time algbw busbw\n", ["-t", "polaris"], "no result lines"),
        ('{"results": [', ["-t", "polaris"], "not JSON"),
        ("collective,size_bytes,time_us\nall_reduce,1024,3\n", ["-t", "polaris"], "no column gpus"),
        (
            "collective,gpus,size_bytes,time_us\nall_reduce,8,1024,fast\n",
            ["-t", "polaris"],
            ":2:time_us: 'fast' is not a number",
        ),
        (
            "collective,gpus,size_bytes,time_us\nall_reduce,8,1024,-3\n",
            ["-t", "polaris"],
            "'-3' is not a finite number",
        ),
        ("collective,gpus,size_bytes,time_us\nall_reduse,8,1024,3\n", ["-t", "polaris"], "Did you mean"),
        ("collective,gpus,size_bytes,time_us\nall_reduce,99999,1024,3\n", ["-t", "polaris"], "99999 GPUs ran"),
        (
            "topology,collective,gpus,size_bytes,time_us\nfrontier,all_reduce,8,1,3\n",
            ["-t", "polaris"],
            "no rows of polaris",
        ),
        ("collective,gpus,size_bytes,time_us\nall_reduce,8,1024,30\n", ["-t", "atlantis"], "atlantis"),
        ("collective,gpus,size_bytes,time_us\nall_reduce,8,1024,30\n", ["-t", "polaris", "--leave-one-out"], "several"),
        ("collective,gpus,size_bytes,time_us\n", [], "no rows"),
    ],
)
def test_bad_logs_are_explained(simulate, tmp_path, text, arguments, message):
    path = tmp_path / "file"
    path.write_text(text, encoding="utf-8")
    code, _, err = simulate("calibrate", "collectives", path, *arguments)
    assert code == 3
    assert message in err and "Traceback" not in err


def kernel_rows(n_sizes=4):
    device, model = load_device("a100-sxm4-80g"), RooflineKernels("graph_replay")
    rows = []
    for m in (256, 1024, 4096, 5000)[:n_sizes]:
        for n in (512, 4096):
            for k in (64, 1024, 8192):
                time_s = model.duration_s(GemmShape(m=m, n=n, k=k), device)
                rows.append(f"r{len(rows)},lab,a100-sxm4-80g,gemm,nn,{m},{n},{k},bf16,{time_s * 1e6:.3f},,cuda graph")
    return "\n".join([KERNEL_COLUMNS, *rows]) + "\n"


def test_kernels_of_a_device(simulate, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(kernel_rows(), encoding="utf-8")
    code, out, err = simulate("calibrate", "kernels", "rows.csv", "-d", "a100-sxm4-80g", "-o", "mine.yaml", "--json")
    document = json.loads(out)
    assert (code, err) == (0, "wrote mine.yaml\n")
    assert set(document["constants"]) == {"gemm"}
    assert document["errors_held_out"]["gemm"]["n"] == 6
    assert document["errors_held_out"]["gemm"]["median_absolute"] < 0.05
    assert set(document["undetermined"]) == {"attention", "pointwise"}
    mine = load_device("mine.yaml")
    assert mine.kernels["gemm"]["source"].startswith("simulate calibrate kernels: 18 rows of rows.csv")
    assert mine.kernels["attention"] == load_device("a100-sxm4-80g").kernels["attention"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace("a100-sxm4-80g", "abacus"), "its 'device' column has abacus"),
        (lambda text: text.replace(",gemm,", ",gamm,"), "op 'gamm' is unknown"),
        (lambda text: text.replace(",nn,", ",sideways,"), "pass 'sideways' is unknown"),
        (lambda text: text.replace(",1024,", ",wide,"), ":3: k: 'wide' is not a number"),
        (lambda text: text.replace("time_us", "time"), "no column time_us"),
        (lambda text: "\n".join(text.splitlines()[:5]), "cannot determine"),
        (lambda text: "", "the file is empty"),
    ],
)
def test_bad_tables_are_explained(simulate, tmp_path, change, message):
    path = tmp_path / "rows.csv"
    path.write_text(change(kernel_rows(2)), encoding="utf-8")
    code, _, err = simulate("calibrate", "kernels", path, "--device", "a100-sxm4-80g")
    assert code == 3
    assert message in err and str(path) in err and "Traceback" not in err


#: NVIDIA's data sheet of the A100 80GB SXM: 312 TFLOP/s in bf16, 2,039 GB/s
PRODUCT_US = 2 * 8192**3 / 312e12 * 1e6
SUM_US = 3 * 2 * 2**30 / 2039e9 * 1e6


@pytest.mark.parametrize(
    ("cells", "time_us", "words"),
    [
        ("gemm,nn,8192,8192,8192", PRODUCT_US / 2, "2 times faster than a100-sxm4-80g can: 3.524 ms at 312 TFLOP/s of bf16"),
        ("gemm,nn,8192,8192,8192", PRODUCT_US / 1000, "1e+03 times faster than a100-sxm4-80g can"),
        # two tensors are read and one is written, less what the 40 MiB of L2 may still hold
        ("add,forward,32768,32768,", SUM_US / 2, "1.99 times faster than a100-sxm4-80g can: 3.139 ms at 2,039 GB/s of memory"),
        ("gemm,nn,8192,8192,8192", PRODUCT_US / 1.1, ""),  # boards may clock higher than the rated boost
        ("gemm,nn,8192,8192,8192", 1.2 * PRODUCT_US, ""),
        ("add,forward,32768,32768,", SUM_US / 1.1, ""),
        ("add,forward,1024,1024,", 0.5, ""),  # all of it may be in L2
    ],
)  # fmt: skip
def test_times_that_the_device_cannot_have_are_left_out_and_named(simulate, tmp_path, cells, time_us, words):
    path = tmp_path / "rows.csv"
    path.write_text(f"{kernel_rows()}odd,lab,a100-sxm4-80g,{cells},bf16,{time_us},fit,cuda graph\n", encoding="utf-8")
    code, out, err = simulate("calibrate", "kernels", path, "-d", "a100-sxm4-80g", "--json")
    n_rows = json.loads(out)["errors_fitted"]["gemm"]["n"]
    assert code == 0 and n_rows == 18 + (not words and cells.startswith("gemm"))
    named = [line for line in err.splitlines() if "can:" in line]
    assert len(named) == len(json.loads(out)["left_out"]) == bool(words)
    assert not words or (f"warning: {path}:26: " in named[0] and words in named[0] and named[0].endswith("; left out"))


def test_a_table_in_another_unit_is_refused(simulate, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"{KERNEL_COLUMNS}\nr0,lab,a100-sxm4-80g,gemm,nn,8192,8192,8192,bf16,4.1,,cuda graph\n")  # ms
    code, _, err = simulate("calibrate", "kernels", path, "-d", "a100-sxm4-80g")
    assert code == 3 and f"{path}:2: " in err and "hint: time_us is in microseconds" in err


def test_contradictions_and_rows_far_from_the_fit_are_named(simulate, tmp_path):
    path, text = tmp_path / "rows.csv", kernel_rows()
    cells = text.splitlines()[5].split(",")  # on line 6
    again = ",".join([*cells[:9], str(1000 * float(cells[9])), *cells[10:]])
    path.write_text(f"{text}{again}\n", encoding="utf-8")
    code, out, err = simulate("calibrate", "kernels", path, "-d", "a100-sxm4-80g", "--json")
    first, second = (line.removeprefix("warning: ") for line in err.splitlines())
    assert code == 0 and json.loads(out)["doubts"] == [first, second]
    assert first.startswith(f"{path}:26: ") and first.endswith(f" at {path}:6")
    assert second.startswith(f"{path}:26: ") and "times as long as the fit" in second


def test_a_fit_that_says_nothing_says_so(simulate, tmp_path):
    """Times that have nothing to do with sizes: powers of two in turn."""
    lines = kernel_rows().splitlines()
    rows = [line.split(",") for line in lines[1:]]
    made = [",".join([*row[:9], str(2000.0 * 4 ** (7 * i % 6)), *row[10:]]) for i, row in enumerate(rows)]
    (tmp_path / "rows.csv").write_text("\n".join([lines[0], *made]))
    _, _, err = simulate("calibrate", "kernels", tmp_path / "rows.csv", "-d", "a100-sxm4-80g")
    assert "warning: gemm: the fit misses half of its 18 rows by more than " in err


def test_files_that_are_none(simulate, tmp_path):
    for arguments in (["collectives", tmp_path, "-t", "polaris"], ["kernels", tmp_path, "-d", "h200-sxm"]):
        code, _, err = simulate("calibrate", *arguments)
        assert code == 3 and "cannot be read: Is a directory" in err


TIMED = ("kernels", "-d", "h100-sxm5-80g")
KERNELS = "device,op,time_us,m,n,k,dtype\n"
LOG = "collective,gpus,nodes,size_bytes,time_us,split\n"


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        (TIMED, KERNELS + "h100-sxm5-80g,gemm,1e300,256,512,4096,bf16\n", ":2: time_us=1e300 is not"),
        (TIMED, KERNELS + "h100-sxm5-80g,gemm,8,1e300,512,4096,bf16\n", ":2: m: '1e300' is more than 1e+15"),
        (TIMED, KERNELS.replace("dtype", "dtyp"), ":1: no column is called 'dtyp'\nhint: did you mean 'dtype'?"),
        (TIMED, KERNELS + "h100-sxm5-80g,gemm,8,256,512,4096,bf16,9\n", ":2: 8 cells where the header names 7"),
        (TIMED, KERNELS.replace("m,", "m,m,"), ":1: the column m is there more than once"),
        (("collectives", "-t", "polaris"), LOG + "all_reduce,8,9,1024,5,fit\n", ":2: no collective runs on 8 GPUs of 9 nodes"),
        (("collectives", "-t", "polaris"), LOG + "all_reduce,1,1,1024,5,fit\n", ":2: no collective runs on 1 GPU of 1 node"),
        (("collectives", "-t", "polaris"), LOG + "all_reduce,8,2,1024,5,foo\n", ":2: split 'foo'"),
        (("collectives", "-t", "polaris"), LOG + "all_reduce,8,2,1e30,5,fit\n", ":2:size_bytes: '1e30' is more than 1e+15"),
        (("collectives", "-t", "polaris"), LOG + "all_reduce,8,2,1.5,5,fit\n", ":2:size_bytes: '1.5' is not a whole number"),
    ],
)  # fmt: skip
def test_cells_of_tables_are_checked_with_their_line(simulate, tmp_path, command, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    code, _, err = simulate("calibrate", command[0], path, *command[1:])
    assert code == 3 and f"{path}{message}" in err


def test_a_table_with_a_byte_order_mark_is_read_and_columns_without_use_are_named(tmp_path, caplog):
    """Excel writes one before the first column's name."""
    path = tmp_path / "table.csv"
    path.write_text("device,op,time_us,room\nh100,gemm,8,12\n", encoding="utf-8-sig")
    (row,) = read_rows(path, ("device", "op", "time_us"), ())
    assert (row["device"], row["line"]) == ("h100", "2")
    assert [record.getMessage() for record in caplog.records] == [f"{path}: columns that are not read: room"]
