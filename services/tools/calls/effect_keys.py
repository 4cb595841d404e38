"""The same effect once: gives effect keys to calls that are about to run, or decides what follows instead.

It runs in the transaction that accepts the calls, under the locks of their fences and records. The row of an effect is
locked last, in the order of the digests. The rules are tenure/domain/repeated_effects.py.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

from services.tools.calls.accept_rules import ConcludeCall, MarkInDoubt, RunCall, SettleCall, Verdict, WaitForEffect
from services.tools.calls.records import CallKey, CallRequest, CallRow, unpack_outcome
from services.tools.statements import QUERIES
from services.tools.sweeps import delete_all
from tenure.domain.effect_keys import Effect, EffectScope, effect_of, idempotency_key, period_number
from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.in_doubt import DidNotHappen, ResolvedCall, was_not_made
from tenure.domain.repeated_effects import (
    EffectFact,
    OtherCall,
    Repeat,
    already_happened,
    decide_repeat,
    fact_of_call,
    fact_of_outcome,
    knows_as_much,
    question_about_repeat,
    refused_repeat,
    waited_in_vain,
)
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus, ToolDefinition, bounded
from tenure.runtime.process import rest
from tenure.runtime.store.postgres import Connection, Pool


def effect_of_call(
    definition: ToolDefinition, claims: Claims, arguments: dict[str, Any], undoes: str = ""
) -> Effect | Outcome | None:
    """Returns the effect that a call makes; None: an effect of its own. Or the outcome of a call without a key.

    `undoes`: the call that it undoes. Each undo is a task without relatives, so only a key of the whole tenant holds
    for its calls. For other scopes the undone call says which effect the call makes, in each undo of it.

    Raises Unavailable (SCOPES_UNKNOWN) if the token does not say to which tasks the task belongs.
    """
    key = definition.effect_key
    if key is None or (undoes and key.scope is not EffectScope.TENANT):
        return None
    if key.scope is EffectScope.TASK:
        scope_name = claims.task_id
    elif key.scope is EffectScope.TENANT:
        scope_name = ""
    elif claims.scopes is not None:
        scope_name = claims.scopes.name_of(key.scope)
    else:
        message = f"the token does not have the task's {key.scope}, which the effect key of {definition.name} needs"
        raise Unavailable(message, reason="SCOPES_UNKNOWN", retry_after_seconds=5.0)
    try:
        return effect_of(key, claims.tenant, definition.name, scope_name, arguments)
    except ValueError as problem:
        content = f"This call was not run: a call of {definition.name} {problem}."
        return Outcome(OutcomeStatus.INVALID_ARGUMENTS, content)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of an effect, and the call whose record says it."""

    call: CallKey
    fact: EffectFact
    at: datetime
    outcome: Outcome | None = None

    @property
    def other(self) -> OtherCall:
        return OtherCall(str(self.call.task_id), self.call.call_id, self.at, self.outcome)


@dataclass(slots=True)
class _EffectRow:
    """An effect, locked. `now`: Unix time of the database. `changed`: this transaction gave the key to another call.

    `is_undone`: a compensation has undone the effect of the call that has the key. `earlier`: the effect that had
    happened, or may have, when a person permitted that call.
    """

    holder: CallKey
    period: int
    round: int
    is_unclear: bool
    fact: EffectFact
    at: datetime
    is_over: bool
    now: float
    is_undone: bool = False
    outcome: Outcome | None = None
    earlier: _Known | None = None
    changed: bool = False

    def known_to(self, call: CallKey) -> _Known:
        """Returns what is known of the effect, also from the calls that had the key before, except this one."""
        fact = self.fact
        if self.is_undone and fact is not EffectFact.RUNNING:
            fact = EffectFact.NONE
        elif fact is EffectFact.NONE and self.is_unclear:
            fact = EffectFact.UNKNOWN
        own = _Known(self.holder, fact, self.at, self.outcome)
        if self.earlier is None or self.earlier.call == call or knows_as_much(fact, self.earlier.fact):
            return own
        return self.earlier

    def take(self, request: CallRequest, effect: Effect, known: _Known, *, is_new: bool) -> None:
        """Gives the key to the call. `is_new`: under a new idempotency key, because the effect did not happen yet, or
        because a person permits a repeat.
        """
        period = period_number(self.now, effect.key.period_seconds)
        if is_new:
            is_permitted_repeat = known.fact is not EffectFact.NONE and not self.is_over
            self.earlier = known if is_permitted_repeat else None
            self.round = 0 if period > self.period else self.round + 1
            self.period = max(period, self.period)
        self.is_unclear = not is_new
        self.holder, self.fact, self.changed = request.key, EffectFact.RUNNING, True

    @property
    def packed_earlier(self) -> str:
        """The column `earlier`; "": null."""
        if self.earlier is None:
            return ""
        (task_id, call_id), fact = self.earlier.call, self.earlier.fact
        of = f"{self.holder.task_id}/{self.holder.call_id}"
        return json.dumps({"of": of, "task_id": str(task_id), "call_id": call_id, "fact": fact.value})


