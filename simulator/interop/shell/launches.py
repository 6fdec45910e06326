"""Commands that a script would run, and the scripts and shells that they start: functions, sourced files, children."""

from __future__ import annotations

import posixpath
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.shell.children import Child, child_of, may_start
from simulator.interop.shell.parser import parse_script
from simulator.interop.shell.redirections import Redirections
from simulator.interop.shell.state import MANY_ELEMENTS, Command, DropError
from simulator.interop.shell.streams import TOOLS, Sink, Source, output_of
from simulator.interop.shell.syntax import Statement
from simulator.interop.shell.variables import Variables, numbered
from simulator.interop.shell.xargs import commands_of
from simulator.interop.typed_values import readable

#: texts whose statements are kept for loops
_MOST_TEXTS = 200
#: commands whose status says what they found
_ASKS = (
    "grep", "egrep", "fgrep", "diff", "cmp", "which", "type", "hash", "command", "pgrep", "curl", "nc", "ping", "kill",
)  # fmt: skip
#: commands that change nothing that is read here
CHANGE_NOTHING = (
    "echo", "printf", "exit", "return", "mkdir", "rm", "cd", "sleep", ":", "true", "false", "touch", "cp", "mv", "ls", "cat", "pip",
)  # fmt: skip
#: of files, whose patterns name files of the machine
_HANDLE_FILES = (*CHANGE_NOTHING, "chmod", "tar", "ln", "wc", "find", "rsync", "git", "du", "head", "tail")


class ExitError(Exception):
    """``exit``."""

    def __init__(self, line: int, status: int | None) -> None:
        self.line, self.status = line, status


class ReturnError(Exception):
    """``return``."""

    def __init__(self, status: int | None) -> None:
        self.status = status


class LoopError(Exception):
    """``break`` or ``continue``, out of so many loops."""

    def __init__(self, levels: int, *, ends: bool) -> None:
        self.levels, self.ends = levels, ends


