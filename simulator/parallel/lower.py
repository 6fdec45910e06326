"""Model x plan -> Program: the one place that puts the parallel strategies together."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

from simulator.errors import InfeasiblePlanError
from simulator.identity import ByIdentity
from simulator.models.layer import Layer, Model
from simulator.parallel.classes import Classes, unfolded
from simulator.parallel.data import DataParallel
from simulator.parallel.loading import Loading
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.muon import MuonMessage, owned_matrices
from simulator.parallel.outer_sharded import OuterSharded
from simulator.parallel.pipeline import StageLowering
from simulator.parallel.repetition import FILLS, ShortTable, shorten
from simulator.parallel.replicated import Replicated
from simulator.parallel.sharded import FullySharded, ShardedOnce, Zero3
from simulator.parallel.stage import StageLayers
from simulator.parallel.states import optimizer_step
from simulator.parallel.vocabulary import share
from simulator.plan import ParallelPlan
from simulator.plan.rules import counted_layers
from simulator.plan.stage_layout import (
    balanced_parts,
    beside_ends,
    lightened_end,
    parse_layout,
    passing_parts,
    shortened_ends,
)
from simulator.program.allowance import Allowance
from simulator.program.op import Collective
from simulator.program.program import COMPUTE, Program, RankProgram, TaskList
from simulator.program.stretch import leave_out_one
from simulator.schedules import Placement, Table, arrivals, blocks_host, build_table, placement_of, sends_block


def checkpointed(
    layers: Sequence[Layer], plan: ParallelPlan, known: dict[tuple[int, int, int], Layer]
) -> tuple[Layer, ...]:
    """Return the layers of one virtual stage as a plan recomputes them.

    ``recompute_method: block`` recomputes the first ``recompute_layers`` blocks and keeps what the others save;
    ``uniform`` keeps one input for that many blocks, and holds all that they save while it runs them again.

    References
    ----------
    Megatron-LM, ``--recompute-method`` and ``--recompute-num-layers``.
    """
    count = plan.recompute_layers
    if plan.recompute != "full" or count is None or (not count and plan.recompute_method == "uniform"):
        return tuple(layers)
    found: list[Layer] = []
    position = 0
    count = min(count, sum(layer.plain is not None for layer in layers))
    for layer in layers:
        plain = layer.plain
        if plain is None:
            found.append(layer)
            continue
        if plan.recompute_method == "block":
            found.append(layer if position < count else plain)
        else:
            place = position % count
            key = (id(layer), min(place, 1), count)  # equal layers are shared, and long to hash
            if key not in known:
                kept = 0 if place else layer.saved_bytes
                more = (count - 1) * plain.saved_bytes
                known[key] = replace(layer, saved_bytes=kept, transient_bytes=layer.transient_bytes + more)
            found.append(known[key])
        position += 1
    return tuple(found)


def offloaded(layers: tuple[Layer, ...], plan: ParallelPlan) -> tuple[Layer, ...]:
    """Return the layers with what the first blocks save moved to host memory.

    Two such blocks are on the device at once in backward: the one that runs, and the one that is fetched beside it.

    References
    ----------
    NVIDIA/TransformerEngine, ``pytorch/cpu_offload.py``: copies on streams of their own, one layer ahead.
    """
    if not plan.offload_layers:
        return layers
    blocks = set([index for index, layer in enumerate(layers) if layer.is_block][: plan.offload_layers])
    known: ByIdentity[Layer, Layer] = ByIdentity()  # equal layers stay one object

    def away(layer: Layer) -> Layer:
        transient = layer.transient_bytes + 2 * layer.saved_bytes
        return replace(layer, saved_bytes=0, offloaded_bytes=layer.saved_bytes, transient_bytes=transient)

    return tuple(known.of(layer, away) if index in blocks else layer for index, layer in enumerate(layers))


def data_parallel(layers: Sequence[Layer], plan: ParallelPlan, communicators: Communicators) -> DataParallel:
    """Return the strategy of a plan for one stage's layers (all chunks in order)."""
    # copies of experts may lie on the ranks of one tensor-parallel group
    has_copies = communicators.size("expert_dp") > 1 and any(p.is_expert for layer in layers for p in layer.parameters)
    alone = DataParallel(layers, plan, communicators)
    if communicators.size("dp") == 1 and not has_copies and not alone.offloads:
        return alone
    if not plan.shards_parameters:
        return Replicated(layers, plan, communicators)
    if plan.synchronises_once:
        return ShardedOnce(layers, plan, communicators)
    if plan.outer_sharding == "optim":
        return OuterSharded(layers, plan, communicators)
    strategy = Zero3 if plan.framework_spec.data_parallel.units == "tensor" else FullySharded
    return strategy(layers, plan, communicators)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """A program and what it was made from, for memory accounting and reports."""

    program: Program
    mesh: Mesh
    #: ``chunks[stage][chunk]`` is the tuple of layers of that virtual stage.
    chunks: tuple[tuple[tuple[Layer, ...], ...], ...]
    table: Table  #: The pipeline schedule.
    placement: Placement  #: Which stage holds which virtual stage.


