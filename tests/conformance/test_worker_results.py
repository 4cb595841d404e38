"""A worker and the final answers of tasks whose result must fit a schema."""

from __future__ import annotations

import json
from typing import Any

from tenure.domain import entries as facts
from tenure.domain.task import TaskPolicy
from tenure.runtime.schema_process import validate_in_child
from tenure.wire.common import state_name
from tests.support.fix_worker import WorkerBench

SCHEMA = json.dumps({"type": "object", "properties": {"price": {"type": "integer"}}, "required": ["price"]})


async def rejections_of(bench: Any, task_id: Any) -> Any:
    """What the agent was told, and at which step."""
    return [
        (entry.step, entry.body.violations)
        for entry in await bench.entries(task_id)
        if isinstance(entry.body, facts.ResultRejected)
    ]


async def test_an_answer_that_is_no_result_is_corrected(bench: WorkerBench) -> None:
    await bench.start_worker()
    plain = await bench.ended(await bench.submit("sim-worker-shaped"))
    assert (plain.result, plain.result_json) == ("It costs three.", "")
    task_id = await bench.submit("sim-worker-shaped", result_schema_json=SCHEMA)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason, task.result_json) == ("SUCCEEDED", "FINAL_ANSWER", '{"price": 3}')
    assert task.result == '```json\n{"price": 3}\n```'
    first, second = await rejections_of(bench, task_id)
    assert (first[0], "is not valid JSON" in first[1][0]) == (1, True)
    assert second == (2, ("$.price: 'three' is not of type 'integer'",))
    knows = (await bench.bodies(task_id, facts.ModelAttempt))[0]
    knows_not = (await bench.bodies(plain.task_id, facts.ModelAttempt))[0]
    assert knows.input_tokens > knows_not.input_tokens + len(SCHEMA) // 8


async def test_after_the_last_correction_the_task_fails(bench: WorkerBench) -> None:
    await bench.start_worker()
    policy = TaskPolicy(max_result_corrections=1)
    task_id = await bench.submit("sim-worker-shaped", result_schema_json=SCHEMA, policy=policy)
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.reason, task.result_json) == ("FAILED", "RESULT_INVALID", "")
    assert ("after 1 corrections" in task.message, '"three"' in task.result) == (True, True)
    assert len(bench.model_calls(task_id)) == 2


async def test_a_crash_between_answer_and_correction_costs_nothing(bench: WorkerBench) -> None:
    """The answer is in the ledger: the successor judges it alike, and asks for the next one only."""
    victim = await bench.start_worker(failpoints="worker.before_correction=1#kill9")
    task_id = await bench.submit("sim-worker-shaped", result_schema_json=SCHEMA)
    assert await bench.died(victim) != 0
    assert await rejections_of(bench, task_id) == []
    await bench.start_worker()
    task = await bench.ended(task_id)
    assert (state_name(task.state), task.result_json) == ("SUCCEEDED", '{"price": 3}')
    assert [step for step, _ in await rejections_of(bench, task_id)] == [1, 2]
    answers = [entry.step for entry in await bench.entries(task_id) if isinstance(entry.body, facts.AssistantMessage)]
    assert (answers, len(bench.model_calls(task_id))) == ([1, 2, 3], 3)


async def test_an_endless_schema_check_is_abandoned() -> None:
    """A pattern with exponential backtracking: matched in the worker itself, it would stop all its tasks."""
    hostile = json.dumps({"type": "string", "pattern": "^(a+)+$"})
    judgement = await validate_in_child(hostile, json.dumps("a" * 60 + "!"), cpu_seconds=2)
    assert "in time" in judgement.violations[0]
    assert (await validate_in_child(hostile, '"aaa"')).result_json == '"aaa"'
