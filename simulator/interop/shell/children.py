"""Shells and scripts that a command starts: what they read, their arguments, and the environment that reaches them.

References
----------
The Bash reference manual, 6.1; the manuals of env(1), ssh(1), srun(1) and sbatch(1).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

_SHELLS = ("bash", "sh", "dash", "ksh", "zsh")
_SUBMITS = ("sbatch", "qsub", "bsub")
#: commands that start another one, which follows their options
_STARTERS = (
    *_SUBMITS, "srun", "mpirun", "mpiexec", "env", "nohup", "timeout", "numactl", "taskset", "stdbuf", "nice", "setsid", "docker",
    "podman", "singularity", "apptainer", "pdsh", "sudo", "su",
)  # fmt: skip
#: of containers, which inherit nothing
_CONTAINERS = ("docker", "podman", "nerdctl", "kubectl")
_ENDS = (".sh", ".bash", ".slurm", ".sbatch")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
#: options of ssh that take a value
_OF_SSH = "BbcDEeFIiJLlmOopQRSWw"


@dataclass(slots=True, kw_only=True)
class Environment:
    """What a command changes in the environment that it hands on."""

    given: dict[str, str] = field(default_factory=dict)  #: Variables that it sets.
    kept: set[str] | None = None  #: The only ones that are handed on; None: all.
    removed: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A shell that a command starts."""

    place: int  #: How many words stand in front of it.
    source: str  #: ``text``, ``file`` or ``input``: what it reads.
    text: str = ""  #: The text, or the path of the file.
    name: str = "bash"  #: Its ``$0``.
    arguments: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()  #: Letters and names of ``set``.
    environment: Environment = field(default_factory=Environment)
    is_job: bool = False  #: Whether Slurm starts it, and reads its ``#SBATCH`` lines.


def child_of(words: Sequence[str], is_script: Callable[[str], bool], *, reads: bool) -> Child | None:
    """Return the shell that a command starts; None where it starts none, or it is not known which.

    Parameters
    ----------
    is_script : callable
        Whether a path is that of a script that can be read.
    reads : bool
        Whether what the command reads is known.
    """
    starts = posixpath.basename(words[0]) in _STARTERS
    for place, word in enumerate(words):
        name, rest = posixpath.basename(word), words[place + 1 :]
        found: Child | None = None
        if name in _SHELLS:
            found = _shell(place, word, rest)
            if place and (found.source == "file" or (found.source == "input" and not (starts and reads))):
                found = found if starts and found.source == "file" and is_script(found.text) else None
        elif name == "ssh" and place == 0:
            found = _ssh(rest)
        elif name == "su" and place == 0 and "-c" in rest[:-1]:
            found = Child(place=1, source="text", text=rest[rest.index("-c") + 1])
        elif name in _SUBMITS and place == 0:
            found = _job(name, rest, is_script)
        elif (place == 0 or starts) and is_script(word) and ("/" in word or place):
            found = Child(place=place, source="file", text=word, name=word, arguments=tuple(rest))
        if found is not None:
            return _with_environment(found, words)
    return None


def may_start(words: Sequence[str]) -> bool:
    """Whether a command starts a script that is not there, or a shell of which nothing is known."""
    name = posixpath.basename(words[0])
    if name in (*_SUBMITS, "ssh", "pdsh"):
        return True
    return (name in (*_SHELLS, *_STARTERS) or "/" in words[0]) and any(word.endswith(_ENDS) for word in words)


def _shell(place: int, word: str, rest: Sequence[str]) -> Child:
    options: set[str] = set()
    at = 0
    while at < len(rest) and rest[at][:1] in ("-", "+") and len(rest[at]) > 1:
        option = rest[at]
        at += 1
        if option == "--":
            break
        if option.startswith("--"):
            at += option in ("--rcfile", "--init-file")
            continue
        for letter in option[1:]:
            if letter in "oO":
                options |= {rest[at]} if at < len(rest) and option[0] == "-" else set()
                at += 1
            elif option[0] == "-":
                options.add(letter)
    after = tuple(rest[at:])
    kept = frozenset(options - {"c", "s"} | ({"e"} if "errexit" in options else set()))
    if "c" in options and after:
        name = after[1] if after[1:] else word
        return Child(place=place, source="text", text=after[0], name=name, arguments=after[2:], options=kept)
    if "s" in options or not after or after[0] == "-":
        return Child(place=place, source="input", name=word, arguments=after, options=kept)
    return Child(place=place, source="file", text=after[0], name=after[0], arguments=after[1:], options=kept)


