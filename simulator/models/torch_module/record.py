"""Forward and backward of a module, run once on tensors without data while every operator is noted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

from simulator.errors import ConfigError
from simulator.models.layer import AttentionShape, CommunicationPoint, Layer, Model
from simulator.models.recording import Recorder
from simulator.models.torch_module.hooks import empty_state, recording, replaced
from simulator.models.torch_module.load import load_torch
from simulator.models.torch_module.modes import attention_backend, gpu_autocast, plain_operators, quiet
from simulator.models.torch_module.partition import expert_modules, local_parameters, partitioned
from simulator.plan.vocabularies import ATTENTIONS

#: what makes fake tensors, and prints a traceback for every operator that cannot run on them
_FAKE = "torch._subclasses.fake_tensor"


def record_module(
    module: Any,
    *inputs: Any,
    name: str = "",
    loss: Callable[[Any], Any] | None = None,
    attention: str = "flash",
    dtype: str = "",
    autocast: str = "",
    tp: int = 1,
    cp: int = 1,
    ep: int = 1,
    expert_load: float = 1.0,
    **keywords: Any,
) -> Model:
    """Record forward and backward of a module and return them as a model, whose sequences are the rows of the first input.

    Parameters
    ----------
    module : torch.nn.Module
        On any device; it is left as it was. Its largest ``ModuleList`` or ``Sequential`` gives the layers.
    *inputs, **keywords
        Arguments of its ``forward``; tensors are replaced by fake ones of the same shape: with ``cp`` of a rank's tokens.
    loss : callable, optional
        From the output to a scalar; the output's ``loss`` or the mean of its first tensor unless given.
    attention : str
        ``flash`` takes ``scaled_dot_product_attention`` as one fused kernel, ``eager`` as its parts.
    dtype : str
        Convert weights and floating-point inputs to ``bf16``, ``fp16`` or ``fp32`` first.
    autocast : str
        Run forward under autocast to ``bf16`` or ``fp16``.
    tp, cp, ep : int
        Ranks over which its ``tp_plan`` splits it, that share a sequence, and that share the experts which its ``ep_plan`` marks;
        one of them is recorded.
    expert_load : float
        Tokens of its share of the experts, relative to an even share of all tokens.
    """
    torch = load_torch()
    _check(attention)
    cast_to = _dtype(torch, "autocast", autocast)
    fake = load_torch(_FAKE.removeprefix("torch.")).FakeTensorMode(allow_non_fake_inputs=True)
    empty = _emptier(torch, fake, _dtype(torch, "dtype", dtype))
    experts = expert_modules(module)
    state, names = empty_state(module, empty, split=local_parameters(torch, module, experts, tp=tp, ep=ep))
    recorder = _recorder(state, names, tuple(f"{name}." for name in experts), (*inputs, *keywords.values()))
    tree_map = load_torch("utils._pytree").tree_map
    arguments = tree_map(lambda a: empty(a) if isinstance(a, torch.Tensor) else a, (inputs, keywords))

    def forward() -> Any:
        with torch.autocast("cpu", cast_to) if cast_to is not None else nullcontext():
            return _scalar(torch, module(*arguments[0], **arguments[1]), loss)

    parts = partitioned(torch, module, recorder, experts, tp=tp, ep=ep, expert_load=expert_load)
    with replaced(module, state), parts, recording(torch, module, state, recorder, attention, cp) as modes:
        backend = attention_backend(attention, recorder)
        around = (quiet(_FAKE), gpu_autocast(torch), fake, plain_operators(torch), *modes, backend)
        _run(torch, forward, recorder, around)
    n_parameters = sum(state[key].numel() for key in names.values())
    found = _model_of(name or type(module).__name__, recorder.layers(), _n_sequences((*inputs, *keywords.values())))
    return replace(found, tied_embedding=_is_tied(module, names), n_parameters=n_parameters)


def _model_of(name: str, layers: tuple[Layer, ...], n_sequences: int) -> Model:
    return Model(
        name=name, layers=layers, tied_embedding=False, notes=("recorded from a torch module",), n_parameters=0,
        model_flops_per_sequence=_flops(layers) / n_sequences,
    )  # fmt: skip


def _check(attention: str) -> None:
    if attention not in ATTENTIONS:
        raise ConfigError(f"attention='{attention}' is unknown", hint=" or ".join(ATTENTIONS))


def _is_tied(module: Any, names: Mapping[int, str]) -> bool:
    """Whether some of the module's parameters go by several names."""
    return len(list(module.named_parameters(remove_duplicate=False))) > len(names)


