"""Converts messages about leases, schedules, webhooks, tenants, keys, agents, workers and tools to dataclasses."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from tenure.domain.agents import needs_of_builds
from tenure.sdk import agent_info as agents
from tenure.sdk import operations_info as info
from tenure.sdk.from_wire import dollars, json_of, limits_info, optional_time, task_info
from tenure.sdk.json_shape import PublicValue
from tenure.v1 import access_pb2, lease_service_pb2, task_pb2, token_pb2, tool_pb2
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import agent_service_pb2 as agent_pb
from tenure.v1 import api_key_service_pb2 as api_key_pb
from tenure.v1 import approval_service_pb2 as approval_pb
from tenure.v1 import audit_service_pb2 as audit_pb
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.common import seconds
from tenure.wire.task import policy_to_domain, usage_to_domain


class _Enum(Protocol):
    def Name(self, number: Any) -> str: ...  # noqa: N802  protobuf's name


def _name(enum: _Enum, number: int) -> str:
    """Returns the name without the enum's prefix: "" for unspecified, the number for one that we do not know."""
    prefix = enum.Name(0).removesuffix("UNSPECIFIED")
    try:
        return enum.Name(number).removeprefix(prefix) if number else ""
    except ValueError:
        return str(number)


# Leases.


def lease_info(lease: lease_service_pb2.Lease) -> info.LeaseInfo:
    return info.LeaseInfo(
        resource=lease.resource,
        holder=lease.holder,
        epoch=lease.epoch,
        claim_id=lease.claim_id,
        token=b64encode(lease.token.SerializeToString()).decode(),
        previous_epoch=lease.previous_epoch,
        reason=lease.reason,
        message=lease.message,
        ttl_seconds=seconds(lease.ttl),
        remaining_seconds=seconds(lease.remaining),
        acquired_at=optional_time(lease.acquire_time),
    )


def lease_event_info(event: lease_service_pb2.LeaseEvent) -> info.LeaseEventInfo:
    is_held = event.HasField("held")
    lease = lease_info(event.held if is_held else event.ended)
    return info.LeaseEventInfo(kind="HELD" if is_held else "ENDED", revision=event.revision, lease=lease)


def signing_key_info(key: lease_service_pb2.SigningKey) -> info.SigningKeyInfo:
    return info.SigningKeyInfo(key_id=key.key_id, public_key=b64encode(key.public_key).decode(), active=key.active)


# Schedules.


def _template(spec: task_pb2.TaskSpec) -> info.TaskTemplate:
    """Returns the spec as a task of it would show it."""
    task = task_info(task_pb2.Task(spec=spec, state=task_pb2.TASK_STATE_QUEUED))
    return info.TaskTemplate(**{field.name: getattr(task, field.name) for field in fields(info.TaskTemplate)})


def schedule_info(schedule: schedule_pb.Schedule) -> info.ScheduleInfo:
    return info.ScheduleInfo(
        schedule_id=schedule.schedule_id,
        name=schedule.name,
        task=_template(schedule.spec),
        cron=schedule.cron,
        time_zone=schedule.time_zone,
        overlap_policy=_name(schedule_pb.OverlapPolicy, schedule.overlap_policy),
        catch_up_seconds=seconds(schedule.catch_up_window),
        start_at=optional_time(schedule.start_time),
        end_at=optional_time(schedule.end_time),
        paused=schedule.paused,
        pause_reason=schedule.pause_reason,
        paused_by=schedule.pause_actor,
        next_due_at=optional_time(schedule.next_due_time),
        started_runs=schedule.started_runs,
        waiting_runs=schedule.waiting_runs,
        skipped_runs=schedule.skipped_runs,
        failed_runs=schedule.failed_runs,
        problem=schedule.problem,
        created_at=optional_time(schedule.create_time),
        updated_at=optional_time(schedule.update_time),
        revision=schedule.revision,
    )


