"""How many tasks can be taken, tier by tier: some places of a worker may be kept for the higher tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tenure.domain.task import Priority


@dataclass(frozen=True, slots=True)
class Slots:
    """`any`: for tasks of whatever tier. Of these `below_high` for NORMAL and LOW ones, `below_normal` for LOW ones."""

    any: int
    below_high: int
    below_normal: int

    @classmethod
    def open_to_all(cls, count: int) -> Slots:
        """So many, none kept for a tier."""
        return cls(count, count, count)

    def of(self, tier: Priority) -> int:
        """How many tasks of the tier can be taken."""
        return {Priority.HIGH: self.any, Priority.NORMAL: self.below_high, Priority.LOW: self.below_normal}[tier]

    def kept_for(self, tier: Priority) -> int:
        """How many are for the tier and those above it only."""
        below = {Priority.HIGH: self.below_high, Priority.NORMAL: self.below_normal, Priority.LOW: 0}
        return self.of(tier) - below[tier]

    def lowest_tier(self) -> Priority | None:
        """The lowest one that there is a place for."""
        return next((tier for tier in reversed(Priority) if self.of(tier)), None)

    def without(self, high: int = 0, normal: int = 0, low: int = 0) -> Slots:
        """What is left once so many of each tier were taken."""
        left = max(0, self.any - high - normal - low)
        below_high = max(0, min(self.below_high - normal - low, left))
        return Slots(left, below_high, max(0, min(self.below_normal - low, below_high)))

    def after(self, tier: Priority) -> Slots:
        """What is left once one of the tier was taken."""
        return self.without(tier is Priority.HIGH, tier is Priority.NORMAL, tier is Priority.LOW)

    def at_most(self, count: int) -> Slots:
        """Of these places so many."""
        return Slots(min(self.any, count), min(self.below_high, count), min(self.below_normal, count))

    def __add__(self, other: Slots) -> Slots:
        return Slots(self.any + other.any, self.below_high + other.below_high, self.below_normal + other.below_normal)


NO_SLOTS = Slots(0, 0, 0)


@dataclass(frozen=True, slots=True)
class ReservedSlots:
    """How many of a worker's slots are kept for HIGH tasks, and how many more for NORMAL and HIGH ones."""

    high: int = 0
    normal: int = 0

    def slots(self, slots: int, held: Mapping[Priority, int]) -> Slots:
        """What a worker with so many slots can take. What it holds of a tier fills that tier's own slots first."""
        everybody = Slots(slots, slots - self.high, slots - self.high - self.normal)
        counts = {tier: held.get(tier, 0) for tier in Priority}
        return everybody.without(counts[Priority.HIGH], counts[Priority.NORMAL], counts[Priority.LOW])
