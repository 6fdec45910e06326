"""Files that extend others: settings in layers, of which the upper ones win."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from simulator.config.names import resolve_name
from simulator.config.text import Locator, load_yaml
from simulator.errors import ConfigError


class Layers(NamedTuple):
    """A file over those that it extends."""

    data: Any
    locator: Locator  #: Finds what each layer says.
    below: Path | None  #: The file that it extends itself.


def load_layers(path: Path, kind: str, seen: tuple[Path, ...] = ()) -> Layers:
    """Read a file and, below it, the files of the same kind that its ``extends`` names; later layers win.

    Mappings are merged key by key, except that one with another ``kind`` replaces the one below. Names stay each file's own.
    """
    data, locator = load_yaml(path)
    if not isinstance(data, dict) or "extends" not in data:
        return Layers(data, locator, None)
    below_name = str(data.pop("extends"))
    beside = path.parent / below_name
    try:
        below_path = beside if beside.is_file() else resolve_name(below_name, kind)
    except ConfigError as error:
        place = locator.value(("extends",))
        raise ConfigError(f"{place}: extends: {error.message}", hint=error.hint) from None
    if below_path in (path, *seen):
        raise ConfigError(f"{locator.value(('extends',))}: extends: {below_name} extends this file in turn")
    below, locator.base, _ = load_layers(below_path, kind, (path, *seen))
    if not isinstance(below, dict):
        raise ConfigError(f"{locator.value(('extends',))}: extends: {below_name} is no mapping of keys")
    below.pop("name", None)
    return Layers(merge(below, data), locator, below_path)


def merge(below: Any, above: Any) -> Any:
    """Lay one tree of settings over another.

    Examples
    --------
    >>> merge({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}})
    {'a': 1, 'b': {'c': 2, 'd': 3}}
    """
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    if "kind" in above and above["kind"] != below.get("kind", above["kind"]):
        return above
    return {**below, **{key: merge(below.get(key), value) for key, value in above.items()}}
