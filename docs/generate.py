"""Write the generated pages: every command with its flags, every key of files that people write, every key of answers.

    python docs/generate.py

writes ``reference_commands.md`` from the command line itself, ``reference_files.md`` from the specs that files are read
with, ``reference_formats.md`` from the tables of other tools' formats, and ``reference_answers.md`` and
``answer.schema.json`` from the types of the answers. What a key of a file means comes from the docstring of its spec, or
from ``keys.yaml`` where that says nothing.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import typer.main
from pydantic import BaseModel

from simulator.analysis.confidence import Features, shipped_table
from simulator.analysis.recorded_kernels import IdleRow, KernelRow, LaunchRow, PatternRow
from simulator.analysis.recorded_transfers import CommunicationTime, CopyRow, CounterRow, StepRow
from simulator.analysis.support import ENOUGH, cell_of, in_words, mean_error, nearest, span
from simulator.analysis.trace_facts import TraceFacts
from simulator.cli.main import app, register_commands
from simulator.cli.options import words_of
from simulator.config import load_yaml, shipped_names
from simulator.explore.answer_form import Document, Scaling
from simulator.explore.comparison import Comparison
from simulator.explore.search.objectives import PlanRow
from simulator.explore.sweeps import SweepRow
from simulator.explore.work.slurm_workers import SlurmSpec
from simulator.interop import FORMATS
from simulator.interop.format import FormatPart
from simulator.interop.key_table import KeyTable
from simulator.plan import GROUPS, SETTINGS, Setting
from simulator.replay.recorded_tables import RecordedTable
from simulator.replay.replay_answer import OperatorAnswer, PlanAnswer, ReplayAnswer, StageAnswer
from simulator.replay.straggler_slowdowns import SlowdownRow
from simulator.topology.cluster_spec import ClusterSpec
from simulator.topology.device_file import DeviceFile, load_device
from simulator.topology.given_graph import EdgeSpec, GraphSpec, VertexSpec
from simulator.units import count_of

FOLDER = Path(__file__).parent
NOTE = "<!-- written by docs/generate.py; do not edit -->\n"


# -- commands ----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    """Return the page of all commands and flags."""
    register_commands()
    parts = [
        NOTE,
        "# Every command and flag\n",
        "[Command line](command_line.md) explains the main ones; this list is written by the program itself, as "
        "`simulate COMMAND --help` prints it. Every other key of a plan file is a flag, too: see [every key](reference_files.md).\n",
    ]
    for words, command in _commands("simulate", typer.main.get_command(app)):
        parts.append(_command(words, command))
    return "\n".join(parts)


def _commands(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", {})
    if command.params or not inner:
        yield words, command
    for name, one in sorted((name, one) for name, one in inner.items() if not one.hidden):
        yield from _commands(f"{words} {name}", one)


def _command(words: str, command: Any) -> str:
    lines = [f"## `{words}`\n", f"{_plain(command.help or '')}\n"]
    rows: dict[str, list[str]] = {}
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        panel = getattr(parameter, "rich_help_panel", None) or ""
        rows.setdefault(panel, []).append(_flag(parameter))
    for panel, flags in rows.items():
        lines += [f"**{panel}**\n"] * bool(panel) + ["| flag | meaning | |", "|---|---|---|", *flags, ""]
    return "\n".join(lines)


def _flag(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    name = f"`{parameter.name.upper()}`" if is_argument else ", ".join(f"`{word}`" for word in _spellings(parameter))
    notes = []
    default = parameter.default
    if not is_argument and default not in (None, "", 0, 0.0, False) and not callable(default):
        notes.append(f"default `{default}`")
    if getattr(parameter, "multiple", False) and "epeatable" not in (parameter.help or ""):
        notes.append("repeatable")
    return f"| {name} | {_plain(parameter.help or '')} | {', '.join(notes)} |"


def _spellings(parameter: Any) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts]


def _plain(text: str) -> str:
    """Return text on one line, safe inside a table."""
    return " ".join(text.split()).replace("|", "\\|")


# -- files -------------------------------------------------------------------------------------------------------


def files_page() -> str:
    """Return the page of all keys of cluster, device, plan, sweep and Slurm files."""
    meanings, _ = load_yaml(FOLDER / "keys.yaml")
    parts = [
        NOTE,
        "# Every key of every file\n",
        "Written from the specs that the files are read with. A quantity is a number with a unit (`200 Gb/s`, `80 GiB`, "
        "`1.5 us`, `400 W`); bandwidths are per direction. [Cluster files](topology.md) and [quick start](quickstart.md) show "
        "whole files.\n",
        "## Cluster files\n",
        "`extends: NAME` at the top of a cluster file lays it over another file or a shipped cluster: keys that it has win.\n",
        *_sections(ClusterSpec, "", meanings, set()),
        "### A graph of your own\n",
        "A machine that no kind of fabric describes: a file with `vertices` and `edges` instead of `node` and `fabric`.\n",
        _table(GraphSpec, meanings),
        "Each entry of `vertices`, by its name:\n",
        _table(VertexSpec, meanings),
        "Each entry of `edges`:\n",
        _table(EdgeSpec, meanings),
        "## Device files\n",
        "`extends: NAME` lays a device file over another or a shipped device: keys that it has win, and a `host` section is replaced "
        "whole. Kernel constants of the other board are carried over: seconds of an SM's matrix units by the peak of one SM, joules by "
        "`relative_flop_energy`, what heat adds to them by the power limit; shares and launches stay.\n",
        *_sections(DeviceFile, "", meanings, set()),
        "## Plan files\n",
        "The keys of `--plan plan.yaml`, also as `--set key=value`, as axes of sweeps and as flags with `-` for `_`. "
        "`none` unsets what is derived by default.\n",
        *_plan_table(),
        "## Sweep files\n",
        "| key | value | default | meaning |",
        "|---|---|---|---|",
        "| `base` | a mapping |  | settings that all scenarios share: any key of a plan file, `topology`, `model`, `network`, `transport`, "
        "`algorithm`, `protocol`, `seed`, `deepspeed`, `megatron`, `plan`, or a dotted key of the cluster file |",
        "| `axes` | a mapping of lists | **needed** | a list of values for each setting that differs; every combination is simulated |\n",
        "## Slurm files\n",
        "The keys under `slurm:` in the file of `--scheduler slurm.yaml`.\n",
        _table(SlurmSpec, meanings),
    ]
    return "\n".join(parts)


def _sections(model: type[BaseModel], path: str, meanings: dict[str, Any], seen: set[type]) -> Iterator[str]:
    """Yield the table of a spec, then those of the specs inside it, each variant of a ``kind`` with its own."""
    seen.add(model)
    if path:
        yield f"### `{path}`\n"
        yield f"{_summary(model)}\n"
    yield _table(model, meanings)
    for key, variants in _inner(model):
        for variant in variants:
            if variant not in seen:
                name = f"{path}.{key}" if path else key
                kind = variant.model_json_schema(by_alias=True)["properties"].get("kind", {}).get("const")
                yield from _sections(variant, f"{name}: kind {kind}" if kind else name, meanings, seen)


def _inner(model: type[BaseModel]) -> Iterator[tuple[str, list[type[BaseModel]]]]:
    for name, field in model.model_fields.items():
        found = [one for one in _types(field.annotation) if inspect.isclass(one) and issubclass(one, BaseModel)]
        if found:
            is_mapping = "dict" in str(field.annotation)
            yield (field.alias or name) + (".NAME" if is_mapping else ""), found


def _types(annotation: Any) -> Iterator[Any]:
    inner = getattr(annotation, "__args__", ())
    if not inner:
        yield annotation
    for one in inner:
        yield from _types(one)


def _table(model: type[BaseModel], meanings: dict[str, Any]) -> str:
    schema = model.model_json_schema(by_alias=True)
    lines = ["| key | value | default | meaning |", "|---|---|---|---|"]
    said = _said(model)
    for name, field in model.model_fields.items():
        key = field.alias or name
        default = "**needed**" if field.is_required() else _default(field.get_default(call_default_factory=False))
        meaning = _meaning(model, name, key, said, meanings, schema["properties"][key])
        lines.append(f"| `{key}` | {_value(schema['properties'][key])} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _plan_table() -> Iterator[str]:
    """Yield the settings of a plan, group by group, from their declarations."""
    for group, heading in GROUPS.items():
        yield f"### {heading}\n"
        yield "| key | value | default | meaning |\n|---|---|---|---|"
        for one in SETTINGS.values():
            if one.group == group:
                default = _default(one.default) or one.unset
                also = f" Also `{'`, `'.join(one.aliases)}`." if one.aliases else ""
                yield f"| `{one.key}` | {_values_of(one)} | {default} | {_plain(one.doc)}{also} |"
        yield ""


def _values_of(one: Setting) -> str:
    if words_of(one):
        return ", ".join(f"`{word}`" for word in words_of(one))
    what = {int: "whole number", float: "number", bool: "`true` or `false`", str: "text"}[one.kind]
    least = f", at least {one.least:g}" if one.least > 0 else ""
    return f"{what}{least}{', or with a unit' if one.unit else ''}"


def _meaning(
    model: type, name: str, key: str, said: dict[str, str], meanings: dict[str, Any], schema: dict[str, Any]
) -> str:
    """Return what a key means.

    Raises
    ------
    KeyError
        If neither the docstring nor ``keys.yaml`` says it.
    """
    own = [meanings.get(one.__name__, {}).get(key) for one in model.__mro__]
    found = said.get(name) or next((text for text in own if text), None) or meanings["any"].get(key)
    if not found:
        raise KeyError(
            f"{model.__name__}.{key}: say what it means, in the docstring of {model.__name__} or in docs/keys.yaml"
        )
    return _plain(re.sub(r":\w+:`~?([^`]+)`", r"`\1`", found).replace("``", "`"))


def _said(model: type) -> dict[str, str]:
    """Return what the ``Parameters`` of the docstrings of a class and its bases say, by name."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        text = inspect.cleandoc(one.__dict__.get("__doc__") or "")
        block = re.search(r"Parameters\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", text, re.DOTALL)
        for names, body in (
            re.findall(r"^([\w, ]+) : .*\n((?:    .*\n?|\n)+)", block[1] + "\n", re.MULTILINE) if block else ()
        ):
            found |= dict.fromkeys((name.strip() for name in names.split(",")), body.strip())
    return found


