"""Logs of nccl-tests in their formats through the years, and what is wrong with broken ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.interop.measurements.nccl_tests import import_nccl_tests, is_nccl_tests

NEW = """# nccl-tests version 2.19.6 nccl-headers=22707 nccl-library=22707
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1
#
# Using devices
#  Rank  0 Group  0 Pid    101 on  node-a device  0 [0000:41:00] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid    102 on  node-a device  1 [0000:61:00] NVIDIA A100-SXM4-80GB
#  Rank  2 Group  0 Pid    201 on  node-b device  0 [0000:41:00] NVIDIA A100-SXM4-80GB
#  Rank  3 Group  0 Pid    202 on  node-b device  1 [0000:61:00] NVIDIA A100-SXM4-80GB
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    12.34    0.00    0.00      0    12.01    0.00    0.00    N/A
NCCL INFO something else wrote into the same file
     1048576        262144     float     sum      -1    40.00   26.21   39.32      0    41.00   25.58   38.36      0
   134217728      33554432     float     sum      -1   1200.5  111.80  167.70      0  1.2e+03  111.85  167.77      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 68.9
"""
OLD = """# nThread 1 nGpus 2 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#  Rank  0 Pid   5 on   host device  0 [0x07] Tesla V100
#  Rank  1 Pid   5 on   host device  1 [0x0a] Tesla V100
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
#        (B)    (elements)                     (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
0:      1048576        262144   float     sum    60.10   17.45   17.45  1e-07    59.90   17.51   17.51  1e-07
0:      2097152        524288   float     sum    90.10   23.28   23.28  1e-07    89.90   23.33   23.33  1e-07
"""


def write(tmp_path, text, name="log.txt"):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return file


def test_current_text(tmp_path):
    table = import_nccl_tests(write(tmp_path, NEW))
    assert (table.collective, table.n_ranks, table.n_nodes, table.gpus_per_process) == ("all_reduce", 4, 2, 1)
    assert table.nccl == "2.27" and len(table.rows) == 6
    last = table.rows[-1]
    assert (last.n_bytes, last.in_place, last.time_s) == (134217728, True, pytest.approx(1.2e-3))
    assert table.rows[2].busbw_bytes_per_s == pytest.approx(39.32e9)


def test_old_text_without_root_in_one_process_needs_the_collective(tmp_path):
    file = write(tmp_path, OLD)
    table = import_nccl_tests(file, collective="all_reduce")
    assert (table.n_ranks, table.gpus_per_process, len(table.rows)) == (2, 2, 4)
    assert table.rows[0].root == -1 and table.rows[0].redop == "sum"
    with pytest.raises(ConfigError, match="which collective"):
        import_nccl_tests(file)


def test_rows_for_validation(tmp_path):
    rows = import_nccl_tests(write(tmp_path, OLD), collective="all_reduce").measurements("dgx1-v100-16g")
    assert rows[0]["time_us"] == "60.1" and rows[0]["gpus"] == "2" and rows[0]["gpus_per_process"] == "2"


def test_ranks_and_collective_from_the_numbers(tmp_path):
    table = import_nccl_tests(write(tmp_path, "\n".join(line for line in NEW.splitlines() if "Rank" not in line)))
    assert table.n_ranks == 4
    bare = [line for line in NEW.splitlines() if "Rank" not in line and "_perf" not in line]
    assert import_nccl_tests(write(tmp_path, "\n".join(bare))).collective == "all_reduce"


def json_log(**changes):
    part = {"time": 40.0, "alg_bw": 26.21, "bus_bw": 39.32, "nwrong": "0"}
    log = {
        "version": 1,
        "args": ["./build/all_gather_perf", "-b", "8"],
        "env": ["SECRET=1"],
        "nccl_version": 22707,
        "config": {"devices": [{"rank": r, "pid": r, "hostname": "a"} for r in range(4)]},
        "results": [
            {"size": 1048576, "count": 65536, "type": "float", "redop": "none", "root": "     -1",
             "out_of_place": part, "in_place": {**part, "time": "nan"}}
        ],
    }  # fmt: skip
    return {**log, **changes}


def test_json(tmp_path):
    table = import_nccl_tests(write(tmp_path, json.dumps(json_log()), "log.json"))
    assert (table.collective, table.n_ranks, table.nccl, len(table.rows)) == ("all_gather", 4, "2.27", 1)
    assert table.rows[0].root == -1
    assert "SECRET" not in repr(table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello\n", "no result lines"),
        ("{", "not JSON"),
        ('{"results": []}', "no results"),
        (json.dumps(json_log(results=[3])), "expected a mapping"),
        (json.dumps(json_log(results=[{"size": "many", "out_of_place": {"time": 1.0}}])), "not a number"),
    ],
)
def test_broken_files_say_what_is_wrong(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        import_nccl_tests(write(tmp_path, text))


def test_sniffing():
    assert is_nccl_tests(NEW) and is_nccl_tests(OLD) and is_nccl_tests(json.dumps(json_log()))
    assert not is_nccl_tests("GPU0 GPU1") and not is_nccl_tests('{"model_type": "gpt2"}')


@given(st.integers(0, len(NEW)), st.text(max_size=8))
def test_mutilated_logs_raise_nothing_but_our_error(tmp_path_factory, cut, noise):
    file = tmp_path_factory.mktemp("log") / "log.txt"
    file.write_text(NEW[:cut] + noise + NEW[cut + 7 :], encoding="utf-8")
    try:
        import_nccl_tests(file)
    except ConfigError as error:
        assert error.message


def test_a_log_of_several_runs_is_several_tables(tmp_path):
    gathers = NEW.replace("all_reduce_perf", "all_gather_perf").replace("     sum", "    none")
    concluded = "# Collective test concluded: all_reduce_perf\n"
    table = import_nccl_tests(write(tmp_path, f"{NEW}{concluded}+ srun all_gather_perf -b 8\n{gathers}"))
    assert [(run.collective, len(run.rows)) for run in table.runs] == [("all_reduce", 6), ("all_gather", 6)]
    rows = table.measurements("polaris")
    assert [row["collective"] for row in rows[5:7]] == ["all_reduce", "all_gather"]
    assert len({row["row_id"] for row in rows}) == 12


def test_later_runs_that_do_not_tell_take_the_collective_that_is_given(tmp_path):
    file = write(tmp_path, OLD + NEW)
    assert [run.collective for run in import_nccl_tests(file, collective="broadcast").runs] == [
        "broadcast",
        "all_reduce",
    ]


def test_the_end_of_a_list_of_devices_tells_the_ranks_and_not_the_nodes(tmp_path):
    lines = [line for line in NEW.splitlines() if "Rank  0" not in line and "Rank  1" not in line]
    table = import_nccl_tests(write(tmp_path, "\n".join(lines)))
    assert (table.n_ranks, table.n_nodes, table.gpus_per_process) == (4, 0, 0)


def test_a_ticket_eats_the_hashes(tmp_path):
    text = NEW.replace("# ", " ").replace("#\n", "\n")
    assert is_nccl_tests(text) and "#  Rank" not in text
    table = import_nccl_tests(write(tmp_path, text))
    assert (table.n_ranks, table.n_nodes, table.collective, len(table.rows)) == (4, 2, "all_reduce", 6)


def test_runs_without_a_head_of_their_tables(tmp_path):
    text = "".join(
        f"# Collective test starting: {name}_perf\n# nThread 1 nGpus 2 minBytes 8 maxBytes 8 step: 2(factor)\n"
        f"     1048576        262144     float     sum      -1    40.00   26.21   {bus}      0    41.00   25.58   25.58      0\n"
        for name, bus in (("all_reduce", 26.21), ("reduce_scatter", 13.11))
    )
    assert is_nccl_tests(text)
    table = import_nccl_tests(write(tmp_path, text), gpus=2)
    assert [run.collective for run in table.runs] == ["all_reduce", "reduce_scatter"]


def test_rows_without_bytes_are_no_measurements(tmp_path):
    empty = "           0             0     float     sum      -1     9.51    0.00    0.00      0     9.32    0.00    0.00      0\n"
    lines = NEW.splitlines(keepends=True)
    assert len(import_nccl_tests(write(tmp_path, "".join([*lines[:12], empty, *lines[12:]]))).rows) == 6
    log = json_log()
    log["results"].insert(0, log["results"][0] | {"size": 0})
    assert all(row.n_bytes for row in import_nccl_tests(write(tmp_path, json.dumps(log), "log.json")).rows)


def test_lines_tagged_by_open_mpi(tmp_path):
    tagged = "\n".join(f"[1,0]<stdout>:{line}" for line in NEW.splitlines())
    assert len(import_nccl_tests(write(tmp_path, tagged)).rows) == 6


@pytest.mark.parametrize("changes", [{"config": None}, {"args": None}, {"config": {"devices": None}}])
def test_json_with_empty_sections(tmp_path, changes):
    table = import_nccl_tests(write(tmp_path, json.dumps(json_log(**changes)), "log.json"), collective="all_reduce")
    assert table.rows


def test_a_root_that_is_no_number_is_none(tmp_path):
    assert {row.root for row in import_nccl_tests(write(tmp_path, NEW.replace(" -1 ", " -  "))).rows} == {-1}
