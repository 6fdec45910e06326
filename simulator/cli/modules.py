"""``--module``: a user's own ``torch.nn.Module`` in place of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from simulator.errors import ConfigError
from simulator.plan import ParallelPlan

if TYPE_CHECKING:
    from simulator.models.recorded import RecordedModule


def recorded_module(options: Mapping[str, Any]) -> RecordedModule | None:
    """Return the module that is named, None where there is none.

    Raises
    ------
    ConfigError
        If it cannot be imported, or both a module and a model are named.
    """
    if not options.get("module"):
        if options.get("batch"):
            raise ConfigError("--batch describes the arguments of a --module", hint="for a model use --micro-batch")
        return None
    if options.get("model"):
        raise ConfigError("both --model and --module are given", hint="leave one out")
    from simulator.interop.hub import PREFIX, open_hub_module
    from simulator.models.recorded import open_module

    length = options.get("sequence_length") or 0
    if options["module"].startswith(PREFIX):
        return open_hub_module(options["module"].removeprefix(PREFIX), sequence_length=length)
    return open_module(options["module"], options.get("batch") or (), sequence_length=length)


def fit_plan(plan: ParallelPlan, module: RecordedModule, *, has_framework: bool) -> ParallelPlan:
    """Give a plan the micro-batch that the module's arguments fix, and a framework that runs modules eagerly.

    Raises
    ------
    ConfigError
        If the plan asks for another micro-batch.
    """
    if module.rows and plan.micro_batch not in (None, module.rows):
        what = f"--micro-batch {plan.micro_batch}, but --batch has {module.rows} rows"
        raise ConfigError(what, hint="write B for the rows in --batch")
    framework = plan.framework if has_framework else "fsdp" if plan.sharding in ("zero3", "hsdp") else "hf-eager"
    return replace(plan, micro_batch=module.rows or plan.micro_batch, framework=framework)
