"""Which job a trace recorded: its model from the shapes of its operators, its plan from its groups, its cluster from its GPU.

What the trace does not tell is taken from the user: ``given`` settings win, and a model by name needs no shapes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from simulator.config.names import shipped_names
from simulator.dtypes import our_name
from simulator.errors import TraceError
from simulator.interop import load_model, open_topology
from simulator.interop.machines.hardware import device_of_driver
from simulator.models.recorded import RecordedModule
from simulator.models.spec import ModelSpec
from simulator.plan import ParallelPlan
from simulator.plan.frameworks import that_splits
from simulator.replay.changes_of_plan import PlanChange, PlannedJob
from simulator.topology import Topology, load_topology
from simulator.trace_io.trace_record import OperatorCall, Trace

#: what stands for a run on CPUs over gloo
_CPU_CLUSTER = "emulated-10g"
#: clusters that stand for a GPU where none is named
_TYPICAL = ("dgx", "hgx", "gb", "mi")
#: all-reduces up to this size carry losses and norms, not buckets of gradients: an assumption
_NO_BUCKET = 4096
#: how much larger than the smallest the largest bucket of one size is at most: an assumption
_EVEN = 4
#: what Megatron-LM calls the autograd functions of its parallel layers
_MEGATRON = re.compile(r"VocabParallelCrossEntropy|LinearWithGradAccumulation|TensorModelParallelRegion")
#: kernels of attention -> where their shapes have the heads
_ATTENTION = {"aten::scaled_dot_product_attention": 1, "flash_attn::_flash_attn_forward": 2, "aten::_softmax": 1}
_PRECISIONS = ("bf16", "fp16", "fp32")


def recorded_job(
    trace: Trace, *, given: Mapping[str, Any] | None = None, model: str | None = None, cluster: Topology | None = None
) -> PlannedJob:
    """Return the job of a trace.

    ``given`` are settings of the plan that ran, as far as the user knows them.
    """
    shapes = _Shapes(trace)
    settings = {**_layout(trace, shapes), **(given or {})}
    spec: ModelSpec | RecordedModule | None = None if model is None else load_model(model)
    tp, pp = int(settings.get("tp", 1)), int(settings.get("pp", 1))
    if spec is None:
        spec = shapes.spec(tp, pp)
    settings = {**(shapes.settings() if shapes.tells else {}), **settings}
    if layers := settings.pop("layers", None):
        spec = PlanChange(layers=int(layers)).spec(spec, 0)
    settings.setdefault("sequence_length", spec.max_positions)
    settings.setdefault("micro_batch", 1)
    world = trace.world_size
    dp = max(1, world // (tp * pp * int(settings.get("cp", 1))))
    n_micro_batches = settings.pop("micro_batches", None) or shapes.micro_batches or 1
    settings.setdefault("global_batch", n_micro_batches * int(settings["micro_batch"]) * dp)
    plan = as_run_here(ParallelPlan.of({"gpus": world, **settings}), trace, settings)
    topology = cluster or typical_cluster(trace)
    if topology.n_gpus < world:
        raise TraceError(
            f"the trace has {world} ranks, {topology.name} has {topology.n_gpus} GPUs", hint="--measured-on"
        )
    return PlannedJob(spec=spec, plan=plan.resolve(world), topology=topology.subset(world))


def as_run_here(plan: ParallelPlan, trace: Trace, given: Mapping[str, Any]) -> ParallelPlan:
    """Return a plan as the recorded kind of machine runs it: on processors ``fully_shard`` waits for what it has issued.

    References
    ----------
    PyTorch, ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``: only streams of a device run beside each other.
    """
    if _on_processors(trace) and plan.framework_spec.splits == "parameters" and "overlap" not in given:
        return replace(plan, overlap=False)
    return plan


def _on_processors(trace: Trace) -> bool:
    """Whether threads of the host computed."""
    return not any(rank.device or rank.has_launches for rank in trace.ranks) and any(
        rank.operator_calls or len(rank.host) for rank in trace.ranks
    )


def tells_model(trace: Trace) -> bool:
    """Whether shapes of the recorded operators identify the model."""
    return _Shapes(trace).tells


def typical_cluster(trace: Trace, n_gpus: int = 0) -> Topology:
    """Return a shipped cluster of the trace's GPUs, large enough for ``n_gpus`` or its ranks."""
    recorded = next((rank.device for rank in trace.ranks if rank.device), "")
    device = device_of_driver(recorded)
    size = n_gpus or trace.world_size
    if _on_processors(trace):
        return open_topology(_CPU_CLUSTER, size)
    typical = [name for name in shipped_names("clusters") if name.startswith(_TYPICAL)]
    fitting = (name for name in typical if device and load_topology(name).device(0).name == device)
    found = next(fitting, None)
    if found is not None:
        return open_topology(found, size)
    raise TraceError(
        f"the trace names {recorded or 'no GPU'}, of which no shipped cluster is made",
        hint="name it with --measured-on",
    )


