"""The kinds of measurement tables and their columns: what reading, grouping, predicting and writing ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulator.config import load_yaml


def names_of(text: str) -> tuple[str, ...]:
    """Split names that blanks separate."""
    return tuple(text.split())


@dataclass(frozen=True, slots=True, kw_only=True)
class TableKind:
    """One kind of measurement table, as ``kinds.yaml`` describes and declares it."""

    name: str  #: The stem of the shipped table.
    columns: tuple[str, ...]
    marks: tuple[str, ...]
    measured: str
    groups: tuple[str, ...]
    described_by: tuple[str, ...]  #: Those in :data:`WORDS` are shown without their name.
    predictor: str
    also: tuple[str, ...]


def _kind(name: str, entry: dict[str, str]) -> TableKind:
    lists = {key: names_of(text) for key, text in entry.items() if key not in ("measured", "predictor")}
    return TableKind(name=name, measured=entry["measured"], predictor=entry["predictor"], **lists)


#: kind -> what it is
KINDS = {name: _kind(name, entry) for name, entry in load_yaml(Path(__file__).with_name("kinds.yaml"))[0].items()}
#: columns of whole numbers, and of other numbers; what is in neither is text
INTEGERS = frozenset(
    names_of(
        "layers hidden heads kv_heads ffn vocab seq_len gpus dp tp pp virtual_pp cp ep micro_batch "
        "global_batch nodes gpus_per_node size_bytes m n k batch head_dim experts top_k mtp recompute_num_layers "
        "gpus_per_process tokens_per_gpu topk sms"
    )
)
NUMBERS = frozenset(("value", "time_us", "transmit_us", "notify_us", "rel_uncertainty"))
#: columns whose cells need no name beside them
WORDS = frozenset(("op", "pass", "device", "collective", "topology", "transport", "model"))
