"""Who ran it: framework names as publications write them, the entry of ``FRAMEWORKS`` that they mean, and the CUDA release."""

from __future__ import annotations

import re
from typing import NamedTuple

from validation.tables.reader import Row


class Rule(NamedTuple):
    """One line of the table: all of ``words`` and none of ``without`` occur in the name, any case."""

    words: tuple[str, ...]
    framework: str
    without: tuple[str, ...] = ()
    why: str = ""


#: first match wins; names that match nothing are judged by their plan (see :func:`framework_of`)
RULES: tuple[Rule, ...] = (
    Rule(("training results v5", "amd/results"), "megatron-core", why="AMD's submissions run Megatron-LM"),
    Rule(("training results v5",), "megatron-bridge", why="NVIDIA's code of MLPerf 5, which others submit too"),
    Rule(("llama 3 herd",), "llama3-4d", why="Meta's own: FSDP under pipelines, fused kernels"),
    Rule(("pytorch ddp",), "torch-ddp"),
    Rule(("pytorch fsdp2",), "torch-fsdp2"),
    Rule(("pytorch dtensor",), "torch-tp"),
    Rule(("pytorch pipelining",), "torch-pp"),
    Rule(("torchtitan", "compile"), "torchtitan-compile"),
    Rule(("torchtitan", "float8"), "torchtitan-compile", why="torchtitan's float8 needs compile"),
    Rule(("torchtitan", "async"), "torchtitan-compile", why="torchtitan's async TP needs compile"),
    Rule(("torchtitan",), "torchtitan"),
    Rule(("megatron", "deepspeed"), "megatron-deepspeed"),
    Rule(("llm.c",), "fused"),
    Rule(("foundry",), "llm-foundry"),
    Rule(("composer",), "llm-foundry"),
    Rule(("megatron-lm 2019",), "torch-3d-fused-norm", why="before Megatron's fused bias, dropout and softmax kernels"),
    Rule(("nemo megatron 2022",), "megatron", why="NeMo before Megatron-Core"),
    Rule(("automodel", "kernels: te"), "automodel-te"),
    Rule(("automodel",), "automodel"),
    Rule(("nvidia/megatron-lm", "deepseek"), "megatron-core"),
    Rule(("megatron-bridge",), "megatron-bridge"),
    Rule(("dgxc-benchmarking",), "megatron-bridge", why="NVIDIA's recipes"),
    Rule(("primus",), "megatron-core", why="AMD Primus runs Megatron-Core"),
    Rule(("pytorch/ao",), "torchtitan-compile", why="float8 of torchao needs compile"),
    Rule(("nemo",), "megatron-bridge", why="NVIDIA's recipes: tensor-parallel overlap, 16-bit gradients"),
    Rule(("megatron-core",), "megatron-core"),
    Rule(("megatron core",), "megatron-core"),
    Rule(("mcore",), "megatron-core"),
    Rule(("transformer engine",), "megatron-core"),
    Rule(("internevo",), "internevo"),
    Rule(("internlm",), "internevo", why="InternLM is trained with InternEvo"),
    Rule(("nanotron",), "torch-3d-fused-norm", why="eager modules, Triton's norms, FlashAttention"),
    Rule(("megascale",), "megatron-core"),
    Rule(("megatron", "of 2021"), "megatron-2021", why="before the all-reduce beside weight gradients of 2022"),
    Rule(("megatron",), "megatron"),
    Rule(("aleph alpha", "fused rmsnorm"), "scaling-fused-norm"),
    Rule(("aleph alpha",), "scaling"),
    Rule(("colossal",), "torch-3d", why="Shardformer over Hugging Face's modules"),
    Rule(("torchtune", "compile"), "torchtitan-compile", why="fully_shard with torch.compile"),
    Rule(("torchtune",), "fsdp2", why="fully_shard over eager modules"),
    Rule(("olmo-core",), "torchtitan-compile", why="fully_shard with torch.compile"),
    Rule(("olmo",), "fsdp", why="FSDP over eager modules"),
    Rule(("gpt-neox",), "megatron-deepspeed"),
    Rule(("fsdp", "compile"), "torchtitan-compile", why="FSDP with torch.compile"),
    Rule(("fsdp",), "fsdp"),
    Rule(
        ("deepspeed", "of 2021"),
        "deepspeed-0.3",
        why="Narayanan et al. (2021) ran the ZeRO-3 that had just come, below Megatron-LM",
    ),
    Rule(("deepspeed",), "deepspeed"),
    Rule(("apex", "21.11"), "apex-ddp-fused", why="the release that fused attention and pointwise"),
    Rule(("apex",), "apex-ddp", why="fused norms and optimizer only"),
    Rule(("paddle",), "apex-ddp-fused", why="PaddlePaddle Fleet fuses as apex's last release"),
    Rule(("compile",), "compiled-ddp", without=("torch.compiler.disable",)),
    Rule(("hugging face",), "hf-eager"),
    Rule(("huggingface",), "hf-eager"),
    Rule(("transformers",), "hf-eager"),
    Rule(("eager",), "hf-eager"),
    Rule(("accelerate",), "hf-eager"),
)


