"""The first of a call's three writes, of calls that accept_new.py left out: one transaction for a batch of calls.

The transaction locks the fences, then the call records, decides by accept_rules.py under those locks, and writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from uuid import UUID

from services.tools.calls.accept_rules import (
    AnswerFromRecord,
    ConcludeCall,
    JoinCall,
    MarkInDoubt,
    RunCall,
    RunnerIdentity,
    SettleCall,
    ToolFenceRow,
    Verdict,
    WaitForEffect,
    admit,
    decide,
)
from services.tools.calls.call_log import RefusedCall, insert_refusals
from services.tools.calls.effect_keys import free_undone_effects, note_effect_calls, once_each, undone_by
from services.tools.calls.records import CallKey, CallRequest, CallRow, doubt_note, pack_outcome
from services.tools.calls.stops import StopView, covering
from services.tools.statements import QUERIES
from tenure.domain.errors import StaleEpoch, TenureError
from tenure.domain.fencing import Fence
from tenure.domain.repeated_effects import NOT_RUN
from tenure.domain.stops import StopsInForce, stopped
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus
from tenure.runtime.store.postgres import Connection

# Reads fences and calls under the row locks of the decision, and writes fences.


class SqlCursor(Protocol):
    """The result of a query that was sent and may not have been answered yet."""

    async def fetchall(self) -> list[Any]: ...


async def lock_fences(postgres: Connection, tenants: Mapping[UUID, str]) -> dict[UUID, ToolFenceRow]:
    """Locks and returns the fences of these tasks; inserts missing ones. The locks last as long as the transaction."""
    fences = await locked_fences(await send_fence_query(postgres, tenants))
    missing = {task_id: tenant for task_id, tenant in tenants.items() if task_id not in fences}
    return fences | await make_fences(postgres, missing) if missing else fences


async def send_fence_query(postgres: Connection, tenants: Iterable[UUID]) -> SqlCursor:
    """Locks the existing fences."""
    return await postgres.execute(QUERIES.lock_fences, {"task_ids": sorted(tenants)})


async def make_fences(postgres: Connection, missing: Mapping[UUID, str]) -> dict[UUID, ToolFenceRow]:
    """Inserts missing fences, then locks and returns them.

    Another replica may insert the same fences, and raise them before this transaction gets their locks.
    """
    task_ids = sorted(missing)
    await postgres.execute(
        QUERIES.ensure_fences, {"task_ids": task_ids, "tenants": [missing[task_id] for task_id in task_ids]}
    )
    return await locked_fences(await send_fence_query(postgres, task_ids))


async def locked_fences(cursor: SqlCursor) -> dict[UUID, ToolFenceRow]:
    """Returns the result of `send_fence_query`, by task."""
    return {row[0]: ToolFenceRow(Fence(row[2], row[3]), row[4]) for row in await cursor.fetchall()}


async def raise_fences(postgres: Connection, fences: Mapping[UUID, ToolFenceRow]) -> None:
    """Writes fences that this transaction has locked."""
    if not fences:
        return
    rows = fences.values()
    await postgres.execute(
        QUERIES.raise_fences,
        {
            "task_ids": list(fences),
            "epochs": [row.current.epoch for row in rows],
            "claim_ids": [row.current.claim_id for row in rows],
            "closed": [row.closed for row in rows],
        },
    )


async def send_call_query(postgres: Connection, keys: Sequence[CallKey]) -> SqlCursor:
    """Locks the existing records of these calls. The fences must be locked before."""
    return await postgres.execute(
        QUERIES.lock_calls, {"task_ids": [key.task_id for key in keys], "call_ids": [key.call_id for key in keys]}
    )


async def locked_calls(cursor: SqlCursor) -> dict[CallKey, CallRow]:
    """Returns the result of `send_call_query`, by key."""
    return {row.key: row for row in map(_call_row, await cursor.fetchall())}


def _call_row(row: tuple[Any, ...]) -> CallRow:
    return CallRow(
        key=CallKey(row[0], row[1]),
        effect_class=EffectClass(row[2]),
        arguments_hash=row[3],
        state=CallState(row[4]),
        call_attempt=row[5],
        fence=Fence(row[6], row[7]),
        runner_id=row[8],
        runner_alive=row[9],
        outcome=row[10],
        runner_gone=row[11],
        doubt_note=row[12],
        begun_before=row[13],
        idempotency_key=row[14],
    )


METHOD: Final = "Execute"


@dataclass(frozen=True, slots=True)
class _Change:
    """The new state of a call's record."""

    request: CallRequest
    state: CallState
    call_attempt: int
    outcome: Outcome | None = None
    doubt_note: str = ""
    is_settled: bool = False
    plan_id: str = ""