def _emptier(torch: Any, fake: Any, dtype: Any) -> Callable[[Any], Any]:
    """Return what makes a fake tensor of another one's shape, floating-point ones of ``dtype`` where one is given."""

    def empty(tensor: Any) -> Any:
        is_cast = tensor.is_floating_point() and dtype is not None
        with fake:
            return torch.empty(tensor.shape, dtype=dtype if is_cast else tensor.dtype, device="cpu")

    return empty


def _n_sequences(arguments: tuple[Any, ...]) -> int:
    """Return the rows of the first tensor among the arguments, 1 where there is none."""
    first = next((one for one in arguments if hasattr(one, "shape") and one.dim()), None)
    return int(first.shape[0]) if first is not None else 1


def _run(torch: Any, forward: Callable[[], Any], recorder: Recorder, contexts: tuple[Any, ...]) -> None:
    """Run forward and backward once under the contexts; what autograd saves is counted in forward alone."""
    hooks = torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda t: t)
    try:
        with ExitStack() as stack:
            for context in contexts:
                stack.enter_context(context)
            with hooks:
                scalar = forward()
            recorder.is_backward = True
            scalar.backward()
    except (RuntimeError, NotImplementedError, ValueError, IndexError) as error:
        raise _explained(error, recorder) from error


def _dtype(torch: Any, key: str, name: str) -> Any:
    """Return torch's type of a name, None where none is given."""
    known = {"": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    if name not in known:
        raise ConfigError(f"{key}='{name}' is unknown", hint="bf16, fp16 or fp32")
    return known[name]


def _recorder(
    state: dict[str, Any], names: dict[int, str], experts: tuple[str, ...], arguments: tuple[Any, ...]
) -> Recorder:
    """Return a recorder that knows the parameters, and leaves them out of what it counts."""
    shapes = frozenset(tuple(state[key].shape) for key in names.values() if state[key].dim() > 1)
    first = next((one for one in arguments if hasattr(one, "shape") and one.dim()), None)
    n_tokens = 1 if first is None else max(1, first.shape[:2].numel())
    reference = load_torch("multiprocessing.reductions").StorageWeakRef
    recorder = Recorder(reference, names, shapes, experts, n_tokens)
    for tensor in state.values():
        recorder.ignore(tensor)
    return recorder


def _flops(layers: tuple[Layer, ...]) -> float:
    """FLOPs as the built-in families count them: nothing for a causal mask, nor for what fused attention repeats."""
    items = [item for layer in layers for item in (*layer.forward, *layer.backward)]
    counted = 0.0
    for item in items:
        if isinstance(item, AttentionShape):
            whole = replace(item, causal=False, kernel_pass="forward").n_flops
            counted += whole if item.kernel_pass == "forward" else 2.0 * whole
        elif not isinstance(item, CommunicationPoint):
            counted += item.n_flops
    return counted


def _scalar(torch: Any, output: Any, loss: Callable[[Any], Any] | None) -> Any:
    tree_leaves = load_torch("utils._pytree").tree_leaves

    if loss is not None:
        return loss(output)
    given = getattr(output, "loss", None)
    if given is not None:
        return given
    tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        raise ConfigError(
            "the module returns nothing that depends on its parameters",
            hint="have forward return its loss, or a tensor made from parameters that require gradients",
        )
    return tensors[0] if tensors[0].dim() == 0 else tensors[0].float().mean()


def _explained(error: Exception, recorder: Recorder) -> ConfigError:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    place = recorder.place
    name, words = type(error).__name__, ("item()", "local_scalar", "data-dependent", "meta tensor", ".numpy()")
    if name == "DynamicOutputShapeException":
        return ConfigError(
            f"a shape depends on data{place}: {text}",
            hint="record a variant with fixed shapes, such as experts that each take an equal share of the tokens",
        )
    if name == "DataDependentOutputException" or any(word in str(error).lower() for word in words):
        return ConfigError(
            f"control flow depends on data{place}: {text}",
            hint="record a variant whose forward does not read tensor values, or one branch of it",
        )
    hint = "check that its arguments have the shapes and types that forward expects, and the layouts of its tp_plan under --tp"
    if "cuda" in text.lower():
        hint = "leave devices out, or make tensors on the device of an argument: no GPU is used here"
    elif "is invalid for input of size" in text:
        hint = (
            "check the shapes of its arguments; under --tp, leave numbers of heads open, of which every rank needs one"
        )
    elif "Unsupported dtype" in text:
        hint = "an operator has no kernel for this type: try --precision fp32, or amp_bf16"
    return ConfigError(f"the module cannot run on tensors without data{place}: {text}", hint=hint)
