"""Sweeps and searches on many machines: a real Dask cluster that loses a worker, and Slurm's jobs."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from queue import Queue

import pytest

from simulator.errors import ConfigError, SimulatorError
from simulator.explore.named_settings import Sweep
from simulator.explore.search.best_plans import search
from simulator.explore.search.space import search_space
from simulator.explore.sweeps import run_sweep
from simulator.explore.work.dask_workers import connected, n_threads, spread
from simulator.explore.work.evaluation import Store
from simulator.explore.work.slurm_workers import SlurmSpec, read_slurm, start_cluster
from simulator.explore.work.workers import Pool

BASE = {"topology": "bigred200", "model": "gpt2", "micro_batch": 2, "framework": "deepspeed"}
QUIET = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning", "ignore::UserWarning"
)
WAIT_S = 60


def environment():
    return os.environ | {
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),
        "OMP_NUM_THREADS": "1",
        "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "30s",
    }


def start(*words, folder):
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]],
        env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip


def stop(processes):
    for process in reversed(processes):
        process.terminate()
    for process in processes:
        process.wait(timeout=WAIT_S)


def announced_address(file, process):
    """The address in a scheduler's file, which is there, and empty, before it is written."""
    limit_s = time.monotonic() + WAIT_S
    while time.monotonic() < limit_s and process.poll() is None:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return json.loads(file.read_text(encoding="utf-8"))["address"]
        time.sleep(0.05)
    pytest.fail(f"the scheduler wrote no address within {WAIT_S} s; it ended with {process.poll()}")