@dataclass(slots=True)
class AcceptBatch:
    """The locked rows of a batch, and the writes that its verdicts need. `plans`: the plan by which a call may run."""

    fences: dict[UUID, ToolFenceRow]
    rows: dict[CallKey, CallRow]
    stops: StopsInForce
    raised: dict[UUID, ToolFenceRow] = field(default_factory=dict)
    inserts: list[_Change] = field(default_factory=list)
    changes: list[_Change] = field(default_factory=list)
    refusals: list[RefusedCall] = field(default_factory=list)
    plans: Mapping[CallKey, str] = field(default_factory=dict)

    def is_new(self, request: CallRequest) -> bool:
        """Whether the fence admits the call, and the call has no record."""
        is_admitted = isinstance(admit(self.fences[request.key.task_id], request.fence), ToolFenceRow)
        return is_admitted and request.key not in self.rows

    def decide(
        self, request: CallRequest, here: RunnerIdentity, by_rules: Verdict | None = None
    ) -> Verdict | TenureError:
        """Decides one call; `note` comes after it. Earlier calls of the batch may have raised its fence.

        `by_rules`: the verdict of the tenant's rules on a call without a record, unless they allow it.
        """
        task_id = request.key.task_id
        fence = admit(self.fences[task_id], request.fence)
        if isinstance(fence, StaleEpoch):
            self.refusals.append(RefusedCall.of(METHOD, task_id, request.claims, fence))
            return fence
        if fence != self.fences[task_id]:
            self.fences[task_id] = self.raised[task_id] = fence
        row = self.rows.get(request.key)
        verdict = decide(row, request, here)
        if isinstance(verdict, RunCall) and (stop := covering(self.stops, request)) is not None:
            own, next_attempt = request.own_outcome, verdict.call_attempt
            if own is not None and own.status is OutcomeStatus.NOT_RUN and own.call_attempt + 1 == next_attempt:
                self.changes.append(_Change(request, CallState.ACCEPTED, next_attempt))  # it runs after the stop
            return stopped(stop)
        return by_rules if isinstance(verdict, RunCall) and row is None and by_rules is not None else verdict

    def note(self, request: CallRequest, verdict: Verdict | TenureError) -> None:
        """Adds what the verdict changes in the record of the call."""
        if not isinstance(verdict, TenureError):
            row = self.rows.get(request.key)
            self._note_new(request, verdict) if row is None else self._note(request, row, verdict)

    def _note_new(self, request: CallRequest, verdict: Verdict) -> None:
        plan_id = self.plans.get(request.key, "")
        match verdict:
            case RunCall(call_attempt):
                self.inserts.append(_Change(request, CallState.ACCEPTED, call_attempt, plan_id=plan_id))
            case MarkInDoubt(call_attempt, note):
                text = doubt_note(note)
                change = _Change(request, CallState.IN_DOUBT, call_attempt, doubt_note=text, plan_id=plan_id)
                self.inserts.append(change)
            case ConcludeCall(outcome) | AnswerFromRecord(outcome):
                self.inserts.append(_Change(request, CallState.FINISHED, outcome.call_attempt, outcome))

    def _note(self, request: CallRequest, row: CallRow, verdict: Verdict) -> None:
        match verdict:
            case RunCall(call_attempt):
                self.changes.append(_Change(request, CallState.ACCEPTED, call_attempt))
            case SettleCall(call_attempt):
                # STARTED at once: a replica of an older version would run a call that it finds ACCEPTED.
                self.changes.append(_Change(request, CallState.STARTED, call_attempt, is_settled=True))
            case MarkInDoubt(call_attempt, note):
                self.changes.append(_Change(request, CallState.IN_DOUBT, call_attempt, doubt_note=doubt_note(note)))
            case ConcludeCall(outcome):
                self.changes.append(_Change(request, CallState.FINISHED, outcome.call_attempt, outcome))
            case JoinCall(call_attempt) if request.fence != row.fence:
                # The run goes on under the new claim: a record names the claim that last authorised it.
                self.changes.append(_Change(request, CallState.STARTED, call_attempt))
            case JoinCall() | AnswerFromRecord() | WaitForEffect():
                pass

    async def write(self, postgres: Connection, runner_id: UUID) -> None:
        """Writes fences, records and refusals, under the locks that `begin_accepting` took."""
        await raise_fences(postgres, self.raised)
        if self.inserts:
            await postgres.execute(QUERIES.insert_calls, {**_insert_columns(self.inserts), "runner_id": runner_id})
        if self.changes:
            settled = [change.is_settled for change in self.changes]
            columns = {**_change_columns(self.changes), "settled": settled, "runner_id": runner_id, "not_run": NOT_RUN}
            await postgres.execute(QUERIES.change_calls, columns)
        await insert_refusals(postgres, self.refusals)


