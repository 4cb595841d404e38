"""Claims that end without a close-out: their keys are deleted, their tasks go back into the queue."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from services.coordinator.lease_store.claim_keys import MAX_BATCH
from services.coordinator.ledger_client import MAX_CLAIMS, LedgerClient
from tenure.domain.errors import TenureError
from tenure.domain.lost_model_calls import ReportedCall
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import ReleaseReason
from tenure.runtime import metrics
from tenure.runtime.batching import Batcher, BatchLimits
from tenure.runtime.failpoints import failpoint
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import checkpoint_service_pb2
from tenure.wire.task import reported_call_to_wire

if TYPE_CHECKING:
    from services.coordinator.lease_store import HeldClaim, LeaseStore
    from services.coordinator.sessions.session import AttachedSession, WorkedClaim
    from tenure.v1 import coordinator_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
_AGAIN: Final = RetryPolicy(max_attempts=6, initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


@dataclass(frozen=True, slots=True)
class LostClaim:
    """A claim that is gone, or has to go. `call`: what was heard of its newest model call.

    `actor`: the operator who takes it away; `to_worker_id`: for whom.
    """

    task_id: str
    claim_id: str
    reason: str
    message: str
    call: ReportedCall | None = None
    actor: str = ""
    to_worker_id: str = ""

    @classmethod
    def of(cls, held: HeldClaim, reason: str, message: str, call: ReportedCall | None = None) -> LostClaim:
        """The loss of a claim known from etcd."""
        return cls(held.task_id, held.record.claim_id, reason, message, call)


class LostClaims:
    """Any replica may do this for any claim: deletions name the claim they mean, and so do requeues."""

    def __init__(self, store: LeaseStore, ledger: LedgerClient) -> None:
        self._store = store
        self._ledger = ledger
        self._tell: Callable[[], None] | None = None
        limits = BatchLimits(max_items=MAX_BATCH, max_waiting=20_000)
        self._deletes: Batcher[HeldClaim, bool] = Batcher(
            "claim deletions", self._delete, key=lambda held: held.task_id, size=lambda _: 0, limits=limits
        )

    def on_requeued(self, tell: Callable[[], None]) -> None:
        """Who is to know that something was queued again."""
        self._tell = tell

    async def run(self) -> None:
        """Duty: deletes what waits to be deleted, many claims in one request."""
        await self._deletes.run()

    async def delete(self, held: HeldClaim) -> bool:
        """Delete a claim's key; whether it was still there. Raises Unavailable when etcd does not answer for long."""
        return await self._deletes.submit(held)

    async def take_away(self, held: HeldClaim, lost: LostClaim) -> None:
        """Delete the key, then requeue. A failure of either is told in the log; the reconciliation does it then."""
        try:
            await self.delete(held)
        except TenureError as error:
            _log.warning("a claim could not be deleted", extra={"task": held.task_id, "error": error})
            return
        await self.requeue([lost])

    async def take_for_operator(self, held: HeldClaim, lost: LostClaim) -> bool:
        """Requeue first, then delete the key; whether it was taken now. Raises Unavailable; repeatable.

        In this order what the operator said is in the ledger with the loss itself. A key that is left behind keeps
        nobody out: the task was moved out of the claim.
        """
        requeued = await self._ask([_to_wire(lost)])
        if requeued:
            metrics.count("tenure_requeued_total", reason=lost.reason)
            facts = {"task": lost.task_id, "claim": lost.claim_id, "reason": lost.reason, "actor": lost.actor}
            _log.info("took a task from its owner", extra=facts)
        await self.delete(held)
        if requeued and self._tell is not None:
            self._tell()
        return bool(requeued)

    async def requeue(self, lost: Iterable[LostClaim]) -> None:
        """Requeue tasks that still run under exactly these claims. A failure is told in the log, as above."""
        waiting = list(lost)
        for start in range(0, len(waiting), MAX_CLAIMS):
            await self._requeue(waiting[start : start + MAX_CLAIMS])

    async def _requeue(self, lost: Sequence[LostClaim]) -> None:
        messages = [_to_wire(each) for each in lost]
        try:
            requeued = set(await retrying(lambda: self._ask(messages), _AGAIN))
        except (TenureError, PeerFailed) as error:
            _log.warning("tasks could not be requeued", extra={"tasks": len(lost), "error": error})
            return
        for each in lost:
            if each.task_id in requeued:
                metrics.count("tenure_requeued_total", reason=each.reason)
                facts = {"task": each.task_id, "claim": each.claim_id, "reason": each.reason}
                _log.info("requeued a task whose claim was lost", extra=facts)
        if requeued and self._tell is not None:
            self._tell()

    async def _ask(self, lost: Sequence[checkpoint_service_pb2.RequeueLostRequest.Lost]) -> Sequence[str]:
        await failpoint("coordinator.before_requeue")
        requeued = await self._ledger.requeue(lost)
        await failpoint("coordinator.after_requeue")
        return requeued

    async def _delete(self, claims: Sequence[HeldClaim]) -> list[bool]:
        await failpoint("coordinator.before_delete")
        deleted = await self._store.claims.delete_many(claims)
        await failpoint("coordinator.after_delete")
        return [held.record.claim_id in deleted for held in claims]


