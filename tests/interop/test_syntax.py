"""Files that would eat the machine, or hold numbers that nothing can mean, are refused within a second."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.config import load_yaml, parse_yaml
from simulator.errors import ConfigError
from simulator.interop import import_any
from simulator.interop.syntax import load_toml, parse_xml
from simulator.interop.trainers.accelerate import import_accelerate

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
MERGE = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 9)}]\n  k{i}: 1\n" for i in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"(?s)file.yaml:6:5: its aliases repeat.*a5: &a5.*hint"),
        (MERGE, r"file.yaml:15:7: its aliases repeat"),
        ("a: &a [*a]", r"(?s)file.yaml:1:4: refers to itself\n +1 . a: &a \[\*a\]\n.*hint"),
        ("a: " + "9" * 400, "1:4: .*not a usable number"),
        ("a: .nan", "not a usable number"),
        ("a: -.inf", "not a usable number"),
        ("a: 1e999", "not a usable number"),
        ("[" * 5000, "not YAML"),
    ],
)
def test_yaml_that_blows_up(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_yaml(text, "file.yaml")


@pytest.mark.parametrize("text", ['{"a": ' + "9" * 400 + "}", '{"a": NaN}', '{"a": 1e999}', '{"a": ' + "[" * 100_000])
def test_json_that_blows_up(text):
    with pytest.raises(ConfigError, match="not JSON"):
        parse_yaml(text, "file.json", as_json=True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("f.json", '{"a": "[[",\n "b": ' + "[" * 100_000 + "]" * 100_000 + "}"),
        ("f.toml", "a = 1\nb = " + "[" * 3000 + "]" * 3000),
    ],
)
def test_nesting_has_a_place(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    read = load_toml if name == "f.toml" else load_yaml
    depth = text.count("[") - 2 * (name == "f.json") + text.count("{")
    with pytest.raises(ConfigError, match=rf"{name}:2:\d+: .*nested too deeply, {depth:,} levels"):
        read(path)


def test_ordinary_aliases_are_read():
    data, _ = parse_yaml("base: &b {x: 1, y: 2}\na: {<<: *b, x: 3}\nc: *b\n", "file.yaml")
    assert data["a"] == {"x": 3, "y": 2} and data["c"] == {"x": 1, "y": 2}


@pytest.mark.parametrize("text", ["a = " + "9" * 400, "a = nan", "a = " + "[" * 3000, "a = 1\na = 2"])
def test_toml_that_is_broken(tmp_path, text):
    path = tmp_path / "file.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"TOML|number"):
        load_toml(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<a>" * 20_000, "nested more than"),
        ('<!DOCTYPE x [<!ENTITY a "aaa">]><x>&a;</x>', "defines entities"),
        ("<a><b></a>", r"1:\d+: not XML"),
    ],
)
def test_xml_that_is_broken(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_xml(text, "file.xml")


def test_files_that_are_no_files(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_yaml(tmp_path)


WRONG = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    key=st.sampled_from(
        [
            "distributed_type",
            "mixed_precision",
            "num_processes",
            "fsdp_config",
            "deepspeed_config",
            "parallelism_config",
        ]
    ),
    inner=st.sampled_from(
        ["", "fsdp_sharding_strategy", "zero_stage", "offload_optimizer_device", "parallelism_config_cp_size"]
    ),
    value=WRONG,
)
def test_values_of_any_type_end_in_errors_of_ours(tmp_path_factory, key, inner, value):
    path = tmp_path_factory.mktemp("any") / "a.yaml"
    path.write_text(json.dumps({key: {inner: value} if inner else value}))
    try:
        import_accelerate(path)
    except ConfigError:
        return


@given(key=st.sampled_from(["devices", "instances", "links", "edges", "components", "choice", "count"]), value=WRONG)
def test_infragraphs_of_any_type_end_in_errors_of_ours(tmp_path_factory, key, value):
    part = {"name": "g", "choice": "npu", "count": 1}
    graph = {
        "name": "x",
        "devices": [{"name": "d", "components": [part], "links": [], "edges": []}],
        "instances": [{"name": "d", "device": "d", "count": 1}],
    }
    target = part if key in part else graph["devices"][0] if key in ("components", "edges", "links") else graph
    target[key] = value
    path = tmp_path_factory.mktemp("any") / "a.json"
    path.write_text(json.dumps(graph))
    try:
        import_any(path, "infragraph")
    except ConfigError:
        return


@pytest.mark.parametrize("value", ["9" * 400, "{}", "[1]", '"x"'])
def test_a_log_whose_sizes_are_no_numbers(tmp_path, value):
    path = tmp_path / "log.json"
    path.write_text('{"nccl_version": 22800, "results": [{"size": ' + value + ', "out_of_place": {"time": 1.0}}]}')
    with pytest.raises(ConfigError, match=r"is not a number|too many digits|exceeds"):
        import_any(path, "nccl-tests")


def test_a_number_that_cannot_be_meant_is_shown_where_it_stands():
    """With its key, and no more of a long line than fits a screen."""
    text = "tp: 1\nplan: {pp: [2, 1e999], cp: 1}  # " + "x" * 400
    with pytest.raises(ConfigError, match=r"file.yaml:2:16: plan.pp\[1\]: '1e999' is not a usable number") as found:
        parse_yaml(text, "file.yaml")
    assert max(map(len, str(found.value).splitlines())) < 200
    with pytest.raises(ConfigError, match=r"file.json:2:5: not JSON that can be read: the number 9999") as found:
        parse_yaml('{"a": 1,\n"b":' + "9" * 4000 + "}", "file.json", as_json=True)
    assert max(map(len, str(found.value).splitlines())) < 200


def test_a_number_of_toml_that_cannot_be_meant_is_named_by_its_key(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text("[training]\nsizes = [1, inf]\n")
    with pytest.raises(ConfigError, match=r"train.toml: training.sizes\[1\]: 'inf' is not a usable number"):
        load_toml(path)
