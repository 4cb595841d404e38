"""What a program in the sandbox is given in confidence, as seen by the other users of the host."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from services.tools.sandbox import Command, Detection, Sandbox, SandboxLimits, SandboxSettings
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("nothing_left_behind")

SECRET = "sk-of-a-server-that-stays"


def command_lines() -> list[bytes]:
    """Of all processes: anybody may read them."""
    results = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            results.append((entry / "cmdline").read_bytes())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return results


async def test_variables_of_a_lasting_program_are_on_no_command_line(
    sandbox_settings: SandboxSettings, sandbox_detection: Detection, tmp_path: Path
) -> None:
    interpreter = str(sandbox_detection.require().interpreter.path)
    words = (interpreter, "-c", "import os; print(os.environ['API_TOKEN'], flush=True); input()")
    async with Sandbox(dataclasses.replace(sandbox_settings, slots=7, long_running=1), sandbox_detection) as opened:
        command = Command(words, {"API_TOKEN": SECRET}, ())
        async with opened.long_running(command, tmp_path, SandboxLimits()) as running:
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert await running.process.stdout.readline() == f"{SECRET}\n".encode()
            lines = command_lines()
    assert [line for line in lines if b"API_TOKEN" in line and b"import os" in line]
    assert not [line for line in lines if SECRET.encode() in line]
