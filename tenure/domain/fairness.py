"""Implements the fair queue: the order in which waiting tasks get free slots.

The order is by tier, then fair between the tenants of a tier, then begun tasks before new tasks of a tenant, then by
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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple

from tenure.domain.slots import Slots
from tenure.domain.task import Priority

UNBOUNDED: Final = 2**31


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


def share(waiting: Iterable[Waiting], loads: Mapping[str, Load], slots: Slots) -> list[Line]:
    """Returns the line that gets each slot, in the order of serving. A line occurs at most as often as it has tasks."""
    by_tier: dict[Priority, list[Waiting]] = {}
    for tasks in waiting:
        by_tier.setdefault(tasks.line.tier, []).append(tasks)
    served: list[Line] = []
    taken: Counter[str] = Counter()
    for tier in sorted(by_tier):
        lines = _serve(by_tier[tier], loads, taken)
        while slots.of(tier) and (line := next(lines, None)) is not None:
            slots = slots.after(tier)
            served.append(line)
            taken[line.tenant] += 1
    return served


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


def _serve(waiting: Iterable[Waiting], loads: Mapping[str, Load], taken: Mapping[str, int]) -> Iterator[Line]:
    """Yields a line of one tier for each slot. The caller counts each served task in `taken` before the next one."""
    by_tenant: dict[str, list[Waiting]] = {}
    for tasks in sorted(waiting, key=lambda tasks: tasks.line.is_new, reverse=True):
        by_tenant.setdefault(tasks.line.tenant, []).append(tasks)  # begun tasks last: the list is served from its end
    remaining = {tasks.line: tasks.count for tasks in waiting}
    heap = [task for tenant in by_tenant for task in _next_task(tenant, by_tenant[tenant], loads, taken)]
    heapq.heapify(heap)
    while heap:
        task = heapq.heappop(heap)
        yield task.line
        remaining[task.line] -= 1
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
