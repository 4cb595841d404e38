"""The worker's session: one lease for all its tasks, attached to one coordinator at a time.

The end of a stream is not the end of the session: the worker attaches to another coordinator under the same session_id
and keeps its claims. It closes the old stream only after the new one is attached, so that no coordinator takes the
worker for dead.

Every step between two attachments has a deadline: attaching and closing have their own, and an unanswered renewal ends
an attachment. If `run` still makes no progress for `SILENCE_SECONDS`, or ends by a cancellation inside gRPC, the duties
restart it: the session and its claims go on.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import grpc
from grpc.aio import InternalError

from services.worker.held_claims import HeldTask, HeldTasks
from services.worker.interrupts import Interruption, TrustGate, trust_clock
from services.worker.session_stream import AttachmentLost, PendingUpdates, SessionStreamClient
from tenure.domain.access import Role
from tenure.domain.errors import Refused, TenureError, Unavailable
from tenure.domain.fairness import Slots
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import ReleaseReason
from tenure.domain.task import Priority
from tenure.runtime.observability import metrics
from tenure.runtime.process import heed_cancellation, note_progress
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.rpc.status import MAX_MESSAGE_BYTES, PeerFailed, shortened
from tenure.runtime.security.process_security import NO_SECURITY, Security
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2_grpc as grpc_pb
from tenure.wire.common import PRIORITIES, seconds
from tenure.wire.coordinator_service import lower_tiers

_log: Final = logging.getLogger(__name__)
ATTACH_TIMEOUT_SECONDS: Final = 2.0
CLOSE_TIMEOUT_SECONDS: Final = 1.0
GOODBYE_TIMEOUT_SECONDS: Final = 0.2
SILENCE_SECONDS: Final = 30.0
"""The silence limit of the duty `run`: many times the duration of an attach, of the pause after it or of a renewal."""

REATTACH: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """The description of this worker that Hello carries."""

    worker_id: str
    queues: tuple[str, ...]
    loops: tuple[str, ...]
    live_address: str
    session_secret: bytes = field(repr=False)
    tiers: tuple[Priority, ...] = ()
    build: str = ""


class _Attached(NamedTuple):
    """An attached stream and the intervals that the coordinator's Welcome set."""

    call: Any
    renew_interval_seconds: float
    call_interval_seconds: float


