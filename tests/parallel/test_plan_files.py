"""Plan files: unknown keys are answered with the setting that was meant."""

from __future__ import annotations

import pytest

from simulator.errors import ConfigError
from simulator.plan import load_plan


@pytest.mark.parametrize(
    ("text", "meant"),
    [("zero: 3", "sharding"), ("zero-stage: 3", "sharding"), ("mbs: 2", "micro_batch"), ("tensor_parallel: 2", "tp"),
     ("bucket_cap_mb: 25", "bucket_bytes"), ("reshard_after_forward: 8", "secondary_group"), ("shardin: zero1", "sharding")],
)  # fmt: skip
def test_other_names_are_answered_with_ours(tmp_path, text, meant):
    path = tmp_path / "plan.yaml"
    path.write_text(f"tp: 2\n{text}\n")
    with pytest.raises(ConfigError, match=rf"plan.yaml:2:1.*\n?.*Did you mean '{meant}'"):
        load_plan(path)


def test_new_settings_are_read_with_their_types(tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text("moe-imbalance: 1.5\nprefetch_elements: 5e7\ncp_comm_type: a2a\nlimit_all_gathers: false\n")
    assert load_plan(path) == {
        "moe_imbalance": 1.5, "prefetch_elements": 50_000_000, "cp_comm_type": "a2a", "limit_all_gathers": False,
    }  # fmt: skip
