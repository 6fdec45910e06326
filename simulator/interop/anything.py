"""One call that reads any file of another tool: a plan, a model, a machine, or a log of nccl-tests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean, load_yaml, read_text
from simulator.errors import ConfigError
from simulator.interop.cluster import ImportedCluster
from simulator.interop.deepspeed import import_deepspeed
from simulator.interop.nccl_tests import CollectiveTable, import_nccl_tests, is_nccl_tests
from simulator.interop.nvml import import_nvml
from simulator.interop.record import Imported
from simulator.interop.settings import SETTINGS_IMPORTERS, import_settings, recognise_settings
from simulator.interop.topologies import TOPOLOGY_IMPORTERS, import_topology, recognise

#: format -> what it describes
KINDS: dict[str, str] = {
    **dict.fromkeys(SETTINGS_IMPORTERS, "plan or model"),
    **dict.fromkeys(TOPOLOGY_IMPORTERS, "cluster"),
    "nvml": "cluster",
    "nccl-tests": "measurements",
}
_OPTIONS = {
    "nccl-topo": {"device", "nodes"},
    "nvidia-smi": {"device", "nodes", "nic_bandwidth"},
    "lstopo": {"device", "nodes", "nic_bandwidth"},
    "slurm": {"node_of", "links"},
    "node-link": {"device"},
    "infragraph": {"device"},
    "nvml": {"device", "nodes"},
    "deepspeed": {"gpus"},
    "nccl-tests": {"gpus", "collective"},
}


def recognise_any(path: str | Path) -> list[str]:
    """Names of the formats that a file's content speaks for."""
    found = [*recognise_settings(path), *recognise(path)]
    return [*found, "nccl-tests"] if is_nccl_tests(read_text(path)) else found


def import_any(
    path: str | Path, kind: str | None = None, options: Mapping[str, Any] | None = None
) -> Imported | ImportedCluster | CollectiveTable:
    """Read a file of another tool.

    Parameters
    ----------
    path : str or Path
        The file, or the folder of a Hugging Face model; not looked at for ``nvml``, which reads this machine.
    kind : str, optional
        One of :data:`KINDS`; seen from the content otherwise.
    options : mapping, optional
        For clusters: ``device``, ``nodes``, ``nic_bandwidth``, ``node_of``, ``links``; for logs: ``gpus`` and
        ``collective``; for DeepSpeed's files: ``gpus``. None where not given.

    Raises
    ------
    ConfigError
        If the format is unknown, cannot be told, or takes no such option, or the file has faults.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    kind = kind or _kind_of(Path(path))
    if kind not in KINDS:
        raise ConfigError(f"no importer {kind!r}.{did_you_mean(kind, KINDS)}", hint=f"one of {', '.join(KINDS)}")
    idle = set(given) - _OPTIONS.get(kind, set())
    if idle:
        takes = ", ".join(_flag(name) for name in sorted(_OPTIONS.get(kind, set()))) or "no such options"
        raise ConfigError(f"{kind} does not take {', '.join(map(_flag, sorted(idle)))}", hint=f"it takes {takes}")
    if kind == "nvml":
        return import_nvml(**given)
    if kind == "nccl-tests":
        return import_nccl_tests(path, collective=given.get("collective"), n_ranks=given.get("gpus"))
    if kind == "deepspeed":
        return import_deepspeed(path, world_size=given.get("gpus", 0))
    return import_topology(path, kind, **given) if kind in TOPOLOGY_IMPORTERS else import_settings(path, kind)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _kind_of(path: Path) -> str:
    if path.is_dir():
        if (path / "config.json").is_file():
            return "hf-config"
        raise ConfigError(f"{path} is a folder without a config.json", hint="name the file itself")
    found = recognise_any(path)
    if not found and path.suffix == ".json":
        load_yaml(path)  # a fault of the syntax says more than what follows
    if len(found) == 1:
        return found[0]
    what = f"could be {' or '.join(found)}" if found else "is nothing that is known here"
    raise ConfigError(f"{path}: {what}", hint=f"say what it is with --as: {', '.join(KINDS)}")