def schedule_run_info(run: schedule_pb.ScheduleRun) -> info.ScheduleRunInfo:
    return info.ScheduleRunInfo(
        source_run_id=run.source_run_id,
        due_at=optional_time(run.due_time),
        due_times=run.due_times,
        outcome=_name(schedule_pb.RunOutcome, run.outcome),
        reason=run.reason,
        message=run.message,
        task_id=run.task_id,
        task_state=_name(task_pb2.TaskState, run.task_state),
        recorded_at=optional_time(run.record_time),
    )


def schedule_with_runs(response: schedule_pb.GetScheduleResponse) -> info.ScheduleWithRuns:
    return info.ScheduleWithRuns(
        schedule=schedule_info(response.schedule), runs=tuple(map(schedule_run_info, response.runs))
    )


# Webhooks.


def webhook_info(webhook: webhook_pb.Webhook) -> info.WebhookInfo:
    tasks = webhook.filter
    return info.WebhookInfo(
        webhook_id=webhook.webhook_id,
        name=webhook.name,
        kind=_name(webhook_pb.WebhookKind, webhook.kind),
        url=webhook.url,
        email_addresses=tuple(webhook.email_addresses),
        event_types=tuple(webhook.event_types),
        filter=info.WebhookFilter(
            states=tuple(_name(task_pb2.TaskState, state) for state in tasks.states),
            labels=dict(sorted(tasks.labels.items())),
            queue=tasks.queue,
        ),
        paused=webhook.paused,
        pause_code=webhook.pause_code,
        pause_reason=webhook.pause_reason,
        paused_by=webhook.pause_actor,
        pending_deliveries=webhook.pending_deliveries,
        held_deliveries=webhook.held_deliveries,
        dead_deliveries=webhook.dead_deliveries,
        delivered=webhook.delivered,
        last_delivered_at=optional_time(webhook.last_delivered_time),
        last_failed_at=optional_time(webhook.last_failed_time),
        problem=webhook.problem,
        old_secret_until_at=optional_time(webhook.old_secret_until_time),
        gaps=tuple(map(_gap, webhook.gaps)),
        created_at=optional_time(webhook.create_time),
        updated_at=optional_time(webhook.update_time),
        answer_links=webhook.answer_links,
    )


def _gap(gap: webhook_pb.WebhookGap) -> info.WebhookGapInfo:
    return info.WebhookGapInfo(
        reason=_name(webhook_pb.WebhookGapReason, gap.reason),
        from_at=optional_time(gap.from_time),
        to_at=optional_time(gap.to_time),
    )


def webhook_secret(
    response: webhook_pb.CreateWebhookResponse | webhook_pb.RotateWebhookSecretResponse,
) -> info.WebhookSecret:
    return info.WebhookSecret(webhook=webhook_info(response.webhook), secret=response.secret)


def delivery_info(delivery: webhook_pb.WebhookDelivery) -> info.DeliveryInfo:
    return info.DeliveryInfo(
        delivery_id=delivery.delivery_id,
        event_type=delivery.event_type,
        task_id=delivery.task_id,
        sequence=delivery.sequence,
        state=_name(webhook_pb.WebhookDeliveryState, delivery.state),
        attempts=delivery.attempts,
        hold_reason=delivery.hold_reason,
        last_status_code=delivery.last_status_code,
        last_error=delivery.last_error,
        accepted_addresses=tuple(delivery.accepted_addresses),
        created_at=optional_time(delivery.create_time),
        last_attempt_at=optional_time(delivery.last_attempt_time),
        next_attempt_at=optional_time(delivery.next_attempt_time),
        ended_at=optional_time(delivery.end_time),
    )


# Tenants and keys.


def _quota(use: tenant_pb.QuotaUse) -> info.QuotaInfo:
    quota, is_money = use.quota, use.quota.kind == tenant_pb.QUOTA_KIND_MONEY_PER_DAY
    return info.QuotaInfo(
        kind=_name(tenant_pb.QuotaKind, quota.kind),
        policy=_name(tenant_pb.QuotaPolicy, quota.policy),
        limit=None if is_money or quota.no_limit else quota.most,
        used=None if is_money else use.used,
        limit_usd=dollars(quota.most) if is_money and not quota.no_limit else None,
        used_usd=dollars(use.used) if is_money else None,
        is_default=use.is_default,
        soft_reached=use.soft_reached,
        hard_reached=use.hard_reached,
        free_in_seconds=seconds(use.room_after) if use.HasField("room_after") else None,
        warned_at=optional_time(use.warn_time),
    )