async def begin_accepting(postgres: Connection, batch: Sequence[CallRequest], stops: StopView) -> AcceptBatch:
    """Reads the stops, then locks and reads the rows of a batch: the fences first, then the calls.

    The batch decides by its own read. A stop waits for a transaction that has read an earlier epoch.
    """
    stop_query = await postgres.execute(QUERIES.read_stops)
    tenants = {request.key.task_id: request.claims.tenant for request in batch}
    fence_query = await send_fence_query(postgres, tenants)
    call_query = await send_call_query(postgres, [request.key for request in batch])
    in_force = stops.take(await stop_query.fetchall())
    fences, rows = await locked_fences(fence_query), await locked_calls(call_query)
    if missing := {task_id: tenant for task_id, tenant in tenants.items() if task_id not in fences}:
        fences |= await make_fences(postgres, missing)
        # The first read of these calls had no fence lock: another replica may have inserted fence and call since.
        unlocked = [request.key for request in batch if request.key.task_id in missing]
        rows |= await locked_calls(await send_call_query(postgres, unlocked))
    return AcceptBatch(fences, rows, in_force)


async def conclude(
    postgres: Connection,
    accepting: AcceptBatch,
    batch: Sequence[CallRequest],
    verdicts: list[Verdict | TenureError],
    runner_id: UUID,
) -> None:
    """Replaces the verdicts of calls whose effect another call makes, and writes what all verdicts change."""
    await once_each(postgres, batch, accepting.rows, verdicts)
    await record(postgres, accepting, batch, verdicts, runner_id)


async def record(
    postgres: Connection,
    accepting: AcceptBatch,
    batch: Sequence[CallRequest],
    verdicts: Sequence[Verdict | TenureError],
    runner_id: UUID,
) -> None:
    """Writes what the verdicts change."""
    for request, verdict in zip(batch, verdicts, strict=True):
        accepting.note(request, verdict)
    await accepting.write(postgres, runner_id)
    await note_effect_calls(postgres, batch, verdicts)
    concluded = [
        (request.key, undone)
        for request, verdict in zip(batch, verdicts, strict=True)
        if isinstance(verdict, ConcludeCall) and (undone := undone_by(request, verdict.outcome))
    ]
    await free_undone_effects(postgres, concluded)


def _insert_columns(inserts: Sequence[_Change]) -> dict[str, list[object]]:
    return {
        "tools": [insert.request.tool for insert in inserts],
        "effect_classes": [insert.request.effect_class.value for insert in inserts],
        "hashes": [insert.request.arguments_hash for insert in inserts],
        "arguments": [insert.request.arguments_json for insert in inserts],
        "plan_ids": [insert.plan_id for insert in inserts],
        **_change_columns(inserts),
    }


def _change_columns(changes: Sequence[_Change]) -> dict[str, list[object]]:
    return {
        "task_ids": [change.request.key.task_id for change in changes],
        "call_ids": [change.request.key.call_id for change in changes],
        "states": [change.state.value for change in changes],
        "attempts": [change.call_attempt for change in changes],
        "epochs": [change.request.fence.epoch for change in changes],
        "claim_ids": [change.request.fence.claim_id for change in changes],
        "acts_elsewhere": [change.request.acts_elsewhere for change in changes],
        "outcomes": [b"" if change.outcome is None else pack_outcome(change.outcome) for change in changes],
        "doubt_notes": [change.doubt_note for change in changes],
    }