@pytest.fixture
def dask_scheduler(tmp_path):
    """A real scheduler on loopback, without workers."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    words = ("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    process = start(*words, folder=tmp_path)
    try:
        yield announced_address(file, process)
    finally:
        stop([process])


@pytest.fixture
def dask_cluster(dask_scheduler, tmp_path):
    """A scheduler and two worker processes."""
    words = ("worker", dask_scheduler, "--nthreads", "1", "--no-nanny", "--no-dashboard")
    workers = [start(*words, folder=tmp_path) for _ in range(2)]
    try:
        yield dask_scheduler, workers
    finally:
        stop(workers)


@pytest.mark.slow
@QUIET
def test_a_cluster_that_loses_a_worker_gives_the_same_answers(dask_cluster, tmp_path, caplog):
    caplog.set_level("INFO", "simulator")
    address, workers = dask_cluster
    sweep = Sweep(
        base=BASE, axes={"gpus": (1, 2, 4, 8, 16), "sharding": ("none", "zero1", "zero3"), "micro_batch": (1, 2, 4)}
    )

    def kill_one(*, n_done, **_):
        if n_done == 5 and workers[0].poll() is None:
            workers[0].send_signal(signal.SIGKILL)

    there = run_sweep(sweep, Store(tmp_path / "there"), scheduler=address, observe=kill_one)
    assert workers[0].wait(timeout=10) == -signal.SIGKILL
    assert "dashboard: http://127.0.0.1" in caplog.text
    assert "WARNING" not in caplog.text, "another worker takes over, and that is all"
    assert there.rows == run_sweep(sweep, Store(tmp_path / "here"), n_jobs=1).rows
    # the one that is left does a search as well
    scenario, space = search_space(
        {"topology": "bigred200", "model": "gpt2", "gpus": 4, "global_batch": 8}, {"recompute": ("none",)}
    )
    found = search(scenario, space, top=3, scheduler=address)
    assert [one.plan for one in found.ranked] == [one.plan for one in search(scenario, space, top=3, n_jobs=1).ranked]


@QUIET
def test_a_scheduler_without_workers_is_named(dask_scheduler, monkeypatch):
    monkeypatch.setattr("simulator.explore.work.dask_workers._NO_WORKER_S", 1)
    with pytest.raises(ConfigError, match="no workers after 1 s"):
        Pool(scheduler=dask_scheduler).__enter__()


def test_a_scheduler_that_does_not_answer_is_named():
    pytest.importorskip("distributed")
    with pytest.raises(ConfigError, match="no Dask scheduler answers at nowhere"):
        Pool(scheduler="nowhere://x").__enter__()


@pytest.mark.parametrize(
    ("greeting", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "another protocol"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "another protocol"),
        (b"", "nothing for 1 s"),
    ],
)
def test_what_answers_and_is_no_scheduler_is_told_from_one(monkeypatch, greeting, reason):
    """A greeting is read as the length of a message: of 3 EiB, for HTTP; a client would wait for ever for a silent one."""
    pytest.importorskip("distributed")
    monkeypatch.setattr("simulator.explore.work.dask_workers._ANSWER_S", 1)
    taken = []

    def greet(listener):
        with contextlib.suppress(OSError):
            while True:
                taken.append(listener.accept()[0])
                taken[-1].sendall(greeting)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=greet, args=(listener,), daemon=True).start()
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"no Dask scheduler answers at {address}: .*{reason}"):
            Pool(scheduler=address).__enter__()
    for connection in taken:
        connection.close()


# -- how work is spread ------------------------------------------------------------------------------------------


@pytest.fixture
def io_loop():
    """A loop of events that runs: distributed gives one of its own 10 s to start, which a machine at its limit may need."""
    pytest.importorskip("distributed")
    from tornado.ioloop import IOLoop

    made = Queue()

    async def run():
        ended = asyncio.Event()
        made.put((IOLoop.current(), ended))
        await ended.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    loop, ended = made.get()
    yield loop
    loop.add_callback(ended.set)
    thread.join()


@pytest.fixture
def threads(io_loop):
    """A scheduler and two workers that are threads of this process."""
    distributed = pytest.importorskip("distributed")
    options = {"processes": False, "threads_per_worker": 1, "dashboard_address": None, "loop": io_loop}
    with (
        distributed.LocalCluster(n_workers=2, **options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client, cluster


@QUIET
def test_pieces_grow_to_a_second_and_are_shared_to_the_end(threads, monkeypatch):
    client, _ = threads
    sent = []

    def submit(function, work, items, **options):
        sent.append(len(items))
        return type(client).submit(client, function, work, items, **options)

    monkeypatch.setattr(client, "submit", submit)
    assert sorted(spread(client, len, ["x" * n for n in range(300)])) == [(n, n) for n in range(300)]
    assert sent[:4] == [1, 1, 1, 1], "two for each worker, before any is known to be fast"
    assert max(sent) > 20 and sum(sent) == 300
    assert all(
        n <= -(-left // 4) for n, left in zip(sent, [300 - sum(sent[:i]) for i in range(len(sent))], strict=True)
    )
    assert all(n <= 2 * max(sent[:i]) for i, n in enumerate(sent) if i), "no faster than twice what was known"
    sent.clear()
    monkeypatch.setattr("simulator.explore.work.dask_workers._PIECE_S", 0.0)  # whatever an item takes is long
    assert len(list(spread(client, len, ["x"] * 20))) == 20
    assert sent == [1] * 20


@QUIET
def test_workers_of_another_state_of_the_program_are_refused(threads):
    address = threads[1].scheduler_address
    with pytest.raises(ConfigError, match="2 of 2 workers have another state of the simulator"):
        connected(address, lambda: threading.current_thread().name).__enter__()
    with connected(address, lambda: "the same") as client:
        assert n_threads(client) == 2


@QUIET
def test_work_without_workers_and_without_a_scheduler_ends(threads, monkeypatch):
    client, cluster = threads
    monkeypatch.setattr("simulator.explore.work.dask_workers._LOST_S", 0.1)
    monkeypatch.setattr("simulator.explore.work.dask_workers._COUNTED_S", 0.1)
    assert len(list(spread(client, len, ["x"]))) == 1
    cluster.scale(0)
    with pytest.raises(SimulatorError, match="lost all its workers"):
        list(spread(client, len, ["x"]))


@QUIET
def test_work_waits_for_workers_that_come_back(threads, monkeypatch):
    client, cluster = threads
    monkeypatch.setattr("simulator.explore.work.dask_workers._COUNTED_S", 0.05)
    cluster.scale(0)
    while n_threads(client):
        time.sleep(0.05)
    later = threading.Timer(0.5, cluster.scale, [1])
    later.start()
    assert list(spread(client, len, ["x"])) == [(0, 1)]
    later.join()


def dies_of(item):
    """Work that some items end the worker of."""
    if item == "deadly":
        os._exit(1)
    return item


@pytest.mark.slow
@QUIET
def test_what_kills_its_workers_is_told_from_what_stood_beside_it(io_loop):
    distributed = pytest.importorskip("distributed")
    import dask

    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "loop": io_loop}
    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        distributed.LocalCluster(**options) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        found = []
        with pytest.raises(SimulatorError, match="each worker that was given a certain scenario died"):
            found.extend(spread(client, dies_of, [*map(str, range(30)), "deadly"]))


# -- Slurm -------------------------------------------------------------------------------------------------------


def fake_slurm(folder, *, refuses=False):
    """Put an ``sbatch`` and an ``scancel`` into a folder that run jobs as processes of this machine."""
    folder.mkdir()
    check = 'echo "sbatch: error: Invalid account" >&2; exit 1' if refuses else "exit 0"
    run = f'cp "$1" {folder}/job-$$; setsid bash {folder}/job-$$ >{folder}/out-$$ 2>&1 & echo "Submitted batch job $!"'
    scripts = {"sbatch": f'if [ "$1" = --test-only ]; then {check}; fi\n{run}', "scancel": 'kill -- "-$1"'}
    for name, text in scripts.items():
        file = folder / name
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def slurm_file(tmp_path):
    file = tmp_path / "slurm.yaml"
    file.write_text(
        "slurm:\n  jobs: 2\n  cores: 1\n  memory: 1 GiB\n  walltime: '00:10:00'\n  queue: general\n  account: r00123\n"
        f"  directives: [--qos=debug]\n  prologue: ['export PYTHONPATH={Path(__file__).resolve().parents[2]}']\n"
        f"  log_directory: {tmp_path}\n",
        encoding="utf-8",
    )
    return file


def test_options_of_dask_jobqueue(slurm_file):
    options = read_slurm(str(slurm_file)).options()
    assert options["memory"] == f"{2**30} B"
    assert (options["queue"], options["account"], options["walltime"]) == ("general", "r00123", "00:10:00")
    assert SlurmSpec(cores=8).options()["processes"] == 8
    assert SlurmSpec(cores=8, processes=2).options()["processes"] == 2


@QUIET
def test_the_job_script(slurm_file, tmp_path, monkeypatch):
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", str(fake_slurm(tmp_path / "bin")), prepend=os.pathsep)
    with socket.socket() as taken, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with contextlib.suppress(OSError):  # the dashboard's port is in use
            taken.bind(("", 8787))
            taken.listen()
        cluster = start_cluster(read_slurm(str(slurm_file)).model_copy(update={"jobs": 1}))
    script = cluster.job_script()
    cluster.close()
    assert not [one for one in said if "Port" in str(one.message)], "where the dashboard is, is said"
    for line in ("-p general", "-A r00123", "-t 00:10:00", "--mem=1G", "--cpus-per-task=1", "--qos=debug"):
        assert f"#SBATCH {line}\n" in script
    assert f"{sys.executable} -m distributed.cli.dask_worker tcp://" in script


@pytest.mark.slow
@QUIET
def test_a_sweep_on_slurm_gives_the_same_rows(slurm_file, tmp_path, monkeypatch):
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", str(fake_slurm(tmp_path / "bin")), prepend=os.pathsep)
    sweep = Sweep(base=BASE, axes={"gpus": (1, 2, 4), "sharding": ("none", "zero1")})
    there = run_sweep(sweep, Store(tmp_path / "there"), scheduler=str(slurm_file))
    assert there.rows == run_sweep(sweep, Store(tmp_path / "here"), n_jobs=1).rows
    assert len(list((tmp_path / "bin").glob("job-*"))) == 2


@QUIET
def test_what_slurm_refuses_is_named(slurm_file, tmp_path, monkeypatch):
    pytest.importorskip("dask_jobqueue")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no Slurm here"):
        start_cluster(read_slurm(str(slurm_file)))
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(fake_slurm(tmp_path / "bin", refuses=True)), prepend=os.pathsep)
    with pytest.raises(ConfigError, match="Slurm refuses the job: sbatch: error: Invalid account"):
        start_cluster(read_slurm(str(slurm_file)))


def test_faults_of_a_slurm_file_have_a_line(tmp_path):
    file = tmp_path / "slurm.yaml"
    file.write_text("slurm:\n  partition: general\n  walltime: ever\n  memory: 4\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_slurm(str(file))
    for text in ("slurm.yaml:2", "unknown key", "slurm.yaml:3", "not a time limit", "slurm.yaml:4"):
        assert text in caught.value.message


def test_missing_packages_are_named(slurm_file, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="dask-jobqueue"):
        start_cluster(read_slurm(str(slurm_file)))
    with pytest.raises(ConfigError, match="distributed"):
        Pool(scheduler="tcp://127.0.0.1:1").__enter__()
