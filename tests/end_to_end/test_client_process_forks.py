"""A SyncClient that was used before a fork: it works in the parent and in the children."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from tests.end_to_end.forking_program import FORKS
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.faults]


async def test_a_client_works_on_both_sides_of_each_fork(installation: Installation) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.end_to_end.forking_program"),
        env={**os.environ, "TENURE_ADDRESS": installation.stack.gateway_address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            printed, complaints = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert (program.returncode, complaints.decode()) == (0, "")
    result = json.loads(printed)
    assert result["statuses"] == [0] * (FORKS + 4)
    assert result["seen"] == list(range(1, result["entries"] + 1))
