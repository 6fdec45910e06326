"""Batch scripts run as bash, with a scheduler of three lines: what the ranks see is what the jobs read."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from validation.jobs.launch import find_launch

SCRIPTS = Path(__file__).parents[3] / "validation" / "jobs"
JOB = ["ddp", "--model", "gpt2-large", "--csv", "two words.csv"]


def run(script: str, folder: Path, commands: dict[str, str], environment: dict[str, str]) -> list[str]:
    """Run a script whose scheduler's commands are these."""
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    done = subprocess.run(
        ["bash", str(SCRIPTS / script), *JOB],
        env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_slurm_starts_ranks_where_the_first_node_listens(tmp_path: Path) -> None:
    commands = {"scontrol": "echo node7; echo node9", "srun": 'echo "$MASTER_ADDR $MASTER_PORT"; printf "%s\\n" "$@"'}
    given = {"SLURM_SUBMIT_DIR": str(tmp_path), "SLURM_JOB_NODELIST": "node[7,9]", "SLURM_JOB_ID": "41234"}
    lines = run("slurm.sh", tmp_path, commands, given)
    assert lines[0] == "node7 21234"
    assert lines[-6:] == ["run", *JOB]  # a name of two words stays one
    task = {"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_LOCALID": "1", "MASTER_ADDR": "node7"}
    launch = find_launch(task)
    assert launch is not None and (launch.rank, launch.local_rank, launch.n_nodes) == (5, 1, 2)


def test_pbs_starts_as_many_ranks_per_node_as_it_gives_processes(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("x3001\n" * 4 + "x3002\n" * 4)
    commands = {"mpiexec": 'echo "$MASTER_ADDR $MASTER_PORT"; printf "%s\\n" "$@"'}
    given = {"PBS_O_WORKDIR": str(tmp_path), "PBS_NODEFILE": str(tmp_path / "nodes"), "PBS_JOBID": "123.polaris"}
    lines = run("pbs.sh", tmp_path, commands, given)
    assert lines[0] == "x3001 20123"
    assert lines[1:5] == ["-n", "8", "--ppn", "4"] and lines[-6:] == ["run", *JOB]
