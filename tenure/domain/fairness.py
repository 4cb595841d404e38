"""Whose task goes next: by tier; inside a tier fair between tenants; of one tenant what was begun, then age.

A tenant's share is what it has running. Each place goes to the tenant with the fewest tasks running or on their way to
a worker, those of this round included; among equals to the oldest task. So however much one tenant has queued, the
first task of another is in the very next round.

What was begun goes before what is new, with one exception: the first task of a tenant that has nothing running is
served along with it. Otherwise a tenant whose tasks wait and wake all the time would keep the others out for ever.
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
    """The tasks of one tier and tenant that are new, or those that were begun before."""

    tier: Priority
    tenant: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """Who stands in a line: `count` tasks, UNBOUNDED when nobody counted to the end; the first is from `oldest`."""

    line: Line
    count: int
    oldest: datetime


@dataclass(frozen=True, slots=True)
class Load:
    """How many tasks a tenant has running or on their way to a worker, and may have at most."""

    running: int = 0
    most: int = UNBOUNDED


def share(waiting: Iterable[Waiting], loads: Mapping[str, Load], slots: Slots) -> list[Line]:
    """The line that each place goes to, in the order of serving. No line comes up more often than it has tasks."""
    by_tier: dict[Priority, list[Waiting]] = {}
    for each in waiting:
        by_tier.setdefault(each.line.tier, []).append(each)
    given: list[Line] = []
    taken: Counter[str] = Counter()
    for tier in sorted(by_tier):
        served = _serve(by_tier[tier], loads, taken)
        while slots.of(tier) and (line := next(served, None)) is not None:
            slots = slots.after(tier)
            given.append(line)
            taken[line.tenant] += 1
    return given


class _Turn(NamedTuple):
    """A tenant's next task. Turns are taken in the order of these; no two are of one tenant."""

    behind: bool
    running: int
    is_new: bool
    oldest: datetime
    tenant: str
    line: Line


def _serve(waiting: Iterable[Waiting], loads: Mapping[str, Load], taken: Mapping[str, int]) -> Iterator[Line]:
    """Lines of one tier, a place at a time. The caller counts in `taken` what it took before it asks for the next."""
    lines: dict[str, list[Waiting]] = {}
    for each in sorted(waiting, key=lambda one: one.line.is_new, reverse=True):
        lines.setdefault(each.line.tenant, []).append(each)  # the line to be served first comes last
    left = {each.line: each.count for each in waiting}
    turns = [turn for tenant in lines for turn in _turn(tenant, lines[tenant], loads, taken)]
    heapq.heapify(turns)
    while turns:
        turn = heapq.heappop(turns)
        yield turn.line
        left[turn.line] -= 1
        if not left[turn.line]:
            lines[turn.tenant].pop()
        for following in _turn(turn.tenant, lines[turn.tenant], loads, taken):
            heapq.heappush(turns, following)


def _turn(tenant: str, lines: list[Waiting], loads: Mapping[str, Load], taken: Mapping[str, int]) -> Iterator[_Turn]:
    """The tenant's next turn, if it may have one."""
    load = loads.get(tenant, Load())
    running = load.running + taken.get(tenant, 0)
    if lines and running < load.most:
        line, oldest = lines[-1].line, lines[-1].oldest
        yield _Turn(line.is_new and running > 0, running, line.is_new, oldest, tenant, line)