class WorkerSession:
    """Keeps the session while `run`, an endless duty, runs. `take` is called with every grant."""

    def __init__(
        self,
        addresses: Sequence[str],
        identity: WorkerIdentity,
        held_tasks: HeldTasks,
        trust: TrustGate,
        slots: Callable[[], Slots],
        security: Security = NO_SECURITY,
    ) -> None:
        self._security = security
        self._addresses = random.sample(list(addresses), len(addresses))
        self._identity = identity
        self._held_tasks = held_tasks
        self._trust = trust
        self._updates = PendingUpdates(slots)
        self._session_id = ""
        self._failures = 0
        self._attached: _Attached | None = None
        self._former = AsyncExitStack()
        self._ending_session = False
        self._session_ended = asyncio.Event()
        self._take: Callable[[HeldTask], None] | None = None

    async def run(self, take: Callable[[HeldTask], None]) -> None:
        """Attaches, and attaches again whenever the stream breaks, until `end_session`.

        May be run again after any end.
        """
        self._take, self._attached = take, None
        try:
            while not self._ending_session:
                try:
                    await self._one_attachment()
                except (TenureError, PeerFailed, AttachmentLost) as error:
                    self._lose_attachment(error)
                heed_cancellation()
                note_progress()
                await asyncio.sleep(REATTACH.wait_seconds(self._failures, random.random()) if self._failures else 0)
            self._session_ended.set()
        finally:
            self._attached = None
            await _close(self._former)

    @property
    def is_attached(self) -> bool:
        """Whether this worker is attached to a coordinator."""
        return self._attached is not None

    def release(self, held_task: HeldTask, reason: ReleaseReason, why: str = "") -> None:
        """Releases a claim. `why`: for people."""
        claims = held_task.claims
        message = shortened(why, MAX_MESSAGE_BYTES)
        release = pb.Release(task_id=claims.task_id, claim_id=claims.claim_id, reason=reason, message=message)
        self._updates.releases.append(release)
        self.report_slots()

    def report_slots(self) -> None:
        """Reports the number of free slots, which has changed."""
        self._updates.slots_changed = True
        self._wake_writer()

    def drain(self) -> None:
        """Tells the coordinator to send no more tasks."""
        self._updates.draining = True
        self._wake_writer()

    async def end_session(self) -> None:
        """Sends all pending updates and ends the stream, in at most GOODBYE_TIMEOUT_SECONDS."""
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_SECONDS):
                await self._updates.all_sent.wait()
                self._ending_session = True
                if self._attached is not None:
                    with suppress(InternalError):  # the coordinator has ended the stream already
                        await self._attached.call.done_writing()
                    await self._session_ended.wait()
        except TimeoutError:
            _log.warning("the session ended with unsent releases", extra={"left": len(self._updates.releases)})

    def on_grant(self, grant: pb.Grant) -> None:
        """Starts the work of a granted task."""
        assert self._take is not None, "grants come while `run` runs"
        held_task = HeldTask.of_grant(grant)
        if self._updates.draining:
            self.release(held_task, ReleaseReason.WORKER_DRAINED)
        else:
            self._take(held_task)

    def on_revoke(self, revoke: pb.Revoke) -> None:
        """Drops a claim that is lost."""
        _log.warning("a claim was revoked", extra={"task": revoke.task_id, "why": revoke.reason})
        self._held_tasks.drop_claims({revoke.claim_id})

    def on_cancel(self, notice: pb.CancelNotice) -> None:
        """Interrupts a task that has a pending ending."""
        held_task = self._held_tasks.get(notice.task_id)
        if held_task is not None:
            held_task.interrupts.request(Interruption.END)

    def on_interrupt(self, notice: pb.InterruptNotice) -> None:
        """Has a task look for an interrupting message. Without a task, all of them: notices may have been lost."""
        for held_task in self._held_tasks:
            if notice.task_id in {"", held_task.task_id}:
                held_task.interrupts.note_message()

    def on_drain(self, notice: pb.DrainNotice) -> None:
        """Drains the worker for an operator. The session goes on: the worker stays attached and idle."""
        if not self._updates.draining:
            _log.warning(
                "an operator drains this worker", extra={"why": notice.message, "tasks": len(self._held_tasks)}
            )
        self.drain()
        for held_task in self._held_tasks:
            held_task.interrupts.request(Interruption.DRAIN, notice.message)

    async def _one_attachment(self) -> None:
        """Serves one stream until it breaks. Moves its resources to `_former`, which closes after the next attach."""
        address = self._addresses[0]
        opened = AsyncExitStack()
        try:
            channel = await opened.enter_async_context(open_channel(address, tls=self._security.peer(Role.COORDINATOR)))
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
        self.on_interrupt(pb.InterruptNotice())  # no coordinator could send one meanwhile
        stream = SessionStreamClient(call, self._held_tasks, self._trust, self._updates, self)
        await stream.serve(attached.renew_interval_seconds, attached.call_interval_seconds)

    async def _attach(self, call: Any) -> _Attached:
        sent_at = trust_clock()
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_SECONDS):
                await call.write(pb.SessionRequest(hello=self._hello()))
                answer = await call.read()
        except TimeoutError:
            raise AttachmentLost(f"Hello was not answered within {ATTACH_TIMEOUT_SECONDS:g} s") from None
        if answer is grpc.aio.EOF or not answer.HasField("welcome"):
            raise Unavailable("the coordinator answered Hello without a Welcome", reason="STREAM_ENDED")
        welcome = answer.welcome
        if welcome.session_id != self._session_id:
            # The trust window of a new lease begins when Hello was sent. The remaining TTL of an old lease is unknown
            # until a renewal is answered.
            self._trust.begin(sent_at, seconds(welcome.ttl))
        self._session_id = welcome.session_id
        self._held_tasks.drop_claims(set(welcome.lost_claim_ids))
        return _Attached(call, seconds(welcome.renew_interval), seconds(welcome.call_interval))

    def _hello(self) -> pb.Hello:
        slots = self._updates.slots()
        return pb.Hello(
            worker_id=self._identity.worker_id,
            session_id=self._session_id,
            holdings=self._held_tasks.to_wire(trusted=self._trust.is_open),
            free_slots=slots.any,
            lower_tiers=lower_tiers(slots),
            queues=self._identity.queues,
            priorities=map(PRIORITIES.to_wire, self._identity.tiers),
            loops=self._identity.loops,
            live_address=self._identity.live_address,
            session_secret=self._identity.session_secret,
            build=self._identity.build,
        )

    def _lose_attachment(self, error: Exception) -> None:
        if self._ending_session:
            return
        metrics.count("tenure_worker_detachments_total", why=type(error).__name__)
        was_attached = self._attached is not None
        fields = {"coordinator": self._addresses[0], "failures": self._failures, "why": str(error)}
        _log.warning("detached" if was_attached else "could not attach", extra=fields)
        if self._attached is None or not isinstance(error, AttachmentLost):
            self._failures += 1
        if self._attached is None and isinstance(error, Refused) and self._session_id:
            # The coordinator refused this session: its claims are lost, and the worker begins a new session.
            self._session_id = ""
            self._held_tasks.drop_claims({held_task.claims.claim_id for held_task in self._held_tasks})
        self._attached = None
        self._addresses.append(self._addresses.pop(0))

    def _wake_writer(self) -> None:
        self._updates.all_sent.clear()
        self._updates.changed.set()


async def _close(resources: AsyncExitStack) -> None:
    """Closes a stream and its channel. A close that hangs must not keep the worker from attaching elsewhere."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_SECONDS):
            await resources.aclose()
    except TimeoutError:
        _log.warning("closing a channel to a coordinator timed out", extra={"seconds": CLOSE_TIMEOUT_SECONDS})
