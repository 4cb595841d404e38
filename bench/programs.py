"""Measures the time to the first line of an agent's program, against the same interpreter in a bare bubblewrap."""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from bench.data_path import DataPath
from bench.report import Section, percentile
from bench.run import Options
from services.tools.sandbox import Sandbox, SandboxLimits, SandboxSettings, SandboxUnavailable
from services.tools.sandbox.detection import find_bubblewrap, find_interpreter
from tenure.domain.access import DEFAULT_INSTALLATION
from tenure.domain.fencing import TASK_PREFIX, Claims, compose_epoch
from tenure.domain.tools import call_id
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import token_pb2
from tenure.v1 import tool_service_pb2 as pb
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tenure.wire.token import sign_task_claims

CODE: Final = "print('here')"
BARE_BUBBLEWRAP: Final = "bare bwrap python3"
COLD: Final = "a cold sandbox"
WARM: Final = "a warm sandbox"
EXECUTE: Final = "Execute of execute_python, over gRPC"

_CALL_SECONDS: Final = 60.0
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
            BARE_BUBBLEWRAP: _of_command(_bubblewrap()),
            COLD: _of_sandbox(cold, folder / "cold"),
            WARM: _of_sandbox(warm, folder / "warm"),
            EXECUTE: calls.first_output,
        }
        yield Starts(ways, warm)


def _interpreter() -> str:
    return str(find_interpreter().path)


def _bubblewrap() -> list[str]:
    view = ["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    return [str(find_bubblewrap().path), *view, _interpreter(), "-c", CODE]


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


PAUSE_SECONDS: Final = 0.3
HOW: Final = (
    "From the request to the first line of a program that prints one. All ways take turns in a rotating order, "
    "so that other load of the machine affects each of them. A pause follows, as an agent thinks between two "
    "programs; the next sandboxes start in it. Execute runs on the real tool service with its defaults, in a "
    "workspace, and includes its writes to Postgres before the program starts."
)


async def measure(options: Options) -> list[Section]:
    """Returns the times. On a machine without a sandbox the section has no figures."""
    options.tell("programs: starting Postgres, the tool service and two sandboxes")
    try:
        async with program_starts(options.folder / "programs") as starts:
            options.tell("programs: taking turns")
            section = await _take_turns(starts, options.choose(smoke=1, quick=30, full=200))
    except SandboxUnavailable as unavailable:
        return [Section("To a program's first line", f"Not measured: {unavailable}")]
    return [section]


async def _take_turns(starts: Starts, rounds: int) -> Section:
    names = list(starts.ways)
    samples: defaultdict[str, list[float]] = defaultdict(list)
    warm_runs_before = starts.warm.warm_runs
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(await starts.ways[name]())
        await asyncio.sleep(PAUSE_SECONDS)
    section = Section("To a program's first line", HOW)
    for name in names:
        section.add_latencies(name, samples[name])
    for name in (COLD, WARM, EXECUTE):
        _add_ratios(section, name, samples[name], samples[BARE_BUBBLEWRAP], is_compared=name == EXECUTE)
    section.add("found a warm sandbox", 100 * (starts.warm.warm_runs - warm_runs_before) / rounds, "%")
    return section


def _add_ratios(
    section: Section, name: str, seconds: list[float], bare: list[float], *, is_compared: bool = False
) -> None:
    """Adds the ratios of the percentiles p50 and p99. The baseline has only the p50: a p99 needs many samples."""
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        ratio = percentile(seconds, share) / percentile(bare, share)
        what = f"{name}, {label}, against bare bwrap"
        section.add_rounds(what, [ratio], "times", is_compared=is_compared and label == "p50")
