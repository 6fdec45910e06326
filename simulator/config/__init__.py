"""From YAML or JSON to frozen specs: every fault of a file at once, each with its line and column.

A file may build on another (``extends``), and values may come from the command line: each layer has a
:class:`Locator` whose ``base`` is the layer below. Quantities in files are strings with a unit.
"""

from __future__ import annotations

from simulator.config.layers import load_layers, merge
from simulator.config.names import data_folders, did_you_mean, listed, near_misses, resolve_name, shipped_names
from simulator.config.notebook_tables import notebook_table
from simulator.config.specs import (
    Bandwidth,
    Bytes,
    Compute,
    Frequency,
    Latency,
    Power,
    Spec,
    Time,
    complaint,
    load_spec,
    validate,
)
from simulator.config.text import (
    MOST_DIGITS,
    DepthError,
    Fault,
    KeyPath,
    Locator,
    Place,
    beside,
    cell,
    check_place,
    content_in_words,
    dotted_path,
    keep_inputs,
    kind_in_words,
    leaves,
    load_yaml,
    open_file,
    parse_json,
    parse_yaml,
    raise_faults,
    read_text,
    write_file,
)

__all__ = [
    "MOST_DIGITS",
    "Bandwidth",
    "Bytes",
    "Compute",
    "DepthError",
    "Fault",
    "Frequency",
    "KeyPath",
    "Latency",
    "Locator",
    "Place",
    "Power",
    "Spec",
    "Time",
    "beside",
    "cell",
    "check_place",
    "complaint",
    "content_in_words",
    "data_folders",
    "did_you_mean",
    "dotted_path",
    "keep_inputs",
    "kind_in_words",
    "leaves",
    "listed",
    "load_layers",
    "load_spec",
    "load_yaml",
    "merge",
    "near_misses",
    "notebook_table",
    "open_file",
    "parse_json",
    "parse_yaml",
    "raise_faults",
    "read_text",
    "resolve_name",
    "shipped_names",
    "validate",
    "write_file",
]
