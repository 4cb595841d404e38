"""The ledger records the model and the cap in money of a task whose submit names none."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from tenure.domain.errors import AlreadyExists, InvalidRequest
from tenure.v1 import ledger_pb2, schedule_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tests.support.fix_checkpoint import (
    TIMEOUT_SECONDS,
    MakeCheckpoint,
    answer,
    entry,
    reserve,
)

pytestmark = pytest.mark.server
OPUS, UNPRICED = "claude-opus-4-8", "unpriced"
DOLLAR = 10**9
DEFAULT, SUBMITTED = task_pb2.MONEY_CAP_DEFAULT, task_pb2.MONEY_CAP_SUBMITTED
NONE_UNPRICED = task_pb2.MONEY_CAP_NONE_UNPRICED
NONE_SUBMITTED = task_pb2.MONEY_CAP_NONE_SUBMITTED
NO_CAP = task_pb2.Limits(no_money_cap=True)


def capped(spec: Any) -> Any:
    return spec.agent.model, spec.limits.max_nano_usd, spec.limits.money_cap


async def test_a_task_without_a_model_records_the_ledgers_and_a_cap(
    checkpoint: MakeCheckpoint,
) -> None:
    replica = await checkpoint(default_model=OPUS)
    task = await replica.create()
    first = (await replica.entries(task.task_id))[0].body.submitted.spec
    assert capped(first) == capped(task.spec) == (OPUS, 10 * DOLLAR, DEFAULT)
    assert (task.budget.max_nano_usd, task.budget.max_tokens) == (10 * DOLLAR, 2_000_000)


async def test_a_repeat_after_changed_defaults_is_the_same_task(checkpoint: MakeCheckpoint) -> None:
    before = await checkpoint(default_model=OPUS)
    after = await checkpoint(dsn=before.dsn, default_model=UNPRICED, default_max_usd=0.0)
    task = await before.create("r-1")
    assert await after.create("r-1") == task
    with pytest.raises(AlreadyExists):
        await after.create("r-1", agent=task_pb2.AgentSpec(model=OPUS))


async def fork(replica: Any, task_id: Any, **overrides: Any) -> Any:
    request = tasks_pb.ForkTaskRequest(
        task_id=task_id,
        request_id=str(uuid4()),
        actor="olga",
        message="on",
        overrides=task_pb2.ForkOverrides(**overrides),
    )
    return (await replica.stub.ForkTask(request, timeout=TIMEOUT_SECONDS)).task


async def test_a_fork_keeps_the_tasks_model_and_cap(
    checkpoint: MakeCheckpoint,
) -> None:
    old = await checkpoint()
    uncapped = await old.create()
    replica = await checkpoint(dsn=old.dsn, default_model=OPUS)
    assert capped((await fork(replica, uncapped.task_id)).spec) == (OPUS, 10 * DOLLAR, DEFAULT)
    other = await checkpoint(dsn=old.dsn, default_model=UNPRICED, default_max_usd=3.0)
    task = await replica.create()
    forked = await fork(other, task.task_id)
    assert capped(forked.spec) == (OPUS, 10 * DOLLAR, DEFAULT)
    assert forked.budget.max_nano_usd == 10 * DOLLAR
    own = await fork(other, task.task_id, limits=task_pb2.Limits(max_nano_usd=7))
    assert capped(own.spec) == (OPUS, 7, SUBMITTED)


async def test_a_default_cap_does_not_follow_to_an_unpriced_model(
    checkpoint: MakeCheckpoint,
) -> None:
    replica = await checkpoint(default_model=OPUS)
    by_default = await replica.create()
    forked = await fork(replica, by_default.task_id, model=UNPRICED)
    assert (*capped(forked.spec), forked.budget.max_nano_usd) == (UNPRICED, 0, NONE_UNPRICED, 0)
    submitted = await replica.create(limits=task_pb2.Limits(max_nano_usd=5))
    assert capped((await fork(replica, submitted.task_id, model=UNPRICED)).spec) == (UNPRICED, 5, SUBMITTED)


async def test_a_fork_keeps_an_opt_out_of_the_money_cap(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint(default_model=OPUS)
    uncapped = await replica.create(limits=NO_CAP)
    kept = await fork(replica, uncapped.task_id)
    assert (*capped(kept.spec), kept.budget.max_nano_usd) == (OPUS, 0, NONE_SUBMITTED, 0)
    own = await fork(replica, kept.task_id, limits=task_pb2.Limits(max_nano_usd=7))
    assert capped(own.spec) == (OPUS, 7, SUBMITTED)
    again = await fork(replica, own.task_id)
    assert capped(again.spec) == (OPUS, 7, SUBMITTED)
    freed = await fork(replica, again.task_id, limits=NO_CAP)
    assert (*capped(freed.spec), freed.budget.max_nano_usd) == (OPUS, 0, NONE_SUBMITTED, 0)


async def test_a_cap_and_no_cap_at_once_are_refused(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint(default_model=OPUS)
    both = task_pb2.Limits(max_nano_usd=5, no_money_cap=True)
    with pytest.raises(InvalidRequest, match="no_money_cap"):
        await replica.create(limits=both)
    task = await replica.create()
    with pytest.raises(InvalidRequest, match="no_money_cap"):
        await fork(replica, task.task_id, limits=both)


async def test_sub_agents_have_their_parents_model_and_a_share(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint(default_model=OPUS)
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve(model=OPUS))
    call = ledger_pb2.ToolIntent(
        call_id="1.0", tool_use_id="use", tool="spawn_sub_agents", arguments_json='{"goals": ["a", "b"]}'
    )
    await owner.commit(answer(text="so far"), entry(1, tool_intent=call))
    spawned = (await replica.entries(owner.task.task_id))[-1].body.sub_agents_spawned
    child = await replica.get(spawned.task_ids[0])
    model, nano_usd, money_cap = capped(child.spec)
    assert (model, money_cap) == (OPUS, DEFAULT)
    assert 0 < nano_usd < 10 * DOLLAR


@pytest.mark.parametrize(
    ("limits", "expected"), [(None, (OPUS, 10 * DOLLAR, DEFAULT)), (NO_CAP, (OPUS, 0, NONE_SUBMITTED))]
)
async def test_a_schedules_run_has_the_default_model_and_cap(
    checkpoint: MakeCheckpoint, limits: Any, expected: Any
) -> None:
    replica = await checkpoint(default_model=OPUS)
    schedules = ScheduleServiceStub(replica.channel)
    spec = task_pb2.TaskSpec(goal="go", limits=limits)
    request = schedule_service_pb2.CreateScheduleRequest(name="yearly", spec=spec, cron="0 0 1 1 *")
    made = (await schedules.CreateSchedule(request, timeout=TIMEOUT_SECONDS)).schedule
    run = schedule_service_pb2.TriggerScheduleRequest(schedule=made.schedule_id)
    task = (await schedules.TriggerSchedule(run, timeout=TIMEOUT_SECONDS)).task
    assert capped(task.spec) == expected
    assert made.spec.agent.model == "", "the schedule follows a later default"
