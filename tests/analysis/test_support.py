"""One word on each answer: counted by hand from a small table, and the same in text, JSON and on the page of the matrix."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.analysis.confidence import Features, Residual, ResidualTable, shipped_table
from simulator.analysis.support import ENOUGH, cell_of, support_of
from simulator.answer import describe_support
from simulator.plan import ParallelPlan
from simulator.scenario import Scenario
from simulator.simulation import simulate
from simulator.topology.device_file import load_device

HERE = Features(
    kind="data", device="d", generation="hopper", kernels="k", bits=16, gpus=16, experts=False, family="llama"
)


def table(*rows):
    return ResidualTable(rows=tuple(Residual(features=f, source="s", log_ratio=math.log(r)) for f, r in rows))


def test_three_runs_of_the_same_cell_validate_up_to_twice_the_gpus():
    # measured over predicted 2, 1 and 0.5: predicted over measured - 1 is -0.5, 0 and 1
    known = table((HERE, 2.0), (replace(HERE, gpus=64), 1.0), (replace(HERE, kernels="other"), 0.5))
    found = support_of(HERE, known)
    assert (found["word"], found["n_rows"], found["error"]) == ("validated", 3, pytest.approx(0.5))
    assert support_of(replace(HERE, gpus=128), known)["word"] == "validated"
    beyond = support_of(replace(HERE, gpus=256), known)
    assert beyond["word"] == "extrapolated" and "on 16 to 64 GPUs" in beyond["basis"]


@pytest.mark.parametrize("change", [{"family": "gpt"}, {"device": "e"}, {"bits": 8}, {"kind": "pipeline"}])
def test_what_differs_in_one_thing_is_extrapolated_from_what_is_there(change):
    known = table(*[(HERE, 1.1)] * 3)
    found = support_of(replace(HERE, **change), known)
    assert (found["word"], found["n_rows"], found["error"]) == ("extrapolated", 0, None)
    assert "3 data-parallel runs of llama models on d on 16 GPUs" in found["basis"]


def test_without_any_run():
    assert describe_support(support_of(HERE, table())) == "extrapolated without any measured runs to compare with"


def test_every_shipped_residual_names_its_family():
    assert {row.features.family for row in shipped_table().rows} >= {"llama", "gpt", "mpt", "bert", "mixture"}
    for row in shipped_table().rows:
        assert (row.features.family == "mixture") == row.features.experts


def test_an_answer_and_the_matrix_say_the_same():
    page = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "generate.py"))
    plan = ParallelPlan(gpus=64, tp=8, pp=4, micro_batch=1, global_batch=64, precision="bf16", framework="megatron")
    answer = simulate(Scenario(topology="dgx-a100-80g", model="gpt-1.3b", plan=plan)).answer
    cell = page["_support_cell"]("gpt", "a100-sxm4-80g", 16, "pipeline")
    rows = [row for row in shipped_table().rows if cell_of(row.features) == ("gpt", "a100-sxm4-80g", 16, "pipeline")]
    assert len(rows) >= ENOUGH and f"{len(rows)} rows" in cell and cell.startswith("**validated**")
    assert (answer["support"]["word"], answer["support"]["n_rows"]) == ("validated", len(rows))
    assert page["_support_cell"]("gpt", "a100-sxm4-80g", 8, "pipeline").startswith("refused")
    assert page["_support_cell"]("gpt", "h100-sxm5-80g", 4, "pipeline").startswith("refused")
    assert not load_device("a100-sxm4-80g").computes("fp8")


def test_modules_of_ones_own_are_not_passed_off_as_a_family_of_models():
    known = table(*[(HERE, 1.1)] * 3)
    basis = support_of(replace(HERE, family="module"), known)["basis"]
    assert "of llama models" in basis and basis.endswith("no module of one's own was measured")
    assert "module" not in support_of(replace(HERE, family="gpt"), known)["basis"]
