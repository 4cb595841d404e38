"""Offers queued tasks to a coordinator: reads the waiting tenants, orders them by fairness, and takes a share of each.

The order is that of tenure.domain.fairness. The reads lock nothing: when two coordinators read the same tasks at once,
each takes other rows, and a coordinator that gets too few reads again.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from services.checkpoint.queries import QUEUE, fetch_all
from tenure.domain.errors import WrongState
from tenure.domain.fairness import (
    FLOOR_SLOTS,
    UNBOUNDED,
    Line,
    Load,
    Portion,
    Slots,
    Waiting,
    order_of_tiers,
    share,
    without_served,
)
from tenure.domain.quotas import QuotaKind
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import Priority
from tenure.runtime.store.postgres import Connection

# The quota of running tasks: counted where a task begins to run, under a lock of the tenant's row.


@dataclass(slots=True)
class RunningLimits:
    """The running tasks and the quotas of the tenants that have one, locked until the transaction ends."""

    most: dict[str, int] = field(default_factory=dict)
    running: dict[str, int] = field(default_factory=dict)

    def take(self, tenant: str) -> WrongState | None:
        """Counts one more running task, or returns the refusal: then the worker must release the task."""
        most, running = self.most.get(tenant), self.running.get(tenant, 0)
        if most is None or running < most:
            self.running[tenant] = running + 1
            return None
        return WrongState(
            f"the tenant has {running} tasks running, its quota is {most}: release the task",
            reason=Reason.TENANT_QUOTA,
            metadata={"state": TaskState.QUEUED.value, "quota": QuotaKind.RUNNING_TASKS.value},
        )


async def lock_running_limits(connection: Connection, tenants: Collection[str]) -> RunningLimits:
    """Locks and returns the quotas of these tenants.

    Call it with the task rows locked. It needs two statements: the second one sees what was committed before the first
    one got its locks.
    """
    limits = RunningLimits()
    if not tenants:
        return limits
    locked = await fetch_all(connection, QUEUE.lock_running, {"tenants": list(tenants)})
    if locked:
        for tenant, most, running in await fetch_all(
            connection, QUEUE.count_running, {"tenants": [tenant for tenant, _ in locked]}
        ):
            limits.most[tenant], limits.running[tenant] = most, running
    return limits


UNOPENED_SECONDS: Final = 5.0
"""How long no coordinator is offered again a task whose newest grant its worker has not opened."""
MAX_TENANTS: Final = 256
"""Tenants that one read covers. With more tenants, an offer begins where the last one ended."""
MAX_STREAMS: Final = 1000
_MAX_COUNTED: Final = 1000
"""Tenants with more running tasks than this count as equal."""
_LOOKS: Final = 8
"""Reads of one page of tenants. Each but the last took tasks, or found tasks that another coordinator was taking."""
_FIRST: Final = ""
_MAX_KEPT: Final = 1000
_Pool = tuple[frozenset[str], frozenset[str], frozenset[str]]
"""(queues, loops, tenants) of the workers that an offer is for."""


class OfferRequest(NamedTuple):
    """A coordinator's request. Empty `queues`, `loops` or `tenants`: any. `deaths_below`: only tasks that fewer owners
    died with.
    """

    queues: Sequence[str]
    loops: Sequence[str]
    tiers: Sequence[Priority]
    worker_ids: Sequence[str]
    deaths_below: int
    reserve_seconds: float
    tenants: Sequence[str] = ()


class OfferedTask(NamedTuple):
    """A task that is reserved for the requesting coordinator.

    `policy`: a serialized TaskPolicy. `not_worker_id`, `only_worker_id`: from an operator's transfer, or "". `tree`,
    `conversation`, `source`: see `TaskScopes`. `approved_calls`: as TokenClaims.approvals has them, also of calls that
    are not open any more. `plans`: serialized, those of its tree that are in force.
    """

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
    agent: str
    tree: str
    conversation: str
    source: str
    labels: dict[str, str]
    approved_calls: list[str]
    open_calls: list[str]
    plans: list[bytes]


@dataclass(slots=True)
class _Page:
    """The tenants after a position. `last`: the last tenant of the page, None when no tenant follows."""

    last: str | None
    waiting: list[Waiting]
    loads: dict[str, Load]


@dataclass(slots=True)
class Offering:
    """Makes offers. Remembers for each pool of workers how many slots it offered, which decides when a lower tier gets
    one, and for each tier with more tenants than one read covers, where the next offer begins.

    The memory is this process's own: with several replicas the floors are as high, but not evenly spread.
    """

    most_tenants: int = MAX_TENANTS
    floor_slots: int = FLOOR_SLOTS
    _offered: Counter[_Pool] = field(default_factory=Counter)
    _next: dict[tuple[_Pool, Priority], str] = field(default_factory=dict)

    async def offer(self, connection: Connection, wanted: OfferRequest, slots: Slots) -> list[OfferedTask]:
        """Returns offers in the order in which to serve them. Runs in the caller's transaction."""
        streams = await _streams(connection, wanted)
        if not streams:
            return []
        pool = (frozenset(wanted.queues), frozenset(wanted.loops), frozenset(wanted.tenants))
        portions = order_of_tiers(wanted.tiers, self._offered[pool], slots.any, self.floor_slots)
        picking = _Picking(connection, wanted, streams, slots, self.most_tenants)
        first = await picking.look(wanted.tiers, _FIRST)
        if first.last is None:
            await picking.fill(portions, _FIRST, first)
        else:
            for portion in portions:
                await self._page_through(picking, pool, portion)
        self._keep(self._offered, pool, self._offered[pool] + len(picking.offered))
        return picking.offered

    async def _page_through(self, picking: _Picking, pool: _Pool, portion: Portion) -> None:
        """Pages once through a tier with many tenants, from where the last offer for such workers ended."""
        tier = portion.tier
        begin = after = self._next.get((pool, tier), _FIRST)
        at_front = after == _FIRST
        while portion.most and picking.slots.of(tier):
            page = await picking.look([tier], after)
            (portion,) = await picking.fill([portion], after, page)
            after = page.last or _FIRST
            if at_front and (after == _FIRST or _FIRST < begin <= after):
                break
            at_front = at_front or after == _FIRST
        self._keep(self._next, (pool, tier), after)

    @staticmethod
    def _keep(store: dict[Any, Any], key: Any, value: Any) -> None:
        """Stores a value. Workers choose queue names freely, so a full store is cleared and each begins anew."""
        if len(store) >= _MAX_KEPT:
            store.clear()
        store[key] = value


