"""All MCP servers of the config file as sources of tools. The one door to this package: what is behind it is imported
only where there is a server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import mcp_types as types

from services.tools.mcp.calling import Server, tools_of
from services.tools.mcp.definitions import describe
from services.tools.mcp.opening import http_link, program_link
from services.tools.mcp.settings import McpServer
from services.tools.mcp.shared_server import LinkTimes, SharedServer
from services.tools.output import OutputKeeper
from services.tools.registry import Registry
from tenure.runtime import metrics
from tenure.runtime.duties import Duties

if TYPE_CHECKING:
    from tenure.runtime.process import Process

_log: Final = logging.getLogger(__name__)
_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")


async def open_mcp_servers(
    process: Process,
    servers: Mapping[str, McpServer],
    registry: Registry,
    keeper: OutputKeeper,
    environment: Mapping[str, str],
) -> None:
    """Linked to in the background, until the process ends. `environment`: of it programs get a little."""
    inherited = {name: environment[name] for name in _INHERITED if name in environment}
    duties = await process.open(Duties())
    for name, settings in servers.items():
        if settings.disabled:
            continue
        registry.expect(name)
        if settings.url is None:
            opened = partial(program_link, name, settings, inherited)
        else:
            opened = partial(http_link, settings)
        tools = ToolsOfServer(name, settings, registry, keeper)
        server = SharedServer(name, opened, tools.take, LinkTimes.of_calls(settings.timeout_seconds))
        tools.server = await process.open(server)
        duties.start(f"link to MCP server {name}", server.run)


@dataclass(slots=True)
class ToolsOfServer:
    """Takes a server's list of tools into the registry, and tells what is new about it."""

    name: str
    settings: McpServer
    registry: Registry
    keeper: OutputKeeper
    server: Server | None = None
    told: tuple[list[str], list[str]] | None = None

    def take(self, listed: list[types.Tool]) -> None:
        assert self.server is not None
        described = describe(self.name, self.settings, listed)
        tools = tools_of(self.server, self.name, described.definitions, self.keeper)
        problems = described.problems + self.registry.put(self.name, tools)
        metrics.gauge("tenure_tool_source_tools", len(tools), source=self.name)
        names = sorted(described.definitions)
        if self.told == (names, problems):
            return
        self.told = names, problems
        _log.info("took an MCP server's tools", extra={"server": self.name, "tools": ", ".join(names)})
        for problem in problems:
            _log.warning("left out a tool of an MCP server: %s", problem, extra={"server": self.name})
