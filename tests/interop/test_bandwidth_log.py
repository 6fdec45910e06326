"""Outputs of OSU's benchmarks, perftest and nvbandwidth, in two forms each; times worked out by hand."""

import pytest

from simulator.errors import ConfigError
from simulator.interop import import_any, recognise

OSU = """
# OSU MPI-CUDA Allreduce Latency Test v7.3
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                      20.10             19.00             21.00        1000
1048576               310.50            300.00            320.00         100
"""
OSU_RATE = """# OSU MPI Bandwidth Test v5.9
# Size      Bandwidth (MB/s)
1                       1.52
4194304             24800.00
"""
PERFTEST = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : mlx5_0
 #bytes     #iterations    BW peak[{unit}/sec]    BW average[{unit}/sec]   MsgRate[Mpps]
 65536      5000             {rate}            {rate}		   0.37
---------------------------------------------------------------------------------------
"""
NVBANDWIDTH = """nvbandwidth Version: v0.5
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.00     55.00

SUM host_to_device_memcpy_ce 110.00

Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    400.00
 1    300.00       N/A

SUM device_to_device_memcpy_read_ce 700.00
"""


def read(tmp_path, text, **options):
    path = tmp_path / "out.txt"
    path.write_text(text)
    assert recognise(path) == ["bandwidth-log"]
    return import_any(path, options=options)


def seconds(table):
    return [(row.n_bytes, row.time_s) for row in table.rows]


@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>: ", "0: "])
def test_osu_collectives_ask_for_their_ranks(tmp_path, tag):
    text = "\n".join(tag + line if line else line for line in OSU.splitlines())
    with pytest.raises(ConfigError, match="how many ranks") as caught:
        read(tmp_path, text)
    assert "--gpus" in caught.value.hint
    table = read(tmp_path, text, gpus=16, nodes=2)
    assert (table.collective, table.n_ranks, table.n_nodes) == ("all_reduce", 16, 2)
    assert seconds(table) == [(4, pytest.approx(20.1e-6)), (1 << 20, pytest.approx(310.5e-6))]


def test_osu_rates_of_two_ranks(tmp_path):
    table = read(tmp_path, OSU_RATE, nodes=2)
    assert (table.collective, table.n_ranks) == ("send_recv", 2)
    assert seconds(table)[1] == (1 << 22, pytest.approx((1 << 22) / 24.8e9))  # a MB is 10^6 bytes


@pytest.mark.parametrize(
    ("unit", "rate", "bytes_per_s"), [("MB", "23500.00", 23500 * 2**20), ("Gb", "196.48", 196.48e9 / 8)]
)
def test_perftest_has_two_units(tmp_path, unit, rate, bytes_per_s):
    table = read(tmp_path, PERFTEST.format(unit=unit, rate=rate))
    assert (table.n_ranks, table.n_nodes) == (2, 2)
    assert seconds(table) == [(65536, pytest.approx(65536 / bytes_per_s))]


def test_nvbandwidth_gives_copies_between_gpus(tmp_path):
    table = read(tmp_path, NVBANDWIDTH)
    assert (table.collective, table.n_nodes) == ("send_recv", 1)
    assert seconds(table) == [(512 << 20, pytest.approx((512 << 20) / 350e9))]  # the mean of two directions
    rows = table.measurements("dgx-h100")
    assert (rows[0]["gpus"], rows[0]["size_bytes"]) == ("2", str(512 << 20))
