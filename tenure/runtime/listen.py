"""LISTEN on one connection of its own, which comes back when it breaks.

A notification is a hint. What was sent while nobody listened is gone, so a `Reconnected` comes first and after every
break: it says "look at the table now".
"""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from tenure.domain.retry import RetryPolicy
from tenure.runtime import metrics
from tenure.runtime.postgres import connection_arguments, revealed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from tenure.runtime.settings import Secret

_log: Final = logging.getLogger(__name__)
RECONNECT: Final = RetryPolicy(initial_seconds=0.1, factor=2.0, cap_seconds=5.0)


@dataclass(frozen=True, slots=True)
class Reconnected:
    """Listening (again): anything may have happened before."""


@dataclass(frozen=True, slots=True)
class Notification:
    """Somebody said NOTIFY channel, payload."""

    channel: str
    payload: str


async def listen(
    dsn: str | Secret, channels: Sequence[str], *, service: str = "service", reconnect: RetryPolicy = RECONNECT
) -> AsyncGenerator[Notification | Reconnected, None]:
    """Yield what is said on `channels`, for ever. Close it (`contextlib.aclosing`) or cancel the task that reads it."""
    failures = 0
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(
                revealed(dsn), **connection_arguments(service)
            ) as postgres:
                for channel in channels:
                    await postgres.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))
                failures = 0
                yield Reconnected()
                async for notify in postgres.notifies():
                    yield Notification(notify.channel, notify.payload)
        except psycopg.OperationalError as error:
            failures += 1
            metrics.count("tenure_listen_reconnects_total", service=service)
            _log.warning("lost the connection that listens: %s", str(error).partition("\n")[0])
        await asyncio.sleep(reconnect.wait_seconds(max(failures, 1), random.random()))
