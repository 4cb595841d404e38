"""Programs of one task share a workspace, and hand each other descriptors through a socket in it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from services.tools.sandbox import Command, Detection, Sandbox, SandboxLimits, SandboxSettings, SandboxStatus
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

LIMITS = SandboxLimits(wall_seconds=PATIENCE_SECONDS)
HOLD = """
import os, socket, time
listening = socket.socket(socket.AF_UNIX)
listening.bind("s.new")
listening.listen()
os.rename("s.new", "s")
kept = socket.recv_fds(listening.accept()[0], 1, 9)
while not os.path.exists("over"): time.sleep(0.02)
"""
GIVE = """
import socket
giving = socket.socket(socket.AF_UNIX)
giving.connect("s")
socket.send_fds(giving, [b"x"], [0, 1, 2])
print("x" * 50_000)
"""
WHOLE = "x" * 50_000 + "\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@asynccontextmanager
async def holder_of_the_output(sandbox: Sandbox, workspace: Path) -> AsyncIterator[None]:
    """What it is given, until the context ends."""
    holding = asyncio.create_task(sandbox.run_python(HOLD, workspace, LIMITS))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (workspace / "s").exists():
                await asyncio.sleep(0.01)
        yield
        assert not holding.done()
        (workspace / "over").touch()
        assert (await holding).status is SandboxStatus.OK
    finally:
        holding.cancel()
        await asyncio.wait({holding})


async def test_a_program_ends_though_another_holds_its_output(any_sandbox: Sandbox, workspace: Path) -> None:
    async with holder_of_the_output(any_sandbox, workspace):
        result = await any_sandbox.run_python(GIVE, workspace, LIMITS)
    assert (result.status, result.stdout) == (SandboxStatus.OK, WHOLE)


async def test_a_program_is_ended_though_another_holds_its_output(sandbox: Sandbox, workspace: Path) -> None:
    async with holder_of_the_output(sandbox, workspace):
        result = await sandbox.run_python(GIVE + "while True: print('x' * 50_000)", workspace, LIMITS)
    assert result.status is SandboxStatus.OUTPUT_LIMIT


async def test_a_long_running_programs_end_is_noticed(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection, workspace: Path
) -> None:
    python = str(sandbox_detection.require().interpreter.path)
    async with Sandbox(replace(sandbox_settings, long_running=1), sandbox_detection) as sandbox:
        async with (
            holder_of_the_output(sandbox, workspace),
            sandbox.long_running(Command((python, "-c", GIVE), {}, ()), workspace, LIMITS) as program,
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            assert await program.process.stdout.read() == WHOLE.encode()
        assert not program.left_behind
