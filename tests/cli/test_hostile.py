"""Inputs that would eat the machine, or that a broken script gives: a clear error, at once, and never a traceback."""

import gzip
import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from simulator import ParallelPlan, Scenario, simulate
from simulator.cli.main import main
from simulator.config import cell, write_file
from simulator.errors import ConfigError, TraceError
from simulator.explore.work.evaluation import Store
from simulator.models.spec import ModelSpec
from simulator.report.progress import Progress
from simulator.trace_io import read
from simulator.trace_io.perfetto import write as write_trace
from simulator.trace_io.sources import created

JOB = ["--topology", "bigred200", "--model", "gpt2", "--gpus", "4"]
ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "traces" / "ddp-2")


def refused(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["simulate", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", '{"model_type": "gpt2", "n_layer": 100000000, "n_embd": 64, "n_head": 2}', "no model has more than"),
        ("config.json", '{"model_type": "llama4", "num_hidden_layers": 100000000}', "no model has more than"),
        ("run.sh", "pretrain_gpt.py --num-layers 100000000 --hidden-size 64 --num-attention-heads 2", "num-layers: 100000000"),
        ("run.sh", "#!/bin/bash\nX=aaaaaaaaaa\n" + 'X="$X$X"\n' * 40 + "echo $X\n", 'run.sh:19:1: "$X$X" grows beyond 1 MiB'),
        ("config.json", '{"model_type": "gpt2", "n_layer": 2, "n_embd": 1000000000000, "n_head": 2}', "config.json: model"),
        ("topo.xml", '<system version="1">' + "\n<pci>" * 20_000, "topo.xml:101:1: nested more than"),
        ("config.json", '{"model_type": "gpt2", "n_layer": ' + "9" * 400 + "}", "too many digits"),
        ("all_reduce.json", '{"nccl_version": 1, "results": [' + "9" * 5000 + "]}", "too many digits"),
        ("all_reduce.json", '{"nccl_version": 1, "results": ' + "[" * 20_000, "nested too deeply"),
    ],
)  # fmt: skip
def test_files_that_would_eat_the_machine(monkeypatch, capsys, tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    assert message in refused(monkeypatch, capsys, "import", path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep", *JOB, "--gpus", "1,,2"], "an empty item: a comma with nothing"),
        (["sweep", *JOB, "--axis", "tp=1,2", "--format", "csv,"], "--format csv,: an empty item"),
        ([*JOB, "--tokens", "1e9", "--mtbf", "1 h/node", "--histories", "999999999"], "--histories 999999999: at most"),
        (["stragglers", *JOB, "--spread", "0.02", "--histories", "999999999"], "--histories 999999999"),
        (["stragglers", *JOB, "--slow-gpus", "0.1=1e300"], "a factor from 1 to 1,000,000"),
        ([*JOB, "--set", "node.gpus=true"], "node.gpus: must be a number or a word, not true or false"),
        ([*JOB, "--set", "node.nics.count=false"], "node.nics.count: must be a number or a word"),
        (
            ["schedule", "1f1b", "--stages", "1000", "--micro-batches", "100000"],
            "--micro-batches 100000, --chunks 1: at most",
        ),
        (["requirements", *JOB, "--target", "1e-300"], "target 1e-300: an efficiency between 0 and 1, at least 0.01"),
        (["replay", TRACE, "--kernels", "1e300"], "--kernels 1e+300: not a factor on a time, from 0 to 1e+06"),
        ([*JOB, "--set", "node.gpus=1000"], "node.gpus: a mesh has links between every two of at most 64 GPUs"),
    ],
)
def test_numbers_that_are_none_or_too_many(monkeypatch, capsys, words, message):
    assert message in refused(monkeypatch, capsys, *words)


