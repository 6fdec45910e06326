"""The table that nccl-tests would print."""

from __future__ import annotations

import pytest

from simulator.collectives.benchmark import benchmark_table, size_range
from simulator.errors import ConfigError
from simulator.topology.cluster_file import load_topology


@pytest.fixture(scope="module")
def topology():
    return load_topology("dgx-a100-80g", 16)


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "send_recv"])
def test_columns_agree_with_each_other(topology, collective):
    rows = benchmark_table(collective, topology, size_range(1024, 2**30, 4))
    assert len(rows) == 11
    for row in rows:
        assert row.algbw_bytes_per_s * row.time_s == pytest.approx(row.n_bytes)
        assert row.busbw_bytes_per_s <= 2 * row.algbw_bytes_per_s
    assert rows[0].algbw_bytes_per_s < rows[-1].algbw_bytes_per_s


def test_counts_are_per_rank_where_nccl_tests_counts_so(topology):
    assert benchmark_table("all_gather", topology, [2**20])[0].count == 2**20 // 4 // 16
    assert benchmark_table("all_reduce", topology, [2**20], dtype="half")[0].count == 2**19


def test_one_process_for_all_gpus_is_bound_by_its_launches(topology):
    slow = benchmark_table("all_reduce", topology, [8], n_gpus=8, gpus_per_process=8)[0]
    assert slow.time_s > 1.5 * benchmark_table("all_reduce", topology, [8], n_gpus=8)[0].time_s


def test_mistakes(topology):
    with pytest.raises(ConfigError):
        size_range(8, 4)
    with pytest.raises(ConfigError, match="type"):
        benchmark_table("all_reduce", topology, [8], dtype="quarter")
    with pytest.raises(ConfigError, match="GPUs"):
        benchmark_table("all_reduce", topology, [8], n_gpus=1)
