"""Megatron-LM's flags: the model and the plan that a launch script or a YAML file describes."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.config import KeyPath, Locator, Place, load_yaml, parse_json, read_text
from simulator.errors import ConfigError
from simulator.interop.format import Format, Imported
from simulator.interop.key_table import FoundKeys, flattened
from simulator.interop.shell import Script, read_script
from simulator.interop.trainers.deepspeed import read_deepspeed
from simulator.interop.trainers.megatron_bridge import is_bridge
from simulator.interop.trainers.megatron_model import KEYS, LAYERS, expert_counts, is_deepspeed, model_of, take_pattern
from simulator.interop.trainers.megatron_script import BACKENDS, COMBINED, DISPATCHERS, OUTER, write_megatron
from simulator.interop.typed_values import Reader, is_unknown, readable, words
from simulator.plan import FRAMEWORKS
from simulator.plan.parallel_plan import SETTINGS
from simulator.plan.stage_layout import parse_layout


def import_megatron(
    path: str | Path,
    *,
    args: Sequence[str] = (),
    define: Sequence[str] = (),
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> Imported:
    """Read a launch script, a file of flags, or a YAML file of them.

    A script is read, never run; what only a run would tell is an error only in a value that matters.

    Parameters
    ----------
    args : sequence of str
        Positional arguments of the script, several in one text or ``4=value``.
    define : sequence of str
        Variables of its environment, ``NAME=value``.
    """
    path = Path(path)
    if path.suffix in (".yaml", ".yml"):
        data, locator = load_yaml(path)
        flags = _of_yaml(flattened(data, str(path)))
        return read_flags(Reader(flags, str(path), locator=locator), "gpt", nodes, gpus_per_node, written={})
    for one in define:
        if re.fullmatch(r"[A-Za-z_]\w*=.*", one, re.DOTALL) is None:
            raise ConfigError(f"-D {one:.60}: not the value of a variable", hint="-D NAME=VALUE")
    variables = dict(one.partition("=")[::2] for one in define)
    return parse_megatron(
        read_text(path),
        str(path),
        arguments=_positional(args),
        variables=variables,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
    )


def parse_megatron(
    text: str,
    file: str = "command line",
    *,
    arguments: Mapping[int, str] | None = None,
    variables: Mapping[str, str] | None = None,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
) -> Imported:
    """Read flags from text; see :func:`import_megatron`."""
    script = read_script(text, file, arguments=arguments, variables=variables)
    tokens, lines = _launch(script, file)
    entry = next((posixpath.basename(word) for word in tokens if word.endswith(".py")), "pretrain_gpt.py")
    family = next((one for one in ("bert", "t5") if one in entry), "gpt")
    reader = Reader(_flags(tokens), file, locator=_Lines(file, text, tokens, lines) if "\n" in text.strip() else None)
    if _NO_TRAINING.search(entry):
        reader.account.miss(entry, "it trains nothing: a step of training its model is described")
    for note in script.assumed:
        reader.account.assume(readable(note))
    for name in script.unused:
        reader.account.miss(f"--args {name}" if name[0] == "$" else f"-D {name}", "the script never uses it")
    return read_flags(reader, family, nodes, gpus_per_node, written=script.files)


class _Lines(Locator):
    """Finds the line in which a script hands a flag to its launch."""

    def __init__(self, file: str, text: str, tokens: Sequence[str], lines: Sequence[int]) -> None:
        super().__init__(file, text)
        names = (word[2:].partition("=")[0].replace("_", "-") for word in tokens)
        self.lines = dict(zip(names, lines, strict=False))
        self.launch = lines[0] if lines else 1

    def value(self, path: KeyPath) -> Place:
        """Place of a flag; of the launch where it is not there."""
        return Place(file=self.file, line=self.lines.get(str(path[0]) if path else "", self.launch), column=1)


#: programs that train nothing
_NO_TRAINING = re.compile(r"generat|inference|evaluat|server|prompt|convert|quantiz|export", re.IGNORECASE)


def is_megatron(text: str) -> bool:
    """Whether a text has the flags, or the YAML keys, of a model of Megatron's, or is a script that may launch one."""
    flags = bool(re.search(r"--(?:encoder[-_])?num[-_]layers\b|--hybrid[-_]\w+[-_]pattern\b", text)) and bool(
        re.search(r"--hidden[-_]size\b", text)
    )
    keys = re.search(r"(?m)^[ \t]*+num_layers[ \t]*:", text) and re.search(r"(?m)^[ \t]*+hidden_size[ \t]*:", text)
    if re.search(r"(?m)^(MODEL_ARGS|modules|trainer)\s*:", text) or is_bridge(text):
        return False  # a recipe around Megatron
    return flags or bool(keys) or bool(re.match(r"#!.*\b(?:ba)?sh\b", text))


