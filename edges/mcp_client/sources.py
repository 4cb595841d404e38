"""Opens the MCP servers of the config file and registers their tools.

The only entry point of this package: the service imports it, and with it the protocol's package, only when a server is
configured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Collection, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from edges.mcp_client.calling import McpToolServer, described, tools_of, unusable
from edges.mcp_client.confined import command_of, limits_of
from edges.mcp_client.connection import McpSession, http_link, limits_of_link, program_link, sandboxed_link
from edges.mcp_client.servers import LinkTimes, Listed, OpenFor, SharedServer, TaskServers
from edges.mcp_client.settings import MIB, McpServer
from edges.mcp_client.tool_lists import ListedTools
from services.tools.calls.runs import RunningCalls
from services.tools.output import OutputStore
from services.tools.pins import Held, ToolPins
from services.tools.registry import ToolRegistry
from services.tools.sandbox import Command, Sandbox, SandboxLimits, SandboxUnavailable
from services.tools.source_facts import MAX_PROBLEMS, SourceStatus
from services.tools.sources import offered
from services.tools.workspace.directories import Workspaces
from tenure.domain.tools import ToolDefinition, ToolSourceKind
from tenure.runtime.process import Duties, Process

_log: Final = logging.getLogger(__name__)
SILENCE_SECONDS: Final = 300.0
"""The silence limit of a server's duty, beside its limits for the start and for a list of tools."""

NOT_CONFINED: Final = "SANDBOX_UNAVAILABLE: not started, since only `unconfined: true` runs it without the sandbox"
_MEMORY_BYTES: Final = 512 * MIB  # of a server process of one task
_INHERITED: Final = ("PATH", "HOME", "LANG", "TMPDIR")


@dataclass(frozen=True, slots=True)
class McpHost:
    """The parts of this service that servers use.

    limits: the limits of a program in the sandbox; each server's settings replace the memory limit.
    threads: for writing parts of answers.
    """

    registry: ToolRegistry
    output_store: OutputStore
    threads: Executor
    runs: RunningCalls
    sandbox: Sandbox | SandboxUnavailable
    workspaces: Workspaces
    limits: SandboxLimits
    environment: Mapping[str, str]
    pins: ToolPins


async def open_mcp_servers(process: Process, servers: Mapping[str, McpServer], host: McpHost) -> None:
    """Registers the servers and starts a duty for each, which keeps its sessions until the process ends."""
    opened = []
    for name, settings in servers.items():
        if settings.disabled:
            continue
        fact = host.registry.facts.add(name, ToolSourceKind.MCP, settings.tenants, settings.secrets)
        if settings.needs_sandbox and isinstance(host.sandbox, SandboxUnavailable):
            reason = f"{NOT_CONFINED}: {host.sandbox}"
            fact.lost(reason)
            _log.error("an MCP server is skipped: %s", reason, extra={"server": name})
            continue
        host.registry.expect(name, settings.tenants)
        tools = ToolsOfServer(fact, settings, host.registry, host.output_store, host.threads)
        if settings.pin:
            tools.pins = host.pins
            host.pins.add(name, tools.retake)
        server = _server(fact, settings, host, tools.take)
        tools.server = server
        await process.open(server)
        if isinstance(server, TaskServers):
            host.runs.accompany(server)
        opened.append((server, settings))
    duties = await process.open(
        Duties()
    )  # opened last, so the duties end first and cannot connect again to a closing server
    duties.start("follow accepted tools", host.pins.follow, silence_seconds=SILENCE_SECONDS)
    for server, settings in opened:
        silence_seconds = SILENCE_SECONDS + settings.start_seconds + settings.list_seconds
        duties.start(f"link to MCP server {server.name}", server.run, silence_seconds=silence_seconds)


def _server(fact: SourceStatus, settings: McpServer, host: McpHost, listed: Listed) -> SharedServer | TaskServers:
    name = fact.name
    times = LinkTimes.of(settings)
    if settings.sandbox:
        return TaskServers(
            fact, _open_for(name, settings, host), listed, times, settings.max_servers, settings.idle_seconds
        )
    if settings.url is not None:
        return SharedServer(fact, partial(http_link, settings), listed, times)
    if settings.is_confined:
        return SharedServer(fact, partial(_confined_link, name, settings, host), listed, times)
    inherited = {name: host.environment[name] for name in _INHERITED if name in host.environment}
    return SharedServer(fact, partial(program_link, name, settings, inherited), listed, times)


