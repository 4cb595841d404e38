"""Collects histories of live installations over the public API: one history for tests, or task by task for any size.

A task may continue while it is read, so the order of the reads keeps the sources consistent: first refused writes and
tool calls, then the task row, then its entries up to the row's sequence, then the bill as of that moment. Entries never
change, so this is one moment of the ledger, and every call that was read has its intent in the entries.

The module also reads the files outside of an installation: effects of append_record and the model simulator's bill.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from itertools import islice
from pathlib import Path
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from checker.history import (
    Bill,
    BudgetSnapshot,
    CallRecord,
    Guard,
    History,
    LedgerEntry,
    ObservedEffect,
    RefusalRecord,
    TaskSnapshot,
    ToolFenceRecord,
)
from tenure.client import Client
from tenure.domain.entries import Body, ToolIntent, ToolOutcome
from tenure.domain.errors import NotFound
from tenure.domain.tools import CallState
from tenure.v1 import admin_service_pb2, ledger_pb2, task_pb2, token_pb2, tool_pb2
from tenure.wire.common import CALL_STATES, EFFECT_CLASSES, STATES
from tenure.wire.ledger import body_to_domain
from tenure.wire.task import budget_to_domain, usage_to_domain
from tenure.wire.tool import outcome_to_domain, output_to_domain

# Conversions from messages of the API to records of a history.

HASH_BYTES: Final = 16


def body_hash(body: ledger_pb2.EntryBody) -> bytes:
    """Returns a hash of the body. It is equal for bodies that are equal on the wire."""
    return hashlib.blake2b(body.SerializeToString(deterministic=True), digest_size=HASH_BYTES).digest()


def ledger_entry(task_id: str, entry: ledger_pb2.Entry) -> LedgerEntry:
    """Converts an entry. The body is None if this version does not know the entry kind."""
    return LedgerEntry(
        task_id=task_id,
        sequence=entry.sequence,
        body=_body(entry.body),
        step=entry.step,
        epoch=entry.epoch,
        claim_id=entry.claim_id,
        attempt=entry.attempt,
        actor=entry.actor,
        recorded_at=_unix(entry.record_time),
        body_hash=body_hash(entry.body),
    )


def task_row(task: task_pb2.Task) -> TaskSnapshot:
    """Converts a task to the snapshot of its row."""
    return TaskSnapshot(
        task_id=task.task_id,
        tenant=task.tenant,
        state=STATES.to_domain(task.state),
        sequence=task.sequence,
        step=task.step,
        attempt=task.attempt,
        epoch=task.epoch,
        owner=task.owner,
        claim_count=task.claim_count,
        usage=usage_to_domain(task.usage),
        result=task.result,
        root_task_id=task.root_task_id,
        used_nano_usd=task.used_nano_usd,
        outputs=tuple(output_to_domain(output) for output in task.outputs),
    )


def budget_row(task: task_pb2.Task) -> BudgetSnapshot:
    """Returns the budget of the task's root at the moment when the task was read."""
    return BudgetSnapshot(root_task_id=task.root_task_id, budget=budget_to_domain(task.budget))


def bill(task_id: str, row: ledger_pb2.Bill) -> Bill:
    """Converts a row of a task's bill."""
    return Bill(
        task_id=task_id,
        step=row.step,
        attempt_number=row.attempt_number,
        usage=usage_to_domain(row.usage),
        root_task_id=row.root_task_id,
        epoch=row.epoch,
        model=row.model,
        provider_request_id=row.provider_request_id,
        lost=row.lost,
        settled_at=_unix(row.settle_time),
        estimate=usage_to_domain(row.estimated_usage) if row.HasField("estimated_usage") else None,
        nano_usd=row.nano_usd,
        unpriced=row.unpriced,
    )


def refusals(guard: Guard, refused: Iterable[token_pb2.RefusedWrite]) -> tuple[RefusalRecord, ...]:
    """Converts the refused writes of one service."""
    return tuple(
        RefusalRecord(
            guard=guard,
            task_id=write.task_id,
            method=write.method,
            presented_epoch=write.presented_epoch,
            current_epoch=write.current_epoch,
            holder=write.holder,
            refused_at=_unix(write.refuse_time),
        )
        for write in refused
    )


def calls_and_fence(
    task_id: str, page: admin_service_pb2.ListCallsResponse
) -> tuple[list[CallRecord], ToolFenceRecord | None]:
    """Converts a page of a task's calls and its tool fence. It has the hashes of outcomes, but not their contents."""
    fence = page.fence
    record = ToolFenceRecord(
        task_id=task_id,
        epoch=fence.epoch,
        claim_id=fence.claim_id,
        closed=fence.closed,
        changed_at=_unix(fence.change_time),
        receipts=fence.receipts,
        receipt_head=fence.receipt_head or bytes(32),
    )
    return [_call(task_id, trail) for trail in page.calls], record if page.HasField("fence") else None