async def once_each(
    postgres: Connection,
    batch: Sequence[CallRequest],
    rows: dict[CallKey, CallRow],
    verdicts: list[Verdict | TenureError],
) -> None:
    """Replaces the verdicts of calls that must not run, because another call has their effect key.

    A call that had begun keeps its idempotency key, also if its tool has another effect key by now, or none.

    Writes the keys that calls take. `note_effect_calls` writes the calls, after their records.
    """
    undo_keys = await _undo_keys(postgres, batch, verdicts)
    for place, (request, verdict) in enumerate(zip(batch, verdicts, strict=True)):
        if request.effect is None and isinstance(verdict, RunCall | SettleCall):
            key = _key_before(request, rows.get(request.key)) or undo_keys.get(place, "")
            verdicts[place] = replace(verdict, idempotency_key=key)
    places = [
        place
        for place, (request, verdict) in enumerate(zip(batch, verdicts, strict=True))
        if request.effect is not None and isinstance(verdict, RunCall | SettleCall)
    ]
    if not places:
        return
    requests = [batch[place] for place in places]
    effects = await _lock(postgres, requests)
    for place, request in zip(places, requests, strict=True):
        assert request.effect is not None
        verdict, row = verdicts[place], effects[request.effect.digest]
        assert isinstance(verdict, RunCall | SettleCall)
        verdicts[place] = _decide(verdict, request, rows.get(request.key), row)
    await _take(postgres, requests, effects)


async def note_effect_calls(
    postgres: Connection, batch: Sequence[CallRequest], verdicts: Sequence[Verdict | TenureError]
) -> None:
    """Writes which calls have effect keys or undo another call, with the idempotency keys of those that run."""
    noted = [
        (request.key, request.effect.digest, verdict.idempotency_key if isinstance(verdict, RunCall) else "")
        for request, verdict in zip(batch, verdicts, strict=True)
        if request.effect is not None and isinstance(verdict, RunCall | ConcludeCall | MarkInDoubt)
    ] + [
        (request.key, sha256(key.encode()).digest(), key)
        for request, verdict in zip(batch, verdicts, strict=True)
        if request.effect is None and request.undoes and isinstance(verdict, RunCall)
        for key in (verdict.idempotency_key or request.presented_key,)
    ]
    if not noted:
        return
    columns = {
        "task_ids": [key.task_id for key, _, _ in noted],
        "call_ids": [key.call_id for key, _, _ in noted],
        "digests": [digest for _, digest, _ in noted],
        "idempotency_keys": [idempotency_key for _, _, idempotency_key in noted],
    }
    await postgres.execute(QUERIES.note_effect_calls, columns)


async def _undo_keys(
    postgres: Connection, batch: Sequence[CallRequest], verdicts: Sequence[Verdict | TenureError]
) -> dict[int, str]:
    """Returns, by place, the keys of compensations of effects with a key: one for all calls that are that effect.

    The other compensations have the key of the undone call.
    """
    undoing = [
        (place, request)
        for place, (request, verdict) in enumerate(zip(batch, verdicts, strict=True))
        if request.effect is None and request.undoes and isinstance(verdict, RunCall | SettleCall)
    ]
    if not undoing:
        return {}
    columns = {
        "tenants": [request.claims.tenant for _, request in undoing],
        "undone_task_ids": [UUID(request.undoes.partition("/")[0]) for _, request in undoing],
        "undone_call_ids": [request.undoes.partition("/")[2] for _, request in undoing],
    }
    rows = await (await postgres.execute(QUERIES.undone_keys, columns)).fetchall()
    return {undoing[ordinal][0]: f"{undone_key}/undo" for ordinal, undone_key in rows}


