"""Limits of tenants and clients at a real gateway, and a tenant beside a noisy one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from time import monotonic
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio

from bench.noisy_tenant import SUBMIT_EVERY_SECONDS, Neighbour, Tenants, tenants
from tenure.client import Client
from tenure.domain.call_limits import BURST_SECONDS
from tenure.domain.errors import LimitReached
from tenure.domain.retry import RetryPolicy
from tenure.runtime.tls import ClientTls
from tenure.v1 import task_service_pb2 as api
from tests.support.patience import PATIENCE_SECONDS

STREAMS: Final = 8
ONCE: Final = RetryPolicy(max_attempts=1, initial_seconds=0.1, factor=1.0, cap_seconds=0.1)
NOISE_SECONDS: Final = 8.0
CALLS_PER_SECOND: Final = 40
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tenants]:
    settings = {"TENURE_GATEWAY_LIMIT_STREAMS": str(STREAMS), "TENURE_GATEWAY_LIMIT_BYTES_PER_SECOND": "400000"}
    async with tenants(tmp_path_factory.mktemp("limits") / "data", settings) as started:
        yield started


def noisy(both: Tenants, number: int = 0) -> Client:
    return Client(
        both.stack.gateway_address, api_key=both.noisy_keys[number], tls=ClientTls(both.ca_file), patience=ONCE
    )


async def open_stream(client: Client, task_id: str) -> Any:
    """A stream after its first message. Raises its refusal."""
    stream: Any = client.tasks.WatchTask(api.WatchTaskRequest(task_id=task_id), timeout=PATIENCE_SECONDS)
    await stream.read()
    return stream


async def test_open_streams_of_a_client_and_of_a_tenant_are_limited(both: Tenants) -> None:
    request = api.SubmitTaskRequest(queue="without-workers")
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
        large = api.SubmitTaskRequest(goal="x" * 200_000, queue="without-workers")
        await client.tasks.SubmitTask(large, timeout=PATIENCE_SECONDS)
        metadata = (("authorization", f"Bearer {both.noisy_keys[0]}"),)
        credentials = grpc.ssl_channel_credentials(both.ca_file.read_bytes())
        options = [("grpc.ssl_target_name_override", "gateway.tenure")]
        async with grpc.aio.secure_channel(both.stack.gateway_address, credentials, options) as channel:
            submit: Any = channel.unary_unary("/tenure.v1.TaskService/SubmitTask")
            codes = set()
            for _ in range(4):
                call = submit(large.SerializeToString(), metadata=metadata, timeout=PATIENCE_SECONDS)
                codes.add(await call.code())
                trailing = dict(await call.trailing_metadata() or ())
        assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
        assert b"google.rpc.RetryInfo" in trailing["grpc-status-details-bin"]
        assert b"BYTE_RATE" in trailing["grpc-status-details-bin"]


async def test_the_client_waits_and_is_served(both: Tenants) -> None:
    """The retries of the Python client keep to the retry time of the refusal."""
    async with Client(both.stack.gateway_address, api_key=both.noisy_keys[3], tls=ClientTls(both.ca_file)) as client:
        request = api.SubmitTaskRequest(queue="without-workers")
        for _ in range(6):
            await client.submit("y" * 200_000, request=request)


async def test_a_noisy_tenant_is_held_to_its_limits(tmp_path: Path) -> None:
    """`python -m bench noisy_tenant` has the latencies of the neighbour."""
    settings = {"TENURE_GATEWAY_LIMIT_CALLS_PER_SECOND": str(CALLS_PER_SECOND)}
    async with tenants(tmp_path / "data", settings) as both, both.neighbour() as client:
        neighbour = Neighbour(client)
        async with both.noise(NOISE_SECONDS) as answers:
            began = monotonic()
            await neighbour.call(NOISE_SECONDS / 2)
        seconds = monotonic() - began
    accepted = sum(count for kind, count in answers.items() if kind.endswith(": OK"))
    # The clients call from a moment before `began`, and each stream that is held counts once, when it opens.
    assert accepted <= CALLS_PER_SECOND * (seconds + BURST_SECONDS + 5.0)
    assert answers.total() > 2 * accepted, "the clients did not call more than they may"
    assert any(kind.endswith(": CALL_RATE") for kind in answers), answers
    assert len(neighbour.streams) >= NOISE_SECONDS / 2 / SUBMIT_EVERY_SECONDS / 2
