"""The public values without protobuf of everything but tasks: leases, schedules, webhooks, tenants, keys, workers,
tools and the audit log.

Each names its fields, in the order of the JSON; their types are those of the message's fields (docs/json.md). Times are
in UTC. Money is in US dollars, as exact decimals. Durations end in their unit. Enums are their names: also those that
only a newer gateway knows, as their number.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, Final, Unpack

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from tenure.domain.agents import reference
from tenure.domain.budget import TokenUsage
from tenure.domain.task import Priority, TaskPolicy
from tenure.sdk.from_wire import public
from tenure.sdk.json_shape import PublicValue, public_class
from tenure.sdk.task_filter import source_text
from tenure.sdk.task_info import CallPlan, FunctionCall, ModelParametersInfo, TaskLimits
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import api_key_service_pb2 as api_key_pb
from tenure.v1 import approval_service_pb2 as approval_pb
from tenure.v1 import audit_service_pb2 as audit_pb
from tenure.v1 import lease_service_pb2, task_pb2, token_pb2, tool_pb2
from tenure.v1 import schedule_service_pb2 as schedule_pb
from tenure.v1 import tenant_service_pb2 as tenant_pb
from tenure.v1 import webhook_service_pb2 as webhook_pb
from tenure.wire.codec import PairOptions, counterpart, dollars, is_map

READERS: Final[dict[type[Message], Callable[[Any], Any]]] = {}
"""The function to the public form of each message here."""
SHOWN: Final[dict[type[Message], Callable[[Any], PublicValue]]] = {}
"""The function to the public form of each message here that a command prints."""
_CLASSES: Final[dict[str, Any]] = {
    "google.protobuf.Timestamp": datetime,
    "google.protobuf.Duration": float,
    "tenure.v1.TokenUsage": TokenUsage,
    "tenure.v1.CallPlan": CallPlan,
}
"""The types of fields, by the full names of their messages."""


def _shape(name: str, message: type[Message], *described: str, **options: Any) -> Any:
    """Declares the public form of a message that a command prints."""
    made = _part(name, message, *described, **options)
    SHOWN[message] = READERS[message]
    return made


def _part(
    name: str,
    message: type[Message],
    text: str,
    fields: str,
    *,
    optional: str = "",
    types: Mapping[str, Any] | None = None,
    **options: Unpack[PairOptions],
) -> Any:
    """Declares the public form of a message that is a part of others. `fields`: their names.

    `optional`: the fields besides times that are None when they are unset. `types`: of the fields that `given` makes.
    """
    descriptor: Any = message.DESCRIPTOR
    kinds = dict(types or {})
    for each in fields.split():
        if each not in kinds:
            _, field = counterpart(descriptor, name, each, options)
            assert field is not None, f"{name}.{each} is not a oneof"
            kinds[each] = _type_of(field, optional=each in optional.split())
    made = public_class(name, text, **{each: kinds[each] for each in fields.split()})
    READERS[message] = public(made, message, **options)
    _CLASSES[descriptor.full_name] = made
    return made


def _type_of(field: FieldDescriptor, *, optional: bool) -> Any:
    if is_map(field):
        return Mapping[str, str]
    kind: Any = _type_of_one(field)
    if field.is_repeated:
        return tuple[kind, ...]
    return kind | None if optional or kind is datetime else kind


def _type_of_one(field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return _CLASSES[field.message_type.full_name]
    if field.name.endswith("_json"):
        return Any
    if field.name.endswith("nano_usd"):
        return Decimal
    return _SCALARS.get(field.cpp_type, int)


_SCALARS: Final[dict[int, Any]] = {
    FieldDescriptor.CPPTYPE_STRING: str,  # also bytes, in base64
    FieldDescriptor.CPPTYPE_ENUM: str,
    FieldDescriptor.CPPTYPE_BOOL: bool,
    FieldDescriptor.CPPTYPE_DOUBLE: float,
}

# Leases.

LeaseInfo: Final[Any] = _shape(
    "LeaseInfo",
    lease_service_pb2.Lease,
    "A named lease. `token`: its fencing token, base64; empty for all but its holder. `reason` and `message`: how"
    " the previous lease ended; `previous_epoch` 0: there was none.",
    "resource holder epoch claim_id token previous_epoch reason message ttl_seconds remaining_seconds acquired_at",
    types={"token": str},
    given={"token": lambda lease: b64encode(lease.token.SerializeToString()).decode()},
)
LeaseEventInfo: Final[Any] = public_class(
    "LeaseEventInfo",
    "`kind`: HELD or ENDED. `revision`: continue after it with `tenure leases watch --after`.",
    kind=str,
    revision=int,
    lease=LeaseInfo,
)
SigningKeyInfo: Final[Any] = _shape(
    "SigningKeyInfo",
    lease_service_pb2.SigningKey,
    "A public key that verifies fencing tokens. `public_key`: base64.",
    "key_id public_key active",
)

# Schedules.


@dataclass(frozen=True, slots=True)
class TaskTemplate(PublicValue):
    """The task that a schedule submits: the fields of a task with the same names.

    `agent_revision`: the revision of `function` that each run has; None: the one that a submit gets at that time.
    """

    goal: str
    model: str
    system: str
    tools: tuple[str, ...] | None
    approve_tools: tuple[str, ...]
    max_output_tokens: int
    parameters: ModelParametersInfo | None
    loop: str
    function: FunctionCall | None
    result_schema: Any
    limits: TaskLimits
    policy: TaskPolicy
    priority: Priority
    queue: str
    labels: Mapping[str, str]
    agent_revision: int | None


public(
    TaskTemplate,
    task_pb2.TaskSpec,
    within=("agent",),
    rename={"function": "control", "agent_revision": "agent_pin.revision"},
    skip="source start_time context_window_tokens undo",
)
_CLASSES["tenure.v1.TaskSpec"] = TaskTemplate
ScheduleInfo: Final[Any] = _shape(
    "ScheduleInfo",
    schedule_pb.Schedule,
    "A schedule. `overlap_policy`: SKIP, QUEUE or CANCEL_PREVIOUS. `start_at`, `end_at`: no due time is outside.",
    "schedule_id name task cron time_zone overlap_policy catch_up_seconds start_at end_at paused pause_reason "
    "paused_by next_due_at started_runs waiting_runs skipped_runs failed_runs problem created_at updated_at "
    "revision",
    rename={"task": "spec", "catch_up_seconds": "catch_up_window", "paused_by": "pause_actor"},
)
ScheduleRunInfo: Final[Any] = _part(
    "ScheduleRunInfo",
    schedule_pb.ScheduleRun,
    "The result of a due time. `outcome`: STARTED, WAITING, SKIPPED or FAILED. `due_times`: how many it stands for.",
    "source_run_id due_at due_times outcome reason message task_id task_state recorded_at",
)
ScheduleWithRuns: Final[Any] = _shape(
    "ScheduleWithRuns",
    schedule_pb.GetScheduleResponse,
    "A schedule with its newest runs.",
    "schedule runs",
)

# Webhooks.

WebhookFilter: Final[Any] = _part(
    "WebhookFilter",
    task_pb2.TaskFilter,
    "The tasks whose changes a webhook sends, with the names and values with which it is created over HTTP; an empty"
    " field matches all. `agent`: its name, or a revision as support@7. `source`: KIND, KIND/ID or KIND/ID/RUN.",
    "reason label queue agent source text since before ended_since ended_before model min_cost max_cost min_duration "
    "max_duration task_id output_kind output_uri root_task_id forked_from_task_id",
    optional="min_duration max_duration",
    types={
        **dict.fromkeys(("agent", "source", "output_kind", "output_uri"), str),
        **dict.fromkeys(("min_cost", "max_cost"), Decimal | None),
    },
    rename={
        "reason": "reasons",
        "label": "labels",
        "since": "created_since",
        "before": "created_before",
        "task_id": "task_ids",
    },
    given={
        "agent": lambda of: reference(of.agent, of.agent_revision) if of.agent_revision else of.agent,
        "source": lambda of: source_text(of.source) if of.HasField("source") else "",
        "min_cost": lambda of: dollars(of.min_nano_usd) if of.min_nano_usd else None,
        "max_cost": lambda of: dollars(of.max_nano_usd) if of.HasField("max_nano_usd") else None,
        "output_kind": lambda of: of.output.kind,
        "output_uri": lambda of: of.output.uri_prefix,
    },
    skip="states agent_revision output min_nano_usd max_nano_usd task_id_prefix",
)
WebhookGapInfo: Final[Any] = _part(
    "WebhookGapInfo",
    webhook_pb.WebhookGap,
    "A span of changes that the webhook may have missed, and why.",
    "reason from_at to_at",
    skip="from_cursor to_cursor",
)
WebhookInfo: Final[Any] = _shape(
    "WebhookInfo",
    webhook_pb.Webhook,
    "A webhook. `kind`: STANDARD, SLACK or EMAIL. `held_deliveries`: of the pending ones, those that wait for the"
    " tenant's quota. `answer_links`: its messages have links that answer waits.",
    "webhook_id name kind url email_addresses event_types filter paused pause_code pause_reason paused_by "
    "pending_deliveries held_deliveries dead_deliveries delivered last_delivered_at last_failed_at problem "
    "old_secret_until_at gaps created_at updated_at answer_links",
    rename={"paused_by": "pause_actor"},
)
WebhookSecret: Final[Any] = _shape(
    "WebhookSecret",
    webhook_pb.CreateWebhookResponse,
    "A webhook with its new secret, which is shown this once; empty for Slack and e-mail.",
    "webhook secret",
)
SHOWN[webhook_pb.RotateWebhookSecretResponse] = public(WebhookSecret, webhook_pb.RotateWebhookSecretResponse)
DeliveryInfo: Final[Any] = _shape(
    "DeliveryInfo",
    webhook_pb.WebhookDelivery,
    "A delivery. `state`: PENDING, DELIVERED or DEAD. `hold_reason`: why it waits although no attempt failed.",
    "delivery_id event_type task_id sequence state attempts hold_reason last_status_code last_error "
    "accepted_addresses created_at last_attempt_at next_attempt_at ended_at",
)

# Stops.

StopInfo: Final[Any] = _shape(
    "StopInfo",
    admin_pb.Stop,
    "A stop in force. Of `tenant`, `agent`, `queue` and `tool` it covers what all match; empty: everything. "
    "`by_quota`: a quota of 0 of the tenant is the stop, and a higher quota ends it.",
    "tenant agent queue tool reason stopped_by stopped_at by_quota",
    rename={"stopped_at": "stop_time"},
    skip="epoch",
)
CallInFlightInfo: Final[Any] = _part(
    "CallInFlightInfo",
    admin_pb.CallInFlight,
    "A call that was in flight when a stop began; without `call_id`: a model call. `certainty`: ENDED, NOT_BEGUN, "
    "MAY_HAVE_HAPPENED, STILL_RUNS or MODEL_CALL.",
    "task_id tenant call_id tool effect_class certainty",
)
StopBegun: Final[Any] = _shape(
    "StopBegun",
    admin_pb.BeginStopResponse,
    "A stop with the calls that were in flight. `more`: there were more, or may have been. `unconfirmed`: the services "
    "where calls may still begin, because they did not confirm the stop: repeat the request.",
    "stop calls more unconfirmed",
)
StopEnded: Final[Any] = _shape(
    "StopEnded",
    admin_pb.EndStopResponse,
    "The stop that ended. `unconfirmed`: the services that follow later.",
    "stop unconfirmed",
)

# Tenants and keys.


def _is_money(use: tenant_pb.QuotaUse) -> bool:
    return use.quota.kind == tenant_pb.QUOTA_KIND_MONEY_PER_DAY


QuotaInfo: Final[Any] = _part(
    "QuotaInfo",
    tenant_pb.QuotaUse,
    "A quota and its use. `limit` and `used`: a number of tasks, submits, tokens or e-mails; None for a quota of "
    "money, which has `limit_usd` and `used_usd`. No limit at all: both limits are None.",
    "kind policy limit used limit_usd used_usd is_default soft_reached hard_reached free_in_seconds warned_at",
    optional="free_in_seconds",
    types={"limit": int | None, "used": int | None, "limit_usd": Decimal | None, "used_usd": Decimal | None},
    within=("quota",),
    rename={"free_in_seconds": "room_after"},
    given={
        "limit": lambda use: None if _is_money(use) or use.quota.no_limit else use.quota.most,
        "used": lambda use: None if _is_money(use) else use.used,
        "limit_usd": lambda use: dollars(use.quota.most) if _is_money(use) and not use.quota.no_limit else None,
        "used_usd": lambda use: dollars(use.used) if _is_money(use) else None,
    },
    skip="most no_limit",
)
QuotaStopInfo: Final[Any] = _part(
    "QuotaStopInfo",
    tenant_pb.QuotaStop,
    "A stop of a tenant that a quota of 0 is. `unconfirmed`: the services where calls may still begin, because they "
    "did not confirm the stop when the quota was set: set it again.",
    "reason stopped_by stopped_at unconfirmed",
    rename={"stopped_at": "stop_time"},
)
TenantInfo: Final[Any] = _shape(
    "TenantInfo",
    tenant_pb.Tenant,
    "A tenant with its quotas. `changed_by` and `reason`: of the newest change of its quotas. `stopped`: the stop "
    "that a quota of 0 is.",
    "tenant quotas revision changed_by reason created_at updated_at stopped",
    rename={"changed_by": "actor"},
)
UsageInfo: Final[Any] = _part(
    "UsageInfo",
    tenant_pb.UsageSum,
    "A sum of bills. `key`: the tenant, root task, model or day. `tenant`: as given; empty: the caller's.",
    "tenant key calls lost_calls usage cost_usd simulated_calls simulated_cost_usd unpriced_calls",
    types={"tenant": str},
    given={"tenant": lambda _: ""},
)
ApiKeyInfo: Final[Any] = _shape(
    "ApiKeyInfo",
    api_key_pb.ApiKey,
    "An API key, without its secret. `tenant` empty: any.",
    "key_id name tenant permissions created_by created_at expires_at revoked_at",
    rename={"created_by": "creator", "expires_at": "expire_time"},
)
ApproverGroupInfo: Final[Any] = _shape(
    "ApproverGroupInfo",
    approval_pb.ApproverGroup,
    "A group of people and programs who may answer waits.",
    "name members updated_at updated_by",
    rename={"updated_by": "actor"},
)
RuleBoundsInfo: Final[Any] = _part(
    "RuleBoundsInfo",
    tool_pb2.RuleBounds,
    "How many calls of a rule may run. `limit`: of the sum of the amounts at the path `sum_of`, exact.",
    "count sum_of limit per window_seconds beyond",
)
ToolRuleInfo: Final[Any] = _shape(
    "ToolRuleInfo",
    tool_pb2.ToolRule,
    "A rule on tool calls. `version`: of the tenant's rules, when it last changed.",
    "name tool agent when verdict reason bounds version updated_at updated_by",
    optional="bounds",
    rename={"updated_by": "changed_by"},
)
ToolRules: Final[Any] = _shape(
    "ToolRules",
    admin_pb.ListToolRulesResponse,
    "The rules of a tenant by name.",
    "rules",
    rename={"rules": "tool_rules"},
)
TriedCallInfo: Final[Any] = _part(
    "TriedCallInfo",
    admin_pb.TriedCall,
    "What a rule would have decided about a recorded call.",
    "task_id call_id tool verdict reason accepted_at",
)
TriedRule: Final[Any] = _shape(
    "TriedRule",
    admin_pb.TryToolRuleResponse,
    "What a rule would have decided about recorded calls. `calls`: the first that would not have run at once. `more`:"
    " only the first calls were decided.",
    "allowed to_approve denied calls more",
)
NewApiKey: Final[Any] = _shape(
    "NewApiKey",
    api_key_pb.CreateApiKeyResponse,
    "A new API key with its secret, which is shown this once; empty if it was written to a file.",
    "api_key secret",
)
AuditRecordInfo: Final[Any] = _shape(
    "AuditRecordInfo",
    audit_pb.AuditRecord,
    "A record of the audit log. `decision`: ALLOWED or DENIED. `hash`: of the chain up to it, hexadecimal.",
    "number record_id recorded_at tenant subject peer method target decision reason count hash recorder",
    types={"hash": str},
    given={"hash": lambda record: record.hash.hex()},
)

# Workers.

WorkerInfo: Final[Any] = _shape(
    "WorkerInfo",
    admin_pb.Worker,
    "A worker with a session. `tenants` empty: all.",
    "worker_id pool queues priorities loops tenants held_tasks draining started_at coordinator live_address build",
    rename={"held_tasks": "claim_count", "coordinator": "coordinator_id"},
    skip="session_id",
)
RenewalsInfo: Final[Any] = _part(
    "RenewalsInfo",
    admin_pb.Renewals,
    "The renewals of a claim that are known. `model_call_waits`: at the model runner, and nothing was sent.",
    "count first_at last_at model_call_waits",
)
ClaimInfo: Final[Any] = _shape(
    "ClaimInfo",
    admin_pb.Claim,
    "A live claim. `remaining_seconds`: until its lease ends without a renewal.",
    "task_id claim_id epoch worker reason previous_epoch remaining_seconds renewals",
    optional="renewals",
    rename={"worker": "worker_id"},
    skip="session_id",
)
QueueInfo: Final[Any] = _shape(
    "QueueInfo",
    task_pb2.QueueDepth,
    "The waiting tasks of a queue and priority. `held_back`: of them, those whose tenant is at its quota, and stopped"
    " ones. `stopped`: the latter.",
    "queue priority queued held_back stopped oldest_queued_at",
)
RefusedWriteInfo: Final[Any] = _part(
    "RefusedWriteInfo",
    token_pb2.RefusedWrite,
    "A refused write of a stale worker. `fence`: ledger or tools, which refused it.",
    "fence task_id method worker presented_epoch current_epoch refused_at",
    types={"fence": str},
    rename={"worker": "holder"},
    given={"fence": lambda _: ""},
)
AgingTaskInfo: Final[Any] = _shape(
    "AgingTaskInfo",
    admin_pb.ListAgingTasksResponse.Aging,
    "A task that has not ended. `remaining_seconds`: of its lease; None: without a worker, or unknown.",
    "task_id state reason queue loop worker attempt step epoch cancel_requested created_at updated_at deadline_at"
    " next_retry_at remaining_seconds",
    optional="remaining_seconds",
    within=("task",),
    rename={"worker": "task.owner", "remaining_seconds": "lease_remaining"},
)

# Tools.

ToolInfo: Final[Any] = _shape(
    "ToolInfo",
    tool_pb2.OfferedTool,
    "A tool as agents get it. `effect_class`: PURE, IDEMPOTENT, KEYED or UNSAFE. `undo_tool` and `undo_arguments`: the "
    "declared compensation; empty: none.",
    "name source effect_class timeout_seconds output_limit_bytes description input_schema undo_tool undo_arguments",
    within=("definition",),
    rename={
        "undo_tool": "definition.compensation.tool",
        "undo_arguments": "definition.compensation.arguments_json",
    },
    skip="effect_key settlement",
)
HeldToolInfo: Final[Any] = _part(
    "HeldToolInfo",
    tool_pb2.HeldTool,
    "A tool that is held until an operator accepts it. `accepted_sha256` empty: it is new.",
    "name sha256 accepted_sha256 difference",
)
ToolSourceInfo: Final[Any] = _part(
    "ToolSourceInfo",
    tool_pb2.ToolSource,
    "A tool source. `linked`: whether its server is connected; meaningless for kinds without a connection.",
    "name kind linked changed_at tool_count problems problem_count last_error last_error_at held held_count",
    rename={"tool_count": "tools"},
)
ToolSources: Final[Any] = _shape(
    "ToolSources",
    admin_pb.ListToolSourcesResponse,
    "The tool sources as one replica of the tool service sees them.",
    "seen_by sources",
    rename={"seen_by": "instance"},
)
TaskGroupInfo: Final[Any] = _shape(
    "TaskGroupInfo",
    admin_pb.TaskGroup,
    "Tasks in the same state, for the same reason. `task_ids`: the newest of them, at most 3.",
    "state reason count task_ids",
)
ActOutcomeInfo: Final[Any] = _shape(
    "ActOutcomeInfo",
    admin_pb.ActOnTasksResponse.Outcome,
    "What became of one of many tasks. `result`: DONE, ALREADY or REFUSED, for a `reason` with a `message`. "
    "`state`: after the act. A cancel, and a wait of a running task, are recorded and carried out soon.",
    "task_id result state reason message",
)
InDoubtCallInfo: Final[Any] = _shape(
    "InDoubtCallInfo",
    admin_pb.ListInDoubtCallsResponse.Listed,
    "A call in doubt. `resolvable`: its task waits for a resolution. `runner_gone`: proven; else it may still act.",
    "task_id call_id call_attempt tool effect_class arguments arguments_truncated started_at in_doubt_at "
    "runner_id runner_instance runner_gone acts_elsewhere note task_state task_reason resolvable",
    within=("call",),
    rename={"in_doubt_at": "call.doubt_time"},
)
PlanInfo: Final[Any] = _shape(
    "PlanInfo",
    tool_pb2.CountedPlan,
    'A plan with what it has counted. `calls_left`, `total_left`: 0 when it is over; `total_left` "": it has no limit. '
    "`ended_early_at`: when `ended_by` ended it before its time.",
    "plan calls calls_left total total_left ended_early_at ended_by end_reason",
    rename={"ended_early_at": "early_end_time"},
)
EffectCallInfo: Final[Any] = _shape(
    "EffectCallInfo",
    tool_pb2.EffectCall,
    "A call with an effect key. `key`: the values of the declared arguments, by their JSON pointers. `fact`: what the "
    'call says of the effect: RUNNING, HAPPENED, UNKNOWN or NONE. `state` "": the record was deleted with its task. '
    "`idempotency_key`: of a call that ran. `has_key`: it decides about the next call.",
    "tool key scope task_id call_id state status detail fact call_attempt epoch idempotency_key accepted_at started_at "
    "finished_at has_key",
)
