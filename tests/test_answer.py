"""The documented answer is what its types say, and prints in ten lines."""

import json

import msgspec
import pytest

from simulator.answer import Answer, figures_of
from simulator.explore.full_answer import Document, Scaling, document
from simulator.explore.trials import explain


def fits(data, schema):
    """Whether plain data is exactly what a type says: nothing missing, nothing unknown, nothing of another type."""
    return msgspec.to_builtins(msgspec.convert(data, schema, strict=False)) == data


@pytest.mark.parametrize("which", ["small", "piped", "large"])
def test_an_answer_has_exactly_the_documented_keys(request, which):
    result = request.getfixturevalue(which)
    data = json.loads(json.dumps(result.answer))
    assert fits(data, Answer)
    assert sum(value for key, value in data["memory"].items() if key in PEAK_PARTS) == data["memory"]["peak_bytes"]


#: categories of the memory verdict, as the page on memory lists them
PEAK_PARTS = (
    "parameters_bytes", "gradients_bytes", "optimizer_bytes", "activations_bytes", "transient_bytes", "buffers_bytes",
    "context_bytes", "communicators_bytes", "fragmentation_bytes",
)  # fmt: skip


def test_a_check_of_the_documented_keys_notices_one_too_many_and_one_too_few(small):
    assert not fits({**small.answer, "unknown": 1}, Answer)
    with pytest.raises(msgspec.ValidationError, match="iteration_time_s"):
        fits({key: value for key, value in small.answer.items() if key != "iteration_time_s"}, Answer)


def test_explanations_and_scaling_have_exactly_the_documented_keys(small):
    found = explain(small)
    assert fits(json.loads(json.dumps(document([small], found))), Document)
    assert fits(json.loads(json.dumps(document([small, small], found))), Scaling)


def test_figures_are_those_of_the_answer(small):
    figures = figures_of(small.answer)
    assert figures["iteration_time_s"] == small.answer["iteration_time_s"] == small.timeline.makespan_ps / 1e12
    assert figures["peak_bytes"] == small.memory.peak_bytes


def test_a_result_prints_in_ten_lines(large):
    lines = repr(large).splitlines()
    assert len(lines) == 10
    assert max(map(len, lines)) <= 200
    assert large.scenario.model in lines[0]


def test_a_notebook_shows_the_same_lines(small):
    html = small._repr_html_()
    assert html.startswith("<table>")
    assert html.count("<tr>") == 9
    assert "&lt;" not in small.scenario.model
