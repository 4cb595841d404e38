"""Limits of tenants and clients at a real gateway, and a tenant beside a noisy one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Final

import grpc
import psycopg
import pytest

from tenure.client import Client
from tenure.domain.call_limits import BURST_SECONDS
from tenure.domain.errors import LimitReached
from tenure.domain.retry import RetryPolicy
from tenure.runtime.security.tls import ClientTls
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.security.limits.conftest import CONNECTIONS, STREAMS
from tests.support.noisy_tenants import Neighbour, Tenants, huge_schema, tenants
from tests.support.patience import PATIENCE_SECONDS

TOGETHER: Final = 40
"""Submits with more bytes than a client may send at once: they count before a call waits for its turn."""
ONCE: Final = RetryPolicy(max_attempts=1, initial_seconds=0.1, factor=1.0, cap_seconds=0.1)
CALLS_PER_SECOND: Final = 40
"""Of a tenant. One client of it may have half of them."""
NEIGHBOUR_EVERY_SECONDS: Final = 0.2
"""Three calls each time: 15 calls per second, below the limit of one client."""
NEIGHBOUR_ROUNDS: Final = 20
pytestmark = pytest.mark.asyncio(loop_scope="package")


def noisy(both: Tenants, number: int = 0) -> Client:
    return Client(
        both.stack.gateway_address, api_key=both.noisy_keys[number], tls=ClientTls(both.ca_file), patience=ONCE
    )


def patient(both: Tenants, number: int) -> Client:
    """A client that tries again when an earlier test has used up its rates."""
    return Client(both.stack.gateway_address, api_key=both.noisy_keys[number], tls=ClientTls(both.ca_file))


async def a_task(both: Tenants, number: int) -> str:
    """A task that no worker takes."""
    async with patient(both, number) as client:
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="without-workers"))
        return (await client.submit("be watched", request=request)).task_id


async def open_stream(client: Client, task_id: str) -> Any:
    """A stream after its first message. Raises its refusal."""
    stream: Any = client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=PATIENCE_SECONDS)
    await stream.read()
    return stream


async def test_open_streams_of_a_client_and_of_a_tenant_are_limited(both: Tenants) -> None:
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="without-workers"))
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(noisy(both, number)) for number in range(3)]
        task_id = (await clients[0].submit("be watched", request=request)).task_id
        streams = [await open_stream(clients[0], task_id) for _ in range(STREAMS // 2)]
        with pytest.raises(LimitReached, match=f"limit of {STREAMS // 2} open streams") as refused:
            await open_stream(clients[0], task_id)
        assert refused.value.reason == "OPEN_STREAMS"
        assert refused.value.retry_after_seconds is not None
        streams += [await open_stream(clients[1], task_id) for _ in range(STREAMS // 2)]
        with pytest.raises(LimitReached, match="the tenant noisy has reached"):
            await open_stream(clients[2], task_id)
        async with both.neighbour() as neighbour:
            own = await neighbour.submit("be watched too", request=request)
            (await open_stream(neighbour, own.task_id)).cancel()
        streams.pop().cancel()
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:  # the gateway hears of a cancelled stream a moment later
                try:
                    streams.append(await open_stream(clients[2], task_id))
                    break
                except LimitReached:
                    await asyncio.sleep(0.05)
        for stream in streams:
            stream.cancel()


async def test_a_refusal_is_resource_exhausted_with_a_retry_time(both: Tenants) -> None:
    """As a client of another language sees it."""
    async with noisy(both) as client:
        large = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="x" * 200_000, queue="without-workers"))
        await client.tasks.SubmitTask(large, timeout=PATIENCE_SECONDS)
        metadata = (("authorization", f"Bearer {both.noisy_keys[0]}"),)
        credentials = grpc.ssl_channel_credentials(both.ca_file.read_bytes())
        options = [("grpc.ssl_target_name_override", "gateway.tenure")]
        async with grpc.aio.secure_channel(both.stack.gateway_address, credentials, options) as channel:
            submit: Any = channel.unary_unary("/tenure.v1.TaskService/SubmitTask")
            text, options_of_call = large.SerializeToString(), {"metadata": metadata, "timeout": PATIENCE_SECONDS}
            calls = [submit(text, **options_of_call) for _ in range(TOGETHER // 4)]
            refused = [call for call in calls if await call.code() is grpc.StatusCode.RESOURCE_EXHAUSTED]
            details = [dict(await call.trailing_metadata() or ())["grpc-status-details-bin"] for call in refused]
        by_bytes = [one for one in details if b"BYTE_RATE" in one]
        assert by_bytes
        assert all(b"google.rpc.RetryInfo" in one for one in by_bytes)


async def until_refused(call: Callable[[], Awaitable[Any]], reason: str) -> None:
    """Repeats the call until it is refused, for this reason and with a time after which to try again."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (refusal := await _refusal_of(call)) is None:
            pass
    assert refusal.reason == reason
    assert refusal.retry_after_seconds is not None
    assert 0 < refusal.retry_after_seconds <= PATIENCE_SECONDS


async def _refusal_of(call: Callable[[], Awaitable[Any]]) -> LimitReached | None:
    try:
        await call()
    except LimitReached as refusal:
        return refusal
    return None


