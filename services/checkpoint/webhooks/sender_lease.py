"""Sender leases: a replica reads the feed for one webhook, sends its due deliveries and records the results.

A sender lease is the row lease (row_lease.py) of the webhook's row. No request begins that might still run when the
lease expires. A process that was frozen in the middle of a request may finish it late: the endpoint recognises a repeat
by its webhook-id.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from services.checkpoint.approvals.issuing import LinkIssuer
from services.checkpoint.queries import fetch_all
from services.checkpoint.queue.due import DueWork
from services.checkpoint.row_lease import RowLease
from services.checkpoint.watch.change_feed import ChangeCursor
from services.checkpoint.webhooks.deliveries import give_back, record
from services.checkpoint.webhooks.email_quota import take_deliveries, take_emails
from services.checkpoint.webhooks.event_writer import EventWriter, SenderLeaseKey
from services.checkpoint.webhooks.people import PeopleEvents
from services.checkpoint.webhooks.rows import WEBHOOKS
from services.checkpoint.webhooks.sending import OutgoingDelivery, Sender, WebhookPolicy, WebhookSettings
from tenure.domain.errors import TenureError
from tenure.domain.webhooks import MAX_RECEIVED_KEPT, WebhookKind, chosen, decide_delivery, surplus
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.process import heed_cancellation
from tenure.runtime.store.postgres import Connection, Pool, in_transaction
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import task_pb2

LONGEST_LEASE_SECONDS: Final = 60.0
"""The longest time that a replica keeps a sender lease, however much remains to be sent."""
SHORTEST_LEASE_SECONDS: Final = 2.0
"""The shortest time until a sender lease takes no more deliveries because other webhooks wait for one."""
READ_INTERVAL_SECONDS: Final = 0.5


class _LeaseState(NamedTuple):
    """The columns of `keep_lease`, in their order."""

    event_types: list[str]
    filter: bytes
    feed_id: str
    xid: int
    position: int
    pending: int
    held: bool
    recipients: int
    name: str
    kind: str

    @property
    def cursor(self) -> ChangeCursor:
        return ChangeCursor(self.feed_id, self.xid, self.position)


@dataclass(frozen=True, slots=True)
class SenderDependencies:
    """The dependencies of every sender lease of a process."""

    pool: Pool
    sender: Sender
    settings: WebhookSettings
    links: LinkIssuer


class SenderLease:
    """One sender lease. Call `run` once."""

    def __init__(self, dependencies: SenderDependencies, lease_key: SenderLeaseKey, taken_at: float) -> None:
        """`taken_at`: the monotonic time at which the lease was requested."""
        self._dependencies, self._lease_key = dependencies, lease_key
        self._in_flight = 0
        self._attempt_ended = asyncio.Event()
        self._taken_at, self._ends_at = taken_at, taken_at + LONGEST_LEASE_SECONDS
        self.ends_early = False
        self._read_at = 0.0
        lease_seconds = dependencies.settings.lease_seconds
        self._lease = RowLease(dependencies.pool, WEBHOOKS, lease_key.key, lease_seconds, taken_at)

    @property
    def tenant(self) -> str:
        """The tenant of the webhook."""
        return self._lease_key.tenant

    def end_early(self) -> None:
        """Ends the lease for another webhook, once the requests in flight have ended."""
        self.ends_early = True
        self._ends_at = self._taken_at + SHORTEST_LEASE_SECONDS

    async def run(self) -> None:
        """Runs until there is nothing to do or the lease must end. After a failure the lease expires by itself."""
        try:
            async with TaskGroup() as sending:
                await self._work(sending)
        except asyncio.CancelledError:
            # The process drains: end the lease, so that another replica need not wait until it expires. That replica
            # sends the interrupted deliveries again.
            await self._lease.end(kept=MAX_RECEIVED_KEPT)
            raise
        await self._lease.write(WEBHOOKS.end_lease, {"kept": MAX_RECEIVED_KEPT})

    async def _work(self, sending: TaskGroup) -> None:
        while (kept := await self._lease.keep()) is not None:
            status = _LeaseState(*kept)
            self._attempt_ended.clear()
            more = await self._read(status)
            due = [] if status.held else await self._take(status.recipients)
            for delivery in due:
                self._in_flight += 1
                sending.create_task(self._deliver(delivery))
            if not (more or due or self._in_flight) or time.monotonic() >= self._ends_at:
                return  # every lease makes at least one round
            if not more:
                await self._pause()

    def _is_trusted(self) -> bool:
        """Whether a request may begin, so that it ends before the lease does."""
        return self._lease.left_seconds() >= self._dependencies.sender.longest_seconds

    async def _read(self, status: _LeaseState) -> bool:
        """Reads changes; returns whether there may be more at once. With too many pending deliveries the feed keeps the
        rest.
        """
        now = time.monotonic()
        if status.pending >= self._dependencies.settings.max_pending or now < self._read_at:
            return False
        wanted = task_pb2.TaskFilter.FromString(status.filter)
        people = None if status.kind == WebhookKind.STANDARD else PeopleEvents(self._dependencies.links.public_url)
        writer = EventWriter(self._dependencies.pool, self._lease_key, status.name, status.event_types, wanted, people)
        more = await writer.read_on(status.cursor)
        self._read_at = 0.0 if more else now + READ_INTERVAL_SECONDS
        return more

    async def _take(self, recipients: int) -> list[OutgoingDelivery]:
        """Takes due deliveries. `recipients`: of an e-mail, 0 for other kinds."""
        free = self._dependencies.settings.max_requests - self._in_flight
        if free <= 0:
            return []
        if recipients:
            take = partial(take_emails, lease_key=self._lease_key, recipients=recipients, limit=free)
        else:
            take = partial(take_deliveries, lease_key=self._lease_key, limit=free)
        return await in_transaction(self._dependencies.pool, take)

    async def _deliver(self, delivery: OutgoingDelivery) -> None:
        is_sent = False
        try:
            if not self._is_trusted():
                return  # a later lease with enough time sends it
            links = await self._dependencies.links.links_for(delivery)
            if not self._is_trusted():
                return  # the links took too long
            is_sent = True
            answer = await self._dependencies.sender.send(delivery, links)
            await failpoint("checkpoint.after_delivery")
            settings = self._dependencies.settings
            verdict = decide_delivery(answer, delivery.attempts, random.random(), settings.retry)
            await record(self._dependencies.pool, self._lease_key, delivery, answer, verdict, settings.max_dead)
        finally:
            if not is_sent:
                await give_back(self._dependencies.pool, self._lease_key, delivery)
            self._in_flight -= 1
            self._attempt_ended.set()

    async def _pause(self) -> None:
        with suppress(TimeoutError):  # there may be something to read
            async with asyncio.timeout(READ_INTERVAL_SECONDS):
                await self._attempt_ended.wait()


# The duty that finds webhooks with work. Any number of replicas may run it; one replica holds a webhook's lease.

MAX_LEASES: Final = 64
"""The most sender leases of one process. Tenants share them, and they end early while other webhooks wait."""
MAX_DUE: Final = 4 * MAX_LEASES
"""How many due webhooks one look regards: the first of each tenant, then the second, and so on."""
LONGEST_REFRESH_SECONDS: Final = 60.0

_log: Final = logging.getLogger(__name__)


class WebhookDispatcher:
    """Runs until cancelled. `kept_seconds`: how long changes are kept; every cursor must move within that time."""

    def __init__(
        self,
        pool: Pool,
        policy: WebhookPolicy,
        settings: WebhookSettings,
        due: DueWork,
        kept_seconds: float,
        links: LinkIssuer,
    ) -> None:
        self._pool, self._policy, self._settings, self._due = pool, policy, settings, due
        self._links = links
        self._refresh_seconds = min(LONGEST_REFRESH_SECONDS, kept_seconds / 10)
        self._leases: dict[asyncio.Task[None], SenderLease] = {}

    async def run(self) -> None:
        settings = self._settings
        most_connections = MAX_LEASES * settings.max_requests
        async with (
            Sender(self._policy, settings.request_timeout_seconds, most_connections) as sender,
            TaskGroup() as group,
        ):
            dependencies = SenderDependencies(self._pool, sender, settings, self._links)
            while True:
                await self._due.wait("webhooks")
                await self._take_leases(dependencies, group)
                heed_cancellation()  # a wait for a connection may have swallowed it

    async def _take_leases(self, dependencies: SenderDependencies, group: TaskGroup) -> None:
        asked_at = time.monotonic()
        taken, waiting = await self._take()
        for lease_key in taken:
            sender_lease = SenderLease(dependencies, lease_key, asked_at)
            running = group.create_task(self._run(sender_lease, lease_key))
            self._leases[running] = sender_lease
            running.add_done_callback(self._leases.pop)
        going_on = [one for one in self._leases.values() if not one.ends_early]
        for index in surplus([one.tenant for one in going_on], waiting - (len(self._leases) - len(going_on))):
            going_on[index].end_early()

    async def _take(self) -> tuple[list[SenderLeaseKey], int]:
        """Returns new leases, and how many webhooks wait for one."""
        wanted = {
            "refresh_seconds": self._refresh_seconds,
            "most_pending": self._settings.max_pending,
            "limit": MAX_DUE,
        }
        held = [one.tenant for one in self._leases.values()]

        async def work(connection: Connection) -> tuple[list[SenderLeaseKey], int]:
            due = await fetch_all(connection, WEBHOOKS.due_webhooks, wanted)
            indexes = chosen([tenant for _, tenant in due], held, MAX_LEASES - len(held))
            webhook_ids = [due[index][0] for index in indexes]
            parameters = {"webhook_ids": webhook_ids, "lease_seconds": self._settings.lease_seconds}
            rows = await fetch_all(connection, WEBHOOKS.take_leases, parameters) if webhook_ids else []
            return [SenderLeaseKey(*row) for row in rows], len(due) - len(indexes)

        return await in_transaction(self._pool, work)

    async def _run(self, sender_lease: SenderLease, lease_key: SenderLeaseKey) -> None:
        """Runs one sender lease. A failure affects no other webhook: the lease expires, and another one is taken."""
        try:
            await sender_lease.run()
        except Exception as error:  # noqa: BLE001  logged; the other webhooks continue
            heed_cancellation()
            metrics.count("tenure_webhook_sender_lease_failures_total")
            causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
            expected = all(isinstance(one, TenureError) for one in causes)
            fields = {"webhook": lease_key.webhook_id, "error": "; ".join(map(str, causes))}
            _log.warning("a webhook's sender lease failed", extra=fields, exc_info=None if expected else error)
