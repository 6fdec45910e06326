"""Files of other tools among the inputs: which settings they make, and what was made of their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from simulator.cli.warnings import write_warnings
from simulator.interop import import_model, import_settings, import_topology, is_foreign, recognise_settings
from simulator.interop.deepspeed import import_deepspeed
from simulator.interop.format import Imported, ImportReport
from simulator.interop.plan_files import deepspeed_files


def model_of(options: Mapping[str, Any]) -> str | None:
    """Return the model's name or path: what is named, or the launch script that describes one."""
    return options.get("model") or options.get("megatron")


def write_notes(options: Mapping[str, Any], said: set[str]) -> None:
    """Print on standard error what the files of other tools say that nobody knows, and what they leave open."""
    for imported in _imports(options):
        _write_account(imported.file, imported.report, said)
    topology = options.get("topology")
    if topology and _is_foreign_topology(topology):
        cluster = import_topology(topology)
        _write_account(cluster.file, cluster.report, said)


def _write_account(file: str, report: ImportReport, said: set[str]) -> None:
    if report.unknown:
        write_warnings([f"{file}: unknown, left out: {', '.join(report.unknown)}"], said=said)
    write_warnings([f"{file}: assumed {text}" for text in report.assumed], said=said, kind="note")


def _imports(options: Mapping[str, Any]) -> Iterator[Imported]:
    if options.get("megatron"):
        yield import_settings(options["megatron"], "megatron")
    for path in deepspeed_files(options):
        yield import_deepspeed(path)
    plan = options.get("plan")
    if plan and recognise_settings(plan) and "deepspeed" not in recognise_settings(plan):
        yield import_settings(plan)
    if options.get("model"):
        imported = import_model(options["model"])
        if imported is not None:
            yield imported


def _is_foreign_topology(name: str) -> bool:
    from simulator.config import resolve_name

    return is_foreign(resolve_name(name, "clusters"))
