"""What clients and endpoints share with Tenure changes while tasks run: API keys, webhook secrets, encryption keys."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

from devstack import Stack
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Permission, Role, server_name
from tenure.domain.errors import Unauthenticated
from tenure.runtime.security.signing import LOOK_SECONDS
from tenure.runtime.security.tls import ClientTls
from tenure.serve import command_line
from tenure.v1 import api_key_service_pb2 as pb
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.access import PERMISSIONS
from tests.end_to_end.command import tenure
from tests.end_to_end.conftest import options
from tests.end_to_end.installation import Installation
from tests.end_to_end.steady_load import SteadyLoad
from tests.support.fix_webhooks import MakeReceiver, Receiver
from tests.support.noisy_tenants import operator_key
from tests.support.patience import PATIENCE_SECONDS, longest

pytestmark = [pytest.mark.server, pytest.mark.faults]
REVOKED_WITHIN_SECONDS: Final = 5.0
FOLLOWERS: Final = 3
ROTATIONS: Final = 2


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    """Two gateways that demand API keys."""
    settings = {"gateway": {"TENURE_GATEWAY_AUTHENTICATION": "api-keys"}}
    folder = tmp_path_factory.mktemp("client-keys")
    async with Stack(options(folder, tls=True, replicas={"gateway": 2}, environment=settings)) as started:
        yield started


def tls_of(stack: Stack) -> ClientTls:
    """For the addresses of both gateways: a certificate has the name of its role, and not their list."""
    return ClientTls(stack.layout.certificates / "ca.pem", server_name=server_name(DEFAULT_INSTALLATION, Role.GATEWAY))


@pytest.fixture
async def install(stack: Stack) -> AsyncIterator[Installation]:
    async with Client(stack.gateway_address, api_key=await operator_key(stack), tls=tls_of(stack)) as operator:
        yield Installation(stack, operator)


async def new_key(install: Installation) -> pb.CreateApiKeyResponse:
    permissions = [PERMISSIONS.to_wire(Permission.TENANT_ADMIN)]
    return await install.client.api_keys.CreateApiKey(pb.CreateApiKeyRequest(name="rotated", permissions=permissions))


class Follower:
    """Follows all changes, and follows on with the client's next key when the former one is refused."""

    def __init__(self, client: Client) -> None:
        self._client, self._cursor = client, ""
        self.seen: set[str] = set()
        self.refused_at: list[float] = []
        self.reasons: set[str] = set()

    async def follow(self) -> None:
        while True:
            request = api.WatchTasksRequest(after_cursor=self._cursor)
            try:
                async for answer in self._client.tasks.WatchTasks(request):
                    self._cursor = answer.cursor or self._cursor
                    self.seen.add(answer.change.task_id)
            except Unauthenticated as refusal:
                self.reasons.add(refusal.reason)
                self.refused_at.append(time.monotonic())


async def rotate_keys(install: Installation, keys: list[pb.CreateApiKeyResponse], followers: list[Follower]) -> None:
    """New keys for the client; each former one is revoked, and its streams end in time."""
    for number in range(1, ROTATIONS + 1):
        await asyncio.sleep(1)
        keys.append(await new_key(install))
        revoked_at = time.monotonic()
        await install.client.api_keys.RevokeApiKey(pb.RevokeApiKeyRequest(key_id=keys[-2].api_key.key_id))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any(len(follower.refused_at) < number for follower in followers):
                await asyncio.sleep(0.05)
        latest = max(follower.refused_at[-1] for follower in followers) - revoked_at
        assert latest <= longest(REVOKED_WITHIN_SECONDS)


async def test_no_task_notices_a_rotation_of_its_clients_key(install: Installation) -> None:
    load, keys = SteadyLoad(install), [await new_key(install)]
    tls, address = tls_of(install.stack), install.stack.gateway_address
    async with Client(address, api_key=lambda: keys[-1].secret, tls=tls) as client:
        followers = [Follower(client) for _ in range(FOLLOWERS)]
        following = [asyncio.create_task(follower.follow()) for follower in followers]
        try:
            await load.run_while(asyncio.create_task(rotate_keys(install, keys, followers)), client)
            ids = {task.task_id for task in load.ended.values()}
            async with asyncio.timeout(PATIENCE_SECONDS):
                while any(ids - follower.seen for follower in followers):
                    await asyncio.sleep(0.05)
        finally:
            for one in following:
                one.cancel()
            await asyncio.gather(*following, return_exceptions=True)
    assert [len(follower.refused_at) for follower in followers] == [ROTATIONS] * FOLLOWERS
    assert {reason for follower in followers for reason in follower.reasons} == {"API_KEY_INVALID"}
    await load.check()


async def run(install: Installation, key_file: Path, *words: str) -> str:
    """What a command of an administrator prints."""
    tls = ("--tls-ca-file", str(install.stack.layout.certificates / "ca.pem"))
    done = await tenure(
        "--api-key-file", str(key_file), *tls, *words, address=install.stack.services["gateway"].address
    )
    assert done.code == 0, done.err
    return done.out.strip()


async def reencrypt(stack: Stack) -> None:
    """As on a host of the ledger."""
    process = await asyncio.create_subprocess_exec(
        *command_line("checkpoint", "reencrypt"),
        env={**os.environ, **stack.services["checkpoint"].environment},
    )
    assert await process.wait() == 0, "the command has printed why"


async def rotate_secrets(install: Installation, receiver: Receiver, key_file: Path) -> None:
    """New secrets for the endpoint, and a new key that encrypts them; each former key is withdrawn."""
    file = install.stack.layout.encryption_keys
    for _ in range(ROTATIONS):
        former = json.loads(file.read_text())["current"]
        await run(install, key_file, "keys", "encryption", str(file))
        receiver.secrets.append(await run(install, key_file, "webhooks", "rotate", "rotated", "--overlap", "1h"))
        await asyncio.sleep(LOOK_SECONDS)  # until no service seals with the former key
        await reencrypt(install.stack)
        await run(install, key_file, "keys", "encryption", str(file), "--withdraw", former)
        assert list(json.loads(file.read_text())["keys"]) != [former]


async def test_no_delivery_is_lost_while_its_secrets_change(
    install: Installation, webhook_receiver: MakeReceiver, tmp_path: Path
) -> None:
    """The endpoint learns a new secret after the service has it: until then the former one has to verify."""
    load, receiver, key_file = SteadyLoad(install), await webhook_receiver(), tmp_path / "key"
    key_file.write_text((await new_key(install)).secret)
    request = webhook_pb.CreateWebhookRequest(name="rotated", url=receiver.url, event_types=["task.succeeded"])
    receiver.secrets = [(await install.client.webhooks.CreateWebhook(request)).secret]
    await load.run_while(asyncio.create_task(rotate_secrets(install, receiver, key_file)))
    await load.check()
    ids = {task.task_id for task in load.ended.values()}
    await receiver.until(len(ids), lambda delivery: delivery.task_id in ids)
    assert {delivery.task_id for delivery in receiver.took} >= ids
    assert len({delivery.webhook_id for delivery in receiver.came}) == len(receiver.came)
    assert [delivery for delivery in receiver.came if not delivery.valid] == []
    newest = [delivery for delivery in receiver.came if delivery.valid == 2]
    assert newest, "deliveries after a rotation are signed with both secrets"
    assert (
        await install.client.webhooks.GetWebhook(webhook_pb.GetWebhookRequest(webhook="rotated"))
    ).webhook.problem == ""