def tenant_info(tenant: tenant_pb.Tenant) -> info.TenantInfo:
    return info.TenantInfo(
        tenant=tenant.tenant,
        quotas=tuple(map(_quota, tenant.quotas)),
        revision=tenant.revision,
        changed_by=tenant.actor,
        reason=tenant.reason,
        created_at=optional_time(tenant.create_time),
        updated_at=optional_time(tenant.update_time),
    )


def usage_info(tenant: str, billed: tenant_pb.UsageSum) -> info.UsageInfo:
    return info.UsageInfo(
        tenant=tenant,
        key=billed.key,
        calls=billed.calls,
        lost_calls=billed.lost_calls,
        usage=usage_to_domain(billed.usage),
        cost_usd=dollars(billed.nano_usd),
        simulated_calls=billed.simulated_calls,
        simulated_cost_usd=dollars(billed.simulated_nano_usd),
        unpriced_calls=billed.unpriced_calls,
    )


def api_key_info(key: api_key_pb.ApiKey) -> info.ApiKeyInfo:
    return info.ApiKeyInfo(
        key_id=key.key_id,
        name=key.name,
        tenant=key.tenant,
        permissions=tuple(_name(access_pb2.Permission, permission) for permission in key.permissions),
        created_by=key.creator,
        created_at=optional_time(key.create_time),
        expires_at=optional_time(key.expire_time),
        revoked_at=optional_time(key.revoke_time),
    )


def approver_group_info(group: approval_pb.ApproverGroup) -> info.ApproverGroupInfo:
    return info.ApproverGroupInfo(
        name=group.name,
        members=tuple(group.members),
        updated_at=optional_time(group.update_time),
        updated_by=group.actor,
    )


def audit_record_info(record: audit_pb.AuditRecord) -> info.AuditRecordInfo:
    return info.AuditRecordInfo(
        number=record.number,
        record_id=record.record_id,
        recorded_at=optional_time(record.record_time),
        tenant=record.tenant,
        subject=record.subject,
        peer=record.peer,
        method=record.method,
        target=record.target,
        decision=_name(audit_pb.AuditDecision, record.decision),
        reason=record.reason,
        count=record.count,
        hash=record.hash.hex(),
        recorder=record.recorder,
    )


# Agents and their revisions.


def agent_info(agent: agent_pb.Agent) -> agents.AgentInfo:
    return agents.AgentInfo(
        name=agent.name,
        kind=_name(agent_pb.AgentKind, agent.kind),
        current_revision=agent.current_revision,
        ramp_revision=agent.ramp_revision or None,
        ramp_percent=agent.ramp_basis_points / 100,
        newest_revision=agent.newest_revision,
        created_at=optional_time(agent.create_time),
        updated_at=optional_time(agent.update_time),
        updated_by=agent.actor,
        reason=agent.reason,
    )


def agent_revision_info(revision: agent_pb.AgentRevision) -> agents.AgentRevisionInfo:
    return agents.AgentRevisionInfo(
        agent=revision.agent,
        revision=revision.revision,
        digest=revision.digest,
        builds={build.build: optional_time(build.register_time) for build in revision.builds},
        open_tasks=revision.open_tasks,
        created_at=optional_time(revision.create_time),
        created_by=revision.creator,
        retired_at=optional_time(revision.retire_time),
        definition=_definition(revision.definition) if revision.HasField("definition") else None,
    )


def _definition(definition: agent_pb.AgentDefinition) -> agents.AgentDefinitionInfo:
    agent = definition.agent
    return agents.AgentDefinitionInfo(
        kind=_name(agent_pb.AgentKind, definition.kind),
        model=agent.model,
        system=agent.system,
        allowed_tools=tuple(agent.tools.names) if agent.HasField("tools") else None,
        approve_tools=tuple(agent.approve_tools),
        max_output_tokens=agent.max_output_tokens,
        context_window_tokens=agent.context_window_tokens,
        tools=tuple(_agent_tool(tool) for tool in definition.tools),
        input_schema=json_of(definition.input_schema_json),
        output_schema=json_of(definition.output_schema_json),
        result_schema=json_of(definition.result_schema_json),
        limits=limits_info(definition.limits) if definition.HasField("limits") else None,
        policy=policy_to_domain(definition.policy) if definition.HasField("policy") else None,
        code_version=definition.code_version,
    )


