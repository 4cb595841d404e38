"""Implements the fair queue: the order in which waiting tasks get free slots.

The order is by tier, except for the floor of the lower tiers: of every 20 slots (`FLOOR_SLOTS`) one goes to a LOW task
and one to a NORMAL task first, if such a task waits. Otherwise a steady load of HIGH tasks would lock the lower tiers
out forever. The floor counts slots, not age: after a jam, a large backlog of LOW tasks is old as a whole, and age would
put all of it before the HIGH tasks.

Within a tier the order is fair between the tenants, then begun tasks before new tasks of a tenant, then by
age. A tenant's share is the number of its tasks that run. Each slot goes to the tenant with the fewest tasks that run
or are on their way to a worker, including the tasks served in this round; between equal tenants, the oldest task is
first. So the first task of a tenant is served in the next round, however many tasks another tenant has queued.

Begun tasks of all tenants go before new tasks, with one exception: the first task of a tenant without running tasks has
the same rank as begun tasks. Otherwise a tenant whose tasks wait and continue all the time would lock the other tenants
out forever.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from tenure.domain.task import Priority

UNBOUNDED: Final = 2**31
FLOOR_SLOTS: Final = 20
"""The default: of so many slots, each lower tier gets one."""


class Line(NamedTuple):
    """Names the waiting tasks of one tier and tenant: either the new tasks, or the tasks that were begun before."""

    tier: Priority
    tenant: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """The waiting tasks of a line.

    `count`: the number of tasks, or UNBOUNDED if the count stopped early. `oldest`: the time of the first task.
    """

    line: Line
    count: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Load:
    """The number of a tenant's tasks that run or are on their way to a worker, and the tenant's limit (`most`)."""

    running: int = 0
    most: int = UNBOUNDED


class Portion(NamedTuple):
    """Gives up to `most` slots to tasks of a tier."""

    tier: Priority
    most: int


def order_of_tiers(tiers: Collection[Priority], position: int, slots: int, floor_slots: int) -> list[Portion]:
    """Returns whose tasks get the next `slots` slots: first the floors of the lower tiers, then tier by tier.

    `position`: the number of slots given before. `floor_slots`: 0 for a strict order of tiers, else at least 2: the
    last of so many slots is the floor of LOW, the one before it the floor of NORMAL.
    """
    strict = [Portion(tier, UNBOUNDED) for tier in sorted(tiers)]
    if not floor_slots:
        return strict

    def floor(place: int) -> int:
        before = floor_slots - 1 - place
        return (position + slots + before) // floor_slots - (position + before) // floor_slots

    places = {Priority.LOW: floor_slots - 1, Priority.NORMAL: floor_slots - 2}
    first = [Portion(tier, floor(place)) for tier, place in places.items() if tier in tiers]
    return [*(portion for portion in first if portion.most), *strict]


def share(
    waiting: Iterable[Waiting], loads: Mapping[str, Load], slots: Slots, portions: Iterable[Portion]
) -> list[Line]:
    """Returns the line that gets each slot, in the order of serving. A line occurs at most as often as it has tasks."""
    by_tier: dict[Priority, list[Waiting]] = {}
    for tasks in waiting:
        by_tier.setdefault(tasks.line.tier, []).append(tasks)
    remaining = {tasks.line: tasks.count for lines in by_tier.values() for tasks in lines}
    served: list[Line] = []
    taken: Counter[str] = Counter()
    for tier, most in portions:
        lines = islice(_serve(by_tier.get(tier, []), remaining, loads, taken), most)
        while slots.of(tier) and (line := next(lines, None)) is not None:
            slots = slots.after(tier)
            served.append(line)
            taken[line.tenant] += 1
            remaining[line] -= 1
    return served


def without_served(portions: Iterable[Portion], served: Iterable[Line]) -> list[Portion]:
    """Returns the portions that are left when the lines were served."""
    counts = Counter(line.tier for line in served)
    left = []
    for tier, most in portions:
        left.append(Portion(tier, most - min(most, counts[tier])))
        counts[tier] -= most - left[-1].most
    return left


def has_share(free: int, of_tenant: int, own_of_tenant: int | None = None) -> bool:
    """Returns whether a tenant may have one call more in a room that all tenants share.

    A tenant may hold as many calls as are left free (a dynamic threshold, Choudhury and Hahne 1998): alone it gets half
    of the room, beside one equal a third, and some room is always left for the first call of another one.
    `own_of_tenant`: how many of its calls its own workers run, if this is such a call. They may take hours, and get
    half as much, so that the tenant's other calls find room.
    """
    return of_tenant < free and (own_of_tenant is None or 2 * own_of_tenant < free)


class _NextTask(NamedTuple):
    """The next task of a tenant. The smallest one is served first. Each tenant has at most one.

    `is_behind`: whether the task goes after all begun tasks: it is new, and its tenant has running tasks.
    """

    is_behind: bool
    running: int
    is_new: bool
    oldest: datetime
    tenant: str
    line: Line


def _serve(
    waiting: Iterable[Waiting], remaining: Mapping[Line, int], loads: Mapping[str, Load], taken: Mapping[str, int]
) -> Iterator[Line]:
    """Yields a line of one tier for each slot. The caller counts each served task in `taken` and `remaining` before it
    asks for the next one.
    """
    by_tenant: dict[str, list[Waiting]] = {}
    for tasks in sorted(waiting, key=lambda tasks: tasks.line.is_new, reverse=True):
        if remaining[tasks.line]:  # begun tasks last: the list is served from its end
            by_tenant.setdefault(tasks.line.tenant, []).append(tasks)
    heap = [task for tenant in by_tenant for task in _next_task(tenant, by_tenant[tenant], loads, taken)]
    heapq.heapify(heap)
    while heap:
        task = heapq.heappop(heap)
        yield task.line
        if not remaining[task.line]:
            by_tenant[task.tenant].pop()
        for following in _next_task(task.tenant, by_tenant[task.tenant], loads, taken):
            heapq.heappush(heap, following)


def _next_task(
    tenant: str, lines: list[Waiting], loads: Mapping[str, Load], taken: Mapping[str, int]
) -> Iterator[_NextTask]:
    """Yields the tenant's next task, unless the tenant has no task left or reached its limit."""
    load = loads.get(tenant, Load())
    running = load.running + taken.get(tenant, 0)
    if lines and running < load.most:
        line, oldest = lines[-1].line, lines[-1].oldest
        yield _NextTask(line.is_new and running > 0, running, line.is_new, oldest, tenant, line)


# Counts free slots by tier: a worker may reserve some of its slots for the higher tiers.


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
