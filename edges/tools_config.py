"""Reads the tool service's config file: the tools besides the built-in ones, and their sources.

One YAML file (or JSON, which is YAML), named by TENURE_TOOLS_CONFIG_FILE and read once, at the start. `${NAME}` in a
string is replaced by a variable of the service's environment, or by the content of the file that the variable NAME_FILE
names, so that the config file needs no secrets; `$${` is a plain `${`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import AliasChoices, Field, ValidationError, model_validator

from edges.http_fetch.settings import HttpFetchSettings
from edges.http_tools.settings import HttpTools
from edges.mcp_client.settings import McpServer, McpServers, shared_writable_paths
from edges.providers.settings import Providers, ProviderSettings
from edges.web_search.settings import WebSearchSettings
from services.tools.registry import SEPARATOR
from services.tools.sources import CompensationSettings, EffectKeySettings, Section
from tenure.domain.argument_mapping import problems_of_names
from tenure.domain.tools import EffectClass, unknown_tool_text
from tenure.runtime.settings import FILE_SUFFIX, ConfigurationError, secret_text

_VARIABLE: Final = re.compile(r"\$(?P<escaped>\$)?\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)\}")
_MAX_BYTES: Final = 1024 * 1024
_BUILT_IN: Final = frozenset({"append_record", "append_record_unsafe"})
"""The tools of the service itself that can undo an effect. The others act on the workspace of their own task."""


class BuiltInSettings(Section):
    """The settings of one built-in tool."""

    effect_key: EffectKeySettings


class ToolsConfig(Section):
    """The whole file. Every section is optional."""

    mcp_servers: McpServers = Field(default={}, validation_alias=AliasChoices("mcp_servers", "mcpServers"))
    providers: Providers = Field(default_factory=dict)
    http_tools: HttpTools = Field(default_factory=dict)
    web_search: WebSearchSettings | None = None
    http_fetch: HttpFetchSettings | None = None
    built_in: dict[str, BuiltInSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_one_source_each(self) -> ToolsConfig:
        if both := sorted(self.mcp_servers.keys() & self.providers.keys()):
            raise ValueError(f"{', '.join(both)}: an MCP server and a provider cannot have the same name")
        return self

    @model_validator(mode="after")
    def _undoes_by_known_tools(self) -> ToolsConfig:
        if problems := list(self._problems_of_compensations()):
            raise ValueError("; ".join(problems))
        return self

    def _problems_of_compensations(self) -> Iterator[str]:
        """Yields compensations that no tool can carry out. The tools of a source are unknown until it is connected."""
        sources = self.mcp_servers.keys() | self.providers.keys()
        for place, declared in self._compensations():
            prefix, separator, _ = declared.tool.partition(SEPARATOR)
            http_tool = self.http_tools.get(declared.tool)
            if http_tool is not None:
                for problem in problems_of_names(http_tool.input_schema, declared.arguments.keys()):
                    yield f"{place}: {declared.tool} {problem}"
            elif separator and prefix not in sources:
                yield f"{place}: there is no source {prefix!r} for the tool {declared.tool}"
            elif not separator and declared.tool not in _BUILT_IN:
                nearest = get_close_matches(declared.tool, [*self.http_tools, *_BUILT_IN])
                yield f"{place}: {unknown_tool_text(declared.tool, nearest)}"

    def _compensations(self) -> Iterator[tuple[str, CompensationSettings]]:
        for name, tool in self.http_tools.items():
            if tool.compensation is not None:
                yield f"http_tools.{name}.compensation", tool.compensation
        sections: tuple[tuple[str, Mapping[str, McpServer | ProviderSettings]], ...] = (
            ("mcp_servers", self.mcp_servers),
            ("providers", self.providers),
        )
        for section, sources in sections:
            for name, source in sources.items():
                for tool_name, declared in source.compensations.items():
                    yield f"{section}.{name}.compensations.{tool_name}", declared

    @model_validator(mode="after")
    def _checks_with_pure_tools(self) -> ToolsConfig:
        """The tools of sources are known only when these are connected: their class is asked for at each call."""
        settled = [tool.settle for tool in self.http_tools.values() if tool.settle is not None]
        for of_source in [one.settle for one in self.mcp_servers.values()] + [
            dict(one.settle) for one in self.providers.values()
        ]:
            settled += of_source.values()
        for check in (settle.check_with for settle in settled if settle.check_with is not None):
            known = self.http_tools.get(check.tool)
            if known is not None and known.effect_class is not EffectClass.PURE:
                raise ValueError(f"check_with needs a PURE tool: {check.tool} is {known.effect_class}")
        return self

    @model_validator(mode="after")
    def _gives_each_program_paths_of_its_own(self) -> ToolsConfig:
        if os.geteuid() == 0 and (problems := shared_writable_paths(self.mcp_servers)):
            raise ValueError("; ".join(problems))
        return self


def read_config(path: Path | None, environment: Mapping[str, str]) -> ToolsConfig:
    """Returns the content of the file, or an empty config without a file.

    Raises ConfigurationError, which names the place of every mistake.
    """
    if path is None:
        return ToolsConfig()
    missing: list[str] = []
    content = _expanded(_parsed(path), "", environment, missing)
    if missing:
        raise ConfigurationError([f"{path}: {problem}" for problem in missing])
    try:
        return ToolsConfig.model_validate({} if content is None else content)
    except ValidationError as error:
        raise ConfigurationError([f"{path}: {_describe(problem)}" for problem in error.errors()]) from error


def _parsed(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ConfigurationError([f"{path}: it is larger than {_MAX_BYTES} bytes"])
        return yaml.safe_load(content)
    except OSError as error:
        raise ConfigurationError([f"{path}: it cannot be read: {error.strerror}"]) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError([f"{path}: it is not valid YAML: {' '.join(str(error).split())}"]) from error


def _expanded(value: Any, place: str, environment: Mapping[str, str], missing: list[str]) -> Any:
    """Returns the value with the variables of its strings filled in. Adds a problem for each that is missing."""
    if isinstance(value, dict):
        return {key: _expanded(item, _inside(place, key), environment, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(item, _inside(place, index), environment, missing) for index, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        if match["escaped"]:
            return match[0][1:]
        name = match["name"]
        if not {name, f"{name}{FILE_SUFFIX}"} & environment.keys():
            missing.append(f"{place}: set the variable {name}, which this string refers to, or {name}{FILE_SUFFIX}")
        try:
            return secret_text(name, environment)
        except ValueError as error:
            missing.append(f"{place}: {name} {error}")
            return ""

    return _VARIABLE.sub(fill, value)


def _describe(problem: Any) -> str:
    place = ""
    for part in problem["loc"]:
        place = _inside(place, part)
    return f"{place or 'the file'}: {problem['msg']}"


def _inside(place: str, part: object) -> str:
    return f"{place}.{part}" if place else str(part)
