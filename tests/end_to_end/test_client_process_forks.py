"""A SyncClient and a fork: children of an unused client call Tenure, those of a used one are refused."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from tests.end_to_end.forking_program import FORKS
from tests.end_to_end.installation import Installation
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.server, pytest.mark.fuzz]


@pytest.mark.faults
async def test_children_call_only_if_the_parent_had_not_called(installation: Installation) -> None:
    await installation.ended(await installation.submit("sim-hello"))
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    program = await asyncio.create_subprocess_exec(
        # Since Python 3.12 a fork of a process with threads warns, and that is what the test does.
        *(sys.executable, "-W", "ignore:This process:DeprecationWarning", "-m", "tests.end_to_end.forking_program"),
        env={**environment, "TENURE_ADDRESS": installation.stack.gateway_address},  # as users have it
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
    assert all([*result["before"], *result["spawned"]])
    assert result["statuses"] == [0] * 2 * FORKS
    assert result["seen"] == list(range(1, result["entries"] + 1))
