"""Where no cgroup counts memory, the number of files that a program keeps in memory has a bound of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from services.tools.sandbox import Command, Detection, Sandbox, SandboxLimits, SandboxSettings, SandboxStatus, process
from services.tools.sandbox.cgroups import Cgroups
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

LIMITS = SandboxLimits(wall_seconds=PATIENCE_SECONDS)
MAKE = """
import time
def make():
    for number in range(200): open(f"/tmp/{number}", "w").close()
    time.sleep(1000)
"""
# Of a first thread that has ended the kernel does not say any more what it sees.
BY_A_THREAD = """
import ctypes, platform, threading
threading.Thread(target=make).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[platform.machine()], 0)
"""
WAYS = {"the first thread": "make()", "another thread": BY_A_THREAD}


@pytest.fixture
def without_cgroups(sandbox_detection: Detection, monkeypatch: pytest.MonkeyPatch) -> Detection:
    monkeypatch.setattr(process, "MAX_PRIVATE_FILES", 100)
    gated = not sandbox_detection.per_slot_uids
    return replace(sandbox_detection, cgroups=Cgroups(()), gate_processes=gated)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_a_program_that_makes_too_many_is_ended(
    sandbox_settings: SandboxSettings, without_cgroups: Detection, way: str
) -> None:
    async with Sandbox(sandbox_settings, without_cgroups) as sandbox:
        result = await sandbox.run_python(MAKE + way, None, LIMITS)
    assert result.status is SandboxStatus.OUT_OF_MEMORY


async def test_a_lasting_program_that_makes_too_many_is_ended(
    sandbox_settings: SandboxSettings, without_cgroups: Detection
) -> None:
    python = str(without_cgroups.require().interpreter.path)
    command = Command((python, "-c", MAKE + "make()"), {}, ())
    async with (
        Sandbox(replace(sandbox_settings, long_running=1), without_cgroups) as sandbox,
        sandbox.long_running(command, None, LIMITS) as program,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        assert await program.process.stdout.read() == b""  # it was ended
