"""The names that people give settings: keys of plans with hyphens or underscores, aliases, and what other tools call them."""

from __future__ import annotations

from typing import Any

from simulator.errors import ConfigError
from simulator.plan.fields import Setting
from simulator.plan.parallel_plan import SETTINGS

_KEYS = {alias: key for key, one in SETTINGS.items() for alias in (key, *one.aliases)}
#: what other tools call a setting of which they have another unit or other values
OTHER_NAMES = {
    "fsdp": "sharding", "interleave": "virtual_pp", "batch_size": "global_batch", "dtype": "precision",
    "activation_checkpointing": "recompute", "checkpointing": "recompute", "bucket_cap_mb": "bucket_bytes",
    "reduce_bucket_size": "bucket_bytes", "overlap_comm": "overlap", "overlap_grad_reduce": "overlap",
    "tp_comm_overlap": "asynchronous_tp", "zero_hpz_partition_size": "secondary_group",
    "reshard_after_forward": "secondary_group",
}  # fmt: skip
#: what other tools call what is one value of a setting here -> what to say
OTHER_VALUES = {
    "overlap_moe_expert_parallel_comm": "schedule=1f1b-combined", "moe_enable_deepep": "moe_dispatcher=deepep",
}  # fmt: skip


def setting_named(name: str) -> Setting | None:
    """Return the setting of a name, with hyphens or underscores or an alias; None where there is none.

    Examples
    --------
    >>> setting_named("micro-batch").key, setting_named("zero").parse(3)
    ('micro_batch', 'zero3')
    """
    key = name.strip().replace("-", "_").lower()
    if key in OTHER_NAMES:
        raise ConfigError(f"there is no setting '{name}'. Did you mean {OTHER_NAMES[key]!r}?")
    if key in OTHER_VALUES:
        raise ConfigError(f"'{name}' is not a setting", hint=OTHER_VALUES[key])
    return SETTINGS.get(_KEYS.get(key, ""))


def parse_setting(name: str, value: object) -> tuple[str, Any] | None:
    """Return the key of a setting and the value that is meant, None where there is no such setting."""
    one = setting_named(name)
    return None if one is None else (one.key, one.parse(value))
