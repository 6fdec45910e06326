"""Pipeline layouts: which layers stand on which virtual stage, in the words of Megatron-Core.

``E`` is the embedding, ``t`` a transformer layer, ``m`` a multi-token-prediction layer, ``L`` the output and its loss; ``|`` ends a
virtual stage, ``*4`` repeats what is before it, brackets group, commas and blanks mean nothing. Megatron-Core takes lists of words
as well, one for each virtual stage: :func:`layout_text` writes them so.

References
----------
NVIDIA/Megatron-LM, ``core/transformer/pipeline_parallel_layer_layout.py``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from simulator.errors import ConfigError, InfeasiblePlanError

#: no pipeline has more layers and stages than this
_LONGEST = 10_000
_GROUP = re.compile(r"\(([^()]*)\)(?:\*(\d+))?")
_REPEATED = re.compile(r"([EtmL])\*(\d+)")
#: Megatron-Core's words for layers in lists -> its letters
_LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LISTS = re.compile(r"\[\s*(?:\[[^\[\]]*\]\s*,?\s*)*\]")


def layout_text(value: object) -> str:
    """Return a layout as text, which may be given as a list of words for every virtual stage, or as such lists in text.

    Examples
    --------
    >>> layout_text([["embedding", "decoder", "decoder"], ["decoder", "mtp", "loss"]]), layout_text("[[embedding], [decoder, loss]]")
    ('Ett|tmL', 'E|tL')
    """
    if isinstance(value, str) and not value.lstrip().startswith("["):
        return value.strip()
    shown, stages = str(value), value
    if isinstance(value, str) and _LISTS.fullmatch(value.strip()):
        within = re.findall(r"\[([^\[\]]*)\]", value)
        stages = [[word.strip().strip("'\"") for word in one.split(",") if word.strip()] for one in within]
    if not isinstance(stages, list | tuple) or not all(isinstance(one, list | tuple) for one in stages):
        raise ConfigError(
            f"pipeline_layout={shown[:60]}: neither a layout nor a list of lists",
            hint="'Ett|ttL', or a list of words for every virtual stage: [[embedding, decoder, decoder], [decoder, decoder, loss]]",
        )
    words = [[str(word).strip().lower() for word in one] for one in stages]
    unknown = next((word for one in words for word in one if word not in _LETTERS), None)
    if unknown is not None:
        raise ConfigError(
            f"pipeline_layout: the layer '{unknown[:40]}' of a stage is unknown", hint=f"one of {', '.join(_LETTERS)}"
        )
    return "|".join("".join(_LETTERS[word] for word in one) for one in words)


def parse_layout(text: str) -> tuple[str, ...]:
    """Return the layers of every virtual stage, as letters.

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
            f"pipeline_layout '{text[:60]}' is not a layout",
            hint="embedding E first, transformer layers t, prediction layers m, loss L last, stages apart by |: 'Et*4|(t*4|)*14tL'",
        )
    return stages


