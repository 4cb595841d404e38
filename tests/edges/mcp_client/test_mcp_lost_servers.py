"""MCP servers that ended, do not start, or are kept to others: who hears of it, and what is left of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from edges.mcp_client.connection import McpSession
from edges.mcp_client.delivery_errors import CallNotSent
from edges.mcp_client.servers import SharedServer, TaskServers
from edges.mcp_client.settings import McpServer
from edges.mcp_client.sources import McpHost, open_mcp_servers
from services.tools.calls.runs import RunningCalls
from services.tools.pins import ToolPins
from services.tools.registry import ToolRegistry
from services.tools.source_facts import SourceStatuses
from services.tools.workspace.directories import Workspaces
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.tools import Outcome, ToolSourceKind
from tests.edges.mcp_client.test_mcp_links import (
    OTHER,
    TASK,
    TIMES,
    Failing,
    Idler,
    Starts,
    context,
    keeper,
    task_servers,
    until,
)
from tests.support.patience import PATIENCE_SECONDS


async def test_a_tasks_programs_stderr_goes_to_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = OSError("it ended")
    error.add_note("token=hush")
    fact = SourceStatuses().add("s", ToolSourceKind.MCP)
    with caplog.at_level(logging.WARNING):
        async with TaskServers(fact, lambda *_: partial(Failing, error), AsyncMock(), TIMES, 1, 600.0) as servers:
            with pytest.raises(CallNotSent, match="it ended") as refusal:
                await servers.link(context())
    assert "hush" not in str(refusal.value)
    assert any("hush" in str(vars(record).get("error")) for record in caplog.records)


async def test_call_of_a_lost_connection_fails() -> None:
    opened: list[Idler] = []

    @asynccontextmanager
    async def once() -> AsyncIterator[McpSession]:
        if opened:
            await asyncio.Event().wait()
        opened.append(Idler())
        yield cast("McpSession", opened[0])

    fact = SourceStatuses().add("s", ToolSourceKind.MCP)
    server = SharedServer(fact, once, AsyncMock(), replace(TIMES, reach_seconds=0.05))
    running = asyncio.create_task(server.run())
    await until(lambda: fact.is_linked)
    opened[0].ended.set()
    await until(lambda: not fact.is_linked)
    with pytest.raises(CallNotSent):
        await server.link(context())
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_other_tenants_neither_wait_for_a_server_nor_see_it(tmp_path: Path) -> None:
    settings = McpServer.model_validate({"url": "http://127.0.0.1:9/", "tenants": ["acme"]})
    registry, none = ToolRegistry([]), cast("Any", None)
    host = McpHost(
        registry, keeper(tmp_path), none, RunningCalls(), none, Workspaces(tmp_path), none, {}, ToolPins(none)
    )
    async with AsyncExitStack() as stack:
        process = cast("Any", SimpleNamespace(open=stack.enter_async_context))
        await open_mcp_servers(process, {"s": settings}, host)
        with pytest.raises(Unavailable):
            registry.check_call(Claims("tasks/t", "acme", 1, "c", "w"), "s__t", "{}")
        assert isinstance(registry.check_call(Claims("tasks/t", "other", 1, "c", "w"), "s__t", "{}"), Outcome)
    values = {tenant: [source.name for source in registry.facts.listed(tenant)] for tenant in ("acme", "other")}
    assert values == {"acme": ["built-in", "s"], "other": ["built-in"]}


async def test_ended_server_frees_its_slot() -> None:
    starts = Starts()
    starts.may_start.set()
    async with task_servers(starts, most=1) as servers:
        link = await servers.link(context(TASK))
        link.ended.set()
        await until(lambda: servers.task_ids() == [])
        async with asyncio.timeout(PATIENCE_SECONDS):
            await servers.link(context(OTHER))
