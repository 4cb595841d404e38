"""Own tools in a real worker: what their calls come to, when nothing is killed."""

from __future__ import annotations

import json

import pytest

from tenure.domain import entries as facts
from tenure.domain.states import TaskState
from tenure.domain.tools import EffectClass
from tenure.v1 import task_pb2
from tests.conformance.test_worker_waits import answer
from tests.support.fix_own_tools import REPEATABLE, Letters

pytestmark = pytest.mark.server


async def test_own_tools_run_once_and_are_recorded(letters: Letters) -> None:
    letters.open_gate()
    await letters.worker()
    task_id = await letters.submit([*REPEATABLE, "UNSAFE"])
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"] * 4
    assert {effect: letters.counts()[effect] for effect in EffectClass} == dict.fromkeys(EffectClass, 1)
    outcomes = await letters.bench.bodies(task_id, facts.ToolOutcome)
    assert sorted(outcome.call_id for outcome in outcomes) == ["1.0", "1.1", "1.2", "1.3"]
    assert letters.keys("UNSAFE") == {f"{task_id}/1.3"}


async def test_an_own_tool_waits_for_its_approval(letters: Letters) -> None:
    letters.open_gate()
    await letters.worker()
    task_id = await letters.submit(["UNSAFE"], needs_approval=True)
    task = await letters.bench.in_state(task_id, TaskState.WAITING_USER)
    assert (task.wait.kind, task.wait.tool) == (task_pb2.WAIT_KIND_TOOL_APPROVAL, "write_unsafe")
    assert letters.lines() == []
    await answer(letters.bench, task, "allow")
    assert await letters.result(task_id) == ["SUCCEEDED: attempt 1"]
    assert letters.counts()["UNSAFE"] == 1


@pytest.mark.parametrize(
    ("how", "effect", "answer"),
    [
        ("fail", "KEYED", "FAILED: write_keyed failed: ValueError: out of ink"),
        ("large", "KEYED", "FAILED: write_keyed returned 17000000 bytes, and may return 262144"),
        ("unknown", "UNSAFE", "IN_DOUBT: It is not known whether this call happened: write_unsafe lost the answer"),
        ("unknown", "KEYED", "FAILED: write_keyed lost the answer to what it sent: the post office hung up."),
    ],
)
async def test_what_an_own_tool_comes_to(letters: Letters, how: str, effect: str, answer: str) -> None:
    letters.open_gate()
    await letters.worker()
    (result,) = await letters.result(await letters.submit([effect], how=how))
    assert result.startswith(answer)
    assert letters.counts()[effect] == 1


@pytest.mark.parametrize(("effect", "status"), [("KEYED", "TIMED_OUT"), ("UNSAFE", "IN_DOUBT")])
async def test_an_own_tool_is_stopped_at_its_timeout(letters: Letters, effect: str, status: str) -> None:
    letters.open_gate()
    await letters.worker()
    (result,) = await letters.result(await letters.submit([effect], how="sleep", timeout_seconds=0.5))
    assert result.startswith(status)
    # The worker stops the run. On a busy machine the service gives up before it hears of that, and asked it to stop.
    assert any(f"took longer than 0.5 s and was {how}" in result for how in ("stopped", "asked to stop")), result


async def test_a_name_of_the_tool_service_is_refused(letters: Letters) -> None:
    letters.open_gate()
    await letters.worker()
    task_id = await letters.submit([], function="conflicting")
    task = await letters.bench.ended(task_id)
    assert json.loads(task.result) == "INVALID_ARGUMENTS: TOOL_NAME_TAKEN"
    assert letters.lines() == []
