"""The tool service with its edges: the program of `tenure serve tools`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydantic import ValidationError

from edges.http_fetch.fetch import FETCH_LANE, FETCHES_AT_ONCE, Fetcher, fetch_tools
from edges.http_tools.http_tool import lane_of as lane_of_http_tool
from edges.http_tools.http_tool import open_http_tools
from edges.mcp_client.settings import lane_of_server
from edges.providers.provider import lane_of as lane_of_provider
from edges.providers.provider import open_providers
from edges.tools_config import ToolsConfig, read_config
from edges.web_search.search import SEARCH_LANE, SEARCHES_AT_ONCE, Searcher, search_tools
from edges.web_search.settings import WebSearchSettings
from services.tools import main as service
from services.tools.answer_files import AnswerParts
from services.tools.edge import ToolHost
from services.tools.settings import ToolsSettings
from services.tools.tool import Tool
from services.tools.toolbox import threads
from tenure.domain.effect_keys import EffectKey
from tenure.runtime.process import Process
from tenure.runtime.settings import ConfigurationError

_ANSWER_THREADS: Final = 2
_READING_THREADS: Final = 2
_SERVER_PROCESSES: Final = 64  # threads count too, and a runtime such as Node starts with a dozen
_SERVER_OPEN_FILES: Final = 1024
_PROCESSES_OF_CONFINED: Final = 2
_MAX_SLOTS: Final = 1024  # the uids that each replica on a host has


def main() -> int:
    """Runs the tool service and returns its exit code."""
    return service.main(ConfiguredTools.read)


class ConfiguredTools:
    """The tools and sources of the config file (services/tools/edge.py: ToolEdges)."""

    def __init__(self, settings: ToolsSettings, config: ToolsConfig, environment: Mapping[str, str]) -> None:
        self._settings, self._config, self._environment = settings, config, environment
        self.programs = long_running_slots(settings, config)

    @classmethod
    def read(cls, settings: ToolsSettings, environment: Mapping[str, str]) -> ConfiguredTools:
        """Reads the config file. Raises ConfigurationError."""
        return cls(settings, read_config(settings.config_file, environment), environment)

    def unconnected(self) -> ConfiguredTools:
        """Returns the same without MCP servers and providers."""
        config = self._config.model_copy(update={"mcp_servers": {}, "providers": {}})
        return ConfiguredTools(self._settings, config, self._environment)

    @property
    def lanes(self) -> Mapping[str, int]:
        """How many calls run at once, by lane."""
        config = self._config
        return {
            SEARCH_LANE: SEARCHES_AT_ONCE,
            FETCH_LANE: FETCHES_AT_ONCE,
            **{lane_of_server(name): server.max_calls for name, server in config.mcp_servers.items()},
            **{lane_of_provider(name): provider.max_calls for name, provider in config.providers.items()},
            **{lane_of_http_tool(name): tool.max_calls for name, tool in config.http_tools.items()},
        }

    @property
    def effect_keys(self) -> Mapping[str, EffectKey]:
        """The effect keys of built-in tools, by name."""
        return {name: tool.effect_key.key for name, tool in self._config.built_in.items()}

    async def built_in(self, process: Process) -> list[Tool]:
        """Returns web_search and http_fetch."""
        searcher = await _searcher(process, self._settings, self._config)
        fetcher = await _fetcher(process, self._config)
        return [*search_tools(searcher), *fetch_tools(fetcher)]

    async def open(self, host: ToolHost) -> None:
        """Opens the sources of the config file."""
        answer_threads = await host.process.open(threads("parts of answers", _ANSWER_THREADS))
        parts = AnswerParts(host.output_store, answer_threads)
        await open_http_tools(host.process, self._config.http_tools, host.registry, parts)
        if self._config.mcp_servers:
            await self._open_mcp_servers(host, parts)
        await open_providers(host.process, self._config.providers, host.registry, parts)

    async def _open_mcp_servers(self, host: ToolHost, parts: AnswerParts) -> None:
        # The import of the MCP package costs half a second and memory: only where the config file has MCP servers.
        from edges.mcp_client.sources import McpHost, open_mcp_servers

        limits = replace(host.limits, processes=_SERVER_PROCESSES, open_files=_SERVER_OPEN_FILES)
        assert host.pins is not None
        mcp_host = McpHost(
            host.registry,
            parts.output_store,
            parts.threads,
            host.runs,
            host.sandbox,
            host.workspaces,
            limits,
            self._environment,
            host.pins,
        )
        await open_mcp_servers(host.process, self._config.mcp_servers, mcp_host)


def long_running_slots(settings: ToolsSettings, config: ToolsConfig) -> int:
    """Returns how many programs of MCP servers may run in the sandbox at once.

    A sandboxed server has one more than its tasks' processes, which lists its tools. A confined server has two: one may
    still end while the next one starts. Raises ConfigurationError when the sandbox has too few uids for them.
    """
    servers = [server for server in config.mcp_servers.values() if not server.disabled]
    slots = sum(server.max_servers + 1 for server in servers if server.sandbox)
    slots += sum(_PROCESSES_OF_CONFINED for server in servers if server.is_confined)
    if settings.sandbox_slots + slots > _MAX_SLOTS:
        problem = (
            "mcp_servers: TENURE_TOOLS_SANDBOX_SLOTS plus max_servers + 1 of each sandboxed server and 2 of each "
            f"confined one is {settings.sandbox_slots + slots}, and may be {_MAX_SLOTS} at most: lower max_servers"
        )
        raise ConfigurationError([problem])
    return slots


async def _searcher(process: Process, settings: ToolsSettings, config: ToolsConfig) -> Searcher | None:
    """Returns the searcher of the config file's section, or of TENURE_TOOLS_SEARCH_URL, or None."""
    chosen = config.web_search
    if settings.search_url and chosen is None:
        try:
            chosen = WebSearchSettings(provider="plain", url=settings.search_url, allow_private=True)
        except ValidationError as error:
            raise ConfigurationError([f"TENURE_TOOLS_SEARCH_URL: {error.errors()[0]['msg']}"]) from error
    return await process.open(Searcher.open(chosen)) if chosen else None


async def _fetcher(process: Process, config: ToolsConfig) -> Fetcher | None:
    if config.http_fetch is None:
        return None
    reading = await process.open(threads("fetched", _READING_THREADS))
    return await process.open(Fetcher.open(config.http_fetch, reading))
