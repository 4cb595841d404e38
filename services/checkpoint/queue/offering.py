"""Queued tasks for a coordinator: who waits is read, the rule says whose turn it is, and so many are taken of each.

The rule is tenure.domain.fairness. Nothing is locked while it is asked: of what two coordinators find at once each
takes other rows, and who comes too short for that looks again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from services.checkpoint.queries import QUEUE, fetch_all, fetch_one
from tenure.domain.errors import WrongState
from tenure.domain.fairness import UNBOUNDED, Line, Load, Waiting, share
from tenure.domain.quotas import QuotaKind
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Priority

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tenure.domain.slots import Slots
    from tenure.runtime.postgres import Connection


# How many tasks a tenant may have running: counted where a task begins to run, under a lock of the tenant's.


async def check_running_limit(connection: Connection, tenant: str) -> None:
    """Raises WrongState when the tenant has as many running as it may: whoever was granted the task is to let it go.

    To be called with the task's row locked. Two statements: the second one sees what was committed before the first
    one got the lock.
    """
    if await fetch_one(connection, QUEUE.lock_running, {"tenant": tenant}) is None:
        return
    row = await fetch_one(connection, QUEUE.count_running, {"tenant": tenant})
    if row is not None and row[1] >= row[0]:
        raise WrongState(
            f"the tenant has {row[1]} tasks running, of {row[0]} that it may have",
            reason=Reason.TENANT_QUOTA,
            metadata={"state": TaskState.QUEUED.value, "quota": QuotaKind.RUNNING_TASKS.value},
        )


MOST_TENANTS: Final = 256
"""Looked at at a time. Of more, each has its turn: an offer goes on where the one before it ended."""
MOST_STREAMS: Final = 1000
_MOST_COUNTED: Final = 1000
"""Tenants that have more running are alike."""
_LOOKS: Final = 8
"""At one page of tenants. Each but the last was of use, or found what another coordinator was taking."""
_FIRST: Final = ""
_MOST_KEPT: Final = 1000
_OfferKey = tuple[frozenset[str], frozenset[str], Priority]
"""The queues, the loops and the tier."""


class OfferRequest(NamedTuple):
    """What is asked for. Empty `queues` and `loops`: any. `deaths_below`: only tasks that killed fewer owners."""

    queues: Sequence[str]
    loops: Sequence[str]
    tiers: Sequence[Priority]
    worker_ids: Sequence[str]
    deaths_below: int
    reserve_seconds: float


class OfferedTask(NamedTuple):
    """A task that is kept for who asked. `policy`: a TaskPolicy; the workers are those an operator named, or ""."""

    task_id: str
    tenant: str
    queue: str
    priority: int
    loop: str
    epoch: int
    reason: str
    tools: list[str] | None
    deaths: int
    not_worker_id: str
    only_worker_id: str
    policy: bytes


@dataclass(slots=True)
class _Page:
    """Tenants after a place. `last`: where the page ends, None when there are none after it."""

    last: str | None
    waiting: list[Waiting]
    loads: dict[str, Load]


@dataclass(slots=True)
class Offering:
    """Remembers, for each tier of what is asked for that has more tenants than one look takes in, where to go on."""

    most_tenants: int = MOST_TENANTS
    _next: dict[_OfferKey, str] = field(default_factory=dict)

    async def offer(self, connection: Connection, wanted: OfferRequest, slots: Slots) -> list[OfferedTask]:
        """In the order in which they are to be served. In a transaction of the caller's."""
        picking = _Picking(connection, wanted, await _streams(connection, wanted), slots, self.most_tenants)
        if not picking.streams:
            return []
        first = await picking.look(wanted.tiers, _FIRST)
        if first.last is None:
            await picking.fill(wanted.tiers, _FIRST, first)
        else:
            for tier in sorted(wanted.tiers):
                await self._page_through(picking, (frozenset(wanted.queues), frozenset(wanted.loops), tier))
        return picking.offered

    async def _page_through(self, picking: _Picking, wanted: _OfferKey) -> None:
        """A tier with many tenants, from where the last offer to such workers ended, once around."""
        *_, tier = wanted
        begin = after = self._next.get(wanted, _FIRST)
        at_front = after == _FIRST
        while picking.slots.of(tier):
            page = await picking.look([tier], after)
            await picking.fill([tier], after, page)
            after = page.last or _FIRST
            if at_front and (after == _FIRST or _FIRST < begin <= after):
                break
            at_front = at_front or after == _FIRST
        self._keep(wanted, after)

    def _keep(self, wanted: _OfferKey, after: str) -> None:
        """Where to go on. Workers name queues as they like: forgotten, each begins at the front once more."""
        if len(self._next) >= _MOST_KEPT:
            self._next.clear()
        self._next[wanted] = after


