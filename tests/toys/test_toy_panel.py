"""A panel of one's own: registered here and nowhere else, it is a section of the page like any other."""

import json
import re
from html import unescape

from typer.testing import CliRunner

from simulator.cli.main import app
from simulator.report import answer_page
from simulator.report.charts import Chart, axis, figure, layout
from simulator.report.grid import Number
from simulator.report.markup import element


def tokens_panel(shown):
    """What a GPU trains on in a day: a sentence and a chart."""
    answer, gpus = shown.answer, shown.result.plan.gpus
    per_day = answer["tokens_per_s"] / gpus * 86400
    bar = {"type": "bar", "x": ["a day"], "y": [per_day], "hovertemplate": "%{y:,.0f} tokens<extra></extra>"}
    chart = Chart(
        key="tokens-a-day", title="Tokens per GPU", summary=f"{per_day:,.0f} tokens", traces=(bar,),
        layout=layout(axis("time"), axis("tokens")),
    )  # fmt: skip
    return [
        element("p", "One GPU: ", Number("tokens_per_s", answer["tokens_per_s"], f"{per_day:,.0f}"), " a day"),
        chart,
    ]


def silent_panel(shown):
    """Nothing to say about this answer."""
    assert shown.result.topology.n_gpus
    return []


def test_a_panel_registered_in_the_dict_is_on_the_page(monkeypatch, tmp_path):
    monkeypatch.setitem(answer_page.PANELS, "toy", answer_page.Panel("Toy", "Tokens in a <day>", tokens_panel))
    monkeypatch.setitem(answer_page.PANELS, "mute", answer_page.Panel("Mute", "Never seen", silent_panel))
    path = tmp_path / "report.html"
    done = CliRunner().invoke(
        app, ["-t", "dgx-a100-40g", "-m", "gpt2", "--gpus", "2", "--micro-batch", "1", "--json", "--report", str(path)]
    )
    assert done.exit_code == 0, done.output
    answer, html = json.loads(done.stdout), path.read_text(encoding="utf-8")
    assert '<a href="#toy">Toy</a>' in html
    assert '<section id="toy"' in html
    assert "Tokens in a &lt;day&gt;" in html
    assert 'id="plot-tokens-a-day"' in html
    assert "mute" not in html.partition("<script")[0]
    shown = re.search(r'One GPU: <span class="n" data-key="tokens_per_s" data-value="([^"]+)">([\d,]+)</span>', html)
    assert json.loads(unescape(shown[1])) == answer["tokens_per_s"]
    assert shown[2] == f"{answer['tokens_per_s'] / 2 * 86400:,.0f}"


def test_its_picture_is_saved_with_the_others(monkeypatch, small):
    monkeypatch.setitem(answer_page.PANELS, "toy", answer_page.Panel("Toy", "Toy", tokens_panel))
    report = answer_page.report([small])
    assert list(report.charts).index("tokens-a-day") > 0
    assert len(figure(report.charts["tokens-a-day"]).data) == 1
