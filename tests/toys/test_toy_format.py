"""A format of files that only this test knows: one object, one line in the dict, and the command line reads and writes it."""

import json

import pytest

from simulator.cli.main import main
from simulator.config import load_yaml
from simulator.interop import FORMATS, recognise
from simulator.interop.format import Format, Imported
from simulator.interop.key_table import flattened, nested, table_of
from simulator.interop.trainers.emission import Emission, Request, refuse_to_write, said
from simulator.interop.typed_values import Reader

KEYS = table_of(
    """names,kind,plan,model,words,default,needs,note
toy.slices,count,tp,,,1,,
toy.pieces,count,micro_batch,,,1,,
toy.all,count,global_batch,,,,,
toy.split,word,sharding,,nothing=none states=zero1,nothing,,
toy.colour,irrelevant,,,,,,taste
toy.spin,missed,,,,,,spinning
"""
)


def read_toy(path, *, gpus=0):
    data, locator = load_yaml(path)
    found = KEYS.read(Reader(flattened(data, str(path)), str(path), locator=locator))
    settings = KEYS.fields(found, "plan") | ({"gpus": gpus} if gpus else {})
    KEYS.finish(found)
    return Imported(kind="toy", file=str(path), settings=settings, report=found.reader.account.report())


def write_toy(request: Request) -> Emission:
    plan = request.plan
    refuse_to_write("toys", KEYS.unsayable(said(plan)) | {f"pp={plan.pp}": plan.pp > 1})
    text = json.dumps(nested(KEYS.written(said(plan), "plan")))
    unsaid = set(plan.to_dict()) - {one.plan for one in KEYS.keys}
    return Emission(text=text, plan=plan, unsaid=dict.fromkeys(unsaid, "the box"))


TOY = Format(
    gives="plan", what="a toy", sniff=lambda text: "toy" in text, read=read_toy, options=("gpus",), table=KEYS,
    write=write_toy, file="toy.json",
)  # fmt: skip

TEXT = "toy:\n  slices: 2\n  pieces: 4\n  all: 32\n  split: states\n  colour: red\n  spin: 3\n  sise: 1\n"


@pytest.fixture
def toy(monkeypatch, tmp_path):
    monkeypatch.setitem(FORMATS, "toy", TOY)
    path = tmp_path / "box.yaml"
    path.write_text(TEXT)
    return path


def run(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["simulate", *map(str, words), "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    return json.loads(capsys.readouterr().out)


def test_it_is_imported(monkeypatch, capsys, toy):
    assert recognise(toy) == ["toy"]
    found = run(monkeypatch, capsys, "import", toy, "--gpus", 8)
    assert found["plan"] == {"tp": 2, "micro_batch": 4, "global_batch": 32, "sharding": "zero1", "gpus": 8}
    assert found["irrelevant"] == ["toy.colour"]
    assert found["unknown"] == [
        "toy.spin: not understood, changes the answer (spinning)",
        "toy.sise (did you mean 'slices'?)",
    ]


def test_it_is_a_plan(monkeypatch, capsys, toy):
    job = ("--topology", "bigred200", "--model", "gpt2", "--gpus", 8)
    from_file = run(monkeypatch, capsys, *job, "--plan", toy)
    from_flags = run(
        monkeypatch, capsys, *job, "--tp", 2, "--micro-batch", 4, "--global-batch", 32, "--sharding", "zero1"
    )
    assert from_file["iteration_time_s"] == from_flags["iteration_time_s"]


def test_a_search_writes_it(monkeypatch, capsys, toy, tmp_path):
    words = ("--axis", "pp=1", "--axis", "cp=1", "--emit", tmp_path / "best")
    found = run(
        monkeypatch,
        capsys,
        "search",
        "--topology",
        "bigred200",
        "--model",
        "gpt2",
        "--gpus",
        8,
        "--global-batch",
        32,
        *words,
    )
    written = {one["format"]: one["path"] for one in found["emitted"]}
    assert read_toy(written["toy"]).settings["global_batch"] == 32
