"""Shapes of emulated clusters as values, and the commands that build them as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from validation.emulation.cluster_shape import (
    SUBNET,
    ClusterShape,
    burst_bytes,
    goodput_bytes_per_s,
    parse_rate,
    parse_slow,
)
from validation.emulation.network import host_batch, switch_batch, trunks


@pytest.mark.parametrize(("text", "rate"), [("1gbit", 1e9), ("100mbit", 1e8), ("2.5gbit", 2.5e9), ("none", None)])
def test_rates(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["1", "fast", "-1gbit", "0mbit", "1 Gb/s", ""])
def test_a_rate_without_meaning_is_refused(text):
    with pytest.raises(ConfigError, match="is not a rate"):
        parse_rate(text)


def test_slow_links():
    assert parse_slow("2:500mbit,0:1gbit") == ((2, 5e8), (0, 1e9))
    assert parse_slow("") == ()
    with pytest.raises(ConfigError, match="not a slow link"):
        parse_slow("two:500mbit")
    with pytest.raises(ConfigError, match="not a slow link"):
        parse_slow("2:none")


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_nodes": 0},
        {"n_nodes": 65},
        {"n_nodes": 5, "n_racks": 2},
        {"n_nodes": 4, "trunk_bits_per_s": 1e9},
        {"n_nodes": 2, "slow": ((2, 1e9),)},
        {"n_nodes": 2, "delay_s": -1.0},
    ],
)
def test_impossible_clusters_are_refused(wrong):
    with pytest.raises(ConfigError):
        ClusterShape(**wrong)


def test_headers_take_their_share():
    assert goodput_bytes_per_s(1e9) == pytest.approx(1e9 / 8 * 8948 / 9014)


@given(st.floats(1e6, 1e11))
def test_a_burst_holds_a_frame_and_about_250_microseconds(rate):
    assert burst_bytes(rate) >= max(9014, rate / 8 * 250e-6 - 1)


def _switch(shape):
    return switch_batch(shape, lambda host: f"/proc/1/fd/{host}")


def test_every_link_is_shaped_at_both_ends():
    shape = ClusterShape(n_nodes=3, rate_bits_per_s=1e9, slow=((1, 5e8),))
    for host, rate in enumerate(("1000000000bit", "500000000bit", "1000000000bit")):
        assert any(f"dev eth0 parent 1: classid 1:1 htb rate {rate} " in line for line in host_batch(shape, host).tc)
        assert any(f"dev p{host} parent 1: classid 1:1 htb rate {rate} " in line for line in _switch(shape).tc)


def test_unshaped_links_have_no_queueing_discipline():
    shape = ClusterShape(n_nodes=2, rate_bits_per_s=None)
    assert host_batch(shape, 0).tc == () == _switch(shape).tc


def test_segments_are_no_longer_than_the_burst():
    line = next(line for line in host_batch(ClusterShape(n_nodes=2), 0).ip if "gso_max_size" in line)
    assert int(line.split()[-1]) == 31250  # what 1 Gb/s moves in 250 us


def test_neighbours_are_static_and_addresses_stay_in_the_subnet():
    shape = ClusterShape(n_nodes=4)
    lines = host_batch(shape, 2).ip
    assert sum(line.startswith("neigh add") for line in lines) == 3
    addresses = [word for line in lines for word in line.split() if word.count(".") == 3]
    assert addresses
    assert all(word.startswith(SUBNET.rpartition(".")[0]) for word in addresses)


@pytest.mark.parametrize(("racks", "pairs"), [(1, 0), (2, 1), (4, 4)])
def test_trunks_join_racks(racks, pairs):
    shape = ClusterShape(n_nodes=8, n_racks=racks, trunk_bits_per_s=None if racks == 1 else 5e8)
    assert len(trunks(shape)) == pairs
    assert sum("classid 1:1 htb rate 500000000bit" in line for line in _switch(shape).tc) == 2 * pairs


def test_ports_stand_in_their_rack():
    shape = ClusterShape(n_nodes=4, n_racks=2)
    assert "link set dev p1 master br0" in _switch(shape).ip
    assert "link set dev p2 master br1" in _switch(shape).ip


def test_queues_get_their_length():
    assert any("bfifo limit 524288" in line for line in _switch(ClusterShape(n_nodes=2, queue_bytes=524288)).tc)
