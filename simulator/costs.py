"""The cost models behind the engine's questions: kernels, host issue, collectives as flows, interference."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from simulator.analysis.link_use import LinkTraffic, sent_bytes
from simulator.collectives import plan_collective, plan_transfer
from simulator.collectives.shape import shape_of
from simulator.engine import Interference
from simulator.faults import slowest_of
from simulator.identity import ByIdentity
from simulator.kernels import KERNEL_MODELS
from simulator.kernels.dispatcher import DispatcherKernels
from simulator.kernels.host import (
    COPY_LATENCY_S,
    SYNCHRONIZE_S,
    copy_bytes_per_s,
    cpu_adam_bytes_per_s,
    cpu_adam_s,
    issue_s,
)
from simulator.models.layer import AttentionShape, GemmShape, PointwiseShape, ScanShape
from simulator.network.base import Flow
from simulator.parallel.classes import placement
from simulator.parallel.mesh import CROSSING, Groups, Mesh
from simulator.program.op import COMMUNICATIONS, Collective, HostWork, Kernel, Op, Routed, Transfer
from simulator.program.program import Block
from simulator.scenario import Scenario
from simulator.timeline import SheetSpans, Span, Timeline
from simulator.topology.graph import Topology
from simulator.topology.link import LINK_KINDS, NVLINK_KINDS
from simulator.units import to_ps

#: kernels that modules written in Python launch, where the framework's are
_OF_MODULES = (GemmShape, AttentionShape, ScanShape)
#: axes whose collectives run over buffers that Megatron registers with NCCL
_REGISTERED = frozenset(("dp", "shard", "replicate", "expert_dp", "expert_shard", "expert_replicate"))
#: kinds of links between the GPUs of a node, as the topology's arrays have them
_NVLINKS = [LINK_KINDS.index(kind) for kind in NVLINK_KINDS]


class ModelCosts:
    """Implements :class:`simulator.engine.Costs` for a scenario on a topology."""

    def __init__(self, topology: Topology, scenario: Scenario) -> None:
        self.topology = topology
        self.scenario = scenario
        plan = scenario.plan
        self.kernels = KERNEL_MODELS[scenario.kernels](cuda=plan.cuda or "", is_alone=plan.gpus == 1)
        self.framework = scenario.plan.framework_spec
        chosen = plan.attention_kernel or ""
        self.flash = chosen if chosen.startswith("flash") else self.framework.flash
        self._is_quantised = scenario.plan.precision_spec.quantisation is not None
        self.slowdown = slowest_of(scenario.plan.gpus)
        self._mesh = Mesh(scenario.plan, topology.gpus_per_node)
        self._issue_ps: dict[tuple[str, str, str, int, bool], int] = {}
        self._flows: ByIdentity[Collective | Transfer, Flow] = ByIdentity()
        self._interferences: ByIdentity[Collective, Interference] = ByIdentity()
        self._uses_of_loads: dict[tuple[int, int], float] = {}
        self._contents = Contents()

    def kind(self, rank: int) -> Hashable:
        """Ranks on equal devices, equally healthy, share kernel and issue times."""
        return self.topology.device(rank).name, self.scenario.faults.slowdown(rank)

    def kernel_ps(self, kernel: Kernel, rank: int) -> int:
        """Device time of a kernel: measured where given, otherwise the kernel model's, longer on a slow GPU."""
        slowdown = self.scenario.faults.slowdown(rank)
        if kernel.duration_s is not None:
            return to_ps(slowdown * kernel.duration_s)
        shape = kernel.shape
        assert shape is not None
        if shape.name == "cpu_adam" and isinstance(shape, PointwiseShape):
            n_ranks = min(self.topology.gpus_per_host, self.scenario.plan.gpus)
            node = self.topology.node
            rate = cpu_adam_bytes_per_s(node.sockets_of(n_ranks), node.socket_memory_bytes_per_s)
            return to_ps(cpu_adam_s(self.topology.device(rank), shape.n_elements, n_ranks, rate))
        if isinstance(shape, AttentionShape) and shape.name == "flash_attention" and shape.dtype != "fp32":
            # of fp32 PyTorch and xFormers take the memory-efficient kernel: FlashAttention of any generation computes in 16 bits
            shape = replace(shape, name=self.flash)
        found = to_ps(slowdown * self.slowdown * self.kernels.duration_s(shape, self.topology.device(rank)))
        return found + (self._blocked_ps(kernel, rank) if self.scenario.plan.launch_blocking else 0)

    def _blocked_ps(self, kernel: Kernel, rank: int) -> int:
        """Time for which the device is idle before a kernel whose host has waited for the one before it."""
        waited_s = float(self.topology.device(rank).host.get("synchronize_s", SYNCHRONIZE_S))
        return self.issue_ps(kernel, rank) + to_ps(waited_s)

    def issue_ps(self, op: Op, rank: int) -> int:
        """Host time to issue one operation in the framework's mode."""
        if isinstance(op, HostWork):
            return 0
        shape = op.shape if isinstance(op, Kernel) else None
        mode = "graphs" if shape is not None and shape.is_captured else self.framework.host
        n_pieces = shape.n_pieces if shape is not None else 1
        is_call = (
            self.framework.calls_modules
            and isinstance(shape, _OF_MODULES)
            and shape.kernel_pass != "wgrad"  # a launch more of the same call
            and op.phase != "optimizer"  # Muon's products are plain calls
        )
        key = (op.phase, self.topology.device(rank).name, mode, n_pieces, is_call)
        if key not in self._issue_ps:
            seconds = issue_s(
                self.topology.device(rank),
                mode,
                op.phase,
                n_pieces=n_pieces,
                is_call=is_call,
                is_quantised=self._is_quantised,
                is_early=self.scenario.plan.release_facts.has_early_modules,
            )
            self._issue_ps[key] = to_ps(seconds)
        return self._issue_ps[key] + (to_ps(op.host_s) if isinstance(op, Collective) else 0)

    def flow(self, op: Collective | Transfer) -> Flow:
        """Load of a communication on the links."""
        return self._flows.of(op, self._flow)

    def forget_flows(self) -> None:
        """Let go what is known of operations that are not asked for again."""
        self._flows.clear()

    def _flow(self, op: Collective | Transfer) -> Flow:
        if isinstance(op, Transfer):
            return plan_transfer(op.n_bytes, op.pairs, self.topology, transport=self.scenario.transport or None)
        if op.axis == "host":
            device, to_host = self.topology.device(op.groups[0][0]), op.collective == "copy_to_host"
            copy_s = COPY_LATENCY_S + op.n_bytes / copy_bytes_per_s(device, to_host=to_host)
            return Flow(latency_s=copy_s, n_bytes=0.0, label="copy")
        flow = self._planned(op, op.groups)
        return flow if op.routed is None else self._dispatched(op, op.routed, flow)

    def groups_in(self, found: Iterable[tuple[Flow, Sequence[float]]]) -> Iterator[tuple[Groups, Sequence[float]]]:
        """Yield the groups, or the pairs, that flows of this program stand for, and what each of them has."""
        # of two equal flows each is its own operation's
        ops = {id(flow): op for op, flow in self._flows.items()}
        for flow, each in found:
            op = ops.get(id(flow))
            if isinstance(op, Transfer):
                yield tuple(pair for pair in op.pairs if pair[0] != pair[1]), each
            elif op is not None:
                yield op.groups, each

    def _dispatched(self, op: Collective, routed: Routed, flow: Flow) -> Flow:
        """Bound an exchange by the kernels of its dispatcher: HybridEP's keep the links busy with the SMs that they take."""
        plan, dispatcher = self.scenario.plan, DispatcherKernels.of(self.topology.device(op.groups[0][0]))
        rate = inf
        kernel = "dispatch" if (op.name == "dispatch") == (op.phase != "backward") else "combine"
        if plan.dispatcher.copies_with_sms and op.axis == "ep:local":
            nvlink = shape_of(op.groups[0], self.topology).nvlink_bytes_per_s
            rate = flow.n_bytes / dispatcher.copying_s(kernel, routed, plan.dispatcher_sms, nvlink)
        return _bounded(flow, dispatcher.launch_s(kernel), rate)

    def _planned(self, op: Collective, groups: Groups) -> Flow:
        scenario = self.scenario
        return plan_collective(
            op.collective, op.n_bytes, groups, self.topology, transport=scenario.transport or None,
            algorithm=scenario.algorithm or None, protocol=scenario.protocol or None,
        )  # fmt: skip

    def interference(self, op: Collective) -> Interference:
        """Mutual slowdown, worked out once per operation."""
        return self._interferences.of(op, self._interference)

    def _interference(self, op: Collective) -> Interference:
        """Return mutual slowdown from the device's measured contention.

        A collective over nodes takes from compute what its traffic in the node does: all that one within the node takes
        where the network keeps NVLink busy, little where NVLink waits for a slow network.
        """
        constants = self.topology.device(op.groups[0][0]).interference
        if op.axis == "host":
            return Interference(float(constants.get("copy", {}).get("compute", 1.0)))
        inside, across = constants.get("nvlink", {}), constants.get("network", {})
        if op.routed is not None:
            n_sms = self.topology.device(op.groups[0][0]).n_sms
            left = max(
                1.0 - self.scenario.plan.dispatcher_sms / n_sms, 1.0 / n_sms
            )  # kernels beside one of all SMs crawl
            return Interference(min(left, float(inside.get("compute", 1.0))), float(inside.get("communication", 1.0)))
        if self.scenario.plan.nccl_user_buffers and op.axis in _REGISTERED:
            left = 1.0 - self._registered_sms(op) / self.topology.device(op.groups[0][0]).n_sms
            inside, across = ({**one, "compute": max(float(one.get("compute", 1.0)), left)} for one in (inside, across))
        crosses = self.topology.node_of(op.groups[0][0]) != self.topology.node_of(op.groups[0][-1])
        beside, kept = (
            float(inside.get("compute", 1.0)),
            float((across if crosses else inside).get("communication", 1.0)),
        )
        if not crosses:
            return Interference(beside, kept)
        alone = float(across.get("compute", 1.0))
        return Interference(alone + min(0.0, beside - alone) * self._nvlink_use(op), kept)

    def _registered_sms(self, op: Collective) -> int:
        """SMs of a collective over registered buffers: within NVLink, over it and a network without SHARP, over a network alone.

        References
        ----------
        NVIDIA/Megatron-LM, ``core/distributed/distributed_data_parallel_config.py``, ``nccl_ub``: its table of expected SMs.
        """
        nodes = [self.topology.node_of(rank) for rank in op.groups[0]]
        is_gather = op.collective == "all_gather"
        if len(set(nodes)) == 1:
            return 4 if is_gather else 5
        return 16 if len(set(nodes)) < len(nodes) else 1 if is_gather else 4

    def _nvlink_use(self, op: Collective) -> float:
        """Utilisation of the busiest NVLink while all groups of its axis that lie alike run the collective alone, 0 to 1.

        It does not depend on how many of the groups the operation stands for.
        """
        is_whole = len(op.groups) * len(op.groups[0]) * self.scenario.plan.pp == self.scenario.plan.gpus
        if is_whole and op.axis not in CROSSING:
            flow = self.flow(op)
        else:
            per_node = self.topology.gpus_per_node
            where = placement(op.groups[0], per_node)
            groups = self._mesh.groups(op.axis, self._mesh.stage_of(op.groups[0][0]))
            flow = self._planned(op, tuple(group for group in groups if placement(group, per_node) == where))
        loads_of = self._contents.number(flow.links), self._contents.number(flow.weights)
        if loads_of not in self._uses_of_loads:
            arrays = self.topology.arrays
            links = np.array(flow.links, dtype=np.intp)
            loads = np.array(flow.weights) / arrays.bandwidth_bytes_per_s[links]
            inside = loads[np.isin(arrays.kind[links], _NVLINKS)].max(initial=0.0)
            slowest = loads.max(initial=0.0)
            self._uses_of_loads[loads_of] = float(inside / slowest) if slowest else 0.0
        return self._uses_of_loads[loads_of]

    def link_use(self, timeline: Timeline) -> tuple[dict[int, float], tuple[LinkTraffic, ...]]:
        """Seconds that every link would need for its bytes at its own rate, over the whole timeline, and what sends them.

        Every participant has a span of each operation, and operations of its own where all ranks are simulated: what
        the same groups load alike is counted once, as often as one participant takes part.
        """
        moved: dict[tuple[int, ...], dict[int, float]] = defaultdict(lambda: defaultdict(float))
        flows: dict[tuple[int, ...], Flow] = {}
        parts: dict[tuple[int, ...], dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
        inner: ByIdentity[Sequence[Span], list[Collective | Transfer]] = ByIdentity()
        counts: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        seen: dict[int, Collective | Transfer] = {}
        n_times: dict[tuple[int, int, int], int] = defaultdict(int)
        alike: dict[tuple[int, int, int], Span] = {}
        for spans, repeats in ((timeline.simulated, False), (timeline.period, True)):
            # by identity: millions of spans share few operations, which the timeline holds
            whats = [(id(span.op), id(span.inner), span.rank) for span in spans]
            alike.update(zip(whats, spans, strict=True))
            for what, n in Counter(whats).items():
                n_times[what] += n * timeline.n_more(what[2]) if repeats else n
        own: dict[tuple[int, int], Collective | Transfer] = {}
        for what, span in alike.items():
            for one in _communications(span, inner):
                here = id(one), self._mesh.stage_of(span.rank)
                if here not in own:
                    own[here] = self._in_stage_of(span.rank, one)
                op = own[here]
                counts[id(op)][span.rank] += n_times[what]
                seen[id(op)] = op
        for key, op in seen.items():
            flow = self.flow(op)
            ranks = op.pairs if isinstance(op, Transfer) else op.groups
            place = tuple(self._contents.number(each) for each in (ranks, flow.links, flow.weights))
            flows[place] = flow
            kind = "send_recv" if isinstance(op, Transfer) else op.collective, op.axis
            for rank, times in counts[key].items():
                moved[place][rank] += times * flow.n_bytes
                parts[place][kind] += times * flow.n_bytes
        arrays = self.topology.arrays
        loads = np.zeros(len(arrays.bandwidth_bytes_per_s))
        sent: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for place, flow in flows.items():
            links = np.array(flow.links, dtype=np.intp)
            n_bytes = max(moved[place].values()) * np.array(flow.weights)
            loads[links] += n_bytes
            whole = sum(parts[place].values())
            for kind, part in parts[place].items():
                for i, value in enumerate(sent_bytes(arrays.kind[links], n_bytes)):
                    sent[kind][i] += value * part / whole if whole else 0.0
        used = np.flatnonzero(loads)
        busy_s = loads[used] / arrays.bandwidth_bytes_per_s[used]
        traffic = [LinkTraffic(*kind, *both) for kind, both in sent.items() if any(both)]
        traffic.sort(key=lambda row: (-row.nic_bytes, -row.nvlink_bytes, row.axis, row.collective))
        return dict(zip(used.tolist(), busy_s.tolist(), strict=True)), tuple(traffic)

    def _in_stage_of(self, rank: int, op: Collective | Transfer) -> Collective | Transfer:
        """Return an operation with the groups of a rank's own stage: equal passes of all stages are those of one of them."""
        if isinstance(op, Transfer) or op.axis in CROSSING:
            return op
        stages = (self._mesh.stage_of(one) for one in (rank, op.groups[0][0]))
        here, there = (self._mesh.stage_shift(stage) for stage in stages)
        if here == there:
            return op
        return replace(op, groups=tuple(tuple(one + here - there for one in group) for group in op.groups))


def _bounded(flow: Flow, latency_s: float, rate_bytes_per_s: float) -> Flow:
    """Return a flow, and its parts where it is taken apart, with another latency and a bound on its rate."""
    whole_apart = flow.apart

    def apart(at_most: int | None) -> list[Flow]:
        assert whole_apart is not None
        return [_bounded(part, latency_s, rate_bytes_per_s) for part in whole_apart(at_most)]

    rate = min(flow.rate_cap_bytes_per_s, rate_bytes_per_s)
    return replace(
        flow,
        latency_s=latency_s,
        rate_cap_bytes_per_s=rate,
        alone_bytes_per_s=0.0,
        apart=apart if whole_apart else None,
    )


class Contents:
    """Numbers tuples by what they hold, and compares each object once: groups of many ranks are long."""

    def __init__(self) -> None:
        self._of_objects: ByIdentity[Hashable, int] = ByIdentity()
        self._of_contents: dict[Hashable, int] = {}

    def number(self, thing: Hashable) -> int:
        """Return a number that equal tuples share."""
        return self._of_objects.of(thing, lambda one: self._of_contents.setdefault(one, len(self._of_contents)))


def _communications(
    span: Span, known: ByIdentity[Sequence[Span], list[Collective | Transfer]]
) -> list[Collective | Transfer]:
    def inside(spans: Sequence[Span]) -> list[Collective | Transfer]:
        if isinstance(spans, SheetSpans):
            return [task.op for task in spans.sheet.meetings if isinstance(task.op, COMMUNICATIONS)]
        return [op for child in spans for op in _communications(child, known)]

    if isinstance(span.op, COMMUNICATIONS):
        return [span.op]
    return known.of(span.inner, inside) if isinstance(span.op, Block) else []