def _layout(trace: Trace, shapes: _Shapes) -> dict[str, Any]:
    """Degrees and sharding, as the format states them or the collectives and shapes show them."""
    if trace.layout:
        return {key: size for key, size in trace.layout.items() if key in ("dp", "tp", "pp") and size}
    kinds = Counter(call.collective for rank in trace.ranks for call in rank.calls)
    messages = kinds["send"] + kinds["recv"]
    if any(_MEGATRON.search(name) for rank in trace.ranks for name in rank.names):
        return {"framework": "megatron", **({"tp": shapes.tensor_parallel} if shapes.tells else {})}
    if messages and not (kinds["reduce_scatter"] or kinds["all_gather"]):
        tp = shapes.tensor_parallel if shapes.tells else 1
        return {
            "pp": _stages(trace),
            **({"framework": that_splits("tensors"), "tp": tp} if tp > 1 else {"framework": that_splits("layers")}),
        }
    if kinds["all_gather"] and kinds["reduce_scatter"] and not messages:
        return {"sharding": "zero3", "framework": that_splits("parameters")}
    if not kinds:
        return {"framework": that_splits("batch")}
    if not kinds["all_reduce"] or messages:
        return {}
    if shapes.tells and shapes.tensor_parallel > 1:
        return {"framework": that_splits("tensors"), "tp": shapes.tensor_parallel}
    found: dict[str, Any] = {"framework": that_splits("batch")}
    calls = (call for rank in trace.ranks for call in rank.calls if call.collective == "all_reduce")
    sizes = sorted(call.n_bytes for call in calls if call.n_bytes > _NO_BUCKET)
    # buckets of one size were asked for; DDP's own are a small one and large ones
    is_even = bool(sizes) and sizes[0] != sizes[-1] < _EVEN * sizes[0]
    return {**found, "bucket_bytes": sizes[0]} if is_even else found


def _stages(trace: Trace) -> int:
    """Return how many ranks messages lead to from a recorded one: those of its pipeline."""
    peers = {rank.rank: {call.peer for call in rank.calls if call.peer >= 0} for rank in trace.ranks}
    found, new = set[int](), {trace.ranks[0].rank}
    while new:
        found |= new
        new = set().union(*(peers.get(rank, set()) for rank in new)) - found
    return len(found) if len(found) > 1 else trace.world_size


