"""SIGKILL at every failpoint of the worker."""

from __future__ import annotations

import pytest

from tests.fault.failpoint_scenes import check_death_at, failpoints_of
from tests.fault.suite.installation import Installation

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest.mark.parametrize("failpoint", failpoints_of("worker"))
async def test_a_death_at_any_failpoint_loses_and_repeats_nothing(
    small_installation: Installation, failpoint: str
) -> None:
    await check_death_at(small_installation, failpoint)
