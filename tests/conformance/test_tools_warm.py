"""At the tool service: programs begin in sandboxes that were started before anybody asked for them."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from services.tools.sandbox import Detection
from tenure.domain.tools import OutcomeStatus
from tests.support.fix_tools import Grants, Outside, StartTools
from tests.support.patience import PATIENCE_SECONDS

# When the program's interpreter was started, in seconds since the machine was.
PROGRAM = """
import os
started = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
open("kept", "a").write("x")
print(started)
"""


async def _is_older_than_its_call(tools: Any, owner: Any, number: int) -> bool:
    wanted = time.clock_gettime(time.CLOCK_BOOTTIME)
    outcome = await tools.outcome(owner, f"{number}.0", "execute_python", code=PROGRAM)
    assert outcome.status is OutcomeStatus.SUCCEEDED
    return float(outcome.content) < wanted


async def test_a_program_begins_in_a_prepared_sandbox(
    tool_service: StartTools, grants: Grants, outside: Outside, sandbox_detection: Detection
) -> None:
    tools = await tool_service(sandbox_warm=1)
    if [line for line in tools.log if "no sandbox is started ahead" in line["message"]]:
        pytest.skip("no sandbox can be started ahead here")
    owner = grants.claim()
    calls = 1
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await _is_older_than_its_call(tools, owner, calls):
            calls += 1
            await asyncio.sleep(0.1)  # until the next one waits: the service's own proof used one
    assert (outside.workspace(owner) / "kept").read_text() == "x" * calls
