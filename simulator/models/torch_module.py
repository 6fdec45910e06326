"""Any ``torch.nn.Module`` as layers: its operators recorded on tensors without data.

Forward and backward run once on fake tensors, which have shapes and no memory, under a dispatch mode that
notes every operator. Torch is imported when a module is recorded and not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from simulator.errors import ConfigError
from simulator.models.aten import TensorSize
from simulator.models.layer import AttentionShape, Model, Pass, PointwiseShape
from simulator.models.recording import Recorder, Segment


def load_torch(submodule: str = "") -> Any:
    """Import torch, or one of its modules, when it is needed and not before."""
    try:
        return importlib.import_module(f"torch.{submodule}" if submodule else "torch")
    except ImportError as error:
        raise ConfigError(
            "PyTorch is not installed, so a module cannot be recorded",
            hint="install the extra 'torch', or name a catalogue model",
        ) from error


def _modes(torch: Any, recorder: Recorder, attention: str) -> tuple[Any, Any, Any]:
    """Return the dispatch mode, the function mode and the marking function, bound to a recorder."""
    tree_leaves = load_torch("utils._pytree").tree_leaves

    def tensors(tree: Any) -> list[Any]:
        return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.__name__.split(".", maxsplit=1)[0]
        recorder.call(name, tensors((args, kwargs or {})), tensors(result), is_view=bool(func.is_view))
        return result

    def mark(ctx: Any, tensor: Any, segment: Segment) -> Any:
        ctx.segment = segment
        return tensor.view_as(tensor)

    def unmark(ctx: Any, *gradients: Any) -> Any:
        recorder.current = ctx.segment
        return gradients[0], None

    base = load_torch("utils._python_dispatch").TorchDispatchMode
    mode = type("Dispatch", (base,), {"__torch_dispatch__": dispatch})()
    return mode, _functions(torch, recorder, attention), _function(torch, mark, unmark)


def _function(torch: Any, forward: Callable[..., Any], backward: Callable[..., Any]) -> Any:
    """Return an autograd function made of two plain ones."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Recorded", (torch.autograd.Function,), methods)


