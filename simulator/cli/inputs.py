"""From parsed options to the settings, files and requests that the Python API takes."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.cli.shared import write_warnings
from simulator.config import keep_inputs
from simulator.errors import ConfigError
from simulator.explore.named_settings import (
    SCENARIO_SETTINGS,
    named,
    parse_axis,
    recipe_of,
    with_recipe,
)
from simulator.interop import import_model, import_settings, import_topology, is_foreign, recognise_settings
from simulator.interop.format import HUB, Imported, ImportReport
from simulator.interop.trainers.plan_files import PLAN_FILES, deepspeed_files
from simulator.plan import SETTINGS
from simulator.plan.names import is_switch
from simulator.plan.published import LeftOut, Published
from simulator.scenario import FIELD_NAMES
from simulator.units import parse_quantity

if TYPE_CHECKING:
    from simulator.models.recorded import RecordedModule

#: scenarios of a sweep that are asked for their recipes, and those without one that a note names
_MOST_ASKED, _MOST_NAMED = 10_000, 4


# -- settings ----------------------------------------------------------------------------------------------------


def with_published(settings: Mapping[str, Any], *, said: set[str] | None = None) -> dict[str, Any]:
    """Add what the published recipe for these settings sets beside them, and say so."""
    say_recipes([settings], said=said)
    return with_recipe(settings)


def say_recipes(
    scenarios: Iterable[Mapping[str, Any]], *, without: Collection[str] = (), said: set[str] | None = None
) -> None:
    """Say once for each published recipe what scenarios take of it, but for some settings, and which scenarios have none."""
    by_name: dict[str, list[Published]] = {}
    others: dict[str, None] = {}
    for settings in itertools.islice(scenarios, _MOST_ASKED):
        if (found := recipe_of(settings)) is not None:
            by_name.setdefault(found.name, []).append(found)
        else:
            others[f"{settings.get('gpus') or 'all'} GPUs of {settings.get('topology', 'no cluster')}"] = None
    notes = [_of_recipe(some, without) for some in by_name.values()]
    if by_name and others:
        named = [*list(others)[:_MOST_NAMED], *["others"] * (len(others) > _MOST_NAMED)]
        notes.append(
            f"no published recipe for {', '.join(named)}, where the framework's own defaults hold; to compare alike, give the "
            "settings of the recipe as flags"
        )
    write_warnings(notes, said=said, kind="note")


def say_left_out(scenarios: Iterable[Mapping[str, Any]]) -> None:
    """Say which published recipes a command leaves out that has one plan for several sizes, and how to keep what they set."""
    write_warnings(
        (
            f"the published recipe for {found.name} is left out, as one plan is for all sizes: give this --gpus alone, or its "
            f"settings as flags: {', '.join(f'{name}={value}' for name, value in found.settings.items())}"
            for settings in scenarios
            if (found := recipe_of(settings)) is not None
        ),
        kind="note",
    )


def _of_recipe(some: Sequence[Published], without: Collection[str]) -> str:
    """Return the note on a recipe of which several scenarios take something: what all take, and what only some do."""
    taken = {name: value for one in some for name, value in one.settings.items() if name not in without}
    shared = {name for name in taken if all(name in one.settings for one in some)}
    shown = [f"{name}={value}" for name, value in taken.items() if name in shared]
    of_some = [f"{name}={value}" for name, value in taken.items() if name not in shared]
    text = f"settings of the published recipe for {some[0].name}: {', '.join(shown) or 'none that all take'}"
    text += f"; where it goes with what is said: {', '.join(of_some)}" if of_some else ""
    lost = dict.fromkeys(_in_words(one, without) for found in some for one in found.left_out)
    return "; ".join([text, *filter(None, lost)])


def _in_words(one: LeftOut, without: Collection[str]) -> str:
    """Say what a recipe leaves out; nothing where that is nothing that would be taken of it."""
    lost = ", ".join(f"{name}={value}" for name, value in one.settings.items() if name not in without)
    why = (
        f"with {one.name}={one.said}" if one.own is None else f"it is for {one.name}={one.own}, so that with {one.said}"
    )
    return f"{why} it leaves out {lost}" if lost else ""


def settings_of(options: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return the settings that options make, by their names in a plan or its files, and the numbers of GPUs if several.

    ``--set`` wins over files, the environment (``SIMULATE_PLAN__MICRO_BATCH``) over ``--set``, and flags over all.
    """
    options = _with_arguments(options)
    found: dict[str, Any] = {name: options[name] for name in PLAN_FILES if options.get(name)}
    flags = {name: options[name] for name in SETTINGS if name != "gpus" and options.get(name) is not None}
    changes = _changes(options.get("set_") or (), flags)
    _refuse_powers(changes)
    found |= changes
    if options.get("power_cap"):
        watts, _, part = options["power_cap"].partition("/")
        if part.strip() not in ("", "gpu", "node", "rack"):
            raise ConfigError(f"--power-cap {options['power_cap']}: per gpu, node or rack", hint="--power-cap 6kW/node")
        try:
            parse_quantity(watts, "power")
        except ConfigError:
            raise ConfigError(
                f"--power-cap {options['power_cap']}: write a number and its unit", hint="--power-cap 500W, or 6kW/node"
            ) from None
        found[f"power.{part.strip() or 'gpu'}_cap"] = watts.strip()
    for name, one in SETTINGS.items():
        said = os.environ.get(f"SIMULATE_PLAN__{name.upper()}")
        if said is not None:
            found[name] = one.parse(said)
    for name in ("topology", "model", "network", "transport", "nccl_algo", "nccl_proto", "seed", "unfold"):
        setting = FIELD_NAMES.get(name, name)
        if options.get(name) and options[name] != SCENARIO_SETTINGS[setting].default:
            flags[setting] = options[name]
    _warn_of_two(changes, {**flags, **({"gpus": options["gpus"]} if options.get("gpus") else {})})
    found |= flags
    if not options.get("gpus"):
        return found, ()
    try:
        _, counts = parse_axis(f"gpus={options['gpus']}")
    except ConfigError as error:
        raise ConfigError(
            f"--gpus {options['gpus']}: {error.message}", hint="a number, or a list like 1,2,4,8"
        ) from None
    if len(counts) > 1:
        return found, counts
    return {**found, "gpus": counts[0]}, ()


