"""The notebook runs from top to bottom, and the last line of each cell has something to show."""

import ast
import json
from pathlib import Path

import pytest

from simulator import ParallelPlan, Scenario, figures, simulate
from simulator.config import notebook_table
from simulator.report.answer_page import report

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))


def run_cell(source, names):
    """Run a cell as a notebook does: the value of its last expression is what it shows."""
    tree = ast.parse(source)
    assert isinstance(tree.body[-1], ast.Expr)
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(tree.body[-1].value), "cell", "eval"), names)


@pytest.mark.slow
def test_the_notebook_runs_and_every_cell_shows_something(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, shown = {}, []
    for cell in NOTEBOOK["cells"]:
        if cell["cell_type"] == "code":
            assert not cell["outputs"]
            shown.append(run_cell("".join(cell["source"]), names))
    rich = [value for value in shown if hasattr(value, "_repr_html_") or hasattr(value, "_repr_mimebundle_")]
    assert len(rich) >= 6 and all(value is not None for value in shown)
    for value in rich:
        html = value._repr_html_()
        assert html and "<" in html
    assert (tmp_path / "gpt2-large.html").stat().st_size > 100_000


def test_objects_show_themselves_in_a_line_and_a_table():
    result = simulate(Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(gpus=4, micro_batch=1)))
    text = repr(result.timeline)
    assert "\n" not in text and "which stand for 4" in text
    assert "compute" in result.timeline._repr_html_()


def test_figures_of_a_page_are_its_charts():
    result = simulate(Scenario(topology="bigred200", model="gpt2", plan=ParallelPlan(gpus=4, micro_batch=1)))
    page = report([result])
    made = figures(page)
    assert set(made) == set(page.charts) and made["breakdown"].layout.title.text == page.charts["breakdown"].title
    assert set(figures(result)) == set(made)


def test_text_of_a_table_is_escaped():
    assert "<b>" not in notebook_table("<b>", [("<b>", "<b>")], ("<b>", "<b>"))
