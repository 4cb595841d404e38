"""Links to MCP servers: what one server, one tenant or one task does stays with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import mcp_types as types
import pytest

from services.tools.mcp.fates import NothingDone
from services.tools.mcp.link import Link
from services.tools.mcp.settings import McpServer
from services.tools.mcp.shared_server import LinkTimes, SharedServer
from services.tools.mcp.sources import ToolsOfServer
from services.tools.mcp.wire import meta_of
from services.tools.output import OutputKeeper
from services.tools.registry import Registry
from services.tools.source_facts import SourceFacts
from services.tools.tool import CallContext
from services.tools.workspace import Workspaces
from services.tools.workspace_bounds import Bounds
from tenure.domain.token import Claims
from tenure.domain.tools import ToolSourceKind
from tests.patience import PATIENCE_SECONDS

TASK, OTHER = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"
TIMES = LinkTimes(reach_seconds=PATIENCE_SECONDS, linger_seconds=PATIENCE_SECONDS)


def context(task_id: str = TASK, epoch: int = 1) -> CallContext:
    return CallContext("acme", task_id, "1.0", f"{task_id}/1.0", epoch, lambda _text: None)


def keeper(root: Path) -> OutputKeeper:
    return OutputKeeper(Workspaces(root), Bounds(2**28, 10_000))


@dataclass
class Failing(AbstractAsyncContextManager[Link]):
    """A link that cannot be opened."""

    error: Exception

    async def __aenter__(self) -> Link:
        raise self.error

    async def __aexit__(self, *_: object) -> None: ...


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


async def test_what_a_program_wrote_to_its_stderr_is_told_to_the_log_and_not_to_the_model(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = OSError("it ended")
    error.add_note("token=hush")
    fact = SourceFacts().add("s", ToolSourceKind.MCP)
    with caplog.at_level(logging.WARNING):
        server = SharedServer(fact, partial(Failing, error), lambda _tools: None, replace(TIMES, reach_seconds=0.05))
        running = asyncio.create_task(server.run())
        await until(lambda: fact.last_error)
        with pytest.raises(NothingDone, match="it ended") as told:
            await server.link(context())
        await until(lambda: any("hush" in str(vars(record).get("error")) for record in caplog.records))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert "hush" not in str(told.value)


def test_a_server_that_is_kept_to_a_tenant_has_no_tools_for_others_and_is_told_whose_a_call_is(tmp_path: Path) -> None:
    settings, registry = McpServer.model_validate({"command": "a", "tenants": ["acme"]}), Registry([])
    fact = registry.facts.add("s", ToolSourceKind.MCP, settings.tenants)
    server = SharedServer(fact, partial(Failing, OSError("nobody asks for it")), lambda _tools: None, TIMES)
    tools = ToolsOfServer(fact, settings, registry, keeper(tmp_path), server)
    tools.take([types.Tool(name="t", input_schema={"type": "object"})])

    def offered(tenant: str) -> list[str]:
        return [tool.name for tool in registry.definitions(Claims("tasks/t", tenant, 1, "c", "w"))]

    assert (offered("acme"), offered("other")) == (["s__t"], [])
    assert dict(meta_of(context()))["tenure/tenant"] == "acme"
