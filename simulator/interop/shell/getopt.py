"""``getopt`` of util-linux: the words of a command line, its options first.

References
----------
getopt(1) of util-linux.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simulator.interop.shell.syntax import literal

_OWN = {"-o": "o", "--options": "o", "-l": "l", "--long": "l", "--longoptions": "l", "-n": "n", "--name": "n"}


def getopt(words: Sequence[str], _: str | None) -> str | None:
    """Return what ``getopt`` prints for its words; None where it would refuse them, or an option of its own is not known."""
    rest, own = list(words), {"o": "", "l": "", "n": ""}
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word = rest.pop(0)
        name, is_joined, value = word.partition("=") if word.startswith("--") else (word[:2], word[2:], word[2:])
        if name not in _OWN or not (is_joined or rest):
            return None
        own[_OWN[name]] += ("," if own[_OWN[name]] else "") + (value if is_joined else rest.pop(0))
    if rest[:1] != ["--"] or own["o"][:1] in ("+", "-", ","):
        return None
    found: list[str] = []
    others: list[str] = []
    rest = rest[1:]
    while rest:
        word = rest.pop(0)
        if word == "--":
            others += rest
            break
        if len(word) < 2 or word[0] != "-":
            others.append(word)
        elif (made := _long(word, rest, own["l"]) if word[1] == "-" else _short(word, rest, own["o"])) is None:
            return None
        else:
            found += made
    return " " + " ".join([*found, "--", *map(literal, others)])


def _long(word: str, rest: list[str], known: str) -> list[str] | None:
    name, is_joined, value = word[2:].partition("=")
    options = {one.rstrip(":"): one.count(":") for one in known.replace(",", " ").split()}
    fitting = [name] if name in options else [one for one in options if one.startswith(name)]
    if len(fitting) != 1:
        return None
    takes = options[fitting[0]]
    if (is_joined and not takes) or (takes == 1 and not is_joined and not rest):
        return None
    if takes == 1 and not is_joined:
        value = rest.pop(0)
    return [f"--{fitting[0]}", *([literal(value)] if takes else [])]


def _short(word: str, rest: list[str], known: str) -> list[str] | None:
    found: list[str] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        at = known.find(letter)
        if at < 0 or letter == ":":
            return None
        found.append(f"-{letter}")
        if known[at + 1 : at + 2] != ":":
            continue
        is_optional = known[at + 1 : at + 3] == "::"
        if not letters and not is_optional:
            if not rest:
                return None
            letters = rest.pop(0)
        found.append(literal(letters))
        break
    return found


def options_of(
    words: Sequence[str], with_value: str, spell: Callable[[str], str] = lambda word: word
) -> tuple[dict[str, str], list[str]]:
    """Return the options of a command by their letters, and what follows them.

    Parameters
    ----------
    with_value : str
        Letters whose value follows, in the same word or the next.
    spell : callable, optional
        Writes an option in letters that has other forms.

    Examples
    --------
    >>> options_of(["-rn", "2", "echo", "-n"], "n")
    ({'r': '', 'n': '2'}, ['echo', '-n'])
    """
    found: dict[str, str] = {}
    rest = list(words)
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word = rest.pop(0)
        if word == "--":
            break
        word = spell(word)
        for at, letter in enumerate(word[1:], start=1):
            if letter in with_value:
                found[letter] = word[at + 1 :] or (rest.pop(0) if rest else "")
                break
            found[letter] = ""
    return found, rest