#: sources that quote Narayanan et al., arXiv:2104.04473, and the tables of Megatron-LM's own page until then
_OF_2021 = r"megatron-lm-2nd-table|2104\.04473|cases_(jan|april)2021|megatron-lm@5281919420"


def who_ran(row: Row) -> str:
    """Return what names the framework of a row: its own column, or in tables without it the source and the release."""
    named = row.text("framework") or f"{row.text('source')} {row.text('release')}"
    kernels = re.search(r"kernels: \w+", row.text("notes"))
    age = "of 2021" if re.search(_OF_2021, row.text("source").lower()) else ""
    return " ".join(filter(None, (named, kernels[0] if kernels else "", age))).lower()


def framework_of(name: str, *, model_parallel: int, sharding: str, flash: bool) -> tuple[str, str]:
    """Return the framework that a publication names, and what was assumed about it (empty when stated).

    Parameters
    ----------
    name : str
        The ``framework`` cell.
    model_parallel : int
        tp x pp x cp of the plan: names that match no rule (``NVIDIA Release 23.09``) are judged by it.
    sharding : str
        Sharding of the plan, for the same purpose.
    flash : bool
        Whether attention is fused.

    Examples
    --------
    >>> framework_of("Megatron-DeepSpeed, DeepSpeed 0.6.2", model_parallel=1, sharding="zero3", flash=False)
    ('megatron-deepspeed', '')
    """
    text = re.sub(r"[_\s]+", " ", name.lower())
    for rule in RULES:
        if all(word in text for word in rule.words) and not any(word in text for word in rule.without):
            chosen = rule.framework
            return chosen, f"framework {chosen}: {rule.why}" if rule.why else ""
    if model_parallel > 1:
        of_nvidia = "nvidia" in text and "release" in text
        chosen = "megatron-bridge" if of_nvidia and flash else "megatron" if of_nvidia else "torch-3d"
    elif sharding in ("zero3", "hsdp"):
        chosen = "fsdp"
    else:
        chosen = "deepspeed" if sharding in ("zero1", "zero2") else "hf-eager"
    return chosen, f"framework {chosen}: '{name or 'not stated'}' is unknown, judged by its plan"


#: sources whose rows name the board, not the machine: words of the source, topology of the row, machine, and how it is known
_MACHINES = (
    (
        ("pytorch/ao",),
        "dgx-h100",
        "grand-teton-h100-96g",
        "torchtitan's authors state 500 W for the H100s that they and torchao are measured on",
    ),
)


#: words of a row's notes, GPU, and the limit of its power: pytorch/ao's pull request 3566 tells its 750 W machine from a full one
_LIMITS = (("power limited", "dgx-b200", "750 W"),)


def power_limit_of(notes: str, topology: str) -> str:
    """Return the power limit of a GPU whose row says that there is one; empty where nothing is said or known.

    Examples
    --------
    >>> power_limit_of("median of 100 steps; power limited", "dgx-b200")
    '750 W'
    """
    return next((limit for words, machine, limit in _LIMITS if words in notes and topology == machine), "")


#: sources that say which of their runs had CUDA_LAUNCH_BLOCKING=1: words of the source, from how many GPUs, and where it is said
_BLOCKING = ((("bigscience",), 320, "chronicles-prequel.md: runs on 320 GPUs and more hang without"),)


def blocks_launches(source: str, gpus: int) -> str:
    """Return why a run is known to have waited for every kernel, empty where it is not.

    Examples
    --------
    >>> blocks_launches("bigscience-workshop/bigscience@1", 8)
    ''
    """
    found = (why for words, least, why in _BLOCKING if gpus >= least and all(word in source.lower() for word in words))
    return next((f"launch_blocking on: {why}" for why in found), "")


def machine_of(source: str, topology: str) -> tuple[str, str]:
    """Return the machine behind a row, and what was assumed about it (empty where the row's own name holds).

    Examples
    --------
    >>> machine_of("pytorch/ao@1", "dgx-h100")[0]
    'grand-teton-h100-96g'
    >>> machine_of("NVIDIA/NeMo@1", "dgx-h100")
    ('dgx-h100', '')
    """
    for words, named, machine, why in _MACHINES:
        if topology == named and all(word in source.lower() for word in words):
            return machine, f"topology {machine} for {named}: {why}"
    return topology, ""


