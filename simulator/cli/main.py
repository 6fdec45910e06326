"""``simulate``: the main command without a subcommand, and the subcommands beside it."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import sys
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from simulator import __version__
from simulator.cli.main_flags import FLAGS
from simulator.cli.memory_limit import limit_memory
from simulator.cli.options import other_flag, our_flags, refuse_blanks, with_flags, with_plan_flags
from simulator.cli.shared import complain, print_json
from simulator.errors import SimulatorError


class _Commands(TyperGroup):
    """Commands whose interrupt is said: Typer itself ends with an empty line."""

    def invoke(self, ctx: Any) -> Any:
        """Run what is asked for."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            _end_interrupted(interrupt)


_MARKUP: Any = {"rich_markup_mode": "markdown", "pretty_exceptions_enable": False, "cls": _Commands}
app = typer.Typer(
    add_completion=True, no_args_is_help=False, **_MARKUP,
    help="Predict the iteration time of distributed deep-learning training on a cluster.",
    epilog="Examples:  `simulate --topology bigred200 --model gpt2-large`  ·  "
    "`simulate --topology selene --model gpt3-175b --gpus 1024 --tp 8 --pp 16 --micro-batch 1 --global-batch 1536 --json`",
)  # fmt: skip


def _version(value: bool) -> None:
    if value:
        print(f"simulate {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
@with_plan_flags
@with_flags(FLAGS)
def main_command(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    **settings: Any,
) -> None:
    """Simulate one training iteration of a model on a cluster."""
    limit_memory(settings["max_memory"])
    if context.invoked_subcommand is not None:
        return
    if settings["preset"] == "list":
        from simulator.cli.describe import list_presets

        list_presets(json_output=settings["json_output"])
        return
    named = next((settings[name] for name in ("model", "megatron", "module", "preset") if settings[name]), None)
    topology = settings["topology"] or settings["preset"]
    if topology is None and named is None and len(sys.argv) == 1:
        print(context.get_help())
        raise typer.Exit
    lists = {"--topology": "simulate topology list", "--model": "simulate models list"}
    missing = [name for name, value in zip(lists, (topology, named), strict=True) if value is None]
    if missing:
        what = " and ".join(f"{name} NAME (`{lists[name]}` prints the shipped ones)" for name in missing)
        complain(f"missing: {what}; `simulate --help` lists all flags")
        raise typer.Exit(2)
    from simulator.cli.run import run_main

    run_main(dict(context.params))


#: whether a command takes the flags of the main command, and among them those of a whole run
_OWN, _FLAGS, _FLAGS_OF_RUNS = range(3)
#: commands that live in files of their own: module, function, help, and which flags they take
_COMMANDS = {
    "topology": ("describe", "topology", "Show a cluster or list the shipped ones.", _OWN),
    "models": ("describe", "models", "List the catalogue.", _OWN),
    "schedule": ("describe", "schedule", "Print and draw a pipeline schedule.", _OWN),
    "validate": ("validate", "validate", "Predict the rows of a measurement file and print the errors.", _OWN),
    "import": ("import_", "import_", "Read a file of another tool: plan, model, cluster or log.", _OWN),
    "calibrate": ("calibrate", "calibrate", "", _OWN),
    "collective": ("collective", "collective", "Predict a collective by size, in the columns of nccl-tests.", _OWN),
    "sweep": ("exploration", "sweep", "Simulate every combination of some settings.", _FLAGS_OF_RUNS),
    "search": ("exploration", "search", "Find the fastest plans that fit.", _FLAGS_OF_RUNS),
    "compare": ("exploration", "compare", "Compare two plans, clusters or sizes.", _FLAGS),
    "gallery": ("exploration", "gallery", "Simulate published runs beside what was measured.", _OWN),
    "requirements": (
        "exploration", "requirements", "Find the network between nodes that a target needs.", _FLAGS_OF_RUNS,
    ),
    "stragglers": (
        "uneven_steps", "stragglers", "Play jobs whose steps are uneven, and say what each cause costs.", _FLAGS,
    ),
    "replay": ("replay", "replay", "Replay a trace, as measured or with changes.", _OWN),
    "trace": ("trace", "trace_app", "", _OWN),
}  # fmt: skip


def register_commands() -> None:
    """Add the commands that live in files of their own, once; each imports its work lazily."""
    if any(command.name == "validate" for command in app.registered_commands):
        return
    for name in _COMMANDS:
        _add(app, name)


def _add(to: typer.Typer, name: str) -> None:
    from simulator.cli.main_flags import RUN_OPTIONS
    from simulator.cli.shared import with_scenario

    module, attribute, text, flags = _COMMANDS[name]
    found = getattr(import_module(f"simulator.cli.{module}"), attribute)
    if isinstance(found, typer.Typer):
        to.add_typer(found, name=name)
        return
    if flags != _OWN:
        found = with_scenario(found, main_command, *((RUN_OPTIONS,) if flags == _FLAGS_OF_RUNS else ()))
    to.command(name, help=text)(found)


@with_flags({None: {"max_memory": FLAGS["Output"]["max_memory"]}})
def _limited(**settings: Any) -> None:
    limit_memory(settings["max_memory"])


def _asked(words: list[str]) -> typer.Typer:
    """Return the application with what these words can ask for: describing all flags takes a fifth of a small simulation."""
    is_limited = bool(words) and words[0].partition("=")[0] == "--max-memory"  # as :func:`_limits_first` leaves them
    rest = words[1 if "=" in words[0] else 2 :] if is_limited else words
    completes = any(name.endswith("_COMPLETE") for name in os.environ)
    if rest and rest[0] in _COMMANDS and not completes:
        alone = typer.Typer(add_completion=False, **_MARKUP)
        alone.callback()(_limited)
        _add(alone, rest[0])
        return alone
    if completes or not words or not words[0].startswith("-") or not {"--help", *_COMMANDS}.isdisjoint(words):
        register_commands()
    return app


def _takes_plans(words: list[str]) -> bool:
    """Whether the command, if one is named, takes the flags of a plan: others have flags of such names of their own."""
    named = next((word for word in words if word in _COMMANDS), "")
    return not named or _COMMANDS[named][3] != _OWN


def _limits_first(words: list[str]) -> list[str]:
    """Put ``--max-memory``, which holds for every command, before the command."""
    for place, word in enumerate(words):
        if word == "--max-memory" and place + 1 < len(words):
            return [*words[place : place + 2], *words[:place], *words[place + 2 :]]
        if word.startswith("--max-memory="):
            return [word, *words[:place], *words[place + 1 :]]
    return words


class _ForWhoeverReads(io.TextIOWrapper):
    """Standard output whose reader may go, as ``head -1`` does: the rest goes nowhere, and files are written all the same."""

    is_gone = False

    def _let_go(self) -> None:
        self.is_gone = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())

    def write(self, text: str) -> int:
        """Write a text, or drop it where nothing reads on."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._let_go()
            return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        try:
            super().flush()
        except BrokenPipeError:
            self._let_go()


def _make_streams_safe() -> None:
    """Let a character that the terminal's encoding lacks become a question mark, and a closed stream an error of ours."""
    if sys.stderr is None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        os.set_inheritable(2, True)  # workers have no other
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for the rest of the process
    if sys.stdout is None:
        print("error: standard output is closed", file=sys.stderr)
        sys.exit(SimulatorError.exit_code)
    if type(sys.stdout) is io.TextIOWrapper and not sys.stdout.isatty():
        out = sys.stdout
        sys.stdout = _ForWhoeverReads(out.buffer, out.encoding, out.errors, line_buffering=out.line_buffering)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and (stream.encoding or "").lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")