def _open_for(name: str, settings: McpServer, host: McpHost) -> OpenFor:
    assert isinstance(host.sandbox, Sandbox)
    assert settings.command is not None
    sandbox, limits = host.sandbox, replace(host.limits, memory_bytes=settings.memory_bytes or _MEMORY_BYTES)
    command = Command((settings.command, *settings.args), settings.env, settings.read_only_paths)

    @asynccontextmanager
    async def open_link(tenant: str, task_id: str) -> AsyncIterator[McpSession]:
        workspace = await asyncio.to_thread(host.workspaces.directory, tenant, task_id) if task_id else None
        async with sandboxed_link(name, command, sandbox, workspace, limits, limits_of_link(settings)) as session:
            yield session

    return lambda tenant, task_id: partial(open_link, tenant, task_id)


@asynccontextmanager
async def _confined_link(name: str, settings: McpServer, host: McpHost) -> AsyncIterator[McpSession]:
    assert isinstance(host.sandbox, Sandbox)
    command, limits = command_of(settings, host.environment), limits_of(settings, host.limits)
    async with sandboxed_link(name, command, host.sandbox, None, limits, limits_of_link(settings)) as session:
        yield session


@dataclass(slots=True)
class ToolsOfServer:
    """Puts a server's list of tools into the registry, and logs the list and its problems when they change."""

    fact: SourceStatus
    settings: McpServer
    registry: ToolRegistry
    output_store: OutputStore
    threads: Executor
    server: McpToolServer | None = None
    pins: ToolPins | None = None
    last_reported: tuple[list[str], list[str]] | None = None
    last_listed: ListedTools | None = None
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def take(self, listed: ListedTools) -> None:
        """Offers the tools, except those that are held. Raises TenureError if the pins cannot be read."""
        async with self.taking:
            self.last_listed = listed
            await self._take(listed)

    async def retake(self) -> None:
        """Offers the tools of the last list again, because other hashes are accepted."""
        async with self.taking:
            if self.last_listed is not None:
                await self._take(self.last_listed)

    async def _take(self, listed: ListedTools) -> None:
        assert self.server is not None
        name = self.fact.name
        described_tools = described(listed.tools)
        definitions, problems = offered(name, described_tools, self.settings.rules, unusable(listed.tools))
        problems = [*listed.left_out, *problems]
        held = await self._held(definitions.keys(), described_tools)
        free = {tool: definition for tool, definition in definitions.items() if tool not in held}
        tools = tools_of(self.server, name, free, self.output_store, self.threads)
        refused = self.registry.put(name, tools, self.settings.tenants, {definitions[tool].name for tool in held})
        problems += refused
        problems += [
            f"{tool!r} is not offered: {'it has changed' if one.accepted_sha256 else 'it is new'}; accept it with "
            f"`tenure tools accept {name} {tool}`"
            for tool, one in held.items()
        ]
        self.fact.took(len(tools) - len(refused), problems, list(held.values()))
        names = sorted(free)
        if self.last_reported == (names, problems):
            return
        self.last_reported = names, problems
        _log.info("registered the tools of an MCP server", extra={"server": name, "tools": ", ".join(names)})
        for problem in problems[:MAX_PROBLEMS]:
            _log.warning("a tool of an MCP server has a problem: %s", problem, extra={"server": name})
        if (more := len(problems) - MAX_PROBLEMS) > 0:
            _log.warning("more tools of an MCP server have problems", extra={"server": name, "count": more})

    async def _held(self, taken: Collection[str], described_tools: list[ToolDefinition]) -> dict[str, Held]:
        """Returns the held tools by the server's own names. Its descriptions are pinned, not the operator's rules."""
        if self.pins is None:
            return {}
        as_described: dict[str, ToolDefinition] = {}
        for definition in described_tools:
            if definition.name in taken:
                as_described.setdefault(definition.name, definition)
        return await self.pins.held(self.fact.name, as_described)
