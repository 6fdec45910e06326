"""Redirections: what a statement reads and writes, and the files that a script writes itself."""

from __future__ import annotations

import posixpath
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from simulator.interop.shell.builtins import Builtins
from simulator.interop.shell.streams import Sink, Source
from simulator.interop.shell.syntax import Redirection, Statement
from simulator.interop.typed_values import is_unknown


@dataclass(slots=True, kw_only=True)
class Redirections(Builtins):
    """Gives statements what they read and write."""

    written: dict[str, str] = field(default_factory=dict)  #: What files hold that the script writes, by their paths.

    @abstractmethod
    def captured(self, text: str) -> str | None:
        """Return what commands would print; None where only a run would tell."""

    @contextmanager
    def redirected(self, node: Statement) -> Iterator[None]:
        """Give a statement what it reads and writes."""
        if not node.redirections or node.kind == "function":
            yield
            return
        source, sink = self.source, self.sink
        targets: list[tuple[str, bool, Sink]] = []
        for one in node.redirections:
            if one.sign[0] == "<" and one.stream in ("", "0"):
                self.source = self._read_from(one)
            elif ">" in one.sign and one.stream in ("", "1"):
                self._write_to(one, targets)
        try:
            yield
        finally:
            self.source, self.sink = source, sink
            for name, adds, written in targets:
                self.keep(name, written, adds=adds)

    def _read_from(self, one: Redirection) -> Source:
        text = one.target.text
        if one.sign in ("<<", "<<-"):
            return Source(text if one.is_literal else self.text_of(text, "document"))
        if one.sign == "<<<":
            return Source(self.text_of(text) + "\n")
        if one.sign == "<" and text.startswith("<("):
            return Source(self.captured(text[2:-1]))
        return self.source if one.sign == "<&" else Source(self.contents(self.text_of(text)))

    def contents(self, name: str) -> str | None:
        """Return what a file holds; None where the script did not write it itself."""
        if name == "/dev/null":
            return ""
        return self.written.get(name, self.written.get(name.removeprefix("./"), self.written.get(f"./{name}")))

    def beside(self, name: str) -> Path | None:
        """Return the path of a file that lies beside the script; one in a folder that is not known counts."""
        folder = Path(self.file).parent
        places = [folder / posixpath.basename(name)] if is_unknown(name) else [folder / name, Path(name)]
        if not name or is_unknown(posixpath.basename(name)) or "\0" in name:
            return None
        try:
            return next((one for one in places if folder in one.parents or one.is_absolute() if one.is_file()), None)
        except OSError:
            return None

    def is_file(self, name: str) -> bool | None:
        """Whether the script wrote a file, or it lies beside the script; None where only a run would tell."""
        return True if self.contents(name) is not None or self.beside(name) is not None else None

    def _write_to(self, one: Redirection, targets: list[tuple[str, bool, Sink]]) -> None:
        name = self.text_of(one.target.text)
        if one.sign == ">&" and (name == "1" or one.stream):
            self.sink = self.sink if name == "1" else Sink()
        elif name != "/dev/stdout":
            self.sink = Sink()
            if not name.startswith("/dev/") and not (one.sign == ">&" and name.isdigit()):
                targets.append((name, ">>" in one.sign, self.sink))

    def keep(self, name: str, sink: Sink, *, adds: bool) -> None:
        """Keep what a command wrote to a file."""
        before = self.written.get(name, "") if adds else ""
        if sink.text is None:
            self.written.pop(name, None)
        else:
            self.check_length(before + sink.text, name)
            self.written[name] = before + sink.text
