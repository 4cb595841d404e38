"""Whose task goes next."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.fairness import UNBOUNDED, Line, Load, Slots, Waiting, has_share, order_of_tiers, share
from tenure.domain.task import Priority

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW
BEGAN = datetime(2026, 11, 22, tzinfo=UTC)


def waiting(tenant: str, count: int = 1, age: int = 0, *, tier: Priority = NORMAL, begun: bool = False) -> Waiting:
    """`age`: the higher, the older."""
    return Waiting(Line(tier, tenant, not begun), count, BEGAN - timedelta(seconds=age))


def strictly(some: list[Waiting], loads: dict[str, Load], slots: Slots) -> list[Line]:
    """The lines that are served where no tier has a floor."""
    return share(some, loads, slots, order_of_tiers(list(Priority), 0, slots.any, 0))


def served(some: list[Waiting], places: int, loads: dict[str, Load] | None = None) -> str:
    """The tenants in the order they are served in; what was begun in capitals."""
    lines = strictly(some, loads or {}, Slots.open_to_all(places))
    return "".join(line.tenant if line.is_new else line.tenant.upper() for line in lines)


def test_a_large_tenant_delays_another_by_one_slot_at_most() -> None:
    assert served([waiting("a", 10_000, age=9), waiting("b", 1)], 4) == "abaa"
    assert served([waiting("a", 10_000, age=9), waiting("b", 1)], 1, {"a": Load(1)}) == "b"


def test_tenant_with_fewest_running_tasks_is_served() -> None:
    loads = {"a": Load(4), "b": Load(1), "c": Load(2)}
    assert served([waiting("a", 9, age=9), waiting("b", 9), waiting("c", 9)], 7, loads) == "bbcbcab"


def test_among_equals_the_oldest_is_first() -> None:
    assert served([waiting("a", age=1), waiting("b", age=3), waiting("c", age=2)], 2) == "bc"


def test_begun_tasks_precede_new_ones() -> None:
    assert served([waiting("a", 9, age=9), waiting("a", 2, begun=True)], 4) == "AAaa"
    loads = {"a": Load(5), "b": Load(1)}
    assert served([waiting("a", 2, begun=True), waiting("b", 2, age=9)], 4, loads) == "AAbb"


def test_an_idle_tenant_is_not_kept_out_by_others() -> None:
    assert served([waiting("a", UNBOUNDED, begun=True), waiting("b", 5, age=9)], 4) == "AbAA"
    assert served([waiting("a", UNBOUNDED, begun=True), waiting("b", 5, age=9)], 1, {"a": Load(1)}) == "b"


def test_tiers_go_before_everything() -> None:
    some = [waiting("a", 9, age=9, begun=True), waiting("b", 2, tier=HIGH), waiting("c", 9, tier=LOW, age=99)]
    assert served(some, 3, {"b": Load(50)}) == "bbA"


def test_running_limit_of_a_tenant_is_kept() -> None:
    loads = {"a": Load(1, most=3), "b": Load(7, most=5)}
    assert served([waiting("a", 9), waiting("a", 1, begun=True), waiting("b", 9, begun=True)], 9, loads) == "Aa"
    some = [waiting("a", 2, tier=HIGH), waiting("a", 9, tier=LOW)]
    assert served(some, 9, {"a": Load(0, most=3)}) == "aaa"


def test_reserved_slots_stay_free() -> None:
    some = [waiting("h", 1, tier=HIGH), waiting("n", 9), waiting("l", 9, tier=LOW)]
    assert [line.tenant for line in strictly(some, {}, Slots(6, 4, 1))] == list("hnnnn")
    assert [line.tenant for line in strictly([waiting("n", 2), waiting("l", 9, tier=LOW)], {}, Slots(6, 4, 1))] == list(
        "nnl"
    )


def given_slots(some: list[Waiting], rounds: list[int], floor_slots: int) -> list[Priority]:
    """The tiers of the tasks that get slots, in order, while every line keeps waiting; `rounds`: the slots of each."""
    tiers: list[Priority] = []
    for slots in rounds:
        portions = order_of_tiers(list(Priority), len(tiers), slots, floor_slots)
        tiers += [line.tier for line in share(some, {}, Slots.open_to_all(slots), portions)]
    return tiers


ALL_WAIT = [waiting("h", UNBOUNDED, tier=HIGH), waiting("n", UNBOUNDED), waiting("l", UNBOUNDED, tier=LOW)]


def test_endless_high_tasks_leave_lower_tiers_their_floor() -> None:
    tiers = given_slots(ALL_WAIT, [1] * 100, 20)
    assert Counter(tiers) == {HIGH: 90, NORMAL: 5, LOW: 5}
    assert tiers[:20] == [HIGH] * 18 + [NORMAL, LOW]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=30), st.integers(2, 40))
def test_a_floor_is_as_high_however_slots_are_batched(rounds: list[int], floor_slots: int) -> None:
    tiers = given_slots(ALL_WAIT, rounds, floor_slots)
    slots, rest = divmod(sum(rounds), floor_slots)
    assert Counter(tiers)[LOW] == slots
    assert Counter(tiers)[NORMAL] == slots + (rest == floor_slots - 1)


def test_the_floor_of_a_tier_that_does_not_wait_is_used() -> None:
    assert given_slots(ALL_WAIT[:1], [7, 40, 1], 2) == [HIGH] * 48
    assert given_slots(ALL_WAIT[1:], [1] * 4, 2) == [NORMAL, LOW] * 2


def test_without_a_floor_the_order_of_tiers_is_strict() -> None:
    assert given_slots(ALL_WAIT, [50, 1, 50], 0) == [HIGH] * 101


def test_a_floor_takes_no_slot_reserved_for_higher_tiers() -> None:
    portions = order_of_tiers(list(Priority), 0, 40, 2)
    lines = share(ALL_WAIT, {}, Slots(40, 6, 2), portions)
    assert Counter(line.tier for line in lines) == {HIGH: 34, NORMAL: 4, LOW: 2}


def test_a_floor_exceeds_no_limit_of_a_tenant() -> None:
    some = [waiting("a", 9, tier=HIGH), waiting("a", 9, tier=LOW)]
    lines = share(some, {"a": Load(0, most=3)}, Slots.open_to_all(9), order_of_tiers(list(Priority), 0, 9, 9))
    assert [line.tier for line in lines] == [LOW, HIGH, HIGH]


LINES = st.lists(
    st.tuples(st.sampled_from("abcd"), st.booleans(), st.integers(1, 6), st.integers(0, 3)),
    unique_by=lambda one: one[:2],
    max_size=8,
)


@settings(deadline=None)
@given(LINES, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5)), st.integers(1, 12))
def test_no_slot_stays_free_while_a_tenant_waits(some: Any, running: Any, places: int) -> None:
    requests = [waiting(tenant, count, age, begun=begun) for tenant, begun, count, age in some]
    lines = strictly(requests, {tenant: Load(count) for tenant, count in running.items()}, Slots.open_to_all(places))
    assert len(lines) == min(places, sum(each.count for each in requests))
    assert all(count <= next(w.count for w in requests if w.line == line) for line, count in Counter(lines).items())
    got = Counter(line.tenant for line in lines)
    idle = {tenant for tenant, *_ in some if not running.get(tenant)}
    for left_out in idle - got.keys():
        assert all(running.get(tenant, 0) + count <= 1 for tenant, count in got.items()), left_out


@settings(deadline=None)
@given(LINES, st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5)), st.integers(1, 12))
def test_one_round_equals_rounds_of_one_slot(some: Any, running: Any, places: int) -> None:
    """Nothing is better for a tenant because a coordinator has more slots to fill."""
    left = {Line(NORMAL, tenant, not begun): (count, age) for tenant, begun, count, age in some}

    def standing(line: Line) -> Waiting:
        return waiting(line.tenant, left[line][0], left[line][1], begun=not line.is_new)

    loads = {tenant: Load(count) for tenant, count in running.items()}
    at_once = strictly([standing(line) for line in left], loads, Slots.open_to_all(places))
    singly: list[Line] = []
    for _ in range(places):
        for line in strictly([standing(one) for one in left if left[one][0]], loads, Slots.open_to_all(1)):
            singly.append(line)
            left[line] = (left[line][0] - 1, left[line][1])
            loads[line.tenant] = Load(loads.get(line.tenant, Load()).running + 1)
    assert singly == at_once


@pytest.mark.parametrize(("tenants", "expected"), [(1, 50), (2, 33), (3, 25), (9, 10)])
def test_greedy_tenants_leave_an_equal_part_free(tenants: int, expected: int) -> None:
    held = dict.fromkeys(range(tenants), 0)
    while hungry := [one for one in held if has_share(100 - sum(held.values()), held[one])]:
        held[min(hungry, key=lambda one: held[one])] += 1
    assert set(held.values()) <= {expected, expected + 1}
    assert has_share(100 - sum(held.values()), 0)


def test_own_calls_leave_room_for_their_tenants_others() -> None:
    own = 0
    while has_share(100 - own, own, own):
        own += 1
    assert own == 34
    assert has_share(100 - own, own)
