"""The HTTP server alone: its document, its bounds for slow and hostile clients, its origins, its sessions."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from edges.console.door import ConsoleFiles
from edges.gateway import http_edges
from services.gateway.http import body, server
from services.gateway.http.openapi import openapi_document
from services.gateway.http.problems import problem_of
from services.gateway.http.requests import SubmitBody, TasksQuery
from services.gateway.http.routes import ROUTES
from services.gateway.http.settings import HttpSettings
from services.gateway.http.shapes import MAX_PROBLEMS, given, read_json, read_query
from tenure.domain.errors import InvalidRequest, LimitReached, Unavailable
from tenure.domain.states import TaskState
from tenure.domain.task import Priority
from tenure.runtime.http.outbound_http import http_tls_context
from tenure.runtime.listening import CannotListen
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.security.tls import MutualTlsSettings
from tenure.runtime.settings import Address, ConfigurationError, load
from tenure.v1 import task_service_pb2 as api
from tenure.v1.task_service_pb2_grpc import TaskServiceServicer
from tenure.wire.access import access_rules
from tests.support.patience import CALL_SECONDS

Open = Any
NO_PEERS: Any = None
ALL_ROUTES = [*ROUTES, *(route for edge in http_edges() for route in edge.api_routes)]


class TasksWithoutLedger(TaskServiceServicer):
    async def ListTasks(self, request: api.ListTasksRequest, context: Any) -> api.ListTasksResponse:
        raise Unavailable("the ledger does not answer")

    async def ReadFile(self, request: api.ReadFileRequest, context: Any) -> AsyncIterator[api.ReadFileResponse]:
        if request.path:
            raise Unavailable("the ledger does not answer")
        yield api.ReadFileResponse()


@pytest.fixture
async def http_server() -> AsyncIterator[Open]:
    """Opens doors in front of a gateway whose ledger does not answer."""
    grpc_server = RpcServer("127.0.0.1:0")
    servicer: Any = TasksWithoutLedger
    grpc_server.add("tenure.v1.TaskService", servicer())
    async with AsyncExitStack() as stack:

        async def opened(*, is_authenticated: bool = False, listen: str = "127.0.0.1:0", **settings: Any) -> str:
            address = await stack.enter_async_context(
                server.http_door(
                    HttpSettings(listen=Address(listen), **settings),
                    grpc_server,
                    asyncio.Event(),
                    None,
                    MutualTlsSettings(),
                    is_authenticated=is_authenticated,
                    allow_insecure_network=False,
                    peers=NO_PEERS,
                    edges=http_edges(),
                )
            )
            return f"http://{address}"

        yield opened


def client(url: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(verify=http_tls_context(), base_url=url, timeout=CALL_SECONDS, trust_env=False)


async def connection(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


# The document.


OPENAPI_SCHEMA = Path(__file__).parent / "golden" / "openapi-3.1.schema.json"
"""The OpenAPI Initiative's schema of documents, https://spec.openapis.org/oas/3.1/schema/2022-10-07."""


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        inner = set[str]().union(*map(references, value.values()))
        return inner | ({value["$ref"]} if isinstance(value.get("$ref"), str) else set())
    return set[str]().union(*map(references, value)) if isinstance(value, list) else set()


