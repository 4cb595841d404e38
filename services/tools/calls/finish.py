"""The third write: what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from services.tools.calls.records import CallKey
from services.tools.statements import QUERIES
from tenure.runtime.batching import Batcher, BatchLimits
from tenure.runtime.kept_connection import KeptConnection


class Finish(NamedTuple):
    """An attempt's outcome, packed; b"": its tool does not know whether it had its effect, see `doubt_note`."""

    key: CallKey
    call_attempt: int
    outcome: bytes
    doubt_note: str = ""


def finish_batcher(kept: KeptConnection) -> Batcher[Finish, bool]:
    """Records outcomes, with the patience to outlast any outage: an effect happened once, and must be told.

    False: the attempt has moved on or was recorded already; the record knows more than this outcome.
    """

    async def write(batch: Sequence[Finish]) -> list[bool]:
        parameters = {
            "ordinals": list(range(len(batch))),
            "task_ids": [finish.key.task_id for finish in batch],
            "call_ids": [finish.key.call_id for finish in batch],
            "attempts": [finish.call_attempt for finish in batch],
            "outcomes": [finish.outcome for finish in batch],
            "doubt_notes": [finish.doubt_note for finish in batch],
        }
        async with kept.use() as postgres:
            cursor = await postgres.execute(QUERIES.finish_calls, parameters)
            recorded = {row[0] for row in await cursor.fetchall()}
        return [ordinal in recorded for ordinal in range(len(batch))]

    return Batcher(
        "finishes",
        write,
        key=lambda finish: finish.key,
        size=lambda finish: len(finish.outcome),
        limits=BatchLimits(patience_seconds=None),
    )
