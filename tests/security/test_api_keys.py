"""Clients and their API keys: permissions, tenants, revocation, and where the secret is kept."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pool

from devstack import Stack, StackOptions
from tenure.client import Client
from tenure.domain.access import Permission, read_api_key, with_included
from tenure.domain.errors import NotFound, PermissionDenied, Unauthenticated
from tenure.runtime.tls import ClientTls
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS, access_rules
from tenure.wire.common import timestamp
from tests.end_to_end.command import tenure
from tests.security.test_matrix import SERVICES, code_of
from tests.support.patience import PATIENCE_SECONDS

REVOKED_WITHIN_SECONDS: Final = 5.0
ADMIN: Final = [Permission.TENANT_ADMIN]
pytestmark = pytest.mark.asyncio(loop_scope="module")


@dataclass(frozen=True)
class Guarded:
    """A stack whose gateway demands API keys, and a key of an operator."""

    stack: Stack
    operator_key: str

    @property
    def tls(self) -> ClientTls:
        return ClientTls(self.stack.layout.certificates / "ca.pem")

    def client(self, key: str, tenant: str | None = None) -> Client:
        return Client(self.stack.gateway_address, api_key=key, tenant=tenant, tls=self.tls)

    async def key(self, *permissions: Permission, tenant: str = "acme", **fields: Any) -> pb.CreateApiKeyResponse:
        """A new key of this tenant."""
        request = pb.CreateApiKeyRequest(
            name="of a test", permissions=[PERMISSIONS.to_wire(one) for one in permissions], **fields
        )
        async with self.client(self.operator_key, tenant) as operator:
            return await operator.create_api_key(request)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Guarded]:
    environment = {"gateway": {"TENURE_GATEWAY_AUTHENTICATION": "api-keys"}}
    options = StackOptions(
        data_dir=tmp_path_factory.mktemp("keys") / "data", workers=1, tls=True, environment=environment
    )
    async with Stack(options) as stack:
        command = [sys.executable, "-P", "-m", "services.checkpoint", "operator-key"]
        variables = {**os.environ, **stack.services["checkpoint"].environment}
        made = await asyncio.to_thread(
            subprocess.run, command, env=variables, capture_output=True, text=True, check=True
        )
        yield Guarded(stack, made.stdout.strip())


def bearer(key: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {key}"),)


@pytest.mark.parametrize("permission", list(Permission))
async def test_a_key_calls_exactly_the_methods_of_its_permission(guarded: Guarded, permission: Permission) -> None:
    key, wrong = (await guarded.key(permission)).secret, []
    async with guarded.client(key) as client:
        for service in SERVICES["gateway"]:
            rules = access_rules(f"tenure.v1.{service}")
            for method in descriptor_pool.Default().FindServiceByName(f"tenure.v1.{service}").methods:
                needed = rules[method.name].permission
                allowed = needed is not None and needed in with_included([permission])
                code = await code_of(client._channel.raw, service, method, bearer(key))
                if code != ("INVALID_ARGUMENT" if allowed else "PERMISSION_DENIED"):
                    wrong.append((f"{service}/{method.name}", code, allowed))
    assert wrong == []


async def test_a_caller_without_a_valid_key_is_no_caller(guarded: Guarded) -> None:
    good = (await guarded.key(Permission.READ)).secret
    expired = await guarded.key(Permission.READ, expire_time=timestamp(datetime.now(UTC) + timedelta(seconds=1)))
    await asyncio.sleep(1)
    forged = good[:-1] + ("A" if good[-1] != "A" else "B")
    presented = {
        "none": (),
        "empty": bearer(""),
        "two": bearer(good) + bearer(good),
        "basic": (("authorization", f"Basic {good}"),),
        "of no form": bearer("tnr_x"),
        "unknown": bearer("tnr_" + "0" * 12 + "_" + "A" * 43),
        "forged": bearer(forged),
        "expired": bearer(expired.secret),
        "too long": bearer(good + "A" * 4000),
    }
    method = descriptor_pool.Default().FindServiceByName("tenure.v1.TaskService").methods_by_name["GetTask"]
    async with guarded.client(good) as client:
        codes = {
            name: await code_of(client._channel.raw, "TaskService", method, metadata)
            for name, metadata in presented.items()
        }
        assert codes == dict.fromkeys(presented, "UNAUTHENTICATED")
        assert await code_of(client._channel.raw, "TaskService", method, bearer(good)) == "INVALID_ARGUMENT"


async def submit(client: Client) -> task_pb2.Task:
    return await client.submit("any", request=api.SubmitTaskRequest(agent=task_pb2.AgentSpec(model="sim-hello")))


async def test_a_key_decides_the_tenant_and_the_actor(guarded: Guarded) -> None:
    key = await guarded.key(Permission.WRITE)
    async with guarded.client(key.secret) as client:
        task = await submit(client)
        assert task.tenant == "acme"
        ended = await client.wait(task.task_id, PATIENCE_SECONDS)
        assert ended.state == task_pb2.TASK_STATE_SUCCEEDED
        queued = await client.submit("any", request=api.SubmitTaskRequest(queue="none"))
        await client.cancel(queued.task_id, "the test wants it")
        actors = {entry.actor async for entry in client.entries(queued.task_id)}
        assert f"key/{key.api_key.key_id}" in actors
    async with guarded.client(key.secret, "other") as client:
        with pytest.raises(PermissionDenied) as refused:
            await client.get(task.task_id)
        assert refused.value.reason == "OTHER_TENANT"
    other = await guarded.key(Permission.TENANT_ADMIN, tenant="other")
    async with guarded.client(other.secret) as client:
        with pytest.raises(NotFound):
            await client.get(task.task_id)
        with pytest.raises(NotFound):
            await client.revoke_api_key(key.api_key.key_id)
        assert key.api_key.key_id not in {one.key_id async for one in client.list_api_keys()}
    async with guarded.client(guarded.operator_key, "acme") as operator:
        assert (await operator.get(task.task_id)).task_id == task.task_id


async def test_a_key_gives_no_more_than_its_creator_has(guarded: Guarded) -> None:
    admin = await guarded.key(*ADMIN)
    async with guarded.client(admin.secret) as client:
        lesser = pb.CreateApiKeyRequest(name="lesser", permissions=[PERMISSIONS.to_wire(Permission.APPROVE)])
        assert (await client.create_api_key(lesser)).api_key.tenant == "acme"
        for request in (
            pb.CreateApiKeyRequest(name="more", permissions=[PERMISSIONS.to_wire(Permission.OPERATE)]),
            pb.CreateApiKeyRequest(name="any", permissions=lesser.permissions, any_tenant=True),
        ):
            with pytest.raises(PermissionDenied):
                await client.create_api_key(request)
        with pytest.raises(NotFound):
            await client.get_tenant("other")


@pytest.mark.parametrize("stream", ["WatchTasks", "WatchTask"])
async def test_a_revoked_key_is_refused_also_on_open_streams(guarded: Guarded, stream: str) -> None:
    key = await guarded.key(Permission.WRITE)
    async with guarded.client(key.secret) as client:
        waiting = api.SubmitTaskRequest(
            agent=task_pb2.AgentSpec(model="sim-hello"), queue="none", limits=task_pb2.Limits(max_tokens=1000)
        )
        task = await client.submit("any", request=waiting)
        watches: dict[str, Any] = {
            "WatchTasks": lambda: client.tasks.WatchTasks(api.WatchTasksRequest()),
            "WatchTask": lambda: client.tasks.WatchTask(api.WatchTaskRequest(task_id=task.task_id)),
        }
        watch = watches[stream]()

        async def read_on() -> None:
            async for _ in watch:
                pass

        reading = asyncio.create_task(read_on())
        await asyncio.sleep(0.5)
        assert not reading.done()
        async with guarded.client(guarded.operator_key, "acme") as operator:
            await operator.revoke_api_key(key.api_key.key_id)
        revoked_at = time.monotonic()
        with pytest.raises(Unauthenticated) as ended:
            await asyncio.wait_for(reading, PATIENCE_SECONDS)
        assert ended.value.reason == "API_KEY_INVALID"
        assert time.monotonic() - revoked_at < REVOKED_WITHIN_SECONDS
        with pytest.raises(Unauthenticated):
            await client.get(task.task_id)


async def test_the_ledger_has_no_secret_of_a_key(guarded: Guarded) -> None:
    key = await guarded.key(Permission.READ)
    text = read_api_key(key.secret)
    assert text is not None
    dsn = guarded.stack.postgres_dsn
    async with await psycopg.AsyncConnection.connect(dsn) as postgres:
        rows = await (
            await postgres.execute("select k::text, digest from ledger.api_keys k where key_id = %s", (text.key_id,))
        ).fetchall()
    assert [digest for _, digest in rows] == [text.digest]
    secret = key.secret.rpartition(f"{text.key_id}_")[2]
    assert secret not in rows[0][0]
    logs = [path for path in guarded.stack.layout.logs.iterdir() if secret in path.read_text(errors="replace")]
    assert logs == []


async def test_keys_at_the_command_line(guarded: Guarded, tmp_path: Path) -> None:
    operator, mine = tmp_path / "operator", tmp_path / "mine"
    operator.write_text(guarded.operator_key)
    options = ["--tls-ca-file", str(guarded.stack.layout.certificates / "ca.pem")]

    async def run(key: Path, *words: str) -> Any:
        return await tenure("--api-key-file", str(key), *options, *words, address=guarded.stack.gateway_address)

    made = await run(
        operator, "--tenant", "shop", "admin", "keys", "create", "ci", "--permission", "write", "--output", str(mine)
    )
    key_id = made.out.split()[0]
    assert mine.stat().st_mode & 0o777 == 0o400
    submitted = await run(mine, "submit", "hello", "--model", "sim-hello", "--watch")
    assert "SUCCEEDED" in submitted.out, submitted
    listed = await run(operator, "admin", "keys", "list")
    assert [line.split()[:4] for line in listed.out.splitlines() if key_id in line] == [[key_id, "ci", "shop", "write"]]
    assert "is revoked" in (await run(operator, "admin", "keys", "revoke", key_id)).out
    await asyncio.sleep(REVOKED_WITHIN_SECONDS / 2)
    refused = await run(mine, "list")
    assert (refused.code != 0, "revoked or expired" in refused.err) == (True, True), refused


async def test_a_key_is_not_sent_in_clear_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="by TLS only"):
        Client("10.0.0.1:8470", api_key="tnr_x")
    file = tmp_path / "key"
    file.write_text("tnr_x")
    refused = await tenure("--api-key-file", str(file), "list", address="10.0.0.1:8470")
    assert (refused.code, "by TLS only" in refused.err) == (2, True)
