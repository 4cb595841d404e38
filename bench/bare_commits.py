"""The statements of commits without the service: the rate that Postgres alone reaches with the same commits.

The statements are recorded while the checkpoint service's code runs them in a transaction that is rolled back. Then
they run again with the same values: no rules, no gRPC and no tokens, only the round trips of the batch's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final, cast

from bench.commit_loads import Run, fact
from bench.held_tasks import HeldTask
from services.checkpoint.commit.committing import commit_batch
from services.checkpoint.commit.prepared import PreparedCommit, prepare
from services.checkpoint.prices import PriceList
from services.checkpoint.queries import prepare_connection
from tenure.runtime.postgres import BoundedConnection, Pool
from tenure.runtime.postgres import connection as pool_connection
from tenure.wire.token import TokenChecker

BATCH_COMMITS: Final = 64
Statement = tuple[bytes, dict[str, Any]]


@dataclass(slots=True)
class _Recorder:
    """Replaces the connection of the checkpoint service's code: runs each statement and records it."""

    connection: BoundedConnection
    statements: list[Statement] = field(default_factory=list)

    async def execute(self, statement: bytes, parameters: dict[str, Any]) -> Any:
        self.statements.append((statement, parameters))
        return await self.connection.execute(statement, parameters)

    def take(self) -> list[Statement]:
        """Returns the statements since the last call."""
        statements, self.statements = self.statements, []
        return statements


@dataclass(frozen=True, slots=True)
class BareCommits:
    """Commits batches of 64 on one connection. Its tasks must be unused, and can be used only once."""

    pool: Pool
    tokens: TokenChecker

    async def run(self, tasks: Sequence[HeldTask], batches: int) -> Run:
        """Commits one entry to each task, `batches` times."""
        async with pool_connection(self.pool) as connection:
            prepare_connection(connection)
            recorded = await self._record(connection, tasks, batches)
            return await _replay(connection, recorded, len(tasks))

    async def _record(
        self, connection: BoundedConnection, tasks: Sequence[HeldTask], batches: int
    ) -> list[list[Statement]]:
        recorder = _Recorder(connection)
        connection_stub = cast("BoundedConnection", recorder)
        commits = [prepare(task.commit([fact()]), self.tokens, validated=True) for task in tasks]
        recorded = []
        async with connection.transaction(force_rollback=True):
            for _ in range(batches):
                results, _ = await commit_batch(connection_stub, commits, PriceList())
                for result in results:
                    if isinstance(result, Exception):
                        raise result
                commits = [_next(commit) for commit in commits]
                recorded.append(recorder.take())
        return recorded


def _next(commit: PreparedCommit) -> PreparedCommit:
    """Returns the following commit of the task. Each adds one entry, so number and sequence grow by one."""
    return commit._replace(commit_number=commit.commit_number + 1, known_sequence=commit.known_sequence + 1)


async def _replay(connection: BoundedConnection, recorded: Sequence[Sequence[Statement]], batch_commits: int) -> Run:
    run, began = Run(), perf_counter()
    for statements in recorded:
        sent = perf_counter()
        async with connection.transaction():
            for statement, parameters in statements:
                cursor = await connection.execute(statement, parameters)
                if cursor.description is not None:
                    await cursor.fetchall()
        run.latencies += [perf_counter() - sent] * batch_commits
    run.seconds = perf_counter() - began
    return run
