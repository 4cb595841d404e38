"""Places for tasks, tier by tier."""

from __future__ import annotations

from tenure.domain.places import Places
from tenure.v1 import task_pb2


def places_to_domain(count: int, lower: task_pb2.LowerTiers | None) -> Places:
    """`lower` None: all are for whatever tier."""
    if lower is None:
        return Places.open_to_all(count)
    below_high = min(count, lower.below_high)
    return Places(count, below_high, min(below_high, lower.below_normal))


def lower_tiers(places: Places) -> task_pb2.LowerTiers | None:
    """None when no place is kept for a tier."""
    if places == Places.open_to_all(places.any):
        return None
    return task_pb2.LowerTiers(below_high=places.below_high, below_normal=places.below_normal)
