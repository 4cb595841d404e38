"""The one connection that commits batches, and what is done when it breaks.

A connection lost while committing leaves the outcome unknown: the same batch is run again on a new one, and what was
durable already is recognised as a repeat. Nothing is acknowledged that Postgres has not.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self

import psycopg

from services.checkpoint.committing import commit_batch
from services.checkpoint.queries import SCHEMA, SESSION_SETTINGS, prepare_connection
from tenure.domain.errors import InvalidRequest, TenureError, Unavailable
from tenure.domain.retry import RetryPolicy
from tenure.runtime.failpoint import failpoint
from tenure.runtime.postgres import BinaryCursor, PoolOptions, configure_session, connection_arguments, revealed
from tenure.runtime.postgres_errors import domain_errors
from tenure.runtime.retrying import retrying

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.checkpoint.prepared import PreparedCommit
    from services.checkpoint.writing import Announcement
    from tenure.runtime.postgres import Connection
    from tenure.runtime.settings import Secret
    from tenure.v1 import checkpoint_service_pb2 as pb

_log: Final = logging.getLogger(__name__)
LOCK_TIMEOUT_SECONDS: Final = 2.0
"""All others hold a task's lock for milliseconds; one that does not must not hold up the batches for long."""
HOPELESS: Final = frozenset(
    {"LOCK_TIMEOUT", "STATEMENT_TIMEOUT", "STORAGE_FULL", "OUT_OF_MEMORY", "READ_ONLY", "TOO_MANY_CONNECTIONS"}
)
"""Refused by a Postgres that is there: trying at once again would only hold up the next batches."""
AGAIN: Final = RetryPolicy(max_attempts=5, initial_seconds=0.05, factor=3.0, cap_seconds=1.0)
"""About two seconds of trying: a worker with a refused commit may try again itself."""


class LedgerCommitter:
    """Commits batches, one after another, on a connection of its own. Close it at the end."""

    def __init__(self, dsn: str | Secret, announce: Callable[[Announcement], None]) -> None:
        self._dsn = dsn
        self._announce = announce
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        await self._connected()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._drop()

    async def commit(self, commits: Sequence[PreparedCommit]) -> Sequence[pb.CommitResponse | Exception]:
        """The results in order. Raises Unavailable when the batch could not be made durable, for all of it."""
        try:
            return await self._durable(commits)
        except TenureError:
            raise
        except Exception as error:  # noqa: BLE001  whatever one of them did, the others go on
            if len(commits) == 1:
                return [_blame(error, commits[0])]
            _log.warning("a batch failed as a whole and is run one by one", extra={"commits": len(commits)})
            return [await self._alone(commit) for commit in commits]

    async def _alone(self, commit: PreparedCommit) -> pb.CommitResponse | Exception:
        """The one that spoils a batch is found by running each for itself."""
        try:
            return (await self._durable([commit]))[0]
        except Exception as error:  # noqa: BLE001  whatever it is, the neighbours go on
            return _blame(error, commit)

    async def _durable(self, commits: Sequence[PreparedCommit]) -> list[pb.CommitResponse | TenureError]:
        return await retrying(lambda: self._once_or_hopeless(commits), AGAIN, on=(Unavailable,))

    async def _once_or_hopeless(self, commits: Sequence[PreparedCommit]) -> list[pb.CommitResponse | TenureError]:
        try:
            return await self._once(commits)
        except Unavailable as error:
            if error.reason not in HOPELESS:
                raise
            if error.reason == "READ_ONLY":  # a standby now: the next connection may find the primary
                await self._drop()
            return [error for _ in commits]

    async def _once(self, commits: Sequence[PreparedCommit]) -> list[pb.CommitResponse | TenureError]:
        try:
            with domain_errors():
                connection = await self._connected()
                await failpoint("checkpoint.before_commit")
                async with connection.transaction():
                    results, announcement = await commit_batch(connection, commits)
        except BaseException:
            await self._drop_if_unusable()
            raise
        self._announce(announcement)
        await failpoint("checkpoint.after_commit")
        return results

    async def _connected(self) -> Connection:
        if self._connection is None:
            options = PoolOptions(lock_timeout_seconds=LOCK_TIMEOUT_SECONDS, settings=SESSION_SETTINGS)
            with domain_errors():
                connection = await psycopg.AsyncConnection.connect(
                    revealed(self._dsn), cursor_factory=BinaryCursor, **connection_arguments("checkpoint-commits")
                )
                await configure_session(connection, options.session_settings(SCHEMA))
            prepare_connection(connection)
            self._connection = connection
        return self._connection

    async def _drop_if_unusable(self) -> None:
        """After an error inside a transaction the connection is as good as before; a broken one is made anew."""
        if self._connection is not None and (self._connection.broken or self._connection.closed):
            await self._drop()

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):  # it is given up either way
                await asyncio.shield(connection.close())


def _blame(error: Exception, commit: PreparedCommit) -> Exception:
    """What the one commit that cannot be written is answered."""
    if isinstance(error, psycopg.errors.DataError):
        return InvalidRequest("a text holds characters that cannot be kept", reason="INVALID_TEXT")
    if not isinstance(error, TenureError):
        _log.error("a commit cannot be written", extra={"task": commit.task_id}, exc_info=error)
    return error
