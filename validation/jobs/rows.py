"""Measurement rows in the documented columns, and how they are written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: kind of table -> columns, as the measurement tables have them
COLUMNS: dict[str, tuple[str, ...]] = {
    kind: tuple(" ".join(lines).split())
    for kind, lines in {
        "training": (
            "row_id source grade topology architecture model layers hidden heads kv_heads ffn vocab seq_len gpus",
            "precision framework dp tp pp virtual_pp schedule cp ep sharding sequence_parallel micro_batch",
            "global_batch recompute flash_attention metric value rel_uncertainty split notes kernels",
            "vocabulary_parallel float8_recipe",
        ),
        "collectives": (
            "row_id source topology transport algorithm collective gpus nodes gpus_per_node size_bytes in_place",
            "time_us split notes rel_uncertainty",
        ),
        "kernels": (
            "row_id source device op pass m n k batch heads kv_heads seq_len head_dim causal dtype time_us split",
            "notes",
        ),
    }.items()
}
_PREFIX = {"training": "TR", "collectives": "CC", "kernels": "KN"}

Row = dict[str, Any]


def make_row(kind: str, values: Mapping[str, Any]) -> Row:
    """Put values into the columns of a kind of table; a row without ``row_id`` gets one from its contents.

    Raises
    ------
    KeyError
        If a value has no column.
    """
    columns = COLUMNS[kind]
    unknown = set(values) - set(columns)
    if unknown:
        raise KeyError(f"{kind} rows have no column {', '.join(sorted(unknown))}")
    row: Row = {name: values.get(name, "") for name in columns}
    row["split"] = row["split"] or "test"
    if not row["row_id"]:
        text = json.dumps([row[name] for name in columns[1:]], sort_keys=True, default=str)
        row["row_id"] = f"{_PREFIX[kind]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return row
