"""Real jobs: what is decided before anything runs, the model's arithmetic, a real run of two processes."""

import csv
import gzip
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from validation.jobs.job_settings import JOBS, Settings, check_ranks
from validation.jobs.launch import JobError, check_port, find_launch, free_port
from validation.tables.kinds import KINDS
from validation.tables.statistics import summarize
from validation.tables.writing import make_row, write_rows

torch = pytest.importorskip("torch", reason="real jobs need PyTorch")

from validation.jobs.installed_trainers import INSTALLED, why_not  # noqa: E402
from validation.jobs.model import SIZES, build_gpt, loss_of  # noqa: E402
from validation.jobs.timed_training import slowest  # noqa: E402
from validation.jobs.timing import PhaseClock, time_repeated  # noqa: E402
from validation.jobs.trainers import STRATEGIES, stage_of  # noqa: E402

ROOT = Path(__file__).parents[3]
torch.set_num_threads(1)
MICRO = SIZES["gpt2-micro"]
CPU = torch.device("cpu")


# -- launching -------------------------------------------------------------------------------------


def test_no_process_was_launched():
    assert find_launch({}) is None
    assert find_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}) is None


def test_torchrun_is_recognised():
    launch = find_launch(
        {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "a",
            "MASTER_PORT": "7",
        }
    )
    assert (launch.rank, launch.n_nodes, launch.port, launch.launcher) == (5, 2, 7, "torchrun")


def test_slurm_is_recognised():
    launch = find_launch(
        {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NNODES": "2", "MASTER_ADDR": "a"}
    )
    assert (launch.local_world_size, launch.n_nodes, launch.launcher) == (4, 2, "slurm")


def test_a_missing_address_is_said():
    with pytest.raises(ConfigError, match="MASTER_ADDR is not set"):
        find_launch({"SLURM_PROCID": "5", "SLURM_NTASKS": "8"})


def test_a_busy_port_is_said():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(JobError, match="is busy"):
            check_port("127.0.0.1", taken.getsockname()[1])


def test_a_free_port_can_be_used():
    check_port("127.0.0.1", free_port())


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [{"job": "nope"}, {"precision": "fp12"}, {"schedule": "x"}, {"device": "tpu"}, {"micro_batch": 0}]
)
def test_unknown_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        Settings(**{"job": "ddp", **wrong})


@pytest.mark.parametrize(
    ("job", "n_ranks", "words"),
    [("kernels", 2, "one rank"), ("ddp", 1, "at least 2"), ("tp", 3, "heads"), ("pp", 3, "do not fill")],
)
def test_ranks_that_do_not_fit_are_refused(job, n_ranks, words):
    with pytest.raises(ConfigError, match=words):
        check_ranks(Settings(job=job, n_micro_batches=4), n_ranks, layers=2, heads=4)


def test_a_pipeline_needs_enough_micro_batches():
    with pytest.raises(ConfigError, match="--micro-batches 2"):
        check_ranks(Settings(job="pp"), 2, layers=2, heads=4)


def test_every_training_job_has_a_strategy():
    assert set(STRATEGIES) | set(INSTALLED) == set(JOBS) - {"collectives", "kernels"}
    assert not set(STRATEGIES) & set(INSTALLED)


@pytest.mark.parametrize(
    ("job", "package"),
    [("deepspeed-zero2", "deepspeed"), ("megatron-tp", "megatron-core"), ("hf-trainer", "accelerate")],
)
def test_a_job_whose_framework_is_missing_is_skipped_with_a_reason(monkeypatch, job, package):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert package in why_not(job) and "pip install" in why_not(job)
    assert why_not("ddp") == "" and why_not("single") == ""


