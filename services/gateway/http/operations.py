"""The handlers of operations, schedules and usage that do more than translate a request and its answer."""

from __future__ import annotations

import time
from typing import Any, Final

from services.gateway.http import answers
from services.gateway.http import requests as req
from services.gateway.http.call import HttpCall
from services.gateway.http.tasks import submit_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened
from tenure.sdk import operations_from_wire as convert
from tenure.sdk.from_wire import task_info
from tenure.sdk.submit_options import argument_of
from tenure.sdk.submit_request import is_given
from tenure.sdk.task_info import TaskInfo
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.wire.access import PERMISSIONS
from tenure.wire.common import optional_timestamp
from tenure.wire.tool import decision_to_wire

_DAY_SECONDS = 24 * 3600


def _field_of(field: str) -> str:
    """Returns what the body of a request calls a field: `task.max_cost` for `spec.limits.max_nano_usd`."""
    return f"task.{argument_of(field)}" if field.startswith("spec.") else field


async def caller(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.KnownCaller:
    known = await call.one(call.stubs.admin.GetCaller, admin.GetCallerRequest())
    permissions = tuple(PERMISSIONS.to_domain(one).value for one in known.permissions)
    return answers.KnownCaller(known.tenant, known.subject, permissions, known.authenticated, known.any_tenant)


# Schedules.


def _spec(body: req.SubmitBody) -> task_pb2.TaskSpec:
    """Returns what a schedule submits. The schedule sets the source of its tasks, and when they start."""
    own = (name for name in ("start_at", "source", "request_id") if is_given(body.options[name]))
    violations = [(f"task.{name}", "is set by the schedule") for name in own]
    if is_given(body.options["files"]):
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
    "field_of": _field_of,
}
"""How the bodies of schedules differ from the requests of the method."""

# Operations.


async def refusals(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.RefusedWrites:
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
            return DidNotHappen(body.runner_is_gone, body.runner_proven_gone)
        case req.ResolutionKind.ABANDONED:
            return Abandon()


# Usage.


async def usage(call: HttpCall, query: req.UsageQuery, _body: None) -> answers.UsagePage:
    tenant = call.path("name")
    request = tenant_pb.GetTenantUsageRequest(
        tenant=tenant,
        group_by=tenant_pb.UsageGrouping.Value(f"USAGE_GROUPING_{query.by}"),
        begin_time=optional_timestamp(query.since),
        end_time=optional_timestamp(query.until),
        root_task_id=query.root_task_id,
        page_size=query.page_size,
        page_token=query.page_token,
    )
    if query.since is None and not query.root_task_id:
        request.begin_time.FromSeconds(int(time.time()) - _DAY_SECONDS)
    page = await call.one(call.stubs.tenants.GetTenantUsage, request)
    return answers.UsagePage(tuple(convert.usage_info(tenant, one) for one in page.sums), page.next_page_token)
