"""Settings from the files of training frameworks, laid one over another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.config import Fault, content_in_words, did_you_mean, load_yaml, raise_faults
from simulator.errors import ConfigError
from simulator.interop import import_settings, load_model, recognise_settings
from simulator.interop.format import Imported
from simulator.plan.names import is_switch, setting_named, switched
from simulator.plan.parallel_plan import SETTINGS


def load_plan(path: str | Path) -> dict[str, Any]:
    """Read a plan file, whose keys are those of the flags: the settings it makes, in the names of :class:`ParallelPlan`."""
    data, locator = load_yaml(path)
    if not isinstance(data, dict):
        found = content_in_words(data)
        raise ConfigError(f"{path}: a plan file is a mapping of settings; found {found}", hint="for example 'tp: 8'")
    faults: list[Fault] = []
    settings: dict[str, Any] = {}
    for name, value in sorted(data.items(), key=lambda item: is_switch(str(item[0]))):
        at = (str(name),)
        try:
            made = switched(str(name), value, settings)
            one = None if made is not None else setting_named(str(name))
        except ConfigError as error:
            where = () if is_switch(str(name)) else at  # a switch names itself
            faults.append(Fault(place=locator.key(at), path=where, message=error.message, hint=error.hint))
            continue
        if made is not None:
            settings |= made
        elif one is None:
            guess = did_you_mean(str(name), SETTINGS)
            known = "" if guess else f"known keys: {', '.join(sorted(SETTINGS))}"
            faults.append(Fault(place=locator.key(at), path=at, message=f"unknown key.{guess}", hint=known))
        elif one.key in settings:
            faults.append(
                Fault(place=locator.key(at), path=at, message=f"{one.key} is set twice", hint="remove one of the two")
            )
        elif value is None and one.takes_none and locator.value(at) == locator.key(at):
            hint = f"leave the key out, or write null for {one.unset or 'its default'}"
            faults.append(Fault(place=locator.key(at), path=at, message="needs a value", hint=hint))
        else:
            try:
                settings[one.key] = one.parse(value)
            except ConfigError as error:
                faults.append(Fault(place=locator.value(at), path=(), message=error.message, hint=error.hint))
    if faults:
        raise_faults(faults, locator)
    return settings


#: options that name such a file, or a published run, the later ones winning
PLAN_FILES = ("preset", "megatron", "deepspeed", "plan")
_DEGREES = ("tp", "pp", "cp")


def plan_settings(options: Mapping[str, Any], n_gpus: int = 0) -> dict[str, Any]:
    """Merge the settings of the files that are given: Megatron's below DeepSpeed's below those of the plan file.

    Of the parsed ``options``, ``megatron``, ``deepspeed`` and ``plan`` are paths; the degrees win over the files.
    DeepSpeed's batch rule needs the data-parallel ranks, and so ``n_gpus`` where it is known.
    """
    settings: dict[str, Any] = {}
    if options.get("megatron"):
        settings |= import_settings(options["megatron"], "megatron").settings
    if not options.get("gpus"):
        n_gpus = settings.get("gpus") or n_gpus  # the launch of the script, not all of the cluster
    own = _own_plan(options, n_gpus)
    for path in deepspeed_files(options):
        given = {name: options[name] for name in _DEGREES if options.get(name)}
        settings = _lay_deepspeed_over(settings, str(path), {**own, **given}, n_gpus)
        settings |= _sizes(import_settings(path, "deepspeed"), settings, options)
    return settings | own


def _own_plan(options: Mapping[str, Any], n_gpus: int = 0) -> dict[str, Any]:
    """Return the settings of ``--plan``, unless it is DeepSpeed's, whose batch rule needs the ranks."""
    path = options.get("plan")
    if not path:
        return {}
    kinds = recognise_settings(path)
    if not kinds:
        return load_plan(path)
    if "deepspeed" in kinds:
        return {}
    imported = import_settings(path)
    if not imported.settings:
        raise ConfigError(f"{path} ({imported.kind}) describes a model and no plan", hint=f"give it as --model {path}")
    settings: dict[str, Any] = dict(imported.settings)
    settings |= _sizes(imported, settings, options)
    if imported.accumulation and "global_batch" not in settings and "micro_batch" in settings and n_gpus:
        ranks = n_gpus // (settings.get("tp", 1) * settings.get("pp", 1) * settings.get("cp", 1))
        settings["global_batch"] = settings["micro_batch"] * imported.accumulation * max(1, ranks)
    return settings


def _sizes(imported: Imported, settings: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that the Trainer of Hugging Face makes of the hidden size of ``--model``, where a file leaves them to it."""
    if not (imported.automatic and options.get("model")):
        return {}
    from simulator.interop.trainers.deepspeed import sizes_of_hidden

    return sizes_of_hidden(imported.automatic, load_model(str(options["model"])).hidden, settings)


def deepspeed_files(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the DeepSpeed files among the options."""
    if options.get("plan") and "deepspeed" in recognise_settings(options["plan"]):
        yield options["plan"]
    if options.get("deepspeed"):
        yield options["deepspeed"]


def _lay_deepspeed_over(settings: dict[str, Any], path: str, above: dict[str, Any], n_gpus: int) -> dict[str, Any]:
    """Add DeepSpeed's settings to those of a launch script, and derive the batch from the ranks."""
    found = import_settings(path, "deepspeed").settings
    if found.get("tp") == 1:
        del found["tp"]
    degrees = dict.fromkeys(_DEGREES, 1) | settings | found | above
    model_parallel = degrees["tp"] * degrees["pp"] * degrees["cp"]
    if n_gpus >= model_parallel:
        found |= import_settings(path, "deepspeed", {"gpus": n_gpus // model_parallel}).settings | {"tp": degrees["tp"]}
    elif "dp" in found:
        found["gpus"] = found["dp"] * model_parallel
    if settings:  # the script says how the layers are written, DeepSpeed how the data is sharded
        found["framework"] = "megatron-deepspeed"
    return settings | found


def needs_ranks(options: Mapping[str, Any]) -> bool:
    """Whether the plan depends on the number of GPUs, since a DeepSpeed file gives the batch per rank."""
    return any("dp" not in import_settings(path, "deepspeed").settings for path in deepspeed_files(options))
