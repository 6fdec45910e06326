"""How fast the simulator is: CPU seconds and peak memory of large runs, each in a process of its own.

    python -m validation.speed [docs/speed.md]

measures all cases and prints the page, or writes it: large regular runs, and commands in which something is irregular.

Machines differ, and one machine with what its neighbours do. So a loop of plain Python is timed before and after every run, and
CPU times are given as on a machine on which that loop takes :data:`LOOP_S`.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: what a process of its own runs: one simulation, the first one of the process
_SIMULATE = """
import json, resource, sys, time
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
case = json.loads(sys.argv[1])
scenario = Scenario(topology=case["topology"], model=case["model"], plan=ParallelPlan(**case["plan"]),
                    overrides=tuple(map(tuple, case["overrides"])), unfold=case["unfold"])
begin = time.process_time()
result = simulate(scenario)
used = time.process_time() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([used, peak, result.timeline.n_events, result.metrics.iteration_time_s]))
"""
#: a command that is ended after so many CPU seconds
_LIMITED = """
import resource, sys
limit_s = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
from simulator.cli.main import main
main()
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run and what it may cost."""

    title: str
    topology: str
    model: str
    plan: dict[str, str | int | bool]  #: Keyword arguments of :class:`simulator.plan.ParallelPlan`.
    overrides: tuple[tuple[str, str], ...] = ()  #: Changes of the topology.
    goal_s: float  #: CPU seconds that the simulation may take on one core.
    unfold: bool = False

    def arguments(self) -> list[str]:
        """Return the command line of the run."""
        words = ["--topology", self.topology, "--model", self.model]
        for key, text in self.overrides:
            words += ["--set", f"{key}={text}"]
        for key, value in self.plan.items():
            if key == "scatter_gather":
                words += ["--set", f"{key}={str(value).lower()}"]
            else:
                words += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words


#: what four million rounds take where goals were set, estimated: at this speed eight of the commands take, as they were on 2026-11-24,
#: as long as the page of that day says
LOOP_S = 0.118
_N_LOOPS = 4_000_000


class Clock:
    """CPU seconds at the reference speed: as on a machine on which the loop takes :data:`LOOP_S`."""

    def __init__(self) -> None:
        self._before_s = self._loop_s()
        #: Its last factor.
        self.speed = LOOP_S / self._before_s

    def scaled(self, cpu_s: float) -> float:
        """Return what a run that ended just now takes at the reference speed; the next run begins."""
        after_s = self._loop_s()
        self.speed = 2.0 * LOOP_S / (self._before_s + after_s)
        self._before_s = after_s
        return cpu_s * self.speed

    @staticmethod
    def _loop_s() -> float:
        begin = time.process_time()
        sum(i * i for i in range(_N_LOOPS))
        return time.process_time() - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one run cost."""

    simulation_s: float  #: CPU time from the scenario to the metrics, reading of files and lowering included, at the reference speed.
    command_s: float  #: CPU time of the whole command, start of the interpreter included, at the reference speed.
    peak_bytes: int  #: Largest resident memory of either process.
    n_events: int  #: Events that the engine processed.
    iteration_time_s: float  #: The answer.


_SELENE: dict[str, str | int | bool] = {
    "precision": "fp16", "attention": "eager", "recompute": "full", "micro_batch": 1, "scatter_gather": True,
}  # fmt: skip
_H100: dict[str, str | int | bool] = {
    "precision": "bf16", "framework": "megatron-core", "sharding": "zero1", "sequence_parallel": True,
    "recompute": "full", "micro_batch": 1, "sequence_length": 8192, "tp": 8, "pp": 16,
}  # fmt: skip