def _positional(args: Sequence[str]) -> dict[int, str]:
    """Return the arguments of a script by their places, from ``8B 4 ...`` or ``2=4``."""
    found: dict[int, str] = {}
    for text in args:
        placed = re.fullmatch(r"(\d{1,3})=(.*)", text, re.DOTALL)
        if placed:
            found[int(placed[1])] = placed[2]
        else:
            found |= dict(enumerate(shlex.split(text), start=len(found) + 1))
    return found


def _launch(script: Script, file: str) -> tuple[list[str], Sequence[int]]:
    """Return the words of the command that trains, with their lines; of the variables that list its options where there is none."""

    def has_model(words: Sequence[str]) -> bool:
        names = {word.partition("=")[0].replace("_", "-") for word in words}
        return bool(names & {f"--{name}" for name in LAYERS}) and "--hidden-size" in names

    launches = [command for command in script.commands if has_model(command.words)]
    if launches:
        n_launches = len({command.words for command in launches})
        if n_launches > 1:
            script.assumed.append(f"the first of {n_launches} launches is read")
        return list(launches[0].words), launches[0].lines
    held = {name: " ".join(value) if isinstance(value, list) else value for name, value in script.variables.items()}
    options = {name: text for name, text in held.items() if has_model(text.split())}
    commands = [f"line {line}: {text.splitlines()[0]:.60}" for line, text in script.unfollowed if text.strip()]
    lost = "; ".join(dict.fromkeys(commands))
    if options:
        longest = max(options, key=lambda name: len(options[name]))
        more = [name for name, text in held.items() if text.strip().startswith("--") and text not in options[longest]]
        what = f"a launch is not followed ({lost:.200})" if lost else "no command has --num-layers and --hidden-size"
        script.assumed.append(f"{what}: the variables {', '.join([longest, *more])} are taken for its flags, no others")
        return [word for name in (longest, *more) for word in held[name].split()], ()
    what = f"ends in line {script.ended} (exit)" if script.ended else "ends"
    why = f"not followed: {lost:.300}" if lost else "no command has --num-layers and --hidden-size"
    hint = "give its arguments with --args, and variables with -D NAME=value, if it needs some"
    if lost:
        hint = "put the script that is started there beside this one, or give that one"
    raise ConfigError(f"{file}: {what} and launches no training of Megatron's: {why}", hint=hint)


def _of_yaml(flat: dict[str, Any]) -> dict[str, Any]:
    """Write the keys of a YAML file as flags, whatever section they stand in."""
    return {name.rpartition(".")[2].removeprefix("--").replace("_", "-"): value for name, value in flat.items()}


#: flags that take several values
LISTS = words(
    "num-experts window-size window-attn-skip-freq recompute-modules offload-modules cuda-graph-scope cuda-graph-modules spec"
)


def _flags(tokens: list[str]) -> dict[str, Any]:
    """Return flag -> value; a flag followed by another one is a switch, several values are a list."""
    switches = {name for one in KEYS.keys if one.kind == "switch" for name in one.names}
    flags: dict[str, Any] = {}
    name = ""
    for word in tokens:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("_", "-")
            flags[name] = value if equals else True
            if equals or name in switches:
                name = ""
        elif name and (name in LISTS or flags[name] is True) and word not in ("&&", "|", "2>&1", ";", "&"):
            before = flags[name]
            flags[name] = word if before is True else [*(before if isinstance(before, list) else [before]), word]
    return flags


# ---- reading -----------------------------------------------------------------------------------------------------


def read_flags(
    reader: Reader,
    family: str = "gpt",
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    *,
    written: Mapping[str, str] | None = None,
    is_partial: bool = False,
) -> Imported:
    """Read flags that are already a mapping; see :func:`import_megatron`.

    Parameters
    ----------
    reader : Reader
        Of flags, without their hyphens in front.
    written : mapping, optional
        Files that the script writes itself.
    is_partial : bool
        Whether the flags change a recipe that is not here: what they do not name stays unset.
    """
    stages = take_pattern(reader)
    if written is not None:
        _shard_fully(reader)
    found = KEYS.read(reader)
    settings = _settings(found, nodes, gpus_per_node)
    if found["deepspeed-config"] is not None:
        settings |= _beside(found, written or {})
    has_model = found.given("num-layers", "encoder-num-layers") and found.given("hidden-size")
    spec = model_of(found, family, settings) if has_model or not (is_partial or written is None) else None
    settings |= _stages(found, settings, spec.layers if spec is not None else 0, stages)
    if is_partial:
        settings = _said_only(found, settings)
    elif settings["precision"] == "fp32":
        reader.assume("precision", "fp32", "neither --bf16 nor --fp16 is given")
    KEYS.finish(found)
    return Imported(kind="megatron", file=reader.file, spec=spec, settings=settings, report=reader.account.report())


