"""Names of no tool are refused at every call of the gateway that takes names of tools, with the nearest names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest
import pytest_asyncio

from tenure.domain.errors import AlreadyExists, InvalidRequest, NotFound
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import admin_service_pb2, schedule_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tests.support.fix_checkpoint import Checkpoint
from tests.support.fix_gateway import shared_process, stub_of
from tests.support.patience import CALL_SECONDS
from tests.support.service_process import ServiceProcess

MISTAKEN, RIGHT = (task_pb2.ToolAllowlist(names=[name]) for name in ("raed_file", "read_file"))
HINT = "there is no tool 'raed_file'; did you mean read_file"


GATEWAY_HAS_TOOLS: Final = True


@pytest_asyncio.fixture(loop_scope="module")
async def stubs(replica: Checkpoint, shared_gateway_process: ServiceProcess) -> AsyncIterator[Any]:
    """TaskService and ScheduleService of one gateway."""
    async with served_by(shared_gateway_process, replica.tenant) as stubs:
        yield stubs


@asynccontextmanager
async def served_by(process: ServiceProcess, tenant: str) -> AsyncIterator[Any]:
    """TaskService and ScheduleService of the gateway."""
    async with (
        AsyncExitStack() as stack,
        open_channel(process.address, default_timeout_seconds=CALL_SECONDS, tenant=tenant) as channel,
    ):
        yield await stub_of(stack, process, tenant), ScheduleServiceStub(channel)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def without_tools(shared_ledger: Checkpoint) -> AsyncIterator[ServiceProcess]:
    async with shared_process(shared_ledger) as process:
        yield process


@pytest_asyncio.fixture(loop_scope="module")
async def before_and_after(
    replica: Checkpoint, without_tools: ServiceProcess, shared_gateway_process: ServiceProcess
) -> AsyncIterator[tuple[Any, Any]]:
    """The services while any tool may exist, because no tool service answers, and when only the built-in tools exist.

    So the tool of MISTAKEN is one that is gone in the second.
    """
    async with (
        served_by(without_tools, replica.tenant) as before,
        served_by(shared_gateway_process, replica.tenant) as after,
    ):
        yield before, after


def spec(tools: task_pb2.ToolAllowlist, loop: str = "") -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(
        goal="tidy up", agent=task_pb2.AgentSpec(tools=tools, approve_tools=tools.names, loop=loop)
    )


async def refusal_of(call: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        await call
    return dict(refused.value.violations)


async def submitted(tasks: Any, loop: str = "") -> str:
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="a", agent=task_pb2.AgentSpec(loop=loop)))
    task_id: str = (await tasks.SubmitTask(request)).task.task_id
    return task_id


async def test_a_submit_and_a_fork_are_refused(stubs: Any) -> None:
    tasks, _ = stubs
    request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(goal="a", agent=spec(MISTAKEN).agent))
    refused = await refusal_of(tasks.SubmitTask(request))
    assert refused.keys() == {"spec.agent.tools.names", "spec.agent.approve_tools"}
    task_id = await submitted(tasks)
    fork = api.ForkTaskRequest(task_id=task_id, overrides=task_pb2.ForkOverrides(tools=MISTAKEN))
    refused = await refusal_of(tasks.ForkTask(fork))
    assert refused.keys() == {"overrides.tools.names"}
    assert HINT in refused["overrides.tools.names"]
    fork.overrides.tools.CopyFrom(RIGHT)
    assert (await tasks.ForkTask(fork)).task.spec.agent.tools == RIGHT


async def test_a_fork_of_another_loop_may_name_unknown_tools(stubs: Any) -> None:
    tasks, _ = stubs
    task_id = await submitted(tasks, loop="mine")
    fork = api.ForkTaskRequest(task_id=task_id, overrides=task_pb2.ForkOverrides(tools=MISTAKEN))
    assert (await tasks.ForkTask(fork)).task.spec.agent.tools == MISTAKEN


async def test_a_control_function_may_name_tools_of_its_own(stubs: Any) -> None:
    """Its worker brings them with their calls: the tool service does not know them before."""
    tasks, _ = stubs
    control = task_pb2.ControlWork(function="month_end")
    submit = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(control=control, agent=task_pb2.AgentSpec(tools=MISTAKEN)))
    task = (await tasks.SubmitTask(submit)).task
    assert task.spec.agent.tools == MISTAKEN
    fork = api.ForkTaskRequest(task_id=task.task_id, overrides=task_pb2.ForkOverrides(tools=MISTAKEN))
    assert (await tasks.ForkTask(fork)).task.spec.agent.tools == MISTAKEN


async def test_a_schedule_with_an_unknown_tool_is_refused(stubs: Any) -> None:
    _, schedules = stubs
    create = schedule_service_pb2.CreateScheduleRequest(name="nightly", cron="0 0 1 1 *", spec=spec(MISTAKEN))
    refused = await refusal_of(schedules.CreateSchedule(create))
    assert refused.keys() == {"spec.agent.tools.names", "spec.agent.approve_tools"}
    assert HINT in refused["spec.agent.tools.names"]
    create.spec.CopyFrom(spec(RIGHT))
    await schedules.CreateSchedule(create)
    update = schedule_service_pb2.UpdateScheduleRequest(schedule="nightly", spec=spec(MISTAKEN))
    assert (await refusal_of(schedules.UpdateSchedule(update))).keys() == refused.keys()
    cron = schedule_service_pb2.UpdateScheduleRequest(schedule="nightly", cron="0 1 1 1 *")
    assert (await schedules.UpdateSchedule(cron)).schedule.spec.agent.tools == RIGHT
    update.spec.CopyFrom(spec(MISTAKEN, loop="mine"))
    assert (await schedules.UpdateSchedule(update)).schedule.spec.agent.tools == MISTAKEN


async def test_a_repeated_submit_returns_its_task_without_the_tool(before_and_after: Any) -> None:
    (tasks, _), (tasks_after, _) = before_and_after
    request = api.SubmitTaskRequest(request_id="r-1", spec=task_pb2.TaskSpec(goal="a", agent=spec(MISTAKEN).agent))
    submitted = (await tasks.SubmitTask(request)).task
    assert (await tasks_after.SubmitTask(request)).task == submitted
    request.request_id = "r-2"
    assert HINT in (await refusal_of(tasks_after.SubmitTask(request)))["spec.agent.tools.names"]
    request.request_id, request.spec.goal = "r-1", "another"
    with pytest.raises(AlreadyExists) as refused:
        await tasks_after.SubmitTask(request)
    assert refused.value.reason == "REQUEST_ID_REUSED"


async def test_a_repeated_fork_returns_its_task_without_the_tool(before_and_after: Any) -> None:
    """Nor does it matter that the other task is gone."""
    (tasks, _), (tasks_after, _) = before_and_after
    task_id, overrides = await submitted(tasks), task_pb2.ForkOverrides(tools=MISTAKEN)
    fork = api.ForkTaskRequest(request_id="r-1", task_id=task_id, overrides=overrides, without_files=True)
    forked = (await tasks.ForkTask(fork)).task
    assert (await tasks_after.ForkTask(fork)).task == forked
    fork.request_id = "r-2"
    assert HINT in (await refusal_of(tasks_after.ForkTask(fork)))["overrides.tools.names"]
    await tasks.CancelTask(api.CancelTaskRequest(task_id=task_id))
    await tasks.admin.PruneTasks(admin_service_pb2.PruneTasksRequest(task_id=task_id, reason="enough"))
    with pytest.raises(NotFound):
        await tasks_after.ForkTask(fork)
    fork.request_id = "r-1"
    assert (await tasks_after.ForkTask(fork)).task == forked


def settled(answer: Any) -> schedule_service_pb2.Schedule:
    """The schedule without the time of its newest change: a sweep may look at it between two calls."""
    schedule: schedule_service_pb2.Schedule = answer.schedule
    schedule.ClearField("update_time")
    return schedule


async def test_a_repeated_schedule_is_returned_without_the_tool(before_and_after: Any) -> None:
    (_, schedules), (_, schedules_after) = before_and_after
    create = schedule_service_pb2.CreateScheduleRequest(name="nightly", cron="0 0 1 1 *", spec=spec(MISTAKEN))
    created = settled(await schedules.CreateSchedule(create))
    assert settled(await schedules_after.CreateSchedule(create)) == created
    create.name = "weekly"
    assert HINT in (await refusal_of(schedules_after.CreateSchedule(create)))["spec.agent.tools.names"]
    changed_spec = spec(MISTAKEN)
    changed_spec.goal = "tidy up again"
    update = schedule_service_pb2.UpdateScheduleRequest(schedule="nightly", spec=changed_spec)
    updated = settled(await schedules.UpdateSchedule(update))
    assert settled(await schedules_after.UpdateSchedule(update)) == updated
    update.cron = "0 1 1 1 *"
    assert HINT in (await refusal_of(schedules_after.UpdateSchedule(update)))["spec.agent.tools.names"]
