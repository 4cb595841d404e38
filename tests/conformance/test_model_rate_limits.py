"""The rate limits that a provider states reach the caller: from the real clients, with the simulator's limits."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.domain.conversation import text_block
from tenure.domain.rate_limits import LimitKind
from tenure.domain.retry import FailureClass
from tenure.model_providers.client import ModelCall, ModelCallFailed, ModelClient, ModelRequest
from tenure.model_providers.rate_limit_headers import stated_limits
from tests.support.model_clients import model_client

REQUESTS, _, OUTPUT, TOKENS = LimitKind
GOAL = [{"role": "user", "content": [text_block("Say hello.")]}]


@pytest.fixture(params=["", "openai/"], ids=["anthropic", "openai"])
def prefix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(simulator: Any) -> AsyncIterator[ModelClient]:
    async with model_client(simulator.url) as client:
        yield client


async def ask(client: ModelClient, model: str) -> tuple[list[Any], ModelCallFailed | None]:
    heard: list[Any] = []
    call = ModelCall(
        on_text=lambda _block, _text: None,
        on_usage=lambda: None,
        on_headers=lambda status, headers: heard.append((status, stated_limits(headers))),
    )
    try:
        await client.answer(ModelRequest(model, GOAL, 100), call)
    except ModelCallFailed as failure:
        return heard, failure
    return heard, None


async def test_an_answer_and_a_refusal_state_limits(client: ModelClient, simulator: Any, prefix: str) -> None:
    simulator.limit(requests_per_minute=2, tokens_per_minute=60_000)
    for remaining in (1, 0):
        heard, failure = await ask(client, f"{prefix}sim-hello")
        assert failure is None
        [(status, limits)] = heard
        assert (status, limits[REQUESTS].limit, limits[REQUESTS].remaining) == (200, 2, remaining)
        assert limits[TOKENS].limit == 60_000
    [(status, limits)], failure = await ask(client, f"{prefix}sim-hello")
    assert status == 429
    assert limits[REQUESTS].remaining == 0
    assert failure is not None
    assert failure.error_class == FailureClass.RATE_LIMITED
    assert 0 < (failure.retry_after_seconds or 0) <= 30


async def test_no_limits_are_stated_without_limits(client: ModelClient, prefix: str) -> None:
    assert await ask(client, f"{prefix}sim-hello") == ([(200, {})], None)


async def test_output_counts_when_it_is_written(client: ModelClient, simulator: Any) -> None:
    simulator.limit(output_tokens_per_minute=1)
    _, failure = await ask(client, "sim-hello")
    assert failure is None
    [(status, limits)], _ = await ask(client, "sim-hello")
    assert (status, limits[OUTPUT].remaining) == (429, 0)


async def test_a_refused_connection_sent_nothing(prefix: str) -> None:
    """Then another endpoint may be asked: the call cannot have been billed."""
    with socket.socket() as taken:  # bound and not listening: it refuses
        taken.bind(("127.0.0.1", 0))
        async with model_client(f"http://127.0.0.1:{taken.getsockname()[1]}") as client:
            heard, failure = await ask(client, f"{prefix}sim-hello")
    assert failure is not None
    assert (failure.error_class, failure.was_sent, heard) == (FailureClass.CONNECTION, False, [])


async def test_a_broken_connection_may_have_sent_it(prefix: str) -> None:
    """The server takes the request and closes: it may have been billed."""

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server, model_client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
        _, failure = await ask(client, f"{prefix}sim-hello")
    assert failure is not None
    assert failure.was_sent
