"""Counts free slots by tier: a worker may reserve some of its slots for the higher tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.domain.task import Priority


@dataclass(frozen=True, slots=True)
class Slots:
    """Free slots. `any`: all of them. `below_high` of them take NORMAL tasks, and `below_normal` of those LOW tasks."""

    any: int
    below_high: int
    below_normal: int

    @classmethod
    def open_to_all(cls, count: int) -> Slots:
        """Returns `count` slots, none of them reserved for a tier."""
        return cls(count, count, count)

    def of(self, tier: Priority) -> int:
        """Returns the number of slots that take tasks of the tier."""
        return {Priority.HIGH: self.any, Priority.NORMAL: self.below_high, Priority.LOW: self.below_normal}[tier]

    def kept_for(self, tier: Priority) -> int:
        """Returns the number of slots that take tasks of the tier and of higher tiers only."""
        below = {Priority.HIGH: self.below_high, Priority.NORMAL: self.below_normal, Priority.LOW: 0}
        return self.of(tier) - below[tier]

    def lowest_tier(self) -> Priority | None:
        """Returns the lowest tier with a free slot, or None."""
        return next((tier for tier in reversed(Priority) if self.of(tier)), None)

    def without(self, high: int = 0, normal: int = 0, low: int = 0) -> Slots:
        """Returns the slots that are left when `high`, `normal` and `low` tasks of these tiers have taken theirs."""
        remaining = max(0, self.any - high - normal - low)
        below_high = max(0, min(self.below_high - normal - low, remaining))
        return Slots(remaining, below_high, max(0, min(self.below_normal - low, below_high)))

    def after(self, tier: Priority) -> Slots:
        """Returns the slots that are left when one task of the tier has taken its slot."""
        return self.without(tier is Priority.HIGH, tier is Priority.NORMAL, tier is Priority.LOW)

    def at_most(self, count: int) -> Slots:
        """Returns these slots, limited to `count` for each tier."""
        return Slots(min(self.any, count), min(self.below_high, count), min(self.below_normal, count))

    def __add__(self, other: Slots) -> Slots:
        return Slots(self.any + other.any, self.below_high + other.below_high, self.below_normal + other.below_normal)


NO_SLOTS = Slots(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """A worker's reserved slots: `high` of them for HIGH tasks, and `normal` more for HIGH and NORMAL tasks."""

    high: int = 0
    normal: int = 0

    def slots(self, slots: int, held: Mapping[Priority, int]) -> Slots:
        """Returns the free slots of a worker with `slots` slots. Held tasks first fill their own tier's reserve."""
        all_slots = Slots(slots, slots - self.high, slots - self.high - self.normal)
        counts = {tier: held.get(tier, 0) for tier in Priority}
        return all_slots.without(counts[Priority.HIGH], counts[Priority.NORMAL], counts[Priority.LOW])
