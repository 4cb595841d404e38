"""Which tool service is to be lost in the middle of calls that must not be repeated, so that they are in doubt."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Final

import psycopg

from tests.fault.suite.installation import Installation

LOOKED_FOR_SECONDS: Final = 6.0
ANSWER_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.1

_RUNNING: Final = """
select r.pid from tools.calls c join tools.runners r using (runner_id)
 where c.state = 'STARTED' and c.effect_class = 'UNSAFE' and r.ended_at is null
   and (convert_from(c.arguments, 'utf8')::json->>'delay_ms')::int >= 1000
   and c.started_at > clock_timestamp() - interval '0.5 seconds'
"""
"""Those that have only begun, and take so long that they are lost in the middle."""


async def runner_of_unsafe_calls(install: Installation) -> str | None:
    """The tool service that runs most of them now; None: none did, for a while."""
    ends_at = time.monotonic() + LOOKED_FOR_SECONDS
    while time.monotonic() < ends_at:
        with suppress(psycopg.OperationalError, TimeoutError):  # Postgres may be away: another fault's doing
            async with asyncio.timeout(ANSWER_SECONDS):
                for pid, _ in Counter(await _pids(install)).most_common():
                    for one in install.stack.replicas("tools"):
                        if one.exit_code is None and one.pid == pid:
                            return one.name
        await asyncio.sleep(PAUSE_SECONDS)
    return None


async def _pids(install: Installation) -> list[int]:
    async with await psycopg.AsyncConnection.connect(install.stack.postgres_dsn, autocommit=True) as postgres:
        return [pid for (pid,) in await (await postgres.execute(_RUNNING)).fetchall()]
