"""A repeat of a request with its request id gets the first answer, whatever the task has done meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from tenure.domain.in_doubt import Happened
from tenure.v1 import (
    admin_service_pb2,
    agent_service_pb2,
    api_key_service_pb2,
    approval_service_pb2,
    audit_service_pb2,
    lease_service_pb2,
    ledger_pb2,
    schedule_service_pb2,
    task_pb2,
    task_service_pb2,
    tenant_service_pb2,
    tool_pb2,
    webhook_service_pb2,
)
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from tenure.wire.common import timestamp
from tenure.wire.tool import decision_to_wire
from tests.conformance.test_ledger_in_doubt import in_doubt
from tests.conformance.test_ledger_in_doubt import waiting as waiting_in_doubt
from tests.conformance.test_ledger_operator_waits import begin
from tests.conformance.test_ledger_operators import ended, requeue
from tests.conformance.test_ledger_signals import waiting as waiting_for_event
from tests.conformance.test_ledger_waits import say
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, entry
from tests.support.fix_gateway import StubOfTenant

pytestmark = pytest.mark.server
admin, tasks, schedules = admin_service_pb2, task_service_pb2, schedule_service_pb2
CONTRACTS = (
    admin_service_pb2,
    agent_service_pb2,
    api_key_service_pb2,
    approval_service_pb2,
    audit_service_pb2,
    lease_service_pb2,
    schedule_service_pb2,
    task_service_pb2,
    tenant_service_pb2,
    webhook_service_pb2,
)
FAILED, QUEUED = task_pb2.TASK_STATE_FAILED, task_pb2.TASK_STATE_QUEUED
RUNNING, WAITING_USER = task_pb2.TASK_STATE_RUNNING, task_pb2.TASK_STATE_WAITING_USER
ELSEWHERE = {
    "TaskService.UndoTask": "tests/conformance/test_ledger_undo.py",
    "LeaseService.AcquireLease": "a lease that went on is lost: tests/conformance/test_leases.py",
    "LeaseService.TransferLease": "a lease that went on is lost: tests/conformance/test_leases.py",
    "ApprovalService.AnswerByLink": "links are of people: tests/edges/answer_links/test_answer_links.py",
}


class PreparedRequest(NamedTuple):
    """A request, how it is sent, and its task if it has one before."""

    send: Callable[[], Awaitable[Any]]
    task_id: str = ""


class World(NamedTuple):
    """A ledger and a gateway before it."""

    ledger: Checkpoint
    gateway: Any

    def prepared(self, service: Any, method: str, request: Any) -> PreparedRequest:
        def send() -> Awaitable[Any]:
            sent: Awaitable[Any] = getattr(service, method)(request, timeout=TIMEOUT_SECONDS)
            return sent

        return PreparedRequest(send, getattr(request, "task_id", ""))

    def of_tasks(self, method: str, **fields: Any) -> PreparedRequest:
        kind = getattr(tasks, f"{method}Request")
        return self.prepared(self.gateway, method, kind(**{"request_id": str(uuid4()), **fields}))

    def of_admin(self, method: str, **fields: Any) -> PreparedRequest:
        kind = getattr(admin, f"{method}Request")
        given = {"request_id": str(uuid4()), "reason": "the provider is back", **fields}
        return self.prepared(self.gateway.admin, method, kind(**given))

    def act(self, task_id: str, **act: Any) -> PreparedRequest:
        request = admin.ActOnTasksRequest(
            operation_id=str(uuid4()),
            filter=task_pb2.TaskFilter(task_ids=[task_id]),
            reason="the provider is back",
            tasks_per_second=1000,
            **act,
        )
        return PreparedRequest(self.prepared(self.gateway.admin, "ActOnTasks", request).send, task_id)


Make = Callable[[World], Awaitable[PreparedRequest]]


def wait_of_operator() -> dict[str, Any]:
    return {"question": "the supplier's reply", "until": timestamp(datetime.now(UTC) + timedelta(hours=1))}


async def submit(world: World) -> PreparedRequest:
    return world.of_tasks("SubmitTask", spec=task_pb2.TaskSpec(goal="do it"))


async def message(world: World) -> PreparedRequest:
    return world.of_tasks("SendMessage", task_id=(await world.ledger.create()).task_id, text="Hurry up")


async def fork(world: World) -> PreparedRequest:
    """At the ledger: a gateway asks the tool service for the files first."""
    task_id = (await ended(world.ledger)).task.task_id
    request = tasks.ForkTaskRequest(task_id=task_id, request_id=str(uuid4()), actor="ada", message="again")
    return world.prepared(world.ledger.stub, "ForkTask", request)


async def answer(world: World) -> PreparedRequest:
    task = await begin(world.ledger, (await world.ledger.create()).task_id)
    return world.of_tasks("ResumeTask", task_id=task.task_id, wait_id=task.wait.wait_id, decision="continue")


async def event(world: World) -> PreparedRequest:
    name = f"order-{uuid4()}"
    task_id = await waiting_for_event(world.ledger, name)
    prepared = world.of_tasks("ResumeTask", correlation_id=name, payload_json="{}")
    return prepared._replace(task_id=task_id)


async def requeue_(world: World) -> PreparedRequest:
    return world.of_admin("RequeueTask", task_id=(await ended(world.ledger)).task.task_id)


async def grant(world: World) -> PreparedRequest:
    task = await world.ledger.create(limits=task_pb2.Limits(max_tokens=10_000))
    return world.of_admin("GrantBudget", task_id=task.task_id, extra_tokens=1000)


async def end(world: World) -> PreparedRequest:
    return world.of_admin("CloseOutTask", task_id=(await world.ledger.create()).task_id, to_state=FAILED)


async def wait(world: World) -> PreparedRequest:
    return world.of_admin("BeginWait", task_id=(await world.ledger.create()).task_id, **wait_of_operator())


async def resolve(world: World) -> PreparedRequest:
    task = await waiting_in_doubt(world.ledger, *in_doubt(_1_0=1))
    decision = decision_to_wire(Happened("paid"))
    return world.of_admin("ResolveInDoubtCall", task_id=task.task_id, call_id="1.0", call_attempt=1, decision=decision)


async def cancel_many(world: World) -> PreparedRequest:
    return world.act((await world.ledger.create()).task_id, cancel=admin.ActOnTasksRequest.Cancel())


async def requeue_many(world: World) -> PreparedRequest:
    return world.act((await ended(world.ledger)).task.task_id, requeue=ledger_pb2.OperatorRequest.Requeue())


async def wait_many(world: World) -> PreparedRequest:
    begun = ledger_pb2.OperatorRequest.BeginWait(**wait_of_operator())
    return world.act((await world.ledger.create()).task_id, begin_wait=begun)


async def end_wait_many(world: World) -> PreparedRequest:
    task = await begin(world.ledger, (await world.ledger.create()).task_id)
    return world.act(task.task_id, end_wait=admin.ActOnTasksRequest.EndWait())


async def trigger(world: World) -> PreparedRequest:
    stub: Any = ScheduleServiceStub(world.gateway.channel)
    create = schedules.CreateScheduleRequest(
        name=f"nightly-{uuid4()}", spec=task_pb2.TaskSpec(goal="g"), cron="0 7 * * *"
    )
    schedule = (await stub.CreateSchedule(create, timeout=TIMEOUT_SECONDS)).schedule
    request = schedules.TriggerScheduleRequest(schedule=schedule.schedule_id, request_id=str(uuid4()))
    return world.prepared(stub, "TriggerSchedule", request)


MAKES: dict[str, Make] = {
    "TaskService.SubmitTask": submit,
    "TaskService.SendMessage": message,
    "TaskService.ForkTask": fork,
    "TaskService.ResumeTask": answer,
    "TaskService.ResumeTask event": event,
    "AdminService.RequeueTask": requeue_,
    "AdminService.GrantBudget": grant,
    "AdminService.CloseOutTask": end,
    "AdminService.BeginWait": wait,
    "AdminService.ResolveInDoubtCall": resolve,
    "AdminService.ActOnTasks cancel": cancel_many,
    "AdminService.ActOnTasks requeue": requeue_many,
    "AdminService.ActOnTasks begin_wait": wait_many,
    "AdminService.ActOnTasks end_wait": end_wait_many,
    "ScheduleService.TriggerSchedule": trigger,
}


async def runs(ledger: Checkpoint, task_id: str) -> None:
    """A worker has the task, which no operator lets wait any more."""
    task = await ledger.get(task_id)
    if task.state == WAITING_USER:
        task = await say(ledger, task, decision="continue")
    if task.state not in {QUEUED, RUNNING}:
        await requeue(ledger, task_id)
    await ledger.claim(task_id)


async def waits_again(ledger: Checkpoint, task_id: str) -> None:
    await runs(ledger, task_id)
    owner = await ledger.claim(task_id)
    await begin(ledger, task_id)
    await ledger.requeue(owner)
    assert (await ledger.get(task_id)).state == WAITING_USER


async def has_ended(ledger: Checkpoint, task_id: str) -> None:
    await runs(ledger, task_id)
    owner = await ledger.claim(task_id)
    bodies = [one.body for one in owner.entries]
    outcome = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="done")
    calls = {one.tool_intent.call_id for one in bodies} - {one.tool_outcome.call_id for one in bodies}
    outcomes = [entry(1, tool_outcome=ledger_pb2.ToolOutcome(call_id=call, outcome=outcome)) for call in calls]
    end = pb.Transition(to_state=FAILED, reason="MODEL_UNAVAILABLE", message="gone")
    await owner.commit(*outcomes, transition=end)


@pytest.mark.parametrize("goes_on", [runs, waits_again, has_ended])
@pytest.mark.parametrize("method", MAKES)
async def test_a_repeat_gets_the_first_answer(
    replica: Checkpoint, shared_gateway: StubOfTenant, method: str, goes_on: Any
) -> None:
    prepared = await MAKES[method](World(replica, await shared_gateway()))
    first = await prepared.send()
    task_id = prepared.task_id if hasattr(first, "outcomes") else first.task.task_id
    await goes_on(replica, task_id)
    before = await replica.get(task_id)
    again = await prepared.send()
    after = await replica.get(task_id)
    assert (after.sequence, after.state, after.epoch) == (before.sequence, before.state, before.epoch)
    if hasattr(first, "outcomes"):
        (outcome,) = again.outcomes
        assert (outcome.result, outcome.state) == (admin.ACT_RESULT_ALREADY, after.state)
    else:
        assert again.task == after


def _methods() -> Iterator[str]:
    for contract in CONTRACTS:
        service: ServiceDescriptor
        for service in contract.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                if {"request_id", "operation_id"} & set(method.input_type.fields_by_name):
                    yield f"{service.name}.{method.name}"


def test_every_method_with_a_request_id_has_a_case() -> None:
    assert {method.partition(" ")[0] for method in MAKES} | set(ELSEWHERE) == set(_methods())
