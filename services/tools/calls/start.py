"""The second write: the mark immediately before the effect, and how it is taken back when the effect did not begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from services.tools.calls.measures import count_doubts
from services.tools.calls.records import CallKey
from services.tools.runners.liveness import Liveness
from services.tools.statements import QUERIES
from tenure.domain.tools import CallState
from tenure.runtime.batching import Batcher
from tenure.runtime.failpoint import failpoint
from tenure.runtime.kept_connection import KeptConnection
from tenure.runtime.postgres import Pool, connection

_SIZE_BYTES: Final = 128


class Start(NamedTuple):
    """An attempt that is about to begin."""

    key: CallKey
    call_attempt: int


def start_batcher(kept: KeptConnection, liveness: Liveness) -> Batcher[Start, bool]:
    """Marks calls STARTED. False: the attempt or the fence has moved on, and this effect must never begin."""

    async def write(batch: Sequence[Start]) -> list[bool]:
        parameters = {
            "ordinals": list(range(len(batch))),
            "task_ids": [start.key.task_id for start in batch],
            "call_ids": [start.key.call_id for start in batch],
            "attempts": [start.call_attempt for start in batch],
            "runner_id": liveness.runner_id,
        }
        await failpoint("tools.before_start")
        async with kept.use() as postgres:
            cursor = await postgres.execute(QUERIES.start_calls, parameters)
            started = {row[0] for row in await cursor.fetchall()}
        return [ordinal in started for ordinal in range(len(batch))]

    return Batcher("starts", write, key=lambda start: start.key, size=lambda _: _SIZE_BYTES)


async def release_start(pool: Pool, start: Start) -> bool:
    """Give a call back whose effect may have begun and that may run again: any replica runs it, as if this runner were
    dead. False: the call is another attempt's by now, or in doubt.
    """
    parameters = {"task_id": start.key.task_id, "call_id": start.key.call_id, "call_attempt": start.call_attempt}
    async with connection(pool) as postgres:
        return await (await postgres.execute(QUERIES.release_start, parameters)).fetchone() is not None


async def withdraw_start(pool: Pool, start: Start) -> CallState | None:
    """Take back a mark whose effect never began and never will. None: the call is another attempt's by now."""
    parameters = {"task_id": start.key.task_id, "call_id": start.key.call_id, "call_attempt": start.call_attempt}
    await failpoint("tools.before_withdraw")
    async with connection(pool) as postgres:
        row = await (await postgres.execute(QUERIES.withdraw_start, parameters)).fetchone()
    await failpoint("tools.after_withdraw")
    if row is None:
        return None
    count_doubts(row[1])
    return CallState(row[0])
