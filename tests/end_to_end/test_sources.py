"""A task of each kind of source, from its submit to its close-out, with a worker killed in its middle."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from checker.verify import verify
from tenure.cli.exit_codes import Exit
from tenure.domain.errors import AlreadyExists
from tenure.v1 import schedule_service_pb2 as schedules
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tests.end_to_end.command import tenure
from tests.end_to_end.installation import Installation, check_whole
from tests.end_to_end.test_control import Workers
from tests.end_to_end.test_takeover import check_done
from tests.end_to_end.test_verify import recorded
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.faults

RUN = "2026-11-23"


@pytest.fixture
def workers(own_installation: Installation, tmp_path: Path) -> Iterator[Workers]:
    ours = Workers(own_installation.stack, tmp_path)
    yield ours
    for worker in ours.started:
        worker.kill()


def named(kind: str, source_id: str) -> task_pb2.Source:
    return task_pb2.Source(kind=task_pb2.SourceKind.Value(kind), source_id=source_id, source_run_id=RUN)


async def check_source(install: Installation, task: task_pb2.Task, text: str) -> None:
    """A list and the command show the task under its source, and the checker finds nothing."""
    address = install.stack.gateway_address
    for part in (text, "/".join(text.split("/")[:2])):
        done = await tenure("--json", "list", "--source", part, address=address)
        assert (done.code, [one["task_id"] for one in done.values]) == (Exit.OK, [task.task_id])
    assert text in (await tenure("get", task.task_id, address=address)).out
    assert verify(await recorded(install, task.task_id)) == []


@pytest.mark.parametrize("kind", ["SOURCE_KIND_CONVERSATION", "SOURCE_KIND_SCHEDULER", "SOURCE_KIND_MANUAL"])
async def test_a_run_survives_its_worker_and_stays_one_task(own_installation: Installation, kind: str) -> None:
    install, source_id, file = own_installation, uuid.uuid4().hex, uuid.uuid4().hex
    request = api.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(agent=task_pb2.AgentSpec(model="sim-e2e-paced"), source=named(kind, source_id))
    )
    task_id = (await install.client.submit(file, request=request)).task_id
    await install.until(task_id, "tool_intent", lambda entry: entry.step == 3)
    install.owner(await install.client.get(task_id)).kill()
    assert (await install.client.submit(file, request=request)).task_id == task_id  # with another request_id
    await check_done(install, task_id, file, takeovers=1)
    assert (await install.client.submit(file, request=request)).task_id == task_id
    with pytest.raises(AlreadyExists, match="SOURCE_RUN_REUSED"):
        await install.client.submit("another goal", request=request)
    task = await install.client.get(task_id)
    await check_source(install, task, f"{kind.removeprefix('SOURCE_KIND_').lower()}/{source_id}/{RUN}")


async def test_a_run_of_a_schedule_names_itself(own_installation: Installation) -> None:
    install, file = own_installation, uuid.uuid4().hex
    spec = task_pb2.TaskSpec(goal=file, agent=task_pb2.AgentSpec(model="sim-e2e-paced"))
    create = schedules.CreateScheduleRequest(name=f"yearly-{file}", spec=spec, cron="0 0 1 1 *")
    schedule = (await install.client.schedules.CreateSchedule(create)).schedule
    trigger = schedules.TriggerScheduleRequest(schedule=schedule.schedule_id, request_id="now")
    task = (await install.client.schedules.TriggerSchedule(trigger, timeout=CALL_SECONDS)).task
    await install.until(task.task_id, "tool_intent", lambda entry: entry.step == 3)
    install.owner(await install.client.get(task.task_id)).kill()
    await check_done(install, task.task_id, file, takeovers=1)
    again = (await install.client.schedules.TriggerSchedule(trigger, timeout=CALL_SECONDS)).task
    assert again.task_id == task.task_id
    await check_source(install, task, f"scheduler/{schedule.schedule_id}/trigger/now")


async def test_a_run_of_a_control_function_survives_its_worker(
    own_installation: Installation, workers: Workers
) -> None:
    install, source_id = own_installation, uuid.uuid4().hex
    killed = await workers.start()
    request = api.SubmitTaskRequest(
        spec=task_pb2.TaskSpec(
            queue=workers.queue,
            control=task_pb2.ControlWork(function="records", input_json=workers.given()),
            source=named("SOURCE_KIND_CONTROL", source_id),
        )
    )
    task_id = (await install.client.submit("", request=request)).task_id
    await workers.has_made("total", "gate")
    killed.kill()
    await workers.start()
    await workers.has_made("total", "gate", "gate")
    assert (await install.client.submit("", request=request)).task_id == task_id
    workers.open_gate()
    task = await install.ended(task_id)
    assert (task.state, task.claim_count) == (task_pb2.TASK_STATE_SUCCEEDED, 2)
    assert json.loads(task.result)["total"] == 6
    check_whole(await install.entries(task_id))
    assert sorted(install.effects(workers.queue)) == ["keyed", "last", "total 6"]
    await check_source(install, task, f"control/{source_id}/{RUN}")
