"""Tables of the terminal: as wide as it is, and no figure broken."""

import re

import pytest

from simulator.explore.named_settings import Sweep
from simulator.explore.sweeps import run_sweep
from simulator.report.grid import Grid, Number, Quantity
from simulator.report.recorded_view import print_facts
from simulator.report.terminal import counted, print_grid, print_sweep

COLUMNS = ("name", "exposed communication", "parameters", "waited for")
ROWS = [
    ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x64_8x5_tn_align1>(Params)", "20.14 ms", "1,557,611,200", "2: 28.38 ms, 1: 296.5 us"),
    ("volta_sgemm_128x64_tn", "9.1 ms", "774,030,080", "1: 306 us"),
]  # fmt: skip


@pytest.fixture
def terminal(monkeypatch):
    """Let standard output be a terminal of so many columns."""

    def be(columns):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setenv("FORCE_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")

    return be


def printed(capsys):
    """Return the lines without what makes them bold."""
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_table_is_as_wide_as_the_terminal_and_breaks_no_figure(terminal, capsys, columns):
    terminal(columns)
    print_grid(Grid("", COLUMNS, ROWS))
    lines = printed(capsys)
    assert all(len(line) <= columns for line in lines)
    for _, *figures in ROWS:
        for figure in figures:
            assert sum(figure in line for line in lines) == 1, figure
    for words in ("exposed", "communication", "parameters", "waited for"):
        assert sum(words in line for line in lines) == 1
    pieces = sum(line.startswith("volta_sgemm") for line in lines)
    assert pieces == {60: 2, 80: 2, 120: 1}[columns]  # 13 + 13 + 24 beside half of the width, blanks between


def test_names_are_whole_where_there_is_room(terminal, capsys):
    terminal(160)
    print_grid(Grid("", COLUMNS, ROWS))
    assert any(line.startswith(ROWS[0][0]) for line in printed(capsys))


def test_words_break_before_names_do(terminal, capsys):
    """A name is copied: it is cut only where words that break, to no fewer than 20 characters, leave too little room."""
    name, run = "deepseek-v3-gb300-nvl72-256-mxfp8-more", "deepseek-v3 on 256 GPUs of gb300-nvl72 in mxfp8"
    for columns, is_whole in ((80, True), (40, False)):
        terminal(columns)
        print_grid(Grid("", ("preset", "run", "measured"), [(name, run, "15.04 s")], words=(1,)))
        lines = printed(capsys)
        assert any(line.startswith(name) for line in lines) is is_whole
        assert not any(run in line for line in lines) and all(len(line) <= columns for line in lines)
    terminal(80)
    print_grid(Grid("", ("what", "bar", "time"), [(60 * "n", 30 * "#", "1 s")], words=(1,)))
    assert any(30 * "#" in line for line in printed(capsys))  # no words: nothing to break


def test_facts_are_lines_and_tables(capsys):
    print_facts({
        "n_host_events": 12, "operations": {"compute": 3, "copy": 1}, "devices": ["V100", "A100"], "notes": [],
        "steps": [{"rank": 0, "step": 4, "duration_s": 0.3974}],
    })  # fmt: skip
    assert [" ".join(line.split()) for line in printed(capsys)] == [
        "host events: 12", "operations: compute 3, copy 1", "devices: V100, A100", "", "steps", "rank step duration (ms)",
        "0 4 397.4",
    ]  # fmt: skip


def test_a_sweep_says_what_did_not_fit_and_breaks_no_name_of_an_axis(terminal, capsys):
    terminal(80)
    sweep = Sweep(
        base={"topology": "bigred200", "model": "gpt-1.3b", "gpus": 4, "sequence_length": 2048},
        axes={"micro_batch": (1, 64), "first_stage_layers": (None,)},
    )
    print_sweep(run_sweep(sweep, n_jobs=1))
    lines = printed(capsys)
    assert all(len(line) <= 80 for line in lines)
    assert any(line.split()[:2] == ["micro_batch", "first_stage_layers"] for line in lines)
    assert [line.split()[2:] for line in lines if line.split()[:2] == ["64", "none"]][-1] == ["does", "not", "fit"]


def test_columns_that_are_compared_have_one_unit_where_one_suits_all(capsys):
    """12.8 ms that become 6.6 ms lose 6.2 ms, not 6,168 us; 900 s and 3 us have no unit in common, nor have bytes and times."""
    rows = [("forward", Quantity(0.0128), Quantity(0.0066), Quantity(-0.006168, is_signed=True), Quantity(4 << 10, "bytes")),
            ("host", Quantity(1e-3), Quantity(1e-3), Quantity(0.0, is_signed=True), Quantity(2 << 10, "bytes"))]  # fmt: skip
    written = Grid("", ("part", "before", "after", "change", "sent"), rows).written()
    assert list(written.columns) == ["part", "before (ms)", "after (ms)", "change (ms)", "sent (KiB)"]
    assert written.rows[0] == ["forward", "12.8", "6.6", "-6.168", "4"]
    far = Grid("", ("part", "run", "launch"), [("a", Quantity(900.0), Quantity(3e-6))]).written()
    assert (list(far.columns), far.rows[0]) == (["part", "run (s)", "launch (us)"], ["a", "900", "3"])


def test_a_column_has_one_unit_which_its_heading_names(capsys):
    """1.025 s, 40.94 ms and 22 us are 1,025, 40.94 and 0.022 ms; 4 bytes and 5 GiB have no unit in common."""
    rows = [
        ("compute", Number("a", 1.025, Quantity(1.025)), Quantity(5 << 30, "bytes"), Quantity(-2e-3, is_signed=True)),
        ("optimizer", Quantity(0.04094), Quantity(4, "bytes"), Quantity(0.0, is_signed=True)),
        ("host", Quantity(22e-6, more=" (tight)"), "-", Quantity(1e-3, is_signed=True)),
    ]
    print_grid(Grid("", ("part", "time", "size", "change"), rows))
    head, *lines = [line.split() for line in printed(capsys)]
    assert head == ["part", "time", "(ms)", "size", "change", "(ms)"]
    assert lines == [
        ["compute", "1,025", "5", "GiB", "-2"],
        ["optimizer", "40.94", "4", "B", "0"],
        ["host", "0.022", "(tight)", "-", "+1"],
    ]


def test_what_became_of_rows_leaves_out_what_did_not_happen():
    assert counted(4, 0, 0) == "4 simulated"
    assert counted(1, 3, 0) == "1 simulated, 3 known from before"
    assert counted(2, 0, 2) == "2 simulated, 2 of them failed"
