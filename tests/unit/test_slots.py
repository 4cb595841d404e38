"""How many tasks of which tier can be taken."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tenure.domain.fairness import NO_SLOTS, ReservedSlots, Slots
from tenure.domain.task import Priority
from tenure.wire.coordinator_service import lower_tiers, slots_to_domain

HIGH, NORMAL, LOW = Priority.HIGH, Priority.NORMAL, Priority.LOW


def test_the_last_slots_are_kept_for_higher_tiers() -> None:
    reserved = ReservedSlots(high=1, normal=1)
    assert reserved.slots(4, {}) == Slots(4, 3, 2)
    assert reserved.slots(4, {LOW: 2}) == Slots(2, 1, 0)
    assert reserved.slots(4, {LOW: 2, NORMAL: 1}) == Slots(1, 0, 0)
    assert reserved.slots(4, {LOW: 2, NORMAL: 1, HIGH: 1}) == NO_SLOTS


def test_held_tasks_use_their_reserved_slots_first() -> None:
    reserved = ReservedSlots(high=2)
    assert reserved.slots(4, {HIGH: 2}) == Slots(2, 2, 2)
    assert reserved.slots(4, {HIGH: 3}) == Slots(1, 1, 1)
    assert reserved.slots(4, {HIGH: 1}) == Slots(3, 2, 2)


def test_reserved_slots_stay_when_slots_are_in_backoff() -> None:
    assert ReservedSlots(high=1).slots(1, {}) == Slots(1, 0, 0)
    assert ReservedSlots(high=3).slots(1, {}) == Slots(1, 0, 0)


@settings(deadline=None)
@given(st.integers(0, 8), st.integers(0, 3), st.integers(0, 3), st.lists(st.sampled_from(list(Priority)), max_size=9))
def test_taking_one_by_one_equals_holding(slots: int, high: int, normal: int, tiers: list[Any]) -> None:
    reserved = ReservedSlots(high, normal)
    held = Counter[Priority]()
    places = reserved.slots(slots, held)
    for tier in tiers:
        if not places.of(tier):
            continue
        held[tier] += 1
        places = places.after(tier)
        assert places == reserved.slots(slots, held)
        assert held[LOW] <= max(0, slots - high - normal)
        assert held[LOW] + held[NORMAL] <= max(0, slots - high)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
def test_slots_survive_the_wire(count: int, kept_for_high: int, kept_for_normal: int) -> None:
    below_high = max(0, count - kept_for_high)
    places = Slots(count, below_high, max(0, below_high - kept_for_normal))
    assert slots_to_domain(places.any, lower_tiers(places)) == places
