"""Files of other tools: models, plans, machines and measurements, read and, where a format holds plans, written.

A new format is one file with a :class:`Format`, and one line in :data:`FORMATS`.
"""

from __future__ import annotations

import re
import shlex
from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.config import data_folders, did_you_mean, load_yaml, read_text, resolve_name
from simulator.errors import ConfigError
from simulator.interop.format import HUB, Format, Imported
from simulator.models.catalog import CATALOG, find_spec
from simulator.models.spec import ModelSpec
from simulator.topology import Topology, load_topology

if TYPE_CHECKING:
    from simulator.interop.machines.cluster import ImportedCluster
    from simulator.interop.measurements.nccl_tests import CollectiveTable
    from simulator.interop.measurements.training_log import TrainingLog


class Formats(UserDict[str, Any]):
    """Formats by name, each loaded when it is first looked at: most runs read no file of another tool.

    What is not loaded yet is a module of this package and the format in it, as ``room.module.NAME``.
    """

    def __getitem__(self, name: str) -> Format:
        found = self.data[name]
        if isinstance(found, str):
            module, _, attribute = found.rpartition(".")
            found = self.data[name] = getattr(import_module(f"{__name__}.{module}"), attribute)
        assert isinstance(found, Format)
        return found


#: name -> format
FORMATS = Formats(
    {
        "hf-config": "models.hf_config.HF_CONFIG",
        "safetensors": "models.weights.SAFETENSORS",
        "gguf": "models.weights.GGUF",
        "megatron": "trainers.megatron_flags.MEGATRON",
        "nemo": "trainers.nemo.NEMO",
        "deepspeed": "trainers.deepspeed.DEEPSPEED",
        "torchtitan": "trainers.torchtitan.TORCHTITAN",
        "accelerate": "trainers.accelerate.ACCELERATE",
        "trainer": "trainers.trainer.TRAINER",
        "torchtune": "trainers.torchtune.TORCHTUNE",
        "llm-foundry": "trainers.llm_foundry.LLM_FOUNDRY",
        "nanotron": "trainers.nanotron.NANOTRON",
        "automodel": "trainers.automodel_yaml.AUTOMODEL",
        "olmo-core": "trainers.olmo_core.OLMO_CORE",
        "nccl-topo": "machines.nccl_topo.NCCL_TOPO",
        "nvidia-smi": "machines.nvidia_smi.NVIDIA_SMI",
        "nvidia-smi-xml": "machines.nvidia_smi.SMI_INVENTORY",
        "rocm-smi": "machines.rocm_smi.ROCM_SMI",
        "slurm": "machines.slurm_topology.SLURM",
        "ib-fabric": "machines.ib_fabric.IB_FABRIC",
        "kubernetes": "machines.kubernetes.KUBERNETES",
        "lstopo": "machines.lstopo.LSTOPO",
        "node-link": "machines.node_link.NODE_LINK",
        "infragraph": "machines.infragraph.INFRAGRAPH",
        "astra-network": "machines.astra_network.ASTRA_NETWORK",
        "nvml": "machines.nvml.NVML",
        "nccl-tests": "measurements.nccl_tests.NCCL_TESTS",
        "bandwidth-log": "measurements.bandwidth_log.BANDWIDTH_LOG",
        "training-log": "measurements.training_log.TRAINING_LOG",
    }
)
_SETTINGS = ("model", "plan", "plan and model")


def recognise(path: str | Path, gives: tuple[str, ...] = ()) -> list[str]:
    """Return the names of the formats that a file's content speaks for; only of those that give one of these, if any."""
    from simulator.interop.models.weights import binary_kind

    binary = binary_kind(path)
    if binary:
        return [binary] if not gives or FORMATS[binary].gives in gives else []
    text = read_text(path)
    found = [name for name, one in FORMATS.items() if (not gives or one.gives in gives) and one.sniff(text)]
    return ["training-log"] if "training-log" in found else found  # a log repeats the settings of its run


