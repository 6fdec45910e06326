"""Short words for the options that commands declare."""

from __future__ import annotations

from typing import Any, Optional

import typer

Text = Optional[str]  # noqa: UP045 - Typer reads Optional at run time
Number = Optional[int]  # noqa: UP045
Real = Optional[float]  # noqa: UP045
Switch = Optional[bool]  # noqa: UP045
Texts = Optional[list[str]]  # noqa: UP045

PLAIN_JSON = typer.Option("--json", help="Print one JSON document and nothing else.")


def option(help_text: str, *names: str) -> Any:
    """Return an option that does not print its default."""
    return typer.Option(*names, help=help_text, show_default=False)