def _call(task_id: str, trail: tool_pb2.CallTrail) -> CallRecord:
    record = trail.record
    return CallRecord(
        task_id=task_id,
        call_id=record.call_id,
        tool=record.tool,
        effect_class=EFFECT_CLASSES.to_domain(record.effect_class),
        state=CALL_STATES.to_domain(record.state),
        epoch=record.epoch,
        claim_id=trail.claim_id,
        call_attempt=record.call_attempt,
        runner_id=trail.runner_id,
        arguments_hash=trail.arguments_hash,
        outcome=outcome_to_domain(record.outcome) if record.HasField("outcome") else None,
        outcome_hash=trail.outcome_hash,
        accepted_at=_unix(trail.accept_time),
        started_at=_unix(record.start_time) if record.HasField("start_time") else None,
        finished_at=_unix(trail.finish_time) if trail.HasField("finish_time") else None,
        receipt_number=trail.receipt_number,
        receipt_link=trail.receipt_link,
        outcome_message_hash=trail.outcome_message_hash,
        idempotency_key=trail.idempotency_key,
    )


def _unix(time: Timestamp) -> float:
    """Returns Unix seconds, cut to microseconds as in Postgres, so that equal moments are equal floats."""
    return time.seconds + (time.nanos // 1000) / 1e6


def _body(body: ledger_pb2.EntryBody) -> Body | None:
    try:
        return body_to_domain(body)
    except ValueError:
        return None


# Files outside of an installation on this machine: those of append_record.

_KEY: Final = re.compile(rb'\{"key": "([^"/]*)/([^"]*)"')


def read_effects(records: Path) -> tuple[ObservedEffect, ...]:
    """Reads every line of every file below append_record's folder. A torn line counts if its key is readable."""
    return tuple(effect for path in sorted(records.rglob("*.jsonl")) for effect in _effects(path))


def _effects(path: Path) -> Iterator[ObservedEffect]:
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        key = _KEY.match(line)
        task_id, call_id = (part.decode(errors="replace") for part in key.groups()) if key else ("", "")
        yield ObservedEffect(task_id=task_id, call_id=call_id, epoch=_epoch(line), place=f"{path.name}:{number}")


def _epoch(line: bytes) -> int:
    try:
        return int(json.loads(line)["epoch"])
    except (ValueError, KeyError, TypeError):
        return 0


COLLECTED: Final = frozenset({"tasks", "entries", "budgets", "bills", "refusals", "fences", "calls"})
"""The sources that these functions collect."""

AT_ONCE: Final = 8

_UNDER_WAY: Final = frozenset({CallState.ACCEPTED, CallState.STARTED, CallState.IN_DOUBT})


async def collect_tasks(client: Client, task_ids: Iterable[str]) -> History:
    """Returns one history of all these tasks. Raises NotFound and TryLater."""
    async with aclosing(collect_each(client, task_ids)) as each:
        parts = [part async for part in each]
    joined: dict[str, Any] = {
        name: tuple(record for part in parts for record in getattr(part, name)) for name in COLLECTED
    }
    return History(**joined)


async def collect_each(
    client: Client, task_ids: Iterable[str], *, skip_pruned: bool = False
) -> AsyncGenerator[History]:
    """Yields the history of each task in the given order, for any number of tasks. Reads AT_ONCE tasks at a time.

    `skip_pruned`: skips tasks that are pruned meanwhile. Raises NotFound and TryLater.
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
    """Returns the history of one task in the ledger and the tool service. Raises NotFound and TryLater."""
    refused = await _refusals(client, task_id)
    calls, fence = await _calls(client, task_id)
    task = await client.get(task_id)
    entries = await _entries(client, task_id, task.sequence)
    row = task_row(task)
    if _calls_are_outdated(calls, entries):
        calls, fence = await _read_calls_again(client, task_id, calls, entries)
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
    entries = []
    async for entry in client.entries(task_id):
        if entry.sequence > until:
            break
        entries.append(ledger_entry(task_id, entry))
    return tuple(entries)


async def _bills(client: Client, task_id: str, until: float) -> tuple[Bill, ...]:
    """Returns the bills of attempts that the entries settle: a bill has the time of its entry."""
    bills = [bill(task_id, row) async for row in client.bills(task_id)]
    return tuple(row for row in bills if row.settled_at <= until)


async def _refusals(client: Client, task_id: str) -> tuple[RefusalRecord, ...]:
    listed = await client.refusals(task_id)
    return refusals(Guard.LEDGER, listed.ledger) + refusals(Guard.TOOLS, listed.tools)


async def _calls(client: Client, task_id: str) -> tuple[tuple[CallRecord, ...], ToolFenceRecord | None]:
    calls: list[CallRecord] = []
    fence: ToolFenceRecord | None = None
    async for page in client.calls(task_id):
        page_calls, fence = calls_and_fence(task_id, page)
        calls += page_calls
    return tuple(calls), fence


def _calls_are_outdated(calls: Iterable[CallRecord], entries: Iterable[LedgerEntry]) -> bool:
    """Whether the entries, which were read later, have outcomes of calls that were read as unfinished."""
    at_rest = {call.call_id for call in calls if call.state not in _UNDER_WAY}
    settled_calls = {entry.body.call_id for entry in entries if isinstance(entry.body, ToolOutcome)}
    return not settled_calls <= at_rest


async def _read_calls_again(
    client: Client, task_id: str, seen: Iterable[CallRecord], entries: Iterable[LedgerEntry]
) -> tuple[tuple[CallRecord, ...], ToolFenceRecord | None]:
    """Reads the calls again, and returns those that were read before or have an intent in the entries.

    Other calls belong to a later moment than the entries.
    """
    known = {call.call_id for call in seen}
    known |= {entry.body.call_id for entry in entries if isinstance(entry.body, ToolIntent)}
    calls, fence = await _calls(client, task_id)
    return tuple(call for call in calls if call.call_id in known), fence