def _to_wire(lost: LostClaim) -> checkpoint_service_pb2.RequeueLostRequest.Lost:
    return checkpoint_service_pb2.RequeueLostRequest.Lost(
        task_id=lost.task_id,
        claim_id=lost.claim_id,
        reason=lost.reason,
        message=lost.message,
        output_tokens=0 if lost.call is None else lost.call.usage.output_tokens,  # for a ledger of an older version
        heard_call=None if lost.call is None else reported_call_to_wire(lost.call),
        actor=lost.actor,
        to_worker_id=lost.to_worker_id,
    )


# Claims that workers give back. The key is deleted; what the worker left RUNNING goes back into the queue.

_NOTHING_LEFT: Final = frozenset({ReleaseReason.CLOSED, ReleaseReason.FENCED})
"""Reasons that leave nothing to requeue: the task was moved out of RUNNING, or is another owner's."""
_CLOSING_SECONDS: Final = 3.0


class ClaimReleases:
    """Carries releases out beside the streams they came by: a worker may say goodbye right after them."""

    def __init__(self, store: LeaseStore, losses: LostClaims) -> None:
        self._store = store
        self._losses = losses
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=_CLOSING_SECONDS)
        for task in self._running:
            task.cancel()

    def give_back(self, session: AttachedSession, release: pb.Release) -> None:
        """Begin it."""
        claim = session.claims.pop(release.claim_id, None)
        carrying_out = self._carry_out(session, claim, release)
        task = asyncio.create_task(carrying_out, name=f"release {release.task_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry_out(self, session: AttachedSession, claim: WorkedClaim | None, release: pb.Release) -> None:
        try:
            held = claim.held if claim is not None else await self._find(session, release)
            if held is None:
                return
            if release.reason in _NOTHING_LEFT:
                await self._losses.delete(held)
                return
        except TenureError as error:
            _log.warning("a claim could not be given back", extra={"task": release.task_id, "error": error})
            return
        message = f"worker {session.worker_id} gave the task back"
        call = claim.progress.reported.call if claim is not None else None
        await self._losses.take_away(held, LostClaim.of(held, release.reason, message, call))

    async def _find(self, session: AttachedSession, release: pb.Release) -> HeldClaim | None:
        """A claim that a worker let go of while its stream was broken: it came back without holding it."""
        held = (await self._store.claims.find_many([release.task_id])).get(release.task_id)
        if held is None or (held.record.claim_id, held.record.session_id) != (release.claim_id, session.session_id):
            return None
        return held
