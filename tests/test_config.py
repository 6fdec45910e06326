import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field
from ruamel.yaml import YAML

from simulator.config import (
    Bandwidth,
    Spec,
    Time,
    load_spec,
    load_yaml,
    names,
    near_misses,
    parse_yaml,
    resolve_name,
    validate,
    yaml_nodes,
)
from simulator.errors import ConfigError
from simulator.explore.run.shared_cluster import read_job
from simulator.interop.trainers.nemo import import_recipe
from simulator.interop.trainers.plan_files import load_plan
from simulator.topology import load_topology


class Disc(Spec):
    kind: Literal["disc"]
    radius: int


class Square(Spec):
    kind: Literal["square"]
    side_bytes_per_s: Bandwidth = Field(alias="side")


class Machine(Spec):
    name: str
    bandwidth: Bandwidth
    latency: Time = 0.0
    shape: Annotated[Disc | Square, Field(discriminator="kind")] | None = None
    parts: dict[str, Disc] = Field(default_factory=dict)
    rows: tuple[int, ...] = ()


def faults_of(text, *, name="machine.yaml", model=Machine, as_json=False):
    with pytest.raises(ConfigError) as caught:
        data, locator = parse_yaml(text, name, as_json=as_json)
        validate(data, model, locator)
    return caught.value.message


def test_a_good_file_becomes_a_frozen_spec(tmp_path):
    file = tmp_path / "machine.yaml"
    file.write_text("name: a\nbandwidth: 200 Gb/s\nshape: {kind: square, side: 1 GB/s}\n")
    machine = load_spec(file, Machine)
    assert machine.bandwidth == 25e9
    assert machine.shape.side_bytes_per_s == 1e9
    with pytest.raises(ValueError, match="frozen"):
        machine.name = "b"


def test_a_typo_is_found_by_line_and_column_with_a_suggestion_and_a_caret():
    message = faults_of("name: a\nbandwith: 200 Gb/s\nbandwidth: 1 GB/s\n")
    assert message.splitlines()[0] == "machine.yaml:2:1: bandwith: unknown key. Did you mean 'bandwidth'?"
    source, caret = message.splitlines()[2:4]
    assert source == "    2 | bandwith: 200 Gb/s"
    assert caret.index("^") == source.index("bandwith")
    assert caret.count("^") == len("bandwith")


def test_all_faults_come_at_once_in_the_order_of_the_file():
    message = faults_of(
        "bandwidth: 25\nlatency: 3 parsecs\nshape:\n  kind: square\n  sid: 1 GB/s\nrows: [1, two]\ncolour: red\n"
    )
    heads = [line for line in message.splitlines() if line.startswith("machine.yaml:")]
    assert [head.split(": ")[1] for head in heads] == [
        "name", "bandwidth", "latency", "shape.side", "shape.sid", "rows[1]", "colour",
    ]  # fmt: skip
    assert heads[1].startswith("machine.yaml:1:12: bandwidth: 25 is not a bandwidth")
    assert heads[4] == "machine.yaml:5:3: shape.sid: unknown key. Did you mean 'side'?"
    assert heads[5].startswith("machine.yaml:6:11: rows[1]")
    assert "'two'" in heads[5]


def test_a_bare_number_says_which_unit_is_meant():
    assert "hint: write a number and its unit, like '200 Gb/s'" in faults_of("name: a\nbandwidth: 25\n")


def test_an_unknown_kind_lists_the_kinds():
    message = faults_of("name: a\nbandwidth: 1 GB/s\nshape: {kind: discc, radius: 1}\n")
    assert "'discc' is not one of disc, square. Did you mean 'disc'?" in message
    assert message.startswith("machine.yaml:3:15: shape.kind:")


def test_an_unknown_key_without_a_near_miss_lists_the_known_ones():
    assert "hint: known keys: bandwidth, latency, name, parts, rows, shape" in faults_of(
        "name: a\nbandwidth: 1 GB/s\nzzz: 1\n"
    )


def test_keys_inside_named_parts_are_located():
    message = faults_of("name: a\nbandwidth: 1 GB/s\nparts:\n  lid:\n    kind: disc\n    radios: 2\n")
    assert "machine.yaml:6:5: parts.lid.radios: unknown key. Did you mean 'radius'?" in message
    assert "parts.lid.radius: is missing" in message


def test_duplicate_keys_are_errors_all_of_them():
    message = faults_of("name: a\nname: b\nshape:\n  kind: disc\n  kind: disc\n")
    assert "machine.yaml:2:1: name: key appears twice" in message
    assert "machine.yaml:5:3: shape.kind: key appears twice" in message


def test_duplicate_keys_in_json():
    message = faults_of('{"name": "a",\n "name": "b"}', name="machine.json", as_json=True)
    assert "machine.json:2:2: name: key appears twice" in message


def test_faults_in_json_have_places_too():
    message = faults_of('{"name": "a",\n "bandwidht": "1 GB/s"}', name="machine.json", as_json=True)
    assert "machine.json:2:2: bandwidht: unknown key. Did you mean 'bandwidth'?" in message


def test_json_indented_with_tabs_has_places():
    message = faults_of('{\n\t"nam": "a"\n}', name="machine.json", as_json=True)
    assert "machine.json:2:2: nam: unknown key. Did you mean 'name'?" in message


