"""Measurement rows in the documented columns, and how they are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from validation.tables.kinds import KINDS

_PREFIX = {"training": "TR", "collectives": "CC", "kernels": "KN"}

Row = dict[str, Any]


def make_row(kind: str, values: Mapping[str, Any]) -> Row:
    """Put values into the columns of a kind of table; a row without ``row_id`` gets one from its contents.

    Raises
    ------
    KeyError
        If a value has no column.
    """
    columns = KINDS[kind].columns
    unknown = set(values) - set(columns)
    if unknown:
        raise KeyError(f"{kind} rows have no column {', '.join(sorted(unknown))}")
    row: Row = {name: values.get(name, "") for name in columns}
    row["split"] = row["split"] or "test"
    if not row["row_id"]:
        text = json.dumps([row[name] for name in columns[1:]], sort_keys=True, default=str)
        row["row_id"] = f"{_PREFIX[kind]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return row