def _decide(
    verdict: RunCall | SettleCall, request: CallRequest, row: CallRow | None, effect_row: _EffectRow
) -> Verdict:
    effect = request.effect
    assert effect is not None
    if isinstance(verdict, RunCall) and effect_row.holder != request.key:
        known = effect_row.known_to(request.key)
        repeat = _repeat(request, row, effect_row, known)
        if repeat is Repeat.WAIT:
            if request.waits_for_effect:
                return WaitForEffect(known.call)
            return _concluded(waited_in_vain(known.other, request.patience_seconds), verdict)
        if repeat is Repeat.ANSWER:
            outcome = already_happened(known.other, request.claims.task_id)
            limit_bytes = request.output_limit_bytes
            return _concluded(bounded(outcome, limit_bytes) if limit_bytes else outcome, verdict)
        if repeat is Repeat.REFUSE:
            return _concluded(refused_repeat(known.other, known.fact), verdict)
        if repeat is Repeat.ASK:
            return MarkInDoubt(verdict.call_attempt, question_about_repeat(known.other, known.fact))
        effect_row.take(request, effect, known, is_new=repeat is Repeat.BEGIN)
        kept_key = ""
    else:
        kept_key = _key_before(request, row)
    key = kept_key or idempotency_key(effect.digest, effect_row.period, effect_row.round)
    return replace(verdict, idempotency_key=key)


def _key_before(request: CallRequest, row: CallRow | None) -> str:
    """Returns the key under which an earlier attempt may have had the effect, or ""."""
    if row is None or (row.state is CallState.ACCEPTED and not row.begun_before):
        return ""
    return row.idempotency_key or ("" if _was_asked(row) else request.presented_key)


def _was_asked(row: CallRow) -> bool:
    """Whether the call is in doubt because a person decides about a repeat."""
    return row.state is CallState.IN_DOUBT and was_not_made(row.doubt_note)


def _repeat(request: CallRequest, row: CallRow | None, effect_row: _EffectRow, known: _Known) -> Repeat:
    effect = request.effect
    assert effect is not None
    if effect_row.is_over and effect_row.fact is not EffectFact.RUNNING:
        return Repeat.BEGIN
    # The other side knows the idempotency key of this round only: it recognises no repeat of the earlier effect.
    effect_class = request.effect_class if known.call == effect_row.holder else EffectClass.UNSAFE
    return decide_repeat(
        known.fact,
        effect_class,
        effect.key.on_repeat,
        is_permitted=_is_permitted(request, row),
    )


def _is_permitted(request: CallRequest, row: CallRow | None) -> bool:
    """Whether a person who was asked about the repeat decided that this call makes its effect."""
    decision = None if request.resolution is None else request.resolution.decision
    return row is not None and _was_asked(row) and isinstance(decision, DidNotHappen)


def _concluded(outcome: Outcome, verdict: RunCall) -> ConcludeCall:
    return ConcludeCall(replace(outcome, call_attempt=verdict.call_attempt))


async def _lock(postgres: Connection, requests: Sequence[CallRequest]) -> dict[bytes, _EffectRow]:
    """Locks the effects of these calls. Those that no call had belong to the first of the calls with the key."""
    effects = [request.effect for request in requests if request.effect is not None]
    digests = [effect.digest for effect in effects]
    await postgres.execute(
        QUERIES.insert_effects,
        {
            "digests": digests,
            "tenants": [request.claims.tenant for request in requests],
            "tools": [request.tool for request in requests],
            "scopes": [effect.key.scope.value for effect in effects],
            "keys": [effect.values_json for effect in effects],
            "task_ids": [request.key.task_id for request in requests],
            "call_ids": [request.key.call_id for request in requests],
            "periods": [effect.key.period_seconds for effect in effects],
        },
    )
    locked = await (await postgres.execute(QUERIES.lock_effects, {"digests": digests})).fetchall()
    rows = {row[0]: _effect_row(row) for row in locked}
    earlier = [row.earlier.call for row in rows.values() if row.earlier is not None]
    calls = await _calls(postgres, [*(row.holder for row in rows.values()), *earlier])
    for row in rows.values():
        _read_records(row, calls)
    return rows


async def _calls(postgres: Connection, keys: Sequence[CallKey]) -> dict[CallKey, tuple[Any, ...]]:
    parameters = {"task_ids": [key.task_id for key in keys], "call_ids": [key.call_id for key in keys]}
    rows = await (await postgres.execute(QUERIES.calls_with_effects, parameters)).fetchall()
    return {CallKey(row[0], row[1]): row[2:] for row in rows}


def _effect_row(row: tuple[Any, ...]) -> _EffectRow:
    """Returns the effect without what the records say. Of an earlier call with a period it has the kept fact."""
    _, task_id, call_id, period, round_number, is_unclear, begun_at, kept_fact, is_over, now, is_undone, *rest = row
    packed_earlier, has_period = rest
    effect_row = _EffectRow(
        CallKey(task_id, call_id),
        period,
        round_number,
        is_unclear,
        EffectFact.RUNNING if kept_fact is None else EffectFact(kept_fact),
        begun_at,
        is_over=is_over,
        now=now,
        is_undone=is_undone,
    )
    if packed_earlier is not None:
        earlier = json.loads(packed_earlier)
        fact = EffectFact(earlier["fact"]) if has_period else EffectFact.NONE
        effect_row.earlier = _Known(CallKey(UUID(earlier["task_id"]), earlier["call_id"]), fact, begun_at)
    return effect_row


