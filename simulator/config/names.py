"""Names: near misses of misspelt ones, and the shipped files that they stand for."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from os.path import isfile
from pathlib import Path

from simulator.errors import ConfigError

#: letters; fewer begin too many names to say which is meant
_SHORTEST_BEGINNING = 4


def near_misses(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that a misspelt or shortened word may have meant, best first.

    Examples
    --------
    >>> near_misses("bandwith", ["bandwidth", "latency"])
    ['bandwidth']
    >>> near_misses("dgx-a100", ["dgx-h100", "dgx-a100-80g"])
    ['dgx-a100-80g', 'dgx-h100']
    """
    pool = {name.lower(): name for name in known}
    begun = [name for name in pool if len(word) >= _SHORTEST_BEGINNING and name.startswith(word.lower())]
    near = difflib.get_close_matches(word.lower(), list(pool), n=3, cutoff=0.6)
    return [pool[hit] for hit in dict.fromkeys([*begun, *near])][:3]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"``, or nothing when no known word is near.

    Examples
    --------
    >>> did_you_mean("torrus", ["torus", "clos"])
    " Did you mean 'torus'?"
    """
    hits = near_misses(word, known)
    return f" Did you mean {' or '.join(repr(hit) for hit in hits)}?" if hits else ""


def check_word(what: str, word: str, known: Collection[str]) -> None:
    """Raise an error for a word that is not one of those known.

    Examples
    --------
    >>> check_word("network", "chunks", ["flow", "chunk"])
    Traceback (most recent call last):
    simulator.errors.ConfigError: network 'chunks' is unknown. Did you mean 'chunk'?
    hint: one of flow, chunk
    """
    if word not in known:
        guess = did_you_mean(word, known)
        raise ConfigError(f"{what} '{word:.40}' is unknown.{guess}", hint=f"one of {', '.join(known)}")


def listed(text: str, given: str = "") -> list[str]:
    """Return the words that commas part, none of them blank: a variable of a script may have been unset.

    An error shows what was given.

    Examples
    --------
    >>> listed("1, 2,4"), listed("")
    (['1', '2', '4'], [])
    """
    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(words):
        raise ConfigError(
            f"{given or repr(text)}: an empty item: a comma with nothing before or after it", hint="like a,b,c"
        )
    return words


def data_folders(kind: str) -> list[Path]:
    """Folders with shipped files of a kind (``clusters``, ``devices``): of the package, of the checkout."""
    package = Path(__file__).parents[1]
    candidates = (package / "topologies" / kind, package.parent / "topologies" / kind)
    return [folder for folder in candidates if folder.is_dir()]


def is_shipped(path: str | Path) -> bool:
    """Whether a file is one of the shipped ones of any kind."""
    folder = Path(path).parent
    return folder in data_folders(folder.name)


def shipped_names(kind: str) -> list[str]:
    """Names of the shipped files of a kind, sorted."""
    return sorted({file.stem for folder in data_folders(kind) for file in folder.glob("*.yaml")})


def resolve_name(name: str | Path, kind: str) -> Path:
    """Find the file that a name means: a path first, then a shipped file, with or without its extension."""
    path = Path(name)
    if isfile(path):  # no error where no file system takes such a name
        return path
    stem = path.name.removesuffix(".yaml") if path.name == str(name) else ""
    for folder in data_folders(kind):
        if stem and isfile(folder / f"{stem}.yaml"):
            return folder / f"{stem}.yaml"
    known = shipped_names(kind)
    if kind == "clusters" and stem in shipped_names("devices"):
        users = [name for name in known if f"device: {stem}\n" in resolve_name(name, kind).read_text(encoding="utf-8")]
        shipped = f"{', '.join(users)}, or " if users else ""
        raise ConfigError(
            f"{stem}: is a device, not a cluster",
            hint=f"{shipped}a cluster with it instead of its own: --topology dgx-h100 --set node.device={stem}",
        )
    guess = did_you_mean(path.name.removesuffix(".yaml"), known)
    hint = f"shipped {kind}: {', '.join(known)}" if known and not guess else ""
    raise ConfigError(f"{name!s:.200}: no such file, and no shipped {kind[:-1]} of this name.{guess}", hint=hint)