#: first NGC container of a CUDA release, newest first (NVIDIA frameworks support matrix); from 25.10 on what is timed is current
_CONTAINERS = (
    ((25, 10), ""),
    ((25, 8), "13.0"),
    ((25, 4), "12.9"),
    ((25, 1), "12.8"),
    ((24, 6), "12.6"),
    ((24, 2), "12.4"),
    ((23, 6), "12.2"),
    ((23, 1), "12.1"),
    ((22, 9), "11.8"),
)
#: sources whose ``release`` is NeMo's container
_OF_NEMO = ("nvidia/nemo@", "nvidia-nemo/megatron-bridge", "nvidia/dgxc-benchmarking")
#: months by which the PyTorch container under NeMo's own is older (NeMo's release notes: 24.07 is built on PyTorch 2.3)
_NEMO_LAG = 3
#: what PyTorch's wheels and NVIDIA's containers of a month came with, newest first; from CUDA 12.6 on it is current
_MONTHS = (
    ((2025, 10), ""),
    ((2025, 2), "12.8"),
    ((2024, 10), "12.6"),
    ((2024, 3), "12.4"),
    ((2023, 1), "12.1"),
    ((2022, 9), "11.8"),
    ((2020, 1), "11.3"),
)
#: projects whose tables carry no date in the row: words of source and framework, and the month they were measured
_PROJECTS = (
    (("bigscience",), (2022, 2)),
    (("llm-foundry",), (2023, 11)),
    (("fms-fsdp",), (2024, 3)),
    (("pytorch/ao",), (2025, 8)),
    (("torchtitan",), (2024, 9)),
    (("megatron-core r0.8",), (2024, 7)),
    (("training_results_v3.0",), (2023, 6)),
    (("training_results_v3.1",), (2023, 10)),
    (("training_results_v4.0",), (2024, 5)),
)
#: rounds of MLPerf -> the container that their code is built on (``ngc25.04`` and ``ngc25.09`` of system names and Dockerfiles)
_ROUNDS = {"training_results_v5.0": (25, 4), "training_results_v5.1": (25, 9)}


def _latest(moment: tuple[int, int], table: tuple[tuple[tuple[int, int], str], ...]) -> str:
    return next((release for first, release in table if moment >= first), table[-1][1])


def cuda_of(source: str, framework: str, release: str = "") -> tuple[str, str]:
    """Return the CUDA release of a run, empty for a current one, and what was assumed (empty where nothing was).

    Examples
    --------
    >>> cuda_of("mlcommons/training_results_v3.1@1", "NVIDIA NeMo Framework Release 23.09")
    ('12.2', 'cuda 12.2: container 23.09')
    >>> cuda_of("NVIDIA/NeMo@1", "", "24.07")
    ('12.4', 'cuda 12.4: container 24.07')
    >>> cuda_of("arXiv 2402.15627", "Megatron-LM")
    ('12.1', 'cuda 12.1: published 2024-02')
    >>> cuda_of("bigscience-workshop/bigscience@1", "Megatron-DeepSpeed")
    ('11.3', 'cuda 11.3: published 2022-02')
    >>> cuda_of("somebody", "NeMo")
    ('', '')
    """
    text = f"{source} {framework}".lower()
    named = re.search(r"release (2\d)\.(\d\d)\b", text)
    of_nemo = re.fullmatch(r"v?(2\d)\.(\d\d)(\.\d+)?", release.strip()) if any(map(text.count, _OF_NEMO)) else None
    container = named or of_nemo
    if container:
        behind = 12 * int(container[1]) + int(container[2]) - 1 - (0 if named else _NEMO_LAG)
        found = _latest((behind // 12, behind % 12 + 1), _CONTAINERS)
        return found, f"cuda {found or 'current'}: container {container[1]}.{container[2]}"
    built_on = next((made for words, made in _ROUNDS.items() if words in text), None)
    if built_on:
        found = _latest(built_on, _CONTAINERS)
        return found, f"cuda {found}: container {built_on[0]}.{built_on[1]:02} of this round"
    month = next((month for words, month in _PROJECTS if all(word in text for word in words)), None)
    paper = re.search(r"arxiv[: ]*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}", text)
    if month is None and paper:
        month = (2000 + int(paper[1]), int(paper[2]))
    if month is None:
        return "", ""
    found = _latest(month, _MONTHS)
    return found, f"cuda {found or 'current'}: published {month[0]}-{month[1]:02}"
