"""A task goes through."""

from __future__ import annotations

import asyncio
import uuid

import pytest

from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.installation import Installation, answers, check_whole

COUNTS = ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


async def test_the_research_is_done(installation: Installation) -> None:
    task_id = await installation.submit("research", "research our competitors' pricing")
    task = await installation.ended(task_id)
    entries = await installation.entries(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, task.message
    assert "competitive" in task.result.lower()
    assert task.claim_count == 1
    check_whole(entries)
    outcomes = [entry.body.tool_outcome.outcome for entry in entries if entry.body.HasField("tool_outcome")]
    assert 10 <= len(outcomes) <= 20


async def test_the_bill_is_what_the_model_billed(installation: Installation) -> None:
    task_id = await installation.submit("research")
    task = await installation.ended(task_id)
    calls = installation.model_calls(task_id)
    entries = await installation.entries(task_id)
    assert len(calls) == len(answers(entries))
    billed = {name: sum(call[name] for call in calls) for name in COUNTS}
    assert {name: getattr(task.usage, name) for name in COUNTS} == billed
    assert (task.budget.reserved_tokens, task.budget.used_tokens) == (0, sum(billed.values()))


async def test_a_watcher_sees_live_text_then_every_entry_once(installation: Installation) -> None:
    task_id = await installation.submit("sim-e2e-slow-answer")
    texts: list[str] = []
    sequences: list[int] = []
    async for event in installation.client.watch(task_id, live=True):
        if event.HasField("delta"):
            texts.append(event.delta.text)
            if len(texts) == 3:
                await installation.client.cancel(task_id, "seen enough")
        if event.HasField("entry"):
            sequences.append(event.entry.sequence)
    assert "word" in "".join(texts)
    assert sequences == list(range(1, len(sequences) + 1))


@pytest.mark.faults
async def test_twenty_submits_with_one_request_id_are_one_task(installation: Installation) -> None:
    request = api.SubmitTaskRequest(request_id=str(uuid.uuid4()))
    request.spec.agent.model = "sim-hello"
    tasks = await asyncio.gather(*(installation.client.submit("hello", request=request) for _ in range(20)))
    assert len({task.task_id for task in tasks}) == 1


@pytest.mark.faults
async def test_forty_tasks_at_once_all_end(installation: Installation) -> None:
    ids = await asyncio.gather(*(installation.submit("sim-one-tool") for _ in range(40)))
    ended = await asyncio.gather(*(installation.ended(task_id) for task_id in ids))
    assert {task.state for task in ended} == {task_pb2.TASK_STATE_SUCCEEDED}