def split_layers(model: Model, plan: ParallelPlan, placement: Placement) -> tuple[tuple[tuple[Layer, ...], ...], ...]:
    """Give every virtual stage its layers: blocks evenly unless a split is named, the embedding first, the head last."""
    first, last = _blocks(model)
    known: dict[tuple[int, int, int], Layer] = {}
    spans = [
        offloaded(checkpointed(model.layers[begin:stop], plan, known), plan)
        for begin, stop in _cuts(model, plan, placement, first, last)
    ]
    by_stage: list[list[tuple[Layer, ...]]] = [
        [() for _ in range(placement.n_chunks)] for _ in range(placement.n_stages)
    ]
    for virtual in range(placement.n_virtual):
        by_stage[placement.stage(virtual)][placement.chunk(virtual)] = spans[placement.part(virtual)]
    if placement.shares_vocabulary:
        ends = (*model.layers[:first], *model.layers[last:])
        shares = tuple(share(layer, placement.n_stages) for layer in ends)
        return tuple((*chunks, shares) for chunks in by_stage)
    return tuple(tuple(chunks) for chunks in by_stage)


def blocks_of_parts(model: Model, plan: ParallelPlan) -> list[int]:
    """Return how many blocks each run of the model's layers has that a virtual stage computes, in the order of the model."""
    cuts = _cuts(model, plan, placement_of(plan.schedule, plan.pp, plan.virtual_pp), *_blocks(model))
    return [sum(layer.is_block for layer in model.layers[begin:stop]) for begin, stop in cuts]


def _blocks(model: Model) -> tuple[int, int]:
    """Return where a model's blocks begin and end."""
    first, last = 0, len(model.layers)
    while not model.layers[first].is_block:
        first += 1
    while not model.layers[last - 1].is_block:
        last -= 1
    return first, last


def _cuts(model: Model, plan: ParallelPlan, placement: Placement, first: int, last: int) -> list[tuple[int, int]]:
    """Return where every part of the model begins and ends; its blocks are the layers from ``first`` to ``last``."""
    n_parts, n_layers = placement.n_parts, len(model.layers)
    if plan.pipeline_layout is not None and n_parts > 1:
        return _cuts_of_layout(parse_layout(plan.pipeline_layout), model, placement, first, last)
    balances = plan.framework_spec.balances
    if balances in ("parameters", "products") and n_parts == plan.pp > 1 and not placement.shares_vocabulary:
        weights = [layer.n_parameters for layer in model.layers]
        cut, weighed = (
            (passing_parts, [0] * first + weights[first:]) if balances == "products" else (balanced_parts, weights)
        )
        sizes = cut(weighed, n_parts)
        if sizes is not None and not (plan.first_stage_layers or plan.last_stage_layers or counted_layers(plan)):
            return list(pairwise(accumulate(sizes, initial=0)))
    ends = list(accumulate(_counts(last - first, n_parts, plan), initial=first))
    if not placement.shares_vocabulary:
        ends = [0, *ends[1:-1], n_layers]
    return list(pairwise(ends))


def _cuts_of_layout(
    layout: tuple[str, ...], model: Model, placement: Placement, first: int, last: int
) -> list[tuple[int, int]]:
    predicting = sum(layer.role == "prediction" for layer in model.layers)
    said = [sum(stage.count(letter) for stage in layout) for letter in "tm"]
    if (
        placement.shares_vocabulary
        or len(layout) != placement.n_parts
        or said not in ([last - first, predicting], [last - first, 0])
    ):
        raise InfeasiblePlanError(
            f"pipeline_layout has {len(layout)} stages with {said[0]} transformer and {said[1]} prediction layers, "
            f"the model {last - first} and {predicting}, the schedule {placement.n_parts} stages",
            hint="E, all layers and L, each once",
        )
    sizes = [stage.count("t") + stage.count("m") for stage in layout]
    sizes[0] += first
    sizes[-1] += len(model.layers) - sum(sizes)  # the loss, and prediction layers that the layout does not name
    return list(pairwise(accumulate(sizes, initial=0)))