def import_any(
    path: str | Path,
    kind: str | None = None,
    options: Mapping[str, Any] | None = None,
    *,
    gives: tuple[str, ...] = (),
) -> Imported | ImportedCluster | CollectiveTable | TrainingLog:
    """Read a file of another tool.

    Parameters
    ----------
    path : str or Path
        The file, or the folder of a Hugging Face model; not looked at for ``nvml``, which reads this machine.
    kind : str, optional
        One of :data:`FORMATS`; seen from the content otherwise.
    options : mapping, optional
        What ``simulate import`` takes; None where not given.
    gives : tuple of str
        Only formats that give one of these; any unless named.
    """
    given = {name: value for name, value in (options or {}).items() if value is not None}
    kind = _known(kind or _kind_of(Path(path), gives), gives)
    takes = FORMATS[kind].options
    idle = [_flag(name) for name in sorted(set(given) - set(takes))]
    if idle:
        hint = f"it takes {', '.join(map(_flag, takes)) or 'no such options'}"
        raise ConfigError(f"{kind} does not take {', '.join(idle)}", hint=hint)
    try:
        return FORMATS[kind].read(path, **given)
    except ConfigError as error:  # of a model or plan that nothing can be, which knows of no file
        if str(path) in error.message:
            raise
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from None


def _known(kind: str, gives: tuple[str, ...]) -> str:
    """Return the name of a format if there is one that gives such things."""
    known = [name for name, one in FORMATS.items() if not gives or one.gives in gives]
    if kind not in known:
        raise ConfigError(f"no importer {kind!r}.{did_you_mean(kind, known)}", hint=f"one of {', '.join(known)}")
    return kind


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _kind_of(path: Path, gives: tuple[str, ...]) -> str:
    if path.is_dir():
        from simulator.interop.models.hf_config import config_of

        if config_of(path).is_file():
            return "hf-config"
        raise ConfigError(f"{path} is a folder without a config.json", hint="name the file itself")
    found = recognise(path, gives)
    if not found and path.suffix == ".json":
        load_yaml(path)  # a fault of the syntax says more than what follows
    if len(found) == 1:
        return found[0]
    known = [name for name, one in FORMATS.items() if not gives or one.gives in gives]
    what = f"could be {' or '.join(found)}" if found else "has no known format"
    raise ConfigError(f"{path}: {what}", hint=f"say what it is with --as: {', '.join(known)}")


# ---- models and plans --------------------------------------------------------------------------------------------


def import_settings(path: str | Path, kind: str | None = None, options: Mapping[str, Any] | None = None) -> Imported:
    """Read another tool's model or plan; see :func:`import_any`.

    A launch script may have its arguments and variables behind its path: ``"train.sh 8B 4 NNODES=2"``.
    """
    if is_command(path):
        name, *rest = split_command(str(path))
        define = [word for word in rest if re.match(r"[A-Za-z_]\w*=", word)]
        args = [shlex.quote(word) for word in rest if word not in define]
        placed = [word for word in rest if re.fullmatch(r"\d{1,3}=.*", word, re.DOTALL)]
        given = {"args": placed or ([" ".join(args)] if args else None), "define": define or None}
        return import_settings(name, "megatron", {**(options or {}), **given})
    imported = import_any(path, kind, options, gives=_SETTINGS)
    assert isinstance(imported, Imported)
    return imported


def is_command(path: str | Path) -> bool:
    """Whether a text is a script with arguments behind its path, and no path itself."""
    text = str(path)
    return " " in text.strip() and not Path(text).exists() and Path(split_command(text)[0]).is_file()


def split_command(text: str) -> list[str]:
    """Return the words of a script and its arguments; ConfigError where a quotation mark is not closed."""
    try:
        return shlex.split(text) or [""]
    except ValueError as error:
        raise ConfigError(f"{text!r:.80}: {error}", hint="quote arguments as a shell would") from None


def recognise_settings(path: str | Path) -> list[str]:
    """Return the names of the formats of models and plans that a file's content speaks for."""
    return recognise(path, _SETTINGS)


