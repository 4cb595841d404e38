"""The writes of the model runner, each for a batch of calls: admit requests, mark calls SENT, record their ends.

A call that need not wait has two writes: it is admitted as SENT, and its end is recorded. A new call is mostly admitted
by one statement, see begin_new.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from services.models.admission import LimitedCall
from services.models.begin_new import begin_new_calls
from services.models.rules import (
    Attempt,
    BeginCall,
    CallIntent,
    EndedCall,
    GenerationRow,
    Here,
    ModelCallState,
    RowDecision,
    Verdict,
    decide,
)
from services.models.statements import QUERIES
from services.models.work import CallWork, ModelCallKey
from tenure.domain.errors import StaleEpoch, TenureError
from tenure.domain.fencing import Fence
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.store.batching import Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.runtime.store.sql_arrays import Byteas, Int4s, Texts, Uuids

MAX_CALLS: Final = 65_536
"""The limit of the setting: as many ends may wait for Postgres at once."""
MAX_WAITING_BYTES: Final = 256 * 1024 * 1024
"""The limit of the prompts that wait for a decision: while Postgres is away, they wait for seconds."""
_SIZE_BYTES: Final = 256


@dataclass(slots=True, eq=False)
class AdmittedRequest:
    """A request to be decided. `work`: what a call needs to begin here; None for a cancellation."""

    key: ModelCallKey
    tenant: str
    request: CallIntent
    work: CallWork | None = None


class RequestBatcher(NamedTuple):
    """The functions of this process by which a batch of requests is decided. `begin` must not wait and must not raise.

    `is_alive`: takes a runner and its last renewal.
    """

    runner_id: Callable[[], UUID]
    is_alive: Callable[[UUID, datetime], bool]
    runs: Callable[[ModelCallKey], bool]
    refuse_new: Callable[[LimitedCall], TenureError | None]
    begin: Callable[[AdmittedRequest, BeginCall], None]

    def over(self, kept: DedicatedConnection) -> Batcher[AdmittedRequest, Verdict]:
        """Returns the batcher that admits requests. A call that begins here has begun before its request is answered:
        its caller may be gone by then.
        """

        async def write(batch: Sequence[AdmittedRequest]) -> list[Verdict | TenureError]:
            runner_id = self.runner_id()
            await failpoint("models.before_admission")
            begun = await self._begin_new(kept, batch, runner_id)
            left = [one for one in batch if one.key.task_id not in begun]
            decided = await self._decide_all(kept, left, runner_id) if left else {}
            verdicts = [begun.get(one.key.task_id) or decided[one.key.task_id] for one in batch]
            for one, verdict in zip(batch, verdicts, strict=True):
                if isinstance(verdict, BeginCall):
                    self.begin(one, verdict)
                elif isinstance(verdict, EndedCall) and verdict.lost_now:
                    metrics.count("tenure_models_calls_lost_total")
                elif isinstance(verdict, StaleEpoch):
                    metrics.count("tenure_stale_epoch_rejections_total", service="models")
            return verdicts

        limits = BatchLimits(max_bytes=MAX_WAITING_BYTES, max_waiting_bytes=MAX_WAITING_BYTES)
        return Batcher("requests", write, key=lambda one: one.key.task_id, size=_size_of, limits=limits)

    async def _begin_new(
        self, kept: DedicatedConnection, batch: Sequence[AdmittedRequest], runner_id: UUID
    ) -> dict[UUID, BeginCall]:
        """Begins the new calls in their rows. The process makes them after the batch's other write, which may fail."""
        new = [one for one in batch if self._may_begin(one)]
        if not new:
            return {}
        try:
            async with kept.statements() as postgres:
                begun = await begin_new_calls(postgres, new, runner_id)
        except BaseException:
            _mark_as_own(new)
            raise
        _mark_as_own(one for one in new if one.key.task_id in begun)
        return begun

    async def _decide_all(
        self, kept: DedicatedConnection, batch: Sequence[AdmittedRequest], runner_id: UUID
    ) -> dict[UUID, Verdict | TenureError]:
        """Decides requests under the locks of their rows, and writes what the rules decided."""
        async with kept.transaction() as postgres:
            rows = await _locked(postgres, batch, self.is_alive)
            decisions = {one.key.task_id: self._decide(rows[one.key.task_id], one, runner_id) for one in batch}
            await _write(postgres, rows, decisions)
            _mark_as_own(batch)
        return {task_id: decision.verdict for task_id, decision in decisions.items()}

    def _may_begin(self, one: AdmittedRequest) -> bool:
        return one.work is not None and self.refuse_new(one.work.limited) is None and not self.runs(one.key)

    def _decide(self, row: GenerationRow, one: AdmittedRequest, runner_id: UUID) -> RowDecision:
        """Decides under the lock of the row: a call that ends here meanwhile has not recorded its end yet."""

        def refuse_new() -> TenureError | None:
            assert one.work is not None, "only Generate begins calls"
            return self.refuse_new(one.work.limited)

        return decide(row, one.request, Here(runner_id, lambda: self.runs(one.key), refuse_new))


