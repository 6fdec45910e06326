"""Ranks as processes, and real runs between emulated hosts where they are allowed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import goodput_bytes_per_s
from validation.emulation.job import MIB
from validation.emulation.measure import COLUMNS
from validation.emulation.namespaces import PROCESS_NAME, EmulationError, why_unavailable
from validation.emulation.ranks import FOLDER_PREFIX, run_ranks, stale_folders

ROOT = Path(__file__).parents[3]
_REASON = why_unavailable()
needs_namespaces = pytest.mark.skipif(bool(_REASON), reason=f"no emulated cluster here: {_REASON}")


def _torch_reason() -> str:
    import importlib.util

    return "" if importlib.util.find_spec("torch") else "PyTorch is not installed"


needs_torch = pytest.mark.skipif(bool(_torch_reason()), reason=_torch_reason() or "-")


def _validation(*arguments: str, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "validation", *arguments], text=True, env=environment, cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip


def test_ranks_answer_in_order():
    assert run_ranks(3, lambda rank: rank * rank, timeout_s=20) == [0, 1, 4]


def test_a_rank_that_raises_is_named():
    with pytest.raises(EmulationError, match="rank 1 failed: ValueError: no"):
        run_ranks(2, lambda rank: (_ for _ in ()).throw(ValueError("no")) if rank else 0, timeout_s=20)


def test_a_users_mistake_in_a_rank_stays_one():
    def body(rank):
        raise ConfigError("wrong", hint="right")

    with pytest.raises(ConfigError, match="hint: right"):
        run_ranks(2, body, timeout_s=20)


def test_a_killed_rank_is_named_and_the_others_end():
    def body(rank):
        if rank:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)

    with pytest.raises(EmulationError, match="rank 1 was killed by signal 9"):
        run_ranks(2, body, timeout_s=30)


def test_silent_ranks_are_ended():
    with pytest.raises(EmulationError, match="no answer within"):
        run_ranks(2, lambda rank: time.sleep(60), timeout_s=0.2)


def test_a_mistake_gives_a_message_and_a_status():
    process = _validation("emulate", "--nodes", "99")
    _, words = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "99 hosts" in words
    assert "Traceback" not in words


@needs_namespaces
@needs_torch
def test_all_reduce_between_two_hosts_is_predicted():
    process = _validation(
        *("emulate", "--nodes", "2", "--rate", "100mbit", "--bytes", "4MiB", "--repeats", "4", "--predict", "--json")
    )
    printed, words = process.communicate(timeout=120)
    assert process.returncode == 0, words
    document = json.loads(printed)
    assert document["skipped"] is None
    (row,) = document["rows"]
    assert tuple(row)[: len(COLUMNS)] == COLUMNS
    assert 4 * MIB <= row["tx_max"] < 1.05 * 4 * MIB
    assert row["median_s"] > 0.95 * 4 * MIB / goodput_bytes_per_s(1e8)
    assert abs(row["relative_error"]) < 0.1


@needs_namespaces
@needs_torch
def test_two_hosts_that_begin_in_turn_take_turns():
    """Each sends half of 4 MiB, the later one first: other work on the machine only ever adds time."""
    process = _validation(
        *("emulate", "--rate", "100mbit", "--job", "all_to_all", "--bytes", "4MiB", "--repeats", "3", "--json")
    )
    printed, words = process.communicate(timeout=120)
    assert process.returncode == 0, words
    (row,) = json.loads(printed)["rows"]
    assert row["cfg"] == "gap1"
    assert 2 * MIB <= row["tx_max"] < 1.05 * 2 * MIB
    assert row["median_s"] > 0.95 * 4 * MIB / goodput_bytes_per_s(1e8)


@needs_namespaces
@needs_torch
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_survives_a_killed_run(number):
    process = _validation(
        "emulate", "--nodes", "2", "--rate", "10mbit", "--bytes", "8MiB", "--repeats", "2", "--warm-up", "1"
    )
    deadline = time.monotonic() + 60
    while len(ranks := _ranks(process.pid)) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(ranks) == 2
    process.send_signal(number)
    process.communicate(timeout=30)
    while any(map(_runs, ranks)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(_runs, ranks))


def _ranks(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(child) for child in children if Path(f"/proc/{child}/comm").read_text().strip() == PROCESS_NAME]
    except OSError:
        return []


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def test_folders_of_dead_measurements_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gone = subprocess.Popen(["true"])
    gone.wait()
    stale, alive, other = (tmp_path / f"{FOLDER_PREFIX}{name}" for name in (f"{gone.pid}-a", f"{os.getpid()}-b", "c"))
    for folder in (stale, alive, other):
        folder.mkdir()
    assert stale_folders() == [stale]