@dataclass(slots=True, kw_only=True)
class Launches(Redirections):
    """Notes commands, and walks what they hand to another shell."""

    functions: dict[str, Statement] = field(default_factory=dict)
    known_texts: dict[tuple[str, str, int], Sequence[Statement]] = field(default_factory=dict)  #: Cut into statements.
    n_captures: int = 0  #: Command substitutions around: what they launch is no launch.
    n_loops: int = 0  #: Loops around.
    n_calls: int = 0  #: Functions and sourced files around, which may be returned from.
    n_waits: int = 0  #: Conditions of loops around, which wait for what a command finds.
    options: set[str] = field(default_factory=set)  #: Letters and names of ``set``.
    traps: dict[str, str] = field(
        default_factory=dict
    )  #: What runs at the end, ``EXIT``, and after a failure, ``ERR``.
    running: tuple[str, ...] = ()  #: Files of the scripts around.

    @abstractmethod
    def go_on(self, nodes: Sequence[Statement]) -> int | None:
        """Walk statements of which the first sees the status before them."""

    @abstractmethod
    def one(self, node: Statement) -> int | None:
        """Walk one statement."""

    @abstractmethod
    def whole(self, nodes: Sequence[Statement]) -> None:
        """Walk a script, and what it leaves to its end."""

    # -- commands --------------------------------------------------------------------------------------------------

    def launch(self, words: list[str]) -> int | None:
        """Note a command that would run, and walk what it hands to another shell."""
        if self.globs and posixpath.basename(words[0]) not in _HANDLE_FILES:
            self.note(f"which files {' '.join(self.globs)!r:.80} names is not known: it stands as it is in a command")
        if words[0] == "xargs" and (commands := commands_of(words[1:], self.source.rest())) is not None:
            return self._each_of(commands)
        is_quiet = posixpath.basename(words[0]) in (*_ASKS, *_HANDLE_FILES)
        reads = self.source.text is not None
        child = None if is_quiet else child_of(words, lambda name: self.script_in(name) is not None, reads=reads)
        if child is not None and (found := self._text(child)) is not None:
            return self._start(child, *found, words)
        self.sink.write(None)
        if not is_quiet and (child is not None or may_start(words)) and not self.n_captures:
            self.script.unfollowed.append((self.line, readable(" ".join(words))))
        self.append(words)
        return None if words[0] in _ASKS or self.n_waits else 0

    def append(self, words: Sequence[str]) -> None:
        """Note a command; one in a command substitution launches nothing."""
        if not self.n_captures:
            lines = tuple(self.lines[-len(words) :]) if len(words) <= len(self.lines) else (self.line,) * len(words)
            self.script.commands.append(Command(words=tuple(words), line=self.line, lines=lines))

    def _each_of(self, commands: Sequence[list[str]]) -> int | None:
        """Run the commands that xargs makes of what it reads."""
        status: int | None = 0
        source, self.source = self.source, Source("")
        for words in commands:
            self.step()
            if words[0] == "echo":
                self.echo(words[1:])
            elif words[0] in TOOLS and (text := output_of(words[0], words[1:], self.source)) is not None:
                self.sink.write(text)
            else:
                status = self.launch(words)
        self.source = source
        return status

    # -- shells of their own ---------------------------------------------------------------------------------------

    def _text(self, child: Child) -> tuple[str, str] | None:
        """Return what a child runs, and the path of the file; None where that is not known."""
        if child.source == "text":
            return child.text, self.file
        if child.source == "file":
            found = self.script_in(child.text)
            return None if found is None or found[1] in self.running else found
        text = self.source.rest()
        return None if text is None else (text, self.file)

    def _start(self, child: Child, text: str, path: str, words: list[str]) -> int | None:
        """Walk a shell that a command starts, with the environment that it gets."""
        if child.place:
            self.sink.write(None)
            self.append(words[: child.place])
        change = child.environment
        given = {**(dict(of_slurm(text, words)) if child.is_job else {}), **change.given}
        inner = self.variables.of_child(given, change.kept, change.removed)
        self._tell_hidden(inner, text)
        kept = self.file, self.name, self.line, self.n_loops, self.n_calls, self.running, self.sink, self.source
        with self.subshell():
            self.variables, self.options, self.traps = inner, set(child.options), {}
            self.functions = {name: one for name, one in self.functions.items() if f"{name}()" in inner.exported}
            self.arguments, self.has_all_arguments = numbered(child.arguments, 1), True
            self.name, self.n_loops, self.n_calls = child.name, 0, 0
            if child.place:
                self.sink = Sink()
            if child.source == "input":
                self.source = Source("")
            if child.source == "file":
                self.file, self.running = path, (*self.running, path)
            try:
                with self.deeper():
                    self.whole(self.parsed(text, 1 if child.source == "file" else self.line))
            except ConfigError as error:
                if child.source != "file":
                    raise
                self.script.unfollowed.append((kept[2], readable(" ".join(words))))
                self.note(f"{readable(child.text)} is not followed: {error}")
            finally:
                self.file, self.name, self.line, self.n_loops, self.n_calls, self.running, self.sink, self.source = kept
        return self.status

    def _tell_hidden(self, inner: Variables, text: str) -> None:
        """Note variables of the script that a text of another shell names and does not see."""
        if inner.given is not self.variables.given or self.n_captures:
            return
        for name in dict.fromkeys(re.findall(r"\$\{?#?([A-Za-z_]\w*)", text)):
            outside, inside = self.variables.held.get(name), inner.held.get(name)
            is_hidden = outside is not None and outside.text and (inside is None or inside.text is None)
            if is_hidden and not re.search(rf"\b{name}=|\b(for|read) .*\b{name}\b", text):
                self.note(f"{name} is not exported: the shell that is started does not see it")

    # -- files -----------------------------------------------------------------------------------------------------

    def script_in(self, name: str) -> tuple[str, str] | None:
        """Return the text and the path of a shell script that the script wrote, or that lies beside it."""
        if (text := self.contents(name)) is not None:
            path = name
        elif (found := self.beside(name)) is not None and found.suffix not in (".py", ".json", ".yaml", ".txt"):
            try:
                text, path = read_text(found), str(found)
            except (ConfigError, OSError):
                return None
        else:
            return None
        is_script = re.match(r"#!.*\b(?:ba|da|k|z)?sh\b", text) or name.endswith((".sh", ".bash", ".slurm", ".sbatch"))
        return (text, path) if is_script else None

    def sourced(self, words: list[str]) -> int | None:
        """Walk a sourced file where the script wrote it, or where it lies beside the script."""
        if not words:
            return 0
        name = words[0]
        text, found = self.contents(name), self.beside(name)
        if text is None and found is None:
            self.note(f"{readable(name)} is not here and is not read")
            return None
        file, line = self.file, self.line
        if text is None and found is not None:
            text, self.file = read_text(found), str(found)
        kept = self.arguments, self.has_all_arguments
        if words[1:]:
            self.arguments, self.has_all_arguments = numbered(words[1:], 1), True
        self.n_calls += 1
        try:
            return self.nested(text or "", 1)
        except ReturnError as end:
            return end.status
        finally:
            self.n_calls -= 1
            self.file, self.line = file, line
            if words[1:]:
                self.arguments, self.has_all_arguments = kept

    # -- texts and functions ---------------------------------------------------------------------------------------

    @contextmanager
    def subshell(self) -> Iterator[None]:
        """Walk what changes nothing outside."""
        kept = (self.variables, self.functions, self.arguments, self.has_all_arguments)
        more = (self.shifted, self.options, self.traps)
        self.step(sum(map(len, self.variables.held.values())) // (4 * MANY_ELEMENTS * MANY_ELEMENTS))
        self.variables, self.functions, self.options = self.variables.copied(), dict(self.functions), set(self.options)
        self.traps = {name: text for name, text in self.traps.items() if name == "ERR" and "E" in self.options}
        try:
            yield
            self.ended()
        except (ExitError, ReturnError) as end:
            self.status = end.status
            self.ended()
        except LoopError:
            pass
        except DropError:
            self.status = 1
        finally:
            self.variables, self.functions, self.arguments, self.has_all_arguments = kept
            self.shifted, self.options, self.traps = more

    def ended(self) -> None:
        """Walk what a script or a subshell leaves to its end; its status stays."""
        text, status = self.traps.pop("EXIT", ""), self.status
        if text:
            try:
                self.nested(text, self.line)
                self.status = status
            except (ExitError, ReturnError) as end:
                self.status = end.status
            except LoopError:
                self.status = status

    def call(self, function: Statement, arguments: list[str]) -> int | None:
        """Walk a function."""
        kept = self.arguments, self.has_all_arguments, self.n_loops, self.n_waits
        self.arguments, self.has_all_arguments, self.n_loops = numbered(arguments, 1), True, 0
        self.variables.enter()
        self.n_calls += 1
        line = self.line
        try:
            with self.deeper(), self.redirected(function.body[0]):
                return self.one(function.body[0])
        except ReturnError as end:
            return end.status
        finally:
            self.variables.leave()
            self.n_calls -= 1
            self.arguments, self.has_all_arguments, self.n_loops, self.n_waits = kept
            self.line = line

    def nested(self, text: str, line: int) -> int | None:
        """Walk a text that is a script of its own."""
        with self.deeper():
            return self.go_on(self.parsed(text, line))

    def parsed(self, text: str, line: int) -> Sequence[Statement]:
        """Return the statements of a text that stands in a line of the script; a loop may ask for them again."""
        key = (text, self.file, line)
        if len(self.known_texts) > _MOST_TEXTS:
            self.known_texts.clear()
        if key not in self.known_texts:
            self.known_texts[key] = parse_script(text, self.file, first_line=line)
        return self.known_texts[key]


def of_slurm(text: str, words: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield the variables that Slurm sets from the ``#SBATCH`` lines of a script; ``words`` of ``sbatch`` come first."""
    patterns = {
        "SLURM_NNODES": r"(?:--nodes[= ]|-N ?)(\d+)\b",
        "SLURM_NTASKS_PER_NODE": r"--ntasks-per-node[= ](\d+)\b",
        "SLURM_GPUS_ON_NODE": r"(?:--gpus-per-node[= ]|--gres[= ]gpu:)(?:\w+:)?(\d+)\b",
    }
    lines = "\n".join([" ".join(words), *(line for line in text.splitlines() if line.startswith("#SBATCH"))])
    for name, pattern in patterns.items():
        found = re.search(pattern, lines)
        if found:
            yield name, found[1]
            if name == "SLURM_NNODES":
                yield "SLURM_JOB_NUM_NODES", found[1]
