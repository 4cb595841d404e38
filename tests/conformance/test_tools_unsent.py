"""Calls of tools that act elsewhere, stopped before anything was sent: nothing happened, and no person is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2
from tests.support.fix_tools import Grants, StartTools
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_http import answer, scripted_http
from tests.support.tcp_server import tcp_server

FOR_EVER = {"connect_seconds": 60, "timeout_seconds": CALL_SECONDS}


@dataclass
class Mute:
    """Takes connections and says nothing: a client that wants TLS waits. `called` is set by the first one."""

    port: int = 0
    called: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def mute() -> AsyncIterator[Mute]:
    one = Mute()

    async def serve(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):  # the client has been killed
            while await reader.read(65536):
                one.called.set()

    async with tcp_server(serve) as one.port:
        yield one


def shop(url: str) -> dict[str, Any]:
    return {"pay": {"url": url, "description": "Pay.", **FOR_EVER}}


async def test_an_unsent_call_of_an_ended_task_is_not_in_doubt(
    tool_service: StartTools,
    grants: Grants,
    tools_sections: Callable[..., Path],
    tools_database: Callable[..., Awaitable[list[Any]]],
) -> None:
    async with mute() as server:
        tools = await tool_service(config_file=tools_sections(http_tools=shop(f"https://127.0.0.1:{server.port}/")))
        owner = grants.claim()
        call = tools.begin(owner, "1.0", "pay")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.called.wait()

        closed = (await tools.fence(owner, close=True))["1.0"]

        assert closed.state == tool_pb2.CALL_STATE_NOT_RUN
        assert await tools_database("select count(*) from calls where doubted_at is not null") == [(0,)]
        await asyncio.wait({call})


async def test_an_unsent_call_of_a_stopping_service_runs_elsewhere(
    tool_service: StartTools, grants: Grants, tools_sections: Callable[..., Path]
) -> None:
    async with mute() as server:
        config = tools_sections(http_tools=shop(f"https://127.0.0.1:{server.port}/"))
        ending = await tool_service(config_file=config, drain_seconds=0.1)
        owner = grants.claim()
        lost = ending.begin(owner, "1.0", "pay")
        async with asyncio.timeout(PATIENCE_SECONDS):
            await server.called.wait()
        await ending.terminate()
        await asyncio.wait({lost})

    async with scripted_http(answer(200, "paid")) as http:
        tools = await tool_service(config_file=tools_sections(http_tools=shop(http.url)))
        outcome = await tools.outcome(owner, "1.0", "pay")
        assert (outcome.status, outcome.content, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, "paid", 3)
        assert len(http.requests) == 1
