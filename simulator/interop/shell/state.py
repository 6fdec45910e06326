"""What walking a script holds: its variables and arguments, where it stands, what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from simulator.errors import ConfigError
from simulator.interop.shell.arithmetic import ExpressionError, UnknownError, arithmetic
from simulator.interop.shell.syntax import closing
from simulator.interop.shell.variables import Variable, Variables, numbered
from simulator.interop.typed_values import is_unknown, readable, unknown

#: characters of one value: no launch script comes near
MOST_CHARACTERS = 1 << 20
#: statements in all: no launch script comes near
MOST_STEPS = 50_000
#: functions, scripts and expansions within one another
MOST_DEPTH = 40
#: characters, and elements, that take as long as a statement
_MUCH_TEXT, MANY_ELEMENTS = 20_000, 10
#: notes about what is not known
_MOST_NOTES = 200


class DropError(Exception):
    """A readonly variable is set again: bash drops the line and goes on with the next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command that the script would run, expanded."""

    words: tuple[str, ...]
    line: int
    lines: tuple[int, ...] = ()  #: Of each word.


@dataclass(slots=True, kw_only=True)
class Script:
    """What reading a script gave."""

    #: In the order in which they would run.
    commands: list[Command] = field(default_factory=list)
    #: Files that the script writes itself, by path: here-documents and what is echoed; the last line end is left out.
    files: dict[str, str] = field(default_factory=dict)
    #: At its end; arrays with keys are left out.
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    #: What hangs on what is not known, and what was taken.
    assumed: list[str] = field(default_factory=list)
    #: Line of an ``exit`` that was reached; 0 if none was.
    ended: int = 0
    #: Commands that start what is not known, with their lines.
    unfollowed: list[tuple[int, str]] = field(default_factory=list)
    #: Given variables, and given arguments as ``$1``, that nothing asks for.
    unused: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class State:
    """Holds the variables and arguments of a script, and evaluates arithmetic on them."""

    file: str  #: That is read: a script, or one that it sources.
    script: Script
    variables: Variables
    arguments: dict[int, str]
    has_all_arguments: bool = False  #: Whether an argument that is not there is known to be none.
    shifted: int = 0  #: By how many arguments of the script ``shift`` moved them.
    status: int | None = 0  #: Of the last command; None where only a run would tell.
    line: int = 1  #: Of the statement that runs.
    name: str = ""  #: ``$0``
    steps: int = 0  #: Statements so far, and what takes as long.
    asked_places: set[int] = field(default_factory=set)  #: Arguments of the script that were looked up.
    depth: int = 0  #: Of what is being expanded, called or run within what.
    opens: bool = False  #: Whether a word was expanded that may be several words, or none.
    globs: list[str] = field(default_factory=list)  #: Words that files of the machine may stand for.
    lines: list[int] = field(default_factory=list)  #: Of the words that were expanded last.

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count one level more for a while; refuse a script that has no end of them."""
        self.depth += 1
        try:
            if self.depth > MOST_DEPTH:
                hint = f"at most {MOST_DEPTH} levels; assign inner ones to variables first"
                self.refuse("functions, scripts and expansions are nested too deeply", hint=hint)
            yield
        finally:
            self.depth -= 1

    def step(self, count: int = 1) -> None:
        """Count a statement, a pass of a loop, or what takes as long as several."""
        self.steps += count
        if self.steps > MOST_STEPS:
            hint = "does a loop wait for something, or go over a large array? what it starts can be a script of its own"
            self.refuse(f"the script would run more than {MOST_STEPS:,} statements", hint=hint)

    def refuse(self, message: str, *, hint: str = "") -> NoReturn:
        """Raise the error of the line that runs."""
        raise ConfigError(readable(f"{self.file}:{self.line}:1: {message}"), hint=hint)

    def note(self, message: str) -> None:
        """Say what is not known in the line that runs, and what is taken."""
        text = f"line {self.line} of {self.file}: {readable(message)}"
        if text not in self.script.assumed and len(self.script.assumed) < _MOST_NOTES:
            self.script.assumed.append(text)

    def check_length(self, text: str, name: str) -> None:
        """Refuse a value of more than a mebibyte, which no argument of a job has."""
        if len(text) > MOST_CHARACTERS:
            hint = "is it repeated in a loop? set it to what the job gets"
            self.refuse(f"{name} grows beyond {MOST_CHARACTERS >> 20} MiB", hint=hint)

    # -- variables -------------------------------------------------------------------------------------------------

    def set(self, name: str, value: str, *, adds: bool = False) -> None:
        """Set a variable, or the element ``name[index]``, as its attributes have it."""
        base, subscript = split_name(name)
        variable = self.changeable(base)
        key = self.key(base, subscript or "0") if subscript is not None or variable.is_array else None
        before = (
            ""
            if not adds
            else (variable.first() if key is None else None if is_unknown(key) else variable.at(key)) or ""
        )
        self.step(len(before) // _MUCH_TEXT)
        value = self.formed(variable, value, before)
        self.check_length(value, name)
        if key is None:
            variable.text = value
        elif variable.keyed is not None:
            variable.keyed[key] = value
        elif is_unknown(key):
            self.note(f"which element {name} is is not known: it is left out")
        else:
            variable.elements = variable.elements or numbered([] if variable.text is None else [variable.text])
            variable.text = None
            variable.elements[int(key)] = value

    def set_elements(self, name: str, values: Sequence[str], *, is_open: bool = False) -> None:
        """Make a variable an array of these elements."""
        variable = self.changeable(name)
        variable.text, variable.keyed, variable.is_open = None, None, is_open
        variable.elements = numbered(self.formed(variable, value, "") for value in values)

    def changeable(self, name: str) -> Variable:
        """Return a variable that may be changed, made where it is not there."""
        variable = self.variables.made(name)
        if variable.is_readonly:
            self.note(f"{name} is readonly and set again: bash leaves it, and what follows in that line")
            raise DropError
        return variable

    def formed(self, variable: Variable, value: str, before: str) -> str:
        """Return a value as the attributes of its variable have it, behind what is there before."""
        if variable.is_integer:
            try:
                return str(arithmetic(f"{before or 0} + ({value or 0})", self.number, self.set_number))
            except UnknownError as error:
                return unknown(error.name or f"$(({readable(value)}))")
        value = before + value
        return value.upper() if variable.case == "u" else value.lower() if variable.case == "l" else value

    def key(self, name: str, subscript: str) -> str:
        """Return the key, or the index from 0, that an expanded subscript means; not known where only a run would tell."""
        variable = self.variables.get(name)
        if variable is not None and variable.keyed is not None:
            return subscript
        try:
            index = arithmetic(subscript, self.number, self.set_number)
        except UnknownError as error:
            return unknown(error.name or f"{name}[{readable(subscript)}]")
        if index < 0:
            index += (
                0
                if variable is None
                else 1 + max(variable.elements, default=-1)
                if variable.elements is not None
                else len(variable)
            )
        if index < 0:
            self.refuse(f"{name}[{subscript}] lies before the first element", hint="bash refuses it too")
        return str(index)

    def value(self, name: str) -> str | None:
        """Return a variable as one text; empty where it is unset, None where only a run would tell."""
        if name.isdigit() and name != "0":
            if not self.has_all_arguments:
                self.asked_places.add(int(name) + self.shifted)
            return self.arguments.get(int(name), "" if self.has_all_arguments else None)
        if name == "#":
            return str(len(self.arguments))
        if name in ("@", "*"):
            return " ".join(self.places())
        variable = self.variables.get(name)
        if variable is None:
            return {
                "LINENO": str(self.line),
                "BASH_SOURCE": self.file,
                "OPTIND": "1",
                "OPTARG": "",
                "IFS": " \t\n",
            }.get(name)
        return variable.first() or ""

    def is_set(self, name: str) -> bool:
        """Whether a variable, an element or an argument has a value; what only a run would tell has none."""
        base, subscript = split_name(name)
        if subscript is not None:
            return self.element(base, subscript) is not None
        if name.isdigit() and name != "0":
            return int(name) in self.arguments
        if name in ("@", "*"):
            return bool(self.arguments)
        variable = self.variables.get(name)
        return self.value(name) is not None if variable is None else variable.first() is not None

    def element(self, name: str, subscript: str) -> str | None:
        """Return an element of an array; None where there is none, not known where only a run would tell."""
        variable = self.variables.get(name)
        if variable is None:
            return self.value(name) if subscript == "0" else None
        key = self.key(name, subscript)
        if is_unknown(key) or (variable.elements is not None and not variable.is_known_until(int(key))):
            return unknown(f"{name}[{readable(subscript)}]")
        return variable.at(key)

    def places(self) -> list[str]:
        """Return the arguments."""
        if not self.has_all_arguments:
            self.asked_places |= {place + self.shifted for place in self.arguments}
        self.step(len(self.arguments) // MANY_ELEMENTS)
        return [value for _, value in sorted(self.arguments.items())]

    def separators(self) -> str:
        """Return what separates words, IFS."""
        value = self.value("IFS") or ""
        variable = self.variables.get("IFS")
        return " \t\n" if is_unknown(value) or (variable is not None and variable.text is None) else value

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def number(self, name: str) -> str | None:
        """Return what a name means in arithmetic: the text of a variable or of an element."""
        base, subscript = split_name(name)
        if subscript is None:
            return self.value(name)
        if self.variables.get(base) is None:
            return None
        return self.element(base, subscript) or ""

    def set_number(self, name: str, value: int) -> None:
        """Set a variable, or an element, from arithmetic."""
        self.set(name, str(value))

    def calculated(self, text: str, shown: str) -> str:
        """Return the value of an arithmetic expression whose dollars are expanded; ``shown`` is how the script has it."""
        try:
            return str(arithmetic(text, self.number, self.set_number))
        except UnknownError as error:
            self.complain(error, shown)
            return unknown(error.name or f"$(({readable(shown).strip()}))")

    def holds(self, text: str) -> int | None:
        """Return the status of an arithmetic expression: 0 where it is not zero."""
        try:
            return int(not arithmetic(text, self.number, self.set_number))
        except UnknownError as error:
            self.complain(error, text)
            return None

    def complain(self, error: UnknownError, text: str) -> None:
        """Note what bash could not evaluate either."""
        if isinstance(error, ExpressionError):
            self.note(f"(({text.strip():.60})) has no value: {error.reason}")


def split_name(name: str) -> tuple[str, str | None]:
    """Return the name and the subscript of ``name[subscript]``; None where there is none."""
    at = name.find("[")
    if at < 1 or closing(name, at) != len(name) - 1:
        return name, None
    return name[:at], name[at + 1 : -1]
