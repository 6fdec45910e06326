"""Tables of measurements that are read, and YAML files that are changed and written back."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.config import read_text
from simulator.errors import CalibrationError

if TYPE_CHECKING:
    from ruamel.yaml import YAML


def read_rows(path: Path, needed: Sequence[str], optional: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a table, optional columns filled up with blanks."""
    try:
        reader = csv.DictReader(read_text(path).splitlines(keepends=True))
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise CalibrationError(f"{path}: no column {', '.join(missing)}", hint=f"needed: {', '.join(needed)}")
        blank = dict.fromkeys(optional, "")
        return [blank | {key: value or "" for key, value in row.items() if key} for row in reader]
    except csv.Error:
        raise CalibrationError(f"{path}: is not a CSV table") from None


def plain_yaml() -> YAML:
    """Return a reader and writer that keeps comments, order and long lines of our own files."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096  # a wrapped key would not be read back
    yaml.indent(mapping=2, sequence=4, offset=2)
    return yaml