def _summary(model: type) -> str:
    text = inspect.cleandoc(model.__doc__ or "").split("\nParameters\n")[0].split("\nReferences\n")[0]
    return re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text).replace("``", "`").strip()


def _value(schema: dict[str, Any]) -> str:
    """Return what may stand there, in words."""
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_value(one) for one in schema["anyOf"] if one.get("type") != "null"))
    if "const" in schema or "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    if "examples" in schema:
        return f"{schema['description'].split(',')[0]}, `{schema['examples'][0]}`"
    if "$ref" in schema or "oneOf" in schema:
        return "a section of its own"
    if schema.get("type") == "array":
        return "a list"
    names = {"string": "text", "integer": "whole number", "number": "number", "boolean": "`true` or `false`"}
    return names.get(schema.get("type", ""), "a mapping")


def _default(value: Any) -> str:
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if value is None or value == "" or repr(value) in ("PydanticUndefined", "{}", "[]", "()") or callable(value):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`" if isinstance(value, str | int) else ""


# -- answers -----------------------------------------------------------------------------------------------------

#: what prints them -> types of answers
ANSWERS: dict[str, tuple[type, ...]] = {
    "simulate --json": (Document, Scaling),
    "simulate replay --json": (ReplayAnswer, PlanAnswer, OperatorAnswer, StageAnswer),
    "simulate trace info --json": (TraceFacts,),
    "simulate trace kernels --json, and the other analyses": (
        RecordedTable,
        KernelRow,
        IdleRow,
        LaunchRow,
        CopyRow,
        CommunicationTime,
        SlowdownRow,
        PatternRow,
        CounterRow,
        StepRow,
    ),
    "simulate sweep --json, a row of `rows`": (SweepRow,),
    "simulate search --json, a row of `plans`": (PlanRow,),
    "simulate compare --json": (Comparison,),
}


def answer_schema() -> dict[str, Any]:
    """Return the JSON Schema of all answers, with what the comments at the keys say."""
    roots = [one for types in ANSWERS.values() for one in types]
    references, components = msgspec.json.schema_components(roots)
    said = _said_of_keys(components)
    for name, schema in components.items():
        schema.pop("title", None)
        order = {key: place for place, key in enumerate(said[name])}
        keys = sorted(schema["properties"], key=lambda key: order.get(key, len(order)))
        schema["properties"] = {key: schema["properties"][key] for key in keys}
        for key, value in schema["properties"].items():
            text = said[name].get(key) or next((one[key] for one in said.values() if key in one), None)
            if text is None:
                raise KeyError(f"{name}.{key}: say what it means, in a comment `#: ...` at it")
            schema["properties"][key] = {"description": _unmarked(text), **value}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answers of simulate",
        "anyOf": [*references],
        "$defs": components,
    }