def test_the_document_is_valid_and_has_every_route() -> None:
    document = openapi_document(ALL_ROUTES)
    validator = Draft202012Validator(json.loads(OPENAPI_SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(document)] == []
    schemas = document["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert references(document) == {f"#/components/schemas/{name}" for name in schemas}
    documented = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert documented == {(route.method, route.path.replace(":path", "")) for route in ALL_ROUTES}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(names) == len(set(names))


def test_the_document_declares_request_ids_and_problem_fields() -> None:
    document = openapi_document(ALL_ROUTES)
    declared = {
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
        if any(one["name"] == "Idempotency-Key" for one in operation["parameters"])
    }
    assert declared == {
        *(
            "submit",
            "send_message",
            "fork_task",
            "undo_task",
            "answer_wait",
            "resolve_call",
            "send_signal",
            "trigger_schedule",
        ),
        *("requeue_task", "grant_budget", "close_out_task", "begin_wait"),
    }
    problem = problem_of(LimitReached("too many", retry_after_seconds=2))
    assert set(problem) == set(document["components"]["schemas"]["Problem"]["required"])
    assert (problem["hint"], problem["violations"], problem["retry_after_seconds"]) == ("", [], 2)


def test_every_route_is_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "http.md").read_text()
    told = set(re.findall(r"`(GET|POST|PATCH|DELETE) (/[^`?]*)", page))
    assert {(route.method, route.path.replace(":path", "")) for route in ALL_ROUTES} - told == set()


def test_every_method_without_a_route_is_in_the_documentation() -> None:
    folder = Path(__file__).parents[2]
    called = {
        name
        for place in ("services/gateway/http", "edges/a2a", "edges/chats")
        for file in (folder / place).glob("*.py")
        for name in re.findall(r"(?:stubs\.\w+|\"\w+Service)\.([A-Z]\w+)", file.read_text())
    }
    called |= {"WatchTask", "WatchTasks"}  # of the streams, whose stub has another name
    section = (folder / "docs/http.md").read_text().partition("## Methods without a route")[2].partition("\n## ")[0]
    told = set(re.findall(r"`([A-Z]\w+)`", section))
    services = ("Admin", "Agent", "ApiKey", "Approval", "Audit", "Lease", "Schedule", "Task", "Tenant", "Webhook")
    rules = [access_rules(f"tenure.v1.{service}Service") for service in services]
    for_clients = {name for each in rules for name, rule in each.items() if rule.permission is not None}
    assert told == for_clients - called


# Requests.


def test_a_submit_is_read() -> None:
    read = read_json(
        SubmitBody,
        {
            "goal": "go",
            "max_cost": 0.1,
            "timeout": 60,
            "start_at": "2026-11-23T07:00:00+01:00",
            "priority": "high",
            "labels": {"a": "b"},
            "tools": ["x"],
            "policy": {"on_budget": "ASK", "timeouts": {"queued": {"after_seconds": 5}}},
            "source": {"kind": "CONVERSATION", "source_id": "c"},
        },
    )
    options = read.options
    assert (options["max_cost"], options["timeout"], options["priority"]) == (Decimal("0.1"), 60.0, Priority.HIGH)
    assert (options["start_at"], options["tools"]) == (datetime(2026, 11, 23, 6, tzinfo=UTC), ("x",))
    assert options["policy"].timeouts.queued.after_seconds == 5


def test_all_violations_are_named() -> None:
    wrong = {
        "goal": 1,
        "max_cost": "much",
        "start_at": "2026-11-23T07:00:00",
        "priority": "URGENT",
        "labels": {"a": 1},
        "tools": ["x", 2],
        "policy": {"retry": {"max_attempts": True, "tries": 1}},
        "extra": None,
        "max_steps": 2**70,
    }
    with pytest.raises(InvalidRequest) as caught:
        read_json(SubmitBody, wrong)
    assert sorted(violation.field for violation in caught.value.violations) == sorted(
        {
            *("goal", "max_cost", "start_at", "priority", "labels.a", "tools[1]", "extra", "max_steps"),
            *("policy.retry.max_attempts", "policy.retry.tries"),
        }
    )


def test_a_query_is_read() -> None:
    items = [("state", "QUEUED,running"), ("state", "FAILED"), ("label", "a:b"), ("label", "c:d:e"), ("page_size", "7")]
    read = read_query(TasksQuery, items)
    assert read.state == (TaskState.QUEUED, TaskState.RUNNING, TaskState.FAILED)
    assert (dict(read.label), read.page_size) == ({"a": "b", "c": "d:e"}, 7)
    for wrong in (
        [("label", "a")],
        [("page_size", "1"), ("page_size", "2")],
        [("page_size", "nan")],
        [("nothing", "")],
    ):
        with pytest.raises(InvalidRequest):
            read_query(TasksQuery, wrong)


@dataclass(frozen=True)
class _Needed:
    text: str = given("needed")


def test_missing_field_is_named() -> None:
    with pytest.raises(InvalidRequest, match="text"):
        read_json(_Needed, {})
    with pytest.raises(InvalidRequest, match="text"):
        read_query(_Needed, [])


# Hostile clients.


async def test_a_connection_without_a_request_ends(http_server: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.2)
    reader, writer = await connection(await http_server())
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
    for _ in range(3):  # a header now and then does not help
        await asyncio.sleep(0.05)
        writer.write(b"X-Slow: 1\r\n")
    async with asyncio.timeout(CALL_SECONDS):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""
    writer.close()


async def test_a_body_that_does_not_come_is_refused(http_server: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(body, "DROP_SECONDS", 0.01)
    reader, writer = await connection(await http_server())
    writer.write(
        b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    )
    async with asyncio.timeout(CALL_SECONDS):
        assert b" 408 " in await reader.readline()
    writer.close()


async def test_a_body_for_mcp_that_does_not_come_is_refused(http_server: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "BODY_SECONDS", 0.2)
    monkeypatch.setattr(body, "DROP_SECONDS", 0.01)
    reader, writer = await connection(await http_server())
    writer.write(
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Accept: application/json, text/event-stream\r\nContent-Length: 100\r\n\r\n{"
    )
    async with asyncio.timeout(CALL_SECONDS):
        assert b" 408 " in await reader.readline()
    writer.close()


async def test_mcp_opens_no_stream_that_never_ends(http_server: Open) -> None:
    async with asyncio.timeout(CALL_SECONDS), client(await http_server()) as http:
        response = await http.get("/mcp", headers={"accept": "text/event-stream"})
        assert (response.status_code, response.json()["code"]) == (405, "OTHER_METHOD")


@pytest.mark.parametrize("host", ["[", "[::1", "a]", "[x]"])
async def test_invalid_host_is_refused(http_server: Open, host: str) -> None:
    async with client(await http_server()) as http:
        response = await http.get("/v1/tasks", headers={"Host": host})
        assert (response.status_code, response.json()["code"]) == (421, "OTHER_HOST")
        response = await http.post("/mcp", headers={"Host": host}, json={})
        assert (response.status_code, response.json()["code"]) == (421, "OTHER_HOST")


@pytest.mark.parametrize("amount", ["1e1000000", "-1e1000000", "NaN", "Infinity"])
async def test_an_amount_beyond_all_is_refused(http_server: Open, amount: str) -> None:
    async with client(await http_server()) as http:
        response = await http.post("/v1/tasks", json={"goal": "go", "max_cost": amount})
        assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST")
        assert "Decimal" not in response.text


async def test_a_refusal_names_no_type_of_python(http_server: Open) -> None:
    async with client(await http_server()) as http:
        response = await http.post("/v1/tasks", json={"goal": "go", "timeout": 0})
    assert response.json()["violations"] == [{"field": "timeout", "description": "must be above 0 seconds, not 0.0"}]
    assert "timedelta" not in response.text


LARGE_BODIES = {
    "unknown fields": {f"field{number}" * 9: 0 for number in range(40_000)},
    "wrong items": {"goal": "go", "tools": [0] * 400_000},
    "wrong labels": {"goal": "go", "labels": {f"{number}" * 30: [] for number in range(20_000)}},
}


@pytest.mark.parametrize("name", LARGE_BODIES)
async def test_a_refusal_names_the_first_violations_only(http_server: Open, name: str) -> None:
    async with client(await http_server()) as http:
        response = await http.post("/v1/tasks", json=LARGE_BODIES[name])
    assert response.status_code == 400
    assert len(response.json()["violations"]) <= MAX_PROBLEMS
    assert len(response.content) < 8192


async def test_a_query_with_many_unknown_parameters_is_refused_shortly(http_server: Open) -> None:
    async with client(await http_server()) as http:
        response = await http.get("/v1/tasks?" + "&".join(f"{number}aa" for number in range(2000)))
    assert (response.status_code, len(response.json()["violations"])) == (400, MAX_PROBLEMS)
    assert len(response.content) < 8192


async def test_a_body_with_too_many_values_is_not_parsed(http_server: Open) -> None:
    async with client(await http_server()) as http:
        raw = b"[" + b"[]," * 400_000 + b"[]]"
        response = await http.post("/v1/tasks", content=raw, headers={"content-type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (400, "BAD_JSON")


@pytest.mark.parametrize("name", ["a%0D%0Ab", "a%0A", "b/%0Ac", "%20"])
async def test_a_file_may_have_any_name(http_server: Open, name: str) -> None:
    """It was listed, and could not be read: NO_SUCH_ROUTE."""
    async with client(await http_server()) as http:
        response = await http.get(f"/v1/tasks/01a222a2-7e66-7000-8000-000000000000/files/{name}")
    assert (response.status_code, response.json()["code"]) == (503, "UNAVAILABLE")


async def test_a_head_that_is_too_large_is_refused(http_server: Open) -> None:
    async with client(await http_server()) as http:
        response = await http.get("/healthz", headers={"x-large": "x" * 20_000})
        assert (response.status_code, response.json()["code"]) == (431, "HEADER_TOO_LARGE")
        response = await http.get("/v1/tasks", headers={"authorization": f"Bearer {'x' * 7000}"})
        assert (response.status_code, response.json()["code"]) == (431, "HEADER_TOO_LARGE")


async def test_a_chunked_body_that_is_too_large_is_refused(http_server: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "MAX_BODY_BYTES", 1000)

    async def parts() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * 500

    async with client(await http_server()) as http:
        response = await http.post("/v1/tasks", content=parts(), headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["code"]) == (413, "BODY_TOO_LARGE")


@pytest.mark.parametrize(("path", "status"), [("/v1/tasks", 413), ("/v1/nothing", 404), ("/healthz", 405)])
async def test_a_client_that_sends_first_gets_the_refusal(http_server: Open, path: str, status: int) -> None:
    address = (await http_server()).removeprefix("http://")

    def posted() -> int:
        with closing(HTTPConnection(address, timeout=CALL_SECONDS)) as sender:
            sender.request("POST", path, b" " * (8 << 20), {"content-type": "application/json"})
            with sender.getresponse() as answer:
                return answer.status

    assert await asyncio.to_thread(posted) == status


async def test_a_body_without_an_end_is_dropped_within_bounds(
    http_server: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "DROP_SECONDS", 0.05)
    reader, writer = await connection(await http_server())
    writer.write(b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n ")
    async with asyncio.timeout(CALL_SECONDS):
        assert b" 404 " in await reader.readline()
    writer.close()
    monkeypatch.setattr(body, "DROP_SECONDS", 10 * CALL_SECONDS)
    monkeypatch.setattr(body, "DROPPED_BYTES", 1000)
    reader, writer = await connection(await http_server())
    writer.write(b"POST /v1/nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b" " * 2000)
    async with asyncio.timeout(CALL_SECONDS):
        assert b" 404 " in await reader.readline()
    writer.close()


async def test_bodies_that_arrive_are_bounded_together(http_server: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read before their callers are known."""
    monkeypatch.setattr(body, "DROP_SECONDS", 0.01)
    monkeypatch.setattr(body, "MAX_ARRIVING_BYTES", 1000)
    url = await http_server()
    head = (
        b"POST /v1/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
    )
    _, holding = await connection(url)
    holding.write(head + b" " * 899)
    async with asyncio.timeout(CALL_SECONDS):
        while True:  # until the first body has arrived
            reader, writer = await connection(url)
            writer.write(head + b" " * 900)
            status = await reader.readline()
            writer.close()
            if b" 503 " in status:
                break
    holding.close()
    async with asyncio.timeout(CALL_SECONDS), client(url) as http:
        while True:  # the bytes of a connection that ended count no more
            response = await http.post("/v1/tasks", content=b" " * 800, headers={"content-type": "application/json"})
            if response.json()["code"] != "BODIES_FULL":
                break
            await asyncio.sleep(0.05)
    assert (response.status_code, response.json()["code"]) == (400, "BAD_JSON")


async def test_request_without_the_ledger_is_refused(http_server: Open) -> None:
    async with client(await http_server()) as http:
        response = await http.get("/v1/tasks")
        assert (response.status_code, response.json()["code"]) == (503, "UNAVAILABLE")


async def test_preflights_of_allowed_origins(http_server: Open) -> None:
    url = await http_server(is_authenticated=True, cors_origins=("https://app.example",))
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with client(url) as http:
        allowed = await http.options("/v1/tasks", headers={"Origin": "https://app.example", **asked})
        assert allowed.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in allowed.headers
        other = await http.options("/v1/tasks", headers={"Origin": "https://evil.example", **asked})
        assert (other.status_code, "access-control-allow-origin" in other.headers) == (400, False)
        named = await http.get("/healthz", headers={"Host": "gateway.example"})
        assert named.status_code == 200  # with authentication, any name


@pytest.mark.parametrize(
    "origin", ["app.example", "https://app.example/", "https://app.example/x", "*", "ftp://a", "https://[::1"]
)
def test_an_origin_has_no_path(origin: str) -> None:
    with pytest.raises(ConfigurationError):
        load(HttpSettings, {"X_CORS_ORIGINS": origin}, prefix="X_")


async def test_clear_text_for_other_machines_needs_a_setting(http_server: Open) -> None:
    with pytest.raises(ConfigurationError, match="TENURE_ALLOW_INSECURE_NETWORK"):
        await http_server(listen="0.0.0.0:0")


async def test_a_port_in_use_is_named(http_server: Open) -> None:
    url = await http_server()
    with pytest.raises(OSError, match="cannot listen on"):
        await http_server(listen=url.removeprefix("http://"))


def test_one_of_two_servers_listens() -> None:
    """Linux binds both sockets, as long as none listens: the other door would serve nothing, and not say so."""
    first = server.open_listener(Address("127.0.0.1:0"))
    try:
        port = first.getsockname()[1]
        with pytest.raises(CannotListen):
            server.open_listener(Address(f"127.0.0.1:{port}"))
    finally:
        first.close()


async def test_a_bug_is_logged_with_its_stack(
    http_server: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of what has no handler of errors of its own: pages, streams, files."""
    errors: list[Exception] = [RuntimeError("a bug"), Unavailable("the ledger is away")]

    async def failing(*_: Any) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(ConsoleFiles, "get_response", failing)
    url = await http_server()
    async with client(url) as http:
        assert [(await http.get("/console/")).status_code for _ in (1, 2)] == [500, 500]
    reader, writer = await connection(url)
    writer.write(b"no request\r\n\r\n")
    async with asyncio.timeout(CALL_SECONDS):
        assert b" 400 " in await reader.readline()
    writer.close()
    logged = [record for record in caplog.records if record.name == "uvicorn.error"]
    assert [str(record.exc_info[1]) for record in logged if record.exc_info] == ["a bug"]
    assert len(logged) == 1
