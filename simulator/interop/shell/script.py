"""Launch scripts, read as bash would run them: nothing is executed, and what only a run could tell stays unknown.

A script is cut into words and statements, then walked: assignments, arrays, functions, ``if``, ``case`` and loops are
followed, commands are collected with their words expanded. An unknown value (a variable that is not set, the output of a
command) is carried along between two marks, so that whoever needs it can ask for it by name.

References
----------
POSIX.1-2024, Shell Command Language; the Bash reference manual (arrays, ``[[``, arithmetic, parameter expansion).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.shell.builtins import DECLARATIONS
from simulator.interop.shell.expansion import assignment, shown
from simulator.interop.shell.parser import parse_script
from simulator.interop.shell.patterns import BoundError, matches
from simulator.interop.shell.redirections import Redirections
from simulator.interop.shell.state import Command, Script
from simulator.interop.shell.streams import TOOLS, Sink, Source, output_of
from simulator.interop.shell.syntax import Node, Word
from simulator.interop.shell.variables import Variable, Variables, numbered
from simulator.interop.typed_values import is_unknown, readable, unknown

#: statements in all: no launch script comes near
MOST_STEPS = 50_000
#: texts whose statements are kept for loops
_MOST_TEXTS = 200
#: statements that a command substitution counts for
_SUBSTITUTION = 5
_SKIPPED = ("nohup", "time", "builtin", "sudo", "command", "exec")
#: commands whose status says what they found
_ASKS = (
    "grep",
    "egrep",
    "fgrep",
    "diff",
    "cmp",
    "which",
    "type",
    "hash",
    "command",
    "pgrep",
    "curl",
    "nc",
    "ping",
    "kill",
)
#: variables that a note names
_MOST_NAMES = 4
#: commands that change nothing that is read here
_CHANGE_NOTHING = (
    "echo", "printf", "exit", "return", "mkdir", "rm", "cd", "sleep", ":", "true", "false", "touch", "cp", "mv", "ls", "cat", "pip",
)  # fmt: skip
#: of files, whose patterns name files of the machine
_HANDLE_FILES = (*_CHANGE_NOTHING, "chmod", "tar", "ln", "wc", "find", "rsync", "git", "du", "head", "tail")


def read_script(
    text: str, file: str, *, arguments: Mapping[int, str] | None = None, variables: Mapping[str, str] | None = None
) -> Script:
    """Walk a script, or one command line, with its positional arguments from 1 and the variables of its environment.

    A ConfigError names the place where it is not well-formed, or expands without limit.
    """
    held = Variables({**dict(_of_slurm(text)), **(variables or {})})
    walker = _Walker(file=file, script=Script(), variables=held, arguments=dict(arguments or {}))
    try:
        walker.whole(parse_script(text, file))
    except RecursionError:
        raise ConfigError(
            f"{file}:{walker.line}:1: nested too deeply", hint="assign inner ones to variables first"
        ) from None
    script = walker.script
    script.variables = walker.variables.plain()
    script.files = {name: text.removesuffix("\n") for name, text in walker.written.items()}
    return script


def _of_slurm(text: str) -> Iterator[tuple[str, str]]:
    """Yield the variables that Slurm sets from the ``#SBATCH`` lines."""
    patterns = {
        "SLURM_NNODES": r"(?:--nodes[= ]|-N ?)(\d+)\b",
        "SLURM_NTASKS_PER_NODE": r"--ntasks-per-node[= ](\d+)\b",
        "SLURM_GPUS_ON_NODE": r"(?:--gpus-per-node[= ]|--gres[= ]gpu:)(?:\w+:)?(\d+)\b",
    }
    lines = "\n".join(line for line in text.splitlines() if line.startswith("#SBATCH"))
    for name, pattern in patterns.items():
        found = re.search(pattern, lines)
        if found:
            yield name, found[1]
            if name == "SLURM_NNODES":
                yield "SLURM_JOB_NUM_NODES", found[1]


class _ExitError(Exception):
    """``exit``."""

    def __init__(self, line: int, status: int | None) -> None:
        self.line, self.status = line, status


