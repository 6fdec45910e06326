"""A user's own module in place of a model of the catalogue: recorded for each micro-batch that is asked for."""

from __future__ import annotations

import importlib
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.config import did_you_mean
from simulator.dtypes import torch_name
from simulator.errors import ConfigError, InfeasiblePlanError, SimulatorError
from simulator.models.layer import CommunicationPoint, Layer, LayerItem, Model
from simulator.plan import ParallelPlan

_TENSOR = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<shape>(?:\d+|[BS])(?:x(?:\d+|[BS]))*)(?::(?P<dtype>\w+))?")
_SYNTAX = "[NAME=]SHAPE[:DTYPE], e.g. BxS:int64 or labels=8x1024:int64; B is the micro-batch, S the sequence length"
#: elements from which on torch has no numbers for the bytes of a tensor
_MOST_ELEMENTS = 2**60


@dataclass(frozen=True, slots=True, kw_only=True)
class InputTensor:
    """One argument of a module's ``forward``."""

    name: str  #: Keyword; empty for a positional argument.
    shape: tuple[str, ...]  #: Numbers, ``B`` (micro-batch) or ``S`` (sequence length).
    dtype: str = "float32"  #: As torch names it.

    def sizes(self, micro_batch: int, sequence_length: int) -> tuple[int, ...]:
        """Return the shape with its symbols filled in."""
        known = {"B": micro_batch, "S": sequence_length}
        return tuple(known.get(part) or int(part) for part in self.shape)


