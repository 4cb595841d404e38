"""Clients and their API keys: permissions, tenants, revocation, and where the secret is kept."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from tenure.client import Client
from tenure.domain.access import Permission, read_api_key
from tenure.domain.errors import NotFound, PermissionDenied, Unauthenticated
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_pb2, tenant_service_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.access import PERMISSIONS
from tests.end_to_end.command import tenure
from tests.security.guarded import Guarded
from tests.support.patience import PATIENCE_SECONDS, slowness_now

REVOKED_WITHIN_SECONDS: Final = 5.0
ADMIN: Final = [Permission.TENANT_ADMIN]


async def submit(client: Client) -> task_pb2.Task:
    return await client.submit(
        "any", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model="sim-hello")))
    )


async def test_a_key_decides_the_tenant_and_the_actor(guarded: Guarded) -> None:
    key = await guarded.key(Permission.WRITE)
    async with guarded.client(key.secret) as client:
        task = await submit(client)
        assert task.tenant == "acme"
        ended = await client.wait(task.task_id, PATIENCE_SECONDS)
        assert ended.state == task_pb2.TASK_STATE_SUCCEEDED
        queued = await client.submit("any", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="none")))
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
            await client.api_keys.RevokeApiKey(pb.RevokeApiKeyRequest(key_id=key.api_key.key_id))
        assert key.api_key.key_id not in {
            one.key_id
            async for one in client.items(
                client.api_keys.ListApiKeys, pb.ListApiKeysRequest(), lambda page: page.api_keys
            )
        }
    async with guarded.client(guarded.operator_key, "acme") as operator:
        assert (await operator.get(task.task_id)).task_id == task.task_id


async def test_a_key_gives_no_more_than_its_creator_has(guarded: Guarded) -> None:
    admin = await guarded.key(*ADMIN)
    async with guarded.client(admin.secret) as client:
        lesser = pb.CreateApiKeyRequest(name="lesser", permissions=[PERMISSIONS.to_wire(Permission.APPROVE)])
        assert (await client.api_keys.CreateApiKey(lesser)).api_key.tenant == "acme"
        for any_tenant in (False, True):
            more = pb.CreateApiKeyRequest(
                name="more", permissions=[PERMISSIONS.to_wire(Permission.OPERATE)], any_tenant=any_tenant
            )
            with pytest.raises(PermissionDenied):
                await client.api_keys.CreateApiKey(more)
        with pytest.raises(NotFound):
            await client.tenants.GetTenant(tenant_service_pb2.GetTenantRequest(tenant="other"))


@pytest.mark.parametrize("stream", ["WatchTasks", "WatchTask"])
async def test_a_revoked_key_is_refused_also_on_open_streams(guarded: Guarded, stream: str) -> None:
    key = await guarded.key(Permission.WRITE)
    async with guarded.client(key.secret) as client:
        waiting = api.SubmitTaskRequest(
            spec=task_pb2.TaskSpec(
                agent=task_pb2.AgentSpec(model="sim-hello"), queue="none", limits=task_pb2.Limits(max_tokens=1000)
            )
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
            await operator.api_keys.RevokeApiKey(pb.RevokeApiKeyRequest(key_id=key.api_key.key_id))
        revoked_at = time.monotonic()
        with pytest.raises(Unauthenticated) as ended:
            await asyncio.wait_for(reading, PATIENCE_SECONDS)
        assert ended.value.reason == "API_KEY_INVALID"
        assert time.monotonic() - revoked_at < REVOKED_WITHIN_SECONDS * slowness_now()
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
    options = ["--tls-ca-file", str(guarded.ca_file)]

    async def run(key: Path, *words: str) -> Any:
        return await tenure("--api-key-file", str(key), *options, *words, address=guarded.address)

    made = await run(
        operator, "--tenant", "shop", "keys", "api", "create", "ci", "--permission", "write", "--output", str(mine)
    )
    key_id = made.out.split()[0]
    assert mine.stat().st_mode & 0o777 == 0o400
    submitted = await run(mine, "submit", "hello", "--model", "sim-hello", "--watch")
    assert "SUCCEEDED" in submitted.out, submitted
    listed = await run(operator, "keys", "api", "list")
    assert [line.split()[:4] for line in listed.out.splitlines() if key_id in line] == [[key_id, "ci", "shop", "write"]]
    assert "is revoked" in (await run(operator, "keys", "api", "revoke", key_id)).out
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
