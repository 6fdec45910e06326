"""``python -m validation``: real jobs, the emulated cluster, and clean-up."""

from __future__ import annotations

import sys

import typer

from simulator.errors import SimulatorError
from validation.emulation.emulate_command import emulate
from validation.emulation.judged import predict
from validation.emulation.ranks import clean as end_orphans
from validation.jobs.here import compare
from validation.jobs.run_command import run

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="Real torch.distributed jobs, on this machine, under torchrun or Slurm, or on an emulated cluster.",
)  # fmt: skip
app.command("run")(run)
app.command("compare")(compare)
app.command("emulate")(emulate)
app.command("predict")(predict)


@app.command()
def clean() -> None:
    """End processes that a killed emulation may have left; namespaces end with their processes."""
    pids = end_orphans()
    print(f"ended {len(pids)} processes: {', '.join(map(str, pids))}" if pids else "nothing was left behind")


def main() -> int:
    """Run the command line; a user's mistake gives a message and an exit status, never a traceback."""
    try:
        code = app(standalone_mode=False)
    except SimulatorError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # click's own usage errors
            print(f"error: {error.format_message()}", file=sys.stderr)
            return int(error.exit_code)
        raise
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