def _ssh(rest: Sequence[str]) -> Child:
    at = 0
    while at < len(rest) and rest[at].startswith("-"):
        at += 1 + (rest[at][-1] in _OF_SSH and len(rest[at]) == 2)
    command = rest[at + 1 :]
    return Child(place=1, source="text" if command else "input", text=" ".join(command))


def _job(name: str, rest: Sequence[str], is_script: Callable[[str], bool]) -> Child:
    for at, word in enumerate(rest):
        if word.startswith("--wrap"):
            text = word.partition("=")[2] if "=" in word else " ".join(rest[at + 1 : at + 2])
            return Child(place=1, source="text", text=text, is_job=True)
        if is_script(word):
            arguments = tuple(rest[at + 1 :])
            return Child(place=1, source="file", text=word, name=word, arguments=arguments, is_job=name == "sbatch")
    script = next((word for word in rest if word.endswith(_ENDS)), "")
    source = "file" if script else "input"
    return Child(place=1, source=source, text=script, name=script or name, is_job=name == "sbatch")


def _with_environment(child: Child, words: Sequence[str]) -> Child:
    # options of sbatch may stand anywhere before the script
    before = words if child.is_job and child.source != "file" else words[: len(words) - len(child.arguments)]
    if not child.is_job:
        before = words[: max(child.place, 1)] if posixpath.basename(words[0]) == "ssh" else words[: child.place]
    found = environment_of(before)
    return Child(
        place=child.place, source=child.source, text=child.text, name=child.name, arguments=child.arguments,
        options=child.options, environment=found, is_job=child.is_job,
    )  # fmt: skip


def environment_of(words: Sequence[str]) -> Environment:
    """Return what the words in front of a command change in its environment."""
    found = Environment()
    starter = ""
    for at, word in enumerate(words):
        name, following = posixpath.basename(word), words[at + 1] if at + 1 < len(words) else ""
        if name in (*_STARTERS, *_CONTAINERS, "ssh"):
            starter = name
            if name in (*_CONTAINERS, "ssh") or (name == "qsub" and "-V" not in words):
                found.kept = set()
        elif starter == "env":
            _of_env(found, word, following)
        elif word.startswith("--export") and starter in ("srun", "sbatch"):
            _of_list(found, word.partition("=")[2] if "=" in word else following)
        elif (starter in _CONTAINERS and word.startswith(("-e", "--env"))) or (starter == "mpirun" and word == "-x"):
            text = following if word in ("-e", "--env", "-x") else re.sub(r"^(-e|--env=)", "", word)
            if (pair := _ASSIGNED.fullmatch(text)) is not None:
                found.given[pair[1]] = pair[2]
            elif found.kept is not None:
                found.kept.add(text)
    return found


def _of_env(found: Environment, word: str, following: str) -> None:
    if (pair := _ASSIGNED.fullmatch(word)) is not None:
        found.given[pair[1]] = pair[2]
    elif word in ("-i", "-", "--ignore-environment"):
        found.kept = set()
    elif word == "-u":
        found.removed.add(following)
    elif word.startswith(("-u", "--unset=")):
        found.removed.add(re.sub("^(-u|--unset=)", "", word))


def _of_list(found: Environment, text: str) -> None:
    """Read the list of ``--export``."""
    items = text.split(",")
    names = {item for item in items if "=" not in item} - {"ALL", "NIL"}
    if "ALL" not in items:
        found.kept = names - {"NONE"}
    found.given |= {item.partition("=")[0]: item.partition("=")[2] for item in items if "=" in item}