@pytest.mark.parametrize("job", INSTALLED)
def test_a_job_of_an_installed_framework_trains_or_says_why_not(job, tmp_path):
    """Two ranks over gloo; what is not installed is skipped by the command itself."""
    if why_not(job) and job != next(iter(INSTALLED)):
        pytest.skip(why_not(job))
    path = tmp_path / "rows.csv"
    command = f"run {job} --model gpt2-micro --micro-batches 2 --repeats 2 --warm-up 1 --device cpu --csv {path}"
    done = subprocess.run(
        [sys.executable, "-m", "validation", *command.split()], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    if reason := why_not(job):
        assert f"skipped: {reason}" in done.stderr and not path.exists()
        return
    with path.open(newline="") as file:
        [step] = [row for row in csv.DictReader(file) if row["metric"] == "iteration_time_s"]
    assert float(step["value"]) > 0.0 and step["gpus"] == "2"
    assert (step["tp"], step["pp"]) == {"megatron-tp": ("2", "1"), "megatron-pp": ("1", "2")}.get(job, ("1", "1"))
    assert step["sharding"] == (job.removeprefix("deepspeed-") if "zero" in job else "none")


# -- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_rows_have_the_documented_columns(name):
    shared, shipped = ROOT.parent / "shared" / "measurements", ROOT / "validation" / "measurements"
    plain = name.removeprefix("frontier_")
    places = (shared / f"{name}.csv", shared / "frontier" / f"{plain}.csv", shipped / f"{name}.csv")
    path = next((place for place in places if place.exists()), None)
    if path is None:
        pytest.skip(f"no table of kind {name} is here: it is not shipped with the project")
    with path.open(newline="") as file:
        assert tuple(next(csv.reader(file))) == KINDS[name].columns


def test_rows_are_named_by_their_contents(tmp_path):
    first, second = (make_row("kernels", {"op": "gemm", "time_us": t}) for t in (1.0, 2.0))
    assert first["row_id"].startswith("KN-")
    assert first["row_id"] != second["row_id"]
    assert first["split"] == "test"
    with pytest.raises(KeyError, match="no column"):
        make_row("kernels", {"color": "blue"})
    write_rows(tmp_path / "rows.csv", KINDS["kernels"].columns, [first, second])
    with (tmp_path / "rows.csv").open(newline="") as file:
        assert [row["time_us"] for row in csv.DictReader(file)] == ["1.0", "2.0"]
    with pytest.raises(ConfigError, match="cannot be written"):
        write_rows(tmp_path / "none" / "rows.csv", KINDS["kernels"].columns, [])


# -- the model -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "count"), [("gpt2", 124439808), ("gpt2-xl", 1557611200)])
def test_published_parameter_counts(name, count):
    assert SIZES[name].n_parameters == count


def test_the_formula_counts_the_tensors():
    assert sum(p.numel() for p in build_gpt(MICRO).parameters()) == MICRO.n_parameters


def test_a_step_of_gradients_lowers_the_loss():
    torch.manual_seed(0)
    model = build_gpt(MICRO)
    tokens = torch.randint(MICRO.vocab, (2, MICRO.seq_len))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(tokens), tokens)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[0]


@pytest.mark.parametrize("n_stages", [1, 2])
def test_stages_together_are_the_model(n_stages):
    torch.manual_seed(0)
    model = build_gpt(MICRO, tied=False).eval()
    x = tokens = torch.randint(MICRO.vocab, (1, MICRO.seq_len))
    for stage in range(n_stages):
        x = stage_of(model, stage, n_stages)(x)
    assert torch.equal(x, model(tokens))


# -- timing ----------------------------------------------------------------------------------------


def test_repetitions_are_counted():
    calls = []
    found = time_repeated(lambda: calls.append(1), CPU, n_repeats=3, n_warm_up=2)
    assert (len(found), len(calls)) == (3, 5)


def test_phases_add_up():
    clock = PhaseClock(CPU)
    for phase in ("start", "forward", "backward", "forward", "end"):
        clock.mark(phase)
    phases = clock.durations_s()
    assert set(phases) == {"start", "forward", "backward"}
    assert all(seconds >= 0 for seconds in phases.values())


def test_the_slowest_rank_counts():
    phases = [[{"start": 0.0, "forward": 1.0}], [{"start": 0.5, "forward": 2.0}]]
    assert slowest(phases) == {"forward": [2.0], "iteration": [2.5]}
    assert summarize([1.0]).n_repeats == 1


# -- real runs -------------------------------------------------------------------------------------


def test_ddp_of_two_processes(tmp_path, run_job):
    done = run_job(
        "ddp",
        "--nproc",
        "2",
        "--device",
        "cpu",
        "--model",
        "gpt2-micro",
        "--repeats",
        "2",
        "--warm-up",
        "1",
        "--json",
        "--profile",
        str(tmp_path),
        "--csv",
        str(tmp_path / "rows.csv"),
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["kind"] == "training"
    by_metric = {row["metric"]: row for row in document["rows"]}
    assert set(by_metric) == {"iteration_time_s", "forward_s", "backward_s", "optimizer_s"}
    assert by_metric["iteration_time_s"]["dp"] == 2
    assert 0 < by_metric["iteration_time_s"]["value"] < 60
    traces = sorted(tmp_path.glob("*.gz"))
    assert [path.name for path in traces] == ["ddp-rank0.pt.trace.json.gz", "ddp-rank1.pt.trace.json.gz"]
    trace = json.loads(gzip.decompress(traces[1].read_bytes()))
    assert trace["distributedInfo"]["rank"] == 1
    assert any(event["name"] == "ProfilerStep#1" for event in trace["traceEvents"])


def test_a_busy_port_ends_with_a_message(run_job):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_job("ddp", "--port", str(taken.getsockname()[1]), "--model", "gpt2-micro")
    assert done.returncode == 1
    assert "is busy" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_torch_there_is_a_message(tmp_path, run_job):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('no torch')\n")
    done = run_job("ddp", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert done.returncode == 3
    assert "need PyTorch" in done.stderr
    assert "Traceback" not in done.stderr


def test_recorded_traces_are_small():
    traces = sorted((ROOT / "traces").rglob("*.gz"))
    assert traces
    assert all(path.stat().st_size < 300_000 for path in traces)