CASES: dict[str, Case] = {
    "gpt3-175b": Case(
        title="GPT-3 175B on 1,024 A100s, interleaved", topology="selene", model="gpt3-175b", goal_s=0.5,
        plan={"gpus": 1024, "tp": 8, "pp": 8, "virtual_pp": 6, "global_batch": 1536, **_SELENE},
    ),
    "gpt-1t": Case(
        title="GPT 1T on 3,072 A100s, 64 stages, 512 micro-batches", topology="selene", model="gpt-1t", goal_s=1.0,
        plan={"gpus": 3072, "tp": 8, "pp": 64, "global_batch": 3072, **_SELENE},
    ),
    "llama3-405b": Case(
        title="Llama 3 405B on 16,384 H100s", topology="dgx-h100", model="llama3-405b", goal_s=3.0,
        plan={"gpus": 16384, "global_batch": 2048, **_H100},
    ),
    "100k": Case(
        title="Llama 3 405B on 100,096 H100s", topology="dgx-h100", model="llama3-405b", goal_s=15.0,
        plan={"gpus": 100096, "global_batch": 12512, **_H100}, overrides=(("nodes", "12512"),),
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command in which something is irregular, and what it may cost."""

    title: str
    words: str  #: The command line, without ``--json``.
    goal_s: float  #: CPU seconds that the whole command may take on one core, at the reference speed.
    goal_mib: float = 500.0  #: Peak memory that it may take.


def _175b(gpus: int, rest: str, *, tp: int = 8, batch: int = 0) -> str:
    plan = f"--tp {tp} --pp 8 --micro-batch 1 --global-batch {batch or 192 * gpus // (8 * tp)} --recompute full"
    return f"--topology selene --set nodes=1024 --model gpt3-175b --gpus {gpus} {plan} {rest}".strip()


_SIXTEEN = " ".join(f"--slow-rank {rank}=1.{5 + rank % 26:02d}" for rank in range(97, 4096, 251))
#: every GPU up to 1 % slower than the fastest, each by an amount of its own
_JITTER = " ".join(f"--slow-rank {rank}={1 + rank * 7919 % 4096 / 409600:.6f}" for rank in range(4096))

COMMANDS: dict[str, Command] = {
    "main": Command(title="main command, 8 GPUs", words="--topology bigred200 --model gpt2-large", goal_s=0.5),
    **{
        f"straddling-{gpus}": Command(
            title=f"groups of 6 that straddle nodes, {gpus:,} GPUs", words=_175b(gpus, "", tp=6), goal_s=goal_s
        )
        for gpus, goal_s in ((48, 2.0), (240, 4.0), (1008, 10.0))
    },
    **{
        f"slow-rank-{gpus}": Command(
            title=f"one slow GPU of {gpus:,}", words=_175b(gpus, "--slow-rank 0=1.2"), goal_s=2.0, goal_mib=300.0
        )
        for gpus in (64, 256, 1024, 4096)
    },
    "slow-ranks": Command(title="16 slow GPUs of 4,096", words=_175b(4096, _SIXTEEN), goal_s=5.0),
    "jitter": Command(title="4,096 GPUs, each up to 1 % slower", words=_175b(4096, _JITTER), goal_s=30.0),
    **{
        f"{routing}-{gpus}": Command(
            title=f"fat tree with one of 8 spines failed, {routing} routing, {gpus:,} GPUs", goal_s=10.0,
            words=_175b(gpus, f"--set fabric.spines=8 --set fabric.failed_spines=1 --set fabric.routing={routing}")
            .replace("nodes=1024", f"nodes={gpus // 8}"),
        )
        for gpus in (1024, 16384) for routing in ("adaptive", "static")
    },
    **{
        f"slow-link-{gpus}": Command(
            title=f"slow NICs of a node, {gpus:,} GPUs", words=_175b(gpus, "--slow-link node0.nic=2"), goal_s=goal_s
        )
        for gpus, goal_s in ((64, 2.0), (1024, 3.0), (4096, 5.0), (8192, 8.0))
    },
    **{
        f"chunk-{gpus}": Command(
            title=f"1 GiB all-reduce message by message, {gpus} GPUs", goal_s=goal_s,
            words=f"collective all_reduce --topology selene --gpus {gpus} --min 1GiB --max 1GiB --network chunk --nccl-algo ring",
        )
        for gpus, goal_s in ((64, 0.5), (256, 1.0), (1024, 2.5))
    },
    "refusal": Command(
        title="1 GiB all-reduce over trees message by message, 1,024 GPUs, refused", goal_s=2.5,
        words="collective all_reduce --topology selene --gpus 1024 --min 1GiB --max 1GiB --network chunk --nccl-algo tree",
    ),
    **{
        f"sweep-{jobs}": Command(
            title=f"sweep of 40 scenarios, {how}", goal_s=4.0,
            words="sweep --topology bigred200 --model gpt2-large --axis micro_batch=1,2,4,8,16"
            f" --axis global_batch=128,256,512,1024 --axis gpus=4,8 --jobs {jobs}",
        )
        for jobs, how in ((1, "one process"), (2, "two processes asked for"))
    },
    **{
        f"micro-batches-{n}": Command(title=f"{n:,} micro-batches", words=_175b(64, "", batch=n), goal_s=2.0)
        for n in (100_000, 1_000_000)
    },
    "uneven": Command(
        title="groups of 16 that share NICs unequally, 256 V100s", goal_s=10.0,
        words="--topology dgx1-v100-32g --model gpt3-175b --gpus 256 --tp 2 --cp 16 --micro-batch 4 --global-batch 512"
        " --sharding zero3 --sequence-parallel",
    ),
    "search": Command(
        title="search of 175B on 1,024 GPUs, one process", goal_s=8.0,
        words="search --topology selene --model gpt3-175b --gpus 1024 --global-batch 1536 --jobs 1",
    ),
    "nvl72": Command(
        title="DeepSeek-V3 on 256 GB300, which does not fit as asked, with its ways out", goal_s=5.0,
        words="--topology gb300-nvl72 --model deepseek-v3 --gpus 256 --framework megatron-bridge",
    ),
}  # fmt: skip
#: CPU seconds at the reference speed after which a command is ended, unless twice its goal is later
LIMIT_S = 20
#: exit statuses of an answer: done, refused, does not fit
ANSWERED = (0, 3, 4)


@lru_cache(maxsize=1)
def _environment() -> dict[str, str]:
    """Return the variables of measured processes: one thread, and modules compiled before, as they are once installed."""
    folder = tempfile.mkdtemp(prefix="compiled-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONPYCACHEPREFIX": folder}
    found["PYTHONPATH"] = os.pathsep.join((str(ROOT), *filter(None, [found.get("PYTHONPATH")])))
    found.pop("PYTHONDONTWRITEBYTECODE", None)
    for command in ("main", "chunk-64"):
        words = [sys.executable, "-m", "simulator", *COMMANDS[command].words.split(), "--json"]
        subprocess.run(words, env=found, check=True, stdout=subprocess.DEVNULL)
    return found


def measure_command(command: Command) -> tuple[float, float, int]:
    """Run a command in a process of its own.

    Returns
    -------
    tuple
        CPU seconds at the reference speed, MiB at its peak, and its exit status, -1 beyond the limit.
    """
    environment, clock = _environment(), Clock()
    limit_s = round(max(LIMIT_S, 2.0 * command.goal_s) / clock.speed)
    words = [sys.executable, "-c", _LIMITED, str(limit_s), *command.words.split(), "--json"]
    null = subprocess.DEVNULL
    with (
        tempfile.TemporaryDirectory() as folder,  # of what a sweep stores
        subprocess.Popen(words, cwd=folder, env=environment, stdout=null, stderr=null) as process,
    ):
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    answered = process.returncode if process.returncode in ANSWERED else -1
    return clock.scaled(usage.ru_utime + usage.ru_stime), usage.ru_maxrss / 1024, answered


def measure(case: Case) -> Measured:
    """Run a case twice in fresh processes on one core: the simulation alone, and the whole command."""
    described = {
        "topology": case.topology, "model": case.model, "plan": case.plan, "overrides": case.overrides,
        "unfold": case.unfold,
    }  # fmt: skip
    alone = [sys.executable, "-c", _SIMULATE, json.dumps(described)]
    environment, clock = _environment(), Clock()
    done = subprocess.run(alone, env=environment, check=True, capture_output=True, text=True)
    simulation_s, peak, n_events, iteration_time_s = json.loads(done.stdout)
    simulation_s = clock.scaled(simulation_s)
    command = [sys.executable, "-m", "simulator.cli.main", *case.arguments(), "--json"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")
    return Measured(
        simulation_s=simulation_s, command_s=clock.scaled(usage.ru_utime + usage.ru_stime),
        peak_bytes=max(int(peak), usage.ru_maxrss * 1024), n_events=n_events, iteration_time_s=iteration_time_s,
    )  # fmt: skip


_HEAD = """<!-- written by python -m validation.speed; do not edit -->
# Speed

CPU time and memory on one core, each run in a process of its own. *Simulation* is reading, lowering, running and measuring;
*command* is `simulate ... --json` with everything around it, the interpreter's start included. Peak memory is that of the command.
Machines differ, and one machine with what its neighbours do: a loop of plain Python is timed before and after each run, and times
are given as on a machine on which four million rounds take {LOOP_S} s, as they did where the goals were set.

| run | simulation | goal | command | peak memory | events |
| --- | ---: | ---: | ---: | ---: | ---: |
"""

_IRREGULAR = """
## Irregular machines and plans

CPU time of the whole command, the interpreter's start included, with modules and shipped tables compiled before, as
they are from the second run on.

| run | CPU time | goal | peak memory | goal |
| --- | ---: | ---: | ---: | ---: |
"""

_TAIL = """
`pytest tests/benchmarks` measures them again where you are, and prints seconds and memory.

What the cost grows with is distinct behaviour, not size: ranks that do the same in equivalent positions are simulated once, a
stage's pass over one micro-batch is one event, and of a pipeline's steady state one period is simulated ([design](design.md)).
`--unfold` simulates every rank and micro-batch, with the same answer to the picosecond; where up to 256 ranks share links unequally,
classes are split until those of one share them equally ([design](design.md)). A slow GPU (`--slow-rank`) leaves the passes of its
tensor-parallel group blocks, which its classes run together, and replicas that meet only when they reduce gradients have steady
states of their own. Groups that straddle nodes share NICs with messages between the stages, differently on most
ranks: these are simulated by themselves, each collective of a layer as a flow of its own, until their state comes again; replicas
whose speeds differ a little may not come to that within a step, and all their micro-batches are simulated. Rounds of a
ring repeat, message by message, too ([collectives](collective.md)).
"""


def page(found: dict[str, Measured], irregular: dict[str, tuple[float, float, int]]) -> str:
    """Return the page about what was measured."""
    rows = [
        f"| {CASES[name].title} | {m.simulation_s:.2f} s | {CASES[name].goal_s:g} s | {m.command_s:.2f} s "
        f"| {m.peak_bytes / 2**20:.0f} MiB | {m.n_events:,} |\n"
        for name, m in found.items()
    ]
    others = [
        f"| {COMMANDS[name].title} | {'more than ' if status < 0 else ''}{cpu_s:.2f} s | {COMMANDS[name].goal_s:g} s "
        f"| {mib:.0f} MiB{' (refused)' if status == 3 else ''} | {COMMANDS[name].goal_mib:g} MiB |\n"
        for name, (cpu_s, mib, status) in irregular.items()
    ]
    day = time.strftime("%Y-%m-%d")
    where = f"\nMeasured on {day} with Python {platform.python_version()} on {_processor()}.\n"
    return _HEAD.format(LOOP_S=LOOP_S) + "".join(rows) + _IRREGULAR + "".join(others) + where + _TAIL


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"one core of an {names[0]}" if names else f"one core ({platform.machine()})"


def main() -> None:
    """Measure all cases; print the page or write it to the file that is named."""
    parser = argparse.ArgumentParser(prog="python -m validation.speed", description=main.__doc__)
    parser.add_argument("page", type=Path, nargs="?", help="where to write the page; without it, it is printed")
    arguments = parser.parse_args()
    irregular = {name: measure_command(command) for name, command in COMMANDS.items()}
    text = page({name: measure(case) for name, case in CASES.items()}, irregular)
    if arguments.page:
        arguments.page.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main()
