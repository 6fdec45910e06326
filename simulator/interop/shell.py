"""Launch scripts, read as bash would run them: nothing is executed, and what only a run could tell stays unknown.

A script is cut into words and statements, then walked: assignments, arrays, functions, ``if``, ``case`` and loops are
followed, commands are collected with their words expanded. An unknown value (a variable that nobody sets, the output of a
command) is carried along between two marks, so that whoever needs it can ask for it by name.

References
----------
POSIX.1-2024, Shell Command Language; the Bash reference manual (arrays, ``[[``, arithmetic, parameter expansion).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.reader import UNKNOWN, is_unknown, readable, unknown
from simulator.interop.shell_arithmetic import UnknownError, arithmetic
from simulator.interop.shell_syntax import Node, Word, parse_script, split_words

#: characters of one value, and statements in all: no launch script comes near
MOST_CHARACTERS = 1 << 20
MOST_STEPS = 50_000
_MOST_DEPTH = 40
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[([^\]]*)\])?(\+?)=(.*)", re.DOTALL)
_DECLARE = ("export", "declare", "local", "readonly", "typeset")
_SKIPPED = ("nohup", "exec", "time", "command", "builtin", "sudo")

Value = str | list[str] | dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that the script would run, expanded."""

    words: tuple[str, ...]
    line: int


@dataclass(slots=True, kw_only=True)
class Script:
    """What reading a script gave.

    Parameters
    ----------
    commands : list of Command
        In the order in which they would run.
    files : dict
        Files that the script writes itself, by path: here-documents and what is echoed.
    variables : dict
        At its end.
    assumed : list of str
        Branches that hang on what is not known, and which way was taken.
    ended : int
        Line of an ``exit`` that was reached; 0 if none was.
    """

    commands: list[Command] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    variables: dict[str, Value] = field(default_factory=dict)
    assumed: list[str] = field(default_factory=list)
    ended: int = 0


def read_script(
    text: str, file: str, *, arguments: Mapping[int, str] | None = None, variables: Mapping[str, str] | None = None
) -> Script:
    """Walk a script.

    Parameters
    ----------
    text : str
        A shell script, or one command line.
    file : str
        For messages, and to find what it sources.
    arguments : mapping, optional
        Its positional arguments, from 1.
    variables : mapping, optional
        Its environment.

    Raises
    ------
    ConfigError
        If it is not well-formed, or expands beyond all bounds.
    """
    script = Script(variables={**dict(_of_slurm(text)), **(variables or {})})
    walker = _Walker(file=file, script=script, arguments=dict(arguments or {}))
    try:
        walker.run(parse_script(text, file))
    except _ExitError as end:
        script.ended = end.line
    except RecursionError:
        raise ConfigError(f"{file}: nested too deeply") from None
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

    def __init__(self, line: int) -> None:
        self.line = line


class _ReturnError(Exception):
    """``return``."""


class _LoopError(Exception):
    """``break`` or ``continue``."""

    def __init__(self, *, ends: bool) -> None:
        self.ends = ends


