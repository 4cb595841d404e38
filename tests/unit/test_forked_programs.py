"""Programs that tests fork instead of starting."""

from __future__ import annotations

import asyncio
import os
import select
import sys
from pathlib import Path

import pytest

from tests.support.forked import run_program, start_program
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="programs are forked where the kernel has pidfds")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}


async def test_an_ended_program_can_be_killed_and_waited_for() -> None:
    process = await start_program([sys.executable, "-m", "services.tools"], environment=ENVIRONMENT)
    with os.fdopen(os.pidfd_open(process.pid)) as ended:
        assert select.select([ended], [], [], PATIENCE_SECONDS)[0]  # blocks the loop, which must not see the end yet
        while Path(f"/proc/{process.pid}").exists():  # until its parent has the exit code
            os.sched_yield()
    process.kill()
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await process.wait() == 2  # its settings are missing


async def test_a_program_gets_its_input_and_gives_its_output() -> None:
    command = [sys.executable, "-m", "tenure.cli", "--version"]
    code, out, err = await run_program(command, environment=ENVIRONMENT, stdin=b"nobody reads this")
    assert (code, err) == (0, b"")
    assert out.startswith(b"tenure")