def load_model(name_or_path: str) -> ModelSpec:
    """Return the model that a catalogue name or a file means.

    Parameters
    ----------
    name_or_path : str
        A path to a Hugging Face ``config.json`` or the folder that holds one, or to another tool's file that
        describes a model (a Megatron-LM script, a torchtitan file); ``hf:NAME`` for a configuration in the cache
        of transformers; otherwise a catalogue name.

    Raises
    ------
    ConfigError
        If neither exists, or the file cannot be understood.
    """
    imported = import_model(name_or_path)
    if imported is None:
        return find_spec(name_or_path)
    assert imported.spec is not None
    return imported.spec


def import_model(name_or_path: str) -> Imported | None:
    """Return a model that is not of the catalogue, with the account of its file; None for a catalogue name."""
    if name_or_path.startswith(HUB):
        from simulator.interop.models.hub import import_hub_model

        return import_hub_model(name_or_path.removeprefix(HUB))
    if is_command(name_or_path):
        return import_settings(name_or_path)
    path = Path(name_or_path).expanduser()
    if name_or_path in CATALOG and not path.suffix:
        return None
    if path.is_dir():
        return import_settings(path)
    if not path.is_file():
        if path.suffix in (".json", ".sh", ".gguf", ".safetensors", ".toml", ".yaml", ".yml"):
            hint = "give the path of a Hugging Face config.json, or a name"
            raise ConfigError(f"no file '{name_or_path}'", hint=hint)
        return None
    if path.suffix == ".json" and not recognise_settings(path):
        from simulator.interop.models.hf_config import import_hf_config

        return import_hf_config(path)
    imported = import_settings(path)
    if imported.spec is None:
        what = f"{name_or_path} ({imported.kind}) describes no model"
        raise ConfigError(what, hint=f"give it as --plan {name_or_path}, and --model beside it")
    return imported


# ---- machines ----------------------------------------------------------------------------------------------------


def import_topology(path: str | Path, kind: str | None = None, **options: Any) -> ImportedCluster:
    """Read another tool's picture of a machine, with the keyword arguments of its reader; see :func:`import_any`."""
    from simulator.interop.machines.cluster import ImportedCluster

    try:
        imported = FORMATS[_known(kind or _kind_of(Path(path), ("cluster",)), ("cluster",))].read(path, **options)
    except ConfigError as error:
        if options or not error.hint.startswith("give --"):
            raise
        flags = error.hint.removeprefix("give ")
        hint = f"simulate import {path} --out cluster.yaml, with {flags}; then --topology cluster.yaml"
        raise ConfigError(error.message, hint=hint) from None
    assert isinstance(imported, ImportedCluster)
    return imported


def open_topology(
    name_or_path: str | Path,
    n_gpus: int | None = None,
    *,
    gpus_per_node: int | None = None,
    overrides: Mapping[str, object] | None = None,
    **options: Any,
) -> Topology:
    """Load a cluster from anything: a shipped name, our own file, or another tool's.

    Parameters
    ----------
    name_or_path : str or Path
        See :func:`simulator.topology.load_topology`; other formats are recognised by their content.
    n_gpus, gpus_per_node, overrides : optional
        As for :func:`simulator.topology.load_topology`.
    **options
        For the importer.
    """
    path = resolve_name(name_or_path, "clusters")
    if not is_foreign(path):
        return load_topology(path, n_gpus, gpus_per_node=gpus_per_node, overrides=overrides)
    cluster = import_topology(path, **options)
    return cluster.topology(n_gpus, gpus_per_node=gpus_per_node, overrides=overrides)


def is_foreign(path: str | Path) -> bool:
    """Whether a file is another tool's picture of a machine, and not a cluster file of ours."""
    if Path(path).parent in data_folders("clusters"):
        return False
    from simulator.interop.models.weights import binary_kind

    if binary_kind(path):
        return False
    text = read_text(path)
    theirs = any(FORMATS[name].sniff(text) for name in ("slurm", "infragraph", "astra-network", "kubernetes"))
    return (theirs or Path(path).suffix not in (".yaml", ".yml")) and bool(recognise(path, ("cluster",)))


__all__ = [
    "FORMATS",
    "Format",
    "Imported",
    "import_any",
    "import_model",
    "import_settings",
    "import_topology",
    "is_command",
    "is_foreign",
    "load_model",
    "open_topology",
    "recognise",
    "recognise_settings",
    "split_command",
]
