"""Histories of live installations, over the public API: whole ones for tests, task by task for any size.

A task that goes on while it is read is read so that what is compared fits together: what was refused and called first,
then the row, then its entries up to the row's sequence, then the bill as of that moment. Entries are never changed, so
that is one moment of the ledger, and every call that was seen has its intent in it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from itertools import islice
from typing import Any, Final

from tenure.audit.from_wire import bill, body_hash, budget_row, calls_and_fence, ledger_entry, refusals, task_row
from tenure.audit.history import Bill, Call, Guard, History, LedgerEntry, Refusal, ToolFence
from tenure.client import Client
from tenure.domain.entries import ToolIntent, ToolOutcome
from tenure.domain.errors import NotFound
from tenure.domain.tools import CallState

__all__ = ["COLLECTED", "body_hash", "collect_each", "collect_task", "collect_tasks"]

COLLECTED: Final = frozenset({"tasks", "entries", "budgets", "bills", "refusals", "fences", "calls"})
"""The sources that these functions collect."""

AT_ONCE: Final = 8

_UNDER_WAY: Final = frozenset({CallState.ACCEPTED, CallState.STARTED, CallState.IN_DOUBT})


async def collect_tasks(client: Client, task_ids: Iterable[str]) -> History:
    """The histories of these tasks, in one. Raises NotFound, TryLater."""
    async with aclosing(collect_each(client, task_ids)) as each:
        parts = [part async for part in each]
    joined: dict[str, Any] = {
        name: tuple(record for part in parts for record in getattr(part, name)) for name in COLLECTED
    }
    return History(**joined)


async def collect_each(
    client: Client, task_ids: Iterable[str], *, skip_pruned: bool = False
) -> AsyncGenerator[History]:
    """The same, one after another in the order given, a few being read at once: for any number of tasks. With
    `skip_pruned` those that go meanwhile are left out.
    """
    waiting = iter(task_ids)
    reading = deque(_begin(client, task_id) for task_id in islice(waiting, AT_ONCE))
    try:
        while reading:
            try:
                yield await reading[0]
            except NotFound as error:
                if not (skip_pruned and error.reason == "TASK_PRUNED"):
                    raise
            reading.popleft()
            reading.extend(_begin(client, task_id) for task_id in islice(waiting, 1))
    finally:
        for each in reading:
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def collect_task(client: Client, task_id: str) -> History:
    """What ledger and tools have of one task. Raises NotFound, TryLater."""
    refused = await _refusals(client, task_id)
    calls, fence = await _calls(client, task_id)
    task = await client.get(task_id)
    entries = await _entries(client, task_id, task.sequence)
    row = task_row(task)
    if _may_have_moved_on(calls, entries):
        calls, fence = await _as_they_are_now(client, task_id, calls, entries)
    return History(
        tasks=(row,),
        entries=entries,
        budgets=(budget_row(task),),
        refusals=refused,
        bills=await _bills(client, task_id, entries[-1].recorded_at),
        fences=(fence,) if fence is not None else (),
        calls=calls,
    )


def _begin(client: Client, task_id: str) -> asyncio.Task[History]:
    return asyncio.create_task(collect_task(client, task_id))


async def _entries(client: Client, task_id: str, until: int) -> tuple[LedgerEntry, ...]:
    found = []
    async for entry in client.entries(task_id):
        if entry.sequence > until:
            break
        found.append(ledger_entry(task_id, entry))
    return tuple(found)


async def _bills(client: Client, task_id: str, until: float) -> tuple[Bill, ...]:
    """Those of attempts that the entries settle: a bill has the time of the entry that it came with."""
    found = [bill(task_id, row) async for row in client.bills(task_id)]
    return tuple(row for row in found if row.settled_at <= until)


async def _refusals(client: Client, task_id: str) -> tuple[Refusal, ...]:
    listed = await client.refusals(task_id)
    return refusals(Guard.LEDGER, listed.ledger) + refusals(Guard.TOOLS, listed.tools)


async def _calls(client: Client, task_id: str) -> tuple[tuple[Call, ...], ToolFence | None]:
    calls: list[Call] = []
    fence: ToolFence | None = None
    async for page in client.calls(task_id):
        some, fence = calls_and_fence(task_id, page)
        calls += some
    return tuple(calls), fence


def _may_have_moved_on(calls: Iterable[Call], entries: Iterable[LedgerEntry]) -> bool:
    """Whether the entries, read later, may tell more of the calls than the calls themselves."""
    at_rest = {call.call_id for call in calls if call.state not in _UNDER_WAY}
    told = {entry.body.call_id for entry in entries if isinstance(entry.body, ToolOutcome)}
    return not told <= at_rest


async def _as_they_are_now(
    client: Client, task_id: str, seen: Iterable[Call], entries: Iterable[LedgerEntry]
) -> tuple[tuple[Call, ...], ToolFence | None]:
    """The calls that were seen or are intended in the entries, read again; later ones are of a later moment."""
    known = {call.call_id for call in seen}
    known |= {entry.body.call_id for entry in entries if isinstance(entry.body, ToolIntent)}
    calls, fence = await _calls(client, task_id)
    return tuple(call for call in calls if call.call_id in known), fence
