"""Names of no tool are refused at every call of the gateway that takes names of tools, with the nearest names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenure.domain.errors import InvalidRequest
from tenure.runtime.rpc_client import open_channel
from tenure.v1 import schedule_service_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_gateway import Serve
from tests.support.fix_tools import StartTools
from tests.support.patience import CALL_SECONDS

MISTAKEN, RIGHT = (task_pb2.ToolAllowlist(names=[name]) for name in ("raed_file", "read_file"))
HINT = "there is no tool 'raed_file'; did you mean read_file"


@pytest.fixture
async def doors(checkpoint: MakeCheckpoint, tool_service: StartTools, gateway: Serve) -> AsyncIterator[Any]:
    """TaskService and ScheduleService of one gateway."""
    replica, tools = await checkpoint(), await tool_service()
    stub = await gateway(replica.address, tools=tools.address)
    async with open_channel(stub.process.address, default_timeout_seconds=CALL_SECONDS, tenant="default") as channel:
        yield stub, ScheduleServiceStub(channel)


def spec(tools: task_pb2.ToolAllowlist, loop: str = "") -> task_pb2.TaskSpec:
    return task_pb2.TaskSpec(
        goal="tidy up", agent=task_pb2.AgentSpec(tools=tools, approve_tools=tools.names, loop=loop)
    )


async def refusal_of(call: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequest) as refused:
        await call
    return dict(refused.value.violations)


async def submitted(tasks: Any, loop: str = "") -> str:
    request = api.SubmitTaskRequest(goal="a", agent=task_pb2.AgentSpec(loop=loop))
    task_id: str = (await tasks.SubmitTask(request)).task.task_id
    return task_id


async def test_a_submit_and_a_fork_are_refused(doors: Any) -> None:
    tasks, _ = doors
    request = api.SubmitTaskRequest(goal="a", agent=spec(MISTAKEN).agent)
    refused = await refusal_of(tasks.SubmitTask(request))
    assert refused.keys() == {"agent.tools.names", "agent.approve_tools"}
    task_id = await submitted(tasks)
    fork = api.ForkTaskRequest(task_id=task_id, overrides=task_pb2.ForkOverrides(tools=MISTAKEN))
    refused = await refusal_of(tasks.ForkTask(fork))
    assert refused.keys() == {"overrides.tools.names"}
    assert HINT in refused["overrides.tools.names"]
    fork.overrides.tools.CopyFrom(RIGHT)
    assert (await tasks.ForkTask(fork)).task.spec.agent.tools == RIGHT


async def test_a_fork_of_another_loop_may_name_unknown_tools(doors: Any) -> None:
    tasks, _ = doors
    task_id = await submitted(tasks, loop="mine")
    fork = api.ForkTaskRequest(task_id=task_id, overrides=task_pb2.ForkOverrides(tools=MISTAKEN))
    assert (await tasks.ForkTask(fork)).task.spec.agent.tools == MISTAKEN


async def test_a_schedule_with_an_unknown_tool_is_refused(doors: Any) -> None:
    _, schedules = doors
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
