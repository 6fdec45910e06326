"""Writing what people keep: whole or not at all, and without cells that a spreadsheet would run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from simulator.errors import ConfigError

#: what begins a formula in a spreadsheet
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def write_file(path: str | Path, text: str) -> None:
    """Write a text beside its place and rename it, so that nobody finds half of it; devices and pipes are written to."""
    path = Path(path)
    is_plain = path.is_file() or not path.exists()
    target = path.resolve() if path.is_symlink() else path
    partial = target.with_name(f"{target.name}.{os.getpid()}.tmp") if is_plain else path
    try:
        partial.write_text(text, encoding="utf-8", errors="replace")
        if is_plain:
            os.replace(partial, target)
    except (OSError, ValueError) as error:
        if is_plain:
            partial.unlink(missing_ok=True)
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        raise ConfigError(f"{path}: cannot be written: {reason}") from None


def cell(value: Any) -> Any:
    """Return a value as a CSV file may hold it: a text that a spreadsheet would take for a formula is quoted.

    Examples
    --------
    >>> cell("=cmd"), cell("-1.5"), cell("bigred200"), cell(-2)
    ("'=cmd", '-1.5', 'bigred200', -2)
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value
