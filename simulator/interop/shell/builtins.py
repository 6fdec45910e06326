"""Builtins that set variables or print: ``declare``, ``read``, ``mapfile``, ``getopts``, ``printf``, ``echo`` and the like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from simulator.interop.shell.conditions import ShellConditions
from simulator.interop.shell.expansion import Assignment, assignment, unescaped
from simulator.interop.shell.getopt import options_of
from simulator.interop.shell.state import MOST_CHARACTERS, split_name
from simulator.interop.shell.streams import Sink, Source
from simulator.interop.shell.syntax import Word, literal
from simulator.interop.shell.variables import Variable
from simulator.interop.typed_values import is_unknown, unknown

#: builtins whose arguments may be assignments
DECLARATIONS = ("export", "declare", "local", "readonly", "typeset")
_NAME = re.compile(r"[A-Za-z_]\w*")
_FORMAT = re.compile(
    r"%([-+ 0#]*)(\*|\d+)?(?:\.(\*|\d+)?)?[hlqjzt]?([diouxXcsbqeEfFgG%])|\\(?:c|.)|[^%\\]+|.", re.DOTALL
)


@dataclass(slots=True, kw_only=True)
class Builtins(ShellConditions):
    """Does what builtins do."""

    source: Source = field(default_factory=lambda: Source(None))  #: What commands read.
    sink: Sink = field(default_factory=Sink)  #: What commands write.
    option_at: int = 1  #: The letter of an argument that ``getopts`` reads next.

    # -- declarations ----------------------------------------------------------------------------------------------

    def declare(self, name: str, words: Sequence[Word]) -> int:
        """Do ``declare``, ``local``, ``export``, ``readonly`` or ``typeset``."""
        letters = takes = ""
        targets: list[Assignment | str] = []
        for word in words:
            one = assignment(word.text)
            texts = [] if one is not None else self.expand([word])
            for text in texts:
                if text[:1] in ("-", "+") and not targets:
                    letters += text[1:] if text[0] == "-" else ""
                    takes += text[1:] if text[0] == "+" else ""
                elif (found := assignment(text)) is not None:
                    is_array = found.raw[:1] == "(" and bool(set(letters) & {"a", "A"})
                    raw = found.raw if is_array else literal(found.raw)
                    targets.append(Assignment(found.name, found.index, found.adds, raw))
                elif _NAME.match(text):
                    targets.append(text)
            targets += [one] if one is not None else []
        if name == "export" and "f" in letters:
            self.variables.exported |= {f"{target}()" for target in targets}
            return 0
        if name == "export" and "n" in letters:
            letters, takes = letters.replace("n", ""), "x"
        if set(letters) & set("fFp"):
            self.sink.write(None)
            return 0
        letters += "r" * (name == "readonly")
        is_own = bool(self.variables.scopes) and name in ("local", "declare", "typeset") and "g" not in letters
        for target in targets:
            named = target.name if isinstance(target, Assignment) else split_name(target)[0]
            if "x" in takes:
                self.variables.exported.discard(named)
            elif name == "export" or "x" in letters:
                self.variables.exported.add(named)
            self._declare(target, letters, is_own=is_own)
        return 0

    def _declare(self, target: Assignment | str, letters: str, *, is_own: bool) -> None:
        one = target if isinstance(target, Assignment) else None
        name = one.name if one is not None else split_name(str(target))[0]
        if one is not None and not one.raw.startswith("("):  # what is assigned is expanded outside
            one = Assignment(name, one.index, one.adds, literal(self.text_of(one.raw)))
        elif one is not None and is_own and "A" not in letters:
            outside = self.variables.held.get(name)
            inside = None if outside is None else outside.copied()
            self.variables.scopes[-1].outside.setdefault(name, outside)
            if inside is not None:
                self.variables.held[name] = inside
        if is_own:
            self.variables.own(name)
        if "n" in letters and one is not None:
            self.variables.held.setdefault(name, Variable()).refers = self.text_of(one.raw)
            return
        if letters or is_own:
            self._give_attributes(name, letters)
        if one is not None:
            self.assign(one)
        if "r" in letters:
            self.variables.made(name).is_readonly = True

    def _give_attributes(self, name: str, letters: str) -> None:
        if not set(letters) & set("aAilu") and self.variables.get(name) is None:
            return  # of the environment
        variable = self.variables.made(name)
        variable.is_integer = variable.is_integer or "i" in letters
        variable.case = next((letter for letter in "lu" if letter in letters), variable.case)
        if "A" in letters and variable.keyed is None:
            variable.text, variable.elements, variable.keyed = None, None, {}
        elif "a" in letters and not variable.is_array:
            variable.elements = {} if variable.text is None else {0: variable.text}
            variable.text = None

    def unset(self, names: Sequence[str]) -> int:
        """Take variables and elements away."""
        for name in names:
            base, subscript = split_name(name)
            variable = self.variables.get(base)
            if subscript is None or (variable is not None and subscript in ("@", "*")):
                self.variables.unset(name if subscript is None else base)
            elif variable is not None:
                key = self.key(base, self.text_of(subscript))
                if variable.keyed is not None:
                    variable.keyed.pop(key, None)
                elif variable.elements is not None and not is_unknown(key):
                    variable.elements.pop(int(key), None)
        return 0

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, words: Sequence[str]) -> int | None:
        """Do ``read``; return whether there was a line."""
        options, names = options_of(words, "adnNptui")
        if "a" in options:
            names = [options["a"]]
        names = names or ["REPLY"]
        if self.source.text is None or "u" in options:
            for name in names:
                self.set(name, unknown(f"$(read {name})"))
                variable = self.variables.get(name)
                if "a" in options and variable is not None:
                    variable.elements, variable.text, variable.is_open = {0: unknown(f"$(read -a {name})")}, None, True
            return None
        if {"n", "N"} & set(options):
            self.refuse("read -n and -N are not followed", hint="write what it reads in its place")
        end = options.get("d", "\n")[:1] or "\0"
        line, is_whole = self.source.until(end)
        while "r" not in options and line.endswith("\\") and is_whole:
            more, is_whole = self.source.until(end)
            line = line[:-1] + more
        if "a" in options:
            self.set_elements(names[0], self._cut(line, 0, is_raw="r" in options), is_open=is_unknown(line))
        elif names == ["REPLY"]:
            self.set("REPLY", line if "r" in options else re.sub(r"\\(.)", r"\1", line))
        else:
            values = self._cut(line, len(names), is_raw="r" in options)
            for place, name in enumerate(names):
                self.set(name, values[place] if place < len(values) else "")
        return int(not is_whole)

    def _cut(self, line: str, most: int, *, is_raw: bool) -> list[str]:
        """Cut a line at IFS into so many fields, the last with all that is left; without a limit where that is 0."""
        separators = self.separators()
        blanks = re.escape("".join(char for char in separators if char in " \t\n"))
        marks = re.escape("".join(char for char in separators if char not in " \t\n"))
        if not separators:
            return [line]
        line = line.strip("".join(char for char in separators if char in " \t\n"))
        blank = f"[{blanks}]" if blanks else "(?!)"
        mark = f"{blank}*[{marks}]{blank}*" if marks else "(?!)"
        end, escape = re.compile(f"(?:{mark}|{blank}+)"), "" if is_raw else "\\"
        fields: list[str] = []
        current, at = "", 0
        while at < len(line):
            if line[at] == escape and at + 1 < len(line):
                current, at = current + line[at + 1], at + 2
                continue
            if line[at] == "\ue000":
                stop = line.find("\ue001", at) + 1
                current, at = current + line[at:stop], stop
                continue
            found = end.match(line, at)
            if found is None or not found[0]:
                current, at = current + line[at], at + 1
                continue
            if most and len(fields) == most - 1:
                rest = line[at:]
                only = end.fullmatch(rest)  # one separator at the end goes away
                return [*fields, current + ("" if only else rest if is_raw else re.sub(r"\\(.)", r"\1", rest))]
            fields.append(current)
            current, at = "", found.end()
        return [*fields, current] if current else fields

    def mapfile(self, words: Sequence[str]) -> int:
        """Do ``mapfile``."""
        options, names = options_of(words, "dnOsuCc")
        name = names[0] if names else "MAPFILE"
        if self.source.text is None or "u" in options:
            self.set_elements(name, [unknown(f"$(mapfile {name})")], is_open=True)
            return 0
        if set(options) - set("tdns"):
            self.refuse(f"mapfile {' '.join(words):.40} is not followed", hint="write the array in its place")
        end = options.get("d", "\n")[:1] or "\0"
        lines = re.findall(f"[^{re.escape(end)}]*{re.escape(end)}|[^{re.escape(end)}]+", self.source.rest() or "")
        lines = lines[int(options.get("s", 0)) :]
        lines = lines[: int(options.get("n", 0)) or None]
        self.set_elements(name, [line.removesuffix(end) if "t" in options else line for line in lines])
        return 0

    def getopts(self, words: Sequence[str]) -> int | None:
        """Do ``getopts letters name [arguments]``."""
        if len(words) < 2 or is_unknown(words[0]):
            return None
        letters, name, places = words[0], words[1], list(words[2:]) or self.places()
        index = int(self.value("OPTIND") or "1")
        word = places[index - 1] if index <= len(places) else ""
        if is_unknown(word):
            return None
        if self.option_at == 1 and (len(word) < 2 or word[0] != "-" or word == "--"):
            self.set("OPTIND", str(index + (word == "--")))
            self.set(name, "?")
            return 1
        letter = word[self.option_at]
        self.option_at += 1
        at = letters.find(letter) if letter != ":" else -1
        value = ""
        if self.option_at >= len(word):
            index, self.option_at = index + 1, 1
        if at < 0:
            letter, value = "?", letter if letters.startswith(":") else ""
        elif letters[at + 1 : at + 2] == ":":
            if self.option_at > 1:
                value, self.option_at, index = word[self.option_at :], 1, index + 1
            elif index <= len(places):
                value, index = places[index - 1], index + 1
            else:
                value, letter = (letter, ":") if letters.startswith(":") else ("", "?")
        self.set("OPTIND", str(index))
        if value or letter not in ("?", ":"):
            self.set("OPTARG", value)
        self.set(name, letter)
        return 0

    # -- printing --------------------------------------------------------------------------------------------------

    def echo(self, words: Sequence[str]) -> int:
        """Do ``echo``."""
        ends, escapes, at = "\n", False, 0
        while at < len(words) and re.fullmatch(r"-[neE]+", words[at]):
            ends = "" if "n" in words[at] else ends
            escapes = words[at].rfind("e") > words[at].rfind("E") if set(words[at]) & {"e", "E"} else escapes
            at += 1
        text = " ".join(words[at:])
        if escapes:
            text, stops = unescaped(text.partition("\\c")[0]), "\\c" in text
            ends = "" if stops else ends
        self.sink.write(text + ends)
        return 0

    def printf(self, words: Sequence[str]) -> int | None:
        """Do ``printf``."""
        target = ""
        if words[:1] == ["-v"] and len(words) > 1:
            target, words = words[1], words[2:]
        words = words[1:] if words[:1] == ["--"] else words
        text = self.formatted(words[0], list(words[1:])) if words else ""
        if target:
            self.set(target, unknown(f"$(printf {' '.join(words)})") if text is None else text)
        else:
            self.sink.write(text)
        return 0

    def formatted(self, template: str, values: list[str]) -> str | None:
        """Return what a format makes of values, used again until they end; None where only a run would tell."""
        found, length = [], 0
        while True:
            n_before = len(values)
            for match in _FORMAT.finditer(template):
                piece = self._piece(match, values)
                if piece is None:
                    return None
                found.append(piece)
                length += len(piece)
                if length > MOST_CHARACTERS:
                    self.refuse(f"printf writes beyond {MOST_CHARACTERS >> 20} MiB", hint="write its text in its place")
            if not values or len(values) == n_before:
                return "".join(found)

    def _piece(self, match: re.Match[str], values: list[str]) -> str | None:
        flags, width, precision, kind = match.groups()
        if kind is None:
            return unescaped(match[0]) if match[0].startswith("\\") else match[0]
        if kind == "%":
            return "%"
        if "*" in (width, precision):
            self.refuse("a * in a format of printf is not followed", hint="write the width in its place")
        if any(len(number or "") > 5 for number in (width, precision)):
            self.refuse(f"printf with {match[0]:.30} writes too much", hint="write its text in its place")
        value = values.pop(0) if values else ""
        if is_unknown(value):
            return value if kind in "sb" and not width else None
        has_precision = "." in match[0]
        try:
            text = self._converted(kind, value, flags, int(precision or 0) if has_precision else None)
        except ValueError:
            self.note(f"printf: {value:.40} is no number")
            return None
        if width and len(text) < int(width):
            fills = "0" if "0" in flags and "-" not in flags and kind not in "scbq" else " "
            sign = text[:1] if fills == "0" and text[:1] in ("-", "+", " ") else ""
            text = (
                text.ljust(int(width))
                if "-" in flags
                else sign + text[len(sign) :].rjust(int(width) - len(sign), fills)
            )
        return text

    def _converted(self, kind: str, value: str, flags: str, precision: int | None) -> str:
        """Return one value as a format has it; a ValueError where it is no number."""
        plus = "+" if "+" in flags else " " if " " in flags else ""
        if kind in "sbq":
            text = unescaped(value) if kind == "b" else value
            if kind == "q":
                text = re.sub(r"([^\w@%+=:,./-])", r"\\\1", value) if value else "''"
            return text if precision is None else text[:precision]
        if kind == "c":
            return value[:1]
        if value[:1] in ("'", '"'):
            value = str(ord(value[1:2] or "\0"))
        if kind in "eEfFgG":
            number = float(value or 0)
            return f"{number:{plus}{'#' if '#' in flags else ''}.{6 if precision is None else precision}{kind}}"
        stripped = value.strip()
        match = re.fullmatch(r"([-+]?)(0[xX][0-9a-fA-F]+|\d+|)", stripped)
        if match is None:
            raise ValueError(value)
        digits = match[2] or "0"
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
        whole = int(digits, base) * (-1 if match[1] == "-" else 1)
        if kind in "ouxX":
            mark = {"o": "0", "x": "0x", "X": "0X"}.get(kind, "") if "#" in flags and whole else ""
            return mark + f"{whole % 2**64:{kind if kind != 'u' else 'd'}}".zfill(precision or 0)
        return ("-" if whole < 0 else plus) + str(abs(whole)).zfill(precision or 0)
