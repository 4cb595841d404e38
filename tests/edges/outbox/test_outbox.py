"""Laws of the outbox, on a real Postgres, with a stub in the place of the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import psycopg
import pytest

from edges.outbox.relay import OutboxRelay, RowPutOff, RowRefused, RowSent, answer_of
from edges.outbox.rows import Outbox, open_outbox, schema
from tenure.domain.errors import Unavailable, WrongState
from tests.support.fix_postgres import FreshDatabase
from tests.support.http_stub import HttpStub, Seen, page

pytestmark = pytest.mark.server

KEPT_SECONDS = 3600.0


def made(seen: Seen) -> bytes:
    """The gateway's answer to a submit: the task of this Idempotency-Key."""
    return page(json.dumps({"task_id": f"task of {seen.headers['idempotency-key']}"}), content_type="application/json")


def problem(status: str, code: str = "", **headers: str) -> bytes:
    body = {"code": code, "detail": "so it is", "violations": [{"field": "goal", "message": "is blank"}]}
    return page(json.dumps(body if code else {}), status, content_type="application/problem+json", **headers)


@dataclass
class Backend:
    """The database of a backend, and a relay to a gateway."""

    dsn: str
    gateway: HttpStub
    outbox: Outbox
    relay: OutboxRelay
    reports: list[str] = field(default_factory=list)

    async def execute(self, *statements: str) -> None:
        """Executes the statements in one transaction."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            for statement in statements:
                await connection.execute(statement.encode())

    async def submit(self, request_id: str, goal: str = "do it") -> None:
        await self.execute(f"""select tenure.submit('{{"goal": "{goal}"}}', '{request_id}')""")

    async def rows(self) -> list[tuple[Any, ...]]:
        """Request id, task and attempts of all rows."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            cursor = await connection.execute("select request_id, task_id, attempts from tenure.outbox order by 1")
            return await cursor.fetchall()

    async def lapse(self) -> None:
        """The claims and the pauses of all rows end."""
        await self.execute("update tenure.outbox set next_attempt_at = now() where next_attempt_at is not null")


@asynccontextmanager
async def relay_of(dsn: str, gateway: HttpStub, reports: list[str]) -> AsyncIterator[tuple[Outbox, OutboxRelay]]:
    async with open_outbox(dsn) as outbox, httpx2.AsyncClient(base_url=gateway.url("")) as client:
        yield outbox, OutboxRelay(outbox, client, KEPT_SECONDS, reports.append)


@pytest.fixture
async def backend(fresh_database: FreshDatabase) -> AsyncIterator[Backend]:
    dsn = await fresh_database()
    reports: list[str] = []
    async with HttpStub(made) as gateway:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            for _ in range(2):  # a second run changes nothing
                await connection.execute(schema().encode())
        async with relay_of(dsn, gateway, reports) as (outbox, relay):
            yield Backend(dsn, gateway, outbox, relay, reports)


class TestRows:
    async def test_submit_is_of_the_transaction(self, backend: Backend) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            await backend.execute("""select tenure.submit('{"goal": "never"}', 'rolled-back')""", "select 1/0")
        await backend.submit("kept")
        assert await backend.relay.round() == 1
        assert await backend.rows() == [("kept", "task of kept", 1)]
        assert [(one.target, json.loads(one.body)) for one in backend.gateway.seen] == [
            ("/v1/tasks", {"goal": "do it"})
        ]

    async def test_repeated_submit_is_one_row(self, backend: Backend) -> None:
        await backend.submit("once")
        await backend.submit("once")
        assert await backend.relay.round() == 1
        await backend.submit("once")
        assert await backend.relay.round() == 0
        with pytest.raises(psycopg.errors.UniqueViolation, match="the request id once is of another task"):
            await backend.submit("once", goal="something else")

    @pytest.mark.parametrize("call", ["'[]', 'x'", "'{}', 'ä'", "'{}', ''", "'{}', E'a\\nb'"])
    async def test_row_that_no_request_can_carry_is_refused(self, backend: Backend, call: str) -> None:
        with pytest.raises(psycopg.errors.CheckViolation):
            await backend.execute(f"select tenure.submit({call})")

    async def test_database_without_an_outbox_is_named(self, fresh_database: FreshDatabase) -> None:
        async with open_outbox(await fresh_database()) as outbox:
            pass
        with pytest.raises(WrongState, match="tenure outbox sql"):
            async with open_outbox(await fresh_database()) as outbox:
                await outbox.claim(1, 1.0)

    async def test_lost_connection_is_unavailable(self, backend: Backend) -> None:
        async def use() -> None:
            async with open_outbox(backend.dsn) as outbox:
                await backend.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where datname = current_database() and pid <> pg_backend_pid()"
                )
                await outbox.claim(1, 1.0)

        with pytest.raises(Unavailable, match="cannot be reached"):
            await use()


