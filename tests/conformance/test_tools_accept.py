"""The statement that accepts new calls admits exactly what the rules admit, also beside other transactions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from services.tools.calls.accept_new import FIRST_ATTEMPT, accept_new_calls
from services.tools.calls.accept_rules import ToolFenceRow, admit
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.stops import StopView
from services.tools.statements import SCHEMA, SESSION_SETTINGS
from tenure.domain.errors import StaleEpoch
from tenure.domain.fencing import Claims, Fence
from tenure.domain.in_doubt import DidNotHappen, Resolution
from tenure.domain.stops import StopsInForce
from tenure.domain.tools import EffectClass, Outcome, OutcomeStatus
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import PoolOptions
from tests.support.patience import PATIENCE_SECONDS

RUNNER = uuid.uuid4()
MINE = Fence(10, "mine")
FENCES = [None, *(Fence(epoch, claim) for epoch in (9, 10, 11) for claim in ("mine", "theirs"))]


def request(
    task_id: uuid.UUID, fence: Fence = MINE, call_id: str = "1.0", arguments: bytes = b"{}", **changes: Any
) -> CallRequest:
    claims = Claims(f"tasks/{task_id}", "default", fence.epoch, fence.claim_id, "worker")
    return CallRequest(CallKey(task_id, call_id), claims, "tool", EffectClass.KEYED, arguments, **changes)


class Database:
    """The tool service's database: the connection that accepts, and another one."""

    def __init__(self, kept: DedicatedConnection, other: psycopg.AsyncConnection[Any]) -> None:
        self.kept, self.other, self.stops = kept, other, StopView()
        self.stops.in_force = StopsInForce(0)

    async def accept(self, *requests: CallRequest, starts: bool = False) -> list[bool]:
        async with self.kept.use() as postgres:
            verdicts = await accept_new_calls(postgres, requests, [starts] * len(requests), RUNNER, self.stops)
        assert set(verdicts) <= {FIRST_ATTEMPT, None}
        return [verdict is not None for verdict in verdicts]

    async def put_fence(self, task_id: uuid.UUID, fence: Fence, *, closed: bool = False) -> None:
        await self.other.execute(
            "insert into fences (task_id, tenant, epoch, claim_id, closed) values (%s, 'default', %s, %s, %s)",
            (task_id, fence.epoch, fence.claim_id, closed),
        )

    async def fence(self, task_id: uuid.UUID) -> ToolFenceRow | None:
        query = "select epoch, claim_id, closed from fences where task_id = %s"
        row = await (await self.other.execute(query, (task_id,))).fetchone()
        return None if row is None else ToolFenceRow(Fence(row[0], row[1]), row[2])

    async def records(self, task_id: uuid.UUID) -> list[Any]:
        query = "select call_id, state, call_attempt, epoch, claim_id, runner_id from calls where task_id = %s"
        return await (await self.other.execute(query, (task_id,))).fetchall()


@pytest.fixture
async def database(tools_dsn: str) -> AsyncIterator[Database]:
    options = PoolOptions(settings=SESSION_SETTINGS)
    other = await psycopg.AsyncConnection.connect(tools_dsn, autocommit=True, options=f"-c search_path={SCHEMA}")
    async with DedicatedConnection(tools_dsn, service="test", schema=SCHEMA, options=options) as kept, other:
        yield Database(kept, other)


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("current", FENCES)
async def test_statement_admits_as_the_rule_does(
    database: Database, current: Fence | None, closed: bool, starts: bool
) -> None:
    task_id = uuid.uuid4()
    if current is not None:
        await database.put_fence(task_id, current, closed=closed)
    before = ToolFenceRow(current, closed) if current is not None else ToolFenceRow(Fence(0, ""), closed=False)
    admitted = admit(before, MINE)
    assert await database.accept(request(task_id), starts=starts) == [not isinstance(admitted, StaleEpoch)]
    if isinstance(admitted, StaleEpoch):
        assert (await database.fence(task_id), await database.records(task_id)) == (before, [])
    else:
        assert await database.fence(task_id) == admitted
        state = "STARTED" if starts else "ACCEPTED"
        assert await database.records(task_id) == [("1.0", state, 1, 10, "mine", RUNNER)]


async def test_a_start_comes_after_the_fence_that_admits_it(database: Database) -> None:
    task_id = uuid.uuid4()
    assert await database.accept(request(task_id), starts=True) == [True]
    assert await database.accept(request(task_id, call_id="1.1")) == [True]
    query = "select c.started_at >= f.changed_at from calls c join fences f using (task_id) where c.task_id = %s"
    rows = await (await database.other.execute(f"{query} order by c.call_id", (task_id,))).fetchall()
    assert rows == [(True,), (None,)]


async def test_it_leaves_recorded_calls_alone(database: Database) -> None:
    task_id = uuid.uuid4()
    first = request(task_id)
    assert await database.accept(first) == [True]
    newer = Fence(11, "newer")
    again = [request(task_id, newer), request(task_id, newer, "1.1"), request(task_id, newer, "1.2")]
    assert await database.accept(*again) == [False, True, True]
    assert await database.fence(task_id) == ToolFenceRow(newer, closed=False)
    assert min(await database.records(task_id)) == ("1.0", "ACCEPTED", 1, 10, "mine", RUNNER)


async def test_claims_of_one_batch_are_compared(database: Database) -> None:
    task_id, other = uuid.uuid4(), uuid.uuid4()
    batch = [request(task_id), request(task_id, Fence(11, "newer"), "1.1"), request(other)]
    assert await database.accept(*batch) == [False, True, True]
    assert await database.fence(task_id) == ToolFenceRow(Fence(11, "newer"), closed=False)


async def test_calls_that_must_not_simply_run_are_left_out(database: Database) -> None:
    task_id = uuid.uuid4()
    clear = Outcome(OutcomeStatus.INVALID_ARGUMENTS, "no")
    resolved = Resolution(1, DidNotHappen(), "looked", "ann")
    batch = [request(task_id, clear=clear), request(task_id, call_id="1.1", resolution=resolved)]
    assert await database.accept(*batch) == [False, False]
    assert await database.records(task_id) == []


@pytest.mark.parametrize("closed", [False, True])
async def test_it_waits_for_a_fence_that_is_being_closed(database: Database, closed: bool) -> None:
    task_id = uuid.uuid4()
    await database.put_fence(task_id, MINE)
    async with database.other.transaction():
        await database.other.execute("update fences set closed = %s where task_id = %s", (closed, task_id))
        accepting = asyncio.create_task(database.accept(request(task_id)))
        await until_it_waits(database)
    assert await accepting == [not closed]


async def test_it_finds_a_record_that_its_snapshot_lacks(database: Database) -> None:
    task_id = uuid.uuid4()
    await database.put_fence(task_id, MINE)
    async with database.other.transaction():
        await database.other.execute(
            "insert into calls (task_id, call_id, tool, effect_class, arguments_hash, arguments, state, call_attempt,"
            " epoch, claim_id) values (%s, '1.0', 't', 'PURE', sha256('a'), 'a', 'ACCEPTED', 1, 10, 'mine')",
            (task_id,),
        )
        accepting = asyncio.create_task(database.accept(request(task_id)))
        await until_it_waits(database)
    assert await accepting == [False]


async def until_it_waits(database: Database) -> None:
    """Waits until a lock is asked for: `other` holds locks, and only the accepting connection can want one."""
    waiting = "select exists (select from pg_locks where not granted and pg_backend_pid() = any(pg_blocking_pids(pid)))"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await (await database.other.execute(waiting)).fetchone() or (False,))[0]:
            await asyncio.sleep(0.01)
