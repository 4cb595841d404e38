"""The worker's session: one lease for all its tasks, attached to any coordinator.

A stream's break is not the session's end: the worker attaches to another coordinator under the same session_id and
keeps its claims. The old stream is let go only when the new one stands, so that nobody takes the worker for dead.

Nothing on the way from one attachment to the next waits without a deadline: attaching and closing have their own, and
a renewal that is not answered ends an attachment. What still waits for longer than `SILENCE_SECONDS`, or ends by a
cancellation of gRPC's own, is seen by the duties, which start `run` again: the session and its claims go on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from time import monotonic
from typing import Any, Final, NamedTuple

import grpc

from services.worker.held_claims import HeldTask, HeldTasks
from services.worker.interrupts import Interruption, TrustGate
from services.worker.session_stream import AttachmentLost, PendingUpdates, SessionStreamClient
from tenure.domain.errors import Refused, TenureError, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.domain.slots import Slots
from tenure.domain.states import ReleaseReason
from tenure.domain.task import Priority
from tenure.runtime import metrics
from tenure.runtime.process import heed_cancellation, note_progress
from tenure.runtime.rpc_client import open_channel
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2_grpc as grpc_pb
from tenure.wire.common import PRIORITIES, seconds
from tenure.wire.coordinator_service import lower_tiers

_log: Final = logging.getLogger(__name__)
ATTACH_TIMEOUT_SECONDS: Final = 2.0
CLOSE_TIMEOUT_SECONDS: Final = 1.0
GOODBYE_TIMEOUT_SECONDS: Final = 0.2
SILENCE_SECONDS: Final = 30.0
"""Of the duty `run`: many times what an attempt to attach, its pause or a renewal may take."""

REATTACH: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """What Hello says of this worker."""

    worker_id: str
    queues: tuple[str, ...]
    loops: tuple[str, ...]
    live_address: str
    tiers: tuple[Priority, ...] = ()


class _Attached(NamedTuple):
    """A stream that stands."""

    call: Any
    renew_interval_seconds: float
    call_interval_seconds: float


class WorkerSession:
    """Keeps the session for as long as `run`, an endless duty, runs. `take` is called with every grant."""

    def __init__(
        self,
        addresses: Sequence[str],
        identity: WorkerIdentity,
        held_tasks: HeldTasks,
        trust: TrustGate,
        slots: Callable[[], Slots],
    ) -> None:
        self._addresses = random.sample(list(addresses), len(addresses))
        self._identity = identity
        self._held_tasks = held_tasks
        self._trust = trust
        self._updates = PendingUpdates(slots)
        self._session_id = ""
        self._failures = 0
        self._attached: _Attached | None = None
        self._former = AsyncExitStack()
        self._leaving = False
        self._left = asyncio.Event()
        self._take: Callable[[HeldTask], None] | None = None

    async def run(self, take: Callable[[HeldTask], None]) -> None:
        """Attaches, and again whenever the stream breaks, until goodbye was said. May be run again after any end."""
        self._take, self._attached = take, None
        try:
            while not self._leaving:
                try:
                    await self._one_attachment()
                except (TenureError, PeerFailed, AttachmentLost) as error:
                    self._lose_attachment(error)
                heed_cancellation()
                note_progress()
                await asyncio.sleep(REATTACH.wait_seconds(self._failures, random.random()) if self._failures else 0)
            self._left.set()
        finally:
            self._attached = None
            await _close(self._former)

    @property
    def is_attached(self) -> bool:
        """Whether a coordinator has taken this worker in, and its stream stands."""
        return self._attached is not None

    def release(self, held_task: HeldTask, reason: ReleaseReason) -> None:
        """Gives a claim back."""
        claims = held_task.claims
        self._updates.releases.append(pb.Release(task_id=claims.task_id, claim_id=claims.claim_id, reason=reason))
        self.report_slots()

    def report_slots(self) -> None:
        """There is room for another number of tasks now."""
        self._updates.slots_changed = True
        self._speak()

    def drain(self) -> None:
        """No more tasks, please."""
        self._updates.draining = True
        self._speak()

    async def end_session(self) -> None:
        """Everything that is to be said is said, and the coordinator has read it; gives up after a moment."""
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_SECONDS):
                await self._updates.all_sent.wait()
                self._leaving = True
                if self._attached is not None:
                    await self._attached.call.done_writing()
                    await self._left.wait()
        except TimeoutError:
            _log.warning("the coordinator could not be told everything", extra={"left": len(self._updates.releases)})

    def on_grant(self, grant: pb.Grant) -> None:
        """A task to work on."""
        assert self._take is not None, "grants come while `run` runs"
        held_task = HeldTask.of_grant(grant)
        if self._updates.draining:
            self.release(held_task, ReleaseReason.WORKER_DRAINED)
        else:
            self._take(held_task)

    def on_revoke(self, revoke: pb.Revoke) -> None:
        """A claim is lost."""
        _log.warning("a claim was revoked", extra={"task": revoke.task_id, "why": revoke.reason})
        self._held_tasks.drop_claims({revoke.claim_id})

    def on_cancel(self, notice: pb.CancelNotice) -> None:
        """The task's end was asked for."""
        held_task = self._held_tasks.get(notice.task_id)
        if held_task is not None:
            held_task.interrupts.request(Interruption.END)

    def on_drain(self, notice: pb.DrainNotice) -> None:
        """An operator wants us to give all back and take no more. The session goes on: we are there, and idle."""
        if not self._updates.draining:
            _log.warning("told to drain", extra={"why": notice.message, "tasks": len(self._held_tasks)})
        self.drain()
        for held_task in self._held_tasks:
            held_task.interrupts.request(Interruption.DRAIN, notice.message)

    async def _one_attachment(self) -> None:
        """Serves one stream to its break. Its resources go to `_former`, freed once the next attachment stands."""
        address = self._addresses[0]
        opened = AsyncExitStack()
        try:
            channel = await opened.enter_async_context(open_channel(address))
            call = grpc_pb.CoordinatorServiceStub(channel).Session()
            opened.callback(call.cancel)
            attached = await self._attach(call)
        except BaseException:
            await _close(opened)
            raise
        former, self._former = self._former, opened
        await _close(former)
        _log.info("attached", extra={"coordinator": address, "session": self._session_id})
        self._failures = 0
        self._attached = attached
        self._updates.begin()
        stream = SessionStreamClient(call, self._held_tasks, self._trust, self._updates, self)
        await stream.serve(attached.renew_interval_seconds, attached.call_interval_seconds)

    async def _attach(self, call: Any) -> _Attached:
        sent_at = monotonic()
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_SECONDS):
                await call.write(pb.SessionRequest(hello=self._hello()))
                answer = await call.read()
        except TimeoutError:
            raise AttachmentLost(f"Hello was not answered within {ATTACH_TIMEOUT_SECONDS:g} s") from None
        if answer is grpc.aio.EOF or not answer.HasField("welcome"):
            raise Unavailable("no Welcome came", reason="STREAM_ENDED")
        welcome = answer.welcome
        if welcome.session_id != self._session_id:
            # Only a new lease lives from our asking on; an old one may be about to end until a renewal is answered.
            self._trust.begin(sent_at, seconds(welcome.ttl))
        self._session_id = welcome.session_id
        self._held_tasks.drop_claims(set(welcome.lost_claim_ids))
        return _Attached(call, seconds(welcome.renew_interval), seconds(welcome.call_interval))

    def _hello(self) -> pb.Hello:
        slots = self._updates.slots()
        return pb.Hello(
            worker_id=self._identity.worker_id,
            session_id=self._session_id,
            holdings=self._held_tasks.to_wire(),
            free_slots=slots.any,
            lower_tiers=lower_tiers(slots),
            queues=self._identity.queues,
            priorities=map(PRIORITIES.to_wire, self._identity.tiers),
            loops=self._identity.loops,
            live_address=self._identity.live_address,
        )

    def _lose_attachment(self, error: Exception) -> None:
        if self._leaving:
            return
        metrics.count("tenure_worker_detachments_total", why=type(error).__name__)
        was_attached = self._attached is not None
        facts = {"coordinator": self._addresses[0], "failures": self._failures, "why": str(error)}
        _log.warning("detached" if was_attached else "could not attach", extra=facts)
        if self._attached is None or not isinstance(error, AttachmentLost):
            self._failures += 1
        if self._attached is None and isinstance(error, Refused) and self._session_id:
            # This session is not to be had back: its claims are gone, begin anew.
            self._session_id = ""
            self._held_tasks.drop_claims({held_task.claims.claim_id for held_task in self._held_tasks})
        self._attached = None
        self._addresses.append(self._addresses.pop(0))

    def _speak(self) -> None:
        self._updates.all_sent.clear()
        self._updates.something.set()


async def _close(resources: AsyncExitStack) -> None:
    """Ends a stream and its channel. A close that hangs must not keep the worker from attaching elsewhere."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await resources.aclose()
    except TimeoutError:
        _log.warning("a channel to a coordinator did not close in time", extra={"seconds": CLOSE_TIMEOUT_SECONDS})
