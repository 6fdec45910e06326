"""Tables of measurements as CSV files: columns that must be there, columns that may."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from simulator.errors import CalibrationError


def read_rows(path: Path, needed: Sequence[str], optional: Sequence[str]) -> list[dict[str, str]]:
    """Read the rows of a table, optional columns filled up with blanks.

    Parameters
    ----------
    path : Path
        A CSV file in UTF-8 with a header.
    needed, optional : sequence of str
        Columns that must and that may be there; others are kept as they are.

    Raises
    ------
    CalibrationError
        If the file cannot be read or lacks a column that must be there.
    """
    try:
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.DictReader(handle)
            missing = [name for name in needed if name not in (reader.fieldnames or ())]
            if missing:
                raise CalibrationError(
                    f"{path}: no column {', '.join(missing)}", hint=f"needed are {', '.join(needed)}"
                )
            blank = dict.fromkeys(optional, "")
            return [blank | {key: value or "" for key, value in row.items() if key} for row in reader]
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error):
        raise CalibrationError(f"{path}: is not a CSV table in UTF-8") from None
