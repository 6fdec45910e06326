"""Options: short words for their types, and the flags that the settings of a plan declare."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Optional

import typer

from simulator.errors import ConfigError
from simulator.plan import GROUPS, OTHER_NAMES, SETTINGS, Setting
from simulator.plan.names import SWITCHES

Text = Optional[str]  # noqa: UP045 - Typer reads Optional at run time
Number = Optional[int]  # noqa: UP045
Real = Optional[float]  # noqa: UP045
Switch = Optional[bool]  # noqa: UP045
Texts = Optional[list[str]]  # noqa: UP045
Ranks = Optional[list[int]]  # noqa: UP045

MEMORY_MARGIN_HELP = "Share of the memory that should stay free: plans that leave less are marked tight; 0.05."
JSON_HELP = "Print one JSON document and nothing else."
PLAIN_JSON = typer.Option("--json", help=JSON_HELP)
CLUSTER_HELP = "Cluster: a file or a shipped name."
PROCESSES_HELP = "Processes; 0 means one per core."
TRANSPORT_HELP = "Transport across nodes, e.g. rdma, tcp, ipoib."
WHERE_HELP = "Keep rows with column=value, column!=value or column~text; repeatable."


def option(help_text: str, *names: str, panel: str | None = None) -> Any:
    """Return an option that does not print its default."""
    return typer.Option(*names, help=help_text, show_default=False, rich_help_panel=panel)


def report_option(help_text: str, *, panel: str | None = None) -> Any:
    """Return the option of all commands that write a page or a picture."""
    return option(help_text, "--report", "--plot", panel=panel)


def our_flags(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with flags of other tools replaced by ours, where a setting has such a name.

    Examples
    --------
    >>> our_flags(["--tensor-model-parallel-size", "8", "--zero=1", "--json", "--parallelism.tensor_parallel_degree=4"])
    ['--tp', '8', '--sharding=1', '--json', '--tp=4']
    """
    return [_our_flag(word) for word in words]


_GPUS = "--gpus, nodes times GPUs of a node"
#: what other tools say on their command lines for what has other values or another unit here -> our words
_OTHER_FLAGS = {
    "nodes": _GPUS, "num_nodes": _GPUS, "nnodes": _GPUS, "nproc_per_node": _GPUS, "num_gpus": "--gpus", "cluster": "--topology",
    "bf16": "--precision bf16", "fp16": "--precision fp16", "fp8": "--precision fp8", "stage": "--sharding zero1, zero2 or zero3",
    "batch_size": "--micro-batch, per rank, or --global-batch, per optimizer step", "local_batch_size": "--micro-batch",
    "gradient_accumulation_steps": "--global-batch, micro-batch times replicas times steps",
    "use_distributed_optimizer": "--sharding zero1", "data_parallel_size": "--dp", "data_parallel_shard_degree": "--sharding zero3",
    "data_parallel_replicate_degree": "--dp, or --sharding hsdp to shard within nodes", "recompute_activations": "--recompute selective",
    "gradient_checkpointing": "--recompute full",
    "activation_checkpoint.mode": "--recompute none, selective or full", "compile.enable": "--framework torchtitan-compile",
    "num_layers_per_virtual_pipeline_stage": "--virtual-pp, the layers of a stage over this",
    "train_iters": "--iterations", "training.steps": "--iterations", "attention_backend": "--attention flash or eager",
}  # fmt: skip


def other_flag(words: Sequence[str]) -> str:
    """Say what the first flag is here that other tools have and we have not; nothing where there is none.

    Examples
    --------
    >>> other_flag(["--gpus", "8", "--num_nodes=2"])
    'there is no --num_nodes; say --gpus, nodes times GPUs of a node'
    >>> other_flag(["--activation_checkpoint.mode", "full"])
    'there is no --activation_checkpoint.mode; say --recompute none, selective or full'
    >>> other_flag(["--precision", "fp16", "--set", "nodes=8"])  # values are no flags
    ''
    """
    for flag in (word.partition("=")[0] for word in words if word.startswith("--")):
        name = _plain_name(flag)
        ours = (
            _OTHER_FLAGS.get(flag.removeprefix("--"))
            or _OTHER_FLAGS.get(name)
            or (SETTINGS[OTHER_NAMES[name]].flag if name in OTHER_NAMES else "")
            or (f"--set {name}=true, which is {'='.join(SWITCHES[name])}" if name in SWITCHES else "")
        )
        if ours:
            return f"there is no {flag}; say {ours}"
    return ""


#: options whose value may well be empty
_MAY_BE_BLANK = ("--args", "--argument", "--define", "-D", "--set")


