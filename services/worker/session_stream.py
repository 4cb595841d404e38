"""Serves one attachment of the session: a stream with one coordinator, from Welcome to its end.

The updates to send are state, not a queue: a renewal that is due, changed slots, claims to release. So nothing grows
while the coordinator is slow, and an update that was not sent goes to the next coordinator.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Never, Protocol

import grpc

from services.worker.held_claims import HeldTasks
from services.worker.interrupts import TrustGate, trust_clock
from tenure.domain.errors import Unavailable
from tenure.domain.fairness import Slots
from tenure.runtime.process import note_progress
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.wire.coordinator_service import lower_tiers


class AttachmentLost(Exception):  # noqa: N818  a reason to attach elsewhere, not an error
    """The attachment is over; the session and its claims go on."""


class SessionEvents(Protocol):
    """The receiver of the coordinator's messages."""

    def on_grant(self, grant: pb.Grant) -> None: ...

    def on_revoke(self, revoke: pb.Revoke) -> None: ...

    def on_cancel(self, notice: pb.CancelNotice) -> None: ...

    def on_interrupt(self, notice: pb.InterruptNotice) -> None: ...

    def on_drain(self, notice: pb.DrainNotice) -> None: ...


@dataclass(slots=True)
class PendingUpdates:
    """The updates that the worker has to send besides renewals. They outlive attachments.

    `grants_read` counts the grants of the present attachment: the coordinator subtracts the grants that it sent and the
    worker had not read.
    """

    slots: Callable[[], Slots]
    grants_read: int = 0
    releases: deque[pb.Release] = field(default_factory=deque)
    slots_changed: bool = False
    draining: bool = False
    drain_sent: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    all_sent: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """Begins a new attachment, whose coordinator has received nothing yet."""
        self.drain_sent = False
        self.grants_read = 0

    def next(self) -> pb.SessionRequest | None:
        """Returns the next message, or None. Only `mark_sent` removes it, so that a broken write loses nothing."""
        if self.draining and not self.drain_sent:
            return pb.SessionRequest(drain=pb.Drain())
        if self.releases:
            return pb.SessionRequest(release=self.releases[0])
        if self.slots_changed and not self.draining:
            free_slots = self.slots()
            lower = lower_tiers(free_slots)
            slots = pb.Slots(free_slots=free_slots.any, lower_tiers=lower, grants_read=self.grants_read)
            return pb.SessionRequest(slots=slots)
        return None

    def mark_sent(self, message: pb.SessionRequest) -> None:
        """Removes a message that was written."""
        match message.WhichOneof("message"):
            case "drain":
                self.drain_sent = True
            case "release":
                self.releases.popleft()
            case "slots":
                self.slots_changed = False