@pytest.mark.parametrize(
    ("line", "changed", "message"),
    [
        ("      '1': 0.28", "      '1': a lot", "75:12: kernels.gemm.alignment_efficiency.1: 'a lot' is not a number"),
        ("      '1': 0.28", "      '1': 1e300", "75:12: kernels.gemm.alignment_efficiency.1: 1e+300: a constant is above 0"),
        ("    launch_s: ", "    launch_s: -1.0 #", "23:15: kernels.gemm.launch_s: -1: a constant is at least 0"),
        ("    launch_s: ", "    launch_s: {a: 1} #", "23:15: kernels.gemm.launch_s: \"{'a': 1}\" is not a number"),
        ("    tile_s: ", "    tyle_s: ", "24:13: kernels.gemm.tyle_s: unknown constant. Did you mean 'tile_s'?"),
        ("    dram_bandwidth: ", "    dram_bandwidth: 0 #", "31:21: kernels.gemm.dram_bandwidth: 0: a constant is above 0"),
        ("  dispatch_optimizer_s: ", "  dispatch_optimizer_s: 5 us #", "host.dispatch_optimizer_s: '5 us' is not a number"),
        ("  dispatch_optimizer_s: ", "  dispatch_optimizer_s: 2.0 #", "dispatch_optimizer_s: 2: a constant is at least 0 and at most 1"),
        ("  attention:", "  attention:\n    torch_flew: 5", "kernels.attention.torch_flew: '5' is not a section of constants"),
    ],
)  # fmt: skip
def test_constants_of_a_device_that_are_none(monkeypatch, capsys, tmp_path, line, changed, message):
    """Each is named with its place in the user's file, whether this job's kernels ask for it or not."""
    shipped = (ROOT / "topologies" / "devices" / "a100-sxm4-80g.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(shipped.replace(line, changed, 1))
    cluster = tmp_path / "cluster.yaml"
    text = (ROOT / "topologies" / "clusters" / "bigred200.yaml").read_text()
    cluster.write_text(text.replace("device: a100-sxm4-40g", "device: ./mine.yaml"))
    said = refused(monkeypatch, capsys, "--topology", cluster, "--model", "gpt2", "--gpus", "4")
    assert f"{tmp_path / 'mine.yaml'}:" in said and message in said


def test_a_trace_that_no_memory_holds_is_refused_before_it_is_laid_out(tmp_path):
    timeline = simulate(
        Scenario(
            topology="selene",
            model="gpt3-175b",
            plan=ParallelPlan(gpus=128, tp=8, pp=16, micro_batch=1, global_batch=1_000_000),
        )
    ).timeline
    with pytest.raises(TraceError, match=r"t\.json: [\d,]+ operations: at most 5,000,000 are written"):
        write_trace(timeline, tmp_path / "t.json")
    assert not os.listdir(tmp_path)


def test_work_says_how_far_it_is_after_two_seconds_and_then_every_ten(monkeypatch, capsys):
    now_s = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    progress = Progress(print)
    for n_done, now_s[0] in enumerate((101.0, 101.9, 102.1, 103.0, 111.9, 112.2, 113.0)):
        progress.sweep(n_done=n_done, n_failed=0, n_stored=0, n_total=100)
    assert [line.partition(" ")[0] for line in capsys.readouterr().err.splitlines()] == ["2/100", "5/100"]


def test_the_time_that_is_left_is_told_when_it_is_known(monkeypatch):
    """A first job of little weight that loads what all need, then equal ones: 100 jobs in 20 + 99 s."""
    now_s, lines = [0.0], []
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    progress = Progress(print)
    monkeypatch.setattr(progress, "show", lambda line, **_: lines.append(line))
    for n_done in range(1, 101):
        now_s[0] = 19.0 + n_done
        progress.jobs("predicting", n_done, 100, (n_done - 0.9) / 99.1)
    told = {n_done: line.partition(", about ")[2] for n_done, line in enumerate(lines, start=1)}
    assert not any(told[n_done] for n_done in (1, 2, 3, 4, 100))
    assert (told[10], told[41]) == ("1:30 left", "0:59 left")


def test_a_power_of_a_gpu_is_set_by_a_flag(monkeypatch, capsys):
    """No cluster file has such a key: the way is named, and no other key that is spelled like it."""
    for key in ("node.gpu.power_limit", "node.device.tdp_w"):
        said = refused(monkeypatch, capsys, *JOB, "--set", f"{key}=500 W")
        assert f"--set {key}=500 W" in said and "--power-cap 500W" in said and "Did you mean" not in said


def test_a_device_is_no_cluster_and_says_how_one_names_it(monkeypatch, capsys):
    """A shipped cluster of it, where there is one (``dgx-h200.yaml`` has ``device: h200-sxm``), or another one's nodes."""
    said = refused(monkeypatch, capsys, "--topology", "h20", *JOB[2:])
    assert (
        "h20: is a device, not a cluster" in said
        and "--set node.device=h20" in said
        and "shipped clusters:" not in said
    )
    assert "dgx-h200" in refused(monkeypatch, capsys, "--topology", "h200-sxm", *JOB[2:])


def test_a_file_of_free_nodes_is_named_with_its_line(monkeypatch, capsys, tmp_path):
    path = tmp_path / "free"
    path.write_text("n[000-003]\nn[9999999999-0]\n")
    assert f"{path}:2:1: " in refused(monkeypatch, capsys, *JOB, "--nodes-free", path)


@pytest.mark.parametrize("option", ["--plan", "--megatron", "--deepspeed", "--report", "--trace", "--model"])
def test_an_empty_text_is_no_value(monkeypatch, capsys, option):
    assert f"{option}: needs a value" in refused(monkeypatch, capsys, *JOB, option, "")
    assert f"{option}: needs a value" in refused(monkeypatch, capsys, *JOB, f"{option}=")


def test_a_key_without_a_value_is_shown_where_it_stands(monkeypatch, capsys, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("pp: 1\ntp:\nmicro_batch: 2\n")
    assert f"{path}:2:1: tp" in refused(monkeypatch, capsys, *JOB, "--plan", path)


@pytest.mark.parametrize("rate", ["1e-300 Gb/s", "nan Gb/s", "inf Gb/s", "1e300 Gb/s"])
def test_rates_that_nothing_has(monkeypatch, capsys, rate):
    assert "bandwidth" in refused(monkeypatch, capsys, *JOB, "--set", f"node.nics.bandwidth={rate}")


@pytest.mark.parametrize(
    ("ratio", "message"),
    [("nan", "a finite number"), ("inf", "a finite number"), ("1e-300", "is not between"), ("0", "is not between")],
)
def test_ratios_that_nothing_has(monkeypatch, capsys, ratio, message):
    assert message in refused(
        monkeypatch, capsys, "--topology", "dgx-h100", *JOB[2:], "--set", f"fabric.oversubscription={ratio}"
    )


def test_a_degree_that_nothing_divides_is_refused_at_once(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["simulate", *JOB, "--ep", "1000000000000000"])
    start = time.monotonic()
    with pytest.raises(SystemExit):
        main()
    assert time.monotonic() - start < 5 and "ep must divide 4" in capsys.readouterr().err


def test_sizes_of_a_model_have_bounds():
    sizes = {"name": "x", "architecture": "gpt", "layers": 2, "hidden": 64, "heads": 2, "vocab": 10, "max_positions": 8}
    for name, value in (("layers", 10_001), ("vocab", 10**10), ("ffn_hidden", -1)):
        with pytest.raises(ConfigError, match=f"{name}={value} is not between"):
            ModelSpec(**{**sizes, name: value})


def test_what_was_there_is_kept_where_nothing_can_be_written(tmp_path, monkeypatch):
    page = tmp_path / "page.html"
    page.write_text("before")

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("simulator.config.text.Path.write_text", full)
        with pytest.raises(ConfigError, match="No space left"):
            write_file(page, "after")
    assert page.read_text() == "before" and os.listdir(tmp_path) == ["page.html"]
    write_file(page, "after")
    assert page.read_text() == "after" and os.listdir(tmp_path) == ["page.html"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_half_a_trace_is_no_trace(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"before")
    with pytest.raises(ConfigError, match=f"{name}: cannot be written: No space left"), created(path) as file:
        file.write(b"half")
        raise OSError(28, "No space left on device")
    with pytest.raises(KeyboardInterrupt), created(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == [name]
    with created(path) as file:
        file.write(b"after")
    data = path.read_bytes()
    assert (gzip.decompress(data) if name.endswith(".gz") else data) == b"after" and os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("form", ["chakra", "kineto"])
def test_some_files_of_a_trace_are_no_trace(tmp_path, monkeypatch, form):
    """The disk is full at the last of two ranks."""
    trace = read(TRACE)
    writer = importlib.import_module(f"simulator.trace_io.{form}")
    write_rank = writer._write_rank

    def full(rank, *rest):
        if rank.rank:
            raise OSError(28, "No space left on device")
        write_rank(rank, *rest)

    with monkeypatch.context() as disk:
        disk.setattr(writer, "_write_rank", full)
        with pytest.raises(ConfigError, match=r"1\.[\w.]+: cannot be written: No space left"):
            writer.write(trace, tmp_path)
    assert not os.listdir(tmp_path)
    assert sorted(writer.write(trace, tmp_path)) == sorted(tmp_path.iterdir())


def test_a_store_on_a_full_disk_is_named(tmp_path, monkeypatch):
    def full(path, *_args, **_options):
        path.touch()
        raise OSError(28, "No space left on device")

    store = Store(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr("pathlib.Path.write_text", full)
        with pytest.raises(ConfigError, match=r"key\.json: cannot be written: No space left"):
            store.put("key", {"status": "ok"})
    assert not os.listdir(tmp_path) and store.get("key") is None


def broken_by_digest(path):
    path.write_text('{"digest": "0", "record": {"status": "ok"}}')


def of_a_terabyte(path):
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    "spoil", [broken_by_digest, os.mkfifo, of_a_terabyte, lambda path: path.symlink_to("/dev/zero"), Path.mkdir]
)
def test_a_record_that_is_none_is_said_and_never_waited_for(tmp_path, caplog, spoil):
    spoil(tmp_path / "key.json")
    assert Store(tmp_path).get("key") is None
    assert caplog.messages == [
        f"{tmp_path / 'key.json'}: not the record that was written here; its scenario is simulated again"
    ]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_an_error(monkeypatch, capsys):
    with pytest.raises(ConfigError, match="cannot be written"):
        write_file("/dev/full", "x")


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no read-only folder here")
@pytest.mark.parametrize(
    "words",
    [
        [*JOB, "--report", "/proc/self/page.html"],
        [*JOB, "--trace", "/proc/self/trace.json"],
        ["sweep", *JOB, "--axis", "tp=1,2", "--out", "/proc/self/sweep"],
        ["search", *JOB, "--out", "/proc/self/search"],
    ],
)
def test_a_folder_that_takes_no_files_is_an_error(monkeypatch, capsys, words):
    monkeypatch.setattr("sys.argv", ["simulate", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert "/proc/self/" in capsys.readouterr().err


@pytest.mark.parametrize("json_output", [True, False])
@pytest.mark.parametrize(
    "words",
    [
        [*JOB, "--report", "full.html"],
        [*JOB, "--trace", "full.json"],
        [*JOB, "--memory-trace", "full.csv"],
        ["search", *JOB, "--global-batch", "16", "--axis", "tp=1", "--emit", "full"],
        ["compare", "tp=1", "tp=2", *JOB, "--report", "full.html"],
    ],
)
def test_an_answer_whose_files_cannot_be_written_is_printed(monkeypatch, capsys, tmp_path, words, json_output):
    """A disk that is full when everything is computed: the answer comes before the error, as JSON in one document."""

    def full(*_args, **_options):
        raise OSError(28, "No space left on device")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulator.config.text.os.replace", full)
    monkeypatch.setattr("sys.argv", ["simulate", *words, *(["--json"] if json_output else [])])
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    assert ended.value.code == 3 and "cannot be written: No space left" in err
    assert "error" not in json.loads(out) if json_output else "iteration" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--report", "no/page.html"], "there is no folder no"),
        (["--report", "."], "is a folder"),
        (["--report", "page.xyz"], "unknown format"),
        (["--trace", "no/trace.json"], "there is no folder no"),
        (["--trace", "trace.xyz"], "names no trace format"),
        (["--memory-trace", "memory.txt"], "unknown format"),
    ],
)
def test_a_place_where_nothing_can_be_written_is_refused_before_the_work(monkeypatch, capsys, tmp_path, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("simulator.cli.run.simulate_counts", lambda *_, **__: pytest.fail("it was simulated"))
    assert message in refused(monkeypatch, capsys, *JOB, *words)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tp", "2", "--set", "tp=4"], "--set tp=4 has no effect: --tp 2 is given, too"),
        (["--set", "gpus=2"], "--set gpus=2 has no effect: --gpus 4 is given, too"),
        (["--set", "zero=1", "--set", "sharding=zero3"], "--set sharding=zero1 has no effect: --set sharding=zero3 stands"),
        (["--tp", "2", "--set", "tensor_parallel=2"], ""),
        (["--seed", "5"], "--seed has no effect"),
        (["--seed", "5", "--placement", "random"], ""),
    ],
)  # fmt: skip
def test_two_values_of_one_setting_are_not_taken_silently(monkeypatch, capsys, words, message):
    monkeypatch.setattr("sys.argv", ["simulate", *JOB, *words])
    with pytest.raises(SystemExit, match="0"):
        main()
    err = capsys.readouterr().err
    assert message in err if message else "has no effect" not in err


@pytest.mark.parametrize(
    "command", [(), ("search", "--global-batch", "8"), ("requirements",), ("compare", "micro_batch=1", "micro_batch=2")]
)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "network=flwo"], "network 'flwo' is unknown. Did you mean 'flow'?"),
        (["--set", "kernels=foo"], "kernels 'foo' is unknown"),
        (["--schedule", "1f2b"], "schedule '1f2b' is unknown. Did you mean '1f1b'"),
        (["--set", "transport=bar"], "bigred200 has no transport 'bar'"),
        (["--set", "nccl_algo=foo"], "algorithm 'foo' is unknown"),
        (["--set", "nccl_proto=lll"], "protocol 'lll' is unknown. Did you mean 'll'"),
    ],
)
def test_words_that_there_are_not_are_refused_also_where_nothing_takes_them(
    monkeypatch, capsys, command, words, message
):
    """On one GPU there is no pipeline, no collective and no network."""
    job = ["--topology", "bigred200", "--model", "gpt2", "--gpus", "1"]
    assert message in refused(monkeypatch, capsys, *command, *job, *words)


