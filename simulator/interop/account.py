"""What an import found, as a document and as the file it becomes: every key accounted for, and how to use the result."""

from __future__ import annotations

from typing import Any

from simulator.errors import ConfigError
from simulator.interop.format import Imported, ImportReport
from simulator.interop.machines.cluster import ImportedCluster
from simulator.interop.measurements.nccl_tests import CollectiveTable, write_measurements
from simulator.interop.measurements.training_log import TrainingLog

#: what is told of the runs of a log -> attribute of a run
_LOG_KEYS = {
    "collective": "collective",
    "gpus": "n_ranks",
    "nodes": "n_nodes",
    "gpus_per_process": "gpus_per_process",
    "nccl": "nccl",
}


def account_of(
    found: Imported | ImportedCluster | CollectiveTable | TrainingLog,
    *,
    topology: str = "",
    transport: str = "",
    written: bool = False,
) -> tuple[dict[str, Any], str]:
    """Return the document of an import, and the text of the file that it becomes, empty unless ``written`` asks for it.

    Of a log, topology and transport are what was measured; a ConfigError says what it does not tell.
    """
    if isinstance(found, CollectiveTable):
        if written and any(not run.n_nodes for run in found.runs):
            raise ConfigError(f"{found.file}: the log does not say how many nodes took part", hint="give --nodes")
        return _of_log(found, topology, transport)
    if isinstance(found, TrainingLog):
        return _of_run(found, topology, transport)
    return _of_cluster(found, written) if isinstance(found, ImportedCluster) else _of_settings(found)


def _account(kind: str, file: str, report: ImportReport | None) -> dict[str, Any]:
    lists = {
        name: list(getattr(report, name)) if report is not None else []
        for name in ("used", "irrelevant", "unknown", "assumed")
    }
    return {"kind": kind, "file": file, **lists}


def _of_settings(found: Imported) -> tuple[dict[str, Any], str]:
    document = _account(found.kind, found.file, found.report)
    if found.settings:
        use = f"--{found.kind if found.kind in ('megatron', 'deepspeed') else 'plan'} {found.file}"
        if found.spec is not None and found.kind != "megatron":
            use += f" --model {found.file}"
        document["plan"] = found.settings
        if found.accumulation is not None and "global_batch" not in found.settings:
            document["plan"] = {**found.settings, "gradient_accumulation": found.accumulation}
    else:
        use = f"--model {found.file}"
    if found.spec is not None:
        document["model"] = found.spec.to_dict() | {"parameters": found.spec.n_parameters}
    return {**document, "use": use}, found.to_yaml() if found.settings else ""


def _of_run(found: TrainingLog, topology: str, transport: str) -> tuple[dict[str, Any], str]:
    document = _account("training-log", found.file, None)
    rows = found.measurements(topology, transport=transport)
    for name, hint in (("gpus", "give --gpus"), ("topology", "give --topology")):
        if not rows[0][name]:
            document["unknown"].append(f"{name}: the log does not tell: {hint}")
    told = {"tool": found.tool, "steps": len(found.values), "metric": found.metric, "value": float(rows[0]["value"])}
    document["measurements"] = told | found.columns | {"rows": len(rows)}
    return {**document, "use": "--csv FILE --topology NAME, then simulate validate FILE"}, write_measurements(rows)


def _of_cluster(found: ImportedCluster, written: bool) -> tuple[dict[str, Any], str]:
    document = _account(found.kind, found.file, found.report)
    found.spec()  # what is missing is said now and not when the file is used
    use = f"--topology {found.file}" if found.kind != "nvml" else "--out cluster.yaml, then --topology cluster.yaml"
    return {**document, "cluster": dict(found.data), "use": use}, found.to_yaml() if written else ""


def _of_runs(found: CollectiveTable, key: str) -> Any:
    """Return what the runs of a log agree on, or all that they say, as a list."""
    values = list(dict.fromkeys(getattr(run, key) for run in found.runs))
    return values[0] if len(values) == 1 else values


def _of_log(found: CollectiveTable, topology: str, transport: str) -> tuple[dict[str, Any], str]:
    document = _account(found.kind, found.file, None)
    rows = found.measurements(topology, transport=transport)
    document["measurements"] = {
        **{name: _of_runs(found, key) for name, key in _LOG_KEYS.items()},
        "rows": len(rows),
        "smallest_bytes": min(row.n_bytes for run in found.runs for row in run.rows),
        "largest_bytes": max(row.n_bytes for run in found.runs for row in run.rows),
    }
    use = "simulate calibrate collectives FILE --topology NAME, or --out and simulate validate"
    return {**document, "use": use}, write_measurements(rows)
