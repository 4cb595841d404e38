"""The second write of a call (the STARTED mark immediately before the effect) and the third (its outcome).

A start whose effect never began is withdrawn; a start whose effect may have begun is released to other replicas.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

from services.tools.calls.effect_keys import free_undone_effects
from services.tools.calls.metrics import count_calls_in_doubt
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.stops import StopView
from services.tools.runners.liveness import Liveness
from services.tools.statements import QUERIES
from tenure.domain.errors import TenureError, TryLater
from tenure.domain.stops import stopped
from tenure.domain.tools import CallState
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.batching import AGAIN, Batcher, BatchLimits
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import Connection, Pool, pool_connection
from tenure.runtime.store.sql_arrays import Byteas, Int4s, Texts, Uuids

_Result = TypeVar("_Result")
_SIZE_BYTES: Final = 128


class StartMark(NamedTuple):
    """The start of one attempt. `request`: needed to mark it STARTED."""

    key: CallKey
    call_attempt: int
    request: CallRequest | None = None


async def until_written(write: Callable[[], Awaitable[_Result]]) -> _Result:
    """Retries a repeatable write until it succeeds, however long the database is unreachable or full."""
    failures = 0
    while True:
        try:
            return await write()
        except TryLater as error:
            failures += 1
            await asyncio.sleep(AGAIN.wait_seconds(failures, random.random(), error.retry_after_seconds))


def start_batcher(kept: DedicatedConnection, liveness: Liveness, stops: StopView) -> Batcher[StartMark, bool]:
    """Returns the batcher that marks calls STARTED. It answers a call that a stop covers with Unavailable (STOPPED).

    False: the record has a newer attempt or the fence a newer claim, and this effect must never begin.
    """

    async def write(batch: Sequence[StartMark]) -> list[bool | TenureError]:
        await failpoint("tools.before_start")
        async with kept.statements() as postgres:
            while True:
                covered = _covered(batch, stops)
                free = [ordinal for ordinal in range(len(batch)) if ordinal not in covered]
                parameters = {
                    "ordinals": Int4s(free),
                    "task_ids": Uuids(batch[ordinal].key.task_id for ordinal in free),
                    "call_ids": Texts(batch[ordinal].key.call_id for ordinal in free),
                    "attempts": Int4s(batch[ordinal].call_attempt for ordinal in free),
                    "runner_id": liveness.runner_id,
                    "stop_epoch": stops.in_force.epoch,
                }
                cursor = await postgres.execute(QUERIES.start_calls, parameters)
                started = {row[0] for row in await cursor.fetchall()}
                # When the stops have changed, the statement starts nothing, or a call is covered no more: decide again.
                if len(started) == len(batch) or (await stops.refresh(postgres)).epoch == parameters["stop_epoch"]:
                    return [covered.get(ordinal, ordinal in started) for ordinal in range(len(batch))]

    return Batcher("starts", write, key=lambda start: start.key, size=lambda _: _SIZE_BYTES)


def _covered(batch: Sequence[StartMark], stops: StopView) -> dict[int, TenureError]:
    if not stops.in_force.stops:
        return {}
    covering = {place: stops.of(start.request) for place, start in enumerate(batch) if start.request is not None}
    return {place: stopped(stop) for place, stop in covering.items() if stop is not None}


async def release_start(pool: Pool, start: StartMark) -> bool:
    """Releases a started call that may run again and whose effect may have begun.

    Any replica may run it then, as if this runner were dead. False: the call has a newer attempt, or is in doubt.
    """
    parameters = {"task_id": start.key.task_id, "call_id": start.key.call_id, "call_attempt": start.call_attempt}
    async with pool_connection(pool) as postgres:
        return await (await postgres.execute(QUERIES.release_start, parameters)).fetchone() is not None


async def withdraw_start(pool: Pool, start: StartMark) -> CallState | None:
    """Withdraws a start whose effect never began and never will.

    Returns the call's new state, or None when the call has a newer attempt or an outcome.
    """
    parameters = {"task_id": start.key.task_id, "call_id": start.key.call_id, "call_attempt": start.call_attempt}
    await failpoint("tools.before_withdraw")
    async with pool_connection(pool) as postgres:
        row = await (await postgres.execute(QUERIES.withdraw_start, parameters)).fetchone()
    await failpoint("tools.after_withdraw")
    if row is None:
        return None
    count_calls_in_doubt(row[1])
    return CallState(row[0])


# The third write: the outcome.


class OutcomeMark(NamedTuple):
    """The outcome of one attempt, packed.

    b"": the tool does not know whether the effect happened, and the call is in doubt; `doubt_note` has the tool's
    message. `undone`: the call that this one has undone; "": none.
    """

    key: CallKey
    call_attempt: int
    outcome: bytes
    doubt_note: str = ""
    undone: str = ""


async def finish_calls(postgres: Connection, batch: Sequence[OutcomeMark]) -> list[bool]:
    """Records outcomes. Returns for each whether the record takes it. With undone calls, it needs a transaction."""
    parameters = {
        "ordinals": Int4s(range(len(batch))),
        "task_ids": Uuids(finish.key.task_id for finish in batch),
        "call_ids": Texts(finish.key.call_id for finish in batch),
        "attempts": Int4s(finish.call_attempt for finish in batch),
        "outcomes": Byteas(finish.outcome for finish in batch),
        "doubt_notes": Texts(finish.doubt_note for finish in batch),
    }
    rows = await (await postgres.execute(QUERIES.finish_calls, parameters)).fetchall()
    recorded = {row[0] for row in rows}
    undone = [
        (finish.key, finish.undone) for ordinal, finish in enumerate(batch) if ordinal in recorded and finish.undone
    ]
    await free_undone_effects(postgres, undone)
    return [ordinal in recorded for ordinal in range(len(batch))]


def finish_batcher(kept: DedicatedConnection) -> Batcher[OutcomeMark, bool]:
    """Returns the batcher that records outcomes. It retries through any outage: an effect must be recorded.

    False: the call has a newer attempt, or an outcome already. The record is right then, and this outcome is dropped.
    """

    async def write(batch: Sequence[OutcomeMark]) -> list[bool]:
        undoing = any(finish.undone for finish in batch)
        async with kept.transaction() if undoing else kept.statements() as postgres:
            return await finish_calls(postgres, batch)

    return Batcher(
        "finishes",
        write,
        key=lambda finish: finish.key,
        size=lambda finish: len(finish.outcome),
        limits=BatchLimits(patience_seconds=None),
    )