def _size_of(one: AdmittedRequest) -> int:
    return _SIZE_BYTES + (0 if one.work is None else one.work.limited.input_bytes)


def _mark_as_own(requests: Iterable[AdmittedRequest]) -> None:
    """Notes that the row may have these requests: a repeat of the write finds them there, and their calls begin."""
    for one in requests:
        one.request = replace(one.request, may_be_own=True)


async def _locked(
    postgres: Connection, batch: Sequence[AdmittedRequest], is_alive: Callable[[UUID, datetime], bool]
) -> dict[UUID, GenerationRow]:
    """Locks and returns the rows of a batch; inserts missing ones."""
    rows = await _lock(postgres, batch, is_alive)
    if missing := [one for one in batch if one.key.task_id not in rows]:
        tenants = {one.key.task_id: one.tenant for one in missing}
        ordered = sorted(tenants)
        await postgres.execute(
            QUERIES.ensure_generations,
            {"task_ids": Uuids(ordered), "tenants": Texts(tenants[task_id] for task_id in ordered)},
        )
        rows |= await _lock(postgres, missing, is_alive)
    return rows


async def _lock(
    postgres: Connection, batch: Sequence[AdmittedRequest], is_alive: Callable[[UUID, datetime], bool]
) -> dict[UUID, GenerationRow]:
    cursor = await postgres.execute(
        QUERIES.lock_generations,
        {
            "task_ids": Uuids(one.key.task_id for one in batch),
            "steps": Int4s(one.key.attempt.step for one in batch),
            "attempts": Int4s(one.key.attempt.number for one in batch),
        },
    )
    rows = {}
    for task_id, epoch, claim_id, step, number, state, runner_id, address, renewed_at, *rest in await cursor.fetchall():
        alive = runner_id is not None and renewed_at is not None and is_alive(runner_id, renewed_at)
        fence, attempt = Fence(epoch, claim_id), Attempt(step, number)
        rows[task_id] = GenerationRow(fence, attempt, ModelCallState(state), runner_id, address, alive, *rest)
    return rows


async def _write(
    postgres: Connection, rows: Mapping[UUID, GenerationRow], decisions: Mapping[UUID, RowDecision]
) -> None:
    """Writes the rows that changed. An end that is recorded already is not written again."""
    written = {task_id: made.written for task_id, made in decisions.items() if made.written is not None}
    raised = {
        task_id: row for task_id, row in written.items() if replace(row, fence=rows[task_id].fence) == rows[task_id]
    }
    changed = {task_id: row for task_id, row in written.items() if task_id not in raised}
    if raised:
        await postgres.execute(QUERIES.raise_fences, _fence_columns(raised))
    if changed:
        await postgres.execute(
            QUERIES.write_generations,
            {
                **_fence_columns(changed),
                "steps": Int4s(row.attempt.step for row in changed.values()),
                "attempts": Int4s(row.attempt.number for row in changed.values()),
                "states": Texts(row.state.value for row in changed.values()),
                "runner_ids": [row.runner_id for row in changed.values()],
                "begun_epochs": [row.begun_epoch for row in changed.values()],
                "sent_ats": [row.sent_at for row in changed.values()],
                "ends": [row.ended for row in changed.values()],
            },
        )


