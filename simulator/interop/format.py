"""What a file format is, what its reader returns, and the account that it gives of every key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.config import near_misses
from simulator.errors import ConfigError
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.plan.fields import Value

if TYPE_CHECKING:
    from simulator.interop.key_table import KeyTable
    from simulator.interop.machines.cluster import ImportedCluster
    from simulator.interop.measurements.nccl_tests import CollectiveTable
    from simulator.interop.measurements.training_log import TrainingLog
    from simulator.interop.trainers.emission import Emission, Request


#: how a model of the Hugging Face hub is written where a model is named
HUB = "hf:"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """Which keys of a foreign file counted, and how."""

    used: tuple[str, ...] = ()  #: Keys that decided something.
    irrelevant: tuple[str, ...] = ()  #: Keys that are known and do not change time or memory.
    #: Keys that are not understood, with the nearest known one, or with the reason why they would change the answer.
    unknown: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()  #: Values that the file does not say, with the source of the default.


@dataclass(slots=True)
class Account:
    """Notes taken while a file is read; each thing once, in the order of first sight."""

    _used: dict[str, None] = field(default_factory=dict)
    _irrelevant: dict[str, None] = field(default_factory=dict)
    _unknown: dict[str, None] = field(default_factory=dict)
    _assumed: dict[str, None] = field(default_factory=dict)

    def use(self, *names: str) -> None:
        """Note what went into the description."""
        self._used.update(dict.fromkeys(names))

    def skip(self, *names: str) -> None:
        """Note what is understood and has no bearing."""
        self._irrelevant.update(dict.fromkeys(names))

    def wonder(self, name: str, known: Iterable[str] = ()) -> None:
        """Note what is not understood, with near misses among what would be."""
        section, _, last = name.rpartition(".")
        beside = {one.rpartition(".")[2] for one in known if one.rpartition(".")[0] in (section, "")}
        near = near_misses(last, beside)
        self._unknown[f"{name} (did you mean {near[0]!r}?)" if near else name] = None

    def miss(self, name: str, why: str) -> None:
        """Note what would change the answer if it were modelled."""
        self._unknown[f"{name}: not understood, changes the answer ({why})"] = None

    def assume(self, *texts: str) -> None:
        """Note what the file does not say and was taken."""
        self._assumed.update(dict.fromkeys(texts))

    def sort(self, names: Iterable[str], *, used: Iterable[str], irrelevant: Iterable[str], prefix: str = "") -> None:
        """Put each name where it belongs."""
        used, irrelevant = set(used), set(irrelevant)
        for name in names:
            if name in used:
                self.use(prefix + name)
            elif name in irrelevant:
                self.skip(prefix + name)
            else:
                self.wonder(prefix + name, used | irrelevant)

    def include(self, report: ImportReport, prefix: str) -> None:
        """Add the account of a file that this one names."""
        self.use(*(prefix + name for name in report.used))
        self.skip(*(prefix + name for name in report.irrelevant))
        self._unknown.update(dict.fromkeys(prefix + name for name in report.unknown))
        self.assume(*(prefix + text for text in report.assumed))

    def report(self) -> ImportReport:
        """Return the finished account."""
        return ImportReport(
            used=tuple(self._used),
            irrelevant=tuple(self._irrelevant),
            unknown=tuple(self._unknown),
            assumed=tuple(self._assumed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A foreign model or plan in this project's words."""

    kind: str  #: The format, a key of :data:`simulator.interop.FORMATS`.
    file: str  #: Where it came from.
    spec: ModelSpec | None = None  #: The model, where the file describes one.
    #: Plan settings in the keys of :class:`simulator.plan.ParallelPlan`.
    settings: dict[str, Value] = field(default_factory=dict)
    accumulation: int | None = None  #: Micro-batches of a step, where the global batch follows from them and the ranks.
    #: Settings that the Trainer of Hugging Face makes of the model's hidden size, where a DeepSpeed file says ``auto``.
    automatic: tuple[str, ...] = ()
    report: ImportReport = field(default_factory=ImportReport)  #: What was done with every key.

    def plan(self) -> ParallelPlan:
        """Return the settings as a plan, everything else at its default."""
        return ParallelPlan(**self.settings)  # type: ignore[arg-type]  # each is checked by its declaration

    def to_yaml(self) -> str:
        """Write a plan file, what was assumed and what is unknown as comments."""
        lines = [f"# Imported from {Path(self.file).name} ({self.kind})"]
        lines += [f"# assumed: {' '.join(text.split())}" for text in self.report.assumed]
        lines += [f"# unknown, left out: {' '.join(text.split())}" for text in self.report.unknown]
        for key, value in self.settings.items():
            lines.append(f"{key}: {str(value).lower() if isinstance(value, bool) else value}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class FormatPart:
    """Some names of a format, and what they decide or why they are ignored."""

    names: tuple[str, ...]  #: As the files have them.
    why: str  #: What they decide, or why they decide nothing.
    is_read: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One format of files: how it is recognised, read and, where it can hold a plan, written."""

    gives: str  #: ``model``, ``plan``, ``plan and model``, ``cluster`` or ``measurements``.
    what: str  #: The files, in a few words for the documentation.
    sniff: Callable[[str], bool]  #: Whether a text is of this format, from its content.
    #: From a path, and the options below by keyword, to what the file holds; a ConfigError names the place of what it
    #: cannot understand. ``device`` is a shipped name or a file, for a file that does not name the GPU; NICs whose rate is
    #: neither told nor given as ``nic_bandwidth`` (of one, per direction) are left out.
    read: Callable[..., Imported | ImportedCluster | CollectiveTable | TrainingLog]
    options: tuple[str, ...] = ()  #: Options of ``simulate import`` that :attr:`read` takes.
    table: KeyTable | None = None  #: The keys that are known, for the documentation.
    #: Of a format without such a table: what is read and what is ignored, from what its reader goes by.
    parts: tuple[FormatPart, ...] = ()
    #: From a plan to the text of a file that says it; an InfeasiblePlanError names what the format has no word for.
    write: Callable[[Request], Emission] | None = None
    file: str = ""  #: Name of the file that is written.


def refuse(path: str | Path, line: int, message: str, *, hint: str = "") -> ConfigError:
    """Return the error for a place in a foreign file."""
    return ConfigError(f"{path}:{line}:1: {message}", hint=hint)


def having(*patterns: str) -> Callable[[str], bool]:
    """Return what tells whether a text has all of some patterns, whose ``^`` is the beginning of a line."""
    found = [re.compile(pattern, re.MULTILINE) for pattern in patterns]
    return lambda text: all(one.search(text) for one in found)
