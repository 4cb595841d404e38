"""The first of a call's three writes: the fence and the record, in one transaction for a whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from services.tools.calls.accept_rules import Answer, Conclude, Doubt, FenceRow, Here, Join, Run, Verdict, admit, decide
from services.tools.calls.locks import (
    ask_for_calls,
    ask_for_fences,
    locked_calls,
    locked_fences,
    make_fences,
    raise_fences,
)
from services.tools.calls.records import Asked, CallKey, CallRow, pack_outcome
from services.tools.calls.refusals import Refusal, insert_refusals
from services.tools.statements import QUERIES
from tenure.domain.errors import AlreadyExists, StaleEpoch, TenureError
from tenure.domain.tools import CallState, Outcome
from tenure.runtime.postgres import Connection

METHOD: Final = "Execute"


@dataclass(frozen=True, slots=True)
class _Change:
    """A call's new standing."""

    asked: Asked
    state: CallState
    call_attempt: int
    outcome: Outcome | None = None


@dataclass(slots=True)
class Accepting:
    """A batch while it is decided: each call's verdict, and what is to be written for all of them."""

    fences: dict[UUID, FenceRow]
    rows: dict[CallKey, CallRow]
    raised: dict[UUID, FenceRow] = field(default_factory=dict)
    inserts: list[_Change] = field(default_factory=list)
    changes: list[_Change] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)

    def decide(self, asked: Asked, here: Here) -> Verdict | TenureError:
        """One call; those before it in the batch may have raised its fence."""
        task_id = asked.key.task_id
        fence = admit(self.fences[task_id], asked.fence)
        if isinstance(fence, StaleEpoch):
            self.refusals.append(Refusal.of(METHOD, task_id, asked.claims, fence))
            return fence
        if fence != self.fences[task_id]:
            self.fences[task_id] = self.raised[task_id] = fence
        row = self.rows.get(asked.key)
        verdict = decide(row, asked, here)
        if not isinstance(verdict, AlreadyExists):
            self._note_new(asked, verdict) if row is None else self._note(asked, row, verdict)
        return verdict

    def _note_new(self, asked: Asked, verdict: Verdict) -> None:
        match verdict:
            case Run(call_attempt):
                self.inserts.append(_Change(asked, CallState.ACCEPTED, call_attempt))
            case Doubt(call_attempt):
                self.inserts.append(_Change(asked, CallState.IN_DOUBT, call_attempt))
            case Conclude(outcome) | Answer(outcome):
                self.inserts.append(_Change(asked, CallState.FINISHED, outcome.call_attempt, outcome))

    def _note(self, asked: Asked, row: CallRow, verdict: Verdict) -> None:
        match verdict:
            case Run(call_attempt):
                self.changes.append(_Change(asked, CallState.ACCEPTED, call_attempt))
            case Doubt(call_attempt):
                self.changes.append(_Change(asked, CallState.IN_DOUBT, call_attempt))
            case Conclude(outcome):
                self.changes.append(_Change(asked, CallState.FINISHED, outcome.call_attempt, outcome))
            case Join(call_attempt) if asked.fence != row.fence:
                # It runs on under the new claim: its record names the one that last authorised it.
                self.changes.append(_Change(asked, CallState.STARTED, call_attempt))
            case Join() | Answer():
                pass

    async def write(self, postgres: Connection, runner_id: UUID) -> None:
        """All of it; the locks are still held."""
        await raise_fences(postgres, self.raised)
        if self.inserts:
            await postgres.execute(QUERIES.insert_calls, {**_insert_columns(self.inserts), "runner_id": runner_id})
        if self.changes:
            await postgres.execute(QUERIES.change_calls, {**_change_columns(self.changes), "runner_id": runner_id})
        await insert_refusals(postgres, self.refusals)


async def begin_accepting(postgres: Connection, batch: Sequence[Asked]) -> Accepting:
    """Lock and read what the batch is about: the fences first, then the calls."""
    tenants = {asked.key.task_id: asked.claims.tenant for asked in batch}
    asked_fences = await ask_for_fences(postgres, tenants)
    asked_calls = await ask_for_calls(postgres, [asked.key for asked in batch])
    fences, rows = await locked_fences(asked_fences), await locked_calls(asked_calls)
    if missing := {task_id: tenant for task_id, tenant in tenants.items() if task_id not in fences}:
        fences |= await make_fences(postgres, missing)
        # Nothing was locked when these calls were read: another replica may have made fence and call since.
        again = [asked.key for asked in batch if asked.key.task_id in missing]
        rows |= await locked_calls(await ask_for_calls(postgres, again))
    return Accepting(fences, rows)


def _insert_columns(inserts: Sequence[_Change]) -> dict[str, list[object]]:
    return {
        "tools": [insert.asked.tool for insert in inserts],
        "effect_classes": [insert.asked.effect_class.value for insert in inserts],
        "hashes": [insert.asked.arguments_hash for insert in inserts],
        "arguments": [insert.asked.arguments_json for insert in inserts],
        **_change_columns(inserts),
    }


def _change_columns(changes: Sequence[_Change]) -> dict[str, list[object]]:
    return {
        "task_ids": [change.asked.key.task_id for change in changes],
        "call_ids": [change.asked.key.call_id for change in changes],
        "states": [change.state.value for change in changes],
        "attempts": [change.call_attempt for change in changes],
        "epochs": [change.asked.fence.epoch for change in changes],
        "claim_ids": [change.asked.fence.claim_id for change in changes],
        "acts_elsewhere": [change.asked.acts_elsewhere for change in changes],
        "outcomes": [b"" if change.outcome is None else pack_outcome(change.outcome) for change in changes],
    }
