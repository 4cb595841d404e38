"""The config file's section `mcp_servers`: the shape that other clients have, and what a service needs besides."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from services.tools.sandbox.command import WORKSPACE_PATH
from services.tools.sources import Rules, Section, TenantName
from tenure.domain.tools import EffectClass

MIB: Final = 1024 * 1024
MOST_SERVERS: Final = 32
REACH_SECONDS: Final = 10.0
"""So long a call waits for its server to start or to be linked to. That is not taken from its own time: what is sent
with little of that left would time out for sure, and be in doubt for nothing.
"""

ServerName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9-]|_[a-zA-Z0-9-])*$", max_length=32)]
"""Its tools are called `<name>__<tool>`: no two underscores in a row, and none at its end."""


class McpServer(Section):
    """One server: a program that speaks over its stdin and stdout, or the address of one that speaks streamable HTTP.

    `allow`: the tools to take, all if absent. `effects`: classes by tool, which count more than the server's own hints.
    `max_calls`: how many calls run there at once. `tenants`: for others its tools do not exist; absent: for all. The
    last five fields are for `sandbox`: then every task has a server process of its own.
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
            raise ValueError("it needs either a command or a url")
        if self.type is not None and (self.type == "stdio") != (self.url is None):
            raise ValueError(f"its type is {self.type}, which is not what it has")
        of_a_program = {"args", "env", "cwd", "sandbox"} & self.model_fields_set
        if self.url is not None and of_a_program:
            raise ValueError(f"a server at a url has no {' and no '.join(sorted(of_a_program))}")
        if self.url is None and self.headers:
            raise ValueError("headers are sent to a url only")
        return self

    @model_validator(mode="after")
    def _is_sandboxed_as_a_whole(self) -> Self:
        of_the_sandbox = {"read_only_paths", "max_servers", "idle_seconds", "memory_bytes"} & self.model_fields_set
        if of_the_sandbox and not self.sandbox:
            raise ValueError(f"{' and '.join(sorted(of_the_sandbox))} is for servers with sandbox: true")
        if self.sandbox and self.cwd is not None:
            raise ValueError("in the sandbox a server begins in /work, the task's files: leave out cwd")
        if relative := [str(path) for path in self.read_only_paths if not path.is_absolute()]:
            raise ValueError(f"read_only_paths are absolute: {', '.join(relative)} is not")
        if hidden := [str(path) for path in self.read_only_paths if path.is_relative_to(WORKSPACE_PATH)]:
            raise ValueError(
                f"read_only_paths must not lie under {WORKSPACE_PATH}, where the sandbox shows the task's files: "
                f"move or copy {', '.join(hidden)} to another place"
            )
        return self

    @property
    def rules(self) -> Rules:
        """What holds for its tools."""
        return Rules(self.allow, self.effects, self.timeout_seconds, self.output_limit_bytes)

    @property
    def secrets(self) -> list[str]:
        """What nobody is shown who asks why it is away."""
        return [*self.args, *self.env.values(), *self.headers.values()]


McpServers = Annotated[dict[ServerName, McpServer], Field(max_length=MOST_SERVERS)]


def lane_of_server(name: str) -> str:
    """The runner's lane in which the calls of a server wait for their places."""
    return f"mcp {name}"