def parse_input(text: str) -> InputTensor:
    """Read one argument's description.

    Examples
    --------
    >>> parse_input("labels=BxS:int64")
    InputTensor(name='labels', shape=('B', 'S'), dtype='int64')
    """
    match = _TENSOR.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--batch {text}: not understood", hint=f"write {_SYNTAX}")
    dtype = match["dtype"] or "float32"
    return InputTensor(
        name=match["name"] or "", shape=tuple(match["shape"].split("x")), dtype=torch_name(dtype) or dtype
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedModule:
    """A module and the arguments of its ``forward``; stands where a :class:`ModelSpec` may stand."""

    name: str  #: For people and for provenance.
    module: Any  #: On any device.
    inputs: tuple[InputTensor, ...]
    default_length: int = 0  #: Tokens per sequence unless the plan says otherwise.
    _known: dict[tuple[object, ...], Model] = field(default_factory=dict, repr=False, compare=False)

    @property
    def rows(self) -> int:
        """Micro-batch that the arguments fix; 0 where they leave it open."""
        return 0 if self.inputs[0].shape[0] == "B" else int(self.inputs[0].shape[0])

    @property
    def has_tokens(self) -> bool:
        """Whether its samples are sequences of tokens: an argument has an open length, or whole numbers in rows."""
        return any("S" in t.shape or (t.dtype.startswith("int") and len(t.shape) > 1) for t in self.inputs)

    @property
    def max_positions(self) -> int:
        """Tokens per sequence: what the arguments fix, otherwise the default."""
        if any("S" in tensor.shape for tensor in self.inputs):
            if not self.default_length:
                raise ConfigError("S of --batch is open", hint="give --sequence-length")
            return self.default_length
        tokens = [t.shape[1] for t in self.inputs if t.dtype.startswith("int") and len(t.shape) > 1]
        return int(tokens[0]) if tokens and tokens[0].isdecimal() else 1

    def sample_bytes(self, sequence_length: int) -> int:
        """Bytes of one row of all arguments, with so many tokens where ``S`` is open."""
        total = 0
        for tensor in self.inputs:
            sizes = [sequence_length if size == "S" else int(size) for size in tensor.shape[1:] if size != "B"]
            bits = "".join(character for character in tensor.dtype if character.isdecimal())
            total += math.prod(sizes) * (int(bits) // 8 if bits else 1)
        return total

    @property
    def n_parameters(self) -> int:
        """Parameters of the module, shared ones once."""
        return sum(int(p.numel()) for p in self.module.parameters())

    @property
    def n_experts(self) -> int:
        """Experts of the modules that its ``ep_plan`` marks; 0 where it has none."""
        from simulator.models.torch_module import expert_modules

        return max((n for _, n in expert_modules(self.module).values()), default=0)

    @property
    def has_experts(self) -> bool:
        """Whether its ``ep_plan`` marks experts."""
        return self.n_experts > 0

    @property
    def n_matrix_parameters(self) -> int:
        """None: a recorded module has no blocks."""
        return 0

    def model(self, plan: ParallelPlan) -> Model:
        """Record the module as one rank of a plan runs it."""
        refused = self.refusal(plan)
        if refused:
            raise InfeasiblePlanError(refused[0], hint=refused[1])
        if plan.lora_rank:
            raise InfeasiblePlanError(
                f"lora_rank={plan.lora_rank}: which weights of a recorded module are frozen is not known",
                hint="put adapters into the module, and freeze the rest there",
            )
        if plan.recompute == "selective" or plan.precision_spec.quantisation:
            selective = plan.recompute == "selective"
            advice = "call torch.utils.checkpoint in the module, or use --recompute full"
            raise InfeasiblePlanError(
                f"{'recompute=selective' if selective else f'precision={plan.precision}'} is not known for a recorded module",
                hint=advice if selective else "use --precision bf16",
            )
        length = (plan.sequence_length or self.max_positions) // plan.cp
        degrees = (plan.tp, plan.cp, plan.ep)
        load = plan.moe_imbalance if plan.ep > 1 else 1.0
        key = (degrees, load, plan.micro_batch, length, plan.precision, plan.attention, plan.recompute)
        if key not in self._known:
            recorded = self._record(plan, length)
            if degrees != (1, 1, 1):
                whole = self.model(replace(plan, tp=1, cp=1, ep=1, moe_imbalance=1.0))
                flops = whole.model_flops_per_sequence
                recorded = replace(recorded, n_parameters=whole.n_parameters, model_flops_per_sequence=flops)
            layers = _recomputed(recorded.layers) if plan.recompute == "full" else recorded.layers
            self._known[key] = replace(recorded, layers=layers)
        return self._known[key]

    def refusal(self, plan: ParallelPlan) -> tuple[str, str] | None:
        """Return why the module is not split as a plan says, with the way out, or None."""
        has_length = any("S" in tensor.shape for tensor in self.inputs)
        name, length = self.name, plan.sequence_length or self.max_positions
        rules = (
            (plan.tp > 1 and not getattr(self.module, "tp_plan", None), f"tp={plan.tp}: {name} has no tp_plan",
             'say what is split: tp_plan = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}'),
            (plan.tp > 1 and plan.sequence_parallel, f"sequence_parallel: the tp_plan of {name} alone says where tokens are divided",
             "leave it out, and give SequenceParallel(), PrepareModuleInput() and output_layouts=Shard(1) in the tp_plan"),
            (plan.tp > 1 and plan.optimizer == "muon" and plan.muon_tp_mode != "blockwise",
             f"muon_tp_mode={plan.muon_tp_mode}: of which matrices of {name} ranks have parts is not recorded",
             "--set muon_tp_mode=blockwise takes each part by itself"),
            (plan.ep > 1 and not self.has_experts, f"ep={plan.ep}: {name} has no ep_plan that marks experts",
             'mark what holds its experts: ep_plan = {"layers.*.experts": "expert_parallel"}'),
            (plan.ep > 1 and plan.etp not in (None, plan.tp), f"etp={plan.etp}: the tp_plan of {name} alone splits experts",
             f"etp={plan.tp}"),
            (self.has_experts and plan.moe_capacity_factor, f"moe_capacity_factor: {name} drops tokens itself, or none",
             "leave it out; moe_imbalance says how many come to the busiest rank"),
            (plan.cp > 1 and not has_length, f"cp={plan.cp}: no argument of {name} has an open length", "write S for it in --batch"),
            (length % plan.cp, f"cp={plan.cp} does not divide the sequence of {length} tokens", f"cp must divide {length}"),
            (plan.cp > 1 and plan.attention != "flash", f"cp={plan.cp}: sequences are split inside fused attention alone",
             "use --attention flash"),
        )  # fmt: skip
        return next(((what, hint) for is_broken, what, hint in rules if is_broken), None)

    def _record(self, plan: ParallelPlan, length: int) -> Model:
        from simulator.models.torch_module import load_torch, record_module

        torch = load_torch()
        positional: list[Any] = []
        named: dict[str, Any] = {}
        for tensor in self.inputs:
            dtype = getattr(torch, tensor.dtype, None)
            if not isinstance(dtype, torch.dtype):
                raise ConfigError(f"--batch: dtype '{tensor.dtype}' is unknown", hint="int64, float32, bfloat16 ...")
            sizes = tensor.sizes(plan.micro_batch, length)
            if not 0 < math.prod(sizes) < _MOST_ELEMENTS:
                raise ConfigError(
                    f"--batch: {'x'.join(map(str, sizes))} is not the shape of a tensor", hint=f"write {_SYNTAX}"
                )
            made = torch.empty(sizes, dtype=dtype, device="meta")
            if tensor.name:
                named[tensor.name] = made
            else:
                positional.append(made)
        if hasattr(self.module, "set_attn_implementation"):  # a module of transformers
            try:
                self.module.set_attn_implementation("sdpa" if plan.attention == "flash" else "eager")
            except ValueError as error:
                raise InfeasiblePlanError(f"--module {self.name}: {error}", hint="use --attention eager") from None
        is_autocast = plan.precision.startswith("amp_")
        kept = {"tf32": "fp32"}.get(plan.precision, plan.precision)
        try:
            model = record_module(
                self.module,
                *positional,
                name=self.name,
                attention=plan.attention,
                dtype="fp32" if is_autocast else kept,
                autocast=plan.precision.removeprefix("amp_") if is_autocast else "",
                tp=plan.tp,
                cp=plan.cp,
                ep=plan.ep,
                expert_load=plan.moe_imbalance if plan.ep > 1 else 1.0,
                **named,
            )
        except SimulatorError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code
            raise ConfigError(
                f"{self.name}: forward fails: {type(error).__name__}: {error}", hint=f"write {_SYNTAX}"
            ) from None
        if plan.cp > 1 and not any(_is_context(item) for layer in model.layers for item in layer.forward):
            raise InfeasiblePlanError(
                f"cp={plan.cp}: {self.name} never calls scaled_dot_product_attention, inside which a sequence is split",
                hint="use it for attention, or dp",
            )
        return replace(model, layers=_with_blocks(model.layers))


def _is_context(item: LayerItem) -> bool:
    return isinstance(item, CommunicationPoint) and item.operator == "context"


def _with_blocks(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Take all layers of a module in which nothing repeats for its blocks; equal ones stay shared."""
    if any(layer.is_block for layer in layers):
        return tuple(layers)
    alike = {id(layer): replace(layer, role="block") for layer in layers}
    return tuple(alike[id(layer)] for layer in layers)


def _recomputed(layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """Keep of every block its input alone, and run its forward again before its backward."""
    known: dict[tuple[int, int], Layer] = {}
    found: list[Layer] = []
    for before, layer in zip((None, *layers), layers, strict=False):
        kept = before.output_bytes if before is not None and before.output_bytes else layer.output_bytes
        if not layer.is_block or layer.saved_bytes <= kept:
            found.append(layer)
            continue
        key = (id(layer), kept)  # equal layers are shared, and long to hash
        if key not in known:
            known[key] = replace(
                layer,
                recompute=layer.forward,
                plain=layer,
                saved_bytes=kept,
                transient_bytes=layer.transient_bytes + layer.saved_bytes,
            )
        found.append(known[key])
    return tuple(found)


def open_module(target: str, batch: Sequence[str], *, sequence_length: int = 0) -> RecordedModule:
    """Import a module, or a function that builds one, and describe its arguments.

    Parameters
    ----------
    target : str
        ``package.module:name`` or ``path/to/file.py:name``; a ``torch.nn.Module``, a class of them, or a function
        without arguments that returns one, or returns it with example arguments.
    batch : sequence of str
        Arguments of ``forward``; see :func:`parse_input`. They win over example arguments.
    sequence_length : int
        What ``S`` stands for.
    """
    from simulator.models.torch_module import load_torch

    torch = load_torch()
    built = _build(torch, target, _import(target))
    examples: Any = ()
    if isinstance(built, tuple) and built:
        built, *rest = built
        examples = rest[0] if len(rest) == 1 and isinstance(rest[0], tuple | list | dict) else tuple(rest)
    if not isinstance(built, torch.nn.Module):
        raise ConfigError(f"--module {target} gives a {type(built).__name__}, not a torch.nn.Module")
    inputs = tuple(parse_input(text) for text in batch) or _inputs_of(torch, examples)
    if not inputs:
        raise ConfigError(f"--module {target}: the arguments of its forward are not known", hint=f"--batch {_SYNTAX}")
    return RecordedModule(name=target, module=built, inputs=inputs, default_length=sequence_length)


def fit_plan(plan: ParallelPlan, module: RecordedModule, *, has_framework: bool) -> ParallelPlan:
    """Give a plan the micro-batch that the module's arguments fix, and a framework that runs modules eagerly."""
    if module.rows and plan.micro_batch not in (None, module.rows):
        what = f"--micro-batch {plan.micro_batch}, but --batch has {module.rows} rows"
        raise ConfigError(what, hint="write B for the rows in --batch")
    framework = plan.framework if has_framework else "fsdp" if plan.sharding in ("zero3", "hsdp") else "hf-eager"
    return replace(plan, micro_batch=module.rows or plan.micro_batch, framework=framework)


def _inputs_of(torch: Any, examples: Any) -> tuple[InputTensor, ...]:
    pairs = examples.items() if isinstance(examples, dict) else (("", value) for value in examples)
    return tuple(
        InputTensor(name=name, shape=tuple(map(str, value.shape)), dtype=str(value.dtype).removeprefix("torch."))
        for name, value in pairs
        if isinstance(value, torch.Tensor) and value.dim()
    )


def _import(target: str) -> Any:
    place, separator, name = target.rpartition(":")
    if not separator or not place or not name:
        raise ConfigError(
            f"--module {target}: not understood", hint="write package.module:name or path/to/file.py:name"
        )
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_package(place)
    except SimulatorError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        raise ConfigError(f"--module {target}: cannot be imported: {type(error).__name__}: {error}") from None
    if not hasattr(module, name):
        public = [word for word in vars(module) if not word.startswith("_")]
        raise ConfigError(f"--module {target}: {place} has no '{name}'.{did_you_mean(name, public)}")
    return getattr(module, name)


def _load_package(place: str) -> Any:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    return importlib.import_module(place)


def _load_file(path: Path) -> Any:
    found = importlib.util.spec_from_file_location(path.stem, path) if path.is_file() else None
    if found is None or found.loader is None:
        raise ConfigError(f"--module: no file '{path}'")
    module = importlib.util.module_from_spec(found)
    sys.modules[path.stem] = module
    found.loader.exec_module(module)
    return module


def _build(torch: Any, target: str, made: Any) -> Any:
    """Call what was imported, first without memory for the weights."""
    if isinstance(made, torch.nn.Module) or not callable(made):
        return made
    factory: Callable[[], Any] = made
    try:
        with torch.device("meta"):
            return factory()
    except (Exception, SystemExit):  # what reads its own weights needs some
        try:
            return factory()
        except (Exception, SystemExit) as error:
            what = f"{type(error).__name__}: {error}"
            needs_gpu = "leave devices out: no GPU is used here"
            hint = needs_gpu if "cuda" in what.lower() else "it is called without arguments"
            raise ConfigError(f"--module {target}: cannot be built: {what}", hint=hint) from None