class SessionStreamClient:
    """Renews the session, sends updates and reads messages until the stream breaks.

    Only the `_write` coroutine writes, because gRPC allows one writer at a time.
    """

    def __init__(
        self, call: Any, held_tasks: HeldTasks, trust: TrustGate, updates: PendingUpdates, events: SessionEvents
    ) -> None:
        self._call, self._held_tasks, self._trust = call, held_tasks, trust
        self._updates, self._events = updates, events
        self._renew: pb.Renew | None = None
        self._calls_are_due = False
        self._sent_at: dict[int, float] = {}
        self._answered = asyncio.Event()
        self._granted = asyncio.Event()

    async def serve(self, renew_interval_seconds: float, call_interval_seconds: float) -> Never:
        """Works until the stream breaks.

        Raises AttachmentLost, or the error with which the coordinator ended the stream.
        """
        try:
            async with TaskGroup() as group:
                group.create_task(self._write())
                group.create_task(self._read())
                group.create_task(self._keep_renewing(renew_interval_seconds))
                if call_interval_seconds:
                    group.create_task(self._keep_reporting_calls(call_interval_seconds))
        except ExceptionGroup as broken:
            raise broken.exceptions[0] from broken
        raise AssertionError("unreachable: the loops of a stream end by an exception only")

    async def _keep_renewing(self, interval_seconds: float) -> Never:
        number = 0
        while True:
            number += 1
            sent_at = monotonic()
            self._sent_at = {number: trust_clock()}
            self._answered.clear()
            slots = self._updates.slots()
            self._renew = pb.Renew(
                renew_number=number,
                holdings=self._held_tasks.to_wire(trusted=self._trust.is_open),
                free_slots=slots.any,
                lower_tiers=lower_tiers(slots),
                grants_read=self._updates.grants_read,
            )
            self._updates.changed.set()
            try:
                async with asyncio.timeout(interval_seconds):
                    await self._answered.wait()
            except TimeoutError:
                raise AttachmentLost(f"renewal {number} was not answered within {interval_seconds:g} s") from None
            await self._until_next_renewal(sent_at, interval_seconds)

    async def _until_next_renewal(self, sent_at: float, interval_seconds: float) -> None:
        """Waits for the rest of the interval, which a grant may shorten."""
        while True:
            self._granted.clear()
            left_seconds = sent_at + self._held_tasks.renew_interval_seconds(interval_seconds) - monotonic()
            if left_seconds <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left_seconds):
                    await self._granted.wait()

    async def _keep_reporting_calls(self, interval_seconds: float) -> Never:
        """Reports model calls in flight: the first output at once, for an exact bill, then once per interval."""
        while True:
            await self._held_tasks.calls_went_on.wait()
            self._held_tasks.calls_went_on.clear()
            self._calls_are_due = True
            self._updates.changed.set()
            await asyncio.sleep(interval_seconds)

    async def _write(self) -> Never:
        while True:
            while (message := self._next()) is not None:
                await _leaving_open(self._call.write(message))
                self._mark_sent(message)
            self._updates.all_sent.set()
            await self._updates.changed.wait()
            self._updates.changed.clear()

    def _next(self) -> pb.SessionRequest | None:
        if self._renew is not None:
            return pb.SessionRequest(renew=self._renew)
        if self._calls_are_due:
            self._calls_are_due = False
            if calls := self._held_tasks.take_calls():
                return pb.SessionRequest(calls_heard=pb.CallsHeard(holdings=calls))
        return self._updates.next()

    def _mark_sent(self, message: pb.SessionRequest) -> None:
        if message.HasField("renew"):
            self._renew = None
        elif not message.HasField("calls_heard"):
            self._updates.mark_sent(message)

    async def _read(self) -> Never:
        while (message := await _leaving_open(self._call.read())) is not grpc.aio.EOF:
            match message.WhichOneof("message"):
                case "renewed":
                    self._on_renewed(message.renewed)
                case "grant":
                    self._updates.grants_read += 1
                    self._events.on_grant(message.grant)
                    if message.grant.HasField("renew_interval"):
                        self._granted.set()
                case "revoke":
                    self._events.on_revoke(message.revoke)
                case "cancel":
                    self._events.on_cancel(message.cancel)
                case "interrupt":
                    self._events.on_interrupt(message.interrupt)
                case "drain":
                    self._events.on_drain(message.drain)
                case "goaway":
                    raise AttachmentLost("the coordinator shuts down")
        raise Unavailable("the coordinator ended the session's stream", reason="STREAM_ENDED")

    def _on_renewed(self, renewed: pb.Renewed) -> None:
        sent_at = self._sent_at.get(renewed.renew_number)
        if sent_at is None:
            return
        note_progress()
        self._trust.renew(sent_at)
        self._answered.set()
        for token in renewed.tokens:
            self._held_tasks.replace_token(token)


async def _leaving_open(operation: Coroutine[Any, Any, Any]) -> Any:
    """Awaits a read or a write of the stream. A cancellation ends the wait and leaves the stream open.

    gRPC cancels the whole stream with a cancelled read or write. The coordinator would take the worker for dead before
    the worker is attached again; the session closes the former stream after that.
    """
    running = asyncio.ensure_future(operation)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(_note_end)
        raise


def _note_end(operation: asyncio.Future[Any]) -> None:
    """Takes the error of an operation without a waiter, which asyncio would log."""
    if not operation.cancelled():
        operation.exception()