@pytest.mark.parametrize(
    ("text", "as_json", "place"),
    [("a: [1, 2\nb: 3\n", False, ":2:"), ('{"a": 1,\n}', True, ":2:1"), ("a: *nowhere\n", False, ":1:4")],
)
def test_malformed_text_is_located(text, as_json, place):
    assert f"machine.yaml{place}" in faults_of(text, as_json=as_json)


def test_yaml_12_numbers_and_words():
    data, _ = parse_yaml("a: 1e-4\nb: on\nc: 12:30:45\n", "x.yaml")
    assert data == {"a": 1e-4, "b": "on", "c": "12:30:45"}


def test_anchors_are_allowed():
    data, _ = parse_yaml("a: &one {x: 1}\nb: *one\nc: {<<: *one, y: 2}\n", "x.yaml")
    assert data["c"] == {"x": 1, "y": 2}


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path / "absent.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_yaml(binary)


@given(st.text(max_size=40), st.booleans())
def test_any_text_is_read_or_refused_with_our_error(text, as_json):
    try:
        data, locator = parse_yaml(text, "any", as_json=as_json)
        validate(data, Machine, locator)
    except ConfigError:
        pass


@given(st.text(alphabet="{}[]:,-&*!|>'\"#%@ \nab1", max_size=25))
def test_any_yaml_like_text_is_read_or_refused_with_our_error(text):
    try:
        data, locator = parse_yaml(text, "any")
        validate(data, Machine, locator)
    except ConfigError:
        pass


def test_a_path_comes_before_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_name("bigred200", "clusters").name == "bigred200.yaml"
    assert resolve_name("bigred200.yaml", "clusters").parent.name == "clusters"
    Path("bigred200.yaml").write_text("{}")
    assert resolve_name("bigred200.yaml", "clusters") == Path("bigred200.yaml")


def test_a_misspelt_name_is_answered_with_near_ones():
    with pytest.raises(ConfigError, match="Did you mean 'bigred200'"):
        resolve_name("bigred20", "clusters")
    assert near_misses("Selen", ["selene", "polaris"]) == ["selene"]


def test_a_name_that_no_file_system_takes_is_no_name():
    """255 bytes are the most of a name on Linux (``NAME_MAX`` of limits.h)."""
    for length in (252, 256, 5000):
        with pytest.raises(ConfigError, match="no such file") as caught:
            resolve_name("x" * length, "devices")
        assert len(str(caught.value)) < 2000


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of shipped files beside which what they say may be kept."""
    folder = tmp_path / "network"
    folder.mkdir()
    monkeypatch.setattr(names, "data_folders", lambda kind: [tmp_path / kind])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "kept"))
    return folder


def test_what_a_shipped_file_says_is_kept_until_its_text_changes(shipped, monkeypatch):
    file = shipped / "one.yaml"
    file.write_text("a: 1\nb: [x, 2.5]  # c\n")
    assert load_yaml(file)[0] == {"a": 1, "b": ["x", 2.5]}
    with monkeypatch.context() as context:
        context.setattr(yaml_nodes, "construct", None)  # nothing is parsed again
        data, locator = load_yaml(str(file))
    assert data == {"a": 1, "b": ["x", 2.5]}
    assert str(locator.value(("b", 1))) == f"{file}:2:8"
    file.write_text("a: 3\n")
    assert load_yaml(file)[0] == {"a": 3}
    (kept,) = (shipped.parent / "kept").rglob("*.read")
    for broken in ("", "{}", "[1]", '{"text": "a: 3\\n"}', '{"text": "a: 2\\n", "data": 1}'):
        kept.write_text(broken)
        assert load_yaml(file)[0] == {"a": 3}
    known = json.loads(kept.read_text()) | {"data": {"a": 4}}
    for reader, expected in ((known["reader"], 4), ([1, 2], 3), (None, 3)):
        kept.write_text(json.dumps(known | {"reader": reader}))
        assert load_yaml(file)[0] == {"a": expected}


@pytest.mark.parametrize("text", ["1: one\n", "a: 2001-02-03\n"])
def test_what_json_does_not_say_is_not_kept(shipped, text):
    (shipped / "one.yaml").write_text(text)
    first, second = load_yaml(shipped / "one.yaml")[0], load_yaml(shipped / "one.yaml")[0]
    assert first == second == YAML(typ="safe", pure=True).load(text)
    assert not list(shipped.parent.rglob("*.read"))


def test_nothing_is_kept_of_a_users_file_or_where_python_keeps_nothing(shipped, monkeypatch):
    for place in (shipped, shipped.parent):
        (place / "one.yaml").write_text("a: 1\n")
    assert load_yaml(shipped.parent / "one.yaml")[0] == {"a": 1}
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert load_yaml(shipped / "one.yaml")[0] == {"a": 1}
    assert not list(shipped.parent.rglob("*.read"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nothing: the file is empty"),
        ("# to be written\n", "nothing: the file is empty"),
        ("- tp: 8\n", "a list"),
        ("tp\n", "text"),
        ("8\n", "a number"),
        ("true\n", "true or false"),
        ("2024-05-01\n", "a date"),
    ],
)
def test_files_that_are_no_mapping_are_described_in_words(tmp_path, text, words):
    """Users know YAML's words, not Python's types."""
    (tmp_path / "file.yaml").write_text(text)
    path = tmp_path / "file.yaml"
    for read in (load_topology, load_plan, import_recipe, lambda file: read_job(str(file), {})):
        with pytest.raises(ConfigError, match=f"file.yaml.*a mapping of .*found {words}(\n|$)"):
            read(path)
