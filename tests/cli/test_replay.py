"""``simulate replay`` and ``simulate trace``: options, JSON, messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.cli.main import app, main, register_commands

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
pytestmark = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not beside this checkout")
SLOW = SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer"


@pytest.fixture(scope="module", autouse=True)
def commands():
    if not any(command.name == "replay" for command in app.registered_commands):
        register_commands()


@pytest.fixture
def simulate(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["simulate", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        return int(exit_.value.code or 0), printed.out, printed.err

    return run


def test_json_is_one_document_with_the_documented_keys(simulate):
    code, out, _ = simulate("replay", SLOW, "--remove-straggler", 2, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["measured_iteration_time_s"] > 1
    assert document["iteration_time_s"] < 0.2
    assert document["identity_error"] < 0.001
    assert set(document["breakdown"]) == {"compute_s", "exposed_s", "overlapped_s", "copy_s", "idle_s", "waiting_s"}
    assert sum(document["critical_path"]["by_kind_s"].values()) > 0


def test_simulated_beside_measured_in_every_format(simulate, tmp_path):
    for name in ("out.pftrace", "out.json", "out.tar"):
        code, _, err = simulate("replay", SHARED / "megatron-tp2" / "tp2" / "result", "--trace", tmp_path / name)
        assert (code, err.strip()) == (0, f"wrote {tmp_path / name}")
    names = [e["args"]["name"] for e in json.loads((tmp_path / "out.json").read_text())["traceEvents"]
             if e["name"] == "process_name"]  # fmt: skip
    assert [name.split()[0] for name in names] == ["measured", "simulated"] * 2


def test_stage_times_go_through_a_schedule(simulate):
    _, out, _ = simulate("replay", SHARED / "zeus-perseus", "--schedule", "1f1b", "--json")
    document = json.loads(out)
    assert abs(document["iteration_time_s"] / document["measured_iteration_time_s"] - 1) < 0.02
    code, _, err = simulate("replay", SHARED / "zeus-perseus", "--kernels", 0.5)
    assert (code, "stage times" in err) == (3, True)


def test_every_change_has_an_option(simulate):
    folder = SHARED / "hta"
    for arguments in (
        ("--kernels", 0.5), ("--host", 0.5), ("--bandwidth", 2), ("--latency", "5us"), ("--dp", 8), ("--no-overlap",),
        ("--overlap",), ("--bucket-bytes", "1GB"), ("--gpu", "h100-sxm5-80g"), ("--topology", "hgx-h100"),
        ("--add-straggler", "0:1.2"), ("--add-straggler", "0:10ms"), ("--ideal",),
    ):  # fmt: skip
        code, out, err = simulate("replay", folder, *arguments, "--json")
        assert code == 0, (arguments, err)
        assert json.loads(out)["iteration_time_s"] > 0


def test_trace_commands(simulate, tmp_path):
    code, out, _ = simulate("trace", "info", SHARED / "hta", "--json")
    assert (code, json.loads(out)["format"]) == (0, "kineto")
    code, out, _ = simulate("trace", "convert", SHARED / "hta", tmp_path / "run.et", "--json")
    assert (code, (tmp_path / "run.0.et").exists()) == (0, True)
    assert "launches" in json.loads(out)["lost"]
    code, out, _ = simulate("trace", "diff", SHARED / "hta", SHARED / "hta", "--json")
    assert (code, json.loads(out)["mean_absolute_error"]) == (0, 0.0)


def test_mistakes_print_one_message(simulate, tmp_path):
    assert simulate("replay", tmp_path / "none")[0] == 3
    code, _, err = simulate("replay", SLOW, "--remove-straggler", 9)
    assert (code, "was not recorded" in err) == (3, True)
    code, _, err = simulate("replay", SLOW, "--add-straggler", "x")
    assert (code, "RANK:FACTOR" in err) == (3, True)
    code, out, _ = simulate("trace", "convert", SLOW, "--json")
    assert (code, "error" in json.loads(out)) == (3, True)
