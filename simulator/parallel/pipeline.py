"""Pipeline parallelism: one stage's row of a schedule table becomes passes, receives and sends."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from simulator.models.layer import Layer
from simulator.parallel.classes import Passes
from simulator.parallel.data import DataParallel
from simulator.parallel.mesh import Communicators
from simulator.parallel.stage import StageLayers, Steps, Tail, finish, take_turns
from simulator.parallel.vocabulary import AXIS, meeting_collectives
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, HostWork, Phase, Transfer
from simulator.program.program import COMPUTE, HOST, Occurrence, TaskList
from simulator.schedules import Action, Kind, Placement, blocks_host, sends_block

#: the host waits for what it received
_SYNCHRONISE = HostWork(name="synchronise", duration_s=0.0)


class Route(NamedTuple):
    """The virtual stage of a pass, what it receives from and sends to, None at the ends of a chain, and their stages."""

    virtual: int
    source: int | None
    target: int | None
    source_stage: int | None
    target_stage: int | None


@dataclass(slots=True, kw_only=True)
class StageLowering:
    """Writes down what one stage does in one step."""

    stage: int
    plan: ParallelPlan
    layers: StageLayers  #: The stage's chunks.
    data: DataParallel
    communicators: Communicators
    placement: Placement  #: Which stage holds which virtual stage.
    boundary_bytes: int  #: Bytes of the tensor that one rank sends to the next stage.
    whole_bytes: int = 0  #: Bytes of that tensor whole.
    #: Bytes gathered inside the tensor-parallel group on arrival (scatter/gather optimisation), 0 for none.
    gather_bytes: int = 0
    passes: Passes = "closed"  #: When all ranks that meet inside a pass are in step, so that it may be a block.
    #: Before which actions of the row receives are posted, where neighbours wait for what they send; else each action posts its own.
    arrivals: Mapping[int, tuple[Action, ...]] = field(default_factory=dict)
    joined: int | None = None  #: What the classes share that run a pass together, each its own block, if they do.
    tasks: TaskList = field(default_factory=TaskList)
    #: Once lowered: the first task of every action of the row, and the task behind the last.
    marks: list[int] = field(default_factory=list)
    _channels: dict[tuple[int, int, Phase, bool], tuple[Transfer, str, int]] = field(default_factory=dict)
    _routes: dict[tuple[Kind, int], Route] = field(default_factory=dict)
    _meetings: dict[str, Collective] = field(default_factory=dict)
    _gathers: dict[Phase, Collective] = field(default_factory=dict)
    _ends: dict[tuple[str, int, int], tuple[int, ...]] = field(default_factory=dict)
    _posted: dict[Action, int] = field(default_factory=dict)
    _sent: tuple[int, ...] = ()
    _last: tuple[int, ...] = ()
    _is_blocking: bool = False
    _blocks_host: bool = False

    def __post_init__(self) -> None:
        self._is_blocking, self._blocks_host = sends_block(self.plan), blocks_host(self.plan)

    def lower(self, actions: Sequence[Action]) -> tuple[int, ...]:
        """Append the whole row and return what the optimizer must wait for."""
        self.data.start_step(self.tasks)
        last_backward = {a.chunk: a for a in actions if a.kind not in ("F", "I")}
        lasts = set(last_backward.values())
        at_once = self.plan.drains_every or self.plan.n_micro_batches
        until_drained = [action.kind for action in actions if action.micro_batch < at_once]
        all_ahead = "F" not in until_drained[until_drained.count("F") :]
        remaining = iter(zip(actions, (*actions[1:], None), strict=True))
        for action, following in remaining:
            self.marks.append(len(self.tasks.tasks))
            self._post(len(self.marks) - 1)
            if action.kind == "V":
                self._meet(action, is_last=action in lasts)
            elif following is not None and action.is_paired:
                self._pair(action, following, lasts)
                self.marks.append(self.marks[-1])
                next(remaining)
            elif following is not None and not all_ahead and self._shares_exchange(action, following):
                self._in_one_exchange(action, following, lasts)
                self.marks.append(self.marks[-1])
                next(remaining)
            else:
                self._run(action, self._receive(action), is_last=action in lasts)
                self._send(action)
        self.marks.append(len(self.tasks.tasks))
        return self.data.finish_backward(self.tasks, self._last + self._sent)

    def _post(self, index: int) -> None:
        """Post the receives of what neighbours send before an action: they wait until it is received, whatever it is for."""
        for action in self.arrivals.get(index, ()):
            route = self._route(action)
            assert route.source is not None
            self._posted[action] = self._transfer(action, route.source, route.virtual, sends=False)

    def _shares_exchange(self, action: Action, following: Action) -> bool:
        """Whether a forward and the backward behind it send and receive at once, and wait for all of it.

        Stages that run all forwards ahead have no such pairs.

        References
        ----------
        NVIDIA/Megatron-LM, ``core/pipeline_parallel/schedules.py``, ``forward_backward_pipelining_with_interleaving`` without
        ``overlap_p2p_comm``: ``send_forward_backward_recv_forward_backward`` between one pair and the next.
        """
        return self._blocks_host and self.placement.n_chunks > 1 and (action.kind, following.kind) == ("F", "B")

    def _in_one_exchange(self, forward: Action, backward: Action, lasts: Collection[Action]) -> None:
        """Receive for both passes, run them, and send of both: who waited for one alone would wait for a rank that waits for it."""
        activation, gradient = (self._receive(action, waits=False) for action in (forward, backward))
        if activation or gradient:
            self.tasks.add(_SYNCHRONISE, HOST, activation + gradient)
        self._run(forward, activation + gradient, is_last=False)
        self._run(backward, gradient, is_last=backward in lasts)
        self._send(forward)
        self._send(backward)

    def _run(self, action: Action, received: tuple[int, ...], *, is_last: bool) -> None:
        """Run a pass behind what it received and all that was sent before."""
        after = received + self._take_sent()
        gathers = self.gather_bytes if self._arrives(action) else 0
        if self._is_quiet(action, is_last=is_last):
            block = self.layers.block(action.chunk, action.kind, gathers)
            self._last = (self.tasks.add(block, COMPUTE, after, None, action.micro_batch),)
        elif self.joined is not None and self.data.is_quiet(action.kind, action.micro_batch, is_last=is_last):
            block = self.layers.joint_block(action.chunk, action.kind, gathers)
            key = ("pass", self.joined, action.kind, action.chunk, action.micro_batch)
            self._last = (self.tasks.add(block, COMPUTE, after, key, action.micro_batch),)
        else:
            after += (self._gather(action, after),) if gathers else ()
            self._last = finish(self._steps(action, after, is_last=is_last))
        self._ends[action.kind, action.chunk, action.micro_batch] = self._last

    def _pair(self, forward: Action, backward: Action, lasts: Collection[Action]) -> None:
        """Run a forward and a backward in turns."""
        is_last = backward in lasts
        after = (self._receive_whole(forward), self._receive_whole(backward))
        sent = self._take_sent()
        if self._is_quiet(forward, is_last=False) and self._is_quiet(backward, is_last=is_last):
            both, tail = self.layers.paired_blocks(forward.chunk, backward.chunk)
            index = self.tasks.add(both, COMPUTE, after[0] + after[1] + sent, None, forward.micro_batch)
            ends: tuple[tuple[int, ...], tuple[int, ...]] = ((index,), (index,))
        else:
            start = len(self.tasks.tasks)
            ends = take_turns(
                self._steps(backward, after[0] + after[1] + sent, is_last=is_last),
                self._steps(forward, after[0] + sent, is_last=False),
            )[::-1]
            is_alone = self.data.is_quiet("B", backward.micro_batch, is_last=is_last)
            tail = self.layers.take_tail(self.tasks, start) if is_alone else Tail()
        self._end(forward, ends[0])
        if tail.gradient:
            ends = ends[0], (self.tasks.add(tail.gradient, COMPUTE, ends[1], None, backward.micro_batch),)
        self._end(backward, ends[1])
        self._last = ends[0] + ends[1]
        if tail.weights:
            self._last += (self.tasks.add(tail.weights, COMPUTE, (), None, backward.micro_batch),)

    def _end(self, action: Action, end: tuple[int, ...]) -> None:
        """Send the output of a pass that has ended."""
        self._last = self._ends[action.kind, action.chunk, action.micro_batch] = end
        self._send(action)

    def _is_quiet(self, action: Action, *, is_last: bool) -> bool:
        in_step = self.passes == "closed" or (
            self.passes == "closed until replicas meet" and not self.data.has_communicated
        )
        return in_step and self.data.is_quiet(action.kind, action.micro_batch, is_last=is_last)

    def _meet(self, action: Action, *, is_last: bool) -> None:
        """Compute this stage's share of the vocabulary layers together with all other stages."""
        if not self._meetings:
            n_rows = self.plan.micro_batch * self.plan.sequence_length // self.plan.cp
            self._meetings = meeting_collectives(self.communicators, self.whole_bytes, n_rows)
        layers = self.layers.chunks[action.chunk]
        base = sum(len(chunk) for chunk in self.layers.chunks[: action.chunk])
        is_quiet = self.data.is_quiet("B", action.micro_batch, is_last=is_last)
        after = self._last if self.stage == self.placement.n_stages - 1 else ()
        for index in reversed(range(len(layers))):
            if not is_quiet:
                after += self.data.before_layer(self.tasks, base + index, "B", action.micro_batch)
            after = self._share(action, layers[index], after, is_head=index > 0)
            if not is_quiet:
                self.data.after_layer(self.tasks, base + index, "B", action.micro_batch, after, is_last=is_last)
        self._last = self._ends["V", action.chunk, action.micro_batch] = after

    def _share(self, action: Action, layer: Layer, after: tuple[int, ...], *, is_head: bool) -> tuple[int, ...]:
        """Run a share of the head between its three exchanges, or of the embedding and the sum of its output."""
        micro_batch = action.micro_batch
        if is_head:
            after = (self._exchange("output", micro_batch, after),)
        after = finish(self.layers.steps(self.tasks, layer, "F", after, micro_batch))
        after = (self._exchange("loss" if is_head else "embedding", micro_batch, after),)
        after = finish(self.layers.steps(self.tasks, layer, "B", after, micro_batch))
        return (self._exchange("gradient", micro_batch, after),) if is_head else after

    def _exchange(self, what: str, micro_batch: int, after: tuple[int, ...]) -> int:
        key = (self.communicators.key(AXIS, what), micro_batch)
        return self.tasks.add(self._meetings[what], AXIS, after, key, micro_batch)

    def _take_sent(self) -> tuple[int, ...]:
        sent, self._sent = self._sent, ()
        return sent if self._is_blocking else ()

    def _steps(self, action: Action, after: tuple[int, ...], *, is_last: bool) -> Steps:
        """Write a pass down layer by layer, with what data parallelism does before and after each."""
        kind: Kind = action.kind
        base = sum(len(chunk) for chunk in self.layers.chunks[: action.chunk])
        for index in self.layers.order(action.chunk, kind):
            needs = self.data.before_layer(self.tasks, base + index, kind, action.micro_batch)
            layer: Layer = self.layers.chunks[action.chunk][index]
            after = yield from self.layers.steps(self.tasks, layer, kind, after + needs, action.micro_batch)
            self.data.after_layer(self.tasks, base + index, kind, action.micro_batch, after, is_last=is_last)
        return after

    def _receive(self, action: Action, *, waits: bool = True) -> tuple[int, ...]:
        """Post the receive of an activation or gradient that another stage computes; a host that blocks waits for it."""
        if action.kind == "W":
            return ()
        route = self._route(action)
        if route.source is None:
            return self._ends.get(("V", self.placement.n_chunks, action.micro_batch), ()) if action.kind == "B" else ()
        if route.source_stage == self.stage:
            whose = self.placement.chunk(route.source), action.micro_batch
            kinds = "F" if action.kind == "F" else "IB"
            return next(self._ends[kind, *whose] for kind in kinds if (kind, *whose) in self._ends)
        if action in self._posted:
            return (self._posted.pop(action),)
        received = self._transfer(action, route.source, route.virtual, sends=False)
        if self._blocks_host and waits:
            self.tasks.add(_SYNCHRONISE, HOST, (received,))
        return (received,)

    def _receive_whole(self, action: Action) -> tuple[int, ...]:
        received = self._receive(action)
        return (self._gather(action, received),) if self.gather_bytes and self._arrives(action) else received

    def _arrives(self, action: Action) -> bool:
        """Whether the input of a pass comes from another stage."""
        return action.kind != "W" and self._route(action).source_stage not in (None, self.stage)

    def _route(self, action: Action) -> Route:
        """Return between which virtual stages a pass of this kind and chunk stands, whatever its micro-batch."""
        known = self._routes.get((action.kind, action.chunk))
        if known is None:
            place = self.placement
            virtual = place.virtual_stage(self.stage, action.chunk)
            ends = place.previous(virtual), place.following(virtual)
            source, target = ends if action.kind == "F" else ends[::-1]
            stages = [None if end is None else place.stage(end) for end in (source, target)]
            known = self._routes[action.kind, action.chunk] = Route(virtual, source, target, *stages)
        return known

    def _gather(self, action: Action, received: tuple[int, ...]) -> int:
        """Gather a tensor of which every tensor-parallel rank has received its share.

        It stands in the order of the stream that computes, as at the start of a block: behind the pass before.
        """
        phase: Phase = "forward" if action.kind == "F" else "backward"
        op = self._gathers.get(phase)
        if op is None:
            op = self._gathers[phase] = self.layers.gather(action.kind, self.gather_bytes)
        key = None
        if not self.communicators.folded:
            key = self.communicators.key(
                "tp", Occurrence(f"boundary {phase}", action.micro_batch, len(self.tasks.tasks))
            )
        tasks = self.tasks.tasks
        computed = next(((i,) for i in reversed(range(len(tasks))) if tasks[i].stream == COMPUTE), ())
        return self.tasks.add(op, "tp", received + computed, key, action.micro_batch)

    def _send(self, action: Action) -> None:
        if action.kind == "W":
            return
        route = self._route(action)
        if route.target is not None and route.target_stage != self.stage:
            self._sent += (self._transfer(action, route.virtual, route.target, sends=True),)

    def _transfer(self, action: Action, source: int, target: int, *, sends: bool) -> int:
        direction: Phase = "forward" if action.kind == "F" else "backward"
        channel = self._channels.get((source, target, direction, sends))
        if channel is None:
            channel = self._channels[source, target, direction, sends] = self._channel(
                source, target, direction, sends=sends
            )
        op, stream, whose = channel
        key = (whose, direction, source, target, action.micro_batch)
        return self.tasks.add(op, stream, self._last if sends else (), key, action.micro_batch)

    def _channel(self, source: int, target: int, direction: Phase, *, sends: bool) -> tuple[Transfer, str, int]:
        """Return the message between two virtual stages, its stream, and which rank class or rank it belongs to."""
        other = self.placement.stage(target if sends else source)
        pairs = self.communicators.peers(other)
        if not sends:
            pairs = tuple((b, a) for a, b in pairs)
        op = Transfer(
            n_bytes=self.boundary_bytes,
            pairs=pairs,
            name=f"{'send' if sends else 'receive'} {direction}",
            phase=direction,
        )
        return (
            op,
            f"pp:{'to' if sends else 'from'}:{other}:{direction}",
            -1 if self.communicators.folded else pairs[0][0],
        )
