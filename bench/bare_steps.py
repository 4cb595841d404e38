"""The statements of null agents' steps without the services: the rate that Postgres alone reaches with them.

They are recorded while the code of both services runs them in transactions that are rolled back. Then they run again
with the same values: no rules, no gRPC and no tokens, only the round trips of a step, one after another.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, Final

from bench.held_tasks import HeldTask
from bench.null_agent import NOT_SET_UP, answered, beginning, dotted_text, finished, intent_of
from services.checkpoint.commit.committing import commit_batch
from services.checkpoint.commit.prepared import prepare
from services.checkpoint.prices import PriceList
from services.checkpoint.queries import SCHEMA as LEDGER_SCHEMA
from services.checkpoint.queries import SESSION_SETTINGS as LEDGER_SETTINGS
from services.checkpoint.queries import prepare_connection
from services.tools.calls.accept_new import accept_new_calls
from services.tools.calls.records import CallKey, CallRequest, pack_outcome
from services.tools.calls.start_and_finish import OutcomeMark, finish_calls
from services.tools.statements import SCHEMA as TOOLS_SCHEMA
from services.tools.statements import SESSION_SETTINGS as TOOLS_SETTINGS
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.runtime.dedicated_connection import DedicatedConnection
from tenure.runtime.postgres import Connection, PoolOptions
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.token import TokenChecker

_OUTCOME: Final = Outcome(OutcomeStatus.FAILED, "There is no search service here.", detail=NOT_SET_UP, call_attempt=1)


class _RollBack(Exception):  # noqa: N818  it ends a transaction whose statements are recorded
    """Ends a transaction without its writes."""


@dataclass(slots=True)
class _Statement:
    """A statement with its values. `is_read`: the code waited for its rows."""

    text: bytes
    parameters: Any
    is_read: bool = False


@dataclass(slots=True)
class _Rows:
    rows: Any
    statement: _Statement

    async def fetchall(self) -> list[Any]:
        self.statement.is_read = True
        rows: list[Any] = await self.rows.fetchall()
        return rows

    async def fetchone(self) -> Any:
        self.statement.is_read = True
        return await self.rows.fetchone()


@dataclass(slots=True)
class _Recorder:
    """Replaces the connection of a service's code: runs each statement and records it."""

    connection: Connection
    statements: list[_Statement] = field(default_factory=list)

    @property
    def backend_pid(self) -> int:
        return self.connection.backend_pid

    async def execute(self, query: bytes, params: Any = None) -> _Rows:
        self.statements.append(_Statement(query, params))
        return _Rows(await self.connection.execute(query, params), self.statements[-1])

    def take(self) -> list[_Statement]:
        """Returns the statements since the last call."""
        statements, self.statements = self.statements, []
        return statements


_Write = tuple[DedicatedConnection, list[_Statement]]
"""One transaction of a service, on its connection."""


class BareSteps:
    """Runs the steps of a batch of tasks. Its tasks must be unused, and can be used only once."""

    def __init__(self, dsn: str, tokens: TokenChecker) -> None:
        self._tokens = tokens
        self._runner_id = uuid.uuid4()
        self._ledger = DedicatedConnection(
            dsn,
            service="bench",
            schema=LEDGER_SCHEMA,
            options=PoolOptions(settings=LEDGER_SETTINGS),
            prepare=prepare_connection,
            keep_after_errors=True,
        )
        self._tools = DedicatedConnection(
            dsn,
            service="bench",
            schema=TOOLS_SCHEMA,
            options=PoolOptions(settings=TOOLS_SETTINGS),
            keep_after_errors=True,
        )

    async def aclose(self) -> None:
        """Closes the connections."""
        await self._ledger.close()
        await self._tools.close()

    async def steps_per_second(self, tasks: Sequence[HeldTask], steps: int) -> float:
        """Runs this many steps of all tasks, each write for all tasks together."""
        beginning_write, *writes = await self._record(tasks, steps)
        await _replay(beginning_write)
        began = perf_counter()
        for write in writes:
            await _replay(write)
        return len(tasks) * steps / (perf_counter() - began)

    async def _record(self, tasks: Sequence[HeldTask], steps: int) -> list[_Write]:
        writes: list[_Write] = []
        with suppress(_RollBack):
            async with self._ledger.transaction() as of_ledger, self._tools.transaction() as of_tools:
                ledger, tools = _Recorder(of_ledger), _Recorder(of_tools)

                async def commit(requests: list[pb.CommitRequest]) -> None:
                    await self._commit(ledger, tasks, requests)
                    writes.append((self._ledger, ledger.take()))

                await commit([beginning(task) for task in tasks])
                for number in range(1, steps + 1):
                    calls = [self._call(task) for task in tasks]
                    await commit([answered(task, intent_of(task), dotted_text(task.step)) for task in tasks])
                    await accept_new_calls(tools, calls, [True] * len(calls), self._runner_id)
                    writes.append((self._tools, tools.take()))
                    await finish_calls(tools, [OutcomeMark(call.key, 1, pack_outcome(_OUTCOME)) for call in calls])
                    writes.append((self._tools, tools.take()))
                    is_last = number == steps
                    await commit([finished(task, intent_of(task), _OUTCOME, last=is_last) for task in tasks])
                raise _RollBack
        return writes

    async def _commit(self, ledger: _Recorder, tasks: Sequence[HeldTask], requests: Sequence[pb.CommitRequest]) -> None:
        commits = [prepare(request, self._tokens, validated=True) for request in requests]
        results, _ = await commit_batch(ledger, commits, PriceList())
        for task, result in zip(tasks, results, strict=True):
            if isinstance(result, Exception):
                raise result
            task.acknowledged(result)

    def _call(self, task: HeldTask) -> CallRequest:
        intent = intent_of(task)
        claims = self._tokens.check(task.token)
        key = CallKey(uuid.UUID(task.task_id), intent.call_id)
        return CallRequest(key, claims, intent.tool, EffectClass.PURE, intent.arguments_json.encode())


async def _replay(write: _Write) -> None:
    connection, statements = write
    async with connection.transaction() as transaction:
        for statement in statements:
            rows = await transaction.execute(statement.text, statement.parameters)
            if statement.is_read:
                await rows.fetchall()
