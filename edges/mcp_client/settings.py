"""Defines the section `mcp_servers` of the config file.

The section has the shape that other MCP clients use, plus the fields that a service needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from services.tools.sandbox.command import WORKSPACE_PATH
from services.tools.sources import (
    CompensationSettings,
    EffectKeys,
    Rules,
    Section,
    SettleSettings,
    TenantName,
    require_tls,
)
from tenure.domain.tools import EffectClass

MIB: Final = 1024 * 1024
MAX_SERVERS: Final = 32
REACH_SECONDS: Final = 10.0
"""How long a call waits until its server has started or is connected.

This wait does not count against the timeout of the call: a call that was sent with little time left would surely time
out, and would be in doubt for no reason.
"""

_CONFINED: Final = frozenset({"network", "writable_paths", "read_only_paths", "memory_bytes"})

ServerName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9](?:[a-zA-Z0-9-]|_[a-zA-Z0-9-])*$", max_length=32)]
"""A server name has no two underscores in a row and none at its end, because its tools are called `<name>__<tool>`."""


class McpServer(Section):
    """The settings of one server: a program that speaks over stdin and stdout, or the URL of a streamable HTTP server.

    allow_insecure: accept an http:// URL of another machine.
    allow: the tools to offer; all tools if absent.
    effects: effect classes by tool; they override the hints of the server.
    compensations: how the effects of its tools are undone, by tool.
    effect_keys: effect keys by tool.
    settle: how calls of unknown end are settled, by tool.
    max_calls: how many calls run on the server at once.
    start_seconds: how long the server may take to start, until it has answered `initialize`.
    list_seconds: how long it may take to list its tools.
    tenants: the tenants that see the server's tools; all tenants if absent.
    pin: hold tools that are new or otherwise described than at first contact, until an operator accepts them.
    A program runs in one of three ways. By default it is confined: one process for all tasks, with a network, which
    sees nothing of the machine except the system, `cwd`, `read_only_paths` and `writable_paths`. With `sandbox` each
    task gets a process of its own in the sandbox. With `unconfined` the program has all rights of this service.
    """

    type: Literal["stdio", "http", "streamable-http", "streamable_http"] | None = None
    command: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default={})
    cwd: Path | None = None
    url: str | None = Field(default=None, pattern=r"^https?://")
    headers: dict[str, str] = Field(default={})
    allow_insecure: bool = False
    disabled: bool = False

    allow: frozenset[str] | None = None
    effects: dict[str, EffectClass] = Field(default={})
    compensations: dict[str, CompensationSettings] = Field(default={})
    effect_keys: EffectKeys = Field(default={})
    settle: dict[str, SettleSettings] = Field(default={})
    timeout_seconds: float = Field(default=30.0, gt=0, le=3600)
    output_limit_bytes: int = Field(default=64 * 1024, ge=1024, le=MIB)
    max_calls: int = Field(default=8, ge=1, le=256)
    start_seconds: float = Field(default=30.0, gt=0, le=3600)
    list_seconds: float = Field(default=30.0, gt=0, le=3600)
    tenants: frozenset[TenantName] | None = None
    pin: bool = True

    unconfined: bool = False
    network: bool = True
    writable_paths: tuple[Path, ...] = Field(default=(), max_length=16)
    read_only_paths: tuple[Path, ...] = Field(default=(), max_length=16)
    memory_bytes: int | None = Field(default=None, ge=64 * MIB)

    sandbox: bool = False
    max_servers: int = Field(default=4, ge=1, le=64)
    idle_seconds: float = Field(default=60.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("set either command or url")
        if self.type is not None and (self.type == "stdio") != (self.url is None):
            raise ValueError(f"type {self.type} does not match: stdio needs a command, the http types need a url")
        program_only = {"args", "env", "cwd", "sandbox", "unconfined", *_CONFINED} & self.model_fields_set
        if self.url is not None and program_only:
            raise ValueError(f"a server with a url has no {' and no '.join(sorted(program_only))}")
        if self.url is None and (url_only := {"headers", "allow_insecure"} & self.model_fields_set):
            raise ValueError(f"a program has no {' and no '.join(sorted(url_only))}: set url instead of command")
        require_tls(self.url or "", allow_insecure=self.allow_insecure)
        return self

    @model_validator(mode="after")
    def _is_confined_in_one_way(self) -> Self:
        sandbox_only = {"max_servers", "idle_seconds"} & self.model_fields_set
        if sandbox_only and not self.sandbox:
            raise ValueError(f"{' and '.join(sorted(sandbox_only))} needs sandbox: true")
        confined_only = {"sandbox"} if self.sandbox else _CONFINED & self.model_fields_set
        if self.unconfined and confined_only:
            raise ValueError(f"unconfined: true excludes {' and '.join(sorted(confined_only))}")
        if self.sandbox and self.cwd is not None:
            raise ValueError("a server in the sandbox starts in /work, the workspace: remove cwd")
        if self.sandbox and (refused := {"network", "writable_paths"} & self.model_fields_set):
            raise ValueError(f"a server in the sandbox has no {' and no '.join(sorted(refused))}")
        return self

    @model_validator(mode="after")
    def _shows_paths_that_can_be_shown(self) -> Self:
        named = {"read_only_paths": self.read_only_paths, "writable_paths": self.writable_paths}
        for name, paths in named.items():
            if relative := [str(path) for path in paths if not path.is_absolute()]:
                raise ValueError(f"{name} must be absolute: change {', '.join(relative)}")
            if kernel := [str(path) for path in paths if path == Path("/") or path.is_relative_to("/proc")]:
                raise ValueError(f"{name} may not contain {', '.join(kernel)}: name the directories that are needed")
        if self.is_confined and self.cwd is not None and not self.cwd.is_absolute():
            raise ValueError(f"cwd must be absolute: change {self.cwd}")
        hidden = [str(path) for path in self.read_only_paths if path.is_relative_to(WORKSPACE_PATH)]
        if self.sandbox and hidden:
            raise ValueError(
                f"read_only_paths must not lie under {WORKSPACE_PATH}, where the sandbox mounts the workspace: "
                f"move or copy {', '.join(hidden)} to another place"
            )
        return self

    @property
    def is_confined(self) -> bool:
        """Whether the server is a program that all tasks share, without the rights of this service."""
        return self.url is None and not self.sandbox and not self.unconfined

    @property
    def needs_sandbox(self) -> bool:
        """Whether the server does not run on a machine without the sandbox."""
        return self.sandbox or self.is_confined

    @property
    def rules(self) -> Rules:
        """The operator's rules for the server's tools."""
        return Rules(
            self.allow,
            self.effects,
            self.timeout_seconds,
            self.output_limit_bytes,
            self.compensations,
            self.effect_keys,
            self.settle,
        )

    @property
    def secrets(self) -> list[str]:
        """The setting values that must not appear in the error texts of this source."""
        return [*self.args, *self.env.values(), *self.headers.values()]


McpServers = Annotated[dict[ServerName, McpServer], Field(max_length=MAX_SERVERS)]


def shared_writable_paths(servers: Mapping[str, McpServer]) -> list[str]:
    """Returns what is wrong with the writable paths of servers whose programs have uids of their own.

    A program would lose its files to the one that started last, because each becomes the owner of its paths.
    """
    paths = [
        (path, name)
        for name, server in sorted(servers.items())
        if server.is_confined and not server.disabled
        for path in server.writable_paths
    ]
    return [
        f"{name} and {other} both write to {max(path, below, key=lambda one: len(one.parts))}, and each program has a "
        "uid of its own, because the service runs as root: give each server directories of its own"
        for (path, name), (below, other) in combinations(paths, 2)
        if name != other and (path.is_relative_to(below) or below.is_relative_to(path))
    ]


def lane_of_server(name: str) -> str:
    """Returns the runner's lane in which the calls of a server wait for a slot."""
    return f"mcp {name}"
