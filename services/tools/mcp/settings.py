"""Defines the section `mcp_servers` of the config file.

The section has the shape that other MCP clients use, plus the fields that a service needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from services.tools.sandbox.command import WORKSPACE_PATH
from services.tools.sources import Rules, Section, TenantName
from tenure.domain.tools import EffectClass

MIB: Final = 1024 * 1024
MAX_SERVERS: Final = 32
REACH_SECONDS: Final = 10.0
"""How long a call waits until its server has started or is connected.

This wait does not count against the timeout of the call: a call that was sent with little time left would surely time
out, and would be in doubt for no reason.
"""

ServerName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9-]|_[a-zA-Z0-9-])*$", max_length=32)]
"""A server name has no two underscores in a row and none at its end, because its tools are called `<name>__<tool>`."""


class McpServer(Section):
    """The settings of one server: a program that speaks over stdin and stdout, or the URL of a streamable HTTP server.

    allow: the tools to offer; all tools if absent.
    effects: effect classes by tool; they override the hints of the server.
    max_calls: how many calls run on the server at once.
    tenants: the tenants that see the server's tools; all tenants if absent.
    The last five fields concern `sandbox`: with it, each task gets its own server process in the sandbox.
    """

    type: Literal["stdio", "http", "streamable-http", "streamable_http"] | None = None
    command: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={})
    cwd: Path | None = None
    url: str | None = Field(default=None, pattern=r"^https?://")
    headers: dict[str, str] = Field(default={})
    disabled: bool = False

    allow: frozenset[str] | None = None
    effects: dict[str, EffectClass] = Field(default={})
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    output_limit_bytes: int = Field(default=64 * 1024, ge=1024, le=MIB)
    max_calls: int = Field(default=8, ge=1, le=256)
    tenants: frozenset[TenantName] | None = None

    sandbox: bool = False
    read_only_paths: tuple[Path, ...] = Field(default=(), max_length=16)
    max_servers: int = Field(default=4, ge=1, le=64)
    idle_seconds: float = Field(default=60.0, gt=0, le=3600)
    memory_bytes: int = Field(default=512 * MIB, ge=64 * MIB)

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either command or url")
        if self.type is not None and (self.type == "stdio") != (self.url is None):
            raise ValueError(f"type {self.type} does not match: stdio needs a command, the http types need a url")
        program_only = {"args", "env", "cwd", "sandbox"} & self.model_fields_set
        if self.url is not None and program_only:
            raise ValueError(f"a server with a url has no {' and no '.join(sorted(program_only))}")
        if self.url is None and self.headers:
            raise ValueError("headers need a url: remove headers, or set url instead of command")
        return self

    @model_validator(mode="after")
    def _is_sandboxed_as_a_whole(self) -> Self:
        sandbox_only = {"read_only_paths", "max_servers", "idle_seconds", "memory_bytes"} & self.model_fields_set
        if sandbox_only and not self.sandbox:
            raise ValueError(f"{' and '.join(sorted(sandbox_only))} needs sandbox: true")
        if self.sandbox and self.cwd is not None:
            raise ValueError("a server in the sandbox starts in /work, the workspace: remove cwd")
        if relative := [str(path) for path in self.read_only_paths if not path.is_absolute()]:
            raise ValueError(f"read_only_paths must be absolute: change {', '.join(relative)}")
        if hidden := [str(path) for path in self.read_only_paths if path.is_relative_to(WORKSPACE_PATH)]:
            raise ValueError(
                f"read_only_paths must not lie under {WORKSPACE_PATH}, where the sandbox mounts the workspace: "
                f"move or copy {', '.join(hidden)} to another place"
            )
        return self

    @property
    def rules(self) -> Rules:
        """The operator's rules for the server's tools."""
        return Rules(self.allow, self.effects, self.timeout_seconds, self.output_limit_bytes)

    @property
    def secrets(self) -> list[str]:
        """The setting values that must not appear in the error texts of this source."""
        return [*self.args, *self.env.values(), *self.headers.values()]


McpServers = Annotated[dict[ServerName, McpServer], Field(max_length=MAX_SERVERS)]


def lane_of_server(name: str) -> str:
    """Returns the runner's lane in which the calls of a server wait for a slot."""
    return f"mcp {name}"
