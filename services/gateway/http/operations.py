"""The handlers of operations, schedules and usage that do more than translate a request and its answer."""

from __future__ import annotations

import time
from typing import Any, Final

from services.gateway.client_fields import new_id
from services.gateway.http import answers
from services.gateway.http import requests as req
from services.gateway.http.call import HttpCall
from services.gateway.http.tasks import filter_of, submit_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened
from tenure.sdk import operations_from_wire as convert
from tenure.sdk.from_wire import task_info
from tenure.sdk.option_values import nano_usd
from tenure.sdk.task_info import TaskInfo
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.wire.access import PERMISSIONS
from tenure.wire.common import optional_timestamp
from tenure.wire.tool import decision_to_wire

_DAY_SECONDS = 24 * 3600
ACT_SECONDS = 60.0


async def caller(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.KnownCaller:
    known = await call.one(call.stubs.admin.GetCaller, admin.GetCallerRequest())
    permissions = tuple(PERMISSIONS.to_domain(one).value for one in known.permissions)
    return answers.KnownCaller(
        known.tenant,
        known.subject,
        permissions,
        known.authenticated,
        known.any_tenant,
        known.installation,
        known.stack_folder,
    )


# Schedules.


def _spec(body: req.SubmitBody) -> task_pb2.TaskSpec:
    """Returns what a schedule submits. The schedule sets the source of its tasks, and when they start."""
    given = body.options
    own = (name for name in ("start_at", "source", "request_id") if name in given)
    violations = [(f"task.{name}", "is set by the schedule") for name in own]
    if "files" in given:
        violations.append(("task.files", "must be empty: a schedule keeps no files"))
    if violations:
        raise InvalidRequest(violations=violations)
    try:
        return submit_of(body).spec
    except InvalidRequest as error:
        in_task = [(f"task.{violation.field}", violation.description) for violation in error.violations]
        raise InvalidRequest(violations=in_task) from None


AS_SCHEDULE: Final[dict[str, Any]] = {
    "rename": {"task": "spec", "catch_up_seconds": "catch_up_window"},
    "convert": {"task": (_spec, None)},
}
"""How the bodies of schedules differ from the requests of the method."""

AS_WEBHOOK: Final[dict[str, Any]] = {"convert": {"filter": (filter_of, None)}}
"""How the body of a webhook differs from the request of the method."""

# Operations.


async def refusals(call: HttpCall, _query: req.NoQuery, _body: None) -> Any:
    listed = await call.one(call.stubs.admin.ListRefusals, admin.ListRefusalsRequest(task_id=call.path("task_id")))
    of_ledger = [convert.refused_write_info("ledger", one) for one in listed.ledger]
    of_tools = [convert.refused_write_info("tools", one) for one in listed.tools]
    return answers.RefusedWrites((*of_ledger, *of_tools))


# Calls in doubt.


async def resolve(call: HttpCall, _query: req.NoQuery, body: req.ResolutionBody) -> TaskInfo:
    request = admin.ResolveInDoubtCallRequest(
        task_id=call.path("task_id"),
        call_id=call.path("call_id"),
        call_attempt=body.call_attempt,
        decision=decision_to_wire(_decision(body)),
        reason=body.reason,
        request_id=body.request_id or call.request_id,
    )
    return task_info((await call.one(call.stubs.admin.ResolveInDoubtCall, request)).task)


def _decision(body: req.ResolutionBody) -> Decision:
    match body.resolution:
        case req.ResolutionKind.HAPPENED:
            return Happened(body.result)
        case req.ResolutionKind.DID_NOT_HAPPEN:
            return DidNotHappen(body.runner_is_gone)
        case req.ResolutionKind.ABANDONED:
            return Abandon()


# Acts on many tasks.


async def act(call: HttpCall, _query: req.NoQuery, body: req.ActBody) -> Any:
    request = admin.ActOnTasksRequest(
        operation_id=body.operation_id or call.request_id or new_id(),
        filter=filter_of(body.filter),
        reason=body.reason,
        tasks_per_second=body.tasks_per_second,
        dry_run=body.dry_run,
        page_token=body.page_token,
    )
    match body.act:
        case req.ActKind.CANCEL:
            request.cancel.SetInParent()
        case req.ActKind.REQUEUE:
            request.requeue.extra_tokens, request.requeue.extra_steps = body.extra_tokens, body.extra_steps
            request.requeue.extra_nano_usd = nano_usd("extra_cost", body.extra_cost)
            request.requeue.SetInParent()
        case req.ActKind.BEGIN_WAIT:
            until = optional_timestamp(body.until)
            request.begin_wait.CopyFrom(ledger_pb2.OperatorRequest.BeginWait(question=body.question, until=until))
        case req.ActKind.END_WAIT:
            request.end_wait.SetInParent()
    page = await call.while_connected(call.one(call.stubs.admin.ActOnTasks, request, timeout=ACT_SECONDS))
    return answers.ActPage(
        request.operation_id,
        tuple(map(convert.OPERATIONS[admin.ActOnTasksResponse.Outcome], page.outcomes)),
        page.next_page_token,
        tuple(map(convert.OPERATIONS[admin.TaskGroup], page.groups)),
        page.more,
    )


# Usage.


async def usage(call: HttpCall, query: req.UsageQuery, _body: None) -> Any:
    tenant = call.path("name")
    request = tenant_pb.GetTenantUsageRequest(
        tenant=tenant,
        group_by=tenant_pb.UsageGrouping.Value(f"USAGE_GROUPING_{query.by}"),
        begin_time=optional_timestamp(query.since),
        end_time=optional_timestamp(query.until),
        root_task_id=query.root_task_id,
        page_size=query.page_size,
        page_token=query.page_token,
        dearest_first=query.dearest_first,
    )
    if query.since is None and not query.root_task_id:
        request.begin_time.FromSeconds(int(time.time()) - _DAY_SECONDS)
    page = await call.one(call.stubs.tenants.GetTenantUsage, request)
    return answers.UsagePage(tuple(convert.usage_info(tenant, one) for one in page.sums), page.next_page_token)
