"""Who ran it, on what: framework names as publications write them, the machine behind a row, and the CUDA release."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from simulator.config import load_yaml
from simulator.errors import ConfigError
from simulator.kernels.constants import release_order
from simulator.topology import load_topology
from validation.tables.reader import Row

#: what publications leave out of their tables, by subject (``publications.yaml``)
PUBLISHED: dict[str, Any] = load_yaml(Path(__file__).with_name("publications.yaml"))[0]
#: sources that quote Narayanan et al., arXiv:2104.04473, and the tables of Megatron-LM's own page until then
_OF_2021 = r"megatron-lm-2nd-table|2104\.04473|cases_(jan|april)2021|megatron-lm@5281919420"
#: GPUs that came into use with Megatron-Core or later
_YOUNG = ("hopper", "blackwell", "cdna3", "cdna4")
#: months by which the PyTorch container under NeMo's own is older (NeMo's release notes: 24.07 is built on PyTorch 2.3)
_NEMO_LAG = 3


def who_ran(row: Row) -> str:
    """Return what names the framework of a row: its own column, or in tables without it the source and the release."""
    named = row.text("framework") or f"{row.text('source')} {row.text('release')}"
    kernels = re.search(r"kernels: \w+", row.text("notes"))
    age = "of 2021" if re.search(_OF_2021, row.text("source").lower()) else ""
    age = age or ("since 2023" if load_topology(row.machine()[0]).device(0).architecture in _YOUNG else "")
    return " ".join(filter(None, (named, kernels[0] if kernels else "", age))).lower()


class Named(NamedTuple):
    """The framework that a publication names."""

    framework: str
    why: str = ""  #: What was assumed about it; empty when stated.
    settings: Mapping[str, Any] = {}  #: What the name says beside it.


def framework_of(name: str, *, model_parallel: int, sharding: str, flash: bool, only_megatron: str = "") -> Named:
    """Return the framework that a publication names.

    Names that match no rule (``NVIDIA Release 23.09``) are judged by a setting that only Megatron-Core has, if the row states
    one, by tp x pp x cp of the plan (``model_parallel``), its sharding, and whether attention is fused (``flash``).

    Examples
    --------
    >>> framework_of("Megatron-DeepSpeed, DeepSpeed 0.6.2", model_parallel=1, sharding="zero3", flash=False).framework
    'megatron-deepspeed'
    """
    text = re.sub(r"[_\s]+", " ", name.lower())
    for rule in PUBLISHED["frameworks"]:
        if _has_all(text, rule["words"]) and not any(word in text for word in rule.get("without", ())):
            chosen = rule["framework"]
            why = f"framework {chosen}: {rule['why']}" if "why" in rule else ""
            return Named(chosen, why, rule.get("settings", {}))
    if only_megatron:
        return Named(
            "megatron-core",
            f"framework megatron-core: '{name or 'not stated'}' is unknown, and {only_megatron} is Megatron-Core's",
        )
    if model_parallel > 1:
        of_nvidia = "nvidia" in text and "release" in text
        chosen = "megatron-bridge" if of_nvidia and flash else "megatron" if of_nvidia else "torch-3d"
    elif sharding in ("zero3", "hsdp"):
        chosen = "fsdp"
    else:
        chosen = "deepspeed" if sharding in ("zero1", "zero2") else "hf-eager"
    said = f"'{name}' is unknown" if name.strip() else "not stated"
    return Named(chosen, f"framework {chosen}: {said}, judged by its plan")


def _has_all(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)


def power_limit_of(notes: str, topology: str) -> str:
    """Return the power limit of a GPU whose row says that there is one; empty where nothing is said or known.

    Examples
    --------
    >>> power_limit_of("median of 100 steps; power limited", "dgx-b200")
    '750 W'
    """
    known = (one for one in PUBLISHED["power_limits"] if one["notes"] in notes and topology == one["topology"])
    return next((one["limit"] for one in known), "")


def blocks_launches(source: str, gpus: int) -> str:
    """Return why a run is known to have waited for every kernel, empty where it is not.

    Examples
    --------
    >>> blocks_launches("bigscience-workshop/bigscience@1", 8)
    ''
    """
    known = (
        one for one in PUBLISHED["launch_blocking"] if gpus >= one["gpus"] and _has_all(source.lower(), one["words"])
    )
    return next((f"launch_blocking on: {one['why']}" for one in known), "")


def machine_of(source: str, topology: str) -> tuple[str, dict[str, str], str]:
    """Return the machine behind a row, what is changed of it, and what was assumed (empty where the row's own name holds).

    Examples
    --------
    >>> machine_of("pytorch/ao@1", "dgx-h100")[0]
    'grand-teton-h100-96g'
    >>> machine_of("microsoft/DeepSpeed@1", "azure-ndm-a100-v4")[:2]
    ('azure-ndm-a100-v4', {'node.pcie.hidden': 'true'})
    >>> machine_of("NVIDIA/NeMo@1", "dgx-h100")
    ('dgx-h100', {}, '')
    """
    for one in PUBLISHED["machines"]:
        if topology == one["topology"] and _has_all(source.lower(), one["words"]):
            machine, changes = one.get("machine", topology), one.get("changes", {})
            told = "".join(f" with {key}={value}" for key, value in changes.items())
            return machine, changes, f"topology {machine}{told} for {topology}: {one['why']}"
    return topology, {}, ""


def _latest(moment: Sequence[int], releases: Sequence[dict[str, Any]]) -> str:
    """Return the CUDA release of a moment (year, month), of releases newest first."""
    return str(next((one for one in releases if list(moment) >= one["since"]), releases[-1])["cuda"])


def cuda_of(source: str, framework: str, release: str = "") -> tuple[str, str]:
    """Return the CUDA release of a run, empty for a current one, and what was assumed (empty where nothing was).

    Examples
    --------
    >>> cuda_of("mlcommons/training_results_v3.1@1", "NVIDIA NeMo Framework Release 23.09")
    ('12.2', 'cuda 12.2: container 23.09')
    >>> cuda_of("NVIDIA/NeMo@1", "", "24.07")
    ('12.4', 'cuda 12.4: container 24.07')
    >>> cuda_of("somebody", "NeMo 24.07")
    ('12.4', 'cuda 12.4: container 24.07')
    >>> cuda_of("arXiv 2402.15627", "Megatron-LM")
    ('12.1', 'cuda 12.1: published 2024-02')
    >>> cuda_of("somebody", "Megatron-LM", "2024-05")
    ('12.4', 'cuda 12.4: published 2024-05')
    >>> cuda_of("pytorch/torchtitan/pull/1690", "torchtitan", "2025-02")  # its other tables are older
    ('12.8', 'cuda 12.8: published 2025-02')
    >>> cuda_of("bigscience-workshop/bigscience@1", "Megatron-DeepSpeed")
    ('11.3', 'cuda 11.3: published 2022-02')
    >>> cuda_of("somebody", "NeMo")
    ('', '')
    """
    text = f"{source} {framework}".lower()
    named = re.search(r"release (2\d)\.(\d\d)\b", text)
    is_nemo = any(word in text for word in PUBLISHED["nemo_containers"])
    of_nemo = re.fullmatch(r"v?(2\d)\.(\d\d)(\.\d+)?", release.strip()) if is_nemo else None
    container = named or of_nemo or re.search(r"\bnemo (2\d)\.(\d\d)\b", text)
    if container:
        behind = 12 * int(container[1]) + int(container[2]) - 1 - (0 if named else _NEMO_LAG)
        found = _latest((behind // 12, behind % 12 + 1), PUBLISHED["containers"])
        return found, f"cuda {found or 'current'}: container {container[1]}.{container[2]}"
    built_on = next((made for words, made in PUBLISHED["rounds"].items() if words in text), None)
    if built_on:
        found = _latest(built_on, PUBLISHED["containers"])
        return found, f"cuda {found}: container {built_on[0]}.{built_on[1]:02} of this round"
    month = month_of(text, release)
    if month is None:
        return "", ""
    found = _latest(month, PUBLISHED["months"])
    return found, f"cuda {found or 'current'}: published {month[0]}-{month[1]:02}"


def month_of(text: str, release: str) -> tuple[int, int] | None:
    """Return the year and month of a run, from its release, its source and framework in small letters, or the number of a paper.

    Examples
    --------
    >>> month_of("pytorch/torchtitan@1", ""), month_of("pytorch/torchtitan@1", "2025-02"), month_of("somebody", "")
    ((2024, 9), (2025, 2), None)
    """
    stated = re.match(r"20(\d\d)-(\d\d)\b", release)
    known = None if stated else next((month for word, month in PUBLISHED["measured"].items() if word in text), None)
    if known is not None:
        return known[0], known[1]
    dated = stated or re.search(r"arxiv[: ]*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}", text)
    return (2000 + int(dated[1]), int(dated[2])) if dated else None


def known_to(topology: str, cuda: str, why: str) -> tuple[str, str]:
    """Return a CUDA release that was assumed, or the first that knows the GPUs of a cluster where that is a later one; none of AMD's.

    Examples
    --------
    >>> known_to("dgx-b200", "12.4", "cuda 12.4: published 2025-01")
    ('12.8', 'cuda 12.8: the first that knows b200')
    >>> known_to("selene", "11.1", "cuda 11.1: published 2021-04")
    ('11.1', 'cuda 11.1: published 2021-04')
    >>> known_to("mi300x-8", "12.8", "cuda 12.8: published 2025-06")
    ('', '')
    """
    device, first, vendor = _first_cuda(topology)
    if vendor not in ("", "NVIDIA"):
        return "", ""
    if not cuda or not first or release_order(cuda) >= release_order(first):
        return cuda, why
    return first, f"cuda {first}: the first that knows {device}"


@cache
def _first_cuda(topology: str) -> tuple[str, str, str]:
    """Return the device of a cluster, the first CUDA release that knows it, and its vendor."""
    try:
        device = load_topology(topology).device(0)
    except ConfigError:  # a machine that is not shipped
        return "", "", ""
    return device.name, device.first_cuda, device.vendor
