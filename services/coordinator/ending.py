"""One ending of a task by somebody other than its worker, through the same fences as everybody.

Delete the owner's claim, claim under the coordinator's own session, register, Open, close the tools' fence, then commit
an outcome for every open intent with the end: in one commit, unless they are too large for one. Without the fence an
Execute that was delayed on its way would start an effect after the end.

The list of endings may be old: meanwhile the owner can end the task, and an operator can requeue it. So what Open
returns decides whether the ending is still due. While this claim is open, nothing withdraws an ending.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from services.coordinator.lease_store import ClaimRecord, HeldClaim
from services.coordinator.lease_store.claim_keys import NewClaim, Refusal
from services.coordinator.losses import LostClaim
from tenure.domain.endings import Unfinished, outcomes_of_ended_calls, unfinished
from tenure.domain.entries import ToolOutcome
from tenure.domain.epochs import describe_epoch
from tenure.domain.errors import Fenced, TenureError, Unavailable, WrongState
from tenure.domain.retry import RetryPolicy
from tenure.domain.states import Reason
from tenure.runtime import metrics
from tenure.runtime.failpoint import failpoint
from tenure.runtime.retrying import retrying
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, token_pb2
from tenure.wire.entries import new_entry
from tenure.wire.portions import portions

if TYPE_CHECKING:
    from services.coordinator.generation import Generation
    from services.coordinator.issuing import Issuer
    from services.coordinator.lease_store import LeaseStore
    from services.coordinator.ledger import Ledger
    from services.coordinator.losses import Losses
    from services.coordinator.own_session import OwnSession
    from services.coordinator.tool_fence import ToolFence
    from tenure.v1 import task_pb2
    from tenure.wire.opened import Opened

_log: Final = logging.getLogger(__name__)
_COMMIT: Final = RetryPolicy(max_attempts=4, initial_seconds=0.1, factor=2.0, cap_seconds=1.0)


class Ender:
    """Ends tasks. An ending that fails half-way lets go of the task; it is listed again."""

    def __init__(
        self,
        store: LeaseStore,
        ledger: Ledger,
        tool_fence: ToolFence,
        losses: Losses,
        issuer: Issuer,
        generation: Generation,
        own_session: OwnSession,
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._tool_fence = tool_fence
        self._losses = losses
        self._issuer = issuer
        self._generation = generation
        self._own_session = own_session

    async def end(self, ending: pb.ListEndingsResponse.Ending) -> bool:
        """Whether it was ended here and now. Raises Unavailable; somebody else being quicker is no error."""
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
            _log.info("somebody else ended or took the task", extra={"task": ending.task_id, "error": error})
            return False
        except TenureError as error:
            message = f"{self._own_session.holder} could not end the task: {error.message}"
            await self._losses.requeue([LostClaim.of(held, Reason.CLAIM_LOST, message)])
            raise
        finally:
            await failpoint("coordinator.before_ending_release")
            await self._losses.delete(held)
        metrics.count("tenure_endings_total", reason=ending.reason)
        facts = {"task": ending.task_id, "epoch": describe_epoch(held.epoch), "reason": ending.reason}
        _log.info("ended a task", extra=facts)
        return True

    async def _claim(self, ending: pb.ListEndingsResponse.Ending) -> HeldClaim | None:
        """Our claim, after the owner's was deleted; None if somebody else claimed in between."""
        owner = (await self._store.claims.find_many([ending.task_id])).get(ending.task_id)
        if owner is not None:
            await self._losses.delete(owner)
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
        if claimed.refusal is Refusal.SESSION_GONE:
            self._own_session.forget(session)
        elif claimed.refusal is Refusal.GENERATION:
            self._generation.doubt()
        elif claimed.refusal is Refusal.UNCLEAR:
            raise Unavailable("a claim for an ending is unclear")
        return claimed.held

    async def _close_out(self, ending: pb.ListEndingsResponse.Ending, held: HeldClaim) -> bool:
        """Whether the task was ended. A task whose ending is over goes back to the queue."""
        token = self._issuer.issue(held)
        await failpoint("coordinator.before_ending_open")
        opened = await self._ledger.open(token)
        await failpoint("coordinator.after_ending_open")
        if not _is_due(ending, opened.task):
            message = f"{self._own_session.holder} came to end attempt {ending.attempt} ({ending.reason}): it is over"
            await self._losses.requeue([LostClaim.of(held, Reason.ENDING_OVER, message)])
            return False
        point = unfinished(opened.entries)
        outcomes = await self._outcomes(token, point)
        end = pb.Transition(
            to_state=ending.to_state, reason=ending.reason, message=ending.message, result=point.last_text
        )
        entries = [new_entry(point.step, outcome) for outcome in outcomes]
        *before, last = portions(entries, ledger_pb2.NewEntry.ByteSize, last_bytes=end.ByteSize())
        await failpoint("coordinator.before_ending_commit")
        commits = [pb.CommitRequest(entries=part) for part in before]
        await self._commit(token, opened, [*commits, pb.CommitRequest(entries=last, transition=end)])
        return True

    async def _commit(self, token: token_pb2.FencingToken, opened: Opened, commits: Iterable[pb.CommitRequest]) -> None:
        """One after another: what a crash leaves in between is a task with fewer open calls, whose end is still due."""
        sequence = opened.task.sequence
        for number, request in enumerate(commits, opened.next_commit_number):
            request.token.CopyFrom(token)
            request.commit_id, request.commit_number, request.known_sequence = str(uuid4()), number, sequence
            sequence = (await retrying(partial(self._ledger.commit, request), _COMMIT)).sequence

    async def _outcomes(self, token: token_pb2.FencingToken, point: Unfinished) -> list[ToolOutcome]:
        """What each open intent came to. A task without any has nothing at the tools that could still begin."""
        if not (intents := point.open_intents):
            return []
        standings = await self._tool_fence.close(token)
        return outcomes_of_ended_calls(intents, standings, point.resolutions, point.tools)


def _is_due(ending: pb.ListEndingsResponse.Ending, task: task_pb2.Task) -> bool:
    """A ledger of an older version lists endings without their attempt."""
    return task.cancel_requested and ending.attempt in {0, task.attempt}
