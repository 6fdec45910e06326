"""``simulate replay`` and ``simulate trace``: options, JSON, messages."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

import pytest

from simulator.units import format_time

SHARED = Path(__file__).resolve().parents[3] / "shared" / "traces"
OWN = Path(__file__).resolve().parents[2] / "traces"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the shared traces are not beside this checkout")
SLOW = SHARED / "torchrec" / "trace" / "sst_long_a2a_optimizer"


@needs_shared
def test_json_is_one_document_with_the_documented_keys(simulate):
    code, out, _ = simulate("replay", SLOW, "--remove-straggler", 2, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["measured_iteration_time_s"] > 1
    assert document["iteration_time_s"] < 0.2
    assert document["identity_error"] < 0.001
    assert set(document["breakdown"]) == {
        "compute_s",
        "exposed_communication_s",
        "overlapped_communication_s",
        "copy_s",
        "idle_s",
        "waiting_s",
    }
    assert sum(row["share"] for row in document["critical_path"]["kinds"]) == pytest.approx(1.0)


@needs_shared
def test_simulated_beside_measured_in_every_format(simulate, tmp_path):
    for name in ("out.pftrace", "out.json", "out.tar"):
        code, _, err = simulate("replay", SHARED / "megatron-tp2" / "tp2" / "result", "--trace", tmp_path / name)
        assert (code, err.strip()) == (0, f"wrote {tmp_path / name}")
    names = [e["args"]["name"] for e in json.loads((tmp_path / "out.json").read_text())["traceEvents"]
             if e["name"] == "process_name"]  # fmt: skip
    assert [name.split()[0] for name in names] == ["measured", "simulated"] * 2


@needs_shared
def test_stage_times_go_through_a_schedule(simulate):
    _, out, _ = simulate("replay", SHARED / "zeus-perseus", "--schedule", "1f1b", "--json")
    document = json.loads(out)
    assert abs(document["iteration_time_s"] / document["measured_iteration_time_s"] - 1) < 0.02
    code, _, err = simulate("replay", SHARED / "zeus-perseus", "--kernels", 0.5)
    assert (code, "stage times" in err) == (3, True)


@needs_shared
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
    code, out, _ = simulate("trace", "info", OWN / "ddp-2", "--json")
    assert (code, json.loads(out)["format"]) == (0, "kineto")
    code, out, _ = simulate("trace", "convert", OWN / "ddp-2", tmp_path / "run.et", "--json")
    assert (code, (tmp_path / "run.1.et").exists()) == (0, True)
    assert json.loads(out)["lost"] == ["host threads and their events", "launches"]
    code, out, _ = simulate("trace", "diff", OWN / "ddp-2", OWN / "ddp-2", "--json")
    assert (code, json.loads(out)["mean_absolute_error"]) == (0, 0.0)


def test_a_replay_is_written_for_other_tools_and_compared(simulate, tmp_path):
    for name in ("run.et", "folder", "both.json"):
        code, _, err = simulate("replay", OWN / "ddp-2", "--kernels", 2, "--trace", tmp_path / name)
        assert (code, err.strip()) == (0, f"wrote {tmp_path / name}")
    assert sorted(path.name for path in (tmp_path / "folder").iterdir()) == [
        "rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"]  # fmt: skip
    _, expected, _ = simulate("replay", OWN / "ddp-2", "--kernels", 2, "--json")
    want = sum(max(s["simulated_s"] for s in json.loads(expected)["steps"] if s["step"] == n) for n in (0, 1)) / 2
    # in Kineto files a step starts with its first kernel, on a thread where the host marks it
    for name, within in (("folder", 0.03), ("both.json", 1e-3)):
        code, out, _ = simulate("trace", "diff", OWN / "ddp-2", tmp_path / name, "--step", 0, "--step", 1, "--json")
        steps = json.loads(out)["steps"]
        slowest = [max(s["simulated_s"] for s in steps if s["step"] == number) for number in (0, 1)]
        assert (code, sum(slowest) / 2) == (0, pytest.approx(want, rel=within)), name


def test_a_comparison_leaves_warm_up_out_and_says_so(simulate, tmp_path):
    both = OWN / "ddp-2", OWN / "ddp-2"
    code, out, _ = simulate("trace", "compare", *both, "--rank", 1, "--json")
    found = json.loads(out)
    assert (code, found["left_out"]) == (0, "step 0 (warm-up)")
    assert {(step["rank"], step["step"]) for step in found["steps"]} == {(1, 1)}
    code, out, _ = simulate("trace", "compare", *both, "--rank", 1)
    assert out.splitlines()[1:3] == [f"A: {both[0].name}", f"B: {both[1].name}"] and "simulated" not in out
    code, out, _ = simulate("trace", "compare", *both, "--csv", "-", "--report", tmp_path / "page.html")
    assert out.splitlines()[0] == "work,measured_s,simulated_s,difference_s,of_step"
    assert "by kind of work" in (tmp_path / "page.html").read_text()
    assert simulate("trace", "compare", *both, "--step", 7)[0] == 3


def test_a_comparison_says_how_long_steps_are(simulate):
    both = OWN / "ddp-2", OWN / "fsdp2-2"
    steps = json.loads(simulate("trace", "compare", *both, "--json")[1])["steps"]
    a, b = (format_time(sum(step[side] for step in steps) / len(steps)) for side in ("measured_s", "simulated_s"))
    assert a != b and f"a step takes {a} in A and {b} in B" in " ".join(simulate("trace", "compare", *both)[1].split())


def test_one_rank_says_how_sure_more_ranks_are(simulate):
    path = OWN / "ddp-2" / "ddp-rank0.pt.trace.json.gz"
    code, out, _ = simulate("replay", path, "--dp", 64)
    assert code == 0
    assert "\nbetween " in out
    document = json.loads(simulate("replay", path, "--dp", 64, "--json")[1])
    assert document["confidence"]["low_s"] <= document["iteration_time_s"] <= document["confidence"]["high_s"]
    assert document["stands_for"] == {"0": list(range(64))}


def test_mistakes_print_one_message(simulate, tmp_path):
    assert simulate("replay", tmp_path / "none")[0] == 3
    code, _, err = simulate("replay", OWN / "ddp-2", "--remove-straggler", 9)
    assert (code, "was not recorded" in err) == (3, True)
    code, _, err = simulate("replay", OWN / "ddp-2", "--add-straggler", "x")
    assert (code, "RANK:FACTOR" in err) == (3, True)
    code, out, _ = simulate("trace", "convert", OWN / "ddp-2", "--json")
    assert (code, "error" in json.loads(out)) == (3, True)
    for wrong in (("--dp", 1), ("--bandwidth", "nan"), ("--trace", "x.foo"), ("--trace", tmp_path / "no" / "x.json"),
                  ("--measured-on", "hgx-h100"), ("--missing-ranks",), ("--as", "nope"), ("--schedule", "gpipe"),
                  ("--trace", OWN / "ddp-2"), ("--trace", OWN / "ddp-2" / "ddp-rank0.pt.trace.json.gz")):  # fmt: skip
        code, _, err = simulate("replay", OWN / "ddp-2", *wrong)
        assert (code, err.startswith("error: ")) == (3, True), wrong


def test_another_plan_is_printed_beside_what_the_recorded_one_leaves_out(simulate):
    """A job that names no context parallelism has none, and 16-bit training that is asked for is named, though it is usual."""
    code, out, _ = simulate("replay", OWN / "tiny-ddp-2", "--set", "cp=2", "--set", "precision=bf16")
    shown = {line.split()[0]: line.split()[1:] for line in out.splitlines() if "->" in line}
    assert code == 0
    assert (shown["cp"], shown["precision"]) == (["1", "->", "2"], ["fp32", "->", "bf16"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--add-straggler", "0:1.5", "--add-straggler", "0:2"), "--add-straggler gives rank 0 a factor twice"),
        (("--add-straggler", "1:2ms", "--add-straggler", "1:3ms"), "--add-straggler gives rank 1 a delay twice"),
        (("--add-straggler", "0:1.5", "--remove-straggler", "0"), "rank 0 is a straggler to add and to remove"),
        (("--add-straggler", "0:abc"), "--add-straggler 0:abc: 'abc' is not a time"),
        (("--latency", "5"), "--latency 5: '5' is not a time"),
        (("--bucket-bytes", "25"), "--bucket-bytes 25: '25' is not a size"),
        (("--bandwidth", "0"), "--bandwidth 0: not a factor from 1e-06 to 1e+06"),
    ],
)
def test_what_contradicts_itself_or_is_no_quantity_names_its_option(simulate, words, said):
    code, _, err = simulate("replay", OWN / "tiny-ddp-2", *words)
    assert (code, err.splitlines()[0]) == (3, f"error: {said}")


def test_a_straggler_may_be_slow_and_late(simulate):
    assert simulate("replay", OWN / "tiny-ddp-2", "--add-straggler", "0:1.5", "--add-straggler", "0:2ms")[0] == 0


@pytest.mark.parametrize("factor", ["0", "-1", "inf", "nan"])
def test_a_straggler_takes_some_times_as_long(simulate, factor):
    code, _, err = simulate("replay", OWN / "tiny-ddp-2", "--add-straggler", f"0:{factor}")
    assert (code, f"--add-straggler 0:{factor}" in err) == (3, True)


@pytest.mark.parametrize(
    ("trace", "options", "words"),
    [
        (
            OWN / "tiny-ddp-2",
            ("--add-straggler", "1:10ms"),
            ("Where a step goes", "Critical path", "Every step of every rank"),
        ),
        (OWN / "tiny-ddp-2", ("--set", "cp=2"), ("What changes in the plan", "1 -&gt; 2", "the same by the models")),
        pytest.param(SHARED / "zeus-perseus", (), ("Iterations", "a message takes"), marks=needs_shared),
    ],
)
def test_a_replay_has_a_page(simulate, tmp_path, trace, options, words):
    """It says what the terminal says, holds the whole answer, and has the timeline of the replay."""
    page = tmp_path / "page.html"
    code, out, err = simulate("replay", trace, *options, "--report", page, "--json")
    html, document = page.read_text(), json.loads(out)
    assert (code, f"wrote {page}" in err) == (0, True)
    for word in (
        *words,
        "replayed iteration",
        format_time(document["iteration_time_s"]),
        *map(escape, document["notes"]),
    ):
        assert word in html
    assert json.loads(html.split('id="answer">')[1].split("</script>")[0].replace("<\\/", "</")) == document
    assert 'data-streams="timeline"' in html
    assert simulate("replay", trace, "--report", tmp_path / "no" / "page.html")[0] == 3
