"""A word on a call in doubt, at the tools: taken once, under one attempt, whatever the old runner still does.

What counts is the file outside of the system: how often the effect truly happened.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.errors import TenureError, Unavailable
from tenure.domain.in_doubt import Abandon, DidNotHappen, Happened, Resolution
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2
from tenure.wire.tool import outcome_to_domain, resolution_to_wire
from tests.support.fix_tools import SHORT_LIFE, Grants, Outside, StartTools, appear, execute_request
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

UNSAFE = "append_record_unsafe"
ARGUMENTS = {"file": "a", "line": "x"}
DONE, DOUBT = OutcomeStatus.SUCCEEDED, OutcomeStatus.IN_DOUBT
GONE = DidNotHappen(runner_is_gone=True)


async def resolve(tools: Any, owner: Any, decision: Any, call_attempt: int = 1) -> Any:
    """What an Execute with a word comes to."""
    request = execute_request(owner, "1.0", UNSAFE, json.dumps(ARGUMENTS))
    request.resolution.CopyFrom(resolution_to_wire(Resolution(call_attempt, decision, "I looked", "olga")))
    events = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
    return outcome_to_domain(events[-1].outcome)


async def in_doubt(tool_service: Any, grants: Any, failpoint: str = "tools.before_effect=kill9") -> Any:
    """A replica that took over a call in doubt, and its owner: the runner was killed."""
    dying = await tool_service(failpoints=failpoint)
    owner = grants.claim(epoch=10)
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", UNSAFE, **ARGUMENTS)
    await dying.ended()
    tools, successor = await tool_service(), grants.claim(owner.task_id, epoch=11)
    assert (await tools.outcome(successor, "1.0", UNSAFE, **ARGUMENTS)).status is DOUBT
    return tools, successor


@pytest.mark.faults
async def test_a_happened_resolution_is_the_final_outcome(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, owner = await in_doubt(tool_service, grants, "tools.after_effect=kill9")
    outcome = await resolve(tools, owner, Happened("it is there"))
    assert (outcome.status, outcome.content, outcome.detail, outcome.call_attempt) == (
        DONE,
        "it is there",
        "HAPPENED",
        2,
    )
    assert await resolve(tools, owner, GONE) == outcome
    assert await tools.outcome(owner, "1.0", UNSAFE, **ARGUMENTS) == outcome
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_an_abandoned_call_stays_in_doubt(tool_service: StartTools, grants: Grants, outside: Outside) -> None:
    tools, owner = await in_doubt(tool_service, grants)
    outcome = await resolve(tools, owner, Abandon())
    assert (outcome.status, outcome.detail, outcome.call_attempt) == (DOUBT, "ABANDONED", 2)
    assert await resolve(tools, owner, GONE, call_attempt=2) == outcome
    assert outside.lines("a") == []


async def test_a_call_that_did_not_happen_runs_once_more(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, owner = await in_doubt(tool_service, grants)
    assert (await resolve(tools, owner, DidNotHappen())).detail == "RUNNER_NOT_GONE"
    assert (await resolve(tools, owner, GONE, call_attempt=2)).status is DOUBT
    dying = await tool_service(failpoints="tools.after_effect=kill9")
    with pytest.raises(Unavailable):
        await resolve(dying, owner, GONE)
    await dying.ended()
    again = await resolve(tools, owner, GONE)
    assert (again.status, again.call_attempt) == (DOUBT, 2)
    settled = await resolve(tools, owner, Happened(), call_attempt=2)
    assert (settled.status, settled.call_attempt) == (DONE, 3)
    assert settled.content == "olga found that this call happened: I looked"
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
@pytest.mark.parametrize(
    ("moment", "status", "call_attempt", "effects"),
    [("after_accept", DONE, 3, 1), ("before_effect", DOUBT, 2, 0), ("after_effect", DOUBT, 2, 1)],
)
async def test_a_service_killed_during_a_resolution_leaves_it(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    moment: str,
    status: Any,
    call_attempt: int,
    effects: int,
) -> None:
    """The ledger has the word, and gives it again until there is an outcome, or a new doubt."""
    tools, owner = await in_doubt(tool_service, grants)
    dying = await tool_service(failpoints=f"tools.{moment}=kill9")
    with pytest.raises(Unavailable):
        await resolve(dying, owner, GONE)
    await dying.ended()
    outcome = await resolve(tools, owner, GONE)
    assert (outcome.status, outcome.call_attempt) == (status, call_attempt)
    assert len(outside.lines("a")) == effects


@pytest.mark.faults
@pytest.mark.parametrize(
    ("moment", "decision"),
    [
        ("before_effect", GONE),
        ("before_effect", Happened("it is there")),
        ("after_effect", GONE),
        ("after_effect", Abandon()),
    ],
)
async def test_a_woken_replica_cannot_overwrite_a_newer_decision(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_database: Callable[..., Awaitable[list[Any]]],
    tmp_path: Path,
    moment: str,
    decision: Any,
) -> None:
    paused = await tool_service(failpoints=f"tools.{moment}=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    owner = grants.claim(epoch=10)
    call = paused.begin(owner, "1.0", UNSAFE, **ARGUMENTS)
    await appear(tmp_path / "there")
    tools, successor = await tool_service(), grants.claim(owner.task_id, epoch=11)
    assert (await tools.outcome(successor, "1.0", UNSAFE, **ARGUMENTS)).status is DOUBT
    decided = await resolve(tools, successor, decision)
    assert decided.call_attempt == 2
    recorded = await tools_database("select state, call_attempt, outcome, started_at from calls")
    paused.thaw()
    with pytest.raises(TenureError):
        await call
    lapsed = "this runner could not renew in time: it stops what it runs"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not paused.logged(lapsed):
            await asyncio.sleep(0.02)
    assert await tools_database("select state, call_attempt, outcome, started_at from calls") == recorded
    assert await paused.outcome(successor, "1.0", UNSAFE, **ARGUMENTS) == decided
    before = 1 if moment == "after_effect" else 0
    assert len(outside.lines("a")) == before + (decision == GONE)  # twice only by a word that was wrong


@pytest.mark.faults
async def test_a_late_outcome_that_came_before_the_word_counts_more(
    tool_service: StartTools,
    grants: Grants,
    outside: Outside,
    tools_database: Callable[..., Awaitable[list[Any]]],
    tmp_path: Path,
) -> None:
    frozen = await tool_service(failpoints=f"tools.after_effect=touch({tmp_path}/there)->freeze", **SHORT_LIFE)
    owner = grants.claim(epoch=10)
    frozen.begin(owner, "1.0", UNSAFE, **ARGUMENTS)
    await appear(tmp_path / "there")
    tools, successor = await tool_service(), grants.claim(owner.task_id, epoch=11)
    assert (await tools.outcome(successor, "1.0", UNSAFE, **ARGUMENTS)).status is DOUBT
    frozen.thaw()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await tools_database("select state from calls") != [("FINISHED",)]:
            await asyncio.sleep(0.02)
    for decision in (GONE, Happened("so they say"), Abandon()):
        outcome = await resolve(tools, successor, decision)
        assert (outcome.status, outcome.call_attempt, outcome.detail) == (DONE, 1, "")
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_words_that_race_at_two_replicas_are_decided_once(
    tool_service: StartTools, grants: Grants, outside: Outside, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    tools, owner = await in_doubt(tool_service, grants)
    other = await tool_service()
    results = await asyncio.gather(
        *(resolve(replica, owner, decision) for replica in (tools, other) for decision in (GONE, GONE, GONE))
    )
    assert {(outcome.status, outcome.call_attempt) for outcome in results} == {(DONE, results[0].call_attempt)}
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_call_cancelled_after_a_resolution_is_in_doubt(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    """That it did not happen before is known by that word alone."""
    tools, owner = await in_doubt(tool_service, grants)
    dying = await tool_service(failpoints="tools.after_accept=kill9")
    with pytest.raises(Unavailable):
        await resolve(dying, owner, GONE)
    await dying.ended()
    calls = await tools.fence(grants.claim(owner.task_id, epoch=12), close=True)
    assert calls["1.0"].call_attempt == 2
    assert calls["1.0"].state == tool_pb2.CALL_STATE_IN_DOUBT
    assert outside.lines("a") == []


@pytest.mark.faults
async def test_it_is_known_since_when_a_call_is_in_doubt(
    tool_service: StartTools, grants: Grants, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    tools, owner = await in_doubt(tool_service, grants)
    since = "select doubted_at is not null, doubted_at >= started_at from calls"
    assert await tools_database(since) == [(True, True)]
    await resolve(tools, owner, GONE)
    assert (await tools_database(since))[0][0] is False
