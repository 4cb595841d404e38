"""SIGKILL at every failpoint that plain work leads to."""

from __future__ import annotations

import pytest

from tests.fault.failpoint_scenes import check_kills_at, rounds
from tests.fault.suite.installation import Installation

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(600),
    pytest.mark.faults,
]


@pytest.mark.parametrize("failpoints", rounds(of_work=True), ids="+".join)
async def test_kills_there_lose_and_repeat_nothing(
    small_installation: Installation, failpoints: tuple[str, ...]
) -> None:
    await check_kills_at(small_installation, failpoints)
