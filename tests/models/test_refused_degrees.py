"""Degrees that a model refuses, and the ones that its hint names."""

from __future__ import annotations

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.models.build import build_model
from simulator.models.catalog import CATALOG, rename
from simulator.models.setting import RankSetting


def built(spec, tp):
    return build_model(spec, RankSetting(micro_batch=2, sequence_length=256, tp=tp))


def test_a_refused_degree_is_told_the_largest_that_all_sizes_allow():
    """nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16, config.json: 32 heads, 8 groups of Mamba-2."""
    with pytest.raises(InfeasiblePlanError, match="tp=3") as caught:
        built(rename(CATALOG["nemotron-3-nano"], "x"), tp=3)
    assert caught.value.hint == "tp must divide 8"


@pytest.mark.parametrize(
    ("kv_heads", "ffn", "tp", "hint"),
    [
        (6, 8000, 4, "tp must divide 2"), (8, 8000, 5, "tp must divide 8"), (1, 8000, 3, "tp must divide 8"),
        (3, 2400, 4, "tp must be one of 1, 3, 6, 12, 24"),
    ],
)  # fmt: skip
def test_a_degree_that_the_hint_names_is_not_refused_in_its_turn(kv_heads, ffn, tp, hint):
    """24 heads and 8,000 rows of the MLP have 8 in common; of six key-value heads ranks get whole ones, or one is copied to several."""
    spec = rename(CATALOG["llama2-7b"], "x", layers=2, hidden=1536, heads=24, kv_heads=kv_heads, ffn_hidden=ffn)
    with pytest.raises(InfeasiblePlanError, match=f"tp={tp} ") as caught:
        built(spec, tp)
    assert caught.value.hint == hint
    assert built(spec, tp=int(hint.rpartition(" ")[2])).layers
