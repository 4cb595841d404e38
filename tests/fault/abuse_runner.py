"""Runs a family of abuses at once, beside a neighbour that behaves. Also as a program, for a user who is not root:

abuse_runner.py FAMILY DIRECTORY WARM       prints the complaints as JSON; how many sandboxes wait for programs
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from services.tools.sandbox import Sandbox, SandboxLimits, SandboxSettings, SandboxStatus
from tests.fault.abuses import FAMILIES, Abuse

NEIGHBOUR = """
import hashlib, os, subprocess
with open('ledger', 'a') as ledger:
    for number in range(200):
        ledger.write(hashlib.sha256(str(number).encode()).hexdigest())
lines = subprocess.run(['/bin/ls'], capture_output=True, text=True, check=True).stdout.split()
print('done', lines, os.path.getsize('ledger') % 64)
"""
_NEIGHBOUR_LIMITS = SandboxLimits(wall_seconds=120, cpu_seconds=60)


async def contain(sandbox: Sandbox, family: Mapping[str, Abuse], directory: Path) -> list[str]:
    """What did not go as it must; best empty."""
    over = asyncio.Event()
    complaints: list[str] = []
    with _bait() as bait:
        async with asyncio.TaskGroup() as tasks:
            neighbour = tasks.create_task(_behave(sandbox, directory / "neighbour", over))
            async with asyncio.TaskGroup() as abuses:
                for number, (name, abuse) in enumerate(family.items()):
                    workspace = directory / str(number)
                    abuses.create_task(_commit(sandbox, name, abuse, bait, workspace, complaints))
            over.set()
        complaints += neighbour.result()
    return complaints


async def _commit(
    sandbox: Sandbox, name: str, abuse: Abuse, bait: Mapping[str, object], workspace: Path, complaints: list[str]
) -> None:
    workspace.mkdir()
    expected, limits = abuse.expected(bounded={"memory", "pids"} <= sandbox.detection.cgroups.limits)
    async with one_that_waits(sandbox, limits) as chosen:
        result = await chosen.run_python(abuse.program(bait), workspace, limits)
    if chosen is not sandbox and not result.warm:
        complaints.append(f"{name}: no sandbox was waiting for it")
    as_printed = abuse.prints is None or result.stdout == abuse.prints
    if result.status is not expected or "ESCAPED" in result.stdout or not as_printed:
        complaints.append(f"{name}: expected {expected} and {abuse.prints!r}, came to {result}")


@asynccontextmanager
async def one_that_waits(sandbox: Sandbox, limits: SandboxLimits) -> AsyncIterator[Sandbox]:
    """A sandbox like this one in which one waits for a program with these limits; itself when it has none waiting."""
    settings = sandbox._settings
    if not settings.warm:
        yield sandbox
        return
    async with Sandbox(dataclasses.replace(settings, warm=1), sandbox.detection) as another:
        if trouble := await another._warm.start(limits):
            raise RuntimeError(f"no sandbox can be started ahead: {trouble}")
        yield another


async def _behave(sandbox: Sandbox, workspace: Path, over: asyncio.Event) -> list[str]:
    """Work as long as the abuses do, at least once; each time the same must come of it."""
    workspace.mkdir()
    complaints = []
    while True:
        result = await sandbox.run_python(NEIGHBOUR, workspace, _NEIGHBOUR_LIMITS)
        if result.status is not SandboxStatus.OK or result.stdout != "done ['ledger'] 0\n":
            complaints.append(f"the neighbour: {result}")
        if over.is_set() or complaints:
            return complaints
        await asyncio.sleep(0.05)  # it is a neighbour, not a load


@contextmanager
def _bait() -> Iterator[dict[str, object]]:
    abstract = f"tenure-abuse-{uuid.uuid4().hex}"
    with (
        tempfile.NamedTemporaryFile(prefix="tenure-abuse-") as file,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as local,
    ):
        local.bind("\0" + abstract)
        local.listen()
        yield {"pid": os.getpid(), "file": file.name, "port": tcp.getsockname()[1], "abstract": abstract}


async def main(family: str, directory: str, warm: str) -> None:
    """For a child process."""
    os.environ["SECRET_DSN"] = "postgres://secret"
    async with await Sandbox.open(SandboxSettings(slots=6, warm=int(warm))) as sandbox:
        complaints = await contain(sandbox, FAMILIES[family], Path(directory))
        values = {"uid": os.geteuid(), "complaints": complaints, "limits": sandbox.detection.cgroups.describe()}
    sys.stdout.write(json.dumps(values))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
