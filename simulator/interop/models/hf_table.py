"""The table of Hugging Face's families (``keys/hf_families.csv``): what each reads from its ``config.json``, and how a row is read.

A row is like those that its second column names, in order, with what it says itself. ``keys`` says under which keys a field of the
model stands, and its default: ``kv_heads=num_key_value_heads:heads`` takes that of another field, ``vocab=:50257`` changes an
inherited default alone, and ``tied=-:true`` has no key. ``fields`` sets what no key says. Keys that are ``ignored`` may be patterns;
those that are ``refused`` end the import where they are true, or false; ``*`` refuses the family itself. Rows that begin with ``_``
are no families, and fields that do are for the rules in code beside the table (:mod:`simulator.interop.models.hf_families`).

References
----------
huggingface/transformers, ``configuration_*.py`` of each family (keys and defaults).
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from importlib.resources import files
from typing import Any

from simulator.interop.typed_values import Reader, words
from simulator.models.catalog import STYLES
from simulator.models.spec import Activation, ModelSpec

#: what helps with a family that is not known
RECORD = "any other is recorded: --module hf:NAME with transformers, --module FILE.py:NAME with a module of yours"

ACTIVATIONS: dict[str, Activation] = {
    "gelu": "gelu",
    "gelu_new": "gelu_new",
    "gelu_fast": "gelu_new",
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "gelu",  # CLIP's approximation by a sigmoid costs one pointwise kernel like any other
    "relu": "relu",
    "relu2": "relu2",
    "xielu": "xielu",
    "silu": "silu",
    "swish": "silu",
}
_TYPES = {one.name: one.type for one in fields(ModelSpec)}
#: whole numbers that may be zero: none of them, or the usual number
_MAY_BE_ZERO = ("kv_heads", "q_lora_rank", "shared_expert_hidden", "type_vocab", "attention_chunk")
#: those whose ``null`` says none, or the usual number, and not what a file without the key has
_MAY_BE_NULL = ("kv_heads", "head_dim", "q_lora_rank", "sliding_window")
_WORDS: Mapping[str, bool] = {"true": True, "false": False}

#: fields of a :class:`ModelSpec`, and those that begin with ``_``
Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What a family reads, those that it is like included."""

    parts: tuple[str, ...] = ()  #: Names of the rows that it is made of, its own last.
    style: Fields = field(default_factory=dict)  #: What the catalogue's style sets.
    #: Field -> its keys, and its default as text.
    keys: Mapping[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)  #: Field -> its value as text, or another field.
    ignored: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  #: Key, or ``key=false``, -> what is not modelled.
    notes: tuple[str, ...] = ()  #: What is assumed.

    def with_own(self, name: str, line: Mapping[str, str]) -> Row:
        """Return the row with what a line of the table says."""
        keys, own = dict(self.keys), dict(one.split("=", 1) for one in line["fields"].split())
        for word in line["keys"].split():
            target, _, place = word.partition("=")
            named, _, default = place.partition(":")
            inherited = self.keys.get(target, ((), ""))[0]
            keys[target] = (() if named == "-" else tuple(named.split("|")) if named else inherited, default)
        refused = dict(one.split(": ", 1) for one in line["refused"].split("; ") if one)
        return Row(
            parts=(*self.parts, name),
            style=self.style,
            keys=keys,
            fields={key: value for key, value in self.fields.items() if f"{key}=" not in f" {line['keys']}"} | own,
            ignored=(*self.ignored, *line["ignored"].split()),
            refused={**self.refused, **refused},
            notes=(*self.notes, *([line["note"]] if line["note"] else [])),
        )

    def and_like(self, other: Row) -> Row:
        """Return what has all of two rows, the second winning."""
        return Row(
            parts=(*self.parts, *other.parts),
            style=self.style | other.style,
            keys={**self.keys, **other.keys},
            fields={**self.fields, **other.fields},
            ignored=(*self.ignored, *other.ignored),
            refused={**self.refused, **other.refused},
            notes=(*self.notes, *other.notes),
        )