def _read_records(row: _EffectRow, calls: dict[CallKey, tuple[Any, ...]]) -> None:
    """Reads what the records say. A holder without one is a call of this transaction, or its record was deleted."""
    if (call := calls.get(row.holder)) is not None:
        row.fact, row.outcome, row.at = fact_of_record(*call)
    if row.earlier is not None and (call := calls.get(row.earlier.call)) is not None:
        fact, outcome, at = fact_of_record(*call)
        row.earlier = _Known(row.earlier.call, fact, at, outcome)


def fact_of_record(
    state: str, packed: bytes | None, begun_before: bool, at: datetime
) -> tuple[EffectFact, Outcome | None, datetime]:
    """Returns what a call record says of the effect, the outcome, and since when."""
    outcome = None if packed is None else unpack_outcome(packed)
    return fact_of_call(CallState(state), outcome, begun_before=begun_before), outcome, at


async def _take(postgres: Connection, requests: Sequence[CallRequest], effects: dict[bytes, _EffectRow]) -> None:
    periods = {r.effect.digest: r.effect.key.period_seconds for r in requests if r.effect is not None}
    taken = {digest: row for digest, row in effects.items() if row.changed}
    if not taken:
        return
    await postgres.execute(
        QUERIES.take_effects,
        {
            "digests": list(taken),
            "task_ids": [row.holder.task_id for row in taken.values()],
            "call_ids": [row.holder.call_id for row in taken.values()],
            "numbers": [row.period for row in taken.values()],
            "rounds": [row.round for row in taken.values()],
            "unclear": [row.is_unclear for row in taken.values()],
            "periods": [periods[digest] for digest in taken],
            "earlier": [row.packed_earlier for row in taken.values()],
        },
    )


# The end of effects.


def undone_by(request: CallRequest | ResolvedCall, outcome: Outcome) -> str:
    """Returns the call that a call with this outcome has undone, or "". One of unknown effect has undone nothing."""
    return request.undoes if fact_of_outcome(outcome) is EffectFact.HAPPENED else ""


async def free_undone_effects(postgres: Connection, undone: Sequence[tuple[CallKey, str]]) -> None:
    """Frees the effect keys of calls that were undone, in the transaction that records the outcomes of these calls."""
    if not undone:
        return
    parts = [undoes.split("/") for _, undoes in undone]
    columns = {
        "task_ids": [key.task_id for key, _ in undone],
        "undone_task_ids": [UUID(task_id) for task_id, _ in parts],
        "undone_call_ids": [call_id for _, call_id in parts],
    }
    await postgres.execute(QUERIES.free_undone_effects, columns)


async def forget_effects(postgres: Connection, task_id: UUID) -> None:
    """Deletes the effects of a task whose call records are about to be deleted.

    Of an effect with a period it keeps what is known, so that no other task makes it again before the period ends.
    """
    rows = await (await postgres.execute(QUERIES.effects_of_task, {"task_id": task_id})).fetchall()
    if not rows:
        return
    calls = await _calls(postgres, [CallKey(task_id, call_id) for _, _, call_id in rows])
    kept = {
        digest: fact_of_record(*calls[CallKey(task_id, call_id)])[0]
        for digest, scope, call_id in rows
        if scope == EffectScope.TENANT and CallKey(task_id, call_id) in calls
    }
    facts = [fact.value for fact in kept.values()]
    await postgres.execute(QUERIES.keep_effects, {"digests": list(kept), "facts": facts})
    forgotten = [digest for digest, _, _ in rows if digest not in kept]
    await postgres.execute(QUERIES.forget_effects, {"digests": forgotten})


class EffectSweep:
    """Deletes effects whose period is over."""

    def __init__(self, pool: Pool, interval_seconds: float = 60.0) -> None:
        self._pool, self._interval_seconds = pool, interval_seconds

    async def run(self) -> None:
        """Sweeps, as a duty. An effect whose period is over counts as forgotten before it is deleted, too."""
        while True:
            await self.sweep()
            await rest(self._interval_seconds)

    async def sweep(self) -> None:
        """Sweeps once."""
        await delete_all(self._pool, QUERIES.forget_ended_effects)