def _end(*_: object) -> None:
    """End as an interrupt does, workers and their files included: those of joblib are let go at a regular exit alone."""
    sys.exit(143)


def _end_interrupted(interrupt: KeyboardInterrupt) -> NoReturn:
    """Say in one line that the run was interrupted, and what the interrupt knows of what is kept."""
    after_its_mark = "\n" if sys.stderr.isatty() else ""  # a terminal writes ^C where the cursor stands
    complain(after_its_mark + ": ".join(["interrupted", *map(str, interrupt.args)]))
    sys.exit(130)


def main() -> None:
    """Run the command line: a user's mistake prints one message and never a traceback."""
    gc.set_threshold(200_000, 10, 10)  # starting up makes many objects and no garbage
    atexit.register(gc.freeze)  # nor is all that is there looked through again when the process ends
    signal.signal(signal.SIGTERM, _end)
    wants_json = "--json" in sys.argv
    _make_streams_safe()
    try:
        refuse_blanks(sys.argv[1:])
        if _takes_plans(sys.argv[1:]) and (other := other_flag(sys.argv[1:])):
            complain(other)
            sys.exit(2)
        sys.argv[1:] = _limits_first(our_flags(sys.argv[1:]))
        try:
            _asked(sys.argv[1:])()
        finally:
            sys.stdout.flush()  # a full disk is an error to report, not one to ignore at exit
    except SystemExit as end:
        if not end.code and isinstance(sys.stdout, _ForWhoeverReads) and sys.stdout.is_gone:
            sys.exit(1)
        raise
    except SimulatorError as error:
        if wants_json:
            print_json({"error": {"type": type(error).__name__, "message": error.message, "hint": error.hint}})
        complain(f"error: {error}")
        sys.exit(error.exit_code)
    except MemoryError:
        limit = "memory is full: the run needs more than --max-memory allows, or than the machine has"
        if wants_json:
            print_json({"error": {"type": "MemoryError", "message": limit, "hint": ""}})
        complain(f"error: {limit}")
        sys.exit(SimulatorError.exit_code)
    except KeyboardInterrupt as interrupt:
        _end_interrupted(interrupt)
    except OSError as error:
        message = (
            f"{error.filename}: {error.strerror}" if error.filename else f"standard output: {error.strerror or error}"
        )
        complain(f"error: {message}")
        if error.filename is None:  # the output itself
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        elif wants_json:
            print_json({"error": {"type": "OSError", "message": message, "hint": ""}})
        sys.exit(SimulatorError.exit_code)


if __name__ == "__main__":
    main()
