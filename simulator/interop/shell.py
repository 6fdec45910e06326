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
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from simulator.config import read_text
from simulator.errors import ConfigError
from simulator.interop.shell_arithmetic import UnknownError, arithmetic
from simulator.interop.shell_expansion import ASSIGNMENT, MOST_MATCHED, Command, Expander, Script, Value
from simulator.interop.shell_syntax import Node, Word, parse_script
from simulator.interop.typed_values import UNKNOWN, is_unknown, readable

#: statements in all: no launch script comes near
MOST_STEPS = 50_000
#: a repeated group with a repetition inside, which may take for ever
_BACKTRACKS = re.compile(r"[+*}][^()]*\)[+*{]")
_DECLARE = ("export", "declare", "local", "readonly", "typeset")
_SKIPPED = ("nohup", "exec", "time", "command", "builtin", "sudo")


def read_script(
    text: str, file: str, *, arguments: Mapping[int, str] | None = None, variables: Mapping[str, str] | None = None
) -> Script:
    """Walk a script, or one command line, with its positional arguments from 1 and the variables of its environment.

    A ConfigError names the place where it is not well-formed, or expands without limit.
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
class _Walker(Expander):
    functions: dict[str, Node] = field(default_factory=dict)
    steps: int = 0

    # -- statements ------------------------------------------------------------------------------------------------

    def run(self, nodes: Sequence[Node]) -> bool | None:
        """Walk statements; return whether the last succeeded, None where that is not known."""
        for node in nodes:
            self._step(node)
            self.line = node.line
            self.status = self.one(node)
        return self.status

    def _step(self, node: Node) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            hint = "does a loop wait for something? what it starts can be a script of its own"
            self.refuse(node.line, f"the script would run more than {MOST_STEPS:,} statements", hint=hint)

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
            self._step(node)
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

    # -- commands --------------------------------------------------------------------------------------------------

    def command(self, node: Node) -> bool | None:
        """Walk a simple command: assignments, a builtin, a function, or one that would be run."""
        words = list(node.words or ())
        kept: dict[str, Value | None] = {}
        while words and _is_assignment(words[0]):
            name = ASSIGNMENT.match(words[0].text)[1]  # type: ignore[index]
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
        before, self.arguments = self.arguments, dict(enumerate(arguments, start=1))
        try:
            with self.deeper(function.line):
                return self.run(function.body)
        except _ReturnError:
            return True
        finally:
            self.arguments = before

    def nested(self, text: str, line: int) -> bool | None:
        """Walk a text that is a script of its own."""
        with self.deeper(line):
            return self.run(parse_script(text, f"{self.file}:{line}", first_line=line))

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
                a, b = arithmetic(left, self.value), arithmetic(right, self.value)
            except UnknownError:
                return None
            return {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}[operator]
        if is_unknown(left + right):
            return None
        if operator == "=~":
            if len(left) > MOST_MATCHED or _BACKTRACKS.search(right):
                return None
            try:
                return re.search(right, left) is not None
            except (re.error, OverflowError, RecursionError):
                return None
        if operator in ("=", "==", "!="):
            same = fnmatchcase(left, right) if is_pattern else left == right
            return same == (operator != "!=")
        return {"<": left < right, ">": left > right}.get(operator)


def _is_empty(text: str) -> bool:
    """Whether a text is empty, as an unset variable is."""
    return not UNKNOWN.sub(lambda m: "x" if m[1].startswith("$") else "", text)


def _either(a: bool | None, b: bool | None) -> bool | None:
    return True if a or b else None if a is None or b is None else False


def _both(a: bool | None, b: bool | None) -> bool | None:
    return False if a is False or b is False else None if a is None or b is None else True


def _is_assignment(word: Word) -> bool:
    match = ASSIGNMENT.match(word.text)
    return match is not None and not word.text.startswith(("'", '"'))


def _is_declared(words: Sequence[Word], word: Word) -> bool:
    return words[0].text in _DECLARE and word is not words[0] and _is_assignment(word)
