"""TOML and XML as plain data and elements, within bounds; JSON and YAML are read in :mod:`simulator.config`."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.config import MOST_DIGITS, DepthError, KeyPath, Locator, dotted_path, read_text
from simulator.errors import ConfigError

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

#: a machine's description nests its buses and objects some ten deep
MOST_DEPTH = 100
MOST_ELEMENTS = 1_000_000
_LONG_KEY = re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{MOST_DEPTH}}}")


def load_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file that is not nested too deeply and has no number that cannot be meant."""
    import tomllib

    text = read_text(path)
    if _LONG_KEY.search(text):
        raise ConfigError(f"{path}: a key of more than {MOST_DEPTH} parts")
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    except RecursionError:
        DepthError(text).refuse("TOML", Locator(str(path), text))
    except ValueError:
        raise ConfigError(f"{path}: not TOML that can be read: a number has too many digits") from None
    _check(data, str(path), ())
    return data


def _check(value: object, file: str, path: KeyPath) -> None:
    if len(path) > MOST_DEPTH:
        raise ConfigError(f"{file}: nested more than {MOST_DEPTH} deep")
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            _check(inner, file, (*path, key))
    is_odd = isinstance(value, float) and not math.isfinite(value)
    if is_odd or (isinstance(value, int | float) and abs(value) >= 10**MOST_DIGITS):
        hint = f"numbers are finite and have at most {MOST_DIGITS} digits"
        raise ConfigError(f"{file}: {dotted_path(path)}: {str(value)[:20]!r} is not a usable number", hint=hint)


def parse_xml(text: str, path: str | Path) -> Element:
    """Return the root of an XML document that defines no entities and is within bounds."""
    from xml.etree import ElementTree

    class Bounded(ElementTree.TreeBuilder):
        """Builds elements, and counts them and their depth."""

        depth = elements = line = 0

        def start(self, tag: str, attrs: dict[str, str], /) -> Element:
            self.depth, self.elements = self.depth + 1, self.elements + 1
            if self.depth > MOST_DEPTH or self.elements > MOST_ELEMENTS:
                what = (
                    f"nested more than {MOST_DEPTH} deep"
                    if self.depth > MOST_DEPTH
                    else f"more than {MOST_ELEMENTS} elements"
                )
                raise ConfigError(
                    f"{path}:{self.line}:1: {what}", hint="no description of a machine is: is it damaged?"
                )
            return super().start(tag, attrs)

        def end(self, tag: str, /) -> Element:
            self.depth -= 1
            return super().end(tag)

    if "<!ENTITY" in text:
        raise ConfigError(f"{path}: defines entities, which no description of a machine does")
    elements = Bounded()
    parser = ElementTree.XMLParser(target=elements)
    try:
        for elements.line, text_line in enumerate(text.splitlines(keepends=True), 1):
            parser.feed(text_line)
        return parser.close()
    except ElementTree.ParseError as error:
        line, column = error.position
        raise ConfigError(f"{path}:{line}:{column + 1}: not XML: {error.msg.split(':')[0]}") from None
