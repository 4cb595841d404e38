"""Places for tasks, tier by tier."""

from __future__ import annotations

from tenure.domain.slots import Slots
from tenure.v1 import task_pb2


def slots_to_domain(count: int, lower: task_pb2.LowerTiers | None) -> Slots:
    """`lower` None: all are for whatever tier."""
    if lower is None:
        return Slots.open_to_all(count)
    below_high = min(count, lower.below_high)
    return Slots(count, below_high, min(below_high, lower.below_normal))


def lower_tiers(slots: Slots) -> task_pb2.LowerTiers | None:
    """None when no place is kept for a tier."""
    if slots == Slots.open_to_all(slots.any):
        return None
    return task_pb2.LowerTiers(below_high=slots.below_high, below_normal=slots.below_normal)
