"""Turns changes into deliveries: one transaction writes them and moves the cursor, so each change is delivered once."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import uuid_utils

from services.checkpoint.queries import fetch_all, fetch_one
from services.checkpoint.reads import read_tasks
from services.checkpoint.watch.change_feed import ChangeCursor, FeedGap, FeedReader, RecordedChange
from services.checkpoint.webhooks.people import PeopleEvents, event_type_of
from services.checkpoint.webhooks.rows import NO_TASK, WEBHOOKS
from tenure.domain.notifications import SUMMARY_DELAY_SECONDS, SUMMARY_EVENT, LateChange, summary_of
from tenure.domain.states import Reason
from tenure.domain.webhooks import MISSED_EVENT, GapReason, body_of, wants
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection
from tenure.sdk.json_shape import json_value
from tenure.v1 import ledger_pb2, task_pb2

_log: Final = logging.getLogger(__name__)
for _reason in GapReason:
    metrics.cell("tenure_webhook_gaps_total", reason=_reason)  # from 0 on, so that the first gap is an increase
EVENTS_A_WRITE: Final = 10
"""Few, because each event has its task, which may be large."""
GAPS_KEPT: Final = 20
SUMMARY_LINE: Final = f"{NO_TASK}summary"


class SenderLeaseKey(NamedTuple):
    """The key of a sender lease. A write under it is refused once another sender lease of the webhook began."""

    webhook_id: str
    tenant: str
    lease_number: int

    @property
    def key(self) -> dict[str, Any]:
        """The key as parameters of the statements."""
        return {"webhook_id": self.webhook_id, "lease": self.lease_number}


class WebhookEvent(NamedTuple):
    """A delivery to insert."""

    delivery_id: str
    event_type: str
    line: str
    sequence: int
    body: str


class EventWriter(NamedTuple):
    """Reads the feed for one webhook. `patterns`: of event types. `webhook_name`: reminders name webhooks.

    `people`: of a webhook whose receivers are people.
    """

    pool: Pool
    lease_key: SenderLeaseKey
    webhook_name: str
    patterns: Sequence[str]
    task_filter: task_pb2.TaskFilter
    people: PeopleEvents | None = None

    async def read_on(self, cursor: ChangeCursor) -> bool:
        """Reads the next page of changes. Returns whether more may be readable at once."""
        page = await FeedReader.of_tenant(self.pool, self.lease_key.tenant, self.task_filter).read(cursor)
        if isinstance(page, FeedGap):
            await self._note_gap(cursor, page)
            return True
        wanted = [change for change in page.changes if wants(self.patterns, event_type_of(change))]
        wanted = await self._without_reminders_of_others(wanted)
        for start in range(0, len(wanted), EVENTS_A_WRITE):
            some = wanted[start : start + EVENTS_A_WRITE]
            behind = some[-1].cursor
            if not await self._advance(cursor, behind, *await self._events(some)):
                return False
            await failpoint("checkpoint.after_events")
            cursor = behind
        await self._advance(cursor, page.cursor, [])
        return page.full

    async def _without_reminders_of_others(self, changes: list[RecordedChange]) -> list[RecordedChange]:
        """Leaves out reminders for other webhooks. The entry of a step names the webhook that it reminds."""
        steps = [change for change in changes if change.reason == Reason.WAIT_ESCALATED]
        if not steps:
            return changes
        parameters = {"task_ids": [one.task_id for one in steps], "sequences": [one.sequence for one in steps]}
        async with pool_connection(self.pool) as connection:
            rows = await fetch_all(connection, WEBHOOKS.escalations, parameters)
        reminded = {
            (task_id, sequence): ledger_pb2.EntryBody.FromString(body).wait_escalated.step.remind_webhook
            for task_id, sequence, body in rows
        }
        return [
            change
            for change in changes
            if reminded.get((change.task_id, change.sequence), "") in {"", self.webhook_name}
        ]

    async def _events(self, changes: Sequence[RecordedChange]) -> tuple[list[WebhookEvent], list[LateChange]]:
        """Returns events with the tasks as they are now; a task that was pruned is left out of its event.

        Also returns the changes that people read in a summary.
        """
        async with pool_connection(self.pool) as connection:
            task_ids = sorted({change.task_id for change in changes})
            read = await read_tasks(connection, self.lease_key.tenant, task_ids)
            tasks = {task.task_id: task for task in read}
            if self.people is None:
                return [_event_with_task(change, tasks.get(change.task_id), {}) for change in changes], []
            chosen = await self.people.choose(connection, changes, tasks, self.task_filter)
        events = [_event_with_task(one, tasks.get(one.task_id), further) for one, further in chosen.messages]
        return events, chosen.late

    async def _advance(
        self,
        cursor: ChangeCursor,
        behind: ChangeCursor,
        events: Sequence[WebhookEvent],
        late: Sequence[LateChange] = (),
    ) -> bool:
        """Moves the cursor and writes the events. Returns False, and writes nothing, when another sender lease
        began.
        """
        return await in_transaction(self.pool, lambda ledger: self._move(ledger, cursor, behind, events, late))

    async def _move(
        self,
        connection: Connection,
        cursor: ChangeCursor,
        behind: ChangeCursor,
        events: Sequence[WebhookEvent],
        late: Sequence[LateChange] = (),
    ) -> bool:
        parameters = {**self.lease_key.key, **cursor.to(behind), "written": len(events)}
        is_moved = await fetch_one(connection, WEBHOOKS.move_cursor, parameters) is not None
        if is_moved and events:
            await write_events(connection, self.lease_key.webhook_id, events)
        if is_moved and late:
            await self._add_to_summary(connection, late)
        return is_moved

    async def _add_to_summary(self, connection: Connection, late: Sequence[LateChange]) -> None:
        """Adds late changes to the summary that is not sent yet, or writes one. The webhook's row is locked."""
        webhook_id = self.lease_key.webhook_id
        former = await fetch_one(connection, WEBHOOKS.unsent_summary, {"webhook_id": webhook_id, "line": SUMMARY_LINE})
        delivery_id, body = former or (str(uuid_utils.uuid7()), "")
        data = summary_of(late, json.loads(body)["data"] if body else None)
        body = body_of(SUMMARY_EVENT, datetime.fromisoformat(data["to_at"]), data)
        if former is None:
            await connection.execute(WEBHOOKS.count_written, {"webhook_id": webhook_id})
            await write_events(
                connection, webhook_id, [WebhookEvent(delivery_id, SUMMARY_EVENT, SUMMARY_LINE, 0, body)]
            )
        held: dict[str, Any] = {"delivery_id": delivery_id, "body": body, "wait_seconds": SUMMARY_DELAY_SECONDS}
        await connection.execute(WEBHOOKS.hold_summary, {"webhook_id": webhook_id, **held})

    async def _note_gap(self, cursor: ChangeCursor, gap: FeedGap) -> None:
        """Records the webhook gap, sends it to the endpoint, and moves the cursor behind it."""
        webhook_id, key = self.lease_key.webhook_id, self.lease_key.key
        fields = {"webhook": webhook_id, "reason": gap.reason}
        _log.warning("changes were pruned before a webhook read them", extra=fields)
        metrics.count("tenure_webhook_gaps_total", reason=gap.reason.value)

        async def work(connection: Connection) -> None:
            ends = {"from_cursor": cursor.encoded(), "to_cursor": gap.cursor.encoded()}
            times = await fetch_one(connection, WEBHOOKS.record_gap, {**key, "reason": gap.reason, **ends})
            if times is None:
                return
            delivery_id = str(uuid_utils.uuid7())
            missed = {"reason": gap.reason, "from_at": times[0], "to_at": times[1]}
            body = body_of(MISSED_EVENT, times[1], json_value(missed))
            event = WebhookEvent(delivery_id, MISSED_EVENT, NO_TASK + delivery_id, 0, body)
            if await self._move(connection, cursor, gap.cursor, [event]):
                await connection.execute(WEBHOOKS.forget_old_gaps, {"webhook_id": webhook_id, "kept": GAPS_KEPT})

        await in_transaction(self.pool, work)


async def write_events(connection: Connection, webhook_id: str, events: Sequence[WebhookEvent]) -> None:
    """Inserts deliveries in order. The caller has locked the webhook's row, which counts them."""
    names = ("delivery_ids", "event_types", "lines", "sequences", "bodies")
    columns = dict(zip(names, map(list, zip(*events, strict=True)), strict=True))
    await connection.execute(WEBHOOKS.write_deliveries, {"webhook_id": webhook_id, **columns})


def _event_with_task(change: RecordedChange, task: task_pb2.Task | None, further: Mapping[str, Any]) -> WebhookEvent:
    event = event_type_of(change)
    body = body_of(event, change.changed_at, {**_public_json(change, task), **further})
    return WebhookEvent(str(uuid_utils.uuid7()), event, change.task_id, change.sequence, body)


def _public_json(change: RecordedChange, task: task_pb2.Task | None) -> dict[str, Any]:
    """Returns the change in the public JSON (docs/json.md), without the cursor of the stream of changes."""
    # Imported at use: the public values would make each start of the service a quarter longer.
    from tenure.sdk.from_wire import task_info

    shown = {name: json_value(value) for name, value in change._asdict().items() if name != "cursor"}
    return shown if task is None else {**shown, "task": task_info(task).to_json()}
