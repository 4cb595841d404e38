"""The ways of starting a program that are compared, each measured to the program's first line."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import services.tools.sandbox
from bench.data_path import DataPath
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxSettings
from services.tools.sandbox.detection import find_bubblewrap, find_interpreter
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fencing import TASK_PREFIX, Claims, compose_epoch
from tenure.domain.tools import call_id
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc_client import open_channel
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.token import sign_task_claims

CODE: Final = "print('here')"
BARE_PYTHON: Final = "bare python3"
BARE_BUBBLEWRAP: Final = "bare bwrap python3"
LAUNCHER: Final = "the launcher alone, to its exec"
COLD: Final = "a cold sandbox"
WARM: Final = "a warm sandbox"
EXECUTE: Final = "Execute of execute_python, over gRPC"
NOTHING: Final = "Execute of a tool that does nothing, to its outcome"

_CALL_SECONDS: Final = 60.0
_LAUNCHER: Final = Path(services.tools.sandbox.__file__).with_name("launcher.py")
# Different from the uids of the tool service that runs on the same machine.
_COLD_UID, _WARM_UID = 61_200, 61_300
_WARM: Final = 2
Start = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Starts:
    """The ways: each returns the seconds from the request to the first line. `warm` is the sandbox of the way WARM."""

    ways: dict[str, Start]
    warm: Sandbox


@asynccontextmanager
async def program_starts(folder: Path) -> AsyncIterator[Starts]:
    """Yields all ways, with the tool service and the sandboxes started."""
    async with AsyncExitStack() as opened:
        path = await opened.enter_async_context(DataPath(folder / "service", "tools"))
        channel = await opened.enter_async_context(open_channel(path.address("tools")))
        cold = await opened.enter_async_context(await Sandbox.open(SandboxSettings(first_uid=_COLD_UID)))
        warm = await opened.enter_async_context(await Sandbox.open(SandboxSettings(first_uid=_WARM_UID, warm=_WARM)))
        calls = _Calls(ToolServiceStub(channel), _token(path))
        ways = {
            BARE_PYTHON: _of_command([_interpreter(), "-c", CODE]),
            BARE_BUBBLEWRAP: _of_command(_bubblewrap()),
            LAUNCHER: _of_command(_launcher()),
            COLD: _of_sandbox(cold, folder / "cold"),
            WARM: _of_sandbox(warm, folder / "warm"),
            EXECUTE: calls.first_output,
            NOTHING: calls.outcome_of_nothing,
        }
        yield Starts(ways, warm)


def _interpreter() -> str:
    return str(find_interpreter().path)


def _bubblewrap() -> list[str]:
    view = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    return [str(find_bubblewrap().path), *view, _interpreter(), "-c", CODE]


def _launcher() -> list[str]:
    arguments = ["--parent", str(os.getpid()), "--", "/bin/echo", "here"]
    return [sys.executable, "-I", "-S", str(_LAUNCHER), *arguments]


def _of_command(command: list[str]) -> Start:
    return lambda: asyncio.to_thread(_first_line, command)


def _first_line(command: list[str]) -> float:
    began = perf_counter()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={}, cwd="/") as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        seconds = perf_counter() - began
    assert line == b"here\n", f"{command[0]} printed {line!r}"
    return seconds


def _of_sandbox(sandbox: Sandbox, workspace: Path) -> Start:
    workspace.mkdir(parents=True)

    async def first_line() -> float:
        output_seconds: list[float] = []
        began = perf_counter()
        result = await sandbox.run_python(
            CODE, workspace, SandboxLimits(), lambda _stream, _text: output_seconds.append(perf_counter() - began)
        )
        assert result.stdout == "here\n", f"the program ended with {result}"
        return output_seconds[0]

    return first_line


@dataclass(slots=True)
class _Calls:
    """Executes calls of one task, one after another."""

    stub: Any
    token: token_pb2.FencingToken
    step: int = 0

    async def first_output(self) -> float:
        """Returns the seconds to the first event with output."""
        return await self._until("output", "execute_python", json.dumps({"code": CODE}))

    async def outcome_of_nothing(self) -> float:
        """Returns the seconds in which a call is accepted, marked and recorded: `web_search` does nothing here."""
        return await self._until("outcome", "web_search", json.dumps({"query": "nothing"}))

    async def _until(self, event: str, tool: str, arguments_json: str) -> float:
        """Returns the seconds to the first event of this kind. Reads on to the end: calls must not overlap."""
        self.step += 1
        request = pb.ExecuteRequest(
            token=self.token, call_id=call_id(self.step, 0), tool=tool, arguments_json=arguments_json
        )
        event_seconds: dict[str, float] = {}
        began = perf_counter()
        async for response in self.stub.Execute(request, timeout=_CALL_SECONDS):
            event_seconds.setdefault(response.WhichOneof("event"), perf_counter() - began)
        return event_seconds[event]


def _token(path: DataPath) -> token_pb2.FencingToken:
    """Returns the token of a claim that is not registered: only the tool service sees it."""
    claims = Claims(
        f"{TASK_PREFIX}{uuid.uuid4()}",
        DEFAULT_TENANT,
        compose_epoch(1, 1),
        str(uuid.uuid4()),
        "bench",
        installation=DEFAULT_INSTALLATION,
    )
    return sign_task_claims(path.signer, claims, datetime.now(UTC))
