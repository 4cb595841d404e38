"""Laws of the outbox, on a real Postgres, with a stub in the place of the gateway."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from click.testing import CliRunner

from edges.outbox.relay import OutboxRelay, RowPutOff, RowRefused, RowSent, answer_of, open_gateway
from edges.outbox.rows import Outbox, open_outbox, schema
from tenure.cli.exit_codes import Exit
from tenure.cli.main import cli
from tenure.domain.errors import Unavailable, WrongState
from tenure.runtime.security.tls import ClientTls
from tests.support.certificates import issue
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
        async with await psycopg.AsyncConnection.connect(self.dsn, client_encoding="utf8") as connection:
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
async def relay_of(
    dsn: str, gateway: HttpStub, reports: list[str], api_key: Callable[[], str] = str, tls: ClientTls | None = None
) -> AsyncIterator[tuple[Outbox, OutboxRelay]]:
    async with open_outbox(dsn) as outbox, open_gateway(gateway.url(""), "", tls) as client:
        yield outbox, OutboxRelay(outbox, client, api_key, KEPT_SECONDS, reports.append)


@asynccontextmanager
async def backend_of(dsn: str) -> AsyncIterator[Backend]:
    reports: list[str] = []
    async with HttpStub(made) as gateway:
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            for _ in range(2):  # a second run changes nothing
                await connection.execute(schema().encode())
        async with relay_of(dsn, gateway, reports) as (outbox, relay):
            yield Backend(dsn, gateway, outbox, relay, reports)


@pytest.fixture
async def backend(fresh_database: FreshDatabase) -> AsyncIterator[Backend]:
    async with backend_of(await fresh_database()) as backend:
        yield backend


@pytest.fixture
async def latin1_backend(fresh_database: FreshDatabase) -> AsyncIterator[Backend]:
    """Its database has fewer characters than an answer of the gateway."""
    dsn = await fresh_database()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as postgres:
        await postgres.execute("drop database if exists outbox_latin1 with (force)")
        await postgres.execute("create database outbox_latin1 encoding 'LATIN1' locale 'C' template template0")
        try:
            async with backend_of(psycopg.conninfo.make_conninfo(dsn, dbname="outbox_latin1")) as backend:
                yield backend
        finally:
            await postgres.execute("drop database outbox_latin1 with (force)")


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

        with pytest.raises(Unavailable, match="cannot be used"):
            await use()

    async def test_database_that_refuses_writes_is_unavailable(self, backend: Backend) -> None:
        """As a standby does, to which the name of the database points during a failover."""
        await backend.execute(
            "do $$ begin execute format('alter database %I set default_transaction_read_only = on', "
            "current_database()); end $$"
        )

        async def use() -> None:
            async with open_outbox(backend.dsn) as outbox:
                await outbox.claim(1, 1.0)

        with pytest.raises(Unavailable, match="read-only"):
            await use()


class TestLateAnswer:
    """An answer that a frozen relay records after its claim: another relay has sent the row since."""

    async def test_late_refusal_does_not_end_a_row_with_a_task(self, backend: Backend) -> None:
        await backend.submit("r1")
        [late] = await backend.outbox.claim(1, 60.0)
        await backend.lapse()
        await backend.relay.round()
        assert not await backend.outbox.refuse(late, "no such agent")
        await backend.outbox.put_off(late, 60.0, "away")
        assert await backend.rows() == [("r1", "task of r1", 2)]
        assert await backend.outbox.claim(1, 60.0) == []

    async def test_late_refusal_does_not_end_a_claimed_row(self, backend: Backend) -> None:
        await backend.submit("r1")
        [late] = await backend.outbox.claim(1, 60.0)
        await backend.lapse()
        [present] = await backend.outbox.claim(1, 60.0)
        assert not await backend.outbox.refuse(late, "no such agent")
        await backend.outbox.put_off(late, 0.0, "away")
        assert await backend.outbox.claim(1, 60.0) == []
        assert await backend.outbox.refuse(present, "no such agent")

    async def test_late_task_is_recorded(self, backend: Backend) -> None:
        """It exists, whatever answer another relay got."""
        await backend.submit("r1")
        [late] = await backend.outbox.claim(1, 60.0)
        await backend.lapse()
        backend.gateway.answer = lambda _: problem("400 Bad Request", "INVALID_REQUEST")
        await backend.relay.round()
        await backend.outbox.sent(late, "task of r1")
        assert await backend.rows() == [("r1", "task of r1", 2)]
        assert await backend.outbox.listed(10, refused=True) == []


class TestKey:
    async def test_key_is_read_for_each_request(self, backend: Backend) -> None:
        keys: list[str | Exception] = [
            "tnr_first",
            FileNotFoundError(2, "No such file", "key"),
            "tnr_sécond",
            "tnr_second",
        ]

        def key() -> str:
            value = keys.pop(0)
            if isinstance(value, Exception):
                raise value
            return value

        async with relay_of(backend.dsn, backend.gateway, backend.reports, key) as (_, relay):
            problems = []
            for request_id in ("r1", "r2"):
                await backend.submit(request_id)
                await relay.round()
            while waiting := await backend.outbox.listed(10, refused=False):
                problems += [row.problem for row in waiting]
                await backend.lapse()
                await relay.round()
        assert problems[0] == "the API key cannot be read: [Errno 2] No such file: 'key'"
        assert problems[1].startswith("the API key cannot be read: 'ascii' codec can't encode")
        assert [one.headers["authorization"] for one in backend.gateway.seen] == [
            "Bearer tnr_first",
            "Bearer tnr_second",
        ]

    async def test_gateway_with_an_authority_of_its_own(self, backend: Backend, tmp_path: Path) -> None:
        authority = issue("authority")
        ca_file = authority.write(tmp_path / "ca.pem")
        await backend.submit("r1")
        async with HttpStub(made, issue("gateway", ("127.0.0.1",), authority).server(tmp_path)) as gateway:
            async with relay_of(backend.dsn, gateway, backend.reports) as (_, relay):
                await relay.round()
            assert gateway.seen == []
            await backend.lapse()
            async with relay_of(backend.dsn, gateway, backend.reports, tls=ClientTls(ca_file)) as (_, relay):
                await relay.round()
        assert await backend.rows() == [("r1", "task of r1", 2)]


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

    async def test_row_waits_for_its_busy_source(self, backend: Backend) -> None:
        """The other rows do not wait for it."""
        busy = [problem("409 Conflict", "SOURCE_BUSY")]
        backend.gateway.answer = lambda seen: busy.pop() if busy else made(seen)
        await backend.submit("r1")
        await backend.relay.round()
        (waiting,) = await backend.outbox.listed(10, refused=False)
        assert waiting.problem == "HTTP 409: SOURCE_BUSY: so it is: goal is blank"
        await backend.lapse()
        await backend.relay.round()
        assert await backend.rows() == [("r1", "task of r1", 2)]
        assert backend.reports == []

    @pytest.mark.parametrize(
        ("status", "detail", "recorded"),
        [
            ("400 Bad Request", "zu spät", "zu spät"),
            ("400 Bad Request", "遅い", "\\u9045\\u3044"),
            ("503 Service Unavailable", "遅い", "\\u9045\\u3044"),
            ("400 Bad Request", "half: \ud83d", "half: \\ud83d"),
            ("400 Bad Request", "nothing: \0", "nothing: \\ufffd"),
        ],
    )
    async def test_answer_with_any_characters_is_recorded(
        self, latin1_backend: Backend, status: str, detail: str, recorded: str
    ) -> None:
        latin1_backend.gateway.answer = lambda _: page(json.dumps({"code": "SO", "detail": detail}), status)
        await latin1_backend.submit("r1", goal="zu spät")
        await latin1_backend.relay.round()
        [row] = await latin1_backend.outbox.listed(10, refused=status.startswith("400"))
        assert row.problem == f"HTTP {status[:3]}: SO: {recorded}"
        assert json.loads(latin1_backend.gateway.seen[0].body) == {"goal": "zu spät"}

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

    async def test_pause_of_a_clock_that_was_ahead_is_over(self, backend: Backend) -> None:
        await backend.submit("r1")
        await backend.execute("update tenure.outbox set next_attempt_at = now() + interval '1 year'")
        running = asyncio.create_task(backend.relay.run())
        await backend.gateway.until_requested()
        running.cancel()

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
        pytest.param(200, b"[" * 100_000, RowPutOff, id="too deep"),
        (400, b'{"code": "INVALID_REQUEST"}', RowRefused),
        (200, b'{"task_id": "t\\u0000"}', RowPutOff),
        (409, b'{"code": "SOURCE_BUSY"}', RowPutOff),
        (409, b'{"code": "REQUEST_ID_REUSED"}', RowRefused),
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


@pytest.mark.parametrize(
    ("header", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("99999", 3600.0), ("9" * 20, 0.0), ("-1", 0.0)]
)
def test_pause_that_the_gateway_names_counts(header: str, seconds: float) -> None:
    response = httpx2.Response(503, headers={"retry-after": header}, content=b"")
    assert answer_of(response) == RowPutOff("HTTP 503", seconds)


def test_key_is_not_sent_to_another_machine_in_clear_text() -> None:
    line = ["outbox", "relay", "--dsn", "host=127.0.0.1 port=1", "--url", "http://10.0.0.1:8480"]
    result = CliRunner().invoke(cli, line, env={"TENURE_API_KEY": "tnr_key"})
    assert result.exit_code == Exit.USAGE
    assert "an API key is sent to another machine by https only" in result.output


def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    line = ["outbox", "relay", "--dsn", "host=127.0.0.1 port=1", "--url", "https://10.0.0.1:8480"]
    result = CliRunner().invoke(cli, ["--tls-ca-file", str(tmp_path / "ca.pem"), *line])
    assert result.exit_code != Exit.OK
    assert "a file for TLS cannot be read" in result.output
