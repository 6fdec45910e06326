import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError
from simulator.units import (
    DIMENSIONS,
    common_unit,
    format_bandwidth,
    format_bytes,
    format_time,
    parse_quantity,
    to_ps,
    to_s,
)

GOOD = [
    ("200 Gb/s", "bandwidth", 25e9),
    ("25GB/s", "bandwidth", 25e9),
    ("400Gbps", "bandwidth", 50e9),
    ("125MBps", "bandwidth", 125e6),
    ("1 GiB/s", "bandwidth", 2.0**30),
    ("4x HDR", "bandwidth", 25e9),
    ("4x FDR10", "bandwidth", 5e9),  # 10.3125 Gb/s of 64b/66b on each lane: 10 Gb/s of data
    ("4x EDR", "bandwidth", 12.5e9),
    ("NVLink4 x18", "bandwidth", 450e9),
    ("PCIe 5 x16", "bandwidth", 63.0e9),
    ("1.5 us", "time", 1.5e-6),
    ("3 µs", "time", 3e-6),
    ("2 min", "time", 120.0),
    ("80 GiB", "bytes", 80 * 2.0**30),
    ("40 GB", "bytes", 40e9),
    ("8 Kib", "bytes", 1024.0),
    ("1_000 B", "bytes", 1000.0),
    ("312 TFLOP/s", "compute", 312e12),
    ("1e3 GFLOPS", "compute", 1e12),
    ("1410 MHz", "frequency", 1.41e9),
    ("0.4 kW", "power", 400.0),
]
BAD = [
    ("200", "bandwidth"),
    (200, "bandwidth"),
    (None, "time"),
    (True, "bytes"),
    ("12:30", "time"),
    ("5 ps", "bandwidth"),
    ("5 GB", "bandwidth"),
    ("5 gb/s", "bandwidth"),
    ("5 GT/s", "bandwidth"),
    ("5 miB", "bytes"),
    ("1e999 GB", "bytes"),
    ("nan s", "time"),
    ("4x ZDR", "bandwidth"),
    ("", "time"),
]


@pytest.mark.parametrize(("text", "dimension", "value"), GOOD)
def test_reads_quantities(text, dimension, value):
    assert parse_quantity(text, dimension) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "dimension"), BAD)
def test_refuses_what_is_not_a_quantity(text, dimension):
    with pytest.raises(ConfigError) as caught:
        parse_quantity(text, dimension)
    assert caught.value.hint


def test_a_bare_number_names_the_unit_meant():
    with pytest.raises(ConfigError, match="per direction"):
        parse_quantity("25", "bandwidth")


@given(st.text(max_size=12), st.sampled_from(sorted(DIMENSIONS)))
def test_any_text_gives_a_finite_number_or_our_error(text, dimension):
    try:
        value = parse_quantity(text, dimension)
    except ConfigError:
        return
    assert math.isfinite(value)


FORMATS = [(format_bytes, "bytes"), (format_bandwidth, "bandwidth"), (format_time, "time")]


@given(st.floats(1e-12, 1e15), st.sampled_from(FORMATS))
def test_formatting_reads_back_to_four_digits(value, formatting):
    write, dimension = formatting
    assert parse_quantity(write(value), dimension) == pytest.approx(value, rel=6e-4)


@given(st.integers(1, 9999), st.sampled_from(FORMATS))
def test_four_digits_read_back_exactly(digits, formatting):
    write, dimension = formatting
    scale = {"bytes": 1.0, "bandwidth": 1e9, "time": 1e-6}[dimension]
    if dimension == "bytes" and digits >= 1024:
        digits = digits // 1024 * 1024
    assert parse_quantity(write(digits * scale), dimension) == pytest.approx(digits * scale, rel=1e-12)


@given(st.integers(0, 10**18))
def test_clock_round_trip(duration_ps):
    assert to_ps(to_s(duration_ps)) == pytest.approx(duration_ps, rel=1e-15, abs=1)


@pytest.mark.parametrize(
    ("values", "kind", "unit"),
    [
        ([1.025, 0.04094, 22e-6], "time", "ms"), ([1.025, 0.04094], "time", "s"), ([0.3, 0.0], "time", "ms"), ([0.0], "time", None),
        ([120.0, 3e-9], "time", None), ([16 << 20], "bytes", "MiB"), ([80 << 30, 512 << 20], "bytes", "GiB"),
        ([4, 5 << 30], "bytes", None),
        ([25e9, 28e12], "bandwidth", None), ([25e9, 9e12], "bandwidth", "GB/s"), ([73e3], "bandwidth", "KB/s"),
    ],
)  # fmt: skip
def test_values_of_a_column_share_the_largest_unit_in_which_all_can_be_read(values, kind, unit):
    """The largest is from 1 to 10,000 and the least at least 0.01 of it, or, where that cannot be, at least 0.001."""
    found = common_unit(values, kind)
    assert (found and found[0]) == unit
