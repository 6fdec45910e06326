"""The page says what the answer says, needs no other file, and escapes what it is given."""

import json
import re
from dataclasses import replace
from html import unescape

import pytest

from simulator.errors import ConfigError
from simulator.explore import full_answer as documents
from simulator.report import answer_page, answer_tables, charts
from simulator.report.charts import CONFIG, figure, library, write_images
from simulator.report.grid import Grid
from simulator.report.markup import boxes, table
from simulator.report.page import Report
from simulator.report.terminal import print_answer
from simulator.units import format_bytes, format_time

MAX_BYTES = 2_000_000


@pytest.fixture(scope="module")
def reports(small, piped):
    return {
        "small": answer_page.report([small]),
        "piped": answer_page.report([piped], given={"tp", "pp"}),
    }


def embedded(html, key):
    found = re.search(rf'<script type="application/json" id="{key}">(.*?)</script>', html, re.DOTALL)
    return json.loads(found[1])


def at(data, path):
    for part in path.split("."):
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def shown_numbers(html):
    """Return (key, exact value, shown text) of every number of the answer on the page."""
    pattern = r'<span class="n" data-key="([^"]+)" data-value="([^"]+)">([^<]+)</span>'
    return [(key, json.loads(value), unescape(text)) for key, value, text in re.findall(pattern, html)]


@pytest.mark.parametrize("which", ["small", "piped"])
def test_page_holds_the_answer_unchanged(reports, small, piped, which):
    shown = json.loads(json.dumps(documents.document([{"small": small, "piped": piped}[which]])))
    assert embedded(reports[which].html, "answer") == shown


@pytest.mark.parametrize("which", ["small", "piped"])
def test_every_number_shown_is_the_answers(reports, which):
    html = reports[which].html
    document = embedded(html, "answer")
    numbers = shown_numbers(html)
    assert {key for key, _, _ in numbers} >= {
        "iteration_time_s",
        "confidence.low_s",
        "mfu",
        "memory.peak_bytes",
        "communication.0.busbw_bytes_per_s",
    }
    for key, value, _ in numbers:
        assert at(document, key) == value, key


def test_texts_are_the_numbers_rounded(reports):
    html = reports["piped"].html
    document, texts = embedded(html, "answer"), {key: text for key, _, text in shown_numbers(html)}
    assert texts["iteration_time_s"] == format_time(document["iteration_time_s"])
    assert texts["memory.peak_bytes"] == format_bytes(document["memory"]["peak_bytes"])
    assert texts["mfu"] == f"{document['mfu']:.1%}"


def test_bars_add_up_to_the_iteration(reports):
    html = reports["piped"].html
    document, chart = embedded(html, "answer"), embedded(html, "charts")["breakdown"]
    bars = chart["traces"][0]
    visible = [x for x, hidden in zip(bars["x"], bars["marker"]["pattern"]["shape"], strict=True) if not hidden]
    size = {"s": 1.0, "ms": 1e-3, "us": 1e-6}[chart["layout"]["xaxis"]["title"]["text"].split(",")[0]]
    assert sum(visible) * size == pytest.approx(document["iteration_time_s"])


def test_memory_bars_add_up_to_the_peak(reports):
    html = reports["piped"].html
    memory, bars = embedded(html, "answer")["memory"], embedded(html, "charts")["memory"]["traces"][0]
    assert sum(bars["x"]) * 2**30 == pytest.approx(memory["peak_bytes"])