@dataclass(slots=True, kw_only=True)
class _Walker:
    file: str
    script: Script
    arguments: dict[int, str]
    functions: dict[str, Node] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0
    status: bool | None = True

    # -- statements ------------------------------------------------------------------------------------------------

    def run(self, nodes: Sequence[Node]) -> bool | None:
        """Walk statements; return whether the last succeeded, None where that is not known."""
        for node in nodes:
            self.steps += 1
            if self.steps > MOST_STEPS:
                self.refuse(node.line, f"more than {MOST_STEPS} statements")
            self.status = self.one(node)
        return self.status

    def one(self, node: Node) -> bool | None:
        """Walk one statement."""
        match node.kind:
            case "command":
                return self.command(node)
            case "if":
                return self.branch(node)
            case "case":
                return self.case(node)
            case "for":
                return self.loop_over(node)
            case "while":
                return self.loop_while(node)
            case "function":
                self.functions[node.word.text] = node
                return True
            case "test":
                words = node.words or []
                return self.test([self.expand_one(word) for word in words], quoted=[word.is_quoted for word in words])
            case "arithmetic":
                return self.holds(node.word.text)
            case "not":
                status = self.run(node.body)
                return None if status is None else not status
            case "and":
                status = self.run(node.body)
                return self.run(node.other) if status else status
            case "or":
                status = self.run(node.body)
                return self.run(node.other) if status is False else status
            case "pipe":
                return self.pipe(node)
        return self.run(node.body)  # a group or a subshell

    def pipe(self, node: Node) -> bool | None:
        for part in node.body:
            if part.kind not in ("command", "group"):
                continue  # a loop at the end of a pipe reads what is not known
            self.one(part)
        return None

    def branch(self, node: Node) -> bool | None:
        for condition, body in node.branches:
            status = self.run(condition)
            if status is None:
                self.script.assumed.append(f"line {node.line}: a condition that only a run can tell is taken as false")
            if status:
                return self.run(body)
        return self.run(node.other) if node.other else True

    def case(self, node: Node) -> bool | None:
        value = self.expand_one(node.word)
        if is_unknown(value):
            self.script.assumed.append(f"line {node.line}: case {readable(value)} is not known: no branch is taken")
        for patterns, body in node.cases:
            if any(fnmatchcase(value, self.expand_one(one)) for one in patterns if not is_unknown(value)):
                return self.run(body)
        return True

    def loop_over(self, node: Node) -> bool | None:
        words = self.expand(node.words) if node.words is not None else [v for _, v in sorted(self.arguments.items())]
        for word in words:
            self.script.variables[node.word.text] = word
            if self._pass(node.body):
                break
        return True

    def loop_while(self, node: Node) -> bool | None:
        while self.run(node.branches[0][0]) is (not node.negated):
            self.steps += 1
            if self.steps > MOST_STEPS:
                self.refuse(node.line, f"more than {MOST_STEPS} statements")
            if self._pass(node.body):
                break
        return True

    def _pass(self, body: Sequence[Node]) -> bool:
        """Walk the body of a loop once; return whether the loop ends."""
        try:
            self.run(body)
        except _LoopError as jump:
            return jump.ends
        return False

    def refuse(self, line: int, message: str) -> NoReturn:
        """Raise the error of a line."""
        raise ConfigError(f"{self.file}:{line}:1: {message}")

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, node: Node) -> bool | None:
        """Walk a simple command: assignments, a builtin, a function, or one that would be run."""
        words = list(node.words or ())
        kept: dict[str, Value | None] = {}
        while words and _is_assignment(words[0]):
            name = _ASSIGNMENT.match(words[0].text)[1]  # type: ignore[index]
            kept.setdefault(name, self.script.variables.get(name))
            self.assign(words.pop(0).text, node.line)
        if not words:
            return True
        expanded = self.expand([one for one in words if not _is_declared(words, one)])
        for one in words:
            if _is_declared(words, one):
                self.assign(one.text, node.line)
        status = self.execute(expanded, node) if expanded else True
        for name, value in kept.items():  # NAME=value command: for that command only
            if value is None:
                self.script.variables.pop(name, None)
            else:
                self.script.variables[name] = value
        return status

    def execute(self, words: list[str], node: Node) -> bool | None:
        """Do what a builtin does, or note the command."""
        while words and words[0] in _SKIPPED:
            words = words[1:]
        if not words:
            return True
        name, rest = words[0], words[1:]
        if name in self.functions:
            return self.call(self.functions[name], rest)
        match name:
            case "[" | "test":
                return self.test(rest[:-1] if name == "[" else rest)
            case "true" | ":":
                return True
            case "false":
                return False
            case "exit":
                raise _ExitError(node.line)
            case "return":
                raise _ReturnError
            case "break" | "continue":
                raise _LoopError(ends=name == "break")
            case "shift":
                by = int(rest[0]) if rest and rest[0].isdigit() else 1
                self.arguments = {place - by: value for place, value in self.arguments.items() if place > by}
                return True
            case "set":
                if "--" in rest:
                    self.arguments = dict(enumerate(rest[rest.index("--") + 1 :], start=1))
                return True
            case "eval":
                return self.nested(" ".join(rest), node.line)
            case "source" | ".":
                return self.source(rest, node.line)
            case "let":
                return self.holds(" ".join(rest))
            case "echo" | "cat" | "printf" | "tee":
                self.write(name, rest, node)
                return True
            case "unset":
                for one in rest:
                    self.script.variables.pop(one, None)
                return True
        if name in _DECLARE:
            return True
        return self.note(words, node)

    def note(self, words: list[str], node: Node) -> bool | None:
        """Note a command that would run, and walk what it hands to another shell."""
        for place, word in enumerate(words[:-2]):
            is_shell = posixpath.basename(word) in ("bash", "sh")
            if is_shell and words[place + 1].startswith("-") and words[place + 1].endswith("c"):
                self.script.commands.append(Command(words=tuple(words[:place]), line=node.line))
                return self.nested(words[place + 2], node.line)
        self.script.commands.append(Command(words=tuple(words), line=node.line))
        return None if words[0] in ("grep", "diff", "cmp", "which") else True

    def call(self, function: Node, arguments: list[str]) -> bool | None:
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.refuse(function.line, "functions call one another too deeply")
        before, self.arguments = self.arguments, dict(enumerate(arguments, start=1))
        try:
            return self.run(function.body)
        except _ReturnError:
            return True
        finally:
            self.arguments = before
            self.depth -= 1

    def nested(self, text: str, line: int) -> bool | None:
        """Walk a text that is a script of its own."""
        self.depth += 1
        if self.depth > _MOST_DEPTH:
            self.refuse(line, "scripts run one another too deeply")
        try:
            return self.run(parse_script(text, f"{self.file}:{line}", first_line=line))
        finally:
            self.depth -= 1

    def source(self, words: list[str], line: int) -> bool | None:
        """Walk a sourced file where it lies beside the script."""
        if not words:
            return True
        name = words[0]
        path = Path(self.file).parent / posixpath.basename(name) if is_unknown(name) else Path(self.file).parent / name
        if not path.is_file():
            self.script.assumed.append(f"line {line}: {readable(name)} is not here and is not read")
            return None
        return self.nested(read_text(path), line)

    def write(self, name: str, rest: list[str], node: Node) -> None:
        """Keep the text that a command writes to a file."""
        text = node.document
        if text is not None and not node.is_literal:
            text = self.expand_quoted(text)
        if text is None:
            text = " ".join(word for word in rest if word not in ("-n", "-e")) if name in ("echo", "printf") else None
        targets = [self.expand_one(one) for one in node.targets] + (rest if name == "tee" else [])
        for target in targets:
            if text is not None:
                self.script.files[target] = text

    # -- variables -------------------------------------------------------------------------------------------------

    def assign(self, text: str, line: int) -> None:
        """Set a variable, an array or an element of one."""
        match = _ASSIGNMENT.match(text)
        assert match is not None
        name, index, adds, raw = match.groups()
        is_array = raw.startswith("(")
        value: Value = (
            self.expand(split_words(raw[1:-1], self.file, line)) if is_array else self.expand_quoted(raw, as_word=True)
        )
        before = self.script.variables.get(name)
        if index is not None:
            self._assign_element(name, self.expand_quoted(index), str(value))
        elif adds and isinstance(value, list):
            self.script.variables[name] = [*(self.values(name) or ()), *value]
        elif adds and isinstance(before, list):
            self.script.variables[name] = [before[0] + str(value), *before[1:]] if before else [str(value)]
        else:
            self.script.variables[name] = (str(before or "") + str(value)) if adds else value
        kept = self.script.variables.get(name, "")
        size = len(kept) if isinstance(kept, str) else sum(map(len, kept))
        if size > MOST_CHARACTERS:
            self.refuse(line, f"{name} grows beyond {MOST_CHARACTERS >> 20} MiB")

    def _assign_element(self, name: str, index: str, value: str) -> None:
        held = self.script.variables.get(name)
        keyed = (
            dict(held)
            if isinstance(held, dict)
            else {str(i): v for i, v in enumerate(held)}
            if isinstance(held, list)
            else {}
        )
        self.script.variables[name] = keyed | {index.strip("'\""): value}

    def value(self, name: str) -> str | None:
        """Return a variable as one text; None where nobody sets it."""
        if name.isdigit() and name != "0":
            return self.arguments.get(int(name))
        if name == "#":
            return str(len(self.arguments))
        if name in ("@", "*"):
            return " ".join(value for _, value in sorted(self.arguments.items()))
        held = self.script.variables.get(name)
        if isinstance(held, list):
            return held[0] if held else ""
        return held.get("0", "") if isinstance(held, dict) else held

    def values(self, name: str) -> list[str] | None:
        """Return all elements of an array; None where there is none."""
        if name == "@":
            return [value for _, value in sorted(self.arguments.items())]
        held = self.script.variables.get(name)
        if held is None:
            return None
        return [held] if isinstance(held, str) else list(held.values()) if isinstance(held, dict) else held

    # -- expansion -------------------------------------------------------------------------------------------------

    def expand(self, words: Sequence[Word]) -> list[str]:
        """Expand words as bash does: what stands outside quotation marks is split at blanks."""
        found: list[str] = []
        for word in words:
            found += self.fields(word.text)
            if sum(map(len, found[-50:])) > MOST_CHARACTERS:
                self.refuse(word.line, "expands beyond all bounds")
        return found

    def expand_one(self, word: Word) -> str:
        """Expand a word to one text."""
        return self.expand_quoted(word.text, as_word=True)

    def fields(self, raw: str) -> list[str]:
        """Expand one word into its fields."""
        fields: list[str] = []
        current: str | None = None
        for text, is_quoted, is_array in self.pieces(raw):
            if is_array and isinstance(text, list):
                for number, item in enumerate(text):
                    parts = [item] if is_quoted else item.split() or [""]
                    for at, part in enumerate(parts):
                        if number == at == 0:
                            current = (current or "") + part
                        else:
                            fields += [current] if current is not None else []
                            current = part
                continue
            assert isinstance(text, str)
            if is_quoted:
                current = (current or "") + text
                continue
            parts = re.split(r"[ \t\n]+", text)
            current = (current or "") + parts[0] if parts[0] or current is not None else None
            for part in parts[1:]:
                fields += [current] if current is not None else []
                current = part or None
        return fields + ([current] if current is not None else [])

    def expand_quoted(self, raw: str, *, as_word: bool = False) -> str:
        """Expand a text to one: of a here-document, or, with its quotation marks taken away, of a word."""
        pieces = self.pieces(raw) if as_word else self.pieces('"' + raw.replace('"', '\\"') + '"')
        found = "".join(" ".join(text) if isinstance(text, list) else text for text, _, _ in pieces)
        if len(found) > MOST_CHARACTERS:
            self.refuse(1, f"a value grows beyond {MOST_CHARACTERS >> 20} MiB")
        return found

    def pieces(self, raw: str) -> Iterator[tuple[str | list[str], bool, bool]]:
        """Yield the parts of a word: text or elements, whether it is quoted (or literal), whether it is an array."""
        at, is_inside = 0, False  # inside double quotation marks
        while at < len(raw):
            char = raw[at]
            if char == "\\" and at + 1 < len(raw):
                following = raw[at + 1]
                keeps = is_inside and following not in '"\\$`\n'
                yield ("" if following == "\n" else (char if keeps else "") + following), True, False
                at += 2
            elif char == "'" and not is_inside:
                end = raw.find("'", at + 1)
                end = len(raw) if end < 0 else end
                yield raw[at + 1 : end], True, False
                at = end + 1
            elif char == '"':
                is_inside = not is_inside
                yield "", True, False
                at += 1
            elif char == "`":
                end = raw.find("`", at + 1)
                end = len(raw) if end < 0 else end
                yield self.substituted(raw[at + 1 : end]), is_inside, False
                at = end + 1
            elif char == "$" and at + 1 < len(raw):
                is_literal = raw.startswith("$'", at)
                text, is_array, at = self.parameter(raw, at)
                yield text, is_inside or is_literal, is_array
            else:
                end = at + 1
                while end < len(raw) and raw[end] not in "\\'\"`$":
                    end += 1
                end = at + 1 if char in "'$" and end > at + 1 and not is_inside and char == "'" else end
                yield raw[at:end], True, False
                at = end

    def parameter(self, raw: str, at: int) -> tuple[str | list[str], bool, int]:
        """Expand what begins with a dollar; return the text or elements, whether they are an array's, and the end."""
        if raw.startswith("$((", at):
            end = _closing(raw, at + 1, "(", ")")
            inner = raw[at + 3 : end - 1]
            return self.calculated(inner), False, end + 1
        if raw.startswith("$(", at):
            end = _closing(raw, at + 1, "(", ")")
            return self.substituted(raw[at + 2 : end]), False, end + 1
        if raw.startswith("$[", at):
            end = _closing(raw, at + 1, "[", "]")
            return self.calculated(raw[at + 2 : end]), False, end + 1
        if raw.startswith("${", at):
            end = _closing(raw, at + 1, "{", "}")
            text, is_array = self.braced(raw[at + 2 : end])
            return text, is_array, end + 1
        if raw.startswith("$'", at):
            end = raw.find("'", at + 2)
            end = len(raw) if end < 0 else end
            return raw[at + 2 : end].replace("\\n", "\n").replace("\\t", "\t"), False, end + 1
        match = _NAME.match(raw, at + 1)
        name = match[0] if match else raw[at + 1]
        if not match and name not in "0123456789#@*?$!-":
            return "$", False, at + 1
        end = at + 1 + len(name)
        if name == "@":
            return self.values("@") or [], True, end
        return self.known(name), False, end

    def known(self, name: str) -> str:
        """Return a variable's value, or its stand-in."""
        if name in "?$!-0":
            return {"?": "0" if self.status else "1", "0": self.file}.get(name, "")
        value = self.value(name)
        return unknown(name) if value is None else value

    def braced(self, inner: str) -> tuple[str | list[str], bool]:
        """Expand what stands between braces."""
        match = re.match(r"(!?)(#?)([A-Za-z_]\w*|\d+|[@*#?$!-])(\[[^\]]*\])?(.*)", inner, re.DOTALL)
        if match is None:
            return unknown(inner), False
        indirect, counts, name, index, operation = match.groups()
        if inner == "#":
            return str(len(self.arguments)), False
        if indirect and not index:
            name = self.value(name) or name
        subscript = index[1:-1] if index else ""
        if subscript in ("@", "*") or name == "@":
            elements = self.values(name)
            if subscript == "*" and elements is not None and not counts:
                elements = [" ".join(elements)]
            if counts:
                return str(len(elements or ())), False
            if elements is None and not operation:
                return unknown(name), False
            if operation.startswith((":-", "-", ":+", "+")):
                chosen = self.chosen(" ".join(elements or ()) if elements else None, operation)
                return (chosen, False) if chosen != " ".join(elements or ()) else (elements or [], True)
            return elements or [], True
        value = self.element(name, subscript) if index else self.value(name)
        if counts:
            return (str(len(value)), False) if value is not None else (unknown(name), False)
        if re.match(r":?[-=+?]", operation):
            return self.chosen(value, operation, name), False
        if value is None:
            return unknown(name), False
        return self.changed(value, operation), False

    def element(self, name: str, subscript: str) -> str | None:
        held = self.script.variables.get(name)
        key = self.expand_quoted(subscript).strip("'\"")
        if isinstance(held, dict):
            return held.get(key)
        if isinstance(held, list):
            try:
                return held[arithmetic(key, self.number)] if held else None
            except (UnknownError, IndexError):
                return unknown(f"{name}[{key}]")
        return held

    def chosen(self, value: str | None, operation: str, name: str = "") -> str:
        """Expand ``:-word`` and its like."""
        is_strict = operation.startswith(":")
        sign, word = operation[is_strict : is_strict + 1], operation[is_strict + 1 :]
        is_there = value is not None and (bool(value) or not is_strict)
        if sign == "+":
            return self.expand_quoted(word, as_word=True) if is_there else ""
        if is_there:
            return value or ""
        if sign == "?":
            return unknown(name)
        default = self.expand_quoted(word, as_word=True)
        if sign == "=" and name:
            self.script.variables[name] = default
        return default

    def changed(self, value: str, operation: str) -> str:
        """Expand ``%suffix``, ``#prefix``, ``/old/new``, ``:first:length``, ``^^`` and ``,,``."""
        if not operation or is_unknown(value):
            return value
        if operation in ("^^", ",,"):
            return value.upper() if operation == "^^" else value.lower()
        if operation[0] in "%#":
            sign = operation[0]
            is_greedy = operation[1:2] == sign
            pattern = self.expand_quoted(operation[1 + is_greedy :], as_word=True)
            cuts = range(len(value) + 1)
            ends = [cut for cut in cuts if fnmatchcase(value[cut:] if sign == "%" else value[:cut], pattern)]
            if not ends:
                return value
            if sign == "%":
                return value[: min(ends) if is_greedy else max(ends)]
            return value[max(ends) if is_greedy else min(ends) :]
        if operation[0] == "/":
            everywhere = operation[1:2] == "/"
            old, _, new = operation[1 + everywhere :].partition("/")
            old, new = self.expand_quoted(old, as_word=True), self.expand_quoted(new, as_word=True)
            return value.replace(old, new, -1 if everywhere else 1) if old else value
        if operation[0] == ":":
            try:
                first, *length = (
                    arithmetic(self.expand_quoted(part), self.number) for part in operation[1:].split(":")
                )
            except UnknownError:
                return value
            return value[first:][: length[0]] if length else value[first:]
        return value

    def calculated(self, text: str) -> str:
        """Return the value of an arithmetic expression."""
        try:
            return str(arithmetic(self.expand_quoted(text), self.number, self.set_number))
        except UnknownError as error:
            return unknown(error.name or f"$(({readable(text).strip()}))")

    def holds(self, text: str) -> bool | None:
        """Whether an arithmetic expression is not zero."""
        try:
            return arithmetic(self.expand_quoted(text), self.number, self.set_number) != 0
        except UnknownError:
            return None

    def number(self, name: str) -> str | None:
        """Return a variable for arithmetic."""
        return self.value(name)

    def set_number(self, name: str, value: int) -> None:
        """Set a variable from arithmetic."""
        self.script.variables[name] = str(value)

    def substituted(self, text: str) -> str:
        """Return what a command would print, where that can be told without running it."""
        words = [] if "|" in text else self.expand(split_words(text, self.file, 1))
        known = words and not any(map(is_unknown, words[1:]))
        if known and words[0] == "echo":
            return " ".join(words[1:])
        if known and len(words) == 2 and words[0] in ("dirname", "basename", "realpath"):
            folder, name = posixpath.split(words[1])
            return {"dirname": folder or ".", "basename": name}.get(words[0], words[1])
        if known and words[0] == "expr":
            return self.calculated(" ".join(words[1:]))
        if (
            known
            and words[0] == "seq"
            and all(re.fullmatch(r"\d{1,4}", word) for word in words[1:])
            and len(words) in (2, 3)
        ):
            first, last = (1, int(words[1])) if len(words) == 2 else (int(words[1]), int(words[2]))
            return "\n".join(map(str, range(first, last + 1)))
        return unknown(f"$({readable(text.strip())})")

    # -- tests -----------------------------------------------------------------------------------------------------

    def test(self, words: list[str], quoted: Sequence[bool] | None = None) -> bool | None:
        """Evaluate ``[ ... ]`` or ``[[ ... ]]``; None where it hangs on what is not known."""
        for operator in ("||", "-o"):
            if operator in words:
                at = words.index(operator)
                return _either(
                    self.test(words[:at], quoted and quoted[:at]),
                    self.test(words[at + 1 :], quoted and quoted[at + 1 :]),
                )
        for operator in ("&&", "-a"):
            if operator in words[1:]:
                at = words.index(operator, 1)
                return _both(
                    self.test(words[:at], quoted and quoted[:at]),
                    self.test(words[at + 1 :], quoted and quoted[at + 1 :]),
                )
        if words[:1] == ["!"]:
            status = self.test(words[1:], quoted and quoted[1:])
            return None if status is None else not status
        if words[:1] == ["("] and words[-1:] == [")"]:
            return self.test(words[1:-1], quoted and quoted[1:-1])
        if len(words) == 2 and words[0] in ("-z", "-n"):
            return _is_empty(words[1]) == (words[0] == "-z")
        if len(words) == 1:
            return False if words[0] in ("-n",) else words[0] == "-z" or not _is_empty(words[0])
        if len(words) == 3:
            return self.compare(*words, is_pattern=quoted is not None and not quoted[2])
        return False if not words else None

    def compare(self, left: str, operator: str, right: str, *, is_pattern: bool) -> bool | None:
        """Compare two texts or two numbers."""
        if operator in ("-eq", "-ne", "-lt", "-le", "-gt", "-ge"):
            try:
                a, b = arithmetic(left, self.number), arithmetic(right, self.number)
            except UnknownError:
                return None
            return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[operator]
        if is_unknown(left + right):
            return None
        if operator == "=~":
            try:
                return re.search(right, left) is not None
            except re.error:
                return None
        if operator in ("=", "==", "!="):
            same = fnmatchcase(left, right) if is_pattern else left == right
            return same == (operator != "!=")
        return {"<": left < right, ">": left > right}.get(operator)


def _is_empty(text: str) -> bool:
    """Whether a text is empty, as a variable is that nobody sets."""
    return not UNKNOWN.sub(lambda m: "x" if m[1].startswith("$") else "", text)


def _either(a: bool | None, b: bool | None) -> bool | None:
    return True if a or b else None if a is None or b is None else False


def _both(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _is_assignment(word: Word) -> bool:
    match = _ASSIGNMENT.match(word.text)
    return match is not None and not word.text.startswith(("'", '"'))


def _is_declared(words: Sequence[Word], word: Word) -> bool:
    return words[0].text in _DECLARE and word is not words[0] and _is_assignment(word)


def _closing(raw: str, at: int, opens: str, closes: str) -> int:
    """Return where the bracket at a place closes; the end of the text where it does not."""
    depth, quote = 0, ""
    while at < len(raw):
        char = raw[at]
        if char == "\\":
            at += 1
        elif quote:
            quote = "" if char == quote else quote
        elif (char == "'" and opens != "{") or char == '"':
            quote = char
        elif char == opens:
            depth += 1
        elif char == closes:
            depth -= 1
            if not depth:
                return at
        at += 1
    return len(raw)
