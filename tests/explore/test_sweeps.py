"""Sweeps: axes, the store, resuming, tables."""

import csv
import gc
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path

import joblib
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.config import cell
from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.explore.named_settings import (
    Sweep,
    canonical_name,
    convert,
    merge_sweeps,
    parse_axes,
    parse_axis,
    read_sweep,
    scenario_of,
)
from simulator.explore.run.run_request import RunRequest
from simulator.explore.sweeps import column_kinds, columns_of, run_sweep, stream_sweep, usable, write_rows
from simulator.explore.work import evaluation
from simulator.explore.work.evaluation import Store, evaluate, store_key
from simulator.explore.work.workers import Pool, check_scheduler
from simulator.report.sweep_page import check_output, write_sweep
from simulator.topology import load_topology

BASE = {"topology": "bigred200", "model": "gpt2", "micro_batch": 2, "framework": "deepspeed"}
AXES = {"gpus": (1, 2, 4), "sharding": ("none", "zero1", "zero3")}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


class StoppedError(Exception):
    pass


@contextmanager
def stopped_after(n):
    """Simulate so many scenarios, and end at the next."""
    count = itertools.count()

    def work(scenario):
        if next(count) == n:
            raise StoppedError
        return evaluate(scenario)

    with pytest.MonkeyPatch.context() as patched, pytest.raises(StoppedError):
        patched.setattr(evaluation, "evaluate", work)
        yield


# -- settings and axes -------------------------------------------------------------------------------------------


def test_names_and_values_of_settings():
    assert parse_axis("gpus=1,2,4") == ("gpus", (1, 2, 4))
    assert parse_axis("zero=0,1,2,3") == ("sharding", ("none", "zero1", "zero2", "zero3"))
    assert parse_axis("nccl-algo=ring,tree") == ("algorithm", ("ring", "tree"))
    assert parse_axis("overlap=true,false,none") == ("overlap", (True, False, None))
    assert parse_axis("node.nics.bandwidth=100 Gb/s,200 Gb/s")[1] == ("100 Gb/s", "200 Gb/s")
    assert parse_axis("gpus=2,2,1")[1] == (2, 1)
    assert canonical_name("plan.virtual-pp") == "virtual_pp"


@pytest.mark.parametrize(
    "text",
    ["gpus", "gpus=", "gpus=two", "gpsu=1", "zero=4", "recompute=some", "unfold=maybe", "gpus=0", "moe-imbalance=nan"],
)
def test_axes_that_mean_nothing(text):
    with pytest.raises(ConfigError):
        parse_axis(text)


def test_the_same_axis_twice_is_an_error():
    assert parse_axes(["gpus=1,2", "tp=1"]) == {"gpus": (1, 2), "tp": (1,)}
    with pytest.raises(ConfigError, match="--axis sharding is given twice"):
        parse_axes(["zero=1", "sharding=none"])


def test_near_misses_are_suggested():
    with pytest.raises(ConfigError, match="Did you mean 'micro_batch'"):
        canonical_name("micro_bach")
    with pytest.raises(ConfigError, match="Did you mean 'zero1'"):
        convert("sharding", "zeroo1")
    assert convert("sharding", "zero-1") == "zero1"


def test_settings_go_where_they_belong():
    scenario = scenario_of({**BASE, "gpus": 4, "node.nics.count": 2, "seed": 7, "protocol": "ll"})
    assert (scenario.plan.gpus, scenario.plan.micro_batch, scenario.seed, scenario.protocol) == (4, 2, 7, "ll")
    assert scenario.overrides == (("node.nics.count", "2"),)
    with pytest.raises(ConfigError, match="no topology"):
        scenario_of({"model": "gpt2"})