def settings_of_one(options: Mapping[str, Any], way_out: str) -> dict[str, Any]:
    """Return the settings of a command that is about one number of GPUs."""
    settings, counts = settings_of(options)
    if counts:
        raise ConfigError(f"--gpus {options['gpus']}: this command takes one number", hint=way_out)
    return settings


def warn_of_axes(settings: Mapping[str, Any], axes: Mapping[str, Sequence[object]], counts: Sequence[int] = ()) -> None:
    """Say which settings an axis of the same name replaces."""
    given = {**settings, **({"gpus": ",".join(map(str, counts))} if counts else {})}
    write_warnings(
        f"{name}={value} has no effect: an axis gives {name} its values"
        for name, value in given.items()
        if name in axes
    )


def changes_of_cluster(items: Sequence[str], why: str, flags: Mapping[str, str]) -> dict[str, str]:
    """Return what ``--set`` changes in the cluster's file, for a command that takes no other settings.

    Parameters
    ----------
    why : str
        Why it takes none.
    flags : mapping
        Other settings that it has flags for, by canonical name.
    """
    found = _changes(items, {})
    for name in found:
        if name in SETTINGS or name in SCENARIO_SETTINGS or name in PLAN_FILES:
            raise ConfigError(
                f"--set {name}={found[name]} changes no value of the cluster: {why}",
                hint=f"{flags[name]} {found[name]}"
                if name in flags
                else "a key of its file, such as node.nics.count=4",
            )
    return found


