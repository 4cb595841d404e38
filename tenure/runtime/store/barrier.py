"""Waits for the transactions that began before a commit: none of them can commit afterwards without having seen it.

A transaction locks its virtual id before it takes its first snapshot. So a statement whose snapshot is older than the
commit belongs to a transaction whose lock is held when the call begins, or has ended. Statements take no lock for this
and wait for nothing. Only transactions of this role and service count, because a dump must not delay an operator: the
connections of a service have names that begin with that of its pool.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from tenure.runtime.store.postgres import Pool, pool_connection

_POLL_SECONDS: Final = 0.01
_OPEN: Final = """
select l.virtualxid from pg_locks l join pg_stat_activity a on a.pid = l.pid
 where l.locktype = 'virtualxid' and l.mode = 'ExclusiveLock' and a.pid <> pg_backend_pid()
   and a.datname = current_database() and a.usename = current_user
   and starts_with(a.application_name, current_setting('application_name'))
"""


async def earlier_have_ended(pool: Pool, seconds: float) -> bool:
    """Waits until the transactions that are open now have ended. False: one is still open after this time."""
    until = time.monotonic() + seconds
    async with pool_connection(pool) as postgres:
        left = {row[0] for row in await (await postgres.execute(_OPEN)).fetchall()}
        while left:
            if time.monotonic() >= until:
                return False
            await asyncio.sleep(_POLL_SECONDS)
            left &= {row[0] for row in await (await postgres.execute(_OPEN)).fetchall()}
    return True
