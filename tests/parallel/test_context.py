"""Context parallelism: bytes per layer and pass in closed form, and the work of the rank that sets the pace."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.errors import InfeasiblePlanError
from simulator.models.build import build_model
from simulator.models.catalog import find_spec
from simulator.models.layer import AttentionShape, CommunicationPoint, PointwiseShape
from simulator.models.setting import RankSetting
from simulator.parallel.context import LayerCollective, exchange_context
from simulator.parallel.mesh import Communicators, Mesh
from simulator.parallel.stage import StageLayers, finish, items_of
from simulator.plan import ParallelPlan
from simulator.program.op import Collective, KernelRun
from simulator.program.program import TaskList

SPEC = find_spec("llama3-8b")
SEQUENCE, MICRO_BATCH = 8192, 2


def plan_of(cp, kind, **changes):
    return ParallelPlan(gpus=cp, cp=cp, dp=1, cp_comm_type=kind, micro_batch=MICRO_BATCH, global_batch=MICRO_BATCH,
                        sequence_length=SEQUENCE, framework="megatron-core", **changes)  # fmt: skip


def layer_of(plan):
    model = build_model(SPEC, RankSetting(micro_batch=MICRO_BATCH, sequence_length=SEQUENCE, tp=plan.tp, cp=plan.cp, kernels="fused",
                        recompute=plan.recompute, attention=plan.attention))  # fmt: skip
    return model.layers[1]


def items(plan, kind):
    return [item for _, part in items_of(layer_of(plan), kind) for item in exchange_context(part, plan)]


def sent(plan, kind):
    totals = {}
    for item in items(plan, kind):
        if isinstance(item, LayerCollective):
            totals[item.collective] = totals.get(item.collective, 0) + item.n_bytes
    return totals


def attention_flops(plan, kind="F"):
    return sum(item.n_flops for item in items(plan, kind) if isinstance(item, AttentionShape))


TOKENS = MICRO_BATCH * SEQUENCE
KEY_VALUE_BYTES = 2 * TOKENS * SPEC.kv_heads * SPEC.head_dim * 2  # of the whole sequence
QUERY_BYTES = TOKENS * SPEC.heads * SPEC.head_dim * 2


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_a_ring_sends_every_key_and_value_to_every_other_rank(cp):
    plan = plan_of(cp, "p2p")
    chunk = KEY_VALUE_BYTES // cp
    assert sent(plan, "F") == {"send_recv": (cp - 1) * chunk}
    # in backward the keys and values again, from where they are, and their gradients home with them; PyTorch's make the whole round
    assert sent(plan, "B") == {"send_recv": 2 * (cp - 1) * chunk}
    assert sent(replace(plan, framework="torchtitan"), "B") == {"send_recv": (cp - 1) * chunk + cp * chunk}


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_gathering_moves_the_whole_sequence_and_scatters_its_gradients(cp):
    plan = plan_of(cp, "all_gather")
    assert sent(plan, "F") == {"all_gather": KEY_VALUE_BYTES}
    assert sent(plan, "B") == {"all_gather": KEY_VALUE_BYTES, "reduce_scatter": KEY_VALUE_BYTES}


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize("kind", ["F", "B"])
def test_ulysses_exchanges_queries_keys_values_and_outputs_once_each_way(cp, kind):
    assert sent(plan_of(cp, "a2a"), kind) == {"all_to_all": (2 * QUERY_BYTES + KEY_VALUE_BYTES) // cp}


@pytest.mark.parametrize("kind", ["F", "B"])
def test_what_ulysses_exchanges_is_copied_before_and_behind(kind):
    """Transformer Engine and DeepSpeed lay each of the four tensors out for the exchange, and what arrives for what follows."""
    found = items(plan_of(4, "a2a"), kind)
    names = [item.collective if isinstance(item, LayerCollective) else getattr(item, "name", "") for item in found]
    at = [i for i, name in enumerate(names) if name == "all_to_all"]
    inputs, output = at if kind == "F" else reversed(at)
    before, behind = ("copy", "index_select") if kind == "F" else ("index_select", "copy")
    assert names[inputs - 3 : inputs + 4] == [before] * 3 + ["all_to_all"] + [behind] * 3
    assert names[output - 1 : output + 2] == [behind, "all_to_all", before]
    copies = [*found[inputs - 3 : inputs], *found[inputs + 1 : inputs + 4], found[output - 1], found[output + 1]]
    n_bytes = 2 * (2 * QUERY_BYTES + KEY_VALUE_BYTES) // 4
    assert sum(c.read_bytes for c in copies) == sum(c.written_bytes for c in copies) == pytest.approx(n_bytes, rel=1e-6)
    assert {c.kernel_pass for c in copies} == {"forward" if kind == "F" else "backward"}


def test_attention_in_eight_bits_exchanges_eight():
    """``AttnFuncWithCPAndQKVOA2A`` of Transformer Engine casts queries, keys and values, then exchanges them, as it does the output."""
    plan, cast = plan_of(4, "a2a"), PointwiseShape(name="quantize", n_elements=1, read_bytes=2.0, written_bytes=1.0)
    narrow = []
    for item in layer_of(plan).forward:
        narrow += [cast, replace(item, dtype="fp8")] if isinstance(item, AttentionShape) else [item]
    found = exchange_context(narrow, plan)
    exchanges = [i for i in found if isinstance(i, LayerCollective)]
    assert 2 * sum(i.n_bytes for i in exchanges) == sent(plan, "F")["all_to_all"]
    assert found.index(cast) < found.index(exchanges[0])


@pytest.mark.parametrize("comm", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("cp", [2, 8])
def test_balanced_ranks_share_the_attention_evenly(comm, cp):
    whole = AttentionShape(batch=MICRO_BATCH, heads=SPEC.heads, kv_heads=SPEC.kv_heads, seq_q=SEQUENCE, seq_k=SEQUENCE,
                           head_dim=SPEC.head_dim)  # fmt: skip
    assert attention_flops(plan_of(cp, comm)) == pytest.approx(whole.n_flops / cp)


@pytest.mark.parametrize("comm", ["p2p", "all_gather"])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_the_rank_with_the_last_tokens_sets_the_pace_of_an_unbalanced_mask(comm, cp):
    """(2 - 1 / cp) times the mean: of cp chunks it needs all but half of its own."""
    ratio = attention_flops(plan_of(cp, comm, cp_load_balance=False)) / attention_flops(plan_of(cp, comm))
    assert ratio == pytest.approx(2 - 1 / cp)


def test_ring_steps_run_beside_the_messages_of_the_next():
    plan = plan_of(4, "p2p")
    tasks = TaskList()
    stage = StageLayers([[layer_of(plan)]], plan, Communicators(Mesh(plan, 8), 0, folded=True))
    finish(stage.steps(tasks, layer_of(plan), "F", (), 0))
    messages = [i for i, task in enumerate(tasks.tasks) if isinstance(task.op, Collective)]
    assert len(messages) == 3
    for index in messages:
        following = tasks.tasks[index + 1]
        assert isinstance(following.op, KernelRun)
        assert index not in following.after
        assert any(
            isinstance(kernel.shape, AttentionShape) for kernel in following.op.kernels[:2]
        )  # behind a half's copy


def moved_in_forward(rank, cp, chunk, query):
    """Bytes that copies and merges read and write on a rank, as ``AttnFuncWithCPAndKVP2P.forward`` of Transformer Engine calls them."""
    moved = 2 * chunk + 2 * query  # torch.cat of keys and values, and the first output
    for i in range(1, cp):
        is_whole = i <= rank  # all queries, and half of the keys and values; or the other way round
        moved += 2 * (chunk if is_whole else query) // 2
        moved += 3 * query // (1 if is_whole else 2)
    return moved


def moved_in_backward(rank, cp, chunk, query):
    """The same of its backward, which begins with what came last."""
    moved = 2 * chunk  # p2p_comm_buffers[0][0].copy_(kv)
    for i in range(cp):
        is_own, is_whole = i == cp - 1, i >= cp - rank - 1
        moved += 0 if is_own else 2 * chunk // 2 if is_whole else 3 * 2 * query // 2  # the half that is made contiguous
        keys = chunk if is_own or not is_whole else chunk // 2
        moved += 2 * keys  # torch.cat of their gradients
        if i > cp - rank - 1:
            moved += 3 * query
        elif i == cp - rank - 1:
            moved += 2 * query if rank == cp - 1 else (2 + 3) * query // 2
        else:
            moved += (3 if i else 2) * query // 2
        if is_own:
            moved += (3 + 2) * chunk // 2 if rank == 0 else 3 * chunk
        else:
            moved += (3 if i else 2) * keys
    return moved


@pytest.mark.parametrize("cp", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "moved", "tolerance"), [("F", moved_in_forward, 1e-6), ("B", moved_in_backward, 0.05)]
)
def test_a_ring_lays_out_halves_and_adds_up_what_its_steps_make(cp, kind, moved, tolerance):
    """The mean over all ranks; in backward a step that writes one half of a gradient and adds to the other is taken for one that adds."""
    kernels = [item for item in items(plan_of(cp, "p2p"), kind) if isinstance(item, PointwiseShape)]
    others = [item for item in items(plan_of(1, "p2p"), kind) if isinstance(item, PointwiseShape)]
    found = (
        sum(k.read_bytes + k.written_bytes for k in kernels) - sum(k.read_bytes + k.written_bytes for k in others) / cp
    )
    expected = sum(moved(rank, cp, KEY_VALUE_BYTES // cp, QUERY_BYTES // cp) for rank in range(cp)) / cp
    assert found == pytest.approx(expected, rel=tolerance)


def test_frameworks_exchange_as_they_do_by_default():
    exchanges = {
        name: ParallelPlan(cp=2, framework=name).context_exchange
        for name in ("megatron-core", "torchtitan", "deepspeed")
    }
    assert exchanges == {"megatron-core": "p2p", "torchtitan": "all_gather", "deepspeed": "a2a"}
    assert ParallelPlan(cp=2, attention="eager").context_exchange == "all_gather"


def test_too_few_heads_for_ulysses():
    with pytest.raises(InfeasiblePlanError, match="does not divide the 32 heads and 8 key-value heads"):
        sent(plan_of(16, "a2a"), "F")


def test_one_rank_exchanges_nothing_whatever_is_marked():
    marked = [item for _, part in items_of(layer_of(plan_of(2, "p2p")), "F") for item in part]
    alone = exchange_context(marked, plan_of(1, "p2p"))
    assert len(alone) == len(marked) - 1 and not any(isinstance(item, LayerCollective) for item in alone)


def brute_pairs(window, cp, rank):
    """Pairs of a query of a balanced rank and a key that it sees, counted over a mask of 64 tokens."""
    n, half = 64, 64 // (2 * cp)
    queries = [*range(rank * half, (rank + 1) * half), *range((2 * cp - 1 - rank) * half, (2 * cp - rank) * half)]
    return sum(1 for q in queries for key in range(n) if q - window < key <= q)


@pytest.mark.parametrize("window", [8, 24, 48])
@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("cp", [2, 4])
def test_a_window_limits_what_ranks_that_share_a_sequence_compute(window, kind, cp):
    """Against masks of 64 tokens in which each is 128 of the real ones, half of which its own mask hides; the mean of the ranks."""
    spec = replace(SPEC, sliding_window=window * SEQUENCE // 64, pattern=("w-",) * SPEC.layers)
    plan = plan_of(cp, kind)
    setting = RankSetting(micro_batch=MICRO_BATCH, sequence_length=SEQUENCE, cp=cp, kernels="fused")
    layer = build_model(spec, setting).layers[1]
    found = sum(
        item.n_flops
        for _, part in items_of(layer, "F")
        for item in exchange_context(part, plan)
        if isinstance(item, AttentionShape)
    )
    pairs = sum(brute_pairs(window, cp, rank) for rank in range(cp)) / cp
    pair_flops = 4 * MICRO_BATCH * SPEC.heads * SPEC.head_dim * (SEQUENCE // 64) ** 2
    assert found == pytest.approx(pair_flops * pairs, rel=0.05)


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
def test_chunks_that_end_within_a_sequence_are_no_whole_sequence(kind):
    """Llama 4's chunks (``attention_chunk_size``): pairs of one chunk alone, half of which the mask hides; shared by the ranks."""
    chunk, cp = SEQUENCE // 8, 4
    spec = replace(SPEC, attention_chunk=chunk, pattern=("c-",) * SPEC.layers)
    setting = RankSetting(micro_batch=MICRO_BATCH, sequence_length=SEQUENCE, cp=cp, kernels="fused")
    parts = [part for _, part in items_of(build_model(spec, setting).layers[1], "F")]
    shapes = [
        one for part in parts for one in exchange_context(part, plan_of(cp, kind)) if isinstance(one, AttentionShape)
    ]
    pairs = 8 * chunk**2 / 2 / cp
    assert sum(one.n_flops for one in shapes) == pytest.approx(
        4 * MICRO_BATCH * SPEC.heads * SPEC.head_dim * pairs, rel=0.05
    )


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_ranks_that_share_a_sequence_have_a_part_of_each_of_its_documents(kind, cp):
    """Pairs of eight documents, half of which the mask hides; keys and values travel as those of one document would."""
    n_documents = 8
    plain, packed = (
        RankSetting(micro_batch=MICRO_BATCH, sequence_length=SEQUENCE, cp=cp, kernels="fused", document_length=length)
        for length in (0, SEQUENCE // n_documents)
    )
    flops, sent_bytes = [], []
    for setting in (plain, packed):
        items_there = [
            item
            for way in "FB"
            for _, part in items_of(build_model(SPEC, setting).layers[1], way)
            for item in exchange_context(part, plan_of(cp, kind))
        ]
        flops.append(sum(item.n_flops for item in items_there if isinstance(item, AttentionShape)))
        sent_bytes.append(sum(item.n_bytes for item in items_there if isinstance(item, LayerCollective)))
    pair_flops = 3.5 * 4 * MICRO_BATCH * SPEC.heads * SPEC.head_dim  # backward has five products to forward's two
    assert flops[0] == pytest.approx(pair_flops * SEQUENCE**2 / 2 / cp)
    assert flops[1] == pytest.approx(flops[0] / n_documents)
    assert sent_bytes[0] == sent_bytes[1]


@pytest.mark.parametrize("kind", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize(("dtype", "n_times"), [("bf16", 1.0), ("fp8", SEQUENCE / 2 / 960)])
def test_backward_in_eight_bits_computes_what_lies_before_the_window(kind, dtype, n_times):
    """cuDNN 9.22 skips no blocks there (``AttentionShape.reach``): a token meets half the sequence, not the 960 keys of its window."""
    cp = 4
    part = AttentionShape(batch=1, heads=8, kv_heads=8, seq_q=SEQUENCE // cp, seq_k=SEQUENCE, head_dim=128, window=1024, dtype=dtype,
                          kernel_pass="backward")  # fmt: skip
    mark = CommunicationPoint(operator="context", n_bytes=1 << 20, kernel_pass="backward", overlaps=1)
    found = [one for one in exchange_context([part, mark], plan_of(cp, kind)) if isinstance(one, AttentionShape)]
    pairs = sum(one.batch * one.heads * one.seq_q * min(one.reach or one.seq_k, one.seq_k) / (2.0 if one.causal and not one.reach else 1.0)
                for one in found)  # fmt: skip
    windowed = 8 * SEQUENCE / cp * 960  # 1,024 but for the first 1,024 tokens, which see 512
    assert pairs == pytest.approx(windowed * n_times, rel=0.15)
