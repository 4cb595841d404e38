"""The first write of a model call: one statement begins what is new, and leaves all else to the rules."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from services.models.admission import LimitedCall
from services.models.begin_new import begin_new_calls
from services.models.rules import Attempt, BeginCall, CallIntent, Kind
from services.models.statements import SCHEMA, SESSION_SETTINGS
from services.models.store import AdmittedRequest, RequestBatcher
from services.models.work import CallWork, ModelCallKey
from tenure.domain.errors import LimitReached, StaleEpoch, Unavailable
from tenure.domain.fencing import Fence
from tenure.domain.stops import Subject
from tenure.domain.task import Priority
from tenure.model_providers.client import ModelRequest
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.pipelined_transaction import SingleStatements
from tenure.runtime.store.postgres import BoundedConnection, PoolOptions
from tenure.v1 import token_pb2
from tests.support.patience import PATIENCE_SECONDS

RUNNER = uuid.uuid4()
SENT_AT = datetime(2026, 11, 26, 3, 0, 0, 123456, tzinfo=UTC)
ROW = "select epoch, claim_id, step, attempt_number, state, runner_id, begun_epoch, sent_at, ended from generations"


def request(
    task_id: uuid.UUID, fence: Fence, attempt: Attempt, sends_at: datetime | None = SENT_AT, input_bytes: int = 10
) -> AdmittedRequest:
    work = CallWork(
        ModelRequest("sim-1", [{"role": "user", "content": "hi"}], 10),
        token_pb2.FencingToken(),
        LimitedCall(str(task_id), "acme", "sim-1", Priority.NORMAL, input_bytes, 10),
        Subject("acme"),
    )
    intent = CallIntent(Kind.GENERATE, fence, attempt, sends_at)
    return AdmittedRequest(ModelCallKey(task_id, attempt), "acme", intent, work)


class LostAnswers(DedicatedConnection):
    """Loses the answer of its first single statement, which is durable."""

    has_lost = False

    @asynccontextmanager
    async def statements(self) -> AsyncIterator[SingleStatements]:
        async with super().statements() as postgres:
            yield postgres
        if not self.has_lost:
            self.has_lost = True
            raise Unavailable("the answer is lost", reason="POSTGRES_UNAVAILABLE")


@pytest.fixture
async def kept(models_dsn: str) -> AsyncIterator[LostAnswers]:
    options = PoolOptions(settings=SESSION_SETTINGS)
    async with LostAnswers(models_dsn, service="models", schema=SCHEMA, options=options) as connection:
        yield connection


async def begin(kept: LostAnswers, *requests: AdmittedRequest) -> dict[uuid.UUID, BeginCall]:
    kept.has_lost = True
    async with kept.statements() as postgres:
        return await begin_new_calls(postgres, requests, RUNNER)


async def test_new_tasks_and_later_attempts_begin(kept: LostAnswers, models_database: Any) -> None:
    first, second = uuid.uuid4(), uuid.uuid4()
    fence, newer = Fence(10, "a"), Fence(11, "b")
    begun = await begin(kept, request(first, fence, Attempt(1, 1)), request(second, fence, Attempt(3, 2), None))
    assert begun.keys() == {first, second}
    await models_database("update generations set state = 'FINISHED', ended = 'x' where task_id = %s", first)
    for sequel in (request(first, fence, Attempt(1, 2)), request(first, newer, Attempt(2, 1))):
        again = await begin(kept, sequel)
        assert again[first].row.fence == sequel.request.fence
        assert await models_database(f"{ROW} where task_id = %s", first) == [
            (*sequel.request.fence, *sequel.request.attempt, "SENT", RUNNER, sequel.request.fence.epoch, SENT_AT, None)
        ]
    waiting = (10, "a", 3, 2, "ACCEPTED", RUNNER, 10, None, None)
    assert await models_database(f"{ROW} where task_id = %s", second) == [waiting]


@pytest.mark.parametrize(
    ("fence", "attempt"),
    [
        (Fence(9, "a"), Attempt(9, 1)),  # a stale claim
        (Fence(10, "z"), Attempt(9, 1)),  # another claim of the same epoch
        (Fence(10, "a"), Attempt(2, 2)),  # the same attempt
        (Fence(11, "b"), Attempt(2, 2)),  # the next owner joins it
        (Fence(11, "b"), Attempt(2, 1)),  # an attempt that is over
        (Fence(11, "b"), Attempt(1, 9)),
    ],
)
async def test_known_attempts_are_left_to_the_rules(
    kept: LostAnswers, models_database: Any, fence: Fence, attempt: Attempt
) -> None:
    task_id = uuid.uuid4()
    await begin(kept, request(task_id, Fence(10, "a"), Attempt(2, 2)))
    before = await models_database(ROW)
    assert await begin(kept, request(task_id, fence, attempt)) == {}
    assert await models_database(ROW) == before


@asynccontextmanager
async def admitting(kept: LostAnswers) -> AsyncIterator[tuple[Callable[[AdmittedRequest], Any], list[uuid.UUID]]]:
    """Yields the way of a request, and the tasks whose calls have begun."""
    begun: list[uuid.UUID] = []
    deciding = RequestBatcher(
        runner_id=lambda: RUNNER,
        is_alive=lambda _runner, _renewed_at: True,
        runs=lambda _key: False,
        refuse_new=lambda _call: None,
        begin=lambda one, _begun: begun.append(one.key.task_id),
    )
    batcher = deciding.over(kept)
    running = asyncio.create_task(batcher.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            yield batcher.submit, begun
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("sends_at", [SENT_AT, None])
async def test_a_call_whose_write_lost_its_answer_begins_once(
    kept: LostAnswers, models_database: Any, sends_at: datetime | None
) -> None:
    async with admitting(kept) as (submit, begun):
        one = request(uuid.uuid4(), Fence(10, "a"), Attempt(1, 1), sends_at)
        assert isinstance(await submit(one), BeginCall)
        assert kept.has_lost
        assert begun == [one.key.task_id]
    assert len(await models_database(ROW)) == 1


async def test_a_stale_request_does_not_touch_the_rest_of_its_batch(kept: LostAnswers) -> None:
    kept.has_lost = True
    async with admitting(kept) as (submit, begun):
        fenced = uuid.uuid4()
        await submit(request(fenced, Fence(10, "a"), Attempt(1, 1)))
        stale = request(fenced, Fence(9, "a"), Attempt(2, 1))
        new = [request(uuid.uuid4(), Fence(10, "a"), Attempt(1, 1)) for _ in range(3)]
        results = await asyncio.gather(*map(submit, [new[0], stale, *new[1:]]), return_exceptions=True)
        assert [type(result) for result in results] == [BeginCall, StaleEpoch, BeginCall, BeginCall]
        assert sorted(begun) == sorted([fenced, *(one.key.task_id for one in new)])


async def test_prompts_that_wait_for_postgres_are_bounded(closed_port: int) -> None:
    waiting = asyncio.Event()

    class AwayPostgres(DedicatedConnection):
        async def connected(self) -> BoundedConnection:
            waiting.set()
            return await super().connected()

    def prompt(megabytes: int) -> AdmittedRequest:
        task_id = uuid.uuid4()
        return request(task_id, Fence(10, "a"), Attempt(1, 1), input_bytes=megabytes * 1024 * 1024)

    away = AwayPostgres(f"host=127.0.0.1 port={closed_port} dbname=away", service="models", schema=SCHEMA)
    batcher = RequestBatcher(
        lambda: RUNNER, lambda *_: True, lambda _: False, lambda _: None, lambda *_: pytest.fail("a call began")
    ).over(away)
    running = asyncio.create_task(batcher.run())
    first = asyncio.create_task(batcher.submit(prompt(255)))
    await waiting.wait()
    others = [asyncio.create_task(batcher.submit(prompt(127))) for _ in range(3)]
    ended, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
    assert [type(one.exception()) for one in ended] == [LimitReached]
    running.cancel()
    ends = await asyncio.gather(first, *others, return_exceptions=True)
    assert sorted(getattr(end, "reason", "") for end in ends) == ["DRAINING"] * 3 + ["QUEUE_FULL"]