def test_names_that_a_spreadsheet_would_run_are_quoted():
    assert [cell(value) for value in ("=cmd|x", "+1+1", "@x", "-2.5", "a", 3, None)] == [
        "'=cmd|x", "'+1+1", "'@x", "-2.5", "a", 3, None,
    ]  # fmt: skip


def run(words, shell="", **environment):
    command = f"{sys.executable} -m simulator {words} {shell}"
    return subprocess.run(
        ["sh", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
        errors="replace",
    )


def test_a_closed_output_is_an_error_and_an_ascii_terminal_is_not():
    closed = run("models list", ">&-")
    assert (closed.returncode, closed.stderr) == (3, "error: standard output is closed\n")
    narrow = run("topology show bigred200", PYTHONIOENCODING="ascii")
    assert (narrow.returncode, narrow.stderr) == (0, "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_an_output_that_is_full_is_named():
    full = run("models list", "> /dev/full")
    assert (full.returncode, full.stderr) == (3, "error: standard output: No space left on device\n")


def test_workers_of_a_command_without_standard_error_have_one():
    code = "from simulator.cli.main import _make_streams_safe as safe; safe(); import os; print(os.get_inheritable(2))"
    ended = subprocess.run(f"{sys.executable} -c '{code}' 2>&-", shell=True, capture_output=True, text=True, check=True)
    assert ended.stdout == "True\n"


def test_json_stays_one_document(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["simulate", *JOB, "--plan", "", "--json"])
    with pytest.raises(SystemExit):
        main()
    assert json.loads(capsys.readouterr().out)["error"]["message"].startswith("--plan: needs a value")


def test_a_run_beyond_its_memory_ends_with_a_message():
    huge = "--topology selene --set nodes=12512 --model gpt3-175b --gpus 100096 --tp 8 --pp 8 --micro-batch 1 --json"
    ended = run(f"{huge} --max-memory 200MiB")
    assert ended.returncode == 3
    assert json.loads(ended.stdout)["error"]["type"] == "MemoryError"
    assert "--max-memory" in ended.stderr and "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [("abc", "neither bytes nor a share"), ("1MB", "the program itself takes"), ("nan%", "neither")],
)
def test_a_limit_of_memory_that_is_none(monkeypatch, capsys, text, message):
    monkeypatch.setattr("sys.argv", ["simulate", "topology", "list", "--max-memory", text])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    assert message in capsys.readouterr().err


def test_the_answer_does_not_depend_on_locale_and_optimisation():
    """Assertions and docstrings are not part of an answer, nor is the user's language."""
    job = " ".join(JOB) + " --json"
    plain = run(job)
    stripped = run(job, PYTHONOPTIMIZE="2", LC_ALL="C", PYTHONUTF8="0", LANG="tr_TR.ISO-8859-9")
    assert (stripped.returncode, stripped.stderr) == (0, plain.stderr)
    assert stripped.stdout == plain.stdout


def test_a_pipe_that_is_closed_early_is_no_error_of_the_program():
    ended = run("models list", "| head -c 1")
    assert (len(ended.stdout), ended.stderr) == (1, "")


def test_a_reader_that_goes_takes_no_file_with_it(tmp_path):
    """``simulate ... --report out.html | head -1``: nothing reads the answer on, and the page was asked for all the same."""
    words = ["-m", "simulator", "-t", "bigred200", "-m", "gpt2", "--gpus", "1", "--report", str(tmp_path / "out.html")]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, *words], stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    assert (tmp_path / "out.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


@pytest.mark.parametrize(
    ("words", "rows", "n_rows", "n_records"),
    [
        ("sweep --axis micro-batch=1,2,4 --axis global-batch=8,16", "rows", 6, 6),
        ("search --global-batch 16", "plans", 10, 12),
    ],
)
def test_killed_work_goes_on_where_it_was_beside_another(tmp_path, words, rows, n_rows, n_records):
    """Kill -9 twice in the midst, then two runs on the same folder at once: the rows are those of an undisturbed run."""
    command, *rest = words.split()
    words = [sys.executable, "-m", "simulator", command, *JOB, *rest, "--jobs", "1", "--json", "--out"]
    quiet = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    store = tmp_path / "disturbed" / "store"
    for n_kept in sorted(random.Random(command).sample(range(1, n_records - 1), 2)):
        first = subprocess.Popen([*words, str(tmp_path / "disturbed")], **quiet)
        while first.poll() is None and len(list(store.glob("*.json"))) < n_kept:
            time.sleep(0.01)
        first.kill()
        first.communicate()
    both = [subprocess.Popen([*words, str(tmp_path / "disturbed")], **quiet) for _ in range(2)]
    found = [json.loads(one.communicate(timeout=100)[0]) for one in both]
    alone = json.loads(subprocess.run([*words, str(tmp_path / "alone")], check=True, **quiet).stdout)
    assert len(alone[rows]) == n_rows
    assert all(one[rows] == alone[rows] for one in found)


DRIVER = """
import os, signal, sys, time
from simulator.explore.work.workers import Pool

signal.signal(signal.SIGINT, signal.default_int_handler)  # what starts the tests may ignore interrupts

def work(place):
    with open(place, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(100)

try:
    with Pool(n_jobs=2, at_once=True) as pool:
        list(pool.run(work, [f"{sys.argv[1]}/{n}" for n in range(4)]))
except KeyboardInterrupt:
    sys.exit("interrupted")
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_workers_end_soon_after_a_command_that_is_killed(tmp_path):
    """They are in the midst of an item of 100 s; idle ones would wait for 300."""
    command = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)])
    waited_for(lambda: len([place for place in tmp_path.iterdir() if place.read_text()]) == 2, 60)
    workers = [Path("/proc", place.read_text()) for place in tmp_path.iterdir()]
    assert len(workers) == 2
    assert all(worker.exists() for worker in workers)
    command.kill()
    command.communicate()
    waited_for(lambda: not any(worker.exists() for worker in workers), 20)
    assert not any(worker.exists() for worker in workers)


HELD = """
import joblib

class Interrupted(joblib.Parallel):
    def __call__(self, tasks):
        answers = super().__call__(tasks)
        os.kill(os.getpid(), signal.SIGINT)
        return answers

joblib.Parallel = Interrupted
"""


DROPPED = """
import joblib

class Interrupted(joblib.Parallel):
    def __call__(self, tasks):
        answers = super().__call__(tasks)
        raise KeyboardInterrupt

joblib.Parallel = Interrupted
"""


@pytest.mark.parametrize("when", [HELD, DROPPED])
def test_an_interrupt_that_comes_while_workers_start_ends_them(tmp_path, when):
    """It is held back until they have, and would then find no process that waits for them; their items take 100 s.

    Nothing is said of these items, either where it comes before anybody has what they will be waited for with.
    """
    code = DRIVER.replace("\ntry:", f"{when}\ntry:")
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False, timeout=60
    )
    assert (ended.returncode, ended.stderr) == (1, "interrupted\n")


def children_of(process):
    return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_workers_that_are_still_loading_end_without_a_word(tmp_path, name):
    """A terminal sends an interrupt to all processes of a command; and a killed one cannot remove its files."""
    words = [sys.executable, "-c", DRIVER, str(tmp_path)]
    command = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    waited_for(lambda: len(children_of(command)) == 4, 60)  # two look after files
    assert len(children_of(command)) == 4
    if name == "SIGINT":
        os.killpg(command.pid, signal.SIGINT)
    else:
        command.kill()
    said = command.communicate(timeout=60)[1]
    assert said == ("" if name == "SIGKILL" else "interrupted\n")


def waited_for(condition, most_s):
    """Wait until a condition holds, or so long."""
    until = time.monotonic() + most_s
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)


@pytest.mark.parametrize(
    "words",
    [["import", "{}", "-o", "{}"], ["calibrate", "kernels", "{}", "-d", "h100-sxm5-80g", "--out", "{}"],
     ["calibrate", "collectives", "{}", "-t", "polaris", "--transport", "tcp", "--out", "{}"]],
    ids=["import", "kernels", "collectives"],
)  # fmt: skip
def test_what_is_read_is_not_written_over(monkeypatch, capsys, tmp_path, words):
    path = tmp_path / "mine.csv"
    path.write_text("--num-layers 2\n")
    assert "would be written over the file that is read" in refused(
        monkeypatch, capsys, *[w.format(path) for w in words]
    )
    assert path.read_text() == "--num-layers 2\n"