def _said_of_keys(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the ``#:`` comments at the keys of typed dictionaries, those of their bases included."""
    classes: dict[str, tuple[ast.ClassDef, list[str]]] = {}
    for path in sorted((FOLDER.parent / "simulator").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "TypedDict" in text or any(f"class {name}(" in text for name in names):
            lines = text.splitlines()
            classes |= {node.name: (node, lines) for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}

    def docs(name: str) -> dict[str, str]:
        if name not in classes:
            return {}
        node, lines = classes[name]
        found = {key: text for base in node.bases for key, text in docs(ast.unparse(base)).items()}
        for field in node.body:
            if isinstance(field, ast.AnnAssign):
                above = list(
                    itertools.takewhile(lambda line: line.startswith("    #: "), lines[field.lineno - 2 :: -1])
                )
                said = lines[field.end_lineno - 1].partition("  #: ")[2] or " ".join(
                    line.removeprefix("    #: ") for line in reversed(above)
                )
                found |= {ast.unparse(field.target): said} if said else {}
        return found

    return {name: docs(name) for name in names}


def _unmarked(text: str) -> str:
    return text.replace("``", "`")


def answers_page() -> str:
    """Return the page of every key of every answer."""
    schema = answer_schema()
    defs = schema["$defs"]
    parts = [
        NOTE,
        "# Every key of every answer\n",
        "Written from the types of the answers. The same as JSON Schema: [answer.schema.json](answer.schema.json). Times are "
        "seconds, sizes bytes, bandwidths bytes per second and direction, shares fractions of 1.\n",
    ]
    seen: set[str] = set()
    for what, types in ANSWERS.items():
        parts.append(
            f"## `{what}`\n"
            if "`" not in what
            else f"## {what.replace('simulate', '`simulate', 1).replace(',', '`,', 1)}\n"
        )
        waiting = [one.__name__ for one in types]
        for name in waiting:
            if name not in seen:
                seen.add(name)
                parts.append(_answer_table(name, defs[name]))
                waiting += re.findall(r"#/\$defs/(\w+)", json.dumps(defs[name]))
    return "\n".join(parts)


def _answer_table(name: str, schema: dict[str, Any]) -> str:
    lines = [
        f"### {name}\n",
        f"{_plain(_unmarked(schema['description']))}\n",
        "| key | value | meaning |",
        "|---|---|---|",
    ]
    for key, value in schema["properties"].items():
        optional = "" if key in schema["required"] else ", not always there"
        lines.append(f"| `{key}` | {_answer_value(value)}{optional} | {_plain(value['description'])} |")
    return "\n".join(lines) + "\n"


def _answer_value(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_answer_value(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_answer_value(schema['items'])}" if "items" in schema else "list"
    names = {"string": "text", "integer": "whole number", "boolean": "true or false", "object": "mapping"}
    return names.get(schema.get("type", ""), schema.get("type", "anything"))


def schema_file() -> str:
    """Return the JSON Schema of all answers as text."""
    return json.dumps(answer_schema(), indent=1) + "\n"


# -- formats of other tools --------------------------------------------------------------------------------------


def formats_page() -> str:
    """Return the page of the formats of other tools, with the keys that are read, ignored, and not understood."""
    parts = [
        NOTE,
        "# Every key of other tools' files\n",
        "Written from the tables that the files are read and written with. A key that is in no list is named as unknown, and said "
        "to change the answer where it speaks of something that is modelled. [Files of other tools](import.md) shows how they "
        "are used.\n",
        "| `--as` | file | gives | options of `simulate import` | written by `search --emit` |",
        "|---|---|---|---|---|",
    ]
    for name, one in FORMATS.items():
        options = ", ".join(f"`--{option.replace('_', '-')}`" for option in one.options)
        parts.append(f"| `{name}` | {one.what} | {one.gives} | {options} | {f'`{one.file}`' if one.file else ''} |")
    for name, one in FORMATS.items():
        if one.table is not None:
            parts += [f"\n## `{name}`\n", _table_page(one.table)]
        elif one.parts:
            parts += [f"\n## `{name}`\n", _parts_page(one.parts)]
    return "\n".join(parts)


def _parts_page(parts: Iterable[FormatPart]) -> str:
    """Return what the documentation lists for a format that is no mapping of keys."""
    lines = ["| | names | decides, or why not |", "|---|---|---|"]
    for part in parts:
        names = ", ".join(f"`{name}`" for name in part.names)
        lines.append(f"| {'read' if part.is_read else 'ignored'} | {names} | {part.why} |")
    return "\n".join(lines) + "\n"


def _table_page(table: KeyTable) -> str:
    """Return what the documentation lists for a format."""
    lines = ["| key | decides | the tool's default | |", "|---|---|---|---|"]
    for key in table.keys:
        names = ", ".join(f"`{name}`" for name in key.names)
        ours = f"`{key.plan}`" if key.plan else f"model: `{key.model}`" if key.model else ""
        default = "" if key.default in (None, "") else f"`{str(key.default).lower()}`"
        words = ", ".join(f"`{word}`" for word in key.words)
        lines.append(f"| {names} | {ours} | {default} | {'; '.join(filter(None, (words, key.note)))} |")
    for title, groups in (("Ignored", table.irrelevant), ("Named as changing the answer", table.missed)):
        if groups:
            lines += ["", f"| {title.lower()}, because of | keys |", "|---|---|"]
            lines += [
                f"| {why} | {', '.join(f'`{word}`' for word in words.split())} |" for why, words in groups.items()
            ]
    return "\n".join(lines) + "\n"


# -- what measured runs validate ---------------------------------------------------------------------------------

#: kinds of plans -> numbers of GPUs that a cell without measured runs is asked for
KINDS = {"one GPU": 1, "data": 16, "sharded": 64, "tensor": 16, "pipeline": 256}


def support_page() -> str:
    """Return the support matrix: for every family of models, device, width of products and kind of plan, one word."""
    rows = shipped_table().rows
    families = sorted({row.features.family for row in rows})
    parts = [
        NOTE,
        "# What measured runs validate\n",
        "Written from the shipped residuals of published runs. **Validated**: at least "
        f"{ENOUGH} measured runs of the same family, device, width of products and kind of plan, with their mean error, for up to "
        "twice the GPUs and down to half of them; beyond, and everywhere else, an answer is *extrapolated* from the runs that are most "
        "alike; a device *refuses* precisions that it has no arithmetic for. The same word stands on every answer: below the "
        "time, in the report, and as `support` in JSON. Errors are of rows that constants were fitted to; [accuracy](accuracy.md) has "
        "those of test rows. A mixture is a mixture of experts, whatever its layers are.\n",
    ]
    for family in families:
        measured = sorted({row.features.device for row in rows if row.features.family == family})
        parts += [f"## {family}\n", *_support_table(family, measured)]
    everywhere = {row.features.device for row in rows}
    others = [
        name for name in shipped_names("devices") if name not in everywhere and load_device(name).architecture != "cpu"
    ]
    parts += ["## Devices without a measured run\n", "As for llama models; other families are the same.\n"]
    return "\n".join([*parts, *_support_table("llama", others)])


def _support_table(family: str, devices: Iterable[str]) -> Iterator[str]:
    yield f"| device | products | {' | '.join(KINDS)} |"
    yield "|---" * (2 + len(KINDS)) + "|"
    for name in devices:
        for bits in (16, 8, 4):
            cells = (_support_cell(family, name, bits, kind) for kind in KINDS)
            yield f"| {name} | {'16 and 32 bits' if bits == 16 else f'{bits} bits'} | {' | '.join(cells)} |"
    yield ""


def _support_cell(family: str, name: str, bits: int, kind: str) -> str:
    device, rows = load_device(name), shipped_table().rows
    if bits < 16 and not device.computes(f"fp{bits}"):
        return "refused: no such products"
    asked = Features(
        kind=kind, device=name, generation=device.architecture, kernels="", bits=bits, gpus=KINDS[kind],
        experts=family == "mixture", family=family,
    )  # fmt: skip
    mine = [row for row in rows if cell_of(row.features) == cell_of(asked)]
    if len(mine) >= ENOUGH:
        return f"**validated**: {len(mine)} rows, {mean_error(mine):.1%}, {span(mine)}"
    few = f"{count_of(len(mine), 'row')}, {mean_error(mine):.1%}; " if mine else ""
    there = nearest(asked, [row for row in rows if row not in mine])[0].features
    return f"*extrapolated*: {few}from {in_words(there)}"


#: page -> what writes it
PAGES = {
    "support.md": support_page,
    "reference_commands.md": commands_page,
    "reference_files.md": files_page,
    "reference_answers.md": answers_page,
    "answer.schema.json": schema_file,
    "reference_formats.md": formats_page,
}

if __name__ == "__main__":
    for page, write in PAGES.items():
        (FOLDER / page).write_text(write(), encoding="utf-8")
