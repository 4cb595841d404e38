"""Decides which webhooks get the sender leases of a replica, so that the webhooks of one tenant do not keep all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SHARE: Final = 3
"""A tenant holds at most this many times the leases that are free: alone it gets three quarters of all, and a tenant
that comes later finds some free.
"""


def chosen(due: Sequence[str], held: Iterable[str], free: int) -> list[int]:
    """Returns the indexes of the due webhooks that get a lease now, of the tenants with the fewest leases first.

    `due`: their tenants, those that have waited longest first. `held`: the tenants of the leases that run.
    """
    counts = Counter(held)
    places = []
    for index, tenant in enumerate(due):
        counts[tenant] += 1
        places.append((counts[tenant], index))
    taken = []
    for place, index in sorted(places):
        if place > SHARE * free:
            break  # all that follow would pass their shares, too
        taken.append(index)
        free -= 1
    return taken


def surplus(held: Sequence[str], wanted: int) -> list[int]:
    """Returns the indexes of the leases that end for others that wait: the oldest of the tenants with the most leases.

    `held`: the tenants of the leases, the oldest first.
    """
    counts = Counter(held)
    oldest = {tenant: [index for index, one in enumerate(held) if one == tenant] for tenant in counts}
    ending = []
    for _ in range(min(wanted, len(held))):
        tenant = max(counts, key=lambda one: counts[one])
        ending.append(oldest[tenant][len(oldest[tenant]) - counts[tenant]])
        counts[tenant] -= 1
    return ending
