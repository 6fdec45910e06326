"""``--report`` and ``--explain`` from the command line."""

import json
import re

from typer.testing import CliRunner

from simulator.cli.main import app

RUN = ["--topology", "bigred200", "--model", "gpt2", "--gpus", "4", "--micro-batch", "2"]


def run(*arguments):
    return CliRunner().invoke(app, [*RUN, *arguments])


def embedded(path):
    found = re.search(r'id="answer">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)
    return json.loads(found[1])


def test_report_and_json_agree(tmp_path):
    path = tmp_path / "out.html"
    done = run("--json", "--report", str(path))
    assert done.exit_code == 0, done.output
    assert embedded(path) == json.loads(done.stdout)


def test_explanation_is_in_terminal_json_and_report(tmp_path):
    path = tmp_path / "out.html"
    printed = run("--explain")
    assert "best single changes" in printed.stdout
    assert "Critical path" in printed.stdout
    done = run("--explain", "--json", "--report", str(path))
    document = json.loads(done.stdout)
    assert document["explanation"]["best"]
    assert embedded(path) == document


def test_report_tells_given_from_default(tmp_path):
    path = tmp_path / "out.html"
    run("--report", str(path))
    text = path.read_text(encoding="utf-8")
    assert '<th scope="row">micro-batch</th><td>2</td><td>given</td>' in text
    assert '<th scope="row">dp</th><td>4</td><td>derived</td>' in text
