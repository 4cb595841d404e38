"""Closes out tasks that must end without their worker, through the same fences as every owner.

Deletes the owner's claim, claims under the coordinator's own session, registers, opens, closes the tool service's
fence, then commits an outcome for every open intent together with the end; in one commit, unless they are too large for
one. Without the fence a delayed Execute would start an effect after the end.

The list of pending endings may be out of date: meanwhile the owner can end the task, and an operator can requeue it. So
the result of Open decides whether the ending is still due. While this claim is open, nothing withdraws an ending.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final
from uuid import uuid4

from services.coordinator.claims.issuing import Issuer
from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.generation import Generation
from services.coordinator.lease_store import ClaimRecord, HeldClaim, LeaseStore
from services.coordinator.lease_store.claim_keys import ClaimRefusal, NewClaim
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.sessions.own_session import OwnSession
from services.coordinator.sessions.session_attach import Sessions
from services.coordinator.tools_client import ToolsClient
from tenure.domain.close_out import (
    Unfinished,
    outcomes_after_refusal,
    outcomes_of_ended_calls,
    resolved_calls,
    unfinished,
)
from tenure.domain.entries import ToolOutcome
from tenure.domain.errors import Fenced, InvalidRequest, TenureError, Unavailable, WrongState
from tenure.domain.fencing import describe_epoch
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import log_context
from tenure.runtime.process import note_progress, rest, resting
from tenure.runtime.request_context import set_tenant
from tenure.runtime.retrying import retrying
from tenure.runtime.task_group import TaskGroup
from tenure.v1 import checkpoint_service_pb2, ledger_pb2, task_pb2, token_pb2
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import coordinator_service_pb2 as coordinator_pb
from tenure.validators.common import MAX_TRANSITION_MESSAGE
from tenure.wire.checkpoint_service import portions
from tenure.wire.ledger import OpenedTask, new_entry

_log: Final = logging.getLogger(__name__)
_COMMIT: Final = RetryPolicy(max_attempts=4, initial_seconds=0.1, factor=2.0, cap_seconds=1.0)


class CloseOutRunner:
    """Closes tasks out. A close-out that fails half-way releases the task, and the ledger lists its ending again."""

    def __init__(
        self,
        store: LeaseStore,
        ledger: LedgerClient,
        tools: ToolsClient,
        lost_claims: LostClaims,
        issuer: Issuer,
        generation: Generation,
        own_session: OwnSession,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._tools = tools
        self._lost_claims = lost_claims
        self._issuer = issuer
        self._generation = generation
        self._own_session = own_session

    async def end(self, ending: pb.ListEndingsResponse.Ending) -> bool:
        """Closes a task out. Returns False when another process was first. Raises Unavailable."""
        held = await self._claim(ending)
        if held is None:
            return False
        await failpoint("coordinator.after_ending_claim")
        try:
            if held.record.claim_id not in await self._ledger.register([held]):
                self._generation.doubt()
                return False
            if not await self._close_out(ending, held):
                return False
        except (Fenced, WrongState) as error:
            _log.info("another process ended or opened the task", extra={"task": ending.task_id, "error": error})
            return False
        except TenureError as error:
            message = f"{self._own_session.holder} could not end the task: {error.message}"
            await self._lost_claims.requeue([LostClaim.of(held, Reason.CLAIM_LOST, message)])
            raise
        finally:
            await failpoint("coordinator.before_ending_release")
            await self._lost_claims.delete(held)
        metrics.count("tenure_close_outs_total", reason=ending.reason)
        fields = {"task": ending.task_id, "epoch": describe_epoch(held.epoch), "reason": ending.reason}
        fields["claim"] = held.record.claim_id
        _log.info("ended a task", extra=fields)
        return True

    async def _claim(self, ending: pb.ListEndingsResponse.Ending) -> HeldClaim | None:
        """Deletes the owner's claim and makes one of its own. Returns None if another process claimed in between."""
        owner = (await self._store.claims.find_many([ending.task_id])).get(ending.task_id)
        if owner is not None:
            await self._lost_claims.delete(owner)
        session = await self._own_session.current()
        record = ClaimRecord(
            claim_id=str(uuid4()),
            worker_id=self._own_session.holder,
            session_id=session.session_id,
            generation=session.record.generation,
            tenant=ending.tenant,
            reason=ending.reason,
            previous_epoch=owner.epoch if owner is not None else 0,
            key_id=self._issuer.key_id,
            tools=(),
        )
        [claimed] = await self._store.claims.claim_many([NewClaim(ending.task_id, record, session)])
        if claimed.refusal is ClaimRefusal.SESSION_GONE:
            self._own_session.forget(session)
        elif claimed.refusal is ClaimRefusal.GENERATION:
            self._generation.doubt()
        elif claimed.refusal is ClaimRefusal.UNCLEAR:
            raise Unavailable("etcd did not confirm the claim for a close-out")
        return claimed.held

    async def _close_out(self, ending: pb.ListEndingsResponse.Ending, held: HeldClaim) -> bool:
        """Returns whether the task was ended. A task whose ending is no longer due goes back to the queue."""
        token = self._issuer.issue(held)
        await failpoint("coordinator.before_ending_open")
        opened = await self._ledger.open(token)
        await failpoint("coordinator.after_ending_open")
        if not _is_due(ending, opened.task):
            message = f"{self._own_session.holder} found the ending of attempt {ending.attempt} ({ending.reason}) over"
            await self._lost_claims.requeue([LostClaim.of(held, Reason.ENDING_OVER, message)])
            return False
        point = unfinished(opened.entries)
        outcomes = await self._outcomes(token, point)
        await failpoint("coordinator.before_ending_commit")
        try:
            await self._commit(token, opened, _commits(point.step, outcomes, transition_of(ending, point.last_text)))
        except InvalidRequest as refusal:
            fields = {"task": ending.task_id, "error": refusal}
            _log.warning("the ledger refuses the outcomes of a task's calls; they are replaced", extra=fields)
            opened = await self._ledger.open(token)
            left = [one for one in outcomes if one.call_id in unfinished(opened.entries).intents]
            replaced = outcomes_after_refusal(left)
            await self._commit(token, opened, _commits(point.step, replaced, transition_of(ending, "")))
        return True

    async def _commit(
        self, token: token_pb2.FencingToken, opened: OpenedTask, commits: Iterable[pb.CommitRequest]
    ) -> None:
        """Commits in sequence. A crash in between leaves a task with fewer open calls, whose ending is still due."""
        sequence = opened.task.sequence
        for number, request in enumerate(commits, opened.next_commit_number):
            request.token.CopyFrom(token)
            request.commit_id, request.commit_number, request.known_sequence = str(uuid4()), number, sequence
            sequence = (await retrying(partial(self._ledger.commit, request), _COMMIT)).sequence

    async def _outcomes(self, token: token_pb2.FencingToken, point: Unfinished) -> list[ToolOutcome]:
        """Returns the outcome of each open intent. Without open intents no call can start at the tool service."""
        if not (intents := point.open_intents):
            return []
        statuses = await self._tools.close(token, resolved_calls(intents, point.resolutions, point.tools))
        return outcomes_of_ended_calls(intents, statuses, point.resolutions, point.tools)


