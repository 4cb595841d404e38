"""Prepared ids: the id of a task with files is chosen before the task exists, because its files must be in place before
it may run. Such a task is a fork, or a submit with files.
"""

from __future__ import annotations

import random
from typing import Final

import uuid_utils

from services.checkpoint.commit.draft import LEDGER
from services.checkpoint.queries import FORKS, fetch_in_transaction, fetch_one
from tenure.domain.errors import Unavailable
from tenure.runtime.process import note_progress, rest
from tenure.runtime.store.postgres import Connection, Pool

KEPT_SECONDS: Final = 600.0
"""How long a prepared id is kept after its last request; a copy of files takes at most two minutes."""

_AT_ONCE: Final = 100
_INTERVAL_SECONDS: Final = 30.0
_GIVE_UP_REASON: Final = "the task that this id was prepared for was never created"


async def prepared_id(connection: Connection, tenant: str, request_id: str, digest: bytes) -> str:
    """Returns the id that the task will have. A repeat returns the same id."""
    parameters = {
        "tenant": tenant,
        "request_id": request_id,
        "request_hash": digest,
        "task_id": str(uuid_utils.uuid7()),
    }
    row = await fetch_one(connection, FORKS.prepare_fork, parameters)
    assert row is not None, "an upsert returns its row"
    task_id: str = row[0]
    return task_id


async def take_prepared(connection: Connection, tenant: str, request_id: str, digest: bytes, task_id: str) -> None:
    """Gives the prepared id to the task, if this transaction commits. Raises Unavailable (FORK_NOT_PREPARED)."""
    parameters = {"tenant": tenant, "request_id": request_id, "request_hash": digest, "task_id": task_id}
    if await fetch_one(connection, FORKS.take_prepared, parameters) is None:
        message = "the files took too long, so the prepared id is gone: send the request again"
        raise Unavailable(message, reason="FORK_NOT_PREPARED", retry_after_seconds=1.0)


class PreparedIds:
    """Gives up prepared ids that no task used in time. Any number of replicas may run it."""

    def __init__(self, pool: Pool, kept_seconds: float = KEPT_SECONDS) -> None:
        self._pool, self._kept_seconds = pool, kept_seconds

    async def run(self) -> None:
        """Runs as a duty until cancelled."""
        while True:
            while await self.give_up_once() == _AT_ONCE:
                note_progress()
            await rest(_INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def give_up_once(self) -> int:
        """Gives up one batch of prepared ids and returns their number."""
        parameters = {"kept_seconds": self._kept_seconds, "limit": _AT_ONCE, "actor": LEDGER, "reason": _GIVE_UP_REASON}
        return len(await fetch_in_transaction(self._pool, FORKS.give_up_prepared, parameters))