def _rows() -> dict[str, Row]:
    """Return the rows by name, a style of the catalogue being one, too, and each family under all of its names."""
    text = (files("simulator.interop") / "keys" / "hf_families.csv").read_text(encoding="utf-8")
    found = {f"{name}-style": Row(style=style) for name, style in STYLES.items()}
    for line in csv.DictReader(text.splitlines()):
        names, whole = line["family"].split(), Row()
        for one in line["like"].split():
            whole = whole.and_like(found[one])
        whole = whole.with_own(names[0], line)
        found |= dict.fromkeys(names, whole)
    return found


ROWS = _rows()
#: fields that are sizes of parts which a plain model has not, or has in the usual size
_PARTS = frozenset(
    words(
        "n_experts expert_hidden shared_expert_hidden kv_lora_rank q_lora_rank qk_rope_head_dim v_head_dim sliding_window "
        "attention_chunk ssm_heads ssm_head_dim ssm_state ssm_groups conv_kernel delta_key_heads delta_value_heads "
        "delta_key_dim delta_value_dim index_heads index_head_dim index_top_k output_groups output_lora_rank residual_streams "
        "kv_heads head_dim"
    )
)


def _shape_keys() -> dict[str, frozenset[str]]:
    """Return the keys that tell sizes of such parts in some family, each with its fields; none that may be a plain size elsewhere."""
    found: dict[str, set[str]] = {}
    for row in ROWS.values():
        for name, (keys, _) in row.keys.items():
            for key in keys:
                found.setdefault(key, set()).add(name)
    return {key: frozenset(names) for key, names in found.items() if names <= _PARTS}


#: key that tells the size of a part in some family -> fields of the model
SHAPE_KEYS = _shape_keys()


def read_row(r: Reader, name: str) -> Fields:
    """Return the fields that a row of the table decides, and account for its keys."""
    row, found = ROWS[name], Fields()
    for text, what in row.refused.items():
        key, equals, _ = text.partition("=")
        if r.boolean(key, default=bool(equals)) is not bool(equals):
            r.fault(key, f"{what} is not modelled for this family", hint=RECORD)
    for one in row.keys:
        _read(r, row, one, found)
    for one, text in row.fields.items():
        found[one] = found[text] if text in found else value_of(text)
    for note in row.notes:
        r.account.assume(note)
    return row.style | found


def value_of(text: str) -> bool | int | str:
    """Return a value of the table: a truth value, a whole number, or a word."""
    return int(text) if text.isdigit() else _WORDS.get(text, text)


def _read(r: Reader, row: Row, name: str, found: Fields) -> Any:
    """Return the value of a field, which others may have as their default."""
    if name not in found:
        keys, text = row.keys[name]
        if name in _MAY_BE_NULL and any(key in r.data for key in keys) and not r.has(*keys):
            text = "heads" if name == "kv_heads" else "0"
        usual: Any = _read(r, row, text, found) if text in row.keys else value_of(text) if text else None
        match _TYPES.get(name, "bool" if text in _WORDS else "int"):
            case "bool":
                found[name] = r.boolean(*keys, default=usual)
            case "float":
                found[name] = r.number(*keys, default=float(usual))
            case "Activation":
                found[name] = ACTIVATIONS[r.text(*keys, default=usual, one_of=ACTIVATIONS)]
            case _:
                may_be_zero = name in _MAY_BE_ZERO or name.startswith("_")
                if r.raw(*keys) == "auto":
                    return found.setdefault(name, 0)
                found[name] = (r.integer if may_be_zero else r.positive)(*keys, default=usual)
    return found[name]


def ignore(r: Reader, name: str) -> None:
    """Account for the keys that a family leaves out, of those that it has not read."""
    plain = {one for one in ROWS[name].ignored if "*" not in one}
    patterns = [one for one in ROWS[name].ignored if "*" in one]
    r.irrelevant(key for key in r.data if key in plain or any(fnmatchcase(key, one) for one in patterns))
