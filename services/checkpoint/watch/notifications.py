"""Notifications between replicas: coalesced NOTIFY after commits on one dedicated connection, LISTEN on another.

A single replica sends no notification: each notification costs Postgres a transaction. It looks for others every
second, and a replica that begins to listen notifies the others at once.

Notifications may be lost. A replica that was disconnected wakes all its watchers after it reconnects, and a poll over
the watched tasks finds what no notification reported.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final
from uuid import uuid4

from services.checkpoint.queries import QUERIES, SCHEMA, fetch_all
from services.checkpoint.watch.announcement import Announcement
from services.checkpoint.watch.hub import Hub
from services.checkpoint.watch.ledger_metrics import count_announced
from tenure.runtime.process import note_progress, resting
from tenure.runtime.settings import Secret
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Pool, PoolOptions, notifications, pool_connection

_log: Final = logging.getLogger(__name__)
CHANNEL: Final = "tenure_ledger"
LISTENER: Final = "checkpoint-listen"
IDS_A_PAYLOAD: Final = 150  # a payload has at most 8,000 bytes
TENANTS_A_PAYLOAD: Final = 100  # of up to 63 characters
MAX_IDS: Final = 20_000
NOTIFY_INTERVAL_SECONDS: Final = 0.01
POLL_INTERVAL_SECONDS: Final = 1.0
TASKS_A_POLL: Final = 1000


class ReplicaNotifications:
    """Sends this process's announcements to the other replicas, and passes all announcements to this process's hub."""

    def __init__(self, dsn: str | Secret, pool: Pool, hub: Hub) -> None:
        """`dsn`: the database of the notifications, the same for all replicas. `pool`: of the ledger."""
        self._dsn = dsn
        self._pool = pool
        self._hub = hub
        self._name = uuid4().hex
        self._pending = Announcement()
        self._has_pending = asyncio.Event()
        self._has_others = True
        self._listening_pid = 0

    def announce(self, announcement: Announcement) -> None:
        """Announces a committed transaction: in this process at once, to other replicas within moments. Call it after
        the commit.
        """
        if not announcement:
            return
        count_announced(announcement)
        self._hub.tell(announcement)
        if self._has_others:
            self._pending.add(announcement.without_entries())
            self._has_pending.set()

    async def run_notify(self) -> None:
        """Sends pending announcements, as a duty. Notifications need no durability, so their commits do not wait for
        the disk.
        """
        options = PoolOptions(settings=(("synchronous_commit", "off"),))
        async with DedicatedConnection(
            self._dsn, service="checkpoint-notify", schema=SCHEMA, options=options
        ) as postgres:
            while True:
                with resting():
                    await self._has_pending.wait()
                self._has_pending.clear()
                announcement, self._pending = self._pending, Announcement()
                async with postgres.use() as connection:
                    await connection.execute(QUERIES.notify, {"payloads": list(self._payloads(announcement))})
                await asyncio.sleep(NOTIFY_INTERVAL_SECONDS)

    async def run_listen(self) -> None:
        """Receives notifications, as a duty. After each start it wakes all watchers, for notifications missed
        meanwhile.
        """
        async with (
            DedicatedConnection(self._dsn, service=LISTENER, schema=SCHEMA) as postgres,
            postgres.use() as connection,
        ):
            self._listening_pid = connection.backend_pid
            await connection.execute(f"listen {CHANNEL}".encode())
            await connection.execute(
                QUERIES.notify, {"payloads": [self._payload()]}
            )  # the others learn of this replica
            self._hub.wake_all()
            async with aclosing(notifications(connection)) as reported:
                async for notification in reported:
                    self._on_message(notification.payload)

    async def run_poll(self) -> None:
        """Polls watched tasks, as a duty and backstop: one cheap statement a second for each thousand tasks. Also looks
        for other replicas.
        """
        async with DedicatedConnection(self._dsn, service="checkpoint-poll", schema=SCHEMA) as postgres:
            while True:
                note_progress()
                await asyncio.sleep(POLL_INTERVAL_SECONDS)
                await self._look_for_others(postgres)
                task_ids = list(self._hub.task_ids)
                for start in range(0, len(task_ids), TASKS_A_POLL):
                    note_progress()
                    await self._poll(task_ids[start : start + TASKS_A_POLL])

    async def _look_for_others(self, postgres: DedicatedConnection) -> None:
        parameters = {"listener": f"tenure-{LISTENER}", "own_pid": self._listening_pid}
        async with postgres.use() as connection:
            [(others,)] = await fetch_all(connection, QUERIES.count_listeners, parameters)
        self._has_others = others > 0

    async def _poll(self, task_ids: list[str]) -> None:
        async with pool_connection(self._pool) as connection:
            places = await fetch_all(connection, QUERIES.places, {"task_ids": task_ids})
        self._hub.wake_behind({task_id: sequence for task_id, sequence, _ in places})
        self._hub.tell(Announcement(ended_task_ids={task_id for task_id, _, ended in places if ended}))

    def _on_message(self, payload: str) -> None:
        try:
            message = json.loads(payload)
            if message["from"] == self._name:
                return
            self._has_others = True
            announcement = Announcement(
                set(message["moved"]),
                claimable=message["claimable"],
                ending_task_ids=set(message["ending"]),
                ended_task_ids=set(message["ended"]),
                interrupted_task_ids=set(message.get("interrupted", ())),  # a replica of an older version sends none
                changed_tenants=set(message["changed"]),
            )
        except (ValueError, KeyError, TypeError):
            _log.warning(
                "a notification could not be read, it is from another version: all watchers read the ledger again",
                extra={"payload": payload[:200]},
            )
            self._hub.wake_all()
            return
        if message["all"]:
            self._hub.wake_all()
        self._hub.tell(announcement)

    def _payloads(self, announcement: Announcement) -> Iterator[str]:
        """Splits an announcement into payloads. Beyond a bound it says only that there is much."""
        overflow = len(announcement.task_ids) > MAX_IDS
        moved = [] if overflow else sorted(announcement.task_ids)
        ending = sorted(announcement.ending_task_ids)[:MAX_IDS]
        if announcement.claimable or overflow:
            yield self._payload(claimable=announcement.claimable, everything=overflow)
        for start in range(0, len(moved), IDS_A_PAYLOAD):
            yield self._payload(moved=moved[start : start + IDS_A_PAYLOAD])
        for start in range(0, len(ending), IDS_A_PAYLOAD):
            yield self._payload(ending=ending[start : start + IDS_A_PAYLOAD])
        interrupted = sorted(announcement.interrupted_task_ids)[:MAX_IDS]
        for start in range(0, len(interrupted), IDS_A_PAYLOAD):
            yield self._payload(interrupted=interrupted[start : start + IDS_A_PAYLOAD])
        ended = [] if overflow else sorted(announcement.ended_task_ids)
        for start in range(0, len(ended), IDS_A_PAYLOAD):
            yield self._payload(ended=ended[start : start + IDS_A_PAYLOAD])
        changed = sorted(announcement.changed_tenants)[:MAX_IDS]
        for start in range(0, len(changed), TENANTS_A_PAYLOAD):
            yield self._payload(changed=changed[start : start + TENANTS_A_PAYLOAD])

    def _payload(
        self,
        *,
        moved: list[str] | None = None,
        ending: list[str] | None = None,
        ended: list[str] | None = None,
        interrupted: list[str] | None = None,
        changed: list[str] | None = None,
        claimable: bool = False,
        everything: bool = False,
    ) -> str:
        announcement = {
            "from": self._name,
            "moved": moved or [],
            "ending": ending or [],
            "ended": ended or [],
            "interrupted": interrupted or [],
            "changed": changed or [],
            "claimable": claimable,
            "all": everything,
        }
        return json.dumps(announcement, separators=(",", ":"))