def test_page_names_no_other_host(reports):
    html = reports["piped"].html.replace(library(), "")
    assert not re.search(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//""", html)
    assert not re.search(r"url\((?!['\"]?data:)", html)
    assert CONFIG["showSendToCloud"] is False
    assert CONFIG["plotlyServerURL"] == ""
    assert embedded(html, "config") == CONFIG


def test_page_is_small_enough(reports, large):
    assert max(len(report.html.encode()) for report in reports.values()) < MAX_BYTES
    assert len(answer_page.report([large]).html.encode()) < MAX_BYTES


def test_plotly_accepts_every_chart(reports):
    for report in reports.values():
        for chart in report.charts.values():
            made = figure(chart)
            assert len(made.data) == len(chart.traces)
            assert chart.summary


def test_unknown_image_format_is_refused(reports, tmp_path):
    with pytest.raises(ConfigError, match="unknown format"):
        write_images({"memory": reports["small"].charts["memory"]}, tmp_path / "memory.bmp")
    with pytest.raises(ConfigError, match="unknown format"):
        reports["small"].save(tmp_path / "report.docx")


@pytest.mark.parametrize("ending, start", [("svg", b"<svg"), ("png", b"\x89PNG")])
def test_pictures_become_files(reports, tmp_path, chromium, ending, start):
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    report = replace(reports["small"], charts=dict(list(reports["small"].charts.items())[:2]))
    files = report.save(tmp_path / f"out.{ending}")
    assert [file.name for file in files] == [f"out-{key}.{ending}" for key in report.charts]
    assert all(file.read_bytes().startswith(start) for file in files)


def test_images_without_kaleido_say_what_to_do(reports, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="kaleido") as caught:
        reports["small"].save(tmp_path / "out.svg")
    assert "buttons of the page" in caught.value.hint


def test_a_browser_that_does_not_start_is_no_traceback(reports, tmp_path, monkeypatch):
    class Broken:
        @staticmethod
        def write_images(**_):
            raise RuntimeError("\n\nKaleido requires Google Chrome to be installed.\nmore")

    monkeypatch.setattr("simulator.report.charts.check_images", lambda path: None)
    plotly = charts._plotly
    monkeypatch.setattr(charts, "_plotly", lambda name: Broken if name == "plotly.io" else plotly(name))
    with pytest.raises(ConfigError, match="requires Google Chrome to be installed"):
        write_images({"memory": reports["small"].charts["memory"]}, tmp_path / "memory.svg")


def test_names_are_escaped(small):
    hostile = "</script><script>alert(1)</script>"
    result = replace(small, scenario=replace(small.scenario, model=hostile))
    html = answer_page.report([result]).html
    assert "alert(1)</script>" not in html.replace("alert(1)<\\/script>", "")
    assert embedded(html, "answer")["provenance"]["scenario"]["model"] == hostile


def test_page_says_where_constants_come_from(reports, small):
    html = unescape(reports["small"].html)
    device = small.topology.device(0)
    assert device.sources["datasheet"] in html
    assert small.topology.node.nics.source in html
    assert "fitted by simulate calibrate collectives" in html


def test_scaling_shows_every_number_of_gpus(small, simulated):
    results = [simulated("bigred200", "gpt2", gpus=n, micro_batch=2) for n in (2, 4)] + [small]
    html = answer_page.report(results).html
    document = embedded(html, "answer")
    assert [row["gpus"] for row in document["scaling"]] == [2, 4, 8]
    keys = {key: value for key, value, _ in shown_numbers(html) if key.startswith("scaling.")}
    assert all(at(document, key) == value for key, value in keys.items())
    assert embedded(html, "charts")["scaling"]["traces"][1]["y"] == [row["tokens_per_s"] for row in document["scaling"]]


def test_notebook_summary_has_numbers_and_no_scripts(reports):
    report = reports["piped"]
    assert isinstance(report, Report)
    summary = report._repr_html_()
    assert "<script" not in summary
    assert len(summary) < 20_000
    assert {key for key, _, _ in shown_numbers(summary)} >= {"iteration_time_s", "tokens_per_s"}


def test_save_writes_the_page(reports, tmp_path):
    (path,) = reports["small"].save(tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == reports["small"].html


def test_same_result_same_page(small, reports):
    assert answer_page.report([small]).html == reports["small"].html


@pytest.mark.parametrize(("cell", "is_narrow"), [("12", True), ("all-reduce", False)])
def test_a_first_column_of_counts_is_no_wider_than_they_are(cell, is_narrow):
    assert ('class="counted"' in table(Grid("title", ("rank", "time"), [(cell, "1 ms")]))) is is_narrow


def test_a_plan_that_leaves_less_than_the_margin_is_marked_on_its_page_and_in_the_terminal(small, monkeypatch, capsys):
    """Green where it fits, yellow where it is tight, red where it does not fit."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    for margin, kind, colour in ((0.0, "ok", 32), (0.999, "tight", 33)):
        marked = replace(small, memory_margin=margin)
        assert f'<div class="kpi {kind}">' in answer_page.report([marked]).html
        print_answer(marked.scenario, marked.answer)
        assert f"\x1b[{colour}mfits in" in capsys.readouterr().out


def test_memory_of_a_scaling_table_says_what_does_not_fit(small):
    row = {**documents.document([small]), "gpus": 4}
    memory = [
        {**row["memory"], "fits": fits, "is_tight": tight}
        for fits, tight in ((True, False), (True, True), (False, False))
    ]
    cells = answer_tables.scaling([{**row, "memory": one} for one in memory]).rows
    assert [cell[-1].more for cell in cells] == ["", " (tight)", " (does not fit)"]


def test_figures_stand_in_boxes_with_what_is_known_of_them():
    assert boxes([("memory", "<78 GiB>", "tight", "bad"), ("MFU", "50%")]) == (
        '<dl class="kpis"><div class="kpi bad"><dt>memory</dt><dd><b>&lt;78 GiB&gt;</b> tight</dd></div>'
        '<div class="kpi"><dt>MFU</dt><dd><b>50%</b></dd></div></dl>'
    )


def test_many_samples_are_written_out(small):
    """12,345.6 samples/s are no 1.235e+04."""
    many = replace(small)
    many.__dict__["answer"] = {**small.answer, "samples_per_s": 12345.6}
    assert ">12,346</span></b> samples/s" in answer_page.report([many]).html


def test_rows_of_wide_tables_name_their_cells_and_others_need_not():
    """A phone has room for four columns; the cells of five stand below each other, each behind its heading."""
    narrow = table(Grid("", ("part", "", "time", "share"), [("compute", "", "1", "2")]))
    wide = table(Grid("", ("GPUs", "", "time", "share", "MFU & HFU"), [("8", "", "1", "2", "3")]))
    assert "data-label" not in narrow and "wide" not in narrow
    assert 'class="counted wide"' in wide and wide.count("data-label") == 4
    assert '<th scope="row" data-label="GPUs">8</th>' in wide and 'data-label="MFU &amp; HFU"' in wide