def _counts(blocks: int, n_virtual: int, plan: ParallelPlan) -> list[int]:
    if (plan.first_stage_layers or plan.last_stage_layers) and n_virtual > 1:
        return _counts_between(blocks, n_virtual, plan)
    if counted_layers(plan) and n_virtual > 1:
        return _counts_beside_ends(blocks, n_virtual, plan)
    if blocks % n_virtual and plan.virtual_pp > 1 and (sizes := beside_ends(blocks, n_virtual)):
        return sizes
    if blocks < n_virtual:
        raise InfeasiblePlanError(
            f"{blocks} layers cannot be split over pp x virtual_pp = {n_virtual} stages",
            hint=f"use at most {blocks} virtual stages",
        )
    if blocks % n_virtual and plan.virtual_pp > 1:
        laid_out = shortened_ends(blocks, n_virtual) if plan.framework_spec.lays_out_pipelines else None
        if laid_out is None:
            raise InfeasiblePlanError(
                f"{blocks} layers are not a multiple of pp x virtual_pp = {plan.pp} x {plan.virtual_pp}",
                hint="interleaving needs equal chunks; choose degrees that divide the layers, or name a pipeline_layout",
            )
        return laid_out
    if (
        plan.framework_spec.balances == "blocks"
        and n_virtual == plan.pp
        and (sizes := lightened_end(blocks, n_virtual))
    ):
        return sizes
    # Uneven splits give the surplus to the middle stages, away from embedding and head.
    base, surplus = divmod(blocks, n_virtual)
    start = (n_virtual - surplus) // 2
    return [base + (1 if start <= v < start + surplus else 0) for v in range(n_virtual)]


def _counts_between(blocks: int, n_virtual: int, plan: ParallelPlan) -> list[int]:
    """Share out the blocks that first and last stage leave, one for each other stage at least."""
    first, last = plan.first_stage_layers or 0, plan.last_stage_layers or 0
    rest, between = blocks - first - last, range(bool(first), n_virtual - bool(last))
    if rest < len(between) or (rest and not between):
        ends = (("first_stage_layers", first), ("last_stage_layers", last))
        given = " and ".join(f"{name}={count}" for name, count in ends if count)
        empty = ", ".join(str(stage + 1) for stage in between[max(0, rest) :])
        left = f"leave stages {empty} of {n_virtual} empty" if empty else f"are not those of {n_virtual} stages"
        raise InfeasiblePlanError(
            f"{given} of {blocks} layers {left}",
            hint="give every stage a layer, or name stages without any in a pipeline_layout: Ettt||tttL",
        )
    each, more = divmod(rest, max(len(between), 1))
    counts = [each + (stage < more) for stage in range(len(between))]
    return [*[first] * bool(first), *counts, *[last] * bool(last)]


def _counts_beside_ends(blocks: int, n_virtual: int, plan: ParallelPlan) -> list[int]:
    """Share out the blocks evenly with embedding and loss, each of which takes the place of one where it is accounted for.

    References
    ----------
    NVIDIA/Megatron-LM, ``core/transformer/transformer_block.py``, ``get_num_layers_to_build``.
    """
    each, rest = divmod(blocks + counted_layers(plan), n_virtual)
    if rest:
        names = [name for name in ("account_for_embedding", "account_for_loss") if getattr(plan, name)]
        raise InfeasiblePlanError(
            f"{blocks} layers and {len(names)} more ({' and '.join(names)}) do not divide over {n_virtual} pipeline stages",
            hint=f"choose --pp and --virtual-pp that divide them, or {' '.join(f'--set {name}=false' for name in names)}",
        )
    counts = [each] * n_virtual
    counts[0] -= plan.account_for_embedding
    counts[-1] -= plan.account_for_loss
    return counts


