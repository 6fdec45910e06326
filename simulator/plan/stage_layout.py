"""Pipeline layouts: which layers stand on which virtual stage, in the words of Megatron-Core.

``E`` is the embedding, ``t`` a transformer layer, ``m`` a multi-token-prediction layer, ``L`` the output and its loss; ``|`` ends a
virtual stage, ``*4`` repeats what is before it, brackets group, commas and blanks mean nothing.

References
----------
NVIDIA/Megatron-LM, ``core/transformer/pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

import re

from simulator.errors import ConfigError

#: no pipeline has more layers and stages than this
_LONGEST = 10_000
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
_REPEATED = re.compile(r"([EtmL])\*(\d+)")


def parse_layout(text: str) -> tuple[str, ...]:
    """Return the layers of every virtual stage, as letters.

    Parameters
    ----------
    text : str
        A layout.

    Raises
    ------
    ConfigError
        If it is no layout.

    Examples
    --------
    >>> parse_layout("Et*2|(tt|)*2tmL")
    ('Ett', 'tt', 'tt', 'tmL')
    """
    plain = re.sub(r"[\s,]", "", text)
    found = _GROUP.search(plain)
    while found is not None:
        plain = _repeated(plain, found, found[1], int(found[2] or 1))
        found = _GROUP.search(plain)
    found = _REPEATED.search(plain)
    while found is not None:
        plain = _repeated(plain, found, found[1], int(found[2]))
        found = _REPEATED.search(plain)
    stages = tuple(plain.split("|"))
    if not re.fullmatch(r"E[t|]*[m|]*L", plain):
        raise ConfigError(
            f"pipeline_layout '{text[:60]}' is no layout",
            hint="embedding E first, transformer layers t, prediction layers m, loss L last, stages apart by |: 'Et*4|(t*4|)*14tL'",
        )
    return stages


def _repeated(text: str, found: re.Match[str], part: str, times: int) -> str:
    if len(part) * times > _LONGEST:
        raise ConfigError(f"pipeline_layout: '{found[0][:40]}' is longer than {_LONGEST} layers and stages")
    return text[: found.start()] + part * times + text[found.end() :]
