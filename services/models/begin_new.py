"""The first write of the usual call: one statement begins calls of a batch, under the locks of their rows.

The statement begins calls and refuses none. It leaves out a request that is stale, whose attempt is not the task's
newest one, or that the row contradicts. store.py decides such a request by the rules of rules.py, in a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from services.models.rules import BeginCall, begun
from services.models.statements import QUERIES
from tenure.runtime.store.postgres import Connection
from tenure.runtime.store.sql_arrays import Int4s, Int8s, Texts, Uuids

if TYPE_CHECKING:
    from services.models.store import AdmittedRequest


async def begin_new_calls(
    postgres: Connection, batch: Sequence[AdmittedRequest], runner_id: UUID
) -> dict[UUID, BeginCall]:
    """Begins each call of a newer attempt under an admitted claim. Returns what it began, by task.

    The calls are durable when it returns. A repeat after a lost answer leaves out what the first one began.
    """
    requests = [one.request for one in batch]
    rows = await postgres.execute(
        QUERIES.begin_generations,
        {
            "task_ids": Uuids(one.key.task_id for one in batch),
            "tenants": Texts(one.tenant for one in batch),
            "epochs": Int8s(request.fence.epoch for request in requests),
            "claim_ids": Texts(request.fence.claim_id for request in requests),
            "steps": Int4s(one.key.attempt.step for one in batch),
            "attempts": Int4s(one.key.attempt.number for one in batch),
            "sent_ats": Texts(request.sends_at.isoformat() if request.sends_at else "" for request in requests),
            "runner_id": runner_id,
        },
    )
    written = {row[0] for row in await rows.fetchall()}
    return {
        one.key.task_id: begun(one.request, runner_id, one.request.fence.epoch, joined=False)
        for one in batch
        if one.key.task_id in written
    }