def chunks_of_layout(layout: str | None, pp: int, virtual_pp: int) -> int:
    """Return the chunks per stage, which a layout of the pipeline tells by its length, and ``virtual_pp`` where there is none."""
    if layout is None:
        return virtual_pp
    n_parts = len(parse_layout(layout))
    if n_parts % pp or virtual_pp not in (1, n_parts // pp):
        raise InfeasiblePlanError(
            f"pipeline_layout has {n_parts} stages, which are not pp x virtual_pp = {pp} x {virtual_pp}",
            hint="leave --virtual-pp out, and choose a --pp that divides them",
        )
    return n_parts // pp


def _repeated(text: str, found: re.Match[str], part: str, times: int) -> str:
    if len(part) * times > _LONGEST:
        raise ConfigError(f"pipeline_layout: '{found[0][:40]}' is longer than {_LONGEST} layers and stages")
    return text[: found.start()] + part * times + text[found.end() :]


def written_layout(blocks: Sequence[int], n_predictions: int = 0) -> str:
    """Write the blocks of every virtual stage as a layout.

    Examples
    --------
    >>> written_layout([4, 4, 4, 1], 1), written_layout([0, 1, 2, 2])
    ('Et*4|(t*4|)*2tmL', 'E|t|t*2|t*2L')
    """
    first, *middle, last = (f"t*{count}" if count > 1 else "t" * count for count in blocks)
    runs = ((part, len(list(same))) for part, same in groupby(middle))
    between = "".join(f"({part}|)*{times}" if times > 1 else f"{part}|" for part, times in runs)
    return f"E{first}|{between}{last}{'m' * n_predictions}L"


def in_runs(counts: Sequence[int]) -> str:
    """Write a row of numbers as a sum in which equal neighbours stand together.

    Examples
    --------
    >>> in_runs([7, 8, 8, 7]), in_runs([4, 4])
    ('7 + 2 x 8 + 7', '2 x 4')
    """
    runs = ((count, len(list(same))) for count, same in groupby(counts))
    return " + ".join(f"{times} x {count}" if times > 1 else f"{count}" for count, times in runs)


def beside_ends(blocks: int, n_virtual: int) -> list[int] | None:
    """Let embedding and loss each take the place of a block; None where they and the blocks do not divide.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/transformer_block.py``, ``account_for_embedding_in_pipeline_split`` and
    ``account_for_loss_in_pipeline_split``.

    Examples
    --------
    >>> beside_ends(30, 8), beside_ends(126, 32)[:2], beside_ends(30, 4)
    ([3, 4, 4, 4, 4, 4, 4, 3], [3, 4], [7, 8, 8, 7])
    >>> beside_ends(31, 8)
    """
    each, rest = divmod(blocks + 2, n_virtual)
    return None if rest or n_virtual < 2 else [each - 1, *[each] * (n_virtual - 2), each - 1]


def shortened_ends(blocks: int, n_virtual: int) -> list[int] | None:
    """Give every chunk as many blocks as it takes, fewer to the last, beside which the loss is, and then to the first.

    None where there are too few blocks.

    References
    ----------
    NVIDIA-NeMo/Megatron-Bridge, ``recipes/deepseek/deepseek_v3.py``: 61 layers as ``Et*4|(t*4|)*14tmL`` over 16 chunks and as
    ``Et|(tt|)*30mL`` over 32.

    Examples
    --------
    >>> shortened_ends(61, 16)[-2:], shortened_ends(61, 32)[:2], shortened_ends(5, 8)
    ([4, 1], [1, 2], None)
    """
    each = -(-blocks // n_virtual)
    spare = each * n_virtual - blocks
    last = each - min(spare, each)
    first = each - (spare - (each - last))
    return None if first < 0 or n_virtual < 2 else [first, *[each] * (n_virtual - 2), last]


def balanced_parts(weights: Sequence[int], n_parts: int) -> list[int] | None:
    """Cut a row of weights into consecutive parts, the heaviest as light as can be; each takes what it can, the last the rest.

    References
    ----------
    DeepSpeed, ``runtime/utils.py``, ``partition_balanced``; Aleph-Alpha/scaling, ``core/nn/parallel_module/pipeline_partitioning.py``.

    Examples
    --------
    >>> balanced_parts([2, 1, 1, 1, 1, 1, 1, 2], 2), balanced_parts([1, 1, 1, 1, 1, 1, 1, 2], 3), balanced_parts([1], 2)
    ([4, 4], [3, 3, 2], None)
    """
    low, high = max(weights), sum(weights)
    while low < high:
        limit = (low + high) // 2
        low, high = (low, limit) if len(_filled(weights, limit)) <= n_parts else (limit + 1, high)
    found = _filled(weights, low)
    return found if len(found) == n_parts else None


def passing_parts(weights: Sequence[int], n_parts: int) -> list[int] | None:
    """Cut a row of weights into consecutive parts, each of which ends with the weight that passes its share of the sum.

    None where a part would stay empty.

    References
    ----------
    huggingface/nanotron, ``models/base.py``, ``build_model``.

    Examples
    --------
    >>> passing_parts([0, 1, 1, 1, 1, 2], 2), passing_parts([0, 2, 2, 2, 2, 2, 2, 2, 2, 5], 4), passing_parts([1], 2)
    ([5, 1], [4, 3, 2, 1], None)
    """
    sizes, total = [0], 0
    for weight in weights:
        sizes[-1], total = sizes[-1] + 1, total + weight
        if total * n_parts > sum(weights) * len(sizes):
            sizes.append(0)
    return sizes if len(sizes) == n_parts and all(sizes) else None


def lightened_end(blocks: int, n_parts: int) -> list[int] | None:
    """Share out a few blocks more than there are, the later parts one more each; the last part is short of those.

    None with fewer than four parts or eight blocks, or where blocks do not divide over the parts.

    References
    ----------
    Oneflow-Inc/libai, ``libai/utils/distributed.py``, ``_init_placement_group`` of July 2022 (discussion 329: 6, 7, 7 and 4 of 24 layers).

    Examples
    --------
    >>> lightened_end(24, 4), lightened_end(48, 8), lightened_end(24, 2)
    ([6, 7, 7, 4], [6, 6, 7, 7, 7, 7, 7, 1], None)
    """
    if n_parts < 4 or blocks < 8 or blocks % n_parts:
        return None
    added = min(n_parts - 1, blocks // n_parts)
    each, surplus = divmod(blocks + added, n_parts)
    sizes = [each + (part >= n_parts - surplus) for part in range(n_parts)]
    return [*sizes[:-1], sizes[-1] - added]


def _filled(weights: Sequence[int], limit: int) -> list[int]:
    sizes, total = [0], 0
    for weight in weights:
        if total + weight > limit:
            sizes, total = [*sizes, 0], 0
        sizes[-1], total = sizes[-1] + 1, total + weight
    return sizes