class _Picking:
    """One offer in the making."""

    def __init__(
        self,
        connection: Connection,
        wanted: OfferRequest,
        streams: Sequence[tuple[str, str]],
        slots: Slots,
        most_tenants: int,
    ) -> None:
        self.slots = slots
        self.streams = streams
        self.offered: list[OfferedTask] = []
        self._connection = connection
        self._wanted = wanted
        self._most_tenants = most_tenants
        self._asked: dict[str, Any] = {
            "queues": [queue for queue, _ in streams],
            "loops": [loop for _, loop in streams],
            "worker_ids": list(wanted.worker_ids),
            "deaths_below": wanted.deaths_below,
        }

    async def look(self, tiers: Sequence[Priority], after: str) -> _Page:
        """The tenants after this one."""
        parameters = self._asked | {
            "priorities": [int(tier) for tier in tiers],
            "after": after,
            "limit": self.slots.any,
            "most_tenants": self._most_tenants,
            "most_counted": _MOST_COUNTED,
        }
        rows = await fetch_all(self._connection, QUEUE.waiting, parameters)
        page = _Page(rows[0][0], [], {})
        for _, priority, tenant, is_new, count, is_more, oldest, running, most in rows:
            if tenant is not None:
                line = Line(Priority(priority), tenant, is_new)
                page.waiting.append(Waiting(line, UNBOUNDED if is_more else count, oldest))
                page.loads[tenant] = Load(running, UNBOUNDED if most is None else most)
        return page

    async def fill(self, tiers: Sequence[Priority], after: str, page: _Page) -> None:
        """Takes from a page of tenants what there are places for, whoever else takes from it at the same time."""
        short: set[Line] = set()
        for look in range(_LOOKS):
            page = page if look == 0 else await self.look(tiers, after)
            lines = share((each for each in page.waiting if each.line not in short), page.loads, self.slots)
            if not lines:
                return
            missing = await self._take(lines)
            short.update(missing)
            if not missing and (self.slots.any == 0 or not _is_more(page, lines)):
                return

    async def _take(self, lines: Sequence[Line]) -> set[Line]:
        """Of each line as many as it comes up. Returns the lines that had fewer to give."""
        portions = list(Counter(lines).items())
        rows = await fetch_all(
            self._connection,
            QUEUE.take,
            self._asked
            | {
                "priorities": [int(line.tier) for line, _ in portions],
                "tenants": [line.tenant for line, _ in portions],
                "are_new": [line.is_new for line, _ in portions],
                "counts": [count for _, count in portions],
                "reserve_seconds": self._wanted.reserve_seconds,
            },
        )
        taken: dict[Line, deque[OfferedTask]] = defaultdict(deque)
        for place, _, *columns in sorted(rows, key=lambda row: row[:3]):  # RETURNING has no order
            taken[portions[place][0]].append(OfferedTask(*columns))
        missing = {line for line, count in portions if len(taken[line]) < count}
        for line in lines:
            if taken[line]:
                self.offered.append(taken[line].popleft())
                self.slots = self.slots.after(line.tier)
        return missing


def _is_more(page: _Page, lines: Sequence[Line]) -> bool:
    """Whether another look may find what this one left."""
    return len(lines) < sum(each.count for each in page.waiting)


async def _streams(connection: Connection, wanted: OfferRequest) -> list[tuple[str, str]]:
    """The queues and loops to take from, as pairs."""
    if wanted.queues and wanted.loops:
        return [(queue, loop) for queue in sorted(set(wanted.queues)) for loop in sorted(set(wanted.loops))]
    parameters = {"queues": list(wanted.queues), "loops": list(wanted.loops), "most": MOST_STREAMS}
    return [(queue, loop) for queue, loop in await fetch_all(connection, QUEUE.streams, parameters)]