class _Picking:
    """One offer in progress."""

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
        self._parameters: dict[str, Any] = {
            "queues": [queue for queue, _ in streams],
            "loops": [loop for _, loop in streams],
            "worker_ids": list(wanted.worker_ids),
            "deaths_below": wanted.deaths_below,
        }

    async def look(self, tiers: Sequence[Priority], after: str) -> _Page:
        """Reads the tenants after `after`."""
        parameters = self._parameters | {
            "priorities": [int(tier) for tier in tiers],
            "after": after,
            "limit": self.slots.any,
            "only_tenants": list(self._wanted.tenants),
            "most_tenants": self._most_tenants,
            "most_counted": _MAX_COUNTED,
        }
        rows = await fetch_all(self._connection, QUEUE.waiting, parameters)
        page = _Page(rows[0][0], [], {})
        for _, priority, tenant, is_new, count, is_more, oldest, running, most in rows:
            if tenant is not None:
                line = Line(Priority(priority), tenant, is_new)
                page.waiting.append(Waiting(line, UNBOUNDED if is_more else count, oldest))
                page.loads[tenant] = Load(running, UNBOUNDED if most is None else most)
        return page

    async def fill(self, portions: Sequence[Portion], after: str, page: _Page) -> Sequence[Portion]:
        """Takes tasks of a page of tenants until the slots are full, while other coordinators may take from it
        as well. Returns what is left of the portions.
        """
        short: set[Line] = set()
        tiers = sorted({portion.tier for portion in portions})
        for look in range(_LOOKS):
            page = page if look == 0 else await self.look(tiers, after)
            waiting = (each for each in page.waiting if each.line not in short)
            lines = share(waiting, page.loads, self.slots, portions)
            if not lines:
                break
            missing = await self._take(lines)
            portions = without_served(portions, lines)
            short.update(missing)
            if not missing and (self.slots.any == 0 or not _is_more(page, lines)):
                break
        return portions

    async def _take(self, lines: Sequence[Line]) -> set[Line]:
        """Takes from each line as many tasks as it has entries. Returns the lines that had fewer."""
        portions = list(Counter(lines).items())
        rows = await fetch_all(
            self._connection,
            QUEUE.take,
            self._parameters
            | {
                "priorities": [int(line.tier) for line, _ in portions],
                "tenants": [line.tenant for line, _ in portions],
                "are_new": [line.is_new for line, _ in portions],
                "counts": [count for _, count in portions],
                "reserve_seconds": self._wanted.reserve_seconds,
                "unopened_seconds": max(UNOPENED_SECONDS, self._wanted.reserve_seconds),
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
    """Whether another read may find tasks that this one left."""
    return len(lines) < sum(each.count for each in page.waiting)


async def _streams(connection: Connection, wanted: OfferRequest) -> list[tuple[str, str]]:
    """Returns the pairs of queue and loop to take from."""
    if wanted.queues and wanted.loops:
        return [(queue, loop) for queue in sorted(set(wanted.queues)) for loop in sorted(set(wanted.loops))]
    parameters = {"queues": list(wanted.queues), "loops": list(wanted.loops), "most": MAX_STREAMS}
    return [(queue, loop) for queue, loop in await fetch_all(connection, QUEUE.streams, parameters)]
