"""Open streams end within five seconds when their caller may call no longer, at each gateway."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from services.gateway.json_web_tokens import LEEWAY_SECONDS
from tenure.client import Client
from tenure.domain.access import DEFAULT_INSTALLATION, Permission, Role
from tenure.domain.errors import TenureError, Unauthenticated
from tenure.runtime.security.certificates import Authority
from tenure.v1 import api_key_service_pb2, task_pb2
from tenure.v1 import lease_service_pb2 as lease_pb
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import duration, timestamp
from tests.security.access_table import issued, trust
from tests.security.guarded import CLIENT_GATEWAYS, PROCESS_GATEWAYS, Guarded
from tests.support.patience import PATIENCE_SECONDS, longest

WITHIN_SECONDS: Final = 5.0
LIFE_SECONDS: Final = 12
"""Of a key, a token and a certificate: the streams are open before it ends."""
SECONDS_OF_A_DAY: Final = 86_400
STREAMS: Final[Mapping[str, Callable[[Client, str], Any]]] = {
    "WatchTask": lambda client, task_id: client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id)),
    "WatchTask live": lambda client, task_id: client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id, live=True)),
    "WatchTasks": lambda client, _: client.tasks.WatchTasks(api.WatchTasksRequest()),
    "WaitTask": lambda client, task_id: client.tasks.WaitTask(
        api.WaitTaskRequest(task_id=task_id, timeout=duration(60))
    ),
    "WatchLeases": lambda client, _: client.leases.WatchLeases(lease_pb.WatchLeasesRequest()),
}
"""All streams and long calls of the gateway that last."""


class Ended(NamedTuple):
    """How a stream ended. `at_seconds`: of the monotonic clock."""

    reason: str
    at_seconds: float


async def read_to_its_end(name: str, call: Any, opened: asyncio.Event) -> Ended:
    """Sets `opened` after the first message. A long call has none: it is open when the others are."""
    try:
        if name == "WaitTask":
            opened.set()
            await call
        else:
            await call.read()
            opened.set()
            while await call.read():
                pass
    except TenureError as error:
        return Ended(error.reason, time.monotonic())
    return Ended("without an error", time.monotonic())


@asynccontextmanager
async def streams_of(clients: Mapping[str, Client], task_id: str) -> AsyncIterator[dict[str, asyncio.Task[Ended]]]:
    """All streams of all clients, open."""
    reading, opened = dict[str, asyncio.Task[Ended]](), list[asyncio.Event]()
    for where, client in clients.items():
        for name, begin in STREAMS.items():
            opened.append(asyncio.Event())
            reading[f"{name} at {where}"] = asyncio.create_task(
                read_to_its_end(name, begin(client, task_id), opened[-1])
            )
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(one.wait() for one in opened))
    assert not any(one.done() for one in reading.values())
    try:
        yield reading
    finally:
        for one in reading.values():
            one.cancel()


async def check_ends(reading: Mapping[str, asyncio.Task[Ended]], reason: str, since_seconds: float) -> None:
    """All end with the reason, within five seconds after that moment."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        ended = {name: await one for name, one in reading.items()}
    assert {name: one.reason for name, one in ended.items()} == dict.fromkeys(reading, reason)
    seconds = {name: one.at_seconds - since_seconds for name, one in ended.items()}
    latest_seconds = longest(WITHIN_SECONDS)
    assert not {name: late for name, late in seconds.items() if not 0 <= late <= latest_seconds}


@asynccontextmanager
async def clients_of(guarded: Guarded, key: str) -> AsyncIterator[dict[str, Client]]:
    """A client at each gateway for clients."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(guarded.client(key, gateway=name)) for name in CLIENT_GATEWAYS}


async def a_task(client: Client) -> str:
    """A task that no worker takes."""
    return (
        await client.submit("be watched", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="none")))
    ).task_id


async def test_streams_of_a_revoked_key_end_at_each_gateway(guarded: Guarded) -> None:
    key = await guarded.key(Permission.WRITE)
    async with clients_of(guarded, key.secret) as clients:
        task_id = await a_task(clients[CLIENT_GATEWAYS[0]])
        async with streams_of(clients, task_id) as reading, guarded.client(guarded.operator_key) as operator:
            revoked_at = time.monotonic()
            await operator.api_keys.RevokeApiKey(api_key_service_pb2.RevokeApiKeyRequest(key_id=key.api_key.key_id))
            await check_ends(reading, "API_KEY_INVALID", revoked_at)
        for client in clients.values():
            with pytest.raises(Unauthenticated):
                await client.get(task_id)


@pytest.mark.faults
async def test_streams_of_an_expired_key_end_at_each_gateway(guarded: Guarded) -> None:
    expires_at = datetime.now(UTC) + timedelta(seconds=LIFE_SECONDS)
    key = await guarded.key(Permission.WRITE, expire_time=timestamp(expires_at))
    async with clients_of(guarded, key.secret) as clients:
        task_id = await a_task(clients[CLIENT_GATEWAYS[0]])
        async with streams_of(clients, task_id) as reading:
            left_seconds = (expires_at - datetime.now(UTC)).total_seconds()
            await check_ends(reading, "API_KEY_INVALID", time.monotonic() + left_seconds)


@pytest.mark.faults
async def test_streams_of_an_expired_token_end_at_each_gateway(guarded: Guarded) -> None:
    expires_at = int(time.time()) + LIFE_SECONDS  # a whole second: the library cuts off the fraction of `exp`
    token = guarded.provider.token(exp=expires_at - LEEWAY_SECONDS)
    async with clients_of(guarded, token) as clients:
        task_id = await a_task(clients[CLIENT_GATEWAYS[0]])
        async with streams_of(clients, task_id) as reading:
            await check_ends(reading, "TOKEN_EXPIRED", time.monotonic() + expires_at - time.time())


@pytest.mark.faults
@pytest.mark.parametrize("reason", ["CERTIFICATE_WITHDRAWN", "CERTIFICATE_EXPIRED"])
async def test_streams_of_a_bad_certificate_end_at_each_gateway(guarded: Guarded, tmp_path: Path, reason: str) -> None:
    """Of an operator whose certificate a second authority signed."""
    second = Authority.create(DEFAULT_INSTALLATION, days=1)
    former, own_ca_file = guarded.ca_file.read_bytes(), tmp_path / "ca.pem"
    own_ca_file.write_bytes(former)
    trust(guarded.ca_file, former + second.certificate.public_bytes(Encoding.PEM))
    try:
        expires_at = time.time() + LIFE_SECONDS
        days = LIFE_SECONDS / SECONDS_OF_A_DAY if reason == "CERTIFICATE_EXPIRED" else 1.0
        tls = issued(tmp_path, second, Role.OPERATOR, own_ca_file, days=days)
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(Client(guarded.stack.services[name].address, tls=tls))
                for name in PROCESS_GATEWAYS
            }
            task_id = await a_task(clients[PROCESS_GATEWAYS[0]])
            async with streams_of(clients, task_id) as reading:
                if reason == "CERTIFICATE_WITHDRAWN":
                    trust(guarded.ca_file, former)
                    await check_ends(reading, reason, time.monotonic())
                else:
                    await check_ends(reading, reason, time.monotonic() + expires_at - time.time())
    finally:
        trust(guarded.ca_file, former)
