"""How fast large traces are read and replayed, and in how much memory; a benchmark reports and does not gate by time.

``pytest tests/benchmarks/test_traces.py --benchmark-enable`` runs the full sizes, a few thousand events otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

EVENT = '{{"ph":"X","cat":"{}","name":"{}","pid":{},"tid":{},"ts":{:.3f},"dur":{:.1f},"args":{{{}}}}}'
GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"
REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
#: what the profiler adds to every event and nothing here reads
PADDING = '"Call stack":"' + "x" * 480 + '"'
N_STEPS = 10


def write(path, rank, world_size, n_events, padding=""):
    """Operators, launches and kernels in equal parts; every twentieth kernel is an all-reduce of all ranks."""
    n_kernels, rest = n_events // 3, f",{padding}" if padding else ""
    header = {
        "deviceProperties": [{"name": "NVIDIA A100-SXM4-80GB"}],
        "distributedInfo": {"rank": rank, "world_size": world_size},
    }
    ranks = json.dumps(list(range(world_size)))
    with open(path, "w") as file:
        file.write(json.dumps(header)[:-1] + ', "traceEvents": [\n')
        for step in range(N_STEPS):
            length = 40.0 * (n_kernels // N_STEPS)
            name = f"ProfilerStep#{step}"
            file.write(EVENT.format("user_annotation", name, rank, 1, 999.0 + length * step, length - 2, "") + ",\n")
        for i in range(n_kernels):
            at, reduces = 1000.0 + 40.0 * i, i % 20 == 19
            operator = "record_param_comms" if reduces else "aten::mm"
            file.write(EVENT.format("cpu_op", operator, rank, 1, at, 20.0, f'"External id":{i + 1}{rest}') + ",\n")
            args = f'"cbid":211,"correlation":{i + 1}{rest}'
            file.write(EVENT.format("cuda_runtime", "cudaLaunchKernel", rank, 1, at + 8, 4.0, args) + ",\n")
            args = f'"device":{rank},"stream":{20 if reduces else 7},"correlation":{i + 1}'
            if reduces:
                args += (
                    f',"Collective name":"allreduce","In msg nelems":1048576,"Out msg nelems":1048576,"dtype":"BFloat16",'
                    f'"Group size":{world_size},"Process Group Name":"0","Process Group Ranks":"{ranks}","Seq":{i // 20}'
                )
            begin, length = (at + 15 + 3 * rank, 30.0) if reduces else (at + 14, 35.0)
            name, stream = (REDUCE, 20) if reduces else (GEMM, 7)
            file.write(
                EVENT.format("kernel", name, rank, stream, begin, length, args)
                + ("\n" if i + 1 == n_kernels else ",\n")
            )
        file.write("]}")


def in_process(code, *arguments):
    """Run code in a fresh interpreter; return what it printed: seconds of CPU, peak MiB, and a count."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    return [float(word) for word in done.stdout.split()]


READ = """
import resource, sys, time
from simulator.trace_io import read
begin = time.process_time()
trace = read(sys.argv[1])
used = time.process_time() - begin
print(used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, trace.n_ops + trace.n_host_events)
"""
REPLAY = """
import resource, sys, time
from simulator.trace_io import read
from simulator.replay.what_if import what_if as answer
from simulator.replay.replay_answer import answer_of as to_json
begin = time.process_time()
trace = read(sys.argv[1])
found = to_json(answer(trace))
used = time.process_time() - begin
assert found["identity_error"] < 0.02
print(used, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, trace.n_ops + trace.n_host_events)
"""


@pytest.fixture
def full(benchmark):
    """Whether the sizes are those of the requirement."""
    return bool(benchmark.enabled)


def test_read_600_000_events(benchmark, full, tmp_path):
    n_events = 600_000 if full else 6_000
    write(tmp_path / "rank0.json", 0, 1, n_events, PADDING)
    seconds, peak, count = benchmark.pedantic(in_process, (READ, tmp_path / "rank0.json"), rounds=1)
    megabytes = (tmp_path / "rank0.json").stat().st_size / 1e6
    benchmark.extra_info |= {"cpu_s": seconds, "peak_MiB": peak, "megabytes": megabytes}
    assert count == n_events + N_STEPS
    assert peak < 1024


def test_replay_2_million_events(benchmark, full, tmp_path):
    n_events = 500_000 if full else 6_000
    for rank in range(4):
        write(tmp_path / f"rank{rank}.json", rank, 4, n_events)
    seconds, peak, count = benchmark.pedantic(in_process, (REPLAY, tmp_path), rounds=1)
    benchmark.extra_info |= {"cpu_s": seconds, "peak_MiB": peak}
    assert count == pytest.approx(4 * n_events, rel=0.01)
