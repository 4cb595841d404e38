"""A tool service is frozen, judged dead, and wakes up: it must not act on what it believed before."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import StaleEpoch, TenureError
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools, appear
from tests.support.patience import PATIENCE_SECONDS
from tests.support.sweeps import first

UNSAFE = "append_record_unsafe"


async def state_becomes(tools_database: Any, owner: Any, state: Any) -> None:
    """Wait for the record."""
    statement, task_id = "select state from calls where task_id = %s", uuid.UUID(owner.task_id)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await tools_database(statement, task_id) != [(state,)]:
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("moment", first(["before_effect", "after_accept"]))
async def test_a_frozen_runner_woken_after_a_close_starts_nothing(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_database: Callable[..., Awaitable[list[Any]]],
    tmp_path: Path,
    moment: str,
) -> None:
    frozen = await tool_service(failpoints=f"tools.{moment}=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    owner = grants.claim(epoch=10)
    call = frozen.begin(owner, "1.0", UNSAFE, file="a", line="x")
    await appear(tmp_path / "there")
    ending = grants.claim(owner.task_id, epoch=11)
    tools = await tool_service(close_wait_seconds=PATIENCE_SECONDS)  # longer than the life of the frozen one
    calls = await tools.fence(ending, close=True)
    values = {"after_accept": tool_pb2.CALL_STATE_NOT_RUN, "before_effect": tool_pb2.CALL_STATE_IN_DOUBT}
    assert calls["1.0"].state == values[moment]
    frozen.thaw()
    with pytest.raises(TenureError):
        await call
    # Of the one that was marked it is now known that it never began.
    await state_becomes(tools_database, owner, "NOT_RUN")
    assert outside.lines("a") == []


@pytest.mark.faults
async def test_a_start_that_is_late_is_taken_back_and_set_anew(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools = await tool_service(failpoints="tools.before_effect=1#sleep(1200)")
    outcome = await tools.outcome(grants.claim(), "1.0", UNSAFE, file="a", line="x")
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, 2)
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_late_outcome_clears_the_doubt(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_database: Callable[..., Awaitable[list[Any]]],
    tmp_path: Path,
) -> None:
    frozen = await tool_service(failpoints=f"tools.after_effect=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    owner = grants.claim(epoch=10)
    frozen.begin(owner, "1.0", UNSAFE, file="a", line="x")
    await appear(tmp_path / "there")
    tools, successor = await tool_service(), grants.claim(owner.task_id, epoch=11)
    assert (await tools.outcome(successor, "1.0", UNSAFE, file="a", line="x")).status is OutcomeStatus.IN_DOUBT
    frozen.thaw()
    await state_becomes(tools_database, owner, "FINISHED")
    assert (await tools.outcome(successor, "1.0", UNSAFE, file="a", line="x")).status is OutcomeStatus.SUCCEEDED
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_runner_declared_dead_stops_its_calls(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    frozen = await tool_service(**SHORT_LIFE)
    owner = grants.claim(epoch=10)
    arguments = {"file": "a", "line": "x", "delay_ms": 25_000}
    call = frozen.begin(owner, "1.0", UNSAFE, **arguments)
    await frozen.started(owner)
    frozen.freeze()
    tools, successor = await tool_service(), grants.claim(owner.task_id, epoch=11)
    assert (await tools.outcome(successor, "1.0", UNSAFE, **arguments)).status is OutcomeStatus.IN_DOUBT
    frozen.thaw()
    with pytest.raises(TenureError):
        await call
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not frozen.logged("this runner could not renew in time: it stops what it runs"):
            await asyncio.sleep(0.02)
    assert outside.lines("a") == []
    # It goes on under a new life.
    assert (await frozen.outcome(successor, "1.1", UNSAFE, file="a", line="y")).status is OutcomeStatus.SUCCEEDED


@pytest.mark.faults
async def test_a_stale_owner_hears_it_also_from_a_service_that_slept(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    sleeper, tools = await tool_service(), await tool_service()
    owner = grants.claim(epoch=10)
    await sleeper.outcome(owner, "1.0", UNSAFE, file="a", line="x")
    sleeper.freeze()
    await tools.fence(grants.claim(owner.task_id, epoch=11))
    call = sleeper.begin(owner, "1.1", UNSAFE, file="a", line="late")
    sleeper.thaw()
    with pytest.raises(StaleEpoch):
        await call
    assert len(outside.lines("a")) == 1
