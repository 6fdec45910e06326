"""Calibrating, running and judging on GPUs, with a stand-in for the GPUs: times of the shipped device, slowed down."""

import json

import pytest

from simulator.errors import ThresholdError
from simulator.interop.format import ImportReport
from simulator.interop.machines.cluster import ImportedCluster
from validation.jobs.gpus import CALIBRATED, JUDGED, check_gpus, compare_gpus, document, print_gpus
from validation.tables.predicting import predict_rows
from validation.tables.reader import Row
from validation.tables.writing import make_row

HIDDEN = {"gpt2": 768, "gpt2-medium": 1024, "gpt2-large": 1280}
SLOWER = 1.2


def _predicted(kind, row, topology):
    row = {**row, "device" if kind == "kernels" else "topology": topology}
    cells = {name: str(value) for name, value in row.items()}
    cells["value" if kind == "training" else "time_us"] = "1"
    (outcome,) = predict_rows([Row(kind=kind, file="f", line=2, cells=cells)])
    assert outcome.predicted, outcome.reason
    return outcome.predicted


class Machine:
    """Answers jobs with the times of an H200 board on which everything takes longer."""

    def __init__(self):
        self.asked = []

    def __call__(self, settings, n_gpus):
        self.asked.append((settings.job, settings.model, n_gpus))
        return getattr(self, f"_{settings.job}")(settings, n_gpus)

    def _kernels(self, settings, n_gpus):
        h, m = HIDDEN[settings.model], 4096
        rows = []
        for n, k in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h), (50257, h)):
            for kernel_pass in ("forward", "dgrad", "wgrad"):
                columns = {"op": "gemm", "pass": kernel_pass, "m": m, "n": n, "k": k, "dtype": "bf16"}
                rows.append({**columns, "notes": "L2 flushed"})
        for kernel_pass in ("forward", "backward"):
            columns = {"op": "gelu", "pass": kernel_pass, "m": m, "n": 4 * h, "dtype": "bf16", "notes": "L2 flushed"}
            rows.append(columns)
        times = [SLOWER * _predicted("kernels", row, "h200-sxm") for row in rows]
        return [
            make_row("kernels", {**row, "device": settings.topology, "time_us": t, "source": "own measurement"})
            for row, t in zip(rows, times, strict=True)
        ]

    def _collectives(self, settings, n_gpus):
        rows = [
            {"collective": name, "gpus": n_gpus, "nodes": 1, "gpus_per_node": n_gpus, "size_bytes": size}
            for name in settings.collectives
            for size in settings.sizes_bytes
        ]
        times = [SLOWER * _predicted("collectives", row, "hgx-h200") for row in rows]
        return [
            make_row("collectives", {**row, "topology": settings.topology, "time_us": t, "source": "own measurement"})
            for row, t in zip(rows, times, strict=True)
        ]

    def _single(self, settings, n_gpus):
        columns = {
            "architecture": "gpt", "model": settings.model, "layers": 24, "hidden": 1024, "heads": 16, "kv_heads": 16,
            "ffn": 4096, "vocab": 50257, "seq_len": 1024, "gpus": n_gpus, "precision": "bf16", "framework": "torch eager",
            "dp": n_gpus, "tp": 1, "pp": 1, "sharding": "none", "micro_batch": 4, "global_batch": 4 * n_gpus,
            "recompute": "none", "flash_attention": 1,
        }  # fmt: skip
        rows = []
        for metric in ("iteration_time_s", "forward_s", "backward_s", "optimizer_s"):
            seconds = SLOWER * _predicted("training", {**columns, "metric": metric}, "hgx-h200")
            row = {**columns, "topology": settings.topology, "metric": metric, "value": seconds}
            rows.append(make_row("training", {**row, "source": "own measurement"}))
        return rows

    _ddp = _single


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    source = "a test"
    node = {
        "device": "h200-sxm",
        "gpus": 8,
        "source": source,
        "nvlink": {
            "kind": "switch",
            "links_per_gpu": 18,
            "bandwidth_per_link": "25 GB/s",
            "switches": 4,
            "source": source,
        },
        "pcie": {"generation": 5, "switches": 4, "source": source},
        "cpu": {"sockets": 2, "source": source},
    }
    cluster = ImportedCluster(
        data={"version": 1, "name": "this-node", "nodes": 1, "node": node},
        report=ImportReport(assumed=("CPU vendor",)),
        kind="nvml",
        file="this machine",
    )
    machine = Machine()
    return compare_gpus(tmp_path_factory.mktemp("here"), 8, cluster, run=machine), machine


def test_the_judged_model_takes_no_part_in_the_calibration(compared):
    _, machine = compared
    assert machine.asked[:2] == [("kernels", name, 1) for name in CALIBRATED]
    assert JUDGED not in CALIBRATED
    assert ("ddp", JUDGED, 8) in machine.asked


def test_slower_kernels_and_collectives_are_learnt(compared):
    one, _ = compared
    assert all(o.predicted for o in one.found.outcomes), {o.reason for o in one.found.outcomes}
    gemms = [abs(o.relative_error) for o in one.found.outcomes if o.row.text("op") == "gemm"]
    assert sorted(gemms)[len(gemms) // 2] < 0.05
    large = [
        o.relative_error
        for o in one.found.outcomes
        if o.row.kind == "collectives" and o.row.integer("size_bytes") > 2**24
    ]
    assert large
    assert all(abs(error) < SLOWER - 1 for error in large)


def test_causes_are_the_phases_largest_first(compared):
    one, _ = compared
    causes = one.causes()
    assert {name for name, _ in causes} == {
        f"{n}, {p}" for n in ("1 GPU", "8 GPUs") for p in ("forward", "backward", "optimizer")
    }
    assert [abs(seconds) for _, seconds in causes] == sorted((abs(seconds) for _, seconds in causes), reverse=True)


def test_it_is_printed_and_written_as_json(compared, capsys):
    one, _ = compared
    print_gpus(one)
    printed = capsys.readouterr().out
    assert "assumed: CPU vendor" in printed
    assert "where the difference of the iterations comes from" in printed
    found = json.loads(json.dumps(document(one), allow_nan=False))
    assert len(found["rows"]) == len(one.found.outcomes)
    assert found["notes"][0] == "CPU vendor"


def test_a_missed_threshold_is_said(compared):
    one, _ = compared
    check_gpus(one, 1.0)
    with pytest.raises(ThresholdError, match="8 GPUs"):
        check_gpus(one, 1e-6)
