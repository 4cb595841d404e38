"""Tools that say "try later" after their call was marked as begun: every replica can go on with the call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.tools.calls.effects import MAX_ATTEMPTS
from services.tools.calls.executing import Executor
from services.tools.calls.start_and_finish import OutcomeMark
from tenure.domain.errors import LimitReached
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.runtime.store.batching import Batcher
from tenure.v1 import tool_pb2
from tests import busy_tools
from tests.conformance.test_tools_unknown_effect import Bank, bank, executor, outcome_of, request  # noqa: F401
from tests.support.fix_tools import Grants, Outside, StartTools
from tests.support.sweeps import first

UNSAFE, KEYED = "append_record_unsafe", "append_record"
LINE = {"file": "a", "line": "x"}


def busy(outside: Outside, name: str) -> Path:
    outside.records.mkdir(parents=True, exist_ok=True)
    path = outside.records / name
    path.touch()
    return path


async def test_unsafe_call_with_try_later_is_in_doubt(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, other = await tool_service(module="tests.busy_tools"), await tool_service()
    owner, _ = grants.claim(), busy(outside, busy_tools.AFTER)
    outcome = await tools.outcome(owner, "1.0", UNSAFE, **LINE)
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.IN_DOUBT, 1)
    assert "the archive has no place now" in outcome.content
    assert await other.outcome(owner, "1.0", UNSAFE, **LINE) == outcome
    assert len(outside.lines("a")) == 1


async def test_repeatable_call_is_rerun_by_any_replica(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, other = await tool_service(module="tests.busy_tools"), await tool_service()
    owner, _ = grants.claim(), busy(outside, busy_tools.AFTER)
    with pytest.raises(LimitReached) as caught:
        await tools.outcome(owner, "1.0", KEYED, **LINE)
    assert (caught.value.reason, caught.value.retry_after_seconds) == ("ARCHIVE_FULL", 0.01)
    outcome = await other.outcome(owner, "1.0", KEYED, **LINE)
    assert (outcome.status, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, 2)
    assert outcome.content == "It was there already."
    assert len(outside.lines("a")) == 1


@pytest.mark.faults
async def test_a_released_call_is_in_doubt_when_its_task_ends(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, other = await tool_service(module="tests.busy_tools"), await tool_service()
    owner, _ = grants.claim(), busy(outside, busy_tools.AFTER)
    with pytest.raises(LimitReached):
        await tools.outcome(owner, "1.0", KEYED, **LINE)
    (record,) = (await other.fence(owner, close=True)).values()
    assert record.state == tool_pb2.CALL_STATE_IN_DOUBT


@pytest.mark.parametrize("tool", first([UNSAFE, KEYED]))
async def test_call_without_effect_is_run_by_any_replica(
    tool_service: StartTools, grants: Grants, outside: Outside, tool: Any
) -> None:
    tools, other = await tool_service(module="tests.busy_tools"), await tool_service()
    owner, _ = grants.claim(), busy(outside, busy_tools.BEFORE)
    with pytest.raises(LimitReached):
        await tools.outcome(owner, "1.0", tool, **LINE)
    assert not outside.lines("a")
    outcome = await other.outcome(owner, "1.0", tool, **LINE)
    assert (outcome.status, outcome.content) == (OutcomeStatus.SUCCEEDED, "Appended.")
    assert len(outside.lines("a")) == 1


@pytest.mark.parametrize(
    ("when", "status"), first([(busy_tools.AFTER, OutcomeStatus.IN_DOUBT), (busy_tools.BEFORE, OutcomeStatus.FAILED)])
)
async def test_repeated_try_later_ends_after_max_attempts(
    tool_service: StartTools, grants: Grants, outside: Outside, when: Any, status: Any
) -> None:
    tools, other = [await tool_service(module="tests.busy_tools") for _ in range(2)]
    owner, _ = grants.claim(), busy(outside, when)
    refusals, outcome = 0, None
    while outcome is None:
        try:
            outcome = await (tools, other)[refusals % 2].outcome(owner, "1.0", KEYED, **LINE)
        except LimitReached:
            refusals += 1
            assert refusals < MAX_ATTEMPTS
    assert outcome.status is status
    assert refusals > 0


@pytest.mark.parametrize(("tool", "status"), first([(UNSAFE, OutcomeStatus.IN_DOUBT), (KEYED, OutcomeStatus.IN_DOUBT)]))
async def test_a_refusal_before_the_record_ends_the_call_everywhere(
    tool_service: StartTools, grants: Grants, outside: Outside, tool: Any, status: Any
) -> None:
    tools, other = await tool_service(failpoints="tools.after_effect=1#error(UNAVAILABLE)"), await tool_service()
    owner = grants.claim()
    outcome = await tools.outcome(owner, "1.0", tool, **LINE)
    assert (outcome.status, outcome.call_attempt) == (status, 1)
    assert await other.outcome(owner, "1.0", tool, **LINE) == outcome
    assert len(outside.lines("a")) == 1


async def test_a_refusal_between_mark_and_effect_removes_the_mark(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, other = await tool_service(failpoints="tools.before_effect=1#error(LIMIT_REACHED)"), await tool_service()
    owner = grants.claim()
    with pytest.raises(LimitReached):
        await tools.outcome(owner, "1.0", UNSAFE, **LINE)
    assert (await other.outcome(owner, "1.0", UNSAFE, **LINE)).status is OutcomeStatus.SUCCEEDED
    assert len(outside.lines("a")) == 1


async def test_an_outcome_waits_for_room_to_be_recorded(
    executor: Executor,  # noqa: F811
    bank: Bank,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after an outage of the database, when many outcomes wait."""
    submit = Batcher.submit
    refusals: list[OutcomeMark] = []

    async def full_at_first(batcher: Any, item: Any) -> Any:
        if isinstance(item, OutcomeMark) and len(refusals) < 2:
            refusals.append(item)
            raise LimitReached("too many finishes wait", retry_after_seconds=0.01)
        return await submit(batcher, item)

    monkeypatch.setattr(Batcher, "submit", full_at_first)
    bank.answers = True
    outcome = await outcome_of(executor, request(bank, EffectClass.UNSAFE))
    assert (outcome.status, outcome.content, len(refusals)) == (OutcomeStatus.SUCCEEDED, "paid", 2)