def _commits(step: int, outcomes: Iterable[ToolOutcome], end: pb.Transition) -> list[pb.CommitRequest]:
    """Returns the commits of a close-out: mostly one."""
    entries = [new_entry(step, outcome) for outcome in outcomes]
    *before, last = portions(entries, ledger_pb2.NewEntry.ByteSize, last_bytes=end.ByteSize())
    return [*(pb.CommitRequest(entries=part) for part in before), pb.CommitRequest(entries=last, transition=end)]


def transition_of(ending: pb.ListEndingsResponse.Ending, result: str) -> pb.Transition:
    """Returns the transition that ends the task. Its message fits, however long the message of the ending is."""
    message = ending.message[:MAX_TRANSITION_MESSAGE]
    return pb.Transition(to_state=ending.to_state, reason=ending.reason, message=message, result=result)


def _is_due(ending: pb.ListEndingsResponse.Ending, task: task_pb2.Task) -> bool:
    """Whether the ending is still due."""
    return task.cancel_requested and ending.attempt == task.attempt


# Pending endings: the owner is notified first. A coordinator carries out an ending that the owner did not carry out in
# time.

_POLL_SECONDS: Final = 0.5
_AT_ONCE: Final = 16
_FAILED_PAUSE_SECONDS: Final = 1.0


