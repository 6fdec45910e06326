"""What the functions and launch scripts behind published runs set beside the cells of a row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simulator.config import load_yaml
from validation.tables.reader import Row

#: what a script sets for a model on some machines, from a release on and before another (``launchers.yaml`` describes the entries)
LAUNCHERS: list[dict[str, Any]] = load_yaml(Path(__file__).with_name("launchers.yaml"))[0]


def _fits(launcher: dict[str, Any], row: Row) -> bool:
    since, before = launcher["releases"]
    stated = {key: row.text(key).lower() for key in ("model", "precision")}
    return (
        launcher["source"] in row.text("source").lower()
        and since <= row.text("release").removeprefix("v") < before
        and all(word in launcher.get(f"{key}s", [word]) for key, word in stated.items())
        and row.text("topology").startswith(tuple(launcher.get("machines", ("",))))
        and (not launcher.get("beside") or row.flag("recipe_matches") is False)
    )


def launcher_of(row: Row) -> dict[str, Any]:
    """Return what is known of the script that a row's run was launched by; empty where nothing is."""
    return next((launcher for launcher in LAUNCHERS if _fits(launcher, row)), {})


def launched_fields(row: Row, layers: int, stages: int, assumed: list[str]) -> dict[str, Any]:
    """Return the settings of the script that a row's run was launched by."""
    launcher = launcher_of(row)
    fields: dict[str, Any] = dict(launcher.get("settings", {}))
    if "recompute" in launcher and not row.text("recompute_modules"):
        modules = launcher["recompute"]
        is_none = modules == "none"
        fields |= {"recompute": "none"} if is_none else {"recompute": "selective", "recompute_modules": modules}
    if launcher.get("trims_ends") and stages > 1:
        each = -(-layers // stages)
        fields |= {"first_stage_layers": each - 1, "last_stage_layers": each - 2}
    if fields:
        assumed += [
            f"{', '.join(f'{key} {value}' for key, value in fields.items())}: the launch script of this release"
        ]
    return fields
