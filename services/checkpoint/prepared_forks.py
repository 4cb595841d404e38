"""Forks to come: their ids are given out before they exist, because their files must be in place when they may run.

An id is taken by its fork in the transaction that makes it, or given up once it was prepared too long ago, in one that
hands it to those who have the tools forget pruned tasks. So no files stay for ever, whoever dies when, and no fork gets
an id whose files are being removed.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import uuid_utils

from services.checkpoint.draft import LEDGER
from services.checkpoint.queries import FORKS, fetch_one, in_ledger_transaction
from tenure.domain.errors import Unavailable
from tenure.runtime.duties import note_progress, rest

if TYPE_CHECKING:
    from tenure.runtime.postgres import Connection, Pool

KEPT_SECONDS: Final = 600.0
"""Since it was last asked for; copying takes two minutes at the most."""

_AT_ONCE: Final = 100
_INTERVAL_SECONDS: Final = 30.0
_WHY: Final = "the fork it was prepared for was never made"


async def prepared_id(connection: Connection, tenant: str, request_id: str, digest: bytes) -> str:
    """The id that this fork will have."""
    asked = {"tenant": tenant, "request_id": request_id, "request_hash": digest, "task_id": str(uuid_utils.uuid7())}
    row = await fetch_one(connection, FORKS.prepare_fork, asked)
    assert row is not None, "an upsert gives its row"
    task_id: str = row[0]
    return task_id


async def take_prepared(connection: Connection, tenant: str, request_id: str, digest: bytes, task_id: str) -> None:
    """From here on it is the fork's, if this transaction commits. Raises Unavailable (FORK_NOT_PREPARED)."""
    asked = {"tenant": tenant, "request_id": request_id, "request_hash": digest, "task_id": task_id}
    if await fetch_one(connection, FORKS.take_prepared, asked) is None:
        told = "it took too long to put the fork's files in place"
        raise Unavailable(told, reason="FORK_NOT_PREPARED", retry_after_seconds=1.0)


class PreparedForks:
    """What time brings about, in any number of replicas."""

    def __init__(self, pool: Pool, kept_seconds: float = KEPT_SECONDS) -> None:
        self._pool, self._kept_seconds = pool, kept_seconds

    async def run(self) -> None:
        """A duty: for ever."""
        while True:
            while await self.give_up_once() == _AT_ONCE:
                note_progress()
            await rest(_INTERVAL_SECONDS * random.uniform(0.8, 1.2))

    async def give_up_once(self) -> int:
        """How many were given up."""
        asked = {"kept_seconds": self._kept_seconds, "limit": _AT_ONCE, "actor": LEDGER, "reason": _WHY}

        async def work(connection: Connection) -> int:
            return (await connection.execute(FORKS.give_up_prepared, asked)).rowcount

        return await in_ledger_transaction(self._pool, work)
