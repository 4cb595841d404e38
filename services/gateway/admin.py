"""AdminService: the lists and requests of operators that ask several services, or act on a task in the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

from services.gateway.client_fields import caller
from services.gateway.external_entries import append_act, append_external
from services.gateway.forwarder import Forwarder
from services.gateway.in_doubt import list_in_doubt, prove
from services.gateway.peers import Peers, read_task, with_retries
from services.gateway.stops import begin_stop, end_stop
from services.gateway.task_acts import STILL_HELD, act_on_page, count_tasks
from tenure.domain.access import Permission
from tenure.domain.errors import InvalidRequest, Unavailable, WrongState
from tenure.domain.fencing import describe_epoch
from tenure.domain.states import Reason
from tenure.domain.waits import CONTINUE
from tenure.runtime.request_context import current_tenant
from tenure.runtime.schema_checks import validate_in_child
from tenure.runtime.security.access_control import ANYONE, current_principal
from tenure.v1 import admin_service_pb2 as api
from tenure.v1 import checkpoint_service_pb2 as ledger
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import tool_service_pb2 as tools
from tenure.wire.access import PERMISSIONS
from tenure.wire.common import seconds, state_name


class Identity(NamedTuple):
    """What a gateway is a part of: its installation, and the data folder of a development stack."""

    installation: str = ""
    stack_folder: str = ""


class AdminServicer(Forwarder):
    """All writes go through the same fences as those of every other writer."""

    def __init__(self, peers: Peers, identity: Identity) -> None:
        super().__init__("AdminService", peers)
        self._identity = identity

    async def GetCaller(self, _request: api.GetCallerRequest, _context: Any) -> api.GetCallerResponse:
        principal = current_principal()
        return api.GetCallerResponse(
            tenant=current_tenant(),
            subject=caller(),
            permissions=[PERMISSIONS.to_wire(one) for one in Permission if one in principal.permissions],
            authenticated=principal is not ANYONE,
            any_tenant=principal.tenant is None,
            installation=self._identity.installation,
            stack_folder=self._identity.stack_folder,
        )

    async def ListInDoubtCalls(
        self, request: api.ListInDoubtCallsRequest, _context: Any
    ) -> api.ListInDoubtCallsResponse:
        return await list_in_doubt(self._peers, request)

    async def ResolveInDoubtCall(
        self, request: api.ResolveInDoubtCallRequest, _context: Any
    ) -> api.ResolveInDoubtCallResponse:
        await prove(self._peers, request)
        return api.ResolveInDoubtCallResponse(task=(await append_act(self._peers, request, "resolve_call")).task)

    async def ListClaims(self, request: api.ListClaimsRequest, _context: Any) -> api.ListClaimsResponse:
        listed = await with_retries(lambda: self._peers.coordinator.ListClaims(request))
        await self._peers.add_renewals(listed.claims, request.task_id)
        return listed

    async def ListRefusals(self, request: api.ListRefusalsRequest, _context: Any) -> api.ListRefusalsResponse:
        """Asks the ledger first: it knows the task's tenant, and the tool service knows only tasks with calls."""
        ledger_request = ledger.ListRefusedWritesRequest(task_id=request.task_id)
        writes = await with_retries(lambda: self._peers.checkpoint.ListRefusedWrites(ledger_request))
        of_tools = tools.ListRefusedCallsRequest(task_id=request.task_id)
        calls = await with_retries(lambda: self._peers.tools.ListRefusedCalls(of_tools))
        return api.ListRefusalsResponse(ledger=writes.refused_writes, tools=calls.refused_calls)

    async def ListCalls(self, request: api.ListCallsRequest, _context: Any) -> api.ListCallsResponse:
        """Checks the task's tenant in the ledger, with the first page only."""
        if not request.after_call_id:
            await read_task(self._peers, request.task_id)
        return await with_retries(lambda: self._peers.tools.ListCalls(request))

    async def RequeueTask(self, request: api.RequeueTaskRequest, _context: Any) -> api.RequeueTaskResponse:
        return api.RequeueTaskResponse(task=(await append_act(self._peers, request, "requeue")).task)

    async def GrantBudget(self, request: api.GrantBudgetRequest, _context: Any) -> api.GrantBudgetResponse:
        return api.GrantBudgetResponse(task=(await append_act(self._peers, request, "grant_budget")).task)

    async def CloseOutTask(self, request: api.CloseOutTaskRequest, _context: Any) -> api.CloseOutTaskResponse:
        """Requests an end. The result of a success must fit the task's result schema, as an agent's answer must."""
        if request.to_state == task_pb2.TASK_STATE_SUCCEEDED:
            task = await read_task(self._peers, request.task_id)
            request.result = await _fitting_result(task.spec.result_schema_json, request.result)
        return api.CloseOutTaskResponse(task=(await append_act(self._peers, request, "close_out")).task)

    async def BeginWait(self, request: api.BeginWaitRequest, _context: Any) -> api.BeginWaitResponse:
        """Records the wait, and ends the claim that the task has: the wait begins when the claim is released."""
        appended = await append_act(self._peers, request, "begin_wait")
        return api.BeginWaitResponse(task=await self._without_claim(appended, request.reason))

    async def _without_claim(self, appended: ledger.AppendForeignResponse, reason: str) -> task_pb2.Task:
        """Ends the claim for whose end a wait waits. A repeat after the wait leaves the task to its present worker."""
        task = appended.task
        if task.state == task_pb2.TASK_STATE_RUNNING and not appended.wait_has_begun:
            task = await self._end_claim(task, task.epoch, reason)
        return task

    async def ActOnTasks(self, request: api.ActOnTasksRequest, _context: Any) -> api.ActOnTasksResponse:
        if request.dry_run:
            return await count_tasks(self._peers, request)
        return await act_on_page(self._peers, request, lambda task: self._act(request, task))

    async def _act(self, request: api.ActOnTasksRequest, task: task_pb2.Task) -> task_pb2.Task:
        """Acts on one task. The operation's id is the request id: a repeat changes nothing."""
        append = partial(append_external, self._peers, task.task_id, request.operation_id)
        match request.WhichOneof("act"):
            case "cancel":
                return (await append(cancel_request=ledger_pb2.CancelRequest(reason=request.reason))).task
            case "requeue":
                requeue = ledger_pb2.OperatorRequest(reason=request.reason, requeue=request.requeue)
                return (await append(operator_request=requeue)).task
            case "begin_wait":
                wait = ledger_pb2.OperatorRequest(reason=request.reason, begin_wait=request.begin_wait)
                return await self._without_claim(await append(operator_request=wait), request.reason)
            case _:
                # Without the id of the wait: a repeat, while the task waits again, is the same request.
                return (await append(wait_answer=ledger.WaitAnswer(decision=CONTINUE, comment=request.reason))).task

    async def TransferTask(self, request: api.TransferTaskRequest, _context: Any) -> api.TransferTaskResponse:
        """Transfers a task. The ledger names the epoch and later shows the result: only that claim is ended."""
        task = await read_task(self._peers, request.task_id)
        epoch = request.epoch or task.epoch
        if is_held(task, epoch):
            task = await self._end_claim(task, epoch, request.reason, request.to_worker_id)
        elif not transferred(task, epoch):
            raise task_not_running(task)
        return api.TransferTaskResponse(task=task)

    async def _end_claim(self, task: task_pb2.Task, epoch: int, reason: str, to_worker_id: str = "") -> task_pb2.Task:
        """Ends the claim of this epoch and returns the task. Raises `still_held` until the ledger has released it."""
        coordinator_request = api.TransferTaskRequest(
            task_id=task.task_id, epoch=epoch, actor=caller(), reason=reason, to_worker_id=to_worker_id
        )
        await with_retries(lambda: self._peers.coordinator.TransferTask(coordinator_request))
        task = await read_task(self._peers, task.task_id)
        if is_held(task, epoch):  # its claim is gone from etcd, but the ledger has not requeued it yet
            raise still_held(task)
        return task

    async def BeginStop(self, request: api.BeginStopRequest, _context: Any) -> api.BeginStopResponse:
        return await begin_stop(self._peers, request)

    async def EndStop(self, request: api.EndStopRequest, _context: Any) -> api.EndStopResponse:
        return await end_stop(self._peers, request)

    async def ListAgingTasks(self, request: api.ListAgingTasksRequest, _context: Any) -> api.ListAgingTasksResponse:
        ledger_request = ledger.ListAgingRequest(
            view=request.view,
            states=request.states,
            idle=request.idle if request.HasField("idle") else None,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        page = await with_retries(lambda: self._peers.checkpoint.ListAging(ledger_request))
        try:
            claims = await self._claims_of(page.tasks)
        except Unavailable:
            claims = None
        return api.ListAgingTasksResponse(
            tasks=aging_with_leases(page.tasks, claims, request),
            next_page_token=page.next_page_token,
            leases_unknown=claims is None,
        )

    async def _claims_of(self, tasks: Sequence[task_pb2.AgingTask]) -> list[api.Claim]:
        """Returns the claims of all tasks with one request, if any of these tasks is held."""
        if not any(task.owner for task in tasks):
            return []
        request = api.ListClaimsRequest()
        return list((await with_retries(lambda: self._peers.coordinator.ListClaims(request))).claims)


async def _fitting_result(schema_json: str, result: str) -> str:
    """Returns the result as the ledger stores it. Raises InvalidRequest if it does not fit the schema ("": none)."""
    if not schema_json:
        return result
    validation = await validate_in_child(schema_json, result)
    if validation.violations:
        listed = "; ".join(validation.violations)
        raise InvalidRequest(violations=[("result", f"does not fit the result schema of the task: {listed}")])
    return validation.result_json


def aging_with_leases(
    tasks: Sequence[task_pb2.AgingTask], claims: Sequence[api.Claim] | None, request: api.ListAgingTasksRequest
) -> list[api.ListAgingTasksResponse.Aging]:
    """Returns tasks with the remaining time of their leases, without healthy ones if the request says so."""
    left = {(claim.task_id, claim.epoch): claim.remaining for claim in claims or ()}
    results = []
    for task in tasks:
        remaining = left.get((task.task_id, task.epoch)) if task.owner else None
        well = remaining is not None and seconds(remaining) >= seconds(request.lease_below)
        if request.HasField("lease_below") and claims is not None and (well or not task.owner):
            continue
        results.append(api.ListAgingTasksResponse.Aging(task=task, lease_remaining=remaining))
    return results


def transferred(task: task_pb2.Task, epoch: int) -> bool:
    """Whether the claim of this epoch was transferred before: the request is a repeat."""
    return task.epoch > epoch or (task.epoch == epoch and task.reason == Reason.OPERATOR_TRANSFER)


def is_held(task: task_pb2.Task, epoch: int) -> bool:
    """Whether the ledger shows the task under this claim."""
    return task.state == task_pb2.TASK_STATE_RUNNING and task.epoch == epoch


def still_held(task: task_pb2.Task) -> Unavailable:
    """Returns the error for a task whose claim is gone from etcd but not yet requeued in the ledger."""
    return Unavailable(
        f"the task was not transferred: it still runs under {describe_epoch(task.epoch)}, whose claim the coordinator"
        " did not find; repeat the transfer in a moment",
        reason=STILL_HELD,
        retry_after_seconds=1.0,
    )


def task_not_running(task: task_pb2.Task) -> WrongState:
    """Returns the error for a task without an owner."""
    state = state_name(task.state)
    return WrongState(f"the task is {state}: no worker holds it", metadata={"state": state})