def _agent_tool(tool: agent_pb.AgentTool) -> agents.AgentToolInfo:
    return agents.AgentToolInfo(
        name=tool.name,
        description=tool.description,
        input_schema=json_of(tool.input_schema_json),
        effect_class=_name(tool_pb2.EffectClass, tool.effect_class),
        needs_approval=tool.needs_approval,
        timeout_seconds=seconds(tool.timeout) if tool.HasField("timeout") else None,
    )


def agent_details(read: agent_pb.GetAgentResponse) -> agents.AgentDetails:
    needed = needs_of_builds(
        {each.revision: (each.open_tasks, tuple(build.build for build in each.builds)) for each in read.revisions}
    )
    return agents.AgentDetails(
        agent_info(read.agent),
        tuple(agent_revision_info(revision) for revision in read.revisions),
        tuple(agents.BuildInfo(need.build, need.open_tasks, need.only_here) for need in needed),
    )


def agent_registration(registered: agent_pb.RegisterAgentResponse) -> agents.AgentRegistration:
    return agents.AgentRegistration(
        agent_info(registered.agent), agent_revision_info(registered.revision), registered.created
    )


# Workers.


def worker_info(worker: admin_pb.Worker) -> info.WorkerInfo:
    return info.WorkerInfo(
        worker_id=worker.worker_id,
        pool=worker.pool,
        queues=tuple(worker.queues),
        priorities=tuple(_name(task_pb2.Priority, priority) for priority in worker.priorities),
        loops=tuple(worker.loops),
        tenants=tuple(worker.tenants),
        held_tasks=worker.claim_count,
        draining=worker.draining,
        started_at=optional_time(worker.start_time),
        coordinator=worker.coordinator_id,
        live_address=worker.live_address,
        build=worker.build,
    )


def claim_info(claim: admin_pb.Claim) -> info.ClaimInfo:
    known = claim.renewals
    renewals = info.RenewalsInfo(known.count, optional_time(known.first_time), optional_time(known.last_time))
    return info.ClaimInfo(
        task_id=claim.task_id,
        claim_id=claim.claim_id,
        epoch=claim.epoch,
        worker=claim.worker_id,
        reason=claim.reason,
        previous_epoch=claim.previous_epoch,
        remaining_seconds=seconds(claim.remaining),
        renewals=renewals if claim.HasField("renewals") else None,
    )


def queue_info(queue: task_pb2.QueueDepth) -> info.QueueInfo:
    return info.QueueInfo(
        queue=queue.queue,
        priority=_name(task_pb2.Priority, queue.priority),
        queued=queue.queued,
        held_back=queue.held_back,
        oldest_queued_at=optional_time(queue.oldest_queue_time),
    )


def refused_write_info(fence: str, write: token_pb2.RefusedWrite) -> info.RefusedWriteInfo:
    return info.RefusedWriteInfo(
        fence=fence,
        task_id=write.task_id,
        method=write.method,
        worker=write.holder,
        presented_epoch=write.presented_epoch,
        current_epoch=write.current_epoch,
        refused_at=optional_time(write.refuse_time),
    )


def aging_task_info(aging: admin_pb.ListAgingTasksResponse.Aging) -> info.AgingTaskInfo:
    task = aging.task
    return info.AgingTaskInfo(
        task_id=task.task_id,
        state=_name(task_pb2.TaskState, task.state),
        reason=task.reason,
        queue=task.queue,
        loop=task.loop,
        worker=task.owner,
        attempt=task.attempt,
        step=task.step,
        epoch=task.epoch,
        cancel_requested=task.cancel_requested,
        created_at=optional_time(task.create_time),
        updated_at=optional_time(task.update_time),
        deadline_at=optional_time(task.deadline_time),
        next_retry_at=optional_time(task.next_retry_time),
        remaining_seconds=seconds(aging.lease_remaining) if aging.HasField("lease_remaining") else None,
    )