def _functions(torch: Any, recorder: Recorder, attention: str) -> Any:
    """Return the mode that puts the GPU's one kernel for what the CPU takes apart: attention and dropout."""
    flash, masked = _flash(torch, recorder), _masked(torch, recorder)
    functional = torch.nn.functional

    def intercept(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention and attention == "flash":
            q, k, v = (args + tuple(kwargs[n] for n in ("query", "key", "value") if n in kwargs))[:3]
            probability = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            causal = kwargs.get("is_causal", args[5] if len(args) > 5 else False)
            return flash.apply(q, k, v, bool(causal), probability > 0)
        if func is functional.dropout:
            probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            training = kwargs.get("training", args[2] if len(args) > 2 else True)
            x = kwargs.get("input", args[0] if args else None)
            return masked.apply(x) if training and probability else x
        return func(*args, **kwargs)

    base = load_torch("overrides").TorchFunctionMode
    return type("Functions", (base,), {"__torch_function__": intercept})()


def _flash(torch: Any, recorder: Recorder) -> Any:
    """Return fused attention: one kernel each way, outputs laid out as the kernels lay them out."""

    def by_token(like: Any, width: int) -> Any:
        *batch, heads, length, _ = like.shape
        return like.new_empty((*batch, length, heads, width)).transpose(-3, -2)

    def forward(ctx: Any, q: Any, k: Any, v: Any, *flags: bool) -> Any:
        causal, dropout = flags
        ctx.shape = AttentionShape(
            batch=q.shape[:-3].numel(),
            heads=q.shape[-3],
            kv_heads=k.shape[-3],
            seq_q=q.shape[-2],
            seq_k=k.shape[-2],
            head_dim=q.shape[-1],
            causal=causal,
            dtype=recorder.size(q).dtype,
            has_dropout=dropout,
        )
        with recorder.paused():
            output = by_token(q, v.shape[-1])
            statistics = q.new_empty(q.shape[:-1], dtype=torch.float32)
        recorder.follow([output, statistics])
        recorder.add([ctx.shape])
        ctx.save_for_backward(q, k, v, output, statistics)
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        recorder.add([replace(ctx.shape, kernel_pass="backward")])
        with recorder.paused():
            made = [by_token(t, t.shape[-1]) for t in ctx.saved_tensors[:3]]
        recorder.follow(made)
        return (*made, None, None)

    return _function(torch, forward, backward)


def _masked(torch: Any, recorder: Recorder) -> Any:
    """Return dropout as the GPU runs it: one kernel each way and a mask of one byte per element."""

    def forward(ctx: Any, x: Any) -> Any:
        with recorder.paused():
            output, mask = x.new_empty(x.shape), x.new_empty(x.shape, dtype=torch.bool)
        ctx.save_for_backward(mask)
        recorder.follow([output, mask])
        recorder.add([_dropout(recorder.size(x), "forward")])
        return output

    def backward(ctx: Any, *gradients: Any) -> Any:
        with recorder.paused():
            made = gradients[0].new_empty(gradients[0].shape)
        recorder.follow([made])
        recorder.add([_dropout(recorder.size(made), "backward")])
        return made

    return _function(torch, forward, backward)


def _backend(attention: str) -> Any:
    """Return the context in which attention that is not fused is taken apart."""
    if attention == "flash":
        return nullcontext()
    choice = load_torch("nn.attention")
    return choice.sdpa_kernel(choice.SDPBackend.MATH)


def _dropout(x: TensorSize, in_pass: Pass) -> PointwiseShape:
    n_bytes, n = float(x.n_bytes), x.n_elements
    masked = n_bytes + n
    return PointwiseShape(
        name="dropout",
        n_elements=n,
        read_bytes=n_bytes if in_pass == "forward" else masked,
        written_bytes=masked if in_pass == "forward" else n_bytes,
        dtype=x.dtype,
        kernel_pass=in_pass,
    )


def _blocks(torch: Any, module: Any) -> dict[Any, str]:
    """Return the modules that become layers of their own: the items of the largest list in the tree."""
    kinds = (torch.nn.ModuleList, torch.nn.Sequential)
    lists = [(name, m) for name, m in module.named_modules() if isinstance(m, kinds) and len(m) > 1]
    if not lists:
        return {}

    def weight(entry: tuple[str, Any]) -> tuple[int, int]:
        return sum(p.numel() for p in entry[1].parameters()), -entry[0].count(".")

    name, chosen = max(lists, key=weight)
    prefix = f"{name}." if name else ""
    return {child: f"{prefix}{index}" for index, child in enumerate(chosen)}


def _empty_state(module: Any, empty: Callable[[Any], Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """Return empty twins of all parameters and buffers by name, tied ones shared, and parameter names."""
    state: dict[str, Any] = {}
    twins: dict[int, Any] = {}
    for key, tensor in [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]:
        if id(tensor) not in twins:
            twins[id(tensor)] = empty(tensor).requires_grad_(tensor.requires_grad)
        state[key] = twins[id(tensor)]
    return state, {id(state[key]): key for key, _ in module.named_parameters()}


def record_module(
    module: Any,
    *inputs: Any,
    name: str = "",
    loss: Callable[[Any], Any] | None = None,
    attention: str = "flash",
    dtype: str = "",
    autocast: str = "",
    **keywords: Any,
) -> Model:
    """Record forward and backward of a module and return them as a model.

    Parameters
    ----------
    module : torch.nn.Module
        On any device; it is left as it was. Its largest ``ModuleList`` or ``Sequential`` gives the layers.
    *inputs, **keywords
        Arguments of its ``forward``; tensors are replaced by fake ones of the same shape.
    name : str
        Of the model; the class's name unless given.
    loss : callable, optional
        From the output to a scalar; the output's ``loss`` or the mean of its first tensor unless given.
    attention : str
        ``flash`` takes ``scaled_dot_product_attention`` as one fused kernel, ``eager`` as its parts.
    dtype : str
        Convert weights and floating-point inputs to ``bf16``, ``fp16`` or ``fp32`` first.
    autocast : str
        Run forward under autocast to ``bf16`` or ``fp16``.

    Returns
    -------
    Model
        One sequence is one row of the first input.

    Raises
    ------
    ConfigError
        If torch is missing, an operator has no shape rule, or the control flow depends on data.
    """
    torch = load_torch()
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    wanted = dtypes.get(dtype)
    if dtype and wanted is None:
        raise ConfigError(f"dtype='{dtype}' is unknown", hint="bf16, fp16 or fp32")
    if attention not in ("flash", "eager"):
        raise ConfigError(f"attention='{attention}' is unknown", hint="flash or eager")

    fake = load_torch("_subclasses.fake_tensor").FakeTensorMode(allow_non_fake_inputs=True)

    def empty(tensor: Any) -> Any:
        floating = tensor.is_floating_point() and wanted is not None
        with fake:
            return torch.empty(tensor.shape, dtype=wanted if floating else tensor.dtype, device="cpu")

    state, names = _empty_state(module, empty)
    shapes = frozenset(tuple(state[key].shape) for key in names.values() if state[key].dim() > 1)
    recorder = Recorder(load_torch("multiprocessing.reductions").StorageWeakRef, names, shapes)
    for tensor in state.values():
        recorder.ignore(tensor)
    tree_map = load_torch("utils._pytree").tree_map
    arguments = tree_map(lambda a: empty(a) if isinstance(a, torch.Tensor) else a, (inputs, keywords))

    def forward() -> Any:
        with torch.autocast("cpu", dtypes[autocast]) if autocast else nullcontext():
            return _scalar(torch, torch.func.functional_call(module, state, *arguments), loss)

    with _recording(torch, module, state, recorder, attention) as (dispatch, functions):
        hooks = torch.autograd.graph.saved_tensors_hooks(recorder.save, lambda t: t)
        try:
            with fake, dispatch, functions, hooks, _backend(attention):
                scalar = forward()
            recorder.is_backward = True
            with fake, dispatch:
                scalar.backward()
        except (RuntimeError, NotImplementedError) as error:
            raise _explained(error, recorder) from error
    layers = recorder.layers()
    flops = sum(k.n_flops for layer in layers for k in (*layer.forward, *layer.backward) if hasattr(k, "n_flops"))
    first = next((t for t in (*inputs, *keywords.values()) if hasattr(t, "shape") and t.dim()), None)
    return Model(
        name=name or type(module).__name__,
        layers=layers,
        n_parameters=sum(state[key].numel() for key in names.values()),
        model_flops_per_sequence=flops / (first.shape[0] if first is not None else 1),
        tied_embedding=len(list(module.named_parameters(remove_duplicate=False))) > len(names),
        notes=("recorded from a torch module",),
    )


@contextmanager
def _recording(
    torch: Any, module: Any, state: dict[str, Any], recorder: Recorder, attention: str
) -> Iterator[tuple[Any, Any]]:
    """Set the hooks of modules and parameters, and take them away again."""
    dispatch, functions, mark = _modes(torch, recorder, attention)
    handles = _hooks(torch, module, recorder, mark)
    for tensor in state.values():
        if tensor.requires_grad:
            handles.append(tensor.register_post_accumulate_grad_hook(lambda p: _release(recorder, p)))
    try:
        yield dispatch, functions
    finally:
        for handle in handles:
            handle.remove()


def _release(recorder: Recorder, parameter: Any) -> None:
    """Leave a parameter's gradient to whoever counts gradients."""
    if parameter.grad is not None:
        recorder.ignore(parameter.grad)


def _hooks(torch: Any, module: Any, recorder: Recorder, mark: Any) -> list[Any]:
    """Open a segment around every block and keep the path of the running submodule for messages."""
    tree_map = load_torch("utils._pytree").tree_map

    def marked(tree: Any, segment: Segment) -> Any:
        def one(leaf: Any) -> Any:
            is_active = isinstance(leaf, torch.Tensor) and leaf.requires_grad
            return mark.apply(leaf, segment) if is_active else leaf

        return tree_map(one, tree)

    blocks = _blocks(torch, module)
    handles: list[Any] = []
    for path, child in module.named_modules():
        handles.append(child.register_forward_pre_hook(lambda m, a, p=path: setattr(recorder, "path", p)))
    for child, name in blocks.items():

        def enter(m: Any, args: Any, kwargs: Any, name: str = name) -> Any:
            before = recorder.current
            entered = marked((args, kwargs), before)
            recorder.open(name)
            return entered

        def leave(m: Any, args: Any, output: Any, name: str = name) -> Any:
            segment = recorder.current
            segment.output_bytes = _n_bytes(torch, output)
            output = marked(output, segment)
            recorder.open(f"after {name}")
            return output

        handles.append(child.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(child.register_forward_hook(leave))
    return handles


def _n_bytes(torch: Any, output: Any) -> int:
    tree_leaves = load_torch("utils._pytree").tree_leaves

    first = next((leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)), None)
    return 0 if first is None else int(first.numel() * first.element_size())


def _scalar(torch: Any, output: Any, loss: Callable[[Any], Any] | None) -> Any:
    tree_leaves = load_torch("utils._pytree").tree_leaves

    if loss is not None:
        return loss(output)
    given = getattr(output, "loss", None)
    if given is not None:
        return given
    tensors = [t for t in tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not tensors:
        raise ConfigError("the module returns nothing that depends on its parameters", hint="pass loss=")
    return tensors[0] if tensors[0].dim() == 0 else tensors[0].float().mean()


def _explained(error: Exception, recorder: Recorder) -> ConfigError:
    text = str(error).splitlines()[0]
    place = f" in submodule '{recorder.path}'" if recorder.path else ""
    needs_data = any(word in str(error).lower() for word in ("item()", "local_scalar", "data-dependent", "meta tensor"))
    if needs_data:
        return ConfigError(
            f"control flow depends on data{place}: {text}",
            hint="record a variant whose forward does not read tensor values, or one branch of it",
        )
    return ConfigError(f"the module cannot run on tensors without data{place}: {text}")
