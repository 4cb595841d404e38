"""Who may call by HTTP: keys, tokens, sessions of browsers, pages of other origins, and what the audit log sees."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from devstack.options import HTTP_LISTEN
from tenure.domain.access import Permission
from tenure.domain.errors import PermissionDenied
from tenure.v1 import audit_service_pb2 as pb
from tenure.v1.admin_service_pb2 import ListWorkersRequest
from tests.security.guarded import CLIENT_GATEWAYS, PROCESS_GATEWAYS, Guarded
from tests.security.test_audit import recorded
from tests.support.patience import CALL_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="package")]


def url(guarded: Guarded, gateway: str) -> str:
    address = guarded.stack.services[gateway].environment[HTTP_LISTEN]
    return f"https://localhost:{address.rpartition(':')[2]}"


def http(guarded: Guarded, key: str = "", *, gateway: str = CLIENT_GATEWAYS[0]) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    trusted = ssl.create_default_context(cafile=str(guarded.ca_file))
    return httpx2.AsyncClient(
        base_url=url(guarded, gateway), headers=headers, verify=trusted, timeout=CALL_SECONDS, trust_env=False
    )


@pytest_asyncio.fixture(loop_scope="package")
async def reader(guarded: Guarded) -> AsyncIterator[httpx2.AsyncClient]:
    async with http(guarded, (await guarded.key(Permission.READ)).secret) as client:
        yield client


async def code(client: httpx2.AsyncClient, method: str, path: str, **options: Any) -> tuple[int, str]:
    response = await client.request(method, path, **options)
    return response.status_code, response.json().get("code", "") if response.content else ""


SUBMIT: Any = {"json": {"goal": "go", "model": "sim-hello"}}


async def test_a_caller_without_a_key_is_refused(guarded: Guarded) -> None:
    async with http(guarded) as nobody, http(guarded, "tnr_" + "a" * 12 + "_" + "b" * 43) as stranger:
        assert await code(nobody, "GET", "/v1/tasks") == (401, "NO_API_KEY")
        assert await code(nobody, "GET", "/v1/changes") == (401, "NO_API_KEY")
        assert await code(nobody, "POST", "/v1/tasks", **SUBMIT) == (401, "NO_API_KEY")
        assert await code(stranger, "GET", "/v1/tasks") == (401, "API_KEY_INVALID")
        assert await code(nobody, "GET", "/v1/me", headers={"Authorization": "Basic eDp5"}) == (401, "NO_API_KEY")
        assert (await nobody.get("/healthz")).status_code == 200


async def test_a_large_body_of_an_unknown_caller_is_not_read(guarded: Guarded) -> None:
    trusted = ssl.create_default_context(cafile=str(guarded.ca_file))
    port = int(url(guarded, CLIENT_GATEWAYS[0]).rpartition(":")[2])
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
    head = "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 4000000\r\n\r\n"
    for path in ("/v1/tasks", "/a2a/message:send"):
        writer.write(head.format(path).encode())
        async with asyncio.timeout(CALL_SECONDS):
            assert b" 401 " in await reader.readline()  # no byte of the body was sent
        writer.close()
        reader, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
    writer.close()


async def test_a_key_may_do_what_it_may(guarded: Guarded, reader: httpx2.AsyncClient) -> None:
    assert (await reader.get("/v1/tasks")).status_code == 200
    assert await code(reader, "POST", "/v1/tasks", **SUBMIT) == (403, "METHOD_NOT_ALLOWED")
    assert await code(reader, "GET", "/v1/workers") == (403, "METHOD_NOT_ALLOWED")
    assert await code(reader, "GET", "/v1/tasks", headers={"Tenure-Tenant": "other"}) == (403, "OTHER_TENANT")
    me = (await reader.get("/v1/me")).json()
    assert (me["tenant"], me["permissions"], me["authenticated"], me["any_tenant"]) == ("acme", ["READ"], True, False)
    assert (me["installation"], Path(me["stack_folder"]).name) == ("tenure", "data")
    async with http(guarded, guarded.operator_key) as operator:
        me = (await operator.get("/v1/me", params={"tenant": "other"})).json()
        assert (me["tenant"], me["any_tenant"]) == ("other", True)


async def test_a_forged_peer_is_not_believed(guarded: Guarded) -> None:
    """Only the door names the other end: a caller by gRPC or by HTTP may not."""
    reader = await guarded.key(Permission.READ)
    subject = f"key/{reader.api_key.key_id}"
    forged = {"x-tenure-peer": "ipv4:9.9.9.9:9"}
    async with http(guarded, reader.secret) as client:
        await client.post("/v1/tasks", headers=forged, **SUBMIT)
    (one,) = await recorded(guarded, subject=subject, decision=pb.AUDIT_DECISION_DENIED)
    assert one.peer.startswith(("ipv4:127.0.0.1:", "ipv6:%5B::1%5D:"))
    async with guarded.client(reader.secret) as client:
        with pytest.raises(PermissionDenied):
            await client.admin.ListWorkers(ListWorkersRequest(), metadata=tuple(forged.items()))
    records = await recorded(guarded, 2, subject=subject, decision=pb.AUDIT_DECISION_DENIED)
    assert {record.peer.partition("%5B")[0].split(":")[1] for record in records} <= {"127.0.0.1", ""}


async def test_beside_certificates_http_needs_a_key(guarded: Guarded) -> None:
    gateway = PROCESS_GATEWAYS[0]
    key = (await guarded.key(Permission.WRITE)).secret
    async with http(guarded, gateway=gateway) as nobody, http(guarded, key, gateway=gateway) as client:
        assert await code(nobody, "GET", "/v1/tasks") == (401, "NO_API_KEY")
        assert (await client.post("/v1/tasks", **SUBMIT)).status_code == 201


async def test_a_session_of_a_browser(guarded: Guarded) -> None:
    key = (await guarded.key(Permission.WRITE)).secret
    async with http(guarded) as browser:
        own = {"Sec-Fetch-Site": "same-origin"}
        wrong: Any = {"json": {"api_key": "wrong key"}}
        assert await code(browser, "POST", "/console/session", **wrong) == (401, "API_KEY_INVALID")
        stranger = "tnr_" + "a" * 12 + "_" + "b" * 43
        assert (await browser.post("/console/session", json={"api_key": stranger})).status_code == 401
        begun = await browser.post("/console/session", json={"api_key": key}, headers=own)
        assert begun.status_code == 200
        cookie = begun.headers["set-cookie"]
        assert cookie.startswith(f"__Host-tenure_session={key};")
        for attribute in ("HttpOnly", "Secure", "SameSite=strict", "Path=/"):
            assert attribute in cookie
        assert (await browser.get("/v1/tasks")).status_code == 200
        assert (await browser.post("/v1/tasks", **SUBMIT, headers=own)).status_code == 201
        for other in ({}, {"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert await code(browser, "POST", "/v1/tasks", **SUBMIT, headers=other) == (403, "OTHER_ORIGIN")
        ended = await browser.delete("/console/session", headers=own)
        assert ended.status_code == 204
        assert await code(browser, "GET", "/v1/tasks") == (401, "NO_API_KEY")
