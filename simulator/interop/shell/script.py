"""Launch scripts, read as bash would run them: nothing is executed, and what only a run could tell stays unknown.

A script is cut into words and statements, then walked: assignments, arrays, functions, ``if``, ``case`` and loops are
followed, commands are collected with their words expanded. An unknown value (a variable that is not set, the output of a
command) is carried along between two marks, so that whoever needs it can ask for it by name.

References
----------
POSIX.1-2024, Shell Command Language; the Bash reference manual (arrays, ``[[``, arithmetic, parameter expansion).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulator.errors import ConfigError
from simulator.interop.shell.builtins import DECLARATIONS
from simulator.interop.shell.expansion import assignment, shown
from simulator.interop.shell.launches import CHANGE_NOTHING, ExitError, Launches, LoopError, ReturnError, of_slurm
from simulator.interop.shell.parser import parse_script
from simulator.interop.shell.patterns import BoundError, matches
from simulator.interop.shell.state import MANY_ELEMENTS, DropError, Script
from simulator.interop.shell.streams import TOOLS, Sink, Source, output_of
from simulator.interop.shell.syntax import Statement, Word
from simulator.interop.shell.variables import Variable, Variables, numbered
from simulator.interop.typed_values import is_unknown, readable, unknown

#: statements that a command substitution counts for
_SUBSTITUTION = 5
#: names of options of ``set`` that have a letter
_LETTERS = {"errexit": "e", "allexport": "a", "errtrace": "E"}
_SKIPPED = ("nohup", "time", "builtin", "sudo", "command", "exec")
#: variables that a note names
_MOST_NAMES = 4


def read_script(
    text: str, file: str, *, arguments: Mapping[int, str] | None = None, variables: Mapping[str, str] | None = None
) -> Script:
    """Walk a script, or one command line, with its positional arguments from 1 and the variables of its environment.

    A ConfigError names the place where it is not well-formed, or expands without limit.
    """
    held = Variables({**dict(of_slurm(text)), **(variables or {})})
    walker = _Walker(
        file=file, name=file, running=(file,), script=Script(), variables=held, arguments=dict(arguments or {})
    )
    try:
        walker.whole(parse_script(text, file))
    except RecursionError:
        raise ConfigError(
            f"{file}:{walker.line}:1: nested too deeply", hint="assign inner ones to variables first"
        ) from None
    script = walker.script
    script.variables = walker.variables.plain()
    script.files = {name: text.removesuffix("\n") for name, text in walker.written.items()}
    script.unused = [name for name in variables or {} if name not in held.asked]
    script.unused += [f"${place}" for place in arguments or {} if place not in walker.asked_places]
    return script


def _status(holds: bool | None) -> int | None:
    return None if holds is None else int(not holds)


@dataclass(slots=True, kw_only=True)
class _Walker(Launches):
    substituted_status: int | None = 0  #: Of the last command substitution of a command.
    n_conditions: int = 0  #: Conditions around, in which ``set -e`` ends nothing.

    # -- statements ------------------------------------------------------------------------------------------------

    def whole(self, nodes: Sequence[Statement]) -> None:
        """Walk a script, and what it leaves to its end."""
        self.status = 0
        dropped = 0
        try:
            for node in nodes:
                if node.line == dropped:
                    continue
                try:
                    self.go_on([node])
                except DropError:
                    self.status, dropped = 1, node.line
        except ReturnError as end:
            self.status = end.status
        except ExitError as end:
            self.status = end.status
            if len(self.running) == 1 and self.name == self.file:
                self.script.ended = end.line
        except LoopError:
            pass
        self.ended()

    def go_on(self, nodes: Sequence[Statement]) -> int | None:
        """Walk statements of which the first sees the status before them."""
        for node in nodes:
            self.line = node.line
            self.step()
            with self.redirected(node):
                self.status = self.one(node)
            is_checked = node.kind in ("command", "subshell", "pipe", "test", "arithmetic")
            if not self.status or not is_checked or self.n_conditions:
                continue
            if "ERR" in self.traps and (not self.n_calls or "E" in self.options):
                status = self.status
                self.n_conditions += 1
                self.nested(self.traps["ERR"], node.line)
                self.n_conditions -= 1
                self.status = status
            if "e" in self.options:
                raise ExitError(node.line, self.status)
        return self.status

    def one(self, node: Statement) -> int | None:
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

    def condition(self, nodes: Sequence[Statement]) -> int | None:
        """Walk statements that may fail."""
        self.n_conditions += 1
        try:
            return self.go_on(nodes)
        finally:
            self.n_conditions -= 1

    def chain(self, node: Statement) -> int | None:
        """Walk ``a && b`` or ``a || b``."""
        status = self.condition(node.body)
        if status is None:
            if not all(_changes_nothing(one) for one in node.other):
                sign = "&&" if node.kind == "and" else "||"
                self.line = node.line
                what = f"whether what stands before {sign} holds only a run can tell{_condition(node.body)}"
                self.note(f"{what}: what follows is left out{_sets(node.other)}")
            return None
        self.status = status
        return self.go_on(node.other) if (status == 0) == (node.kind == "and") else status

    def pipe(self, node: Statement) -> int | None:
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

    def branch(self, node: Statement) -> int | None:
        for condition, body in node.branches:
            status = self.condition(condition)
            if status is None:
                self.line = node.line
                self.note(f"a condition that only a run can tell is taken as false{_condition(condition)}{_sets(body)}")
            if status == 0:
                return self.go_on(body)
        return self.go_on(node.other) if node.other else 0

    def case(self, node: Statement) -> int | None:
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

    def loop(self, node: Statement) -> int | None:
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

    def loop_over(self, node: Statement) -> None:
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

    def loop_counting(self, node: Statement) -> None:
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

    def loop_while(self, node: Statement) -> None:
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

    def _pass(self, body: Sequence[Statement]) -> bool:
        """Walk the body of a loop once; return whether the loop ends."""
        try:
            self.go_on(body)
        except LoopError as jump:
            if jump.levels > 1 and self.n_loops > 1:
                raise LoopError(jump.levels - 1, ends=jump.ends) from None
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

    def command(self, node: Statement) -> int | None:
        """Walk a simple command: assignments, a builtin, a function, or one that would be run."""
        words = list(node.words or ())
        outside: dict[str, Variable | None] = {}
        self.substituted_status = 0
        n_assigned = 0
        exported = self.variables.exported
        while n_assigned < len(words) and assignment(words[n_assigned].text) is not None:
            n_assigned += 1
        if 0 < n_assigned < len(words):
            self.variables.exported = set(exported)
        for word in words[:n_assigned]:
            one = assignment(word.text)
            assert one is not None
            if n_assigned < len(words):
                variable = self.variables.held.get(one.name)
                outside.setdefault(one.name, variable)
                self.variables.exported.add(one.name)
                self.variables.held[one.name] = Variable() if variable is None else variable.copied()
            self.line = word.line
            self.assign(one)
        self.line = node.line
        rest = words[n_assigned:]
        if not rest:
            return self.substituted_status
        status: int | None = 0
        try:
            if rest[0].text in DECLARATIONS:
                self.declare(rest[0].text, rest[1:])
            else:
                expanded = self.expand(rest)
                status = self.execute(expanded, node) if expanded else self.substituted_status
        except DropError:
            if rest[0].text not in (*DECLARATIONS, "read", "mapfile", "printf", "getopts"):
                raise
            status = 1
        if outside:
            self.variables.exported = exported
        self.variables.restore(outside)  # NAME=value command: for that command only
        return status

    def execute(self, words: list[str], node: Statement) -> int | None:
        """Do what a builtin does, or note the command."""
        if words[:1] == ["command"] and words[1:2] and words[1].startswith("-"):
            self.sink.write(None)
            return None
        replaces = skips = False
        while words and words[0] in _SKIPPED:
            replaces = replaces or words[0] == "exec"
            skips = skips or words[0] != "time"
            words = words[1:]
        if not words:
            return 0
        if words[0] in self.functions and not skips:
            return self.call(self.functions[words[0]], words[1:])
        name, rest = words[0], words[1:]
        known, status = self.flow(name, rest, node)
        if not known:
            known, status = self.builtin(name, rest, node)
        if not known:
            status = self.launch(words)
        if replaces:
            raise ExitError(node.line, status)
        return status

    def flow(self, name: str, rest: list[str], node: Statement) -> tuple[bool, int | None]:
        """Do what changes which statement runs next, or with which arguments; return whether it is that, and its status."""
        number = int(rest[0]) if rest and re.fullmatch(r"\d{1,6}", rest[0]) else None
        match name:
            case "exit":
                raise ExitError(node.line, self.status if number is None else number % 256)
            case "return":
                if not self.n_calls:
                    return True, 2
                raise ReturnError(self.status if number is None else number % 256)
            case "break" | "continue":
                if self.n_loops:
                    raise LoopError(number or 1, ends=name == "break")
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
                for one in rest[1:]:
                    signal = "EXIT" if one == "0" else one
                    self.traps = {**self.traps, signal: rest[0]}
                    if rest[0] in ("-", ""):
                        del self.traps[signal]
                return True, 0
        return False, 0

    def builtin(self, name: str, rest: list[str], node: Statement) -> tuple[bool, int | None]:
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
        """Move the arguments; those of the script keep their names where none are given."""
        if by > len(self.arguments) and (self.has_all_arguments or self.arguments):
            return 1
        self.step(len(self.arguments) // (4 * MANY_ELEMENTS))
        self.arguments = {place - by: value for place, value in self.arguments.items() if place > by}
        self.shifted += 0 if self.has_all_arguments else by
        return 0

    def set_options(self, words: list[str]) -> None:
        """Do ``set``: options by their letters or names, then arguments."""
        rest = list(words)
        while rest and rest[0][:1] in ("-", "+") and rest[0] not in ("-", "--"):
            word = rest.pop(0)
            named = [rest.pop(0)] if word[1:].endswith("o") and rest else []
            changed = {*word[1:].replace("o", ""), *named, *(_LETTERS[one] for one in named if one in _LETTERS)}
            self.options = self.options | changed if word[0] == "-" else self.options - changed
            self.variables.exports_all = "a" in self.options
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


def _condition(nodes: Sequence[Statement]) -> str:
    """Write a condition for a note, as the script has it."""
    words = [word.text for node in nodes for word in node.words or ()]
    if len(nodes) == 1 and nodes[0].kind == "test":
        words = ["[[", *words, "]]"]
    return f" [{' '.join(words):.80}]" if words else ""


def _sets(nodes: Sequence[Statement]) -> str:
    """Say which variables statements would set, for a note that they are left out."""
    names = list(dict.fromkeys(_assigned(nodes)))
    more = " and others" if len(names) > _MOST_NAMES else ""
    return f" ({', '.join(names[:_MOST_NAMES])}{more} would be set)" if names else ""


def _assigned(nodes: Sequence[Statement]) -> Iterator[str]:
    for node in nodes:
        for word in node.words or () if node.kind == "command" else ():
            if (one := assignment(word.text)) is not None:
                yield one.name
        bodies = [body for pair in node.branches for body in pair] + [body for _, body, _ in node.cases]
        for body in (node.body, node.other, *bodies):
            yield from _assigned(body)


def _changes_nothing(node: Statement) -> bool:
    """Whether a statement sets no variable and launches nothing."""
    if node.kind == "command" and node.words:
        return node.words[0].text in CHANGE_NOTHING
    return node.kind in ("group", "subshell", "and", "or") and all(map(_changes_nothing, [*node.body, *node.other]))