def _changes(items: Sequence[str], flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``--set`` sets beside flags; the later wins, and says so, but another tool's switch must agree with all."""
    found: dict[str, Any] = {}
    for item in sorted(items, key=lambda one: is_switch(one.partition("=")[0])):
        key, separator, text = item.partition("=")
        if not separator:
            raise ConfigError(f"--set {item}: write key=value")
        for name, value in named(key, text, {**found, **flags}).items():
            if found.get(name, value) != value:
                write_warnings([f"--set {name}={found[name]} has no effect: --set {item} stands behind it"])
            found[name] = value
    return found


def _refuse_powers(changes: Mapping[str, Any]) -> None:
    """Refuse a power of a GPU where a cluster file has none, and name the flag that is meant."""
    for name, value in changes.items():
        section, _, rest = name.partition(".")
        if section != "power" and any(word in rest.lower() for word in ("power", "watt", "tdp")):
            raise ConfigError(
                f"--set {name}={value}: a cluster file has no such key",
                hint=f"--power-cap {str(value).replace(' ', '')} for what a GPU may draw, --set power.gpu_compute for what it draws",
            )


def _warn_of_two(changes: Mapping[str, Any], flags: Mapping[str, Any]) -> None:
    """Say which changes a flag of the same setting replaces by another value."""
    write_warnings(
        f"--set {name}={value} has no effect: --{name.replace('_', '-')} {flags[name]} is given, too"
        for name, value in changes.items()
        if name in flags and str(flags[name]) != str(value)
    )


def clusters_of(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the clusters where ``--topology`` names several, as ``a,b,c``; none where it names one, or a file."""
    names = [name.strip() for name in str(settings.get("topology", "")).split(",")]
    return tuple(names) if len(names) > 1 and not Path(str(settings["topology"])).exists() else ()


def recorded_module(options: Mapping[str, Any]) -> RecordedModule | None:
    """Return the torch module that ``--module`` names, None where there is none."""
    if not options.get("module"):
        if options.get("batch"):
            raise ConfigError("--batch describes the arguments of a --module", hint="for a model use --micro-batch")
        return None
    if options.get("model"):
        raise ConfigError("both --model and --module are given", hint="leave one out")
    from simulator.interop.models.hub import open_hub_module
    from simulator.models.recorded import open_module

    length = options.get("sequence_length") or 0
    if options["module"].startswith(HUB):
        return open_hub_module(options["module"].removeprefix(HUB), sequence_length=length)
    return open_module(options["module"], options.get("batch") or (), sequence_length=length)


def keep_files(options: Mapping[str, Any], outputs: Mapping[str, str | None], *sources: str) -> None:
    """Refuse, before the work, outputs by their flags that would be written over a file that is read, named by an option or else."""
    named = [*sources, *deepspeed_files(options), *(options.get("with_") or ())]
    named += [str(options[one]) for one in ("topology", "model", "plan", "nodes_free") if options.get(one)]
    if options.get("megatron"):
        named += options["megatron"].split()[:1]
    for flag, out in outputs.items():
        keep_inputs(out, named, flag)


# -- files of other tools ----------------------------------------------------------------------------------------


def write_notes(options: Mapping[str, Any], said: set[str]) -> None:
    """Print on standard error which keys in the files of other tools are unknown, and what was assumed."""
    for imported in _imports(options):
        _write_account(imported.file, imported.report, said)
    for topology in clusters_of(options) or (options.get("topology"),):
        if topology and _is_foreign_topology(topology):
            cluster = import_topology(topology)
            _write_account(cluster.file, cluster.report, said)


def _write_account(file: str, report: ImportReport, said: set[str]) -> None:
    if report.unknown:
        write_warnings([f"{file}: unknown, left out: {', '.join(report.unknown)}"], said=said)
    write_warnings([f"{file}: assumed {text}" for text in report.assumed], said=said, kind="note")


def _with_arguments(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put the arguments of a launch script, and its variables, behind its path."""
    given = [*(options.get("args") or ()), *(shlex.quote(one) for one in options.get("define") or ())]
    if not given:
        return options
    if not options.get("megatron"):
        raise ConfigError("--args and --define are of a launch script", hint="give it with --megatron")
    return {**options, "megatron": " ".join((shlex.quote(options["megatron"]), *given))}


def _imports(options: Mapping[str, Any]) -> Iterator[Imported]:
    options = _with_arguments(options)
    if options.get("megatron"):
        yield import_settings(options["megatron"], "megatron")
    for path in deepspeed_files(options):
        yield import_settings(path, "deepspeed")
    plan = options.get("plan")
    if plan and recognise_settings(plan) and "deepspeed" not in recognise_settings(plan):
        yield import_settings(plan)
    if options.get("model"):
        imported = import_model(options["model"])
        if imported is not None:
            yield imported


def _is_foreign_topology(name: str) -> bool:
    from simulator.config import resolve_name

    return is_foreign(resolve_name(name, "clusters"))
