"""A budget is never overshot by reservations, also by those at once, and every token is billed once."""

from __future__ import annotations

from typing import Any

import pytest

from tenure.v1 import task_pb2
from tests.support.fix_checkpoint import Checkpoint, answer, kinds, reserve, words

CAP = 10_000


async def test_a_reserve_is_clamped_to_what_is_left(replica: Checkpoint) -> None:
    task = await replica.create(limits=task_pb2.Limits(max_tokens=1_000))
    owner = await replica.claim(task.task_id)
    granted = (await owner.commit(reserve=reserve(input_tokens=400, output=5_000))).reserve.granted
    assert (granted.max_output_tokens, granted.reserved_tokens) == (600, 1_000)


@pytest.mark.parametrize(
    ("limits", "expected", "reason"),
    [
        (task_pb2.Limits(max_tokens=100), reserve(input_tokens=100, least=1), "TOKEN_LIMIT"),
        (task_pb2.Limits(max_steps=1), reserve(step=2), "STEP_LIMIT"),
    ],
)
async def test_a_denied_reserve_does_not_fail_its_commit(
    replica: Checkpoint, limits: Any, expected: Any, reason: str
) -> None:
    owner = await replica.claim((await replica.create(limits=limits)).task_id)
    response = await owner.commit(words(), reserve=expected)
    assert response.reserve.denied.reason == reason
    assert kinds(await replica.entries(owner.task.task_id))[-1] == "user_message"
    assert response.budget.reserved_tokens == 0


async def test_open_reservations_of_siblings_mean_wait_and_not_end(
    replica: Checkpoint, other_replica: Checkpoint
) -> None:
    root = await replica.create(limits=task_pb2.Limits(max_tokens=CAP))
    sibling = await replica.create()
    await replica.query("update ledger.tasks set root_task_id = %s where task_id = %s", root.task_id, sibling.task_id)
    one, two = await replica.claim(root.task_id), await other_replica.claim(sibling.task_id)
    await one.commit(reserve=reserve(input_tokens=CAP - 100, output=50))
    assert (await two.commit(reserve=reserve(input_tokens=90))).reserve.denied.reason == "BUDGET_BUSY"
    await one.commit(answer(tokens=10))
    assert (await two.commit(reserve=reserve(input_tokens=90))).reserve.HasField("granted")


async def test_a_lost_attempt_is_billed_by_its_reported_usage(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve(input_tokens=70, output=30))
    await replica.requeue(owner, output_tokens=12)
    task = await replica.get(owner.task.task_id)
    assert (task.usage.input_tokens, task.usage.output_tokens) == (70, 12)
    assert (task.budget.used_tokens, task.budget.reserved_tokens) == (82, 0)


async def test_usage_beyond_the_estimate_is_billed_in_full(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create(limits=task_pb2.Limits(max_tokens=100))).task_id)
    await owner.commit(reserve=reserve(input_tokens=10, output=50))
    budget = (await owner.commit(answer(tokens=150))).budget
    assert (budget.used_tokens, budget.reserved_tokens) == (150, 0)
    assert (await owner.commit(reserve=reserve(step=2))).reserve.denied.reason == "TOKEN_LIMIT"