class _ReturnError(Exception):
    """``return``."""

    def __init__(self, status: int | None) -> None:
        self.status = status


class _LoopError(Exception):
    """``break`` or ``continue``, out of so many loops."""

    def __init__(self, levels: int, *, ends: bool) -> None:
        self.levels, self.ends = levels, ends


def _status(holds: bool | None) -> int | None:
    return None if holds is None else int(not holds)


@dataclass(slots=True, kw_only=True)
class _Walker(Redirections):
    functions: dict[str, Node] = field(default_factory=dict)
    steps: int = 0
    known_texts: dict[tuple[str, str, int], Sequence[Node]] = field(default_factory=dict)  #: Cut into statements.
    substituted_status: int | None = 0  #: Of the last command substitution of a command.
    n_captures: int = 0  #: Command substitutions around: what they launch is no launch.
    n_conditions: int = 0  #: Conditions around, in which ``set -e`` ends nothing.
    n_loops: int = 0  #: Loops around.
    n_calls: int = 0  #: Functions and sourced files around, which may be returned from.
    n_waits: int = 0  #: Conditions of loops around, which wait for what a command finds.
    options: set[str] = field(default_factory=set)  #: Letters and names of ``set``.
    trap: str = ""  #: What runs at the end.

    # -- statements ------------------------------------------------------------------------------------------------

    def whole(self, nodes: Sequence[Node]) -> None:
        """Walk a script, and what it leaves to its end."""
        try:
            try:
                self.run(nodes)
            except _ReturnError:
                pass
            except _ExitError as end:
                self.script.ended = end.line
            if self.trap:
                self.nested(self.trap, self.line)
        except (_ExitError, _ReturnError, _LoopError):
            pass

    def run(self, nodes: Sequence[Node]) -> int | None:
        """Walk statements; return the status of the last, 0 where it succeeded, None where that is not known."""
        self.status = 0
        return self.go_on(nodes)

    def go_on(self, nodes: Sequence[Node]) -> int | None:
        """Walk statements of which the first sees the status before them."""
        for node in nodes:
            self.line = node.line
            self.step()
            with self.redirected(node):
                self.status = self.one(node)
            is_checked = node.kind in ("command", "subshell", "pipe", "test", "arithmetic")
            if self.status and is_checked and not self.n_conditions and "e" in self.options:
                raise _ExitError(node.line, self.status)
        return self.status

    def step(self, count: int = 1) -> None:
        """Count a statement, a pass of a loop, or what takes as long as several."""
        self.steps += count
        if self.steps > MOST_STEPS:
            hint = "does a loop wait for something? what it starts can be a script of its own"
            self.refuse(f"the script would run more than {MOST_STEPS:,} statements", hint=hint)

    def one(self, node: Node) -> int | None:
        """Walk one statement."""
        match node.kind:
            case "command":
                return self.command(node)
            case "if":
                return self.branch(node)
            case "case":
                return self.case(node)
            case "for" | "count" | "while" | "select":
                return self.loop(node)
            case "function":
                self.functions[node.word.text] = node
                return 0
            case "test":
                return _status(self.test(node.words or []))
            case "arithmetic":
                return self.holds(self.text_of(node.word.text, "quoted"))
            case "not":
                status = self.condition(node.body)
                return None if status is None else int(not status)
            case "and" | "or":
                return self.chain(node)
            case "pipe":
                return self.pipe(node)
            case "subshell":
                with self.subshell():
                    self.go_on(node.body)
                return self.status
            case "background":
                with self.subshell():
                    self.go_on(node.body)
                return 0
        return self.go_on(node.body)

    @contextmanager
    def subshell(self) -> Iterator[None]:
        """Walk what changes nothing outside."""
        kept = (
            self.variables,
            self.functions,
            self.arguments,
            self.has_all_arguments,
            self.shifted,
            self.options,
            self.trap,
        )
        self.variables, self.functions, self.options = self.variables.copied(), dict(self.functions), set(self.options)
        try:
            yield
        except (_ExitError, _ReturnError) as end:
            self.status = end.status
        except _LoopError:
            pass
        finally:
            (
                self.variables,
                self.functions,
                self.arguments,
                self.has_all_arguments,
                self.shifted,
                self.options,
                self.trap,
            ) = kept

    def condition(self, nodes: Sequence[Node]) -> int | None:
        """Walk statements that may fail."""
        self.n_conditions += 1
        try:
            return self.go_on(nodes)
        finally:
            self.n_conditions -= 1

    def chain(self, node: Node) -> int | None:
        """Walk ``a && b`` or ``a || b``."""
        status = self.condition(node.body)
        if status is None:
            if not all(_changes_nothing(one) for one in node.other):
                sign = "&&" if node.kind == "and" else "||"
                self.line = node.line
                self.note(
                    f"whether what stands before {sign} holds only a run can tell: what follows is left out{_sets(node.other)}"
                )
            return None
        self.status = status
        return self.go_on(node.other) if (status == 0) == (node.kind == "and") else status

    def pipe(self, node: Node) -> int | None:
        """Walk the commands of a pipe, each of which reads what the one before writes."""
        source, sink = self.source, self.sink
        statuses: list[int | None] = []
        try:
            for place, part in enumerate(node.body):
                self.sink = sink if place == len(node.body) - 1 else Sink()
                self.n_conditions += place < len(node.body) - 1
                try:
                    with self.subshell():
                        self.go_on([part])
                finally:
                    self.n_conditions -= place < len(node.body) - 1
                statuses.append(self.status)
                self.source = Source(self.sink.text)
        finally:
            self.source, self.sink = source, sink
        if "pipefail" not in self.options or statuses[-1] != 0:
            return statuses[-1]
        failed = [status for status in statuses if status != 0]
        return None if None in failed else failed[-1] if failed else 0

    def branch(self, node: Node) -> int | None:
        for condition, body in node.branches:
            status = self.condition(condition)
            if status is None:
                self.line = node.line
                self.note(f"a condition that only a run can tell is taken as false{_sets(body)}")
            if status == 0:
                return self.go_on(body)
        return self.go_on(node.other) if node.other else 0

    def case(self, node: Node) -> int | None:
        value = self.text_of(node.word.text)
        if is_unknown(value):
            self.note(f"case {readable(value)} is not known: no branch is taken")
            return 0
        falls = False
        status: int | None = 0
        for patterns, body, end in node.cases:
            if not falls and not any(self._fits(value, one) for one in patterns):
                continue
            status = self.go_on(body)
            if end == ";;":
                return status
            falls = end == ";&"
        return status

    def _fits(self, value: str, word: Word) -> bool:
        shape = self.pattern_of(word.text)
        if is_unknown(shape):
            self.note(f"whether {shown(value)} is {shown(shape)} only a run can tell: that branch is not taken")
            return False
        try:
            return matches(value, shape)
        except (BoundError, re.error):
            self.refuse(f"the pattern {shown(shape)} might take for ever, or is not understood", hint="use fewer stars")

    # -- loops -----------------------------------------------------------------------------------------------------

    def loop(self, node: Node) -> int | None:
        """Walk a loop; return the status of its last pass."""
        self.n_loops += 1
        self.status = 0
        try:
            match node.kind:
                case "for":
                    self.loop_over(node)
                case "count":
                    self.loop_counting(node)
                case "while":
                    self.loop_while(node)
                case _:
                    self.note(
                        f"what is chosen by {node.kind} {node.word.text} only a run can tell: the loop is left out{_sets(node.body)}"
                    )
            return self.status
        finally:
            self.n_loops -= 1

    def loop_over(self, node: Node) -> None:
        self.opens = False
        words = self.places() if node.words is None else self.expand(node.words, names_files="a loop")
        if self.opens:
            texts = " ".join(word.text for word in node.words or ())
            self.note(f"how many words {texts!r:.60} gives is not known: the loop takes each as one")
        for word in words:
            self.step()
            self.set(node.word.text, word)
            if self._pass(node.body):
                break

    def loop_counting(self, node: Node) -> None:
        first, condition, after = (word.text for word in node.words or ())
        if first.strip():
            self.holds(self.text_of(first, "quoted"))
        while True:
            self.line = node.line
            self.step()
            holds = self.holds(self.text_of(condition, "quoted")) if condition.strip() else 0
            if holds is None:
                self.note(
                    f"whether (({condition.strip():.60})) holds only a run can tell: the loop ends there{_sets(node.body)}"
                )
            if holds != 0 or self._pass(node.body):
                break
            if after.strip():
                self.holds(self.text_of(after, "quoted"))

    def loop_while(self, node: Node) -> None:
        status: int | None = 0
        while True:
            self.n_waits += 1
            try:
                holds = self.condition(node.branches[0][0])
            finally:
                self.n_waits -= 1
            self.step()
            if holds is None:
                self.line = node.line
                self.note(
                    f"how often the loop '{'until' if node.negated else 'while'}' runs only a run can tell: it ends there{_sets(node.body)}"
                )
            if holds is None or (holds == 0) == node.negated:
                break
            if self._pass(node.body):
                return
            status = self.status
        self.status = status

    def _pass(self, body: Sequence[Node]) -> bool:
        """Walk the body of a loop once; return whether the loop ends."""
        try:
            self.go_on(body)
        except _LoopError as jump:
            if jump.levels > 1 and self.n_loops > 1:
                raise _LoopError(jump.levels - 1, ends=jump.ends) from None
            self.status = 0
            return jump.ends
        return False

    # -- command substitution ------------------------------------------------------------------------------------------

    def captured(self, text: str) -> str | None:
        """Return what commands would print; None where only a run would tell."""
        self.step(_SUBSTITUTION)
        try:
            nodes = self.parsed(text, self.line)
        except ConfigError as error:
            self.note(f"$({text.strip():.40}) is not understood: {error}")
            return None
        sink, self.sink, line, before = self.sink, Sink(), self.line, self.status
        self.n_captures += 1
        try:
            with self.deeper(), self.subshell():
                self.options.discard("e")
                self.go_on(nodes)
            self.substituted_status = self.status
            return self.sink.text
        finally:
            self.n_captures -= 1
            self.sink, self.line, self.status = sink, line, before

    def substituted(self, text: str) -> str:
        """Return what commands would print, without the line ends behind it; not known where only a run would tell."""
        if text.lstrip().startswith("<") and not text.lstrip().startswith("<("):
            found = self.contents(self.text_of(text.strip()[1:].strip()))
        else:
            found = self.captured(text)
        return unknown(f"$({readable(text.strip())})") if found is None else found.rstrip("\n")

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, node: Node) -> int | None:
        """Walk a simple command: assignments, a builtin, a function, or one that would be run."""
        words = list(node.words or ())
        outside: dict[str, Variable | None] = {}
        self.substituted_status = 0
        n_assigned = 0
        while n_assigned < len(words) and assignment(words[n_assigned].text) is not None:
            n_assigned += 1
        for word in words[:n_assigned]:
            one = assignment(word.text)
            assert one is not None
            if n_assigned < len(words):
                variable = self.variables.held.get(one.name)
                outside.setdefault(one.name, variable)
                self.variables.held[one.name] = Variable() if variable is None else variable.copied()
            self.line = word.line
            self.assign(one)
        self.line = node.line
        rest = words[n_assigned:]
        if not rest:
            return self.substituted_status
        if rest[0].text in DECLARATIONS:
            self.declare(rest[0].text, rest[1:])
            status: int | None = 0
        else:
            expanded = self.expand(rest)
            status = self.execute(expanded, node) if expanded else self.substituted_status
        self.variables.restore(outside)  # NAME=value command: for that command only
        return status

    def execute(self, words: list[str], node: Node) -> int | None:
        """Do what a builtin does, or note the command."""
        if words[:1] == ["command"] and words[1:2] and words[1].startswith("-"):
            self.sink.write(None)
            return None
        replaces = False
        while words and words[0] in _SKIPPED:
            replaces = replaces or words[0] == "exec"
            words = words[1:]
        if not words:
            return 0
        if words[0] in self.functions:
            return self.call(self.functions[words[0]], words[1:])
        name, rest = words[0], words[1:]
        known, status = self.flow(name, rest, node)
        if not known:
            known, status = self.builtin(name, rest, node)
        if not known:
            status = self.launch(words)
        if replaces:
            raise _ExitError(node.line, status)
        return status

    def flow(self, name: str, rest: list[str], node: Node) -> tuple[bool, int | None]:
        """Do what changes which statement runs next, or with which arguments; return whether it is that, and its status."""
        number = int(rest[0]) if rest and re.fullmatch(r"\d{1,6}", rest[0]) else None
        match name:
            case "exit":
                raise _ExitError(node.line, self.status if number is None else number % 256)
            case "return":
                if not self.n_calls:
                    return True, 2
                raise _ReturnError(self.status if number is None else number % 256)
            case "break" | "continue":
                if self.n_loops:
                    raise _LoopError(number or 1, ends=name == "break")
                return True, 0
            case "shift":
                return True, self.shift(1 if number is None else number)
            case "set":
                self.set_options(rest)
                return True, 0
            case "eval":
                return True, self.nested(" ".join(rest), node.line)
            case "source" | ".":
                return True, self.sourced(rest)
            case "trap":
                if rest[1:] and {"EXIT", "0"} & set(rest[1:]):
                    self.trap = "" if rest[0] == "-" else rest[0]
                return True, 0
        return False, 0

    def builtin(self, name: str, rest: list[str], node: Node) -> tuple[bool, int | None]:
        """Do what sets variables, tests or prints; return whether it is that, and its status."""
        match name:
            case "[" | "test":
                return True, _status(self.plain_test(rest[:-1] if name == "[" else rest))
            case "true" | ":" | "wait" | "shopt" | "ulimit" | "umask" | "alias" | "unalias":
                return True, 0
            case "false":
                return True, 1
            case "let":
                status: int | None = 0
                for one in rest:
                    status = self.holds(one)
                return True, status
            case "echo":
                return True, self.echo(rest)
            case "printf":
                return True, self.printf(rest)
            case "read":
                return True, self.read(rest)
            case "mapfile" | "readarray":
                return True, self.mapfile(rest)
            case "getopts":
                return True, self.getopts(rest)
            case "unset":
                return True, self.unset([one for one in rest if one not in ("-v", "-f", "-n")])
            case "cat" | "tee":
                return True, self.copy(name, [one for one in rest if not one.startswith("-") or one == "-"])
            case _ if name in DECLARATIONS:
                words = ["'" + one.replace("'", "'\\''") + "'" for one in rest]
                return True, self.declare(name, [Word(one, node.line) for one in words])
        if name in TOOLS and (text := output_of(name, rest, self.source)) is not None:
            self.sink.write(text)
            return True, 0
        return False, 0

    def shift(self, by: int) -> int:
        """Move the arguments; those of the script keep their names where nobody gives them."""
        if by > len(self.arguments) and (self.has_all_arguments or self.arguments):
            return 1
        self.arguments = {place - by: value for place, value in self.arguments.items() if place > by}
        self.shifted += 0 if self.has_all_arguments else by
        return 0

    def set_options(self, words: list[str]) -> None:
        """Do ``set``: options by their letters or names, then arguments."""
        rest = list(words)
        while rest and rest[0][:1] in ("-", "+") and rest[0] not in ("-", "--"):
            word = rest.pop(0)
            named = [rest.pop(0)] if word[1:].endswith("o") and rest else []
            changed = {*word[1:].replace("o", ""), *named, *(["e"] if named == ["errexit"] else [])}
            self.options = self.options | changed if word[0] == "-" else self.options - changed
        if rest:
            values = rest[1:] if rest[0] in ("-", "--") else rest
            self.arguments, self.has_all_arguments = numbered(values, 1), True

    def copy(self, name: str, files: list[str]) -> int:
        """Do ``cat`` or ``tee``."""
        if name == "tee":
            text = self.source.rest()
            for one in files:
                copied = Sink()
                copied.write(text)
                self.keep(one, copied, adds=False)
            self.sink.write(text)
        for one in (files or ["-"]) if name == "cat" else ():
            self.sink.write(self.source.rest() if one == "-" else self.contents(one))
        return 0

    def launch(self, words: list[str]) -> int | None:
        """Note a command that would run, and walk what it hands to another shell."""
        self.sink.write(None)
        if self.globs and posixpath.basename(words[0]) not in _HANDLE_FILES:
            self.note(f"which files {' '.join(self.globs)!r:.80} names is not known: it stands as it is in a command")
        for place, word in enumerate(words[:-2]):
            is_shell = posixpath.basename(word) in ("bash", "sh")
            if is_shell and re.fullmatch(r"-[a-z]*c", words[place + 1]):
                self.append(words[:place])
                with self.subshell():
                    self.arguments, self.has_all_arguments = numbered(words[place + 4 :], 1), True
                    self.nested(words[place + 2], self.line)
                return self.status
        self.append(words)
        return None if words[0] in _ASKS or self.n_waits else 0

    def append(self, words: Sequence[str]) -> None:
        """Note a command; one in a command substitution launches nothing."""
        if not self.n_captures:
            lines = tuple(self.lines[-len(words) :]) if len(words) <= len(self.lines) else (self.line,) * len(words)
            self.script.commands.append(Command(words=tuple(words), line=self.line, lines=lines))

    def call(self, function: Node, arguments: list[str]) -> int | None:
        """Walk a function."""
        kept = self.arguments, self.has_all_arguments, self.n_loops, self.n_waits
        self.arguments, self.has_all_arguments, self.n_loops = numbered(arguments, 1), True, 0
        self.variables.enter()
        self.n_calls += 1
        line = self.line
        try:
            with self.deeper(), self.redirected(function.body[0]):
                return self.one(function.body[0])
        except _ReturnError as end:
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

    def parsed(self, text: str, line: int) -> Sequence[Node]:
        """Return the statements of a text that stands in a line of the script; a loop may ask for them again."""
        key = (text, self.file, line)
        if len(self.known_texts) > _MOST_TEXTS:
            self.known_texts.clear()
        if key not in self.known_texts:
            self.known_texts[key] = parse_script(text, self.file, first_line=line)
        return self.known_texts[key]

    def sourced(self, words: list[str]) -> int | None:
        """Walk a sourced file where it lies beside the script."""
        if not words:
            return 0
        folder, name = Path(self.file).parent, words[0]
        places = [folder / posixpath.basename(name)] if is_unknown(name) else [folder / name, Path(name)]
        path = next((one for one in places if folder in one.parents or one.is_absolute() if one.is_file()), None)
        if path is None:
            self.note(f"{readable(name)} is not here and is not read")
            return None
        file, line, self.file = self.file, self.line, str(path)
        kept = self.arguments, self.has_all_arguments
        if words[1:]:
            self.arguments, self.has_all_arguments = numbered(words[1:], 1), True
        self.n_calls += 1
        try:
            return self.nested(read_text(path), 1)
        except _ReturnError as end:
            return end.status
        finally:
            self.n_calls -= 1
            self.file, self.line = file, line
            if words[1:]:
                self.arguments, self.has_all_arguments = kept


def _sets(nodes: Sequence[Node]) -> str:
    """Say which variables statements would set, for a note that they are left out."""
    names = list(dict.fromkeys(_assigned(nodes)))
    more = " and others" if len(names) > _MOST_NAMES else ""
    return f" ({', '.join(names[:_MOST_NAMES])}{more} would be set)" if names else ""


def _assigned(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        for word in node.words or () if node.kind == "command" else ():
            if (one := assignment(word.text)) is not None:
                yield one.name
        bodies = [body for pair in node.branches for body in pair] + [body for _, body, _ in node.cases]
        for body in (node.body, node.other, *bodies):
            yield from _assigned(body)


def _changes_nothing(node: Node) -> bool:
    """Whether a statement sets no variable and launches nothing."""
    if node.kind == "command" and node.words:
        return node.words[0].text in _CHANGE_NOTHING
    return node.kind in ("group", "subshell", "and", "or") and all(map(_changes_nothing, [*node.body, *node.other]))
