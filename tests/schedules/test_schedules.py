"""Every schedule of the family against the same rules, and each against its published closed forms."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import ConfigError, InfeasiblePlanError
from simulator.plan import SETTINGS
from simulator.schedules import (
    SCHEDULES,
    Action,
    Placement,
    build_table,
    check,
    execute,
    find_schedule,
    peak_in_flight,
    placement_of,
    render,
    turns,
    unit_time_execution,
)

STAGES = range(1, 17)
#: few stages all, of many some: even, odd and prime
in_both_halves = pytest.mark.parametrize(
    "stages", [range(1, 7), pytest.param((7, 8, 11, 12, 16), marks=pytest.mark.slow)], ids=["few", "many"]
)
MICRO_BATCHES = (1, 2, 3, 5, 8, 16, 31, 32, 64)
EQUAL = {"forward": 1.0, "backward": 2.0, "dgrad": 1.0, "wgrad": 1.0}
UNEQUAL = {"forward": 10.0, "backward": 20.0, "dgrad": 12.0, "wgrad": 8.0}


def virtual_pp(name):
    return 2 if name in ("1f1b-interleaved", "1f1b-combined") else 1


def tables(name, stages):
    """Yield every feasible (stages, micro-batches, placement, table) of the grid."""
    for p in stages:
        placement = placement_of(name, p, virtual_pp(name))
        for m in MICRO_BATCHES:
            try:
                table = build_table(name, p, m, n_chunks=virtual_pp(name))
            except InfeasiblePlanError:
                continue
            yield p, m, placement, table


@in_both_halves
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_pass_once_and_no_deadlock(name, stages):
    n_checked = 0
    for _, _, placement, table in tables(name, stages):
        check(table, placement)
        n_checked += 1
    assert (
        n_checked >= 7
    )  # interleaved, many stages: 8 of them divide 8, 16, 32 and 64 micro-batches, 16 the last three


@in_both_halves
@pytest.mark.parametrize("name", SCHEDULES)
def test_passes_of_one_kind_keep_the_order_of_micro_batches(name, stages):
    for _, _, placement, table in tables(name, stages):
        for row in table:
            for chunk in range(placement.n_chunks):
                for kinds in ("F", "BI", "BW"):
                    order = [a.micro_batch for a in row if a.kind in kinds and a.chunk == chunk]
                    assert order == sorted(order)


@in_both_halves
@pytest.mark.parametrize("name", SCHEDULES)
def test_makespan_is_at_least_work_and_longest_chain(name, stages):
    for p, m, placement, table in tables(name, stages):
        chain = placement.n_parts * (1 + 1)  # forward and input gradient of one micro-batch through all parts
        work = m * 3 * placement.n_parts // p
        makespan = unit_time_execution(table, placement, **EQUAL).makespan
        assert makespan >= max(chain, work)


@in_both_halves
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interlaced"])
def test_bubble_is_p_minus_1_over_m(name, stages):
    for p, m, placement, table in tables(name, stages):
        assert unit_time_execution(table, placement, forward=3.0, backward=5.0).makespan == (m + p - 1) * 8.0


@pytest.mark.parametrize("name", ["1f1b-interleaved", "1f1b-combined"])
@pytest.mark.parametrize("v", [2, 3, 4])
@in_both_halves
def test_interleaving_divides_the_bubble_by_the_chunks(v, name, stages):
    for p in stages[stages[0] == 1 :]:
        for m in (p, 2 * p, 4 * p):
            table = build_table(name, p, m, n_chunks=v)
            makespan = unit_time_execution(table, forward=3.0 / v, backward=6.0 / v).makespan
            assert makespan == pytest.approx(m * 9.0 + (p - 1) * 9.0 / v)


@in_both_halves
@pytest.mark.parametrize(("name", "n_weights"), [("zb-1p", 1), ("zb-2p", 2)])
@pytest.mark.parametrize("times", [EQUAL, UNEQUAL])
def test_zero_bubble_formulas(name, n_weights, times, stages):
    bubble = times["forward"] + times["dgrad"] - n_weights * times["wgrad"]
    for p, m, placement, table in tables(name, stages):
        if m >= 2 * p:
            assert max(unit_time_execution(table, placement, **times).bubbles) == pytest.approx((p - 1) * bubble)


@in_both_halves
def test_zb_v_has_no_bubble_once_the_pipeline_is_full(stages):
    for p, m, placement, table in tables("zb-v", stages):
        if m >= 2 * p - 1:
            assert max(unit_time_execution(table, placement, **EQUAL).bubbles) == 0.0


@pytest.mark.parametrize(("name", "low", "high"), [("v-half", 0.45, 0.6), ("v-min", 0.6, 0.7)])
def test_v_schedules_keep_their_share_of_the_1f1b_bubble(name, low, high):
    """Published as one half and two thirds, and an overhead."""
    for p in (8, 11, 16):
        table = build_table(name, p, 4 * p)
        bubble = max(unit_time_execution(table, placement_of(name, p), **EQUAL).bubbles)
        assert low <= bubble / (6 * (p - 1)) <= high


@in_both_halves
@pytest.mark.parametrize("times", [EQUAL, UNEQUAL])
def test_dualpipe_idles_as_long_as_published(times, stages):
    """(p / 2 - 1) (T_F&B + T_B - 3 T_W) beside the work; nothing is hidden here, so T_F&B = T_F + T_B."""
    both = times["forward"] + 2 * times["backward"] - 3 * times["wgrad"]
    for p, m, placement, table in tables("dualpipe", stages):
        idle = unit_time_execution(table, placement, **times).makespan - m * (times["forward"] + times["backward"])
        assert idle == (p / 2 - 1) * both if times is EQUAL else 0 <= idle <= (p / 2 - 1) * both


@pytest.mark.parametrize("times", [EQUAL, UNEQUAL])
def test_dualpipe_v_idles_as_long_as_published(times):
    """(P / 2 - 1) (T_F&B + T_B - 3 T_W) with P = 2 p parts (deepseek-ai/DualPipe, README), each part's times its own."""
    both = times["forward"] + 2 * times["backward"] - 3 * times["wgrad"]
    for p, m, placement, table in tables("dualpipe-v", STAGES[:10]):
        idle = unit_time_execution(table, placement, **times).makespan - 2 * m * (times["forward"] + times["backward"])
        assert idle == (p - 1) * both if times is EQUAL else 0 <= idle <= (p - 1) * both