def lower(
    model: Model,
    plan: ParallelPlan,
    *,
    gpus_per_node: int,
    boundary_bytes: int,
    unfold: bool = False,
    all_micro_batches: bool | None = None,
    jointly: bool = True,
    loading: Loading | None = None,
    classes: Classes | None = None,
    collectives_at_once: int = 1,
    on_processors: bool = False,
    allowance: Allowance | None = None,
) -> Lowered:
    """Write down what every rank class does in one optimizer step.

    Parameters
    ----------
    model : Model
        Layers as one tensor-parallel rank runs them for one micro-batch.
    gpus_per_node : int
        Default size of hybrid sharding groups.
    boundary_bytes : int
        Bytes of the activation between two layers, ``[micro_batch, sequence / cp, hidden]``, whole.
    unfold : bool
        Whether to write down every rank instead of one per class.
    all_micro_batches : bool, optional
        Whether to write down every micro-batch instead of one period of a steady state; by default where every rank is.
    jointly : bool
        Whether classes whose ranks meet in layers run a pass as one block; layer by layer otherwise.
    loading : Loading, optional
        Reading of the step's batch, on the stages that need it.
    classes : Classes, optional
        Which ranks are alike; by default those of a stage.
    collectives_at_once : int
        How many collectives of one process group run at the same time; see :class:`Mesh`.
    on_processors : bool
        Whether tensors live on processors: then the thread that issues computes, too, and issues nothing ahead.
    allowance : Allowance, optional
        Tasks that may be written down; beyond them :class:`TooMuchWorkError` is raised.
    """
    mesh = Mesh(plan, gpus_per_node, collectives_at_once)
    placement = placement_of(plan.schedule, plan.pp, plan.virtual_pp)
    chunks = split_layers(model, plan, placement)
    classes = classes or Classes.whole(tuple(mesh.stage_ranks(stage) for stage in range(plan.pp)))
    writes_all = unfold if all_micro_batches is None else all_micro_batches
    classes = unfolded(classes, mesh) if unfold else classes
    write = partial(
        _write_down, model, plan, mesh, placement, chunks, gpus_per_node=gpus_per_node, boundary_bytes=boundary_bytes,
        folded=not classes.is_apart and not classes.is_split, classes=classes,
        jointly=jointly and not (unfold and writes_all), loading=loading, on_processors=on_processors,
        allowance=allowance or Allowance(),
    )  # fmt: skip
    for short in _tables(plan, placement.n_chunks, all_micro_batches=writes_all):
        program = write(short)
        if not short.n_omitted or all(rank.stretch is not None for rank in program.ranks):
            break
    return Lowered(program=leave_out_one(program), mesh=mesh, chunks=chunks, table=short.table, placement=placement)


def _tables(plan: ParallelPlan, n_chunks: int, *, all_micro_batches: bool) -> Iterator[ShortTable]:
    """Yield a plan's table with more and more of its micro-batches, in the end with all of them."""
    build = partial(build_table, plan.schedule, plan.pp, n_chunks=n_chunks, n_at_once=plan.drains_every)
    for n_fills in () if all_micro_batches else FILLS:
        yield shorten(build, plan.pp, plan.n_micro_batches, n_fills=n_fills)
    yield ShortTable(build(plan.n_micro_batches))


def _write_down(
    model: Model,
    plan: ParallelPlan,
    mesh: Mesh,
    placement: Placement,
    chunks: tuple[tuple[tuple[Layer, ...], ...], ...],
    short: ShortTable,
    *,
    gpus_per_node: int,
    boundary_bytes: int,
    classes: Classes,
    folded: bool,
    jointly: bool,
    loading: Loading | None,
    on_processors: bool,
    allowance: Allowance,
) -> Program:
    """Write down every rank's row of a table, a class at a time; ``folded`` says that the classes are the stages."""
    parts = [
        (members, alike, passes, joined if jointly and passes == "open" else None)
        for members, alike, passes, joined in zip(
            classes.members, classes.in_step, classes.have_passes, classes.joined, strict=True
        )
    ]
    allowance.check(sum(len(short.table[mesh.stage_of(members[0])]) for members in classes.members))
    shards = plan.message_shards
    steps = arrivals(short.table, placement) if sends_block(plan) and not blocks_host(plan) else ()
    shared: dict[Hashable, StageLayers] = {}
    programs = []
    for members, alike, passes, joined in sorted(parts, key=lambda part: mesh.stage_of(part[0][0])):
        rank = members[0]
        stage = mesh.stage_of(rank)
        communicators = Communicators(mesh, rank, folded=folded, members=members)
        inside = Communicators(mesh, rank, folded=not classes.is_split, members=alike)
        layers = _stage_layers(shared, chunks[stage], plan, communicators, inside, gpus_per_node)
        lowering = StageLowering(
            stage=stage, plan=plan, layers=layers, communicators=communicators, placement=placement,
            data=data_parallel([layer for chunk in chunks[stage] for layer in chunk], plan, communicators),
            boundary_bytes=boundary_bytes // shards,
            whole_bytes=boundary_bytes,
            gather_bytes=boundary_bytes if shards > 1 and not plan.sequence_parallel else 0,
            passes=passes,
            joined=joined,
            arrivals=steps[stage] if steps else {},
        )  # fmt: skip
        if loading is not None and stage in _ends(placement):
            loading.add(lowering.tasks)
        done = lowering.lower(short.table[stage])
        _finish_step(lowering, model, done)
        if on_processors:
            lowering.tasks.issue_in_turn()
        tasks = tuple(lowering.tasks.tasks)
        stretch = short.stretch(stage, tasks, lowering.marks) if short.cuts else None
        programs.append(RankProgram(rank=rank, members=members, tasks=tasks, stretch=stretch))
        allowance.spend(len(tasks))
        if len(programs) == 1:
            allowance.check(len(tasks) * (2 * len(parts) - 1))  # the others have about as many, and all are to be run
    return Program(ranks=tuple(programs), n_omitted=short.n_omitted, period_micro_batches=short.n_micro_batches)


