"""Which CUDA release a published run had, from what its row says: a container, a framework release or a date."""

from __future__ import annotations

import re

#: first NGC container of a CUDA release, newest first (NVIDIA frameworks support matrix)
_CONTAINERS = (((24, 6), ""), ((24, 2), "12.4"), ((23, 6), "12.2"), ((23, 1), "12.1"), ((22, 9), "11.8"))
#: what PyTorch's wheels and NVIDIA's containers of a month came with, newest first; from CUDA 12.6 on it is current
_MONTHS = (((2024, 10), ""), ((2024, 3), "12.4"), ((2023, 1), "12.1"), ((2022, 9), "11.8"), ((2020, 1), "11.3"))
#: projects whose tables carry no date in the row: words of source and framework, and the month they were measured
_PROJECTS = (
    (("llm-foundry",), (2023, 11)),
    (("fms-fsdp",), (2024, 3)),
    (("torchtitan",), (2024, 9)),
    (("megatron-core r0.8",), (2024, 7)),
    (("training_results_v3.0",), (2023, 6)),
    (("training_results_v3.1",), (2023, 10)),
    (("training_results_v4.0",), (2024, 5)),
)


def _latest(moment: tuple[int, int], table: tuple[tuple[tuple[int, int], str], ...]) -> str:
    return next((release for first, release in table if moment >= first), table[-1][1])


def cuda_of(source: str, framework: str) -> tuple[str, str]:
    """Return the CUDA release of a run, empty for a current one, and what was assumed (empty where nothing was).

    Parameters
    ----------
    source, framework : str
        Cells of the row.

    Examples
    --------
    >>> cuda_of("mlcommons/training_results_v3.1@1", "NVIDIA NeMo Framework Release 23.09")
    ('12.2', 'cuda 12.2: container 23.09')
    >>> cuda_of("arXiv 2402.15627", "Megatron-LM")
    ('12.1', 'cuda 12.1: published 2024-02')
    >>> cuda_of("somebody", "NeMo")
    ('', '')
    """
    text = f"{source} {framework}".lower()
    container = re.search(r"release (2\d)\.(\d\d)\b", text)
    if container:
        found = _latest((int(container[1]), int(container[2])), _CONTAINERS)
        return found, f"cuda {found or 'current'}: container {container[1]}.{container[2]}"
    month = next((month for words, month in _PROJECTS if all(word in text for word in words)), None)
    paper = re.search(r"arxiv[: ]*(\d\d)(0[1-9]|1[0-2])\.\d{4,5}", text)
    if month is None and paper:
        month = (2000 + int(paper[1]), int(paper[2]))
    if month is None:
        return "", ""
    found = _latest(month, _MONTHS)
    return found, f"cuda {found or 'current'}: published {month[0]}-{month[1]:02}"