# Tools.


def tool_info(tool: tool_pb2.OfferedTool) -> info.ToolInfo:
    definition = tool.definition
    return info.ToolInfo(
        name=definition.name,
        source=tool.source,
        effect_class=_name(tool_pb2.EffectClass, definition.effect_class),
        timeout_seconds=seconds(definition.timeout),
        output_limit_bytes=definition.output_limit_bytes,
        description=definition.description,
        input_schema=json_of(definition.input_schema_json),
    )


def _held(tool: tool_pb2.HeldTool) -> info.HeldToolInfo:
    return info.HeldToolInfo(tool.name, tool.sha256, tool.accepted_sha256, tool.difference)


def _source(source: tool_pb2.ToolSource) -> info.ToolSourceInfo:
    return info.ToolSourceInfo(
        name=source.name,
        kind=_name(tool_pb2.ToolSourceKind, source.kind),
        linked=source.linked,
        changed_at=optional_time(source.change_time),
        tool_count=source.tools,
        problems=tuple(source.problems),
        problem_count=source.problem_count,
        last_error=source.last_error,
        last_error_at=optional_time(source.last_error_time),
        held=tuple(map(_held, source.held)),
        held_count=source.held_count,
    )


def in_doubt_call_info(listed: admin_pb.ListInDoubtCallsResponse.Listed) -> info.InDoubtCallInfo:
    call = listed.call
    return info.InDoubtCallInfo(
        task_id=call.task_id,
        call_id=call.call_id,
        call_attempt=call.call_attempt,
        tool=call.tool,
        effect_class=_name(tool_pb2.EffectClass, call.effect_class),
        arguments=json_of(call.arguments_json),
        arguments_truncated=call.arguments_truncated,
        started_at=optional_time(call.start_time),
        in_doubt_at=optional_time(call.doubt_time),
        runner_id=call.runner_id,
        runner_instance=call.runner_instance,
        runner_gone=call.runner_gone,
        acts_elsewhere=call.acts_elsewhere,
        note=call.note,
        task_state=_name(task_pb2.TaskState, listed.task_state),
        task_reason=listed.task_reason,
        resolvable=listed.resolvable,
    )


OPERATIONS: Final[dict[type[Message], Callable[[Any], PublicValue]]] = {
    lease_service_pb2.Lease: lease_info,
    lease_service_pb2.LeaseEvent: lease_event_info,
    lease_service_pb2.SigningKey: signing_key_info,
    schedule_pb.Schedule: schedule_info,
    schedule_pb.GetScheduleResponse: schedule_with_runs,
    webhook_pb.Webhook: webhook_info,
    webhook_pb.CreateWebhookResponse: webhook_secret,
    webhook_pb.RotateWebhookSecretResponse: webhook_secret,
    webhook_pb.WebhookDelivery: delivery_info,
    tenant_pb.Tenant: tenant_info,
    api_key_pb.ApiKey: api_key_info,
    api_key_pb.CreateApiKeyResponse: lambda made: info.NewApiKey(api_key_info(made.api_key), made.secret),
    approval_pb.ApproverGroup: approver_group_info,
    audit_pb.AuditRecord: audit_record_info,
    agent_pb.Agent: agent_info,
    agent_pb.AgentRevision: agent_revision_info,
    agent_pb.GetAgentResponse: agent_details,
    agent_pb.RegisterAgentResponse: agent_registration,
    admin_pb.Worker: worker_info,
    admin_pb.Claim: claim_info,
    task_pb2.QueueDepth: queue_info,
    admin_pb.ListAgingTasksResponse.Aging: aging_task_info,
    tool_pb2.OfferedTool: tool_info,
    admin_pb.ListToolSourcesResponse: lambda seen: info.ToolSources(seen.instance, tuple(map(_source, seen.sources))),
    admin_pb.ListInDoubtCallsResponse.Listed: in_doubt_call_info,
}
"""The public form of each message that a command prints, besides those of `from_wire`."""
