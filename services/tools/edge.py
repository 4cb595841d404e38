"""What edges add to the tool service: tools besides the built-in ones. edges/tools.py composes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from services.tools.calls.runs import RunningCalls
from services.tools.output import OutputStore
from services.tools.pins import ToolPins
from services.tools.registry import ToolRegistry
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxUnavailable
from services.tools.settings import ToolsSettings
from services.tools.tool import Tool
from services.tools.workspace.directories import Workspaces
from tenure.domain.effect_keys import EffectKey
from tenure.runtime.process import Process


@dataclass(frozen=True, slots=True)
class ToolHost:
    """The parts of this service that edges use. `limits`: of a program of an agent. `pins`: None only for a check."""

    process: Process
    registry: ToolRegistry
    output_store: OutputStore
    runs: RunningCalls
    sandbox: Sandbox | SandboxUnavailable
    workspaces: Workspaces
    limits: SandboxLimits
    pins: ToolPins | None


class ToolEdges(Protocol):
    """The further tools of a service, as its config file says."""

    @property
    def lanes(self) -> Mapping[str, int]:
        """How many of their calls run at once, by lane."""

    @property
    def programs(self) -> int:
        """How many of their programs may run in the sandbox at once."""

    @property
    def effect_keys(self) -> Mapping[str, EffectKey]:
        """The effect keys of built-in tools, by name."""

    async def built_in(self, process: Process) -> list[Tool]:
        """Returns the tools that exist from the start, under names without a source."""

    async def open(self, host: ToolHost) -> None:
        """Opens the sources, each of which registers its tools when it is connected."""

    def unconnected(self) -> ToolEdges:
        """Returns the same without sources that would be connected, for a check of the config file."""


ReadEdges = Callable[[ToolsSettings, Mapping[str, str]], ToolEdges]
"""Reads the config file. The mapping has the values of its `${NAME}`. Raises ConfigurationError."""