class _Shapes:
    """What the shapes of operators tell."""

    def __init__(self, trace: Trace) -> None:
        self.n_ranks = len(trace.ranks)
        self.n_steps = max(1, max((len(rank.steps) for rank in trace.ranks), default=1))
        self.calls: Counter[OperatorCall] = Counter()
        for rank in trace.ranks:
            self.calls.update(rank.operator_calls)
        weights = ((self._weight(call), call, n) for call, n in self.calls.items())
        every = [(weight, call, n) for weight, call, n in weights if weight is not None]
        # layers that are no modules of torch's multiply themselves, which torch's do within
        self.weights = [one for one in every if one[1].name != "aten::matmul"] or every
        embeddings = [(call, n) for call, n in self._named("aten::embedding") if len(call.shapes) > 1]
        # positions have one index per place of a sequence, tokens one per sequence and place; logits are of all tokens
        logits = {weight[0] for weight, _, _ in self.weights}
        self.token = max(
            embeddings,
            key=lambda item: (len(item[0].shapes[1]), item[0].shapes[0][0] in logits, item[0].shapes[0][0]),
            default=None,
        )
        of_width = [c for c, _ in embeddings if self.token and c.shapes[0][1] == self.token[0].shapes[0][1]]
        self.positions = next((c.shapes[0][0] for c in of_width if self.token and c != self.token[0]), 0)
        with_tokens = [
            n for rank in trace.ranks for call, n in rank.operator_calls.items() if self.token and call == self.token[0]
        ]
        self.micro_batches = max(with_tokens, default=0) // self.n_steps

    @property
    def tensor_parallel(self) -> int:
        """How many ranks share the heads, if those of all of them are as wide as the model."""
        attention = self._attention()
        assert self.token is not None and attention is not None
        heads, _, head_dim, _ = attention
        return max(1, self.token[0].shapes[0][1] // (heads * head_dim)) if head_dim else 1

    @property
    def tells(self) -> bool:
        """Whether there are tokens, projections and attention."""
        return self.token is not None and bool(self.weights) and self._attention() is not None

    def _named(self, name: str) -> list[tuple[OperatorCall, int]]:
        return [(call, n) for call, n in self.calls.items() if call.name == name]

    @staticmethod
    def _weight(call: OperatorCall) -> tuple[int, int] | None:
        """(rows out, columns in) of a projection's weight."""
        if call.name == "aten::linear" and len(call.shapes) > 1 and len(call.shapes[1]) == 2:
            return call.shapes[1][0], call.shapes[1][1]
        if call.name == "aten::addmm" and len(call.shapes) > 2 and len(call.shapes[2]) == 2:
            return call.shapes[2][1], call.shapes[2][0]
        if call.name == "aten::matmul" and [len(shape) for shape in call.shapes[:2]] == [3, 2]:
            return call.shapes[1][1], call.shapes[1][0]
        return None

    def _attention(self) -> tuple[int, int, int, int] | None:
        """(heads, heads of keys, size of a head, calls): 0 for what eager attention does not show."""
        for name, heads in _ATTENTION.items():
            found = [(c, n) for c, n in self._named(name) if len(c.shapes[0]) == 4]
            if not found:
                continue
            shapes, n_calls = max(found, key=lambda item: item[1])[0].shapes, sum(n for _, n in found)
            if name != "aten::_softmax":
                return shapes[0][heads], shapes[1][heads], shapes[0][3], n_calls
            products = (c.shapes[1] for c, _ in self._named("aten::baddbmm") if len(c.shapes) > 1)
            return shapes[0][heads], 0, next((shape[2] for shape in products if len(shape) == 3), 0), n_calls
        return None

    def settings(self) -> dict[str, Any]:
        """Batch, length and precision."""
        assert self.token is not None
        batch, length = (
            self.token[0].shapes[1][-2:] if len(self.token[0].shapes[1]) > 1 else (1, self.token[0].shapes[1][0])
        )
        types = Counter({call.dtype: 0 for _, call, _ in self.weights})
        for _, call, n in self.weights:
            types[call.dtype] += n
        found: dict[str, Any] = {"micro_batch": batch, "sequence_length": length}
        precision = our_name(types.most_common(1)[0][0])
        wide = our_name(self.token[0].dtype) == "fp32" and precision in ("bf16", "fp16")
        if precision in _PRECISIONS:
            found["precision"] = f"amp_{precision}" if wide else precision
        if not self._named("aten::scaled_dot_product_attention") and not self._named("flash_attn::_flash_attn_forward"):
            found["attention"] = "eager"
        return found

    def spec(self, tp: int, pp: int) -> ModelSpec:
        """Return the model: a decoder of the kind that the operators show."""
        attention = self._attention()
        if self.token is None or attention is None or not self.weights:
            raise TraceError(
                "the trace does not identify the model: no shapes of embeddings, projections and attention",
                hint="name it with --model NAME or its config.json, and what else ran with --recorded, like --recorded tp=2 "
                "--recorded micro_batch=4 --recorded sequence_length=2048; or give the execution traces of the ranks beside "
                "the profiles, or record with record_shapes=True",
            )
        vocab, hidden = self.token[0].shapes[0]
        heads, kv_heads, head_dim, n_calls = attention
        n_forwards = self.micro_batches * self.n_steps * self.n_ranks
        down = [call.shapes[0][-1] for name in ("aten::gelu", "aten::silu") for call, _ in self._named(name)] or [
            columns for (rows, columns), _, _ in self.weights if rows == hidden and columns * tp not in (hidden, vocab)
        ]
        # distributed tensors show their whole shape to some operators and a rank's share to others
        down = [columns for columns in down if tp == 1 or columns % tp or columns // tp not in down]
        if self.weights[0][1].name == "aten::matmul":  # Megatron-LM's layers divide the words, too
            vocab *= tp
        gated = bool(self._named("aten::silu"))
        length = self.settings()["sequence_length"]
        n_layers = max(1, round(n_calls * pp / max(n_forwards, 1)))
        return ModelSpec(
            name="recorded", architecture="llama" if gated else "gpt", layers=n_layers, hidden=hidden, heads=heads * tp,
            vocab=vocab, max_positions=self.positions or length, kv_heads=kv_heads * tp, head_dim=head_dim,
            ffn_hidden=max(down, default=0) * tp, gated_mlp=gated, activation="silu" if gated else "gelu",
            norm="rms_norm" if gated else "layer_norm", norm_bias=not gated, attention_bias=not gated,
            attention_output_bias=not gated, mlp_bias=not gated, positions="learned" if self.positions else "rotary",
            tied=not gated,
        )  # fmt: skip
