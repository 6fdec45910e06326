"""The names that people give settings: keys of plans with hyphens or underscores, aliases, and what other tools call them."""

from __future__ import annotations

from collections.abc import Mapping
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
#: what other tools switch on that is one value of a setting here, which switched off is any other -> the setting and that value
SWITCHES = {
    "overlap_moe_expert_parallel_comm": ("schedule", "1f1b-combined"), "moe_enable_deepep": ("moe_dispatcher", "deepep"),
}  # fmt: skip


def _plain(name: str) -> str:
    return name.strip().removeprefix("plan.").replace("-", "_").lower()


def setting_named(name: str) -> Setting | None:
    """Return the setting of a name, with hyphens or underscores or an alias; None where there is none.

    Examples
    --------
    >>> setting_named("micro-batch").key, setting_named("zero").parse(3)
    ('micro_batch', 'zero3')
    """
    key = _plain(name)
    if key in OTHER_NAMES:
        raise ConfigError(f"there is no setting '{name}'. Did you mean {OTHER_NAMES[key]!r}?")
    if is_switch(name):
        raise ConfigError(f"'{name}' is not a setting", hint="=".join(SWITCHES[key]))
    return SETTINGS.get(_KEYS.get(key, ""))


def is_switch(name: str) -> bool:
    """Whether a name is that of another tool's switch; where settings are read these come last, which must not contradict any.

    Examples
    --------
    >>> sorted(["moe-enable-deepep", "tp", "moe_dispatcher"], key=is_switch)
    ['tp', 'moe_dispatcher', 'moe-enable-deepep']
    """
    return _plain(name) in SWITCHES


def switched(name: str, value: object, beside: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a switch of another tool sets: a setting where it is on, nothing where it is off; None for any other name.

    Parameters
    ----------
    beside : mapping
        Settings that the same people made, by key.

    Raises
    ------
    ConfigError
        Where these say something else.

    Examples
    --------
    >>> switched("moe-enable-deepep", True, {}), switched("moe_enable_deepep", False, {}), switched("tp", 2, {})
    ({'moe_dispatcher': 'deepep'}, {}, None)
    """
    if not is_switch(name):
        return None
    key, meant = SWITCHES[_plain(name)]
    is_on = Setting(key=name, group="", doc="", kind=bool, default=True).parse(value)
    if key in beside and (beside[key] == meant) != is_on:
        means = f"true is {key}={meant}" if is_on else f"false is any other {key}"
        raise ConfigError(f"{name}={means}, but {key}={beside[key]} is also given", hint="remove one of the two")
    return {key: meant} if is_on else {}


def parse_settings(name: str, value: object, beside: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the settings that a name and a value make, none where it is a switch that is off; None where there is no such name.

    ``beside`` is as for :func:`switched`.
    """
    made = switched(name, value, beside)
    if made is not None:
        return made
    one = setting_named(name)
    return None if one is None else {one.key: one.parse(value)}