class PendingEndings:
    """Asks the ledger for pending endings, in every replica: the ledger gives each ending to one replica.

    The duty is `run`.
    """

    def __init__(
        self, ledger: LedgerClient, sessions: Sessions, close_out_runner: CloseOutRunner, *, grace_seconds: float
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._close_out_runner = close_out_runner
        self._grace_seconds = grace_seconds
        self._woken = asyncio.Event()
        self._capacity = asyncio.Semaphore(_AT_ONCE)
        self._in_progress: set[str] = set()

    def on_cancels(self, task_ids: Iterable[str]) -> None:
        """Notifies the owners that are attached here.

        A worker may hold more of the tasks than fit into its outbox, which would end its stream: after the grace, the
        others are closed out without their owner.
        """
        wanted = set(task_ids)
        for task_id, session in self._sessions.holders_of(wanted):
            if session.room:
                session.send(coordinator_pb.SessionResponse(cancel=coordinator_pb.CancelNotice(task_id=task_id)))
        if wanted:
            self._woken.set()

    async def run(self) -> None:
        """Carries out pending endings. A slow or failing close-out delays no other. A duty."""
        async with TaskGroup() as group:
            while True:
                try:
                    while await self._sweep(group):
                        pass
                except TenureError as error:
                    _log.warning("pending endings could not be listed", extra={"error": error})
                    await rest(_FAILED_PAUSE_SECONDS)
                await self._wait()

    async def _sweep(self, group: TaskGroup) -> bool:
        """Starts close-outs, up to the limit of concurrent ones. Returns whether more may be due."""
        async with self._capacity:
            wanted = _AT_ONCE - len(self._in_progress)
        note_progress()
        due = await self._ledger.list_endings(wanted, self._grace_seconds)
        for ending in due:
            if ending.task_id not in self._in_progress:
                await self._capacity.acquire()
                self._in_progress.add(ending.task_id)
                group.create_task(self._end_one(ending))
        return len(due) == wanted

    async def _end_one(self, ending: checkpoint_service_pb2.ListEndingsResponse.Ending) -> None:
        try:
            await self._end(ending)
        except Exception:  # noqa: BLE001  a failure of one task: logged with its stack, the others are ended
            _log.exception("a task could not be ended", extra={"task": ending.task_id})
            await asyncio.sleep(_FAILED_PAUSE_SECONDS)
        finally:
            self._in_progress.discard(ending.task_id)
            self._capacity.release()

    async def _end(self, ending: checkpoint_service_pb2.ListEndingsResponse.Ending) -> None:
        set_tenant(ending.tenant)  # only of this asyncio task
        with log_context(task=ending.task_id):
            try:
                await self._close_out_runner.end(ending)
            except TenureError as error:
                _log.warning("a task could not be ended yet", extra={"error": error})
                await asyncio.sleep(_FAILED_PAUSE_SECONDS)

    async def _wait(self) -> None:
        """Waits for the next poll, or for the end of the grace after a cancel notification."""
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                with resting():
                    await self._woken.wait()
        except TimeoutError:
            return
        self._woken.clear()
        await rest(min(self._grace_seconds, _POLL_SECONDS) / 2)
