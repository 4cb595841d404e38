"""The handlers of the routes for schedules, webhooks, tenants, the audit log, and operations."""

from __future__ import annotations

import time

from services.gateway.http import answers
from services.gateway.http import requests as req
from services.gateway.http.call import HttpCall
from services.gateway.http.tasks import submit_of
from tenure.domain.errors import InvalidRequest
from tenure.domain.in_doubt import Abandon, Decision, DidNotHappen, Happened
from tenure.sdk import operations_from_wire as convert
from tenure.sdk import operations_info as info
from tenure.sdk.from_wire import task_info
from tenure.sdk.submit_request import is_given
from tenure.sdk.task_info import TaskInfo
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import audit_service_pb2 as audit_pb
from tenure.v1 import lease_service_pb2 as lease_pb
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import task_pb2
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.access import PERMISSIONS
from tenure.wire.common import OVERLAP_POLICIES, duration, optional_timestamp
from tenure.wire.tool import decision_to_wire

_DAY_SECONDS = 24 * 3600


async def caller(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.KnownCaller:
    known = await call.one(call.stubs.admin.GetCaller, admin.GetCallerRequest())
    permissions = tuple(PERMISSIONS.to_domain(one).value for one in known.permissions)
    return answers.KnownCaller(known.tenant, known.subject, permissions, known.authenticated, known.any_tenant)


# Schedules.


def _spec(body: req.SubmitBody) -> task_pb2.TaskSpec:
    """Returns what a schedule submits. The schedule sets the source of its tasks, and when they start."""
    own = (name for name in ("start_at", "source", "request_id") if is_given(body.options[name]))
    violations = [(f"task.{name}", "is set by the schedule") for name in own]
    if violations:
        raise InvalidRequest(violations=violations)
    try:
        return submit_of(body).spec
    except InvalidRequest as error:
        in_task = [(f"task.{violation.field}", violation.description) for violation in error.violations]
        raise InvalidRequest(violations=in_task) from None


async def create_schedule(call: HttpCall, _query: req.NoQuery, body: req.ScheduleBody) -> info.ScheduleInfo:
    request = schedule_pb.CreateScheduleRequest(
        name=body.name,
        spec=_spec(body.task),
        cron=body.cron,
        time_zone=body.time_zone,
        overlap_policy=OVERLAP_POLICIES.to_wire(body.overlap_policy),
        catch_up_window=None if body.catch_up_seconds is None else duration(body.catch_up_seconds),
        start_time=optional_timestamp(body.start_at),
        end_time=optional_timestamp(body.end_at),
    )
    created = await call.one(call.stubs.schedules.CreateSchedule, request)
    return convert.schedule_info(created.schedule)


async def list_schedules(call: HttpCall, query: req.Page, _body: None) -> answers.SchedulePage:
    request = schedule_pb.ListSchedulesRequest(page_size=query.page_size, page_token=query.page_token)
    page = await call.one(call.stubs.schedules.ListSchedules, request)
    return answers.SchedulePage(tuple(map(convert.schedule_info, page.schedules)), page.next_page_token)


async def get_schedule(call: HttpCall, query: req.ScheduleQuery, _body: None) -> info.ScheduleWithRuns:
    request = schedule_pb.GetScheduleRequest(schedule=call.path("schedule"), run_count=query.runs)
    return convert.schedule_with_runs(await call.one(call.stubs.schedules.GetSchedule, request))


async def update_schedule(call: HttpCall, _query: req.NoQuery, body: req.ScheduleChangeBody) -> info.ScheduleInfo:
    request = schedule_pb.UpdateScheduleRequest(
        schedule=call.path("schedule"),
        expected_revision=body.expected_revision,
        spec=None if body.task is None else _spec(body.task),
        cron=body.cron,
        time_zone=body.time_zone,
        catch_up_window=None if body.catch_up_seconds is None else duration(body.catch_up_seconds),
        start_time=optional_timestamp(body.start_at),
        end_time=optional_timestamp(body.end_at),
        clear_start_time=body.clear_start_at,
        clear_end_time=body.clear_end_at,
    )
    if body.overlap_policy is not None:
        request.overlap_policy = OVERLAP_POLICIES.to_wire(body.overlap_policy)
    updated = await call.one(call.stubs.schedules.UpdateSchedule, request)
    return convert.schedule_info(updated.schedule)


async def pause_schedule(call: HttpCall, _query: req.NoQuery, body: req.ReasonBody) -> info.ScheduleInfo:
    request = schedule_pb.PauseScheduleRequest(schedule=call.path("schedule"), reason=body.reason)
    return convert.schedule_info((await call.one(call.stubs.schedules.PauseSchedule, request)).schedule)


async def resume_schedule(call: HttpCall, _query: req.NoQuery, _body: None) -> info.ScheduleInfo:
    request = schedule_pb.ResumeScheduleRequest(schedule=call.path("schedule"))
    return convert.schedule_info((await call.one(call.stubs.schedules.ResumeSchedule, request)).schedule)


async def trigger_schedule(call: HttpCall, _query: req.NoQuery, body: req.TriggerBody) -> TaskInfo:
    request = schedule_pb.TriggerScheduleRequest(
        schedule=call.path("schedule"), request_id=body.request_id or call.request_id
    )
    return task_info((await call.one(call.stubs.schedules.TriggerSchedule, request)).task)


async def delete_schedule(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.Deleted:
    request = schedule_pb.DeleteScheduleRequest(schedule=call.path("schedule"))
    return answers.Deleted((await call.one(call.stubs.schedules.DeleteSchedule, request)).deleted)


# Webhooks.


async def list_webhooks(call: HttpCall, query: req.Page, _body: None) -> answers.WebhookPage:
    request = webhook_pb.ListWebhooksRequest(page_size=query.page_size, page_token=query.page_token)
    page = await call.one(call.stubs.webhooks.ListWebhooks, request)
    return answers.WebhookPage(tuple(map(convert.webhook_info, page.webhooks)), page.next_page_token)


async def get_webhook(call: HttpCall, _query: req.NoQuery, _body: None) -> info.WebhookInfo:
    request = webhook_pb.GetWebhookRequest(webhook=call.path("webhook"))
    return convert.webhook_info((await call.one(call.stubs.webhooks.GetWebhook, request)).webhook)


async def pause_webhook(call: HttpCall, _query: req.NoQuery, body: req.ReasonBody) -> info.WebhookInfo:
    request = webhook_pb.PauseWebhookRequest(webhook=call.path("webhook"), reason=body.reason)
    return convert.webhook_info((await call.one(call.stubs.webhooks.PauseWebhook, request)).webhook)


async def resume_webhook(call: HttpCall, _query: req.NoQuery, _body: None) -> info.WebhookInfo:
    request = webhook_pb.ResumeWebhookRequest(webhook=call.path("webhook"))
    return convert.webhook_info((await call.one(call.stubs.webhooks.ResumeWebhook, request)).webhook)


async def deliveries(call: HttpCall, query: req.DeliveriesQuery, _body: None) -> answers.DeliveryPage:
    states = [webhook_pb.WebhookDeliveryState.Value(f"WEBHOOK_DELIVERY_STATE_{state}") for state in query.state]
    request = webhook_pb.ListWebhookDeliveriesRequest(
        webhook=call.path("webhook"), states=states, page_size=query.page_size, page_token=query.page_token
    )
    page = await call.one(call.stubs.webhooks.ListWebhookDeliveries, request)
    return answers.DeliveryPage(tuple(map(convert.delivery_info, page.deliveries)), page.next_page_token)


async def replay(call: HttpCall, _query: req.NoQuery, body: req.ReplayBody) -> answers.Replayed:
    request = webhook_pb.ReplayWebhookDeliveriesRequest(webhook=call.path("webhook"), delivery_id=body.delivery_id)
    done = await call.one(call.stubs.webhooks.ReplayWebhookDeliveries, request)
    return answers.Replayed(done.replayed, done.remaining)


# Workers, queues and leases.


async def workers(call: HttpCall, query: req.Page, _body: None) -> answers.WorkerPage:
    request = admin.ListWorkersRequest(page_size=query.page_size, page_token=query.page_token)
    page = await call.one(call.stubs.admin.ListWorkers, request)
    return answers.WorkerPage(tuple(map(convert.worker_info, page.workers)), page.next_page_token)


async def drain(call: HttpCall, _query: req.NoQuery, body: req.ReasonBody) -> answers.Workers:
    request = admin.DrainWorkerRequest(worker_id=call.path("worker_id"), reason=body.reason)
    drained = await call.one(call.stubs.admin.DrainWorker, request)
    return answers.Workers(tuple(map(convert.worker_info, drained.workers)))


async def claims(call: HttpCall, query: req.ClaimsQuery, _body: None) -> answers.ClaimList:
    listed = await call.one(call.stubs.admin.ListClaims, admin.ListClaimsRequest(task_id=query.task_id))
    return answers.ClaimList(tuple(map(convert.claim_info, listed.claims)))


async def queues(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.Queues:
    listed = await call.one(call.stubs.admin.ListQueues, admin.ListQueuesRequest())
    return answers.Queues(tuple(map(convert.queue_info, listed.queues)))


async def leases(call: HttpCall, query: req.LeasesQuery, _body: None) -> answers.LeasePage:
    request = lease_pb.ListLeasesRequest(prefix=query.prefix, page_size=query.page_size, page_token=query.page_token)
    page = await call.one(call.stubs.leases.ListLeases, request)
    return answers.LeasePage(tuple(map(convert.lease_info, page.leases)), page.next_page_token, page.revision)


async def refusals(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.RefusedWrites:
    listed = await call.one(call.stubs.admin.ListRefusals, admin.ListRefusalsRequest(task_id=call.path("task_id")))
    of_ledger = [convert.refused_write_info("ledger", one) for one in listed.ledger]
    of_tools = [convert.refused_write_info("tools", one) for one in listed.tools]
    return answers.RefusedWrites((*of_ledger, *of_tools))


# Calls in doubt, tools.


async def in_doubt(call: HttpCall, query: req.InDoubtQuery, _body: None) -> answers.InDoubtPage:
    request = admin.ListInDoubtCallsRequest(
        task_id=query.task_id, all=query.all, page_size=query.page_size, page_token=query.page_token
    )
    page = await call.one(call.stubs.admin.ListInDoubtCalls, request)
    return answers.InDoubtPage(tuple(map(convert.in_doubt_call_info, page.calls)), page.next_page_token)


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


async def tools(call: HttpCall, _query: req.NoQuery, _body: None) -> answers.ToolList:
    listed = await call.one(call.stubs.admin.ListTools, admin.ListOfferedToolsRequest())
    return answers.ToolList(tuple(map(convert.tool_info, listed.tools)))


# Tenants, usage and the audit log.


async def list_tenants(call: HttpCall, query: req.Page, _body: None) -> answers.TenantPage:
    request = tenant_pb.ListTenantsRequest(page_size=query.page_size, page_token=query.page_token)
    page = await call.one(call.stubs.tenants.ListTenants, request)
    return answers.TenantPage(tuple(map(convert.tenant_info, page.tenants)), page.next_page_token)


async def get_tenant(call: HttpCall, _query: req.NoQuery, _body: None) -> info.TenantInfo:
    request = tenant_pb.GetTenantRequest(tenant=call.path("name"))
    return convert.tenant_info((await call.one(call.stubs.tenants.GetTenant, request)).tenant)


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


async def audit(call: HttpCall, query: req.AuditQuery, _body: None) -> answers.AuditPage:
    request = audit_pb.ListAuditRecordsRequest(
        page_size=query.page_size,
        page_token=query.page_token,
        oldest_first=query.oldest_first,
        tenant=query.of_tenant,
        subject=query.subject,
        method=query.method,
    )
    if query.decision is not None:
        request.decision = audit_pb.AuditDecision.Value(f"AUDIT_DECISION_{query.decision}")
    page = await call.one(call.stubs.audit.ListAuditRecords, request)
    return answers.AuditPage(tuple(map(convert.audit_record_info, page.records)), page.next_page_token)