class TestRelay:
    async def test_lost_answer_is_sent_again_with_its_key(self, backend: Backend) -> None:
        """As of a relay that died after the request: another one claims the row when the claim has ended."""
        await backend.submit("r1")
        assert [row.request_id for row in await backend.outbox.claim(10, 60.0)] == ["r1"]
        assert await backend.relay.round() == 0
        await backend.lapse()
        assert await backend.relay.round() == 1
        assert await backend.rows() == [("r1", "task of r1", 2)]

    async def test_two_relays_send_each_row_once(self, backend: Backend) -> None:
        for number in range(100):
            await backend.submit(f"r{number}")
        async with relay_of(backend.dsn, backend.gateway, []) as (_, second):
            while sum(await asyncio.gather(backend.relay.round(), second.round())):
                pass
        keys = [one.headers["idempotency-key"] for one in backend.gateway.seen]
        assert sorted(keys) == sorted({f"r{number}" for number in range(100)})
        assert all(task for _, task, _ in await backend.rows())

    async def test_row_waits_while_the_gateway_is_away(self, backend: Backend) -> None:
        answers = [problem("503 Service Unavailable", "UNAVAILABLE"), page("<html>", "404 Not Found"), b"nonsense"]
        backend.gateway.answer = lambda seen: answers.pop(0) if answers else made(seen)
        await backend.submit("r1")
        for _ in range(3):
            await backend.relay.round()
            (waiting,) = await backend.outbox.listed(10, refused=False)
            assert waiting.problem
            await backend.lapse()
        await backend.relay.round()
        assert await backend.rows() == [("r1", "task of r1", 4)]
        assert backend.reports[0] == "rows wait: HTTP 503: UNAVAILABLE: so it is: goal is blank"
        assert backend.reports[-1] == "the gateway accepts rows again"

    async def test_refused_row_waits_for_a_person(self, backend: Backend) -> None:
        backend.gateway.answer = lambda _: problem("400 Bad Request", "INVALID_REQUEST")
        await backend.submit("r1")
        await backend.relay.round()
        await backend.lapse()
        assert await backend.relay.round() == 0
        (refused,) = await backend.outbox.listed(10, refused=True)
        assert refused.problem == "HTTP 400: INVALID_REQUEST: so it is: goal is blank"
        backend.gateway.answer = made
        assert await backend.outbox.retry("r1")
        assert not await backend.outbox.retry("r2")
        await backend.relay.round()
        assert await backend.rows() == [("r1", "task of r1", 1)]

    async def test_old_rows_with_a_task_are_deleted(self, backend: Backend) -> None:
        for request_id in ("old", "young"):
            await backend.submit(request_id)
        await backend.relay.round()
        await backend.execute("update tenure.outbox set ended_at = now() - interval '2 hours' where request_id = 'old'")
        await backend.execute(
            "insert into tenure.outbox (request_id, task, task_id, ended_at) select 'old-' || n, o.task, o.task_id,"
            " o.ended_at from tenure.outbox o, generate_series(1, 1001) n where o.request_id = 'old'"
        )
        await backend.outbox.forget(KEPT_SECONDS)
        assert [request_id for request_id, *_ in await backend.rows()] == ["young"]

    async def test_row_wakes_the_relay(self, backend: Backend) -> None:
        waiting = asyncio.create_task(backend.outbox.wait(600.0))
        await backend.submit("r1")
        await waiting


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (201, b'{"task_id": "t"}', RowSent),
        (200, b"<html>", RowPutOff),
        (200, b'{"task_id": 7}', RowPutOff),
        (200, b"[]", RowPutOff),
        (400, b'{"code": "INVALID_REQUEST"}', RowRefused),
        (409, b'{"code": "SOURCE_BUSY"}', RowRefused),
        (401, b'{"code": "UNAUTHENTICATED"}', RowPutOff),
        (403, b'{"code": "PERMISSION_DENIED"}', RowPutOff),
        (404, b"no such page", RowPutOff),
        (413, b'{"code": "TOO_LARGE", "violations": [7, {"field": 1}]}', RowRefused),
        (429, b'{"code": "LIMIT_REACHED"}', RowPutOff),
        (500, b"\xff\x00", RowPutOff),
    ],
)
def test_answer_decides_about_the_row(status: int, body: bytes, expected: type) -> None:
    answer = answer_of(httpx2.Response(status, content=body))
    assert isinstance(answer, expected)
    assert "\0" not in str(answer)


@pytest.mark.parametrize(("header", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("99999", 0.0), ("-1", 0.0)])
def test_pause_that_the_gateway_names_counts(header: str, seconds: float) -> None:
    response = httpx2.Response(503, headers={"retry-after": header}, content=b"")
    assert answer_of(response) == RowPutOff("HTTP 503", seconds)
