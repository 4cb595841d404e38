"""Converts the slots of a worker, tier by tier."""

from __future__ import annotations

from tenure.domain.fairness import Slots
from tenure.v1 import task_pb2


def slots_to_domain(count: int, lower: task_pb2.LowerTiers | None) -> Slots:
    """Converts slots. `lower` None: every tier may use all slots."""
    if lower is None:
        return Slots.open_to_all(count)
    below_high = min(count, lower.below_high)
    return Slots(count, below_high, min(below_high, lower.below_normal))


def lower_tiers(slots: Slots) -> task_pb2.LowerTiers | None:
    """Returns the slots that lower tiers may use, or None when no slot is reserved for a higher tier."""
    if slots == Slots.open_to_all(slots.any):
        return None
    return task_pb2.LowerTiers(below_high=slots.below_high, below_normal=slots.below_normal)
