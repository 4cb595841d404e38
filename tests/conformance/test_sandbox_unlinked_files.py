"""The bound of a workspace holds for files without a name, too."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from services.tools.sandbox import (
    Command,
    Detection,
    Sandbox,
    SandboxLimits,
    SandboxSettings,
    SandboxStatus,
    unlinked_files,
)
from services.tools.sandbox.limits import MIB
from services.tools.sandbox.supervision import SandboxedProgram, WorkspaceMonitor
from services.tools.sandbox.unlinked_files import unlinked_files_of
from services.tools.sandbox.workspace import NOTHING
from tests.support.patience import PATIENCE_SECONDS

FILL = """
import os, time
def hide(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.unlink(name)
    os.write(fd, bytes(1 << 20))
    return fd
kept = []
for number in range(1000):
    kept.append(hide(f"f{number}") if number % 2 else hide(f"g{number}"))
    time.sleep(0.01)
"""
BY_ORPHANS = """
import os, threading, time
def child(number):
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            fd = os.open(f"f{number}", os.O_RDWR | os.O_CREAT)
            os.unlink(f"f{number}")
            os.write(fd, bytes(4 << 20))
            time.sleep(1000)
        os._exit(0)
for number in range(8):
    threading.Thread(target=child, args=(number,)).start()
time.sleep(1000)
"""
BY_A_THREAD = """
import ctypes, os, platform, threading, time
left = threading.Event()
def work():
    left.wait()
    kept = [os.open(".", os.O_TMPFILE | os.O_RDWR) for _ in range(16)]
    for fd in kept: os.write(fd, bytes(1 << 20))
    time.sleep(1000)
if os.fork() == 0:
    threading.Thread(target=work).start()
    left.set()
    ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)  # this thread alone ends
time.sleep(1000)
"""
IN_FLIGHT = """
import os, socket, time
ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
for _ in range(8):
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR)
    os.write(fd, bytes(2 << 20))
    socket.send_fds(ends[0], [b"x"], [fd])
    os.close(fd)
time.sleep(1000)
"""
HIDING = {"its own": FILL, "those of orphans": BY_ORPHANS, "a thread's": BY_A_THREAD, "in a socket": IN_FLIGHT}
LIMITS = SandboxLimits(workspace_bytes=8 * MIB, wall_seconds=PATIENCE_SECONDS)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace"
    path.mkdir()
    return path


@pytest.mark.parametrize("code", HIDING.values(), ids=HIDING)
async def test_files_without_a_name_count(sandbox: Sandbox, workspace: Path, code: str) -> None:
    result = await sandbox.run_python(code, workspace, LIMITS)
    assert result.status is SandboxStatus.WORKSPACE_LIMIT
    assert sum(path.stat().st_size for path in workspace.iterdir()) < LIMITS.workspace_bytes


async def test_temporary_file_within_the_bound_is_allowed(sandbox: Sandbox, workspace: Path) -> None:
    code = (
        "import tempfile, time\nfile = tempfile.TemporaryFile(dir='.')\nfile.write(bytes(4 << 20))\n"
        "file.flush()\ntime.sleep(1)\nfile.seek(0)\nprint(len(file.read()))"
    )
    result = await sandbox.run_python(code, workspace, LIMITS)
    assert (result.status, result.stdout) == (SandboxStatus.OK, f"{4 << 20}\n")


async def test_unlinked_files_of_a_long_program_count(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection, workspace: Path
) -> None:
    code = FILL.replace("range(1000)", "range(20)") + "time.sleep(1000)"
    async with Sandbox(replace(sandbox_settings, long_running=1), sandbox_detection) as sandbox:
        python = str(sandbox_detection.require().interpreter.path)
        async with sandbox.long_running(Command((python, "-c", code), {}, ()), workspace, LIMITS) as program:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await program.process.stdout.read() == b""  # it was ended


async def test_files_above_the_scan_limit_are_too_large(
    sandbox: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unlinked_files, "MAX_UNLINKED", 50)
    code = "import time\nkept = [open('f', 'w') for _ in range(60)]\ntime.sleep(1000)"
    assert (await sandbox.run_python(code, workspace, LIMITS)).status is SandboxStatus.WORKSPACE_LIMIT


def test_scan_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Path("/").stat().st_dev
    assert unlinked_files_of(os.getpid(), device).complete
    monkeypatch.setattr(unlinked_files, "MAX_UNLINKED", 3)
    assert not unlinked_files_of(os.getpid(), device).complete


async def test_scan_has_its_own_thread(sandbox: Sandbox, workspace: Path) -> None:
    """Nor the other way round: programs can make it slow."""
    loop, hold = asyncio.get_running_loop(), Event()
    monitor = WorkspaceMonitor(sandbox_program(sandbox, workspace))
    with ThreadPoolExecutor(1) as only:
        loop.set_default_executor(only)
        waiting = loop.run_in_executor(None, hold.wait)
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert not await monitor.exceeds_limits()
        finally:
            hold.set()
            await waiting


async def test_a_workspace_that_cannot_be_measured_is_too_large(sandbox: Sandbox, workspace: Path) -> None:
    monitor = WorkspaceMonitor(sandbox_program(sandbox, workspace))
    workspace.rmdir()
    assert await monitor.exceeds_limits()


async def test_unlinked_files_count_at_their_largest(sandbox: Sandbox, workspace: Path) -> None:
    monitor = WorkspaceMonitor(sandbox_program(sandbox, workspace))
    in_one_socket = LIMITS.open_files * LIMITS.file_bytes
    assert [monitor._stays_in_flight(count) for count in (3, 2, 0, 5)] == [0, 2 * in_one_socket, 0, 0]


def sandbox_program(sandbox: Sandbox, workspace: Path) -> SandboxedProgram:
    return sandbox._program(b"", workspace, LIMITS, None, NOTHING)