async def together(calls: Iterable[Awaitable[Any]], reason: str) -> None:
    """Makes the calls at once, whatever they answer. Raises the first refusal for this reason."""
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(answer, LimitReached) and answer.reason == reason:
            raise answer


async def neighbour_is_served(both: Tenants) -> None:
    async with both.neighbour() as neighbour:
        await neighbour.submit(
            "be heard", request=api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="without-workers"))
        )


def large_requests() -> dict[str, api.SubmitTaskRequest]:
    """Submits whose size is in the goal, in the schema, and in the names of tools (which do not exist)."""
    names = [f"{'long_name_of_a_tool_' * 3}{number}" for number in range(256)]
    return {
        "goal": api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="x" * 100_000)),
        "schema": api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="x", result_schema_json=huge_schema())),
        "allowlist": api.SubmitTaskRequest(
            spec=task_pb2.TaskSpec(
                goal="x", agent=task_pb2.AgentSpec(model="sim-hello", tools=task_pb2.ToolAllowlist(names=names))
            )
        ),
    }


@pytest.mark.parametrize("what", large_requests())
async def test_large_requests_are_limited_by_their_bytes(both: Tenants, what: str) -> None:
    request = large_requests()[what]
    request.spec.queue = "without-workers"
    async with noisy(both, 1) as client:

        def submit_together() -> Awaitable[None]:
            calls = (client.tasks.SubmitTask(request, timeout=PATIENCE_SECONDS) for _ in range(TOGETHER))
            return together(calls, "BYTE_RATE")

        await until_refused(submit_together, "BYTE_RATE")
    await neighbour_is_served(both)


@pytest.mark.faults
async def test_connections_of_a_client_are_limited(both: Tenants) -> None:
    task_id = await a_task(both, 2)
    async with AsyncExitStack() as opened:
        clients = [await opened.enter_async_context(noisy(both, 2)) for _ in range(CONNECTIONS // 2 + 1)]
        streams = [await open_stream(client, task_id) for client in clients[:-1]]
        await until_refused(lambda: clients[-1].get(task_id), "CONNECTIONS")
        await clients[0].get(task_id)
        await neighbour_is_served(both)
        for stream in streams:
            stream.cancel()


@pytest.mark.faults
async def test_unread_streams_count_as_open(both: Tenants) -> None:
    task_id = await a_task(both, 3)
    async with noisy(both, 3) as client:
        watch = api.WatchTaskRequest(task_id=task_id, live=True)
        unread = [client.tasks.WatchTask(watch, timeout=PATIENCE_SECONDS) for _ in range(STREAMS // 2)]

        async def open_one() -> None:
            (await open_stream(client, task_id)).cancel()

        await until_refused(open_one, "OPEN_STREAMS")
        await neighbour_is_served(both)
        for stream in unread:
            stream.cancel()


async def test_a_call_without_a_turn_is_refused(both: Tenants) -> None:
    """Each call of the client waits for the row of its task, which this test has locked. The calls of others run."""
    task_id = await a_task(both, 0)
    async with (
        noisy(both, 0) as client,
        patient(both, 1) as colleague,
        await psycopg.AsyncConnection.connect(both.stack.postgres_dsn) as ledger,
    ):
        await ledger.execute("select 1 from ledger.tasks where task_id = %s for update", (task_id,))
        cancel = api.CancelTaskRequest(task_id=task_id, reason="the test wants it")

        def cancel_together() -> Awaitable[None]:
            calls = (client.tasks.CancelTask(cancel, timeout=PATIENCE_SECONDS) for _ in range(8))
            return together(calls, "RUNNING_CALLS")

        refused = asyncio.create_task(until_refused(cancel_together, "RUNNING_CALLS"))
        await colleague.get(task_id)
        await neighbour_is_served(both)
        await refused


async def test_the_client_waits_and_is_served(both: Tenants) -> None:
    """The retries of the Python client keep to the retry time of the refusal."""
    async with Client(both.stack.gateway_address, api_key=both.noisy_keys[3], tls=ClientTls(both.ca_file)) as client:
        request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(queue="without-workers"))
        for _ in range(6):
            await client.submit("y" * 200_000, request=request)


@pytest.mark.faults
async def test_a_noisy_tenant_is_held_to_its_limits(tmp_path: Path) -> None:
    """No call of the neighbour is refused meanwhile, and each is answered."""
    settings = {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": str(CALLS_PER_SECOND)}
    async with tenants(tmp_path / "data", settings) as both, both.neighbour() as client:
        neighbour = Neighbour(client, NEIGHBOUR_EVERY_SECONDS)
        async with both.noise() as answers:
            began = monotonic()
            await neighbour.call(NEIGHBOUR_ROUNDS)
        seconds = monotonic() - began
    accepted = sum(count for kind, count in answers.items() if kind.endswith(": OK"))
    # The clients call from a moment before `began`, and each stream that is held counts once, when it opens.
    assert accepted <= CALLS_PER_SECOND * (seconds + BURST_SECONDS + 5.0)
    assert answers.total() > 2 * accepted, "the clients did not call more than they may"
    assert any(kind.endswith(": CALL_RATE") for kind in answers), answers
    assert neighbour.rounds == NEIGHBOUR_ROUNDS
