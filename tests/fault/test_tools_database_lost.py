"""The tool service's Postgres goes away and comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from devstack.postgres_process import PostgresProcess
from services.tools.statements import MIGRATIONS
from tenure.domain.errors import Unavailable
from tenure.domain.tools import OutcomeStatus
from tenure.runtime.store.sql import migrate
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools
from tests.support.patience import PATIENCE_SECONDS, SHORT_LIFE_SECONDS

UNSAFE = "append_record_unsafe"


@pytest.fixture
async def losable(own_postgres: PostgresProcess, tool_service: StartTools) -> Any:
    """A server of our own, and a tool service over it."""
    await migrate(own_postgres.dsn(), MIGRATIONS)
    return own_postgres, await tool_service(postgres_dsn=own_postgres.dsn(), **SHORT_LIFE)


async def begun(tools: Any, owner: Any, **arguments: Any) -> Any:
    """An Execute whose effect has begun."""
    call = tools.begin(owner, "1.0", UNSAFE, file="a", line="x", **arguments)
    await tools.started(owner)
    return call


async def executed(tools: Any, owner: Any, call_id: Any, **arguments: Any) -> Any:
    """The outcome, asked for until the service has its database again."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                return await tools.outcome(owner, call_id, UNSAFE, **arguments)
            except Unavailable:
                await asyncio.sleep(0.1)


@pytest.mark.faults
async def test_without_its_database_it_is_unavailable_and_runs_nothing(
    losable: Any, grants: Grants, outside: Outside
) -> None:
    postgres, tools = losable
    owner = grants.claim()
    await asyncio.to_thread(postgres.stop)
    with pytest.raises(Unavailable):
        await tools.outcome(owner, "1.0", UNSAFE, file="a", line="x")
    assert outside.lines("a") == []
    await asyncio.to_thread(postgres.start)
    outcome = await executed(tools, owner, "1.0", file="a", line="x")
    assert outcome.status is OutcomeStatus.SUCCEEDED
    assert len(outside.lines("a")) == 1


async def test_an_outcome_outlasts_the_outage(losable: Any, grants: Grants, outside: Outside) -> None:
    postgres, tools = losable
    owner = grants.claim()
    call = await begun(tools, owner, delay_ms=500)
    await asyncio.to_thread(postgres.kill)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not outside.lines("a"):
            await asyncio.sleep(0.02)
    await asyncio.sleep(SHORT_LIFE_SECONDS + 0.5)  # the outage itself: longer than the runner is trusted
    await asyncio.to_thread(postgres.start)
    assert (await call).status is OutcomeStatus.SUCCEEDED
    assert (await executed(tools, owner, "1.0", file="a", line="x", delay_ms=500)).status is OutcomeStatus.SUCCEEDED
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_an_effect_beyond_the_trust_window_is_in_doubt(losable: Any, grants: Grants, outside: Outside) -> None:
    postgres, tools = losable
    owner = grants.claim()
    call = await begun(tools, owner, delay_ms=9000)
    await asyncio.to_thread(postgres.kill)
    with pytest.raises(Unavailable) as caught:
        await call
    assert caught.value.reason == "RUNNER_STOPPED"
    await asyncio.to_thread(postgres.start)
    outcome = await executed(tools, owner, "1.0", file="a", line="x", delay_ms=9000)
    assert outcome.status is OutcomeStatus.IN_DOUBT
    assert outside.lines("a") == []