def _fence_columns(rows: Mapping[UUID, GenerationRow]) -> dict[str, object]:
    return {
        "task_ids": Uuids(rows),
        "epochs": [row.fence.epoch for row in rows.values()],
        "claim_ids": Texts(row.fence.claim_id for row in rows.values()),
    }


class SentMark(NamedTuple):
    """The SENT mark of a call that had to wait."""

    key: ModelCallKey
    sent_at: datetime


def sent_batcher(kept: DedicatedConnection, runner_id: Callable[[], UUID]) -> Batcher[SentMark, bool]:
    """Returns the batcher that marks calls SENT. False: the call was cancelled, or another runner has it."""

    async def write(batch: Sequence[SentMark]) -> list[bool]:
        parameters = {
            **_key_columns([mark.key for mark in batch]),
            "sent_ats": [mark.sent_at for mark in batch],
            "runner_id": runner_id(),
        }
        async with kept.statements() as postgres:
            cursor = await postgres.execute(QUERIES.mark_sent, parameters)
            marked = {row[0] for row in await cursor.fetchall()}
        return [ordinal in marked for ordinal in range(len(batch))]

    return Batcher(
        "sent marks",
        write,
        key=lambda mark: mark.key.task_id,
        size=lambda _: _SIZE_BYTES,
        limits=BatchLimits(max_waiting=MAX_CALLS, patience_seconds=None),
    )


class EndMark(NamedTuple):
    """The end of a call."""

    key: ModelCallKey
    ended: bytes


def end_batcher(kept: DedicatedConnection, runner_id: Callable[[], UUID]) -> Batcher[EndMark, bool]:
    """Returns the batcher that records ends. It retries through any outage: an answer that is paid must be recorded.

    False: the call has another end already, or a later attempt has begun.
    """

    async def write(batch: Sequence[EndMark]) -> list[bool]:
        parameters = {
            **_key_columns([mark.key for mark in batch]),
            "ends": Byteas(mark.ended for mark in batch),
            "runner_id": runner_id(),
        }
        await failpoint("models.before_end")
        async with kept.statements() as postgres:
            cursor = await postgres.execute(QUERIES.finish_generations, parameters)
            recorded = {row[0] for row in await cursor.fetchall()}
        return [ordinal in recorded for ordinal in range(len(batch))]

    return Batcher(
        "ends",
        write,
        key=lambda mark: mark.key.task_id,
        size=lambda mark: len(mark.ended),
        limits=BatchLimits(max_waiting=MAX_CALLS, patience_seconds=None, max_waiting_bytes=1024 * 1024 * 1024),
    )


def _key_columns(keys: Sequence[ModelCallKey]) -> dict[str, object]:
    return {
        "ordinals": Int4s(range(len(keys))),
        "task_ids": Uuids(key.task_id for key in keys),
        "steps": Int4s(key.attempt.step for key in keys),
        "attempts": Int4s(key.attempt.number for key in keys),
    }


async def give_up_calls(pool: Pool, keys: Sequence[ModelCallKey], runner_id: UUID) -> None:
    """Gives up calls that were not sent, so that any replica takes them over."""
    async with pool_connection(pool) as postgres:
        await postgres.execute(QUERIES.give_up, {"task_ids": [key.task_id for key in keys], "runner_id": runner_id})


class CallElsewhere(NamedTuple):
    """A call that this process no longer makes. `ended`: its recorded end; None: another runner makes it."""

    ended: bytes | None


async def read_elsewhere(pool: Pool, key: ModelCallKey) -> CallElsewhere | None:
    """Reads what has become of a call; None: a later attempt has begun."""
    parameters = {"task_id": key.task_id, "step": key.attempt.step, "attempt_number": key.attempt.number}
    async with pool_connection(pool) as postgres:
        row = await (await postgres.execute(QUERIES.read_elsewhere, parameters)).fetchone()
    return None if row is None else CallElsewhere(row[0] if row[0] is None else bytes(row[0]))