def refuse_blanks(words: Sequence[str]) -> None:
    """Raise an error for an option whose value is an empty text, as an unset variable of a shell gives it."""
    for before, word in zip(("", *words), words, strict=False):
        flag, equals, value = word.partition("=")
        is_cut_off = flag.startswith("--") and bool(equals) and not value
        blank = flag if is_cut_off else before if not word and before.startswith("-") else ""
        if blank and blank not in _MAY_BE_BLANK:
            raise ConfigError(f"{blank}: needs a value, not an empty text", hint="leave it out, or give one")


def _our_flag(word: str) -> str:
    _, equals, value = word.partition("=")
    name = _plain_name(word)
    one = next((one for one in SETTINGS.values() if name in one.aliases), None) if name else None
    return word if one is None else f"--{one.key.replace('_', '-')}{equals}{value}"


def _plain_name(word: str) -> str:
    """Return what a flag is called without dashes, value, and the sections before it in torchtitan's and DeepSpeed's."""
    flag = word.partition("=")[0]
    return flag.removeprefix("--").rpartition(".")[2].replace("-", "_") if flag.startswith("--") else ""


def words_of(setting: Setting) -> tuple[str, ...]:
    """Return the words that a setting may take, none where it is no matter of words."""
    if setting.key == "schedule":
        from simulator.schedules import SCHEDULES

        return tuple(SCHEDULES)
    return tuple(setting.words)


class Flag:
    """One option: its type, what ``--help`` says, its flags where they do not follow from its name."""

    def __init__(
        self, kind: Any, says: str, *names: str, default: Any = None, words: Callable[[str], list[str]] | None = None
    ) -> None:
        self.kind, self.says, self.names, self.words = kind, says, names, words
        self.default = False if kind is bool else default

    def parameter(self, name: str, panel: str | None) -> inspect.Parameter:
        """Return the option as a parameter of a command."""
        flag = typer.Option(
            *self.names, help=self.says, rich_help_panel=panel, show_default=False, autocompletion=self.words
        )
        return inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=self.default, annotation=Annotated[self.kind, flag]
        )


#: heading of ``--help``, None for the first -> the options below it by name
Flags = Mapping[str | None, Mapping[str, Flag]]


def own_parameters(command: Callable[..., None]) -> list[inspect.Parameter]:
    """Return the parameters that a command declares itself."""
    return [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.kind is not p.VAR_KEYWORD]


def with_flags(flags: Flags) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of a table as its ``**options``, behind those that it declares itself."""

    def given(command: Callable[..., None]) -> Callable[..., None]:
        more = [one.parameter(name, panel) for panel, group in flags.items() for name, one in group.items()]
        return with_signature(command, [*own_parameters(command), *more])

    return given


def with_plan_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, as its ``**settings``, a flag for every setting of a plan that it does not declare itself.

    They stand before ``--plan``, group by group.
    """
    own = own_parameters(command)
    names = [parameter.name for parameter in own]
    order = [one for group in GROUPS for one in SETTINGS.values() if one.group == group]
    flags = [_parameter(one) for one in order if one.key not in names]
    at = names.index("plan")
    return with_signature(command, [*own[:at], *flags, *own[at:]])


def with_signature(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Return a command that Typer sees with these parameters, all of them by keyword."""
    by_keyword = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]

    def wrapped(**options: Any) -> None:
        command(**options)

    wrapped.__doc__, wrapped.__name__ = command.__doc__, command.__name__
    wrapped.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {one.name: one.annotation for one in by_keyword}
    return wrapped


def _parameter(one: Setting) -> inspect.Parameter:
    help_text = one.doc.replace("`", "") + (f" Default: {one.unset}." if one.unset else "")
    panel, is_hidden = GROUPS[one.group], not one.is_common

    def read(text: str) -> Any:
        try:
            value = one.read(text)
        except ConfigError as error:
            raise typer.BadParameter(error.message) from None
        return one.checked(value)

    def completed(incomplete: str) -> list[str]:
        return [word for word in words_of(one) if word.startswith(incomplete)]

    if one.kind is bool:
        flag: Any = typer.Option(help=help_text, rich_help_panel=panel, hidden=is_hidden, show_default=False)
        annotation: Any = Annotated[Switch, flag]
    else:
        metavar = {int: "<int>", float: "<float>"}.get(one.kind, "<str>")
        flag = typer.Option(
            help=help_text, rich_help_panel=panel, hidden=is_hidden, show_default=False, metavar=metavar, parser=read,
            autocompletion=completed,
        )  # fmt: skip
        annotation = Annotated[Text, flag]
    return inspect.Parameter(one.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
