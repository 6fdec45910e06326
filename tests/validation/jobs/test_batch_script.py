"""Batch scripts run as bash, with a scheduler of three lines: what the ranks see is what the jobs read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from simulator.errors import ConfigError
from validation.__main__ import main
from validation.jobs.batch_script import Request, batch_script
from validation.jobs.launch import find_launch

REQUEST = Request(nodes=2, gpus_per_node=4, time="00:20:00", account="physics", queue="gpu")
JOB = ["ddp", "--model", "gpt2-large", "--csv", "two words.csv"]


def run(script: str, folder: Path, commands: dict[str, str], environment: dict[str, str]) -> str:
    """Run a script whose scheduler's commands are these."""
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_slurm_starts_one_rank_per_gpu_where_the_first_node_listens(tmp_path: Path) -> None:
    text = batch_script("slurm", REQUEST, JOB)
    wishes = {line.split()[1] for line in text.splitlines() if line.startswith("#SBATCH")}
    assert {"--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4", "--account=physics", "--partition=gpu"} <= wishes
    commands = {"scontrol": "echo node7; echo node9", "srun": 'echo "$MASTER_ADDR $MASTER_PORT"; printf "%s\\n" "$@"'}
    given = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node[7,9]", "SLURM_JOB_ID": "41234"}
    lines = run(text, tmp_path, commands, given).splitlines()
    assert lines[0] == "node7 21234"
    assert lines[-6:] == ["run", *JOB]  # a name of two words stays one
    task = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_LOCALID": "1", "MASTER_ADDR": "node7"}
    launch = find_launch(task)
    assert launch is not None and (launch.rank, launch.local_rank, launch.n_nodes) == (5, 1, 2)


def test_pbs_starts_mpiexec_with_so_many_ranks_per_node(tmp_path: Path) -> None:
    text = batch_script("pbs", REQUEST, JOB)
    wishes = [line[5:] for line in text.splitlines() if line.startswith("#PBS")]
    assert {"-l select=2:ngpus=4:mpiprocs=4", "-l walltime=00:20:00", "-A physics", "-q gpu"} <= set(wishes)
    (tmp_path / "nodes").write_text("x3001\nx3002\n")
    commands = {"mpiexec": 'echo "$MASTER_ADDR $MASTER_PORT"; printf "%s\\n" "$@"'}
    given = {"PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "123.polaris"}
    lines = run(text, tmp_path, commands, given).splitlines()
    assert lines[0] == "x3001 20123"
    assert lines[1:5] == ["-n", "8", "--ppn", "4"] and lines[-6:] == ["run", *JOB]


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["validation", "script", "slurm", "--nodes", "3", "zero1", "--micro-batch", "4"])
    assert main() == 0
    printed = capsys.readouterr().out
    assert "#SBATCH --nodes=3" in printed and printed.endswith("validation run zero1 --micro-batch 4\n")


@pytest.mark.parametrize(
    ("scheduler", "change", "job"),
    [
        ("lsf", {}, JOB),
        ("slurm", {}, ["dance"]),
        ("slurm", {}, []),
        ("pbs", {"nodes": 0}, JOB),
        ("pbs", {"time": "1 h"}, JOB),
    ],
)
def test_what_cannot_be_submitted_is_refused(scheduler: str, change: dict[str, object], job: list[str]) -> None:
    request = Request(**({"nodes": 2, "gpus_per_node": 4, "time": "00:20:00"} | change))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        batch_script(scheduler, request, job)