def test_a_sweep_file(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("base: {model: gpt2, micro-batch: 2}\naxes:\n  gpus: [1, 2]\n  zero: [none, 3]\n", encoding="utf-8")
    sweep = read_sweep(file)
    assert sweep == Sweep(
        base={"model": "gpt2", "micro_batch": 2}, axes={"gpus": (1, 2), "sharding": ("none", "zero3")}
    )
    above = Sweep(base={"gpus": 8}, axes={"micro_batch": (1, 4)})
    merged = merge_sweeps(sweep, above)
    assert merged.base == {"model": "gpt2", "gpus": 8}
    assert merged.axes == {"sharding": ("none", "zero3"), "micro_batch": (1, 4)}


def test_faults_of_a_sweep_file_have_a_line(tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text("axes:\n  gpus: [1, two]\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"sweep.yaml:2:\d+.*gpus=two: not a whole number"):
        read_sweep(file)
    file.write_text("axes: {gpus: []}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"axes\.gpus: no values"):
        read_sweep(file)
    file.write_text("axis: {gpus: [1]}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="'base' and 'axes'"):
        read_sweep(file)


# -- running -----------------------------------------------------------------------------------------------------


def test_every_combination_has_a_row_with_the_simulators_answer(store):
    result = run_sweep(Sweep(base=BASE, axes=AXES), store, n_jobs=1)
    assert [(row["gpus"], row["sharding"]) for row in result.rows] == list(itertools.product(*AXES.values()))
    assert (result.n_computed, result.n_stored, result.n_failed) == (9, 0, 0)
    row = result.rows[4]
    answer = evaluate(scenario_of({**BASE, "gpus": 2, "sharding": "zero1"}))["answer"]
    assert row["iteration_time_s"] == answer["iteration_time_s"]
    assert row["compute_s"] == answer["breakdown"]["compute_s"]
    assert row["peak_bytes"] == answer["memory"]["peak_bytes"]


@settings(max_examples=8)
@given(stop=st.integers(0, 8))
def test_a_resumed_sweep_equals_an_uninterrupted_one(tmp_path_factory, stop):
    whole = run_sweep(Sweep(base=BASE, axes=AXES), Store(tmp_path_factory.mktemp("whole")), n_jobs=1)
    store = Store(tmp_path_factory.mktemp("parts"))
    with stopped_after(stop):
        run_sweep(Sweep(base=BASE, axes=AXES), store, n_jobs=1)
    assert len(store) == stop
    resumed = run_sweep(Sweep(base=BASE, axes=AXES), store, n_jobs=1)
    assert (resumed.n_stored, resumed.n_computed) == (stop, 9 - stop)
    assert resumed.rows == whole.rows


def read_parts(files):
    """Rows of CSV tables, with what they say of columns that all have."""
    return [row for file in files for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines())]


def test_a_streamed_sweep_has_the_rows_of_one_in_memory(tmp_path):
    """Whatever the size of its pieces: 9 rows in pieces of 4 are three files, of the same columns each."""
    sweep = Sweep(base=BASE, axes={"gpus": (1, 2, 3000), "sharding": AXES["sharding"]})
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "part-00007.csv").write_text("of a larger sweep")
    seen = []
    counts, files = stream_sweep(
        sweep, Store(tmp_path / "store"), tmp_path, ["csv"], n_jobs=1, n_together=4,
        observe=lambda **told: seen.append((told["n_done"] + told["n_stored"], told["n_total"])),
    )  # fmt: skip
    assert [file.name for file in files] == ["part-00000.csv", "part-00001.csv", "part-00002.csv"]
    assert sorted((tmp_path / "sweep").iterdir()) == files
    assert (counts.n_rows, counts.n_computed, counts.n_stored, counts.n_failed) == (9, 9, 0, 3)
    assert seen[0] == (0, 9) and seen[-1] == (9, 9)
    whole = run_sweep(sweep, n_jobs=1).rows
    rows = read_parts(files)
    assert len({tuple(row) for row in rows}) == 1
    for streamed, row in zip(rows, whole, strict=True):
        assert {name: streamed[name] for name in row} == {
            name: str(cell(value) or "") for name, value in row.items()
        } | {name: str(value) for name, value in row.items() if isinstance(value, int | float)}


@pytest.mark.parametrize("stop", [0, 3, 8])
def test_a_streamed_sweep_that_was_ended_writes_the_same_files(tmp_path, stop):
    formats = ["csv", "jsonl", *(["parquet"] if importlib.util.find_spec("pyarrow") else [])]
    sweep = Sweep(base=BASE, axes=AXES)

    def run(name):
        store = Store(tmp_path / name / "store")
        counts, files = stream_sweep(sweep, store, tmp_path / name, formats, n_jobs=1, n_together=2)
        return counts, {file.name: file.read_bytes() for file in files}

    _, whole = run("whole")
    with stopped_after(stop):
        run("parts")
    assert len(list((tmp_path / "parts" / "sweep").glob("*.csv"))) == stop // 2, "pieces that were done are there"
    counts, resumed = run("parts")
    assert (counts.n_stored, counts.n_computed) == (stop, 9 - stop)
    assert resumed == whole


@pytest.mark.parametrize("margin", [0.0, 0.999])
def test_rows_are_marked_by_the_margin_that_is_asked_for(tmp_path, margin):
    """GPT-2 takes a tenth of the memory: all rows leave more than nothing free, and less than 99.9 %."""
    sweep, store = Sweep(base={**BASE, "gpus": 1}, axes={"micro_batch": (1, 2)}), Store(tmp_path)
    rows = run_sweep(sweep, store, n_jobs=1, margin=margin).rows
    _, (file,) = stream_sweep(sweep, store, tmp_path, ["jsonl"], n_jobs=1, margin=margin)
    rows += [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [row["is_tight"] for row in rows] == [margin > 0.5] * 4


def test_as_many_work_as_there_are_cores_unless_it_is_said():
    with Pool() as pool, Pool(n_jobs=3) as three:
        assert (pool.n_workers, three.n_workers) == (joblib.cpu_count(), 3)


def test_columns_of_a_streamed_sweep_are_those_of_any_row():
    """With the kinds of their values, so that all files of a sweep are one table: from the schema of rows, not from rows."""
    request = RunRequest(iterations=10, tokens=1e6)
    axes = {"gpus": (2,), "overlap": (True, False), "seed": (1, 2.5), "topology": ("bigred200", None)}
    kinds = column_kinds(axes)
    assert (kinds["gpus"], kinds["overlap"], kinds["seed"], kinds["topology"]) == (int, bool, float, str)
    row = run_sweep(Sweep(base=BASE, axes={"gpus": (2,)}), request=request, n_jobs=1).rows[0]
    assert row["days"] > 0
    for name, value in row.items():
        assert value is None or isinstance(value, kinds[name]) or (kinds[name] is float and value == int(value)), name


def test_parts_of_a_table_have_the_same_types(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    kinds = {"a": float, "b": str, "c": int}
    files = [
        write_rows(rows, tmp_path, f"part-{n}", ["parquet"], kinds)[0]
        for n, rows in enumerate([[{"a": 1, "b": "x", "c": 3}], [{"a": None, "b": 4}]])
    ]
    one, other = (parquet.read_table(file) for file in files)
    assert one.schema == other.schema
    assert one.to_pylist() + other.to_pylist() == [{"a": 1.0, "b": "x", "c": 3}, {"a": None, "b": "4", "c": None}]


def test_the_order_of_axes_does_not_matter(store):
    def content(rows):
        return sorted(json.dumps(row, sort_keys=True) for row in rows)

    one = run_sweep(Sweep(base=BASE, axes=AXES), store, n_jobs=1)
    other = run_sweep(Sweep(base=BASE, axes=dict(reversed(AXES.items()))), store, n_jobs=1)
    assert other.n_computed == 0
    assert content(one.rows) == content(other.rows)


def test_equal_scenarios_are_simulated_once(store):
    sweep = Sweep(base={**BASE, "gpus": 2}, axes={"global_batch": (4, 4), "sharding": ("zero1", "zero1")})
    assert run_sweep(sweep, store, n_jobs=1).n_computed == 1


def test_failures_are_rows_with_a_reason(store):
    sweep = Sweep(base={**BASE, "gpus": 4}, axes={"tp": (1, 3), "model": ("gpt2", "gpt-175x", "gpt-18.4b")})
    rows = run_sweep(sweep, store, n_jobs=1).rows
    assert [row["status"] for row in rows] == ["ok", "invalid", "does not fit", "infeasible", "invalid", "infeasible"]
    assert "gpt-175x" in rows[1]["reason"]
    assert "too much" in rows[2]["reason"] and rows[2]["peak_bytes"] > rows[2]["capacity_bytes"]
    assert "multiple of tp" in rows[3]["reason"]


def test_a_fault_inside_one_scenario_does_not_end_the_sweep_and_is_tried_again(store, monkeypatch):
    def broken(scenario):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr("simulator.explore.work.evaluation.simulate", broken)
    sweep = Sweep(base=BASE, axes={"gpus": (1, 2)})
    rows = run_sweep(sweep, store, n_jobs=1).rows
    assert [row["status"] for row in rows] == ["error", "error"]
    assert rows[0]["reason"] == "RuntimeError: unforeseen"
    monkeypatch.undo()
    assert run_sweep(sweep, store, n_jobs=1).n_failed == 0


@pytest.mark.parametrize("model", ["gpt2", "no such model"])
def test_no_garbage_is_collected_before_a_run_has_been_let_go(monkeypatch, model):
    seen = []

    def noted(function):
        return lambda *args: (seen.append(gc.isenabled()), function(*args))[1]

    for name in ("to_json", "failure"):
        monkeypatch.setattr(evaluation, name, noted(getattr(evaluation, name)))
    record = evaluate(scenario_of({**BASE, "model": model, "gpus": 1}))
    assert record["status"] == ("ok" if model == "gpt2" else "invalid")
    assert seen == [False]
    assert gc.isenabled()


def test_nothing_at_all_that_runs_is_an_error(store):
    result = run_sweep(Sweep(base=BASE, axes={"tp": (3, 5), "gpus": (4,)}), store, n_jobs=1)
    with pytest.raises(InfeasiblePlanError, match="none of 2 scenarios"):
        usable(result)


def test_several_processes_give_the_same_rows(tmp_path):
    sweep = Sweep(base=BASE, axes={"gpus": (1, 2, 4)})
    one = run_sweep(sweep, Store(tmp_path / "1"), n_jobs=1)
    two = run_sweep(sweep, Store(tmp_path / "2"), n_jobs=2)
    assert one.rows == two.rows


def test_an_observer_sees_every_answer(store):
    seen = []
    sweep = Sweep(base=BASE, axes={"gpus": (1, 2, 3000)})
    run_sweep(sweep, store, n_jobs=1, observe=lambda **counts: seen.append(counts))
    looked_up, answered = seen[:3], seen[3:]
    assert [counts["n_done"] for counts in looked_up] == [0, 0, 0]
    assert [counts["n_done"] for counts in answered] == [0, 1, 2, 3]
    assert seen[-1] == {"n_done": 3, "n_failed": 1, "n_stored": 0, "n_total": 3}


# -- files of training frameworks ---------------------------------------------------------------------------------


@pytest.fixture
def ds_config(tmp_path):
    file = tmp_path / "ds_config.json"
    settings = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": True}}
    file.write_text(json.dumps({**settings, "zero_optimization": {"stage": 1}}), encoding="utf-8")
    return file


def test_deepspeeds_batch_follows_the_gpus_of_each_scenario(ds_config, store):
    base = {"topology": "bigred200", "model": "gpt2", "deepspeed": str(ds_config)}
    rows = run_sweep(Sweep(base=base, axes={"gpus": (1, 4), "sharding": ("zero1", "zero3")}), store, n_jobs=1).rows
    assert [(row["micro_batch"], row["global_batch"], row["sharding"]) for row in rows] == [
        (2, 4, "zero1"), (2, 4, "zero3"), (2, 16, "zero1"), (2, 16, "zero3"),
    ]  # fmt: skip
    whole = scenario_of(base).plan
    assert (whole.gpus, whole.global_batch) == (None, 4 * load_topology("bigred200").n_gpus)


def test_files_can_be_an_axis(ds_config, tmp_path, store):
    other = tmp_path / "plan.yaml"
    other.write_text("micro-batch: 4\nsharding: zero3\nframework: deepspeed\n", encoding="utf-8")
    key, files = parse_axis(f"plan={ds_config},{other},{tmp_path / 'none.json'}")
    sweep = Sweep(base={"topology": "bigred200", "model": "gpt2", "gpus": 4}, axes={key: files})
    rows = run_sweep(sweep, store, n_jobs=1).rows
    assert [row["status"] for row in rows] == ["ok", "ok", "invalid"]
    assert [row["micro_batch"] for row in rows[:2]] == [2, 4]


def test_a_launch_script_is_model_and_plan(tmp_path):
    script = tmp_path / "train.sh"
    script.write_text(
        "torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 16 --tensor-model-parallel-size 2 --bf16\n",
        encoding="utf-8",
    )
    scenario = scenario_of({"topology": "bigred200", "megatron": str(script), "gpus": 4, "micro_batch": 4})
    assert scenario.model == str(script)
    assert (scenario.plan.tp, scenario.plan.micro_batch, scenario.plan.global_batch) == (2, 4, 16)


# -- the store ---------------------------------------------------------------------------------------------------


def test_a_changed_cluster_file_gives_new_keys(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("extends: bigred200\nnodes: 4\n", encoding="utf-8")
    scenario = scenario_of({**BASE, "topology": str(file), "gpus": 2})
    before = store_key(scenario)
    assert before == store_key(scenario)
    file.write_text("extends: bigred200\nnodes: 5\n", encoding="utf-8")
    os.utime(file, ns=(1, 1))
    assert store_key(scenario) != before
    assert store_key(scenario_of({**BASE, "topology": str(tmp_path / "none.yaml")})) is None


def test_a_broken_record_counts_as_missing(store):
    store.put("a", {"status": "ok"})
    (store.folder / "b.json").write_text('{"status": "o', encoding="utf-8")
    assert store.get("a") == {"status": "ok"}
    written = (store.folder / "a.json").read_text(encoding="utf-8")
    # JSON of no sweep, an answer with another digit, and the answer of another scenario
    others = ("{}", "[]", '{"status": "ok"}', '{"record": {"status": "ok"}}', written.replace("ok", "invalid"), written)
    for text in others:
        (store.folder / "c.json").write_text(text, encoding="utf-8")
        assert store.get("c") is None
    assert store.get("b") is None
    assert store.get("d") is None


# -- tables ------------------------------------------------------------------------------------------------------


def test_tables_hold_the_rows(tmp_path):
    sweep = Sweep(base=BASE, axes={"gpus": (1, 2, 3000)})
    result = run_sweep(sweep, Store(tmp_path / "store"), n_jobs=1)
    files = write_sweep(result, tmp_path, "csv,jsonl")
    assert [file.name for file in files] == ["sweep.csv", "sweep.jsonl", "sweep.html"]
    assert [json.loads(line) for line in files[1].read_text(encoding="utf-8").splitlines()] == result.rows
    with files[0].open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["iteration_time_s"]) for row in rows[:2]] == [row["iteration_time_s"] for row in result.rows[:2]]
    assert rows[2]["iteration_time_s"] == "" and "3000 GPUs" in rows[2]["reason"]
    assert columns_of(result.rows)[:3] == ["gpus", "status", "reason"]


def test_parquet_holds_the_rows(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"a": 1, "b": "x", "c": True}, {"a": 2.5, "c": "maybe"}]
    (file,) = write_rows(rows, tmp_path, "t", ["parquet"])
    assert parquet.read_table(file).to_pylist() == [
        {"a": 1.0, "b": "x", "c": "True"},
        {"a": 2.5, "b": None, "c": "maybe"},
    ]


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pyarrow"):
        check_output("parquet", None)
    with pytest.raises(ConfigError, match="kaleido"):
        check_output("csv", "out.svg")
    with pytest.raises(ConfigError, match="distributed"):
        Pool(scheduler="tcp://127.0.0.1:1").__enter__()
    with pytest.raises(ConfigError, match="no format"):
        write_rows([], tmp_path, "t", ["xlsx"])
    with pytest.raises(ConfigError, match="unknown format"):
        check_output("csv", "out.xlsx")
    with pytest.raises(ConfigError, match="no folder"):
        check_output("csv", str(tmp_path / "none" / "out.html"))
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="not a folder"):
        check_output("csv", None, str(tmp_path / "file"))
    (tmp_path / "sweep.csv").mkdir()
    with pytest.raises(ConfigError, match=r"sweep\.csv: is a folder"):
        check_output("csv", None, str(tmp_path), name="sweep")
    with pytest.raises(ConfigError, match="neither an address nor a file"):
        check_scheduler("tcp:localhost")
    with pytest.raises(ConfigError, match="nothing to sweep"):
        run_sweep(Sweep(base=BASE), Store(tmp_path / "store"))


def test_topologies_can_be_sent_to_other_processes():
    with Pool(n_jobs=1) as pool:
        assert list(pool.run(len, [[1], [1, 2]])) == [(0, 1), (1, 2)]
    assert load_topology("bigred200", 4).n_gpus == 4


# -- the command -------------------------------------------------------------------------------------------------


def simulate(*arguments, **options):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(
        [sys.executable, "-m", "simulator.cli.main", *arguments],
        env=environment, capture_output=True, text=True, check=False, **options,
    )  # fmt: skip


def test_the_command_resumes(tmp_path):
    arguments = ["sweep", "--topology", "bigred200", "--model", "gpt2", "--micro-batch", "2", "--gpus", "1,2",
                 "--axis", "zero=1,3", "--out", str(tmp_path), "--jobs", "1", "--json"]  # fmt: skip
    first, second = simulate(*arguments), simulate(*arguments)
    assert first.returncode == 0, first.stderr
    one, two = json.loads(first.stdout), json.loads(second.stdout)
    assert (one["n_computed"], two["n_computed"], two["n_stored"]) == (4, 0, 4)
    assert one["rows"] == two["rows"]
    assert "4/4 scenarios" in first.stderr


def test_rows_say_what_the_search_would_refuse(tmp_path):
    """One set of rules: ZeRO-2 is not Megatron's, with or without a pipeline, and can be simulated all the same."""
    base = {
        "topology": "bigred200",
        "model": "gpt2",
        "gpus": 4,
        "micro_batch": 1,
        "global_batch": 8,
        "sequence_length": 256,
    }
    axes = {"sharding": ("zero1", "zero2"), "pp": (1, 2)}
    rows = run_sweep(Sweep(base=base, axes=axes), Store(tmp_path), n_jobs=1).rows
    assert [row["remark"] for row in rows] == ["", "", *["megatron does not run zero2"] * 2]
    assert {row["status"] for row in rows} == {"ok"}


@pytest.mark.parametrize(
    ("first_s", "other_s", "n_items", "n_here"),
    [
        # the first item loads what all share: 0.05 s for each of the others are not worth the 2 s that workers take to start
        (0.6, 0.05, 40, 40),
        # 0.5 s for each of 40 are: known after four, of which the first does not count
        (0.6, 0.5, 40, 4),
        # an item that takes longer than starting workers tells at once
        (3.0, 3.0, 10, 1),
    ],
)
def test_work_goes_to_workers_where_it_is_worth_their_start(monkeypatch, first_s, other_s, n_items, n_here):
    now_s, done_here = [0.0], []

    def work(item):
        now_s[0] += other_s if done_here else first_s
        done_here.append(item)
        return item

    class Workers:
        def __init__(self, **_options):
            pass

        def __call__(self, tasks):
            return [(arguments[1], arguments[2]) for _, arguments, _ in tasks]

    monkeypatch.setattr("simulator.explore.work.workers.time.process_time", lambda: now_s[0])
    monkeypatch.setattr("joblib.Parallel", Workers)
    with Pool(n_jobs=2) as pool:
        assert sorted(pool.run(work, list(range(n_items)))) == [(item, item) for item in range(n_items)]
    assert len(done_here) == n_here


def test_workers_leave_the_filters_of_warnings_as_they_were():
    before = list(warnings.filters)
    with joblib.parallel_config(backend="threading"), Pool(n_jobs=2, at_once=True) as pool:
        assert sorted(pool.run(abs, [-3, -1])) == [(0, 3), (1, 1)]
    assert warnings.filters == before


def test_a_sweep_tells_how_far_it_is_while_clusters_are_opened_for_its_keys(tmp_path):
    """Each bandwidth is a cluster of its own; what is known from before counts while it is looked up."""
    sweep = Sweep(base={**BASE, "gpus": 1}, axes={"node.nics.bandwidth": ("100 Gb/s", "200 Gb/s", "400 Gb/s")})
    store, told = Store(tmp_path), []
    for _ in range(2):
        run_sweep(sweep, store, n_jobs=1, observe=lambda **counts: told.append((counts["n_done"], counts["n_stored"])))
    assert told[:3] == [(0, 0)] * 3 and (3, 0) in told
    assert told[-4:-1] == [(0, 0), (0, 1), (0, 2)] and told[-1] == (0, 3)


def _killed_while_it_works(folder, n_deaths):
    """Return a function whose process is killed by the item 3, so many times; sent by value, as it has no importable name."""

    def work(item):
        deaths = list(Path(folder).iterdir())
        if item == 3 and len(deaths) < n_deaths:
            Path(folder, str(len(deaths))).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 10 * item

    return work


def test_work_goes_on_where_a_worker_is_killed_from_outside(tmp_path):
    with Pool(n_jobs=2, at_once=True) as pool:
        answers = list(pool.run(_killed_while_it_works(tmp_path, n_deaths=1), list(range(12)), batch_size=1))
    assert sorted(answers) == [(item, 10 * item) for item in range(12)]  # each once


def test_workers_that_are_killed_again_and_again_end_the_work_with_a_way_out(tmp_path):
    with (
        Pool(n_jobs=2, at_once=True) as pool,
        pytest.raises(SimulatorError, match="killed 3 times from outside") as told,
    ):
        list(pool.run(_killed_while_it_works(tmp_path, n_deaths=99), list(range(12)), batch_size=1))
    assert "fewer --jobs" in told.value.hint
