"""Own tools in real workers: killed, frozen, drained and cut off, with their effects counted in a file."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tenure.domain import entries as facts
from tenure.domain.in_doubt import DidNotHappen
from tenure.domain.states import TaskState
from tenure.domain.task import InDoubtPolicy, TaskPolicy
from tenure.domain.tools import OutcomeStatus
from tenure.wire.common import state_name
from tests.conformance.test_worker_outages import say
from tests.fault.test_zombies import logged, stands_still, worker_stack
from tests.support.fix_own_tools import REPEATABLE, Letters

__all__ = ["worker_stack"]  # the fixture: leases short enough to outwait them

pytestmark = pytest.mark.server


@pytest.mark.faults
async def test_a_killed_workers_repeatable_calls_run_again(letters: Letters) -> None:
    killed = await letters.worker()
    task_id = await letters.submit(REPEATABLE)
    await letters.began(*REPEATABLE)
    killed.kill()
    letters.open_gate()
    await letters.worker()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"] * len(REPEATABLE)
    assert {letters.counts()[effect] for effect in REPEATABLE} == {1}
    assert [len(letters.keys(effect)) for effect in REPEATABLE] == [1, 1, 1]


@pytest.mark.faults
async def test_a_killed_workers_unsafe_call_is_in_doubt(letters: Letters) -> None:
    killed = await letters.worker()
    task_id = await letters.submit(["UNSAFE"])
    await letters.began("UNSAFE")
    killed.kill()
    letters.open_gate()
    await letters.worker()
    (came_to,) = await letters.result(task_id)
    assert came_to.startswith("IN_DOUBT")
    assert letters.counts() == Counter({"began-UNSAFE": 1})


@pytest.mark.faults
@pytest.mark.parametrize("effect", ["KEYED", "UNSAFE"])
async def test_an_outcome_that_was_not_sent_is_lost_with_the_worker(letters: Letters, effect: str) -> None:
    """The effect happened, and only the dead worker knew."""
    letters.open_gate()
    dying = await letters.worker(failpoints="worker.after_own_tool=1#kill9")
    task_id = await letters.submit([effect])
    await letters.bench.died(dying)
    await letters.worker()
    (came_to,) = await letters.result(task_id)
    keyed = effect == "KEYED"
    assert came_to.startswith("SUCCEEDED: attempt 2" if keyed else "IN_DOUBT")
    assert letters.counts()[effect] == (2 if keyed else 1)
    assert len(letters.keys(effect)) == 1


@pytest.mark.faults
@pytest.mark.parametrize("effect", ["KEYED", "UNSAFE"])
async def test_a_zombie_that_was_ordered_does_not_begin(letters: Letters, effect: str) -> None:
    """Frozen when the order arrived, and woken after the takeover: its trust window is closed."""
    sleeper = await letters.worker(failpoints="worker.before_own_tool=1#freeze")
    letters.open_gate()
    task_id = await letters.submit([effect])
    await stands_still(sleeper)
    second = await letters.worker()
    (came_to,) = await letters.result(task_id)
    assert came_to.startswith("SUCCEEDED: attempt 2" if effect == "KEYED" else "IN_DOUBT")
    before = letters.lines()
    whole = await letters.bench.entries(task_id)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert letters.lines() == before
    assert letters.counts()[effect] == (1 if effect == "KEYED" else 0)
    assert await letters.bench.entries(task_id) == whole
    assert second.exit_code is None


@pytest.mark.faults
async def test_a_zombie_that_was_running_cannot_record(letters: Letters) -> None:
    """Its coroutine goes on after the takeover, and nothing can stop that; what it sends changes nothing."""
    sleeper = await letters.worker(failpoints="worker.ignore_trust_window;worker.after_own_tool=1#freeze")
    letters.open_gate()
    task_id = await letters.submit(["KEYED"])
    await stands_still(sleeper)
    assert letters.counts()["KEYED"] == 1
    await letters.worker()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"]
    whole = await letters.bench.entries(task_id)
    sleeper.wake()
    await logged(sleeper, '"task left"')
    assert await letters.bench.entries(task_id) == whole
    assert len(letters.keys("KEYED")) == 1


@pytest.mark.faults
async def test_a_person_resolves_an_own_call_in_doubt(letters: Letters) -> None:
    killed = await letters.worker()
    waiting = TaskPolicy(on_in_doubt=InDoubtPolicy.WAIT_FOR_PERSON)
    task_id = await letters.submit(["UNSAFE"], policy=waiting)
    await letters.began("UNSAFE")
    killed.kill()
    await letters.worker()
    await letters.bench.in_state(task_id, TaskState.WAITING_USER)
    letters.open_gate()
    await say(letters.bench, task_id, DidNotHappen(runner_is_gone=True))
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"]
    assert letters.counts() == Counter({"began-UNSAFE": 2, "UNSAFE": 1})


@pytest.mark.faults
@pytest.mark.parametrize("effect", ["KEYED", "UNSAFE"])
async def test_a_run_goes_on_through_a_killed_tool_service(letters: Letters, effect: str) -> None:
    """The worker joins its own run: the effect happens once, and is not in doubt."""
    await letters.worker()
    task_id = await letters.submit([effect])
    await letters.began(effect)
    letters.bench.stack.services["tools"].kill()
    letters.open_gate()
    await letters.bench.restart("tools")
    (came_to,) = await letters.result(task_id)
    assert came_to == "SUCCEEDED: attempt 1"
    assert letters.counts() == Counter({f"began-{effect}": 1, effect: 1})


@pytest.mark.faults
async def test_a_cancel_stops_an_own_tool(letters: Letters) -> None:
    await letters.worker()
    task_id = await letters.submit(["KEYED"])
    await letters.began("KEYED")
    await letters.bench.cancel(task_id)
    assert state_name((await letters.bench.ended(task_id)).state) == TaskState.CANCELLED
    letters.open_gate()
    (outcome,) = await letters.bench.bodies(task_id, facts.ToolOutcome)
    assert outcome.outcome.status is OutcomeStatus.CANCELLED
    assert letters.counts()["KEYED"] == 0


@pytest.mark.faults
async def test_a_drain_waits_for_an_unsafe_tool(letters: Letters) -> None:
    draining = await letters.worker(drain_seconds="30")
    task_id = await letters.submit(["UNSAFE"])
    await letters.began("UNSAFE")
    ending = asyncio.create_task(draining.drain())
    await logged(draining, '"stopping"')
    letters.open_gate()
    assert await ending == 0
    await letters.worker()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"]
    assert letters.counts() == Counter({"began-UNSAFE": 1, "UNSAFE": 1})


@pytest.mark.faults
async def test_a_drain_hands_a_keyed_tool_over(letters: Letters) -> None:
    draining = await letters.worker(drain_seconds="30")
    task_id = await letters.submit(["KEYED"])
    await letters.began("KEYED")
    assert await draining.drain() == 0
    await letters.worker()
    await letters.began("KEYED", times=2)
    letters.open_gate()
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 2"]
    assert letters.counts()["KEYED"] == 1