def _stage_layers(
    shared: dict[Hashable, StageLayers],
    chunks: Sequence[Sequence[Layer]],
    plan: ParallelPlan,
    communicators: Communicators,
    inside: Communicators,
    gpus_per_node: int,
) -> StageLayers:
    """Reuse the blocks of stages whose ranks lie on whole nodes in the same way, or are in step.

    What is written down outside a block meets other traffic on links of its own, so it is not reused. Of joint passes the parts of classes
    that meet in the same groups are one, where tensor-parallel groups are all that they meet in.
    """
    key: Hashable = ()
    if not inside.folded:
        is_dense = plan.cp * plan.ep == 1 and plan.expert_tp == plan.tp
        met = ("joint", communicators.groups("tp")) if is_dense else None
        key = inside.members
        layers = StageLayers(chunks, plan, communicators, inside, twin=shared.get(key), partner=shared.get(met))
        shared.setdefault(met or key, layers)
    else:
        per_stage = plan.tp * communicators.mesh.n_replicas
        if not communicators.folded or per_stage % gpus_per_node or not communicators.mesh.has_outermost_stages:
            return StageLayers(chunks, plan, communicators, inside)
        layers = StageLayers(chunks, plan, communicators, inside, twin=shared.get(key))
    shared.setdefault(key, layers)
    return layers


def _finish_step(lowering: StageLowering, model: Model, done: tuple[int, ...]) -> None:
    """Append what follows backward: tied-embedding gradients, the gradient norm, the optimizer, parameter gathers."""
    plan, tasks, communicators = lowering.plan, lowering.tasks, lowering.communicators
    layers = lowering.data.layers
    ends = _ends(lowering.placement)
    has_copies = ends[0] != ends[1] and not lowering.placement.shares_vocabulary
    if model.tied_embedding and has_copies and lowering.stage in ends:
        n_bytes = (
            max((p.n_elements for layer in model.layers[:1] for p in layer.parameters), default=1) * plan.reduced_bytes
        )
        done = (_collective(tasks, communicators, "embedding", n_bytes, done),)
    if lowering.placement.layout == "bidirectional" and plan.pp > 1:
        n_bytes = lowering.data.n_reduced_elements * plan.reduced_bytes
        done = (_collective(tasks, communicators, "copies", n_bytes, done),)
    if plan.sums_norm:
        done = (_collective(tasks, communicators, "model", 4, done),)
    matrices = owned_matrices(layers, plan, communicators.size("shard"))
    for place, part in enumerate(optimizer_step(lowering.data.n_optimizer_elements, plan, matrices)):
        if isinstance(part, MuonMessage):
            done = (_collective(tasks, communicators, part.axis, part.n_bytes, done, part.collective, place),)
        else:
            done = (tasks.add(part, COMPUTE, done),)
    lowering.data.after_step(tasks, done[-1])


def _ends(placement: Placement) -> tuple[int, int]:
    """Return the stages that hold the embedding and the head."""
    return placement.stage(0), placement.stage(placement.n_parts - 1)


def _collective(
    tasks: TaskList,
    communicators: Communicators,
    axis: str,
    n_bytes: int,
    after: tuple[int, ...],
    collective: str = "all_reduce",
    place: int = -1,
) -> int:
    """Append a collective of the step; ``place`` tells those of an axis apart."""
    op = Collective(
        collective=collective,
        axis=axis,
        n_bytes=n_bytes,
        groups=communicators.groups(axis),
        phase="optimizer",
        name=axis,
    )
    return tasks.add(op, axis, after, communicators.key(axis, ("step", place)))
