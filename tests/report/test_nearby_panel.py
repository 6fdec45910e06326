"""The panel on which a reader changes one thing."""

from __future__ import annotations

import base64
import json
import re
import zlib

from simulator import ParallelPlan, Scenario, simulate
from simulator.explore.nearby_answers import nearby_answers
from simulator.report.answer_page import report


def test_the_page_carries_the_answers_that_were_simulated():
    plan = ParallelPlan.of({"gpus": 4, "micro_batch": 2, "global_batch": 16})
    result = simulate(Scenario(topology="bigred200", model="gpt-125m", plan=plan), detail=True)
    nearby = nearby_answers(result, 12)
    page = report([result], nearby=nearby).html
    found = re.search(r'id="nearby-data">(.*?)</script>', page)
    assert found is not None
    data = json.loads(zlib.decompress(base64.b85decode(found[1])))
    assert data["answers"] == nearby and len(nearby) > 5
    words = {one["key"]: one["words"] for one in data["settings"]}
    assert all(word in words[key] for answer in nearby for key, word in answer["choices"].items())
    assert next(one for one in data["settings"] if one["key"] == "micro_batch")["now"] == "2"
    said = {one["key"]: one["now"] for one in data["settings"]}
    assert said["tp"] == "1" and said["overlap"] == "default"
    assert 'href="#nearby"' in page and 'id="nearby"' in page


def test_without_neighbours_there_is_no_panel():
    result = simulate(Scenario(topology="bigred200", model="gpt-125m", plan=ParallelPlan.of({"gpus": 1})), detail=True)
    assert 'id="nearby"' not in report([result]).html