#: what several keys decide -> those that say it
_SAID_BY = {
    "precision": ("bf16", "fp16", "fp8-format", "fp4-format"),
    "gradient_bytes": (
        "bf16",
        "fp16",
        "fp8-format",
        "fp4-format",
        "grad-reduce-in-bf16",
        "accumulate-allreduce-grads-in-fp32",
        "main-grads-dtype",
    ),
    "recompute": ("recompute-granularity", "recompute-activations", "checkpoint-activations"),
    "recompute_method": ("recompute-method",),
    "sharding": ("use-distributed-optimizer", "use-torch-fsdp2", "use-megatron-fsdp", "zero-stage"),
    "attention": ("attention-backend", "use-flash-attn"),
    "moe_dispatcher": ("moe-token-dispatcher-type",),
}


def _said_only(found: FoundKeys, settings: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the flags do not say themselves."""
    said_by = {one.plan: one.names for one in KEYS.keys if one.plan} | _SAID_BY
    if found["optimizer"] == _SHARDED_MUON:
        said_by["sharding"] += KEYS.named("optimizer").names
    kept = {name: value for name, value in settings.items() if name not in said_by or found.given(*said_by[name])}
    found.reader.assume("what is not named", "as in the recipe", "the file changes a recipe that is not in it")
    return kept


def _settings(found: FoundKeys, nodes: int | None, gpus_per_node: int | None) -> dict[str, Any]:
    """Return the settings of the plan."""
    settings = KEYS.fields(found, "plan")
    with_deepspeed = is_deepspeed(found)
    is_old = any(found.reader.has(name) for name in _BEFORE_CORE) and not found.given("transformer-impl")
    is_local = found["transformer-impl"] == "local" or is_old
    if is_old and not with_deepspeed:
        found.reader.assume(
            "attention", "eager", "flags of Megatron-LM before Megatron-Core: flash attention needs one of its own"
        )
    is_core = found["transformer-impl"] == "transformer_engine" or found.reader.has("use-mcore-models")
    framework = "megatron" if is_local or (found.given("use-flash-attn") and not is_core) else "megatron-core"
    settings["framework"] = "megatron-deepspeed" if with_deepspeed else framework
    settings["attention"] = _attention(found, is_local=is_local or with_deepspeed)
    settings |= _graphs(found) | _states(found) | _offload(found)
    if settings.get("cp", 1) > 1 and (with_deepspeed or found["cp-comm-type"] == "a2a+p2p"):
        settings["cp_comm_type"] = "a2a" if with_deepspeed else "p2p"
    settings |= _recompute(found) | _precision(found) | {"sharding": _sharding(found)} | _experts_travel(found)
    if found["no-rope-fusion"]:
        settings["rope_fusion"] = False
    if found["no-overlap-p2p-communication"]:
        settings["overlap_p2p"] = False
    if found["enable-zbh1-pipeline"]:
        settings["schedule"] = "zb-1p"
    if settings.get("offload_optimizer") == "cpu" and found["optimizer-offload-fraction"] not in (1.0, 0.0):
        found.reader.fault("optimizer-offload-fraction", "a partial offload is not modelled", hint="1.0")
    if settings["tp"] == 1:
        settings["sequence_parallel"] = False  # as Megatron does
    world = _world(found, nodes, gpus_per_node)
    if world:
        settings["gpus"] = world
    return settings | _groups(found, settings, world)


#: flags of Megatron-LM that were gone when its layers became Transformer Engine's
_BEFORE_CORE = ("data-impl", "DDP-impl", "activations-checkpoint-method", "checkpoint-activations", "local-rank")


def _beside(found: FoundKeys, written: Mapping[str, str]) -> dict[str, Any]:
    """Return what the DeepSpeed file decides that the script writes itself, or that lies beside it."""
    name, reader = str(found["deepspeed-config"]), found.reader
    file = Path(reader.file).parent / posixpath.basename(name)
    text = written.get(name) or (read_text(file) if file.is_file() and not is_unknown(name) else "")
    try:
        data = parse_json(text)
    except ValueError:
        data = None
    if not isinstance(data, dict) and found.given("zero-stage"):
        reader.assume(
            "all but ZeRO's stage", "DeepSpeed's defaults", f"{readable(name)} is not here: give it with --deepspeed"
        )
        return {}
    if not isinstance(data, dict):
        reader.account.miss("deepspeed-config", f"{readable(name)} is not here: give it with --deepspeed")
        return {}
    inner = read_deepspeed(Reader(flattened(data, name), name))
    reader.account.include(inner.report, f"{posixpath.basename(readable(name))}: ")
    names = ["overlap", "bucket_bytes", "offload_optimizer", "offload_parameters", "gradient_collective"]
    names += ["sharding"] * (not found.given("zero-stage"))
    return {name: inner.settings[name] for name in names if name in inner.settings}


def _attention(found: FoundKeys, *, is_local: bool) -> str:
    backend = found["attention-backend"] or "auto"
    if found["use-flash-attn"]:
        return "flash"
    return "eager" if backend in ("unfused", "local") or (is_local and backend == "auto") else "flash"


def _states(found: FoundKeys) -> dict[str, Any]:
    """Return the widths of the optimizer's states; its fused Adam keeps of a master weight what a bf16 weight lacks."""
    steps = KEYS.named("muon-num-ns-steps")
    if found[steps.names[0]] != steps.default and KEYS.named("optimizer").ours(found["optimizer"]) == "muon":
        found.reader.miss(steps.names[0], f"{steps.default} steps of Newton and Schulz are taken")
    if not found["use-precision-aware-optimizer"]:
        return {"moment_bytes": 1} if found["use-bnb-optimizer"] else {}
    mean, square = (KEYS.named(name).ours(found[name]) for name in ("exp-avg-dtype", "exp-avg-sq-dtype"))
    if mean != square:
        found.reader.fault(
            "exp-avg-sq-dtype", "moments of two widths are not modelled", hint=str(found["exp-avg-dtype"])
        )
    is_half = found["bf16"] or KEYS.named("main-params-dtype").ours(found["main-params-dtype"]) == 2
    return {"moment_bytes": mean} | ({"master_bytes": 2} if is_half else {})


def _graphs(found: FoundKeys) -> dict[str, Any]:
    """Return what is captured; without a scope whole layers are."""
    impl, scope = found["cuda-graph-impl"], found["cuda-graph-scope"]
    if impl == "none" or not (impl or found["enable-cuda-graph"]):
        return {}
    if impl == "full_iteration" or scope not in (None, "", [], "full"):
        return {"cuda_graphs": SETTINGS["cuda_graphs"].parse("full_iteration" if impl == "full_iteration" else scope)}
    return {"host": "graphs"}


def _offload(found: FoundKeys) -> dict[str, Any]:
    """Return whose inputs wait in host memory; a list without the switch does nothing."""
    modules = found["offload-modules"]
    if not modules or not found["fine-grained-activation-offloading"]:
        return {}
    return {"offload_modules": SETTINGS["offload_modules"].parse(modules)}


def _recompute(found: FoundKeys) -> dict[str, Any]:
    """Return what is recomputed; Megatron's own default of full recomputation is one block a checkpoint."""
    named, method = found["recompute-granularity"], found["recompute-method"] or found["activations-checkpoint-method"]
    is_old = found["checkpoint-activations"] or found["activations-checkpoint-method"]
    granularity = "selective" if found["recompute-activations"] else "full" if is_old else named or "none"
    count = found["recompute-num-layers"]
    if granularity != "full":
        modules = found["recompute-modules"] if granularity == "selective" else None
        if found["moe-layer-recompute"]:
            before = modules or ["core_attn"] * (granularity == "selective")
            modules = [*(before if isinstance(before, list) else [before]), "moe"]
            granularity = "selective"
        told = {"recompute_modules": SETTINGS["recompute_modules"].parse(modules)} if modules else {}
        return {"recompute": granularity} | told
    if method == "block":
        return {"recompute": "full", "recompute_method": method, "recompute_layers": count}
    return {
        "recompute": "full",
        "recompute_method": "uniform",
        "recompute_layers": None if count == 1 else count or None,
    }


def _precision(found: FoundKeys) -> dict[str, Any]:
    precision = next((name for name in ("bf16", "fp16") if found[name]), "fp32")
    is_fp32 = precision != "fp16" or found["accumulate-allreduce-grads-in-fp32"]
    is_bf16 = KEYS.named("main-grads-dtype").ours(found["main-grads-dtype"]) == 2
    if is_bf16 and found["accumulate-allreduce-grads-in-fp32"]:
        why = "accumulate-allreduce-grads-in-fp32 is taken, beside which Megatron-LM asserts fp32"
        found.reader.miss("main-grads-dtype", why)
        is_bf16 = False
    formats = [bits for bits in ("fp8", "fp4") if found[f"{bits}-format"] is not None]
    if len(formats) > 1:
        found.reader.fault("fp4-format", "FP4 and FP8 together, which Megatron-Core refuses", hint="one of the two")
    recipes = (f"{bits}-recipe" for bits in formats)
    quantised = next((KEYS.named(recipe).ours(found[recipe]) for recipe in recipes), "")
    ends = (("bf16_first_layers", "start"), ("bf16_last_layers", "end")) if found["first-last-layers-bf16"] else ()
    is_kept = (
        {"fp8_param_gather": found["fp8-param-gather"]} if "fp8" in formats and found.given("fp8-param-gather") else {}
    )
    return (
        {name: found[f"num-layers-at-{end}-in-bf16"] for name, end in ends}
        | is_kept
        | {
            "precision": quantised or precision,
            "gradient_bytes": 4 if is_fp32 and not (is_bf16 or found["grad-reduce-in-bf16"]) else 2,
        }
    )


#: the former name of Muon beside ``--use-distributed-optimizer`` (Megatron-LM, ``training/arguments.py``)
_SHARDED_MUON = "dist_muon"


def _sharding(found: FoundKeys) -> str:
    if found["zero-stage"]:
        return found.reader.zero_stage("zero-stage", found["zero-stage"])
    sharding: str = KEYS.named(strategy := "data-parallel-sharding-strategy").ours(found[strategy])
    if found["use-megatron-fsdp"] and sharding != "none":
        return sharding
    if found["use-torch-fsdp2"]:
        return "zero3"
    return "zero1" if found["use-distributed-optimizer"] or found["optimizer"] == _SHARDED_MUON else "none"


def _shard_fully(reader: Reader) -> None:
    """Take full shards where a script asks for Megatron-FSDP alone: its default since April 2026 (Megatron-LM, commit 3499efef)."""
    strategy = "data-parallel-sharding-strategy"
    if reader.data.get("use-megatron-fsdp") and strategy not in reader.data:
        reader.data[strategy] = KEYS.named(strategy).theirs("zero3")
        reader.assume(strategy, reader.data[strategy], "the default of Megatron-LM since April 2026; before, no_shard")


def _experts_travel(found: FoundKeys) -> dict[str, Any]:
    """Return how tokens of experts travel, where there are experts."""
    if max(expert_counts(found)) < 2:
        return {}
    if is_deepspeed(found):  # tokens beyond the capacity are dropped, and what is left of it is padding
        factor = None if found["disable-moe-token-dropping"] else found["moe-train-capacity-factor"]
        return {"moe_dispatcher": "alltoall", "moe_capacity_factor": factor, "moe_pad_to_capacity": factor is not None}
    backend = BACKENDS.ours(found["moe-flex-dispatcher-backend"])
    dispatcher = DISPATCHERS.ours(found["moe-token-dispatcher-type"]) or backend
    sms = found[f"moe-{dispatcher}-num-sms"] if dispatcher in BACKENDS.words else None
    return ({"moe_dispatcher_sms": sms} if sms else {}) | {
        "moe_dispatcher": dispatcher,
        "moe_capacity_factor": found["moe-expert-capacity-factor"] or None,
        "moe_pad_to_capacity": found["moe-pad-expert-input-to-capacity"],
        "moe_shared_expert_overlap": found["moe-shared-expert-overlap"],
    }


def _groups(found: FoundKeys, settings: dict[str, Any], world: int) -> dict[str, Any]:
    """Return the ranks that the optimizer shards over, and the size of a bucket of gradients."""
    groups: dict[str, Any] = {}
    instances = found["num-distributed-optimizer-instances"]
    if instances > 1:
        replicas = world // (settings["tp"] * settings["pp"])
        if not world:
            why = "of how many ranks: give --nodes and --gpus-per-node"
            found.reader.miss("num-distributed-optimizer-instances", why)
        elif not replicas or replicas % instances:
            ranks = f"{instances} instances of {replicas} ranks"
            hint = "a divisor of the data- and context-parallel ranks that --nnodes and --nproc-per-node leave"
            found.reader.fault("num-distributed-optimizer-instances", ranks, hint=hint)
        else:
            groups["sharding_group"] = replicas // instances
            groups |= _outer_sharding(found, settings)
    if found["ddp-bucket-size"]:
        groups["bucket_bytes"] = found["ddp-bucket-size"] * settings["gradient_bytes"]
    return groups


def _outer_sharding(found: FoundKeys, settings: dict[str, Any]) -> dict[str, Any]:
    """Return whether instances of Megatron-FSDP's optimizer share its states, which they do of full shards alone."""
    name = OUTER.names[0]
    outer: str = OUTER.ours(found[name])
    if outer == "none" or not found["use-megatron-fsdp"]:
        return {}
    if settings["sharding"] != "zero3":
        hint = "--data-parallel-sharding-strategy optim_grads_params"
        found.reader.fault(name, "needs full shards, as in Megatron-FSDP", hint=hint)
    if not FRAMEWORKS[settings["framework"]].data_parallel.shards_copies:
        why = f"{settings['framework']} has no Megatron-FSDP: whole states on every instance are taken"
        found.reader.miss(name, why)
        return {}
    return {"outer_sharding": outer}


def _stages(found: FoundKeys, settings: dict[str, Any], layers: int, segments: tuple[int, ...]) -> dict[str, Any]:
    """Return the schedule, and how many chunks of layers a stage has; ``segments``: layers of each, where a pattern cuts them."""
    virtual, pp = settings["virtual_pp"], settings["pp"]
    if len(segments) > 1:
        if len(segments) % pp:
            found.reader.fault("hybrid-layer-pattern", f"{len(segments)} segments do not divide into {pp} stages")
        settings["pipeline_layout"] = "E" + "|".join("t" * n for n in segments) + "L"
    per_chunk = found["num-layers-per-virtual-pipeline-stage"]
    if per_chunk and layers:
        # Megatron-LM's arguments.py counts them before it divides
        n_placed = layers + settings["account_for_embedding"] + settings["account_for_loss"]
        if n_placed % (pp * per_chunk):
            message = f"{n_placed} layers do not divide into {pp} stages of chunks of {per_chunk}"
            found.reader.fault("num-layers-per-virtual-pipeline-stage", message)
        virtual = n_placed // pp // per_chunk
    if settings.get("pipeline_layout"):
        virtual = max(virtual, len(parse_layout(settings["pipeline_layout"])) // pp)
    stages: dict[str, Any] = {"virtual_pp": virtual}
    if virtual > 1:
        stages["schedule"] = "1f1b-interleaved"
    if found["overlap-moe-expert-parallel-comm"]:
        if virtual == 1 and pp > 1:
            message = "needs virtual stages beside pipeline parallelism, as in Megatron-Core"
            hint = "--num-layers-per-virtual-pipeline-stage"
            found.reader.fault("overlap-moe-expert-parallel-comm", message, hint=hint)
        stages |= {"schedule": COMBINED} | ({"delay_wgrad": found["delay-wgrad-compute"]} if pp > 1 else {})
    elif found["delay-wgrad-compute"]:
        message, hint = "needs overlap-moe-expert-parallel-comm, as Megatron-Core asserts", "give both, or neither"
        found.reader.fault("delay-wgrad-compute", message, hint=hint)
    return stages


def _world(found: FoundKeys, nodes: int | None, gpus_per_node: int | None) -> int:
    """Return the GPUs that the launcher starts; 0 where they are known at run time only."""
    given = (nodes or found["nnodes"], gpus_per_node or found["nproc-per-node"])
    if found["world-size"] is not None:
        return found.reader.integer("world-size")
    if given == (None, None):
        return 0
    try:
        return int(str(given[0] or 1)) * int(str(given[1] or 1))
    except ValueError:
        shown = " and ".join(readable(str(one)) for one in given if one is not None)
        found.reader.assume(
            "gpus", "that of the topology", f"{shown} are set at run time: give --nodes and --gpus-per-node"
        )
        return 0


MEGATRON = Format(
    gives="plan and model",
    what="a Megatron-LM launch script, its flags, or `--yaml-cfg`",
    sniff=is_megatron,
    read=import_megatron,
    options=("args", "define", "nodes", "gpus_per_node"),
    table=KEYS,
    write=write_megatron,
    file="train.sh",
)