def test_dualpipe_v_is_the_first_half_of_dualpipe():
    """deepseek-ai/DualPipe, README: "cut in half"; as many micro-batches go through each direction of twice the stages."""
    for p, m in ((1, 2), (2, 4), (3, 8), (4, 9)):
        assert build_table("dualpipe-v", p, m) == build_table("dualpipe", 2 * p, 2 * m)[:p]
    with pytest.raises(InfeasiblePlanError, match="at least 2 pp micro-batches, got pp = 4 and 7"):
        build_table("dualpipe-v", 4, 7)


@in_both_halves
def test_dualpipe_pairs_forwards_with_backwards_of_the_other_direction(stages):
    for p, m, _, table in tables("dualpipe", stages):
        for stage, row in enumerate(table):
            pairs = [(a, b) for a, b in pairwise(row) if a.is_paired]
            assert all((a.kind, b.kind, a.chunk) == ("F", "B", 1 - b.chunk) for a, b in pairs)
            depth = min(stage, p - 1 - stage)
            n_main = m // 2 - p + depth + 1
            is_middle = depth == p // 2 - 1
            assert len(pairs) == 2 * n_main - is_middle + (p // 2 - depth - 1)


@in_both_halves
def test_a_meeting_of_all_stages_costs_each_of_them_its_time_once(stages):
    for p, m, placement, table in tables("interlaced", stages):
        if p > 1:
            execution = unit_time_execution(table, placement, forward=3.0, backward=5.0, vocabulary=2.0)
            assert execution.makespan == (m + p - 1) * 8.0 + 2.0 * m


def test_a_missed_meeting_is_found():
    table = [list(row) for row in build_table("interlaced", 3, 4)]
    table[1].remove(Action("V", 2, 1))
    with pytest.raises(ConfigError, match="stage 1 does not meet the others once for every micro-batch"):
        check(tuple(map(tuple, table)), placement_of("interlaced", 3))
    late = [list(row) for row in build_table("interlaced", 2, 2)]
    late[0].sort(key=lambda action: action.kind == "V")  # the first stage meets the others only when all else is done
    meeting = r"deadlocks.*stage 1 waits for the others at the meeting of micro-batch 0"
    with pytest.raises(ConfigError, match=meeting):
        check(tuple(map(tuple, late)), placement_of("interlaced", 2))


def test_only_meetings_share_the_vocabulary_and_every_stage_that_misses_one_is_named():
    """Yeung et al., arXiv:2411.05288: the vocabulary layers lie on all stages, of the interlaced schedule alone."""
    assert [name for name, one in SCHEDULES.items() if one.shares_vocabulary] == ["interlaced"]
    rows = [list(row) for row in build_table("interlaced", 3, 2)]
    for row in rows[:2]:
        row.sort(key=lambda action: action.kind == "V")
    with pytest.raises(ConfigError) as caught:
        check(tuple(map(tuple, rows)), placement_of("interlaced", 3))
    assert all(f"stage {stage} " in str(caught.value) for stage in range(3))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_checker_passes_every_table_up_to_16_x_64(name):
    for p in STAGES:
        for m in range(1, 65) if p <= 6 else sorted({1, 2, 3, p - 1, p, p + 1, 2 * p, 2 * p + 1, 3 * p, 63, 64}):
            try:
                table = build_table(name, p, m, n_chunks=virtual_pp(name))
            except InfeasiblePlanError:
                continue
            check(table, placement_of(name, p, virtual_pp(name)))


PEAKS = {
    "gpipe": lambda p, m: m,
    "1f1b": lambda p, m: p,
    "1f1b-combined": lambda p, m: 2 * (p - 1) + p + 2,
    "1f1b-interleaved": lambda p, m: 2 * (p - 1) + p + 1,
    "interlaced": lambda p, m: (3 * p + 1) // 2,
    "zb-1p": lambda p, m: p,
    "zb-2p": lambda p, m: 2 * p - 1,
    "zb-v": lambda p, m: 2 * p,
    "v-half": lambda p, m: 2 * ((p + 2) // 2),
    "v-min": lambda p, m: 2 * ((p + 4) // 3),
    "dualpipe": lambda p, m: p + 1,
    "dualpipe-v": lambda p, m: 2 * p + 1,
}


@pytest.mark.parametrize("name", SCHEDULES)
@in_both_halves
def test_peak_activations_in_flight(name, stages):
    """In chunks: the published peak, reached on the worst stage once there are enough micro-batches."""
    for p in stages[stages[0] == 1 :]:
        m = 4 * p
        if name == "dualpipe" and p % 2:
            continue
        table = build_table(name, p, m, n_chunks=virtual_pp(name))
        peaks = peak_in_flight(table, placement_of(name, p, virtual_pp(name)).n_chunks)
        assert max(sum(peak) for peak in peaks) == PEAKS[name](p, m)


def test_1f1b_holds_fewer_activations_on_later_stages():
    assert peak_in_flight(build_table("1f1b", 4, 8), 1) == ((4,), (3,), (2,), (1,))
    assert peak_in_flight(build_table("1f1b", 4, 2), 1) == ((2,), (2,), (2,), (1,))


@pytest.mark.parametrize(("chunk", "most"), [(0, (1, 0)), (1, (1, 1))])
def test_passes_that_take_turns_on_one_chunk_pass_its_activations_on(chunk, most):
    """Layers of one chunk: what the forward takes the backward gives back; of two chunks: both are held."""
    row = (Action("F", 0), Action("F", 1, chunk, is_paired=True), Action("B", 0), Action("B", 1, chunk))
    assert peak_in_flight((row,), 2) == (most,)


@pytest.mark.parametrize(
    "behind", [(), (Action("I", 0), Action("W", 0)), (Action("B", 0, is_paired=True),)], ids=["nothing", "half", "pair"]
)
def test_a_pair_is_a_forward_with_a_whole_backward_behind_it(behind):
    row = (Action("F", 0, is_paired=True), *behind)
    with pytest.raises(ConfigError, match="stage 0: F of micro-batch 0, chunk 0 is paired"):
        check((row,))


def test_interleaved_order_of_stage_0_is_megatrons():
    """Two stages, two chunks, four micro-batches, written down from the published figure's rule."""
    row = build_table("1f1b-interleaved", 2, 4, n_chunks=2)[0]
    text = " ".join(f"{a.kind}{a.micro_batch}{'ab'[a.chunk]}" for a in row)
    assert text == "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"


def test_placements_are_inverse_to_themselves():
    for name in SCHEDULES:
        for p in (2, 4, 6):
            placement = placement_of(name, p, virtual_pp(name))
            for v in range(placement.n_virtual):
                assert placement.virtual_stage(placement.stage(v), placement.chunk(v)) == v
                following = placement.following(v)
                assert following is None or placement.previous(following) == v
            assert sum(placement.previous(v) is None for v in range(placement.n_virtual)) == (
                2 if name == "dualpipe" else 1
            )


def test_vee_puts_both_ends_of_the_model_on_stage_0():
    placement = placement_of("zb-v", 4)
    assert placement.stage(0) == placement.stage(placement.n_virtual - 1) == 0
    assert placement.stage(3) == placement.stage(4) == 3


@given(p=st.integers(2, 6), m=st.integers(1, 8), data=st.data())
def test_a_dropped_or_doubled_pass_is_found(p, m, data):
    table = [list(row) for row in build_table("zb-1p", p, m)]
    row = data.draw(st.sampled_from(table))
    index = data.draw(st.integers(0, len(row) - 1))
    if data.draw(st.booleans()):
        row.append(row[index])
    else:
        del row[index]
    with pytest.raises(ConfigError):
        check(tuple(map(tuple, table)))


@given(p=st.integers(2, 4), m=st.integers(1, 4), data=st.data())
def test_any_order_either_runs_or_is_called_a_deadlock(p, m, data):
    table = tuple(tuple(data.draw(st.permutations(row))) for row in build_table("zb-1p", p, m))
    try:
        check(table)
    except ConfigError as error:
        assert "deadlocks" in error.message
        assert "cannot run" in error.message
    else:
        for row in table:
            position = {action: i for i, action in enumerate(row)}
            for i in range(m):
                assert position[Action("F", i)] < position[Action("I", i)] < position[Action("W", i)]


def test_a_deadlock_names_both_sides():
    table = ((Action("B", 0), Action("F", 0)), (Action("F", 0), Action("B", 0)))
    with pytest.raises(ConfigError) as caught:
        check(table)
    assert "stage 0 cannot run B of micro-batch 0, chunk 0 before I of micro-batch 0, chunk 0, on stage 1" in str(
        caught.value
    )
    assert "stage 1 cannot run F of micro-batch 0, chunk 0 before F" in str(caught.value)


def test_a_deadlock_at_a_meeting_names_whoever_waits_elsewhere_too():
    """Both stages meet for micro-batch 0; the first one waits for a gradient, the second for the meeting and the third for a forward."""
    table = (
        (Action("B", 0, 0), Action("F", 0, 0), Action("V", 0, 1)), (Action("V", 0, 1), Action("F", 0, 0), Action("B", 0, 0)),
        (Action("F", 0, 0), Action("V", 0, 1), Action("B", 0, 0)),
    )  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        check(table, placement_of("interlaced", 3))
    assert "3 of 3 stages" in str(caught.value)
    assert [f"stage {stage} " in str(caught.value).partition("stuck: ")[2] for stage in range(3)] == [True] * 3


@pytest.mark.parametrize(("name", "takes"), [("gpipe", False), ("1f1b", True), ("1f1b-interleaved", True), ("zb-v", False),
                                             ("dualpipe", False)])  # fmt: skip
def test_which_schedules_leave_the_number_of_chunks_to_the_user(name, takes):
    """Interleaving does (Megatron's --num-layers-per-virtual-pipeline-stage); papers of ZB-V and DualPipe have two."""
    assert find_schedule(name).takes_chunks == takes
    assert find_schedule(name).name == name


def test_a_table_of_the_wrong_height_is_refused():
    with pytest.raises(ConfigError, match="2 rows for 3 stages"):
        check(build_table("1f1b", 2, 2), Placement(n_stages=3))


def test_an_absent_micro_batch_is_named():
    with pytest.raises(ConfigError, match=r"micro-batches \[1\]"):
        check(((Action("F", 0), Action("B", 0), Action("F", 2), Action("B", 2)),))


def test_a_chunk_too_many_is_named():
    with pytest.raises(ConfigError, match="chunks 0 to 0"):
        check(((Action("F", 0), Action("B", 0), Action("F", 0, 1)),), Placement(n_stages=1))


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [
        ("1f1b-interleaved", 4, 6, 2),
        ("1f1b-interleaved", 4, 8, 1),
        ("gpipe", 4, 8, 2),
        ("zb-v", 4, 8, 3),
        ("dualpipe", 3, 12, 1),
        ("dualpipe", 4, 6, 1),
        ("dualpipe", 4, 9, 1),
        ("1f1b", 0, 1, 1),
        ("1f1b", 1, 0, 1),
    ],
)
def test_infeasible_numbers_are_refused_with_a_way_out(name, p, m, v):
    with pytest.raises(InfeasiblePlanError) as caught:
        build_table(name, p, m, n_chunks=v)
    assert any(character.isdigit() for character in caught.value.message)


def test_a_batch_that_a_schedule_cannot_run_is_named_where_the_pipeline_drains_behind_it():
    with pytest.raises(
        InfeasiblePlanError, match=r"^pipeline_batch=6: interleaved 1F1B needs a multiple of pp = 4"
    ) as caught:
        build_table("1f1b", 4, 12, n_chunks=2, n_at_once=6)
    assert caught.value.hint
    with pytest.raises(InfeasiblePlanError, match=r"^interleaved 1F1B needs a multiple of pp = 4"):
        build_table("1f1b", 4, 6, n_chunks=2, n_at_once=6)


@pytest.mark.parametrize(
    ("name", "m", "batches", "otherwise"),
    [
        ("1f1b", 2, ["4"], "--virtual-pp 1"),
        ("1f1b", 6, ["4", "8"], "--virtual-pp 1"),
        ("1f1b-combined", 6, ["4", "8"], "--schedule 1f1b --virtual-pp 1"),
    ],
)
def test_ways_out_of_a_batch_that_does_not_divide_lead_to_plans_that_run(name, m, batches, otherwise):
    with pytest.raises(InfeasiblePlanError) as caught:
        build_table(name, 4, m, n_chunks=2)
    assert caught.value.hint == f"choose a batch of {' or '.join(batches)} micro-batches, or {otherwise}"
    for batch in batches:
        assert build_table(name, 4, int(batch), n_chunks=2)
    assert build_table("1f1b", 4, m, n_chunks=1)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_are_read_whatever_the_case(name):
    assert SETTINGS["schedule"].parse(name.upper()) == SETTINGS["schedule"].parse(name) == name


def test_an_unknown_schedule_lists_the_known_ones():
    with pytest.raises(ConfigError, match="1f1b-interleaved"):
        find_schedule("pipedream")


def test_1f1b_with_chunks_is_interleaved():
    assert build_table("1f1b", 2, 4, n_chunks=2) == build_table("1f1b-interleaved", 2, 4, n_chunks=2)


@pytest.mark.parametrize("name", SCHEDULES)
def test_drawing_has_one_line_per_stage_of_equal_use(name):
    placement = placement_of(name, 4, virtual_pp(name))
    table = build_table(name, 4, 8, n_chunks=virtual_pp(name))
    lines = render(table, placement).splitlines()
    for stage, row in enumerate(table):
        assert lines[stage].startswith(f"stage {stage} | ")
        assert sum(cell[0] in "FBIWV" for cell in lines[stage].split(" | ")[1].split()) == len(row)
    assert "in flight per stage" in lines[-1]


def test_drawing_of_1f1b_is_golden():
    assert render(build_table("1f1b", 2, 3)).splitlines() == [
        "stage 0 | F0 F1 .. .. B0 == F2 B1 == .. B2 ==",
        "stage 1 | .. F0 B0 == F1 B1 == F2 B2 == .. ..",
        "",
        "F forward, B backward (2 units)",
        "12 units, 9 of work on the busiest stage; a stage idles at most 3 between its first and last action",
        "micro-batches in flight per stage: 2, 1",
    ]


# -- what schedules declare, against their tables ---------------------------------------------------------------------


def long_tables(name, n_stages=4):
    schedule = SCHEDULES[name]
    n_chunks = schedule.n_chunks or 2
    return [build_table(name, n_stages, n, n_chunks=n_chunks) for n in (16, 32)], n_chunks


@pytest.mark.parametrize("name", SCHEDULES)
def test_declared_properties_are_those_of_the_table(name):
    schedule = SCHEDULES[name]
    (short, long), n_chunks = long_tables(name)
    rows = [row for table in (short, long) for row in table]
    once = all(Counter(row) == Counter(dict.fromkeys(row, 1)) for row in rows)
    whole = all(
        len(row) == 2 * n_chunks * max(a.micro_batch + 1 for a in row) and {a.kind for a in row} == {"F", "B"}
        for row in rows
    )
    plain = whole and not any(action.is_paired for row in rows for action in row)
    assert schedule.ends_with_first_chunk == (
        once and plain and all((row[-1].kind, row[-1].chunk) == ("B", 0) for row in rows)
    )
    assert schedule.takes_turns == any(action.is_paired for row in rows for action in row)
    # 16 micro-batches are SATURATED_GROUPS for each of 4 stages
    assert schedule.saturates == (peak_in_flight(short, n_chunks) == peak_in_flight(long, n_chunks))


def test_only_the_schedules_that_megatron_and_deepspeed_ship_block():
    """megatron/core/pipeline_parallel/schedules.py and deepspeed/runtime/pipe/schedule.py: with and without interleaving, and GPipe."""
    assert {name for name, one in SCHEDULES.items() if one.blocks_sends} == {"1f1b", "1f1b-interleaved", "gpipe"}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_turns_in_their_order_end_when_the_table_does(name: str) -> None:
    """One pass over the turns is what :func:`execute` finds by waiting."""
    n_chunks = SCHEDULES[name].n_chunks or 2
    table = build_table(name, 4, 8, n_chunks=n_chunks)
    placement = placement_of(name, 4, n_chunks)
    ends: dict[tuple[int, int], float] = {}
    for turn in turns(table, placement):
        start = max((ends[place] for place in turn.after), default=0.0)
        for index in range(turn.first, turn.first + turn.n):
            ends[turn.stage, index] = start + turn.n
    wanted = execute(table, placement, lambda _: 1.0).ends
    assert ends == {(stage, i): end for stage, row in enumerate(wanted) for i, end in enumerate(row)}


@pytest.mark.parametrize(("name", "chunks"), [("1f1b", 1), ("1f1b-interleaved", 2), ("zb-1p", 1)])
def test_a_pipeline_that_drains_fills_anew(name, chunks):
    """Three calls of a schedule take three times what one takes, and hold no more at once."""
    once = build_table(name, 4, 8, n_chunks=chunks)
    thrice = build_table(name, 4, 24, n_chunks=chunks, n_at_once=8)
    placement = placement_of(name, 4, chunks)
    check(thrice, placement)
    assert peak_in_flight(thrice, chunks) == peak_in_flight(once, chunks)
    assert unit_time_execution(thrice, placement).makespan == 3 * unit_time_execution(once, placement).makespan
