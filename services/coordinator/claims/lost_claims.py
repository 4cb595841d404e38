"""Ends claims without a close-out: deletes their keys and requeues their tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from services.coordinator.lease_store import HeldClaim, LeaseStore
from services.coordinator.lease_store.claim_keys import MAX_BATCH
from services.coordinator.ledger_client import MAX_CLAIMS, LedgerClient
from services.coordinator.sessions.lease_end import lease_end
from services.coordinator.sessions.session import AttachedSession, WorkedClaim
from tenure.domain.errors import TenureError
from tenure.domain.in_doubt import ReportedCall
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import ReleaseReason
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.retrying import retrying
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.v1 import checkpoint_service_pb2, ledger_pb2
from tenure.v1 import coordinator_service_pb2 as pb
from tenure.validators.common import MAX_TRANSITION_MESSAGE
from tenure.wire.task import reported_call_to_wire

_log: Final = logging.getLogger(__name__)
_AGAIN: Final = RetryPolicy(max_attempts=6, initial_seconds=0.1, factor=2.0, cap_seconds=2.0)


@dataclass(frozen=True, slots=True)
class LostClaim:
    """A claim that is lost or must end. `call`: the last report of its newest model call. `lease_end`: what is known of
    its renewals.

    `actor`: the operator who transfers the task; `to_worker_id`: the worker that shall get it.
    """

    task_id: str
    claim_id: str
    reason: str
    message: str
    call: ReportedCall | None = None
    actor: str = ""
    to_worker_id: str = ""
    lease_end: ledger_pb2.LeaseEnd | None = None

    @classmethod
    def of(
        cls,
        held: HeldClaim,
        reason: str,
        message: str,
        call: ReportedCall | None = None,
        lease_end: ledger_pb2.LeaseEnd | None = None,
    ) -> LostClaim:
        """Returns the lost claim for a claim known from etcd."""
        return cls(held.task_id, held.record.claim_id, reason, message, call, lease_end=lease_end)


class LostClaims:
    """Deletes and requeues claims.

    Any replica may do it for any claim: each deletion and each requeue names its claim.
    """

    def __init__(self, store: LeaseStore, ledger: LedgerClient) -> None:
        self._store = store
        self._ledger = ledger
        self._on_requeued: Callable[[], None] | None = None
        limits = BatchLimits(max_items=MAX_BATCH, max_waiting=20_000)
        self._deletes: Batcher[HeldClaim, bool] = Batcher(
            "claim deletions", self._delete, key=lambda held: held.task_id, size=lambda _: 0, limits=limits
        )

    def on_requeued(self, on_requeued_callback: Callable[[], None]) -> None:
        """Sets the callback that is called after tasks were requeued."""
        self._on_requeued = on_requeued_callback

    async def run(self) -> None:
        """Deletes submitted claims, many in one request. A duty."""
        await self._deletes.run()

    async def delete(self, held: HeldClaim) -> bool:
        """Deletes a claim's key.

        Returns whether it was still there. Raises Unavailable when etcd does not answer for long.
        """
        return await self._deletes.submit(held)

    async def delete_and_requeue(self, held: HeldClaim, lost: LostClaim) -> None:
        """Deletes the key, then requeues. Logs a failure of either: the reconciliation repeats it."""
        try:
            await self.delete(held)
        except TenureError as error:
            _log.warning("a claim could not be deleted", extra={"task": held.task_id, "error": error})
            return
        await self.requeue([lost])

    async def transfer(self, held: HeldClaim, lost: LostClaim) -> bool:
        """Requeues first, then deletes the key. Returns whether the task was requeued now.

        In this order the ledger records the operator's reason with the loss itself. A key that is left over keeps no
        worker out, because the task was moved out of the claim. Raises Unavailable. A repeat is safe.
        """
        requeued = await self._ask([_to_wire(lost)])
        if requeued:
            metrics.count("tenure_requeued_total", reason=lost.reason)
            fields = {"task": lost.task_id, "claim": lost.claim_id, "reason": lost.reason, "actor": lost.actor}
            _log.info("transferred a task from its owner", extra=fields)
        await self.delete(held)
        if requeued and self._on_requeued is not None:
            self._on_requeued()
        return bool(requeued)

    async def requeue(self, lost: Iterable[LostClaim]) -> None:
        """Requeues tasks that still run under exactly these claims. Logs a failure: the reconciliation repeats it."""
        waiting = list(lost)
        for start in range(0, len(waiting), MAX_CLAIMS):
            await self._requeue(waiting[start : start + MAX_CLAIMS])

    async def _requeue(self, lost: Sequence[LostClaim]) -> None:
        messages = [_to_wire(each) for each in lost]
        try:
            requeued = set(await retrying(lambda: self._ask(messages), _AGAIN))
        except (TenureError, PeerFailed) as error:
            _log.warning("tasks of lost claims could not be requeued", extra={"tasks": len(lost), "error": error})
            return
        for each in lost:
            if each.task_id in requeued:
                metrics.count("tenure_requeued_total", reason=each.reason)
                fields = {"task": each.task_id, "claim": each.claim_id, "reason": each.reason}
                _log.info("requeued a task whose claim was lost", extra=fields)
        if requeued and self._on_requeued is not None:
            self._on_requeued()

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
        message=lost.message[:MAX_TRANSITION_MESSAGE],
        heard_call=None if lost.call is None else reported_call_to_wire(lost.call),
        actor=lost.actor,
        to_worker_id=lost.to_worker_id,
        lease_end=lost.lease_end,
    )


# Releases: the key is deleted, and a task that the worker left RUNNING is requeued.

_NOTHING_LEFT: Final = frozenset({ReleaseReason.CLOSED, ReleaseReason.FENCED})
"""Reasons without a requeue: the task was moved out of RUNNING, or has another owner."""
_CLOSING_SECONDS: Final = 3.0


class ClaimReleases:
    """Carries out releases apart from their streams: a worker may close its stream right after a release."""

    def __init__(self, store: LeaseStore, lost_claims: LostClaims) -> None:
        self._store = store
        self._lost_claims = lost_claims
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._running:
            await asyncio.wait(self._running, timeout=_CLOSING_SECONDS)
        for task in self._running:
            task.cancel()

    def release(self, session: AttachedSession, release: pb.Release) -> None:
        """Starts the release of a claim."""
        claim = session.claims.pop(release.claim_id, None)
        self._start(self._carry_out(session, claim, release), release.task_id)

    def revoke(self, session: AttachedSession, claims: Iterable[WorkedClaim], reason: str, message: str) -> None:
        """Revokes claims of a session, and starts their release in the place of the worker."""
        for claim in claims:
            end = lease_end(session, claim.held.record.claim_id)
            session.revoke(claim.held.record.claim_id, reason)
            lost = LostClaim.of(claim.held, reason, message, claim.progress.reported.call, end)
            self._start(self._lost_claims.delete_and_requeue(claim.held, lost), claim.held.task_id)

    def _start(self, coroutine: Coroutine[Any, Any, None], task_id: str) -> None:
        task = asyncio.create_task(coroutine, name=f"release {task_id}")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _carry_out(self, session: AttachedSession, claim: WorkedClaim | None, release: pb.Release) -> None:
        try:
            held = claim.held if claim is not None else await self._find(session, release)
            if held is None:
                return
            if release.reason in _NOTHING_LEFT:
                await self._lost_claims.delete(held)
                return
        except TenureError as error:
            _log.warning("a claim could not be released", extra={"task": release.task_id, "error": error})
            return
        message = f"worker {session.worker_id} released the task"
        message += f": {release.message}" if release.message else ""
        call = claim.progress.reported.call if claim is not None else None
        await self._lost_claims.delete_and_requeue(held, LostClaim.of(held, release.reason, message, call))

    async def _find(self, session: AttachedSession, release: pb.Release) -> HeldClaim | None:
        """Finds a claim that the worker released while its stream was broken, and that its new stream does not hold."""
        held = (await self._store.claims.find_many([release.task_id])).get(release.task_id)
        if held is None or (held.record.claim_id, held.record.session_id) != (release.claim_id, session.session_id):
            return None
        return held
