"""All HTTP tools of the config file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from services.tools.http_tools.calling import HttpTool
from services.tools.http_tools.settings import HttpToolSettings
from services.tools.registry import Registry
from tenure.domain.tools import ToolSourceKind
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from tenure.runtime.process import Process

_SOURCE: Final = "http_tools"


async def open_http_tools(process: Process, settings: Mapping[str, HttpToolSettings], registry: Registry) -> None:
    """They are there at once: nothing has to be reached. Raises ConfigurationError for a name that is taken."""
    problems: list[str] = []
    for name, one in settings.items():
        tool = await process.open(HttpTool(name, one))
        problems += registry.put(f"{_SOURCE} {name}", [tool.tool], one.tenants)
        registry.facts.add(name, ToolSourceKind.HTTP, one.tenants).took(1)
    if problems:
        raise ConfigurationError([f"{_SOURCE}.{problem}" for problem in problems])
