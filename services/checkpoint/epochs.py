"""The ledger's side of epochs: the generation of etcd, and the highest epoch that the ledger registered."""

from __future__ import annotations

import logging
from typing import Final

from services.checkpoint.queries import QUERIES, fetch_one
from tenure.domain.errors import WrongState
from tenure.domain.fencing import MAX_GENERATION, MAX_GENERATION_JUMP
from tenure.runtime.failpoints import failpoint
from tenure.runtime.store.postgres import Connection, Pool, in_transaction, pool_connection

_log: Final = logging.getLogger(__name__)


async def get_epochs(pool: Pool) -> tuple[int, int]:
    """Returns (generation, highest registered epoch)."""
    async with pool_connection(pool) as connection:
        return await _read(connection)


async def raise_generation(pool: Pool, expected: int, reason: str) -> int:
    """Raises the generation above `expected`, unless an earlier call did, and returns it.

    Raises WrongState: GENERATION_TOO_FAR when `expected` is far ahead of the ledger, GENERATIONS_EXHAUSTED when an
    epoch of the last generation was registered.
    """

    async def work(connection: Connection) -> tuple[int, bool]:
        parameters = {"expected": expected, "max_generation": MAX_GENERATION, "max_jump": MAX_GENERATION_JUMP}
        raised = await fetch_one(connection, QUERIES.raise_generation, parameters)
        return (raised[0], True) if raised is not None else ((await _read(connection))[0], False)

    await failpoint("checkpoint.before_raise")
    generation, was_raised = await in_transaction(pool, work)
    await failpoint("checkpoint.after_raise")
    if expected > generation + MAX_GENERATION_JUMP:
        raise WrongState(
            f"generation {expected} is too far ahead of the ledger's generation {generation}: if the key "
            "`generation` in etcd (usually /tenure/generation) is wrong, stop the coordinators and delete it; if the "
            "ledger was restored, raise its generation as docs/restore.md says",
            reason="GENERATION_TOO_FAR",
        )
    if generation <= expected:
        raise WrongState(
            f"the ledger has registered an epoch of generation {MAX_GENERATION}, the last one: restore the ledger "
            "from a backup that is older than that epoch",
            reason="GENERATIONS_EXHAUSTED",
        )
    if was_raised:
        _log.warning("the generation was raised", extra={"generation": generation, "reason": reason})
    return generation


async def _read(connection: Connection) -> tuple[int, int]:
    row = await fetch_one(connection, QUERIES.get_epochs, {})
    assert row is not None, "the row is made with the table and never deleted"
    return row[0], row[1]
